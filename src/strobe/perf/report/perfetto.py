"""A study as a Perfetto TrackEvent file. Nothing is dropped: work that overlaps gets a lane of its own.

The viewer's JSON importer drops events that overlap on one track, as kernels of one stream do with programmatic dependent launch.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from strobe.core.errors import ImplUnavailableError
from strobe.perf.analysis.device import BUSY, DeviceView, device_views
from strobe.perf.analysis.idle import CAUSES
from strobe.perf.report.trace_page.study import TraceStudy
from strobe.perf.trace import DeviceEvents, HostEvents, Trace

if TYPE_CHECKING:
    from strobe.perf.analysis.window import Window

_CLEARED: Final = 1  # TracePacket.SequenceFlags
_NEEDS_STATE: Final = 2
_EXPLICIT: Final = 3  # TrackDescriptor.ChildTracksOrdering
_BEGIN: Final = 1  # TrackEvent.Type
_END: Final = 2
_FLUSH: Final = 2_000


class TrackSlice(NamedTuple):
    """One slice; `flow` links a launch call to what it launched, 0 links nothing."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    flow: int = 0
    shape: str = ""


def write_perfetto(study: TraceStudy, path: Path) -> int:
    """Write the chosen window of every trace: device streams, idle classes, launch calls and ranges. Python frames are left out.

    Slices keep their exact nanoseconds since the epoch, or of the trace where it has no base; if any is before 0, all are moved
    by that. A slice that begins before the window or ends after it is whole.

    Returns:
        how many slices were written.

    Raises:
        ImplUnavailableError: the `perfetto` package is not installed.
    """
    try:
        protos = importlib.import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    except ImportError as error:
        raise ImplUnavailableError("perfetto", f"{error}; pip install 'strobe[perfetto]'") from error
    with path.open("wb") as file:
        writer = _Writer(protos, file, max(0, -min((_first_ns(trace) for trace in study.traces), default=0)))
        for trace, label, window in zip(study.traces, study.labels, study.windows, strict=True):
            _write_trace(writer, trace, label, window)
        writer.flush()
    return writer.num_slices


def _first_ns(trace: Trace) -> int:
    """The earliest moment of a trace; the format has no negative ones."""
    columns = (trace.device_events.start_ns, trace.device_events.hosts.start_ns, trace.ranges.start_ns)
    return trace.base_ns + min((min(column) for column in columns if len(column)), default=0)


def lanes_of(slices: Iterable[TrackSlice], *, nested: bool) -> list[list[TrackSlice]]:
    """Spread slices, in order of start, over as few lanes as keep them apart.

    Args:
        slices: an enclosing one before what it encloses.
        nested: a slice may lie inside another one of its lane, as calls do on a thread.
    """
    lanes: list[list[TrackSlice]] = []
    open_ends: list[list[int]] = []  # of each lane
    for piece in slices:
        place = next((lane for lane, ends in enumerate(open_ends) if _fits(ends, piece, nested)), len(lanes))
        if place == len(lanes):
            lanes.append([])
            open_ends.append([])
        lanes[place].append(piece)
        open_ends[place].append(piece.end_ns)
    return lanes


def _fits(ends: list[int], piece: TrackSlice, nested: bool) -> bool:
    while ends and ends[-1] <= piece.start_ns:
        ends.pop()
    return not ends or (nested and piece.end_ns <= ends[-1])


def _write_trace(writer: _Writer, trace: Trace, label: str, window: Window | None) -> None:
    process, launches = writer.process(label), set[int]()
    for view in device_views(trace, window):
        group = writer.track(f"device {view.device}", process)
        writer.lanes("idle", group, [list(_idle(view))], trace.base_ns)
        kept = view.work.position[view.inside].tolist()
        launches.update(trace.device_events.host[i] for i in kept)
        for stream in sorted({trace.device_events.stream[i] for i in kept}):
            own = (i for i in kept if trace.device_events.stream[i] == stream)
            slices = (_device_slice(trace.device_events, i, writer.first_flow) for i in own)
            writer.lanes(f"stream {stream}", group, lanes_of(slices, nested=False), trace.base_ns)
    _write_host(writer, process, trace, sorted(launches - {-1}), window)
    writer.first_flow += len(trace.device_events.hosts)


