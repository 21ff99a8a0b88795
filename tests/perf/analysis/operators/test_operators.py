"""Operators: device time one device event at a time from the raw events, and host time moment by moment."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from layouts import compact, write
from made_traces import trace_of
from source import H200
from strobe.perf.analysis.device.activity import device_views
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.device.kernels import kernel_name
from strobe.perf.analysis.operators import (
    OPERATOR,
    OUTSIDE,
    OperatorTimes,
    attributed,
    host_ranges,
    operator_rates,
    operator_times,
    operators,
)
from strobe.perf.analysis.structure.ranges import UNLINKED
from strobe.perf.analysis.structure.window import choose_window
from strobe.perf.trace import DeviceEvent, HostEvent, HostEvents, Trace, read_trace
from synthetic import META, event, kernel, launch

Key = tuple[str, str, tuple[str, ...]]


def _times(trace: Trace, window: str | None = None) -> tuple[OperatorTimes, ...]:
    return operator_times(device_views(trace, None if window is None else choose_window(trace, window)))


class Slow:
    """The same from the rows of a trace: an elementary interval at a time, the operators in a list that is searched."""

    def __init__(self, trace: Trace) -> None:
        self.details, self.ops, self.events = trace.details, list(trace.ops), list(trace.device_events)

    def innermost(self, thread: int, start: int, end: int, but: int = -1) -> int | None:
        """The operator of a thread that started last among those that hold a stretch of time."""
        around = [
            (op.start_ns, -op.end_ns, position)
            for position, op in enumerate(self.ops)
            if op.thread == thread and op.start_ns <= start and op.end_ns >= end and position != but
        ]
        return max(around)[2] if around else None

    def key(self, event: DeviceEvent) -> tuple[Key, int | None]:
        """Name and inputs of the operator that launched an event, or why there is none; and its position."""
        if event.host is None:
            return ("launch not in the trace", "", ()), None
        position = self.innermost(event.host.thread, event.host.start_ns, event.host.start_ns + 1)
        if position is None:
            return ("no operator", "", ()), None
        inputs = self.details.inputs[self.details.given[position]]
        return (self.ops[position].name, inputs.text, inputs.types), position

    def exclusive(self) -> list[int]:
        """What each kernel owns: of those that run at a moment the first."""
        own = [0] * len(self.events)
        for left, right in pairwise(sorted({edge for one in self.events for edge in (one.start_ns, one.end_ns)})):
            for device in (0, 1):
                here = [i for i, e in enumerate(self.events) if e.device == device and e.start_ns <= left and e.end_ns >= right]
                if here:
                    own[here[0]] += right - left
        return own

    def table(self) -> dict[tuple[int, Key], dict[str, Any]]:
        """By device and operator with its inputs: calls, events, sums, kernels, callers."""
        found: dict[tuple[int, Key], dict[str, Any]] = {}
        for one, own in zip(self.events, self.exclusive(), strict=True):
            key, op = self.key(one)
            row = found.setdefault((one.device, key), {"calls": set(), **_row()})
            row["events"] += 1
            row["exclusive"] += own
            row["sum"] += one.end_ns - one.start_ns
            row["kernels"][kernel_name(one.name)] += own
            if op is not None:
                row["calls"].add(op)
                parent = self.innermost(self.ops[op].thread, self.ops[op].start_ns, self.ops[op].end_ns, op)
                row["callers"]["" if parent is None else self.ops[parent].name] += own
        return found


def _row() -> dict[str, Any]:
    return {"events": 0, "exclusive": 0, "sum": 0, "kernels": defaultdict(int), "callers": defaultdict(int)}


def _compare(found: tuple[OperatorTimes, ...], trace: Trace) -> None:
    merged: dict[tuple[int, Key], dict[str, Any]] = {}
    for times in found:
        assert sum(row.exclusive_ns for row in times.rows) == times.busy_ns
        for row, inputs, kernels, callers in zip(times.rows, times.inputs, times.kernels, times.callers, strict=True):
            name = row.operator if row.source == OPERATOR else row.source
            key = times.device, (name, row.input_sizes, inputs.types if inputs.text else ())
            one = merged.setdefault(key, {"calls": 0, **_row()})
            counts = {"calls": row.calls, "events": row.events, "exclusive": row.exclusive_ns, "sum": row.sum_ns}
            for what, value in counts.items():
                one[what] += value
            for part in kernels:
                one["kernels"][part.kernel] += part.exclusive_ns
            for caller in callers if row.source == OPERATOR else ():
                one["callers"][caller.caller] += caller.exclusive_ns
            assert sum(part.exclusive_ns for part in kernels) == row.exclusive_ns
            assert sum(caller.exclusive_ns for caller in callers) == row.exclusive_ns
    assert merged == {key: row | {"calls": len(row["calls"])} for key, row in Slow(trace).table().items()}


FORWARD = {"Input Dims": [[8, 4], [4, 2]], "Input type": ["float", "float"], "Sequence number": 5, "Fwd thread id": 0}
NODE = "autograd::engine::evaluate_function: MmBackward0"


def test_forward_and_backward(tmp_path: Path) -> None:
    """A module calls a product; another thread runs its gradient."""
    there = {"tid": 18}
    events = [
        event("python_function", "nn.Module: Linear_3", "100", "50", **{"Python id": 1}),
        event("cpu_op", "aten::linear", "101", "40", **{"External id": 1}, **FORWARD),
        event("cpu_op", "aten::mm", "102", "30", **{"External id": 2}, **FORWARD),
        launch("110", "5", 1), kernel("gemm", "120", "10", 1),
        event("cpu_op", NODE, "200", "50", **{"External id": 3, "Sequence number": 5, "Fwd thread id": 1}) | there,
        event("cpu_op", "aten::mm", "210", "30", **{"External id": 4, "Input Dims": [[4, 8], [8, 2]]}) | there,
        launch("220", "5", 2) | there, kernel("gemm", "230", "20", 2),
        event("cpu_op", "aten::add_", "300", "30", **{"External id": 5}),
        launch("310", "5", 3), kernel("step", "320", "1", 3),
    ]  # fmt: skip
    (times,) = _times(read_trace(write(tmp_path / "t.json", compact(events, META)), details=True))
    rows = {
        row.exclusive_ns: (row.operator, row.phase, caller.caller, caller.scope)
        for row, (caller, *_) in zip(times.rows, times.callers, strict=True)
    }
    assert rows == {
        10_000: ("aten::mm", "forward", "aten::linear", "Linear"),
        20_000: ("aten::mm", "backward", NODE, "Linear"),
        1_000: ("aten::add_", "", "", ""),
    }


def test_a_gradient_that_is_added_up_is_backward_without_a_number(tmp_path: Path) -> None:
    node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    events = [
        event("cpu_op", node, "1", "50", **{"External id": 1}), event("cpu_op", "aten::add_", "2", "40", **{"External id": 2}),
        launch("5", "2", 1), kernel("add", "20", "3", 1),
    ]  # fmt: skip
    (times,) = _times(read_trace(write(tmp_path / "t.json", compact(events, META)), details=True))
    assert [(row.operator, row.phase) for row in times.rows] == [("aten::add_", "backward")]


def test_what_has_no_operator_is_a_row_of_its_own(tmp_path: Path) -> None:
    events = [
        launch("5", "2", 1), kernel("alone", "20", "3", 1), kernel("before", "30", "4", 99),
        kernel("named", "40", "5", 98, **{"External id": 7}),
        event("cpu_op", "aten::mm", "1", "2", **{"External id": 7}),
    ]  # fmt: skip
    (times,) = _times(read_trace(write(tmp_path / "t.json", compact(events, META)), details=True))
    assert [(row.source, row.operator, row.calls, row.exclusive_ns) for row in times.rows] == [
        (OPERATOR, "aten::mm", 1, 5000), (UNLINKED, "", 0, 4000), (OUTSIDE, "", 0, 3000),
    ]  # fmt: skip
    assert times.attributed_ns == 5000 and times.busy_ns == 12_000


def test_odd_arguments_are_no_error(tmp_path: Path) -> None:
    odd: list[dict[str, Any]] = [
        {"Input Dims": [[2, 2], "x", [[1], [2]]], "Input type": 7},
        {"Input Dims": [[2, 2]], "Input type": [None, 3], "Sequence number": "x"},
        {"Input Dims": "none", "Input type": []}, {"Input Dims": [], "Fwd thread id": "y"}, {"Input Dims": [[2.5]]}, {},
    ]  # fmt: skip
    events = [event("cpu_op", "aten::_scaled_mm", f"{10 * i}", "9", **{"External id": i}, **args) for i, args in enumerate(odd)]
    for i in range(len(odd)):
        events += [launch(f"{10 * i + 1}", "1", i + 1), kernel("k", f"{10 * i + 3}", "2", i + 1)]
    trace = read_trace(write(tmp_path / "t.json", compact(events, META)), details=True)
    (times,) = _times(trace)
    assert {row.input_sizes: row.calls for row in times.rows} == {"2x2, (1, 2)": 1, "2x2": 1, "": 4}
    assert not any(found for _, found in operator_rates(times, None)), "nothing of it has a cost"


def test_without_details_there_is_nothing() -> None:
    assert _times(read_trace(H200 / "eager.json.gz")) == ()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200), st.integers(1, 120), st.integers(0, 2)), max_size=12),
    st.lists(
        st.tuples(*(st.integers(0, most) for most in (2, 300, 400, 60, 1)), st.booleans()),
        min_size=1, max_size=14,
    ),
)  # fmt: skip
def test_made_up(ops: list[tuple[int, int, int, int]], work: list[tuple[int, int, int, int, int, bool]]) -> None:
    """Operators nest on their threads as calls do: one that would end behind the one around it ends with it."""
    events: list[dict[str, Any]] = []
    open_until: dict[int, list[int]] = defaultdict(list)
    for number, (thread, start, length, size) in enumerate(sorted(ops, key=lambda op: op[1])):
        stack = open_until[thread]
        while stack and stack[-1] <= start:
            stack.pop()
        end = min([start + length, *stack])
        stack.append(end)
        said = {"External id": number + 1, "Input Dims": [[size + 1, 2]], "Input type": ["float"]}
        events.append(event("cpu_op", f"op{number % 3}", str(start), str(end - start), **said) | {"tid": thread})
    for number, (thread, called, delay, length, device, linked) in enumerate(work):
        if linked:
            events.append(launch(str(called), "1", number + 1) | {"tid": thread})
        events.append(kernel(f"k{number % 4}", str(called + delay), str(length), number + 1, device=device, stream=number % 2))
    with tempfile.TemporaryDirectory() as folder:
        trace = read_trace(write(Path(folder) / "t.json", compact(events, META)), details=True)
    _compare(_times(trace), trace)


ROWS = st.lists(
    st.builds(
        lambda name, start, length, thread: HostEvent(name, start, start + length, thread),
        st.sampled_from(["aten::mm", "aten::add", "aten::empty"]), st.integers(0, 40), st.integers(0, 25), st.integers(0, 1),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@given(
    ROWS,
    st.none() | st.builds(lambda at, n: Window(start_ns=at, end_ns=at + n, label="w"), st.integers(-5, 60), st.integers(1, 30)),
)
def test_self_times_add_up_to_the_busy_time_of_the_threads(rows: list[HostEvent], window: Window | None) -> None:
    trace = trace_of(ops=rows)
    found = operators(trace, window)
    assert found is not None
    begin, end = min(row.start_ns for row in rows), max(row.end_ns for row in rows)
    if window is not None:
        begin, end = window.start_ns, window.end_ns
    assert found.span_ns == end - begin
    by_name, by_thread = Counter[str](), Counter[int]()
    for moment in range(begin, end):
        for thread in range(2):
            running = [op for op in trace.ops if op.thread == thread and op.start_ns <= moment < op.end_ns]
            if running:
                by_name[running[-1].name] += 1
                by_thread[thread] += 1
    assert {row.operator: row.self_ns for row in found.rows if row.self_ns} == by_name
    busy = {name: busy_ns for name, _, busy_ns in found.threads if busy_ns}
    assert busy == {trace.threads[n]: ns for n, ns in by_thread.items()}
    assert sum(row.self_ns for row in found.rows) == found.busy_ns
    for row in found.rows if window is None else ():
        lengths = sorted(op.end_ns - op.start_ns for op in rows if op.name == row.operator)
        assert (row.calls, row.sum_ns, row.min_ns, row.max_ns) == (len(lengths), sum(lengths), lengths[0], lengths[-1])


def test_ranges_of_the_host_are_one_row_for_each_name() -> None:
    rows = [HostEvent("ProfilerStep#1", 0, 50, 0), HostEvent("forward", 5, 20, 0), HostEvent("ProfilerStep#2", 50, 90, 0)]
    trace = replace(trace_of(ops=[]), ranges=HostEvents.from_rows(rows))
    found = [(name, calls.n, calls.sum_ns) for name, calls in host_ranges(trace).items()]
    assert found == [("ProfilerStep", 2, 90), ("forward", 1, 15)]
    late = host_ranges(trace, Window(start_ns=20, end_ns=60, label="w"))
    assert [(name, calls.n, calls.max_ns) for name, calls in late.items()] == [("ProfilerStep", 2, 50)]
    assert host_ranges(trace_of(ops=[])) == {} and operators(trace_of(ops=[])) is None


# linear [0, 100) calls addmm [10, 60), which launches twice; relu [100, 130) launches once; one kernel has no launch call.
OPS = (
    HostEvent("aten::linear", 0, 100, 0),
    HostEvent("aten::addmm", 10, 60, 0),
    HostEvent("aten::relu", 100, 130, 0),
    HostEvent("aten::linear", 200, 210, 1),
)
MODULES = (HostEvent("Block_0", 0, 140, 0), HostEvent("Linear_0", 0, 100, 0), HostEvent("Linear_1", 200, 212, 1))


def _kernel(start: int, end: int, launched_at: int | None, thread: int = 0) -> DeviceEvent:
    host = None if launched_at is None else HostEvent("cudaLaunchKernel", launched_at, launched_at + 2, thread)
    return DeviceEvent("k", "kernel", start, end, 0, 7, 0, host)


KERNELS = [
    _kernel(20, 320, 15), _kernel(320, 330, 50), _kernel(330, 400, 110), _kernel(0, 5, None), _kernel(410, 411, 205, thread=1),
]  # fmt: skip
GPU = trace_of(KERNELS, ops=OPS, modules=MODULES)


def test_device_work_belongs_to_the_innermost_operator_that_launched_it() -> None:
    found = [(row.operator, device_ns, row.calls, row.sum_ns, row.self_ns) for row, device_ns in attributed(GPU)]
    assert found == [("aten::addmm", 310, 1, 50, 50), ("aten::relu", 70, 1, 30, 30), ("aten::linear", 1, 2, 110, 60)]
    host = attributed(trace_of(ops=OPS))
    assert [row.operator for row, _ in host] == ["aten::linear", "aten::addmm", "aten::relu"]


def test_modules_have_what_no_inner_module_launched() -> None:
    found = [(row.operator, device_ns, row.sum_ns) for row, device_ns in attributed(replace(GPU, ops=GPU.modules))]
    assert found == [("Linear_0", 310, 100), ("Block_0", 70, 140), ("Linear_1", 1, 12)]
