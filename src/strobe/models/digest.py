"""Hashes of weight files, kept between runs, because a file of gigabytes takes seconds to hash."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from strobe.core.errors import StrobeError
from strobe.core.files import write_whole
from strobe.core.settings import cache_folder

SMALL_BYTES: Final = 1 << 26
"""Files below this are hashed each time."""
KEPT: Final = 1000
"""Files that are remembered, the last ones."""
NAME: Final = "weights.json"


class _Known(msgspec.Struct):
    """Size, times, place and hash of a file that was hashed; `changed_ns` is its ctime, which programs cannot set."""

    size_bytes: int
    modified_ns: int
    changed_ns: int
    inode: int
    sha256: str


def sha256_of(path: Path) -> bytes:
    """Return the sha256 of a file's content.

    A file that has not changed since it was hashed, by its size, times and place on the disk, is not read again. Hashes are kept
    in `strobe/weights.json` of the user's cache folder.
    """
    stat = path.stat()
    folder = cache_folder()
    if stat.st_size < SMALL_BYTES or folder is None:
        return _read(path)
    list_path, key = folder / "strobe" / NAME, str(path.resolve())
    known = _load(list_path)
    now = _Known(size_bytes=stat.st_size, modified_ns=stat.st_mtime_ns, changed_ns=stat.st_ctime_ns, inode=stat.st_ino, sha256="")
    before = known.pop(key, None)
    if before is not None and msgspec.structs.replace(before, sha256="") == now:
        return bytes.fromhex(before.sha256)
    digest = _read(path)
    known[key] = msgspec.structs.replace(now, sha256=digest.hex())
    _keep(list_path, dict([*known.items()][-KEPT:]))
    return digest


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _load(path: Path) -> dict[str, _Known]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _Known])
    except (
        OSError,
        msgspec.MsgspecError,
        UnicodeDecodeError,
        RecursionError,
    ):  # there is none, or it is damaged: files are hashed again
        return {}


def _keep(path: Path, known: dict[str, _Known]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(known))
    except (OSError, StrobeError):  # a cache that cannot be written costs time alone
        return
