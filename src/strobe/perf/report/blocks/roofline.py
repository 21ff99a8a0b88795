"""Columns and cells of rates against the peaks of a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from strobe.core.costs import Cost, DevicePeaks
from strobe.perf.analysis.device.roofline import Roofline, roofline
from strobe.perf.records.record import SpanCost
from strobe.perf.report.blocks.fields import Field, numeric, time
from strobe.perf.report.model import Block, Cell, Missing, Number, Section, Share

T = TypeVar("T")
_UNKNOWN = "the peak of this dtype is not known"
_NO_PRODUCTS = Missing("no matrix products", "-")
_ACHIEVED: tuple[Field[Roofline], ...] = (
    numeric(
        "TFLOP/s",
        lambda found: rate_number(found.flops_per_s / 1e12) if found.flops_per_s else _NO_PRODUCTS,
        "FLOPs of matrix products / time",
    ),
    numeric(
        "GB/s",
        lambda found: rate_number(found.bytes_per_s / 1e9) if found.bytes_per_s else Missing("no bytes", "-"),
        "bytes that must be moved at least / time",
    ),
)


def _of_peak(found: Roofline) -> Cell | None:
    if found.compute_share is not None:
        return Share(found.compute_share)
    return None if found.flops_per_s else _NO_PRODUCTS


_FLOORS = "the higher of the two floors: FLOPs / peak, or bytes / bandwidth"
_AGAINST: tuple[Field[Roofline], ...] = (
    numeric("of peak", _of_peak, "of the dtype's dense matrix peak", missing=_UNKNOWN),
    numeric("of bandwidth", lambda found: found.memory_share, "of the device memory's bandwidth", show=Share, missing=_UNKNOWN),
    Field("bound", lambda found: found.bound, hint=_FLOORS, missing=_UNKNOWN),
    time("floor", lambda found: found.floor_ns, "ms", "least time that this device could take", missing=_UNKNOWN),
    numeric("floor / time", lambda found: found.share, show=Share, missing=_UNKNOWN),
)


def rate_fields(
    peaks: DevicePeaks | None, found: Callable[[T], Roofline | Cell | None], missing: str = ""
) -> tuple[Field[T], ...]:
    """Return the columns of achieved rates, and of their shares of the device's peaks if those are known.

    Args:
        found: roofline of a row, or the cell that stands in its place in every column.
        missing: reason where it is None.
    """
    return tuple(field.of(found, missing) for field in (_ACHIEVED if peaks is None else (*_ACHIEVED, *_AGAINST)))


def peaks_section(blocks: Sequence[Block], lead: str = "", *, folded: bool = False) -> Section | None:
    """Build the section of any page on rates against the device's peaks; None without blocks."""
    return Section("roofline", "Against the device's peaks", lead, tuple(blocks), folded) if blocks else None


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
