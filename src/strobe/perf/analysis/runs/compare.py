"""Speedup of a candidate from timed clips; clocks, calls, growth over a long clip, latencies, and viewers of a loaded server."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated as A
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from strobe.core import spans
from strobe.core.errors import DataError
from strobe.core.spans import E2E, FRAME_BLOCK
from strobe.perf.analysis.steady import SteadyState, find_steady
from strobe.perf.measure.stats import Interval, Verdict, judge, paired_interval, percentile, welch_interval
from strobe.perf.records.record import Clip, Clocks, Gate, Memory, PromptAt, Served, Span, Viewer, Workload
from strobe.perf.records.store import RunRecords
from strobe.perf.table.model import Count, Ratio, Time
from strobe.perf.table.rows import col, gathered

# Speedup of a candidate over the baseline, level by level, from timed clips.

STAGES: Final = (
    spans.TEXT,
    spans.DRAW,
    spans.RECACHE,
    spans.DENOISE_STEP,
    spans.COMMIT,
    spans.VAE_DECODE,
    spans.FRAME_BLOCK,
    spans.E2E,
)
"""Regions of a timed clip, innermost work first."""


StageClips: TypeAlias = tuple[tuple[Clip, int, int], ...]
"""Clips of one variant in the order they ran, each with the time of a stage's regions, ns, and their number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Ratio of the baseline's time to the candidate's in one stage. Ratios above 1: the candidate is faster.

    Args:
        per_call: the ratio compares one region with one region; False: all regions of a clip together.
        ratios: one per pair; empty if unpaired.
        ratio: median of `ratios`; of unpaired clips the ratio of geometric means.
        interval: 95 % interval of the ratio; None for fewer than two pairs.
        verdict: conclusion that ratio and interval allow.
    """

    stage: str
    per_call: bool
    baseline: StageClips
    candidate: StageClips
    ratios: tuple[float, ...]
    ratio: float
    interval: Interval | None
    verdict: Verdict

    @property
    def cell(self) -> Ratio:
        return ratio_cell(self.ratio, self.interval)

    @property
    def median_pair_ns(self) -> tuple[float, float]:
        """Times of a clip of the baseline and of the candidate in the pair whose ratio is the median; their quotient is `ratio`.

        Of an even number of pairs it is the mean of the middle two, in which both have the same weight in the ratio.
        """
        order, half = sorted(range(len(self.ratios)), key=self.ratios.__getitem__), (len(self.ratios) - 1) // 2
        middle = order[half : len(order) - half]
        candidate = statistics.harmonic_mean([_took(self.candidate[2 * pair : 2 * pair + 2]) / 2 for pair in middle])
        return self.ratio * candidate, candidate

    @property
    def ratio_of_sums(self) -> float:
        """Ratio of the summed times that the ledger accounts for."""
        return _ratio(self.baseline, self.candidate, per_call=self.per_call)

    @property
    def floor(self) -> float:
        """Shortest clip of the baseline / shortest of the candidate."""
        (least, regions), (own_least, own_regions) = (
            (min(ns for _, ns, _ in side), num(side, self.per_call) / len(side)) for side in (self.baseline, self.candidate)
        )
        return least / own_least * own_regions / regions

    @property
    def mean_ns(self) -> tuple[float, float]:
        """Mean time of the baseline and of the candidate, ns: of one region, or of all regions of a clip."""
        b, c = (_took(side) / num(side, self.per_call) for side in (self.baseline, self.candidate))
        return b, c

    @property
    def saved_ns(self) -> int:
        """Saving of the candidate over all clips, ns."""
        return _took(self.baseline) - _took(self.candidate)


def _took(side: StageClips) -> int:
    return sum(ns for _, ns, _ in side)


def num(side: StageClips, per_call: bool) -> int:
    """Return the number of regions if a single region is compared, else that of clips."""
    return sum(regions for *_, regions in side) if per_call else len(side)


def ratio_cell(ratio: float, interval: Interval | None) -> Ratio:
    """Return the cell of a ratio, with its interval if there is one."""
    return Ratio(ratio, interval.low, interval.high) if interval else Ratio(ratio)


def stage_time(run: RunRecords, variant: str, stage: str) -> StageClips:
    """Return the stage's time in every finished warm-up and timed clip of a variant."""
    ns, calls = Counter[int](), Counter[int]()
    for span in run.spans:
        if span.variant == variant and span.name == stage:
            ns[span.clip] += span.value_ns
            calls[span.clip] += 1
    clips = (clip for clip in run.clips if clip.variant == variant and clip.phase != "traced")
    return tuple((clip, ns[clip.clip], calls[clip.clip]) for clip in clips)


