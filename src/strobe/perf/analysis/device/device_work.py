"""One accelerator of a trace: its events as columns, and the owner of each nanosecond.

Events launched before the recorded window are kept like any other. Nothing here is pooled over devices. A trace may be long, so
derived values of events are not stored: they are computed again, some events at a time, whenever they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strobe.core.errors import ConfigError, DataError
from strobe.perf.analysis.device.idle import overhead_intervals, split_gaps
from strobe.perf.analysis.device.intervals import Intervals, Ints, Owned, claim, column, complement
from strobe.perf.analysis.window import Window
from strobe.perf.trace.columns import blocks, different
from strobe.perf.trace.events import DEVICE_KINDS, DeviceEvents, Trace

PRIORITY: Final = ("kernel", "memset", "comm", "memcpy")
"""Kinds in the order in which they own time where events overlap."""
BUSY: Final = -1
"""Value of `Slices.cause` for a slice that an event owns."""
NONE: Final = -1
_LIMIT_NS: Final = float(1 << 62)
Ranks: TypeAlias = Callable[[NDArray[np.integer]], NDArray[np.integer]]
"""Function from positions of a device's events to their ranks: the lowest owns the time where they overlap."""


class Slices(NamedTuple):
    """A stretch of a device's time, tiled in order.

    `cause` is `BUSY` where the event at position `event` owns the slice. Elsewhere it is a position in `idle.CAUSES`, and
    `event` is the one that ends the gap, `NONE` if none does.
    """

    start: Ints
    end: Ints
    event: Ints
    cause: NDArray[np.int8]

    def clip(self, begin: int, stop: int) -> Slices:
        """Return the part in `[begin, stop)`."""
        first, last = np.searchsorted(self.end, begin, "right"), np.searchsorted(self.start, stop, "left")
        start, end = np.maximum(self.start[first:last], begin), np.minimum(self.end[first:last], stop)
        return Slices(start, end, self.event[first:last], self.cause[first:last])

    @property
    def length(self) -> Ints:
        """Nanoseconds of each slice."""
        return self.end - self.start

    def between(self, first: int, last: int | None) -> Slices:
        """Return the slices between two positions."""
        return Slices(self.start[first:last], self.end[first:last], self.event[first:last], self.cause[first:last])


