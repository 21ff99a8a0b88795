"""Twice the height and width, as both decoders of Wan latents do it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def grow(pictures: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Repeat every pixel twice in height and width, then convolve: as one transposed convolution.

    Of its 4x4 taps every pixel meets 4, of the other way's 9; what the taps share is added up in float32 or wider.

    Args:
        pictures: `[N, C, Y, X]`.
        weight: of the 3x3 convolution over repeated pixels, `[C', C, 3, 3]`.
        bias: `[C']` or None.

    Returns:
        `[N, C', 2 Y, 2 X]`.
    """
    wide = weight.to(torch.promote_types(pictures.dtype, torch.float32))
    taps = _repeated(_repeated(wide, 2), 3).transpose(0, 1).to(pictures.dtype)
    return F.conv_transpose2d(pictures, taps, bias, stride=2, padding=1)


def _repeated(taps: Tensor, dim: int) -> Tensor:
    """Three taps of a convolution over pixels that stand twice, as four of the transposed one over pixels that stand once."""
    before, here, behind = taps.unbind(dim)
    return torch.stack((behind, here + behind, before + here, before), dim)
