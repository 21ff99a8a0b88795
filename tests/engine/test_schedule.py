"""Exact timesteps of the official schedules."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from strobe.core.errors import ConfigError
from strobe.engine.config import NoiseSchedule


@pytest.mark.parametrize(
    ("shift", "warped"),
    [
        (5, (1000, 937.5, 833.3333129882812, 625)),
        (8, (1000, 960, 888.888916015625, 727.2727661132812)),
        (1, (1000, 750, 500, 250)),
    ],
)
def test_official_timesteps(shift: float, warped: tuple[float, ...]) -> None:
    schedule = NoiseSchedule(timesteps=(1000, 750, 500, 250), shift=shift)
    assert schedule.warped == warped
    exact = [float(Fraction(int(shift) * t, 1000 + (int(shift) - 1) * t)) for t in (1000, 750, 500, 250)]
    assert schedule.sigmas == pytest.approx(exact, rel=1e-15)


@pytest.mark.parametrize("shift", [2.0, 5.0, 8.0])
def test_equals_the_official_table(shift: float) -> None:
    """A table in float32, read at whole timesteps; rounding the exact value would often give its neighbour."""
    s = torch.linspace(1, 0, 1001)[:-1]
    table = (shift * s / (1 + (shift - 1) * s)) * 1000
    timesteps = tuple(range(1000, 0, -1))
    assert NoiseSchedule(timesteps=timesteps, shift=shift).warped == tuple(table.tolist())


def test_timesteps_between_the_whole_ones() -> None:
    schedule = NoiseSchedule(timesteps=(1000, 333.25), shift=5.0)
    assert schedule.warped[1] == pytest.approx(1000 * schedule.sigmas[1], rel=2e-7)


@pytest.mark.parametrize("timesteps", [(), (999, 500), (1000, 500, 500), (1000, 500, 750), (0,), (1000, -5)])
def test_impossible_timesteps(timesteps: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="start at 1000"):
        NoiseSchedule(timesteps=timesteps, shift=5)


def test_impossible_shift() -> None:
    with pytest.raises(ConfigError, match="shift"):
        NoiseSchedule(timesteps=(1000,), shift=0)


def test_a_last_step_is_told_0_and_takes_away_the_weakest_noise_of_the_table() -> None:
    schedule = NoiseSchedule(timesteps=(1000, 500, 0), shift=5.0)
    assert schedule.warped[-1] == 0
    assert math.isclose(schedule.sigmas[-1], 0.005 / 1.004)
    assert schedule.sigmas[:2] == NoiseSchedule(timesteps=(1000, 500), shift=5.0).sigmas
