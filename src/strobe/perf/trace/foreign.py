"""Traces of other profilers: their events as those of `torch.profiler`, and the rows of the SQLite export of Nsight Systems.

Events are told apart by the names of processes and threads. The profiler of JAX and XLA and that of Ascend give their events no
category, or only some. Device work stands on threads that are called after its streams, and what the host did on the others.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from strobe.core.errors import TraceFormatError
from strobe.perf.trace.metadata import Metadata
from strobe.perf.trace.schema import (
    AnyEvent,
    Batch,
    Buffer,
    Decoder,
    DeviceArgs,
    Event,
    Group,
    LaunchArgs,
    NameOf,
    Number,
    event_of,
    names_of,
    shape_of,
)

_JAX_DEVICE: Final = re.compile(r"/device:(?P<kind>[A-Z]+):(?P<number>\d{1,4})")
_JAX_STREAM: Final = re.compile(r"Stream #(?P<number>\d{1,9})\b")
_XLA_OPS: Final = "XLA Ops"
_ASCEND_DEVICE: Final = "Ascend Hardware"
_ASCEND_WAITS: Final = re.compile(r"(?:EVENT|NOTIFY)_(?:WAIT|RECORD)\b|.*\bEvent Wait\b", re.IGNORECASE)
_DERIVED: Final = ("Overlap Analysis", "Communication", "HCCL", "AI Core Freq", "HBM")
_CALL: Final = re.compile(r"(?:cu|cuda|hip)[A-Z]\w*")
_STEP: Final = re.compile(r"ProfilerStep#\d+")
_CORRELATIONS: Final = ("correlation_id", "connection_id", "correlation")
_COPY: Final = re.compile(r"memcpy", re.IGNORECASE)
_SET: Final = re.compile(r"memset", re.IGNORECASE)
_CANNOT: Final = {
    "JAX": "the profiler of JAX: launch calls, input sizes and memory are not in it, so launch delays and the reasons of idle "
    "time are not known; the rows that repeat device work by operator are left out",
    "Ascend": "the profiler of Ascend: waits for events and the rows on overlap and communication, which repeat device work, are "
    "left out; grids and memory are not in it",
}  # fmt: skip


class ForeignDecoder(Decoder):
    """Decodes the events of another profiler, of which the names of processes and threads are known."""

    def __init__(self, names: Sequence[NameOf], wanted: Iterable[Group]) -> None:
        super().__init__(wanted)
        self._processes, self._threads = names_of(names)
        self.profiler = profiler_of(self._processes.values())
        self._streams: dict[tuple[Number, Number], tuple[int, Number] | None] = {}
        self._with_streams = {pid for (pid, _), name in self._threads.items() if _JAX_STREAM.match(name)}

    @property
    def cannot(self) -> str:
        """Return whose trace it is, and what that cannot say."""
        return _CANNOT[self.profiler]

    def decode(self, array: Buffer, batch: Batch) -> None:
        """Add the events of a list to `batch`.

        Raises:
            UNREADABLE: the text is no list of events; nothing was added.
        """
        events = _decode(array)
        batch.events += len(events)
        for event in events:
            if event.ph != "X":
                continue
            found = self._mapped(event)
            if found is None:
                batch.unused[event.cat if isinstance(event.cat, str) else ""] += 1
            elif found[0] in self._wanted:
                batch.of[found[0]].append(found[1])

    def _mapped(self, event: AnyEvent) -> tuple[Group, Any] | None:
        """Return the group of an event and the event as the reader takes it; None for what is not used."""
        args = event.args if isinstance(event.args, dict) else {}
        key = event.pid, event.tid
        if key not in self._streams:
            self._streams[key] = self._stream_of(*key)
        if (place := self._streams[key]) is not None:
            if _ASCEND_WAITS.match(event.name) or _ASCEND_WAITS.match(str(args.get("Task Type", ""))):
                return None
            group = Group.MEMCPY if _COPY.match(event.name) else Group.MEMSET if _SET.match(event.name) else Group.KERNEL
            given = DeviceArgs(
                device=place[0], stream=place[1], correlation=_number(args, *_CORRELATIONS), bytes=_number(args, "bytes")
            )
            return group, event_of(group, **_as_written(event), args=given)
        process = self._processes.get(event.pid, "")
        if process.startswith("/device:") or process in (_ASCEND_DEVICE, *_DERIVED):
            return None
        if _STEP.fullmatch(event.name):
            return Group.RANGE, event
        if (step := args.get("step_num")) is not None:
            event.name = f"{event.name}#{step}"
            return Group.RANGE, event
        if process == "CANN" or _CALL.fullmatch(event.name):
            return Group.LAUNCH, event_of(
                Group.LAUNCH, **_as_written(event), args=LaunchArgs(correlation=_number(args, *_CORRELATIONS))
            )
        kind = self._category(event.cat) if isinstance(event.cat, str) else Group.OP
        return (kind, msgspec.convert(_plain(event, args), shape_of(kind), strict=False)) if kind else None

    def _stream_of(self, pid: Number, tid: Number) -> tuple[int, Number] | None:
        process, thread = self._processes.get(pid, ""), self._threads.get((pid, tid), "")
        if device := _JAX_DEVICE.match(process):
            stream = _JAX_STREAM.match(thread)
            if stream or (pid not in self._with_streams and thread == _XLA_OPS):
                return int(device["number"]), int(stream["number"]) if stream else 0
            return None
        if process != _ASCEND_DEVICE:
            return None
        stream = re.search(r"\d{1,9}", thread)
        return 0, int(stream[0]) if stream else tid


def profiler_of(processes: Iterable[str]) -> str:
    """Return whose trace has processes of these names; empty for none that is known here."""
    names = list(processes)
    if any(_JAX_DEVICE.match(name) for name in names):
        return "JAX"
    return "Ascend" if _ASCEND_DEVICE in names else ""


def _number(args: Mapping[str, Any], *names: str) -> Number:
    found = next((args[name] for name in names if name in args), None)
    return found if isinstance(found, int | str) else None


def _as_written(event: Event) -> dict[str, Any]:
    return {"ph": event.ph, "name": event.name, "ts": event.ts, "dur": event.dur, "pid": event.pid, "tid": event.tid}


def _plain(event: Event, args: Mapping[str, Any]) -> dict[str, Any]:
    raw = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in args.items() if isinstance(value, list)}
    return {**_as_written(event), "args": {**args, **raw}}


_decode: Final = msgspec.json.Decoder(list[AnyEvent]).decode


MAGIC: Final = b"SQLite format 3\x00"
REPORTS: Final = (".nsys-rep", ".qdrep")
_ROWS: Final = 1 << 14
_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANGES: Final = "NVTX_EVENTS"
_GPUS: Final = "TARGET_INFO_GPU"
_EVENTS: Final = frozenset((_KERNELS, _COPIES, _SETS, _GRAPHS, _CALLS, _RANGES))
_COPY_KINDS: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_WITH_END: Final = (59, 60, 70, 71)  # ranges pushed and popped, or started and ended
_VERSION: Final = re.compile(r"_v\d+$")
_PROCESS_BITS: Final = 40
CANNOT: Final = (
    "Nsight Systems: operators, their input sizes and memory are not in it, so time is told by kernel and NVTX range, "
    "not by operator"
)


Rows = Callable[[str, Sequence[str]], Iterator[Any]]
"""Columns of a table of an export, row by row: `None` for those that its version does not write; nothing without the table."""


@contextmanager
def opened_export(path: Path) -> Iterator[Rows]:
    """Open an export for reading."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            if not _EVENTS.intersection(tables):
                found = ", ".join(sorted(tables)[:8]) or "none"
                raise TraceFormatError(
                    f"this SQLite file has no table of CUDA or NVTX events (tables: {found}); give an export of "
                    "Nsight Systems, as `nsys export --type sqlite` writes it"
                )

            def rows(table: str, columns: Sequence[str]) -> Iterator[Any]:
                if table in tables:
                    there = {row[1] for row in database.execute(f'PRAGMA table_info("{table}")')}
                    chosen = ", ".join(f'"{column}"' if column in there else "NULL" for column in columns)
                    yield from database.execute(f'SELECT {chosen} FROM "{table}"')

            yield rows
    except sqlite3.DatabaseError as error:
        raise TraceFormatError(f"cannot read this SQLite file: {error}; export it again") from error