def _times_in(run: RunRecords, variant: str, stage: str, clips: Iterable[Clip]) -> StageClips:
    """Return the stage's time in some clips of a variant, in their order; raises DataError if a clip never entered the stage."""
    known = {each[0].order: each for each in stage_time(run, variant, stage)}
    found = tuple(known[clip.order] for clip in clips)
    if not all(ns for _, ns, _ in found):
        raise DataError(f"{variant!r} has clips without a {stage!r} region; stages: {', '.join(STAGES)}")
    return found


def timed_clips(run: RunRecords) -> tuple[Clip, ...]:
    """Return the finished timed clips of all variants, except those that the run itself excluded (e.g. for a compilation)."""
    excluded = {(line.variant, number) for line in run.excluded if line.span == "clip" for number in line.indices}
    return tuple(clip for clip in run.clips if clip.phase == "timed" and (clip.variant, clip.clip) not in excluded)


def mirrored_pairs(run: RunRecords, candidate: str) -> list[tuple[list[Clip], list[Clip]]]:
    """Return two clips of the baseline and two of the candidate, for each palindrome in which all four can be used."""
    names = run.header.baseline, candidate
    finished = gathered((clip.palindrome, clip) for clip in timed_clips(run) if clip.palindrome is not None)
    both = ([[clip for clip in clips if clip.variant == name] for name in names] for _, clips in sorted(finished.items()))
    return [(b, c) for b, c in both if len(b) == len(c) == 2]


def compare_stage(run: RunRecords, candidate: str, stage: str, *, per_call: bool = False) -> Comparison:
    """Compare one stage of a candidate with the baseline of the same run.

    Each pair's ratio is that of the sums over its two clips, so that drift that is linear in time cancels.

    Raises:
        DataError: no pair is complete, or a variant never entered the stage.
    """
    baseline, pairs = run.header.baseline, mirrored_pairs(run, candidate)
    if not pairs:
        raise DataError(f"run {run.header.run} has no finished pair of {baseline!r} and {candidate!r}")
    used = [
        _times_in(run, name, stage, [clip for clips in own for clip in clips])
        for name, own in zip((baseline, candidate), zip(*pairs, strict=True), strict=True)
    ]
    both = [(used[0][at : at + 2], used[1][at : at + 2]) for at in range(0, 2 * len(pairs), 2)]
    ratios = [_ratio(*pair, per_call=per_call) for pair in both]
    delta_ns = statistics.median((_took(b) - _took(c)) / 2 for b, c in both)
    interval = paired_interval([math.log(each) for each in ratios], ratio := statistics.median(ratios))
    return Comparison(
        stage=stage,
        per_call=per_call,
        baseline=used[0],
        candidate=used[1],
        ratios=tuple(ratios),
        ratio=ratio,
        interval=interval,
        verdict=judge(ratio, interval, delta_ns),
    )


def compare_stages(run: RunRecords, candidate: str) -> tuple[Comparison, ...]:
    """Compare one denoise step, then every stage of `STAGES` that both variants entered, summed over a clip."""
    entered = [{span.name for span in run.spans if span.variant == name} for name in (run.header.baseline, candidate)]
    common = [stage for stage in STAGES if all(stage in names for names in entered)]
    step = [compare_stage(run, candidate, spans.DENOISE_STEP, per_call=True)] if spans.DENOISE_STEP in common else []
    return (*step, *(compare_stage(run, candidate, stage) for stage in common))


def compare_unpaired(baseline: RunRecords, candidate: RunRecords, stage: str, *, variant: str) -> Comparison:
    """Compare one variant across two runs taken at different times; drift between them is unknown.

    Raises:
        DataError: a run has no timed clip of the variant, or never entered the stage.
    """
    sides = []
    for run in (baseline, candidate):
        timed = [clip for clip in timed_clips(run) if clip.variant == variant]
        if not timed:
            raise DataError(f"run {run.header.run} has no timed clip of {variant!r}")
        sides.append(_times_in(run, variant, stage, timed))
    b, c = ([ns for _, ns, _ in side] for side in sides)
    interval = welch_interval(b, c)
    ratio = statistics.geometric_mean(b) / statistics.geometric_mean(c)
    return Comparison(
        stage=stage,
        per_call=False,
        baseline=sides[0],
        candidate=sides[1],
        ratios=(),
        ratio=ratio,
        interval=interval,
        verdict=judge(ratio, interval, statistics.fmean(b) - statistics.fmean(c)),
    )


def _ratio(baseline: StageClips, candidate: StageClips, *, per_call: bool) -> float:
    """Return the mean time of a clip (or of one region) of the baseline / that of the candidate."""
    return _took(baseline) * num(candidate, per_call) / (_took(candidate) * num(baseline, per_call))


