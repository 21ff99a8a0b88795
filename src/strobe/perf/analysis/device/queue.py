"""Queue length of a device: events whose launch call has started and that have not started themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.device_work import DeviceView, EventView
from strobe.perf.analysis.device.intervals import Ints, totals
from strobe.perf.trace import columns

LENGTHS: Final = ((0, 0), (1, 3), (4, 31), (32, None))
"""Bins of queue length for plots: shortest and longest length of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    """Queue of one stream, or of a whole device.

    Args:
        stream: its number; `None` for all streams of the device together.
        queued: events that waited in it during the window; one that starts with its call or before it never does.
        unlinked: events whose launch call is not known; they are not counted.
        span_ns: length of the window.
        empty_ns: time with a length of 0.
        longest: the largest length.
        median: the length that it has for half of the time at most.
        total_ns: sum of the times that events waited within the window, which is also the length added up over time.
        edges_ns: bins of equal length, from the start of the window.
        lengths_ns: for each of `LENGTHS`, the time in each bin.
    """

    stream: int | None
    queued: int
    unlinked: int
    span_ns: int
    empty_ns: int
    longest: int
    median: int
    total_ns: int
    edges_ns: tuple[int, ...]
    lengths_ns: tuple[tuple[int, ...], ...]

    @property
    def mean(self) -> float:
        """Mean length over time."""
        return self.total_ns / self.span_ns if self.span_ns else 0.0


def queues(view: DeviceView, num_bins: int = 1) -> tuple[Queue, ...]:
    """Return the queue of a device and, if it has several streams, of each stream by number.

    Args:
        view: the device during a window.
        num_bins: bins of `lengths_ns`.
    """
    streams = np.unique(view.work.stream).tolist()
    chosen: list[int | None] = [None, *streams] if len(streams) > 1 else [None]
    return tuple(_queue(view, stream, num_bins) for stream in chosen)


def _queue(view: DeviceView, stream: int | None, num_bins: int) -> Queue:
    waits = _Waits(view, stream)
    edges = view.begin_ns + np.arange(num_bins + 1) * view.span_ns // num_bins
    binned = np.zeros((len(LENGTHS), num_bins), np.int64)
    spent: dict[int, int] = defaultdict(int)
    for moments, stop, lengths in waits.stretches():
        took = np.diff(np.append(moments, stop))
        some, which = np.unique(lengths, return_inverse=True)
        for length, ns in zip(some.tolist(), totals(took, which, len(some)).tolist(), strict=True):
            spent[length] += ns
        for place, bounds in enumerate(LENGTHS):
            binned[place] += _binned(moments, took, _within(lengths, *bounds), np.clip(edges, moments[0], stop))
    there = sorted((length, ns) for length, ns in spent.items() if ns)
    return Queue(
        stream=stream,
        queued=waits.num,
        unlinked=waits.unlinked,
        span_ns=view.span_ns,
        empty_ns=spent[0],
        longest=there[-1][0] if there else 0,
        median=_median(there),
        total_ns=waits.total_ns,
        edges_ns=tuple((edges - view.begin_ns).tolist()),
        lengths_ns=tuple(tuple(own.tolist()) for own in binned),
    )


class _Waits:
    """The events that waited in a queue: 4 bytes for each event of the device.

    Args:
        view: the device during a window.
        stream: the queue of this stream; `None` for all.
    """

    def __init__(self, view: DeviceView, stream: int | None) -> None:
        self._view, self._stream = view, stream
        self._calls = np.asarray(view.trace.device_events.hosts.start_ns)
        self.unlinked = self.total_ns = self.num = 0
        hosts = np.empty(len(view.work), np.int32)
        for _, part in view.work.parts():
            host, left, right = self._waited(part)
            hosts[self.num : self.num + len(host)] = host
            self.num += len(host)
            self.total_ns += int((right - left).sum())
            self.unlinked += self._num_unlinked(part)
        self._hosts = hosts[: self.num]
        self._hosts.sort()  # calls that were read are in order of start
        if (np.diff(self._calls) < 0).any():
            self._hosts = self._hosts[np.argsort(self._calls[self._hosts], kind="stable")]

    def _waited(self, part: EventView) -> tuple[NDArray[np.int32], Ints, Ints]:
        """Select the events that waited in the window; return their calls and the start and end of each wait."""
        known = part.host >= 0 if self._stream is None else (part.host >= 0) & (part.stream == self._stream)
        host = part.host[known]
        left, right = self._called(host), np.minimum(part.start[known], self._view.end_ns)
        waited = left < right
        return host[waited], left[waited], right[waited]

    def _num_unlinked(self, part: EventView) -> int:
        inside = (part.host < 0) & (part.start < self._view.end_ns) & (part.end > self._view.begin_ns)
        return int(inside.sum() if self._stream is None else (inside & (part.stream == self._stream)).sum())

    def _called(self, host: NDArray[np.int32]) -> Ints:
        called: Ints = np.maximum(self._calls[host], self._view.begin_ns)
        return called

    def _started(self) -> Iterator[Ints]:
        """Yield the ends of the waits, in order, in parts."""
        for _, part in self._view.work.parts():
            _, _, right = self._waited(part)
            if len(right):
                yield right

    def stretches(self) -> Iterator[tuple[Ints, int, Ints]]:
        """Yield the moments at which the queue changes, in parts, the end of the last one, and the length from each on."""
        now, length, i, none = self._view.begin_ns, 0, 0, np.empty(0, np.int64)
        following = self._started()
        started = next(following, none)
        while i < self.num or len(started):
            called = self._called(self._hosts[i : i + columns.BLOCK])
            limits = [int(called[-1])] if i + len(called) < self.num else []
            limits += [int(started[-1])] if len(started) else []  # others may follow either
            stop = min(limits) if limits else int(called[-1])
            more = int(np.searchsorted(called, stop, "right")), int(np.searchsorted(started, stop, "right"))
            moments = np.concatenate((np.array([now]), called[: more[0]], started[: more[1]]))
            change = np.repeat(np.array([0, 1, -1]), (1, *more))
            order = np.argsort(moments, kind="stable")
            lengths = length + np.cumsum(change[order])
            yield moments[order], stop, lengths
            now, length, i, started = stop, int(lengths[-1]), i + more[0], started[more[1] :]
            if not len(started):
                started = next(following, none)
        yield np.array([now]), self._view.end_ns, np.array([length])


def _median(spent: Sequence[tuple[int, int]]) -> int:
    """Return the smallest length that the queue does not exceed for half of the time."""
    whole, reached = sum(ns for _, ns in spent), 0
    for length, ns in spent:
        reached += ns
        if 2 * reached >= whole:
            return length
    return 0


def _within(lengths: Ints, low: int, high: int | None) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = lengths >= low
    return found if high is None else found & (lengths <= high)


def _binned(moments: Ints, took: Ints, chosen: NDArray[np.bool_], edges: Ints) -> Ints:
    """Return the time of the chosen steps in each bin between two edges."""
    own = np.where(chosen, took, 0)
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(own)))
    step = np.searchsorted(moments, edges, "right") - 1
    reached: Ints = before[step] + np.where(chosen[step], np.minimum(edges - moments[step], own[step]), 0)
    return np.diff(reached)
