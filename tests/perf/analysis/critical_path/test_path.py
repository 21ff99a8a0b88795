"""The critical path against machines that are run again: a host, streams that work in order, calls that wait."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layouts import compact, write
from source import H200
from strobe.core.errors import DataError
from strobe.perf.analysis.critical_path import KERNEL, CriticalPath, WorkGraph, critical_path, simulate, work_graph
from strobe.perf.analysis.structure.window import choose_window
from strobe.perf.trace import Trace, read_trace
from synthetic import META, event, kernel, launch


@dataclass(frozen=True)
class Do:
    """What the host does next: works for a while, then launches a kernel, or waits for everything."""

    work: int
    kernel: str = ""
    length: int = 0
    stream: int = 0


@dataclass(frozen=True)
class Machine:
    """Runs a program: a kernel starts a latency after its call, and not before its stream is free."""

    latency: int
    call: int

    def run(self, program: list[Do]) -> tuple[int, list[dict[str, Any]]]:
        """How long it takes, from the first call to the end of the last kernel, and the events."""
        now, free, events = 1000, Counter[int](), list[dict[str, Any]]()
        first = now + program[0].work
        for number, do in enumerate(program, 1):
            now += do.work
            if do.kernel:
                start = max(now + self.latency, free[do.stream])
                free[do.stream] = start + do.length
                events.append(launch(_us(now), _us(self.call), number))
                events.append(kernel(do.kernel, _us(start), _us(do.length), number, stream=do.stream))
                now += self.call
            else:
                until = max([now, *free.values()])
                events.append(launch(_us(now), _us(until - now), 5000 + number, "cudaDeviceSynchronize"))
                now = until
        return max(free.values()) - first, events


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _read(folder: Path, events: list[dict[str, Any]]) -> Trace:
    return read_trace(write(folder / "t.json", compact(events, META)), details=True)


def _found(events: list[dict[str, Any]]) -> tuple[Trace, CriticalPath]:
    with tempfile.TemporaryDirectory() as folder:
        trace = _read(Path(folder), events)
        return trace, critical_path(trace)


LAUNCHES = st.builds(Do, st.integers(1, 60), st.sampled_from(["alpha", "beta", "gamma"]), st.integers(1, 90), st.integers(0, 2))
LATER = st.lists(st.one_of(LAUNCHES, LAUNCHES, st.builds(Do, work=st.integers(1, 60))), max_size=13)
PROGRAMS = st.builds(lambda first, later: [first, *later], LAUNCHES, LATER)
MACHINES = st.builds(Machine, latency=st.integers(0, 40), call=st.integers(1, 10))


@settings(max_examples=150, deadline=None)
@given(PROGRAMS, MACHINES)
def test_what_is_predicted_is_what_the_machine_does(program: list[Do], machine: Machine) -> None:
    """The trace alone says how long the program takes on that machine if some kernels, the host, or launches are free."""
    whole, events = machine.run(program)
    _, (found, parts, what_if) = _found(events)
    assert found.duration_ns == whole == sum(part.path_ns for part in parts)
    for what in what_if:
        if what.kind == KERNEL:
            other = [replace(do, length=0) if do.kernel == what.name else do for do in program]
            expected, removed = machine.run(other)[0], sum(do.length for do in program if do.kernel == what.name)
            assert what.removed_ns == removed
        elif what.kind == "host":
            expected = Machine(machine.latency, 0).run([replace(do, work=0) for do in program])[0]
        elif what.kind == "launch latency":
            expected = Machine(0, machine.call).run(program)[0]
        else:
            expected = machine.run([replace(do, length=0) for do in program])[0]  # no name of a kernel says what it computes
        assert what.duration_ns == expected, what
        assert what.ratio == (whole / expected if expected else None)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(*(st.integers(0, most) for most in (300, 60, 400, 80, 2, 1)), st.booleans(), st.sampled_from(["k", "gemm"])),
        min_size=1, max_size=12,
    ),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.sampled_from(["Device", "Stream", "Event"])), max_size=4),
)  # fmt: skip
def test_any_trace_is_reproduced(work: list[tuple[Any, ...]], waits: list[tuple[int, int, str]]) -> None:
    """Whatever the times are: kernels that overlap in a stream, that start before their call, that nobody launched."""
    events = [launch(_us(at), _us(length), 9000 + i, f"cuda{what}Synchronize") for i, (at, length, what) in enumerate(waits)]
    for number, (called, took, delay, length, stream, device, linked, name) in enumerate(work, 1):
        if linked:
            events.append(launch(_us(called), _us(took), number))
        events.append(kernel(name, _us(called + delay), _us(length), number, stream=stream, device=device))
    trace, found = _found(events)
    graph = work_graph(trace)
    _check(graph, found)
    for what in found[2]:
        assert 0 <= what.duration_ns <= found[0].duration_ns, "nothing takes longer when something is free"


def _check(graph: WorkGraph, found: CriticalPath) -> None:
    assert simulate(graph, graph.duration_ns) == graph.start_ns, "every node begins when it did"
    assert all(edge.source < node and edge.lag_ns >= 0 for node, edges in enumerate(graph.edges) for edge in edges)
    path, parts, _ = found
    reached, changed = [0] * len(graph.start_ns), True
    while changed:  # the longest path by relaxing edges until nothing changes, in the worst order
        changed = False
        for node in reversed(range(len(reached))):
            for source, from_end, lag, _ in graph.edges[node]:
                since = 0 if source < 0 else reached[source] + (graph.duration_ns[source] if from_end else 0)
                if since + lag > reached[node]:
                    reached[node], changed = since + lag, True
    longest = max(at + took for at, took, event in zip(reached, graph.duration_ns, graph.event, strict=True) if event)
    assert sum(part.path_ns for part in parts) == path.duration_ns == longest


def test_waiting_for_another_stream_is_seen(tmp_path: Path) -> None:
    """`late` was launched early and its stream is free: it waited for `long`, which ends just before."""
    events = [
        launch("1", "1", 1), kernel("long", "6", "100", 1, stream=1), launch("3", "1", 2),
        kernel("late", "107", "10", 2, stream=2),
    ]  # fmt: skip
    found, parts, what_if = critical_path(_read(tmp_path, events))
    assert found.inferred_events == 1 and found.duration_ns == 116_000
    assert {(part.kind, part.name): part.path_ns for part in parts} == {
        (KERNEL, "long"): 100_000, (KERNEL, "late"): 10_000, ("launch latency", ""): 5_000,
        ("wait for another stream", ""): 1_000,
    }  # fmt: skip
    (free,) = [what for what in what_if if (what.kind, what.name) == (KERNEL, "long")]
    assert free.duration_ns == 17_000, "then it is bound by its launch: at 3 + 5, and 10 long, from 1 on"


def test_usual_latency_and_gap_are_medians(tmp_path: Path) -> None:
    """Four launches find the stream free, three their kernel queued."""
    starts = {0: 5, 100: 107, 200: 220, 300: 307, 302: 409, 304: 422, 306: 441}
    events = []
    for number, (called, start) in enumerate(starts.items(), 1):
        events += [launch(str(called), "1", number), kernel("k", str(start), "100" if called == 300 else "10", number)]
    found, _, _ = critical_path(_read(tmp_path, events))
    assert (found.usual_launch_ns, found.usual_gap_ns) == (7_000, 3_000)


def test_a_copy_that_the_host_waits_for(tmp_path: Path) -> None:
    """The copy holds the host up until the kernel before it has ended; without that kernel the next launch comes earlier."""
    copy = event("gpu_memcpy", "Memcpy DtoH", "105", "5", device=0, stream=7, correlation=2) | {"pid": 0, "tid": 7}
    events = [
        launch("0", "1", 1), kernel("long", "5", "100", 1), launch("2", "110", 2, "cudaMemcpyAsync"), copy,
        launch("120", "1", 3), kernel("next", "125", "1", 3),
    ]  # fmt: skip
    found, parts, what_if = critical_path(_read(tmp_path, events))
    (free,) = [what for what in what_if if what.name == "long"]
    assert found.duration_ns == 126_000 and free.duration_ns == 28_000, "the copy then starts 5 after its call, at 7"
    lags = {part.kind: part.path_ns for part in parts if part.kind != KERNEL}
    assert lags == {"launch latency": 10_000, "synchronisation": 2_000, "host": 8_000}


def test_a_stream_that_is_waited_for_holds_up_the_host(tmp_path: Path) -> None:
    events = [
        launch("0", "1", 1), kernel("long", "5", "100", 1, stream=1), launch("2", "1", 2),
        kernel("other", "7", "500", 2, stream=2),
        launch("4", "103", 9, "cudaStreamSynchronize"), launch("110", "1", 3), kernel("next", "115", "600", 3, stream=1),
    ]  # fmt: skip
    found, parts, what_if = critical_path(_read(tmp_path, events))
    (free,) = [what for what in what_if if what.name == "long"]
    assert found.duration_ns == 715_000 and free.duration_ns == 615_000
    assert {part.name for part in parts if part.kind == KERNEL} == {"long", "next"}


def test_nothing_to_do(tmp_path: Path) -> None:
    trace = _read(tmp_path, [event("cpu_op", "aten::mm", "1", "2")])
    with pytest.raises(DataError, match="no device event starts there"):
        critical_path(trace)


def test_too_many_events_are_refused_and_a_window_has_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.perf.analysis.critical_path.MOST_EVENTS", 50)
    trace = read_trace(H200 / "eager.json.gz", details=True)
    with pytest.raises(DataError, match="too many for the critical path, 50 at most: give a --window"):
        critical_path(trace)
    window = choose_window(trace, "ProfilerStep#3")
    found = critical_path(trace, window)
    _check(work_graph(trace, window), found)
    assert (found[0].begin_ns, found[0].events) == (window.start_ns, 28)
