"""Kernels of a graph get the labels of the same kernels launched one by one, on one stream or on many."""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from passes import Recorder, stream
from strobe.core.errors import DataError
from strobe.perf.analysis.ledger.account import Part, part_of
from strobe.perf.analysis.runs.timeline import (
    DeviceTimeline,
    EagerPass,
    encode_passes,
    partition_of,
    passes_of,
    read_passes,
    relabelled,
    timeline_of,
)
from strobe.perf.analysis.runs.timeline import Path as Regions
from strobe.perf.trace import DeviceEvent, DeviceEvents, HostEvent, Region, Trace

STAGE = "denoise_step"


def device_timeline(trace: Trace) -> DeviceTimeline:
    timeline = timeline_of(trace)
    assert isinstance(timeline, DeviceTimeline)
    return timeline


def parts(trace: Trace, passes: tuple[EagerPass, ...]) -> Counter[Part]:
    """Busy time by part."""
    timeline, _ = relabelled(device_timeline(trace), passes, layers=False)
    found: Counter[Part] = Counter()
    for label, ns in partition_of(timeline).owned.items():
        if label.busy:
            found[part_of(label)] += ns
    return found


def test_a_kernel_in_a_graph_belongs_to_the_part_that_it_has_without() -> None:
    eager, graph = stream(Recorder(), blocks=2), stream(Recorder(), blocks=2, graphs=True)
    passes = passes_of(eager)
    assert parts(graph, passes) == parts(eager, ()) and parts(eager, ())[Part.ATTENTION_KERNEL] > 0
    bare = parts(graph, ())
    assert Part.ATTENTION_KERNEL not in bare and bare.total() == parts(eager, ()).total()


def test_without_a_key_the_stages_are_named_that_cannot_be_told_apart() -> None:
    graph = stream(Recorder(), graphs=True)
    _, replays = relabelled(device_timeline(graph), (), layers=False)
    assert replays is not None and replays.unlabelled == {"denoise_step", "commit"} and replays.attributed == 0
    _, replays = relabelled(device_timeline(graph), passes_of(stream(Recorder())), layers=False)
    assert replays is not None and not replays.unlabelled and not replays.reason
    only = tuple(one for one in passes_of(stream(Recorder())) if one.stage == "commit")
    _, replays = relabelled(device_timeline(graph), only, layers=False)
    assert replays is not None and replays.unlabelled == {"denoise_step"}


def test_passes_come_back_from_their_file(tmp_path: Path) -> None:
    passes, path = passes_of(stream(Recorder())), tmp_path / "p.json.gz"
    assert {one.stage for one in passes} == {"denoise_step", "commit"}
    path.write_bytes(encode_passes(passes))
    assert read_passes(path) == passes and path.read_bytes() == encode_passes(passes)


@pytest.mark.parametrize(
    "data",
    [b"", b"no gzip", gzip.compress(b"[1]"), gzip.compress(b"{"), encode_passes(())[:-5]],
    ids=["empty", "no gzip", "other JSON", "no JSON", "cut"],
)
def test_a_file_that_holds_no_passes_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "p.json.gz"
    path.write_bytes(data)
    with pytest.raises(DataError, match="holds no passes launched kernel by kernel"):
        read_passes(path)


@st.composite
def branched(draw: st.DrawFn) -> tuple[Trace, EagerPass, dict[int, Regions]]:
    """A pass of equal layers as a graph, each layer's branch on a stream of its own and its trunk on one of a few, and where each
    of the graph's kernels (by its start) belongs. Some kernels of the pass lie outside of the graph."""
    layer = draw(st.lists(st.sampled_from("abcdef"), min_size=3, max_size=8))
    num_layers, trunks = draw(st.integers(2, 12)), draw(st.integers(1, 5))
    branch = set(draw(st.lists(st.integers(0, len(layer) - 1), max_size=4)))
    before = draw(st.integers(0, 3))
    names = [f"before_{at}" for at in range(before)] + layer * num_layers
    paths: list[Regions] = [(STAGE, "conditions")] * before
    for number in range(num_layers):
        paths += [(STAGE, "dit_forward", f"layer {number}", f"{name}_region") for name in layer]
    call = HostEvent("cudaGraphLaunch", 10, 20, 0)
    events, places = [], {}
    for at in range(num_layers * len(layer)):
        number, inside = divmod(at, len(layer))
        stream_of = 100 + number if inside in branch else 7 + number % trunks
        start = 100 + 10 * at
        places[start] = paths[before + at]
        events.append(DeviceEvent(layer[inside], "kernel", start, start + 9, 0, stream_of, at, call))
    regions = tuple(
        Region(name=name, index=0, start_ns=start, end_ns=end, thread=0)
        for name, start, end in (("frame_block", 0, 90), (STAGE, 5, 80))
    )
    return trace_of(events, regions=regions), EagerPass(stage=STAGE, names=tuple(names), paths=tuple(paths), entered=()), places


@given(branched())
def test_a_graph_on_many_streams_is_laid_over_its_pass(made: tuple[Trace, EagerPass, dict[int, Regions]]) -> None:
    """A driver spreads the branches of a graph: each stream alone fits the pass in many places."""
    trace, one, places = made
    timeline, replays = relabelled(device_timeline(trace), (one,), layers=True)
    assert replays is not None and replays.matched == replays.kernels == len(trace.device_events)
    for start, path in zip(timeline.work.start.tolist(), timeline.path.tolist(), strict=True):
        assert timeline.paths[path][-1] == places[start][-1]


@pytest.mark.parametrize("inside", ["memcpy32_post", "memcpy128"])
def test_a_copy_that_a_graph_makes_a_kernel_is_still_that_copy(inside: str) -> None:
    """A pass of many copies, such as one that measures means and scales: without it too few kernels would match."""

    def with_copies(trace: Trace, name: str) -> Trace:
        rows = [replace_name(event, name) if event.name == "add" else event for event in trace.device_events]
        return replace(trace, device_events=DeviceEvents.from_rows(rows))

    eager = with_copies(stream(Recorder(), blocks=2), "Memcpy DtoD (Device -> Device)")
    graph = with_copies(stream(Recorder(), blocks=2, graphs=True), inside)
    assert inside in {event.name for event in graph.device_events}
    assert parts(graph, passes_of(eager)) == parts(eager, ())


def replace_name(event: DeviceEvent, name: str) -> DeviceEvent:
    return event._replace(name=name)
