"""What each device did: busy and idle time, overlap, exposed communication and copies, and why it was idle. All of it exact.

`busy` is the union over the streams of a device, `idle = span - busy`, `overlap = sum - busy`. Exclusive times add up to `busy`,
idle causes to `idle`. Every figure is cut to the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.idle import CAUSES
from strobe.perf.analysis.device.intervals import Intervals, Ints, overlaps, reach, union
from strobe.perf.analysis.device.views import BUSY, DeviceView
from strobe.perf.trace.events import DEVICE_KINDS

CLASSES: Final = (*DEVICE_KINDS, *CAUSES)
"""What a moment of a device is: the kind of the event that owns it, or why it was idle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KindTime:
    """The events of one kind.

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
    """The events of one stream. Kernels of one stream overlap under programmatic dependent launch and in graph branches.

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
        """By how much the durations exceed the busy time."""
        return self.sum_ns - self.busy_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """One device during a window.

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
        num_unlinked: events without a known launch call.
        unlinked_ns: sum of their durations.
        exposed_comm_ns: time in which communication ran and neither a kernel nor a memset did, whatever the priority.
        exposed_memcpy_ns: time in which a copy ran and nothing else did, whatever the priority.
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
    num_unlinked: int
    unlinked_ns: int
    exposed_comm_ns: int
    exposed_memcpy_ns: int

    @property
    def span_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.begin_ns

    @property
    def idle_ns(self) -> int:
        """Time in which nothing ran."""
        return self.span_ns - self.busy_ns

    @property
    def overlap_ns(self) -> int:
        """By how much the durations exceed the busy time."""
        return self.sum_ns - self.busy_ns


def activity(view: DeviceView) -> Activity:
    """Account for the time of one device."""
    events, kind = view.clipped(), view.work.kind[view.inside]
    length = events.end - events.start
    owned = _time_by_class(view)
    compute, no_copy, everything = (
        _union_of(events, np.isin(kind, [DEVICE_KINDS.index(name) for name in names]))
        for names in (("kernel", "memset"), ("kernel", "memset", "comm"), DEVICE_KINDS)
    )
    unlinked = view.work.host[view.inside] < 0
    return Activity(
        device=view.device,
        begin_ns=view.begin_ns,
        end_ns=view.end_ns,
        n=len(view.inside),
        num_cut=view.num_cut,
        sum_ns=events.length_ns,
        busy_ns=everything,
        kinds=tuple(
            KindTime(
                kind=name,
                n=int(of_kind.sum()),
                sum_ns=int(length[of_kind].sum()),
                union_ns=_union_of(events, of_kind),
                exclusive_ns=owned[name],
            )
            for name in view.priority
            if (of_kind := kind == DEVICE_KINDS.index(name)).any()
        ),
        streams=tuple(_streams(view.work.stream[view.inside], events)),
        idle={cause: owned[cause] for cause in CAUSES},
        num_unlinked=int(unlinked.sum()),
        unlinked_ns=int(length[unlinked].sum()),
        exposed_comm_ns=no_copy - compute,
        exposed_memcpy_ns=everything - no_copy,
    )


def _class_of(view: DeviceView) -> Ints:
    """The class of each slice, as a position in `CLASSES`."""
    slices = view.slices
    return np.where(slices.cause == BUSY, view.work.kind[slices.event].astype(np.int64), len(DEVICE_KINDS) + slices.cause)


def _time_by_class(view: DeviceView) -> dict[str, int]:
    total = np.zeros(len(CLASSES), np.int64)
    np.add.at(total, _class_of(view), view.slices.length)
    return dict(zip(CLASSES, total.tolist(), strict=True))


def _union_of(events: Intervals, which: NDArray[np.bool_]) -> int:
    return union(events.start[which], events.end[which]).length_ns


def _streams(stream: NDArray[np.int32], events: Intervals) -> list[StreamTime]:
    order = np.argsort(stream, kind="stable")
    numbers, first = np.unique(stream[order], return_index=True)
    edges = [*first.tolist(), len(order)]
    found = []
    for i, number in enumerate(numbers.tolist()):
        of_stream = order[edges[i] : edges[i + 1]]
        start, end = events.start[of_stream], events.end[of_stream]
        some = end > start
        start, end = start[some], end[some]
        later = np.searchsorted(start, end, "left") - np.arange(1, len(start) + 1)
        shared = np.minimum(reach(start, end), end) - start
        found.append(
            StreamTime(
                stream=number,
                n=len(of_stream),
                sum_ns=int((end - start).sum()),
                busy_ns=union(start, end).length_ns,
                overlap_pairs=int(later.sum()),
                longest_overlap_ns=max(0, int(shared.max())) if len(shared) else 0,
            )
        )
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """One device over time.

    Args:
        ns: nanoseconds by class (a row for each of `CLASSES`) and by bin (its columns); a bin inside the device's window adds up
            to the bin's length.
    """

    ns: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleStrip:
    """Several devices over time, in bins of one clock.

    Args:
        aligned: whether the lanes share a clock; if not, each starts with its own window.
        length_ns: of the whole strip.
        edges_ns: bounds of the bins from the strip's start; lengths differ by 1 ns at most.
        lanes: one for each device.
    """

    aligned: bool
    length_ns: int
    edges_ns: tuple[int, ...]
    lanes: tuple[Lane, ...]


def idle_strip(views: Sequence[DeviceView], num_bins: int) -> IdleStrip:
    """Say what each device did over time.

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
        found = overlaps(Intervals(view.slices.start, view.slices.end), Intervals(bounds[:-1], bounds[1:]))
        ns = np.zeros((len(CLASSES), num_bins), np.int64)
        np.add.at(ns, (_class_of(view)[found.a], found.b), found.end - found.start)
        lanes.append(Lane(ns=tuple(map(tuple, ns.tolist()))))
    return IdleStrip(aligned=aligned, length_ns=length, edges_ns=tuple(edges), lanes=tuple(lanes))
