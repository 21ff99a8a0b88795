"""Timelines: every nanosecond has one owner, kernels of graphs have the regions they have without, and a block's pieces."""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_traces import device_events, trace_of
from passes import LAYER, LAYERS, STEPS, Recorder, kernels_of, stream
from strobe.core.errors import DataError
from strobe.perf.analysis.ledger.account import part_of
from strobe.perf.analysis.parts import Part
from strobe.perf.analysis.runs.breakdown import (
    REGIONS,
    REST,
    Amount,
    KernelProfile,
    Operation,
    Whole,
    breakdown,
    layers_of,
    place_of,
    region_kernels,
)
from strobe.perf.analysis.runs.timeline import (
    NOT_LINKED,
    OUTSIDE,
    UNMATCHED,
    EagerPass,
    Label,
    Partition,
    RegionCall,
    RunTimeline,
    Tile,
    block_slices,
    encode_passes,
    named,
    partition_of,
    passes_of,
    read_passes,
    relabelled,
    timeline_of,
)
from strobe.perf.analysis.runs.timeline import Path as Regions
from strobe.perf.trace import DeviceEvent, HostEvent, Region, Trace

_MAIN, _WORKER = 0, 1


def _region(name: str, start: int, end: int, index: int | None = None, thread: int = _MAIN) -> Region:
    return Region(name=name, index=index, start_ns=start, end_ns=end, thread=thread)


def _trace(regions: list[Region], ops: list[HostEvent] = (), device: list[DeviceEvent] = (), overhead: tuple = ()) -> Trace:
    ordered = tuple(sorted(regions, key=lambda r: (r.start_ns, -r.end_ns, r.name)))
    return trace_of(device, ops=ops, regions=ordered, overhead=overhead)


def _closes(result: Partition) -> None:
    for tile in result.tiles:
        assert sum(tile.owned.values()) == tile.end_ns - tile.start_ns
    busy = sum(ns for label, ns in result.owned.items() if label.busy)
    assert busy == sum(call.exclusive_ns for call in result.calls)
    assert result.owned.total() == result.total_ns


def test_a_frame_block_by_hand() -> None:
    """The property below asks each nanosecond; here are the names, the durations, and what another thread does meanwhile."""
    regions = [
        _region("e2e", 0, 200), _region("frame_block", 10, 90, 0), _region("attention", 25, 50),
        _region("frame_block", 100, 150, 1), _region("vae_decode", 95, 140, thread=_WORKER),
    ]  # fmt: skip
    rows = (("sdpa", 31, 44, _MAIN), ("bmm", 33, 40, _MAIN), ("empty", 52, 52, _MAIN), ("conv", 92, 130, _WORKER))
    timeline = timeline_of(_trace(regions, [HostEvent(*row) for row in rows]))
    result = partition_of(timeline)
    assert (result.device, result.indices, result.total_ns) == ("cpu", (0, 1), 140)
    found = {call.name: (call.duration_ns, call.exclusive_ns, str(call.label)) for call in result.calls}
    assert found == {"sdpa": (13, 6, "attention: op"), "bmm": (7, 7, "attention: op"), "empty": (0, 0, "frame_block: op")}
    assert result.overlap == (("1/2", OUTSIDE, 3), ("1/2", ("vae_decode",), 35))
    slices = list(block_slices(timeline, 0))
    assert [(s.start_ns, s.end_ns, s.name) for s in slices if s.name] == [(31, 33, "sdpa"), (33, 40, "bmm"), (40, 44, "sdpa")]
    assert slices[0].start_ns == 10 and slices[-1].end_ns == 100


@st.composite
def _nested(draw: st.DrawFn, start: int, end: int, depth: int) -> list[Region]:
    """Spans inside `[start, end]`, properly nested, possibly touching or of length 0."""
    regions: list[Region] = []
    position = start
    while position <= end and draw(st.booleans()):
        left = draw(st.integers(position, end))
        right = draw(st.integers(left, end))
        regions.append(_region(draw(st.sampled_from(["attention", "ffn", "denoise_step"])), left, right))
        if depth:
            regions += draw(_nested(left, right, depth - 1))
        position = right + 1
    return regions


