"""Roofline: a measured time against the device's peaks; rates, shares, the bound, and rates that are impossible."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from strobe.core.costs import Cost, DevicePeaks, parse_dtype
from strobe.core.errors import DataError
from strobe.core.printable import bytes_in

NS_PER_S: Final = 1_000_000_000
TOLERANCE: Final = Fraction(102, 100)
"""Largest rate / published peak that is not an anomaly: the peak holds for the published boost clock."""

Bound = Literal["compute", "memory"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Roofline:
    """One operation against one device; shares and limits are None where the device or the dtype is unknown.

    Args:
        device: short name of the device; None: its peaks are not known.
        flops_per_s: computed FLOPs / time, FLOP/s.
        bytes_per_s: least bytes / time, bytes/s.
        intensity: computed FLOPs / least bytes, FLOP/byte; None without bytes.
        compute_share: `flops_per_s` / the dtype's matrix peak; None for an operation without matrix FLOPs too.
        memory_share: `bytes_per_s` / memory bandwidth.
        floor_ns: the least time the device could take: the larger of FLOPs / peak and bytes / bandwidth.
        bound: the larger of the two: compute or memory.
        effective_flops_per_s: FLOPs of the dense operation that this one replaces / time, FLOP/s; None where nothing is replaced.
            It may exceed the peak: the work is not done.
        anomaly: description of a rate that is impossible; empty if there is none.
    """

    device: str | None
    flops_per_s: float
    bytes_per_s: float
    intensity: float | None
    compute_share: float | None
    memory_share: float | None
    floor_ns: float | None
    bound: Bound | None
    effective_flops_per_s: float | None
    anomaly: str

    @property
    def share(self) -> float | None:
        """Share of the roof that limits this operation: `floor_ns` / time."""
        shares = {"compute": self.compute_share, "memory": self.memory_share}
        return None if self.bound is None else shares[self.bound]


def roofline(
    time_ns: Fraction | float, cost: Cost, peaks: DevicePeaks | None, dtype: str, *, dense: Cost | None = None
) -> Roofline:
    """Compare a time with a device's roofline.

    Args:
        time_ns: time of one operation, above 0.
        cost: FLOPs and least bytes of the operation (`strobe.core.costs`); for sparse attention of the pairs it really computes.
        peaks: peaks of the device; None: rates only.
        dtype: dtype of the matrix products, in any spelling; it chooses the peak.
        dense: the dense operation that a sparse one replaces, for the effective rate.

    Raises:
        DataError: the time is not above 0.
    """
    if time_ns <= 0:
        raise DataError(f"a time of {float(time_ns):g} ns gives no rate; give one above 0")
    per_s = Fraction(NS_PER_S) / Fraction(time_ns)
    rates = cost.flops * per_s, cost.moved_bytes * per_s
    flops_peak = peaks.peak_flops_per_s(dtype) if peaks is not None and cost.flops else None
    floors: dict[Bound, Fraction] = {}
    if peaks is not None and (flops_peak is not None or not cost.flops):
        floors["memory"] = Fraction(cost.moved_bytes * NS_PER_S, peaks.bandwidth_bytes_per_s)
        floors["compute"] = Fraction(cost.flops * NS_PER_S, flops_peak) if flops_peak else Fraction(0)
    bound: Bound | None = None
    if floors:
        bound = "compute" if floors["compute"] >= floors["memory"] else "memory"
    return Roofline(
        device=None if peaks is None else peaks.name,
        flops_per_s=float(rates[0]),
        bytes_per_s=float(rates[1]),
        intensity=cost.flops / cost.moved_bytes if cost.moved_bytes else None,
        compute_share=float(rates[0] / flops_peak) if flops_peak else None,
        memory_share=None if peaks is None else float(rates[1] / peaks.bandwidth_bytes_per_s),
        floor_ns=float(floors[bound]) if bound else None,
        bound=bound,
        effective_flops_per_s=None if dense is None else float(dense.flops * per_s),
        anomaly="" if peaks is None else _anomaly(rates, cost, peaks, dtype, flops_peak),
    )


def _anomaly(rates: tuple[Fraction, Fraction], cost: Cost, peaks: DevicePeaks, dtype: str, flops_peak: int | None) -> str:
    """Name the peak that is exceeded. Data that fits into the cache may arrive faster than memory delivers it."""
    flops, moved = rates
    if flops_peak is not None and flops > flops_peak * TOLERANCE:
        return (
            f"{float(flops) / 1e12:.4g} TFLOP/s is above the {parse_dtype(dtype)} peak of {peaks.name}, {flops_peak / 1e12:.4g}: "
            f"a time without synchronisation, or not all of these FLOPs were computed"
        )
    if moved > peaks.bandwidth_bytes_per_s * TOLERANCE and cost.moved_bytes > peaks.cache_bytes:
        return (
            f"{float(moved) / 1e9:.4g} GB/s is above the memory bandwidth of {peaks.name}, "
            f"{peaks.bandwidth_bytes_per_s / 1e9:.4g}, and {bytes_in(cost.moved_bytes, 'MiB'):.4g} MiB do not fit into its "
            f"cache: a time without synchronisation, or not all of these bytes were moved"
        )
    return ""
