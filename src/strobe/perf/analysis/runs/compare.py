"""Speedup of a candidate over the baseline, level by level, from timed clips."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from strobe.core import spans
from strobe.core.errors import ConfigError, DataError
from strobe.perf.measure.stats import Interval, Verdict, judge, paired_interval, welch_interval
from strobe.perf.records.record import Clip
from strobe.perf.records.store import RunRecords

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


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTotal:
    """Sum of all regions of one name in one clip."""

    clip: Clip
    calls: int
    total_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two clips of the baseline and two of the candidate in one palindrome, as their `Clip` records."""

    palindrome: int
    baseline: tuple[Clip, Clip]
    candidate: tuple[Clip, Clip]


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One variant's part of a comparison: the stage's time in each of its clips, and its regions in all of them."""

    name: str
    clips_ns: tuple[int, ...]
    calls: int

    @property
    def total_ns(self) -> int:
        """Sum over all clips, ns."""
        return sum(self.clips_ns)

    def scale(self, per_call: bool) -> float:
        """Return the regions per clip if a single region is compared, else 1."""
        return self.calls / len(self.clips_ns) if per_call else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Ratio of the baseline's time to the candidate's in one stage. Ratios above 1: the candidate is faster.

    Args:
        stage: name of the span.
        per_call: the ratio compares one region with one region; False: all regions of a clip together.
        ratios: one per pair; empty if unpaired.
        ratio: median of `ratios`; of unpaired clips the ratio of geometric means.
        interval: 95 % interval of the ratio; None for fewer than two pairs.
        verdict: conclusion that ratio and interval allow.
        paired: False: taken at different times, drift unknown.
    """

    stage: str
    per_call: bool
    baseline: Side
    candidate: Side
    ratios: tuple[float, ...]
    ratio: float
    interval: Interval | None
    verdict: Verdict
    paired: bool

    @property
    def ratio_of_sums(self) -> float:
        """Ratio of the summed times that the ledger accounts for."""
        return _ratio(self.baseline, self.candidate, per_call=self.per_call)

    @property
    def floor(self) -> float:
        """Shortest clip of the baseline / shortest of the candidate."""
        scale = self.candidate.scale(self.per_call) / self.baseline.scale(self.per_call)
        return min(self.baseline.clips_ns) / min(self.candidate.clips_ns) * scale

    @property
    def saved_ns(self) -> int:
        """Saving of the candidate over all clips, ns."""
        return self.baseline.total_ns - self.candidate.total_ns


def stage_totals(run: RunRecords, variant: str, stage: str) -> tuple[StageTotal, ...]:
    """Return the stage's time in every finished warm-up and timed clip of a variant, in the order they ran."""
    totals: Counter[int] = Counter()
    calls: Counter[int] = Counter()
    for span in run.spans:
        if span.variant == variant and span.name == stage:
            totals[span.clip] += span.value_ns
            calls[span.clip] += 1
    return tuple(
        StageTotal(clip=clip, calls=calls[clip.clip], total_ns=totals[clip.clip])
        for clip in run.clips
        if clip.variant == variant and clip.phase != "traced"
    )


def timed_clips(run: RunRecords) -> tuple[Clip, ...]:
    """Return the finished timed clips of all variants, except those that the run itself excluded (e.g. for a compilation)."""
    excluded = {(line.variant, number) for line in run.excluded if line.span == "clip" for number in line.indices}
    return tuple(clip for clip in run.clips if clip.phase == "timed" and (clip.variant, clip.clip) not in excluded)


def mirrored_pairs(run: RunRecords, candidate: str) -> tuple[Pair, ...]:
    """Return the palindromes in which all four clips of baseline and candidate can be used."""
    finished: dict[int, dict[str, list[Clip]]] = defaultdict(lambda: defaultdict(list))
    for clip in timed_clips(run):
        if clip.palindrome is not None:
            finished[clip.palindrome][clip.variant].append(clip)
    pairs = []
    for palindrome, clips in sorted(finished.items()):
        both = clips[run.header.baseline], clips[candidate]
        if all(len(each) == 2 for each in both):
            (b_first, b_last), (c_first, c_last) = both
            pairs.append(Pair(palindrome=palindrome, baseline=(b_first, b_last), candidate=(c_first, c_last)))
    return tuple(pairs)


