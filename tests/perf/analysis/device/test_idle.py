"""Each gap is split exactly, by the table of causes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.analysis.device.activity import CAUSES, overhead_intervals, split_gaps
from strobe.perf.analysis.device.intervals import Intervals

Overhead = tuple[tuple[int, int], ...]
Gap = tuple[int, int, int | None, int]
"""Start, end, start of the launch call of the event that ends it, ordinal of that event."""


def _split(gaps: list[Gap], overhead: Overhead) -> list[tuple[int, str, int, int]]:
    start, end = (np.array([gap[side] for gap in gaps], np.int64) for side in (0, 1))
    linked = np.array([gap[2] is not None for gap in gaps], np.bool_)
    launch = np.array([gap[2] or 0 for gap in gaps], np.int64)
    first = np.array([gap[3] == 0 for gap in gaps], np.bool_)
    gap, cause, pieces = split_gaps(Intervals(start, end), launch, linked, first, overhead_intervals(overhead))
    columns = [part.tolist() for part in (gap, cause, *pieces)]
    return [(gap, CAUSES[cause], left, right) for gap, cause, left, right in zip(*columns, strict=True)]


_GAPS = st.lists(
    st.tuples(st.integers(1, 20), st.integers(1, 30), st.one_of(st.none(), st.integers(-5, 40)), st.integers(0, 1)), max_size=6
)


@given(drawn=_GAPS, lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=8))
def test_every_nanosecond_of_many_gaps(drawn: list[Gap], lengths: list[tuple[int, int]]) -> None:
    overhead, gaps, position = [], [], 0
    for pause, length in lengths:
        overhead.append((position + pause, position + pause + length))
        position += pause + length + 1
    position = 0
    for pause, length, after, ordinal in drawn:
        start = position + pause
        gaps.append((start, start + length, None if after is None else start + after, ordinal))
        position = start + length
    pieces = _split(gaps, tuple(overhead))
    assert all(left < right for *_, left, right in pieces)
    found = [(gap, cause, moment) for gap, cause, left, right in pieces for moment in range(left, right)]
    expected = []
    for i, (start, end, launch, ordinal) in enumerate(gaps):
        for moment in range(start, end):
            if launch is None:
                cause = "unlinked"
            elif launch < start or ordinal:
                cause = "queued"
            elif moment >= launch:
                cause = "launch_latency"
            else:
                cause = "profiler_overhead" if any(a <= moment < b for a, b in overhead) else "host_late"
            expected.append((i, cause, moment))
    assert found == expected
