"""Encoding of frames to pictures for the network: H.264 as Annex B, or JPEG. On the CPU: an H200 has no video encoder."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import av
import numpy as np
from numpy.typing import NDArray

from strobe.serve.protocol import Codec

KEY_EVERY_S: Final = 2
"""Seconds between frames that a decoder can begin with."""
QUALITY: Final = 85
"""Of a JPEG, 1 to 100."""


class H264:
    """H.264 without reordering: each frame gives its picture at once, with the parameter sets before every key frame.

    Args:
        width, height: of a frame, even.
        fps: frames per second.
    """

    def __init__(self, width: int, height: int, fps: int) -> None:
        options = {
            "preset": "ultrafast",
            "tune": "zerolatency",
            "x264-params": "repeat-headers=1:annexb=1:scenecut=0:bframes=0:sliced-threads=1",
            "crf": "20",
        }
        context = av.CodecContext.create("libx264", "w")
        assert isinstance(context, av.VideoCodecContext)
        context.width, context.height, context.pix_fmt = width, height, "yuv420p"
        context.time_base, context.framerate = Fraction(1, fps), Fraction(fps)
        context.gop_size, context.options, context.profile = fps * KEY_EVERY_S, options, "Baseline"
        context.thread_count = 1
        self._context, self._count = context, 0

    def encode(self, frame: NDArray[np.uint8]) -> tuple[bytes, bool]:
        """Encode a frame, uint8 [Y, X, 3], and return its bytes, and whether a decoder can begin with it."""
        picture = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(format="yuv420p")
        picture.pts, self._count = self._count, self._count + 1
        packets = self._context.encode(picture)
        return b"".join(bytes(packet) for packet in packets), any(packet.is_keyframe for packet in packets)


class Jpeg:
    """JPEG, each picture by itself. Args: as of `H264`."""

    def __init__(self, width: int, height: int, fps: int) -> None:
        context = av.CodecContext.create("mjpeg", "w")
        assert isinstance(context, av.VideoCodecContext)
        context.width, context.height, context.pix_fmt, context.time_base = width, height, "yuvj420p", Fraction(1, fps)
        scale = max(1, round((100 - QUALITY) / 3))  # of MPEG's quantisers, 1 is the finest
        context.options = {"qmin": str(scale), "qmax": str(scale), "q:v": str(scale)}
        self._context, self._count = context, 0

    def encode(self, frame: NDArray[np.uint8]) -> tuple[bytes, bool]:
        """Encode a frame, uint8 [Y, X, 3], and return its bytes, and whether a decoder can begin with it."""
        size = self._context.width, self._context.height
        picture = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(*size, format="yuvj420p")
        picture.pts, self._count = self._count, self._count + 1
        return b"".join(bytes(packet) for packet in self._context.encode(picture)), True


def new_encoder(codec: Codec, width: int, height: int, fps: int) -> H264 | Jpeg:
    """Open an encoder for one viewer."""
    return H264(width, height, fps) if codec == "h264" else Jpeg(width, height, fps)
