"""Each gap is split exactly, by the table of causes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.analysis.idle import split_gap
from strobe.perf.trace import DeviceEvent, HostEvent


def _event(launch: int | None, ordinal: int = 0) -> DeviceEvent:
    host = None if launch is None else HostEvent("cudaLaunchKernel", launch, launch + 3, 0)
    return DeviceEvent("k", "kernel", 200, 210, 0, 7, ordinal, host)


@pytest.mark.parametrize(
    ("event", "overhead", "pieces"),
    [
        (None, (), [("unlinked", 100, 200)]),
        (_event(None), (), [("unlinked", 100, 200)]),
        (_event(160), (), [("host_late", 100, 160), ("launch_latency", 160, 200)]),
        (_event(100), (), [("launch_latency", 100, 200)]),
        (_event(99), (), [("queued", 100, 200)]),
        (_event(160, ordinal=4), (), [("queued", 100, 200)]),  # a graph node after the first
        (_event(205), (), [("host_late", 100, 200)]),
        (
            _event(160),
            ((0, 5), (90, 110), (120, 120), (130, 140), (150, 170), (180, 190)),
            [
                ("profiler_overhead", 100, 110),
                ("host_late", 110, 130),
                ("profiler_overhead", 130, 140),
                ("host_late", 140, 150),
                ("profiler_overhead", 150, 160),
                ("launch_latency", 160, 200),
            ],
        ),
        (_event(160), ((0, 500),), [("profiler_overhead", 100, 160), ("launch_latency", 160, 200)]),
    ],
)
def test_causes(event: DeviceEvent | None, overhead: tuple[tuple[int, int], ...], pieces: list[tuple[str, int, int]]) -> None:
    assert split_gap(100, 200, event, overhead) == pieces


@given(
    launch=st.one_of(st.none(), st.integers(80, 220)),
    lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=8),
)
def test_pieces_tile_the_gap_and_overhead_is_exactly_what_overlaps(launch: int | None, lengths: list[tuple[int, int]]) -> None:
    overhead, position = [], 50
    for pause, length in lengths:
        overhead.append((position + pause, position + pause + length))
        position += pause + length + 1
    pieces = split_gap(100, 200, _event(launch), overhead)
    assert [start for _, start, _ in pieces] == [100, *(end for _, _, end in pieces[:-1])] and pieces[-1][2] == 200
    assert all(start < end for _, start, end in pieces)
    waiting = range(100, 100 if launch is None or launch < 100 else min(launch, 200))
    expected = sum(any(start <= moment < end for start, end in overhead) for moment in waiting)
    assert sum(end - start for cause, start, end in pieces if cause == "profiler_overhead") == expected
