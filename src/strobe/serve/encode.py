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


class Encoder:
    """An encoder of one viewer's pictures, in order: each frame gives its picture at once.

    H.264 is not reordered and has the parameter sets before every key frame; a JPEG stands by itself.

    Args:
        width, height: of a frame, even.
        fps: frames per second.
    """

    def __init__(self, codec: Codec, width: int, height: int, fps: int) -> None:
        context = av.CodecContext.create("libx264" if codec == "h264" else "mjpeg", "w")
        assert isinstance(context, av.VideoCodecContext)
        context.width, context.height, context.time_base = width, height, Fraction(1, fps)
        if codec == "h264":
            context.options = {
                "preset": "ultrafast",
                "tune": "zerolatency",
                "x264-params": "repeat-headers=1:annexb=1:scenecut=0:bframes=0:sliced-threads=1",
                "crf": "20",
            }
            context.pix_fmt, context.framerate, context.profile = "yuv420p", Fraction(fps), "Baseline"
            context.gop_size, context.thread_count = fps * KEY_EVERY_S, 1
        else:
            scale = max(1, round((100 - QUALITY) / 3))  # of MPEG's quantisers, 1 is the finest
            context.pix_fmt, context.options = "yuvj420p", {"qmin": str(scale), "qmax": str(scale), "q:v": str(scale)}
        self._context, self._count = context, 0

    def encode(self, frame: NDArray[np.uint8]) -> tuple[bytes, bool]:
        """Encode a frame, uint8 [Y, X, 3], and return its bytes, and whether a decoder can begin with it."""
        picture = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(format=self._context.pix_fmt)
        picture.pts, self._count = self._count, self._count + 1
        packets = self._context.encode(picture)
        return b"".join(bytes(packet) for packet in packets), any(packet.is_keyframe for packet in packets)
