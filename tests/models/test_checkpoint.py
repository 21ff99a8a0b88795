"""Weight files are read strictly, and large ones are hashed once."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from strobe.core.errors import WeightsError
from strobe.models import checkpoint as digest
from strobe.models.checkpoint import NAME, read_file, read_shapes, sha256_of


def test_a_file_that_begins_like_an_archive_is_none(tmp_path: Path) -> None:
    """A header of that length: the first two of its eight bytes read PK."""
    path, size = tmp_path / "model.safetensors", 0x4B50
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode().ljust(size)
    path.write_bytes(size.to_bytes(8, "little") + header + b"\0\0\x80\x3f")
    assert path.read_bytes().startswith(b"PK") and read_shapes(path)["x"].shape == (1,) and read_file(path)["x"].item() == 1.0


@pytest.mark.parametrize(
    "header",
    [
        b'{"\xff\xfe": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [9223372036854775808, 2], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 4]}}',
        b"[" * 5000,
    ],
)
def test_a_header_that_cannot_be(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\0\0")
    with pytest.raises(WeightsError, match="is damaged"):
        read_shapes(path)


def test_a_page_that_was_saved_as_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"<!DOCTYPE html><html>Not found</html>")
    with pytest.raises(WeightsError, match=r"is no weight file: it begins with b'<!DOCTYPE ht'; fetch it again"):
        read_file(path)


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were really read."""
    found: list[Path] = []
    real = digest._read
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(digest, "SMALL_BYTES", 4)
    monkeypatch.setattr(digest, "_read", lambda path: found.append(path) or real(path))
    return found


def test_once_and_again_after_a_change(tmp_path: Path, reads: list[Path]) -> None:
    file, other = tmp_path / "a.pt", tmp_path / "b.pt"
    for path in (file, other):
        path.write_bytes(b"weights")
    expected = hashlib.sha256(b"weights").digest()
    assert [sha256_of(file), sha256_of(file), sha256_of(other), sha256_of(tmp_path / "." / "a.pt")] == [expected] * 4
    assert reads == [file, other]
    stat = file.stat()
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as if it had not been written
    assert sha256_of(file) == hashlib.sha256(b"WEIGHTS").digest() and reads == [file, other, file]
    os.replace(other, file)
    assert sha256_of(file) == expected and len(reads) == 4


def test_small_files_are_not_remembered(tmp_path: Path, reads: list[Path]) -> None:
    file = tmp_path / "a.pt"
    file.write_bytes(b"abc")
    assert sha256_of(file) == sha256_of(file) == hashlib.sha256(b"abc").digest()
    assert len(reads) == 2 and not (tmp_path / "cache").exists()


def test_a_damaged_list_and_a_folder_that_cannot_be_written(tmp_path: Path, reads: list[Path]) -> None:
    file, kept = tmp_path / "a.pt", tmp_path / "cache" / "strobe" / NAME
    file.write_bytes(b"weights")
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"{")
    assert sha256_of(file) == sha256_of(file) and len(reads) == 1
    kept.unlink()
    kept.mkdir()
    assert sha256_of(file) == hashlib.sha256(b"weights").digest() and len(reads) == 2