@st.composite
def _cpu_traces(draw: st.DrawFn) -> Trace:
    regions: list[Region] = []
    position = draw(st.integers(0, 5))
    for index in range(draw(st.integers(1, 3))):
        end = position + draw(st.integers(1, 25))
        regions += [_region("frame_block", position, end, index), *draw(_nested(position + 1, end - 1, 2))]
        position = end + draw(st.integers(0, 4))
    op = st.builds(
        lambda start, size, name, thread: HostEvent(name, start, start + size, thread),
        st.integers(-3, position + 3), st.integers(0, 9), st.sampled_from("abc"), st.sampled_from([_MAIN, _MAIN, _WORKER]),
    )  # fmt: skip
    return _trace(regions, draw(st.lists(op, max_size=15)))


def _innermost(trace: Trace, moment: int) -> tuple[str, ...]:
    """Path of the spans that are open on the main thread, outermost first, from the frame block down."""
    path = [r.name for r in trace.regions if r.thread == _MAIN and r.start_ns <= moment < r.end_ns]
    return tuple(path[1:]) if path else OUTSIDE


@given(_cpu_traces())
def test_every_nanosecond_of_a_cpu_trace(trace: Trace) -> None:
    result = partition_of(timeline_of(trace))
    _closes(result)
    ops = [op for op in trace.ops if op.thread == _MAIN]
    exclusive: Counter[str] = Counter()
    for tile in result.tiles:
        expected: Counter[Label] = Counter()
        for moment in range(tile.start_ns, tile.end_ns):
            running = [op for op in ops if op.start_ns <= moment < op.end_ns]
            expected[Label(_innermost(trace, moment), "op" if running else "gap")] += 1
            exclusive.update(op.name for op in running[-1:])
        assert tile.owned == expected
        slices = list(block_slices(timeline_of(trace), tile.index))
        assert sum(piece.end_ns - piece.start_ns for piece in slices) == tile.end_ns - tile.start_ns
    owned = Counter[str]()
    for call in result.calls:
        owned[call.name] += call.exclusive_ns
    assert +owned == exclusive
    assert [tile.start_ns for tile in result.tiles[1:]] == [tile.end_ns for tile in result.tiles[:-1]]


_KINDS = ["kernel", "kernel", "kernel", "memset", "comm", "memcpy"]


@st.composite
def _gpu_traces(draw: st.DrawFn) -> Trace:
    """Two frame blocks of launches; device work on two streams, overlapping, late, unlinked and in graphs."""
    regions, hosts = [], []
    for index in range(2):
        start = 40 * index
        regions += [_region("frame_block", start, start + 38, index), _region("attention", start + 5, start + 20)]
        regions += [_region("attention_kernel", start + 8, start + 15)]
        hosts += [HostEvent("launch", start + at, start + at + 2, _MAIN) for at in draw(st.lists(st.integers(0, 37), min_size=1))]
    device = []
    for correlation, host in enumerate(hosts):
        start = host.start_ns + draw(st.integers(0, 30))
        for ordinal in range(draw(st.integers(1, 2))):
            end = start + draw(st.integers(0, 12))
            kind = draw(st.sampled_from(_KINDS))
            device.append(DeviceEvent(f"{kind}{correlation}", kind, start, end, 0, ordinal, ordinal, host))
            start = end + draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, 90))
        device.append(DeviceEvent("early", "kernel", start, start + draw(st.integers(0, 9)), 0, 7, 0, None))
    return _trace(regions, device=device, overhead=((3, 9), (50, 52)))


def _rank(event: DeviceEvent, path: tuple[str, ...]) -> int:
    if event.kind == "kernel":
        return 2 - ("attention" in path) - ("attention_kernel" in path)
    return {"memset": 3, "comm": 4, "memcpy": 5}[event.kind]


