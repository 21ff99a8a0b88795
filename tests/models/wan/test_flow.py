"""Rectified flow: levels by hand, and the two directions undo each other."""

from __future__ import annotations

import pytest
import torch

from strobe.core.tolerances import tolerance
from strobe.models.wan.flow import add_noise, shifted_sigma, to_x0


@pytest.mark.parametrize(
    ("timestep", "shift", "sigma"), [(0, 5, 0), (1000, 5, 1), (750, 1, 0.75), (500, 2, 2 / 3), (250, 5, 0.625), (750, 5, 0.9375)]
)
def test_levels(timestep: float, shift: float, sigma: float) -> None:
    assert shifted_sigma(timestep, shift) == pytest.approx(sigma, abs=1e-15)


@pytest.mark.parametrize("sigma", [0.0, 0.3, 1.0])
def test_the_true_flow_leads_back(sigma: float) -> None:
    x0, noise = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1)).unbind(0)
    x = add_noise(x0, noise, sigma)
    assert x.dtype == torch.float32
    torch.testing.assert_close(to_x0(x, noise - x0, sigma), x0, rtol=0, atol=tolerance("flow", "float32"))
    torch.testing.assert_close(x, (1 - sigma) * x0 + sigma * noise, rtol=0, atol=tolerance("flow", "float32"))


def test_bfloat16_predictions_are_taken_in_float64() -> None:
    x, flow = torch.randn(2, 5, generator=torch.Generator().manual_seed(2)).unbind(0)
    found = to_x0(x, flow.bfloat16(), 0.7)
    assert found.dtype == torch.float32
    assert torch.equal(found, (x.double() - 0.7 * flow.bfloat16().double()).float())