def joined(parts: Iterable[Slices]) -> Slices:
    """Concatenate slices."""
    found = list(parts)
    empty = np.empty(0, np.int64)
    if not found:
        return Slices(empty, empty, empty, np.empty(0, np.int8))
    return Slices(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


@dataclass(frozen=True, kw_only=True, slots=True)
class EventView:
    """Events of one device, in order of start. A column is looked up when asked for, without a copy if the rows are a slice.

    Args:
        events: the device events of a trace.
        rows: rows of these events, in ascending order.
    """

    events: DeviceEvents
    rows: slice | NDArray[np.int32]

    def __len__(self) -> int:
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else len(self.rows)

    def at(self, which: slice | NDArray[np.integer]) -> EventView:
        """Return some of these events: a slice with both bounds, or ascending positions."""
        if not isinstance(self.rows, slice):
            return EventView(events=self.events, rows=self.rows[which])
        first = self.rows.start
        rows = slice(first + which.start, first + which.stop) if isinstance(which, slice) else (which + first).astype(np.int32)
        return EventView(events=self.events, rows=rows)

    def parts(self) -> Iterator[tuple[int, EventView]]:
        """Yield these events in parts, each with the position of its first event."""
        return ((block.start, self.at(block)) for block in blocks(len(self)))

    @property
    def position(self) -> Ints:
        """Position of each event among the trace's device events."""
        rows = self.rows
        return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.astype(np.int64)

    @property
    def name(self) -> NDArray[np.integer]:
        """Position in the trace's names of device events."""
        return np.asarray(self.events.name)[self.rows]

    @property
    def shape(self) -> NDArray[np.integer]:
        """Position in the trace's shapes of device events."""
        return np.asarray(self.events.shape)[self.rows]

    @property
    def kind(self) -> NDArray[np.integer]:
        """Position in `DEVICE_KINDS`."""
        return np.asarray(self.events.kind)[self.rows]

    @property
    def start(self) -> Ints:
        """Start of each event, ns."""
        return column(self.events.start_ns)[self.rows]

    @property
    def end(self) -> Ints:
        """End of each event, ns."""
        return column(self.events.end_ns)[self.rows]

    @property
    def device(self) -> NDArray[np.integer]:
        """Number of the device."""
        return np.asarray(self.events.device)[self.rows]

    @property
    def stream(self) -> NDArray[np.integer]:
        """Number of the stream."""
        return np.asarray(self.events.stream)[self.rows]

    @property
    def ordinal(self) -> NDArray[np.integer]:
        """Number among the events of the same launch call."""
        return np.asarray(self.events.ordinal)[self.rows]

    @property
    def host(self) -> NDArray[np.int32]:
        """Position of the launch call, negative where it is not known."""
        return np.asarray(self.events.host)[self.rows]

    def tile(self, trace: Trace, rank: NDArray[np.integer], begin: int, stop: int) -> Slices:
        """Tile `[begin, stop)`: overlapping events by rank, gaps by what the event after them waited for.

        Args:
            trace: where the events are from.
            rank: rank of each event: the lowest owns the time, and among equals the one that started first.
            begin: start of the stretch.
            stop: end of the stretch.
        """
        return joined(self.tiles(trace, lambda which: rank[which], begin, stop))

    def tiles(self, trace: Trace, rank: Ranks, begin: int, stop: int) -> Iterator[Slices]:
        """Yield the result of `tile` in parts. Joined, they are the same for any size of the parts."""
        overhead = overhead_intervals(trace.overhead)
        first = int(np.searchsorted(self.start, begin, "left"))
        opening = None if first else begin  # nothing ran before, so a gap there starts before any launch
        alive, left, held = self._alive(begin, first, rank), begin, joined(())
        for block in blocks(max(1, len(self) - first)):
            at, after = first + block.start, min(first + block.stop, len(self))
            right = stop if after == len(self) else min(stop, int(self.at(slice(after, after + 1)).start[0]))
            which = np.concatenate((alive, np.arange(at, after)))
            part = self.at(which)
            owned = claim(np.clip(part.start, left, right), np.clip(part.end, left, right), rank(which))
            gaps = complement(Intervals(owned.start, owned.end), left, right)
            reached = right
            if right < stop and len(gaps.end) and gaps.end[-1] == right:  # what ends it comes later
                reached = int(gaps.start[-1])
                gaps = Intervals(gaps.start[:-1], gaps.end[:-1])
            slices = _continued(held, part._sliced(trace, owned, gaps, overhead, opening), which)
            if right == stop:
                yield slices
                return
            held = slices.between(max(0, len(slices.start) - 1), None)  # the next part may go on with it
            yield slices.between(0, max(0, len(slices.start) - 1))
            alive, left = _outlasting(which, part.end, rank(which), right), reached

    def _alive(self, moment: int, before: int, rank: Ranks) -> Ints:
        """Return the positions of the events before one position that run beyond a moment."""
        found = [block.start + np.flatnonzero(self.at(block).end > moment) for block in blocks(before)]
        which = np.concatenate(found) if found else np.empty(0, np.int64)
        return _outlasting(which, self.at(which).end, rank(which), moment)

    def _sliced(self, trace: Trace, owned: Owned, gaps: Intervals, overhead: Intervals, opening: int | None) -> Slices:
        following = np.searchsorted(owned.start, gaps.end, "left")
        known = following < len(owned.start)
        waiting = np.full(len(gaps.start), NONE, np.int64)
        waiting[known] = owned.owner[following[known]]
        host = np.where(known, self.host[waiting], NONE) if len(self) else waiting
        linked = host >= 0
        launch = np.zeros(len(gaps.start), np.int64)
        launch[linked] = column(trace.device_events.hosts.start_ns)[host[linked]]
        if len(launch) and gaps.start[0] == opening:
            launch[0] = max(launch[0], opening)
        first = np.zeros(len(gaps.start), np.bool_)
        first[known] = self.ordinal[waiting[known]] == 0
        pieces = split_gaps(gaps, launch, linked, first, overhead)
        start = np.concatenate((owned.start, pieces.start))
        order = np.argsort(start, kind="stable")
        end = np.concatenate((owned.end, pieces.end))[order]
        event = np.concatenate((owned.owner, waiting[pieces.gap]))[order]
        cause = np.concatenate((np.full(len(owned.start), BUSY, np.int8), pieces.cause))[order]
        return Slices(start[order], end, event, cause)


def _continued(held: Slices, slices: Slices, which: Ints) -> Slices:
    """Append slices to the one that was held back; the first of them may continue it.

    Args:
        which: positions of the events that `slices` counts into; afterwards it holds these positions.
    """
    known = slices.event != NONE
    slices.event[known] = which[slices.event[known]]
    if not len(held.start):
        return slices
    if len(slices.start) and held.cause[0] == slices.cause[0] == BUSY and held.event[0] == slices.event[0]:
        slices.start[0] = held.start[0]
        return slices
    return joined((held, slices))


def _outlasting(which: Ints, end: Ints, rank: NDArray[np.integer], moment: int) -> Ints:
    """Return the events that may own time after a moment: of equal rank, only those that end after every earlier one."""
    kept = []
    for level in different(rank).tolist():
        own = np.flatnonzero((rank == level) & (end > moment))
        kept.append(own[end[own] > np.maximum(moment, np.maximum.accumulate(np.append(moment, end[own]))[:-1])])
    return which[np.sort(np.concatenate(kept))] if kept else which[:0]


class WindowedEvents(NamedTuple):
    """Some events of a device that overlap a window: `which` are positions among the device's events; times are cut to it."""

    which: Ints
    work: EventView
    start: Ints
    end: Ints

    @property
    def length(self) -> Ints:
        """Length of each event, ns."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceView:
    """One device during a window.

    Args:
        trace: where the events are from.
        device: its number.
        priority: kinds in the order in which they own time where several overlap.
        window: the part of the trace, `None` for all of it.
        begin_ns: start of the window; without one, of the first event.
        end_ns: end of the window; without one, of the last event to end.
        work: every event of the device, also outside the window.
    """

    trace: Trace
    device: int
    priority: tuple[str, ...]
    window: Window | None
    begin_ns: int
    end_ns: int
    work: EventView

    @property
    def span_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.begin_ns

    def parts(self) -> Iterator[WindowedEvents]:
        """Yield the events that overlap the window, in parts."""
        return windowed_events(self.work, self.window)

    @property
    def inside(self) -> Ints:
        """Positions in `work` of the events that overlap the window."""
        return np.concatenate([part.which for part in self.parts()])

    @property
    def num_cut(self) -> int:
        """Events inside that reach beyond the window."""
        begin, stop = self.begin_ns, self.end_ns
        return sum(int(((part.work.start < begin) | (part.work.end > stop)).sum()) for part in self.parts())

    def stretches(self) -> Iterator[Slices]:
        """Tile `[begin_ns, end_ns)`, some slices at a time; `event` counts into `work`.

        A gap that the window cuts is judged as the whole gap is.
        """
        kinds = np.array([self.priority.index(name) for name in DEVICE_KINDS], np.int8)
        stop = max(int(self.work.end.max()), self.end_ns)
        for slices in self.work.tiles(self.trace, lambda which: kinds[self.work.at(which).kind], self._lead_ns(), stop):
            inside = slices.clip(self.begin_ns, self.end_ns)
            if len(inside.start):
                yield inside
            if len(slices.end) and slices.end[-1] >= self.end_ns:
                return

    @property
    def slices(self) -> Slices:
        """All slices of the window."""
        return joined(self.stretches())

    def _lead_ns(self) -> int:
        """Return a moment not after the window's start, such that no earlier gap is still open there."""
        first = int(self.work.at(slice(0, 1)).start[0])
        before = int(np.searchsorted(self.work.start, self.begin_ns, "right"))
        for block in reversed(list(blocks(before))):
            part = self.work.at(block)
            some = np.flatnonzero(part.end > part.start)
            if len(some):
                return int(part.start[some[-1]])
        return min(first, self.begin_ns)

    def within(self, window: Window) -> DeviceView:
        """Return the same device during another window of the trace."""
        return _view(self.trace, self.device, self.work, self.priority, window)


def windowed_events(work: EventView, window: Window | None) -> Iterator[WindowedEvents]:
    """Yield the events of a device that overlap a window, in parts; without a window all; empty ones count at their start."""
    for at, part in work.parts():
        start, end = part.start, part.end
        if window is None:
            yield WindowedEvents(np.arange(at, at + len(part)), part, start, end)
            continue
        left, right = window.start_ns, window.end_ns
        inside = np.flatnonzero((start < right) & ((end > left) | (start == end) & (start >= left)))
        yield WindowedEvents(at + inside, part.at(inside), np.maximum(start[inside], left), np.minimum(end[inside], right))


def device_views(trace: Trace, window: Window | None = None, *, priority: Sequence[str] = PRIORITY) -> tuple[DeviceView, ...]:
    """Return each device that has events, in order of number; none for a trace of a CPU.

    Args:
        trace: the trace.
        window: the part of its time to look at; the whole trace if not given.
        priority: kinds in the order in which they own time where several overlap: all of `DEVICE_KINDS`.

    Raises:
        ConfigError: a priority that does not name each kind once.
        DataError: times whose sum does not fit 64 bits.
    """
    if sorted(priority) != sorted(DEVICE_KINDS):
        raise ConfigError(f"priority {', '.join(priority)}: name each of {', '.join(PRIORITY)} once")
    return tuple(_view(trace, device, work, tuple(priority), window) for device, work in events_by_device(trace))


def all_events(trace: Trace) -> EventView:
    """Return the events of all devices."""
    return EventView(events=trace.device_events, rows=slice(0, len(trace.device_events)))


def events_by_device(trace: Trace) -> Iterator[tuple[int, EventView]]:
    """Yield the number and the events of each device, in order of number.

    Raises:
        DataError: times whose sum does not fit 64 bits.
    """
    events, everything = trace.device_events, all_events(trace)
    of_device = np.asarray(events.device)
    if len(events):
        reach_ns = float(everything.end.max()) - float(everything.start[0])
        sum_ns = sum(np.subtract(part.end, part.start, dtype=np.float64).sum() for _, part in everything.parts())
        if max(reach_ns, sum_ns) >= _LIMIT_NS:
            raise DataError(f"{trace.path}: its times reach over more than 146 years; they are not in microseconds")
    devices = different(of_device)
    if len(devices) == 1:
        yield int(devices[0]), everything
        return
    order = np.argsort(of_device, kind="stable").astype(np.int32)
    bounds = np.append(np.searchsorted(of_device[order], devices), len(order)).tolist()
    for device, (start, stop) in zip(devices.tolist(), pairwise(bounds), strict=True):
        yield device, EventView(events=events, rows=order[start:stop])


def _view(trace: Trace, device: int, work: EventView, priority: tuple[str, ...], window: Window | None) -> DeviceView:
    first, last = int(work.at(slice(0, 1)).start[0]), int(work.end.max())
    begin, stop = (first, last) if window is None else (window.start_ns, window.end_ns)
    return DeviceView(
        trace=trace, device=device, priority=priority, window=window, begin_ns=begin, end_ns=stop, work=work
    )  # fmt: skip
