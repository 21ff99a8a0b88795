"""Sealed lines read back: what is as it was written, and what is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from strobe.core.errors import RecordVersionError
from strobe.perf.records.base import READABLE_VERSIONS, Line
from strobe.perf.records.seal import check

L = TypeVar("L", bound=Line)


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
    if version not in READABLE_VERSIONS:
        known = ", ".join(map(str, READABLE_VERSIONS))
        raise RecordVersionError(
            f"{file}:{number} has record schema {version}; this strobe reads {known}; use the version that wrote it"
        )
    return record
