"""Traces made of rows."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from strobe.perf.trace import DeviceEvent, DeviceEvents, HostEvent, HostEvents, Trace
from strobe.perf.trace.columns import narrow
from strobe.perf.trace.events import DEVICE_KINDS, NO_HOST


def host_events(rows: Iterable[HostEvent]) -> HostEvents:
    """Return rows in the order of a reader: by start, of those that start together the longer first."""
    return HostEvents.from_rows(sorted(rows, key=lambda row: (row.start_ns, -row.end_ns)))


def device_events(rows: Iterable[DeviceEvent]) -> DeviceEvents:
    """Store rows that are already in order of start."""
    names, shapes, hosts = dict[str, int](), dict[str, int](), dict[HostEvent, int]()
    columns = [
        (
            names.setdefault(row.name, len(names)), DEVICE_KINDS.index(row.kind), row.start_ns, row.end_ns, row.device,
            row.stream, row.ordinal, NO_HOST if row.host is None else hosts.setdefault(row.host, len(hosts)),
            shapes.setdefault(row.shape, len(shapes)),
        )
        for row in rows
    ]  # fmt: skip
    name, kind, start, end, device, stream, ordinal, host, shape = zip(*columns, strict=True) if columns else ((),) * 9
    return DeviceEvents(
        names=tuple(names), shapes=tuple(shapes), hosts=HostEvents.from_rows(hosts), name=narrow(name), kind=narrow(kind),
        start_ns=array("q", start), end_ns=array("q", end), device=narrow(device), stream=narrow(stream),
        ordinal=narrow(ordinal), host=array("i", host), shape=narrow(shape),
    )  # fmt: skip


def trace_of(
    events: Iterable[DeviceEvent] = (),
    ranges: Iterable[HostEvent] = (),
    modules: Iterable[HostEvent] = (),
    *,
    ops: Iterable[HostEvent] = (),
    overhead: Iterable[tuple[int, int]] = (),
    **fields: Any,
) -> Trace:
    """Return a trace of these rows, which come in any order."""
    ordered = sorted(events, key=lambda event: (event.start_ns, -event.end_ns))
    usual: dict[str, Any] = {"path": Path("t.json"), "threads": ("1/1", "1/2"), "regions": ()}
    stores = {"ops": host_events(ops), "ranges": host_events(ranges), "modules": host_events(modules)}
    usual["overheads"] = host_events(HostEvent("overhead", *held, 0) for held in overhead)
    return Trace(**usual | fields, **stores, device_events=device_events(ordered))
