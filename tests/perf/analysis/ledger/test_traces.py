"""Ledgers of foreign traces against asking every single nanosecond who owns it, and of calls that logs have timed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artefacts import FA, VSA, fa_layers, vsa_layers, write_trace
from made_traces import trace_of
from strobe.core.errors import ConfigError, DataError
from strobe.perf.analysis.device.activity import IDLE
from strobe.perf.analysis.ledger.account import DILATION, OUTSIDE_WINDOW, Ledger
from strobe.perf.analysis.ledger.speedup import MOST_LINES, LevelFigure, TimedSide, account_answer, level_figures, rank_ledgers
from strobe.perf.analysis.ledger.traces import (
    BRIDGE,
    FOCAL_NAME,
    OUTSIDE_STAGE,
    PRIORITY,
    Calls,
    Means,
    Node,
    TracedSide,
    call_ledger,
    coincidences,
    foreign_ledger,
    implied_calls,
    label_trace,
    node_of,
    path_times,
)
from strobe.perf.analysis.parts import Part
from strobe.perf.analysis.runs.log_times import NO_CALLS, NO_LOG, LogRequest, Timings, timings_of
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.analysis.structure.sections import parse_section
from strobe.perf.logs import read_log
from strobe.perf.trace import DeviceEvent, HostEvent, HostEvents, Trace, read_trace

NAMES = dict.fromkeys(("flash", "copy", "gather", "gemm", "norm", "attn_fwd"), "kernel")
NAMES |= {"zero": "memset", "send": "comm", "move": "memcpy"}


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Some steps of launches; device work on two streams, overlapping, late, unlinked and in graphs; one flash kernel a step."""
    ranges, device = [], []
    for step in range(draw(st.integers(1, 3))):
        begin = 60 * step
        ranges.append(HostEvent(f"ProfilerStep#{step}", begin, begin + 50, 0))
        for name in ["flash", *draw(st.lists(st.sampled_from(sorted(NAMES)), max_size=6))]:
            host = HostEvent("launch", begin + draw(st.integers(0, 49)), begin + 50, 0)
            start = host.start_ns + draw(st.integers(0, 25))
            for ordinal in range(draw(st.integers(1, 2))):
                end = start + draw(st.integers(0, 12))
                device.append(DeviceEvent(name, NAMES[name], start, end, 0, draw(st.integers(1, 2)), ordinal, host))
                start = end + draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.integers(0, 90))
        device.append(DeviceEvent("gemm", "kernel", start, start + draw(st.integers(0, 9)), 0, 1, 0, None))
    return trace_of(device, ranges, overhead=((3, 9), (62, 70)))


def cut(trace: Trace, label: str = "t", **changes: object) -> TracedSide:
    given = {"focal": "flash", "section": parse_section("copy:end -> gather:end", "flash"), "steps": "ProfilerStep"} | changes
    return label_trace(trace, label, **given)


def word(event: DeviceEvent, in_section: bool) -> str:
    """The word of `PRIORITY` that an event goes by."""
    if event.name == "flash":
        return "focal"
    return "section" if in_section else "compute" if event.kind == "kernel" else event.kind


@given(traces())
def test_every_nanosecond_has_one_label(trace: Trace) -> None:
    """Every nanosecond of every tile is asked what runs and who owns it; idle time is not split by cause."""
    side, events = cut(trace), list(trace.device_events)
    members = {number for section in side.sections.found for number in section.members}
    covered, exclusive = Counter[Label](), Counter[str]()
    for tile in side.tiles:
        owned, counted = Counter[Label](), Counter[Label]()
        for moment in range(tile.start_ns, tile.end_ns):
            inside = any(section.span[0] <= moment < section.span[1] for section in side.sections.found)
            running = {}
            for at in (at for at, e in enumerate(events) if e.start_ns <= moment < e.end_ns):
                place = "focal" if events[at].name == "flash" else "section" if inside and at in members else "step"
                running[at] = Label((place,), events[at].kind)
            covered.update(set(running.values()))
            owner = min(running, key=lambda at: (PRIORITY.index(word(events[at], at in members)), at), default=None)
            owned[Label(("section" if inside else "step",), "idle") if owner is None else running[owner]] += 1
            if owner is not None:
                exclusive[FOCAL_NAME if events[owner].name == "flash" else events[owner].name] += 1
        for label, ns in tile.owned.items():
            counted[label._replace(activity="idle") if label.activity in IDLE else label] += ns
        assert counted == owned
    assert side.inclusive == covered
    assert {name: ns for name, (_, ns) in side.calls.items() if ns} == exclusive
    starts = [e.name for e in events for tile in side.tiles if tile.start_ns <= e.start_ns < tile.end_ns]
    assert side.num_focal == starts.count("flash") and side.calls.get("gemm", (0, 0))[0] >= starts.count("gemm")


