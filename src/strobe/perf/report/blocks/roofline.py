"""Columns and cells of rates against the peaks of a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

from strobe.core.costs import Cost, DevicePeaks
from strobe.perf.analysis.device.roofline import Roofline, roofline
from strobe.perf.records.record import SpanCost
from strobe.perf.report.blocks.fields import Field
from strobe.perf.report.model import Cell, Column, Missing, Number, Share, Text, Time

T = TypeVar("T")
_ACHIEVED = (
    Column("TFLOP/s", numeric=True, hint="FLOPs of matrix products / time"),
    Column("GB/s", numeric=True, hint="bytes that must be moved at least / time"),
)


_AGAINST = (
    Column("of peak", numeric=True, hint="of the dtype's dense matrix peak"),
    Column("of bandwidth", numeric=True, hint="of the device memory's bandwidth"),
    Column("bound", hint="the higher of the two floors: FLOPs / peak, or bytes / bandwidth"),
    Column("floor", "ms", True, "least time that this device could take"),
    Column("floor / time", numeric=True),
)


def rate_columns(peaks: DevicePeaks | None) -> tuple[Column, ...]:
    """Return the columns for `rate_cells`: achieved rates, and their shares of the device's peaks if those are known."""
    return _ACHIEVED if peaks is None else (*_ACHIEVED, *_AGAINST)


def rate_cells(found: Roofline) -> tuple[Cell, ...]:
    """Return the cells of a roofline, under the columns of `rate_columns`."""
    achieved = (
        rate_number(found.flops_per_s / 1e12) if found.flops_per_s else Missing("no matrix products", "-"),
        rate_number(found.bytes_per_s / 1e9) if found.bytes_per_s else Missing("no bytes", "-"),
    )
    if found.device is None:
        return achieved
    unknown = Missing("the peak of this dtype is not known", "-")
    none = Missing("no matrix products", "-")
    return (
        *achieved,
        (unknown if found.flops_per_s else none) if found.compute_share is None else Share(found.compute_share),
        unknown if found.memory_share is None else Share(found.memory_share),
        unknown if found.bound is None else Text(found.bound),
        unknown if found.floor_ns is None else Time(found.floor_ns),
        unknown if found.share is None else Share(found.share),
    )


def rate_fields(peaks: DevicePeaks | None, found: Callable[[T], Roofline | None], missing: str = "") -> tuple[Field[T], ...]:
    """Return the same columns for a table of fields.

    Args:
        found: roofline of a row.
        missing: reason where it is None.
    """

    def cell(place: int) -> Callable[[T], Cell | None]:
        def get(row: T) -> Cell | None:
            own = found(row)
            return None if own is None else rate_cells(own)[place]

        return get

    columns = rate_columns(peaks)
    return tuple(
        Field(each.title, cell(place), unit=each.unit, numeric=each.numeric, hint=each.hint, missing=missing)
        for place, each in enumerate(columns)
    )


def rate_number(value: float) -> Number:
    """Return the cell of a rate with four significant digits and at most six decimals."""
    return Number(value, min(6, max(0, 3 - math.floor(math.log10(value)))))


def device_note(name: str, peaks: DevicePeaks | None) -> str:
    """Return a note on the peaks that the shares refer to, or on why there are none."""
    if peaks is None:
        return f"No published peaks are known for {name}: rates only, nothing is held against a roofline."
    bandwidth = f"{peaks.bandwidth_bytes_per_s / 1e9:,.0f} GB/s"
    return f"{peaks.name}: peaks at boost clock, dense, {bandwidth} of memory bandwidth ({peaks.source})."


def of_cost(cost: SpanCost, time_ns: float, peaks: DevicePeaks | None, dtype: str) -> Roofline:
    """Compute the roofline of one call of a region from its recorded cost and its time.

    Args:
        dtype: of matrix products, where the cost names none.
    """
    spent = Cost(flops=cost.flops, read_bytes=cost.read_bytes, write_bytes=cost.write_bytes)
    dense = None if cost.dense_flops is None else Cost(flops=cost.dense_flops)
    return roofline(time_ns, spent, peaks, cost.dtype or dtype, dense=dense)


def anomaly_notes(found: Iterable[tuple[str, Roofline]]) -> tuple[str, ...]:
    """Return a note for each rate that is impossible, with its name."""
    return tuple(f"ANOMALY, {name}: {each.anomaly}." for name, each in found if each.anomaly)
