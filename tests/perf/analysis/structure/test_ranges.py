"""Ranges, modules and the tree of calls against asking every call and every nanosecond; work of the host, and memory."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_traces import host_events, trace_of
from strobe.perf.analysis.device.activity import activity, device_views
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.structure.ranges import (
    BETWEEN,
    NOWHERE,
    OUTSIDE,
    UNLINKED,
    CallNode,
    RangeRow,
    base_of,
    call_trees,
    host_work,
    memory_use,
    nest,
    range_table,
    ranges_and_modules,
    unnumbered,
)
from strobe.perf.trace import DeviceEvent, HostEvent, MemoryTrack, Trace, read_trace
from synthetic import event, kernel, launch

_RANGES = ("ProfilerStep#1", "ProfilerStep#2", "attention", "nccl:all_reduce")
_MODULES = ("Block_0", "Block_1", "Linear_0")
_PATHS = ("layers.0", "layers.0.attention", "layers.1", "head")

_time = st.integers(0, 60)
_scope = st.tuples(_time, st.integers(0, 30), st.integers(0, 1))


@st.composite
def traces(draw: Any) -> Trace:
    """Ranges and modules that nest or cross at will, launches inside and outside, two devices, unlinked events, a few paths."""
    ranges, modules = (
        [HostEvent(draw(st.sampled_from(names)), start, start + length, thread) for start, length, thread in rows]
        for names, rows in ((_RANGES, draw(st.lists(_scope, max_size=7))), (_MODULES, draw(st.lists(_scope, max_size=7))))
    )
    calls = [
        HostEvent(f"launch{i}", start, start + 1, thread)
        for i, (start, _, thread) in enumerate(draw(st.lists(_scope, max_size=8)))
    ]
    shape = st.tuples(_time, st.integers(0, 9), st.integers(0, 1), st.integers(-1, len(calls) - 1), st.integers(0, 3))
    events, paths = [], {}
    for start, length, device, call, kind in draw(st.lists(shape, max_size=12)):
        host = None if call < 0 else calls[call]
        events.append(DeviceEvent("k", ("kernel", "comm", "memset", "memcpy")[kind], start, start + length, device, 7, 0, host))
    events.sort(key=lambda each: (each.start_ns, -each.end_ns))
    for position, each in enumerate(events):
        if each.host is not None and each.start_ns % 3 == 0 and draw(st.booleans()):
            paths[position] = draw(st.sampled_from(_PATHS))
    return trace_of(events, ranges, modules, module_paths=paths)


windows = st.one_of(st.none(), st.builds(lambda a, n: Window(start_ns=a, end_ns=a + n, label=""), _time, st.integers(1, 40)))


def _cut(event: DeviceEvent, window: Window | None) -> tuple[int, int] | None:
    if window is None:
        return event.start_ns, event.end_ns
    if event.start_ns >= window.end_ns or event.end_ns < window.start_ns:
        return None
    if event.end_ns == window.start_ns and event.start_ns < event.end_ns:
        return None
    return max(event.start_ns, window.start_ns), min(event.end_ns, window.end_ns)


def _taken(trace: Trace, device: int, window: Window | None) -> dict[int, tuple[int, int]]:
    """Position and time of the device's events in the window."""
    cut = {i: _cut(event, window) for i, event in enumerate(trace.device_events) if event.device == device}
    return {i: part for i, part in cut.items() if part is not None}


def _open(scopes: Sequence[HostEvent], thread: int, moment: int) -> list[int]:
    return [i for i, s in enumerate(scopes) if s.thread == thread and s.start_ns <= moment < s.end_ns]


def _sum(parts: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in parts)


def _union(parts: Iterable[tuple[int, int]]) -> int:
    return len({moment for start, end in parts for moment in range(start, end)})


def _span(parts: Sequence[tuple[int, int]]) -> int:
    return max(end for _, end in parts) - min(start for start, _ in parts) if parts else 0


def _expected(
    where: tuple[int, str], scopes: Sequence[HostEvent], trace: Trace, taken: dict[int, tuple[int, int]], cut: bool
) -> set[RangeRow]:
    rows = set()
    events = list(trace.device_events)
    linked = {i: events[i].host for i in taken if events[i].host is not None}
    owner = {i: max(_open(scopes, host.thread, host.start_ns), default=None) for i, host in linked.items()}
    for name in {scope.name for scope in scopes}:
        calls = [i for i, scope in enumerate(scopes) if scope.name == name]
        own = {call: [i for i, host in linked.items() if call in _open(scopes, host.thread, host.start_ns)] for call in calls}
        launching = [call for call in calls if own[call]]
        counted = launching if cut else calls
        before = {c: [b for b in calls if b < c and scopes[b].thread == scopes[c].thread] for c in calls}
        outer = [c for c in calls if all(scopes[b].end_ns <= scopes[c].start_ns for b in before[c])]
        everything = {i for call in calls for i in own[call]}
        exclusive = [i for i, scope in owner.items() if scope is not None and scopes[scope].name == name]
        if counted:
            row = RangeRow(
                trace="", device=where[0], kind=where[1], name=name, calls=len(counted), events=len(everything),
                kernels=sum(events[i].kind in ("kernel", "comm") for i in everything),
                sum_ns=_sum(taken[i] for i in everything), union_ns=_union(taken[i] for i in everything),
                span_ns=sum(_span([taken[i] for i in own[call]]) for call in outer),
                exclusive_ns=_sum(taken[i] for i in exclusive),
                host_ns=sum(scopes[c].end_ns - scopes[c].start_ns for c in outer if c in counted),
            )  # fmt: skip
            rows.add(row)
    return rows


