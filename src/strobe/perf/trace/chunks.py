"""The events of a chrome trace file, a few megabytes at a time, whatever its layout and however broken it is.

A trace is `{metadata, "traceEvents": [event, ...], metadata}` or a bare `[event, ...]`. Pieces of it are cut between two events
and decoded in one go. A cut is right if what is left of it decodes: it was then outside strings and between two events, and so by
induction is the next one. Where a piece does not decode, smaller ones are tried, down to a single event.
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import ModuleType
from typing import BinaryIO, Final

from strobe.core.errors import TraceFormatError
from strobe.perf.trace.metadata import (
    BARE,
    BYTE_ORDER_MARK,
    MAX_METADATA_BYTES,
    Metadata,
    events_start,
    object_end,
    read_metadata,
)
from strobe.perf.trace.schema import UNREADABLE, Batch, Buffer, Decoder

try:
    from isal import isal_zlib  # a few times as fast, the same bytes
except ImportError:
    isal_zlib = None  # type: ignore[assignment]

CHUNK_BYTES: Final = 1 << 20
MAX_EVENT_BYTES: Final = 8 << 20
_MIN_WINDOW: Final = 4 << 10
_MIN_SLICE: Final = 16 << 10
_TAIL_WINDOW: Final = 64 << 10
_MANY_LOSSES: Final = 500
_HOPELESS: Final = 10_000
_FIRST_KEY: Final = re.compile(rb'\{\s*+("[^"\\]{0,64}+")')
_BOUNDARY: Final = rb"\}(\s*+,\s*+)\{\s*+"
_ANY_BOUNDARY: Final = re.compile(_BOUNDARY + rb'["}]')
_EVENT_KEY: Final = rb'"(?:ph|cat|name|pid|tid|ts|dur|args|id|bp|s)"'
_EVENT_BOUNDARY: Final = re.compile(_BOUNDARY + _EVENT_KEY)
_EVENT_START: Final = re.compile(rb"[,\[]\s*+(?=\{\s*+" + _EVENT_KEY + rb")")
_CLOSING: Final = re.compile(rb"\}\s*+,?\s*+\]")
_INNER_CLOSING: Final = re.compile(rb"\]\s*+\}\s*+[,}]")
_EVENT_FOLLOWS: Final = re.compile(rb"[\s\]]*+,?+\s*+\{\s*+" + _EVENT_KEY)
_BEHIND: Final = re.compile(rb'[\s\]]*+,?+\s*+(?:[^\s{]|\{\s*+(?:[^\s"]|"[a-z]{0,4}+[^a-z]|"[a-z]{5}))')  # enough to tell
_PHASE: Final = b'"ph"'
_BLANK: Final = b" \t\r\n\x00"
_SEPARATOR: Final = re.compile(rb"[\s,]*+")
_SCALARS: Final = re.compile(rb"(?:[-+.\w]++[\s,]++)++")
_SCALAR: Final = re.compile(rb"[-+.\w]++")
_CUT_TOKEN: Final = re.compile(r"[-+.\\\w]{0,9}\s*")
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_NO_NUMBER: Final = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"(?:(?<="ts"|dur")\s*+:\s*+-?\w++)?|-?\b(?:nan|inf(?:inity)?)\b(?:\(\w*\))?', re.IGNORECASE
)
_ESCAPE: Final = re.compile(rb'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_EXPECTED: Final = "give a chrome trace (.json or .json.gz) as torch.profiler exports it"
_scan_value: Final = json.JSONDecoder(strict=False, parse_int=len, parse_float=len).raw_decode  # only the end is of interest


class EventCutter:
    """Cuts the events of a `.json` or `.json.gz` file into pieces and decodes them.

    Memory is a few times `CHUNK_BYTES`, whatever the size of the file. `pick` returns the decoder for a piece of the text.

    Attributes, filled while the file is read:
        lost: events that could not be read, and brackets that close the array of events before its end.
        trailing: of these, the events that stand behind the end of the JSON.
        mended: events, and parts of the metadata, read after something in them was replaced.
        truncated: the file ends before its JSON does, or its packed bytes are damaged.
        metadata: what stands before and after the events.
    """

    # `_at` is the place in `_text` that is reached; it is always between two events. A text is never written over by the next
    # one: what is decoded keeps views of it.

    def __init__(self, file: BinaryIO, pick: Callable[[Buffer], Decoder]) -> None:
        self.lost = self.trailing = self.mended = 0
        self.truncated = False
        self.metadata: Metadata = {}
        self._plain, self._pick = PlainText(file), pick
        self._text, self._at, self._ended = bytearray(), 0, False
        self._window = 2 * CHUNK_BYTES
        self._barren = 0  # no event ends before this place in `_text`
        self._batch, self._batch_bytes = Batch(), 0
        self._hopeless, self._losses = True, 0
        self._is_bare = False

    def batches(self) -> Iterator[Batch]:
        """Yield the events in file order; at the end the metadata behind them is read too.

        Raises:
            TraceFormatError: the file holds no `traceEvents`, or nothing in it is an event.
        """
        self._skip_head()
        while not self._at_closing():
            if self._piece() or self._single():
                if self._batch_bytes >= CHUNK_BYTES or self._batch.lost >= _HOPELESS:
                    yield self._hand_over()
            elif self._ended:
                self.truncated = True
                break
            else:
                self._read_on()
        else:
            self._read_tail()
        yield self._hand_over()
        self.truncated |= self._plain.damaged

    def _hand_over(self) -> Batch:
        batch, self._batch, self._batch_bytes = self._batch, Batch(), 0
        self.lost += batch.lost
        self._hopeless &= not batch.events
        if self._hopeless and self.lost >= _HOPELESS:
            raise TraceFormatError(f"none of the first {self.lost} entries is an event; {_EXPECTED}")
        return batch

    def _skip_head(self) -> None:
        text = self._next_block()
        while (start := events_start(text, whole := self._ended or len(text) > MAX_METADATA_BYTES)) is None:
            if whole:
                is_blank = not text.removeprefix(BYTE_ORDER_MARK).strip()
                found = "nothing to read" if is_blank else "no traceEvents array found, so this is no profiler trace"
                raise TraceFormatError(f"{found}; {_EXPECTED}")
            wanted = 2 * len(text)
            while len(text) < wanted and not self._ended:
                text += self._next_block()
        self._text, self._at, self._is_bare = bytearray(text), start, BARE.match(text) is not None
        if not self._is_bare:
            self._read_metadata(text[:start].removeprefix(BYTE_ORDER_MARK) + b"]}")

    def _next_block(self) -> bytes:
        block = self._plain.read()
        self._ended = not block
        return block

    def _read_on(self) -> None:
        """Get at least as much text again as is left, so that a long event is not looked through too often."""
        left = memoryview(self._text)[self._at :]
        self._text, self._at, self._barren = self._plain.read_behind(left), 1, 0
        self._ended = len(self._text) == 1 + len(left)

    def _at_closing(self) -> bool:
        """Go to the next event; whether the array of events ends there, and not one inside a damaged event.

        A bracket that more events follow in the same file closed nothing: it is counted as lost.
        """
        while True:
            separator = _SEPARATOR.match(self._text, self._at)
            self._at = separator.end() if separator else self._at
            if not self._text.startswith(b"]", self._at) or _INNER_CLOSING.match(self._text, self._at):
                return False
            while not self._ended and not _BEHIND.match(self._text, self._at + 1):
                self._read_on()
            if not _EVENT_FOLLOWS.match(self._text, self._at + 1):
                return True
            self._batch.lost += 1
            self._at += 1

    def _piece(self) -> bool:
        """Decode as many events as possible in one go; False if the next one needs a closer look."""
        while (end := min(self._at + self._window, len(self._text))) > self._barren:
            cut = _last_boundary(self._text, self._at, end)
            if cut is None:
                self._barren = end
                return False
            left, right = cut
            if self._decode_between(self._at, left):
                self._go_to(right)
                self._losses = 0
                self._window = min(4 * self._window, 2 * CHUNK_BYTES)
                return True
            if self._window <= _MIN_WINDOW:
                return False
            self._window = max(_MIN_WINDOW, self._window // 8)
        return False

    def _decode_between(self, start: int, end: int) -> bool:
        """Decode the events between two places, with brackets in place of the bytes before and behind them meanwhile."""
        text = self._text
        before, behind = text[start - 1], text[end]
        text[start - 1], text[end] = b"[]"
        try:
            return self._decode(memoryview(text)[start - 1 : end + 1])
        finally:
            text[start - 1], text[end] = before, behind

    def _decode(self, array: Buffer) -> bool:
        try:
            self._pick(array).decode(array, self._batch)
        except UNREADABLE:
            return False
        return True

    def _go_to(self, place: int) -> None:
        self._batch_bytes += place - self._at
        self._at = place

    def _single(self) -> bool:
        """Decode one event, or count what stands in its place; False if its end is not in the text yet."""
        if self._losses > _MANY_LOSSES:
            return self._skip_junk()
        scalars = _SCALARS.match(self._text, self._at)
        if scalars:
            self._batch.lost += len(_SCALAR.findall(scalars[0]))
            self._go_to(scalars.end())
            return True
        size = _MIN_SLICE
        while True:
            piece = self._text[self._at : self._at + size].decode("utf-8", "surrogateescape")
            whole = self._at + size >= len(self._text)
            try:
                _, end = _scan_value(piece, 0)
            except json.JSONDecodeError as error:
                cut_off = error.msg.startswith("Unterminated string") or _CUT_TOKEN.fullmatch(piece, error.pos)
                if not cut_off:
                    return self._damaged()
            except RecursionError:
                return self._damaged()
            else:
                if end < len(piece) or piece[-1] in '}]"':
                    self._take(self._at + len(piece[:end].encode("utf-8", "surrogateescape")))
                    return True
            if whole:
                return len(self._text) - self._at > MAX_EVENT_BYTES and self._damaged()
            size *= 8

    def _take(self, end: int) -> None:
        """Take the text up to there as one event."""
        piece = bytes(self._text[self._at : end])
        self._losses += 1
        if self._decode(b"[" + piece + b"]"):
            self._window = min(2 * self._window, 2 * CHUNK_BYTES)
            self._losses = 0
        elif (mended := _mended(piece)) != piece and self._decode(b"[" + mended + b"]"):
            self.mended += 1
            self._losses = 0
        else:
            self._batch.lost += 1
        self._go_to(end)

    def _skip_junk(self) -> bool:
        """After many losses in a row: go to what starts like an event, or else as far as the text may be cut; False if nowhere.
        What looks like the end of an event on the way is counted."""
        found = _EVENT_START.search(self._text, self._at + 1)
        end = found.end() if found else self._text.rfind(b",", self._at + 1) + 1
        if not end:
            if not self._ended and len(self._text) - self._at <= MAX_EVENT_BYTES:
                return False
            end = len(self._text)
        self._batch.lost += max(1, len(_ANY_BOUNDARY.findall(self._text, self._at, end)))
        self._losses = _MANY_LOSSES
        self._go_to(end)
        return True

    def _damaged(self) -> bool:
        """Take what reaches to the next event as one; False if that one may not be in the text yet."""
        ahead = len(self._text) - self._at
        if not self._ended and ahead < _MIN_SLICE:
            return False
        boundary = None
        if self._barren < len(self._text):
            near = _EVENT_BOUNDARY.search(self._text, self._at, self._at + _MIN_SLICE)
            boundary = near or _ANY_BOUNDARY.search(self._text, self._at)
        if boundary is None:
            self._barren = len(self._text)
            if not self._ended and ahead <= MAX_EVENT_BYTES:
                return False
        found = boundary or _CLOSING.search(self._text, self._at)
        self._take(found.start() + 1 if found else len(self._text))
        return True

    def _read_tail(self) -> None:
        """Read the metadata after the events, and count what stands behind the end of the JSON."""
        tail = bytes(self._text[self._at + 1 :])
        while not self._ended and len(tail) <= MAX_METADATA_BYTES:
            tail += self._next_block()
        tail = tail.strip(_BLANK)
        if self._is_bare:
            self._count_rest(tail)
            return
        brackets = len(tail) - len(tail.lstrip(b"]\x00" + _BLANK))
        self._batch.lost += tail.count(b"]", 0, brackets)
        tail = tail[brackets:].removeprefix(b",")
        end = object_end(tail)
        self.truncated |= end is None and bool(tail)
        if tail[:end]:
            self._read_metadata(b"{" + tail[:end])
        self._count_rest(b"" if end is None else tail[end:])

    def _count_rest(self, text: bytes) -> None:
        """Count what looks like events behind the end of the JSON; whatever stands there is one at least."""
        found, some, carried = 0, False, b""
        text = text or self._next_block()
        while text:
            some = some or bool(text.strip(_BLANK))
            found += (carried + text).count(_PHASE)
            carried = (carried + text)[1 - len(_PHASE) :]
            text = self._next_block()
        self.trailing = max(found, int(some))
        self._batch.lost += self.trailing

    def _read_metadata(self, text: bytes) -> None:
        found, whole = read_metadata(text)
        self.metadata |= found
        self.mended += not whole


def _mended(piece: bytes) -> bytes:
    """Replace what JSON forbids in the text of an event: control characters, bad UTF-8, stray backslashes, NaN and infinities."""
    piece = _CONTROL.sub(b" ", piece).decode("utf-8", "replace").encode()
    piece = _ESCAPE.sub(lambda found: found[0] if found[1] else rb"\\", piece)
    return _NO_NUMBER.sub(lambda found: found[0] if found[0].startswith(b'"') else b"null", piece)


def _last_boundary(text: bytearray, start: int, stop: int) -> tuple[int, int] | None:
    """End of the last event before `stop` that another one follows, and the start of that one.

    An object inside an event seldom starts with the key that the event starts with, so that one is looked for first.
    """
    first = _FIRST_KEY.match(text, start)
    patterns = [_boundary_before(first[1]), _ANY_BOUNDARY] if first else [_ANY_BOUNDARY]
    for pattern in patterns:
        for window in (_TAIL_WINDOW, stop - start):
            found = deque(pattern.finditer(text, max(start, stop - window), stop), maxlen=1)
            if found:
                return found[0].span(1)
    return None


@lru_cache(maxsize=64)
def _boundary_before(key: bytes) -> re.Pattern[bytes]:
    return re.compile(_BOUNDARY + re.escape(key))


BLOCK_BYTES: Final = 1 << 20
_GZIP: Final = zlib.MAX_WBITS | 16
_GZIP_MAGIC: Final = b"\x1f\x8b"
_STEP: Final = 4 << 10


class PlainText:
    """The plain text of a file, block by block. Gzip is recognised by its first bytes; it may have several members.

    Where the packed bytes are damaged or cut off, the text before that is all there, and `damaged` is set.
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
