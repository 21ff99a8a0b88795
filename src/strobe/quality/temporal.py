"""Metrics of errors in time: flicker between frames and drift along the clip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from strobe.core.errors import ShapeError
from strobe.quality.clips import as_pair

FLICKER_DEFINITION: Final = (
    "flicker_excess(mean |I_(t+1) - 2 I_t + I_(t-1)| over RGB in [0, 1] of the clip, minus the same of the reference;"
    " 0: as steady as it, below 0: steadier; a clip's value is the mean over t)"
)
DRIFT_DEFINITION: Final = (
    "mean over the last quarter of the frames minus mean over the first quarter; below 0: late frames are worse"
)
BORDER_DEFINITION: Final = (
    "border_jump(mean |dI_t| into the first frame of a frame block, divided by the mean |dI_t| of all other frames;"
    " 1 is seamless)"
)
DEFINITION: Final = (
    "temporal_difference(mean |dI_t - dI_t_ref| over RGB in [0, 1], dI_t = I_t - I_(t-1); a clip's value is the mean over t)"
)


def temporal_difference(frames: Tensor, reference: Tensor) -> Tensor:
    """Compare the frame-to-frame change of two clips, float64 `[F - 1]`: mean |dI_t - dI_t_ref| over pixels and channels.

    A constant offset between the clips costs nothing, flicker in one of them does; nothing is warped along the motion.

    Args:
        frames: a clip, uint8 `[F, Y, X, 3]` or float `[F, 3, Y, X]`.
        reference: the clip it should equal.

    Raises:
        ShapeError: the clips differ in length or size.
    """
    first, second = as_pair(frames, reference)
    return (first - second).double().diff(dim=0).abs().mean((1, 2, 3))


def flicker_excess(frames: Tensor, reference: Tensor) -> Tensor:
    """Compute a clip's flicker over its reference's, float64 `[F - 2]`: mean |second difference in time|, minus the reference's.

    Steady motion of a smooth picture and steady fading cost next to nothing, a frame that stands out costs twice its step.

    Args:
        frames: a clip, uint8 `[F, Y, X, 3]` or float `[F, 3, Y, X]`.
        reference: the clip that it is held against.

    Raises:
        ShapeError: the clips differ in length or size.
    """
    first, second = (clip.double().diff(n=2, dim=0).abs().mean((1, 2, 3)) for clip in as_pair(frames, reference))
    return first - second


def border_jump(frames: Tensor, starts: tuple[int, ...]) -> Tensor:
    """Compute the ratio of the picture's change into a frame block to that inside one, float32 `[N]`; 1 is seamless.

    Ratio of the mean absolute difference to the frame before, over frames in `starts`, to that over all others.
    NaN where nothing changes inside the blocks.

    Args:
        frames: float `[N, F, 3, Y, X]`.
        starts: indices of the first frames of frame blocks, each in 1 .. F - 1, with at least one other frame left.

    Raises:
        ShapeError: an index is outside, or one of the two sides of the ratio is empty.
    """
    num_frames = frames.shape[1]
    inside = [index for index in range(1, num_frames) if index not in starts]
    if not starts or not inside or min(starts) < 1 or max(starts) >= num_frames:
        raise ShapeError(f"border_jump: starts {starts} must name some, not all, of the frames 1 .. {num_frames - 1}")
    change = frames.detach().float().diff(dim=1).abs().mean((2, 3, 4))  # [N, F - 1]
    at_border = change[:, [index - 1 for index in starts]].mean(1)
    elsewhere = change[:, [index - 1 for index in inside]].mean(1)
    return torch.where(elsewhere > 0, at_border / elsewhere, torch.nan)


def block_starts(num_frames: int, block_frames: int, first_block_frames: int | None = None) -> tuple[int, ...]:
    """Return the first frames of all frame blocks of a clip but the first one.

    Args:
        num_frames: pixel frames of the clip.
        block_frames: of a frame block, at least 2.
        first_block_frames: of the first one, if it is shorter.

    Raises:
        ShapeError: a block of fewer than two frames, or the clip ends before the second block begins.
    """
    first = block_frames if first_block_frames is None else first_block_frames
    if block_frames < 2 or first < 1 or first >= num_frames:
        raise ShapeError(
            f"frame blocks of {block_frames} frames, the first of {first}, in a clip of {num_frames}: give at least 2, and a "
            "first block that is shorter than the clip"
        )
    return tuple(range(first, num_frames, block_frames))


def drift(curve: Sequence[float | None], window: int) -> float | None:
    """Compute the change of a metric along a clip: its mean over the last `window` frames minus that over the first.

    Args:
        curve: the metric frame by frame, as in `fidelity.Fidelity.curve`.
        window: frames averaged at either end.

    Returns:
        The change in the metric's own unit, or None where a value in one of the windows is None (equal frames have no PSNR).

    Raises:
        ShapeError: the two windows do not fit into the curve side by side.
    """
    if not 1 <= window <= len(curve) // 2:
        raise ShapeError(f"drift: window {window} must lie in 1 .. {len(curve) // 2}, half of the {len(curve)} values given")
    head = [value for value in curve[:window] if value is not None]
    tail = [value for value in curve[-window:] if value is not None]
    if len(head) < window or len(tail) < window:
        return None
    return sum(tail) / window - sum(head) / window
