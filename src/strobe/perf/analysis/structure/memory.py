"""Memory of each device over time: peaks, and the ranges and modules that were open at them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strobe.perf.analysis.device.intervals import Ints, Window, column
from strobe.perf.analysis.structure.ranges import ranges_and_modules
from strobe.perf.trace.events import MemoryTrack, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPoint:
    """Largest values in a stretch of time that starts at `start_ns`; reserved is 0 where it was not recorded."""

    start_ns: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """Memory of one device over time.

    Args:
        device: `cuda:0`, `cpu`.
        step_ns: length of a stretch: times are exact to within this.
        first: values at the beginning, and `last` at the end.
        peak: the stretch with the most allocated memory, the first of several.
        reserved_peak_bytes: the most that the allocator held; 0 where it was not recorded.
        peak_in: the ranges and modules that were open at the start of the peak's stretch, from the outermost on, on the thread
            that had most of them open; empty if there were none.
        points: over time, of neighbours the one with the most allocated memory.
    """

    device: str
    step_ns: int
    first: MemoryPoint
    last: MemoryPoint
    peak: MemoryPoint
    reserved_peak_bytes: int
    peak_in: tuple[str, ...]
    points: tuple[MemoryPoint, ...]


def memory_use(trace: Trace, window: Window | None = None, num_points: int = 256) -> tuple[MemoryUse, ...]:
    """Summarise the memory of each device whose allocations were recorded.

    Args:
        trace: the trace.
        window: the part of it to look at. Memory is recorded on the host's clock: what the host allocated during the window.
        num_points: points of the timeline at most.
    """
    return tuple(use for track in trace.memory if (use := _use(trace, track, window, num_points)) is not None)


def _use(trace: Trace, track: MemoryTrack, window: Window | None, num_points: int) -> MemoryUse | None:
    start, allocated, reserved = (
        np.array(part, np.int64) for part in (track.start_ns, track.allocated_bytes, track.reserved_bytes)
    )
    if window is not None:
        here = (start + track.step_ns > window.start_ns) & (start < window.end_ns)
        start, allocated, reserved = start[here], allocated[here], reserved[here]
    if not len(start):
        return None
    bins = np.array_split(np.arange(len(start)), min(num_points, len(start)))
    peak = int(allocated.argmax())
    return MemoryUse(
        device=track.device,
        step_ns=track.step_ns,
        first=_point((start, allocated, reserved), 0),
        last=_point((start, allocated, reserved), len(start) - 1),
        peak=_point((start, allocated, reserved), peak),
        reserved_peak_bytes=int(reserved.max()),
        peak_in=_open_at(trace, int(start[peak])),
        points=tuple(_point((start, allocated, reserved), int(part[allocated[part].argmax()])) for part in bins),
    )


def _point(columns: tuple[Ints, Ints, Ints], place: int) -> MemoryPoint:
    return MemoryPoint(
        start_ns=int(columns[0][place]), allocated_bytes=int(columns[1][place]), reserved_bytes=int(columns[2][place])
    )


def _open_at(trace: Trace, moment: int) -> tuple[str, ...]:
    scopes = ranges_and_modules(trace)
    begin, end, thread = column(scopes.start_ns), column(scopes.end_ns), column(scopes.thread)
    open_then = np.flatnonzero((begin <= moment) & (moment < end))
    if not len(open_then):
        return ()
    most = int(np.bincount(thread[open_then]).argmax())
    return tuple(scopes.names[scopes.name[scope]] for scope in open_then.tolist() if thread[scope] == most)
