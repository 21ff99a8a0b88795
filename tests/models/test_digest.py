"""Files are hashed once, and again as soon as anything about them changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from strobe.models import checkpoint as digest
from strobe.models.checkpoint import NAME, sha256_of


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
