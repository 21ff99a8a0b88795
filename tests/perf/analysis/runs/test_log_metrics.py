"""Rounds and timers of logs, with what is left out of their averages and why."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.core.errors import DataError
from strobe.perf.analysis.runs.log_times import (
    FIRST,
    NO_STEPS,
    START_UP,
    LogRequest,
    attention_summary,
    calls_of_rounds,
    calls_per_stage,
    slowest,
    stage_rounds,
    summarise,
    timings_of,
    unsynchronised,
)
from strobe.perf.logs import load_patterns, read_log
from strobe.perf.logs.series import Log
from strobe.perf.report.blocks.logs import stages_section

DATA = Path(__file__).parents[3] / "data" / "logs"


def log_of(folder: Path, *lines: str) -> Log:
    path = folder / "a.log"
    path.write_text("".join(line + "\n" for line in lines))
    return read_log(path)


def stage(ms: object, rank: int | None = None) -> str:
    return f"{'' if rank is None else f'[rank {rank}] '}[DenoisingStage] Execution completed in {ms} ms"


def vsa(ms: object, rank: int | None = None) -> str:
    return f"{'' if rank is None else f'[rank {rank}] '}>>>> VSA time: {ms} ms"


def test_few_rounds_drop_the_first_by_a_rule_that_is_said(tmp_path: Path) -> None:
    (rounds,) = stage_rounds(LogRequest(log=log_of(tmp_path, *map(stage, (30, 10, 12)))))
    assert rounds.excluded == {0: FIRST} and rounds.avg_excl_warmup_ns == 11_000_000
    (rounds,) = stage_rounds(LogRequest(log=log_of(tmp_path, stage(30))))
    assert rounds.excluded == {} and rounds.avg_excl_warmup_ns == 30_000_000 and "one round" in rounds.note


def test_a_window_replaces_the_search(tmp_path: Path) -> None:
    request = LogRequest(log=log_of(tmp_path, *map(stage, (30, 10, 12, 1))), min_ns=5_000_000, max_ns=20_000_000)
    (rounds,) = stage_rounds(request)
    assert rounds.kept_ns == (10_000_000, 12_000_000)
    assert set(rounds.excluded.values()) == {"outside the window: at least 5.00 ms and at most 20.0 ms"}
    (rounds,) = stage_rounds(LogRequest(log=request.log, min_ns=100_000_000))
    assert rounds.avg_excl_warmup_ns is None


def test_the_slowest_rank_is_the_one_that_counts() -> None:
    request = LogRequest(log=read_log(DATA / "interleaved_ranks.log"))
    assert slowest(attention_summary(request)).series.rank == 1
    (rounds,) = stage_rounds(request)
    assert [each.series.rank for each in rounds.resolved] == [1, 0]
    assert rounds.rounds_ns == (7_300_000_000, 7_100_000_000)
    assert rounds.incomplete == 1


def test_a_line_that_names_no_rank_is_no_further_rank(tmp_path: Path) -> None:
    """It may be the one of a warm-up before the ranks are known, and must not leave one round of six."""
    named = [stage(7000 + index + rank, rank) for index in range(6) for rank in (0, 1)]
    calls = [vsa(9.5 + rank, rank) for _ in range(6) for rank in (0, 1)]
    log = log_of(tmp_path, vsa(500), stage(9000), *calls, *named)
    assert slowest(attention_summary(LogRequest(log=log))).series.rank == 1
    (rounds,) = stage_rounds(LogRequest(log=log))
    assert len(rounds.rounds_ns) == 6 and rounds.incomplete == 0 and max(rounds.rounds_ns) == 7_006_000_000
    assert "values whose line names no rank, in no round: 1" in rounds.note
    (rounds,) = stage_rounds(LogRequest(log=log_of(tmp_path, *map(stage, range(6001, 6007)), *named)))
    assert "the slowest of 2 ranks and of the lines that name none" in str(stages_section([("a.log", (rounds,))]).blocks[0])


@pytest.mark.parametrize("line", ["step 1 attention time: 9.5 ms", "DenoisingStage: 9 msec", "DenoisingStage latency: 9 ms"])
def test_the_pattern_that_an_error_offers_makes_its_command_run(line: str, tmp_path: Path) -> None:
    read = attention_summary if "attention" in line else stage_rounds
    path = log_of(tmp_path, line).path
    with pytest.raises(DataError) as raised:
        read(LogRequest(log=read_log(path)))
    offered = str(raised.value).partition("takes: ")[2].partition(" (--patterns")[0]
    (tmp_path / "mine.toml").write_text(offered)
    assert read(LogRequest(log=read_log(path, load_patterns(tmp_path / "mine.toml"))))


def test_stages_are_chosen_by_name(tmp_path: Path) -> None:
    log = read_log(DATA / "mislabelled_seconds.log")
    assert [rounds.name for rounds in stage_rounds(LogRequest(log=log), ".")] == ["LTX2DenoisingStage", "DecodingStage"]
    with pytest.raises(DataError, match=r"no stage 'encod'; it has attention 'VSA' \(56\), stage.*--stage chooses another"):
        stage_rounds(LogRequest(log=log), "encod")
    with pytest.raises(DataError, match=r"no timing in its lines \(2\); lines that look like a timing and match no pattern: 1;"):
        stage_rounds(LogRequest(log=log_of(tmp_path, ">>>> VSA latency: 5 ms", "nothing")))
    with pytest.raises(DataError, match="no value that is a time"):
        stage_rounds(LogRequest(log=log_of(tmp_path, stage("nan"))))
    with pytest.raises(
        DataError, match="no stage 'denois'; its lines are too long for a text log; strobe trace reads a profiler"
    ):
        stage_rounds(LogRequest(log=log_of(tmp_path, '{"traceEvents": [' + " " * 200_000)), "denois")


def test_the_logs_own_stage_is_evidence_too(tmp_path: Path) -> None:
    lines = [line for _ in range(3) for line in (*[vsa("9.5").replace(" ms", " s")] * 4, stage(50))]
    with pytest.raises(DataError, match="9.50 s would be longer than the 50.0 ms of the DenoisingStage around it, as labelled"):
        attention_summary(LogRequest(log=log_of(tmp_path, *lines)))
    log = log_of(tmp_path, *[line for _ in range(3) for line in (*[vsa(40)] * 4, stage(50))])
    assert attention_summary(LogRequest(log=log))[0].calls.n == 8, "one call fits into a round"
    with pytest.raises(DataError, match="4 calls of 40.0 ms would be longer than the 50.0 ms"):
        attention_summary(LogRequest(log=log, calls=4))


def test_calls_are_counted_by_rank(tmp_path: Path) -> None:
    first = [vsa(9, 0), vsa(9, 1), vsa(9, 1), stage(60, 0), stage(61, 1)]
    later = [vsa(9, 0), vsa(9, 1), vsa(9, 0), vsa(9, 1), vsa(9, 1), stage(50, 1), vsa(9, 0), stage(51, 0)]
    log = log_of(tmp_path, *first, *later)
    (rounds,) = stage_rounds(LogRequest(log=log))
    timers = log.of("attention")
    assert [[*map(len, calls_of_rounds(log, series, rounds))] for series in timers] == [[1, 3], [2, 3]]
    assert [(calls_per_stage(log, series, rounds), series.rank) for series in timers] == [(3, 0), (3, 1)]


def test_calls_without_a_rank_are_counted_but_may_be_those_of_several_processes(tmp_path: Path) -> None:
    log = log_of(
        tmp_path, vsa(9), vsa(9), stage(60), *[vsa(9)] * 3, stage(50), "[DecodingStage] finished in 1 s", vsa(9), stage(51)
    )
    (rounds,), (own,) = stage_rounds(LogRequest(log=log)), log.of("attention")
    assert [*map(len, calls_of_rounds(log, own, rounds))] == [2, 3, 1]
    assert calls_per_stage(log, own, rounds) is None and own.rank is None
    after = log_of(tmp_path, stage(1), vsa(9))
    assert calls_per_stage(after, after.of("attention")[0], stage_rounds(LogRequest(log=after))[0]) is None


def test_start_up_and_outliers_are_told(tmp_path: Path) -> None:
    draw = random.Random(0)
    values = [5000, 700, *(round(100 + draw.gauss(0, 1), 3) for _ in range(60))]
    values[30] = 400
    (found,) = attention_summary(LogRequest(log=log_of(tmp_path, *map(vsa, values))))
    assert found.excluded[START_UP] == (0, 1)
    assert 30 in found.kept and found.outliers is not None and found.outliers["n"] == 1
    rest = [round(value * 1_000_000) for index, value in enumerate(values) if index in found.kept and index != 30]
    assert found.outliers["mean_without_ns"] == pytest.approx(sum(rest) / len(rest), rel=1e-12)


def test_values_that_are_no_time_leave_the_others_alone() -> None:
    (found,) = attention_summary(LogRequest(log=read_log(DATA / "no_times.log")))
    assert found.series.name == "VSA" and found.calls.n == 2
    with pytest.raises(DataError, match=r"no value of an attention timer is a time; left out: Vanilla: 1 nan \(line 9: nan ms\)"):
        attention_summary(LogRequest(log=read_log(DATA / "no_times.log")), "vanilla")
    with pytest.raises(DataError, match="no attention timer 'flash'"):
        attention_summary(LogRequest(log=read_log(DATA / "no_times.log")), "flash")


def test_a_window_that_lets_nothing_through_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="all 2 values are left out: outside the window: at least 1.00 s"):
        attention_summary(LogRequest(log=log_of(tmp_path, vsa(9), vsa(9)), min_ns=10**9))


def test_a_timer_that_did_not_wait_is_told(tmp_path: Path) -> None:
    (found,) = attention_summary(LogRequest(log=log_of(tmp_path, *[vsa(0.22)] * 6)))
    assert unsynchronised(found, 440_000, "the range attention") is None
    said = unsynchronised(found, 5_450_000, "the range attention")
    assert said is not None and "220 µs is far below the 5.45 ms that the device takes for the range attention" in said


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=80), st.integers(0, 10**6), st.integers(0, 10**6))
def test_every_value_is_kept_or_has_a_cause(
    tmp_path_factory: pytest.TempPathFactory, values: list[int], first: int, second: int
) -> None:
    log = log_of(tmp_path_factory.getbasetemp(), *(vsa(value) for value in values))
    (series,) = log.of("attention")
    low, high = sorted((first * 10**6, second * 10**6))
    inside = [value * 10**6 for value in values if low <= value * 10**6 <= high]
    if inside:
        found = summarise(LogRequest(log=log, min_ns=low, max_ns=high), series)
        assert (found.calls.n, found.calls.sum_ns, found.calls.max_ns) == (len(inside), sum(inside), max(inside))
    found = summarise(LogRequest(log=log), series)
    left_out = [index for indices in found.excluded.values() for index in indices]
    assert sorted([*found.kept, *left_out]) == list(range(len(values)))
    assert found.calls.sum_ns == sum(values[index] * 10**6 for index in found.kept)


BAR = "100%|##########| {n}/{n} [00:05<00:00,  {s}s/it]"
PER_STEP = "[generate] model denoise per step: {s}s"
MEAN = "[DenoisingStage] average time per step: {s} seconds"


@pytest.mark.parametrize(
    ("inside", "rounds_ms", "processes", "steps", "source"),
    [
        ([BAR.format(n=50, s="0.1")], (6000, 5100, 5200), None, (50, 100_000_000), "'step of a bare progress bar' ends there"),
        ([PER_STEP.format(s="1.00")] * 5, (9000, 5100, 5200), None, (5, 1_000_000_000), "values of 'model denoise per step'"),
        ([MEAN.format(s="0.100")], (6000, 5001, 5002), None, (50, 100_000_000), "it takes 50 times its mean of 'DenoisingStage'"),
        ([MEAN.format(s="0.100")], (6000, 5030, 5040), None, None, ""),  # what is beyond 50 steps may be a step
        ([MEAN.format(s="0.100")], (6000, 5001), None, None, ""),  # one round may be whole by chance
        ([BAR.format(n=50, s="0.1")], (6000, 90_000, 91_000), None, None, ""),  # a bar of something short
        ([BAR.format(n=50, s="0.2")], (6000, 5100, 5200), None, None, ""),  # more than the round
        ([BAR.format(n=25, s="0.1")] * 2, (6000, 5100, 5200), 1, (50, 100_000_000), "'step of a bare progress bar' ends there"),
        ([BAR.format(n=25, s="0.1")] * 2, (6000, 5100, 5200), None, None, ""),  # two bars, or one bar of two processes
        ([PER_STEP.format(s="1.00")] * 5, (9000, 5100, 5200), 2, None, ""),
        ([], (6000, 5100, 5200), None, None, ""),
    ],
)  # fmt: skip
def test_steps_of_a_round(
    inside: list[str],
    rounds_ms: tuple[int, ...],
    processes: int | None,
    steps: tuple[int, int] | None,
    source: str,
    tmp_path: Path,
) -> None:
    log = log_of(tmp_path, *(line for ms in rounds_ms for line in (*inside, stage(ms))))
    found = timings_of(LogRequest(log=log), processes=processes)
    assert found.steps == (steps or NO_STEPS)
    assert found.steps_from == (f"{steps[0]} steps in a round of the log ({source})" if steps else "")


def test_steps_of_a_round_must_be_the_same_in_all_of_them(tmp_path: Path) -> None:
    bars = (BAR.format(n=n, s=0.1) for n in (50, 50, 40))
    log = log_of(tmp_path, *(line for bar, ms in zip(bars, (6000, 5100, 4100), strict=True) for line in (bar, stage(ms))))
    assert timings_of(LogRequest(log=log)).steps == NO_STEPS
