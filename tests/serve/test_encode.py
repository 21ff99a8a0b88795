"""Pictures decode to the frames they were made of, each as soon as it is encoded."""

from __future__ import annotations

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from strobe.serve.encode import KEY_EVERY_S, Encoder
from strobe.serve.protocol import Codec


def moving(count: int, height: int = 64, width: int = 96) -> list[NDArray[np.uint8]]:
    frames = []
    for number in range(count):
        frame = np.full((height, width, 3), (20, 40, 120), np.uint8)
        frame[16:48, (4 * number) % 64 : (4 * number) % 64 + 24] = (220, 200, 40)
        frames.append(frame)
    return frames


@pytest.mark.parametrize("codec", ["h264", "jpeg"])
def test_a_picture_decodes_at_once_to_its_frame(codec: Codec) -> None:
    encoder = Encoder(codec, 96, 64, 16)
    decoder = av.CodecContext.create("h264" if codec == "h264" else "mjpeg", "r")
    assert isinstance(decoder, av.VideoCodecContext)
    decoder.flags |= av.codec.context.Flags.low_delay
    decoder.thread_count = 1
    keys = []
    for number, frame in enumerate(moving(40)):
        data, key = encoder.encode(frame)
        keys.append(key)
        assert data, "the encoder held a frame back"
        (found,) = decoder.decode(av.Packet(data))
        error = (found.to_ndarray(format="rgb24").astype(float) - frame) ** 2
        assert 10 * np.log10(255**2 / error.mean()) > 27, number
    assert keys[0] and (all(keys) if codec == "jpeg" else keys.count(True) == 1 + 39 // (16 * KEY_EVERY_S))


def test_a_key_picture_names_its_codec() -> None:
    """The page reads profile and level from the sequence parameter set of a key picture."""
    data, key = Encoder("h264", 96, 64, 16).encode(moving(1)[0])
    at = data.index(b"\x00\x00\x01\x67") + 4
    assert key and data[at] in (66, 77) and data[:3] in (b"\x00\x00\x00", b"\x00\x00\x01")
