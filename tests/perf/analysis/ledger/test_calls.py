"""The account of one call: the profiling guide's numbers to the digit, and whatever else still adds up."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.analysis.ledger.account import AccountLevel
from strobe.perf.analysis.ledger.traces import Calls, Means, call_ledger, coincidences, implied_calls

LEVELS = KERNEL, SECTION, CALL, STAGE = AccountLevel.KERNEL, AccountLevel.SECTION, AccountLevel.CALL, AccountLevel.STAGE


def means(**times: int | Fraction) -> dict[AccountLevel, Fraction]:
    return {AccountLevel[level.upper()]: Fraction(ns) for level, ns in times.items()}


FA = means(kernel=9_534_580, section=9_534_580, call=12_999_318, stage=7_200_807_590)
VSA = means(kernel=2_762_085, section=5_513_097, call=9_534_198, stage=5_754_608_690)


def without(side: Means, level: AccountLevel) -> Means:
    return {each: ns for each, ns in side.items() if each != level}


def test_the_guides_numbers() -> None:
    found = call_ledger(FA, VSA, stands_in=True)
    assert found is not None and found.unit == "call" and "--calls-per-stage" in found.missing[AccountLevel.STAGE]
    assert [(line.name, line.baseline_ns, line.candidate_ns, line.saved_ns) for line in found.lines] == [
        ("focal kernel", 9_534_580, 2_762_085, 6_772_495),
        ("section beyond the kernel (one side unmeasured)", 0, 2_751_012, -2_751_012),
        ("attention call beyond the section", 3_464_738, 4_021_101, -556_363),
    ]
    ratios = [level.ratio for level in found.levels]
    assert ratios == pytest.approx([3.4520, 1.7294, 1.3634], abs=5e-5)
    assert found.saved_ns == 3_465_120 and found.realised_share == pytest.approx(0.512, abs=5e-4)
    assert found.ideal_ns == 12_999_318 - 6_772_495 and found.lost_ns == -2_751_012 - 556_363


def test_the_calls_that_would_explain_the_stage_are_no_whole_number() -> None:
    implied = implied_calls(FA, VSA)
    assert implied is not None and implied[0].denominator > 1
    assert f"{float(implied[0]):.2f}" == "417.36"
    tried = dict(implied_calls(FA, VSA, given=384)[1]) | dict(implied_calls(FA, VSA, given=432)[1])
    assert {n: round(float(rest) / 1e6, 1) for n, rest in tried.items()} == {384: 115.6, 417: 1.2, 418: -2.2, 432: -50.7}
    exact = implied_calls(FA | {STAGE: VSA[STAGE] + 400 * 3_465_120}, VSA)
    assert exact == (400, ((400, 0),))
    assert implied_calls(without(FA, CALL), VSA) is None and implied_calls(VSA, VSA) is None


def test_known_calls_carry_the_account_to_the_stage() -> None:
    found = call_ledger(FA, VSA, (384, 384))
    assert found is not None and found.unit == "stage" and not found.missing
    last = found.lines[-1]
    assert (last.level, last.name) == (AccountLevel.STAGE, "stage beyond all of its attention calls")
    assert last.saved_ns == 1_446_198_900 - 384 * 3_465_120
    assert found.saved_ns == 1_446_198_900 and found.lines[0].saved_ns == 384 * 6_772_495


def test_a_level_that_one_side_lacks_joins_the_next_line() -> None:
    found = call_ledger(without(FA, SECTION), VSA)
    assert found is not None and found.missing[AccountLevel.SECTION] == "not measured on the baseline"
    assert [(line.name, line.saved_ns) for line in found.lines] == [
        ("focal kernel", 6_772_495), ("attention call beyond the kernel", 3_465_120 - 6_772_495),
    ]  # fmt: skip
    only = call_ledger(means(call=7), means(call=5))
    assert only is not None and [(line.name, line.saved_ns) for line in only.lines] == [("attention call", 2)]
    assert only.kernel_saved_ns == 0 and only.realised_share is None
    assert call_ledger({}, {}) is None
    assert call_ledger(means(stage=1), means(stage=2)) is None


def test_a_copied_figure_is_noticed() -> None:
    assert [(a, b, f"{float(apart):.0e}") for a, b, apart in coincidences(FA, VSA)] == [
        ("the baseline's kernel", "the candidate's attention call", "4e-05")
    ]
    assert coincidences(FA | means(kernel=9_540_000, section=9_540_000), VSA) == ()
    assert coincidences(VSA, VSA) == ()  # the same quantity of the same run twice


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