@given(_gpu_traces())
def test_every_nanosecond_of_a_gpu_trace(trace: Trace) -> None:
    result = partition_of(timeline_of(trace))
    _closes(result)
    assert result.device == "cuda:0" and result.overlap == ()
    events = list(trace.device_events)
    paths = [NOT_LINKED if e.host is None else _innermost(trace, e.host.start_ns) for e in events]
    first = [min(e.start_ns for e in events if e.host and 40 * i <= e.host.start_ns < 40 * (i + 1)) for i in (0, 1)]
    assert [tile.start_ns for tile in result.tiles] == [first[0], max(first)]
    assert result.tiles[0].end_ns == result.tiles[1].start_ns
    for tile in result.tiles:
        busy: Counter[Label] = Counter()
        for moment in range(tile.start_ns, tile.end_ns):
            running = [i for i, e in enumerate(events) if e.start_ns <= moment < e.end_ns]
            if running:
                owner = min(running, key=lambda i: (_rank(events[i], paths[i]), i))
                busy[Label(paths[owner], events[owner].kind)] += 1
        assert {label: ns for label, ns in tile.owned.items() if label.busy} == busy


def test_idle_time_carries_the_span_of_the_launch_that_ends_it() -> None:
    regions = [_region("frame_block", 0, 100, 5), _region("ffn", 20, 50)]
    hosts = [HostEvent("cudaLaunchKernel", at, at + 5, _MAIN) for at in (2, 30, 31)]
    device = [
        DeviceEvent("a", "kernel", 10, 20, 0, 7, 0, hosts[0]),
        DeviceEvent("b", "kernel", 40, 60, 0, 7, 0, hosts[1]),
        DeviceEvent("c", "memcpy", 55, 64, 0, 9, 0, hosts[2]),
        DeviceEvent("early", "kernel", 70, 80, 0, 9, 0, None),
        DeviceEvent("d", "kernel", 82, 90, 0, 7, 1, hosts[0]),
        DeviceEvent("other device", "kernel", 0, 99, 1, 7, 0, None),
    ]
    result = partition_of(timeline_of(_trace(regions, device=device, overhead=((25, 28),))))
    assert result.tiles[0].owned == {
        Label((), "kernel"): 10 + 8, Label(("ffn",), "host_late"): 5 + 2, Label(("ffn",), "profiler_overhead"): 3,
        Label(("ffn",), "launch_latency"): 10, Label(("ffn",), "kernel"): 20, Label(("ffn",), "memcpy"): 4,
        Label(NOT_LINKED, "unlinked"): 6, Label(NOT_LINKED, "kernel"): 10, Label((), "queued"): 2,
    }  # fmt: skip
    assert {call.name: call.exclusive_ns for call in result.calls} == {"a": 10, "b": 20, "c": 4, "early": 10, "d": 8}


def test_a_block_without_its_successor_ends_by_itself() -> None:
    blocks = [_region("frame_block", 0, 10, 3), _region("frame_block", 20, 30, 4), _region("frame_block", 90, 95, 8)]
    result = partition_of(timeline_of(_trace(blocks)))
    assert [(tile.index, tile.start_ns, tile.end_ns) for tile in result.tiles] == [(3, 0, 20), (4, 20, 30), (8, 90, 95)]


@pytest.mark.parametrize(
    ("regions", "device", "says"),
    [
        ([_region("ffn", 0, 10)], [], "no strobe::frame_block spans"),
        ([_region("frame_block", 0, 10, 0), _region("frame_block", 20, 30, 0)], [], "one clip"),
        ([_region("frame_block", 0, 10, 0), _region("frame_block", 20, 30, 1, _WORKER)], [], "one clip"),
        ([_region("frame_block", 0, 10, 0)], [DeviceEvent("k", "kernel", 1, 2, 0, 7, 0, None)], "launched no work"),
    ],
)
def test_unusable_traces_are_refused(regions: list[Region], device: list[DeviceEvent], says: str) -> None:
    with pytest.raises(DataError, match=says):
        partition_of(timeline_of(_trace(regions, device=device)))


def test_an_unknown_block_is_refused() -> None:
    with pytest.raises(DataError, match="no frame block 7; the trace holds 0"):
        next(block_slices(timeline_of(_trace([_region("frame_block", 0, 10, 0)])), 7))


STAGE = "denoise_step"


def parts(trace: Trace, passes: tuple[EagerPass, ...]) -> Counter[Part]:
    """Busy time by part."""
    timeline, _ = relabelled(timeline_of(trace), passes, layers=False)
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