def export_metadata(rows: Rows) -> Metadata:
    """Return what an export says of its devices, as a chrome trace would."""
    listed = [{"id": number, "name": name} for number, name in rows(_GPUS, ("id", "name"))]
    return {"deviceProperties": msgspec.Raw(msgspec.json.encode(listed))}


def export_batches(rows: Rows) -> Iterator[Batch]:
    """Yield the events of an export."""
    events = _export_events(rows)
    while some := list(islice(events, _ROWS)):
        batch = Batch()
        batch.events = len(some)
        for group, event in some:
            batch.of[group].append(event)
        yield batch


def _export_events(rows: Rows) -> Iterator[tuple[Group, Event]]:
    texts, processes = dict[Any, str](rows("StringIds", ("id", "value"))), dict[int, int]()

    def correlation(owner: int | None, number: int | None) -> int | None:
        """Return a number that no other process has; each counts its own calls from 1."""
        if number is None:
            return None
        return number + (processes.setdefault(0 if owner is None else owner >> 24, len(processes)) << _PROCESS_BITS)

    def on_device(row: list[Any], name: str, size: int | None = None, grid: tuple[msgspec.Raw, ...] = ()) -> Event:
        start, end, device, stream, number, process = row
        args = DeviceArgs(device=device, stream=stream, correlation=correlation(process, number), bytes=size)
        if grid:
            args.grid, args.block = grid
        found: Event = event_of(Group.KERNEL, **_timed(name, start, end), pid=device, tid=stream, args=args)
        return found

    place = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
    grids = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
    for *row, demangled, short, gx, gy, gz, bx, by, bz in rows(_KERNELS, (*place, "demangledName", "shortName", *grids)):
        name = texts.get(demangled, texts.get(short, "kernel"))
        yield Group.KERNEL, on_device(row, name, grid=(_raw([gx, gy, gz]), _raw([bx, by, bz])))
    for *row, kind, size in rows(_COPIES, (*place, "copyKind", "bytes")):
        yield Group.MEMCPY, on_device(row, f"Memcpy {_COPY_KINDS.get(kind, kind)}", size)
    for *row, size in rows(_SETS, (*place, "bytes")):
        yield Group.MEMSET, on_device(row, "Memset", size)
    for *row, graph in rows(_GRAPHS, (*place, "graphId")):
        yield Group.KERNEL, on_device(row, f"CUDA graph {graph}, recorded as a whole")
    for start, end, thread, number, name in rows(_CALLS, ("start", "end", "globalTid", "correlationId", "nameId")):
        called = _VERSION.sub("", texts.get(name, "call"))
        args = LaunchArgs(correlation=correlation(thread, number))
        yield Group.LAUNCH, event_of(Group.LAUNCH, **_timed(called, start, end), **_thread(thread), args=args)
    columns = ("start", "end", "eventType", "globalTid", "text", "textId")
    for start, end, kind, thread, text, number in rows(_RANGES, columns):
        title: str = text or texts.get(number, "")
        if end is not None and title and kind in _WITH_END:
            yield Group.RANGE, Event(**_timed(title, start, end), **_thread(thread))


def _timed(name: str, start: int, end: int) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": _microseconds(start), "dur": _microseconds(end - start)}


def _thread(number: int | None) -> dict[str, Any]:
    known = number or 0
    return {"pid": known >> 24 & 0xFFFFFF, "tid": known & 0xFFFFFF}


def _microseconds(time_ns: int) -> msgspec.Raw:
    sign, time_ns = "-" * (time_ns < 0), abs(time_ns)
    return msgspec.Raw(f"{sign}{time_ns // 1000}.{time_ns % 1000:03d}".encode())


def _raw(sizes: list[int | None]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(sizes)) if None not in sizes else msgspec.Raw(b"")
