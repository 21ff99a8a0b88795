"""Words for samples of calls, which are recorded as clips of one frame block."""

from __future__ import annotations

from typing import Final

from strobe.core import spans
from strobe.perf.analysis.ledger.account import Level
from strobe.perf.analysis.ledger.parts import AROUND

OUTSIDE: Final = "outside the named spans"
_LEVELS: Final = {Level.BLOCK.value: "call", Level.E2E.value: "sample"}
_LINES: Final = {spans.FRAME_BLOCK: OUTSIDE, f"clip: {AROUND}": "before and after the calls"}


def level_word(level: str, calls: bool = True) -> str:
    """Return the name of a level in an account, of calls or of clips."""
    return _LEVELS.get(level, level) if calls else level


def line_word(line: str, calls: bool = True) -> str:
    """Return the name of a line in an account, of calls or of clips; names of the caller's spans stay as they are."""
    if not calls:
        return line
    region, colon, rest = line.partition(": ")
    if colon and region == spans.FRAME_BLOCK:
        return f"{OUTSIDE}: {rest}"
    return _LINES.get(line, line)
