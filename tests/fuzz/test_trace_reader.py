"""Whatever is in a file, the reader reads it or says why not; the checks are those of `make fuzz`."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz_trace_reader import check, read, seeds
from strobe.perf.trace import chunks

SEEDS = seeds()
TOKENS = [
    b'"', b"{", b"}", b"[", b"]", b'},{"', b'}, {"ph":', b",", b":", b"\\", b'\\"', b"\\u", b"\x00", b"\n", b"\xff",
    b"\xef\xbb\xbf", b"[" * 3000, b'{"a":' * 1500, b"null", b"NaN", b"-1", b"1e999", b"9" * 30, b'"traceEvents": [',
    b'"ph":"X"', b'"cat":"kernel"', b'"cat":7', b'"args":null', b'"correlation":"x"', b"\x1f\x8b",
]  # fmt: skip
JUNK = st.one_of(st.binary(max_size=8), st.sampled_from(TOKENS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@given(data=st.one_of(st.binary(max_size=300), st.lists(st.sampled_from(TOKENS), max_size=12).map(b"".join)), pack=st.booleans())
def test_any_bytes(data: bytes, pack: bool, folder: Path) -> None:
    check(gzip.compress(data) if pack else data, folder)


@given(data=st.data(), seed=st.sampled_from(SEEDS), small=st.booleans())
def test_damaged_traces(data: st.DataObject, seed: bytes, small: bool, folder: Path) -> None:
    text = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 60))] = data.draw(JUNK)
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(chunks, "CHUNK_BYTES", 701)
            patch.setattr(chunks, "BLOCK_BYTES", 701)
        check(bytes(text), folder)


@given(data=st.data(), layout=st.sampled_from(SEEDS[:5]))
def test_where_the_cuts_fall_does_not_matter(data: st.DataObject, layout: bytes, folder: Path) -> None:
    text = bytearray(layout)
    at = data.draw(st.integers(0, len(text)))
    text[at : at + data.draw(st.integers(0, 20))] = data.draw(JUNK)
    (folder / "t.json").write_bytes(text)
    whole = read(folder / "t.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", 701)
        patch.setattr(chunks, "BLOCK_BYTES", 701)
        assert read(folder / "t.json") == whole