def closes(ledger: Ledger, sides: tuple[TracedSide, TracedSide]) -> None:
    for column in ("baseline_ns", "candidate_ns", "saved_ns"):
        assert sum(getattr(line, column) for line in ledger.lines) == getattr(ledger, column)
    busy = [line for line in ledger.lines if line.label.activity in ("kernel", "comm", "memset", "memcpy")]
    assert sum(e.saved_ns for e in ledger.kernels) == sum(line.saved_ns for line in busy)
    for effect in ledger.kernels:
        assert effect.by_calls_ns + effect.by_speed_ns == effect.saved_ns
    step = next(level for level in ledger.levels if level.level == "step")
    if ledger.unit == "step":
        assert step.both == (sides[0].mean_ns, sides[1].mean_ns)
        assert ledger.saved_ns == sides[0].mean_ns - sides[1].mean_ns


@given(traces(), traces())
def test_two_traces_close_to_zero_nanoseconds_swapped_ones_negate_and_equal_ones_save_nothing(
    before: Trace, after: Trace
) -> None:
    sides = cut(before, "b"), cut(after, "c")
    there, back = foreign_ledger(*sides), foreign_ledger(*sides[::-1])
    closes(there, sides)
    assert there.unit in ("step", "call")
    assert {line.name: line.saved_ns for line in there.lines} == {line.name: -line.saved_ns for line in back.lines}
    assert there.kernel_saved_ns == -back.kernel_saved_ns
    assert {e.kernel: e.by_speed_ns for e in there.kernels} == {e.kernel: -e.by_speed_ns for e in back.kernels}
    same = foreign_ledger(sides[0], sides[0])
    assert all(line.saved_ns == 0 and line.share is None for line in same.lines)
    assert all(level.saved_ns == 0 and level.ratio in (1.0, None) for level in same.levels)
    assert (same.lost_ns, same.kernel_saved_ns, same.realised_share) == (0, 0, None)


@given(traces(), traces(), st.tuples(*[st.fractions(1, 10**9, max_denominator=9)] * 6), st.tuples(*[st.integers(1, 500)] * 2))
def test_bridges_close_the_stage(before: Trace, after: Trace, times: tuple[Fraction, ...], calls: tuple[int, int]) -> None:
    """With calls per stage the unit is a stage, and the logs' times are met exactly."""
    sides = cut(before, "b"), cut(after, "c")
    timed = tuple(dict(zip(("step", "stage", "e2e"), times[at::2], strict=True)) for at in (0, 1))
    if not all(side.num_focal for side in sides):
        return
    found = foreign_ledger(*sides, timed, calls)
    closes(found, sides)
    assert found.unit == "stage" and found.missing == {}
    levels = {level.level: level.both for level in found.levels}
    assert levels["e2e"] == (times[4], times[5]) and levels["stage"] == (times[2], times[3])
    tiles = [Fraction(calls[at] * len(sides[at].tiles), sides[at].num_focal) for at in (0, 1)]
    assert levels["step"] == (times[0] * tiles[0], times[1] * tiles[1])
    focal = [sum(ns for label, ns in side.owned.items() if label.path == ("focal",)) for side in sides]
    assert levels["kernel"] == tuple(Fraction(focal[at] * calls[at], sides[at].num_focal) for at in (0, 1))
    assert {line.name for line in found.lines if not line.label.activity} == {DILATION, OUTSIDE_WINDOW, OUTSIDE_STAGE}
    without = foreign_ledger(*sides, tuple({"stage": each["stage"]} for each in timed), calls)
    closes(without, sides)
    assert {line.name for line in without.lines if not line.label.activity} == {BRIDGE}
    assert set(without.missing) == {"e2e", "profiler dilation"}


def event(name: str, start: int, end: int, launch: int) -> DeviceEvent:
    return DeviceEvent(name, NAMES[name], start, end, 0, 7, 0, HostEvent("cudaLaunchKernel", launch, launch + 1, 0))


def hand(flash: int, tail: int) -> Trace:
    """copy 10, a gap of 5 that the host caused in part, flash, gather 20, then gemm after a queued gap of `tail`."""
    at = 115 + flash
    device = [
        event("copy", 100, 110, 90),
        event("flash", 115, at, 112),
        event("gather", at, at + 20, 113),
        event("gemm", at + 20 + tail, at + 120 + tail, 114),
    ]
    return trace_of(device)