@pytest.mark.parametrize("keys", [set(), {"commit"}, {"denoise_step", "commit"}])
def test_without_a_key_the_stages_are_named_that_cannot_be_told_apart(keys: set[str]) -> None:
    passes = tuple(one for one in passes_of(stream(Recorder())) if one.stage in keys)
    _, replays = relabelled(timeline_of(stream(Recorder(), graphs=True)), passes, layers=False)
    assert replays is not None and replays.unlabelled == {"denoise_step", "commit"} - keys
    assert bool(replays.attributed) == bool(keys) and bool(replays.reason) == bool(replays.unlabelled)


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
    regions = _region("frame_block", 0, 90, 0), _region(STAGE, 5, 80, 0)
    return trace_of(events, regions=regions), EagerPass(stage=STAGE, names=tuple(names), paths=tuple(paths), entered=()), places


@given(branched())
def test_a_graph_on_many_streams_is_laid_over_its_pass(made: tuple[Trace, EagerPass, dict[int, Regions]]) -> None:
    """A driver spreads the branches of a graph: each stream alone fits the pass in many places."""
    trace, one, places = made
    timeline, replays = relabelled(timeline_of(trace), (one,), layers=True)
    assert replays is not None and replays.matched == replays.kernels == len(trace.device_events)
    for start, path in zip(timeline.work.start.tolist(), timeline.path.tolist(), strict=True):
        assert timeline.paths[path][-1] == places[start][-1]


@pytest.mark.parametrize("inside", ["memcpy32_post", "memcpy128"])
def test_a_copy_that_a_graph_makes_a_kernel_is_still_that_copy(inside: str) -> None:
    """A pass of many copies, such as one that measures means and scales: without it too few kernels would match."""

    def with_copies(trace: Trace, name: str) -> Trace:
        rows = [event._replace(name=name) if event.name == "add" else event for event in trace.device_events]
        return replace(trace, device_events=device_events(rows))

    eager = with_copies(stream(Recorder(), blocks=2), "Memcpy DtoD (Device -> Device)")
    graph = with_copies(stream(Recorder(), blocks=2, graphs=True), inside)
    assert inside in {event.name for event in graph.device_events}
    assert parts(graph, passes_of(eager)) == parts(eager, ())


ONE_LAYER = (("gemm", "attention"), ("tile", "attention/attention_tile"), ("flash", "attention/attention_kernel"),
         ("gemm", "attention"), ("flash", "cross_attention/cross_attention_kernel"), ("gemm", "ffn"))  # fmt: skip
"""Kernels of a layer with their regions: self- and cross-attention run kernels of one name."""
NONE: frozenset[str] = frozenset()


Kernels = tuple[tuple[str, str], ...]


def trace(
    steps: int,
    layers: int,
    *,
    compiled: bool,
    flash: int | None = None,
    layer: Kernels = ONE_LAYER,
    marked: frozenset[str] = NONE,
) -> Trace:
    """Forward passes, kernel by kernel. Compiled, the layers have no regions but the innermost in `marked`, and their products
    other names; `flash` attention kernels are left out of each pass at the end. A name is followed by its grid: `flash 64`."""
    outer, inner, events, clock = [], [], [], 0
    for step in range(steps):
        begun, kernels = clock, list(layer) * layers
        if flash is not None:
            kernels = [each for at, each in enumerate(kernels) if each[0] != "flash" or at < len(kernels) - 2 * flash]
        for name, path in kernels:
            start, clock = clock + 1, clock + 10
            called = HostEvent("cudaLaunchKernel", start, start + 2, 0)
            for depth, part in enumerate(path.split("/")):
                if not compiled or part in marked:
                    inner.append(_region(part, start - (depth == 0), start + 5 - depth))
            shown, _, grid = (f"compiled_{name}" if compiled and name == "gemm" else name).partition(" ")
            events.append(DeviceEvent(shown, "kernel", 1_000 + start, 1_000 + start + 8, 0, 7, len(events), called, grid))
        outer += [_region(name, begun, clock, step) for name in ("frame_block", "denoise_step", "dit_forward")]
        clock += 5
    return trace_of(events, regions=tuple(sorted((*outer, *inner), key=lambda each: (each.start_ns, -each.end_ns))))


def regions_of(found: RunTimeline) -> list[tuple[str, str]]:
    """Name and innermost region of every kernel, in order."""
    events = found.trace.device_events
    paths = (found.paths[number] for number in found.path.tolist())
    return [(events.names[number], (path or ("",))[-1]) for number, path in zip(found.work.name.tolist(), paths, strict=True)]


