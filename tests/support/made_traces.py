"""Traces made of rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from strobe.perf.trace import DeviceEvent, DeviceEvents, HostEvent, HostEvents, Trace


def host_events(rows: Iterable[HostEvent]) -> HostEvents:
    """Return rows in the order of a reader: by start, of those that start together the longer first."""
    return HostEvents.from_rows(sorted(rows, key=lambda row: (row.start_ns, -row.end_ns)))


def trace_of(
    events: Iterable[DeviceEvent] = (),
    ranges: Iterable[HostEvent] = (),
    modules: Iterable[HostEvent] = (),
    *,
    ops: Iterable[HostEvent] = (),
    **fields: Any,
) -> Trace:
    """Return a trace of these rows, which come in any order."""
    ordered = sorted(events, key=lambda event: (event.start_ns, -event.end_ns))
    usual = {"path": Path("t.json"), "threads": ("1/1", "1/2"), "regions": ()}
    stores = {"ops": host_events(ops), "ranges": host_events(ranges), "modules": host_events(modules)}
    return Trace(**usual | fields, **stores, device_events=DeviceEvents.from_rows(ordered))
