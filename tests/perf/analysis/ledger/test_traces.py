"""Ledgers of foreign traces against asking every single nanosecond who owns it, and against answers worked out by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.core.errors import ConfigError, DataError
from strobe.perf.analysis.ledger.account import DILATION, OUTSIDE_WINDOW, AccountLevel, Ledger
from strobe.perf.analysis.ledger.traces import (
    BRIDGE,
    FOCAL_NAME,
    OUTSIDE_STAGE,
    PRIORITY,
    TracedSide,
    foreign_ledger,
    label_trace,
)
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.analysis.structure.sections import parse_section
from strobe.perf.trace import DeviceEvent, DeviceEvents, HostEvent, HostEvents, Trace, read_trace

CAPTURES = Path(__file__).parents[4] / "benchmarks" / "presets-h200" / "traces"
SECTION = "copy:end -> gather:end"
NAMES = {
    "flash": "kernel",
    "copy": "kernel",
    "gather": "kernel",
    "gemm": "kernel",
    "zero": "memset",
    "send": "comm",
    "move": "memcpy",
}


def make_trace(device: list[DeviceEvent], ranges: list[HostEvent] = (), overhead: tuple = ()) -> Trace:
    return Trace(
        path=Path("t.json"),
        threads=("1/1",),
        ops=HostEvents.empty(),
        regions=(),
        ranges=HostEvents.from_rows(sorted(ranges, key=lambda r: (r.start_ns, -r.end_ns))),
        device_events=DeviceEvents.from_rows(sorted(device, key=lambda e: (e.start_ns, -e.end_ns, e.name, e.stream))),
        overhead=overhead,
    )


@st.composite
def traces(draw: st.DrawFn, steps: int | None = None) -> Trace:
    """Some steps of launches; device work on two streams, overlapping, late, unlinked and in graphs; one flash kernel a step."""
    count = draw(st.integers(1, 3)) if steps is None else steps
    ranges, device = [], []
    for step in range(count):
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
    return make_trace(device, ranges, overhead=((3, 9), (62, 70)))


def cut(trace: Trace, label: str = "t", **changes: object) -> TracedSide:
    return label_trace(
        trace, label, **{"focal": "flash", "section": parse_section(SECTION, "flash"), "steps": "ProfilerStep"} | changes
    )


def word(event: DeviceEvent, in_section: bool) -> str:
    """The word of `PRIORITY` that an event goes by."""
    if event.name == "flash":
        return "focal"
    return "section" if in_section else "compute" if event.kind == "kernel" else event.kind


def brute_force(trace: Trace, side: TracedSide, priority: tuple[str, ...]) -> tuple[list[Counter[Label]], Counter[str]]:
    """Ask every nanosecond of every tile who owns it."""
    events = list(trace.device_events)
    members = {number for section in side.sections.found for number in section.members}
    areas = [section[:2] for section in side.sections.found]
    end = max(event.end_ns for event in events)

    def owner(moment: int) -> int | None:
        running = [i for i, e in enumerate(events) if e.start_ns <= moment < e.end_ns]
        return min(running, key=lambda i: (priority.index(word(events[i], i in members)), i), default=None)

    owners = {moment: owner(moment) for moment in range(events[0].start_ns, end)}

    def cause(moment: int) -> str:
        first = last = moment
        while owners.get(first - 1, 0) is None:
            first -= 1
        while owners.get(last) is None and last < end:
            last += 1
        waited = events[owners[last]] if last < end else None
        if waited is None or waited.host is None:
            return "unlinked"
        launch = waited.host.start_ns
        if first == events[0].start_ns:  # nothing ran before: the gap starts before the launch
            launch = max(launch, first)
        if launch < first or waited.ordinal:
            return "queued"
        if moment >= launch:
            return "launch_latency"
        return "profiler_overhead" if any(s <= moment < e for s, e in trace.overhead) else "host_late"

    tiles, exclusive = [], Counter[str]()
    for tile in side.tiles:
        owned: Counter[Label] = Counter()
        for moment in range(tile.start_ns, tile.end_ns):
            inside = any(start <= moment < stop for start, stop in areas)
            at = owners[moment]
            if at is None:
                owned[Label(("section" if inside else "step",), cause(moment))] += 1
                continue
            exclusive[FOCAL_NAME if events[at].name == "flash" else events[at].name] += 1
            place = "focal" if events[at].name == "flash" else "section" if inside and at in members else "step"
            owned[Label((place,), events[at].kind)] += 1
        tiles.append(owned)
    return tiles, exclusive


@given(traces(), st.permutations(PRIORITY))
def test_every_nanosecond_has_one_label(trace: Trace, priority: list[str]) -> None:
    side = cut(trace, priority=priority)
    tiles, exclusive = brute_force(trace, side, tuple(priority))
    assert [tile.owned for tile in side.tiles] == tiles
    assert {name: ns for name, (_, ns) in side.calls.items() if ns} == exclusive
    events = list(trace.device_events)
    starts = [e for e in events for tile in side.tiles if tile.start_ns <= e.start_ns < tile.end_ns]
    assert side.num_focal == sum(e.name == "flash" for e in starts)
    assert side.calls.get("gemm", (0, 0))[0] >= sum(e.name == "gemm" for e in starts)
    members = {number for section in side.sections.found for number in section.members}
    areas = [section[:2] for section in side.sections.found]
    covered: Counter[Label] = Counter()
    for moment in (moment for tile in side.tiles for moment in range(tile.start_ns, tile.end_ns)):
        inside = any(start <= moment < stop for start, stop in areas)
        running = [(i, e) for i, e in enumerate(events) if e.start_ns <= moment < e.end_ns]
        covered.update(
            {
                Label(("focal" if e.name == "flash" else "section" if inside and i in members else "step",), e.kind)
                for i, e in running
            }
        )
    assert side.inclusive == covered


def closes(ledger: Ledger, sides: tuple[TracedSide, TracedSide]) -> None:
    for column in ("baseline_ns", "candidate_ns", "saved_ns"):
        assert sum(getattr(line, column) for line in ledger.lines) == getattr(ledger, column)
    busy = [line for line in ledger.lines if line.label.activity in ("kernel", "comm", "memset", "memcpy")]
    assert sum(e.saved_ns for e in ledger.effects) == sum(line.saved_ns for line in busy)
    for effect in ledger.effects:
        assert effect.calls_effect_ns + effect.speed_effect_ns == effect.saved_ns
    step = next(level for level in ledger.levels if level.level == AccountLevel.STEP)
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
    assert {e.name: e.speed_effect_ns for e in there.effects} == {e.name: -e.speed_effect_ns for e in back.effects}
    same = foreign_ledger(sides[0], sides[0])
    assert all(line.saved_ns == 0 and line.share is None for line in same.lines)
    assert all(level.saved_ns == 0 and level.ratio in (1.0, None) for level in same.levels)
    assert (same.lost_ns, same.kernel_saved_ns, same.realised_share) == (0, 0, None)


def scaled(trace: Trace, factor: int) -> Trace:
    def host(event: HostEvent) -> HostEvent:
        return event._replace(start_ns=factor * event.start_ns, end_ns=factor * event.end_ns)

    device = [
        e._replace(start_ns=factor * e.start_ns, end_ns=factor * e.end_ns, host=None if e.host is None else host(e.host))
        for e in trace.device_events
    ]
    overhead = tuple((factor * start, factor * end) for start, end in trace.overhead)
    return make_trace(device, [host(event) for event in trace.ranges], overhead)


@given(traces(), st.integers(2, 1000))
def test_longer_durations_scale_every_line(trace: Trace, factor: int) -> None:
    plain, longer = (cut(each) for each in (trace, scaled(trace, factor)))
    assert longer.owned == {label: factor * ns for label, ns in plain.owned.items()}
    assert longer.calls == {name: (count, factor * ns) for name, (count, ns) in plain.calls.items()}
    assert longer.inclusive == {label: factor * ns for label, ns in plain.inclusive.items()}
    assert longer.focal == tuple(tuple(factor * ns for ns in calls) for calls in plain.focal)


@given(traces(), traces(), st.tuples(*[st.fractions(1, 10**9, max_denominator=9)] * 6), st.tuples(*[st.integers(1, 500)] * 2))
def test_bridges_close_the_stage(before: Trace, after: Trace, times: tuple[Fraction, ...], calls: tuple[int, int]) -> None:
    """With calls per stage the unit is a stage, and the logs' times are met exactly."""
    sides = cut(before, "b"), cut(after, "c")
    timed = tuple(
        dict(zip((AccountLevel.STEP, AccountLevel.STAGE, AccountLevel.E2E), times[at::2], strict=True)) for at in (0, 1)
    )
    if not all(side.num_focal for side in sides):
        return
    found = foreign_ledger(*sides, timed, calls)
    closes(found, sides)
    assert found.unit == "stage" and found.missing == {}
    levels = {level.level: level.both for level in found.levels}
    assert levels[AccountLevel.E2E] == (times[4], times[5]) and levels[AccountLevel.STAGE] == (times[2], times[3])
    tiles = [Fraction(calls[at] * len(sides[at].tiles), sides[at].num_focal) for at in (0, 1)]
    assert levels[AccountLevel.STEP] == (times[0] * tiles[0], times[1] * tiles[1])
    focal = [sum(ns for label, ns in side.owned.items() if label.path == ("focal",)) for side in sides]
    assert levels[AccountLevel.KERNEL] == tuple(Fraction(focal[at] * calls[at], sides[at].num_focal) for at in (0, 1))
    assert {line.name for line in found.lines if not line.label.activity} == {DILATION, OUTSIDE_WINDOW, OUTSIDE_STAGE}
    without = foreign_ledger(*sides, tuple({AccountLevel.STAGE: each[AccountLevel.STAGE]} for each in timed), calls)
    closes(without, sides)
    assert {line.name for line in without.lines if not line.label.activity} == {BRIDGE}
    assert set(without.missing) == {"e2e", "profiler dilation"}


