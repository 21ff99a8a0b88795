"""Structural similarity at five scales."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from strobe.core.errors import ShapeError
from strobe.quality.clips import as_pair
from strobe.quality.ssim import WINDOW, terms

WEIGHTS: Final = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Exponents of the scales, the finest first (Wang et al., table 1)."""
SMALLEST: Final = WINDOW * 2 ** (len(WEIGHTS) - 1)
"""Pixels of the shorter side that the coarsest scale needs for one window."""
DEFINITION: Final = (
    "ms_ssim(five scales by means of 2x2 pixels, an odd last row or column dropped; windows and constants of ssim;"
    " contrast-structure to the powers .0448 .2856 .3001 .2363 .1333, luminance at the coarsest scale, negative terms as 0;"
    " per channel, then RGB mean; a clip's value is the mean over frames)"
)


def ms_ssim(frames: Tensor, reference: Tensor) -> Tensor:
    """Compute multi-scale SSIM of each frame, float64 `[F]`, 1 for equal frames.

    MS-SSIM = l_5^w_5 prod_j cs_j^w_j, where `cs_j` is the mean of SSIM's contrast-structure term at scale j, `l_5 cs_5` the mean
    SSIM at the coarsest one, and each scale has half the pixels of the one before in both directions.

    Args:
        frames: a clip, uint8 `[F, Y, X, 3]` or float `[F, 3, Y, X]`; at least 176x176 pixels.
        reference: the clip it should equal.

    Raises:
        ShapeError: the clips differ in length or size, or are smaller than the coarsest window.

    Source: Wang, Simoncelli, Bovik, "Multiscale structural similarity for image quality assessment", 2003.
    """
    first, second = as_pair(frames, reference)
    height, width = first.shape[2:]
    if min(height, width) < SMALLEST:
        raise ShapeError(f"MS-SSIM needs frames of at least {SMALLEST}x{SMALLEST} pixels, given {width}x{height}")
    product = torch.ones(first.shape[:2], dtype=torch.float64, device=first.device)  # [F, 3]
    for scale, weight in enumerate(WEIGHTS):
        last = scale == len(WEIGHTS) - 1
        means = [((luminance * structure) if last else structure).mean((2, 3)) for luminance, structure in terms(first, second)]
        product *= torch.cat(means).clamp_min(0) ** weight
        if not last:
            first, second = avg_pool2d(first, 2), avg_pool2d(second, 2)
    return product.mean(1)
