"""What a list of times looks like: count, sum and the samples at fixed ranks, exactly, for one list or for many at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.intervals import Ints
from strobe.perf.measure.stats import P99_SAMPLES


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
    """Describe one list of times; `None` if it is empty."""
    if not len(values):
        return None
    (found,) = _describe(np.sort(values), np.array([0]), np.array([len(values)]))
    return found


def distributions(values: Ints, group: NDArray[np.integer], num_groups: int) -> list[Distribution | None]:
    """Describe the times of each group; `None` for a group without any.

    Args:
        values: the times.
        group: which group each belongs to, from 0 on.
        num_groups: how many groups there are.
    """
    counts = np.bincount(group, minlength=num_groups)
    held = np.flatnonzero(counts)
    found: list[Distribution | None] = [None] * num_groups
    described = _describe(values[np.lexsort((values, group))], (np.cumsum(counts) - counts)[held], counts[held])
    for at, one in zip(held.tolist(), described, strict=True):
        found[at] = one
    return found


def _describe(ranked: Ints, begin: Ints, count: Ints) -> list[Distribution]:
    """Describe stretches of `count` samples from `begin` on, each in ascending order, one after the other."""
    if not len(begin):
        return []
    columns = (
        count, np.add.reduceat(ranked, begin), ranked[begin], ranked[begin + (count + 1) // 2 - 1],
        ranked[begin + (99 * count + 99) // 100 - 1], ranked[begin + count - 1],
    )  # fmt: skip
    return [
        Distribution(n=n, sum_ns=total, min_ns=least, p50_ns=median, p99_ns=p99 if n >= P99_SAMPLES else None, max_ns=most)
        for n, total, least, median, p99, most in zip(*(column.tolist() for column in columns), strict=True)
    ]
