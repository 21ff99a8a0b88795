"""Profiler traces: `read_trace` turns a file into a frozen `Trace`."""

from strobe.perf.trace.events import (
    CollectiveKind,
    DeviceEvent,
    DeviceEvents,
    HostEvent,
    HostEvents,
    MemoryTrack,
    OperatorFacts,
    OperatorInputs,
    ReadCounts,
    Region,
    Trace,
)
from strobe.perf.trace.reader import captures_of, find_traces, read_trace

__all__ = [
    "CollectiveKind",
    "DeviceEvent",
    "DeviceEvents",
    "HostEvent",
    "HostEvents",
    "MemoryTrack",
    "OperatorFacts",
    "OperatorInputs",
    "ReadCounts",
    "Region",
    "Trace",
    "captures_of",
    "find_traces",
    "read_trace",
]
