"""The answer for two foreign traces: its parts by hand, and its sums against the account and against the events."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.analysis.ledger.account import AccountLevel, Ledger, Part
from strobe.perf.analysis.ledger.speedup import MOST_LINES, Answer, account_answer
from strobe.perf.analysis.ledger.traces import Calls, Means, foreign_ledger, label_trace
from strobe.perf.analysis.structure.sections import parse_section
from strobe.perf.trace import DeviceEvent, DeviceEvents, HostEvent, HostEvents, Trace

SECTION = "pack:end -> unpack:end"
KIND = {"zero": "memset", "send": "comm", "move": "memcpy"}


def make_trace(device: list[DeviceEvent], steps: list[int]) -> Trace:
    """A trace whose steps are launched at these moments."""
    ranges = [HostEvent(f"ProfilerStep#{number}", start, start + 20, 0) for number, start in enumerate(steps)]
    return Trace(
        path=Path("t.json"),
        threads=("1/1",),
        ops=HostEvents.empty(),
        regions=(),
        ranges=HostEvents.from_rows(ranges),
        device_events=DeviceEvents.from_rows(sorted(device, key=lambda e: (e.start_ns, -e.end_ns, e.name, e.stream))),
    )


def event(name: str, start: int, end: int, launch: int | None, stream: int = 7) -> DeviceEvent:
    host = None if launch is None else HostEvent("cudaLaunchKernel", launch, launch + 1, 0)
    return DeviceEvent(name, KIND.get(name, "kernel"), start, end, 0, stream, 0, host)


def step(at: int, focal: int, gemm: int, late: int) -> list[DeviceEvent]:
    """One step: pack 10, focal, unpack 20, gemm, norm 30 after the host was late, and a copy."""
    device, now = [], at + 100
    for name, length, wait in (("pack", 10, 0), ("flash", focal, 0), ("unpack", 20, 0), ("gemm", gemm, 0), ("norm", 30, late)):
        now += wait
        device.append(event(name, now, now + length, now - 4 if wait else at + len(device)))
        now += length
    return [*device, event("move", now, now + 5, at + 15)]


def side(focal: int, gemm: int, late: int, length: int = 1_000) -> Trace:
    """Three steps, of which the last has no end."""
    device = [each for number in range(3) for each in step(length * number, focal, gemm, late)]
    return make_trace(device, [length * number for number in range(3)])


def accounted(
    before: Trace,
    after: Trace,
    timed: tuple[Means, Means] = ({}, {}),
    calls: Calls = (None, None),
    focal: str | None = "flash",
) -> Ledger:
    section = None if focal is None else parse_section(SECTION, focal)
    return foreign_ledger(label_trace(before, "b", focal, section), label_trace(after, "c", focal, section), timed, calls)


def parts(found: Answer) -> dict[Part, tuple[Fraction, Fraction]]:
    return {line.parts[0]: (line.baseline_ns, line.candidate_ns) for line in found.lines if len(line.parts) == 1}


def test_parts_worked_out_by_hand() -> None:
    found = account_answer(accounted(side(300, 200, 10), side(100, 150, 60)))
    assert found.unit == "step" and (found.baseline_ns, found.candidate_ns) == (1_000, 1_000)
    # between steps the host is late too: the next step is launched 100 ns before it runs, so the device waits from its launch on
    idle = 1_000 - (10 + 300 + 20 + 200 + 30 + 5), 1_000 - (10 + 100 + 20 + 150 + 30 + 5)
    assert parts(found) == {
        Part.FOCAL: (300, 100),
        Part.SECTION: (20, 20),
        Part.MATRIX: (200, 150),
        Part.OTHER_KERNELS: (40, 40),
        Part.COPIES: (5, 5),
        Part.WAITING: idle,
    }
    assert found.explained_time == 1.0 and found.explained_saving is None, "nothing is saved"
    assert [line.share for line in found.lines] == [None] * 6


def test_the_shares_are_of_the_saving() -> None:
    found = account_answer(accounted(side(300, 200, 10), side(100, 150, 10, length=800)))
    assert found.baseline_ns - found.candidate_ns == 200 and found.explained_saving == 1.0
    shares = {line.parts[0]: line.share for line in found.lines}
    assert (shares[Part.FOCAL], shares[Part.MATRIX], shares[Part.WAITING]) == (1.0, 0.25, -0.25)
    assert [line.parts[0] for line in found.lines][:3] == [Part.FOCAL, Part.WAITING, Part.MATRIX]


def test_what_the_trace_does_not_hold_of_a_stage_is_unexplained() -> None:
    """Four calls a stage: four steps of 1,000 in 5,000 and in 4,400, so 1,000 and 400 have no name."""
    stages = [{AccountLevel.STAGE: Fraction(ns)} for ns in (5_000, 4_400)]
    found = account_answer(accounted(side(300, 200, 10), side(100, 150, 60), (stages[0], stages[1]), (4, 4)))
    assert found.unit == "stage" and parts(found)[Part.UNNAMED] == (1_000, 400) and parts(found)[Part.FOCAL] == (1_200, 400)
    assert found.explained_time == 0.8 and found.explained_saving == 0.0, "all that was saved lies outside the trace"


def test_the_profiler_is_unexplained_on_both_sides() -> None:
    steps = [{AccountLevel.STEP: Fraction(ns)} for ns in (900, 800)]
    found = account_answer(accounted(side(300, 200, 10), side(100, 150, 60), (steps[0], steps[1])))
    assert found.unit == "step" and parts(found)[Part.UNNAMED] == (-100, -200)
    assert found.explained_time == 1 - 200 / 800 and found.explained_saving == 0.0


def test_work_that_was_launched_before_the_trace_is_unexplained() -> None:
    before = [*side(300, 200, 10).device_events]
    lost = [each._replace(host=None) if each.name == "norm" else each for each in before]
    found = account_answer(accounted(side(300, 200, 10), make_trace(lost, [0, 1_000, 2_000])))
    assert parts(found)[Part.UNNAMED] == (0, 10) and found.explained_time == 0.99


def test_without_a_step_and_a_focal_kernel_it_is_the_whole_window() -> None:
    once = make_trace(step(0, 300, 200, 10), [])
    found = account_answer(accounted(once, once, focal=None))
    assert found.unit == "traced window" and found.baseline_ns == 575
    assert parts(found)[Part.OTHER_ATTENTION] == (300, 300), "named by itself where it is not focal"


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Two to four steps of kernels of every kind on two streams, late, overlapping and without a launch."""
    device, count = [], draw(st.integers(2, 4))
    for number in range(count):
        at = 100 * number
        for name in [
            "flash",
            *draw(st.lists(st.sampled_from(["pack", "unpack", "gemm", "norm", *KIND, "attn_fwd"]), max_size=8)),
        ]:
            start = at + draw(st.integers(0, 70))
            launch = draw(st.sampled_from([None, at + draw(st.integers(0, 19))]) if name != "flash" else st.just(at))
            device.append(event(name, max(start, launch or 0), max(start, launch or 0) + draw(st.integers(1, 25)), launch,
                                draw(st.integers(1, 2))))  # fmt: skip
    return make_trace(device, [100 * number for number in range(count)])


