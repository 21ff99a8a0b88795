"""What the kernels compute, in plain PyTorch: the specification. Everything is in float32 or wider and rounded once."""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor


def convolve(seen: Tensor, weight: Tensor, bias: Tensor, skip: Tensor | None) -> Tensor:
    """See `api.convolve`."""
    return border(_convolved(seen, weight, bias, skip)).to(seen.dtype)


def convolve_norm(
    seen: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, before: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """See `api.convolve_norm`."""
    return _after(_norm_silu(_convolved(seen, weight, bias, None), gamma, eps).to(seen.dtype), before)


def norm(
    x: Tensor, bias: Tensor | None, gamma: Tensor, before: Tensor | None, eps: float, copied: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """See `api.norm`."""
    wide = x.to(_wide(x)) if bias is None else x.to(_wide(x)) + bias.to(_wide(x))
    seen, after = _after(_norm_silu(wide, gamma, eps).to(x.dtype), before)
    return seen, after, border(wide).to(x.dtype) if copied else None


def add_taps(parts: Tensor, bias: Tensor) -> Tensor:
    """See `api.leave`: parts are `[B, 2 + F, Y + 2, X + 2, P]`, of which the first `27 C'` are taps by channels."""
    frames, height, width = (size - 2 for size in parts.shape[1:4])
    out = bias.to(_wide(parts))
    for tap, (time, row, column) in enumerate(product(range(3), range(3), range(3))):
        part = parts[:, time : time + frames, row : row + height, column : column + width]
        out = out + part[..., tap * len(bias) : (tap + 1) * len(bias)]
    return out.to(parts.dtype)


def border(x: Tensor) -> Tensor:
    """Put a border of zeros around `[B, F, Y, X, C]`."""
    return F.pad(x, (0, 0, 1, 1, 1, 1))


def _convolved(seen: Tensor, weight: Tensor, bias: Tensor, skip: Tensor | None) -> Tensor:
    wide = _wide(seen)
    pictures = seen[:, :, 1:-1, 1:-1].movedim(-1, 1).to(wide)
    out = F.conv3d(pictures, weight.to(wide), bias.to(wide), padding=(0, 1, 1)).movedim(1, -1)
    return out if skip is None else out + skip[:, :, 1:-1, 1:-1].to(wide)


def _norm_silu(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    return F.silu(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gamma.to(x.dtype))


def _after(x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Put two frames in front of `[B, F, Y, X, C]`; return that with a border, and its last two frames."""
    seen = torch.cat((x.new_zeros(len(x), 2, *x.shape[2:]) if before is None else before, x), dim=1)
    return border(seen), seen[:, -2:].clone(memory_format=torch.contiguous_format)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
