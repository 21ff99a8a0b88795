"""Conversion of a `TraceStudy` to the rows about operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from strobe.perf.analysis.device.operator_costs import OperatorCost
from strobe.perf.analysis.operators.rates import Rate, operator_rates
from strobe.perf.analysis.operators.times import OperatorTime
from strobe.perf.report.documents import operators as rows
from strobe.perf.report.trace_page.seen import seen_operators
from strobe.perf.report.trace_study import TraceStudy


class OperatorTables(NamedTuple):
    """Tables of a document about operators."""

    operator_times: tuple[rows.OperatorTimeRow, ...]
    operator_kernels: tuple[rows.OperatorKernelRow, ...]
    operator_callers: tuple[rows.OperatorCallerRow, ...]
    operator_rates: tuple[rows.OperatorRateRow, ...]


def operator_tables(study: TraceStudy) -> OperatorTables:
    """Return the rows of every device of the traces that were read with details."""
    labels = {id(trace): label for trace, label in zip(study.traces, study.labels, strict=True)}
    seen = [(labels[id(one.view.trace)], one.view.trace, times) for one, times in seen_operators(study)]
    places = [
        (label, times.device, place, row) for label, _, times in seen for place, row in enumerate(times.rows)
    ]  # fmt: skip
    return OperatorTables(
        operator_times=tuple(_time(*one) for one in places),
        operator_kernels=tuple(row for one in places for row in _kernels(*one)),
        operator_callers=tuple(row for one in places for row in _callers(*one)),
        operator_rates=tuple(
            _rate(label, times.device, rate) for label, trace, times in seen for rate in operator_rates(trace, times).rows
        ),
    )


def _time(label: str, device: int, place: int, row: OperatorTime) -> rows.OperatorTimeRow:
    return rows.OperatorTimeRow(
        trace=label,
        device=device,
        place=place,
        source=row.source.value,
        operator=row.operator,
        input_sizes=row.inputs.text,
        dtypes=row.dtypes,
        phase=row.phase,
        calls=row.calls,
        events=row.events,
        exclusive_ns=row.exclusive_ns,
        sum_ns=row.sum_ns,
    )


def _kernels(label: str, device: int, place: int, row: OperatorTime) -> Iterator[rows.OperatorKernelRow]:
    for one in row.kernels:
        yield rows.OperatorKernelRow(trace=label, device=device, place=place, **one._asdict())


def _callers(label: str, device: int, place: int, row: OperatorTime) -> Iterator[rows.OperatorCallerRow]:
    for one in row.callers:
        yield rows.OperatorCallerRow(
            trace=label,
            device=device,
            place=place,
            caller=one.operator,
            scope=one.scope,
            calls=one.calls,
            exclusive_ns=one.exclusive_ns,
        )


def _rate(label: str, device: int, rate: Rate) -> rows.OperatorRateRow:
    row, found = rate.row, rate.found
    cost = rate.cost if isinstance(rate.cost, OperatorCost) else None
    return rows.OperatorRateRow(
        trace=label,
        device=device,
        place=rate.place,
        operator=row.operator,
        input_sizes=row.inputs.text,
        dtype="" if cost is None else cost.dtype,
        calls=row.calls,
        exclusive_ns=row.exclusive_ns,
        call_ns=row.sum_ns / row.calls if row.calls else None,
        call_flops=None if cost is None else cost.cost.flops,
        call_bytes=None if cost is None else cost.cost.moved_bytes,
        flops_per_s=None if found is None else found.flops_per_s,
        bytes_per_s=None if found is None else found.bytes_per_s,
        compute_share=None if found is None else found.compute_share,
        memory_share=None if found is None else found.memory_share,
        bound=None if found is None else found.bound,
        floor_ns=None if found is None else found.floor_ns,
        unknown=rate.cost if isinstance(rate.cost, str) else "",
    )
