"""Exports of a trace report: every event as a compressed CSV, and a Perfetto file."""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strobe.core.errors import ImplUnavailableError
from strobe.core.files import writing_whole
from strobe.core.libraries import broken, install
from strobe.perf.analysis.device.activity import BUSY, CAUSES, all_events, device_views, windowed_events
from strobe.perf.analysis.device.intervals import Ints, Window, column
from strobe.perf.report.study import TraceStudy
from strobe.perf.trace import DeviceEvent, HostEvent, Trace
from strobe.perf.trace.events import DEVICE_KINDS

try:
    from isal import igzip  # a few times as fast
except ImportError:
    igzip = None  # type: ignore[assignment]

COLUMNS: Final = (
    "trace", "kind", "name", "start_ns", "end_ns", "device", "stream", "shape", "module",
    "call", "call_start_ns", "call_end_ns", "thread", "ordinal",
)  # fmt: skip
_CHUNK: Final = 4_000
_Gzip: Final[Any] = gzip.GzipFile if igzip is None else igzip.IGzipFile


def write_events(study: TraceStudy, path: Path) -> int:
    """Write the device events of the chosen windows, uncut; of a trace without any, its operators.

    Times are integer nanoseconds since the epoch, or the trace's own times if it has no base. `call` is the launch call, empty if
    it lies before the recorded window. Equal studies give equal bytes.

    Returns:
        how many events were written.
    """
    num_rows = 0
    with writing_whole(path) as file, _Gzip(filename="", fileobj=file, mode="wb", compresslevel=1, mtime=0) as packed:
        packed.write(",".join(COLUMNS).encode() + b"\n")
        for trace, label, window in zip(study.traces, study.labels, study.windows, strict=True):
            found = _device_rows if len(trace.device_events) else _operator_rows
            rows = found(trace, _field(label), window)
            while chunk := list(islice(rows, _CHUNK)):  # always as many, for the packed bytes depend on it
                packed.write("".join(chunk).encode("utf-8", "replace"))
                num_rows += len(chunk)
    return num_rows


def _field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in ',"\r\n') else text


def _device_rows(trace: Trace, head: str, window: Window | None) -> Iterator[str]:
    events, base = trace.device_events, trace.base_ns
    shapes = [_field(text) for text in events.shapes]
    fronts = [f"{head},{kind},{_field(name)}" for name in events.names for kind in DEVICE_KINDS]
    calls_of = _csv_calls(trace)
    parts = (part.work for part in windowed_events(all_events(trace), window))
    for work in (one.at(slice(at, min(at + _CHUNK, len(one)))) for one in parts for at in range(0, len(one), _CHUNK)):
        modules = [""] * len(work)
        if trace.module_paths:
            modules = [_field(trace.module_paths.get(number, "")) for number in work.position.tolist()]
        front = work.name.astype(np.int64) * len(DEVICE_KINDS) + work.kind
        columns = (front, work.device, work.stream, work.shape, work.ordinal)
        times = _later(work.start, base), _later(work.end, base)
        rows = zip(modules, calls_of(work.host), *times, *(column.tolist() for column in columns), strict=True)
        yield from [
            f"{fronts[front]},{start},{end},{device},{stream},{shapes[shape]},{module},{host},{ordinal}\n"
            for module, host, start, end, front, device, stream, shape, ordinal in rows
        ]


def _later(times: Ints, base_ns: int) -> list[int]:
    """Return the times plus the base of their trace; the sums may exceed 64 bits."""
    return [base_ns + time for time in times.tolist()]


def _csv_calls(trace: Trace) -> Callable[[NDArray[np.int32]], list[str]]:
    hosts, base = trace.device_events.hosts, trace.base_ns
    names, threads = [_field(name) for name in hosts.names], [_field(thread) for thread in trace.threads]
    columns = [np.asarray(column) for column in (hosts.name, hosts.start_ns, hosts.end_ns, hosts.thread)]

    def fields(calls: NDArray[np.int32]) -> list[str]:
        if not len(hosts):
            return [",,,"] * len(calls)
        name, start, end, thread = (column[calls] for column in columns)
        rows = zip(calls.tolist(), name.tolist(), _later(start, base), _later(end, base), thread.tolist(), strict=True)
        return [
            f"{names[name]},{start},{end},{threads[thread]}" if call >= 0 else ",,," for call, name, start, end, thread in rows
        ]

    return fields


