"""The SQLite export of Nsight Systems: its rows as the events that the reader takes."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from strobe.core.errors import TraceFormatError
from strobe.perf.trace.metadata import Metadata
from strobe.perf.trace.schema import Batch, DeviceArgs, Event, Group, LaunchArgs, event_of

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
_COPY_KINDS: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_WITH_END: Final = (59, 60, 70, 71)  # ranges pushed and popped, or started and ended
_VERSION: Final = re.compile(r"_v\d+$")
_PROCESS_BITS: Final = 40
CANNOT: Final = (
    "Nsight Systems: operators, their input sizes and memory are not in it, so time is told by kernel and NVTX range, "
    "not by operator"
)


class NsightExport:
    """One export, open for reading.

    Args:
        path: of the file.

    Raises:
        TraceFormatError: it is no such export.
    """

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
        self._processes: dict[int, int] = {}
        try:
            tables = [name for (name,) in self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            self._columns = {
                table: {row[1] for row in self._database.execute(f'PRAGMA table_info("{table}")')}
                for table in (_KERNELS, _COPIES, _SETS, _GRAPHS, _CALLS, _RANGES, _GPUS, "StringIds")
                if table in tables
            }
            if not {_KERNELS, _COPIES, _SETS, _GRAPHS, _CALLS, _RANGES} & self._columns.keys():
                self._database.close()
                found = ", ".join(sorted(tables)[:8]) or "none"
                raise TraceFormatError(
                    f"this SQLite file has no table of CUDA or NVTX events (tables: {found}); give an export of "
                    "Nsight Systems, as `nsys export --type sqlite` writes it"
                )
            self._texts: dict[Any, str] = dict(self._rows("StringIds", ("id", "value")))
        except sqlite3.DatabaseError as error:
            raise TraceFormatError(f"cannot read this SQLite file: {error}; export it again") from error

    def metadata(self) -> Metadata:
        """Return what the file says of its devices, as a chrome trace would."""
        listed = [{"id": number, "name": name} for number, name in self._rows(_GPUS, ("id", "name"))]
        return {"deviceProperties": msgspec.Raw(msgspec.json.encode(listed))}

    def batches(self) -> Iterator[Batch]:
        """Yield the events.

        Raises:
            TraceFormatError: the file is damaged.
        """
        batch, count = Batch(), 0
        with closing(self._database):
            try:
                for group, event in self._events():
                    batch.of[group].append(event)
                    count += 1
                    if count == _ROWS:
                        batch.events = count
                        yield batch
                        batch, count = Batch(), 0
            except sqlite3.DatabaseError as error:
                raise TraceFormatError(f"cannot read this SQLite file: {error}; export it again") from error
        batch.events = count
        yield batch

    def _events(self) -> Iterator[tuple[Group, Event]]:
        place = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
        grids = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
        for *row, demangled, short, gx, gy, gz, bx, by, bz in self._rows(
            _KERNELS, (*place, "demangledName", "shortName", *grids)
        ):
            name = self._texts.get(demangled, self._texts.get(short, "kernel"))
            grid = _raw([gx, gy, gz]), _raw([bx, by, bz])
            yield Group.KERNEL, self._on_device(row, name, grid=grid)
        for *row, kind, size in self._rows(_COPIES, (*place, "copyKind", "bytes")):
            yield Group.MEMCPY, self._on_device(row, f"Memcpy {_COPY_KINDS.get(kind, kind)}", size)
        for *row, size in self._rows(_SETS, (*place, "bytes")):
            yield Group.MEMSET, self._on_device(row, "Memset", size)
        for *row, graph in self._rows(_GRAPHS, (*place, "graphId")):
            yield Group.KERNEL, self._on_device(row, f"CUDA graph {graph}, recorded as a whole")
        for start, end, thread, number, name in self._rows(_CALLS, ("start", "end", "globalTid", "correlationId", "nameId")):
            called = _VERSION.sub("", self._texts.get(name, "call"))
            args = LaunchArgs(correlation=self._correlation(thread, number))
            yield Group.LAUNCH, event_of(Group.LAUNCH, **_timed(called, start, end), **_thread(thread), args=args)
        columns = ("start", "end", "eventType", "globalTid", "text", "textId")
        for start, end, kind, thread, text, number in self._rows(_RANGES, columns):
            title: str = text or self._texts.get(number, "")
            if end is not None and title and kind in _WITH_END:
                yield Group.RANGE, Event(**_timed(title, start, end), **_thread(thread))

    def _on_device(self, row: list[Any], name: str, size: int | None = None, grid: tuple[msgspec.Raw, ...] = ()) -> Event:
        start, end, device, stream, number, process = row
        args = DeviceArgs(device=device, stream=stream, correlation=self._correlation(process, number), bytes=size)
        if grid:
            args.grid, args.block = grid
        found: Event = event_of(Group.KERNEL, **_timed(name, start, end), pid=device, tid=stream, args=args)
        return found

    def _correlation(self, owner: int | None, number: int | None) -> int | None:
        """Return a number that no other process has; each counts its own calls from 1."""
        if number is None:
            return None
        process = 0 if owner is None else owner >> 24
        return number + (self._processes.setdefault(process, len(self._processes)) << _PROCESS_BITS)

    def _rows(self, table: str, columns: Iterable[str]) -> Iterator[Any]:
        """Yield some columns of a table, `None` for those that this version of the program does not write; nothing without it."""
        if table in self._columns:
            chosen = ", ".join(f'"{column}"' if column in self._columns[table] else "NULL" for column in columns)
            yield from self._database.execute(f'SELECT {chosen} FROM "{table}"')


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
