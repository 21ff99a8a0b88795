"""Columns of contestants that took turns in the palindromes of one cell."""

from __future__ import annotations

from typing import Any, TypeAlias

from strobe.perf.analysis.runs.grid import Contestant, speedup
from strobe.perf.report.blocks.fields import Field, count, numeric
from strobe.perf.report.blocks.ratios import ratio_cell, verdict_cell
from strobe.perf.report.model import Cell, Missing, Text

Entry: TypeAlias = tuple[Any, Any]
"""A cell and one contestant of it."""
Timed: TypeAlias = tuple[Any, Any, tuple[Cell, Cell]]
"""A cell, one contestant of it, and its speedup and verdict."""
NONE = "not measured here"
"""Reason of a number that a cell does not have."""


def compared(reference: Contestant, entry: Contestant) -> tuple[Cell, Cell]:
    """Return the cells of a contestant's speedup over the reference and of its verdict."""
    if entry is reference:
        return Missing("it is the reference", "1"), Text("reference", "muted")
    found = speedup(reference, entry)
    return ratio_cell(found.ratio, found.interval), verdict_cell(found.verdict)


def timed_fields(reference: str) -> tuple[Field[Timed], ...]:
    """Return the columns of the median's interval, the number of calls, and the speedup over what `reference` names."""
    return (
        Field(
            "95 % of the median", lambda row: _range(row[1]), hint="bootstrap, from 30 calls on; else shortest and longest call"
        ),
        count("calls", lambda row: len(row[1].times_ns)),
        numeric("speedup", lambda row: row[2][0], f"time of the {reference} / time, same palindromes, 95 % interval"),
        Field("verdict", lambda row: row[2][1]),
    )


def _range(entry: Contestant) -> str:
    interval, times = entry.interval, entry.times_ns
    low, high = (interval.low, interval.high) if interval else (min(times), max(times))
    return f"{low / 1e6:.4g} to {high / 1e6:.4g}{'' if interval else ' (all)'}"


def reason_cell(entry: Contestant) -> Text:
    """Return the cell of the reason why a contestant has no number; bad unless it was refused."""
    return Text(entry.reason, "plain" if entry.outcome == "refused" else "bad")
