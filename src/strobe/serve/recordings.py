"""Clips that viewers record: files in a folder of the server, until it ends."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strobe.engine.video import VideoFile

CLIPS: Final = 16
"""Finished clips that are kept."""
LONGEST_CLIP_S: Final = 600


@dataclass(kw_only=True, eq=False, slots=True)
class _Clip:
    """A clip that grows on the server's disk."""

    path: Path
    video: VideoFile
    most_frames: int
    frames: int = 0

    def write(self, frames: NDArray[np.uint8]) -> None:
        """Append frames; those beyond the longest clip are left out."""
        import torch

        if self.frames < self.most_frames:
            self.video.write(torch.from_numpy(frames))
            self.frames += len(frames)


class Recordings:
    """The clips of a server, at most one that grows for each stream. One thread writes them: frames keep their order."""

    def __init__(self) -> None:
        self.clips: dict[str, Path] = {}
        self._growing: dict[str, _Clip] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="strobe-record")
        self._folder = tempfile.TemporaryDirectory(prefix="strobe-serve-")

    def start(self, stream: str, fps: int) -> None:
        """Begin to write the frames that are made from now on."""
        if stream not in self._growing:
            path = Path(self._folder.name) / f"{secrets.token_urlsafe(16)}.mp4"
            self._growing[stream] = _Clip(path=path, video=VideoFile(path, fps=fps), most_frames=LONGEST_CLIP_S * fps)

    def add(self, stream: str, frames: NDArray[np.uint8]) -> None:
        """Write frames if the stream is being recorded."""
        if stream in self._growing:
            self._writer.submit(self._growing[stream].write, frames)

    async def end(self, stream: str) -> tuple[str, int]:
        """Finish the clip; return its name for `download`, empty if nothing was recorded, and its number of frames."""
        clip = self._growing.pop(stream, None)
        if clip is None:
            return "", 0
        await asyncio.get_running_loop().run_in_executor(self._writer, clip.video.close)
        if not clip.frames:
            return "", 0
        name = secrets.token_urlsafe(24)
        self.clips[name] = clip.path
        while len(self.clips) > CLIPS:
            self.clips.pop(next(iter(self.clips))).unlink(missing_ok=True)
        return name, clip.frames

    def stop(self, stream: str) -> None:
        """End a clip that nobody has asked for in time; it goes with the folder."""
        clip = self._growing.pop(stream, None)
        if clip is not None:
            self._writer.submit(clip.video.close)

    def close(self) -> None:
        """End and delete all clips."""
        for stream in list(self._growing):
            self.stop(stream)
        self._writer.shutdown(wait=True)
        self._folder.cleanup()
