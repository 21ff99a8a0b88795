"""Kernel table (operators on a CPU): calls by span and name, with the time they own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from strobe.perf.analysis.device.distribution import Distribution, distribution
from strobe.perf.analysis.runs.partition import Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionKernel:
    """All calls of one name under one span.

    Args:
        region: the innermost span.
        name: name of the kernel or operator.
        calls: their durations; an operator's includes the operators it calls.
        exclusive_ns: time that no other row counts: self time on a CPU, time owned on the device's timeline on a GPU.
    """

    region: str
    name: str
    calls: Distribution
    exclusive_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionKernels:
    """Rows by descending exclusive time. Only `exclusive_ns` adds up over rows: to the busy time of the frame blocks."""

    kind: Literal["kernel", "operator"]
    rows: tuple[RegionKernel, ...]
    exclusive_ns: int


def region_kernels(partition: Partition) -> RegionKernels:
    """Tabulate the calls of the partition's frame blocks by span and name."""
    durations: dict[tuple[str, str], list[int]] = {}
    exclusive: dict[tuple[str, str], int] = {}
    for call in partition.calls:
        key = (call.label.region, call.name)
        durations.setdefault(key, []).append(call.duration_ns)
        exclusive[key] = exclusive.get(key, 0) + call.exclusive_ns
    rows = [
        RegionKernel(region=region, name=name, calls=found, exclusive_ns=exclusive[region, name])
        for (region, name), calls in durations.items()
        if (found := distribution(np.array(calls, np.int64))) is not None
    ]
    return RegionKernels(
        kind="operator" if partition.device == "cpu" else "kernel",
        rows=tuple(sorted(rows, key=lambda row: (-row.exclusive_ns, row.region, row.name))),
        exclusive_ns=sum(exclusive.values()),
    )
