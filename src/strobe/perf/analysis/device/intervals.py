"""Windows, sets of half-open intervals as columns, and exact rank statistics of times."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strobe.perf.measure.stats import p99_place
from strobe.perf.trace.columns import code_for, different
from strobe.perf.trace.events import HostEvents

# Window: a stretch of a device's time.


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The time `[start_ns, end_ns)` of a device, or of the host in a trace without device events, in the trace's own nanoseconds.

    `label` says how it was chosen.
    """

    start_ns: int
    end_ns: int
    label: str


# Sets of half-open intervals as columns: union, complement, overlap and ownership, exact, without a loop over the intervals.

Ints: TypeAlias = NDArray[np.int64]


class Intervals(NamedTuple):
    """Columns of `[start, end)`."""

    start: Ints
    end: Ints

    @property
    def length(self) -> Ints:
        return self.end - self.start

    @property
    def length_ns(self) -> int:
        return int(self.length.sum())


def intervals_of(pairs: Iterable[tuple[int, int]]) -> Intervals:
    """Return intervals as columns."""
    columns = np.array(list(pairs), np.int64).reshape(-1, 2)
    return Intervals(columns[:, 0], columns[:, 1])


def column(values: array[int]) -> Ints:
    """Return a column of a trace as 64-bit integers, without a copy if it has that type.

    The type of an array of `q` is not quite `int64`: to a function that only knows `int64`, numpy hands it value by value.
    """
    given = np.asarray(values)
    return given.view(np.int64) if values.typecode == "q" else given.astype(np.int64)


def marked(events: HostEvents, test: Callable[[str], object]) -> NDArray[np.bool_]:
    """Mark the events whose name passes a test."""
    found: NDArray[np.bool_] = np.array([bool(test(name)) for name in events.names] or [False])[np.asarray(events.name)]
    return found


def reach(start: Ints, end: Ints) -> Ints:
    """Return the latest end before each interval, in order of start; for the first one, its own start."""
    before = np.empty_like(end)
    if len(end):
        before[0] = start[0]
        np.maximum.accumulate(end[:-1], out=before[1:])
    return before


@dataclass(kw_only=True, slots=True)
class Covered:
    """Intervals that arrive in parts, in order of start: their number, the sum of their lengths, and the length of their union.

    `reached_ns` is where the union ends so far.
    """

    n: int = 0
    sum_ns: int = 0
    total_ns: int = 0
    reached_ns: int | None = None

    def add(self, start: Ints, end: Ints) -> Intervals:
        """Return the part of each interval that no earlier one covers; if there is none, its end is not after its start."""
        if not len(start):
            return Intervals(start, end)
        reached = reach(start, end)
        if self.reached_ns is not None:
            reached = np.maximum(reached, self.reached_ns)
        fresh = np.minimum(np.maximum(start, reached), end)
        self.n += len(start)
        self.sum_ns += int((end - start).sum())
        self.total_ns += int((end - fresh).sum())
        self.reached_ns = max(int(reached[-1]), int(end[-1]))
        return Intervals(fresh, end)


def union(start: Ints, end: Ints) -> Intervals:
    """Return the union of intervals in order of start: disjoint, in order, none empty, none touching."""
    some = end > start
    start, end = start[some], end[some]
    if not len(start):
        return Intervals(start, end)
    fresh = start > reach(start, end)
    fresh[0] = True
    first = np.flatnonzero(fresh)
    return Intervals(start[first], np.maximum.reduceat(end, first))


def complement(covered: Intervals, begin: int, stop: int) -> Intervals:
    """Return the moments of `[begin, stop)` outside disjoint intervals in order."""
    held = covered.end > covered.start
    start = np.concatenate((np.array([begin], np.int64), covered.end[held]))
    end = np.concatenate((covered.start[held], np.array([stop], np.int64)))
    start, end = np.maximum(start, begin), np.minimum(end, stop)
    some = end > start
    return Intervals(start[some], end[some])