def compare_stage(run: RunRecords, candidate: str, stage: str, *, per_call: bool = False) -> Comparison:
    """Compare one stage of a candidate with the baseline of the same run.

    Each pair's ratio is that of the sums over its two clips, so that drift that is linear in time cancels.

    Raises:
        DataError: no pair is complete, or a variant never entered the stage.
    """
    baseline, pairs = run.header.baseline, mirrored_pairs(run, candidate)
    if not pairs:
        raise DataError(f"run {run.header.run} has no finished pair of {baseline!r} and {candidate!r}")
    before = {total.clip.order: total for total in stage_totals(run, baseline, stage)}
    after = {total.clip.order: total for total in stage_totals(run, candidate, stage)}
    reference = [_side(baseline, stage, [before[clip.order] for clip in pair.baseline]) for pair in pairs]
    measured = [_side(candidate, stage, [after[clip.order] for clip in pair.candidate]) for pair in pairs]
    ratios = [_ratio(*pair, per_call=per_call) for pair in zip(reference, measured, strict=True)]
    delta_ns = statistics.median((b.total_ns - c.total_ns) / 2 for b, c in zip(reference, measured, strict=True))
    ratio, interval = statistics.median(ratios), paired_interval([math.log(ratio) for ratio in ratios])
    return Comparison(
        stage=stage,
        per_call=per_call,
        baseline=_join(reference),
        candidate=_join(measured),
        ratios=tuple(ratios),
        ratio=ratio,
        interval=interval,
        verdict=judge(ratio, interval, delta_ns),
        paired=True,
    )


def compare_stages(run: RunRecords, candidate: str) -> tuple[Comparison, ...]:
    """Compare one denoise step, then every stage of `STAGES` that both variants entered, summed over a clip."""
    entered = [{span.name for span in run.spans if span.variant == name} for name in (run.header.baseline, candidate)]
    common = [stage for stage in STAGES if all(stage in names for names in entered)]
    step = [compare_stage(run, candidate, spans.DENOISE_STEP, per_call=True)] if spans.DENOISE_STEP in common else []
    return (*step, *(compare_stage(run, candidate, stage) for stage in common))


def compare_unpaired(baseline: RunRecords, candidate: RunRecords, stage: str, *, variant: str, unpaired: bool) -> Comparison:
    """Compare one variant across two runs taken at different times.

    Args:
        unpaired: must be True: the caller says that drift between the runs is unknown.

    Raises:
        ConfigError: `unpaired` is False.
        DataError: a run has no timed clip of the variant, or never entered the stage.
    """
    if not unpaired:
        raise ConfigError(
            f"runs {baseline.header.run} and {candidate.header.run} were taken at different times: no interval holds against "
            f"drift between them; compare both in one run, or say that they are unpaired"
        )
    sides = []
    for run in (baseline, candidate):
        usable = timed_clips(run)
        timed = [total for total in stage_totals(run, variant, stage) if total.clip in usable]
        if not timed:
            raise DataError(f"run {run.header.run} has no timed clip of {variant!r}")
        sides.append(_side(run.header.run, stage, timed))
    interval = welch_interval(sides[0].clips_ns, sides[1].clips_ns)
    ratio = statistics.geometric_mean(sides[0].clips_ns) / statistics.geometric_mean(sides[1].clips_ns)
    delta_ns = statistics.fmean(sides[0].clips_ns) - statistics.fmean(sides[1].clips_ns)
    return Comparison(
        stage=stage,
        per_call=False,
        baseline=sides[0],
        candidate=sides[1],
        ratios=(),
        ratio=ratio,
        interval=interval,
        verdict=judge(ratio, interval, delta_ns),
        paired=False,
    )


def _side(name: str, stage: str, totals: Sequence[StageTotal]) -> Side:
    if not all(total.total_ns > 0 for total in totals):
        raise DataError(f"{name!r} has clips without a {stage!r} region; stages: {', '.join(STAGES)}")
    return Side(name=name, clips_ns=tuple(total.total_ns for total in totals), calls=sum(total.calls for total in totals))


def _join(sides: Sequence[Side]) -> Side:
    clips_ns = tuple(value for side in sides for value in side.clips_ns)
    return Side(name=sides[0].name, clips_ns=clips_ns, calls=sum(side.calls for side in sides))


def _ratio(baseline: Side, candidate: Side, *, per_call: bool) -> float:
    """Return the mean time of a clip (or of one region) of the baseline / that of the candidate."""
    b_count, c_count = ((side.calls if per_call else len(side.clips_ns)) for side in (baseline, candidate))
    return baseline.total_ns * c_count / (candidate.total_ns * b_count)
