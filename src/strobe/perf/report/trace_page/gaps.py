"""The gaps between kernels of every device, by what ran before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from strobe.perf.analysis.device.gaps import GapRow, GapTable, gap_table
from strobe.perf.analysis.device.idle import CAUSES
from strobe.perf.report.model import Block, Cell, Code, Column, Count, ExactTime, Missing, Row, Section, Table, Text, Time
from strobe.perf.report.text import exact_ms
from strobe.perf.report.trace_page.devices import CAUSE_HINTS, during, share_cell
from strobe.perf.report.trace_page.seen import seen_devices
from strobe.perf.report.trace_page.study import TraceStudy

Part = tuple[Column, Callable[[GapRow], int]]


def _of_cause(cause: str) -> Callable[[GapRow], int]:
    return lambda row: row.idle[cause]


_PARTS: Final[tuple[Part, ...]] = (
    *((Column(cause, "ms", True, f"idle in the gaps: {CAUSE_HINTS[cause]}"), _of_cause(cause)) for cause in CAUSES),
    (Column("DtoD copies", "ms", True, "time of device-to-device copies in the gaps"), lambda row: row.dtod_ns),
    (Column("other copies", "ms", True, "time of other copies in the gaps"), lambda row: row.other_copy_ns),
    (Column("memsets", "ms", True, "time of memsets in the gaps"), lambda row: row.memset_ns),
)


def gaps_section(study: TraceStudy) -> Section | None:
    """A table per device; `None` if no kernel of any device is followed by a gap."""
    blocks: list[Block] = []
    for name, view, *_ in seen_devices(study):
        found = gap_table(view)
        if found.rows:
            blocks.append(_table(found, f"{name}, {during(view)}", study.options.top, collapsed=bool(blocks)))
    if not blocks:
        return None
    lead = (
        "A gap is a stretch without any kernel, compute or communication, on any stream of the device. Copies and memsets do not "
        "end one: their time in it stands beside the idle causes, and together they add up to the gap exactly."
    )
    return Section("gaps", "Gaps between kernels", lead, tuple(blocks))


def _table(found: GapTable, opening: str, top: int, *, collapsed: bool) -> Table:
    parts = [part for part in _PARTS if any(part[1](row) for row in found.rows)]
    columns = (
        Column("after"),
        Column("before", hint="the kernel that ends the gap"),
        Column("n", numeric=True),
        Column("sum", "ms", True, "of the gaps; adds up over rows"),
        Column("of span", numeric=True),
        Column("p50", "µs", True, "median, a sample (nearest rank)"),
        Column("max", "µs", True),
        *(column for column, _ in parts),
        Column("DtoD n", numeric=True, hint="device-to-device copies that ran in the gaps"),
    )
    rows = [Row(tuple(_cells(row, found, parts))) for row in found.rows[:top]]
    for title, chosen in ((f"{len(found.rows) - top} more pairs", found.rows[top:]), ("all gaps", found.rows)):
        if chosen:
            rows.append(Row(tuple(_sum_cells(title, chosen, found, parts)), strong=True))
    caption = (
        f"{opening}: kernels {exact_ms(found.kernel_ns)} + gaps {exact_ms(found.gap_ns)} + before the first kernel "
        f"{exact_ms(found.head_ns)} + after the last one {exact_ms(found.tail_ns)} = span {exact_ms(found.span_ns)} ms."
    )
    notes = ("Columns of causes, copies and memsets are exclusive: a row adds up to its sum. Those without time are left out.",)
    return Table(caption, columns, tuple(rows), notes, sortable=True, collapsed=collapsed)


def _cells(row: GapRow, found: GapTable, parts: Sequence[Part]) -> Iterator[Cell]:
    yield from (Code(row.before), Code(row.after), Count(row.gaps.n), ExactTime(row.gaps.sum_ns))
    yield from (share_cell(row.gaps.sum_ns, found.span_ns), Time(row.gaps.p50_ns), Time(row.gaps.max_ns))
    yield from (_time(part(row)) for _, part in parts)
    yield Count(row.num_dtod)


def _sum_cells(title: str, rows: Sequence[GapRow], found: GapTable, parts: Sequence[Part]) -> Iterator[Cell]:
    total = sum(row.gaps.sum_ns for row in rows)
    yield from (Text(title), Text(""), Count(sum(row.gaps.n for row in rows)), ExactTime(total))
    yield from (share_cell(total, found.span_ns), Text(""), Time(max(row.gaps.max_ns for row in rows)))
    yield from (_time(sum(part(row) for row in rows)) for _, part in parts)
    yield Count(sum(row.num_dtod for row in rows))


def _time(ns: int) -> Cell:
    return ExactTime(ns) if ns else Missing("", "-")
