"""Peaks of memory, and what was running then."""

from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.structure.memory import memory_use
from strobe.perf.trace import HostEvent, MemoryTrack, Trace


def _trace(values: list[int], ranges: list[HostEvent] = ()) -> Trace:
    track = MemoryTrack(
        device="cuda:0", step_ns=10, start_ns=tuple(10 * i for i in range(len(values))), allocated_bytes=tuple(values),
        reserved_bytes=tuple(2 * value for value in values),
    )  # fmt: skip
    return trace_of(ranges=ranges, memory=(track,))


def test_the_peak_and_what_was_open_then() -> None:
    ranges = [
        HostEvent("step", 0, 80, 0),
        HostEvent("forward", 5, 40, 0),
        HostEvent("loader", 10, 90, 1),
        HostEvent("late", 30, 35, 0),
    ]
    ((use, points),) = memory_use(_trace([5, 7, 30, 8, 30, 6], ranges))
    assert (use.device, use.step_ns, use.peak_reserved_bytes) == ("cuda:0", 10, 60)
    assert (use.peak_at_ns, use.peak_allocated_bytes, use.reserved_then_bytes) == (20, 30, 60)
    assert use.peak_in == "forward < step"
    assert (use.start_allocated_bytes, use.end_allocated_bytes, len(points)) == (5, 6, 6)


def test_a_window_sees_the_stretches_that_overlap_it() -> None:
    trace = _trace([5, 7, 30, 8, 9, 6])
    ((use, points),) = memory_use(trace, Window(start_ns=35, end_ns=50, label=""))
    assert points == ((0, 8, 16), (10, 9, 18)) and use.peak_allocated_bytes == 9 and use.peak_in == ""
    assert memory_use(trace, Window(start_ns=60, end_ns=90, label="")) == ()


def test_nothing_recorded() -> None:
    assert memory_use(_trace([])) == ()


@given(st.lists(st.integers(0, 99), min_size=1, max_size=60), st.integers(1, 20))
def test_thinning_keeps_the_peak(values: list[int], num_points: int) -> None:
    ((use, points),) = memory_use(_trace(values), num_points=num_points)
    assert len(points) == min(num_points, len(values))
    assert use.peak_at_ns == 10 * values.index(max(values))
    assert (use.peak_at_ns, use.peak_allocated_bytes, use.reserved_then_bytes) in points
    assert all(values[at // 10] == allocated for at, allocated, _ in points)
    assert list(points) == sorted(points)
