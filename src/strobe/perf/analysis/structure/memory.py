"""Memory of each device over time: peaks, and the ranges and modules that were open at them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strobe.perf.analysis.device.intervals import Window, column
from strobe.perf.analysis.structure.ranges import ranges_and_modules
from strobe.perf.trace.events import MemoryTrack, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """Memory of one device over time; reserved memory is 0 where it was not recorded.

    Args:
        device: `cuda:0`, `cpu`.
        step_ns: length of a stretch: times are exact to within this.
        start_allocated_bytes: allocated memory at the beginning, and `end_allocated_bytes` at the end.
        peak_allocated_bytes: the most allocated memory, `reserved_then_bytes` what was reserved then.
        peak_at_ns: time from the beginning to the first stretch with the peak.
        peak_reserved_bytes: the most that the allocator held.
        peak_in: the ranges and modules that were open at the start of the peak's stretch, from the outermost on, on the thread
            that had most of them open; empty if there were none.
        points: over time, of neighbours the one with the most allocated memory: time from the beginning, allocated and reserved
            memory.
    """

    device: str
    step_ns: int
    start_allocated_bytes: int
    end_allocated_bytes: int
    peak_allocated_bytes: int
    reserved_then_bytes: int
    peak_at_ns: int
    peak_reserved_bytes: int
    peak_in: tuple[str, ...]
    points: tuple[tuple[int, int, int], ...]


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
    peak, thinned = int(allocated.argmax()), [int(part[allocated[part].argmax()]) for part in bins]
    since = start - start[0]
    points = zip(*(values[thinned].tolist() for values in (since, allocated, reserved)), strict=True)
    return MemoryUse(
        device=track.device,
        step_ns=track.step_ns,
        start_allocated_bytes=int(allocated[0]),
        end_allocated_bytes=int(allocated[-1]),
        peak_allocated_bytes=int(allocated[peak]),
        reserved_then_bytes=int(reserved[peak]),
        peak_at_ns=int(since[peak]),
        peak_reserved_bytes=int(reserved.max()),
        peak_in=_open_at(trace, int(start[peak])),
        points=tuple(points),
    )


def _open_at(trace: Trace, moment: int) -> tuple[str, ...]:
    scopes = ranges_and_modules(trace)
    begin, end, thread = column(scopes.start_ns), column(scopes.end_ns), column(scopes.thread)
    open_then = np.flatnonzero((begin <= moment) & (moment < end))
    if not len(open_then):
        return ()
    most = int(np.bincount(thread[open_then]).argmax())
    return tuple(scopes.names[scopes.name[scope]] for scope in open_then.tolist() if thread[scope] == most)
