"""What each device did: the owner of each nanosecond, busy and idle time by kind, and causes of idle time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated as A
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from strobe.core.errors import DataError
from strobe.perf.analysis.device.intervals import (
    Intervals,
    Ints,
    Window,
    claim,
    column,
    complement,
    distribution,
    overlaps,
    reach,
    totals,
    union,
)
from strobe.perf.table.fields import count_cell
from strobe.perf.table.model import Count, ExactTime, Text
from strobe.perf.table.rows import OnDevice, col, term
from strobe.perf.trace.columns import blocks, different
from strobe.perf.trace.events import DEVICE_KINDS, DeviceEvents, Trace

# Causes of idle time: each gap between device events is split exactly by what the event after it waited for.
#
# With `h` the start of that event's launch call: `[start, h)` is `host_late` (`profiler_overhead` where the profiler held up the
# host) and `[h, end)` is `launch_latency`. A launch before the gap was `queued` (a stream dependency, a synchronisation); so was
# every graph node after the first. An event without a known launch, or no event, makes the gap `unlinked`.

HOST_LATE: Final = "host_late"
PROFILER_OVERHEAD: Final = "profiler_overhead"
LAUNCH_LATENCY: Final = "launch_latency"
QUEUED: Final = "queued"
UNLINKED: Final = "unlinked"
CAUSES: Final = (HOST_LATE, LAUNCH_LATENCY, QUEUED, PROFILER_OVERHEAD, UNLINKED)
IDLE: Final = frozenset(CAUSES)

# One accelerator of a trace: its events as columns, and the owner of each nanosecond.
#
# Events launched before the recorded window are kept like any other. Nothing here is pooled over devices. A trace may be long, so
# derived values of events are not stored: they are computed again, some events at a time, whenever they are needed.

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
        first, last = np.searchsorted(self.end, begin, "right"), np.searchsorted(self.start, stop, "left")
        start, end = np.maximum(self.start[first:last], begin), np.minimum(self.end[first:last], stop)
        return Slices(start, end, self.event[first:last], self.cause[first:last])

    @property
    def length(self) -> Ints:
        return self.end - self.start

    def between(self, first: int, last: int | None) -> Slices:
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
        return np.asarray(self.events.name)[self.rows]

    @property
    def shape(self) -> NDArray[np.integer]:
        return np.asarray(self.events.shape)[self.rows]

    @property
    def kind(self) -> NDArray[np.integer]:
        return np.asarray(self.events.kind)[self.rows]

    @property
    def start(self) -> Ints:
        return column(self.events.start_ns)[self.rows]

    @property
    def end(self) -> Ints:
        return column(self.events.end_ns)[self.rows]

    @property
    def device(self) -> NDArray[np.integer]:
        return np.asarray(self.events.device)[self.rows]

    @property
    def stream(self) -> NDArray[np.integer]:
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
            rank: rank of each event: the lowest owns the time, and among equals the one that started first.
        """
        return joined(self.tiles(trace, lambda which: rank[which], begin, stop))

    def tiles(self, trace: Trace, rank: Ranks, begin: int, stop: int) -> Iterator[Slices]:
        """Yield the result of `tile` in parts. Joined, they are the same for any size of the parts."""
        overhead = union(column(trace.overheads.start_ns), column(trace.overheads.end_ns))
        first = int(np.searchsorted(self.start, begin, "left"))
        opening = None if first else begin  # nothing ran before, so a gap there starts before any launch
        alive, left, held = self._alive(begin, first, rank), begin, joined(())
        for block in blocks(max(1, len(self) - first)):
            at, after = first + block.start, min(first + block.stop, len(self))
            right = stop if after == len(self) else min(stop, int(self.at(slice(after, after + 1)).start[0]))
            which = np.concatenate((alive, np.arange(at, after)))
            part = self.at(which)
            owned, owner = claim(np.clip(part.start, left, right), np.clip(part.end, left, right), rank(which))
            gaps = complement(owned, left, right)
            reached = right
            if right < stop and len(gaps.end) and gaps.end[-1] == right:  # what ends it comes later
                reached = int(gaps.start[-1])
                gaps = Intervals(gaps.start[:-1], gaps.end[:-1])
            slices = _continued(held, part._sliced(trace, owned, owner, gaps, overhead, opening), which)
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

    def _sliced(
        self, trace: Trace, owned: Intervals, owner: Ints, gaps: Intervals, overhead: Intervals, opening: int | None
    ) -> Slices:
        following = np.searchsorted(owned.start, gaps.end, "left")
        known = following < len(owned.start)
        waiting = np.full(len(gaps.start), NONE, np.int64)
        waiting[known] = owner[following[known]]
        host = np.where(known, self.host[waiting], NONE) if len(self) else waiting
        linked = host >= 0
        launch = np.zeros(len(gaps.start), np.int64)
        launch[linked] = column(trace.device_events.hosts.start_ns)[host[linked]]
        if len(launch) and gaps.start[0] == opening:
            launch[0] = max(launch[0], opening)
        waited = linked & (launch >= gaps.start)
        waited[known] &= self.ordinal[waiting[known]] == 0
        handed = np.where(waited, np.minimum(launch, gaps.end), gaps.start)
        late = Intervals(gaps.start, handed)
        of_held, _, held = overlaps(late, overhead)
        begin, stop = (int(gaps.start[0]), int(gaps.end[-1])) if len(gaps.start) else (0, 0)
        of_free, _, free = overlaps(late, complement(overhead, begin, stop))
        rest = np.flatnonzero(gaps.end > handed)
        host_late, latency, queued, profiler, unlinked = range(len(CAUSES))
        causes = np.repeat((BUSY, profiler, host_late), (len(owner), len(of_held), len(of_free)))
        of_rest = np.where(waited, latency, np.where(linked, queued, unlinked))
        event = np.concatenate((owner, waiting[of_held], waiting[of_free], waiting[rest]))
        start = np.concatenate((owned.start, held.start, free.start, handed[rest]))
        end = np.concatenate((owned.end, held.end, free.end, gaps.end[rest]))
        order = np.argsort(start, kind="stable")
        return Slices(start[order], end[order], event[order], np.append(causes, of_rest[rest]).astype(np.int8)[order])


