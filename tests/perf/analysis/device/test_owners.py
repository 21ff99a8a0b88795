"""Labels of slices, their sums in tiles, and the regions open on a thread, against asking every single nanosecond."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, FFN
from strobe.perf.analysis.device.activity import (
    ACTIVITIES,
    BUSY,
    CAUSES,
    NONE,
    cut_at,
    events_by_device,
    label_slices,
    sums,
    tile_of,
)
from strobe.perf.analysis.device.intervals import Intervals
from strobe.perf.analysis.runs.timeline import NOT_LINKED, OUTSIDE, region_paths
from strobe.perf.trace import DeviceEvent, HostEvent, Region
from strobe.perf.trace.events import DEVICE_KINDS

_EVENTS = st.lists(
    st.tuples(st.integers(0, 45), st.integers(0, 20), st.sampled_from(DEVICE_KINDS), st.integers(0, 3), st.booleans()),
    min_size=1, max_size=12,
)  # fmt: skip
_EDGES = st.lists(st.integers(-5, 70), min_size=2, max_size=7).map(sorted)


def _tiles(edges: list[int]) -> Intervals:
    """Disjoint tiles in order; some touch and some are empty."""
    columns = np.array(list(pairwise(edges)), np.int64)
    return Intervals(columns[:, 0], columns[:, 1])


@given(events=_EVENTS, edges=_EDGES)
def test_every_nanosecond_of_every_tile(events: list[tuple[int, int, str, int, bool]], edges: list[int]) -> None:
    """The event of the lowest rank owns it, of equal ones the first; a gap has the place of the event that ends it."""
    rows = [
        DeviceEvent(f"e{place}", kind, start, start + size, 0, 7, 0, HostEvent("l", start - 3, start, 0) if known else None)
        for start, size, kind, place, known in sorted(events, key=lambda each: (each[0], -each[1]))
    ]
    trace = trace_of(rows)
    ((_, work),) = events_by_device(trace)
    rank = np.array([int(row.name[1:]) % 2 for row in rows], np.int8)
    of_event = np.array([int(row.name[1:]) for row in rows])
    tiles = _tiles(edges)
    slices = work.tile(trace, rank, -5, 70)
    place = np.where(slices.event == NONE, 4, of_event[slices.event])
    pieces = label_slices(work, slices, place, tiles)
    labels = [(where, activity) for where in range(5) for activity in ACTIVITIES]
    owned, exclusive = sums(pieces, tiles, labels, len(rows))
    took: Counter[int] = Counter()
    for number, (begin, stop) in enumerate(pairwise(edges)):
        busy: Counter[tuple[int, str]] = Counter()
        idle: Counter[int] = Counter()
        for moment in range(begin, stop):
            running = [i for i, row in enumerate(rows) if row.start_ns <= moment < row.end_ns]
            if running:
                owner = min(running, key=lambda i: (rank[i], i))
                busy[int(of_event[owner]), rows[owner].kind] += 1
                took[owner] += 1
                continue
            later = [i for i, row in enumerate(rows) if row.end_ns > row.start_ns > moment]
            ending = [i for i in later if rows[i].start_ns == rows[later[0]].start_ns]
            idle[int(of_event[min(ending, key=lambda i: (rank[i], i))]) if ending else 4] += 1
        assert {label: ns for label, ns in owned[number].items() if label[1] in DEVICE_KINDS} == busy
        found: Counter[int] = Counter()
        for (where, activity), ns in owned[number].items():
            found[where] += ns if activity in CAUSES else 0
        assert +found == idle
    assert {i: ns for i, ns in enumerate(exclusive.tolist()) if ns} == dict(took)
    assert (pieces.start[1:] >= pieces.end[:-1]).all(), "in order"


def test_labels_come_in_the_order_in_which_they_first_own_time() -> None:
    rows = [DeviceEvent("a", "memcpy", 10, 20, 0, 7, 0, None), DeviceEvent("b", "kernel", 30, 40, 0, 7, 0, None)]
    trace = trace_of(rows)
    ((_, work),) = events_by_device(trace)
    slices = work.tile(trace, np.zeros(2, np.int8), 0, 50)
    assert (slices.cause == BUSY).tolist() == [False, True, False, True, False]
    tiles = _tiles([0, 25, 50])
    pieces = label_slices(work, slices, np.zeros(len(slices.start), np.int64), tiles)
    owned, _ = sums(pieces, tiles, ACTIVITIES, 2)
    assert [list(each.items()) for each in owned] == [[("unlinked", 15), ("memcpy", 10)], [("unlinked", 15), ("kernel", 10)]]
    assert cut_at(pieces, Intervals(tiles.start[:0], tiles.end[:0])).start.size == 0


def test_a_moment_lies_in_the_tile_that_starts_last() -> None:
    tiles = _tiles([0, 10, 10, 20])
    moments = np.array([-1, 0, 9, 10, 19, 20])
    assert tile_of(moments, tiles).tolist() == [NONE, 0, 0, 2, 2, NONE]
    assert tile_of(moments, Intervals(tiles.start[:0], tiles.end[:0])).tolist() == [NONE] * 6


_REGIONS = st.lists(
    st.tuples(st.sampled_from([ATTENTION, ATTENTION_KERNEL, FFN]), st.integers(0, 20), st.integers(0, 12), st.integers(0, 1)),
    max_size=10,
)  # fmt: skip


@given(_REGIONS)
def test_of_regions_that_overlap_the_one_that_started_last_is_open(drawn: list[tuple[str, int, int, int]]) -> None:
    made = [Region(name=name, index=None, start_ns=at, end_ns=at + size, thread=thread) for name, at, size, thread in drawn]
    regions = sorted(made, key=lambda region: (region.start_ns, -region.end_ns))
    found = region_paths(regions, layers=False)
    assert found.texts[:2] == (OUTSIDE, NOT_LINKED)
    moments = np.arange(-1, 35)
    for thread in (0, 1, 2):
        for moment, path in zip(moments.tolist(), found.at(thread, moments).tolist(), strict=True):
            running = [i for i, each in enumerate(regions) if each.thread == thread and each.start_ns <= moment < each.end_ns]
            assert (found.texts[path][-1] if running else found.texts[path]) == (
                regions[running[-1]].name if running else OUTSIDE
            )
    by_region = {id(region): path for region, path in found}
    assert len(by_region) == len(regions) and all(by_region[id(region)][-1] == region.name for region in regions)
