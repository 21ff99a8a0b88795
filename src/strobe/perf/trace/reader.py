"""Reads a chrome trace as `torch.profiler` writes it into a `Trace`, exactly and in bounded memory.

Times are turned from their decimal digits into integer nanoseconds; no float is involved, because the microseconds of a real
trace (up to 7.9e12) with three decimals do not fit a float64. Device events are joined to their launch call by correlation.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from pathlib import Path
from typing import Final

import msgspec

from strobe.core.errors import TraceFormatError
from strobe.perf.trace.chunks import UNREADABLE, Args, Metadata, Progress, RawEvent, event_chunks
from strobe.perf.trace.events import DEVICE_KINDS, Device, DeviceEvent, DeviceEvents, HostEvent, HostEvents, ReadCounts, Region, Trace

_CATEGORIES: Final = {
    "cpu_op": "op", "Operator": "op", "user_annotation": "region", "overhead": "overhead",
    "kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset",
    "Kernel": "kernel", "Memcpy": "memcpy", "Memset": "memset",
    "cuda_runtime": "launch", "cuda_driver": "launch", "Runtime": "launch",
}  # fmt: skip
_SPAN: Final = re.compile(r"strobe::(?P<name>.+?)(?:#(?P<index>[0-9]{1,18}))?")
_COMMUNICATION: Final = re.compile(r"nccl|rccl", re.IGNORECASE)
_MICROSECONDS: Final = re.compile(rb"(-?)([0-9]{1,16})(?:\.([0-9]{1,3}))?")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_LIMIT: Final = 1 << 62  # a start plus a duration then fits 64 bits


def read_trace(path: str | Path) -> Trace:
    """Read a profiler trace (`.json` or `.json.gz`).

    A truncated or partly malformed file is read as far as possible; `Trace.counts` says what was bad.

    Raises:
        TraceFormatError: the file cannot be opened, is not a trace, or has no readable event.
    """
    path, progress, columns = Path(path), Progress(), _Columns()
    try:
        with path.open("rb") as file:
            for events in event_chunks(file, progress):
                for event in events:
                    columns.add(event)
    except OSError as error:
        raise TraceFormatError(f"cannot read trace {path}: {error.strerror}") from error
    except TraceFormatError as error:
        raise TraceFormatError(f"{path}: {error}") from error
    counts = ReadCounts(
        events=columns.events,
        lost=progress.lost + columns.lost,
        mended=progress.mended + columns.mended,
        truncated=progress.truncated,
    )
    if counts.lost and not counts.events:
        raise TraceFormatError(f"{path}: none of its {counts.lost} events can be read; capture the trace again")
    return columns.trace(path, progress.metadata, counts)


def nanoseconds(digits: bytes) -> int:
    """Turn decimal microseconds into integer nanoseconds, exactly; digits below 1 ns are rounded half to even.

    Raises:
        ValueError: not a finite number, or beyond 64 bits.
    """
    match = _MICROSECONDS.fullmatch(digits)
    if match:
        sign, whole, fraction = match.groups(b"")
        value = int(sign + whole + fraction.ljust(3, b"0"))
    else:
        try:
            microseconds = Decimal(digits.decode("ascii").strip('"'))
        except InvalidOperation as error:
            raise ValueError(f"not a number: {digits!r}") from error
        if not microseconds.is_finite() or microseconds.adjusted() > 15:
            raise ValueError(f"not a time in microseconds: {digits!r}")
        value = int(microseconds.scaleb(3).to_integral_value(ROUND_HALF_EVEN))
    if abs(value) >= _LIMIT:
        raise ValueError(f"beyond 64 bits in nanoseconds: {digits!r}")
    return value


class _Columns:
    """The events that are kept, in file order, until `trace` sorts and joins them."""

    def __init__(self) -> None:
        self.events = self.lost = self.mended = 0
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[bytes, bytes], int] = {}
        self._ops = _Rows()
        self._launches = _Rows()
        self._launch_of: dict[int, int] = {}
        self._device = _Rows()
        self._device_keys: tuple[array[int], array[int], array[int]] = (array("q"), array("q"), array("q"))
        self._regions: list[Region] = []
        self._overhead: list[tuple[int, int]] = []

    def add(self, event: RawEvent) -> None:
        """Keep what the analysis needs of one event."""
        self.events += 1
        category = _CATEGORIES.get(event.cat or "") if event.ph == "X" else None
        if category is None or (category == "region" and not event.name.startswith("strobe::")):
            return
        try:
            start, duration = nanoseconds(bytes(event.ts)), nanoseconds(bytes(event.dur))
        except ValueError:
            self.lost += 1
            return
        if duration < 0:
            self.mended += 1
        end = start + max(0, duration)
        if category == "overhead":
            self._overhead.append((start, end))
        elif category in DEVICE_KINDS:
            self._add_device(event, category, start, end)
        else:
            self._add_host(event, category, start, end)

    def _add_host(self, event: RawEvent, category: str, start: int, end: int) -> None:
        thread = self._threads.setdefault((bytes(event.pid), bytes(event.tid)), len(self._threads))
        if category == "region":
            match = _SPAN.fullmatch(event.name)
            if match:
                index = None if match["index"] is None else int(match["index"])
                self._regions.append(Region(name=match["name"], index=index, start_ns=start, end_ns=end, thread=thread))
        elif category == "op":
            self._ops.append(self._name(event.name), start, end, thread)
        elif event.args is not None and (correlation := _integer(event.args.correlation)) >= 0:
            known = self._launch_of.get(correlation)
            if known is None or start < self._launches.start[known]:  # a driver call inside a runtime call: the outer one
                self._launch_of[correlation] = len(self._launches.start)
                self._launches.append(self._name(event.name), start, end, thread)

    def _add_device(self, event: RawEvent, category: str, start: int, end: int) -> None:
        if category == "kernel" and _COMMUNICATION.search(event.name):
            category = "comm"
        args = event.args or Args()
        self._device.append(self._name(event.name), start, end, DEVICE_KINDS.index(category))
        for column, value in zip(self._device_keys, (args.device, args.stream, args.correlation), strict=True):
            column.append(_integer(value))

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def trace(self, path: Path, metadata: list[Metadata], counts: ReadCounts) -> Trace:
        """Sort, join and freeze."""
        names = tuple(self._names)
        return Trace(
            path=path,
            base_ns=_base_ns(metadata),
            rank=_rank(metadata),
            devices=tuple(Device(index=i, name=name) for i, name in enumerate(_device_names(metadata))),
            counts=counts,
            threads=tuple("/".join(part.decode("utf-8", "replace").strip('"') for part in key) for key in self._threads),
            ops=HostEvents.from_rows(HostEvent(*self._ops.row(names, i)) for i in self._ops.order(names)),
            regions=tuple(sorted(self._regions, key=lambda r: (r.start_ns, -r.end_ns, r.name, r.index or 0))),
            device_events=DeviceEvents.from_rows(self._device_rows(names)),
            overhead=_union(self._overhead),
        )

    def _device_rows(self, names: tuple[str, ...]) -> Iterator[DeviceEvent]:
        devices, streams, correlations = self._device_keys
        ordinals: dict[int, int] = {}
        for i in self._device.order(names):
            correlation = correlations[i]
            launch = self._launch_of.get(correlation)
            ordinal = 0 if launch is None else ordinals.get(correlation, 0)
            ordinals[correlation] = ordinal + 1
            name, start, end, kind = self._device.row(names, i)
            host = None if launch is None else HostEvent(*self._launches.row(names, launch))
            yield DeviceEvent(name, DEVICE_KINDS[kind], start, end, devices[i], streams[i], ordinal, host)


class _Rows:
    """Unsorted columns; `tag` is the thread of a host event, the kind of a device event."""

    def __init__(self) -> None:
        self.name, self.start, self.end, self.tag = array("i"), array("q"), array("q"), array("i")

    def append(self, name: int, start: int, end: int, tag: int) -> None:
        self.name.append(name)
        self.start.append(start)
        self.end.append(end)
        self.tag.append(tag)

    def order(self, names: tuple[str, ...]) -> list[int]:
        """Positions in order of start; of two that start together the longer, then the name decides."""
        return sorted(range(len(self.start)), key=lambda i: (self.start[i], -self.end[i], names[self.name[i]]))

    def row(self, names: tuple[str, ...], i: int) -> tuple[str, int, int, int]:
        return (names[self.name[i]], self.start[i], self.end[i], self.tag[i])


def _integer(value: float | str | None) -> int:
    return value if isinstance(value, int) and 0 <= value < _LIMIT else -1


def _union(intervals: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    union: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return tuple(union)


class _Distributed(msgspec.Struct):
    rank: int | str | None = None


class _Device(msgspec.Struct):
    name: str = ""


def _base_ns(metadata: list[Metadata]) -> int:
    bases = (bytes(part.base_time).decode("utf-8", "replace").strip('"') for part in metadata)
    return max((int(base) for base in bases if _NUMBER.fullmatch(base)), default=0)


def _rank(metadata: list[Metadata]) -> int | None:
    for part in metadata:
        try:
            rank = msgspec.json.decode(part.distributed, type=_Distributed).rank
        except UNREADABLE:
            continue
        if rank is not None and _NUMBER.fullmatch(str(rank)):
            return int(rank)
    return None


def _device_names(metadata: list[Metadata]) -> tuple[str, ...]:
    for part in metadata:
        try:
            return tuple(device.name for device in msgspec.json.decode(part.devices, type=list[_Device]))
        except UNREADABLE:
            continue
    return ()
