"""The algebra of rectified flow: `x_t = (1 - sigma) x0 + sigma noise`, and the model predicts `noise - x0`."""

from __future__ import annotations

from torch import Tensor


def shifted_sigma(timestep: float, shift: float) -> float:
    """Noise level of a nominal timestep in [0, 1000]: `shift s / (1 + (shift - 1) s)` with `s = timestep / 1000`."""
    s = timestep / 1000
    return shift * s / (1 + (shift - 1) * s)


def to_x0(x: Tensor, flow: Tensor, sigma: float) -> Tensor:
    """Clean latents from a prediction, in float64 as the official sampler does, returned as float32."""
    return (x.double() - sigma * flow.double()).float()


def add_noise(x0: Tensor, noise: Tensor, sigma: float) -> Tensor:
    """Noisy latents at level `sigma`, in float64, returned as float32."""
    return ((1 - sigma) * x0.double() + sigma * noise.double()).float()
