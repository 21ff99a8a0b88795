from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from strobe.core.errors import DataError
from strobe.perf.analysis.runs.compare import (
    compare_stage,
    compare_stages,
    compare_unpaired,
    mirrored_pairs,
    num,
    stage_time,
)
from strobe.perf.records.store import RunRecords

MakeRun = Callable[..., RunRecords]
MS = 1_000_000


def noisy(seed: int, cost_ms: dict[str, float]) -> Callable[[str, int, int], int]:
    draw = random.Random(seed)
    return lambda name, order, block: round(cost_ms[name] * MS * math.exp(draw.gauss(0, 0.01)))


def test_ratios_by_hand(make_run: MakeRun) -> None:
    cost = {"baseline": 4_001_000, "turbo": 2_001_000}
    run = make_run(lambda name, order, block: cost[name], steps={"turbo": 2})
    whole = compare_stage(run, "turbo", "denoise_step")
    step = compare_stage(run, "turbo", "denoise_step", per_call=True)
    assert (whole.ratio, whole.ratio_of_sums, whole.floor) == (2.0, 2.0, 2.0)
    assert (step.ratio, step.ratio_of_sums, step.floor) == (1.0, 1.0, 1.0)
    assert (num(whole.baseline, per_call=True), num(whole.candidate, per_call=True)) == (8 * 12 * 4, 8 * 12 * 2)
    assert whole.saved_ns == 8 * 12 * 2_000_000
    assert (whole.verdict, step.verdict, len(whole.ratios)) == ("faster", "no difference", 4)
    e2e = compare_stage(run, "turbo", "e2e")
    assert [ns for _, ns, _ in e2e.baseline] == [10_000 + 12 * 4_001_100] * 8
    assert [found.stage for found in compare_stages(run, "turbo")] == [
        "denoise_step", "text", "denoise_step", "vae_decode", "frame_block", "e2e"
    ]  # fmt: skip


def test_drift_that_is_linear_in_time_leaves_the_ratio_alone(make_run: MakeRun) -> None:
    cost = {"baseline": 3_000_000, "turbo": 2_000_000}
    run = make_run(lambda name, order, block: cost[name] * (100 + order) // 100)
    found = compare_stage(run, "turbo", "frame_block")
    assert found.ratios == (1.5,) * 4
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (pytest.approx(1.5), pytest.approx(1.5))


def test_warm_up_and_unfinished_palindromes_are_not_paired(make_run: MakeRun) -> None:
    run = make_run(noisy(1, {"baseline": 30, "a": 20, "b": 10}), names=("baseline", "a", "b"), clips=3 + 6 + 3)
    assert [pair[0][0].palindrome for pair in mirrored_pairs(run, "a")] == [0]
    assert [clip.order for clip in mirrored_pairs(run, "b")[0][1]] == [5, 6]
    found = compare_stage(run, "b", "e2e")
    assert (found.interval, found.verdict, len(found.baseline)) == (None, "inconclusive", 2)
    assert [clip.phase for clip, *_ in stage_time(run, "b", "e2e")] == ["warmup", "timed", "timed", "timed"]
    with pytest.raises(DataError, match="no finished pair"):
        compare_stage(make_run(noisy(1, {"baseline": 30, "turbo": 20}), clips=5), "turbo", "e2e")


def test_a_stage_nobody_entered_is_an_error(make_run: MakeRun) -> None:
    run = make_run(noisy(2, {"baseline": 30, "turbo": 20}))
    with pytest.raises(DataError, match="without a 'recache' region"):
        compare_stage(run, "turbo", "recache")
    assert "recache" not in {found.stage for found in compare_stages(run, "turbo")}


def test_runs_at_different_times_are_compared_unpaired(make_run: MakeRun) -> None:
    first = make_run(noisy(3, {"baseline": 30, "turbo": 20}))
    second = make_run(noisy(4, {"baseline": 30, "turbo": 10}))
    found = compare_unpaired(first, second, "e2e", variant="turbo")
    assert not found.ratios
    assert found.ratios == ()
    assert found.ratio == pytest.approx(2, rel=0.01)
    assert found.interval is not None
    assert found.interval.low < 2 < found.interval.high


def test_an_a_a_comparison_says_no_difference(make_run: MakeRun) -> None:
    verdicts = [compare_stage(make_run(noisy(seed, {"baseline": 20, "turbo": 20})), "turbo", "e2e").verdict for seed in range(40)]
    assert verdicts.count("no difference") >= 38
