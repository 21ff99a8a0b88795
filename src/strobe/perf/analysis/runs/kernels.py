"""The kernel table (operators on a CPU): which calls took the time, by span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from strobe.perf.analysis.runs.partition import Partition
from strobe.perf.measure.stats import P99_SAMPLES, percentile


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRow:
    """All calls of one name under one span.

    Args:
        region: the innermost span.
        name: of the kernel or operator.
        n: number of calls.
        sum_ns: sum of the calls' durations; an operator's includes the operators it calls.
        exclusive_ns: time that no other row counts: self time on a CPU, time owned on the device's timeline on a GPU.
        min_ns: shortest call.
        p50_ns: median call (nearest rank).
        mean_ns: `sum_ns / n`.
        max_ns: longest call.
        p99_ns: 99th percentile (nearest rank); `None` below `P99_SAMPLES` calls.
    """

    region: str
    name: str
    n: int
    sum_ns: int
    exclusive_ns: int
    min_ns: int
    p50_ns: int
    mean_ns: float
    max_ns: int
    p99_ns: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTable:
    """Rows by descending exclusive time. Only `exclusive_ns` adds up over rows: to the busy time of the frame blocks."""

    kind: Literal["kernel", "operator"]
    rows: tuple[KernelRow, ...]
    exclusive_ns: int


def kernel_table(partition: Partition) -> KernelTable:
    """Tabulate the calls of the partition's frame blocks by span and name."""
    durations: dict[tuple[str, str], list[int]] = {}
    exclusive: dict[tuple[str, str], int] = {}
    for call in partition.calls:
        key = (call.label.region, call.name)
        durations.setdefault(key, []).append(call.duration_ns)
        exclusive[key] = exclusive.get(key, 0) + call.exclusive_ns
    rows = [_row(*key, sorted(calls), exclusive[key]) for key, calls in durations.items()]
    return KernelTable(
        kind="operator" if partition.device == "cpu" else "kernel",
        rows=tuple(sorted(rows, key=lambda row: (-row.exclusive_ns, row.region, row.name))),
        exclusive_ns=sum(exclusive.values()),
    )


def _row(region: str, name: str, durations: Sequence[int], exclusive_ns: int) -> KernelRow:
    n, total = len(durations), sum(durations)
    return KernelRow(
        region=region,
        name=name,
        n=n,
        sum_ns=total,
        exclusive_ns=exclusive_ns,
        min_ns=durations[0],
        p50_ns=percentile(durations, 0.5),
        mean_ns=total / n,
        max_ns=durations[-1],
        p99_ns=percentile(durations, 0.99) if n >= P99_SAMPLES else None,
    )
