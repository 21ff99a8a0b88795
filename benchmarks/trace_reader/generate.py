"""Writes a large trace: a real capture over and over, each copy later than the one before.

Times are shifted as the decimal numbers they are, so the copies are exact; the numbers that tie launches, operators and device
events to each other are shifted too, so no two copies share one. What a capture has once (names of threads, the end of the
window) is written once, at the end. Nothing is held but one capture.

    python benchmarks/trace_reader/generate.py OUT.json[.gz] --bytes 1e9 [--source CAPTURE.json.gz]

It prints the bytes of the plain text.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[1] / "presets-h200" / "traces" / "baseline.json.gz"
_NUMBER: Final = re.compile(rb'("(?:ts|correlation|External id|id)": ?)([0-9]+)(?:\.([0-9]{3}))?')
_SPAN: Final = re.compile(rb'"ts": ?([0-9]+)\.([0-9]{3}), ?"dur": ?([0-9]+)\.([0-9]{3})')
_ONCE: Final = re.compile(rb'\{\s*"name": "[a-z_]+", "ph": "M"')


class Piece:
    """Text of events, cut at the numbers that differ from copy to copy."""

    def __init__(self, text: bytes) -> None:
        self._parts: list[bytes] = []
        self._numbers: list[tuple[bool, int]] = []  # whether it is a time, in nanoseconds, and the number
        at = 0
        for found in _NUMBER.finditer(text):
            self._parts.append(text[at : found.end(1)])
            at = found.end()
            is_time = found[1].startswith(b'"ts"')
            self._numbers.append((is_time, int(found[2] + (found[3] or b"000")) if is_time else int(found[2])))
        self._rest = text[at:]

    @property
    def highest_id(self) -> int:
        """The highest number that is no time."""
        return max(value for is_time, value in self._numbers if not is_time)

    def copy(self, later_ns: int, later_id: int) -> bytes:
        """The text, that much later."""
        pieces: list[bytes] = []
        for part, (is_time, value) in zip(self._parts, self._numbers, strict=True):
            pieces.append(part)
            pieces.append(b"%d.%03d" % divmod(value + later_ns, 1000) if is_time else b"%d" % (value + later_id))
        return b"".join((*pieces, self._rest))


def generate(out: Path, size: int, source: Path = SOURCE) -> int:
    """Write a trace of at least `size` bytes, packed if its name ends in `.gz`.

    Args:
        source: a capture as kineto writes it.

    Returns:
        The bytes of its plain text.
    """
    text = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    first = text.index(b"{", text.index(b'"traceEvents"'))
    found = _ONCE.search(text, first)
    assert found, f"{source} does not end as a capture of kineto does"
    body, once = Piece(text[first : found.start()]), Piece(text[found.start() :])
    edges = [tuple(map(int, edge.groups())) for edge in _SPAN.finditer(text, first, found.start())]
    starts, lengths = [1000 * a + b for a, b, _, _ in edges], [1000 * c + d for _, _, c, d in edges]
    period_ns = max(map(int.__add__, starts, lengths)) - min(starts) + 1_000_000
    written = copies = 0
    with gzip.open(out, "wb", compresslevel=1) if out.suffix == ".gz" else out.open("wb") as file:
        written += file.write(text[:first])
        while not copies or written < size:
            written += file.write(body.copy(copies * period_ns, copies * (body.highest_id + 1)))
            copies += 1
        written += file.write(once.copy((copies - 1) * period_ns, 0))
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bytes", type=float, default=1e9)
    parser.add_argument("--source", type=Path, default=SOURCE)
    given = parser.parse_args()
    sys.stdout.write(f"{generate(given.out, int(given.bytes), given.source)}\n")