def _operator_rows(trace: Trace, head: str, window: Window | None) -> Iterator[str]:
    ops, base = trace.ops, trace.base_ns
    names, threads = [_field(name) for name in ops.names], [_field(thread) for thread in trace.threads]
    return (
        f"{head},operator,{names[name]},{base + start},{base + end},,,,,,,,{threads[thread]},\n"
        for name, start, end, thread in zip(ops.name, ops.start_ns, ops.end_ns, ops.thread, strict=True)
        if window is None or (start < window.end_ns and (end > window.start_ns or start == end >= window.start_ns))
    )


# A study as a Perfetto TrackEvent file. Nothing is dropped: work that overlaps gets a lane of its own.
#
# The viewer's JSON importer drops events that overlap on one track, as kernels of one stream do with programmatic dependent
# launch.

_PROTOS: Final = "perfetto.protos.perfetto.trace.perfetto_trace_pb2"
_CLEARED: Final = 1  # TracePacket.SequenceFlags
_NEEDS_STATE: Final = 2
_EXPLICIT: Final = 3  # TrackDescriptor.ChildTracksOrdering
_BEGIN: Final = 1  # TrackEvent.Type
_END: Final = 2
_FLUSH: Final = 2_000


Slice: TypeAlias = tuple[DeviceEvent | HostEvent, str, int]
"""An event on a track, its category, and what links a launch call to the work that it launched; 0 links nothing."""


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
        first = 0  # the earliest time of all traces: the format has no negative ones
        for trace in study.traces:
            columns = (trace.device_events.start_ns, trace.device_events.hosts.start_ns, trace.ranges.start_ns)
            first = min(first, trace.base_ns + min((min(column) for column in columns if len(column)), default=0))
        writer = _Writer(protos, file, -first)
        for trace, label, window in zip(study.traces, study.labels, study.windows, strict=True):
            _write_trace(writer, trace, label, window)
        writer.flush()
    return writer.num_slices


def in_lanes(slices: Iterable[Slice], *, nested: bool) -> Iterator[tuple[int, Slice]]:
    """Assign slices, in order of start, to as few lanes as keep them apart; yield each slice's lane.

    Args:
        slices: an enclosing one before what it encloses.
        nested: a slice may lie inside another one of its lane, as calls do on a thread.
    """
    open_ends: list[list[int]] = []  # of each lane
    for piece in slices:
        place = next((lane for lane, ends in enumerate(open_ends) if _fits(ends, piece[0], nested)), len(open_ends))
        open_ends += [[]] if place == len(open_ends) else []
        open_ends[place].append(piece[0].end_ns)
        yield place, piece


def _fits(ends: list[int], event: DeviceEvent | HostEvent, nested: bool) -> bool:
    while ends and ends[-1] <= event.start_ns:
        ends.pop()
    return not ends or (nested and event.end_ns <= ends[-1])


def _write_trace(writer: _Writer, trace: Trace, label: str, window: Window | None) -> None:
    process, launches, events = writer.track(label), list[Ints](), trace.device_events
    for view in device_views(trace, window):
        group = writer.track(f"device {view.device}", process)
        rows = zip(*(column.tolist() for column in (view.slices.start, view.slices.end, view.slices.cause)), strict=True)
        gaps = ((start, end, CAUSES[cause].replace("_", " ")) for start, end, cause in rows if cause != BUSY)
        idle = ((HostEvent(f"idle: {why}", start, end, 0), "idle", 0) for start, end, why in gaps)
        writer.lanes("idle", group, idle, trace.base_ns)
        inside = view.work.at(view.inside)
        for number in np.unique(inside.stream).tolist():
            mine = inside.stream == number
            places = zip(inside.position[mine].tolist(), inside.host[mine].tolist(), strict=True)
            ran = ((events[at], 0 if host < 0 else writer.first_flow + host) for at, host in places)
            writer.lanes(f"stream {number}", group, ((event, event.kind, flow) for event, flow in ran), trace.base_ns)
        launches.append(np.unique(inside.host[inside.host >= 0]))
    called = np.unique(np.concatenate(launches)) if launches else np.empty(0, np.int64)
    _write_host(writer, process, trace, called, window)
    writer.first_flow += len(events.hosts)


