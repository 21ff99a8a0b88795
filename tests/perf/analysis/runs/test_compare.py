"""Ratios and latencies of timed clips; clocks, energy, and what a difference of clocks does to a saving; steady samples."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.core.errors import DataError
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, DENOISE_STEP, FFN
from strobe.perf.analysis.device.activity import HOST_LATE
from strobe.perf.analysis.ledger.account import Explained
from strobe.perf.analysis.ledger.speedup import answer
from strobe.perf.analysis.runs.compare import (
    POWER_CAP,
    SideClocks,
    apart,
    block_joules,
    clock_effect,
    compare_stage,
    compare_stages,
    compare_unpaired,
    known_causes,
    latencies,
    mirrored_pairs,
    num,
    side_clocks,
    stage_time,
)
from strobe.perf.analysis.runs.timeline import KERNEL, Label
from strobe.perf.analysis.steady import UNSETTLED, find_steady
from strobe.perf.measure.stats import percentile
from strobe.perf.records.record import Clip, Clocks, Excluded, GpuState
from strobe.perf.records.store import RunRecords
from strobe.perf.report.blocks.answer import clock_words

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
    assert found.ratios == (1.5,) * 4 and found.interval is not None
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
    assert found.ratios == () and found.ratio == pytest.approx(2, rel=0.01)
    assert found.interval is not None and found.interval.low < 2 < found.interval.high


def sampled(run: RunRecords, clocks: Mapping[str, Sequence[Clocks]]) -> RunRecords:
    """The run with these clocks in the timed clips of each variant, in order."""
    left = {name: list(each) for name, each in clocks.items()}
    clips = [
        msgspec.structs.replace(clip, clocks=left[clip.variant].pop(0)) if clip.phase == "timed" else clip for clip in run.clips
    ]
    machine = msgspec.structs.replace(run.header.machine, gpu=GpuState(power_limit_mw=700_000, max_sm_mhz=1980))
    return replace(run, clips=tuple(clips), header=msgspec.structs.replace(run.header, machine=machine))


def reading(sm_mhz: int, power_mw: int, energy_mj: int | None = None, *throttle: str) -> Clocks:
    return Clocks(source="nvml", sm_mhz=sm_mhz, power_mw=power_mw, samples=50, energy_mj=energy_mj, throttle=throttle)


@pytest.fixture
def run(make_run: MakeRun) -> RunRecords:
    """Two rounds: `baseline` below the power limit with an energy counter, `turbo` at the limit without one."""
    made = make_run(lambda name, order, block: 25 * MS, palindromes=1)
    cool = [reading(1963, 638_000, 274_000), reading(1960, 636_000, 276_000)]
    hot = [reading(1475, 699_000, None, POWER_CAP), reading(1485, 697_000, None, POWER_CAP)]
    return sampled(made, {"baseline": cool, "turbo": hot})


def test_clocks_and_energy_of_a_variant(run: RunRecords) -> None:
    cool, hot = side_clocks(run, "baseline"), side_clocks(run, "turbo")
    assert cool is not None and hot is not None
    assert (cool.sm_mhz, cool.clips_mhz, cool.power_capped, cool.clip_joules) == (1962, (1963, 1960), False, 275.0)
    assert (hot.sm_mhz, hot.max_mhz, hot.power_capped) == (1480, 1980, True)
    lasted = [span.value_ns for span in run.spans if span.name == "e2e"]
    assert hot.clip_joules == pytest.approx(698.0 * lasted[-1] / 1e9, rel=1e-6)  # all clips last as long
    work = run.header.workload
    assert work is not None and block_joules(run, "baseline") == 275.0 / work.frame_blocks
    found = latencies(run, "baseline")
    assert found.video_second_joules == pytest.approx(275.0 * work.fps / work.frames)


def test_kernels_of_a_trace_have_the_clock_of_the_traced_clip(run: RunRecords) -> None:
    traced = Clip(variant="turbo", clip=9, order=99, palindrome=None, phase="traced", num_spans=0)
    for samples, mhz in ((4, 1480), (5, 1700)):  # too few readings stand for nothing
        clocks = Clocks(source="nvml", sm_mhz=1700, samples=samples)
        found = side_clocks(replace(run, clips=(*run.clips, msgspec.structs.replace(traced, clocks=clocks))), "turbo")
        assert found is not None and found.sm_mhz == mhz


def test_without_readings_in_clips_there_are_no_clocks(make_run: MakeRun) -> None:
    bare = make_run(lambda name, order, block: 25 * MS, palindromes=1)
    assert side_clocks(bare, "turbo") is None and block_joules(bare, "turbo") is None
    at_the_end = Clocks(source="nvidia-smi", sm_mhz=1980, power_mw=90_000)
    assert side_clocks(sampled(bare, {name: [at_the_end] * 2 for name in ("baseline", "turbo")}), "turbo") is None


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(100, 3000), st.integers(100, 3000))
def test_work_and_clock_add_up_to_the_saving(b_ns: int, c_ns: int, b_mhz: int, c_mhz: int) -> None:
    clock = clock_effect(Fraction(b_ns), Fraction(c_ns), b_mhz, c_mhz)
    work = Fraction(b_ns * b_mhz - c_ns * c_mhz) * (Fraction(1, b_mhz) + Fraction(1, c_mhz)) / 2
    assert clock + work == b_ns - c_ns
    assert clock_effect(Fraction(c_ns), Fraction(b_ns), c_mhz, b_mhz) == -clock
    assert clock_effect(Fraction(b_ns), Fraction(c_ns), b_mhz, b_mhz) == 0


KERNELS = Label((DENOISE_STEP, "dit_forward", ATTENTION, ATTENTION_KERNEL), KERNEL)
FEED_FORWARD, WAITING = Label((DENOISE_STEP, "dit_forward", FFN), KERNEL), Label((DENOISE_STEP,), HOST_LATE)


def side(kernel: int, ffn: int, waiting: int) -> Explained:
    labels = {KERNELS: kernel, FEED_FORWARD: ffn, WAITING: waiting}
    return Explained(num_clips=1, kinds={"steady": labels}, num_blocks={"steady": 1}, calls={}, units=())


def clocks(*mhz: int, capped: bool = False) -> SideClocks:
    return SideClocks(sm_mhz=mhz[0], clips_mhz=mhz, max_mhz=1980, power_capped=capped, clip_joules=None)


def test_only_what_goes_with_the_clock_is_split() -> None:
    """The same cycles at three quarters of the clock: the kernel's loss is the clock's alone."""
    found = answer(side(90 * MS, 30 * MS, 80 * MS), side(120 * MS, 40 * MS, 0), (clocks(2000, 2000), clocks(1500, 1500)))
    by_the_clock = {line.parts[0].value: line.clock_ns for line in found.lines}
    assert by_the_clock["attention kernel"] == -30 * MS and by_the_clock["feed-forward"] == -10 * MS
    assert by_the_clock["GPU waiting for the host"] is None
    assert found.at_baseline_clock_ns == 120 * MS


def test_the_answer_says_what_the_power_cap_costs() -> None:
    sides = side(90 * MS, 30 * MS, 80 * MS), side(120 * MS, 40 * MS, 0)
    proven = answer(*sides, (clocks(2000, 1990), clocks(1500, 1520, capped=True)))
    assert clock_words(("fast", "slow"), proven) == (
        "fast is held by its power cap: 1,500 of 1,980 MHz. "
        "At the 2,000 MHz of slow a steady frame block would take about 120.0 ms."
    )
    doubtful = answer(*sides, (clocks(2000, 1490), clocks(1500, 1520)))
    assert clock_words(("fast", "slow"), doubtful).endswith(
        "about 120.0 ms. Their clips ran at 1,490 to 2,000 and 1,500 to 1,520 MHz, which proves no difference."
    )
    assert not apart(clocks(2000), clocks(1500))  # one clip a side proves nothing
    for same in ((clocks(2000, 2000), clocks(1970, 1970)), (None, clocks(1500, 1500)), (None, None)):
        found = answer(*sides, same)
        assert clock_words(("fast", "slow"), found) == "" and found.at_baseline_clock_ns is None


def block_time(name: str, order: int, block: int) -> int:
    """First block 50 ms, switch at block 8 costs 15 ms more, each clip 0, 1, 2 ... steps of 1000 ns slower."""
    return {0: 50 * MS, 8: 40 * MS}.get(block, 25 * MS) + 1000 * order


def test_latencies_by_hand(make_run: MakeRun) -> None:
    run = make_run(block_time)
    found = latencies(run, "turbo")
    orders = [clip.order for clip in run.clips if clip.variant == "turbo" and clip.phase == "timed"]
    assert orders == [3, 4, 7, 8, 11, 12, 15, 16]
    block = 25 * MS + 100  # and 100 ns between two blocks
    middle = sum(orders) / len(orders)
    assert found.num_clips == 8
    assert found.steady.kept == (3, 4, 5, 6, 7, 9, 10, 11)
    assert (len(found.blocks_ns), found.mean_ns) == (64, block + 1000 * middle)
    assert percentile(found.blocks_ns, 0.5) == block + 8000 and max(found.blocks_ns) == block + 16_000
    mean = found.mean_ns
    assert (found.inter_latent_ns, found.inter_frame_ns) == (mean / 3, mean / 12)
    assert (found.pixel_fps, found.latent_fps) == (pytest.approx(12e9 / mean), pytest.approx(3e9 / mean))
    assert found.first_frame_ns == 10_000 + 50 * MS + 1000 * 9.5
    assert found.dit_block_ns == pytest.approx(25 * MS - 1000 + 1000 * middle)
    assert found.decode_block_ns == 1000
    e2e_ns = 10_000 + 50 * MS + 40 * MS + 10 * 25 * MS + 12 * (9500 + 100)
    assert found.clip_pixel_fps == pytest.approx(141e9 / e2e_ns)
    (switch,) = found.switches
    assert (switch.frame_block, switch.mode, switch.extra_ns) == (8, "recache", 15 * MS)
    assert switch.after_ns - switch.before_ns == 15 * MS


@pytest.mark.parametrize(("slow_ms", "stalled"), [({8: 740.0}, 0), ({8: 751.0}, 1), ({1: 700.0}, 3), ({5: 800.0, 8: 870.0}, 3)])
def test_frames_that_stall(make_run: MakeRun, slow_ms: dict[int, float], stalled: int) -> None:
    """Twelve frames play for 750 ms at 16 FPS, the nine of the first block for 562.5; only one clip is slow."""
    run = make_run(lambda name, order, block: int(slow_ms.get(block, 25.0) * MS) if order == 7 else 25 * MS)
    assert run.header.workload is not None and run.header.workload.fps == 16
    assert latencies(run, "turbo").stalled_frames == stalled


def test_a_clip_of_one_frame_block_stalls_nothing(make_run: MakeRun) -> None:
    run = make_run(block_time)
    assert run.header.workload is not None
    work = msgspec.structs.replace(run.header.workload, frame_blocks=1, frames=run.header.workload.frames_first_block)
    header = msgspec.structs.replace(run.header, workload=work)
    first = tuple(span for span in run.spans if span.name != "frame_block" or span.index == 0)
    assert latencies(replace(run, header=header, spans=first), "turbo").stalled_frames == 0


def test_every_excluded_block_has_its_cause(make_run: MakeRun) -> None:
    run = make_run(block_time)
    causes = {0: "first block", 1: "cache not full", 2: "cache not full", 8: "prompt switch (recache)"}
    assert known_causes(run, "turbo") == causes
    assert latencies(run, "turbo").steady.excluded == causes
    noted = Excluded(variant="turbo", span="frame_block", clip=None, indices=(4,), cause="compilation")
    other = msgspec.structs.replace(noted, variant="baseline", indices=(5,))
    assert known_causes(replace(run, excluded=(noted, other)), "turbo") == causes | {4: "compilation"}


def test_a_variant_without_timed_clips_has_no_latencies(make_run: MakeRun) -> None:
    with pytest.raises(DataError, match="no finished timed clip of 'turbo'"):
        latencies(make_run(block_time, clips=2), "turbo")


@pytest.mark.parametrize(
    ("seed", "above", "first", "last"),
    [(0, [80 * math.exp(-index / 3) for index in range(40)], 6, 20), (3, [300] * 100 + [0] * 900, 90, 250)],
    ids=["a ramp", "of a thousand samples"],
)
def test_a_warm_up_is_cut_off_and_named(seed: int, above: list[float], first: int, last: int) -> None:
    draw = random.Random(seed)
    found = find_steady([100 + each + draw.gauss(0, 1) for each in above], {})
    assert found.tested
    assert first <= found.kept[0] <= last
    assert found.kept == tuple(range(found.kept[0], len(above)))
    assert set(found.excluded.values()) == {UNSETTLED}


def test_causes_come_first_and_every_index_is_accounted_for() -> None:
    draw = random.Random(1)
    values = [100 + draw.gauss(0, 1) for _ in range(30)]
    values[0], values[12] = 900, 450
    found = find_steady(values, {0: "compilation", 12: "prompt switch"})
    causes = found.excluded
    assert (causes[0], causes[12]) == ("compilation", "prompt switch")
    assert sorted([*causes, *found.kept]) == list(range(30))


def test_steady_noise_is_kept_nearly_whole() -> None:
    whole = 0
    for seed in range(100):
        draw = random.Random(seed)
        found = find_steady([100 + draw.gauss(0, 2) for _ in range(24)], {})
        assert found.tested
        whole += len(found.kept) >= 20
    assert whole >= 85


def test_a_stall_is_kept() -> None:
    draw = random.Random(2)
    values = [100 + draw.gauss(0, 1) for _ in range(30)]
    values[20] = 500
    assert 20 in find_steady(values, {}).kept


def test_a_series_that_never_settles_says_so() -> None:
    found = find_steady([100 + 5 * index for index in range(30)], {0: "first block"})
    assert not found.tested
    assert "no steady part" in found.note
    assert found.kept == tuple(range(1, 30))


def test_too_few_samples_are_not_tested() -> None:
    found = find_steady([9, 1, 2], {0: "first block"})
    assert (found.kept, found.tested) == ((1, 2), False)
    assert "fewer than" in found.note
    assert find_steady([], {}).kept == ()


def test_equal_samples_are_steady() -> None:
    assert find_steady([7] * 20, {}).kept == tuple(range(20))