def _continued(held: Slices, slices: Slices, which: Ints) -> Slices:
    """Append slices to the one that was held back; the first may continue it. They come to hold the positions `which`."""
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
        return self.end - self.start


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceView:
    """One device during a window.

    Args:
        window: the part of the trace, `None` for all of it.
        begin_ns: start of the window; without one, of the first event.
        end_ns: end of the window; without one, of the last event to end.
        work: every event of the device, also outside the window.
    """

    trace: Trace
    device: int
    window: Window | None
    begin_ns: int
    end_ns: int
    work: EventView

    @property
    def span_ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def where(self) -> dict[str, Any]:
        """Label of the trace and number of the device, as every row about it has them."""
        return {"trace": self.trace.label, "device": self.device}

    def parts(self) -> Iterator[WindowedEvents]:
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
        kinds = np.array([PRIORITY.index(name) for name in DEVICE_KINDS], np.int8)
        stop = max(int(self.work.end.max()), self.end_ns)
        for slices in self.work.tiles(self.trace, lambda which: kinds[self.work.at(which).kind], self._lead_ns(), stop):
            inside = slices.clip(self.begin_ns, self.end_ns)
            if len(inside.start):
                yield inside
            if len(slices.end) and slices.end[-1] >= self.end_ns:
                return

    @property
    def slices(self) -> Slices:
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
        return _view(self.trace, self.device, self.work, window)


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


def device_views(trace: Trace, window: Window | None = None) -> tuple[DeviceView, ...]:
    """Return each device that has events, in order of number; none for a trace of a CPU.

    Args:
        window: the part of its time to look at; the whole trace if not given.
    """
    return tuple(_view(trace, device, work, window) for device, work in events_by_device(trace))


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