def test_an_account_worked_out_by_hand() -> None:
    sides = cut(hand(300, 0), "fa", steps=None), cut(hand(100, 7), "vsa", steps=None)
    found = foreign_ledger(*sides)
    assert found.unit == "call" and found.num_units == 1 and "step" in found.missing
    assert {line.name: (line.level, line.baseline_ns, line.candidate_ns) for line in found.lines} == {
        "focal: kernel": ("kernel", 300, 100),
        "section: kernel": ("section", 20, 20),
        "section: host_late": ("section", 2, 2),
        "section: launch_latency": ("section", 3, 3),
        "step: kernel": ("step", 110, 110),
        "step: queued": ("step", 0, 7),
    }
    assert [(level.level, level.saved_ns) for level in found.levels] == [
        ("kernel", 200), ("section", 200), ("step", 193),
    ]  # fmt: skip
    assert {line.name: line.share for line in found.lines}["focal: kernel"] == 200 / 193
    assert found.ideal_ns == 435 - 200 and found.realised_share == 193 / 200 and found.lost_ns == -7


def stepped(flashes: int, source: str) -> TracedSide:
    """Three steps of so many focal kernels, told by a range or by what repeats."""
    device = [
        event("flash", 100 * s + 9 * i, 100 * s + 9 * i + 5, 100 * s + 9 * i - 2) for s in range(1, 4) for i in range(flashes)
    ]
    ranges = [HostEvent(f"ProfilerStep#{s}", 100 * s - 5, 100 * s + 90, 0) for s in range(1, 4)]
    side = cut(trace_of(device, ranges), section=None)
    return replace(side, steps=replace(side.steps, source=source))


def test_repetitions_are_steps_if_both_sides_have_as_many_focal_calls_in_one() -> None:
    assert foreign_ledger(stepped(2, "period"), stepped(2, "period")).unit == "step"
    assert foreign_ledger(stepped(2, "period"), stepped(2, "range")).unit == "step"
    other = foreign_ledger(stepped(2, "period"), stepped(3, "range"))
    assert other.unit == "call" and "different numbers of focal calls" in other.missing["step"]
    assert foreign_ledger(stepped(2, "range"), stepped(3, "kernel")).unit == "step"


def test_only_the_busiest_focal_device_is_cut() -> None:
    far = [event._replace(device=1) for event in hand(500, 0).device_events]
    side = cut(trace_of([*hand(300, 0).device_events, *far]), steps=None)
    assert side.device == 1 and side.focal == ((500,),)


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(DataError, match="no device events"):
        label_trace(trace_of([]), "t")
    with pytest.raises(DataError, match="no device event matches 'flush'; its longest: 'flash', 'gemm'"):
        label_trace(hand(300, 0), "t", "flush")
    with pytest.raises(ConfigError, match="not a regular expression"):
        label_trace(hand(300, 0), "t", "flash(")


def test_windows_are_compared_as_they_are_if_nothing_is_focal() -> None:
    sides = label_trace(hand(300, 0), "b"), label_trace(hand(100, 0), "c")
    found = foreign_ledger(*sides)
    assert found.unit == "window" and found.saved_ns == 200 and set(found.missing) == {"stage", "e2e", "step"}
    assert [level.ratio for level in found.levels] == [None, 435 / 235]


# The answer for two foreign traces: its parts by hand, and its sums against the account and against the events.


def side(focal: int, gemm: int, late: int, length: int = 1_000, steps: int = 3, lost: str = "") -> Trace:
    """Steps, of which the last has no end: copy 10, focal, gather 20, gemm, norm 30 after the host was late, and a copy.

    Args:
        lost: the kernel whose launch calls are not in the trace.
    """
    device = []
    for at in range(0, length * steps, length):
        now = at + 100
        for name, took, wait in (("copy", 10, 0), ("flash", focal, 0), ("gather", 20, 0), ("gemm", gemm, 0), ("norm", 30, late)):
            now += wait
            made = event(name, now, now + took, now - 4 if wait else at + len(device) % 6)
            device.append(made._replace(host=None) if name == lost else made)
            now += took
        device.append(event("move", now, now + 5, at + 15))
    return trace_of(device, [HostEvent(f"ProfilerStep#{n}", length * n, length * n + 20, 0) for n in range(steps)])


