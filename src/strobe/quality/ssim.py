"""Structural similarity (SSIM), in the one definition used everywhere here."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from strobe.core.errors import ShapeError
from strobe.quality.clips import as_pair
from strobe.quality.window import frames_at_once, gaussian, weighed

DEFINITION = (
    "ssim(gauss11 s1.5, no downsample, RGB mean, K1 .01, K2 .03, peak 1, no border; a clip's value is the mean over frames)"
)

WINDOW, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2


def ssim(frames: Tensor, reference: Tensor) -> Tensor:
    """Compute the mean SSIM of each frame, float64 `[F]`, 1 for equal frames.

    SSIM = (2 mu_x mu_y + C1)(2 cov_xy + C2) / ((mu_x^2 + mu_y^2 + C1)(var_x + var_y + C2)), with moments under a Gaussian window
    of 11x11 pixels and sigma 1.5, C1 = 0.01^2, C2 = 0.03^2, averaged over the three channels and all places where the whole
    window fits. Nothing is downsampled.

    Args:
        frames: a clip, uint8 `[F, Y, X, 3]` or float `[F, 3, Y, X]`; at least 11x11 pixels.
        reference: the clip it should equal.

    Raises:
        ShapeError: the clips differ in length or size, or are smaller than the window.

    Source: Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment: from error visibility to structural similarity", 2004.
    """
    first, second = as_pair(frames, reference)
    height, width = first.shape[2:]
    if min(height, width) < WINDOW:
        raise ShapeError(f"SSIM needs frames of at least {WINDOW}x{WINDOW} pixels, given {width}x{height}")
    return torch.cat([(luminance * structure).mean((1, 2, 3)) for luminance, structure in terms(first, second)])


def terms(first: Tensor, second: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the luminance term and the contrast-structure term at each place, some frames at a time; SSIM is their product.

    Args:
        first, second: float32 `[F, 3, Y, X]`, at least 11x11 pixels.

    Yields:
        two float64 tensors `[f, 3, Y - 10, X - 10]`.
    """
    many = frames_at_once(first)
    for x, y in zip(torch.split(first, many), torch.split(second, many), strict=True):
        yield _terms(x.double(), y.double())  # variances are small differences


def _terms(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    mean_x, mean_y, square_x, square_y, product = _blur(torch.stack((x, y, x * x, y * y, x * y)))
    covariance = product - mean_x * mean_y
    variances = (square_x - mean_x * mean_x) + (square_y - mean_y * mean_y)  # rounds like 2 * covariance, so equal frames give 1
    luminance = (2 * mean_x * mean_y + C1) / (mean_x * mean_x + mean_y * mean_y + C1)
    structure = (2 * covariance + C2) / (variances + C2)
    return luminance, structure


def _blur(pictures: Tensor) -> Tensor:
    """Compute the Gaussian mean over the window, only where it fits: `[..., Y, X]` -> `[..., Y - 10, X - 10]`."""
    weights = gaussian(SIGMA, WINDOW // 2)
    return weighed(weighed(pictures, weights, -2), weights, -1)