def _write_host(writer: _Writer, process: int, trace: Trace, launches: Sequence[int], window: Window | None) -> None:
    """Launch calls of the window's work, and the ranges of the time in which it was launched and ran."""
    hosts, host = trace.device_events.hosts, writer.track("host", process)
    start = min([*(hosts.start_ns[i] for i in launches), *([window.start_ns] if window else [])], default=0)
    end = max([*(hosts.end_ns[i] for i in launches), *([window.end_ns] if window else [])], default=0)
    for thread, name in enumerate(trace.threads):
        calls = (_host_slice(hosts, i, "launch", writer.first_flow) for i in launches if hosts.thread[i] == thread)
        writer.lanes(f"launch calls of {name}", host, lanes_of(calls, nested=True), trace.base_ns)
        mine = (i for i in range(len(trace.ranges)) if trace.ranges.thread[i] == thread)
        ranges = (_host_slice(trace.ranges, i, "range") for i in mine)
        if window is not None:
            ranges = (piece for piece in ranges if piece.start_ns < end and piece.end_ns > start)
        writer.lanes(f"ranges of {name}", host, lanes_of(ranges, nested=True), trace.base_ns)


def _idle(view: DeviceView) -> Iterator[TrackSlice]:
    slices = view.slices
    for start, end, cause in zip(slices.start.tolist(), slices.end.tolist(), slices.cause.tolist(), strict=True):
        if cause != BUSY:
            yield TrackSlice(start, end, f"idle: {CAUSES[cause].replace('_', ' ')}", "idle")


def _device_slice(events: DeviceEvents, i: int, first_flow: int) -> TrackSlice:
    flow = 0 if events.host[i] < 0 else first_flow + events.host[i]
    name, shape = events.names[events.name[i]], events.shapes[events.shape[i]]
    return TrackSlice(events.start_ns[i], events.end_ns[i], name, events[i].kind, flow, shape)


def _host_slice(events: HostEvents, i: int, category: str, first_flow: int = 0) -> TrackSlice:
    name, flow = events.names[events.name[i]], first_flow + i if first_flow else 0
    return TrackSlice(events.start_ns[i], events.end_ns[i], name, category, flow)


class _Writer:
    """Packets of one sequence; every text is written once and then named by number."""

    def __init__(self, protos: Any, file: BinaryIO, shift_ns: int) -> None:
        self.num_slices, self.first_flow, self._shift_ns = 0, 1, shift_ns
        self._file, self._batch, self._packets = file, protos.Trace(), 0
        self._uuid, self._names, self._categories, self._shapes = 0, dict[str, int](), dict[str, int](), dict[str, int]()

    def process(self, name: str) -> int:
        """Begin a process and return its track."""
        descriptor = self._descriptor(name, None)
        descriptor.process.pid, descriptor.process.process_name = descriptor.uuid, name
        return self._uuid

    def track(self, name: str, parent: int) -> int:
        """Begin a track below another and return it."""
        self._descriptor(name, parent)
        return self._uuid

    def lanes(self, name: str, parent: int, lanes: Sequence[Sequence[TrackSlice]], base_ns: int) -> None:
        """Write the lanes as tracks below `parent`; those after the first hold what overlaps."""
        for number, lane in enumerate(lanes):
            track = self.track(f"{name}, overlap {number}" if number else name, parent)
            for when, piece in _edges(lane):
                self._event(track, base_ns + when + self._shift_ns, piece)
            self.num_slices += len(lane)

    def flush(self) -> None:
        """Write out what is waiting."""
        self._file.write(self._batch.SerializeToString(deterministic=True))
        self._batch.Clear()
        self._packets = 0

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
        descriptor.uuid, descriptor.name, descriptor.child_ordering = self._uuid, name, _EXPLICIT
        descriptor.sibling_order_rank = self._uuid
        if parent is not None:
            descriptor.parent_uuid = parent
        return descriptor

    def _event(self, track: int, when: int, piece: TrackSlice | None) -> None:
        packet = self._packet()
        packet.timestamp = when
        event = packet.track_event
        event.track_uuid = track
        if piece is None:
            event.type = _END
            return
        event.type = _BEGIN
        event.name_iid = _interned(piece.name, self._names, packet.interned_data.event_names)
        event.category_iids.append(_interned(piece.category, self._categories, packet.interned_data.event_categories))
        if piece.flow:
            event.flow_ids.append(piece.flow)
        if piece.shape:
            shape = event.debug_annotations.add()
            shape.name = "shape"
            shape.string_value = piece.shape


def _interned(text: str, known: dict[str, int], new: Any) -> int:
    number = known.get(text)
    if number is None:
        number = known[text] = len(known) + 1
        new.add(iid=number, name=text.encode("utf-8", "replace").decode())
    return number


def _edges(lane: Iterable[TrackSlice]) -> Iterator[tuple[int, TrackSlice | None]]:
    """Begin and end of every slice in order of time; `None` ends the innermost open one."""
    open_ends: list[int] = []
    for piece in lane:
        while open_ends and open_ends[-1] <= piece.start_ns:
            yield open_ends.pop(), None
        yield piece.start_ns, piece
        open_ends.append(piece.end_ns)
    while open_ends:
        yield open_ends.pop(), None