def _view(trace: Trace, device: int, work: EventView, window: Window | None) -> DeviceView:
    first, last = int(work.at(slice(0, 1)).start[0]), int(work.end.max())
    begin, stop = (first, last) if window is None else (window.start_ns, window.end_ns)
    return DeviceView(trace=trace, device=device, window=window, begin_ns=begin, end_ns=stop, work=work)


# Owners of each nanosecond: slices of time get labels, are cut at tiles and are added up, exactly.
#
# A label is a place and an activity. The caller gives each event a place: the regions that were open at its launch, or
# whether it is focal or takes part in a section. The activity is the kind of the running event, or the cause of idle time. Labels
# are numbers here, so that millions of slices cost no more than columns.

ACTIVITIES: Final = (*DEVICE_KINDS, *CAUSES)
"""Activities of a device; the label of a place and an activity has the number `place * len(ACTIVITIES) + activity`."""
L = TypeVar("L", bound=Hashable)


class LabelSlices(NamedTuple):
    """Columns of slices in order that tile each tile.

    Args:
        start, end: nanoseconds.
        event: position of the event that owns the slice, `NONE` where none runs.
    """

    start: Ints
    end: Ints
    tile: Ints
    label: Ints
    event: Ints


def activity_of(work: EventView, slices: Slices) -> Ints:
    """Return the activity of each slice, as a position in `ACTIVITIES`."""
    found = len(DEVICE_KINDS) + slices.cause.astype(np.int64)
    busy = slices.cause == BUSY
    found[busy] = work.at(slices.event[busy]).kind
    return found


def label_slices(work: EventView, slices: Slices, place: Ints, tiles: Intervals) -> LabelSlices:
    """Label the slices of a device and cut them at tiles.

    Args:
        work: the events that the slices count into.
        slices: tile a stretch that holds the tiles.
        tiles: disjoint and in order; they may be empty.
    """
    owner = np.where(slices.cause == BUSY, slices.event, NONE)
    label = place * len(ACTIVITIES) + activity_of(work, slices)
    return cut_at(LabelSlices(slices.start, slices.end, np.zeros_like(owner), label, owner), tiles)


def cut_at(pieces: LabelSlices, tiles: Intervals) -> LabelSlices:
    """Cut the pieces at tiles, which are disjoint and in order; return the parts inside, each with the number of its tile."""
    piece, tile, shared = overlaps(Intervals(pieces.start, pieces.end), tiles)
    return LabelSlices(*shared, tile, pieces.label[piece], pieces.event[piece])


def sums(pieces: LabelSlices, tiles: Intervals, labels: Sequence[L], num_events: int) -> tuple[list[Counter[L]], Ints]:
    """Sum the time of each label in each tile, labels in order of first occurrence, and of each event in all tiles.

    Args:
        pieces: tile the tiles.
        num_events: number of events that the pieces count into.
    """
    length = pieces.end - pieces.start
    keys, first, inverse = np.unique(pieces.tile * len(labels) + pieces.label, return_index=True, return_inverse=True)
    total = totals(length, inverse, len(keys))
    owned: list[Counter[L]] = [Counter() for _ in tiles.start]
    for at in np.argsort(first).tolist():
        tile, label = divmod(int(keys[at]), len(labels))
        owned[tile][labels[label]] = int(total[at])
    tiled = [labelled.total() for labelled in owned]
    assert tiled == (tiles.end - tiles.start).tolist(), "a tile does not add up"
    runs = pieces.event != NONE
    return owned, totals(length[runs], pieces.event[runs], num_events)


def tile_of(moments: Ints, tiles: Intervals) -> Ints:
    """Return the number of the tile that each moment lies in; `NONE` for none."""
    if not len(tiles.start):
        return np.full(len(moments), NONE)
    place = np.searchsorted(tiles.start, moments, "right") - 1
    return np.where((place >= 0) & (moments < tiles.end[place]), place, NONE)


# Activity of each device: busy and idle time, overlap, exposed communication and copies, causes of idle time; all exact.
#
# `busy` is the union over the streams of a device, `idle = span - busy`, `overlap = sum - busy`. Exclusive times add up to
# `busy`, idle causes to `idle`. Every figure is cut to the window.


