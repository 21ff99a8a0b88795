"""Device time by operator, input sizes and dtype, with its kernels, its callers, and forward or backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strobe.perf.analysis.operators.times import Caller, Launched, OperatorTime, OperatorTimes, Source
from strobe.perf.report.blocks.fields import share_cell
from strobe.perf.report.model import (
    Block,
    Cell,
    Code,
    Column,
    Count,
    ExactTime,
    Missing,
    Notes,
    Row,
    Section,
    Table,
    Text,
    Time,
)
from strobe.perf.report.trace_page.devices import during
from strobe.perf.report.trace_page.seen import seen_operators
from strobe.perf.report.trace_study import DETAILED_BYTES, TraceStudy

_NAMED = 2
"""Kernels and callers that a row names."""
_COLUMNS = (
    Column("operator", hint="the innermost one that was open when the launch call started"),
    Column("inputs", hint="sizes of its tensors"),
    Column("dtype", hint="of its tensors, each once"),
    Column("pass", hint="forward or backward, where autograd took part"),
    Column("calls", numeric=True, hint="calls that launched at least one device event"),
    Column("events", numeric=True, hint="device events"),
    Column("exclusive", "ms", True, "time no other row counts; adds up to busy"),
    Column("of busy", numeric=True, hint="exclusive time / busy time of the device"),
    Column("one call", "µs", True, "sum of the durations / calls"),
    Column("kernels", hint="with their part of the exclusive time"),
    Column("called by", hint="the operator around it, and the range or module"),
)


def operator_times_section(study: TraceStudy) -> Section | None:
    """Build the section with one table per device; `None` without device events. It tells how to read traces with details."""
    blocks: list[Block] = [
        _table(times, f"{seen.name}, {during(seen.view)}", study.options.top) for seen, times in seen_operators(study)
    ]
    unread = [
        label
        for trace, label in zip(study.traces, study.labels, strict=True)
        if len(trace.device_events) and trace.details is None
    ]
    if unread and (blocks or study.options.details is None):
        said = (
            f"{', '.join(unread)}: not read, because a file has more than {DETAILED_BYTES // 1_000_000} MB; --details reads them."
        )
        blocks.append(Notes((said,)))
    if not blocks:
        return None
    lead = (
        "Every device event by the operator that launched it. Exclusive times add up to the busy time; what no operator launched "
        "(Triton kernels outside of one, graphs) is a row of its own."
    )
    return Section("operator-times", "GPU time by operator", lead, tuple(blocks), folded=True)


def _table(times: OperatorTimes, opening: str, top: int) -> Table:
    rows = [Row(tuple(_cells(row, times.busy_ns))) for row in times.rows[:top]]
    rest = times.rows[top:]
    if rest:
        own = sum(row.exclusive_ns for row in rest)
        counts = Count(sum(row.calls for row in rest)), Count(sum(row.events for row in rest))
        head = (Text(f"{len(rest)} more rows"), *(Text(""),) * 3, *counts, ExactTime(own), share_cell(own, times.busy_ns))
        rows.append(Row((*head, *(Text(""),) * (len(_COLUMNS) - len(head))), strong=True))
    caption = f"{opening}: operators launched {_percent(times.attributed_ns, times.busy_ns)} of {times.busy_ns / 1e6:.6f} ms."
    return Table(caption, _COLUMNS, tuple(rows), sortable=True)


def _cells(row: OperatorTime, busy_ns: int) -> Iterator[Cell]:
    if row.source is Source.OPERATOR:
        yield Code(row.operator)
        yield Code(row.inputs.text) if row.inputs.text else Missing("sizes not recorded", "-")
        yield Text(row.dtypes) if row.dtypes else Missing("types not recorded", "-")
        yield Text(row.phase)
        yield Count(row.calls)
    else:
        yield from (Text(row.source.value, "muted"), *(Missing(row.source.value, "-"),) * 4)
    yield from (Count(row.events), ExactTime(row.exclusive_ns), share_cell(row.exclusive_ns, busy_ns))
    yield Time(row.sum_ns / row.calls) if row.calls else Missing(row.source.value, "-")
    yield Code(_listed([(one.kernel, one.exclusive_ns) for one in _merged(row.kernels)], row.exclusive_ns))
    yield Code(_listed([(_spelled(one), one.exclusive_ns) for one in row.callers if _spelled(one)], row.exclusive_ns))


def _merged(kernels: Sequence[Launched]) -> Sequence[Launched]:
    return [one for one in kernels if one.exclusive_ns] or kernels


def _spelled(caller: Caller) -> str:
    return " in ".join(filter(None, (caller.operator, caller.scope)))


def _listed(parts: Sequence[tuple[str, int]], whole: int) -> str:
    """Return the largest parts in words, with their shares if there are several."""
    shown = [f"{name} {_percent(ns, whole)}" if len(parts) > 1 else name for name, ns in parts[:_NAMED]]
    more = len(parts) - _NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}".replace("%", " %") if whole else "0 %"
