"""A study as a Perfetto TrackEvent file. Nothing is dropped: work that overlaps gets a lane of its own.

The viewer's JSON importer drops events that overlap on one track, as kernels of one stream do with programmatic dependent launch.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np

from strobe.core.errors import ImplUnavailableError
from strobe.core.files import writing_whole
from strobe.core.libraries import broken, install
from strobe.perf.analysis.device.device_work import BUSY, DeviceView, device_views
from strobe.perf.analysis.device.idle import CAUSES
from strobe.perf.analysis.device.intervals import Ints, column
from strobe.perf.analysis.window import Window
from strobe.perf.report.trace_study import TraceStudy
from strobe.perf.trace import DeviceEvents, HostEvents, Trace
from strobe.perf.trace.events import DEVICE_KINDS

_PROTOS: Final = "perfetto.protos.perfetto.trace.perfetto_trace_pb2"
_CLEARED: Final = 1  # TracePacket.SequenceFlags
_NEEDS_STATE: Final = 2
_EXPLICIT: Final = 3  # TrackDescriptor.ChildTracksOrdering
_BEGIN: Final = 1  # TrackEvent.Type
_END: Final = 2
_FLUSH: Final = 2_000


class TrackSlice(NamedTuple):
    """One slice of a track; `flow` links a launch call to the work it launched, 0 links nothing."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    flow: int = 0
    shape: str = ""


def write_perfetto(study: TraceStudy, path: Path) -> int:
    """Write the chosen window of every trace: device streams, idle classes, launch calls and ranges. Python frames are left out.

    Slices keep their exact nanoseconds since the epoch, or the trace's own times if it has no base; if any is before 0, all are
    shifted by that. A slice that begins before the window or ends after it is not cut.

    Returns:
        how many slices were written.

    Raises:
        ImplUnavailableError: the `perfetto` package is not installed.
    """
    if why := broken(_PROTOS):
        raise ImplUnavailableError("perfetto", f"{why}; {install('perfetto')} installs it")
    protos = importlib.import_module(_PROTOS)
    with writing_whole(path) as file:
        writer = _Writer(protos, file, max(0, -min((_first_ns(trace) for trace in study.traces), default=0)))
        for trace, label, window in zip(study.traces, study.labels, study.windows, strict=True):
            _write_trace(writer, trace, label, window)
        writer.flush()
    return writer.num_slices


def _first_ns(trace: Trace) -> int:
    """Return the earliest time in a trace, ns; the format has no negative times."""
    columns = (trace.device_events.start_ns, trace.device_events.hosts.start_ns, trace.ranges.start_ns)
    return trace.base_ns + min((min(column) for column in columns if len(column)), default=0)


def in_lanes(slices: Iterable[TrackSlice], *, nested: bool) -> Iterator[tuple[int, TrackSlice]]:
    """Assign slices, in order of start, to as few lanes as keep them apart; yield each slice's lane.

    Args:
        slices: an enclosing one before what it encloses.
        nested: a slice may lie inside another one of its lane, as calls do on a thread.
    """
    open_ends: list[list[int]] = []  # of each lane
    for piece in slices:
        place = next((lane for lane, ends in enumerate(open_ends) if _fits(ends, piece, nested)), len(open_ends))
        if place == len(open_ends):
            open_ends.append([])
        open_ends[place].append(piece.end_ns)
        yield place, piece


def _fits(ends: list[int], piece: TrackSlice, nested: bool) -> bool:
    while ends and ends[-1] <= piece.start_ns:
        ends.pop()
    return not ends or (nested and piece.end_ns <= ends[-1])


def _write_trace(writer: _Writer, trace: Trace, label: str, window: Window | None) -> None:
    process, launches = writer.process(label), list[Ints]()
    for view in device_views(trace, window):
        group = writer.track(f"device {view.device}", process)
        writer.lanes("idle", group, _idle(view), trace.base_ns)
        inside = view.work.at(view.inside)
        stream, host = inside.stream, inside.host
        for number in np.unique(stream).tolist():
            chosen = inside.position[stream == number].tolist()
            slices = (_device_slice(trace.device_events, i, writer.first_flow) for i in chosen)
            writer.lanes(f"stream {number}", group, slices, trace.base_ns)
        launches.append(np.unique(host[host >= 0]))
    called = np.unique(np.concatenate(launches)) if launches else np.empty(0, np.int64)
    _write_host(writer, process, trace, called, window)
    writer.first_flow += len(trace.device_events.hosts)


def _write_host(writer: _Writer, process: int, trace: Trace, called: Ints, window: Window | None) -> None:
    """Write the launch calls of the window's work, and the ranges of the time in which it was launched and ran."""
    hosts, ranges, host = trace.device_events.hosts, trace.ranges, writer.track("host", process)
    thread = column(hosts.thread)[called]
    for number in np.unique(thread).tolist():
        calls = (_host_slice(hosts, i, "launch", writer.first_flow) for i in called[thread == number].tolist())
        writer.lanes(f"launch calls of {trace.threads[number]}", host, calls, trace.base_ns, nested=True)
    shown = np.ones(len(ranges), np.bool_)
    if window is not None:
        start = min(window.start_ns, *column(hosts.start_ns)[called].tolist())
        end = max(window.end_ns, *column(hosts.end_ns)[called].tolist())
        shown = (column(ranges.start_ns) < end) & (column(ranges.end_ns) > start)
    for number in np.unique(column(ranges.thread)).tolist():
        mine = np.flatnonzero(shown & (column(ranges.thread) == number)).tolist()
        spans = (_host_slice(ranges, i, "range") for i in mine)
        writer.lanes(f"ranges of {trace.threads[number]}", host, spans, trace.base_ns, nested=True)


