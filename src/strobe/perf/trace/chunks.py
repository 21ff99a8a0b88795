"""The events of a chrome trace file, a few megabytes at a time, whatever its layout and however broken its end.

A trace is `{metadata, "traceEvents": [event, ...], metadata}` or a bare `[event, ...]`. Each chunk is cut between two events and
the left part is decoded in one go. A cut is right if the left part decodes: it was then outside strings and between two events,
and so by induction is the next one. A chunk that does not decode is read event by event.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

import msgspec

from strobe.core.errors import TraceFormatError

CHUNK_BYTES: Final = 4 << 20
MAX_METADATA_BYTES: Final = 64 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_NONE: Final = msgspec.Raw(b"")
_ARRAY: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY: Final = re.compile(rb'\}(\s*,\s*)\{\s*"')
_TEXT_BOUNDARY: Final = re.compile(r'\}\s*,\s*(?=\{\s*")')
_SEPARATOR: Final = re.compile(r"[\s,]*")
_CUT_TOKEN: Final = re.compile(r"[-+.\\\w]{0,9}\s*")
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_EXPECTED: Final = "give a chrome trace (.json or .json.gz) as torch.profiler exports it"
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that matter; all others are skipped unread."""

    correlation: int | float | str | None = None
    device: int | float | str | None = None
    stream: int | float | str | None = None


class RawEvent(msgspec.Struct, gc=False):
    """One event as written. `ts` and `dur` keep their digits."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    ts: msgspec.Raw = _NONE
    dur: msgspec.Raw = _NONE
    pid: msgspec.Raw = _NONE
    tid: msgspec.Raw = _NONE
    args: Args | None = None


class Metadata(msgspec.Struct):
    """What stands before and after the events; each value is decoded by whoever wants it."""

    base_time: msgspec.Raw = msgspec.field(name="baseTimeNanoseconds", default=_NONE)
    distributed: msgspec.Raw = msgspec.field(name="distributedInfo", default=_NONE)
    devices: msgspec.Raw = msgspec.field(name="deviceProperties", default=_NONE)


class _Rest(Metadata):
    events: list[RawEvent] = msgspec.field(name="traceEvents", default_factory=list)


_decode_events: Final = msgspec.json.Decoder(list[RawEvent]).decode
_decode_event: Final = msgspec.json.Decoder(RawEvent).decode
_decode_rest: Final = msgspec.json.Decoder(_Rest).decode
_decode_metadata: Final = msgspec.json.Decoder(Metadata).decode
_scan_value: Final = json.JSONDecoder(strict=False).raw_decode


@dataclass(kw_only=True, slots=True)
class Progress:
    """Filled while the chunks are read.

    Args:
        lost: events that could not be read.
        mended: events read after control characters or bad UTF-8 in them were replaced.
        truncated: the file ends before its JSON does.
        metadata: the metadata parts found, in file order.
    """

    lost: int = 0
    mended: int = 0
    truncated: bool = False
    metadata: list[Metadata] = field(default_factory=list)


def event_chunks(file: BinaryIO, progress: Progress) -> Iterator[list[RawEvent]]:
    """Yield the events of a `.json` or `.json.gz` file in file order and fill `progress`.

    Memory is a few times `CHUNK_BYTES`, whatever the size of the file.

    Raises:
        TraceFormatError: the file holds no `traceEvents`.
    """
    blocks = _with_last(_blocks(file, progress))
    rest, last = _skip_head(blocks, progress)
    while True:
        if last and (whole := _try_rest(rest)) is not None:
            progress.metadata.append(whole)
            yield whole.events
            return
        events, rest, closed = _one_by_one(rest, True, progress) if last else _take(rest, progress)
        yield events
        if closed:
            _read_tail(rest, blocks, progress)
            return
        if last:
            progress.truncated = True
            return
        block, last = next(blocks)
        rest += block


def _blocks(file: BinaryIO, progress: Progress) -> Iterator[bytes]:
    """Blocks of the plain text; gzip is known by its first bytes and may have several members or a missing end."""
    data = file.read(CHUNK_BYTES)
    if not data.startswith(_GZIP_MAGIC):
        while data:
            yield data
            data = file.read(CHUNK_BYTES)
        return
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
    while data:
        try:
            block = inflate.decompress(data, CHUNK_BYTES)
        except zlib.error:
            progress.truncated = True
            return
        if block:
            yield block
        data = inflate.unconsumed_tail or inflate.unused_data
        if len(data) < len(_GZIP_MAGIC):
            data += file.read(CHUNK_BYTES)
        if inflate.eof:
            if not data.startswith(_GZIP_MAGIC):  # nothing, or padding
                return
            inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
    yield inflate.flush()
    progress.truncated = not inflate.eof


def _with_last(blocks: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Pair each block with whether it is the last; an empty file is one empty last block."""
    held = next(blocks, b"")
    for block in blocks:
        yield held, False
        held = block
    yield held, True


