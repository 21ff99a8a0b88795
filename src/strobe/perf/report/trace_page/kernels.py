"""The kernel table of every device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strobe.perf.analysis.device.hotspots import HotRow, HotTable
from strobe.perf.report.model import Block, Cell, Code, Column, Count, ExactTime, Missing, Row, Section, Table, Text
from strobe.perf.report.trace_page.devices import SPREAD_COLUMNS, count_cell, during, share_cell, spread_cells
from strobe.perf.report.trace_page.seen import seen_devices
from strobe.perf.report.trace_page.study import TraceStudy

MAX_MEMBERS = 8
"""Names listed of one group."""


def kernels_section(study: TraceStudy) -> Section | None:
    """A table per device, and the names behind its groups; `None` without device events."""
    blocks: list[Block] = []
    for name, view, _, found in seen_devices(study):
        opening = f"{name}, {during(view)}"
        blocks.append(_table(found, opening, study, collapsed=bool(blocks)))
        blocks.extend(_members(found.rows[: study.options.top], name))
    if not blocks:
        return None
    lead = (
        "Every device event, also those whose launch the trace does not hold, grouped by normalised name. Only the exclusive "
        "column adds up (to the device's busy time, exactly): where events overlap, the one that ranks higher owns the time."
    )
    return Section("kernels", "Kernels", lead, tuple(blocks))


def _table(found: HotTable, opening: str, study: TraceStudy, *, collapsed: bool) -> Table:
    by_shape, top = study.options.by == "shape", study.options.top
    columns = (
        Column("kernel", hint="normalised name of the group"),
        *((Column("shape", hint="input sizes, or grid and block, as the trace gives them"),) if by_shape else ()),
        Column("kind"),
        Column("n", numeric=True, hint="calls"),
        Column("exclusive", "ms", True, "time no other row counts; adds up to busy"),
        Column("of busy", numeric=True, hint="exclusive time / busy time of the device"),
        Column("sum", "ms", True, "of durations: inclusive, not additive where events overlap"),
        *SPREAD_COLUMNS,
        Column("unlinked", numeric=True, hint="calls whose launch the trace does not hold"),
        Column("names", numeric=True, hint="different full names in the group"),
    )
    rows = [Row(tuple(_cells(row, found, by_shape))) for row in found.rows[:top]]
    rest = found.rows[top:]
    if rest:
        own, n = sum(row.exclusive_ns for row in rest), sum(row.calls.n for row in rest)
        blank = (Text(""),) * len(SPREAD_COLUMNS)
        head = (Text(f"{len(rest)} more rows"), *((Text(""),) if by_shape else ()), Text(""), Count(n), ExactTime(own))
        total = ExactTime(sum(row.calls.sum_ns for row in rest))
        unlinked = count_cell(sum(row.num_unlinked for row in rest))
        rows.append(Row((*head, share_cell(own, found.busy_ns), total, *blank, unlinked, Text("")), strong=True))
    caption = (
        f"{opening}: {sum(row.calls.n for row in found.rows)} calls in {len(found.rows)} rows, busy {found.busy_ns / 1e6:.6f} ms."
    )
    notes = []
    if found.num_cut:
        notes.append(f"Calls cut by the edges of the window: {found.num_cut}. n counts them, times count their part inside.")
    if found.num_mangled:
        notes.append(f"{found.num_mangled} names could not be demangled and stand as they are.")
    return Table(caption, columns, tuple(rows), tuple(notes), sortable=True, collapsed=collapsed)


def _cells(row: HotRow, found: HotTable, by_shape: bool) -> Iterator[Cell]:
    yield Code(row.group)
    if by_shape:
        yield Code(row.shape) if row.shape else Missing("the trace gives none", "-")
    yield from (Text(row.kind), Count(row.calls.n), ExactTime(row.exclusive_ns), share_cell(row.exclusive_ns, found.busy_ns))
    yield from (ExactTime(row.calls.sum_ns), *spread_cells(row.calls))
    yield from (count_cell(row.num_unlinked), Count(len(row.members)))


def _members(rows: Sequence[HotRow], name: str) -> Iterator[Table]:
    """The full names of groups whose name does not say them."""
    columns = (Column("kernel"), Column("full name"), Column("n", numeric=True), Column("sum", "ms", True, "of durations"))
    listed: dict[str, HotRow] = {}
    for row in rows:
        if len(row.members) > 1 or row.members[0].name != row.group:
            listed.setdefault(row.group, row)
    cells = []
    for row in listed.values():
        for member in row.members[:MAX_MEMBERS]:
            cells.append(Row((Code(row.group), Code(member.name), Count(member.n), ExactTime(member.sum_ns))))
        rest = row.members[MAX_MEMBERS:]
        if rest:
            n, total = sum(member.n for member in rest), sum(member.sum_ns for member in rest)
            cells.append(Row((Code(row.group), Text(f"{len(rest)} more names"), Count(n), ExactTime(total))))
    if cells:
        yield Table(f"{name}: full names of the groups above.", columns, tuple(cells), collapsed=True)
