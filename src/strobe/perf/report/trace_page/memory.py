"""Memory of each device: its peaks, the time of each and what was running, and its course over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from strobe.perf.analysis.structure.memory import MemoryPoint, MemoryUse, memory_use
from strobe.perf.report.model import (
    Axis,
    Block,
    Cell,
    Code,
    Column,
    Figure,
    Mark,
    Missing,
    Number,
    Plane,
    Row,
    Section,
    Table,
    Time,
)
from strobe.perf.report.text import bytes_cell, bytes_in
from strobe.perf.report.trace_study import TraceStudy

MAX_POINTS: Final = 200
MAX_ROWS: Final = 24

Seen = Sequence[tuple[str, MemoryUse]]


def memory_section(study: TraceStudy) -> Section | None:
    """Build the section with memory of every device whose allocations were recorded; `None` if there is none."""
    seen = [
        (use.device if len(study.traces) == 1 else f"{label}, {use.device}", use)
        for trace, label, window in zip(study.traces, study.labels, study.windows, strict=True)
        for use in memory_use(trace, window, MAX_POINTS)
    ]
    if not seen:
        return None
    lead = "What the allocator handed out (allocated) and held (reserved), by the host's clock, exact to within a stretch."
    blocks: list[Block] = [_peaks(seen), *(_course(name, use) for name, use in seen if len(use.points) > 1)]
    return Section("memory", "Memory", lead, tuple(blocks))


def _peaks(seen: Seen) -> Table:
    columns = (
        Column("device"), Column("peak allocated", numeric=True), Column("at", "ms", True, "from the first recorded allocation"),
        Column("in", hint="ranges and modules that were open then, the innermost first"), Column("reserved then", numeric=True),
        Column("peak reserved", numeric=True), Column("at the start", numeric=True), Column("at the end", numeric=True),
        Column("stretch", "ms", True, "times are exact to within this"),
    )  # fmt: skip
    rows = [Row((Code(name), *_peak(use))) for name, use in seen]
    return Table("Peaks.", columns, tuple(rows))


def _peak(use: MemoryUse) -> Iterator[Cell]:
    yield _mib(use.peak.allocated_bytes)
    yield Time(use.peak.start_ns - use.first.start_ns)
    yield Code(" < ".join(reversed(use.peak_in))) if use.peak_in else Missing("no range was open", "-")
    yield _reserved(use.peak.reserved_bytes)
    yield _reserved(use.reserved_peak_bytes)
    yield from (_mib(use.first.allocated_bytes), _mib(use.last.allocated_bytes), Time(use.step_ns))


def _mib(value: int) -> Number:
    """Return the cell of a size in MiB, or in KiB below 1 MiB."""
    return bytes_cell(value, "MiB", 1) if abs(value) >= 1 << 20 or not value else bytes_cell(value, "KiB", 3)


def _reserved(value: int) -> Cell:
    return _mib(value) if value else Missing("not recorded", "-")


def _course(name: str, use: MemoryUse) -> Figure:
    reserved = use.reserved_peak_bytes > 0
    marks = [_mark(use, point, point.allocated_bytes, 0) for point in use.points]
    if reserved:
        marks += [_mark(use, point, point.reserved_bytes, 1) for point in use.points]
    picture = Plane(
        x=Axis("time from the first recorded allocation", "ms"),
        y=Axis("memory in MiB", from_zero=True),
        marks=tuple(marks),
        series=("allocated", "reserved") if reserved else ("allocated",),
    )
    return Figure(
        f"Memory of {name} over time.",
        "Allocated and reserved memory over time; the table has the same.",
        picture,
        _table(name, use),
    )


def _mark(use: MemoryUse, point: MemoryPoint, value: int, series: int) -> Mark:
    return Mark(x=float(point.start_ns - use.first.start_ns), y=bytes_in(value, "MiB"), series=series)


def _table(name: str, use: MemoryUse) -> Table:
    columns = (Column("from", "ms", True), Column("allocated", numeric=True), Column("reserved", numeric=True))
    step = -(-len(use.points) // MAX_ROWS)
    rows = []
    for first in range(0, len(use.points), step):
        part = use.points[first : first + step]
        highest = max(part, key=lambda point: point.allocated_bytes)
        cells = (Time(part[0].start_ns - use.first.start_ns), _mib(highest.allocated_bytes), _reserved(highest.reserved_bytes))
        rows.append(Row(cells))
    return Table(f"Largest allocated memory of {name} in each part of the time.", columns, tuple(rows))
