"""Files written whole or not at all, and safe access to the files of an untrusted folder."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from strobe.core.errors import NO_PLACE, ConfigError, DataError, StrobeError

_PACKED: Final = {b"\x28\xb5\x2f\xfd": "zstandard", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


def refused(head: bytes) -> str:
    """Return why a file with these first bytes is not read: it is compressed, but not with gzip; empty for any other."""
    name = next((name for magic, name in _PACKED.items() if head.startswith(magic)), "")
    return name and f"compressed as {name}, and only gzip is read; decompress it, and give that or a .gz of it"


def write_whole(path: Path, data: bytes | str) -> Path:
    """Write a file beside and rename it, so that the old or the new one exists at any moment; text as UTF-8.

    Raises:
        StrobeError: it cannot be written; then the old one stands and nothing else is left.
    """
    content = data.encode() if isinstance(data, str) else data
    with writing_whole(path, len(content)) as file:
        file.write(content)
    return path


def write_together(contents: Mapping[Path, bytes | str]) -> tuple[Path, ...]:
    """Write files that belong together: all are on the disk before the first one is renamed to its place.

    Raises:
        StrobeError: one cannot be written; then all old ones stand and nothing else is left.
    """
    pages = {path: data.encode() if isinstance(data, str) else data for path, data in contents.items()}
    with ExitStack() as stack:
        files = {path: stack.enter_context(writing_whole(path, len(data))) for path, data in pages.items()}
        for path, file in files.items():
            try:
                file.write(pages[path])
                file.flush()
                if not _is_stream(path):
                    os.fsync(file.fileno())
            except OSError as error:
                raise not_written(path, error, len(pages[path])) from error
    return tuple(pages)


@contextmanager
def writing_whole(path: Path, size_bytes: int = 0) -> Iterator[BinaryIO]:
    """Open a file that takes its place when the body has written all of it.

    A link is replaced and never written through. A device or pipe is written to as it is.

    Args:
        size_bytes: what the file takes, as far as it is known, for the message.

    Raises:
        ConfigError: a folder is in the way.
        StrobeError: it cannot be written; then the old one stands and nothing else is left.
    """
    if path.is_dir():
        raise ConfigError(f"{path}: a folder is in the way; name another")
    took = size_bytes
    try:
        if _is_stream(path):
            with path.open("wb") as stream:
                yield stream
            return
        with _beside(path) as partial:
            try:
                with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666), "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                took = max(took, partial.stat().st_size if partial.exists() else 0)
            partial.replace(path)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"{path.parent}: a file is in the way; name another folder") from error
    except OSError as error:
        raise not_written(path, error, took) from error


def not_written(path: Path, error: OSError, size_bytes: int = 0, then: str = "") -> StrobeError:
    """Say why a file could not be written; for a full disk, the bytes needed and free.

    Args:
        size_bytes: what it takes at least; 0: not known.
        then: what became of it, ending in `; `.
    """
    if error.errno not in _NO_ROOM:
        room = "free some space or " if error.errno == errno.EFBIG else ""
        kind = ConfigError if error.errno in NO_PLACE else StrobeError
        return kind(f"cannot write {path}: {error.strerror or error}; {then}{room}name another place")
    needs = f", it takes {size_bytes:,} bytes or more" if size_bytes else ""
    with suppress(OSError):
        needs += f", {shutil.disk_usage(path.parent).free:,} bytes are free there"
    return StrobeError(f"cannot write {path}: the disk is full{needs}; {then}free some space or name another place")


def file_inside(folder: Path, name: str) -> Path:
    """Return the path of a plain file that a record of the folder names.

    Raises:
        DataError: the name leads out of the folder, over a link, or to something that is not a plain file.
        OSError: there is no such file.
    """
    named = PurePosixPath(name)
    if named.is_absolute() or ".." in named.parts or "\0" in name or not named.parts:
        raise DataError(f"{name!r} is not a path inside {folder}, and is not opened")
    path = folder
    for part in named.parts:
        path /= part
        if path.is_symlink():
            raise DataError(f"{path} is a link, and is not followed")
    if not stat.S_ISREG(path.stat().st_mode):
        raise DataError(f"{path} is not a plain file, and is not opened")
    return path


def found_inside(folder: Path, name: str) -> Path | None:
    """Return the path of a plain file that a record of the folder names; None if it is not there or not to be opened."""
    try:
        return file_inside(folder, name)
    except (OSError, DataError):
        return None


def _is_stream(path: Path) -> bool:
    """Return whether a path is a device, a pipe or below /dev or /proc, so that no other file can be renamed to it."""
    parent = path.parent.resolve()
    if parent == Path("/dev") or parent.is_relative_to("/proc"):
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    if path.is_symlink() and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise StrobeError(f"cannot write {path}: it is a link to a device or pipe; name a file")
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Give an unused name beside a file, and remove what is left there at the end."""
    partial = path.with_name(f".{path.name[:80]}.{secrets.token_hex(4)}.tmp")
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)
