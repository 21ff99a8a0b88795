"""Kernel table of every device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strobe.perf.analysis.device.kernel_table import KernelTable, KernelTableRow, Member
from strobe.perf.report.blocks.fields import Field, count, count_cell, exact_time, heads, numeric, rows_of, share_of, table_of
from strobe.perf.report.blocks.spread import spread
from strobe.perf.report.model import Block, Code, Section, Table
from strobe.perf.report.trace_page.devices import during
from strobe.perf.report.trace_page.seen import seen_devices
from strobe.perf.report.trace_study import TraceStudy

MAX_MEMBERS = 8
"""Most full names listed for one group."""


def kernels_section(study: TraceStudy) -> Section | None:
    """Build the section with one kernel table per device and the full names of its groups; `None` without device events."""
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


def _table(found: KernelTable, opening: str, study: TraceStudy, *, collapsed: bool) -> Table:
    shape: Field[KernelTableRow] = Field(
        "shape",
        lambda row: row.shape or None,
        Code,
        hint="input sizes, or grid and block, as the trace gives them",
        missing="the trace gives none",
    )
    fields: tuple[Field[KernelTableRow], ...] = (
        Field("kernel", lambda row: row.group, Code, hint="normalised name of the group"),
        *((shape,) if study.options.by == "shape" else ()),
        Field("kind", lambda row: row.kind),
        count("n", lambda row: row.calls.n, "calls", total=sum),
        exact_time("exclusive", lambda row: row.exclusive_ns, "time no other row counts; adds up to busy", total=sum),
        numeric(
            "of busy",
            lambda row: row.exclusive_ns,
            "exclusive time / busy time of the device",
            show=share_of(found.busy_ns),
            total=sum,
        ),
        exact_time("sum", lambda row: row.calls.sum_ns, "of durations: inclusive, not additive where events overlap", total=sum),
        *spread(lambda row: row.calls, "µs"),
        numeric(
            "unlinked", lambda row: row.num_unlinked, "calls whose launch the trace does not hold", show=count_cell, total=sum
        ),
        count("names", lambda row: len(row.members), "different full names in the group"),
    )
    caption = (
        f"{opening}: {sum(row.calls.n for row in found.rows)} calls in {len(found.rows)} rows, busy {found.busy_ns / 1e6:.6f} ms."
    )
    notes = []
    if found.num_cut:
        notes.append(f"Calls cut by the edges of the window: {found.num_cut}. n counts them, times count their part inside.")
    if found.num_mangled:
        notes.append(f"{found.num_mangled} names could not be demangled and stand as they are.")
    return table_of(caption, fields, found.rows, top=study.options.top, notes=notes, sortable=True, collapsed=collapsed)


def _members(rows: Sequence[KernelTableRow], name: str) -> Iterator[Table]:
    """Yield the table of full kernel names in groups whose own name is not the full one."""
    listed: dict[str, KernelTableRow] = {}
    for row in rows:
        if len(row.members) > 1 or row.members[0].name != row.group:
            listed.setdefault(row.group, row)
    fields: tuple[Field[tuple[str, Member]], ...] = (
        Field("kernel", lambda row: row[0], Code, total=lambda groups: next(iter(groups))),
        Field("full name", lambda row: row[1].name, Code),
        count("n", lambda row: row[1].n, total=sum),
        exact_time("sum", lambda row: row[1].sum_ns, "of durations", total=sum),
    )
    cells = [
        cell
        for row in listed.values()
        for cell in rows_of(fields, [(row.group, member) for member in row.members], top=MAX_MEMBERS, left="names", words_in=1)
    ]
    if cells:
        yield Table(f"{name}: full names of the groups above.", heads(fields), tuple(cells), collapsed=True)
