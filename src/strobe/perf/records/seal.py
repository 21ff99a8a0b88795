"""Line number and checksum at the end of each line of `records.jsonl`, to detect changed, lost and repeated lines.

A sealed line is `{...,"line":12,"crc":"89abcdef"}`: `line` counts from 1, `crc` is the CRC-32 of all bytes before `,"crc"`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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
