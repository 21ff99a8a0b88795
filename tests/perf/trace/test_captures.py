"""Our own captures: the second reader finds the same counts and nanoseconds, and what must not matter does not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import layouts
import trace_oracle as oracle
from strobe.perf.trace import HostEvent, HostEvents, Trace, read_trace

ROOT = Path(__file__).parents[3]
TRACES = ROOT / "benchmarks" / "presets-h200" / "traces"
H200 = ROOT / "tests" / "data" / "h200"
CAPTURES = [*sorted(TRACES.glob("*.json.gz")), *sorted(H200.rglob("*.json.gz"))]
Events = list[dict[str, Any]]


def _rows(events: HostEvents, trace: Trace) -> list[tuple[str, int, int, str]]:
    return sorted((event.name, event.start_ns, event.end_ns, trace.threads[event.thread]) for event in events)


def _sums(trace: Trace) -> dict[tuple[str, str], tuple[int, int, int, int]]:
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in trace.device_events:
        found[event.kind, event.name].append(event.end_ns - event.start_ns)
    return {key: (len(durations), sum(durations), min(durations), max(durations)) for key, durations in found.items()}


@pytest.mark.parametrize("path", CAPTURES, ids=[path.name.removesuffix(".json.gz") for path in CAPTURES])
def test_a_capture_says_what_the_second_reader_says(path: Path) -> None:
    events, meta = oracle.load(path)
    facts, trace = oracle.Facts(events), read_trace(path)
    assert (trace.counts.events, trace.counts.clean) == (facts.num_events, True)
    assert _sums(trace) == facts.names()
    device = list(trace.device_events)
    kinds = Counter(event.kind for event in device)
    assert {kind: (kinds[kind], sum(e.end_ns - e.start_ns for e in device if e.kind == kind)) for kind in kinds} == facts.sums()
    by_device: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in device:
        by_device[event.device].append((event.start_ns, event.end_ns))
    assert {number: oracle.union(intervals) for number, intervals in by_device.items()} == facts.busy()
    assert sum(event.host is None for event in device) == facts.unlinked()
    linked = [(event.start_ns, event.host) for event in device if event.host]
    assert sorted((start - host.start_ns, start - host.end_ns) for start, host in linked) == facts.delays()
    answers = facts.launched()
    assert trace.launched == {call: (answers[call, True] + answers[call, False], answers[call, False]) for call, _ in answers}
    assert _rows(trace.ops, trace) == facts.spans("cpu_op")
    compiled = [span for span in facts.spans("cpu_op") if span[0].startswith("Torch-Compiled Region")]
    assert _rows(trace.ranges, trace) == sorted(facts.spans("user_annotation") + compiled)
    assert read_trace(path, ops=False).ranges == trace.ranges
    assert len(trace.regions) == len(facts.spans("user_annotation", "strobe::"))
    assert sum(end - start for start, end in trace.overhead) == facts.overhead()
    assert trace.base_ns == meta["baseTimeNanoseconds"]
    assert [one.name for one in trace.devices] == [one["name"] for one in meta["deviceProperties"]]


def test_there_are_captures_of_every_kind() -> None:
    names = {path.name.removesuffix(".json.gz") for path in CAPTURES}
    assert names == {"ultra", "turbo", "balanced", "quality", "baseline", "eager", "graph", "compiled", "sdpa", "sparse-triton"}
    compiled = read_trace(H200 / "compiled.json.gz", ops=False)
    assert [event.name for event in compiled.ranges] == ["Torch-Compiled Region: 0/0"] * 3 and len(compiled.ops) == 0


@pytest.fixture(scope="module")
def capture() -> tuple[Events, dict[str, Any]]:
    """A capture of a steady state, with one operator in ten and every compiled region."""
    events, meta = oracle.load(TRACES / "ultra.json.gz")

    def kept(number: int, event: dict[str, Any]) -> bool:
        return event.get("cat") != "cpu_op" or number % 10 == 0 or event["name"].startswith("Torch-Compiled Region")

    return [event for number, event in enumerate(events) if kept(number, event)], meta


def _read(events: Events, meta: dict[str, Any], path: Path, layout: layouts.Layout = layouts.compact) -> Trace:
    return read_trace(layouts.write(path, layout(events, meta)))


def _same(one: Trace, other: Trace) -> None:
    """Everything but the path, the metadata and the counts."""
    plain = {"path": Path(), "metadata": {}, "counts": one.counts}
    assert replace(one, **plain) == replace(other, **plain)


@pytest.fixture(scope="module")
def known(capture: tuple[Events, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return _read(*capture, tmp_path_factory.mktemp("known") / "t.json")


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_the_layout_does_not_matter(
    layout: layouts.Layout, capture: tuple[Events, dict[str, Any]], known: Trace, tmp_path: Path
) -> None:
    trace = _read(*capture, tmp_path / "t.json.gz", layout)
    assert trace.counts == known.counts
    if layout is layouts.bare:
        trace = replace(trace, base_ns=known.base_ns, devices=known.devices)
    _same(trace, known)


def test_the_order_of_the_events_does_not_matter(capture: tuple[Events, dict[str, Any]], known: Trace, tmp_path: Path) -> None:
    events, meta = capture
    trace = _read(layouts.shuffled(events), meta, tmp_path / "t.json")
    assert trace.counts == known.counts
    _same(trace, known)


def _changed(event: dict[str, Any], change: Callable[[int], int], *keys: str) -> dict[str, Any]:
    new = {key: change(oracle.ns(event[key])) for key in keys if key in event}
    return event | {key: f"{value // 1000}.{value % 1000:03d}" for key, value in new.items()}


def _moved(events: HostEvents, by: int) -> list[HostEvent]:
    return [event._replace(start_ns=event.start_ns + by, end_ns=event.end_ns + by) for event in events]


def test_a_shift_in_time_shifts_everything(capture: tuple[Events, dict[str, Any]], known: Trace, tmp_path: Path) -> None:
    events, meta = capture
    by = 3_141_592_653_589_793
    trace = _read([_changed(event, lambda t: t + by, "ts") for event in events], meta, tmp_path / "t.json")
    assert list(trace.ops) == _moved(known.ops, by)
    assert list(trace.ranges) == _moved(known.ranges, by)
    assert [(e.start_ns - by, e.end_ns - by, e.name, e.ordinal) for e in trace.device_events] == [
        (e.start_ns, e.end_ns, e.name, e.ordinal) for e in known.device_events
    ]
    assert list(trace.device_events.hosts) == _moved(known.device_events.hosts, by)
    assert trace.device_events.host == known.device_events.host
    assert known.window_end_ns is not None and trace.window_end_ns == known.window_end_ns + by
    assert trace.overhead == tuple((start + by, end + by) for start, end in known.overhead)


def test_longer_durations_are_longer(capture: tuple[Events, dict[str, Any]], known: Trace, tmp_path: Path) -> None:
    events, meta = capture
    trace = _read([_changed(event, lambda t: 7 * t, "dur") for event in events], meta, tmp_path / "t.json")
    assert [(e.start_ns, e.end_ns - e.start_ns, e.name) for e in trace.device_events] == [
        (e.start_ns, 7 * (e.end_ns - e.start_ns), e.name) for e in known.device_events
    ]
    assert _sums(trace) == {key: (n, *(7 * value for value in values)) for key, (n, *values) in _sums(known).items()}


def test_flows_do_not_matter(tmp_path: Path) -> None:
    events, meta = oracle.load(H200 / "eager.json.gz")
    known = _read(events, meta, tmp_path / "known.json")
    trace = _read([event for event in events if event["ph"] not in "sf"], meta, tmp_path / "t.json")
    assert trace.counts.events < known.counts.events
    _same(trace, known)


def test_without_launch_calls_nothing_is_linked_and_nothing_lost(
    capture: tuple[Events, dict[str, Any]], known: Trace, tmp_path: Path
) -> None:
    events, meta = capture
    rest = [event for event in events if event.get("cat") not in ("cuda_runtime", "cuda_driver")]
    trace = _read(rest, meta, tmp_path / "t.json")
    assert [event._replace(host=None, ordinal=0) for event in known.device_events] == list(trace.device_events)
    assert (trace.launched, len(trace.device_events.hosts)) == ({}, 0)


def test_a_rename_renames(capture: tuple[Events, dict[str, Any]], known: Trace, tmp_path: Path) -> None:
    events, meta = capture
    strange = 'of "x"\\, }, {"ph": "X"]} '
    trace = _read([event | {"name": strange + event["name"]} for event in events], meta, tmp_path / "t.json")
    assert [e.name for e in trace.device_events] == [strange + e.name for e in known.device_events]
    assert [e.start_ns for e in trace.device_events] == [e.start_ns for e in known.device_events]
    assert trace.regions == ()


def test_without_operators_only_they_are_missing() -> None:
    path = H200 / "eager.json.gz"
    trace, known = read_trace(path, ops=False), read_trace(path)
    assert len(trace.ops) == 0 and len(known.ops) == 312
    assert (trace.device_events, trace.ranges, trace.launched) == (known.device_events, known.ranges, known.launched)
