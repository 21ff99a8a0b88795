"""Where the difference between two variants went: lines that add up to it exactly, in integer nanoseconds.

Let `S` be the end-to-end time of a variant summed over its `K` timed clips, `U` the time of the traced frame blocks summed over
the same clips, and `P` the length of those frame blocks in the one traced clip, cut into labels `l` of `P_l` each. Then, exactly,

    S = sum over l of (K * P_l)  -  (K * P - U)  +  (S - U)
                                 profiler dilation   outside profiled window

and what the candidate saves, `S_baseline - S_candidate`, is the sum of what each line saves. The dilation is two lines: that of
the denoise steps, `K * D - V` with `D` their traced and `V` their timed length, and the rest. So steps, frame blocks and the
whole are timed, and only what lies inside a step is traced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

from strobe.core.errors import DataError
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, DENOISE_STEP
from strobe.perf.analysis.partition import Partition
from strobe.perf.analysis.timeline import KERNEL, OP, Label

DILATION: Final = "profiler dilation"
STEP_DILATION: Final = f"{DENOISE_STEP}: {DILATION}"
OUTSIDE_WINDOW: Final = "outside profiled window"


class Level(StrEnum):
    """What contains what: each level is the one before plus its own lines."""

    KERNEL = "kernel"
    SECTION = "attention section"
    STEP = "denoise step"
    BLOCK = "frame block"
    E2E = "e2e"


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedSums:
    """What one variant took without a profiler, summed over its paired clips.

    Args:
        e2e_ns: `S`, all clips from start to end.
        frame_blocks_ns: `U`, the frame blocks that were traced.
        denoise_steps_ns: `V`, the denoise steps in them; 0 if none were timed.
    """

    e2e_ns: int
    frame_blocks_ns: int
    denoise_steps_ns: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of the ledger: what it took in both variants, over all clips.

    `share` is the part of the end-to-end saving (`None` if that is 0). `path` and `activity` are those of the label, empty for
    the lines that are not labels. `profiler dilation` takes away what tracing added: both its columns are usually negative.
    """

    level: Level
    name: str
    path: tuple[str, ...]
    activity: str
    baseline_ns: int
    candidate_ns: int
    saved_ns: int
    share: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelSum:
    """All lines up to a level.

    `kernel` and `attention section` are traced time inside the denoise steps; `denoise step`, `frame block` and `e2e` are the
    timed sums `V`, `U` and `S`; without `V` the step is traced too. `pairs` holds `(baseline, candidate)` of each frame block in
    the one traced clip for the traced levels and is empty for the others. `ratio` is `baseline_ns / candidate_ns`; `None`, the
    level is missing, if either is not positive.
    """

    level: Level
    baseline_ns: int
    candidate_ns: int
    saved_ns: int
    ratio: float | None
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CallsEffect:
    """What one kernel or operator saved, split exactly into fewer calls and faster calls.

    With `n` calls of mean exclusive time `m`: `calls = (n_b - n_c)(m_b + m_c) / 2` and `speed = (m_b - m_c)(n_b + n_c) / 2`. A
    name that only one variant calls has no second mean: all of it is the effect of calls.
    """

    name: str
    baseline_calls: int
    candidate_calls: int
    baseline_ns: int
    candidate_ns: int
    saved_ns: int
    calls_effect_ns: Fraction
    speed_effect_ns: Fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """The whole account of baseline against candidate.

    Args:
        num_clips: `K`, paired clips per variant; every time below is the sum over them.
        lines: in order of level; they add up to `baseline_ns`, `candidate_ns` and `saved_ns`.
        levels: one per `Level`, in order.
        effects: one per kernel or operator, by descending absolute saving; they add up to the saving of the busy lines.
        baseline_ns: end to end.
        candidate_ns: end to end.
        saved_ns: end to end.
        kernel_saved_ns: what the attention kernel saved, in denoise steps and in every other pass; 0 if either trace shows none.
        ideal_ns: end to end if nothing but that kernel had changed (Amdahl): `baseline_ns - kernel_saved_ns`.
        realised_share: `saved_ns / kernel_saved_ns`; `None` if the kernel saved nothing.
        lost_ns: sum of the lines that grew, 0 or negative.
    """

    num_clips: int
    lines: tuple[Line, ...]
    levels: tuple[LevelSum, ...]
    effects: tuple[CallsEffect, ...]
    baseline_ns: int
    candidate_ns: int
    saved_ns: int
    kernel_saved_ns: int
    ideal_ns: int
    realised_share: float | None
    lost_ns: int


