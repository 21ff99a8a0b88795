"""Why a device was idle: each gap between device events is split exactly by what it waited for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import Final, TypeAlias

from strobe.perf.trace.events import DeviceEvent

HOST_LATE: Final = "host_late"
PROFILER_OVERHEAD: Final = "profiler_overhead"
LAUNCH_LATENCY: Final = "launch_latency"
QUEUED: Final = "queued"
UNLINKED: Final = "unlinked"
IDLE: Final = frozenset({HOST_LATE, PROFILER_OVERHEAD, LAUNCH_LATENCY, QUEUED, UNLINKED})

Interval: TypeAlias = tuple[int, int]


def split_gap(start_ns: int, end_ns: int, event: DeviceEvent | None, overhead: Sequence[Interval]) -> list[tuple[str, int, int]]:
    """Split the idle gap `[start_ns, end_ns)` that the start of `event` ends.

    With `h` the start of the event's launch call: `[start, h)` is `host_late` (`profiler_overhead` where the profiler held up
    the host) and `[h, end)` is `launch_latency`. A launch before the gap was `queued` (a stream dependency, a synchronisation);
    so was every graph node after the first. An event without a known launch, or no event, makes the gap `unlinked`.

    Args:
        start_ns: start of the gap.
        end_ns: end of the gap.
        event: the device event that starts at `end_ns`.
        overhead: disjoint intervals in order, in which the profiler held up the host.

    Returns:
        `(class, start, end)` pieces in order, none empty, that tile the gap.
    """
    if event is None or event.host is None:
        return [(UNLINKED, start_ns, end_ns)]
    launch = event.host.start_ns
    if launch < start_ns or event.ordinal > 0:
        return [(QUEUED, start_ns, end_ns)]
    launch = min(launch, end_ns)
    pieces: list[tuple[str, int, int]] = []
    position = start_ns
    first = max(0, bisect_right(overhead, (start_ns, start_ns)) - 1)
    for held in islice(overhead, first, None):
        if held[0] >= launch:
            break
        held_start, held_end = max(held[0], position), min(held[1], launch)
        if held_start < held_end:
            pieces += [(HOST_LATE, position, held_start), (PROFILER_OVERHEAD, held_start, held_end)]
            position = held_end
    pieces += [(HOST_LATE, position, launch), (LAUNCH_LATENCY, launch, end_ns)]
    return [piece for piece in pieces if piece[1] < piece[2]]
