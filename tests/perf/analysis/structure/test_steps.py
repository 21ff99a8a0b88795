"""Steps tile the time of a device exactly, what repeats is found, and windows are what the text asks for."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from made_traces import trace_of
from strobe.core.errors import ConfigError, DataError
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.structure.ranges import base_of
from strobe.perf.analysis.structure.steps import (
    COMPILED,
    HELD_UP,
    LAST,
    OVERTAKEN,
    LayerGroup,
    Period,
    Steps,
    find_periods,
    find_steps,
    layer_groups,
)
from strobe.perf.analysis.structure.window import choose_window
from strobe.perf.trace import DeviceEvent, HostEvent, Trace


def _event(name: str, launch: int | None, start: int, end: int, stream: int = 7, thread: int = 0, device: int = 0) -> DeviceEvent:
    host = None if launch is None else HostEvent("cudaLaunchKernel", launch, launch + 1, thread)
    return DeviceEvent(name, "kernel", start, end, device, stream, 0, host)


def _steps(trace: Trace, starts: str | None = None) -> Steps:
    (found,) = find_steps(trace, starts).values()
    assert isinstance(found, Steps), found
    assert found.before_ns + sum(step.length_ns for step in found.steps) + found.after_ns == found.end_ns - found.start_ns
    return found


def _loop(step: Sequence[str], times: int, pause: int = 40, launcher: bool = True) -> list[DeviceEvent]:
    """Steps of kernels 10 ns long, 2 ns apart, with a pause between steps."""
    events, now = [], 1_000
    for _ in range(times):
        for name in step:
            events.append(_event(name, now - 500 if launcher else None, now, now + 10))
            now += 12
        now += pause
    return events


def test_causes_are_named() -> None:
    ranges = [HostEvent(f"ProfilerStep#{n}", 100 * n, 100 * n + 100, 0) for n in range(6)]
    ranges.append(HostEvent("entire_frame_compile (dynamo_timed)", 20, 60, 0))
    launches = [(0, 10, 50), (1, 110, 150), (2, 210, 250), (3, 310, 350), (4, 410, 340), (5, 510, 550)]
    events = [_event("k", launch, start, start + 5) for _, launch, start in launches]
    found = _steps(trace_of(events, ranges, overhead=((120, 126), (230, 235))))
    causes = found.steady.excluded
    assert causes == {0: COMPILED, 1: HELD_UP, 3: OVERTAKEN, 4: OVERTAKEN, 5: LAST}  # 5 ns of 100 are not too much for step 2
    assert [step.length_ns for step in found.steps] == [100, 100, 100, 0, 200, 5]


def test_a_range_on_a_thread_that_launches_nothing() -> None:
    ranges = [HostEvent(f"ProfilerStep#{n}", 100 * n, 100 * n + 100, 0) for n in (1, 2, 3)]
    events = [_event("k", 110, 150, 160, thread=1), _event("k", 320, 350, 360, thread=1)]
    found = _steps(trace_of(events, ranges))
    assert [(step.number, step.start_ns, step.end_ns) for step in found.steps] == [(1, 150, 350), (3, 350, 360)]
    assert found.notes == ("1 of the 3 ranges launched nothing on this device and are no steps",)


def test_a_chosen_range_counts_once_where_it_is_nested() -> None:
    ranges = [HostEvent("decode", 0, 100, 0), HostEvent("decode", 10, 20, 0), HostEvent("decode", 100, 200, 0)]
    events = [_event("k", 12, 50, 60), _event("k", 105, 120, 130)]
    found = _steps(trace_of(events, ranges), "dec")
    assert [(step.number, step.step, step.start_ns) for step in found.steps] == [(0, "decode", 50), (1, "decode", 120)]


def test_a_chosen_kernel_starts_each_step() -> None:
    found = _steps(trace_of(_loop(["embed", "layer", "layer", "head"], 4)), "^emb")
    assert (found.source, [step.length_ns for step in found.steps]) == ("kernel", [88, 88, 88, 46])
    assert [step.kernels for step in found.steps] == [4] * 4 and LAST in found.steady.excluded.values()
    (missing,) = find_steps(trace_of(_loop(["embed"], 4)), "nothing").values()
    assert isinstance(missing, str) and "'nothing'" in missing
    with pytest.raises(ConfigError, match="not a regular expression"):
        find_steps(trace_of(_loop(["embed"], 4)), "(")


def test_without_ranges_the_kernels_say_it() -> None:
    step = ["embed", *["norm", "attn", "mlp"] * 5, "head"]
    events = [_event("load", None, 0, 100), *_loop(step, 8), _event("store", 10_000, 20_000, 20_010)]
    found = _steps(trace_of(events))
    assert found.source == "period" and found.period is not None and found.period.anchor == "embed"
    assert (found.period.confidence, found.period.periods) == ("high", 8)
    assert [step.length_ns for step in found.steps] == [12 * 17 + 40] * 7 + [12 * 17 - 2]
    assert found.steady.excluded == {7: LAST} and (found.before_ns, found.after_ns) == (1_000, 20_010 - 1_000 - 8 * 244 + 42)


def test_a_period_without_its_end_is_no_step() -> None:
    found = _steps(trace_of(_loop(["embed", *["norm", "attn", "mlp"] * 5, "head"], 8)[:-9]))
    assert len(found.steps) == 7 and not found.steady.excluded and found.steps[-1].length_ns == 244


def test_the_layers_of_one_call_are_no_steps() -> None:
    names = ["embed", *["norm", "attn", "mlp", "gate"] * 9]
    events = [_event(name, 12 * i, 500 + 12 * i, 510 + 12 * i) for i, name in enumerate(names)]
    modules = [HostEvent("Model_0", 0, 1_000, 0), HostEvent("Layer_0", 12, 60, 0), HostEvent("Norm_0", 12, 40, 0)]
    (found,) = find_steps(trace_of(events, modules=modules)).values()
    assert isinstance(found, str) and found.endswith("all in one call of Model_0")
    graph = HostEvent("cudaGraphLaunch", 5, 6, 0)
    (found,) = find_steps(trace_of([event._replace(host=graph) for event in events])).values()
    assert isinstance(found, str) and found.endswith("all in one call of cudaGraphLaunch")
    apart = [HostEvent(f"Model_{i}", 12 + 48 * i, 60 + 48 * i, 0) for i in range(9)]
    assert isinstance(find_steps(trace_of(events, modules=apart))[0], Steps)


def test_a_single_profiler_step_is_the_step() -> None:
    events = _loop(["embed", "norm", "attn", "mlp", "head"], 6)
    found = _steps(trace_of(events, [HostEvent("ProfilerStep#7", 0, 100_000, 0)]))
    assert [(step.number, step.length_ns) for step in found.steps] == [(7, found.end_ns - found.start_ns)]
    assert found.notes[0].startswith("in the only step, the kernels repeat 6 times, from 'embed' on")


def test_a_loop_of_one_kernel_has_steps() -> None:
    found = _steps(trace_of(_loop(["gemm"], 12, pause=100)))
    assert found.source == "period" and found.starts == "the kernels repeat 12 times, from 'gemm' on"
    assert [step.length_ns for step in found.steps] == [112] * 11 + [10]
    uneven = trace_of([_event("gemm", 1, now * now, now * now + 5) for now in range(10, 40)])
    assert not isinstance(find_steps(uneven)[0], Steps)


_step = st.tuples(st.integers(0, 50), st.integers(0, 30))
_work = st.tuples(st.integers(0, 400), st.integers(0, 300), st.integers(0, 30), st.integers(0, 1), st.booleans())


@given(st.lists(_step, min_size=1, max_size=6), st.lists(_work, min_size=1, max_size=14))
def test_tiles_against_every_nanosecond(steps: list[tuple[int, int]], work: list[tuple[int, int, int, int, bool]]) -> None:
    ranges, now = [], 0
    for number, (pause, length) in enumerate(steps):
        ranges.append(HostEvent(f"ProfilerStep#{number}", now + pause, now + pause + length, 0))
        now += pause + length
    events = [
        _event("k", launch if linked else None, launch + delay, launch + delay + length, thread=thread)
        for launch, delay, length, thread, linked in work
    ]
    (found,) = find_steps(trace_of(events, ranges)).values()
    launched = {}
    for anywhere in (False, True):
        for number, step in enumerate(ranges):
            own = [
                e.start_ns for e in events
                if e.host and step.start_ns <= e.host.start_ns < step.end_ns and (anywhere or e.host.thread == step.thread)
            ]  # fmt: skip
            if own:
                launched[number] = min(own)
        if launched:
            break
    if not launched:
        assert isinstance(found, str) or found.source == "period"  # kernels at even distances by chance
        return
    assert isinstance(found, Steps) and [step.number for step in found.steps] == sorted(launched)
    running = {moment for e in events for moment in range(e.start_ns, e.end_ns)}
    before = found.steps[0].start_ns
    for step in found.steps:
        before = max(before, launched[step.number])
        assert step.start_ns == before
        assert step.busy_ns == len(running & set(range(step.start_ns, step.end_ns)))
        assert step.kernels == sum(step.start_ns <= e.start_ns < step.end_ns for e in events)
    assert all(a.end_ns == b.start_ns for a, b in zip(found.steps, found.steps[1:], strict=False))
    assert found.before_ns + sum(step.length_ns for step in found.steps) + found.after_ns == found.end_ns - found.start_ns


_CALLS = [
    HostEvent("ProfilerStep#1", 0, 100, 0), HostEvent("ProfilerStep#2", 100, 200, 0), HostEvent("strobe::attention", 10, 20, 0),
    HostEvent("strobe::attention", 110, 120, 0), HostEvent("idle", 30, 40, 0), HostEvent("a..b", 50, 60, 0),
]  # fmt: skip
_EVENTS = [
    _event("k", 12, 1_000, 1_010), _event("k", 52, 1_020, 1_040), _event("k", 112, 1_100, 1_130), _event("k", 150, 1_120, 1_500),
]  # fmt: skip


_ON_DEVICE = [
    ("ProfilerStep#1", 1_000, 1_100), ("ProfilerStep#2", 1_100, 1_500), ("attention[0]", 1_000, 1_010),
    ("strobe::attention#1", 1_100, 1_130), ("a..b", 1_020, 1_040), ("Block_0", 1_000, 1_010),
    ("ProfilerStep#1..ProfilerStep#2", 1_000, 1_500), ("attention[0] .. a..b", 1_000, 1_040), ("1", 1_000, 1_100),
    ("1..2", 1_000, 1_500), (" 2 ", 1_100, 1_500), ("10ns..0.02us", 1_010, 1_020), ("..20 ns", 1_000, 1_020),
    ("0.1µs..", 1_100, 1_500), ("0ms..1s", 1_000, 1_500),
]  # fmt: skip
_ON_HOST = [
    ("ProfilerStep#1", 0, 100), ("2", 100, 200), ("1..2", 0, 200), ("attention[1]", 110, 120), ("Block_0", 5, 15),
    ("attention[0]..a..b", 10, 60), ("10ns..20ns", 10, 20), ("150ns..", 150, 200), ("..1ms", 0, 200),
]  # fmt: skip


@pytest.mark.parametrize(("events", "cases"), [(_EVENTS, _ON_DEVICE), ([], _ON_HOST)])
def test_windows(events: list[DeviceEvent], cases: list[tuple[str, int, int]]) -> None:
    """In a trace without device events they are time of the host."""
    trace = trace_of(events, _CALLS, [HostEvent("Block_0", 5, 15, 0)])
    for text, start, end in cases:
        assert choose_window(trace, text) == Window(start_ns=start, end_ns=end, label=text.strip())


@pytest.mark.parametrize(
    ("events", "text", "error", "says"),
    [
        (_EVENTS, "attention", DataError, "'attention' has 2 calls; choose one of attention[0] to attention[1]"),
        (_EVENTS, "attention[2]", DataError, "no call 2 of 'attention'; it has 2, counted from 0"),
        (_EVENTS, "idle", DataError, "'idle' launched no device event on its thread"),
        (_EVENTS, "ProfilerStep#3", DataError, "(did you mean 'ProfilerStep#2'?); the trace has 'ProfilerStep#1', 'strobe::att"),
        (_EVENTS, "3", DataError, "no step 3; the trace has steps 1 to 2"),
        (_EVENTS, "2..1", ConfigError, "steps 2..1 are none; give the earlier one first"),
        (_EVENTS, "1..2ms", ConfigError, "the time '1' of the window needs a unit; allowed: ns, us"),
        (_EVENTS, "1km..2km", ConfigError, "the time '1km' of the window needs a unit"),
        (_EVENTS, "0.5ns..2ns", ConfigError, "is not a whole number of nanoseconds"),
        (_EVENTS, "20ns..10ns", ConfigError, "is empty"),
        (_EVENTS, "1us..2us", DataError, "starts after the last device event, 0.001 ms in"),
        (_EVENTS, "attention[0]..nowhere", DataError, "no range or module 'nowhere' for the window"),
        (_EVENTS, "  ", ConfigError, "is empty; give"),
        (_EVENTS, "ProfilerStep#2..ProfilerStep#1", ConfigError, "give an end after its start"),
        ([], "3", DataError, "no range ProfilerStep#3"), ([], "1..7", DataError, "no range ProfilerStep#7"),
        ([], "7..1", DataError, "no range ProfilerStep#7"),
        ([], "1us..2us", DataError, "after the last event of the host"),
        ([], "none", DataError, "no range or module 'none'"),
    ],
)  # fmt: skip
def test_windows_that_are_not_there(events: list[DeviceEvent], text: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        choose_window(trace_of(events, _CALLS), text)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_windows_of_other_traces() -> None:
    with pytest.raises(DataError, match="no events, so there is no window"):
        choose_window(trace_of([]), "1ms..2ms")
    with pytest.raises(DataError, match="step 1 cannot be found: no repeating step found"):
        choose_window(trace_of(_EVENTS), "1")
    with pytest.raises(DataError, match="the trace has no ranges or modules"):
        choose_window(trace_of(_EVENTS), "attention")
    graphs = [HostEvent("cudaGraphLaunch", launch, launch + 1, 0) for launch in (5, 50)]
    events = [_event("k", 0, 100 + 10 * i, 105 + 10 * i)._replace(host=graphs[i // 3]) for i in range(6)]
    trace = trace_of(events, module_paths=dict(enumerate(("layers.0.a", "layers.0.b", "layers.1") * 2)))
    assert choose_window(trace, "layers.0[1]") == Window(start_ns=130, end_ns=145, label="layers.0[1]")
    assert choose_window(trace_of(_EVENTS), "1", "k").start_ns == 1_020
    with pytest.raises(DataError, match=r"did you mean 'layers\.0\.b'"):
        choose_window(trace, "layers.0.c")


_LAYER = ["norm", "qkv", "attn", "proj", "up", "down"]
_STEP = ["embed", *_LAYER * 8, "head", "sample"]


def _find(names: list[str], pause: dict[str, int] | None = None) -> tuple[Period, ...]:
    texts = tuple(dict.fromkeys(names))
    ids = np.array([texts.index(name) for name in names], np.int64)
    return find_periods(ids, texts, np.array([(pause or {}).get(name, 0) for name in names], np.int64))


def test_the_step_is_found_above_its_layers() -> None:
    step, layer = _find(_STEP * 6, {"embed": 50, "norm": 1})[:2]
    assert (step.anchor, step.after, step.periods, set(step.kernels)) == ("embed", "", 6, {len(_STEP)})
    assert step.starts == tuple(range(0, 6 * len(_STEP), len(_STEP)))
    assert (step.likeness, step.identical, step.covered, step.head, step.rest) == (1.0, 1.0, 1.0, 0, 0)
    assert (step.anchors, step.confidence) == (3, "high")  # embed, head and sample occur once in each
    assert layer.anchor in _LAYER and np.median(layer.kernels) == len(_LAYER) and len(layer.starts) == 48


def test_the_anchor_is_the_one_after_the_longest_pauses() -> None:
    assert _find(_STEP * 12, {"head": 9, "embed": 8})[0].anchor == "head"
    assert _find(_STEP * 12, {"head": 8, "embed": 9})[0].anchor == "embed"
    assert _find(_STEP * 4, {"head": 9})[0].anchor == "embed"  # of few periods none is given up for it


def test_a_step_without_a_name_of_its_own_is_found_by_a_pair() -> None:
    step = ["a", "b", "b", "c", "a", "c", "c", "b"]  # every name comes several times; only "a" right after "b" starts a step
    found = _find(step * 9)[0]
    assert np.median(found.kernels) == len(step) and found.after and found.confidence == "high"


def test_chance_events_in_a_long_run_are_no_step() -> None:
    names = _STEP * 80
    for place in (100, 1_100, 2_120, 3_130):
        names.insert(place, "workspace")
    found = _find(names)
    assert found[0].anchor != "workspace" and np.median(found[0].kernels) == len(_STEP)


def test_likeness_by_hand() -> None:
    step = ["embed", *(f"k{i}" for i in range(19))]
    found = _find([*step, *step, *step[:7], "extra", *step[7:], *step, "embed"])[0]
    # one of four periods has one kernel more than the median's 20, times 4 / 3
    assert found.likeness == pytest.approx(1 - (4 / 3) / 20 / 4) and found.identical == 0.75
    assert found.kernels == (20, 20, 21, 20) and (found.head, found.rest) == (0, 1)


def test_the_longest_period_is_found_below_any_number_of_shorter_ones() -> None:
    """More names come at even distances, four times in a step each, than distances are tried."""
    step = ["embed", *["rest"] * 13_499]
    for distance in sorted({round(2 * 1.08**number) for number in range(101)}):
        start = next(at for at in itertools.count(1) if set(step[at : at + 4 * distance : distance]) == {"rest"})
        step[start : start + 4 * distance : distance] = [f"every {distance}"] * 4
    found = _find(step * 4)[0]
    assert (found.anchor, found.after, set(found.kernels), found.identical) == ("embed", "", {len(step)}, 1.0)


def test_a_last_stretch_of_other_kernels_is_no_period() -> None:
    other = ["embed", *_LAYER * 5, *["copy"] * (len(_STEP) - 1 - len(_LAYER) * 5)]
    found = _find([*_STEP * 5, *other])[0]
    assert (found.anchor, found.kernels, len(found.starts)) == ("embed", (len(_STEP),) * 5, 6)
    assert (found.head, found.rest) == (0, len(_STEP)) and found.confidence == "low"


@pytest.mark.parametrize(
    ("changed", "confidence"),
    [
        ({}, "high"), ({"likeness": 0.9699}, "medium"), ({"kernels": (20,) * 4}, "medium"), ({"rest": 16}, "medium"),
        ({"kernels": (20,) * 3, "likeness": 0.95, "rest": 0}, "medium"), ({"likeness": 0.9499}, "low"),
        ({"kernels": (20,) * 2, "rest": 0}, "low"), ({"kernels": (25, 25, 100), "head": 50, "rest": 50}, "medium"),
        ({"kernels": (25, 25, 100), "head": 50, "rest": 51}, "low"), ({"head": 19, "rest": 0}, "high"),
        ({"head": 20, "rest": 0}, "low"),
    ],
)  # fmt: skip
def test_confidence_at_its_limits(changed: dict[str, Any], confidence: str) -> None:
    """5 periods of 97 % likeness over 80 % of the sequence are the least for a high one."""
    limits = {"kernels": (20,) * 5, "likeness": 0.97, "head": 10, "rest": 15} | changed
    assert Period(anchor="a", after="", starts=(), identical=1.0, anchors=1, **limits).confidence == confidence


def test_two_repetitions_only_if_they_are_the_same() -> None:
    assert _find(_STEP * 3)[0].periods == 3
    found = _find(["load", *_STEP * 2, "embed", "stop"])[0]
    assert (found.periods, found.confidence) == (2, "low")
    other = ["embed", "copy", *_LAYER * 8, "head", "sample"]
    assert all(np.median(period.kernels) < len(_STEP) for period in _find(["load", *_STEP, *other, "embed", "stop"]))


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b"] * 2, [f"k{i}" for i in range(100)], ["a"] * 100])
def test_where_nothing_repeats_nothing_is_found(names: list[str]) -> None:
    assert _find(names) == ()


@given(st.integers(0, 10_000), st.integers(3, 9), st.integers(20, 300))
def test_random_kernels_are_not_called_a_step(seed: int, num_names: int, length: int) -> None:
    rng = random.Random(seed)
    found = _find([f"k{rng.randrange(num_names)}" for _ in range(length)])
    assert all(period.confidence == "low" for period in found)


@given(st.lists(st.integers(0, 30), min_size=4, max_size=60), st.integers(5, 20))
def test_what_repeats_exactly_is_found(step: list[int], times: int) -> None:
    names = ["anchor", *(f"k{name}" for name in step)]
    found = _find(names * times)
    assert any(set(period.kernels) == {len(names)} and period.identical == 1.0 for period in found)
    for period in found:
        assert len(period.starts) - 1 <= period.periods <= len(period.starts)
        assert period.head + sum(period.kernels) + period.rest == times * len(names)


def _groups(trace: Trace, window: Window | None = None) -> tuple[LayerGroup, ...]:
    ((device, groups),) = layer_groups(trace, window)
    assert device == 0
    return groups


def test_without_names_the_kernels_of_a_step_tell_the_layers() -> None:
    events, now = [], 1_000
    for _ in range(6):
        for name in ("embed", *["norm", "attn", "mlp"] * 7, "head"):
            length = 30 if name == "attn" and events and events[-2].name == "embed" else 10
            events.append(_event(name, now - 500, now, now + length))
            now = now + length + 2
        now += 40
    (layers,) = _groups(trace_of(events))
    assert (layers.by_kernels, layers.layers[0].calls, len(layers.layers)) == (True, 6, 7)
    first, later = layers.layers[0], layers.later
    assert first.host_p50_ns is None and first.kernels == later.kernels == 3
    assert (layers.name, first.device_p50_ns, later.device_p50_ns) == ("norm", 50, 30)
    assert (first.span_p50_ns, later.span_p50_ns) == (54, 34)
    assert layers.layers[-1].device_max_ns == 30 and later.kernels == 3  # the head after the last one is none of it
    assert layers.sum_ns <= sum(event.end_ns - event.start_ns for event in events)
    half = Window(start_ns=1_000, end_ns=(1_000 + now) // 2, label="")
    assert _groups(trace_of(events), half)[0].layers[0].calls == 3


_names = st.sampled_from(("Block_0", "Block_1", "Block_2", "part"))


@given(
    st.lists(st.tuples(_names, st.integers(0, 80), st.integers(1, 40)), min_size=4, max_size=14),
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 9)), min_size=1, max_size=12),
)
@example(
    [("part", at, 40) for at in (0, 50)] + [(f"Block_{i}", at + 9 * i + 1, 8) for at in (0, 50) for i in range(3)],
    [(at, at % 7) for at in range(2, 90, 9)],
)
def test_against_counting_by_hand(calls: list[tuple[str, int, int]], work: list[tuple[int, int]]) -> None:
    rows = sorted(
        (HostEvent(name, start, start + length, 0) for name, start, length in calls), key=lambda r: (r.start_ns, -r.end_ns)
    )
    events = [_event("k", launch, 200 + launch, 200 + launch + n) for launch, n in work]
    parents = [max((j for j in range(i) if rows[j].end_ns > rows[i].start_ns), default=-1) for i in range(len(rows))]

    def path(i: int) -> tuple[str, ...]:
        return () if i < 0 else (*path(parents[i]), base_of(rows[i].name))

    places, expected = defaultdict(int), defaultdict(list)
    for i, row in enumerate(rows):
        place = places[path(i), parents[i]]
        places[path(i), parents[i]] += 1
        own = [e for e in events if row.start_ns <= e.host.start_ns < row.end_ns]
        expected[path(i)].append((place, sum(e.end_ns - e.start_ns for e in own), len(own), row.name, row.end_ns - row.start_ns))
    groups = [group for group in _groups(trace_of(events, ranges=rows)) if not group.by_kernels]
    for group in groups:
        own_path = (*group.path, group.name)
        assert group.inside == any(own_path[: len(other.path) + 1] == (*other.path, other.name) != own_path for other in groups)
        found = expected[own_path]
        assert group.sum_ns == sum(ns for _, ns, *_ in found) > 0
        assert group.layers[0].calls == sum(place == 0 for place, *_ in found)
        for place, layer in enumerate(group.layers):
            own = [call for call in found if call[0] == place]
            times, middle, names = sorted(ns for _, ns, *_ in own), (len(own) - 1) // 2, {call[3] for call in own}
            assert layer.name == (names.pop() if len(names) == 1 else "")
            assert (layer.calls, layer.device_p50_ns, layer.device_max_ns) == (len(own), times[middle], times[-1])
            assert layer.host_p50_ns == sorted(host for *_, host in own)[middle]
        times = sorted(ns for place, ns, *_ in found if place)
        assert (group.later.device_p50_ns, group.later.device_max_ns) == (times[(len(times) - 1) // 2], times[-1])
        assert group.later.kernels == sorted(n for place, _, n, *_ in found if place)[(group.later.calls - 1) // 2]