def eager_passes() -> tuple[EagerPass, ...]:
    return passes_of(trace(2, 2, compiled=False))


ATTENTION, CROSS = "attention/attention_kernel", "cross_attention/cross_attention_kernel"
VIDEO, AUDIO, TEXT = ("flash 64x32", ATTENTION), ("flash 8x32", CROSS), ("flash 64x32", CROSS)
KEPT, COPY = ("clear 1", CROSS), ("copy 8", CROSS)
FLEX = "triton_tem_fused_flex_attention_1 4x2", "triton_tem_fused__to_copy_flex_attention_slice_sort_10 4x2"
CUTE = "kernel_cutlass_flash_fwd_object_at__tensor000o1_{}None__0 256x12"


@pytest.mark.parametrize(
    ("eager", "compiled", "regions"),
    [
        # the text's attention runs after the video's, which it depends on
        ((VIDEO, AUDIO, TEXT), (AUDIO, VIDEO, TEXT), ["cross_attention_kernel", "attention_kernel", "cross_attention_kernel"]),
        # the compiler took another variant for one of them: by its name alone, for the order proves nothing
        ((VIDEO, AUDIO, TEXT), (AUDIO, VIDEO, ("flash 32x32", CROSS)), ["attention kernels"] * 3),
        ((VIDEO, COPY, KEPT, TEXT), (VIDEO, KEPT, TEXT), ["attention_kernel", *["cross_attention_kernel"] * 2]),
        ((("flash 8", "refiner"), VIDEO), (("flash 8", "refiner"), VIDEO), ["refiner", "attention_kernel"]),
        (((FLEX[0], ATTENTION),), ((FLEX[1], ATTENTION),), ["attention_kernel"]),
        (((CUTE.format(""), ATTENTION),), ((CUTE.format("tensorptrf32_"), ATTENTION),), ["attention_kernel"]),
    ],
    ids=[
        "reordered", "another variant", "a fused copy", "outside every attention region", "other operators are fused into it",
        "only compiled it writes the log-sum-exp",
    ],
)  # fmt: skip
def test_attention_kernels_are_told_apart_whatever_the_compiler_changed(
    eager: Kernels, compiled: Kernels, regions: list[str]
) -> None:
    passes = passes_of(trace(1, 2, compiled=False, layer=eager))
    found = regions_of(named(timeline_of(trace(2, 2, compiled=True, layer=compiled)), passes))
    assert [region for _, region in found] == regions * 4


def test_copies_of_which_the_compiler_fused_some_are_not_told_apart() -> None:
    passes = passes_of(trace(1, 2, compiled=False, layer=(VIDEO, COPY, KEPT, TEXT)))
    half = (VIDEO, COPY, KEPT, TEXT, VIDEO, KEPT, TEXT)
    found = regions_of(named(timeline_of(trace(1, 1, compiled=True, layer=half)), passes))
    assert [region for name, region in found if name == "copy"] == ["other kernels"]
    assert [region for name, region in found if name == "flash"] == ["attention_kernel", "cross_attention_kernel"] * 2


def test_an_operator_that_marks_its_regions_in_a_compiled_pass_keeps_them() -> None:
    sparse = (("tile 64", "attention/attention_tile"), ("copy 64", "attention/attention_select"),
              ("bsa 64", "attention/attention_kernel"), ("copy 64", "ffn"), ONE_LAYER[4])  # fmt: skip
    passes = passes_of(trace(1, 2, compiled=False, layer=sparse))
    marked = frozenset({"attention_tile", "attention_select", "attention_kernel"})
    found = named(timeline_of(trace(1, 2, compiled=True, layer=sparse, marked=marked)), passes)
    layer = ["attention_tile", "attention_select", "attention_kernel", "other kernels", "cross_attention_kernel"]
    assert [region for _, region in regions_of(found)] == layer * 2
    inside = [found.paths[number] for number in found.path.tolist()]
    assert [("attention" in path, "dit_forward" in path) for path in inside[:4]] == [(True, True)] * 3 + [(False, True)]


def test_passes_without_launches_are_told_apart_by_names_alone() -> None:
    passes = tuple(msgspec.structs.replace(one, launches=()) for one in eager_passes())
    found = regions_of(named(timeline_of(trace(1, 1, compiled=True)), passes))
    assert {region for name, region in found if name == "flash"} == {"attention kernels"}


