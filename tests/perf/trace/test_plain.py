"""Unpacking: the same bytes with either library, and all that stands before a damage."""

import gzip
import io
import random
import zlib
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.trace import chunks

TEXT = "".join(f'{{"ph": "X", "ts": {i}.{i % 997:03d}}},\n' for i in range(4000)).encode()
LIBRARIES = [zlib, *([chunks.isal_zlib] if chunks.isal_zlib else [])]


def _unpack(packed: bytes, library: ModuleType) -> tuple[bytes, bool]:
    text = chunks.PlainText(io.BytesIO(packed))
    text._fast = library
    return b"".join(iter(text.read, b"")), text.damaged


@pytest.fixture(autouse=True, params=[chunks.BLOCK_BYTES, 1000])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "BLOCK_BYTES", request.param)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("padding", [b"", b"\0" * 700, b"x", b"not gzip"])
def test_members_and_padding(library: ModuleType, padding: bytes) -> None:
    members = [gzip.compress(TEXT[:5000]), gzip.compress(b""), gzip.compress(TEXT[5000:])]
    assert _unpack(b"".join(members) + padding, library) == (TEXT, False)


@pytest.mark.parametrize("library", LIBRARIES)
def test_plain_text_is_left_alone(library: ModuleType) -> None:
    assert _unpack(TEXT, library) == (TEXT, False)
    assert _unpack(b"", library) == (b"", False)
    later = b" " * chunks.BLOCK_BYTES + gzip.compress(TEXT[:500])  # only the first bytes of a file say that it is packed
    assert _unpack(later, library) == (later, False)


def _before_the_damage(packed: bytes) -> bytes:
    """The text that comes out when the packed bytes are fed one at a time."""
    inflate, text = zlib.decompressobj(31), b""
    for i in range(len(packed)):
        try:
            text += inflate.decompress(packed[i : i + 1])
        except zlib.error:
            break
    return text


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("seed", range(6))
def test_all_that_stands_before_a_damage_is_unpacked(library: ModuleType, seed: int) -> None:
    packed = bytearray(gzip.compress(TEXT))
    at = random.Random(seed).randrange(20, len(packed) - 8)
    if seed % 2:
        packed = packed[:at]
    else:
        packed[at] ^= 0x55
    text, damaged = _unpack(bytes(packed), library)
    expected = _before_the_damage(bytes(packed))
    assert damaged and text.startswith(expected)
    if seed % 2:
        assert text == expected


@given(st.binary(max_size=200), st.integers(0, 3))
def test_both_libraries_give_the_same_up_to_the_damage(junk: bytes, where: int) -> None:
    packed = gzip.compress(TEXT[:3000])
    at = where * len(packed) // 3
    sound = _before_the_damage(packed[:at]) if at else b""
    results = [_unpack(packed[:at] + junk + packed[at + len(junk) :], library) for library in LIBRARIES]
    assert all(text.startswith(sound) for text, _ in results)
    assert len({_unpack(packed[: at + len(junk)], library) for library in LIBRARIES}) == 1


@pytest.mark.parametrize("packed", [TEXT, gzip.compress(TEXT)], ids=["plain", "packed"])
@pytest.mark.parametrize("held", [0, 7, 5000])
def test_text_is_read_behind_what_is_held(packed: bytes, held: int) -> None:
    text, so_far = chunks.PlainText(io.BytesIO(packed)), b""
    while len(so_far) < held:
        so_far += text.read()
    while True:
        found = text.read_behind(memoryview(so_far))
        assert found == b" " + TEXT[: len(found) - 1]
        if len(found) == 1 + len(so_far):
            break
        assert len(found) - 1 - len(so_far) >= min(max(chunks.BLOCK_BYTES, len(so_far)), len(TEXT) - len(so_far))
        so_far = bytes(found[1:])
    assert so_far == TEXT
