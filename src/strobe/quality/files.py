"""Reading of clips from files and folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from strobe.core.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

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
    import torch

    sources = pictures_of(path) if path.is_dir() else [path]
    frames = [frame for source in sources for frame in _frames(source)]
    if not frames:
        raise DataError(f"{path} holds no frames: give a video or a folder of pictures ({', '.join(PICTURES)})")
    sizes = {frame.shape for frame in frames}
    if len(sizes) > 1:
        raise DataError(f"{path} holds frames of {len(sizes)} sizes; a clip has one")
    return torch.from_numpy(np.stack(frames))


def pictures_of(folder: Path) -> list[Path]:
    """List the pictures of a folder in the order of their names, numbers by value; empty if it holds none."""
    found = [path for path in folder.iterdir() if path.suffix.lower() in PICTURES]
    return sorted(found, key=lambda path: _natural(path.name))


def clips_of(folder: Path) -> list[Path]:
    """List the videos of a folder, and the folders of pictures in it, by name."""
    found = [
        path
        for path in folder.iterdir()
        if (path.is_dir() and pictures_of(path)) or (path.is_file() and path.suffix.lower() in VIDEOS)
    ]
    return sorted(found, key=lambda path: _natural(path.name))


def clip_name(path: Path) -> str:
    """Return the name that pairs a clip with another: that of the folder, or of the file without its suffix."""
    return path.name if path.is_dir() else path.stem


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts frame_2 before frame_10."""
    parts: list[str] = []
    for letter in name:
        if parts and parts[-1][-1:].isdecimal() == letter.isdecimal():
            parts[-1] += letter
        else:
            parts.append(letter)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def _frames(path: Path) -> Iterable[np.ndarray]:
    import av

    try:
        with av.open(str(path)) as file:
            return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    except (OSError, av.FFmpegError, IndexError) as error:
        reason = "no picture in it" if isinstance(error, IndexError) else getattr(error, "strerror", None) or error
        raise DataError(f"cannot read the clip {path}: {reason}; give {', '.join(VIDEOS)} or a folder of pictures") from error