@given(traces(), windows)
def test_every_range_and_module(trace: Trace, window: Window | None) -> None:
    table = {ranges.device: ranges for ranges in range_table(trace, window)}
    assert sorted(table) == sorted({event.device for event in trace.device_events})
    for device, found in table.items():
        taken = _taken(trace, device, window)
        for kind, scopes in (("range", list(trace.ranges)), ("module", list(trace.modules))):
            assert set(found.of_kind(kind)) == _expected((device, kind), scopes, trace, taken, window is not None)
        assert (found.events, found.sum_ns) == (len(taken), _sum(taken.values()))
        unlinked = [taken[i] for i in taken if trace.device_events[i].host is None]
        assert found.unlinked_events == len(unlinked)
        both, outside = list(ranges_and_modules(trace)), []
        for i, part in taken.items():
            host = trace.device_events[i].host
            if host is not None and i not in trace.module_paths and not _open(both, host.thread, host.start_ns):
                outside.append(part)
        assert found.outside_events == len(outside)


@given(traces(), windows)
def test_the_module_paths_of_graphs(trace: Trace, window: Window | None) -> None:
    for found in range_table(trace, window):
        taken = _taken(trace, found.device, window)
        rows = {}
        for text in {".".join(path.split(".")[:depth]) for path in trace.module_paths.values() for depth in (1, 2, 3)}:
            inside = [i for i, path in trace.module_paths.items() if i in taken and f"{path}.".startswith(f"{text}.")]
            calls = defaultdict(list)
            for i in inside:
                calls[trace.device_events[i].host].append(taken[i])
            own = [taken[i] for i in inside if trace.module_paths[i] == text]
            if inside:
                sums = _sum(taken[i] for i in inside), _union(taken[i] for i in inside)
                rows[text] = (len(calls), len(inside), *sums, sum(map(_span, calls.values())), _sum(own))
        assert rows == {
            row.name: (row.calls, row.events, row.sum_ns, row.union_ns, row.span_ns, row.exclusive_ns)
            for row in found.of_kind("graph module")
        }


def _flat(node: CallNode, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], CallNode]:
    return {path: node} | {key: value for child in node.children for key, value in _flat(child, (*path, child.name)).items()}


@given(traces(), windows)
def test_the_tree_owns_every_busy_nanosecond_once(trace: Trace, window: Window | None) -> None:
    scopes = list(ranges_and_modules(trace))
    names = [base_of(s.name) if s.name in _RANGES else s.name for s in scopes]
    parent = nest(ranges_and_modules(trace)).parent.tolist()

    def path_of(scope: int | None) -> tuple[str, ...]:
        return () if scope in (None, NOWHERE) else (*path_of(parent[scope]), names[scope])

    for device, root in call_trees(trace, window):
        taken = _taken(trace, device, window)
        path = {}
        for i in taken:
            host = trace.device_events[i].host
            inner = () if host is None else path_of(max(_open(scopes, host.thread, host.start_ns), default=None))
            path[i] = (UNLINKED,) if host is None else inner or (OUTSIDE,)
            path[i] += tuple(trace.module_paths[i].split(".")) if i in trace.module_paths else ()
        owned: Counter[tuple[str, ...]] = Counter()
        for moment in range(100):
            running = [i for i, (start, end) in taken.items() if start <= moment < end]
            if running:  # of those that start together, the one that comes first
                owned[path[min(running, key=lambda i: (taken[i][0], i))]] += 1
        nodes = _flat(root)
        assert {key: node.self_ns for key, node in nodes.items() if node.self_ns} == owned
        assert root.total_ns == _union(taken.values()) and root.events == len(taken)
        for key, node in nodes.items():
            below = [i for i in taken if path[i][: len(key)] == key]
            assert (node.events, node.total_ns) == (len(below), sum(owned[path] for path in owned if path[: len(key)] == key))
            calls = [s for s in range(len(scopes)) if key and path_of(s) == key]
            if window is None:
                assert (node.calls, node.host_ns) == (len(calls), sum(scopes[s].end_ns - scopes[s].start_ns for s in calls))


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("ProfilerStep#3", "ProfilerStep"), ("ProfilerStep # 3", "ProfilerStep"), ("Linear_12", "Linear"), ("a_1_2", "a_1"),
        ("attention", "attention"), ("#3", "#3"), ("Conv2d", "Conv2d"),
        ("outer step 12", "outer step"), ("step 3 of 7", "step 3 of"), ("12", "12"), (" 12", " 12"),
    ],
)  # fmt: skip
def test_names_without_numbers(name: str, base: str) -> None:
    assert base_of(name) == base
    scopes = host_events([HostEvent("x", 0, 1, 0), HostEvent(name, 1, 2, 0), HostEvent(name, 3, 4, 0)])
    assert [scope.name for scope in unnumbered(scopes)] == ["x", base, base]