def accounted(before: Trace, after: Trace, timed: tuple[Means, Means] = ({}, {}), calls: Calls = (None, None)) -> Ledger:
    sides = (cut(trace, label, steps=None) for label, trace in (("b", before), ("c", after)))
    return foreign_ledger(*sides, timed, calls)


BEFORE, AFTER = side(300, 200, 10), side(100, 150, 60)
# between steps the host is late too: the next step is launched 100 ns before it runs, so the device waits from its launch on
_HAND = {
    Part.FOCAL: (300, 100), Part.SECTION: (20, 20), Part.MATRIX: (200, 150), Part.OTHER_KERNELS: (40, 40), Part.COPIES: (5, 5),
    Part.WAITING: (1_000 - 565, 1_000 - 315),
}  # fmt: skip
STAGES = {"stage": Fraction(5_000)}, {"stage": Fraction(4_400)}
STEPS = {"step": Fraction(900)}, {"step": Fraction(800)}


@pytest.mark.parametrize(
    ("account", "unit", "parts", "explained"),
    [
        (accounted(BEFORE, AFTER), "step", _HAND, (1.0, None)),  # nothing is saved
        (accounted(BEFORE, side(100, 150, 10, length=800)), "step", {Part.FOCAL: (300, 100)}, (1.0, 1.0)),
        # four calls a stage: four steps of 1,000 in 5,000 and in 4,400, and all that was saved lies outside the trace
        (accounted(BEFORE, AFTER, STAGES, (4, 4)), "stage", {Part.UNNAMED: (1_000, 400), Part.FOCAL: (1_200, 400)}, (0.8, 0.0)),
        # the profiler is unexplained on both sides
        (accounted(BEFORE, AFTER, STEPS), "step", {Part.UNNAMED: (-100, -200)}, (1 - 200 / 800, 0.0)),
        (accounted(BEFORE, side(300, 200, 10, lost="norm")), "step", {Part.UNNAMED: (0, 10)}, (0.99, None)),
    ],
    ids=["by hand", "saved", "outside the trace", "profiler", "launched before the trace"],
)
def test_parts_worked_out_by_hand(
    account: Ledger, unit: str, parts: dict[Part, tuple[int, int]], explained: tuple[float, float | None]
) -> None:
    found = account_answer(account)
    assert (found.unit, (found.explained_time_share, found.explained_saving_share)) == (unit, explained)
    shown = {line.parts[0]: (line.baseline_ns, line.candidate_ns) for line in found.lines if len(line.parts) == 1}
    assert parts.items() <= shown.items() and (parts is not _HAND or shown == _HAND)


def test_without_a_step_and_a_focal_kernel_it_is_the_whole_window() -> None:
    """The attention kernel is named by itself where it is not focal."""
    once = label_trace(trace_of(side(300, 200, 10, steps=1).device_events), "t")
    found = account_answer(foreign_ledger(once, once))
    assert found.unit == "traced window" and found.baseline_ns == 575
    assert [line.baseline_ns for line in found.lines if Part.OTHER_ATTENTION in line.parts] == [300], (
        "named where it is not focal"
    )


@given(traces(), traces(), st.sampled_from([{}, {"step": Fraction(70)}, {"stage": Fraction(9_000)}]))
def test_the_lines_add_up_to_the_account_exactly(before: Trace, after: Trace, says: Means) -> None:
    account = accounted(before, after, (says, says), (77, 77) if "stage" in says else (None, None))
    found = account_answer(account)
    whole = account.both
    assert (found.baseline_ns, found.candidate_ns) == whole and len(found.lines) <= MOST_LINES
    assert sum((line.saved_ns for line in found.lines), Fraction(0)) == whole[0] - whole[1]
    named = [part for line in found.lines for part in line.parts]
    assert len(named) == len(set(named))
    if whole[0] != whole[1]:
        assert all(line.share == float(line.saved_ns / (whole[0] - whole[1])) for line in found.lines)
    else:
        assert {line.share for line in found.lines} <= {None}
    assert 0 <= found.explained_time_share <= 1 and 0 <= (found.explained_saving_share or 0) <= 1


@given(traces())
def test_kernels_by_kind_are_what_the_kernels_own(trace: Trace) -> None:
    own = cut(trace, section=None)
    kinds = {"attn_fwd": "attention", "gemm": "matrix products"} | dict.fromkeys(("copy", "gather", "norm"), "other kernels")
    counted = Counter[str]()
    for name, (_, ns) in own.calls.items():
        counted[kinds.get(name, "")] += ns
    assert {part.work: ns for part, ns in own.kinds.items() if ns} == {kind: ns for kind, ns in counted.items() if kind and ns}