def _idle(view: DeviceView) -> Iterator[TrackSlice]:
    slices = view.slices
    for start, end, cause in zip(slices.start.tolist(), slices.end.tolist(), slices.cause.tolist(), strict=True):
        if cause != BUSY:
            yield TrackSlice(start, end, f"idle: {CAUSES[cause].replace('_', ' ')}", "idle")


def _device_slice(events: DeviceEvents, i: int, first_flow: int) -> TrackSlice:
    flow = 0 if events.host[i] < 0 else first_flow + events.host[i]
    name, kind, shape = events.names[events.name[i]], DEVICE_KINDS[events.kind[i]], events.shapes[events.shape[i]]
    return TrackSlice(events.start_ns[i], events.end_ns[i], name, kind, flow, shape)


def _host_slice(events: HostEvents, i: int, category: str, first_flow: int = 0) -> TrackSlice:
    name, flow = events.names[events.name[i]], first_flow + i if first_flow else 0
    return TrackSlice(events.start_ns[i], events.end_ns[i], name, category, flow)


class _Writer:
    """Writer of packets in one sequence; every text is written once and then referred to by number."""

    def __init__(self, protos: Any, file: BinaryIO, shift_ns: int) -> None:
        self.num_slices, self.first_flow, self._shift_ns = 0, 1, shift_ns
        self._file, self._protos, self._batch, self._packets = file, protos, protos.Trace(), 0
        self._uuid, self._names, self._categories = 0, dict[str, int](), dict[str, int]()

    def process(self, name: str) -> int:
        """Begin a process and return its track."""
        descriptor = self._descriptor(name, None)
        descriptor.process.pid, descriptor.process.process_name = descriptor.uuid, _text(name)
        return self._uuid

    def track(self, name: str, parent: int) -> int:
        """Begin a track below another and return it."""
        self._descriptor(name, parent)
        return self._uuid

    def lanes(self, name: str, parent: int, slices: Iterable[TrackSlice], base_ns: int, *, nested: bool = False) -> None:
        """Write slices as tracks below `parent`; those after the first hold what overlaps. Times are `base_ns` later."""
        tracks, open_ends = list[int](), list[list[int]]()
        later = base_ns + self._shift_ns
        for lane, piece in in_lanes(slices, nested=nested):
            if lane == len(tracks):
                tracks.append(self.track(f"{name}, overlap {lane}" if lane else name, parent))
                open_ends.append([])
            ends = open_ends[lane]
            while ends and ends[-1] <= piece.start_ns:
                self._end(tracks[lane], later + ends.pop())
            self._begin(tracks[lane], later + piece.start_ns, piece)
            ends.append(piece.end_ns)
            self.num_slices += 1
        for track, ends in zip(tracks, open_ends, strict=True):
            while ends:
                self._end(track, later + ends.pop())

    def flush(self) -> None:
        """Write the waiting packets to the file."""
        self._file.write(self._batch.SerializeToString(deterministic=True))
        self._batch, self._packets = self._protos.Trace(), 0  # a cleared message would keep its memory

    def _packet(self) -> Any:
        if self._packets == _FLUSH:
            self.flush()
        packet = self._batch.packet.add()
        packet.trusted_packet_sequence_id = 1
        packet.sequence_flags = _NEEDS_STATE if self._uuid else _CLEARED
        self._packets += 1
        return packet

    def _descriptor(self, name: str, parent: int | None) -> Any:
        descriptor = self._packet().track_descriptor
        self._uuid += 1
        descriptor.uuid, descriptor.name, descriptor.child_ordering = self._uuid, _text(name), _EXPLICIT
        descriptor.sibling_order_rank = self._uuid
        if parent is not None:
            descriptor.parent_uuid = parent
        return descriptor

    def _end(self, track: int, when: int) -> None:
        packet = self._packet()
        packet.timestamp = when
        packet.track_event.track_uuid, packet.track_event.type = track, _END

    def _begin(self, track: int, when: int, piece: TrackSlice) -> None:
        packet = self._packet()
        packet.timestamp = when
        event = packet.track_event
        event.track_uuid, event.type = track, _BEGIN
        event.name_iid = self._names.get(piece.name) or _interned(piece.name, self._names, packet.interned_data.event_names)
        category = self._categories.get(piece.category)
        event.category_iids.append(category or _interned(piece.category, self._categories, packet.interned_data.event_categories))
        if piece.flow:
            event.flow_ids.append(piece.flow)
        if piece.shape:
            event.debug_annotations.add(name="shape", string_value=_text(piece.shape))


def _interned(text: str, known: dict[str, int], new: Any) -> int:
    """Add a text that is new to the packet's table, and return its number."""
    number = known[text] = len(known) + 1
    new.add(iid=number, name=_text(text))
    return number


def _text(text: str) -> str:
    """Return a text that the format can hold: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()
