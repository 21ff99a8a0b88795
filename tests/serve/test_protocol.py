"""Messages: whole there and back, and nothing else passes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from strobe.core.errors import DataError
from strobe.serve import protocol
from strobe.serve.hub import KEY_EVERY_S, Encoder
from strobe.serve.protocol import CODECS, Codec, Picture, read_picture, read_viewer

PLAYER = Path(protocol.__file__).with_name("static") / "player.js"


U32 = st.integers(0, 2**32 - 1)


@given(st.sampled_from(sorted(CODECS)), st.booleans(), U32, U32, U32, st.integers(0, 2**53), st.binary(max_size=64))
def test_a_picture_comes_back_as_it_was(
    codec: str, key: bool, generation: int, frame: int, epoch: int, made: int, data: bytes
) -> None:
    picture = Picture(codec=codec, key=key, generation=generation, frame=frame, epoch=epoch, made_us=made, data=data)  # type: ignore[arg-type]
    assert read_picture(picture.header() + data) == picture


@given(st.binary(max_size=40))
def test_no_bytes_crash_the_reader_of_pictures(data: bytes) -> None:
    try:
        assert read_picture(data).data == data[24:]
    except DataError as error:
        assert "picture" in str(error)


@settings(max_examples=300)
@given(
    st.one_of(
        st.text(max_size=200),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["type", "v", "text", "on", "frame"]), inner)
            ),
            max_leaves=12,
        ).map(lambda value: json.dumps(value)),
    )
)
def test_no_text_crashes_the_reader_of_messages(text: str) -> None:
    try:
        read_viewer(text)
    except DataError as error:
        assert "protocol" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"open"}',
        '{"type":"open","v":1,"other":2}',
        '{"type":"prompt","text":"%s"}' % ("a" * (protocol.LONGEST_PROMPT + 1)),
        '{"type":"prompt","text":"a","mode":"fast"}',
        '{"type":"prompt","text":"a","over":0}',
        '{"type":"seen","frame":-1,"generation":0,"epoch":0}',
        '{"type":"seen","frame":1.5,"generation":0,"epoch":0}',
        '{"type":"reset","seed":-1}',
        '{"type":"welcome"}',
        "[" * 100_000,
        "\\ud800",
    ],
)
def test_what_is_out_of_bounds_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        read_viewer(text)


def test_the_page_speaks_this_version() -> None:
    text = PLAYER.read_text()
    assert int(re.search(r"VERSION = (\d+)", text)[1]) == protocol.VERSION  # type: ignore[index]
    assert int(re.search(r"HEADER = (\d+)", text)[1]) == len(
        Picture(codec="h264", key=True, generation=0, frame=0, epoch=0, made_us=0, data=b"").header()
    )  # type: ignore[index]
    listed = {number: name for name, number in CODECS.items()}
    assert json.loads(re.sub(r"(\d+):", r'"\1":', re.search(r"CODECS = ({.*})", text)[1].replace(" ", ""))) == {
        str(k): v for k, v in listed.items()
    }  # type: ignore[index]


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
