"""Layers by name, by order and by kernels: the first one against the later ones."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.structure.ranges import base_of
from strobe.perf.analysis.structure.steps import LayerGroup, layer_groups
from strobe.perf.trace import DeviceEvent, HostEvent, Trace


def _event(launch: int, start: int, end: int, name: str = "k", kind: str = "kernel") -> DeviceEvent:
    return DeviceEvent(name, kind, start, end, 0, 7, 0, HostEvent("cudaLaunchKernel", launch, launch + 1, 0))


def _groups(trace: Trace, window: Window | None = None) -> tuple[LayerGroup, ...]:
    ((device, groups),) = layer_groups(trace, window)
    assert device == 0
    return groups


def test_calls_of_one_name_are_told_by_their_order() -> None:
    ranges, events = [HostEvent("outer", 0, 500, 0)], []
    for call in range(5):
        ranges.append(HostEvent("attention", 10 + 50 * call, 40 + 50 * call, 0))
        ranges += [HostEvent("inner", 12 + 50 * call + 8 * i, 18 + 50 * call + 8 * i, 0) for i in range(3)]
        events += [_event(14 + 50 * call + 8 * i, 1_000 + 60 * call + 9 * i, 1_002 + 61 * call + 9 * i) for i in range(3)]
    attention, inner = _groups(trace_of(events, ranges=ranges))
    assert (attention.name, attention.path, attention.inside, len(attention.layers)) == ("attention", ("outer",), False, 5)
    assert (inner.name, inner.path, inner.inside, inner.layers[0].calls) == ("inner", ("outer", "attention"), True, 5)
    assert [layer.device_p50_ns for layer in attention.layers] == [6, 9, 12, 15, 18]
    assert [layer.device_p50_ns for layer in inner.layers] == [4, 4, 4] and inner.layers[0].calls == 5
    assert [layer.name for layer in attention.layers] == ["attention"] * 5


def test_without_names_the_kernels_of_a_step_tell_the_layers() -> None:
    events, now = [], 1_000
    for _ in range(6):
        for name in ("embed", *["norm", "attn", "mlp"] * 7, "head"):
            length = 30 if name == "attn" and events and events[-2].name == "embed" else 10
            events.append(_event(now - 500, now, now + length, name))
            now = now + length + 2
        now += 40
    (layers,) = _groups(trace_of(events))
    assert (layers.by_kernels, layers.layers[0].calls, len(layers.layers)) == (True, 6, 7)
    first, later = layers.layers[0], layers.later
    assert first.host_p50_ns is None and first.kernels == later.kernels == 3
    assert (layers.name, first.device_p50_ns, later.device_p50_ns, first.span_p50_ns, later.span_p50_ns) == (
        "norm",
        50,
        30,
        54,
        34,
    )
    assert layers.layers[-1].device_max_ns == 30 and later.kernels == 3  # the head after the last one is none of it
    assert layers.sum_ns <= sum(event.end_ns - event.start_ns for event in events)
    half = Window(start_ns=1_000, end_ns=(1_000 + now) // 2, label="")
    assert _groups(trace_of(events), half)[0].layers[0].calls == 3


_names = st.sampled_from(("Block_0", "Block_1", "Block_2", "part"))


@given(
    st.lists(st.tuples(_names, st.integers(0, 80), st.integers(1, 40)), min_size=4, max_size=14),
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 9)), min_size=1, max_size=12),
)
def test_against_counting_by_hand(calls: list[tuple[str, int, int]], work: list[tuple[int, int]]) -> None:
    rows = sorted(
        (HostEvent(name, start, start + length, 0) for name, start, length in calls), key=lambda r: (r.start_ns, -r.end_ns)
    )
    events = sorted((_event(launch, 200 + launch, 200 + launch + n) for launch, n in work), key=lambda e: (e.start_ns, -e.end_ns))
    parents = [max((j for j in range(i) if rows[j].end_ns > rows[i].start_ns), default=-1) for i in range(len(rows))]

    def path(i: int) -> tuple[str, ...]:
        return () if i < 0 else (*path(parents[i]), base_of(rows[i].name))

    places, expected = defaultdict(int), defaultdict(list)
    for i, row in enumerate(rows):
        place = places[path(i), parents[i]]
        places[path(i), parents[i]] += 1
        own = [e for e in events if row.start_ns <= e.host.start_ns < row.end_ns]
        expected[path(i)].append((place, sum(e.end_ns - e.start_ns for e in own), len(own), row.end_ns - row.start_ns))
    for group in _groups(trace_of(events, ranges=rows)):
        if group.by_kernels:
            continue
        found = expected[(*group.path, group.name)]
        assert group.sum_ns == sum(ns for _, ns, _, _ in found) > 0
        assert group.layers[0].calls == sum(place == 0 for place, *_ in found)
        for place, layer in enumerate(group.layers):
            own = [call for call in found if call[0] == place]
            times, middle = sorted(ns for _, ns, _, _ in own), (len(own) - 1) // 2
            assert (layer.calls, layer.device_p50_ns, layer.device_max_ns) == (len(own), times[middle], times[-1])
            assert layer.host_p50_ns == sorted(host for *_, host in own)[middle]
        times = sorted(ns for place, ns, _, _ in found if place)
        assert (group.later.device_p50_ns, group.later.device_max_ns) == (times[(len(times) - 1) // 2], times[-1])
        assert group.later.kernels == sorted(n for place, _, n, _ in found if place)[(group.later.calls - 1) // 2]
