"""Causes of idle time: each gap between device events is split exactly by what it waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.intervals import Intervals, Ints, complement, overlaps

HOST_LATE: Final = "host_late"
PROFILER_OVERHEAD: Final = "profiler_overhead"
LAUNCH_LATENCY: Final = "launch_latency"
QUEUED: Final = "queued"
UNLINKED: Final = "unlinked"
CAUSES: Final = (HOST_LATE, LAUNCH_LATENCY, QUEUED, PROFILER_OVERHEAD, UNLINKED)
IDLE: Final = frozenset(CAUSES)


class IdleSlices(NamedTuple):
    """Parts of gaps, in order: position of the gap, cause as a position in `CAUSES`, and interval."""

    gap: Ints
    cause: NDArray[np.int8]
    start: Ints
    end: Ints


def split_gaps(
    gaps: Intervals, launch: Ints, linked: NDArray[np.bool_], first: NDArray[np.bool_], overhead: Intervals
) -> IdleSlices:
    """Split idle gaps by what the device event after each of them waited for.

    With `h` the start of the event's launch call: `[start, h)` is `host_late` (`profiler_overhead` where the profiler held up
    the host) and `[h, end)` is `launch_latency`. A launch before the gap was `queued` (a stream dependency, a synchronisation);
    so was every graph node after the first. An event without a known launch, or no event, makes the gap `unlinked`.

    Args:
        gaps: disjoint, in order, none empty.
        launch: start of the launch call of the event that ends each gap; anything where `linked` is false.
        linked: whether an event with a known launch ends the gap.
        first: whether that event is the first of its launch call.
        overhead: disjoint intervals in order, in which the profiler held up the host.

    Returns:
        Pieces that tile the gaps, none empty.
    """
    waited = linked & first & (launch >= gaps.start)
    handed = np.where(waited, np.minimum(launch, gaps.end), gaps.start)
    late = Intervals(gaps.start, handed)
    held = overlaps(late, overhead)
    begin, stop = (int(gaps.start[0]), int(gaps.end[-1])) if len(gaps.start) else (0, 0)
    free = overlaps(late, complement(overhead, begin, stop))
    rest = np.flatnonzero(gaps.end > handed)
    of_rest = np.where(waited, CAUSES.index(LAUNCH_LATENCY), np.where(linked, CAUSES.index(QUEUED), CAUSES.index(UNLINKED)))
    gap = np.concatenate((held.a, free.a, rest))
    causes = (np.full(len(held.a), CAUSES.index(PROFILER_OVERHEAD)), np.full(len(free.a), CAUSES.index(HOST_LATE)), of_rest[rest])
    start = np.concatenate((held.start, free.start, handed[rest]))
    end = np.concatenate((held.end, free.end, gaps.end[rest]))
    order = np.argsort(start, kind="stable")
    return IdleSlices(gap[order], np.concatenate(causes).astype(np.int8)[order], start[order], end[order])


def overhead_intervals(overhead: Sequence[tuple[int, int]]) -> Intervals:
    """Return the trace's overhead as columns."""
    columns = np.array(overhead, np.int64).reshape(-1, 2)
    return Intervals(columns[:, 0], columns[:, 1])
