"""Activity of each device: busy and idle time, overlap, exposed communication and copies, causes of idle time; all exact.

`busy` is the union over the streams of a device, `idle = span - busy`, `overlap = sum - busy`. Exclusive times add up to `busy`,
idle causes to `idle`. Every figure is cut to the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strobe.perf.analysis.device.device_work import BUSY, NONE, DeviceView, Slices, WindowedEvents
from strobe.perf.analysis.device.distribution import distribution
from strobe.perf.analysis.device.idle import CAUSES, HOST_LATE, PROFILER_OVERHEAD
from strobe.perf.analysis.device.intervals import Covered, Intervals, Ints, claim, column, overlaps, reach
from strobe.perf.trace.columns import different
from strobe.perf.trace.events import DEVICE_KINDS

CLASSES: Final = (*DEVICE_KINDS, *CAUSES)
"""Classes of a device's moments: the kind of the event that owns it, or the cause of idle time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KindTime:
    """Events of one kind: count, sum, union, exclusive time.

    Args:
        kind: one of `DEVICE_KINDS`.
        n: number of events.
        sum_ns: sum of their durations.
        union_ns: time in which at least one of them ran.
        exclusive_ns: the part of it that no kind before it in the priority owns.
    """

    kind: str
    n: int
    sum_ns: int
    union_ns: int
    exclusive_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamTime:
    """Events of one stream. Kernels of one stream overlap under programmatic dependent launch and in graph branches.

    Args:
        stream: its number.
        n: number of events.
        sum_ns: sum of their durations.
        busy_ns: time in which at least one of them ran.
        overlap_pairs: pairs of its events that ran at the same time.
        longest_overlap_ns: the longest that an event ran while one that started before it did.
    """

    stream: int
    n: int
    sum_ns: int
    busy_ns: int
    overlap_pairs: int
    longest_overlap_ns: int

    @property
    def overlap_ns(self) -> int:
        """Sum of the durations minus the busy time, ns."""
        return self.sum_ns - self.busy_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """Account of the time of one device during a window.

    Args:
        device: its number.
        begin_ns: start of the window; without one, of the first event.
        end_ns: end of the window; without one, of the last event to end.
        n: number of events that overlap the window.
        num_cut: of these, how many reach beyond it; only their part inside is counted.
        sum_ns: sum of durations over all streams.
        busy_ns: time in which at least one event ran.
        kinds: one for each kind that occurs, in order of priority.
        streams: in order of number.
        idle: time by cause, one for each of `idle.CAUSES`.
        overhead: idle time with the host held up by overhead, by the overhead's name in the trace; largest first. Of several
            at a time the first to start counts.
        num_unlinked: events without a known launch call.
        unlinked_ns: sum of their durations.
        exposed_comm_ns: time in which communication ran and neither a kernel nor a memset did, whatever the priority.
        exposed_memcpy_ns: time in which a copy ran and nothing else did, whatever the priority.
        late_delay_ns: median time from the start of a launch call to the start on the device, of the launches that end a gap with
            the host late; `None` without such a gap.
    """

    device: int
    begin_ns: int
    end_ns: int
    n: int
    num_cut: int
    sum_ns: int
    busy_ns: int
    kinds: tuple[KindTime, ...]
    streams: tuple[StreamTime, ...]
    idle: Mapping[str, int]
    overhead: Mapping[str, int]
    num_unlinked: int
    unlinked_ns: int
    exposed_comm_ns: int
    exposed_memcpy_ns: int
    late_delay_ns: int | None

    @property
    def span_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.begin_ns

    @property
    def idle_ns(self) -> int:
        """Time in which no event ran, ns."""
        return self.span_ns - self.busy_ns

    @property
    def overlap_ns(self) -> int:
        """Sum of the durations minus the busy time, ns."""
        return self.sum_ns - self.busy_ns


def activity(view: DeviceView) -> Activity:
    """Account for the time of one device."""
    kinds, tally = {name: _Tally() for name in view.priority}, _Tally()
    compute, no_copy, unlinked = _Tally(), _Tally(), _Tally()
    streams: dict[int, _Stream] = {}
    for part in view.parts():
        kind, host = part.work.kind, part.work.host
        tally.add(part, slice(None))
        for name, own in kinds.items():
            own.add(part, np.flatnonzero(kind == DEVICE_KINDS.index(name)))
        compute.add(part, np.flatnonzero(np.isin(kind, [DEVICE_KINDS.index(name) for name in ("kernel", "memset")])))
        no_copy.add(part, np.flatnonzero(kind != DEVICE_KINDS.index("memcpy")))
        unlinked.add(part, np.flatnonzero(host < 0))
        stream = part.work.stream
        for number in different(stream).tolist():
            streams.setdefault(number, _Stream()).add(part, np.flatnonzero(stream == number))
    owned, late_delay_ns = _time_by_class(view)
    return Activity(
        device=view.device,
        begin_ns=view.begin_ns,
        end_ns=view.end_ns,
        n=tally.n,
        num_cut=view.num_cut,
        sum_ns=tally.sum_ns,
        busy_ns=tally.union_ns,
        kinds=tuple(
            KindTime(kind=name, n=own.n, sum_ns=own.sum_ns, union_ns=own.union_ns, exclusive_ns=owned[name])
            for name, own in kinds.items()
            if own.n
        ),
        streams=tuple(streams[number].time(number) for number in sorted(streams)),
        idle={cause: owned[cause] for cause in CAUSES},
        overhead=_overhead(view) if owned[PROFILER_OVERHEAD] else {},
        num_unlinked=unlinked.n,
        unlinked_ns=unlinked.sum_ns,
        exposed_comm_ns=no_copy.union_ns - compute.union_ns,
        exposed_memcpy_ns=tally.union_ns - no_copy.union_ns,
        late_delay_ns=late_delay_ns,
    )


