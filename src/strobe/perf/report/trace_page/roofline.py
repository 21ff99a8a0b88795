"""Roofline of operators whose cost follows from their recorded inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from strobe.perf.analysis.device.operator_costs import OperatorCost
from strobe.perf.analysis.operators.rates import Rate, Rates, operator_rates
from strobe.perf.report.blocks.fields import share_cell
from strobe.perf.report.blocks.roofline import device_note, rate_cells, rate_columns
from strobe.perf.report.model import (
    Block,
    Cell,
    Code,
    Column,
    Count,
    ExactTime,
    Missing,
    Notes,
    Number,
    Row,
    Section,
    Table,
    Text,
    Time,
)
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
    if not blocks:
        return None
    lead = (
        "Operators by input: the time of all kernels of a call against what it must compute and the least it must move. "
        "FLOPs are those of matrix products, convolutions and attention; elementwise work moves every operand once. "
        "Kernels without an operator (Triton outside of it, graphs) are left out."
    )
    return Section("roofline", "Against the device's peaks", lead, tuple(blocks), folded=True)


def _table(name: str, rates: Rates, top: int) -> Table:
    columns = (
        Column("operator"),
        Column("inputs", hint="sizes of its tensors"),
        Column("dtype"),
        Column("calls", numeric=True),
        Column("sum", "ms", True, "of the durations of their device events"),
        Column("of busy", numeric=True, hint="time that only these own / busy time of the device"),
        Column("one call", "µs", True, "mean"),
        Column("GFLOP", numeric=True, hint="of one call"),
        *rate_columns(rates.peaks),
    )
    known = [rate for rate in rates.rows if rate.found is not None]
    rows = [Row(tuple(_cells(rate, rates.busy_ns))) for rate in known[:top]]
    rest = known[top:]
    if rest:
        head = (Text(f"{len(rest)} more rows"), Text(""), Text(""), Count(sum(rate.row.calls for rate in rest)))
        own = sum(rate.row.exclusive_ns for rate in rest)
        cells = (*head, ExactTime(sum(rate.row.sum_ns for rate in rest)), share_cell(own, rates.busy_ns))
        rows.append(Row((*cells, *(Text(""),) * (len(columns) - len(cells))), strong=True))
    share = f"{rates.covered_ns / rates.busy_ns:.1%}".replace("%", " %") if rates.busy_ns else "nothing"
    caption = f"{name}: the cost is known of operators that own {share} of the busy time."
    notes = (device_note(rates.product or "this device", rates.peaks), *_notes(rates))
    return Table(caption, columns, tuple(rows), notes, sortable=True)


def _cells(rate: Rate, busy_ns: int) -> Iterator[Cell]:
    row = rate.row
    assert rate.found is not None and isinstance(rate.cost, OperatorCost)
    yield Code(row.operator.removeprefix("aten::"))
    yield Code(row.inputs.text)
    yield Text(rate.cost.dtype)
    yield from (Count(row.calls), ExactTime(row.sum_ns), share_cell(row.exclusive_ns, busy_ns), Time(row.sum_ns / row.calls))
    flops = rate.cost.cost.flops
    yield Number(flops / 1e9, 3) if flops else Missing("no matrix products", "-")
    yield from rate_cells(rate.found)


def _notes(rates: Rates) -> Iterator[str]:
    """Yield reasons for missing costs, impossible rates, and a remark on dtypes."""
    reasons: dict[str, dict[str, None]] = defaultdict(dict)
    for rate in rates.rows:
        if isinstance(rate.cost, str):
            reasons[rate.cost][rate.row.operator] = None
    for reason, names in reasons.items():
        more = len(names) - _MOST_REASONS
        listed = ", ".join([*names][:_MOST_REASONS]) + (f" and {more} more" if more > 0 else "")
        yield f"Not counted, {listed}: {reason}."
    costed = [(rate, rate.cost, rate.found) for rate in rates.rows if rate.found is not None]
    if rates.peaks is not None and any(
        isinstance(cost, OperatorCost) and cost.dtype == "float32" and cost.cost.flops for _, cost, _ in costed
    ):
        yield "float32 is held against the peak without tensor cores; whether TF32 ran instead is not in the trace."
    for rate, cost, found in costed:
        if found is not None and found.anomaly and isinstance(cost, OperatorCost) and cost.dtype != "float32":
            yield f"ANOMALY, {rate.row.operator}: {found.anomaly}."
