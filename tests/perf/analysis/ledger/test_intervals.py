"""Intervals of a ledger's lines against every resample there is, and against t worked out by hand."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement
from math import factorial, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.analysis.ledger import account
from strobe.perf.analysis.ledger.account import (
    MIN_STEPS,
    AccountLevel,
    ClipKind,
    Explained,
    Sampled,
    Spread,
    clip_ledger,
    paired_spread,
    step_spread,
)
from strobe.perf.analysis.ledger.traces import TracedSide, foreign_ledger, label_trace
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.measure.stats import bootstrap_interval
from strobe.perf.trace import DeviceEvent, DeviceEvents, HostEvent, HostEvents, Trace

FOCAL, OTHER, IDLE = Label(("focal",), "kernel"), Label(("step",), "kernel"), Label(("step",), "host_late")


def sampled(rows: list[dict[Label, int]], weights: list[int] | None = None, scale: int = 1) -> Sampled:
    return rows, weights or [1] * len(rows), Fraction(scale)


def every_resample(values: list[int], weights: list[int], scale: int) -> list[tuple[float, int]]:
    """One unit of each multiset of steps, with the number of ways to draw it."""
    found = []
    for drawn in combinations_with_replacement(range(len(values)), len(values)):
        ways = factorial(len(values)) // prod(map(factorial, Counter(drawn).values()))
        found.append((scale * sum(values[at] for at in drawn) / sum(weights[at] for at in drawn), ways))
    return found


def exact_shares(sides: list[list[tuple[float, int]]], value: float) -> tuple[float, float]:
    """Share of all pairs of resamples that save less than `value`, and that save no more."""
    candidate = sorted(sides[1])
    totals = [0]
    for _, ways in candidate:
        totals.append(totals[-1] + ways)
    column = [own for own, _ in candidate]
    below = upto = 0
    for own, ways in sides[0]:  # own - other < value: other > own - value
        below += ways * (totals[-1] - totals[bisect_right(column, own - value + 1e-9)])
        upto += ways * (totals[-1] - totals[bisect_left(column, own - value - 1e-9)])
    whole = totals[-1] * sum(ways for _, ways in sides[0])
    return below / whole, upto / whole


BEFORE = [900, 1000, 1300, 950, 1010]
AFTER = [400, 420, 800, 390, 415, 401]


@pytest.mark.parametrize(("weights", "scale"), [(([1] * 5, [1] * 6), 1), (([1, 2, 3, 1, 2], [2, 2, 1, 4, 2, 3]), 48)])
def test_the_ends_leave_out_as_many_of_all_resamples_as_they_say(weights: tuple[list[int], list[int]], scale: int) -> None:
    """15,625 resamples of five steps against 46,656 of six; 2,000 drawn ones may be off by four of their standard errors."""
    before, after = ([{FOCAL: ns, IDLE: 7} for ns in side] for side in (BEFORE, AFTER))
    found = step_spread(sampled(before, weights[0], scale), sampled(after, weights[1], scale))
    assert found.samples == (5, 6) and set(found.lines) == {str(FOCAL), str(IDLE)}
    sides = [every_resample(values, own, scale) for values, own in zip((BEFORE, AFTER), weights, strict=True)]
    for end, share in ((found.lines[str(FOCAL)].low, 0.025), (found.lines[str(FOCAL)].high, 0.975)):
        below, upto = exact_shares(sides, end)
        assert below - 0.014 <= share <= upto + 0.014
    total = [every_resample([ns + 7 for ns in values], own, scale) for values, own in zip((BEFORE, AFTER), weights, strict=True)]
    assert found.total is not None
    assert exact_shares(total, found.total.low)[0] < 0.039 and exact_shares(total, found.total.high)[1] > 0.961


def test_it_is_the_bootstrap_of_the_statistics() -> None:
    def saved(before: list[int], after: list[int]) -> float:
        return sum(before) / len(before) - sum(after) / len(after)

    drawn = bootstrap_interval(saved, BEFORE, AFTER, derived=True)
    found = step_spread(*(sampled([{OTHER: ns} for ns in side]) for side in (BEFORE, AFTER))).lines[str(OTHER)]
    assert drawn is not None and found.level == drawn.level
    assert abs(found.low - drawn.low) < 25 and abs(found.high - drawn.high) < 25  # of a width of about 270


STEPS = st.lists(st.fixed_dictionaries({FOCAL: st.integers(0, 10**12), OTHER: st.integers(0, 10**9)}), min_size=5, max_size=12)


@given(STEPS)
def test_a_side_against_itself_may_have_saved_nothing(rows: list[dict[Label, int]]) -> None:
    found = step_spread(sampled(rows), sampled(rows))
    assert found.total is not None and found == step_spread(sampled(rows), sampled(rows))
    for each in (found.total, *found.lines.values()):
        assert each.low <= 0 <= each.high


@given(STEPS, STEPS)
def test_the_ends_are_savings_that_some_steps_could_have(before: list[dict[Label, int]], after: list[dict[Label, int]]) -> None:
    for label, each in step_spread(sampled(before), sampled(after)).lines.items():
        b, c = ([step[FOCAL if label == str(FOCAL) else OTHER] for step in side] for side in (before, after))
        slack = 1e-9 * (max(b) + max(c))
        assert min(b) - max(c) - slack <= each.low <= each.high <= max(b) - min(c) + slack


def test_steps_that_never_change_leave_no_doubt() -> None:
    found = step_spread(sampled([{FOCAL: 90}] * 7), sampled([{OTHER: 30}] * 5))
    assert (found.lines[str(FOCAL)].low, found.lines[str(FOCAL)].high) == (90, 90)
    assert (found.lines[str(OTHER)].low, found.lines[str(OTHER)].high) == (-30, -30)
    assert found.total is not None and (found.total.low, found.total.high) == (60, 60)


def test_few_steps_have_none_and_the_reason() -> None:
    rows = [{FOCAL: ns} for ns in AFTER]
    few = step_spread(sampled(rows), sampled(rows[: MIN_STEPS - 1]))
    assert few == Spread(why_none="6 and 4 compared steps, and an interval needs 5 on each side")
    rare = step_spread(sampled(rows, [1, 0, 0, 0, 0, 0]), sampled(rows))
    assert not rare.lines and "some resamples hold none" in rare.why_none


def test_many_steps_are_drawn_in_parts_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = sampled([{FOCAL: ns} for ns in BEFORE]), sampled([{FOCAL: ns} for ns in AFTER])
    whole = step_spread(*sides)
    monkeypatch.setattr(account, "_CHUNK", 37)
    assert step_spread(*sides) == whole


# ---- of traces ----


def side(focal: list[int], other: int, calls: int = 1) -> TracedSide:
    """Named steps of `calls` focal kernels and a gemm, back to back; the last of them has no end and is left out."""
    ranges, device, at = [], [], 0
    for step, ns in enumerate((*focal, 50)):
        start = at
        for name, length in (*[("flash", ns)] * calls, ("gemm", other)):
            device.append(DeviceEvent(name, "kernel", at, at + length, 0, 7, 0, HostEvent("launch", start, start + 1, 0)))
            at += length
        ranges.append(HostEvent(f"ProfilerStep#{step}", start, at, 0))
    trace = Trace(
        path="t.json", threads=("1/1",), ops=HostEvents.empty(), regions=(), ranges=HostEvents.from_rows(ranges),
        device_events=DeviceEvents.from_rows(device), overhead=(),
    )  # fmt: skip
    return label_trace(trace, "t", "flash", steps="ProfilerStep")


BOTH = [1000, 1004, 998, 1001, 1003, 999], [500, 503, 499, 502, 501, 498]


def test_steps_of_traces_carry_intervals_to_the_lines_and_the_total() -> None:
    sides = side(BOTH[0], 300), side(BOTH[1], 320)
    assert [len(each.tiles) for each in sides] == [6, 6]
    found = foreign_ledger(*sides)
    spread = found.spread
    assert spread == step_spread(*(sampled([tile.owned for tile in each.tiles]) for each in sides))
    assert {line.name for line in found.lines} == set(spread.lines)
    for line in found.lines:
        own = spread.lines[line.name]
        assert own.low <= line.saved_ns <= own.high
    assert (spread.lines["step: kernel"].low, spread.lines["step: kernel"].high) == (-20, -20)
    assert spread.total is not None and 475 < spread.total.low < found.saved_ns < spread.total.high < 487


def test_a_stage_of_calls_has_intervals_of_its_labels_but_not_of_what_the_log_timed() -> None:
    sides = side(BOTH[0], 300, calls=2), side(BOTH[1], 320, calls=2)
    timed = {AccountLevel.STAGE: Fraction(10**6)}, {AccountLevel.STAGE: Fraction(8 * 10**5)}
    staged, plain = foreign_ledger(*sides, timed, (40, 40)).spread, foreign_ledger(*sides).spread
    assert staged.total is None and set(staged.lines) == {"focal: kernel", "step: kernel"}
    for name, each in plain.lines.items():  # twenty steps make a stage
        assert staged.lines[name].low == pytest.approx(20 * each.low) and staged.lines[name].high == pytest.approx(20 * each.high)
    assert foreign_ledger(*sides, timed).spread == plain


def test_traces_with_too_few_steps_or_none_say_so() -> None:
    sides = side(BOTH[0][:4], 300), side(BOTH[1], 320)
    assert foreign_ledger(*sides).spread == Spread(why_none="4 and 6 compared steps, and an interval needs 5 on each side")
    assert foreign_ledger(side([1000], 300), sides[1]).spread.lines == {}


# ---- of our own clips ----


def test_timed_lines_have_the_t_interval_of_their_pairs() -> None:
    """Three pairs save 10, 12 and 14 in all: mean 12, s = 2, t(0.975, 2) = 4.302653, half = 4.968275; two clips are in a pair."""
    found = paired_spread({"outside": [10, 12, 14]}, [4, 4, 4], 2)
    assert found.lines["outside"].low == pytest.approx((12 - 4.968275) / 2, abs=1e-6)
    assert found.lines["outside"].high == pytest.approx((12 + 4.968275) / 2, abs=1e-6)
    assert found.total is not None and (found.total.low, found.total.high) == (2, 2) and found.samples == (3,)
    assert paired_spread({"outside": [10]}, [4], 2) == Spread(why_none="fewer than two pairs")


def test_lines_of_clips_that_were_timed_pair_by_pair_have_intervals_and_traced_ones_have_none() -> None:
    label = Label((), "timed")
    pairs = [({label: 100 + extra}, {label: 90}) for extra in (0, 2, 4)]

    def side(at: int, pairwise: bool) -> Explained:
        own = tuple(pair[at] for pair in pairs)
        whole = sum(each[label] for each in own)
        calls = {"frame_block": (6, whole)}
        return Explained(
            num_clips=6, kinds={ClipKind.STEADY: {label: whole}}, num_blocks={ClipKind.STEADY: 1}, calls=calls, units=own,
            pairs=own if pairwise else (),
        )  # fmt: skip

    sums = [(before[label], after[label]) for before, after in pairs]
    timed = clip_ledger(side(0, True), side(1, True), sums)
    assert timed.spread == paired_spread({str(label): [10, 12, 14]}, [10, 12, 14], 2)
    traced = clip_ledger(side(0, False), side(1, False), sums)
    assert traced.spread == paired_spread({}, [10, 12, 14], 2) and traced.lines == timed.lines
    assert clip_ledger(side(0, True), side(1, False), sums) == clip_ledger(side(0, False), side(1, True), sums) == traced
    assert clip_ledger(side(0, False), side(1, False), sums[:1]).spread.why_none == "fewer than two pairs"