class _Tally:
    """Some events of a device: count, sum and union."""

    def __init__(self) -> None:
        self.n = self.sum_ns = 0
        self._covered = Covered()

    @property
    def union_ns(self) -> int:
        return self._covered.total_ns

    def add(self, part: WindowedEvents, which: slice | Ints) -> None:
        """Count the chosen events of a part."""
        start, end = part.start[which], part.end[which]
        self.n += len(start)
        self.sum_ns += int((end - start).sum())
        self._covered.add(start, end)


class _Stream(_Tally):
    """Events of one stream, with their overlaps."""

    def __init__(self) -> None:
        super().__init__()
        self._pairs = self._longest_ns = 0
        self._open = np.empty(0, np.int64)  # ends of earlier events that may lie after the start of a later one

    def add(self, part: WindowedEvents, which: slice | Ints) -> None:
        """Count the chosen events of a part."""
        super().add(part, which)
        start, end = part.start[which], part.end[which]
        some = end > start
        start, end = start[some], end[some]
        if not len(start):
            return
        later = np.searchsorted(start, end, "left") - np.arange(1, len(start) + 1)
        self._pairs += int(later.sum()) + int(np.searchsorted(start, self._open, "left").sum())
        reached = np.maximum(reach(start, end), max(self._open, default=start[0]))
        self._longest_ns = max(self._longest_ns, int((np.minimum(reached, end) - start).max()))
        ends = np.concatenate((self._open, end))
        self._open = ends[ends > start[-1]]

    def time(self, number: int) -> StreamTime:
        """Return the counts of the stream."""
        return StreamTime(
            stream=number, n=self.n, sum_ns=self.sum_ns, busy_ns=self.union_ns, overlap_pairs=self._pairs,
            longest_overlap_ns=self._longest_ns,
        )  # fmt: skip


def _class_of(view: DeviceView, slices: Slices) -> Ints:
    """Return the class of each slice, as a position in `CLASSES`."""
    found = len(DEVICE_KINDS) + slices.cause.astype(np.int64)
    busy = slices.cause == BUSY
    found[busy] = view.work.at(slices.event[busy]).kind
    return found


def _overhead(view: DeviceView) -> dict[str, int]:
    """Return idle time with the host held up, by the overhead's name."""
    named = view.trace.overheads
    start, end, name = column(named.start_ns), column(named.end_ns), column(named.name)
    owned, total = claim(start, end, np.zeros(len(named), np.int8)), np.zeros(len(named.names), np.int64)
    for slices in view.stretches():
        held = slices.cause == CAUSES.index(PROFILER_OVERHEAD)
        found = overlaps(Intervals(slices.start[held], slices.end[held]), Intervals(owned.start, owned.end))
        np.add.at(total, name[owned.owner[found.b]], found.end - found.start)
    took = {text: ns for text, ns in zip(named.names, total.tolist(), strict=True) if ns}
    return dict(sorted(took.items(), key=lambda item: (-item[1], item[0])))


def _time_by_class(view: DeviceView) -> tuple[dict[str, int], int | None]:
    """Return the time of each class, and the median launch delay after gaps in which the host was late."""
    total = np.zeros(len(CLASSES), np.int64)
    begin, delays, last = column(view.trace.device_events.hosts.start_ns), list[Ints](), NONE
    for slices in view.stretches():
        np.add.at(total, _class_of(view, slices), slices.length)
        late = slices.event[slices.cause == CAUSES.index(HOST_LATE)]
        late = late[np.diff(late, prepend=last) != 0]  # overhead may split a gap
        if len(late):
            work, last = view.work.at(late), int(late[-1])
            delays.append(work.start - begin[work.host])
    found = distribution(np.concatenate(delays)) if delays else None
    return dict(zip(CLASSES, total.tolist(), strict=True)), None if found is None else found.p50_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleStrip:
    """Classes of several devices' time, in bins of one clock.

    Args:
        aligned: whether the lanes share a clock; if not, each starts with its own window.
        length_ns: length of the whole strip.
        edges_ns: bounds of the bins from the strip's start; lengths differ by 1 ns at most.
        lanes: of each device, its time in ns by class (a row for each of `CLASSES`) and by bin; a bin inside the device's window
            adds up to its own length.
    """

    aligned: bool
    length_ns: int
    edges_ns: tuple[int, ...]
    lanes: tuple[tuple[tuple[int, ...], ...], ...]


def idle_strip(views: Sequence[DeviceView], num_bins: int) -> IdleStrip:
    """Bin the time of each device by class.

    The lanes share the clock (`Trace.base_ns` added) if all windows have a moment in common; otherwise each starts at 0.

    Args:
        views: at least one, none of length 0.
        num_bins: bins of the strip, fewer if it is shorter than that in nanoseconds.
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
        ns = np.zeros((len(CLASSES), num_bins), np.int64)
        for slices in view.stretches():
            found = overlaps(Intervals(slices.start, slices.end), Intervals(bounds[:-1], bounds[1:]))
            np.add.at(ns.reshape(-1), _class_of(view, slices)[found.a] * num_bins + found.b, found.end - found.start)
        lanes.append(tuple(map(tuple, ns.tolist())))
    return IdleStrip(aligned=aligned, length_ns=length, edges_ns=tuple(edges), lanes=tuple(lanes))
