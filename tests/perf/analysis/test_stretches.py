"""A long trace is looked at some events at a time: what is found must not depend on how many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from strobe.perf.analysis.device.activity import DeviceView, activity, device_views, idle_strip
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.device.kernels import kernel_table
from strobe.perf.analysis.device.launch import Gaps, Launch, integrity
from strobe.perf.analysis.operators import attribute_modules
from strobe.perf.analysis.structure.collectives import communication
from strobe.perf.analysis.structure.ranges import call_trees, range_table
from strobe.perf.analysis.structure.steps import find_steps, layer_groups
from strobe.perf.trace import DeviceEvent, HostEvent, Trace, columns

ALL_AT_ONCE = 1 << 40
_KINDS = ("kernel", "kernel", "comm", "memset", "memcpy")
_NAMES = ("gemm", "softmax", "nccl", "Memset (Device)", "Memcpy DtoD (Device -> Device)")

_time = st.integers(0, 60)
_scopes = st.lists(
    st.tuples(st.sampled_from(["ProfilerStep#1", "ProfilerStep#2", "Block_0", "Block_1"]), _time, _time), max_size=6
)
_calls = st.lists(st.tuples(st.sampled_from(["cudaLaunchKernel", "cudaGraphLaunch"]), _time, st.integers(0, 9)), max_size=5)
_events = st.lists(
    st.tuples(st.integers(0, 4), _time, st.integers(0, 25), st.integers(0, 2), st.integers(-1, 4)), min_size=1, max_size=14
)
_windows = st.one_of(st.none(), st.builds(lambda at, n: Window(start_ns=at, end_ns=at + n, label="w"), _time, st.integers(1, 40)))


@contextmanager
def at_a_time(events: int) -> Iterator[None]:
    kept, columns.BLOCK = columns.BLOCK, events
    try:
        yield
    finally:
        columns.BLOCK = kept


def _host_events(rows: list[tuple[str, int, int]]) -> list[HostEvent]:
    return [HostEvent(name, start, start + length, start % 2) for name, start, length in rows]


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Streams, devices and kinds that overlap at will, events of no length, graphs, ranges that cross, unlinked work."""
    calls = [HostEvent(name, start, start + length, start % 2) for name, start, length in draw(_calls)]
    rows = []
    for kind, start, length, place, call in sorted(draw(_events), key=lambda row: (row[1], -row[2])):
        host = calls[call] if 0 <= call < len(calls) else None
        ordinal = 0 if host is None else sum(row.host == host for row in rows)
        when, where = (start, start + length), (place // 2, place)
        rows.append(DeviceEvent(_NAMES[kind], _KINDS[kind], *when, *where, ordinal, host, f"{kind}x{start}"))
    return trace_of(
        rows, _host_events(draw(_scopes)), _host_events(draw(_scopes)),
        module_paths={i: f"layers.{row.start_ns % 2}.mlp" for i, row in enumerate(rows) if row.start_ns % 5 == 0},
        overhead=((3, 5), (20, 31)),
    )  # fmt: skip


def _listed(view: DeviceView) -> list[list[int]]:
    return [column.tolist() for column in view.slices]


def _gaps(view: DeviceView) -> tuple[Any, ...]:
    gaps = Gaps(view)
    return gaps.rows, gaps.kernel_ns, gaps.gap_ns, gaps.head_ns, gaps.tail_ns


def _launches(view: DeviceView) -> tuple[Any, ...]:
    found = Launch(view)
    return found.num_events, found.num_unlinked, found.num_uncorrelated, found.kinds, found.calls


def _found(trace: Trace, window: Window | None) -> list[Any]:
    views = device_views(trace, window)
    of_devices = [
        (activity(view), kernel_table(view), kernel_table(view, "shape"), _gaps(view), _launches(view), _listed(view))
        for view in views
    ]
    of_trace = (range_table(trace, window), call_trees(trace, window), layer_groups(trace, window), find_steps(trace))
    more = (communication([trace], [window]), integrity(trace, device_views(trace)), attribute_modules(trace))
    return [of_devices, of_trace, more, idle_strip(views, 7) if all(view.span_ns for view in views) else None]


@given(traces(), _windows)
def test_every_finding_is_the_same_for_any_number_of_events_at_a_time(trace: Trace, window: Window | None) -> None:
    with at_a_time(ALL_AT_ONCE):
        whole = _found(trace, window)
    with at_a_time(2):
        assert _found(trace, window) == whole
