"""Tables, pictures and the page of a grid whose contestants took turns in the palindromes of each cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from strobe.perf.analysis.runs.grid import CellRun, GridContestant, Outcome, speedup
from strobe.perf.report.blocks.fields import gathered, page, verdict_cell
from strobe.perf.report.blocks.settings import settings_section
from strobe.perf.report.study import load_study
from strobe.perf.table.fields import Field, beside, count, numeric, table_of
from strobe.perf.table.model import (
    Axis,
    Banner,
    Cell,
    Code,
    Count,
    Fact,
    Missing,
    Number,
    Plane,
    PlotPoint,
    Report,
    Section,
    Speedup,
    Table,
    Text,
)

T = TypeVar("T")
Entry: TypeAlias = tuple[CellRun, GridContestant]
"""A cell and one contestant of it."""
NONE: Final = "not measured here"
"""Reason of a number that a cell does not have."""


def grid_page(
    cells: Sequence[CellRun],
    unread: tuple[str, ...],
    *,
    title: str,
    about: str,
    facts: Sequence[Fact],
    banners: Sequence[Banner],
    sections: Iterable[Section | None],
    speedups: Iterable[Speedup] = (),
) -> Report:
    """Return the page of a grid, with the cells that could not be read in a banner, and the settings of its first cell last."""
    first = cells[0].run
    settings = settings_section(load_study([first.folder], into=first.folder.parents[1]))
    return page(
        title=title,
        subtitle=f"{len(cells)} cells on {first.header.machine.device_name}, torch {first.header.machine.torch}{about}",
        facts=(Fact("cells", Count(len(cells))), *facts),
        banners=(*banners, *([Banner("caution", "Some cells could not be read and are left out.", unread)] if unread else ())),
        sections=(*sections, settings),
        speedups=speedups,
    )


def timed_fields(
    reference: str, own: Callable[[T], GridContestant], against: Callable[[T], GridContestant | Missing]
) -> tuple[Field[T], ...]:
    """Return the columns of the median's interval, the number of calls, the speedup over the reference and its verdict."""

    def compared(row: T) -> tuple[Cell, Text]:
        entry, other = own(row), against(row)
        if isinstance(other, Missing):
            return other, Text("not compared", "muted")
        if entry is other:
            return Missing("it is the reference", "1"), Text("reference", "muted")
        ratio, verdict = speedup(other, entry)
        return ratio, verdict_cell(verdict)

    hint = "bootstrap, from 30 calls on; else shortest and longest call"
    return (
        Field("95 % of the median", lambda row: _range(own(row)), hint=hint),
        count("calls", lambda row: len(own(row).times_ns)),
        numeric("speedup", lambda row: compared(row)[0], f"time of the {reference} / time, same palindromes, 95 % interval"),
        Field("verdict", lambda row: compared(row)[1]),
    )


def _range(entry: GridContestant) -> str:
    interval, times = entry.interval, entry.times_ns
    low, high = (interval.low, interval.high) if interval else (min(times), max(times))
    return f"{low / 1e6:.4g} to {high / 1e6:.4g}{'' if interval else ' (all)'}"


def absent_table(cells: Sequence[CellRun]) -> Table | None:
    """Build the table of contestants without a number and the reason, cells with the same reason in one row; None if empty."""
    without = ((cell, entry) for cell in cells for entry in cell.contestants if entry.reason)
    found = gathered(((entry.name, entry.reason, entry.outcome), cell.name) for cell, entry in without)

    def which(names: Sequence[str]) -> Text | Code:
        return Text("all") if len(names) == len(cells) else Code(", ".join(names[:3]) + (" ..." if len(names) > 3 else ""))

    fields: tuple[Field[tuple[tuple[str, str, Outcome], list[str]]], ...] = (
        Field("contestant", lambda row: row[0][0], Code),
        Field("why it has no number", lambda row: Text(row[0][1], "plain" if row[0][2] == "refused" else "bad")),
        count("cells", lambda row: len(row[1])),
        Field("which", lambda row: which(row[1])),
    )
    return table_of("Entries without a number.", fields, list(found.items())) if found else None


def plane_of(named: Mapping[str, Sequence[tuple[float, float]]], x: Axis, y: Axis) -> Plane:
    """Plot the points of each name in a colour of its own."""
    marks = tuple(PlotPoint(*point, series) for series, points in enumerate(named.values()) for point in points)
    return Plane(x=x, y=y, marks=marks, series=tuple(named))


def across(
    title: str,
    named: Mapping[str, Sequence[tuple[float, float]]],
    head: tuple[str, Callable[[float], str]],
    cell: Callable[[float], Number],
) -> Table:
    """Build the table with a row for each name and a column for each place of its points."""
    places = sorted({x for points in named.values() for x, _ in points})
    missing = Missing(NONE, "-")
    rows = []
    for name, points in named.items():
        values = dict(points)
        rows.append((Code(name), *(cell(values[place]) if place in values else missing for place in places)))
    return table_of(f"{title}.", beside(head[0], map(head[1], places), numeric=True), rows)