# Trees of device time by path, and two of them laid over each other.


def layered(modules: bool) -> Trace:
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
    more = {"modules": scopes[1:]} if modules else {}
    return trace_of(device, scopes[:1] if modules else scopes, module_paths={3: "layers.7.mlp"}, **more)


def test_paths_are_those_of_the_launch() -> None:
    trace = layered(modules=False)
    assert path_times(trace, label_trace(trace, "t")) == {
        ("step", "Layer", "a"): 10, ("step", "Layer", "b"): 20, ("step", "c"): 30, ("layers", "7", "mlp", "d"): 10,
        ("early",): 10,
    }  # fmt: skip
    trace = layered(modules=True)
    assert path_times(trace, label_trace(trace, "t")) == {
        ("Layer", "a"): 10, ("Layer", "b"): 20, ("c",): 30, ("layers", "7", "mlp", "d"): 10, ("early",): 10,
    }  # fmt: skip


_TREES = st.dictionaries(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple), st.integers(0, 1000), max_size=12)


@given(_TREES, _TREES, st.integers(1, 4), st.integers(1, 4))
def test_a_difference_adds_up(before: dict[tuple[str, ...], int], after: dict[tuple[str, ...], int], n: int, m: int) -> None:
    own = {path: (Fraction(before.get(path, 0), n), Fraction(after.get(path, 0), m)) for path in before.keys() | after.keys()}
    root = node_of((), own)
    assert root.baseline_ns * n == sum(before.values()) and root.candidate_ns * m == sum(after.values()), "exactly"

    def check(node: Node, path: tuple[str, ...]) -> None:
        below = [times for each, times in own.items() if each[: len(path)] == path]
        assert (node.baseline_ns, node.candidate_ns) == tuple(map(sum, zip(*below, strict=True))) if below else (0, 0)
        assert node.path == path and node.own_ns == own.get(path, (0, 0))
        for child in node.children:
            check(child, child.path)

    check(root, ())


def test_operators_are_part_of_a_path_if_they_are_asked_for() -> None:
    ops = [HostEvent("aten::linear", 8, 15, 0), HostEvent("aten::addmm", 9, 12, 0), HostEvent("Layer_0", 9, 12, 0)]
    trace = replace(layered(modules=True), ops=HostEvents.from_rows(ops))
    found = path_times(trace, label_trace(trace, "t"), operators=True)
    assert found[("Layer", "aten::linear", "aten::addmm", "a")] == 10, "what is a scope already is not one again"
    assert found[("Layer", "b")] == 20


LEVELS = "kernel", "section", "attention", "stage"


def means(**times: int | Fraction) -> Means:
    return {"attention" if level == "call" else level: Fraction(ns) for level, ns in times.items()}


DENSE = means(kernel=9_534_580, section=9_534_580, call=12_999_318, stage=7_200_807_590)


SPARSE = means(kernel=2_762_085, section=5_513_097, call=9_534_198, stage=5_754_608_690)


def without(side: Means, level: str) -> Means:
    return {each: ns for each, ns in side.items() if each != level}


def test_the_calls_that_would_explain_the_stage_are_no_whole_number() -> None:
    implied = implied_calls(DENSE, SPARSE)
    assert implied is not None and implied[0].denominator > 1
    assert f"{float(implied[0]):.2f}" == "417.36"
    tried = dict(implied_calls(DENSE, SPARSE, given=384)[1]) | dict(implied_calls(DENSE, SPARSE, given=432)[1])
    assert {n: round(float(rest) / 1e6, 1) for n, rest in tried.items()} == {384: 115.6, 417: 1.2, 418: -2.2, 432: -50.7}
    exact = implied_calls(DENSE | {"stage": SPARSE["stage"] + 400 * 3_465_120}, SPARSE)
    assert exact == (400, ((400, 0),))
    assert implied_calls(without(DENSE, "attention"), SPARSE) is None and implied_calls(SPARSE, SPARSE) is None


def test_a_level_that_one_side_lacks_joins_the_next_line() -> None:
    found = call_ledger(without(DENSE, "section"), SPARSE)
    assert found is not None and found.missing["section"] == "not measured on the baseline"
    assert [(line.name, line.saved_ns) for line in found.lines] == [
        ("focal kernel", 6_772_495), ("attention call beyond the kernel", 3_465_120 - 6_772_495),
    ]  # fmt: skip
    only = call_ledger(means(call=7), means(call=5))
    assert only is not None and [(line.name, line.saved_ns) for line in only.lines] == [("attention call", 2)]
    assert only.kernel_saved_ns == 0 and only.realised_share is None
    assert call_ledger({}, {}) is None
    assert call_ledger(means(stage=1), means(stage=2)) is None