# Clock, power and energy of a variant's clips, and what a difference of clocks does to the time of a kernel.

POWER_CAP: Final = "sw_power_cap"
"""The throttle reason of a GPU that would take more power than its limit allows."""
FEWEST: Final = 5
"""Fewest readings of a traced clip that stand for its clock; with fewer the timed clips' do."""
FEWEST_CLIPS: Final = 2
"""Fewest clips of a side whose clocks prove anything."""
SAME: Final = Fraction(2, 100)
"""Clocks that differ by less count as equal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SideClocks:
    """Clock and power of a variant, over its clips.

    Args:
        sm_mhz: median SM clock of the clip that kernel times come from: the traced one where it was sampled, else timed ones.
        clips_mhz: median SM clock of each sampled clip.
        max_mhz: highest clock that the GPU supports; None: not recorded.
        power_capped: a reading said that the power limit held the clock down.
        clip_joules: energy of a timed clip, mean; by the GPU's counter, or mean power times the clip's length; None: neither.
    """

    sm_mhz: int
    clips_mhz: tuple[int, ...]
    max_mhz: int | None
    power_capped: bool
    clip_joules: float | None


def side_clocks(run: RunRecords, variant: str) -> SideClocks | None:
    """Return the clocks of a variant; None if they were not sampled while its clips ran."""
    timed = [clip for clip in timed_clips(run) if clip.variant == variant]
    sampled = [clip.clocks for clip in timed if clip.clocks is not None and clip.clocks.samples]
    traced = [
        clip.clocks
        for clip in run.clips
        if (clip.variant, clip.phase) == (variant, "traced") and clip.clocks and (clip.clocks.samples or 0) >= FEWEST
    ]
    chosen = [each for each in traced or sampled if each.sm_mhz]
    if not chosen:
        return None
    gpu = run.header.machine.gpu
    lasted = {span.order: span.value_ns for span in run.spans if span.name == spans.E2E}
    energies = [_joules(clip.clocks, lasted[clip.order]) for clip in timed if clip.clocks and clip.order in lasted]
    known = [each for each in energies if each is not None]
    return SideClocks(
        sm_mhz=round(statistics.median(each.sm_mhz for each in chosen if each.sm_mhz)),
        clips_mhz=tuple(each.sm_mhz for each in (*sampled, *traced) if each.sm_mhz),
        max_mhz=None if gpu is None else gpu.max_sm_mhz,
        power_capped=any(POWER_CAP in each.throttle for each in (*sampled, *traced)),
        clip_joules=statistics.fmean(known) if known else None,
    )


def block_joules(run: RunRecords, variant: str) -> float | None:
    """Return the energy of the GPU in a clip divided by its frame blocks, J; None where neither energy nor power was recorded."""
    found, work = side_clocks(run, variant), run.header.workload
    return None if found is None or found.clip_joules is None or work is None else found.clip_joules / work.frame_blocks


def differ(baseline: SideClocks, candidate: SideClocks) -> bool:
    """Return whether two clocks differ by more than `SAME`."""
    return abs(baseline.sm_mhz - candidate.sm_mhz) > SAME * max(baseline.sm_mhz, candidate.sm_mhz)


def apart(baseline: SideClocks, candidate: SideClocks) -> bool:
    """Return whether the clips prove that the clocks differ: of two or more a side, each ran above all of the other side."""
    sides = baseline.clips_mhz, candidate.clips_mhz
    if min(map(len, sides)) < FEWEST_CLIPS:
        return False
    return max(sides[0]) < min(sides[1]) or max(sides[1]) < min(sides[0])


def clock_effect(baseline_ns: Fraction, candidate_ns: Fraction, baseline_mhz: int, candidate_mhz: int) -> Fraction:
    """Return the part of `baseline_ns - candidate_ns` that the clock makes; the rest is work, in cycles.

    With cycles `w = t f`, the saving is `(w_b - w_c)(1/f_b + 1/f_c) / 2` of work and `(1/f_b - 1/f_c)(w_b + w_c) / 2` of the
    clock, exactly. It holds for a kernel whose time goes with the SM clock, and for none that waits for memory.
    """
    cycles = baseline_ns * baseline_mhz + candidate_ns * candidate_mhz
    return cycles * (Fraction(1, baseline_mhz) - Fraction(1, candidate_mhz)) / 2


def _joules(clocks: Clocks, lasted_ns: int) -> float | None:
    if clocks.energy_mj is not None:
        return clocks.energy_mj / 1000
    return clocks.power_mw * lasted_ns / 1e12 if clocks.power_mw is not None and clocks.samples else None


# Time of one call of a function, or one run of a program, from the samples of a run of the caller's own code.


@dataclass(frozen=True, kw_only=True, slots=True)
class CallsRow:
    """One function or program of the caller's own: time and memory of one call or one run of it.

    Args:
        samples_ns: one per timed sample, in order; empty if it was not timed.
        gate: its output against the baseline's; None: not compared, or the baseline itself.
        speedup: baseline time / its own; None for the baseline, and where either was not timed.
        device_speedup: the same between CUDA events; None on a CPU.
    """

    name: A[str, col("name of the function or program")]
    reference: A[str, col("name of the baseline; equals `name` in the baseline's own row")]
    command: A[str, col("command line of a program; empty for a function")]
    samples: A[int, col("number of timed samples; 0: not timed, e.g. as the output differs from the baseline's")]
    calls_per_sample: A[int, col("number of calls that one sample averages")]
    mean_ns: A[float | None, col("geometric mean of the samples; null: not timed")]
    low_ns: A[float | None, col("lower end of the 95 % interval of the mean; null: no interval")]
    high_ns: A[float | None, col("upper end of the 95 % interval of the mean; null: no interval")]
    min_ns: A[float | None, col("shortest sample; null: not timed")]
    max_ns: A[float | None, col("longest sample; null: not timed")]
    ratio: A[float | None, col("time of the baseline / time of this row; null for the baseline, or not timed")]
    ratio_low: A[float | None, col("lower end of the 95 % interval of the ratio; null: no interval")]
    ratio_high: A[float | None, col("upper end of the 95 % interval of the ratio; null: no interval")]
    pair_baseline_ns: A[float | None, col("time of the baseline in the median pair of samples, whose ratio is `ratio`")]
    pair_candidate_ns: A[float | None, col("time of this row in that pair: `pair_baseline_ns / pair_candidate_ns` is `ratio`")]
    verdict: A[str, col("`faster`, `slower`, `no difference` or `inconclusive`; empty: not compared")]
    device_ratio: A[float | None, col("the same ratio by CUDA events; null on a CPU")]
    user_ns: A[float | None, col("mean CPU time of a program in user mode; null for a function")]
    system_ns: A[float | None, col("mean CPU time of a program in the kernel; null for a function")]
    peak_bytes: A[int | None, col("peak memory, maximum over the samples; null: not known")]
    added_bytes: A[
        int | None, col("memory added by a sample to the memory at its start, maximum over the samples; null: not known")
    ]
    failures: A[int, col("number of timed runs of a program that ended with a non-zero exit status")]
    equal_output: A[bool | None, col("true: the output equals the baseline's; null: not compared")]
    output: A[str, col("result of the comparison of outputs in words; empty: not compared")]
    samples_ns: tuple[float, ...]
    gate: Gate | None
    speedup: Comparison | None
    device_speedup: Comparison | None


def is_own_code(run: RunRecords) -> bool:
    """Return whether the records are of functions or programs of the caller's own."""
    return run.header.kind in ("calls", "programs")


