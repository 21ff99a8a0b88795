"""The algebra of rectified flow: `x_t = (1 - sigma) x0 + sigma noise`, and the model predicts `noise - x0`."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch
from torch import Tensor

Sampler = Literal["renoise", "unipc"]
"""What a denoise step does with a flow; see `strobe.engine.config.NoiseSchedule`."""


def shifted_sigma(timestep: float, shift: float) -> float:
    """Return the noise level of a nominal timestep in [0, 1000]: `shift s / (1 + (shift - 1) s)` with `s = timestep / 1000`."""
    s = timestep / 1000
    return shift * s / (1 + (shift - 1) * s)


@cache
def warped_timestep(timestep: float, shift: float) -> float:
    """Return ``1000 * shifted_sigma(timestep, shift)`` as the transformer takes it.

    The official sampler reads whole timesteps from a table that was worked out in float32. Its rounding (up to 1e-4) goes into
    sinusoids of frequency 1: without it a flow differs by 1e-5.

    Source: Self-Forcing, `utils/scheduler.py` (set_timesteps), `pipeline/causal_inference.py` (warp_denoising_step).
    """
    table = torch.linspace(1, 0, 1001, dtype=torch.float32)[:-1]
    s = table[1000 - int(timestep)] if timestep == int(timestep) else torch.tensor(timestep / 1000, dtype=torch.float32)
    return (shift * s / (1 + (shift - 1) * s) * 1000).item()


@cache
def unipc_sigma(timestep: float, shift: float) -> float:
    """Return the noise level of a nominal timestep as the official UniPC has it: of ``0.999 timestep``, kept in float32.

    Source: Wan2.2, `wan/utils/fm_solvers_unipc.py` at 00b69de (set_timesteps).
    """
    most = torch.tensor(1 - 1 / 1000, dtype=torch.float32).item()
    return torch.tensor(shifted_sigma(most * timestep, shift), dtype=torch.float32).item()


def to_x0(x: Tensor, flow: Tensor, sigma: float) -> Tensor:
    """Compute clean latents from a prediction, in float64 as the official sampler does, returned as float32."""
    return (x.double() - sigma * flow.double()).float()


def add_noise(x0: Tensor, noise: Tensor, sigma: float) -> Tensor:
    """Add noise at level `sigma` to latents, in float64, returned as float32."""
    return ((1 - sigma) * x0.double() + sigma * noise.double()).float()
