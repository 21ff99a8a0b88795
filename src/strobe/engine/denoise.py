"""The steps of a frame block in the transformer: noise, samplers, prompts that go over into each other, and the commit."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from strobe.cache.kv import CacheStep
from strobe.core.device import upload
from strobe.core.spans import DENOISE_STEP, RENOISE, span
from strobe.engine.config import NoiseSchedule
from strobe.engine.prompts import Blend
from strobe.engine.transformer import TextContext, Transformer
from strobe.models.wan.flow import add_noise, to_x0


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockNoise:
    """All noise of one frame block.

    Args:
        initial: pure noise [B, F, C, Y, X], float32.
        renoise: what is mixed in after each denoise step but the last.
    """

    initial: Tensor
    renoise: tuple[Tensor, ...]


def draw(seed: int, sample: int, frame_block: int, step: int, out: Tensor) -> Tensor:
    """Fill a tensor on the CPU, float32, with standard normal noise that depends on its shape and on nothing but the arguments.

    Args:
        seed: of the stream.
        sample: number of the stream in its batch.
        frame_block: number of the frame block.
        step: 0 for the initial noise, i + 1 for what is mixed in after denoise step i.
        out: written in place, and returned.
    """
    key = hashlib.blake2b(f"{seed}/{sample}/{frame_block}/{step}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key, "little", signed=True))
    return out.normal_(generator=generator)


def draw_block(
    seed: int, samples: Sequence[int], frame_block: int, num_steps: int, shape: Sequence[int], device: torch.device
) -> BlockNoise:
    """Draw all noise of one frame block for `samples`; `shape` is [F, C, Y, X]. Drawn on the CPU, then moved to `device`.

    For a GPU it is drawn where it is sent from: a copy would wake torch's threads, and whichever is late makes frames late.
    """

    def drawn(step: int) -> Tensor:
        noise = torch.empty(len(samples), *shape, dtype=torch.float32, pin_memory=device.type == "cuda")
        for sample, out in zip(samples, noise, strict=True):
            draw(seed, sample, frame_block, step, out)
        return upload(noise, device)

    initial, *renoise = (drawn(step) for step in range(num_steps))
    return BlockNoise(initial=initial, renoise=tuple(renoise))


def onward(sigmas: Sequence[float], index: int, x: Tensor, before: Tensor, clean: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the corrected latents at level `index`, which is not the last, and those at the next one.

    Args:
        sigmas: levels.
        index: of the step.
        x: latents that the step began with.
        before: corrected latents at the level before; unused at the first.
        clean: x0 of the steps up to this one, of the last three at least.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class BlendedText:
    """The prompts of a frame block's passes.

    Args:
        first: of the denoise steps before the last `num_last`.
        last: of those.
        kept: of the passes that write keys and values.
    """

    first: TextContext
    last: TextContext
    num_last: int
    kept: TextContext


def read_blend(dit: Transformer, blend: Blend, num_steps: int) -> BlendedText:
    """Prepare the texts of a blend for a schedule of so many denoise steps."""
    last = dit.read(blend.target)
    first = last if blend.finished else dit.read(blend.start)
    return BlendedText(first=first, last=last, num_last=blend.steps(num_steps), kept=last if blend.nearer_to_target else first)


def denoise(
    dit: Transformer,
    noise: BlockNoise,
    schedule: NoiseSchedule,
    text: BlendedText,
    cache: CacheStep,
    before_step: Callable[[], None],
) -> Tensor:
    """Turn noise into the clean latents of one frame block, with the old prompt in the first steps and the new one in the last.

    Each step predicts the flow and goes to ``x0 = x - sigma * flow``. With sampler "renoise" all but the last mix fresh noise in:
    ``x = (1 - sigma_next) * x0 + sigma_next * noise``. "unipc" is UniPC of order 2 (B2, on clean latents): with x0 it corrects
    how the step before came to ``x``, and goes on from there to the next level.

    Args:
        dit: predicts flows.
        noise: at the first level of the schedule.
        schedule: its steps, and their sampler.
        text: of the steps.
        cache: opened for the frame block.
        before_step: called before each step; what it raises ends the work.

    Returns:
        x0 [B, F, C, Y, X], float32, of the last step.

    Source: Self-Forcing (Huang et al. 2025), `pipeline/causal_inference.py`; Zhao et al. 2023 (UniPC); Wan2.2,
    `wan/utils/fm_solvers_unipc.py` at 00b69de.
    """
    sigmas = schedule.sigmas
    clean: list[Tensor] = []
    x = before = noise.initial  # the latter is where the last step went on from
    for index, sigma in enumerate(sigmas):
        before_step()
        with span(DENOISE_STEP, index):
            told = text.first if index < len(sigmas) - text.num_last else text.last
            flow = dit.flow(x, schedule.warped[index], told, cache)
            with span(RENOISE):
                clean = [*clean[-2:], to_x0(x, flow, sigma)]
                if index + 1 == len(sigmas):
                    break
                if schedule.sampler == "unipc":
                    before, x = onward(sigmas, index, x, before, clean)
                else:
                    x = add_noise(clean[-1], noise.renoise[index], sigmas[index + 1])
    return clean[-1]
