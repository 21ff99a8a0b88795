"""The file that holds a run's records: `records.jsonl` as it is written, or `records.jsonl.gz` as it is published."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from strobe.core.errors import DataError
from strobe.core.files import file_inside, found_inside, write_whole

RECORDS: Final = "records.jsonl"
PACKED: Final = "records.jsonl.gz"
FILES: Final = (RECORDS, PACKED)
MAX_BYTES: Final = 1 << 31
"""Largest size that packed records may unpack to, bytes."""

_GZIP: Final = b"\x1f\x8b"
_PIECE: Final = 4096


def records_in(folder: Path) -> Path | None:
    """Return the file with the records of a run folder; None if it has none that can be opened.

    Raises:
        DataError: the folder holds plain and packed records.
    """
    there = [file for name in FILES if (file := found_inside(folder, name)) is not None]
    if len(there) > 1:
        raise DataError(f"{folder} holds both {RECORDS} and {PACKED}; remove one of them")
    return there[0] if there else None


def records_file(path: Path) -> Path:
    """Return the file with the records of a run folder, or the file itself.

    Raises:
        DataError: the folder holds plain and packed records, or the file leads out of it or is no plain file.
        OSError: there is none.
    """
    if path.is_dir():
        return records_in(path) or file_inside(path, PACKED if (path / PACKED).is_symlink() else RECORDS)
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a plain file, and is not opened")
    return path


def read_bytes(file: Path) -> tuple[bytes, str]:
    """Return the lines of a record file, unpacked if they are gzip, and what is damaged in the gzip; empty if it is sound.

    Raises:
        DataError: the file unpacks to more than `MAX_BYTES`.
        OSError: the file cannot be read.
    """
    data = file.read_bytes()
    return unpack(data, file) if data.startswith(_GZIP) else (data, "")


def unpack(data: bytes, file: Path) -> tuple[bytes, str]:
    """Return what a gzip holds up to its end or to the first damage, and what is damaged.

    Raises:
        DataError: it unpacks to more than `MAX_BYTES`.
    """
    reader, found, size = zlib.decompressobj(wbits=31), [], 0
    for at in range(0, len(data), _PIECE):
        piece, before = data[at : at + _PIECE], reader.copy()
        try:
            found.append(reader.decompress(piece))
        except zlib.error:
            found += _before_the_damage(before, piece)
            return b"".join(found), f"{file.name} is damaged as gzip near byte {at:,}: what comes after is not read"
        size += len(found[-1])
        if size > MAX_BYTES:
            raise DataError(f"{file} unpacks to more than {MAX_BYTES:,} bytes, and is not read; give the records of one run")
        if reader.eof:
            rest = len(reader.unused_data) + max(0, len(data) - at - _PIECE)
            more = f"{file.name} has {rest:,} bytes after its gzip, which are not read" if rest else ""
            return b"".join(found), more
    return b"".join(found), f"{file.name} is cut short as gzip: its end is not there"


def _before_the_damage(reader: zlib._Decompress, piece: bytes) -> Iterator[bytes]:
    """Yield what the bytes of a piece unpack to, one byte at a time, up to the first that cannot be unpacked."""
    with suppress(zlib.error):
        for at in range(len(piece)):
            yield reader.decompress(piece[at : at + 1])


def pack(folder: Path) -> Path:
    """Replace `records.jsonl` of a run folder by `records.jsonl.gz`; equal bytes for equal records.

    Raises:
        DataError: the folder has no plain records, or packed ones beside them.
        StrobeError: the packed file cannot be written; then the plain one stands.
    """
    plain = records_in(folder)
    if plain is None or plain.name != RECORDS:
        raise DataError(f"{folder} has no {RECORDS} to pack; name a run folder with plain records")
    packed = write_whole(folder / PACKED, gzip.compress(plain.read_bytes(), 9, mtime=0))
    plain.unlink()
    return packed
