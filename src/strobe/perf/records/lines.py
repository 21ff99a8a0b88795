"""Lines of `records.jsonl`: each is sealed with its number and a checksum, so that changed, lost and repeated ones are found.

A sealed line is `{...,"line":12,"crc":"89abcdef"}`: `line` counts from 1, `crc` is the CRC-32 of all bytes before `,"crc"`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from strobe.core.errors import RecordVersionError
from strobe.perf.records.base import SCHEMA_VERSION, Line

L = TypeVar("L", bound=Line)
_SEAL: Final = re.compile(rb',"line":([1-9][0-9]{0,11}),"crc":"([0-9a-f]{8})"\}')
_LENGTH: Final = len(b',"line":123456789012,"crc":"89abcdef"}')


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """Result of checking the line numbers and checksums of a record file.

    Args:
        sealed: the file has seals; one without any was written before there were some.
        bad: positions, from 0, of lines that are not as they were written or stand where they do not belong.
        missing: lines that were written and are gone.
    """

    sealed: bool
    bad: frozenset[int]
    missing: int


def seal(line: bytes, number: int) -> bytes:
    """Add number and checksum to a JSON object on one line."""
    body = b'%s,"line":%d' % (line[:-1], number)
    return b'%s,"crc":"%08x"}' % (body, zlib.crc32(body))


def number_of(line: bytes) -> int | None:
    """Return the number in the seal of a line; 0 if the checksum does not fit the line, None if the line has no seal."""
    found = _SEAL.fullmatch(line, max(0, line.rfind(b',"line":', -_LENGTH)))
    if found is None:
        return None
    return int(found[1]) if zlib.crc32(line[: found.start(2) - len(b',"crc":"')]) == int(found[2], 16) else 0


def check(lines: Sequence[bytes]) -> Checked:
    """Check the numbers and checksums of all whole lines of a file."""
    numbers = [number_of(line) for line in lines]
    if not any(numbers):
        return Checked(sealed=False, bad=frozenset(at for at, number in enumerate(numbers) if number == 0), missing=0)
    bad, last = set(), 0
    for at, number in enumerate(numbers):
        if number is None or number <= last:
            bad.add(at)
        else:
            last = number
    return Checked(sealed=True, bad=frozenset(bad), missing=max(0, last - len(lines)))


class _Probe(msgspec.Struct):
    v: int


_probe: Final = msgspec.json.Decoder(_Probe)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines(Generic[L]):
    """Lines of a file.

    Args:
        found: those that are as they were written, by number from 1.
        bad: numbers of the others.
        missing: lines that were written and are gone.
        truncated: the last line was cut short, and is none of these.
    """

    found: Mapping[int, L]
    bad: tuple[int, ...]
    missing: int
    truncated: bool


def read_lines(file: Path, data: bytes, decoder: msgspec.json.Decoder[L]) -> Lines[L]:
    """Read sealed lines.

    Args:
        file: where they stand, for messages.
        data: what it holds.
        decoder: of the kinds of line that belong there.

    Raises:
        RecordVersionError: a line was written with a schema this reader does not know.
    """
    lines = data.split(b"\n")
    tail = lines.pop()
    checked = check(lines)
    found = {
        number: record
        for number, line in enumerate(lines, start=1)
        if number - 1 not in checked.bad and (record := _decode(line, decoder, file, number)) is not None
    }
    bad = tuple(number for number in range(1, len(lines) + 1) if number not in found)
    return Lines(found=found, bad=bad, missing=checked.missing, truncated=bool(tail))


def _decode(line: bytes, decoder: msgspec.json.Decoder[L], file: Path, number: int) -> L | None:
    """Return the record in a line, or None if there is none."""
    try:
        record = decoder.decode(line)
        version = record.v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        record = None
        try:
            version = _probe.decode(line).v
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
    if version != SCHEMA_VERSION:
        raise RecordVersionError(
            f"{file}:{number} has record schema {version}; this strobe reads {SCHEMA_VERSION}; use the version that wrote it"
        )
    return record
