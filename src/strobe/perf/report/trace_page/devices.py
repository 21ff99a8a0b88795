"""Devices of a study: their names in tables, and the style of their activity in pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from strobe.perf.analysis.device.device_work import DeviceView, device_views
from strobe.perf.analysis.device.idle import HOST_LATE, LAUNCH_LATENCY, PROFILER_OVERHEAD, QUEUED, UNLINKED
from strobe.perf.report.model import Kind
from strobe.perf.report.trace_study import TraceStudy

CLASS_KINDS: Final = {
    "kernel": Kind("kernels", "work1"), "comm": Kind("communication", "work2"),
    "memcpy": Kind("copies", "work3"), "memset": Kind("memsets", "work4"),
    HOST_LATE: Kind("idle: host late", "gap1"), LAUNCH_LATENCY: Kind("idle: launch latency", "gap2"),
    QUEUED: Kind("idle: queued, not started", "gap3"), UNLINKED: Kind("idle: cause unknown", "gap4"),
    PROFILER_OVERHEAD: Kind("idle: profiler overhead", "gap5"),
}  # fmt: skip
"""Label and style of each of `activity.CLASSES`."""

CAUSE_HINTS: Final = {
    HOST_LATE: "the launch call had not started yet",
    LAUNCH_LATENCY: "from the start of the launch call to the start on the device",
    QUEUED: "launched before the gap, or a later event of a graph: waited for a dependency, a copy or a synchronisation",
    PROFILER_OVERHEAD: "the host was late because the profiler, or the loading of a kernel, held it up",
    UNLINKED: "the trace does not hold the launch of the event that ends the gap, or no event ends it",
}


def named_views(study: TraceStudy) -> Iterator[tuple[str, DeviceView]]:
    """Yield each device that has events during the chosen window, with its name."""
    for trace, label, window in zip(study.traces, study.labels, study.windows, strict=True):
        for view in device_views(trace, window):
            yield device_name(study, label, view.device), view


def device_name(study: TraceStudy, label: str, device: int) -> str:
    """Return the name of a device: its number, after the trace's label if there are several traces."""
    return f"device {device}" if len(study.traces) == 1 else f"{label}, device {device}"


def during(view: DeviceView) -> str:
    """Return the window of a view in words."""
    return f"window {view.window.label}" if view.window else "the whole trace"
