"""Trees of device time by path, and two of them laid over each other."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trace_oracle as oracle
from captures import H200
from strobe.perf.analysis.device.kernels import kernel_name
from strobe.perf.analysis.ledger.traces import Node, difference, idle_times, label_trace, path_times, path_tree
from strobe.perf.trace import DeviceEvent, DeviceEvents, HostEvent, HostEvents, Trace, read_trace


def make_trace(modules: bool) -> Trace:
    """Two layers of one kernel each, one kernel outside, one whose launch is not known; the last two overlap by 5."""
    scopes = [HostEvent("strobe::step#0", 0, 60, 0), HostEvent("Layer_0", 5, 20, 0), HostEvent("Layer_1", 30, 50, 0)]
    launches = {"a": 10, "b": 35, "c": 55, "d": 70}
    times = {"a": (100, 110), "b": (110, 130), "c": (130, 160), "d": (160, 170), "early": (165, 180)}
    device = [
        DeviceEvent(
            name, "kernel", *times[name], 0, 7, 0, HostEvent("launch", at, at + 1, 0) if (at := launches.get(name)) else None
        )
        for name in times
    ]
    rows = HostEvents.from_rows(scopes)
    return Trace(
        path=Path("t.json"),
        threads=("1/1",),
        ops=HostEvents.empty(),
        regions=(),
        ranges=HostEvents.from_rows(scopes[:1]) if modules else rows,
        modules=HostEvents.from_rows(scopes[1:]) if modules else HostEvents.empty(),
        device_events=DeviceEvents.from_rows(device),
        module_paths={3: "layers.7.mlp"},
    )


def test_paths_are_those_of_the_launch() -> None:
    trace = make_trace(modules=False)
    assert path_times(trace, label_trace(trace, "t")) == {
        ("step", "Layer", "a"): 10, ("step", "Layer", "b"): 20, ("step", "c"): 30, ("layers", "7", "mlp", "d"): 10,
        ("early",): 10,
    }  # fmt: skip
    trace = make_trace(modules=True)
    assert path_times(trace, label_trace(trace, "t")) == {
        ("Layer", "a"): 10, ("Layer", "b"): 20, ("c",): 30, ("layers", "7", "mlp", "d"): 10, ("early",): 10,
    }  # fmt: skip


_TREES = st.dictionaries(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple), st.integers(0, 1000), max_size=12)


@given(_TREES, _TREES, st.integers(1, 4), st.integers(1, 4))
def test_a_difference_adds_up(before: dict[tuple[str, ...], int], after: dict[tuple[str, ...], int], n: int, m: int) -> None:
    root = difference(before, n, after, m)
    assert root.baseline_ns * n == sum(before.values()) and root.candidate_ns * m == sum(after.values()), "exactly"
    own = {path: (Fraction(before.get(path, 0), n), Fraction(after.get(path, 0), m)) for path in before.keys() | after.keys()}

    def check(node: Node, path: tuple[str, ...]) -> None:
        below = [times for each, times in own.items() if each[: len(path)] == path]
        assert (node.baseline_ns, node.candidate_ns) == tuple(map(sum, zip(*below, strict=True))) if below else (0, 0)
        assert node.own_ns == own.get(path, (0, 0))
        for child in node.children:
            check(child, (*path, child.name))

    check(root, ())


def test_operators_are_part_of_a_path_if_they_are_asked_for() -> None:
    ops = [HostEvent("aten::linear", 8, 15, 0), HostEvent("aten::addmm", 9, 12, 0), HostEvent("Layer_0", 9, 12, 0)]
    trace = replace(make_trace(modules=True), ops=HostEvents.from_rows(ops))
    found = path_times(trace, label_trace(trace, "t"), operators=True)
    assert found[("Layer", "aten::linear", "aten::addmm", "a")] == 10, "what is a scope already is not one again"
    assert found[("Layer", "b")] == 20


def _raw_path(events: list[dict[str, Any]], call: dict[str, Any], kernel: str) -> tuple[str, ...]:
    """What is open on the thread of a call when it starts: one event at a time."""
    at, thread = oracle.span(call)[0], (call["pid"], call["tid"])
    scopes = [one for one in events if one.get("ph") == "X" and one.get("cat") in ("user_annotation", "cpu_op")]
    around = []
    for place, one in enumerate(scopes):
        start, end = oracle.span(one)
        if (one["pid"], one["tid"]) == thread and start <= at < end:
            around.append(
                (start, -end, one["cat"] == "cpu_op", place, re.sub(r"#[0-9]+$", "", one["name"]).removeprefix("strobe::"))
            )
    return (*(name for *_, name in sorted(around)), kernel_name(kernel).group)


@pytest.mark.parametrize("name", ["eager", "graph", "pair/traces/sdpa"])
def test_captures_against_one_event_at_a_time(name: str) -> None:
    path = H200 / f"{name}.json.gz"
    trace, (events, _) = read_trace(path, details=True), oracle.load(path)
    side, facts = label_trace(trace, name), oracle.Facts(events)
    expected: dict[tuple[str, ...], int] = defaultdict(int)
    done = 0
    for one, start, end in sorted(facts.device, key=lambda row: row[1]):
        call = facts.host(one)
        assert call is not None
        for tile in side.tiles:
            inside = min(end, tile.end_ns) - max(start, tile.start_ns, done)  # of two that overlap the first owns the time
            if inside > 0:
                expected[_raw_path(events, call, one["name"])] += inside
        done = max(done, end)
    found = path_times(trace, side, operators=True)
    assert found == dict(expected)
    assert sum(found.values()) + sum(idle_times(side).values()) == side.total_ns


def test_a_tree_adds_up_to_both_sides() -> None:
    sides = [read_trace(H200 / f"{name}.json.gz", details=True) for name in ("eager", "graph")]
    chosen = [(trace, label_trace(trace, "t")) for trace in sides]
    tree = path_tree(chosen[0], chosen[1], "step")
    assert tree is not None and tree.operators
    per_step = [Fraction(side.total_ns, len(side.tiles)) for _, side in chosen]
    assert [tree.root.baseline_ns, tree.root.candidate_ns] == per_step and per_step[0].denominator > 1
    leaves = list(_leaves(tree.root))
    assert [sum(leaf.baseline_ns for leaf in leaves), sum(leaf.candidate_ns for leaf in leaves)] == per_step
    assert path_tree(chosen[0], None, "step") is None


def _leaves(node: Node) -> Iterator[Node]:
    for child in node.children:
        yield from _leaves(child) if child.children else [child]
