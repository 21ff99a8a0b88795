"""The two steps of a frame block in the transformer: denoise, and commit to the cache."""

from __future__ import annotations

from torch import Tensor

from strobe.cache.kv import CacheStep
from strobe.core.spans import COMMIT, DENOISE_STEP, RENOISE, span
from strobe.engine.noise import BlockNoise
from strobe.engine.schedule import NoiseSchedule
from strobe.engine.transformer import TextContext, Transformer
from strobe.models.wan.flow import add_noise, to_x0


def denoise(dit: Transformer, noise: BlockNoise, text: TextContext, cache: CacheStep, schedule: NoiseSchedule) -> Tensor:
    """Turn noise into the clean latents of one frame block.

    Each step predicts the flow and goes to ``x0 = x - sigma * flow``; all but the last mix fresh noise in:
    ``x = (1 - sigma_next) * x0 + sigma_next * noise``.

    Returns:
        x0 [B, F, C, Y, X], float32.

    Source: Self-Forcing (Huang et al. 2025), `pipeline/causal_inference.py`.
    """
    sigmas = schedule.sigmas
    x = noise.initial
    for index, sigma in enumerate(sigmas):
        with span(DENOISE_STEP, index):
            flow = dit.flow(x, schedule.warped[index], text, cache)
            with span(RENOISE):
                x0 = to_x0(x, flow, sigma)
                x = x0 if index + 1 == len(sigmas) else add_noise(x0, noise.renoise[index], sigmas[index + 1])
    return x


def commit(dit: Transformer, latents: Tensor, text: TextContext, cache: CacheStep) -> None:
    """Write the keys and values of finished latents [B, F, C, Y, X] into the cache, in one pass at timestep 0."""
    with span(COMMIT):
        dit.write(latents, text, cache)
