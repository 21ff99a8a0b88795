"""Roofline of operators whose cost follows from their recorded inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from strobe.core.printable import first_of
from strobe.perf.analysis.device.operator_costs import OperatorCost
from strobe.perf.analysis.operators.rates import Rate, Rates, operator_rates
from strobe.perf.report.blocks.fields import Field, count, exact_time, numeric, share_of, table_of, time
from strobe.perf.report.blocks.roofline import device_note, peaks_section, rate_fields
from strobe.perf.report.model import Block, Code, Notes, Number, Section, Table
from strobe.perf.report.trace_page.devices import during
from strobe.perf.report.trace_page.seen import seen_operators
from strobe.perf.report.trace_study import TraceStudy

_MOST_REASONS = 12


def roofline_section(study: TraceStudy) -> Section | None:
    """Build the section with operators against each device's peaks; `None` if no trace was read with details or had work."""
    blocks: list[Block] = []
    for seen, times in seen_operators(study):
        rates = operator_rates(seen.view.trace, times)
        if rates.rows:
            blocks.append(_table(f"{seen.name}, {during(seen.view)}", rates, study.options.top))
            continue
        said = seen.view.trace.metadata.get("record_shapes") in ("1", "true")
        why = "no operator with recorded inputs launched anything" if said else "shapes not recorded"
        blocks.append(Notes((f"{seen.name}: {why}{'' if said else ': capture with record_shapes=True'}.",)))
    lead = (
        "Operators by input: the time of all kernels of a call against what it must compute and the least it must move. "
        "FLOPs are those of matrix products, convolutions and attention; elementwise work moves every operand once. "
        "Kernels without an operator (Triton outside of it, graphs) are left out."
    )
    return peaks_section(blocks, lead, folded=True)


def _table(name: str, rates: Rates, top: int) -> Table:
    fields: tuple[Field[Rate], ...] = (
        Field("operator", lambda rate: rate.row.operator.removeprefix("aten::"), Code),
        Field("inputs", lambda rate: rate.row.inputs.text, Code, hint="sizes of its tensors"),
        Field("dtype", lambda rate: _cost(rate).dtype),
        count("calls", lambda rate: rate.row.calls, total=sum),
        exact_time("sum", lambda rate: rate.row.sum_ns, "of the durations of their device events", total=sum),
        numeric(
            "of busy",
            lambda rate: rate.row.exclusive_ns,
            "time that only these own / busy time of the device",
            show=share_of(rates.busy_ns),
            total=sum,
        ),
        time("one call", lambda rate: rate.row.sum_ns / rate.row.calls, "µs", "mean"),
        numeric("GFLOP", _gflop, "of one call", missing="no matrix products"),
        *rate_fields(rates.peaks, lambda rate: rate.found),
    )
    known = [rate for rate in rates.rows if rate.found is not None]
    covered = f"{rates.covered_ns / rates.busy_ns:.1%}".replace("%", " %") if rates.busy_ns else "nothing"
    caption = f"{name}: the cost is known of operators that own {covered} of the busy time."
    notes = (device_note(rates.product or "this device", rates.peaks), *_notes(rates))
    return table_of(caption, fields, known, top=top, notes=notes, sortable=True)


def _cost(rate: Rate) -> OperatorCost:
    assert isinstance(rate.cost, OperatorCost)
    return rate.cost


def _gflop(rate: Rate) -> Number | None:
    flops = _cost(rate).cost.flops
    return Number(flops / 1e9, 3) if flops else None


def _notes(rates: Rates) -> Iterator[str]:
    """Yield reasons for missing costs, impossible rates, and a remark on dtypes."""
    reasons: dict[str, dict[str, None]] = defaultdict(dict)
    for rate in rates.rows:
        if isinstance(rate.cost, str):
            reasons[rate.cost][rate.row.operator] = None
    for reason, names in reasons.items():
        yield f"Not counted, {first_of([*names], _MOST_REASONS)}: {reason}."
    costed = [(rate, rate.cost, rate.found) for rate in rates.rows if rate.found is not None]
    if rates.peaks is not None and any(
        isinstance(cost, OperatorCost) and cost.dtype == "float32" and cost.cost.flops for _, cost, _ in costed
    ):
        yield "float32 is held against the peak without tensor cores; whether TF32 ran instead is not in the trace."
    for rate, cost, found in costed:
        if found is not None and found.anomaly and isinstance(cost, OperatorCost) and cost.dtype != "float32":
            yield f"ANOMALY, {rate.row.operator}: {found.anomaly}."
