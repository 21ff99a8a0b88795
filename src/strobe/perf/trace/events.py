"""What a profiler trace says, as frozen columns. Times are integer nanoseconds relative to `Trace.base_ns`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

DEVICE_KINDS: Final = ("kernel", "comm", "memset", "memcpy")
_NO_HOST: Final = -1


class HostEvent(NamedTuple):
    """An operator or a launch call on a host thread; `thread` counts into `Trace.threads`."""

    name: str
    start_ns: int
    end_ns: int
    thread: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """One of our spans: `strobe::frame_block#3` is `name="frame_block", index=3`."""

    name: str
    index: int | None
    start_ns: int
    end_ns: int
    thread: int


class DeviceEvent(NamedTuple):
    """Work on an accelerator.

    `kind` is one of `DEVICE_KINDS`. `host` is the call that launched it, found by correlation; `None` means that the call lies
    before the recorded window (unlinked). `ordinal` counts the events of one call in order of start: a graph launch has many.
    """

    name: str
    kind: str
    start_ns: int
    end_ns: int
    device: int
    stream: int
    correlation: int
    ordinal: int
    host: HostEvent | None


class _Names:
    """Interned names: each distinct text is stored once."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def id_of(self, name: str) -> int:
        return self._ids.setdefault(name, len(self._ids))

    def texts(self) -> tuple[str, ...]:
        return tuple(self._ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostEvents:
    """Column store of `HostEvent` rows, in order of start (an enclosing event before what it encloses)."""

    names: tuple[str, ...]
    name: array[int]
    start_ns: array[int]
    end_ns: array[int]
    thread: array[int]

    @classmethod
    def from_rows(cls, rows: Iterable[HostEvent]) -> Self:
        """Store rows that are already in order of start."""
        names = _Names()
        name, start, end, thread = array("i"), array("q"), array("q"), array("i")
        for row in rows:
            name.append(names.id_of(row.name))
            start.append(row.start_ns)
            end.append(row.end_ns)
            thread.append(row.thread)
        return cls(names=names.texts(), name=name, start_ns=start, end_ns=end, thread=thread)

    def __len__(self) -> int:
        return len(self.start_ns)

    def __getitem__(self, position: int) -> HostEvent:
        return HostEvent(self.names[self.name[position]], self.start_ns[position], self.end_ns[position], self.thread[position])

    def __iter__(self) -> Iterator[HostEvent]:
        return map(self.__getitem__, range(len(self)))


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceEvents:
    """Column store of `DeviceEvent` rows, in order of start. The launch calls are stored once, in `hosts`."""

    names: tuple[str, ...]
    hosts: HostEvents
    name: array[int]
    kind: array[int]
    start_ns: array[int]
    end_ns: array[int]
    device: array[int]
    stream: array[int]
    correlation: array[int]
    ordinal: array[int]
    host: array[int]

    @classmethod
    def from_rows(cls, rows: Iterable[DeviceEvent]) -> Self:
        """Store rows that are already in order of start."""
        names = _Names()
        hosts: dict[HostEvent, int] = {}
        name, kind, start, end = array("i"), array("b"), array("q"), array("q")
        device, stream, correlation, ordinal, host = array("q"), array("q"), array("q"), array("i"), array("i")
        for row in rows:
            name.append(names.id_of(row.name))
            kind.append(DEVICE_KINDS.index(row.kind))
            start.append(row.start_ns)
            end.append(row.end_ns)
            device.append(row.device)
            stream.append(row.stream)
            correlation.append(row.correlation)
            ordinal.append(row.ordinal)
            host.append(_NO_HOST if row.host is None else hosts.setdefault(row.host, len(hosts)))
        return cls(
            names=names.texts(), hosts=HostEvents.from_rows(hosts), name=name, kind=kind, start_ns=start, end_ns=end,
            device=device, stream=stream, correlation=correlation, ordinal=ordinal, host=host,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.start_ns)

    def __getitem__(self, position: int) -> DeviceEvent:
        host = self.host[position]
        return DeviceEvent(
            self.names[self.name[position]],
            DEVICE_KINDS[self.kind[position]],
            self.start_ns[position],
            self.end_ns[position],
            self.device[position],
            self.stream[position],
            self.correlation[position],
            self.ordinal[position],
            None if host == _NO_HOST else self.hosts[host],
        )

    def __iter__(self) -> Iterator[DeviceEvent]:
        return map(self.__getitem__, range(len(self)))


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadCounts:
    """How the reading went.

    Args:
        events: events read, of every category.
        lost: events that could not be read at all.
        mended: events kept after control characters or bad UTF-8 were replaced, or a negative duration set to 0.
        truncated: the file ends before its JSON does.
    """

    events: int = 0
    lost: int = 0
    mended: int = 0
    truncated: bool = False

    @property
    def clean(self) -> bool:
        """Nothing was bad."""
        return not (self.lost or self.mended or self.truncated)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """One trace file of one process.

    Args:
        path: where it was read from.
        base_ns: nanoseconds since the epoch that every time here is relative to (0 in old traces, whose times are absolute).
        rank: rank of the process, where the trace says it.
        device_names: names of the devices the trace lists.
        counts: how the reading went.
        threads: `pid/tid` of each host thread; `thread` fields count into it.
        ops: operators of every host thread.
        regions: our spans, in order of start, an enclosing region before what it encloses.
        device_events: kernels, communication, memsets and copies; empty for a CPU trace.
        overhead: when the profiler itself held up the host: disjoint intervals in order.
    """

    path: Path
    base_ns: int = 0
    rank: int | None = None
    device_names: tuple[str, ...] = ()
    counts: ReadCounts = ReadCounts()
    threads: tuple[str, ...]
    ops: HostEvents
    regions: tuple[Region, ...]
    device_events: DeviceEvents
    overhead: tuple[tuple[int, int], ...] = ()
