"""Queue length against counting it at every nanosecond."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from strobe.perf.analysis.device.activity import device_views
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.device.launch import LENGTHS, Queue, queues
from strobe.perf.trace import DeviceEvent, HostEvent, Trace


def _trace(rows: list[tuple[int, int, int, int, bool]]) -> Trace:
    events = []
    for called, delay, length, stream, linked in rows:
        start, host = called + delay, HostEvent("launch", called, called + 1, 0) if linked else None
        events.append(DeviceEvent("k", "kernel", start, start + length, 0, stream, 0, host))
    return trace_of(events)


def _counted(rows: list[tuple[int, int]], begin: int, end: int) -> Counter[int]:
    """How long the queue has each length: the rows are when each event was launched and when it started."""
    return Counter(sum(called <= now < start for called, start in rows) for now in range(begin, end))


def _check(queue: Queue, spent: Counter[int]) -> None:
    whole, found = sum(spent.values()), queue.row
    assert found.empty_ns == spent[0] and found.span_ns == whole
    assert found.longest == max(spent, default=0)
    assert found.waited_ns == sum(length * ns for length, ns in spent.items())
    listed = sorted(spent.elements())
    assert found.median == (listed[(whole - 1) // 2] if listed else 0)
    for (low, high), ns in zip(LENGTHS, queue.lengths_ns, strict=True):
        assert sum(ns) == sum(took for length, took in spent.items() if low <= length and (high is None or length <= high))


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(-5, 50), st.integers(0, 20), st.integers(0, 2), st.booleans()),
        min_size=1,
        max_size=40,
    ),
    st.one_of(st.none(), st.tuples(st.integers(0, 50), st.integers(1, 80))),
    st.integers(1, 9),
)
def test_against_every_nanosecond(
    rows: list[tuple[int, int, int, int, bool]], cut: tuple[int, int] | None, at_a_time: int
) -> None:
    """Whatever number of events is looked at together."""
    window = None if cut is None else Window(label="w", start_ns=cut[0], end_ns=cut[0] + cut[1])
    trace = _trace(rows)
    (view,) = device_views(trace, window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strobe.perf.trace.columns.BLOCK", at_a_time)
        whole, *streams = queues(view, 7)
    known = [(called, called + delay, stream) for called, delay, _, stream, linked in rows if linked]
    _check(whole, _counted([(called, start) for called, start, _ in known], view.begin_ns, view.end_ns))
    assert [queue.row.stream for queue in streams] == (
        sorted({row[3] for row in rows}) if len({row[3] for row in rows}) > 1 else []
    )
    for queue in streams:
        mine = [(called, start) for called, start, stream in known if stream == queue.row.stream]
        _check(queue, _counted(mine, view.begin_ns, view.end_ns))
    for left, right, *parts in zip(whole.edges_ns, whole.edges_ns[1:], *whole.lengths_ns, strict=False):
        assert sum(parts) == right - left, "every bin is filled"
    assert sum(queue.row.waited_ns for queue in streams) in (0, whole.row.waited_ns)
