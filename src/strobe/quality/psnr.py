"""Peak signal-to-noise ratio."""

from __future__ import annotations

from torch import Tensor

from strobe.quality.clips import as_pair

DEFINITION = "psnr(10 log10(1 / MSE) dB over RGB in [0, 1]; a clip's MSE is the mean over its frames)"


def squared_error(frames: Tensor, reference: Tensor) -> Tensor:
    """Compute the mean squared error of each frame over its pixels and channels, float64 `[F]`. Clips as in `clips.as_pair`."""
    first, second = as_pair(frames, reference)
    return (first - second).double().square().mean((1, 2, 3))


def psnr(frames: Tensor, reference: Tensor) -> Tensor:
    """Compute the PSNR of each frame in dB, float64 `[F]`: 10 log10(1 / MSE), +inf where the frames are equal.

    Args:
        frames: a clip, uint8 `[F, Y, X, 3]` or float `[F, 3, Y, X]`.
        reference: the clip it should equal.

    Raises:
        ShapeError: the clips differ in length or size.
    """
    return decibels(squared_error(frames, reference))


def decibels(error: Tensor) -> Tensor:
    """Convert mean squared errors to PSNR in dB at peak 1; +inf at 0."""
    return -10 * error.log10()
