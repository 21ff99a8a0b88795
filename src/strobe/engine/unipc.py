"""UniPC: denoise steps that go on from their own latents, by a predictor and a corrector over the last clean latents."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from strobe.cache.kv import CacheStep
from strobe.core.spans import DENOISE_STEP, RENOISE, span
from strobe.engine.schedule import NoiseSchedule
from strobe.engine.transformer import TextContext, Transformer
from strobe.models.wan.flow import to_x0


def denoise_unipc(dit: Transformer, x: Tensor, texts: Sequence[TextContext], cache: CacheStep, schedule: NoiseSchedule) -> Tensor:
    """Turn noise into the clean latents of one frame block by UniPC of order 2 (B2, on clean latents).

    A step predicts the flow of ``x`` and ``x0 = x - sigma * flow``; with that it corrects how the step before came to ``x``, and
    goes on from there to the next level. The last step ends at its x0.

    Args:
        dit: predicts flows.
        x: noise [B, F, C, Y, X], float32, at the first level of the schedule.
        texts: of each step.
        cache: opened for the frame block.
        schedule: with sampler "unipc".

    Returns:
        x0 [B, F, C, Y, X], float32.

    Source: Zhao et al. 2023 (UniPC); Wan2.2, `wan/utils/fm_solvers_unipc.py` at 00b69de.
    """
    sigmas = schedule.sigmas
    clean: list[Tensor] = []
    before = x  # where the last step went on from
    for index, sigma in enumerate(sigmas):
        with span(DENOISE_STEP, index):
            flow = dit.flow(x, schedule.warped[index], texts[index], cache)
            with span(RENOISE):
                clean.append(to_x0(x, flow, sigma))
                if index + 1 < len(sigmas):
                    before, x = onward(sigmas, index, x, before, clean)
    return clean[-1]


def onward(sigmas: Sequence[float], index: int, x: Tensor, before: Tensor, clean: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the corrected latents at level `index`, which is not the last, and those at the next one.

    Args:
        sigmas: levels.
        index: of the step.
        x: latents that the step began with.
        before: corrected latents at the level before; unused at the first.
        clean: x0 of every step up to this one.
    """
    here = _combined(correction(sigmas, index), (before, *clean[-3:])) if index else x
    return here, _combined(prediction(sigmas, index), (here, *clean[-2:]))


def prediction(sigmas: Sequence[float], index: int) -> tuple[float, ...]:
    """Return the factors by which latents at level `index`, and the last two (first: one) clean ones, make those at the next."""
    here, there = sigmas[index : index + 2]
    h = _log_snr(there) - _log_snr(here)
    rest = (there - 1) * math.expm1(-h)
    if not index:
        return there / here, rest
    slope = rest / 2 / ((_log_snr(sigmas[index - 1]) - _log_snr(here)) / h)
    return there / here, slope, rest - slope


def correction(sigmas: Sequence[float], index: int) -> tuple[float, ...]:
    """Return the factors by which latents at level `index - 1`, and the last three (first: two) clean ones, make those here.

    The last of the clean latents are those found at level `index`.
    """
    here, there = sigmas[index - 1 : index + 1]
    h = _log_snr(there) - _log_snr(here)
    rest = (there - 1) * math.expm1(-h)
    if index == 1:
        return there / here, rest / 2, rest / 2
    first = -1 / math.expm1(-h) - 1 / h  # what a change that is linear over the step counts for, and one that is quadratic
    second = -1 / math.expm1(-h) - 2 * first / h
    ratio = (_log_snr(sigmas[index - 2]) - _log_snr(here)) / h
    past = rest * (first - second) / (1 - ratio)
    return there / here, past / ratio, rest - past / ratio - (rest * first - past), rest * first - past


def _log_snr(sigma: float) -> float:
    return math.log(1 - sigma) - math.log(sigma)


def _combined(factors: Sequence[float], tensors: Sequence[Tensor]) -> Tensor:
    """Add tensors times factors in float64; the result is float32."""
    parts = [factor * tensor.double() for factor, tensor in zip(factors, tensors, strict=True)]
    return torch.stack(parts).sum(0).float()
