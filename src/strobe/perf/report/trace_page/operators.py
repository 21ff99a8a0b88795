"""Where the host's time went in a trace without device events."""

from __future__ import annotations

from collections.abc import Iterator

from strobe.perf.analysis.device.operators import OperatorRow, Operators, host_ranges, operators
from strobe.perf.analysis.structure.window import Window
from strobe.perf.report.model import (
    Block,
    Cell,
    Code,
    Column,
    Count,
    ExactTime,
    Paragraph,
    Row,
    Section,
    Table,
    Text,
)
from strobe.perf.report.trace_page.devices import SPREAD_COLUMNS, share_cell, spread_cells
from strobe.perf.report.trace_page.study import TraceStudy
from strobe.perf.trace import Trace

_COLUMNS = (
    Column("operator"),
    Column("n", numeric=True, hint="calls that ran in the window"),
    Column("self", "ms", True, "the operator ran and none that it called did; adds up to the busy time of the threads"),
    Column("share", numeric=True, hint="self time / busy time of all threads"),
    Column("sum", "ms", True, "durations of the calls, each with the operators it calls; does not add up over rows"),
    *SPREAD_COLUMNS,
)


def operators_section(study: TraceStudy) -> Section | None:
    """The operator table of every trace that has no device events; `None` if all have some."""
    blocks: list[Block] = []
    for trace, label, window in zip(study.traces, study.labels, study.windows, strict=True):
        if len(trace.device_events):
            continue
        found = operators(trace, window)
        if found is None:
            blocks.append(Paragraph(f"{label}: no device events and no operators."))
            continue
        blocks.append(_threads(found, label))
        blocks.append(_rows(found, label, study.options.top))
        blocks += _ranges(trace, label, window, study.options.top)
    if not blocks:
        return None
    lead = "No device events were recorded, so this is the host's time: what its operators took, each without those it calls."
    return Section("operators", "Operators", lead, tuple(blocks))


def _threads(found: Operators, label: str) -> Table:
    columns = (Column("thread"), Column("calls", numeric=True), Column("busy", "ms", True), Column("busy share", numeric=True))
    rows = [
        Row((Code(thread.name), Count(thread.num_calls), ExactTime(thread.busy_ns), share_cell(thread.busy_ns, found.span_ns)))
        for thread in found.threads
    ]
    notes = ("A thread is named by process/thread. Its busy time is when any of its operators ran.",)
    return Table(f"{label}: host threads over {found.span_ns / 1e6:.3f} ms.", columns, tuple(rows), notes)


def _rows(found: Operators, label: str, top: int) -> Table:
    rows = [Row(tuple(_cells(row, found.busy_ns))) for row in found.rows[:top]]
    rest = found.rows[top:]
    if rest:
        own = sum(row.self_ns for row in rest)
        calls, total = sum(row.calls.n for row in rest), sum(row.calls.sum_ns for row in rest)
        times = ExactTime(own), share_cell(own, found.busy_ns), ExactTime(total)
        blank = (Text(""),) * len(SPREAD_COLUMNS)
        rows.append(Row((Text(f"{len(rest)} more rows"), Count(calls), *times, *blank), strong=True))
    return Table(f"{label}: operators by self time.", _COLUMNS, tuple(rows), sortable=True)


def _cells(row: OperatorRow, busy_ns: int) -> Iterator[Cell]:
    yield from (Code(row.name), Count(row.calls.n), ExactTime(row.self_ns), share_cell(row.self_ns, busy_ns))
    yield from (ExactTime(row.calls.sum_ns), *spread_cells(row.calls))


def _ranges(trace: Trace, label: str, window: Window | None, top: int) -> Iterator[Table]:
    found = host_ranges(trace, window)
    if found:
        columns = (Column("range"), Column("calls", numeric=True), Column("sum", "ms", True, "of the calls"), *SPREAD_COLUMNS)
        rows = tuple(
            Row((Code(one.name), Count(one.calls.n), ExactTime(one.calls.sum_ns), *spread_cells(one.calls))) for one in found
        )
        notes = ["Ranges contain each other: sums do not add up. Names that differ in a number at their end are one row."]
        if len(rows) > top:
            notes.append(f"{len(rows) - top} more rows are left out.")
        yield Table(f"{label}: ranges on the host.", columns, rows[:top], tuple(notes), sortable=True)