def _write_host(writer: _Writer, process: int, trace: Trace, called: Ints, window: Window | None) -> None:
    """Write the launch calls of the window's work, and the ranges of the time in which it was launched and ran."""
    hosts, ranges, host = trace.device_events.hosts, trace.ranges, writer.track("host", process)
    thread = column(hosts.thread)[called]
    for number in np.unique(thread).tolist():
        calls = ((hosts[at], "launch", writer.first_flow + at) for at in called[thread == number].tolist())
        writer.lanes(f"launch calls of {trace.threads[number]}", host, calls, trace.base_ns, nested=True)
    shown = np.ones(len(ranges), np.bool_)
    if window is not None:
        start = min([window.start_ns, *column(hosts.start_ns)[called].tolist()])
        end = max([window.end_ns, *column(hosts.end_ns)[called].tolist()])
        shown = (column(ranges.start_ns) < end) & (column(ranges.end_ns) > start)
    for number in np.unique(column(ranges.thread)).tolist():
        mine = np.flatnonzero(shown & (column(ranges.thread) == number)).tolist()
        spans = ((ranges[at], "range", 0) for at in mine)
        writer.lanes(f"ranges of {trace.threads[number]}", host, spans, trace.base_ns, nested=True)


class _Writer:
    """Writer of packets in one sequence; every text is written once and then referred to by number."""

    def __init__(self, protos: Any, file: BinaryIO, shift_ns: int) -> None:
        self.num_slices, self.first_flow, self._shift_ns = 0, 1, shift_ns
        self._file, self._protos, self._batch, self._packets = file, protos, protos.Trace(), 0
        self._uuid, self._names, self._categories = 0, dict[str, int](), dict[str, int]()

    def track(self, name: str, parent: int = 0) -> int:
        """Describe a track below another one, or else a process; return its number."""
        descriptor = self._packet().track_descriptor
        self._uuid += 1
        descriptor.uuid, descriptor.name, descriptor.child_ordering = self._uuid, _text(name), _EXPLICIT
        descriptor.sibling_order_rank = self._uuid
        if parent:
            descriptor.parent_uuid = parent
        else:
            descriptor.process.pid, descriptor.process.process_name = self._uuid, _text(name)
        return self._uuid

    def lanes(self, name: str, parent: int, slices: Iterable[Slice], base_ns: int, *, nested: bool = False) -> None:
        """Write slices as tracks below `parent`; those after the first hold what overlaps. Times are `base_ns` later."""
        tracks, open_ends = list[int](), list[list[int]]()
        later = base_ns + self._shift_ns
        for lane, piece in in_lanes(slices, nested=nested):
            if lane == len(tracks):
                tracks.append(self.track(f"{name}, overlap {lane}" if lane else name, parent))
                open_ends.append([])
            ends = open_ends[lane]
            while ends and ends[-1] <= piece[0].start_ns:
                self._event(tracks[lane], later + ends.pop(), _END)
            self._begin(tracks[lane], later + piece[0].start_ns, piece)
            ends.append(piece[0].end_ns)
            self.num_slices += 1
        for track, ends in zip(tracks, open_ends, strict=True):
            while ends:
                self._event(track, later + ends.pop(), _END)

    def flush(self) -> None:
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

    def _event(self, track: int, when: int, kind: int) -> Any:
        packet = self._packet()
        packet.timestamp = when
        packet.track_event.track_uuid, packet.track_event.type = track, kind
        return packet

    def _begin(self, track: int, when: int, piece: Slice) -> None:
        event, category, flow = piece
        packet = self._event(track, when, _BEGIN)
        begun, texts = packet.track_event, packet.interned_data
        begun.name_iid = _number_of(event.name, self._names, texts.event_names)
        begun.category_iids.append(_number_of(category, self._categories, texts.event_categories))
        if flow:
            begun.flow_ids.append(flow)
        if isinstance(event, DeviceEvent) and event.shape:
            begun.debug_annotations.add(name="shape", string_value=_text(event.shape))


def _number_of(text: str, known: dict[str, int], new: Any) -> int:
    if text not in known:
        known[text] = len(known) + 1
        new.add(iid=known[text], name=_text(text))
    return known[text]


def _text(text: str) -> str:
    """Return a text that the format can hold: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()
