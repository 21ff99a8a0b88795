"""Noise levels of the few-step sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from strobe.core.errors import ConfigError
from strobe.models.wan.flow import shifted_sigma, warped_timestep


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseSchedule:
    """A few-step schedule: nominal timesteps, warped by an explicit shift.

    ``sigma = shift * s / (1 + (shift - 1) * s)`` with ``s = timestep / 1000``; the transformer is told ``1000 * sigma``.

    Args:
        timesteps: nominal, falling, in (0, 1000]; the first is 1000 because a stream starts from pure noise.
        shift: 1 leaves the timesteps alone, larger values spend more steps on strong noise.

    Raises:
        ConfigError: timesteps or shift are not of that kind.

    Source: Esser et al. 2024 (timestep shifting); Self-Forcing, `utils/scheduler.py`.
    """

    timesteps: tuple[float, ...]
    shift: float

    def __post_init__(self) -> None:
        if not 0 < self.shift < math.inf:
            raise ConfigError(f"shift {self.shift} is not a positive number; official models use 5 or 8")
        check_timesteps(self.timesteps)

    @property
    def sigmas(self) -> tuple[float, ...]:
        """Noise level of each step: 1 is pure noise, 0 clean."""
        return tuple(shifted_sigma(timestep, self.shift) for timestep in self.timesteps)

    @property
    def warped(self) -> tuple[float, ...]:
        """Timesteps after the shift, as the transformer takes them: ``1000 * sigma`` with the official rounding."""
        return tuple(warped_timestep(timestep, self.shift) for timestep in self.timesteps)


def check_timesteps(timesteps: Sequence[float]) -> None:
    """Check nominal timesteps.

    Raises:
        ConfigError: they do not start at 1000, do not fall, or leave (0, 1000].
    """
    falling = all(first > second for first, second in pairwise(timesteps))
    if not timesteps or timesteps[0] != 1000 or not falling or timesteps[-1] <= 0:
        given = ", ".join(f"{timestep:g}" for timestep in timesteps) or "none"
        raise ConfigError(f"timesteps {given} are not valid: start at 1000 and fall towards 0, e.g. 1000, 500, 250")
