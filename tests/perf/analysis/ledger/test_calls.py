"""The account of one call: the profiling guide's numbers to the digit, and whatever else still adds up."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artefacts import FA, VSA, fa_layers, vsa_layers, write_trace
from strobe.core.errors import DataError
from strobe.perf.analysis.ledger.account import DILATION, OUTSIDE_WINDOW
from strobe.perf.analysis.ledger.speedup import LevelFigure, TimedSide, level_figures, rank_ledgers
from strobe.perf.analysis.ledger.traces import Calls, Means, TracedSide, call_ledger, coincidences, implied_calls, label_trace
from strobe.perf.analysis.runs.log_times import NO_CALLS, NO_LOG, LogRequest, Timings, timings_of
from strobe.perf.analysis.structure.sections import parse_section
from strobe.perf.logs import read_log
from strobe.perf.trace import read_trace

LEVELS = KERNEL, SECTION, CALL, STAGE = "kernel", "section", "attention", "stage"


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
    exact = implied_calls(DENSE | {STAGE: SPARSE[STAGE] + 400 * 3_465_120}, SPARSE)
    assert exact == (400, ((400, 0),))
    assert implied_calls(without(DENSE, CALL), SPARSE) is None and implied_calls(SPARSE, SPARSE) is None


def test_a_level_that_one_side_lacks_joins_the_next_line() -> None:
    found = call_ledger(without(DENSE, SECTION), SPARSE)
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