# ---- by hand ----


def kernel(name: str, start: int, end: int, launch: int, stream: int = 7) -> DeviceEvent:
    return DeviceEvent(name, NAMES[name], start, end, 0, stream, 0, HostEvent("cudaLaunchKernel", launch, launch + 1, 0))


def hand(flash: int, tail: int) -> Trace:
    """copy 10, a gap of 5 that the host caused in part, flash, gather 20, then gemm after a queued gap of `tail`."""
    at = 115 + flash
    device = [
        kernel("copy", 100, 110, 90),
        kernel("flash", 115, at, 112),
        kernel("gather", at, at + 20, 113),
        kernel("gemm", at + 20 + tail, at + 120 + tail, 114),
    ]
    return make_trace(device)


def test_an_account_worked_out_by_hand() -> None:
    sides = cut(hand(300, 0), "fa", steps=None), cut(hand(100, 7), "vsa", steps=None)
    found = foreign_ledger(*sides)
    assert found.unit == "call" and found.num_units == 1 and "step" in found.missing
    assert {line.name: (line.level, line.baseline_ns, line.candidate_ns) for line in found.lines} == {
        "focal: kernel": (AccountLevel.KERNEL, 300, 100),
        "section: kernel": (AccountLevel.SECTION, 20, 20),
        "section: host_late": (AccountLevel.SECTION, 2, 2),
        "section: launch_latency": (AccountLevel.SECTION, 3, 3),
        "step: kernel": (AccountLevel.STEP, 110, 110),
        "step: queued": (AccountLevel.STEP, 0, 7),
    }
    assert [(level.level, level.saved_ns) for level in found.levels] == [
        (AccountLevel.KERNEL, 200), (AccountLevel.SECTION, 200), (AccountLevel.STEP, 193),
    ]  # fmt: skip
    assert found.ideal_ns == 435 - 200 and found.realised_share == 193 / 200 and found.lost_ns == -7


