"""The two layouts of a clip, and the check that two clips can be compared frame by frame."""

from __future__ import annotations

import torch
from torch import Tensor

from strobe.core.errors import DataError, ShapeError


def as_planes(frames: Tensor) -> Tensor:
    """Bring a clip to float32 `[F, 3, Y, X]`, 1.0 being white.

    Args:
        frames: uint8 `[F, Y, X, 3]` (a decoded video) or float `[F, 3, Y, X]` (a model's output, nominally in [0, 1]).

    Raises:
        ShapeError: neither of the two, or no frames.
        DataError: a pixel is NaN or infinite.
    """
    if frames.ndim == 4 and frames.numel() > 0:
        if frames.dtype == torch.uint8 and frames.shape[3] == 3:
            return frames.permute(0, 3, 1, 2).float() / 255
        if frames.is_floating_point() and frames.shape[1] == 3:
            if not frames.isfinite().all():
                raise DataError("the clip holds pixels that are not finite numbers; it cannot be compared")
            return frames.float()
    raise ShapeError(
        f"a clip is uint8 [F, Y, X, 3] or float [F, 3, Y, X] with at least one frame, given {frames.dtype} {list(frames.shape)}"
    )


def as_pair(frames: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Bring two clips to float32 `[F, 3, Y, X]` on the device of the first; each in either layout of `as_planes`.

    Raises:
        ShapeError: they differ in the number or size of frames. Frame i is compared with frame i, never with a neighbour.
    """
    first, second = as_planes(frames), as_planes(reference)
    if first.shape != second.shape:

        def told(planes: Tensor) -> str:
            return f"{planes.shape[0]} frames of {planes.shape[3]}x{planes.shape[2]}"

        raise ShapeError(f"clips of one length and size can be compared; given {told(first)} and {told(second)}")
    return first, second.to(first.device)
