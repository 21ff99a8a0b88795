"""Clips: their two layouts, the check that two can be compared, reading from files, sums of neighbouring pixels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from strobe.core.errors import DataError, ShapeError

if TYPE_CHECKING:
    import numpy as np


def as_planes(frames: Tensor) -> Tensor:
    """Bring a clip to float32 `[F, 3, Y, X]`, 1.0 being white.

    Args:
        frames: uint8 `[F, Y, X, 3]` (a decoded video) or float `[F, 3, Y, X]` (a model's output, nominally in [0, 1]).

    Raises:
        ShapeError: neither of the two, or no frames.
        DataError: a pixel is NaN or infinite, or white is 255.
    """
    if frames.ndim == 4 and frames.numel() > 0:
        if frames.dtype == torch.uint8 and frames.shape[3] == 3:
            return frames.permute(0, 3, 1, 2).float() / 255
        if frames.is_floating_point() and frames.shape[1] == 3:
            if not (frames.abs() < 8).all():  # those of a model that overshoots are less
                raise DataError("the clip holds pixels that are not finite numbers or of [0, 255]; divide these by 255")
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
        one, other = (f"{len(each)} frames of {each.shape[3]}x{each.shape[2]}" for each in (first, second))
        raise ShapeError(f"clips of one length and size can be compared; given {one} and {other}")
    return first, second.to(first.device)


VIDEOS: Final = (".mp4", ".mkv", ".mov", ".webm", ".avi", ".gif", ".webp")
PICTURES: Final = (".png", ".jpg", ".jpeg", ".bmp")


def read_clip(path: Path) -> Tensor:
    """Read all frames of a clip, uint8 `[F, Y, X, 3]`: of a video file in the order they are shown, of a folder by name.

    Args:
        path: a file with a suffix of `VIDEOS`, or a folder of pictures with suffixes of `PICTURES`.

    Raises:
        DataError: there is no such clip, it cannot be read, or its frames differ in size.
    """
    import numpy as np

    sources = pictures_of(path) if path.is_dir() else [path]
    frames = [frame for source in sources for frame in _frames(source)]
    if not frames:
        raise DataError(f"{path} holds no frames: give a video or a folder of pictures ({', '.join(PICTURES)})")
    sizes = {frame.shape for frame in frames}
    if len(sizes) > 1:
        raise DataError(f"{path} holds frames of {len(sizes)} sizes; a clip has one")
    return torch.from_numpy(np.stack(frames)).contiguous()


def pictures_of(folder: Path) -> list[Path]:
    """List the pictures of a folder in the order of their names, numbers by value; empty if it holds none."""
    return sorted((path for path in folder.iterdir() if path.suffix.lower() in PICTURES), key=_natural)


def clips_of(folder: Path) -> list[Path]:
    """List the videos of a folder, and the folders of pictures in it, by name."""
    found = [
        path
        for path in folder.iterdir()
        if (path.is_dir() and pictures_of(path)) or (path.is_file() and path.suffix.lower() in VIDEOS)
    ]
    return sorted(found, key=_natural)


def clip_name(path: Path) -> str:
    """Return the name that pairs a clip with another: that of the folder, or of the file without its suffix."""
    return path.name if path.is_dir() else path.stem


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that puts frame_2 before frame_10."""
    parts = filter(None, re.split(r"(\d+)", path.name))
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def _frames(path: Path) -> Iterable[np.ndarray]:
    import av
    import numpy as np

    try:
        with av.open(str(path)) as file:  # frames stand as they are shown: a phone held upright writes them lying
            return [np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90) for frame in file.decode(video=0)]
    except (OSError, av.FFmpegError, IndexError) as error:
        reason = "no picture in it" if isinstance(error, IndexError) else getattr(error, "strerror", None) or error
        raise DataError(f"cannot read the clip {path}: {reason}; give {', '.join(VIDEOS)} or a folder of pictures") from error


_PIXELS = 1 << 18
"""Some dozen float32 planes of so many stay in a cache."""


def weighed(pictures: Tensor, weights: Sequence[float], dim: int) -> Tensor:
    """Correlate along one dimension, only where all weights fit: the size of `dim` shrinks by `len(weights) - 1`.

    One pass over the tensor per weight: of a single channel several times as fast as a convolution on a CPU.
    """
    size = pictures.shape[dim] - len(weights) + 1
    total = pictures.narrow(dim, 0, size) * weights[0]
    for at, weight in enumerate(weights[1:], 1):
        total.add_(pictures.narrow(dim, at, size), alpha=weight)
    return total


def frames_at_once(clip: Tensor) -> int:
    """Return the number of frames of `[F, 3, Y, X]` that are filtered at once: one large one, or many small ones."""
    return max(1, _PIXELS // (clip.shape[-2] * clip.shape[-1]))