def _skip_head(blocks: Iterator[tuple[bytes, bool]], progress: Progress) -> tuple[bytes, bool]:
    """Read up to the first event; return the text from there and whether it reaches the end of the file."""
    head = b""
    for block, last in blocks:
        head = (head + block).removeprefix(_BYTE_ORDER_MARK)
        start = _array_start(head, desperate=last or len(head) > MAX_METADATA_BYTES)
        if start is not None:
            try:
                if not head.lstrip().startswith(b"["):
                    progress.metadata.append(_decode_metadata(head[:start] + b"]}"))
            except UNREADABLE:
                progress.mended += 1
            return head[start:], last
        if len(head) > MAX_METADATA_BYTES:
            break
    if not head.strip():
        raise TraceFormatError(f"nothing to read: the file is empty or cut off at its start; {_EXPECTED}")
    raise TraceFormatError(f"no traceEvents array found, so this is no profiler trace; {_EXPECTED}")


def _array_start(head: bytes, *, desperate: bool) -> int | None:
    """Offset just after the `[` of the events. Right if closing it there makes the head a valid object."""
    bare = re.match(rb"\s*\[", head)
    if bare:
        return bare.end()
    candidates = [match.end() for match in _ARRAY.finditer(head)]
    for end in candidates:
        try:
            _decode_metadata(head[:end] + b"]}")
        except UNREADABLE:
            continue
        return end
    return candidates[0] if candidates and desperate else None


def _try_rest(rest: bytes) -> _Rest | None:
    """Decode the remaining events and the metadata after them in one go; None if anything is wrong."""
    for closing in (b"", b"}"):  # an object, or a bare list
        try:
            return _decode_rest(b'{"traceEvents":[' + rest + closing)
        except UNREADABLE:
            continue
    return None


def _take(rest: bytes, progress: Progress) -> tuple[list[RawEvent], bytes, bool]:
    """Return events from the front of `rest`, the text after them, and whether the array of events was closed."""
    cut = _last_boundary(rest)
    if cut is not None:
        left, right = cut
        try:
            return _decode_events(b"[" + rest[:left] + b"]"), rest[right:], False
        except UNREADABLE:
            pass
    elif len(rest) < CHUNK_BYTES:
        return [], rest, False
    return _one_by_one(rest, False, progress)


def _last_boundary(rest: bytes) -> tuple[int, int] | None:
    """End of the last event that another one follows, and the start of that other one."""
    for window in (1 << 16, len(rest)):
        found = deque(_BOUNDARY.finditer(rest, max(0, len(rest) - window)), maxlen=1)
        if found:
            return found[0].span(1)
    return None


def _one_by_one(rest: bytes, last: bool, progress: Progress) -> tuple[list[RawEvent], bytes, bool]:
    """Like `_take`, one event at a time: what cannot be read is skipped up to the next event and counted."""
    text = rest.decode("utf-8", "surrogateescape")
    events: list[RawEvent] = []
    position = _skip(text, 0)
    while position < len(text) and text[position] != "]":
        try:
            _, end = _scan_value(text, position)
        except (json.JSONDecodeError, RecursionError) as error:
            boundary = _TEXT_BOUNDARY.search(text, position)
            may_go_on = last or len(text) - position < CHUNK_BYTES
            if may_go_on and (_lacks_end(text, error) or (boundary is None and not last)):
                break
            progress.lost += 1
            end = boundary.end() if boundary else len(text)
        else:
            event = _decode_or_mend(_bytes(text[position:end]), progress)
            if event is not None:
                events.append(event)
        position = _skip(text, end)
    closed = position < len(text) and text[position] == "]"
    return events, _bytes(text[position + closed :]), closed


def _lacks_end(text: str, error: json.JSONDecodeError | RecursionError) -> bool:
    """Whether the value that did not parse may only be cut off."""
    if isinstance(error, RecursionError):
        return False
    return error.msg.startswith("Unterminated string") or _CUT_TOKEN.fullmatch(text, error.pos) is not None


def _decode_or_mend(piece: bytes, progress: Progress) -> RawEvent | None:
    try:
        return _decode_event(piece)
    except UNREADABLE:
        pass
    try:
        event = _decode_event(_CONTROL.sub(b" ", piece).decode("utf-8", "replace").encode())
    except UNREADABLE:
        progress.lost += 1
        return None
    progress.mended += 1
    return event


def _read_tail(tail: bytes, blocks: Iterator[tuple[bytes, bool]], progress: Progress) -> None:
    """Read the metadata after the events, to the end of the file."""
    for block, _ in blocks:
        tail += block if len(tail) < MAX_METADATA_BYTES else b""
    tail = tail.strip()
    if not tail:
        return
    try:
        progress.metadata.append(_decode_metadata(b"{" + tail.removeprefix(b",")))
    except UNREADABLE:
        progress.truncated = True


def _skip(text: str, position: int) -> int:
    match = _SEPARATOR.match(text, position)
    return match.end() if match else position


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
