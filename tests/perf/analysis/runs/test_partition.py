"""Partitions against asking every single nanosecond who owns it, on random small traces and on one captured here."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from strobe.core.errors import DataError
from strobe.perf.analysis.runs.timeline import NOT_LINKED, OUTSIDE, Label, Partition, block_slices, partition_of, timeline_of
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


# ---- the CPU timeline ----


def test_a_frame_block_by_hand() -> None:
    regions = [
        _region("e2e", 0, 200),
        _region("frame_block", 10, 90, 0),
        _region("denoise_step", 20, 60, 0),
        _region("attention", 25, 50),
        _region("attention_kernel", 30, 45),
        _region("frame_block", 100, 150, 1),
        _region("vae_decode", 95, 140, thread=_WORKER),
    ]
    ops = [
        HostEvent("aten::sdpa", 31, 44, _MAIN),
        HostEvent("aten::bmm", 33, 40, _MAIN),
        HostEvent("aten::add", 52, 55, _MAIN),
        HostEvent("aten::empty", 52, 52, _MAIN),
        HostEvent("aten::conv", 92, 130, _WORKER),
        HostEvent("aten::mul", 95, 98, _MAIN),
    ]
    result = partition_of(timeline_of(_trace(regions, ops)))
    assert (result.device, result.indices, result.total_ns) == ("cpu", (0, 1), 140)
    section = ("denoise_step", "attention")
    assert (result.tiles[0].owned[Label(section, "gap")], result.tiles[0].owned[Label(OUTSIDE, "gap")]) == (5 + 5, 5 + 2)
    assert {call.name: (call.duration_ns, call.exclusive_ns) for call in result.calls} == {
        "aten::sdpa": (13, 6), "aten::bmm": (7, 7), "aten::add": (3, 3), "aten::empty": (0, 0), "aten::mul": (3, 3),
    }  # fmt: skip
    assert result.overlap == (("1/2", OUTSIDE, 3), ("1/2", ("vae_decode",), 35))
    assert str(Label(section, "op")) == "denoise_step / attention: op" and str(Label((), "gap")) == "frame_block: gap"
    slices = block_slices(timeline_of(_trace(regions, ops)), 0)
    assert [(s.start_ns, s.end_ns, s.name) for s in slices if s.name] == [
        (31, 33, "aten::sdpa"), (33, 40, "aten::bmm"), (40, 44, "aten::sdpa"), (52, 55, "aten::add"), (95, 98, "aten::mul"),
    ]  # fmt: skip
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
        slices = block_slices(timeline_of(trace), tile.index)
        assert sum(piece.end_ns - piece.start_ns for piece in slices) == tile.end_ns - tile.start_ns
    owned = Counter[str]()
    for call in result.calls:
        owned[call.name] += call.exclusive_ns
    assert +owned == exclusive
    assert [tile.start_ns for tile in result.tiles[1:]] == [tile.end_ns for tile in result.tiles[:-1]]


# ---- the device's timeline ----

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
        Label((), "kernel"): 10 + 8,
        Label(("ffn",), "host_late"): 5 + 2,
        Label(("ffn",), "profiler_overhead"): 3,
        Label(("ffn",), "launch_latency"): 10,
        Label(("ffn",), "kernel"): 20,
        Label(("ffn",), "memcpy"): 4,
        Label(NOT_LINKED, "unlinked"): 6,
        Label(NOT_LINKED, "kernel"): 10,
        Label((), "queued"): 2,
    }
    assert {call.name: call.exclusive_ns for call in result.calls} == {"a": 10, "b": 20, "c": 4, "early": 10, "d": 8}


# ---- frame blocks ----


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
    host = HostEvent("cudaLaunchKernel", 1, 2, _MAIN)
    trace = _trace([_region("frame_block", 0, 10, 0)], device=[DeviceEvent("k", "kernel", 3, 5, 0, 7, 0, host)])
    with pytest.raises(DataError, match="no frame block 7; the trace holds 0"):
        block_slices(timeline_of(trace), 7)