def overlaps(a: Intervals, b: Intervals) -> tuple[Ints, Ints, Intervals]:
    """Return every overlap of an interval of `a` with one of `b`, in order of `a`; those of `b` are disjoint and in order.

    It has positions in both, and the shared interval.
    """
    first = np.searchsorted(b.end, a.start, "right")
    count = np.maximum(np.searchsorted(b.start, a.end, "left") - first, 0)
    of_a = np.repeat(np.arange(len(count)), count)
    of_b = np.arange(len(of_a)) + np.repeat(first - (np.cumsum(count) - count), count)
    start, end = np.maximum(a.start[of_a], b.start[of_b]), np.minimum(a.end[of_a], b.end[of_b])
    some = end > start
    return of_a[some], of_b[some], Intervals(start[some], end[some])


def claim(start: Ints, end: Ints, rank: NDArray[np.integer]) -> tuple[Intervals, Ints]:
    """Assign every covered moment to one event: the lowest rank, and among equal ranks the first.

    Args:
        start: start of each event, ascending.
        end: end of each event; an event of length 0 owns nothing.
        rank: rank of each event; few different values.

    Returns:
        Disjoint intervals in order, which add up to the union, and the position of the event that owns each.
    """
    owned: list[tuple[Ints, Ints, Ints]] = []
    taken = Intervals(start[:0], end[:0])
    for level in different(rank).tolist():
        event = np.flatnonzero((rank == level) & (end > start))
        # of equals, the first still open owns: an event owns what those before it do not reach
        free = np.maximum(start[event], reach(start[event], end[event]))
        some = end[event] > free
        event, own = event[some], Intervals(free[some], end[event][some])
        if len(taken.start) and len(event):
            outside = complement(taken, int(own.start[0]), int(own.end[-1]))
            place, _, own = overlaps(own, outside)
            event = event[place]
        owned.append((own.start, own.end, event))
        edges = np.concatenate((taken.start, own.start)), np.concatenate((taken.end, own.end))
        order = np.argsort(edges[0], kind="stable")
        taken = union(edges[0][order], edges[1][order])
    if not owned:
        return taken, start[:0]
    columns = [np.concatenate(column) for column in zip(*owned, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return Intervals(columns[0][order], columns[1][order]), columns[2][order]


def totals(values: Ints, group: Ints, num_groups: int) -> Ints:
    """Sum the values of each group."""
    total = np.zeros(num_groups, np.int64)
    np.add.at(total, group, values)
    return total


# Count, sum and rank statistics of times, exact, for one list or for many at once.


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """Times of `n` calls. Every figure but the mean is a sample or a sum of samples.

    Args:
        p50_ns: the median (nearest rank).
        p99_ns: the 99th percentile (nearest rank); `None` below `P99_SAMPLES` samples, where the largest of `n` is all that can
            be said.
    """

    n: int
    sum_ns: int
    min_ns: int
    p50_ns: int
    p99_ns: int | None
    max_ns: int

    @property
    def mean_ns(self) -> float:
        return self.sum_ns / self.n


def distribution(values: Ints) -> Distribution | None:
    """Compute the statistics of one list of times; `None` if it is empty."""
    return distributions(values, np.zeros(len(values), np.int8), 1)[0]


def distributions(values: Ints, group: NDArray[np.integer], num_groups: int) -> list[Distribution | None]:
    """Compute the statistics of each group; `None` for an empty group.

    Args:
        group: group of each time, from 0 on.
    """
    order = np.argsort(group.astype(np.dtype(code_for(0, num_groups))), kind="stable")  # the fewer bytes, the faster
    ends = np.cumsum(np.bincount(group, minlength=num_groups)) if len(group) else np.zeros(num_groups, np.int64)
    return [_describe(own) if len(own) else None for own in np.split(values[order], ends[:-1])[:num_groups]]


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
