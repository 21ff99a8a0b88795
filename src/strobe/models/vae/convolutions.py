"""Convolutions of decoders in forms that run faster on a GPU: the same sums up to rounding."""

from __future__ import annotations

from itertools import product
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

_HALF: Final = (torch.bfloat16, torch.float16)
_ALIGNED: Final = 8
"""Channels must be a multiple of this for cuDNN's fused kernels."""


def grow(pictures: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Upsample by repeating every pixel twice in height and width, then convolve, as one transposed convolution.

    Of its 4x4 taps every pixel meets 4, of the other way's 9; what the taps share is added up in float32 or wider.

    Args:
        pictures: `[N, C, Y, X]`.
        weight: of the 3x3 convolution over repeated pixels, `[C', C, 3, 3]`.
        bias: `[C']` or None.

    Returns:
        `[N, C', 2 Y, 2 X]`.
    """
    taps = _repeated(_repeated(weight.to(_wide(pictures)), 2), 3).transpose(0, 1).to(pictures.dtype)
    return F.conv_transpose2d(pictures, taps, bias, stride=2, padding=1)


def convolve_relu(x: Tensor, weight: Tensor, bias: Tensor, skip: Tensor | None = None) -> Tensor:
    """Convolve, add a bias and a skip, and apply ReLU: one kernel of cuDNN for inference in half precision on a GPU.

    Formula: `relu(weight * x + bias + skip)`; rows and columns are padded with zeros, frames are not.

    Args:
        x: `[N, C, Y, X]` or `[N, C, F, Y, X]`.
        weight: `[C', C, 3, 3]` or `[C', C, T, 3, 3]`.
        bias: `[C']`.
        skip: of the shape of the result, or None.

    Returns:
        `[N, C', Y, X]` or `[N, C', F + 1 - T, Y, X]`.
    """
    places = x.dim() - 2
    ones, padding = (1,) * places, (0,) * (places - 2) + (1, 1)
    aligned = weight.shape[0] % _ALIGNED == 0 and weight.shape[1] % _ALIGNED == 0
    if x.is_cuda and x.dtype in _HALF and aligned and not torch.is_grad_enabled():
        if skip is None:
            return torch.cudnn_convolution_relu(x, weight, bias, ones, padding, ones, 1)
        return torch.cudnn_convolution_add_relu(x, weight, skip, 1.0, bias, ones, padding, ones, 1)
    out = (F.conv2d if places == 2 else F.conv3d)(x, weight, bias, padding=padding)
    return F.relu(out if skip is None else out + skip)


def to_few_channels(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve to few channels: one matrix product for all taps, then every pixel sums its neighbours' parts.

    Libraries have no fast kernel for three channels out. What a tap gives is rounded once, their sum is in float32 or wider.

    Args:
        x: `[B, T - 1 + F, Y, X, C]`, in front what the first frame sees besides itself.
        weight: `[C', C, T, 3, 3]`; beyond the edges there are zeros.
        bias: `[C']`.

    Returns:
        `[B, F, Y, X, C']`.
    """
    (height, width), (channels, times) = x.shape[2:4], (weight.shape[0], weight.shape[2])
    frames = x.shape[1] - times + 1
    taps = weight.permute(2, 3, 4, 0, 1).flatten(0, 3)  # [9 T C', C]
    around = F.pad(F.linear(x, F.pad(taps, (0, 0, 0, -len(taps) % 8))), (0, 0, 1, 1, 1, 1))  # aligned, or the product is slow
    out = bias.to(_wide(x))
    for tap, (time, row, column) in enumerate(product(range(times), range(3), range(3))):
        part = around[:, time : time + frames, row : row + height, column : column + width]
        out = out + part[..., tap * channels : (tap + 1) * channels]
    return out.to(x.dtype)


def _repeated(taps: Tensor, dim: int) -> Tensor:
    """Convert three taps over repeated pixels to the four taps of a transposed convolution over the pixels themselves."""
    before, here, behind = taps.unbind(dim)
    return torch.stack((behind, here + behind, before + here, before), dim)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
