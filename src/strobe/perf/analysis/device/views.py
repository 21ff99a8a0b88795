"""One accelerator of a trace: its events as columns, and who owns each nanosecond of it.

Events launched before the recorded window are kept like any other. Nothing here is pooled over devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strobe.core.errors import ConfigError, DataError
from strobe.perf.analysis.device.idle import overhead_intervals, split_gaps
from strobe.perf.analysis.device.intervals import Intervals, Ints, claim, complement
from strobe.perf.trace.events import DEVICE_KINDS, Trace

if TYPE_CHECKING:
    from strobe.perf.analysis.structure.window import Window

PRIORITY: Final = ("kernel", "memset", "comm", "memcpy")
"""Where events of several kinds overlap, the first of these owns the time."""
BUSY: Final = -1
"""In `Slices.cause`: an event owns the slice."""
NONE: Final = -1
_LIMIT_NS: Final = float(1 << 62)


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
        """The part in `[begin, stop)`."""
        first, last = np.searchsorted(self.end, begin, "right"), np.searchsorted(self.start, stop, "left")
        start, end = np.maximum(self.start[first:last], begin), np.minimum(self.end[first:last], stop)
        return Slices(start, end, self.event[first:last], self.cause[first:last])

    @property
    def length(self) -> Ints:
        """Nanoseconds of each slice."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The events of one device as columns, in order of start.

    Args:
        position: among the trace's device events.
        name: position in the trace's names of device events; `shape` likewise.
        kind: position in `DEVICE_KINDS`.
        start: nanoseconds; `end` likewise.
        stream: number of the stream.
        ordinal: number among the events of the same launch call.
        host: position of the launch call, negative where it is not known.
    """

    position: Ints
    name: NDArray[np.int32]
    shape: NDArray[np.int32]
    kind: NDArray[np.int8]
    start: Ints
    end: Ints
    stream: NDArray[np.int32]
    ordinal: NDArray[np.int32]
    host: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.start)

    def tile(self, trace: Trace, rank: NDArray[np.integer], begin: int, stop: int) -> Slices:
        """Tile `[begin, stop)`: overlapping events by rank, gaps by what the event that ends them waited for.

        Args:
            trace: where the events are from.
            rank: of each event: the lowest owns the time, and among equals the one that started first.
            begin: start of the stretch.
            stop: end of the stretch.
        """
        owned = claim(np.clip(self.start, begin, stop), np.clip(self.end, begin, stop), rank)
        gaps = complement(Intervals(owned.start, owned.end), begin, stop)
        following = np.searchsorted(owned.start, gaps.end, "left")
        known = following < len(owned.start)
        waiting = np.full(len(gaps.start), NONE, np.int64)
        waiting[known] = owned.owner[following[known]]
        host = np.where(known, self.host[waiting], NONE) if len(self) else waiting
        linked = host >= 0
        launch = np.zeros(len(gaps.start), np.int64)
        launch[linked] = np.asarray(trace.device_events.hosts.start_ns)[host[linked]]
        if len(launch) and gaps.start[0] == begin and len(self) and self.start[0] >= begin:
            launch[0] = max(launch[0], begin)  # nothing ran before, so the gap starts before the launch
        first = np.zeros(len(gaps.start), np.bool_)
        first[known] = self.ordinal[waiting[known]] == 0
        pieces = split_gaps(gaps, launch, linked, first, overhead_intervals(trace.overhead))
        start = np.concatenate((owned.start, pieces.start))
        order = np.argsort(start, kind="stable")
        end = np.concatenate((owned.end, pieces.end))[order]
        event = np.concatenate((owned.owner, waiting[pieces.gap]))[order]
        cause = np.concatenate((np.full(len(owned.start), BUSY, np.int8), pieces.cause))[order]
        return Slices(start[order], end, event, cause)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceView:
    """One device during a window.

    Args:
        trace: where the events are from.
        device: its number.
        priority: which kind owns the time where several overlap.
        window: the part of the trace, `None` for all of it.
        begin_ns: start of the window; without one, of the first event.
        end_ns: end of the window; without one, of the last event to end.
        work: every event of the device, also outside the window.
        inside: positions in `work` of the events that overlap the window.
        whole: tile the time from the first event to the last, and the window if it reaches beyond.
        slices: tile `[begin_ns, end_ns)`; `event` counts into `work`. A gap that the window cuts is judged as the whole gap is.
    """

    trace: Trace
    device: int
    priority: tuple[str, ...]
    window: Window | None
    begin_ns: int
    end_ns: int
    work: Work
    inside: Ints
    whole: Slices
    slices: Slices

    @property
    def span_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.begin_ns

    def clipped(self) -> Intervals:
        """The events inside, cut to the window."""
        start, end = self.work.start[self.inside], self.work.end[self.inside]
        return Intervals(np.maximum(start, self.begin_ns), np.minimum(end, self.end_ns))

    @property
    def num_cut(self) -> int:
        """Events inside that reach beyond the window."""
        start, end = self.work.start[self.inside], self.work.end[self.inside]
        return int(((start < self.begin_ns) | (end > self.end_ns)).sum())

    def within(self, window: Window) -> DeviceView:
        """The same device during another window of the trace."""
        return _view(self.trace, self.device, self.work, self.priority, window, self.whole)


def device_views(trace: Trace, window: Window | None = None, *, priority: Sequence[str] = PRIORITY) -> tuple[DeviceView, ...]:
    """Look at each device that has events, in order of number; none for a trace of a CPU.

    Args:
        trace: the trace.
        window: the part of its time to look at; the whole trace if not given.
        priority: which kind owns the time where several overlap: all of `DEVICE_KINDS`, the first wins.

    Raises:
        ConfigError: a priority that does not name each kind once.
        DataError: times whose sum does not fit 64 bits.
    """
    if sorted(priority) != sorted(DEVICE_KINDS):
        raise ConfigError(f"priority {', '.join(priority)}: name each of {', '.join(PRIORITY)} once")
    return tuple(_view(trace, device, work, tuple(priority), window) for device, work in device_work(trace))


def device_work(trace: Trace) -> Iterator[tuple[int, Work]]:
    """Yield the number and the events of each device, in order of number.

    Raises:
        DataError: times whose sum does not fit 64 bits.
    """
    events = trace.device_events
    columns = [
        np.asarray(column)
        for column in (
            events.name, events.shape, events.kind, events.start_ns, events.end_ns, events.stream, events.ordinal, events.host,
        )
    ]  # fmt: skip
    of_device, start_ns, end_ns = np.asarray(events.device), columns[3], columns[4]
    if (
        len(events)
        and max(np.subtract(end_ns, start_ns, dtype=np.float64).sum(), float(end_ns.max()) - float(start_ns[0])) >= _LIMIT_NS
    ):
        raise DataError(f"{trace.path}: its times reach over more than 146 years; they are not in microseconds")
    devices = np.unique(of_device).tolist()
    for device in devices:
        position = np.flatnonzero(of_device == device)
        taken = columns if len(devices) == 1 else [column[position] for column in columns]
        name, shape, kind, start, end, stream, ordinal, host = taken
        yield (
            device,
            Work(
                position=position,
                name=name,
                shape=shape,
                kind=kind,
                start=start,
                end=end,
                stream=stream,
                ordinal=ordinal,
                host=host,
            ),
        )


def rank_by_kind(kind: NDArray[np.int8], priority: Sequence[str]) -> NDArray[np.int8]:
    """The rank of each event by its kind."""
    return np.array([priority.index(name) for name in DEVICE_KINDS], np.int8)[kind]


def _view(
    trace: Trace, device: int, work: Work, priority: tuple[str, ...], window: Window | None, whole: Slices | None = None
) -> DeviceView:
    first, last = int(work.start[0]), int(work.end.max())
    begin, stop = (first, last) if window is None else (window.start_ns, window.end_ns)
    if whole is None or begin < first or stop > last:
        # gaps are judged as they are in the whole trace and cut to the window afterwards
        whole = work.tile(trace, rank_by_kind(work.kind, priority), min(first, begin), max(last, stop))
    if window is None:
        inside = np.arange(len(work))
    else:  # an event of length 0 is inside where it starts
        inside = np.flatnonzero((work.start < stop) & ((work.end > begin) | (work.start == work.end) & (work.start >= begin)))
    return DeviceView(
        trace=trace,
        device=device,
        priority=priority,
        window=window,
        begin_ns=begin,
        end_ns=stop,
        work=work,
        inside=inside,
        whole=whole,
        slices=whole.clip(begin, stop),
    )
