"""Noise levels of the few-step sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from strobe.core.errors import ConfigError
from strobe.models.wan.flow import shifted_sigma, warped_timestep


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseSchedule:
    """A few-step schedule: nominal timesteps, warped by an explicit shift.

    ``sigma = shift * s / (1 + (shift - 1) * s)`` with ``s = timestep / 1000``; the transformer is told ``1000 * sigma``.

    Args:
        timesteps: nominal, falling, in (0, 1000]; the first is 1000 because a stream starts from pure noise. A 0 may come last:
            a step that is told 0 and takes away the weakest noise of the official table, that of timestep 1.
        shift: 1 leaves the timesteps alone, larger values spend more steps on strong noise.
        skipped: so many first steps are left out, because the latents to begin with are less noisy; see `below`.

    Raises:
        ConfigError: timesteps or shift are not of that kind.

    Source: Esser et al. 2024 (timestep shifting); Self-Forcing, `utils/scheduler.py`; krea realtime-video, `v2v.py` (a last 0).
    """

    timesteps: tuple[float, ...]
    shift: float
    skipped: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.shift < math.inf:
            raise ConfigError(f"shift {self.shift} is not a positive number; official models use 5 or 8")
        check_timesteps(self.timesteps)

    @property
    def sigmas(self) -> tuple[float, ...]:
        """Noise level of each step: 1 is pure noise, 0 clean."""
        return tuple(shifted_sigma(timestep or 1, self.shift) for timestep in self.timesteps[self.skipped :])

    @property
    def warped(self) -> tuple[float, ...]:
        """Timesteps after the shift, as the transformer takes them: ``1000 * sigma`` with the official rounding."""
        return tuple(warped_timestep(timestep, self.shift) if timestep else 0.0 for timestep in self.timesteps[self.skipped :])

    def below(self, strength: float) -> NoiseSchedule:
        """Return the steps whose noise level is at most `strength`, with which a given clip is noised and denoised again.

        Raises:
            ConfigError: there is none; names the lowest level.

        Source: SDEdit (Meng et al. 2021), section 3, at the levels that a few-step model was trained for.
        """
        levels = NoiseSchedule(timesteps=self.timesteps, shift=self.shift).sigmas
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