def stepped(flashes: int, source: str) -> TracedSide:
    """Three steps of so many focal kernels, told by a range or by what repeats."""
    device = [
        kernel("flash", 100 * s + 9 * i, 100 * s + 9 * i + 5, 100 * s + 9 * i - 2) for s in range(1, 4) for i in range(flashes)
    ]
    ranges = [HostEvent(f"ProfilerStep#{s}", 100 * s - 5, 100 * s + 90, 0) for s in range(1, 4)]
    side = cut(make_trace(device, ranges), section=None)
    return replace(side, steps=replace(side.steps, source=source))


def test_repetitions_are_steps_if_both_sides_have_as_many_focal_calls_in_one() -> None:
    assert foreign_ledger(stepped(2, "period"), stepped(2, "period")).unit == "step"
    assert foreign_ledger(stepped(2, "period"), stepped(2, "range")).unit == "step"
    other = foreign_ledger(stepped(2, "period"), stepped(3, "range"))
    assert other.unit == "call" and "different numbers of focal calls" in other.missing["step"]
    assert foreign_ledger(stepped(2, "range"), stepped(3, "kernel")).unit == "step"


def test_only_the_busiest_focal_device_is_cut() -> None:
    far = [event._replace(device=1) for event in hand(500, 0).device_events]
    trace = make_trace([*hand(300, 0).device_events, *far])
    side = cut(trace, steps=None)
    assert side.device == 1 and side.focal == ((500,),)


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(DataError, match="no device events"):
        label_trace(make_trace([]), "t")
    with pytest.raises(DataError, match="no device event matches 'flush'; its longest: 'flash', 'gemm'"):
        label_trace(hand(300, 0), "t", "flush")
    with pytest.raises(ConfigError, match="not a regular expression"):
        label_trace(hand(300, 0), "t", "flash(")
    with pytest.raises(ConfigError, match="name each of"):
        cut(hand(300, 0), priority=("focal", "section"))


def test_windows_are_compared_as_they_are_if_nothing_is_focal() -> None:
    sides = label_trace(hand(300, 0), "b"), label_trace(hand(100, 0), "c")
    found = foreign_ledger(*sides)
    assert found.unit == "window" and found.saved_ns == 200 and set(found.missing) == {"stage", "e2e", "step"}
    assert [level.ratio for level in found.levels] == [None, 435 / 235]


def test_our_own_captures_close() -> None:
    """Two presets, traced over two frame blocks each."""
    section = parse_section("range:attention:start -> nvjet|flash|fmha -> range:attention:end")
    sides = tuple(
        label_trace(read_trace(CAPTURES / f"{name}.json.gz", ops=False), name, section.focal, section)
        for name in ("baseline", "ultra")
    )
    found = foreign_ledger(*sides)
    closes(found, sides)
    assert found.unit == "step" and [len(side.tiles) for side in sides] == [2, 2]
    for side, tiles in zip(sides, (172_292_861, 58_600_668), strict=True):
        assert side.total_ns == tiles == sum(side.owned.values())
        assert side.sections.found and side.sections.num_focal == len(side.counted)
    assert found.saved_ns == Fraction(172_292_861 - 58_600_668, 2)