def test_a_copied_figure_is_noticed() -> None:
    assert [(a, b, f"{float(apart):.0e}") for a, b, apart in coincidences(DENSE, SPARSE)] == [
        ("the baseline's kernel", "the candidate's attention call", "4e-05")
    ]
    assert coincidences(DENSE | means(kernel=9_540_000, section=9_540_000), SPARSE) == ()
    assert coincidences(SPARSE, SPARSE) == ()  # the same quantity of the same run twice


_SIDES = st.dictionaries(st.sampled_from(LEVELS), st.fractions(Fraction(1, 7), 10**10, max_denominator=1000))


_CALLS = st.tuples(*[st.none() | st.integers(1, 999)] * 2)


@given(_SIDES, _SIDES, _CALLS)
def test_it_adds_up_and_swapped_sides_negate(baseline: Means, candidate: Means, calls: Calls) -> None:
    there, back = call_ledger(baseline, candidate, calls), call_ledger(candidate, baseline, calls[::-1])
    if there is None:
        assert back is None
        return
    assert back is not None
    assert [(line.name, line.saved_ns) for line in there.lines] == [(line.name, -line.saved_ns) for line in back.lines]
    top = there.levels[-1].level
    assert there.both == (baseline[top], candidate[top])
    if there.unit == "stage":
        for level in there.levels[:-1]:
            assert level.baseline_ns == baseline[level.level] * calls[0]
    same = call_ledger(baseline, baseline, (calls[0], calls[0]))
    assert same is None or {line.saved_ns for line in same.lines} == {0}


def test_a_call_that_takes_no_time_saves_all_of_the_other() -> None:
    """Zero is a time, not a missing one."""
    whole, nothing = means(call=Fraction(1, 2), stage=10), means(call=0, stage=1)
    found = implied_calls(whole, nothing)
    assert found is not None and found[0] == 18
    assert implied_calls(means(call=0, stage=10), whole | means(stage=1)) is None


# The levels of two sides, from logs and traces written here.


NONE = timings_of(None)


def timings(folder: Path, text: str, **wanted: object) -> Timings:
    path = folder / "run.log"
    path.write_text(text, encoding="utf-8")
    return timings_of(LogRequest(log=read_log(path)), **wanted)


def log(call_ms: float, stage_ms: float, calls: int = 3, rounds: int = 4, step_s: float | None = None) -> str:
    """Rounds of attention calls, the first one slower; each ends with the line of its stage."""
    lines = []
    for number in range(rounds):
        slow = 1.5 if number == 0 else 1.0
        lines += [f">>>> VSA time: {call_ms * slow + 0.01 * (number + call):.6f} ms" for call in range(calls)]
        if step_s is not None:
            lines.append(f"[DenoisingStage] average time per step: {step_s} seconds")
        lines.append(f"[DenoisingStage] finished in {stage_ms * slow + 0.1 * number:.6f} ms")
    return "\n".join(lines)


def traced(folder: Path, layers: list[list[tuple[str, str, int]]], focal: str, label: str = "rank 0") -> TracedSide:
    path = write_trace(folder / f"{label}-{focal}.json.gz", layers)
    return label_trace(read_trace(path), label, focal)


def sided(name: str, *ranks: TracedSide, timings: Timings = NONE) -> TimedSide:
    return TimedSide(name=name, traced=ranks, timings=timings)


def by_level(figures: tuple[LevelFigure, ...]) -> dict[str, LevelFigure]:
    return {figure.level: figure for figure in figures}


def test_what_a_log_says(tmp_path: Path) -> None:
    found = timings(tmp_path, log(10, 100))
    assert not isinstance(found.attention, str) and not isinstance(found.stage, str)
    assert found.calls == 3 and found.calls_from.endswith("if one process wrote it")
    assert found.rounds == (range(3), range(3, 6), range(6, 9), range(9, 12))
    assert found.stage.avg_excl_warmup_ns == Fraction(100_100_000 + 100_200_000 + 100_300_000, 3)
    assert found.step == "the log times no step" and found.e2e == "the log times no whole run"
    assert timings(tmp_path, log(10, 100), calls=7).calls_from == "given: 7"
    assert timings(tmp_path, log(10, 100), processes=1).calls_from.endswith("each round of the stage")
    many = timings(tmp_path, log(10, 100), processes=8)
    assert (many.calls, many.calls_from) == (None, NO_CALLS), "lines of eight processes without a rank cannot be counted"
    assert (NONE.attention, NONE.calls, NONE.calls_from) == (NO_LOG, None, NO_CALLS)


