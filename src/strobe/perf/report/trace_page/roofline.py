"""Operators whose cost follows from their recorded inputs, against the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from strobe.core.costs import DevicePeaks, device_peaks
from strobe.perf.analysis.device.operator_costs import OperatorCost, operator_cost
from strobe.perf.analysis.device.roofline import roofline
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
from strobe.perf.report.sections.roofline import device_note, rate_cells, rate_columns
from strobe.perf.report.trace_page.devices import device_name, share_cell
from strobe.perf.report.trace_page.study import TraceStudy
from strobe.perf.trace.events import OperatorCalls, Trace


def roofline_section(study: TraceStudy) -> Section | None:
    """Matrix products and attention against each device; `None` unless shapes were asked for and a device did something."""
    traces = [(trace, label) for trace, label in zip(study.traces, study.labels, strict=True) if len(trace.device_events)]
    if study.options.by != "shape" or not traces:
        return None
    blocks: list[Block] = []
    for trace, label in traces:
        by_device: dict[int, list[OperatorCalls]] = {}
        for one in trace.operators:
            by_device.setdefault(one.device, []).append(one)
        for device, operators in by_device.items():
            blocks.append(_table(device_name(study, label, device), trace, operators, study.options.top))
        if not by_device:
            said = trace.metadata.get("record_shapes") in ("1", "true")
            why = (
                "no matrix product or attention of a library has a kernel that is linked to it" if said else "shapes not recorded"
            )
            blocks.append(Notes((f"{label}: {why}{'' if said else ': capture with record_shapes=True'}.",)))
    lead = (
        "Matrix products and attention of the libraries, by input, over the whole trace: the time of all kernels of a call "
        "against what it must compute and the least it must move. Kernels without an operator (Triton, graphs) are left out."
    )
    return Section("roofline", "Against the device's peaks", lead, tuple(blocks))


def _table(name: str, trace: Trace, operators: Sequence[OperatorCalls], top: int) -> Table:
    device = operators[0].device
    product = next((one.name for one in trace.devices if one.index == device), "")
    peaks = device_peaks(product) if product else None
    columns = (
        Column("operator"),
        Column("inputs", hint="sizes of its tensors"),
        Column("dtype"),
        Column("calls", numeric=True),
        Column("sum", "ms", True, "of the durations of their device events"),
        Column("of all", numeric=True, hint="sum / sum of all events of the device"),
        Column("one call", "µs", True, "mean"),
        Column("GFLOP", numeric=True, hint="of one call"),
        *rate_columns(peaks),
    )
    events = trace.device_events
    own = np.asarray(events.device) == device
    whole_ns = int((np.asarray(events.end_ns)[own] - np.asarray(events.start_ns)[own]).sum())
    found = [(one, operator_cost(one)) for one in operators]
    rows = [Row(tuple(_cells(one, cost, peaks, whole_ns, len(columns)))) for one, cost in found[:top]]
    rest_ns = sum(one.sum_ns for one, _ in found[top:])
    if rest_ns:
        head = (Text(f"{len(found) - top} more rows"), Text(""), Text(""), Count(sum(one.calls for one, _ in found[top:])))
        cells = (*head, ExactTime(rest_ns), share_cell(rest_ns, whole_ns))
        rows.append(Row((*cells, *(Text(""),) * (len(columns) - len(cells))), strong=True))
    notes = (device_note(product or "this device", peaks), *_notes(found, peaks))
    return Table(f"{name}, the whole trace.", columns, tuple(rows), notes, sortable=True)


def _cells(one: OperatorCalls, found: OperatorCost | str, peaks: DevicePeaks | None, whole_ns: int, width: int) -> Iterator[Cell]:
    mean = Fraction(one.sum_ns, one.calls)
    yield Code(one.name.removeprefix("aten::"))
    yield Code(", ".join("x".join(map(str, size)) for size in one.sizes if size))
    yield Text(found.dtype) if isinstance(found, OperatorCost) else Text(one.types[0] if one.types else "")
    yield from (Count(one.calls), ExactTime(one.sum_ns), share_cell(one.sum_ns, whole_ns), Time(float(mean)))
    if isinstance(found, str) or not one.sum_ns:
        yield from (Missing(found if isinstance(found, str) else "it took no time", "-"),) * (width - 7)
        return
    yield Number(found.cost.flops / 1e9, 3)
    yield from rate_cells(roofline(mean, found.cost, peaks, found.dtype))


def _notes(found: Sequence[tuple[OperatorCalls, OperatorCost | str]], peaks: DevicePeaks | None) -> Iterator[str]:
    """Reasons for what is missing, rates that cannot be, and what a dtype does not say."""
    for reason in dict.fromkeys(cost for _, cost in found if isinstance(cost, str)):
        names = dict.fromkeys(one.name for one, cost in found if cost == reason)
        yield f"Not counted, {', '.join(names)}: {reason}."
    costed = [(one, cost) for one, cost in found if isinstance(cost, OperatorCost) and one.sum_ns]
    if peaks is not None and any(cost.dtype == "float32" for _, cost in costed):
        yield "float32 is held against the peak without tensor cores; whether TF32 ran instead is not in the trace."
    for one, cost in costed:
        anomaly = roofline(Fraction(one.sum_ns, one.calls), cost.cost, peaks, cost.dtype).anomaly
        if anomaly and cost.dtype != "float32":
            yield f"ANOMALY, {one.name}: {anomaly}."