Verdict = Literal[
    "busy", "host-bound", "host late, slow launches", "launch latency", "queued", "profiler overhead", "unknown", "mixed"
]  # fmt: skip
MIN_IDLE_SHARE: Final = 0.05
"""Least idle share of the span for a verdict other than `busy`."""
MAX_PROMPT_NS: Final = 20_000
"""Longest launch delay that means an empty queue, ns."""
_VERDICTS: Final[dict[str, Verdict]] = {
    LAUNCH_LATENCY: "launch latency", QUEUED: "queued", PROFILER_OVERHEAD: "profiler overhead", UNLINKED: "unknown",
}  # fmt: skip


def verdict_cell(row: DeviceRow) -> Text:
    """Return the cell of a verdict."""
    return Text(row.verdict, "good" if row.verdict == "busy" else "bad")


class DeviceRow(OnDevice, frozen=True, kw_only=True):
    """One device; its busy and idle times add up to the span."""

    product: A[str, col("product name of the device; empty: not in the trace")]
    span_ns: A[int, col("time from the first event's start to the last one's end, or length of the window", "span", ExactTime)]
    busy_ns: A[int, col("time in which at least one event ran", "busy", ExactTime, of={"busy share": "span_ns"})]
    idle_ns: A[int, col("time in which no event ran", "idle", ExactTime)]
    sum_ns: A[int, col("sum of the durations of all events; exceeds `busy_ns` where events overlap")]
    overlap_ns: A[int, term("sum of the durations - busy time", "overlap", ExactTime)]
    exposed_communication_ns: A[int, term("communication ran, and no kernel and no memset", "exposed communication", ExactTime)]
    exposed_copies_ns: A[int, term("a copy ran and nothing else", "exposed copies", ExactTime)]
    events: A[int, col("number of device events", "events", Count)]
    unlinked_events: A[int, term("number of device events whose launch call is not in the trace", "unlinked", count_cell)]
    unlinked_ns: A[int, term("sum of the durations of these", "unlinked sum", ExactTime, where="unlinked_events")]
    verdict: A[str, term("main cause of idle time, e.g. `host-bound`; docs/traces.md explains them", "verdict", get=verdict_cell)]


class KindRow(OnDevice, frozen=True, kw_only=True):
    """Device events of one kind on one device; exclusive times add up to the busy time of the device."""

    kind: A[str, col("`kernel`, `comm` (communication), `memset` or `memcpy`", "kind")]
    events: A[int, col("number of device events", "events", Count)]
    exclusive_ns: A[int, term("time that no kind of higher priority owns", "exclusive", ExactTime, of={"of busy": "busy_ns"})]
    union_ns: A[int, term("time in which at least one event of the kind ran", "union", ExactTime)]
    sum_ns: A[int, col("sum of the durations of the events", "sum", ExactTime)]


class StreamRow(OnDevice, frozen=True, kw_only=True):
    """Device events of one stream."""

    stream: A[int, col("number of the stream", "stream", Count)]
    events: A[int, col("number of device events", "events", Count)]
    busy_ns: A[int, col("time in which at least one event of the stream ran", "busy", ExactTime)]
    sum_ns: A[int, col("sum of the durations of the events", "sum", ExactTime)]
    overlap_ns: A[int, term("sum of the durations - busy time", "overlap", ExactTime, where="overlap_pairs")]
    overlap_pairs: A[int, col("pairs of its events that ran at the same time", "pairs", Count, where="overlap_pairs")]
    longest_overlap_ns: A[int, col("longest overlap of one event with earlier ones", "longest", ExactTime, where="overlap_pairs")]


