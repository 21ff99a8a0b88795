"""Reader of the plain text of a `.json` or `.json.gz` file in blocks, up to the damage in a broken one."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import BinaryIO, Final

import numpy as np

try:
    from isal import isal_zlib  # a few times as fast, the same bytes
except ImportError:
    isal_zlib = None  # type: ignore[assignment]

BLOCK_BYTES: Final = 1 << 20
_GZIP: Final = zlib.MAX_WBITS | 16
_GZIP_MAGIC: Final = b"\x1f\x8b"
_STEP: Final = 4 << 10


class PlainText:
    """The plain text of a file, block by block. Gzip is recognised by its first bytes; it may have several members.

    Where the packed bytes are damaged or cut off, the text before that is all there, and `damaged` is set.

    Args:
        file: an open file, at its start.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.damaged = False
        self._file = file
        self._fast: ModuleType = isal_zlib or zlib
        self._unpacked: Iterator[bytes] | None = None
        self._started = False

    def read(self) -> bytes:
        """Return the next block; nothing at the end."""
        if self._unpacked is not None:
            return next(self._unpacked, b"")
        data = self._file.read(BLOCK_BYTES)
        if not self._started and data.startswith(_GZIP_MAGIC):
            self._unpacked = self._unpack(data)
            data = next(self._unpacked, b"")
        self._started = True
        return data

    def read_behind(self, start: bytes | memoryview) -> bytearray:
        """Return a blank, `start`, and as much of what follows or one block, whichever is more; less at the end alone.

        The plain text of a file is read to where it stands then, for to copy it takes as long as to decode it.
        """
        wanted = max(BLOCK_BYTES, len(start))
        if self._unpacked is not None or not self._started:
            parts = [b" ", start]
            while wanted > 0 and (block := self.read()):
                parts.append(block)
                wanted -= len(block)
            return bytearray().join(parts)
        at = 1 + len(start)
        text = bytearray(at + wanted)
        text[:at] = b"".join((b" ", start))
        del text[at + self._file.readinto(memoryview(text)[at:]) :]  # type: ignore[attr-defined]
        return text

    def _unpack(self, data: bytes) -> Iterator[bytes]:
        member = given = 0  # offset of the member in the file, bytes of its text handed out
        inflate = self._fast.decompressobj(_GZIP)
        while data:
            try:
                block = inflate.decompress(data, BLOCK_BYTES)
            except (zlib.error, self._fast.error):
                yield from self._salvage(member, given)
                return
            if block:
                given += len(block)
                yield block
            data = inflate.unconsumed_tail or inflate.unused_data
            if len(data) < len(_GZIP_MAGIC):
                data += self._file.read(BLOCK_BYTES)
            if inflate.eof:
                if not data.startswith(_GZIP_MAGIC):  # nothing, or padding
                    return
                member, given = self._file.tell() - len(data), 0
                inflate = self._fast.decompressobj(_GZIP)
        yield from self._salvage(member, given)

    def _salvage(self, member: int, given: int) -> Iterator[bytes]:
        """Unpack a damaged member again in ever smaller steps, to lose no text before the damage; yield new text."""
        self.damaged = True
        self._file.seek(member)
        inflate = zlib.decompressobj(_GZIP)
        while data := inflate.unconsumed_tail or self._file.read(_STEP):
            before = inflate.copy()
            try:
                block = inflate.decompress(data, given or _STEP)
            except zlib.error:
                yield _bytewise(before, data)[given:]
                return
            if given:
                given -= len(block)
            elif block:
                yield block
        yield inflate.flush()[given:]


def _bytewise(inflate: zlib._Decompress, data: bytes) -> bytes:
    """Return the text that unpacks byte by byte before the damage."""
    text = bytearray()
    with contextlib.suppress(zlib.error):
        for at in range(len(data)):
            text += inflate.decompress(data[at : at + 1])
    return bytes(text)


def holds(text: bytes | memoryview, word: bytes, part: bytes) -> bool:
    """Return whether `word` is in the text.

    Args:
        part: four bytes of the word that are rare elsewhere; a text without them takes a quarter of the time of `in`.
    """
    rare = np.frombuffer(part, np.uint32)[0]
    places = range(min(len(part), len(text)))
    if not any((np.frombuffer(text, np.uint32, (len(text) - at) // len(part), at) == rare).any() for at in places):
        return False
    return word in bytes(text)
