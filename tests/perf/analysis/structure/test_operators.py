"""Self times against a moment-by-moment count: every nanosecond belongs to the operator that started last and still runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.operators import host_ranges, operators
from strobe.perf.trace.events import HostEvent, HostEvents, Trace

ROWS = st.lists(
    st.builds(
        lambda name, start, length, thread: HostEvent(name, start, start + length, thread),
        st.sampled_from(["aten::mm", "aten::add", "aten::empty"]),
        st.integers(0, 40),
        st.integers(0, 25),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=12,
)


def counted(trace: Trace, first: int, last: int) -> tuple[Counter[str], Counter[int]]:
    by_name, by_thread = Counter[str](), Counter[int]()
    for moment in range(first, last):
        for thread in range(2):
            running = [op for op in trace.ops if op.thread == thread and op.start_ns <= moment < op.end_ns]
            if running:
                by_name[running[-1].name] += 1
                by_thread[thread] += 1
    return by_name, by_thread


@given(ROWS)
def test_self_times_add_up_to_the_busy_time_of_the_threads(rows: list[HostEvent]) -> None:
    trace = trace_of(ops=rows)
    found = operators(trace)
    assert found is not None
    begin, end = min(row.start_ns for row in rows), max(row.end_ns for row in rows)
    assert found.span_ns == end - begin
    by_name, by_thread = counted(trace, begin, end)
    assert {row.operator: row.self_ns for row in found.rows} == {row.name: by_name[row.name] for row in rows}
    assert {name: busy_ns for name, _, busy_ns in found.threads} == {
        trace.threads[number]: by_thread[number] for number in {row.thread for row in rows}
    }
    assert sum(row.self_ns for row in found.rows) == found.busy_ns
    for row in found.rows:
        lengths = sorted(op.end_ns - op.start_ns for op in rows if op.name == row.operator)
        assert (row.calls, row.sum_ns) == (len(lengths), sum(lengths))
        assert (row.min_ns, row.max_ns) == (lengths[0], lengths[-1])


@given(ROWS, st.integers(-5, 60), st.integers(1, 30))
def test_a_window_keeps_its_part_of_the_self_times(rows: list[HostEvent], first: int, length: int) -> None:
    trace = trace_of(ops=rows)
    found = operators(trace, Window(start_ns=first, end_ns=first + length, label="w"))
    assert found is not None and found.span_ns == length
    by_name, _ = counted(trace, first, first + length)
    assert sum(row.self_ns for row in found.rows) == sum(by_name.values()) == found.busy_ns
    assert {row.operator: row.self_ns for row in found.rows if row.self_ns} == dict(by_name)


def test_no_operators_are_no_table() -> None:
    assert operators(trace_of(ops=[])) is None


def test_ranges_of_the_host_are_one_row_for_each_name() -> None:
    rows = [HostEvent("ProfilerStep#1", 0, 50, 0), HostEvent("forward", 5, 20, 0), HostEvent("ProfilerStep#2", 50, 90, 0)]
    trace = replace(trace_of(ops=[]), ranges=HostEvents.from_rows(rows))
    assert [(name, calls.n, calls.sum_ns) for name, calls in host_ranges(trace).items()] == [
        ("ProfilerStep", 2, 90),
        ("forward", 1, 15),
    ]
    late = host_ranges(trace, Window(start_ns=20, end_ns=60, label="w"))
    assert [(name, calls.n, calls.max_ns) for name, calls in late.items()] == [("ProfilerStep", 2, 50)]
    assert host_ranges(trace_of(ops=[])) == {}