def test_a_log_that_is_not_clear_is_refused(tmp_path: Path) -> None:
    two = log(10, 100) + "\n>>>> Vanilla time: 3.0 ms\n"
    with pytest.raises(DataError, match="2 attention timers.*--names"):
        timings(tmp_path, two)
    assert timings(tmp_path, two, timer="vsa").calls == 3
    with pytest.raises(DataError, match="no attention timer 'flash'"):
        timings(tmp_path, two, timer="flash")
    stages = log(10, 100) + "\n[DenoisingStage2] finished in 5 ms\n"
    with pytest.raises(DataError, match="2 stages match.*--stage"):
        timings(tmp_path, stages.replace("DenoisingStage2", "UpDenoisingStage"))


def test_records_of_several_variants_are_told_apart_by_name() -> None:
    """Our own records as a log: `variant/span`."""
    log = read_log(Path(__file__).parents[4] / "benchmarks" / "presets-h200" / "records.jsonl.gz")
    several = timings_of(LogRequest(log=log))
    assert isinstance(several.e2e, str) and "choose one with --names" in several.e2e
    one = timings_of(LogRequest(log=log), timer="^quality/")
    assert not isinstance(one.e2e, str) and one.e2e.name == "quality/e2e" and len(one.e2e.rounds_ns) == 17
    assert not isinstance(one.step, str) and one.step.series.name == "quality/denoise_step"


def test_levels_are_compared_over_rounds_and_steps(tmp_path: Path) -> None:
    baseline = sided("baseline", traced(tmp_path, fa_layers() * 2, FA), timings=timings(tmp_path, log(14, 100)))
    candidate = sided("candidate", traced(tmp_path, vsa_layers() * 2, VSA), timings=timings(tmp_path, log(7, 90)))
    found = by_level(level_figures(baseline, candidate))
    assert float(found["kernel"].ratio or 0) == pytest.approx(3.4520, abs=5e-5)
    for level in ("kernel", "attention", "step", "stage"):
        figure = found[level]
        assert figure.low is not None and figure.low < float(figure.ratio or 0) < figure.high
        assert figure.verdict == "faster"
    call = found["attention"]
    assert call.baseline is not None and (call.baseline.n, call.baseline.groups) == (9, 3)
    kernel_saved = Fraction(6_772_495)
    assert call.saved_ns == Fraction(7_000_000) and call.realised == float(Fraction(7_000_000) / kernel_saved)
    assert found["stage"].saved_ns == 10_000_000 and found["stage"].costs_ns == 3 * kernel_saved - 10_000_000
    assert found["section"].ratio is None and "give --section" in found["section"].missing
    assert found["e2e"].missing == "baseline: the log times no whole run; candidate: the log times no whole run"
    apart = by_level(level_figures(baseline, candidate, alike_steps=False))["step"]
    assert apart.ratio is None and "give --steps" in apart.missing


def test_a_level_that_the_kernel_did_not_move_has_no_realised_share(tmp_path: Path) -> None:
    same = traced(tmp_path, fa_layers(), FA)
    runs = {"baseline": log(14, 100), "candidate": log(7, 90)}
    sides = [sided(name, same, timings=timings(tmp_path, text)) for name, text in runs.items()]
    found = by_level(level_figures(sides[0], sides[1]))
    assert found["kernel"].verdict == "no difference" and found["kernel"].saved_ns == 0
    assert found["attention"].realised is None and found["stage"].realised is None
    back = by_level(level_figures(replace(sides[1], name="baseline"), replace(sides[0], name="candidate")))
    assert back["stage"].verdict == "slower" and back["stage"].ratio == pytest.approx(1 / (found["stage"].ratio or 1))


def test_the_rank_that_the_others_wait_for_counts(tmp_path: Path) -> None:
    quick, slow = traced(tmp_path, fa_layers(), FA, "rank 0"), traced(tmp_path, fa_layers(4_000_000), FA, "rank 1")
    baseline = sided("baseline", quick, slow)
    candidate = sided("candidate", traced(tmp_path, vsa_layers(), VSA, "rank 1"))
    assert baseline.chosen is slow
    ledgers = rank_ledgers(baseline, candidate)
    assert [account.ranks for account in ledgers] == ["slowest rank (rank 1 against rank 1)", "rank 1"]
    assert rank_ledgers(replace(baseline, traced="no trace given"), candidate) == ()


