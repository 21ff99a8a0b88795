"""Memory of each device over time: peaks, and the ranges and modules that were open at them."""

from __future__ import annotations

from typing import Annotated as A
from typing import Final, TypeAlias

import numpy as np

from strobe.perf.analysis.device.intervals import Window, column
from strobe.perf.analysis.structure.ranges import ranges_and_modules
from strobe.perf.table.model import Cell, Code, Missing, Number, Time, bytes_cell
from strobe.perf.table.rows import DocumentPart, col, term
from strobe.perf.trace.events import MemoryTrack, Trace

_NOT_RECORDED: Final = "not recorded"
_NO_RANGE: Final = "no range was open"


def mib(value: int) -> Number:
    """Return the cell of a size in MiB, or in KiB below 1 MiB."""
    return bytes_cell(value, "MiB", 1) if abs(value) >= 1 << 20 or not value else bytes_cell(value, "KiB", 3)


def recorded(value: int) -> Cell:
    """Return the cell of a size that is 0 where it was not recorded."""
    return mib(value) if value else Missing(_NOT_RECORDED, "-")


class MemoryRow(DocumentPart, frozen=True, kw_only=True):
    """Memory of one device; only devices whose allocations were recorded have a row."""

    trace: A[str, col("label of the trace, as in `files`")]
    device: A[str, col("name of the device, e.g. `cuda:0`")]
    peak_allocated_bytes: A[int, col("peak of the allocated memory", "peak allocated", mib)]
    peak_at_ns: A[int, col("time of the peak after the first recorded allocation", "at", Time)]
    peak_in: A[str, col("ranges and modules open then, innermost first", "in", Code, where="peak_in", missing=_NO_RANGE)]
    reserved_then_bytes: A[int, col("reserved memory at the peak; 0: not recorded", "reserved then", recorded)]
    peak_reserved_bytes: A[int, col("peak of the reserved memory; 0: not recorded", "peak reserved", recorded)]
    start_allocated_bytes: A[int, col("allocated memory at the start", "at the start", mib)]
    end_allocated_bytes: A[int, col("allocated memory at the end", "at the end", mib)]
    step_ns: A[int, term("times are exact to within this", "stretch", Time)]


MemoryUse: TypeAlias = tuple[MemoryRow, tuple[tuple[int, int, int], ...]]
"""Memory of one device, and points over time, of neighbours the one with the most allocated memory: time from the beginning,
allocated and reserved memory."""


def memory_use(trace: Trace, window: Window | None = None, num_points: int = 256) -> tuple[MemoryUse, ...]:
    """Summarise the memory of each device whose allocations were recorded.

    Args:
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
    row = MemoryRow(
        trace=trace.label,
        device=track.device,
        step_ns=track.step_ns,
        start_allocated_bytes=int(allocated[0]),
        end_allocated_bytes=int(allocated[-1]),
        peak_allocated_bytes=int(allocated[peak]),
        reserved_then_bytes=int(reserved[peak]),
        peak_at_ns=int(since[peak]),
        peak_reserved_bytes=int(reserved.max()),
        peak_in=" < ".join(reversed(_open_at(trace, int(start[peak])))),
    )
    return row, tuple(points)


def _open_at(trace: Trace, moment: int) -> tuple[str, ...]:
    """Return the ranges and modules open at a moment, outermost first, on the thread that had most of them open."""
    scopes = ranges_and_modules(trace)
    begin, end, thread = column(scopes.start_ns), column(scopes.end_ns), column(scopes.thread)
    open_then = np.flatnonzero((begin <= moment) & (moment < end))
    if not len(open_then):
        return ()
    most = int(np.bincount(thread[open_then]).argmax())
    return tuple(scopes.names[scopes.name[scope]] for scope in open_then.tolist() if thread[scope] == most)