def own_code(run: RunRecords) -> tuple[CallsRow, ...]:
    """Return what every function or program took, the baseline first; those that were not timed too."""
    gates = {gate.variant: gate for gate in run.gates}
    names = dict.fromkeys((run.header.baseline, *run.header.order))
    return tuple(_one(run, name, gates.get(name)) for name in names)


def _one(run: RunRecords, name: str, gate: Gate | None) -> CallsRow:
    clips = [clip for clip in timed_clips(run) if clip.variant == name]
    samples = tuple(ns / clip.calls for clip, ns, _ in _times_in(run, name, E2E, clips))
    logs = [math.log(value) for value in samples]
    peaks = [clip.peak_bytes for clip in clips if clip.peak_bytes is not None]
    added = [clip.peak_bytes - clip.start_bytes for clip in clips if clip.peak_bytes is not None and clip.start_bytes is not None]
    speedup, calls = _against(run, name, E2E), clips[0].calls if clips else 1
    timed_on_device = any(span.variant == name and span.name == FRAME_BLOCK and span.clock == "cuda_event" for span in run.spans)
    device = _against(run, name, FRAME_BLOCK) if timed_on_device else None
    low, high = paired_interval(logs) or (None, None)
    ratio_low, ratio_high = (speedup and speedup.interval) or (None, None)
    pair = (None, None) if speedup is None else speedup.median_pair_ns
    return CallsRow(
        name=name,
        reference=run.header.baseline,
        command=next((variant.command for variant in run.variants if variant.name == name), ""),
        samples=len(samples),
        samples_ns=samples,
        calls_per_sample=calls,
        mean_ns=math.exp(statistics.fmean(logs)) if logs else None,
        low_ns=low,
        high_ns=high,
        min_ns=min(samples, default=None),
        max_ns=max(samples, default=None),
        speedup=speedup,
        ratio=None if speedup is None else speedup.ratio,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        pair_baseline_ns=None if pair[0] is None else pair[0] / calls,
        pair_candidate_ns=None if pair[1] is None else pair[1] / calls,
        verdict="" if speedup is None else speedup.verdict,
        device_speedup=device,
        device_ratio=None if device is None else device.ratio,
        user_ns=_mean([clip.user_ns for clip in clips]),
        system_ns=_mean([clip.system_ns for clip in clips]),
        peak_bytes=max(peaks, default=None) if len(peaks) == len(clips) else None,
        added_bytes=max(0, *added) if added and len(added) == len(clips) else None,
        failures=sum(bool(clip.exit_status) for clip in clips),
        gate=gate,
        equal_output=None if gate is None else gate.passed,
        output="" if gate is None else gate.detail,
    )


