"""Steps tile the time of a device exactly, and windows are what the text asks for."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from strobe.core.errors import ConfigError, DataError
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.structure.steps import COMPILED, HELD_UP, LAST, OVERTAKEN, Steps, find_steps
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
    (found,) = find_steps(trace_of(events, modules=[HostEvent("Model_0", 0, 1_000, 0), HostEvent("Layer_0", 12, 60, 0)])).values()
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
    assert (
        isinstance(find_steps(trace_of([_event("gemm", 1, now * now, now * now + 5) for now in range(10, 40)]))[0], Steps)
        is False
    )


def test_nothing_to_find() -> None:
    (found,) = find_steps(trace_of([_event("a", 0, 10, 20)])).values()
    assert isinstance(found, str) and found.startswith("no repeating step found")
    assert find_steps(trace_of([])) == {}


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


# ---- windows ----

_CALLS = [
    HostEvent("ProfilerStep#1", 0, 100, 0), HostEvent("ProfilerStep#2", 100, 200, 0), HostEvent("strobe::attention", 10, 20, 0),
    HostEvent("strobe::attention", 110, 120, 0), HostEvent("idle", 30, 40, 0), HostEvent("a..b", 50, 60, 0),
]  # fmt: skip
_EVENTS = [
    _event("k", 12, 1_000, 1_010), _event("k", 52, 1_020, 1_040), _event("k", 112, 1_100, 1_130), _event("k", 150, 1_120, 1_500),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("ProfilerStep#1", 1_000, 1_100), ("ProfilerStep#2", 1_100, 1_500), ("attention[0]", 1_000, 1_010),
        ("strobe::attention#1", 1_100, 1_130), ("a..b", 1_020, 1_040), ("Block_0", 1_000, 1_010),
        ("ProfilerStep#1..ProfilerStep#2", 1_000, 1_500), ("attention[0] .. a..b", 1_000, 1_040), ("1", 1_000, 1_100),
        ("1..2", 1_000, 1_500), (" 2 ", 1_100, 1_500), ("10ns..0.02us", 1_010, 1_020), ("..20 ns", 1_000, 1_020),
        ("0.1µs..", 1_100, 1_500), ("0ms..1s", 1_000, 1_500),
    ],
)  # fmt: skip
def test_windows(text: str, start: int, end: int) -> None:
    found = choose_window(trace_of(_EVENTS, _CALLS, [HostEvent("Block_0", 5, 15, 0)]), text)
    assert found == Window(start_ns=start, end_ns=end, label=text.strip())


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("attention", DataError, "'attention' has 2 calls; choose one of attention[0] to attention[1]"),
        ("attention[2]", DataError, "no call 2 of 'attention'; it has 2, counted from 0"),
        ("idle", DataError, "'idle' launched no device event on its thread"),
        ("ProfilerStep#3", DataError, "(did you mean 'ProfilerStep#2'?); the trace has 'ProfilerStep#1', 'strobe::att"),
        ("3", DataError, "no step 3; the trace has steps 1 to 2"),
        ("2..1", ConfigError, "steps 2..1 are none; give the earlier one first"),
        ("1..2ms", ConfigError, "the time '1' of the window needs a unit; allowed: ns, us"),
        ("1km..2km", ConfigError, "the time '1km' of the window needs a unit"),
        ("0.5ns..2ns", ConfigError, "is not a whole number of nanoseconds"),
        ("20ns..10ns", ConfigError, "is empty"), ("1us..2us", DataError, "starts after the last device event, 0.001 ms in"),
        ("attention[0]..nowhere", DataError, "no range or module 'nowhere' for the window"),
        ("  ", ConfigError, "is empty; give"),
        ("ProfilerStep#2..ProfilerStep#1", ConfigError, "give an end after its start"),
    ],
)  # fmt: skip
def test_windows_that_are_not_there(text: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        choose_window(trace_of(_EVENTS, _CALLS), text)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("ProfilerStep#1", 0, 100), ("2", 100, 200), ("1..2", 0, 200), ("attention[1]", 110, 120), ("Block_0", 5, 15),
        ("attention[0]..a..b", 10, 60), ("10ns..20ns", 10, 20), ("150ns..", 150, 200), ("..1ms", 0, 200),
    ],
)  # fmt: skip
def test_windows_of_a_trace_without_a_device_are_time_of_the_host(text: str, start: int, end: int) -> None:
    found = choose_window(trace_of([], _CALLS, [HostEvent("Block_0", 5, 15, 0)]), text)
    assert found == Window(start_ns=start, end_ns=end, label=text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("3", "no range ProfilerStep#3"),
        ("1..7", "no range ProfilerStep#7"),
        ("7..1", "no range ProfilerStep#7"),
        ("1us..2us", "after the last event of the host"),
        ("none", "no range or module 'none'"),
    ],
)
def test_windows_that_a_trace_without_a_device_has_not(text: str, says: str) -> None:
    with pytest.raises(DataError) as caught:
        choose_window(trace_of([], _CALLS), text)
    assert says in str(caught.value)


def test_ranges_on_a_thread_that_launched_nothing_are_no_steps() -> None:
    elsewhere = [HostEvent("ProfilerStep#1", 0, 100, 1), HostEvent("ProfilerStep#2", 100, 200, 1)]
    (found,) = find_steps(trace_of([DeviceEvent("k", "kernel", 5, 9, 0, 7, 0, None)], elsewhere)).values()
    assert isinstance(found, str)


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