def level_of(label: Label) -> Level:
    """The first level that contains the label. Attention outside the denoise steps (commit, recache) is of the frame block."""
    if DENOISE_STEP not in label.path:
        return Level.BLOCK
    if ATTENTION not in label.path:
        return Level.STEP
    return Level.KERNEL if is_attention_kernel(label) else Level.SECTION


def is_attention_kernel(label: Label) -> bool:
    """Whether the attention kernel (operator) itself was running, in whichever pass."""
    return ATTENTION_KERNEL in label.path and label.activity in (OP, KERNEL)


def build_ledger(
    baseline: Partition,
    candidate: Partition,
    *,
    timed_baseline: TimedSums,
    timed_candidate: TimedSums,
    num_clips: int,
) -> Ledger:
    """Account for the difference between two variants.

    Args:
        baseline: traced frame blocks of one clip.
        candidate: the same frame blocks of the other variant.
        timed_baseline: timed sums over the paired clips, with `frame_blocks_ns` over the traced frame blocks.
        timed_candidate: likewise.
        num_clips: paired clips per variant.

    Raises:
        DataError: the variants were not traced on the same frame blocks and kind of device, or a timed sum is not positive.
    """
    _check(baseline, candidate, (timed_baseline, timed_candidate), num_clips)
    sums = (timed_baseline, timed_candidate)
    saved = timed_baseline.e2e_ns - timed_candidate.e2e_ns
    lines = tuple(sorted(_lines((baseline, candidate), sums, num_clips, saved), key=lambda line: list(Level).index(line.level)))
    levels = tuple(_levels(lines, baseline, candidate))
    effects = _effects(baseline, candidate, num_clips)
    _assert_closed(lines, levels, effects, sums)
    kernel = [line for line in lines if is_attention_kernel(Label(line.path, line.activity))]
    kernel_baseline, kernel_candidate = sum(line.baseline_ns for line in kernel), sum(line.candidate_ns for line in kernel)
    kernel_saved = kernel_baseline - kernel_candidate if kernel_baseline and kernel_candidate else 0
    return Ledger(
        num_clips=num_clips,
        lines=lines,
        levels=levels,
        effects=effects,
        baseline_ns=timed_baseline.e2e_ns,
        candidate_ns=timed_candidate.e2e_ns,
        saved_ns=saved,
        kernel_saved_ns=kernel_saved,
        ideal_ns=timed_baseline.e2e_ns - kernel_saved,
        realised_share=saved / kernel_saved if kernel_saved else None,
        lost_ns=sum(min(0, line.saved_ns) for line in lines),
    )


def _check(baseline: Partition, candidate: Partition, sums: Iterable[TimedSums], num_clips: int) -> None:
    if baseline.indices != candidate.indices:
        raise DataError(f"frame blocks {baseline.indices} against {candidate.indices}: trace the same blocks of both variants")
    if (baseline.device == "cpu") != (candidate.device == "cpu"):
        raise DataError(f"a trace of {baseline.device} against one of {candidate.device}: trace both on the same kind of device")
    if num_clips < 1 or any(timed.e2e_ns <= 0 or timed.frame_blocks_ns <= 0 for timed in sums):
        raise DataError("no timed clips: time both variants before building the ledger")


def _lines(
    partitions: tuple[Partition, Partition], sums: tuple[TimedSums, TimedSums], num_clips: int, total: int
) -> Iterable[Line]:
    owned = [partition.owned for partition in partitions]
    for label in sorted(owned[0].keys() | owned[1].keys()):
        took = (num_clips * owned[0][label], num_clips * owned[1][label])
        yield _line(level_of(label), label, str(label), took, total)
    nothing = Label((), "")
    dilation = [timed.frame_blocks_ns - num_clips * part.total_ns for timed, part in zip(sums, partitions, strict=True)]
    if all(timed.denoise_steps_ns for timed in sums):
        traced = [sum(ns for label, ns in side.items() if level_of(label) != Level.BLOCK) for side in owned]
        steps = [timed.denoise_steps_ns - num_clips * ns for timed, ns in zip(sums, traced, strict=True)]
        yield _line(Level.STEP, nothing, STEP_DILATION, (steps[0], steps[1]), total)
        dilation = [whole - part for whole, part in zip(dilation, steps, strict=True)]
    outside = [timed.e2e_ns - timed.frame_blocks_ns for timed in sums]
    yield _line(Level.BLOCK, nothing, DILATION, (dilation[0], dilation[1]), total)
    yield _line(Level.E2E, nothing, OUTSIDE_WINDOW, (outside[0], outside[1]), total)


