"""Rotary position embedding over time, height and width.

Pairs are interleaved: channels `2i` and `2i + 1` of a head are one complex number, multiplied by `exp(j * position * freq_i)`,
`freq_i = theta ** (-i / n)` with `n` pairs for that axis. Angles are computed in float64, so any position works.

Source: RoFormer (Su et al. 2021), eq. 34; the axis split is Wan2.1's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from strobe.models.wan.config import WanConfig

THETA = 10_000.0


def frequencies(pairs: int, device: torch.device | None = None) -> Tensor:
    """Return the frequencies of one axis, float64 `[pairs]`."""
    return THETA ** (-torch.arange(pairs, dtype=torch.float64, device=device) / pairs)


def table(config: WanConfig, positions: Sequence[int], height: int, width: int, device: torch.device | None = None) -> Tensor:
    """Compute the complex rotations of the tokens of frames at `positions`.

    Args:
        positions: temporal index of each frame.
        height, width: tokens per frame.
        device: where it is worked out, None: on the CPU. Consecutive positions are not copied there, so that nothing waits.

    Returns:
        complex128 `[F * height * width, head_dim / 2]`.
    """
    axes = []
    spans = (_numbers(positions, device), _numbers(range(height), device), _numbers(range(width), device))
    for axis, (pairs, index) in enumerate(zip(config.rope_pairs, spans, strict=True)):
        angles = torch.outer(index, frequencies(pairs, device))
        shape = [1, 1, 1, pairs]
        shape[axis] = len(index)
        axes.append(angles.view(shape).expand(len(spans[0]), height, width, pairs))
    angles = torch.cat(axes, dim=-1).flatten(0, 2)  # [F*h*w, pairs]
    return torch.polar(torch.ones_like(angles), angles)


def _numbers(numbers: Sequence[int], device: torch.device | None) -> Tensor:
    consecutive = range(numbers[0], numbers[0] + len(numbers))
    if tuple(numbers) == tuple(consecutive):
        return torch.arange(consecutive.start, consecutive.stop, dtype=torch.float64, device=device)
    return torch.tensor(list(numbers), dtype=torch.float64, device=device)


def rotate(x: Tensor, rotations: Tensor) -> Tensor:
    """Rotate `x [B, S, ..., D]` by `rotations`: complex `[S, D / 2]`, or real `[S, D / 2, 2]` holding (cos, sin).

    Complex rotations set the precision of the product: complex128 is what the official code pays for.
    """
    pairs = x.unflatten(-1, (-1, 2))  # [B, S, ..., D/2, 2]
    between = (1,) * (x.dim() - 3)
    if rotations.is_complex():
        turns = rotations.view(rotations.shape[0], *between, rotations.shape[1])
        wide = pairs.to(rotations.dtype.to_real()).contiguous()
        return torch.view_as_real(torch.view_as_complex(wide) * turns).flatten(-2).to(x.dtype)
    cos, sin = rotations.view(rotations.shape[0], *between, rotations.shape[1], 2).unbind(-1)
    real, imaginary = pairs.float().unbind(-1)
    return torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1).flatten(-2).to(x.dtype)


def device_table(rotations: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Convert a table to the form in which `rotate` is fastest: complex64 for float32 on a CPU, else float32 (cos, sin) pairs."""
    if dtype == torch.float32 and device.type == "cpu":
        return rotations.to(torch.complex64)
    return torch.view_as_real(rotations).to(device=device, dtype=torch.float32)


def temporal_turns(config: WanConfig, frames: int, device: torch.device | None = None) -> Tensor:
    """Compute rotations of the temporal pairs, the first of a head, by `frames` in time: (cos, sin), float32 `[pairs, 2]`."""
    angles = frequencies(config.rope_pairs[0], device) * frames
    return torch.view_as_real(torch.polar(torch.ones_like(angles), angles).to(torch.complex64))


def turn_first(keys: Tensor, turns: Tensor, out: Tensor) -> None:
    """Rotate the first pairs of `keys [..., D]` into `out` by `turns [pairs, 2]` in float32; the others are left alone."""
    channels = 2 * turns.shape[0]
    pairs = torch.view_as_complex(keys[..., :channels].float().unflatten(-1, (-1, 2)).contiguous())
    out[..., :channels] = torch.view_as_real(pairs * torch.view_as_complex(turns)).flatten(-2)


def rotate_temporal(config: WanConfig, keys: Tensor, frames: int, out: Tensor) -> None:
    """Move already rotated keys `[..., D]` by `frames` in time, into `out`; height and width are not written.

    Args:
        out: the same keys, wherever they are in time, or `keys` itself.
    """
    turn_first(keys, temporal_turns(config, frames, keys.device), out)
