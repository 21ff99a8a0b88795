"""Host time by operator, for a trace without device events."""

from __future__ import annotations

from collections.abc import Iterator

from strobe.perf.analysis.device.distribution import Distribution
from strobe.perf.analysis.structure.operators import OperatorRow, Operators, ThreadRow, host_ranges, operators
from strobe.perf.analysis.window import Window
from strobe.perf.report.blocks.fields import Field, count, exact_time, left_out, numeric, share_of, table_of
from strobe.perf.report.blocks.spread import spread
from strobe.perf.report.model import Block, Code, Paragraph, Section, Table
from strobe.perf.report.trace_study import TraceStudy
from strobe.perf.trace import Trace


def operators_section(study: TraceStudy) -> Section | None:
    """Build the section with the operator table of every trace without device events; `None` if all have some."""
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
    fields: tuple[Field[ThreadRow], ...] = (
        Field("thread", lambda thread: thread.name, Code),
        count("calls", lambda thread: thread.num_calls),
        exact_time("busy", lambda thread: thread.busy_ns),
        numeric("busy share", lambda thread: thread.busy_ns, show=share_of(found.span_ns)),
    )
    notes = ("A thread is named by process/thread. Its busy time is when any of its operators ran.",)
    return table_of(f"{label}: host threads over {found.span_ns / 1e6:.3f} ms.", fields, found.threads, notes=notes)


def _rows(found: Operators, label: str, top: int) -> Table:
    self_hint = "the operator ran and none that it called did; adds up to the busy time of the threads"
    sum_hint = "durations of the calls, each with the operators it calls; does not add up over rows"
    share_hint = "self time / busy time of all threads"
    fields: tuple[Field[OperatorRow], ...] = (
        Field("operator", lambda row: row.name, Code),
        count("n", lambda row: row.calls.n, "calls that ran in the window", total=sum),
        exact_time("self", lambda row: row.self_ns, self_hint, total=sum),
        numeric("share", lambda row: row.self_ns, share_hint, show=share_of(found.busy_ns), total=sum),
        exact_time("sum", lambda row: row.calls.sum_ns, sum_hint, total=sum),
        *spread(lambda row: row.calls, "µs"),
    )
    return table_of(f"{label}: operators by self time.", fields, found.rows, top=top, sortable=True)


def _ranges(trace: Trace, label: str, window: Window | None, top: int) -> Iterator[Table]:
    found = [*host_ranges(trace, window).items()]
    if found:
        fields: tuple[Field[tuple[str, Distribution]], ...] = (
            Field("range", lambda row: row[0], Code),
            count("calls", lambda row: row[1].n),
            exact_time("sum", lambda row: row[1].sum_ns, "of the calls"),
            *spread(lambda row: row[1], "µs"),
        )
        note = "Ranges contain each other: sums do not add up. Names that differ in a number at their end are one row."
        yield table_of(f"{label}: ranges on the host.", fields, found[:top], notes=(note, *left_out(found, top)), sortable=True)