def _mean(values: list[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _against(run: RunRecords, name: str, stage: str) -> Comparison | None:
    """The comparison with the baseline; None where there is nothing to compare."""
    if name == run.header.baseline:
        return None
    try:
        return compare_stage(run, name, stage)
    except DataError:
        return None


# Growth of frame block times and memory over a long clip: its first part against its last part.

PART: Final = 100
"""Most frame blocks of the first and of the last part."""
MEDIAN_MAY_GROW: Final = 0.02
MAX_MAY_GROW: Final = 0.05
"""Largest allowed growth of median and longest frame block from the first part to the last, as a share."""
MAY_GROW_BYTES: Final[dict[str, int]] = {"allocated": 1 << 20, "reserved": 1 << 20, "resident": 32 << 20}
"""Largest allowed growth of peak memory from the first part to the last, bytes; the host's includes the run's own buffers."""
_LEAST: Final = 100
_MOST: Final = 1000
"""Most frame blocks that the slope is computed from; of a longer stream an even selection."""


class PartGrowth(NamedTuple):
    """One figure of the first part and of the last part of a long clip.

    Args:
        what: median, max (of frame blocks, ns), or a kind of memory (most held, bytes).
        may_grow: the most that `last - first` may be; `holds` says whether it is.
    """

    what: str
    first: int
    last: int
    may_grow: float

    @property
    def growth(self) -> int:
        return self.last - self.first

    @property
    def holds(self) -> bool:
        """Whether the last part exceeds the first by no more than allowed."""
        return self.growth <= self.may_grow


@dataclass(frozen=True, kw_only=True, slots=True)
class LongClip:
    """Frame block times and memory of a long clip.

    Args:
        blocks_ns: length of every frame block.
        memory: memory held after each.
        settled: first frame block that counts: before it the cache fills, and what is compiled or captured is.
        steady: frame blocks to compare, by number: the cache is full, and their length holds no work of a prompt switch.
    """

    variant: str
    blocks_ns: tuple[int, ...]
    memory: tuple[Memory, ...]
    settled: int
    steady: tuple[int, ...]

    @property
    def first(self) -> tuple[int, ...]:
        return self.steady[: min(PART, len(self.steady) // 2)]

    @property
    def last(self) -> tuple[int, ...]:
        return self.steady[-len(self.first) :]

    @property
    def times(self) -> tuple[PartGrowth, PartGrowth]:
        """Median and longest frame block."""
        sides = [[self.blocks_ns[index] for index in part] for part in (self.first, self.last)]
        median, longest = [percentile(side, 0.5) for side in sides], [max(side) for side in sides]
        return (
            PartGrowth("median", median[0], median[1], MEDIAN_MAY_GROW * median[0]),
            PartGrowth("max", longest[0], longest[1], MAX_MAY_GROW * longest[0]),
        )

    @property
    def held(self) -> tuple[PartGrowth, ...]:
        """Kinds of memory that are known."""
        of_block = {line.frame_block: line for line in self.memory}
        found = []
        for kind, may_grow in MAY_GROW_BYTES.items():
            parts = ([of_block[index] for index in part if index in of_block] for part in (self.first, self.last))
            sides = [[getattr(line, f"{kind}_bytes") for line in part] for part in parts]
            if all(side and None not in side for side in sides):
                found.append(PartGrowth(kind, max(sides[0]), max(sides[1]), may_grow))
        return tuple(found)

    @property
    def drift(self) -> float | None:
        """Change of a frame block's length over 1,000 of them, as a share of the median: the median of all slopes between two
        frame blocks (Theil and Sen), of very many blocks of an even selection; None with fewer than 100."""
        if len(self.steady) < _LEAST:
            return None
        at = np.asarray(self.steady)
        chosen = at[np.unique(np.linspace(0, len(at) - 1, min(len(at), _MOST)).round().astype(np.int64))]
        x, y = chosen.astype(np.float64), np.asarray(self.blocks_ns, np.float64)[chosen]
        before, after = np.triu_indices(len(x), k=1)
        slope = float(np.median((y[after] - y[before]) / (x[after] - x[before])))
        return 1000 * slope / float(np.median(y))


def growths_of(run: RunRecords) -> tuple[LongClip, ...]:
    """Read the growth of each variant whose memory was read after each frame block, over the last clip of it.

    Variants with too few frame blocks to compare are left out. Where frames come late (knob `late_frames`), the length of each is
    mostly work on the next one, and that of the last is short.
    """
    last, work, found = {line.variant: line.clip for line in run.memory}, run.header.workload, list[LongClip]()
    for settings in (each for each in run.variants if each.name in last):
        assert work is not None
        name, clip = settings.name, last[settings.name]
        own = (span for span in run.spans if (span.variant, span.clip, span.name) == (name, clip, FRAME_BLOCK))
        blocks = tuple(span.value_ns for span in sorted(own, key=lambda span: span.index or 0))
        memory = tuple(line for line in run.memory if (line.variant, line.clip) == (name, clip))
        settled = 2 + -(-(settings.window or 0) // work.latents_per_block)
        switches = {prompt.frame_block for prompt in work.prompts if prompt.frame_block}
        late = any(knob.name == "late_frames" and knob.on for knob in settings.knobs)
        steady = tuple(index for index in range(settled, len(blocks) - late) if index + late not in switches)
        if len(steady) > 1:
            found.append(LongClip(variant=name, blocks_ns=blocks, memory=memory, settled=settled, steady=steady))
    return tuple(found)


# Latencies that a user sees: time to the first frame, frame rate, and the cost of a prompt switch.

NS: Final = 1_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchCost:
    """Cost of one prompt switch; medians over clips."""

    frame_block: A[int, col("first block under the new prompt", "switch at frame block", Count)]
    mode: A[str, col("how the switch was made")]
    before_ns: A[float, col("the block before", "block before", Time)]
    after_ns: A[float, col("the first block after, with everything the switch needs", "first block after", Time)]
    extra_ns: A[float, col("after - before", "extra", Time)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Latencies:
    """Latencies of one variant over its timed clips. A block lasts from one delivery of frames to the next, decode included.

    Args:
        blocks_ns: steady frame blocks of all clips. `steady` says which were kept and why the others were not.
        mean_ns: of these, and every figure of a steady block below; None if there are none.
        dit_block_ns: denoise steps and commit pass alone in a steady block, mean.
        decode_block_ns: VAE decode alone in a steady block, mean; it may run beside the others.
        inter_latent_ns: steady block / latent frames in it; `inter_frame_ns`: / pixel frames in it.
        pixel_fps: pixel frames per second in the steady state, streamed, decode included; `latent_fps`: latent frames.
        clip_pixel_fps: pixel frames of a whole clip / median end-to-end time, start and prompt switches included.
        first_frame_ns: from the call to the first frames handed over, median over clips.
        stalled_frames: playback at the model's rate that has one frame block ahead waits for so many frames' time, whole ones, in
            the clip where it waits most: what a frame block takes longer than the one before it plays.
        switches_ns: first frame blocks under a new prompt, of all switches and clips.
        block_joules: energy of the GPU in a clip / its frame blocks, J; `video_second_joules`: / its seconds of video at the rate
            of playback; None where neither energy nor power was recorded.
    """

    num_clips: int
    steady: SteadyState
    blocks_ns: tuple[int, ...]
    mean_ns: float | None
    dit_block_ns: float | None
    decode_block_ns: float | None
    inter_latent_ns: float | None
    inter_frame_ns: float | None
    pixel_fps: float | None
    latent_fps: float | None
    clip_pixel_fps: float
    first_frame_ns: float
    stalled_frames: int
    switches: tuple[SwitchCost, ...]
    switches_ns: tuple[int, ...]
    block_joules: float | None = None
    video_second_joules: float | None = None


def latencies(run: RunRecords, variant: str) -> Latencies:
    """Return the latencies of a variant from its timed clips.

    Raises:
        DataError: the run has no workload (it measured the caller's own code), or no finished timed clip of the variant.
    """
    work = run.header.workload
    timed = {clip.order for clip in timed_clips(run) if clip.variant == variant}
    if work is not None and work.unit == "denoise step":
        raise DataError(f"run {run.header.run} holds forward passes over a whole clip, which is no stream: it has no latencies")
    if work is None or not timed:
        raise DataError(f"run {run.header.run} has no finished timed clip of {variant!r}; latencies need one")
    by_clip = gathered((span.order, span) for span in run.spans if span.order in timed)
    e2es, clips, dits, decodes = zip(*(_clip_times(by_clip.get(order, ())) for order in sorted(timed)), strict=True)
    series = [statistics.median(column) for column in zip(*clips, strict=True)]
    steady = find_steady(series, known_causes(run, variant))
    blocks = [clip[index] for clip in clips for index in steady.kept]
    mean = statistics.fmean(blocks) if blocks else None
    e2e_ns = statistics.median(e2es)
    switches = [prompt for prompt in work.prompts if 0 < prompt.frame_block < work.frame_blocks]
    joules = block_joules(run, variant)
    return Latencies(
        num_clips=len(clips),
        steady=steady,
        blocks_ns=tuple(blocks),
        mean_ns=mean,
        dit_block_ns=statistics.fmean(clip[index] for clip in dits for index in steady.kept) if mean else None,
        decode_block_ns=statistics.fmean(clip[index] for clip in decodes for index in steady.kept) if mean else None,
        inter_latent_ns=mean / work.latents_per_block if mean else None,
        inter_frame_ns=mean / work.frames_per_block if mean else None,
        pixel_fps=NS * work.frames_per_block * work.batch / mean if mean else None,
        latent_fps=NS * work.latents_per_block * work.batch / mean if mean else None,
        clip_pixel_fps=NS * work.frames * work.batch / e2e_ns,
        first_frame_ns=statistics.median(clip[0] for clip in clips),
        stalled_frames=max(_stalled(work, clip) for clip in clips),
        switches=tuple(_switch(prompt, clips) for prompt in switches),
        switches_ns=tuple(clip[prompt.frame_block] for clip in clips for prompt in switches),
        block_joules=joules,
        video_second_joules=None if joules is None else joules * work.frame_blocks * work.fps / (work.frames * work.batch),
    )


def known_causes(run: RunRecords, variant: str) -> dict[int, str]:
    """Return frame blocks with a known cause to differ: first block, cache not full, prompt switch, excluded in the run."""
    work, settings = run.header.workload, run.variant(variant)
    causes: dict[int, str] = {}
    if work is not None:
        full = settings.window or 0
        filling = [index for index in range(work.frame_blocks) if (index + 1) * work.latents_per_block < full]
        causes |= dict.fromkeys(filling, "cache not full")
        causes |= {prompt.frame_block: f"prompt switch ({prompt.mode})" for prompt in work.prompts}
        causes[0] = "first block"
    for line in run.excluded:
        if line.variant == variant and line.span == spans.FRAME_BLOCK and line.clip is None:
            causes |= dict.fromkeys(line.indices, line.cause)
    return causes


def _clip_times(samples: Sequence[Span]) -> tuple[int, list[int], list[int], list[int]]:
    """Cut one clip at the deliveries of its frame blocks; return its length, and each block's own, denoising and decoding."""
    e2e = next((span for span in samples if span.name == spans.E2E), None)
    blocks = sorted((span for span in samples if span.name == spans.FRAME_BLOCK), key=lambda span: span.index or 0)
    if e2e is None or not blocks:
        raise DataError("a timed clip has no end-to-end region or no frame blocks; latencies need both")
    ends = [span.start_ns + span.value_ns for span in blocks]
    starts = [e2e.start_ns, *ends[:-1]]
    inside = {name: [0] * len(blocks) for name in (spans.DENOISE_STEP, spans.COMMIT, spans.VAE_DECODE)}
    for span in samples:
        if span.name in inside:
            block = min(bisect_right(ends, span.start_ns), len(blocks) - 1)
            inside[span.name][block] += span.value_ns
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    dit = [sum(pair) for pair in zip(inside[spans.DENOISE_STEP], inside[spans.COMMIT], strict=True)]
    return e2e.value_ns, lengths, dit, inside[spans.VAE_DECODE]


def _stalled(work: Workload, blocks_ns: Sequence[int]) -> int:
    """Return the frames that playback waits for: a frame block is made while the one before it plays."""
    plays = [work.frames_first_block, *[work.frames_per_block] * (work.frame_blocks - 2)][: len(blocks_ns) - 1]
    late = (ns * work.fps - frames * NS for ns, frames in zip(blocks_ns[1:], plays, strict=True))
    return sum(-(-each // NS) for each in late if each > 0)


def _switch(prompt: PromptAt, clips: Sequence[Sequence[int]]) -> SwitchCost:
    before, after = ([clip[index] for clip in clips] for index in (prompt.frame_block - 1, prompt.frame_block))
    return SwitchCost(
        frame_block=prompt.frame_block,
        mode=prompt.mode,
        before_ns=statistics.median(before),
        after_ns=statistics.median(after),
        extra_ns=statistics.median(late - early for early, late in zip(before, after, strict=True)),
    )


# Figures of a loaded server: by load, what viewers waited for and what came late.

HELD: Final = 0.99
"""Share of pictures on time at which a load counts as held, if nobody was refused or lost its connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadFigures:
    """Figures of the viewers of one load. Times are ns, pooled over all viewers who were let in.

    Args:
        load: viewers at once on average, as asked for.
        at_once: viewers who really watched at once, on average over the level.
        on_time: share of the pictures that were due and were painted at most one frame time late; None if none was due.
        play_ratio: time played over time played and stalled; None if nothing was played.
        prompt_parts_ns: parts of each time from prompt to pixel, `rest` the last: they add up to it. Empty without them.
        served: the server's own account of the load; None if it does not show its counters.
    """

    load: float
    at_once: float
    came: int
    refused: int
    failed: int
    on_time: float | None
    play_ratio: float | None
    first_picture_ns: tuple[int, ...]
    prompt_to_pixel_ns: tuple[int, ...]
    prompt_parts_ns: dict[str, tuple[int, ...]]
    block_gaps_ns: tuple[int, ...]
    stalls: int
    stall_ns: int
    lost: int
    served: Served | None = None

    @property
    def held(self) -> bool:
        """Everybody was let in and saw at least `HELD` of the pictures on time."""
        return self.on_time is not None and self.on_time >= HELD and not self.refused and not self.failed and not self.lost


def figures_of(run: RunRecords) -> tuple[LoadFigures, ...]:
    """Return the figures of each load, in order of the load.

    Raises:
        DataError: the run has no server or no viewer.
    """
    if run.server is None or not run.viewers:
        raise DataError(f"{run.folder} holds no viewer of a server: it was stopped before the first one left")
    servers, viewers = {each.load: each for each in run.served}, gathered((each.load, each) for each in run.viewers)
    return tuple(_figures(load, own, run.server.fps, servers.get(load)) for load, own in sorted(viewers.items()))


def _figures(load: float, viewers: Sequence[Viewer], fps: int, served: Served | None) -> LoadFigures:
    let_in = [each for each in viewers if not each.refusal]
    stall_ns = sum(each.stall_ns for each in let_in)
    painted = sum(each.painted for each in let_in)
    frame_ns = 1e9 / fps
    missed = stall_ns / frame_ns  # pictures that were due while a viewer stood still
    on_time = sum(late <= frame_ns for each in let_in for late in each.late_ns)
    played_ns = painted * frame_ns
    length_ns = max(each.arrived_ns + each.watched_ns for each in viewers)
    return LoadFigures(
        load=load,
        at_once=sum(each.watched_ns for each in let_in) / length_ns,
        came=len(viewers),
        refused=sum(each.refusal == "refused" for each in viewers),
        failed=sum(each.refusal == "failed" for each in viewers),
        on_time=on_time / (painted + missed) if painted else None,
        play_ratio=played_ns / (played_ns + stall_ns) if painted else None,
        first_picture_ns=tuple(each.first_picture_ns for each in let_in if each.first_picture_ns is not None),
        prompt_to_pixel_ns=tuple(ns for each in let_in for ns in each.prompt_to_pixel_ns),
        prompt_parts_ns=_prompt_parts(let_in),
        block_gaps_ns=tuple(ns for each in let_in for ns in each.block_gaps_ns),
        stalls=sum(each.stalls for each in let_in),
        stall_ns=stall_ns,
        lost=sum(each.lost for each in let_in),
        served=served,
    )


def _prompt_parts(viewers: Sequence[Viewer]) -> dict[str, tuple[int, ...]]:
    """Return the parts of each time from prompt to pixel, `rest` the last; empty if a viewer's record lacks them."""
    prompted = [each for each in viewers if each.prompt_to_pixel_ns]
    if not prompted or any(not each.prompt_parts_ns for each in prompted):
        return {}
    parts = {name: tuple(ns for each in prompted for ns in each.prompt_parts_ns[name]) for name in prompted[0].prompt_parts_ns}
    in_all = (ns for each in prompted for ns in each.prompt_to_pixel_ns)
    return parts | {"rest": tuple(ns - sum(measured) for ns, *measured in zip(in_all, *parts.values(), strict=True))}