def _line(level: Level, label: Label, name: str, took: tuple[int, int], total: int) -> Line:
    saved = took[0] - took[1]
    return Line(
        level=level,
        name=name,
        path=label.path,
        activity=label.activity,
        baseline_ns=took[0],
        candidate_ns=took[1],
        saved_ns=saved,
        share=saved / total if total else None,
    )


def _levels(lines: Sequence[Line], baseline: Partition, candidate: Partition) -> Iterable[LevelSum]:
    timed = {Level.BLOCK, Level.E2E} | {line.level for line in lines if line.name == STEP_DILATION}
    took_baseline: Counter[Level] = Counter()
    took_candidate: Counter[Level] = Counter()
    for line in lines:
        took_baseline[line.level] += line.baseline_ns
        took_candidate[line.level] += line.candidate_ns
    reached: set[Level] = set()
    for level in Level:
        reached.add(level)
        b, c = (sum(took[inner] for inner in reached) for took in (took_baseline, took_candidate))
        pairs = () if level in timed else zip(_per_tile(baseline, reached), _per_tile(candidate, reached), strict=True)
        yield LevelSum(
            level=level,
            baseline_ns=b,
            candidate_ns=c,
            saved_ns=b - c,
            ratio=b / c if b > 0 and c > 0 else None,
            pairs=tuple(pairs),
        )


def _per_tile(partition: Partition, levels: set[Level]) -> list[int]:
    return [sum(ns for label, ns in tile.owned.items() if level_of(label) in levels) for tile in partition.tiles]


def _effects(baseline: Partition, candidate: Partition, num_clips: int) -> tuple[CallsEffect, ...]:
    calls: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    took: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for side, partition in enumerate((baseline, candidate)):
        for call in partition.calls:
            calls[side][call.name] += num_clips
            took[side][call.name] += num_clips * call.exclusive_ns
    names = calls[0].keys() | calls[1].keys()
    effects = [_effect(name, (calls[0][name], calls[1][name]), (took[0][name], took[1][name])) for name in names]
    return tuple(sorted(effects, key=lambda effect: (-abs(effect.saved_ns), effect.name)))


def _effect(name: str, calls: tuple[int, int], took: tuple[int, int]) -> CallsEffect:
    mean_b, mean_c = (Fraction(took[side], calls[side]) if calls[side] else None for side in (0, 1))
    mean_b, mean_c = (mean_c if mean_b is None else mean_b), (mean_b if mean_c is None else mean_c)
    assert mean_b is not None and mean_c is not None, name
    return CallsEffect(
        name=name,
        baseline_calls=calls[0],
        candidate_calls=calls[1],
        baseline_ns=took[0],
        candidate_ns=took[1],
        saved_ns=took[0] - took[1],
        calls_effect_ns=(calls[0] - calls[1]) * (mean_b + mean_c) / 2,
        speed_effect_ns=(mean_b - mean_c) * (calls[0] + calls[1]) / 2,
    )


def _assert_closed(
    lines: tuple[Line, ...],
    levels: tuple[LevelSum, ...],
    effects: tuple[CallsEffect, ...],
    sums: tuple[TimedSums, TimedSums],
) -> None:
    step, block, whole = levels[-3:]
    if not step.pairs:
        assert (step.baseline_ns, step.candidate_ns) == tuple(timed.denoise_steps_ns for timed in sums), "steps do not close"
    assert (whole.baseline_ns, whole.candidate_ns) == tuple(timed.e2e_ns for timed in sums), "end to end does not close"
    assert (block.baseline_ns, block.candidate_ns) == tuple(timed.frame_blocks_ns for timed in sums), "frame blocks do not close"
    busy = sum(line.saved_ns for line in lines if Label(line.path, line.activity).busy)
    assert busy == sum(effect.saved_ns for effect in effects), "calls do not close"
    assert all(e.calls_effect_ns + e.speed_effect_ns == e.saved_ns for e in effects), "calls and speed do not close"
