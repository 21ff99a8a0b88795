"""Ranges, modules and the tree of calls against asking every call and every nanosecond, on random small traces."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_traces import host_events, trace_of
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.structure.ranges import (
    NOWHERE,
    OUTSIDE,
    UNLINKED,
    CallNode,
    RangeRow,
    base_of,
    call_trees,
    nest,
    range_table,
    ranges_and_modules,
    unnumbered,
)
from strobe.perf.trace import DeviceEvent, HostEvent, Trace

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
    events.sort(key=lambda event: (event.start_ns, -event.end_ns))
    for position, event in enumerate(events):
        if event.host is not None and event.start_ns % 3 == 0 and draw(st.booleans()):
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
            rows.add(
                RangeRow(
                    trace="",
                    device=where[0],
                    kind=where[1],
                    name=name,
                    calls=len(counted),
                    events=len(everything),
                    kernels=sum(events[i].kind in ("kernel", "comm") for i in everything),
                    sum_ns=_sum(taken[i] for i in everything),
                    union_ns=_union(taken[i] for i in everything),
                    span_ns=sum(_span([taken[i] for i in own[call]]) for call in outer),
                    exclusive_ns=_sum(taken[i] for i in exclusive),
                    host_ns=sum(scopes[c].end_ns - scopes[c].start_ns for c in outer if c in counted),
                )
            )
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


@given(traces())
def test_the_innermost_scope_at_each_moment(trace: Trace) -> None:
    scopes = list(ranges_and_modules(trace))
    nesting = nest(ranges_and_modules(trace))
    for thread in (0, 1, 2):
        expected = [max(_open(scopes, thread, moment), default=NOWHERE) for moment in range(-1, 95)]
        assert nesting.at(thread, np.arange(-1, 95)).tolist() == expected
    for number, (scope, parent) in enumerate(zip(scopes, nesting.parent.tolist(), strict=True)):
        above = [i for i in _open(scopes, scope.thread, scope.start_ns) if i < number]
        assert parent == max(above, default=NOWHERE)
    roots = nesting.roots().tolist()
    assert all(
        root == (i if parent == NOWHERE else roots[parent])
        for i, (root, parent) in enumerate(zip(roots, nesting.parent, strict=True))
    )


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


def test_no_device_events_is_no_table() -> None:
    assert range_table(trace_of()) == () and call_trees(trace_of()) == ()


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