def owned_by(trace: Trace, names: set[str], tiles: list[tuple[int, int]]) -> int:
    """Nanoseconds of the tiles in which one of these kernels is the first in the order of owners that runs."""
    order = [*("flash",), *("pack", "unpack", "gemm", "norm", "attn_fwd"), "zero", "send", "move"]
    rank = {name: 1 if name in order[1:6] else order.index(name) for name in order}
    total = 0
    events = list(trace.device_events)
    for moment in (moment for start, end in tiles for moment in range(start, end)):
        running = [at for at, each in enumerate(events) if each.start_ns <= moment < each.end_ns]
        owner = min(running, key=lambda at: (rank[events[at].name], at), default=None)
        total += owner is not None and events[owner].name in names
    return total


@given(traces(), traces(), st.sampled_from([{}, {AccountLevel.STEP: Fraction(70)}, {AccountLevel.STAGE: Fraction(9_000)}]))
def test_the_lines_add_up_to_the_account_exactly(before: Trace, after: Trace, says: Means) -> None:
    account = accounted(before, after, (says, says), (77, 77) if AccountLevel.STAGE in says else (None, None))
    found = account_answer(account)
    whole = account.both
    assert (found.baseline_ns, found.candidate_ns) == whole and len(found.lines) <= MOST_LINES
    assert sum((line.saved_ns for line in found.lines), Fraction(0)) == whole[0] - whole[1]
    named = [part for line in found.lines for part in line.parts]
    assert len(named) == len(set(named))
    if whole[0] != whole[1]:
        assert all(line.share == float(line.saved_ns / (whole[0] - whole[1])) for line in found.lines)
    assert 0 <= found.explained_time <= 1 and 0 <= (found.explained_saving or 0) <= 1


@given(traces())
def test_kernels_by_kind_are_what_every_nanosecond_says(trace: Trace) -> None:
    own = label_trace(trace, "t", "flash")
    tiles = [(tile.start_ns, tile.end_ns) for tile in own.tiles]
    expected = {"attention": {"attn_fwd"}, "matrix products": {"gemm"}, "other": {"pack", "unpack", "norm"}}
    counted = {kind: owned_by(trace, names, tiles) for kind, names in expected.items()}
    assert {kind.value: ns for kind, ns in own.kinds.items() if ns} == {kind: ns for kind, ns in counted.items() if ns}