def test_a_pass_that_differs_is_told_apart_by_names_alone() -> None:
    bare = timeline_of(trace(2, 2, compiled=True, flash=3))
    kinds = {"compiled_gemm": "matrix products", "flash": "attention kernels", "tile": "other kernels"}
    expected = [(name, kinds[name]) for name, _ in regions_of(bare)]
    assert regions_of(named(bare, eager_passes())) == expected
    assert regions_of(named(bare, ())) == expected


def test_the_answer_has_no_norms_where_a_pass_is_compiled() -> None:
    found = named(timeline_of(trace(2, 2, compiled=True)), eager_passes())
    parts = {part_of(Label(found.paths[number], "kernel")) for number in found.path.tolist()}
    assert parts == {Part.ATTENTION_KERNEL, Part.ATTENTION_AROUND, Part.CROSS_ATTENTION, Part.MATRIX}


SIDES = ("denoise_step", "commit")


def expected_busy(blocks: int, scale: int = 1) -> Counter[tuple[str, tuple[str, ...], int]]:
    """By stage, path and layer, from the table of kernels alone."""
    found: Counter[tuple[str, tuple[str, ...], int]] = Counter()
    for stage, times in (("denoise_step", STEPS), ("commit", 1)):
        for layer in range(LAYERS):
            for section, piece, _, length in kernels_of(layer):
                path = (section, piece) if piece else (section,)
                found[stage, path, layer] += times * blocks * length * scale
    return found


@pytest.mark.parametrize("blocks", [1, 3])
def test_kernels_belong_to_the_piece_that_launched_them(blocks: int) -> None:
    found = breakdown(stream(Recorder(), blocks=blocks))
    assert (found.device, found.blocks, found.replays) == ("cuda:0", blocks, None)
    own = {(p.stage, p.path, p.layer): a.busy_ns for p, a in found.amounts.items() if p.layer is not None and a.busy_ns}
    assert own == dict(expected_busy(blocks))
    assert sum(amount.total_ns for amount in found.amounts.values()) == found.total_ns
    assert found.stages == {"denoise_step": STEPS * blocks, "commit": blocks}
    assert found.of(("commit",), ()).calls == blocks
    assert layers_of(found) == list(range(LAYERS))


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("layers", [None, range(1), range(1, LAYERS), range(LAYERS + 5)])
@pytest.mark.parametrize("stages", [None, ("denoise_step",), SIDES, ("commit", "commit"), ("vae_decode", "nothing"), ()])
def test_a_sum_is_that_of_the_amounts(stages: tuple[str, ...] | None, layers: range | None, deep: bool) -> None:
    found = breakdown(stream(Recorder(), blocks=2))
    paths = {place.path[:size] for place in found.amounts for size in range(len(place.path) + 1)}
    assert len(paths) > 5
    for path in (*paths, ("nothing",)):
        expected = Amount()
        for place, amount in found.amounts.items():
            inside = place.path[: len(path)] == path if deep else place.path == path
            there = inside and (stages is None or place.stage in stages) and (layers is None or place.layer in layers)
            if there:
                expected += amount if place.path == path else replace(amount, calls=0)
        assert found.of(stages, path, deep=deep, layers=layers) == expected


def test_gaps_lie_between_pieces() -> None:
    """The host is slow: before each kernel the device waits for it, but within no kernel."""
    to = Recorder(pause=500)
    trace = stream(to)
    found = breakdown(trace)
    events = sorted((event.start_ns, event.end_ns) for event in trace.device_events)
    waits = [after[0] - before[1] for before, after in pairwise(events)]
    assert all(wait > 0 for wait in waits)
    assert sum(gap.n for gap in found.gaps) == len(waits)
    assert sum(gap.sum_ns for gap in found.gaps) == sum(waits) == found.total_ns - sum(a.busy_ns for a in found.amounts.values())
    ends = {(gap.before.name, gap.after.name): gap for gap in found.gaps if gap.before.stage == gap.after.stage == "denoise_step"}
    inside = ends["attention / qkv_projection", "attention / attention_kernel"]
    assert inside.n == STEPS * LAYERS
    own = [event for event in trace.device_events if event.name == "flash"][: STEPS * LAYERS]
    previous = {event.end_ns for event in trace.device_events}
    assert inside.sum_ns == sum(event.start_ns - max(end for end in previous if end <= event.start_ns) for event in own)
    assert inside.max_ns <= inside.sum_ns and sum(inside.causes.values()) == inside.sum_ns and "host_late" in inside.causes