def test_a_timed_step_tells_the_dilation_if_it_can_be_the_traced_one(tmp_path: Path) -> None:
    step = traced(tmp_path, fa_layers(), FA)
    for seconds, believed in ((0.010, True), (0.0129, True), (0.0001, False), (1.0, False)):
        side = sided("baseline", step, timings=timings(tmp_path, log(12, 100, step_s=seconds)))
        assert ("step" in side.timed()) == believed
    side = sided("baseline", step, timings=timings(tmp_path, log(12, 100, step_s=0.010)))
    (account,) = rank_ledgers(side, side)
    lines = {line.name: line.baseline_ns for line in account.lines}
    assert account.unit == "stage" and lines[DILATION] == 3 * (10_000_000 - step.mean_ns)
    assert lines[OUTSIDE_WINDOW] == Fraction(300_600_000, 3) - 3 * 10_000_000


def test_of_ranks_that_meet_the_late_one_counts(tmp_path: Path) -> None:
    """Both steps last as long; rank 0 spends more of its own waiting in the collective."""
    nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    ranks = [
        traced(
            tmp_path, [[("kernel", FA, 9_000_000), ("kernel", "gemm", gemm), ("kernel", nccl, 5_000_000 - gemm)]] * 4, FA, name
        )
        for name, gemm in (("rank 0", 3_000_000), ("rank 1", 3_500_000))
    ]
    assert ranks[0].mean_ns == ranks[1].mean_ns and ranks[1].own_ns == 12_500_000 + 10_000
    for order in (ranks, ranks[::-1]):
        assert sided("baseline", *order).chosen is ranks[1]


def test_a_rank_without_steps_is_not_the_slowest_for_its_whole_window(tmp_path: Path) -> None:
    stepped = traced(tmp_path, fa_layers(), FA, "rank 0")
    layers = [[("kernel", f"{name}{at}", 3_000_000), ("kernel", FA, 9_534_580)] for at, name in enumerate("ab")]
    whole = traced(tmp_path, layers, FA, "rank 1")
    assert isinstance(whole.steps, str) and whole.mean_ns > stepped.mean_ns
    assert sided("baseline", whole, stepped).chosen is stepped
    side = sided("baseline", whole, timings=timings(tmp_path, log(12, 100, step_s=0.020)))
    assert "step" not in side.timed()


def test_sections_are_held_against_the_kernels_inside_them(tmp_path: Path) -> None:
    """Two focal calls in each section: its saving is realised from what both of them save."""

    def cut(name: str, focal: int, rest: int) -> TracedSide:
        layer = [("kernel", FA, focal), ("kernel", FA, focal), ("kernel", "gather", rest), ("kernel", "gemm", 1_000_000)]
        path = write_trace(tmp_path / f"{name}.json.gz", [[("gpu_memcpy", "Memcpy DtoD", 50_000), *layer]] * 4)
        section = parse_section("memcpy:end -> gather:end", FA)
        return label_trace(read_trace(path), name, FA, section)

    sides = sided("baseline", cut("one", 4_000_000, 500_000)), sided("candidate", cut("two", 1_000_000, 1_000_000))
    assert [side.focal_in_section() for side in sides] == [8_000_000, 2_000_000]
    found = by_level(level_figures(*sides))
    assert found["kernel"].saved_ns == 3_000_000
    assert found["section"].saved_ns == 5_500_000 and found["section"].costs_ns == 500_000
    account = call_ledger(*(side.call_times(with_section=True, kernel_is_section=False) for side in sides))
    assert account is not None
    lines = [(line.name, line.saved_ns) for line in account.lines]
    assert lines == [("focal kernel", 6_000_000), ("section beyond the kernel", -500_000)]


def test_a_whole_run_of_several_stages_is_not_one_stage_and_the_rest(tmp_path: Path) -> None:
    def run(call_ms: float, stage_ms: float, stages: int) -> TimedSide:
        text = log(call_ms, stage_ms, rounds=2 * stages).split("\n")
        each = len(text) // 2
        lines = [*text[:each], "Pixel data generated successfully in 2.0 seconds", *text[each:]]
        lines.append(f"Pixel data generated successfully in {stage_ms / 100} seconds")
        return TimedSide(name="baseline", traced=NO_LOG, timings=timings(tmp_path, "\n".join(lines)))

    assert run(10, 100, 1).stages_per_run == 1 and run(10, 100, 1).timed().keys() >= {"e2e"}
    assert run(10, 100, 3).stages_per_run == 3 and run(10, 100, 3).timed().keys().isdisjoint({"e2e"})