class Activity(NamedTuple):
    """Account of the time of one device during a window; only the part of its events inside is counted.

    Args:
        kinds: each kind that occurs, in order of priority.
        streams: each stream, in order of number.
        idle: idle time by cause, one for each of `CAUSES`.
        overhead: idle time with the host held up by overhead, by the overhead's name in the trace; largest first. Of several
            at a time the first to start counts.
        late_delay_ns: median time from the start of a launch call to the start on the device, of the launches that end a gap with
            the host late; `None` without such a gap. Delays of other launches tell how long the queue was, not how fast a launch
            is.
    """

    device: DeviceRow
    kinds: tuple[KindRow, ...]
    streams: tuple[StreamRow, ...]
    idle: Mapping[str, int]
    overhead: Mapping[str, int]
    late_delay_ns: int | None


def activity(view: DeviceView) -> Activity:
    """Account for the time of one device; communication is exposed where no kernel and no memset runs."""
    work = view.work if view.window is None else view.work.at(view.inside)
    kind, stream, unlinked = work.kind, work.stream, work.host < 0
    start, end = work.start, work.end
    if view.window is not None:
        start, end = (np.clip(edge, view.begin_ns, view.end_ns) for edge in (start, end))
    number_of = {name: DEVICE_KINDS.index(name) for name in PRIORITY}

    def union_ns(some: NDArray[np.bool_]) -> int:
        return union(start[some], end[some]).length_ns

    def counted(some: NDArray[np.bool_]) -> dict[str, Any]:
        return {"events": int(some.sum()), "sum_ns": int((end - start)[some].sum())}

    owned, late_delay_ns = _time_by_class(view)
    idle, busy_ns, sum_ns = {cause: owned[cause] for cause in CAUSES}, union_ns(kind >= 0), int((end - start).sum())
    no_copy_ns = union_ns(kind != number_of["memcpy"])
    device = DeviceRow(
        **view.where,
        product=view.trace.devices.get(view.device, ""),
        span_ns=view.span_ns,
        busy_ns=busy_ns,
        idle_ns=view.span_ns - busy_ns,
        sum_ns=sum_ns,
        overlap_ns=sum_ns - busy_ns,
        exposed_communication_ns=no_copy_ns - union_ns(np.isin(kind, [number_of[name] for name in ("kernel", "memset")])),
        exposed_copies_ns=busy_ns - no_copy_ns,
        events=len(work),
        unlinked_events=int(unlinked.sum()),
        unlinked_ns=int((end - start)[unlinked].sum()),
        verdict=_verdict(idle, view.span_ns, late_delay_ns),
    )
    of_kinds = tuple(
        KindRow(**view.where, kind=name, exclusive_ns=owned[name], union_ns=union_ns(some), **counted(some))
        for name, number in number_of.items()
        if (some := kind == number).any()
    )
    of_streams = []
    for number in different(stream).tolist():
        some = stream == number
        own, stream_ns = counted(some), union_ns(some)
        # kernels of one stream overlap under programmatic dependent launch and in graph branches
        begins, ends = start[some & (end > start)], end[some & (end > start)]
        later = np.searchsorted(begins, ends, "left") - np.arange(1, len(begins) + 1)
        row = StreamRow(
            **view.where, **own, stream=number, busy_ns=stream_ns, overlap_ns=own["sum_ns"] - stream_ns,
            overlap_pairs=int(later.sum()),
            longest_overlap_ns=int((np.minimum(reach(begins, ends), ends) - begins).max(initial=0)),  # of one beside earlier ones
        )  # fmt: skip
        of_streams.append(row)
    overhead = _overhead(view) if owned[PROFILER_OVERHEAD] else {}
    return Activity(device, of_kinds, tuple(of_streams), idle, overhead, late_delay_ns)


def _verdict(idle: Mapping[str, int], span_ns: int, late_delay_ns: int | None) -> Verdict:
    """Return what keeps a device from being busy.

    `busy`: idle for less than `MIN_IDLE_SHARE` of the span. Otherwise the cause of more than half of the idle time:
    `host-bound` if it is the host being late and what ends such a gap typically starts within `MAX_PROMPT_NS` of its launch;
    `host late, slow launches` if it starts later than that; `launch latency`, `queued`, `profiler overhead`, or `unknown`
    (the trace does not hold the launches). `mixed`: none has more than half.
    """
    idle_ns = sum(idle.values())
    if idle_ns < MIN_IDLE_SHARE * span_ns or not idle_ns:
        return "busy"
    cause = max(idle, key=lambda name: idle[name])
    if 2 * idle[cause] <= idle_ns:
        return "mixed"
    if cause == HOST_LATE:
        assert late_delay_ns is not None, "the host was late and nothing ended a gap"
        return "host-bound" if late_delay_ns < MAX_PROMPT_NS else "host late, slow launches"
    return _VERDICTS[cause]


