"""The text of a frame block on its way from one prompt to another: first denoise steps under the old, the last under the new."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from strobe.cache.kv import CacheStep
from strobe.engine.denoise import denoise
from strobe.engine.noise import BlockNoise
from strobe.engine.prompts import Blend
from strobe.engine.schedule import NoiseSchedule
from strobe.engine.transformer import TextContext, Transformer
from strobe.engine.unipc import denoise_unipc
from strobe.models.wan.flow import add_noise


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


def denoise_blended(dit: Transformer, noise: BlockNoise, schedule: NoiseSchedule, text: BlendedText, cache: CacheStep) -> Tensor:
    """Turn noise into clean latents by a schedule's sampler, with the old prompt in the first steps and the new one in the last.

    Returns:
        x0 [B, F, C, Y, X], float32.
    """
    num_first = max(0, len(schedule.sigmas) - text.num_last)
    if schedule.sampler == "unipc":
        texts = [text.first if step < num_first else text.last for step in range(len(schedule.sigmas))]
        return denoise_unipc(dit, noise.initial, texts, cache, schedule)
    if num_first == 0:
        return denoise(dit, noise, text.last, cache, schedule)
    early = replace(schedule, timesteps=schedule.timesteps[: schedule.skipped + num_first])
    latents = denoise(dit, noise, text.first, cache, early)
    late = replace(schedule, skipped=schedule.skipped + num_first)
    start = add_noise(latents, noise.renoise[num_first - 1], late.sigmas[0])
    return denoise(dit, BlockNoise(initial=start, renoise=noise.renoise[num_first:]), text.last, cache, late)
