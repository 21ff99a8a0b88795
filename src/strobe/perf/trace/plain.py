"""Reader of the plain text of a `.json` or `.json.gz` file in blocks, up to the damage in a broken one."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import BinaryIO, Final

try:
    from isal import isal_zlib  # a few times as fast, the same bytes
except ImportError:
    isal_zlib = None  # type: ignore[assignment]

BLOCK_BYTES: Final = 4 << 20
_GZIP: Final = zlib.MAX_WBITS | 16
_GZIP_MAGIC: Final = b"\x1f\x8b"
_STEP: Final = 4 << 10


class PlainBlocks:
    """Blocks of the plain text of a file. Gzip is recognised by its first bytes; it may have several members.

    Where the packed bytes are damaged or cut off, the text before that is all there, and `damaged` is set.

    Args:
        file: an open file, at its start.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.damaged = False
        self._file = file
        self._fast: ModuleType = isal_zlib or zlib

    def __iter__(self) -> Iterator[bytes]:
        data = self._file.read(BLOCK_BYTES)
        if data.startswith(_GZIP_MAGIC):
            yield from self._unpack(data)
            return
        while data:
            yield data
            data = self._file.read(BLOCK_BYTES)

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