def _overhead(view: DeviceView) -> dict[str, int]:
    """Return idle time with the host held up, by the overhead's name."""
    named = view.trace.overheads
    start, end, name = column(named.start_ns), column(named.end_ns), column(named.name)
    (owned, owner), total = claim(start, end, np.zeros(len(named), np.int8)), np.zeros(len(named.names), np.int64)
    for slices in view.stretches():
        held = slices.cause == CAUSES.index(PROFILER_OVERHEAD)
        _, place, found = overlaps(Intervals(slices.start[held], slices.end[held]), owned)
        np.add.at(total, name[owner[place]], found.length)
    took = {text: ns for text, ns in zip(named.names, total.tolist(), strict=True) if ns}
    return dict(sorted(took.items(), key=lambda item: (-item[1], item[0])))


def _time_by_class(view: DeviceView) -> tuple[dict[str, int], int | None]:
    """Return the time of each class, and the median launch delay after gaps in which the host was late."""
    total = np.zeros(len(ACTIVITIES), np.int64)
    begin, delays, last = column(view.trace.device_events.hosts.start_ns), list[Ints](), NONE
    for slices in view.stretches():
        np.add.at(total, activity_of(view.work, slices), slices.length)
        late = slices.event[slices.cause == CAUSES.index(HOST_LATE)]
        late = late[np.diff(late, prepend=last) != 0]  # overhead may split a gap
        if len(late):
            work, last = view.work.at(late), int(late[-1])
            delays.append(work.start - begin[work.host])
    found = distribution(np.concatenate(delays)) if delays else None
    return dict(zip(ACTIVITIES, total.tolist(), strict=True)), None if found is None else found.p50_ns


def idle_strip(
    views: Sequence[DeviceView], num_bins: int
) -> tuple[bool, tuple[int, ...], tuple[tuple[tuple[int, ...], ...], ...]]:
    """Bin the time of each device by activity.

    The lanes share the clock (`Trace.base_ns` added) if all windows have a moment in common; otherwise each starts at 0.

    Args:
        views: at least one, none of length 0.
        num_bins: bins of the strip, fewer if it is shorter than that in nanoseconds.

    Returns:
        Whether the lanes share a clock; bounds of the bins from the strip's start, ns, whose lengths differ by 1 ns at most; and
        of each device its time in ns by activity (a row for each of `ACTIVITIES`) and by bin: a bin inside the device's window
        adds up to its own length.
    """
    starts = [view.trace.base_ns + view.begin_ns for view in views]
    ends = [view.trace.base_ns + view.end_ns for view in views]
    aligned = max(starts) < min(ends)
    length = max(ends) - min(starts) if aligned else max(view.span_ns for view in views)
    num_bins = min(num_bins, length)
    edges = [length * i // num_bins for i in range(num_bins + 1)]
    lanes = []
    for view, start in zip(views, starts, strict=True):
        origin = view.begin_ns - (start - min(starts) if aligned else 0)
        bounds = np.array(edges, np.int64) + origin
        ns = np.zeros((len(ACTIVITIES), num_bins), np.int64)
        for slices in view.stretches():
            piece, bin_, found = overlaps(Intervals(slices.start, slices.end), Intervals(bounds[:-1], bounds[1:]))
            np.add.at(ns.reshape(-1), activity_of(view.work, slices)[piece] * num_bins + bin_, found.length)
        lanes.append(tuple(map(tuple, ns.tolist())))
    return aligned, tuple(edges), tuple(lanes)
