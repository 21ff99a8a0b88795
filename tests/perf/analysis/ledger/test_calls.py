"""The account of one call: the profiling guide's numbers to the digit, and whatever else still adds up."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.analysis.ledger.account import AccountLevel
from strobe.perf.analysis.ledger.traces import MeanTimes, call_ledger, coincidences, implied_calls

FA = MeanTimes(
    kernel_ns=Fraction(9_534_580),
    section_ns=Fraction(9_534_580),
    call_ns=Fraction(12_999_318),
    stage_ns=Fraction("7200807590"),
    kernel_is_section=True,
)
VSA = MeanTimes(
    kernel_ns=Fraction(2_762_085), section_ns=Fraction(5_513_097), call_ns=Fraction(9_534_198), stage_ns=Fraction(5_754_608_690)
)


def test_the_guides_numbers() -> None:
    found = call_ledger(FA, VSA)
    assert found is not None and found.unit == "call" and "--calls-per-stage" in found.missing[AccountLevel.STAGE]
    assert [(line.name, line.baseline_ns, line.candidate_ns, line.saved_ns) for line in found.ledger.lines] == [
        ("focal kernel", 9_534_580, 2_762_085, 6_772_495),
        ("section beyond the kernel (one side unmeasured)", 0, 2_751_012, -2_751_012),
        ("attention call beyond the section", 3_464_738, 4_021_101, -556_363),
    ]
    ratios = [level.ratio for level in found.ledger.levels]
    assert ratios == pytest.approx([3.4520, 1.7294, 1.3634], abs=5e-5)
    assert found.ledger.saved_ns == 3_465_120 and found.ledger.realised_share == pytest.approx(0.512, abs=5e-4)
    assert found.ledger.ideal_ns == 12_999_318 - 6_772_495 and found.ledger.lost_ns == -2_751_012 - 556_363


def test_the_calls_that_would_explain_the_stage_are_no_whole_number() -> None:
    implied = implied_calls(FA, VSA)
    assert implied is not None and implied[0].denominator > 1
    assert f"{float(implied[0]):.2f}" == "417.36"
    tried = dict(implied_calls(FA, VSA, given=384)[1]) | dict(implied_calls(FA, VSA, given=432)[1])
    assert {n: round(float(rest) / 1e6, 1) for n, rest in tried.items()} == {384: 115.6, 417: 1.2, 418: -2.2, 432: -50.7}
    exact = implied_calls(replace(FA, stage_ns=VSA.stage_ns + 400 * 3_465_120), VSA)
    assert exact == (400, ((400, 0),))
    assert implied_calls(replace(FA, call_ns=None), VSA) is None and implied_calls(VSA, VSA) is None


def test_known_calls_carry_the_account_to_the_stage() -> None:
    found = call_ledger(replace(FA, calls_per_stage=384), replace(VSA, calls_per_stage=384))
    assert found is not None and found.unit == "stage" and not found.missing
    last = found.ledger.lines[-1]
    assert (last.level, last.name) == (AccountLevel.STAGE, "stage beyond all of its attention calls")
    assert last.saved_ns == 1_446_198_900 - 384 * 3_465_120
    assert found.ledger.saved_ns == 1_446_198_900 and found.ledger.lines[0].saved_ns == 384 * 6_772_495


def test_a_level_that_one_side_lacks_joins_the_next_line() -> None:
    found = call_ledger(replace(FA, section_ns=None, kernel_is_section=False), VSA)
    assert found is not None and found.missing[AccountLevel.SECTION] == "not measured on the baseline"
    assert [(line.name, line.saved_ns) for line in found.ledger.lines] == [
        ("focal kernel", 6_772_495), ("attention call beyond the kernel", 3_465_120 - 6_772_495),
    ]  # fmt: skip
    only = call_ledger(MeanTimes(call_ns=Fraction(7)), MeanTimes(call_ns=Fraction(5)))
    assert only is not None and [(line.name, line.saved_ns) for line in only.ledger.lines] == [("attention call", 2)]
    assert only.ledger.kernel_saved_ns == 0 and only.ledger.realised_share is None
    assert call_ledger(MeanTimes(), MeanTimes()) is None
    assert call_ledger(MeanTimes(stage_ns=Fraction(1)), MeanTimes(stage_ns=Fraction(2))) is None


def test_a_copied_figure_is_noticed() -> None:
    assert [(a, b, f"{float(apart):.0e}") for a, b, apart in coincidences(FA, VSA)] == [
        ("the baseline's kernel", "the candidate's attention call", "4e-05")
    ]
    assert coincidences(replace(FA, kernel_ns=Fraction(9_540_000), section_ns=Fraction(9_540_000)), VSA) == ()
    assert coincidences(VSA, VSA) == ()  # the same quantity of the same run twice


_TIMES = st.none() | st.fractions(Fraction(1, 7), 10**10, max_denominator=1000)
_SIDES = st.builds(
    MeanTimes,
    kernel_ns=_TIMES,
    section_ns=_TIMES,
    call_ns=_TIMES,
    stage_ns=_TIMES,
    calls_per_stage=st.none() | st.integers(1, 999),
)


@given(_SIDES, _SIDES)
def test_it_adds_up_and_swapped_sides_negate(baseline: MeanTimes, candidate: MeanTimes) -> None:
    there, back = call_ledger(baseline, candidate), call_ledger(candidate, baseline)
    if there is None:
        assert back is None
        return
    assert back is not None and [(line.name, line.saved_ns) for line in there.ledger.lines] == [
        (line.name, -line.saved_ns) for line in back.ledger.lines
    ]
    top = there.ledger.levels[-1].level
    field = {
        AccountLevel.KERNEL: "kernel_ns",
        AccountLevel.SECTION: "section_ns",
        AccountLevel.CALL: "call_ns",
        AccountLevel.STAGE: "stage_ns",
    }[top]
    for side, whole in ((baseline, there.ledger.baseline_ns), (candidate, there.ledger.candidate_ns)):
        assert there.per_unit(whole) == getattr(side, field)
    if there.unit == "stage":
        for level in there.ledger.levels[:-1]:
            name = {AccountLevel.KERNEL: "kernel_ns", AccountLevel.SECTION: "section_ns", AccountLevel.CALL: "call_ns"}[
                level.level
            ]
            assert there.per_unit(level.baseline_ns) == getattr(baseline, name) * baseline.calls_per_stage
    same = call_ledger(baseline, baseline)
    assert same is None or {line.saved_ns for line in same.ledger.lines} == {0}


def test_a_call_that_takes_no_time_saves_all_of_the_other() -> None:
    """Zero is a time, not a missing one."""
    whole = MeanTimes(call_ns=Fraction(1, 2), stage_ns=Fraction(10))
    nothing = MeanTimes(call_ns=Fraction(0), stage_ns=Fraction(1))
    found = implied_calls(whole, nothing)
    assert found is not None and found[0] == 18
    assert implied_calls(MeanTimes(call_ns=Fraction(0), stage_ns=Fraction(10)), replace(whole, stage_ns=Fraction(1))) is None
