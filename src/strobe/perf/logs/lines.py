"""Lines of a log file, one at a time: gzip, encodings, `\r` progress lines, terminal colours, very long lines."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from strobe.core.errors import DataError

LONGEST: Final = 16 * 1024
"""Longest part of a line that is read, characters; the rest is skipped."""
_TERMINAL: Final = re.compile(
    "\\[[0-9]{1,3}(?:;[0-9]{1,3}){0,4}m"  # colours whose escape character is lost
    "|\x1b\\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    "|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)"  # titles, links
    "|\x1b[ -/]*[0-~]"
    "|[\x00-\x08\x0a-\x1f\x7f-\x9f]"  # control characters but the tab
)
_TOLD: Final = 1 << 10
_BYTE_ORDER: Final = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb\xbf": "utf-8-sig"}


class Line(NamedTuple):
    """One line without its end.

    `number` counts from 1 as editors do; the parts of a progress line, which end in a carriage return, share one. `whole`: the
    line ends in a line feed.
    """

    number: int
    text: str
    whole: bool


@dataclass(kw_only=True, slots=True)
class Reading:
    """Progress and damage of reading one file: mended, cut, truncated, and bytes read so far."""

    mended: int = 0
    cut: int = 0
    truncated: bool = False
    done_bytes: int = 0


def read_lines(path: Path, reading: Reading) -> Iterator[Line]:
    """Yield the lines of a file without terminal codes; a damaged end is left out and noted in `reading`.

    Raises:
        DataError: the file cannot be opened.
    """
    try:
        with path.open("rb") as file:
            yield from _lines(unpacked(file), file, reading)
    except OSError as error:
        raise DataError(f"cannot read log {path}: {error.strerror or error}; name a text file or a .gz of one") from error


def unpacked(file: io.BufferedReader) -> io.BufferedReader | gzip.GzipFile:
    """Return a reader of the file's bytes, decompressed if the file is gzip."""
    return gzip.GzipFile(fileobj=file) if file.peek(2).startswith(b"\x1f\x8b") else file


def _lines(stream: io.BufferedReader | gzip.GzipFile, file: io.BufferedReader, reading: Reading) -> Iterator[Line]:
    number = 1
    try:
        head = stream.peek(3)
        encoding = next((name for mark, name in _BYTE_ORDER.items() if head.startswith(mark)), "utf-8")
        text = io.TextIOWrapper(stream, encoding=encoding, errors="replace", newline="")
        while line := text.readline(LONGEST):
            end = line
            if len(line) == LONGEST and line[-1] not in "\r\n":
                reading.cut += 1
                while end and end[-1] not in "\r\n":
                    end = text.readline(LONGEST)
            reading.mended += "\ufffd" in line
            whole = end.endswith("\n")
            yield Line(number, _TERMINAL.sub("", line), whole)
            number += whole
            if number % _TOLD == 0:
                reading.done_bytes = file.tell()
    except (EOFError, zlib.error, gzip.BadGzipFile):
        reading.truncated = True
