"""Exact timesteps of the official schedules."""

from __future__ import annotations

import pytest
import torch

from strobe.core.errors import ConfigError
from strobe.engine.schedule import NoiseSchedule


@pytest.mark.parametrize(
    ("shift", "warped"),
    [
        (5, (1000, 937.5, 2500 / 3, 625)),
        (8, (1000, 960, 8000 / 9, 8000 / 11)),
        (1, (1000, 750, 500, 250)),
    ],
)
def test_official_timesteps(shift: float, warped: tuple[float, ...]) -> None:
    schedule = NoiseSchedule(timesteps=(1000, 750, 500, 250), shift=shift)
    assert schedule.warped == pytest.approx(warped, rel=1e-12)
    assert schedule.sigmas == pytest.approx([timestep / 1000 for timestep in warped], rel=1e-12)


@pytest.mark.parametrize("shift", [2.0, 5.0, 8.0])
def test_equals_the_official_table(shift: float) -> None:
    s = torch.linspace(1, 0, 1001, dtype=torch.float64)[:-1]
    table = shift * s / (1 + (shift - 1) * s) * 1000
    timesteps = (1000, 823, 511, 250, 1)
    expected = [table[1000 - timestep].item() for timestep in timesteps]
    assert NoiseSchedule(timesteps=timesteps, shift=shift).warped == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("timesteps", [(), (999, 500), (1000, 500, 500), (1000, 500, 750), (1000, 0), (1000, -5)])
def test_impossible_timesteps(timesteps: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="start at 1000"):
        NoiseSchedule(timesteps=timesteps, shift=5)


def test_impossible_shift() -> None:
    with pytest.raises(ConfigError, match="shift"):
        NoiseSchedule(timesteps=(1000,), shift=0)
