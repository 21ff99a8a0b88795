"""Clips that viewers record: files in a folder of the server, until it ends."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strobe.core.errors import StrobeError
from strobe.engine.video import VideoFile
from strobe.serve.metrics import Metrics, log_event
from strobe.serve.protocol import RecordingState

CLIPS: Final = 16
"""Finished clips that are kept."""
LONGEST_CLIP_S: Final = 600


@dataclass(kw_only=True, eq=False, slots=True)
class _Growing:
    """A clip that grows on the server's disk, and what became of it."""

    stream: str
    video: VideoFile
    most_frames: int
    ended: RecordingState | None = None


class Recordings:
    """The clips of a server, at most one that grows for each stream. One thread writes them: frames keep their order.

    Args:
        ended: called on that thread with the stream's name and its clip when the clip ends by itself: it could not be written, or
            is as long as a clip may be.
    """

    def __init__(self, metrics: Metrics, ended: Callable[[str, RecordingState], None]) -> None:
        self.clips: dict[str, Path] = {}
        self._metrics, self._ended = metrics, ended
        self._growing: dict[str, _Growing] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="strobe-record")
        self._folder = tempfile.TemporaryDirectory(prefix="strobe-serve-")

    def start(self, stream: str, fps: int) -> None:
        """Begin to write the frames that are made from now on.

        Raises:
            StrobeError: no file can be written.
        """
        growing = self._growing.get(stream)
        if growing is None or growing.ended is not None:
            video = VideoFile(Path(self._folder.name) / f"{secrets.token_urlsafe(16)}.mp4", fps=fps)
            self._growing[stream] = _Growing(stream=stream, video=video, most_frames=LONGEST_CLIP_S * fps)

    def add(self, stream: str, frames: NDArray[np.uint8]) -> None:
        """Write frames if the stream is being recorded."""
        if stream in self._growing:
            self._writer.submit(self._write, self._growing[stream], frames)

    async def end(self, stream: str) -> RecordingState:
        """Finish the clip; one that ended by itself is told once more."""
        growing = self._growing.pop(stream, None)
        if growing is None:
            return RecordingState(on=False, download="", frames=0)
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._finish, growing)

    def stop(self, stream: str) -> None:
        """End a clip that nobody has asked for in time; it goes with the folder."""
        growing = self._growing.pop(stream, None)
        if growing is not None:
            self._writer.submit(growing.video.close)

    def close(self) -> None:
        """End and delete all clips."""
        for stream in list(self._growing):
            self.stop(stream)
        self._writer.shutdown(wait=True)
        self._folder.cleanup()

    def _write(self, growing: _Growing, frames: NDArray[np.uint8]) -> None:
        """Append frames; when that fails, or no more may come, the clip ends and its viewer is told."""
        import torch

        if growing.ended is not None:
            return
        room = growing.most_frames - growing.video.num_frames
        try:
            growing.video.write(torch.from_numpy(frames[:room]))
        except StrobeError as error:
            clip = self._finish(growing, error)
        else:
            if len(frames) < room:
                return
            clip = self._finish(growing, why=f"a clip has at most {LONGEST_CLIP_S} s; record another one")
        self._ended(growing.stream, clip)

    def _finish(self, growing: _Growing, error: StrobeError | None = None, why: str = "") -> RecordingState:
        """Close a clip's file and keep the frames in it that are whole. Again: returns the same."""
        if growing.ended is not None:
            return growing.ended
        try:
            growing.video.close()
        except StrobeError as late:
            error = error or late
        frames, path, download = growing.video.num_frames, growing.video.written, ""
        if error is not None:
            why = "the server could not write more of the clip; its log says why"
            self._metrics.not_recorded.inc()
            log_event("recording failed", stream=growing.stream, frames=frames, error=str(error))
        if frames:
            name = secrets.token_urlsafe(24)
            self.clips[name], download = path, f"/v1/clips/{name}"
        while len(self.clips) > CLIPS:
            self.clips.pop(next(iter(self.clips))).unlink(missing_ok=True)
        growing.ended = RecordingState(on=False, download=download, frames=frames, why=why)
        return growing.ended
