"""Noise levels of the few-step samplers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from strobe.core.errors import ConfigError
from strobe.models.wan.flow import Sampler, shifted_sigma, unipc_sigma, warped_timestep


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseSchedule:
    """A few-step schedule: nominal timesteps, warped by an explicit shift.

    ``sigma = shift * s / (1 + (shift - 1) * s)`` with ``s = timestep / 1000``; the transformer is told ``1000 * sigma``.

    Args:
        timesteps: nominal, falling, in (0, 1000]; the first is 1000 because a stream starts from pure noise. A 0 may come last:
            a step that is told 0 and takes away the weakest noise of the official table, that of timestep 1.
        shift: 1 leaves the timesteps alone, larger values spend more steps on strong noise.
        skipped: so many first steps are left out, because the latents to begin with are less noisy; see `below`.
        sampler: what a step does with a flow. "unipc" goes on from its own latents (`strobe.engine.unipc`), begins just below
            pure noise and tells whole timesteps; "renoise" mixes fresh noise into clean latents.

    Raises:
        ConfigError: timesteps or shift are not of that kind.

    Source: Esser et al. 2024 (timestep shifting); Self-Forcing, `utils/scheduler.py`; krea realtime-video, `v2v.py` (a last 0);
    Wan2.2, `wan/utils/fm_solvers_unipc.py` at 00b69de (levels of "unipc").
    """

    timesteps: tuple[float, ...]
    shift: float
    skipped: int = 0
    sampler: Sampler = "renoise"

    def __post_init__(self) -> None:
        if not 0 < self.shift < math.inf:
            raise ConfigError(f"shift {self.shift} is not a positive number; official models use 5 or 8")
        check_timesteps(self.timesteps)
        if self.sampler == "unipc" and not self.timesteps[-1]:
            raise ConfigError("UniPC has no step at timestep 0: its last one ends clean; leave the 0 out of the timesteps")

    @property
    def draws(self) -> int:
        """Tensors of noise that a frame block takes."""
        return len(self.timesteps) if self.sampler == "renoise" else 1

    @property
    def sigmas(self) -> tuple[float, ...]:
        """Noise level of each step: 1 is pure noise, 0 clean."""
        if self.sampler == "unipc":
            return tuple(unipc_sigma(timestep, self.shift) for timestep in self.timesteps[self.skipped :])
        return tuple(shifted_sigma(timestep or 1, self.shift) for timestep in self.timesteps[self.skipped :])

    @property
    def warped(self) -> tuple[float, ...]:
        """Timesteps after the shift, as the transformer takes them: ``1000 * sigma`` with the official rounding."""
        if self.sampler == "unipc":
            return tuple(float(int(1000 * sigma)) for sigma in self.sigmas)
        return tuple(warped_timestep(timestep, self.shift) if timestep else 0.0 for timestep in self.timesteps[self.skipped :])

    def below(self, strength: float) -> NoiseSchedule:
        """Return the steps whose noise level is at most `strength`, with which a given clip is noised and denoised again.

        Raises:
            ConfigError: there is none; names the lowest level.

        Source: SDEdit (Meng et al. 2021), section 3, at the levels that a few-step model was trained for.
        """
        levels = replace(self, skipped=0).sigmas
        skipped = sum(level > strength + 1e-9 for level in levels)
        if skipped == len(levels):
            told = ", ".join(f"{level:.3g}" for level in levels)
            raise ConfigError(
                f"strength {strength:g} leaves no denoise step: this schedule has the noise levels {told}; give {levels[-1]:.3g} "
                "or more, or 0 to begin with the clip as it is"
            )
        return replace(self, skipped=skipped)


def check_timesteps(timesteps: Sequence[float]) -> None:
    """Check nominal timesteps.

    Raises:
        ConfigError: they do not start at 1000, do not fall, or leave [0, 1000].
    """
    falling = all(first > second for first, second in pairwise(timesteps))
    if not timesteps or timesteps[0] != 1000 or not falling or timesteps[-1] < 0:
        given = ", ".join(f"{timestep:g}" for timestep in timesteps) or "none"
        raise ConfigError(f"timesteps {given} are not valid: start at 1000 and fall towards 0, e.g. 1000, 500, 250")
