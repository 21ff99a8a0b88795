"""Rates of a device's operators of known cost against its peaks, and the share of the time that they cover."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from strobe.core.costs import DevicePeaks, device_peaks
from strobe.perf.analysis.device.operator_costs import OperatorCost, operator_cost
from strobe.perf.analysis.device.roofline import Roofline, roofline
from strobe.perf.analysis.operators.times import OperatorTime, OperatorTimes, Source
from strobe.perf.trace.events import Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Cost and rate of one row of the operators.

    Args:
        place: position of the row in the table of operators.
        row: the row.
        cost: cost of one call, or the reason why it is not known.
        found: one call against the device: the mean of its kernels' durations.
    """

    place: int
    row: OperatorTime
    cost: OperatorCost | str
    found: Roofline | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """The operators of one device against its peaks.

    Args:
        product: name of the device; empty where the trace does not list it.
        peaks: peaks of the device, if they are known.
        rows: one for each operator with recorded inputs, in the order of the table of operators.
        covered_ns: exclusive time of the rows whose cost is known.
        busy_ns: busy time of the device.
    """

    device: int
    product: str
    peaks: DevicePeaks | None
    rows: tuple[Rate, ...]
    covered_ns: int
    busy_ns: int


def operator_rates(trace: Trace, times: OperatorTimes) -> Rates:
    """Compare the operators of one device with its peaks."""
    product = next((one.name for one in trace.devices if one.index == times.device), "")
    peaks = device_peaks(product) if product else None
    rows = tuple(
        _rate(place, row, times.device, peaks)
        for place, row in enumerate(times.rows)
        if row.source is Source.OPERATOR and row.inputs.text
    )
    covered = sum(rate.row.exclusive_ns for rate in rows if rate.found is not None)
    return Rates(device=times.device, product=product, peaks=peaks, rows=rows, covered_ns=covered, busy_ns=times.busy_ns)


def _rate(place: int, row: OperatorTime, device: int, peaks: DevicePeaks | None) -> Rate:
    cost = operator_cost(row.as_calls(device))
    found = None
    if isinstance(cost, OperatorCost):
        if row.sum_ns:
            found = roofline(Fraction(row.sum_ns, row.calls), cost.cost, peaks, cost.dtype)
        else:
            cost = "it took no time"
    return Rate(place=place, row=row, cost=cost, found=found)
