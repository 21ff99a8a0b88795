"""Interval sets against sets of moments."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.analysis.device.intervals import Intervals, claim, column, complement, overlaps, reach, union
from strobe.perf.trace import DeviceEvent, DeviceEvents

Pairs = list[tuple[int, int]]
_ANY = st.lists(st.tuples(st.integers(-4, 40), st.integers(0, 9)), max_size=12).map(
    lambda found: sorted((start, start + length) for start, length in found)
)
_DISJOINT = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=8).map(
    lambda found: _chain(found)
)  # touching and empty ones too


def _chain(steps: Pairs) -> Pairs:
    chained, position = [], 0
    for pause, length in steps:
        chained.append((position + pause, position + pause + length))
        position += pause + length
    return chained


def _columns(pairs: Pairs) -> Intervals:
    stacked = np.array(pairs, np.int64).reshape(-1, 2)
    return Intervals(stacked[:, 0], stacked[:, 1])


def _moments(intervals: Intervals) -> list[int]:
    return [moment for start, end in zip(*(c.tolist() for c in intervals), strict=True) for moment in range(start, end)]


@given(_ANY)
def test_a_union_holds_every_moment_once(pairs: Pairs) -> None:
    found = union(*_columns(pairs))
    assert _moments(found) == sorted({moment for start, end in pairs for moment in range(start, end)})
    assert all(end < start for end, start in zip(found.end.tolist(), found.start.tolist()[1:], strict=False)), (
        "joined where they touch"
    )
    assert found.length_ns == len(_moments(found))


@given(pairs=_DISJOINT, begin=st.integers(-5, 30), length=st.integers(0, 40))
def test_a_complement_is_what_is_left(pairs: Pairs, begin: int, length: int) -> None:
    covered = set(_moments(_columns(pairs)))
    found = complement(_columns(pairs), begin, begin + length)
    assert _moments(found) == [moment for moment in range(begin, begin + length) if moment not in covered]
    assert (found.end > found.start).all() and (found.end[:-1] < found.start[1:]).all()


@given(a=_ANY, b=_DISJOINT)
def test_overlaps_are_every_shared_stretch(a: Pairs, b: Pairs) -> None:
    found = overlaps(_columns(a), _columns(b))
    expected = [
        (i, j, max(left[0], right[0]), min(left[1], right[1]))
        for i, left in enumerate(a)
        for j, right in enumerate(b)
        if max(left[0], right[0]) < min(left[1], right[1])
    ]
    assert list(zip(*(c.tolist() for c in found), strict=True)) == expected


@given(pairs=_ANY, data=st.data())
def test_each_moment_goes_to_the_lowest_rank_and_the_first_of_equals(pairs: Pairs, data: st.DataObject) -> None:
    rank = data.draw(st.lists(st.integers(0, 3), min_size=len(pairs), max_size=len(pairs)))
    owned, owners = claim(*_columns(pairs), np.array(rank, np.int8))
    found = {}
    for start, end, owner in zip(*(c.tolist() for c in (*owned, owners)), strict=True):
        assert start < end
        for moment in range(start, end):
            assert moment not in found
            found[moment] = owner
    assert list(found) == sorted(found)
    expected: dict[int, int] = {}
    for i in sorted(range(len(pairs)), key=lambda i: (rank[i], i)):
        for moment in range(*pairs[i]):
            expected.setdefault(moment, i)
    assert found == expected


@given(_ANY)
def test_reach_is_the_furthest_end_before(pairs: Pairs) -> None:
    expected = [max((end for _, end in pairs[:i]), default=start) for i, (start, _) in enumerate(pairs)]
    assert reach(*_columns(pairs)).tolist() == expected


def test_a_column_has_64_bits_and_is_shared_where_it_can_be() -> None:
    events = DeviceEvents.from_rows([DeviceEvent("k", "kernel", 1 << 40, (1 << 40) + 5, 3, 7, 0, None)])
    assert (column(events.device).tolist(), column(events.device).dtype) == ([3], np.int64)
    assert np.shares_memory(column(events.start_ns), np.asarray(events.start_ns))
    assert column(events.hosts.start_ns).tolist() == []
