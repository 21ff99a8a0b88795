"""Files of tensors by what they begin with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strobe.core.errors import WeightsError
from strobe.models.checkpoint import read_file, read_shapes


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
