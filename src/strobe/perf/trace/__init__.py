"""Profiler traces: `read_trace` turns a file into a frozen `Trace`."""

from strobe.perf.trace.events import DeviceEvent, DeviceEvents, HostEvent, HostEvents, ReadCounts, Region, Trace
from strobe.perf.trace.reader import read_trace

__all__ = ["DeviceEvent", "DeviceEvents", "HostEvent", "HostEvents", "ReadCounts", "Region", "Trace", "read_trace"]
