"""Frames as one fragmented MP4 that grows: what Media Source Extensions of a browser play as it comes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final

import av
import numpy as np
from numpy.typing import NDArray

OPTIONS: Final = {"preset": "ultrafast", "tune": "zerolatency", "crf": "20"}


class Fragments:
    """A fragmented MP4 of H.264, a fragment for each frame; the header comes with the first.

    Args:
        width, height: of a frame, even.
        fps: frames per second.
    """

    def __init__(self, width: int, height: int, fps: int) -> None:
        self._bytes = io.BytesIO()
        self._container = av.open(
            self._bytes, "w", format="mp4", options={"movflags": "+frag_every_frame+empty_moov+default_base_moof"}
        )
        stream: Any = self._container.add_stream("libx264", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.thread_count, stream.codec_context.options = 1, dict(OPTIONS)
        self._stream = stream

    def add(self, frames: Sequence[NDArray[np.uint8]]) -> bytes:
        """Add frames, uint8 [Y, X, 3]; return the bytes that follow those before. The last frame comes with the next bytes."""
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            self._container.mux(self._stream.encode(picture))
        return self._taken()

    def close(self) -> bytes:
        """Return the last bytes."""
        self._container.mux(self._stream.encode())
        self._container.close()
        return self._taken()

    def _taken(self) -> bytes:
        found = self._bytes.getvalue()
        self._bytes.seek(0)
        self._bytes.truncate()
        return found