def test_a_graph_is_taken_apart_by_the_run_without_it() -> None:
    eager = stream(Recorder(pause=500), blocks=2)
    found = breakdown(stream(Recorder(scale=3), graphs=True, blocks=2), passes_of(eager))
    own = {(p.stage, p.path, p.layer): a.busy_ns for p, a in found.amounts.items() if p.layer is not None and a.busy_ns}
    assert own == dict(expected_busy(2, scale=3))
    assert found.replays is not None and found.replays.reason == ""
    launches, kernels = 2 * (STEPS + 1), 2 * (STEPS + 1) * LAYERS * len(LAYER)
    assert (found.replays.launches, found.replays.attributed) == (launches, launches)
    assert (found.replays.kernels, found.replays.matched) == (kernels, kernels)
    assert found.of(("denoise_step",), ("attention", "attention_kernel")).calls == 2 * STEPS * LAYERS
    assert found.of(None, ("conditions",)).calls == 2 * (STEPS + 1)  # entered with the graph too, and once
    mix = found.of(("denoise_step",), ())
    assert (mix.busy_ns, mix.calls) == (2 * STEPS * 8 * 3, 2 * STEPS)


def test_a_graph_of_other_kernels_is_not_attributed() -> None:
    trace = stream(Recorder(), graphs=True)
    events = [event._replace(name=f"{event.name}_other") if event.name != "flash" else event for event in trace.device_events]
    found = breakdown(replace(trace, device_events=device_events(events)), passes_of(stream(Recorder())))
    assert found.replays is not None and found.replays.attributed == 0
    assert "20 % of their kernels" in found.replays.reason and not layers_of(found)


def test_a_kernel_that_only_the_graph_has_is_in_no_piece() -> None:
    found = breakdown(stream(Recorder(), graphs=True, extra=[("memset_kernel", 5)]), passes_of(stream(Recorder())))
    assert found.replays is not None and found.replays.kernels - found.replays.matched == STEPS + 1
    assert found.of(("denoise_step",), (UNMATCHED,)).busy_ns == STEPS * 5
    own = {(p.stage, p.path, p.layer): a.busy_ns for p, a in found.amounts.items() if p.layer is not None and a.busy_ns}
    assert own == dict(expected_busy(1))


def test_on_a_cpu_time_belongs_to_what_is_open() -> None:
    def region(name: str, start: int, end: int, index: int | None = None) -> Region:
        return Region(name=name, index=index, start_ns=start, end_ns=end, thread=0)

    regions = (
        region("frame_block", 0, 1000, 0),
        region("denoise_step", 100, 900, 0),
        region("dit_forward", 150, 850),
        region("attention", 200, 400),
        region("kv_write", 250, 300),
        region("attention", 500, 800),
    )
    ops = [HostEvent("aten::mm", 210, 260, 0), HostEvent("aten::copy_", 270, 290, 0), HostEvent("aten::mm", 520, 700, 0)]
    found = breakdown(trace_of(ops=ops, regions=regions))
    write = found.of(("denoise_step",), ("attention", "kv_write"))
    assert (write.calls, write.busy_ns, write.idle_ns, write.sum_ns) == (1, 10 + 20, 20, 30)
    whole = found.of(("denoise_step",), ("attention",), deep=True)
    assert (whole.calls, whole.total_ns, whole.busy_ns) == (2, 500, 50 + 20 + 180)
    assert [found.of(None, ("attention",), deep=True, layers=range(n, n + 1)).total_ns for n in range(2)] == [200, 300]
    assert found.total_ns == 1000 == sum(amount.total_ns for amount in found.amounts.values())


def test_places() -> None:
    assert place_of(()).stage == "frame_block" and place_of(("outside spans",)).stage == "outside spans"
    found = place_of(("commit", "dit_forward", "layer 12", "attention", "kv_write"))
    assert (found.stage, found.path, found.layer, found.name) == ("commit", ("attention", "kv_write"), 12, "attention / kv_write")
    assert Amount(calls=1, busy_ns=2) + Amount(idle_ns=3) == Amount(calls=1, busy_ns=2, idle_ns=3)


