"""Device time by operator, input sizes and dtype, with its kernels, its callers, and forward or backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strobe.core.printable import bytes_in, first_of
from strobe.perf.analysis.operators.times import OperatorTime, OperatorTimes, Source
from strobe.perf.report.blocks.fields import Field, count, exact_time, numeric, share_of, table_of, time
from strobe.perf.report.model import Block, Cell, Code, Missing, Notes, Section, Table, Text
from strobe.perf.report.trace_page.devices import during
from strobe.perf.report.trace_page.seen import seen_operators
from strobe.perf.report.trace_study import DETAILED_BYTES, TraceStudy

_NAMED = 2
"""Kernels and callers that a row names."""


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
        most = bytes_in(DETAILED_BYTES, "MB")
        said = f"{', '.join(unread)}: not read, because a file has more than {most:.0f} MB; --details reads them."
        blocks.append(Notes((said,)))
    if not blocks:
        return None
    lead = (
        "Every device event by the operator that launched it. Exclusive times add up to the busy time; what no operator launched "
        "(Triton kernels outside of one, graphs) is a row of its own."
    )
    return Section("operator-times", "GPU time by operator", lead, tuple(blocks), folded=True)


def _table(times: OperatorTimes, opening: str, top: int) -> Table:
    def of_operator(get: Callable[[OperatorTime], Any]) -> Callable[[OperatorTime], Any]:
        return lambda row: get(row) if row.source is Source.OPERATOR else Missing(row.source.value, "-")

    fields: tuple[Field[OperatorTime], ...] = (
        Field("operator", _operator, hint="the innermost one that was open when the launch call started"),
        Field(
            "inputs",
            of_operator(lambda row: row.inputs.text or None),
            Code,
            hint="sizes of its tensors",
            missing="sizes not recorded",
        ),
        Field(
            "dtype", of_operator(lambda row: row.dtypes or None), hint="of its tensors, each once", missing="types not recorded"
        ),
        Field("pass", of_operator(lambda row: row.phase), hint="forward or backward, where autograd took part"),
        count("calls", of_operator(lambda row: row.calls), "calls that launched at least one device event", total=sum),
        count("events", lambda row: row.events, "device events", total=sum),
        exact_time("exclusive", lambda row: row.exclusive_ns, "time no other row counts; adds up to busy", total=sum),
        numeric(
            "of busy",
            lambda row: row.exclusive_ns,
            "exclusive time / busy time of the device",
            show=share_of(times.busy_ns),
            total=sum,
        ),
        time("one call", _one_call, "µs", "sum of the durations / calls"),
        Field("kernels", _kernels, Code, hint="with their part of the exclusive time"),
        Field("called by", _callers, Code, hint="the operator around it, and the range or module"),
    )
    caption = f"{opening}: operators launched {_percent(times.attributed_ns, times.busy_ns)} of {times.busy_ns / 1e6:.6f} ms."
    return table_of(caption, fields, times.rows, top=top, sortable=True)


def _operator(row: OperatorTime) -> Cell:
    return Code(row.operator) if row.source is Source.OPERATOR else Text(row.source.value, "muted")


def _one_call(row: OperatorTime) -> float | Missing:
    return row.sum_ns / row.calls if row.calls else Missing(row.source.value, "-")


def _kernels(row: OperatorTime) -> str:
    shown = [one for one in row.kernels if one.exclusive_ns] or row.kernels
    return _listed([(one.kernel, one.exclusive_ns) for one in shown], row.exclusive_ns)


def _callers(row: OperatorTime) -> str:
    named = [(" in ".join(filter(None, (one.operator, one.scope))), one.exclusive_ns) for one in row.callers]
    return _listed([(name, ns) for name, ns in named if name], row.exclusive_ns)


def _listed(parts: Sequence[tuple[str, int]], whole: int) -> str:
    """Return the largest parts in words, with their shares if there are several."""
    return first_of([f"{name} {_percent(ns, whole)}" if len(parts) > 1 else name for name, ns in parts], _NAMED)


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}".replace("%", " %") if whole else "0 %"
