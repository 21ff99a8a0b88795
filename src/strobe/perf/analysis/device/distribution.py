"""Count, sum and rank statistics of times, exact, for one list or for many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.intervals import Ints
from strobe.perf.measure.stats import p99_place
from strobe.perf.trace.columns import code_for

Grouped: TypeAlias = tuple[NDArray[np.integer], NDArray[np.integer]]
"""Times, and the group of each."""
_INT32: Final = 1 << 31


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """Times of `n` calls. Every figure but the mean is a sample or a sum of samples.

    Args:
        n: number of samples.
        sum_ns: their sum.
        min_ns: the smallest.
        p50_ns: the median (nearest rank).
        p99_ns: the 99th percentile (nearest rank); `None` below `P99_SAMPLES` samples, where the largest of `n` is all that can
            be said.
        max_ns: the largest.
    """

    n: int
    sum_ns: int
    min_ns: int
    p50_ns: int
    p99_ns: int | None
    max_ns: int

    @property
    def mean_ns(self) -> float:
        """`sum_ns / n`."""
        return self.sum_ns / self.n


def distribution(values: Ints) -> Distribution | None:
    """Compute the statistics of one list of times; `None` if it is empty."""
    return distributions(values, np.zeros(len(values), np.int8), 1)[0]


def distributions(values: Ints, group: NDArray[np.integer], num_groups: int) -> list[Distribution | None]:
    """Compute the statistics of each group; `None` for an empty group.

    Args:
        values: the times.
        group: group of each time, from 0 on.
        num_groups: how many groups there are.
    """
    return grouped(lambda: iter(((values, group),)), num_groups)


def grouped(parts: Callable[[], Iterator[Grouped]], num_groups: int) -> list[Distribution | None]:
    """Compute the statistics of each group, from parts that are read twice; `None` for an empty group.

    Beside a part it needs room for every time once: 4 bytes, 8 where one of them lasts over 2 seconds.

    Args:
        parts: yields `(times, group of each)`, some at a time; it is asked twice and gives the same both times.
        num_groups: how many groups there are, numbered from 0 on.
    """
    counts, low, high = np.zeros(num_groups, np.int64), 0, 0
    for values, group in parts():
        if len(values):
            counts += np.bincount(group, minlength=num_groups)
            low, high = min(low, int(values.min())), max(high, int(values.max()))
    begin = np.cumsum(counts) - counts
    store: NDArray[np.integer] = np.empty(int(counts.sum()), np.int32 if low >= -_INT32 and high < _INT32 else np.int64)
    free = begin.copy()
    for values, group in parts():
        if num_groups == 1:
            store[free[0] : free[0] + len(values)] = values
            free += len(values)
            continue
        own = np.bincount(group, minlength=num_groups)
        order = np.argsort(group.astype(np.dtype(code_for(0, num_groups))), kind="stable")  # the fewer bytes, the faster
        store[np.arange(len(order)) + np.repeat(free - (np.cumsum(own) - own), own)] = values[order]
        free += own
    return [_describe(store[first : first + n]) if n else None for first, n in zip(begin.tolist(), counts.tolist(), strict=True)]


def _describe(samples: NDArray[np.integer]) -> Distribution:
    """Compute the statistics of some samples, which are sorted in place."""
    samples.sort()
    n, tail = len(samples), p99_place(len(samples))
    return Distribution(
        n=n,
        sum_ns=int(samples.sum(dtype=np.int64)),
        min_ns=int(samples[0]),
        p50_ns=int(samples[(n + 1) // 2 - 1]),
        p99_ns=None if tail is None else int(samples[tail]),
        max_ns=int(samples[-1]),
    )
