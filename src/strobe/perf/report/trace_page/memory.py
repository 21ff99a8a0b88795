"""Memory of each device: its peaks, the time of each and what was running, and its course over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from strobe.core.printable import bytes_in
from strobe.perf.analysis.structure.memory import MemoryPoint, MemoryUse, memory_use
from strobe.perf.report.blocks.fields import Field, numeric, table_of, time
from strobe.perf.report.model import Axis, Block, Code, Figure, Mark, Number, Plane, Section, Table
from strobe.perf.report.text import bytes_cell
from strobe.perf.report.trace_study import TraceStudy

MAX_POINTS: Final = 200
MAX_ROWS: Final = 24
_NOT_RECORDED: Final = "not recorded"

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
    fields: tuple[Field[tuple[str, MemoryUse]], ...] = (
        Field("device", lambda row: row[0], Code),
        numeric("peak allocated", lambda row: row[1].peak.allocated_bytes, show=_mib),
        time("at", lambda row: row[1].peak.start_ns - row[1].first.start_ns, "ms", "from the first recorded allocation"),
        Field(
            "in",
            lambda row: " < ".join(reversed(row[1].peak_in)) or None,
            Code,
            hint="ranges and modules that were open then, the innermost first",
            missing="no range was open",
        ),
        numeric("reserved then", lambda row: row[1].peak.reserved_bytes or None, show=_mib, missing=_NOT_RECORDED),
        numeric("peak reserved", lambda row: row[1].reserved_peak_bytes or None, show=_mib, missing=_NOT_RECORDED),
        numeric("at the start", lambda row: row[1].first.allocated_bytes, show=_mib),
        numeric("at the end", lambda row: row[1].last.allocated_bytes, show=_mib),
        time("stretch", lambda row: row[1].step_ns, "ms", "times are exact to within this"),
    )
    return table_of("Peaks.", fields, seen)


def _mib(value: int) -> Number:
    """Return the cell of a size in MiB, or in KiB below 1 MiB."""
    return bytes_cell(value, "MiB", 1) if abs(value) >= 1 << 20 or not value else bytes_cell(value, "KiB", 3)


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
    fields: tuple[Field[Sequence[MemoryPoint]], ...] = (
        time("from", lambda part: part[0].start_ns - use.first.start_ns),
        numeric("allocated", lambda part: _highest(part).allocated_bytes, show=_mib),
        numeric("reserved", lambda part: _highest(part).reserved_bytes or None, show=_mib, missing=_NOT_RECORDED),
    )
    step = -(-len(use.points) // MAX_ROWS)
    parts = [use.points[first : first + step] for first in range(0, len(use.points), step)]
    return table_of(f"Largest allocated memory of {name} in each part of the time.", fields, parts)


def _highest(part: Sequence[MemoryPoint]) -> MemoryPoint:
    return max(part, key=lambda point: point.allocated_bytes)