MALLOC, LOAD = ("cuda_runtime", "cudaMalloc"), ("cuda_driver", "cuModuleLoadData")
TUNE, STEP = ("user_annotation", "tune"), ("user_annotation", "ProfilerStep#0")
US = 1000


def found(folder: Path, events: list[dict[str, Any]]) -> tuple[Counter[str], Counter[str], int]:
    """Return the named times of the only device, us, and what its idle time says the host was late, us."""
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (view,) = device_views(read_trace(path))
    work = host_work(view)
    idle = activity(view).idle
    assert sum(work[0].values()) == idle["host_late"] + idle["profiler_overhead"]
    late, before = (Counter({name: ns // US for name, ns in part.items()}) for part in work)
    return late, before, idle["host_late"] // US


def test_the_time_before_the_first_kernel_and_in_a_gap(tmp_path: Path) -> None:
    events = [
        event(*STEP, "0", "1000"),
        event(*MALLOC, "100", "40"),
        event(*TUNE, "200", "300"),
        event(*LOAD, "250", "100"),
        event("cuda_runtime", "cudaFree", "520", "19"),  # too short to be told
        launch("600", "5", 1),
        kernel("one", "610", "50", 1),
        event(*LOAD, "640", "100"),
        launch("800", "5", 2),
        kernel("two", "810", "50", 2),
    ]
    late, before, told = found(tmp_path, events)
    assert before == {"cudaMalloc": 40, "tune": 200, "cuModuleLoadData": 100, BETWEEN: 610 - 340}
    assert late == {"cuModuleLoadData": 80, BETWEEN: 60} and told == 140  # idle from 660 to the launch at 800


def test_a_thread_that_launches_nothing_is_not_told(tmp_path: Path) -> None:
    other = event(*LOAD, "0", "500") | {"tid": 99}
    late, before, _ = found(tmp_path, [other, launch("600", "5", 1), kernel("one", "610", "50", 1)])
    assert late == {} and before == {BETWEEN: 10}  # from the first event of the launching thread on


@given(
    cuts=st.lists(st.integers(0, 400), min_size=2, max_size=12, unique=True),
    kernels=st.lists(st.integers(10, 390), min_size=1, max_size=4, unique=True),
)
def test_each_moment_has_the_innermost_name(cuts: list[int], kernels: list[int], tmp_path_factory: Any) -> None:
    """Nested ranges, the outermost between the outermost cuts, against a walk over each microsecond."""
    edges = sorted(cuts)
    nested = [(f"range {depth}", edges[depth], edges[-1 - depth]) for depth in range(len(edges) // 2)]
    events = [event("user_annotation", name, str(start), str(end - start)) for name, start, end in nested]
    starts = sorted(kernels)
    for number, start in enumerate(starts, 1):
        events += [launch(str(start - 1), "1", number), kernel(f"k{number}", str(start), "2", number)]
    late, before, _ = found(tmp_path_factory.mktemp("host"), events)

    def name_at(moment: int) -> str:
        return next((name for name, start, end in reversed(nested) if start <= moment < end), BETWEEN)

    first = min(edges[0], starts[0] - 1)
    assert before == Counter(name_at(moment) for moment in range(first, starts[0]))
    expected: Counter[str] = Counter()
    for one, other in pairwise(starts):
        expected.update(name_at(moment) for moment in range(one + 2, other - 1))
    assert late == expected


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


@given(st.lists(st.integers(0, 99), min_size=1, max_size=60), st.integers(1, 20))
def test_thinning_keeps_the_peak(values: list[int], num_points: int) -> None:
    ((use, points),) = memory_use(_trace(values), num_points=num_points)
    assert len(points) == min(num_points, len(values))
    assert use.peak_at_ns == 10 * values.index(max(values))
    assert (use.peak_at_ns, use.peak_allocated_bytes, use.reserved_then_bytes) in points
    assert all(values[at // 10] == allocated for at, allocated, _ in points)
    assert list(points) == sorted(points)