def operation(name: str, kind: str, inside: str, calls: int, *times_ns: int) -> Operation:
    return Operation(name=name, what="", kind=kind, inside=inside, calls=calls, times_ns=times_ns)


STEP = Whole(
    name="denoise_step",
    times_ns=(1000, 1001),
    operations=(
        operation("kernel", "attention kernels", "attention", 3, 100, 101),  # 301.5
        operation("qkv", "projections", "attention", 3, 10),  # 30
        operation("cross", "attention kernels", "cross_attention", 3, 20),  # 60
        operation("up", "feed-forward", "ffn", 3, 30, 31, 32),  # 93
        operation("head", "edges", REST, 1, 7),
        operation("never", "copies", "", 0, 99),
    ),
)
DECODE = Whole(name="vae_decode", times_ns=(50,), operations=(operation("vae_enter", "decoder", "", 3, 10),))
PROFILE = KernelProfile(
    step=STEP,
    fine_ns=(1100, 1101, 1104),
    regions_ns={"attention": (500, 501, 505), "cross_attention": (100, 100, 100), "ffn": (200, 201, 202)},
    decode=DECODE,
)


def test_the_regions_by_hand() -> None:
    lines = {name: times for name, *times in PROFILE.by_region()}
    assert lines["attention"] == [Fraction(663, 2), 502]
    assert lines[REST] == [7, Fraction(3305, 3) - 502 - 100 - 201]
    assert [in_situ for isolated, in_situ in lines.values() if isolated is None] == [Fraction(2001, 2) - Fraction(3305, 3)]


TIMES = st.lists(st.integers(1, 10**9), min_size=1, max_size=7).map(tuple)


@given(TIMES, TIMES, st.lists(st.tuples(st.sampled_from([*REGIONS, REST]), st.integers(0, 40), TIMES), max_size=9))
def test_both_accounts_close(
    plain: tuple[int, ...], fine: tuple[int, ...], parts: list[tuple[str, int, tuple[int, ...]]]
) -> None:
    operations = tuple(
        operation(str(n), f"kind {n % 3}", inside, calls, *times) for n, (inside, calls, times) in enumerate(parts)
    )
    step = Whole(name="denoise_step", times_ns=plain, operations=operations)
    regions = {name: tuple(ns // 4 for ns in fine) for name in REGIONS}
    found = KernelProfile(step=step, fine_ns=fine, regions_ns=regions, decode=DECODE)
    mean = Fraction(sum(plain), len(plain))
    assert sum((ns for _, ns in step.by_kind()), Fraction(0)) + step.difference_ns == mean
    lines = found.by_region()
    assert sum(in_situ for *_, in_situ in lines) == mean
    assert sum(isolated or 0 for _, isolated, _ in lines) == step.isolated_ns


def test_rows_by_span_and_name_in_order_of_exclusive_time() -> None:
    ffn, attention = Label(("denoise_step", "ffn"), "op"), Label(("commit", "attention"), "op")
    calls = [
        RegionCall("mm", ffn, 10, 4), RegionCall("mm", ffn, 30, 30), RegionCall("mm", ffn, 20, 20), RegionCall("mm", ffn, 0, 0),
        RegionCall("mm", attention, 7, 7), RegionCall("linear", ffn, 100, 55),
    ]  # fmt: skip
    total = sum(call.exclusive_ns for call in calls)
    tile = Tile(index=0, start_ns=0, end_ns=total, owned={Label((), "op"): total})
    table = region_kernels(Partition(device="cpu", tiles=(tile,), calls=tuple(calls), overlap=()))
    assert [(region, row.kernel, row.exclusive_ns) for region, row in table] == [
        ("ffn", "linear", 55), ("ffn", "mm", 54), ("attention", "mm", 7),
    ]  # fmt: skip
    mm = table[1][1]
    assert (mm.calls, mm.sum_ns, mm.min_ns, mm.p50_ns, mm.mean_ns, mm.max_ns, mm.p99_ns) == (4, 60, 0, 10, 15.0, 30, None)
