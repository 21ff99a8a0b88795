"""Ledger: the difference between two sides as lines that add up to it exactly, in integer nanoseconds.

There is one engine, `close_ledger`: time that labels own, put on levels that contain each other, and anchors, which are levels
whose time was measured by itself. The line of an anchor is what the levels below leave of it, so that everything adds up.

What the clips of our own runs were spent on is worked out in `clip`; here both sides meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

from strobe.core.errors import DataError
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, DENOISE_STEP
from strobe.perf.analysis.ledger.clip import Explained
from strobe.perf.analysis.ledger.intervals import Spread, paired_spread
from strobe.perf.analysis.ledger.parts import AROUND
from strobe.perf.analysis.runs.timeline import KERNEL, OP, TIMED, Label

DILATION: Final = "profiler dilation"
OUTSIDE_WINDOW: Final = "outside profiled window"


class Level(StrEnum):
    """Levels of a ledger in order of inclusion: each is the one before plus its own lines."""

    KERNEL = "kernel"
    SECTION = "attention section"
    CALL = "attention call"
    STEP = "denoise step"
    BLOCK = "frame block"
    STAGE = "stage"
    E2E = "e2e"


CLIP_LEVELS: Final = (Level.KERNEL, Level.SECTION, Level.STEP, Level.BLOCK, Level.E2E)
"""The levels of a clip of ours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of the ledger: the time of both sides, over all units.

    `share` is the part of the whole saving (`None` if that is 0). `path` and `activity` are those of the label, empty for
    the lines of anchors.
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
    """Sum of all lines up to a level.

    Of our own runs, `kernel` and `attention section` lie inside the denoise steps. `tiles` holds this level's time in each tile
    (frame block, step, pair of clips) of the baseline and of the candidate; both are empty from the first anchor on. `ratio` is
    `baseline_ns / candidate_ns`; `None`, the level is missing, if either is not positive.
    """

    level: Level
    baseline_ns: int
    candidate_ns: int
    saved_ns: int
    ratio: float | None
    tiles: tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class CallsEffect:
    """Saving of one kernel or operator, split exactly into fewer calls and faster calls.

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
    """Whole account of baseline against candidate.

    Args:
        num_units: every time below is the sum over so many units: `K` paired clips, steps, calls.
        lines: in order of level; they add up to `baseline_ns`, `candidate_ns` and `saved_ns`.
        levels: in order; each contains the one before.
        effects: one per kernel or operator, by descending absolute saving; they add up to the saving of the busy lines.
        baseline_ns: the highest level, such as end to end.
        candidate_ns: likewise.
        saved_ns: likewise.
        kernel_saved_ns: saving of the attention kernel, wherever it ran; 0 if either side shows none.
        ideal_ns: the highest level if nothing but that kernel had changed (Amdahl): `baseline_ns - kernel_saved_ns`.
        realised_share: `saved_ns / kernel_saved_ns`; `None` if the kernel saved nothing.
        lost_ns: sum of the lines that grew, 0 or negative.
        spread: how sure the savings are, for one unit.
    """

    num_units: int
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
    spread: Spread


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchor:
    """A level that was measured by itself; `name` is the line of the time that the levels below leave of it."""

    level: Level
    name: str
    baseline_ns: int
    candidate_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Owned:
    """Time by label of one side, over all units.

    Args:
        labels: nanoseconds of each label.
        calls: number of calls and exclusive nanoseconds of each kernel or operator; they add up to the busy labels.
        tiles: the labels of each traced tile, not multiplied by anything.
    """

    labels: Mapping[Label, int]
    calls: Mapping[str, tuple[int, int]]
    tiles: Sequence[Mapping[Label, int]]

    @classmethod
    def nothing(cls) -> Owned:
        """Return an empty side, for a ledger of anchors alone."""
        return cls(labels={}, calls={}, tiles=())


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Layout of a ledger: its levels, and the level of each label.

    Args:
        levels: in order; the last is the whole.
        level_of: the first level that contains a label.
        is_kernel: whether a line is the attention kernel.
        num_units: number of units that the times are sums over.
    """

    levels: Sequence[Level]
    level_of: Callable[[Label], Level]
    is_kernel: Callable[[Line], bool]
    num_units: int


def close_ledger(baseline: Owned, candidate: Owned, anchors: Sequence[Anchor], scale: Scale, spread: Spread) -> Ledger:
    """Put labels and anchors on levels so that they add up.

    Args:
        anchors: in order of level. The last level needs one, unless the labels are the whole.
    """
    rank = list(scale.levels).index
    took = [
        (scale.level_of(label), label, str(label), baseline.labels.get(label, 0), candidate.labels.get(label, 0))
        for label in sorted(baseline.labels.keys() | candidate.labels.keys())
    ]
    for anchor in anchors:
        below = [item for item in took if rank(item[0]) <= rank(anchor.level)]
        left = anchor.baseline_ns - sum(item[3] for item in below), anchor.candidate_ns - sum(item[4] for item in below)
        took.append((anchor.level, _NO_LABEL, anchor.name, *left))
    whole = sum(item[3] for item in took), sum(item[4] for item in took)
    lines = tuple(_line(*item, whole[0] - whole[1]) for item in sorted(took, key=lambda item: rank(item[0])))
    levels = tuple(_levels(lines, (baseline, candidate), anchors, scale))
    effects = _effects(baseline.calls, candidate.calls)
    _assert_closed(lines, levels, effects, anchors)
    kernel = [line for line in lines if scale.is_kernel(line)]
    kernel_ns = sum(line.baseline_ns for line in kernel), sum(line.candidate_ns for line in kernel)
    kernel_saved = kernel_ns[0] - kernel_ns[1] if all(kernel_ns) else 0
    return Ledger(
        num_units=scale.num_units,
        lines=lines,
        levels=levels,
        effects=effects,
        baseline_ns=whole[0],
        candidate_ns=whole[1],
        saved_ns=whole[0] - whole[1],
        kernel_saved_ns=kernel_saved,
        ideal_ns=whole[0] - kernel_saved,
        realised_share=(whole[0] - whole[1]) / kernel_saved if kernel_saved else None,
        lost_ns=sum(min(0, line.saved_ns) for line in lines),
        spread=spread,
    )


_NO_LABEL: Final = Label((), "")


def _line(level: Level, label: Label, name: str, baseline_ns: int, candidate_ns: int, whole_saved_ns: int) -> Line:
    saved = baseline_ns - candidate_ns
    return Line(
        level=level,
        name=name,
        path=label.path,
        activity=label.activity,
        baseline_ns=baseline_ns,
        candidate_ns=candidate_ns,
        saved_ns=saved,
        share=saved / whole_saved_ns if whole_saved_ns else None,
    )


def _levels(lines: Sequence[Line], sides: tuple[Owned, Owned], anchors: Sequence[Anchor], scale: Scale) -> Iterable[LevelSum]:
    reached: set[Level] = set()
    traced = True
    for level in scale.levels:
        reached.add(level)
        traced &= all(anchor.level != level for anchor in anchors)
        inside = [line for line in lines if line.level in reached]
        b, c = sum(line.baseline_ns for line in inside), sum(line.candidate_ns for line in inside)
        yield LevelSum(
            level=level,
            baseline_ns=b,
            candidate_ns=c,
            saved_ns=b - c,
            ratio=b / c if b > 0 and c > 0 else None,
            tiles=(_tiles(sides[0], reached, scale), _tiles(sides[1], reached, scale)) if traced else ((), ()),
        )


def _tiles(side: Owned, levels: set[Level], scale: Scale) -> tuple[int, ...]:
    return tuple(sum(ns for label, ns in tile.items() if scale.level_of(label) in levels) for tile in side.tiles)


def _effects(baseline: Mapping[str, tuple[int, int]], candidate: Mapping[str, tuple[int, int]]) -> tuple[CallsEffect, ...]:
    names = baseline.keys() | candidate.keys()
    effects = [_effect(name, baseline.get(name, (0, 0)), candidate.get(name, (0, 0))) for name in names]
    return tuple(sorted(effects, key=lambda effect: (-abs(effect.saved_ns), effect.name)))


def _effect(name: str, baseline: tuple[int, int], candidate: tuple[int, int]) -> CallsEffect:
    (b_calls, b_ns), (c_calls, c_ns) = baseline, candidate
    mean_b = Fraction(b_ns, b_calls) if b_calls else Fraction(c_ns, c_calls)
    mean_c = Fraction(c_ns, c_calls) if c_calls else mean_b
    return CallsEffect(
        name=name,
        baseline_calls=b_calls,
        candidate_calls=c_calls,
        baseline_ns=b_ns,
        candidate_ns=c_ns,
        saved_ns=b_ns - c_ns,
        calls_effect_ns=(b_calls - c_calls) * (mean_b + mean_c) / 2,
        speed_effect_ns=(mean_b - mean_c) * (b_calls + c_calls) / 2,
    )


def _assert_closed(
    lines: Sequence[Line], levels: Sequence[LevelSum], effects: Sequence[CallsEffect], anchors: Sequence[Anchor]
) -> None:
    for anchor in anchors:
        found = next(level for level in levels if level.level == anchor.level)
        assert (found.baseline_ns, found.candidate_ns) == (anchor.baseline_ns, anchor.candidate_ns), (
            f"{anchor.level} does not close"
        )
    assert levels[-1].saved_ns == sum(line.saved_ns for line in lines), "lines do not close"
    busy = sum(line.saved_ns for line in lines if Label(line.path, line.activity).busy)
    assert busy == sum(effect.saved_ns for effect in effects), "calls do not close"
    assert all(e.calls_effect_ns + e.speed_effect_ns == e.saved_ns for e in effects), "calls and speed do not close"


# ------------------------------------------------------------------------------------------------------- our own clips


def level_of(label: Label) -> Level:
    """Return the first level that contains the label. Attention in commit and recache passes counts in the frame block."""
    if label.activity == AROUND:
        return Level.E2E
    if DENOISE_STEP not in label.path:
        return Level.BLOCK
    if ATTENTION not in label.path:
        return Level.STEP
    return Level.KERNEL if is_attention_kernel(label) else Level.SECTION


def is_attention_kernel(label: Label) -> bool:
    """Return whether the label is the attention kernel itself (operator or region on a CPU), in any pass."""
    return ATTENTION_KERNEL in label.path and label.activity in (OP, KERNEL, TIMED)


def clip_ledger(baseline: Explained, candidate: Explained, pairs: Sequence[tuple[int, int]]) -> Ledger:
    """Account for the difference between the timed clips of two variants.

    Args:
        baseline: its clips.
        candidate: as many clips of the other variant, on the same kind of device.
        pairs: times of both sides of each pair of clips, end to end, for the interval of the whole. Lines that were timed clip by
            clip have intervals too; those of a trace have none: one traced clip says nothing of others.

    Raises:
        DataError: unequal numbers of clips.
    """
    if baseline.num_clips != candidate.num_clips or not baseline.num_clips:
        raise DataError(f"{baseline.num_clips} clips against {candidate.num_clips}: an account needs as many of both")
    scale = Scale(
        levels=CLIP_LEVELS,
        level_of=level_of,
        is_kernel=lambda line: is_attention_kernel(Label(line.path, line.activity)),
        num_units=baseline.num_clips,
    )
    owned = [Owned(labels=side.labels, calls=side.calls, tiles=side.units) for side in (baseline, candidate)]
    lines = {}
    if baseline.pairs and candidate.pairs:  # else the lines of one side at least are of a trace
        each = list(zip(baseline.pairs, candidate.pairs, strict=True))
        for label in baseline.labels.keys() | candidate.labels.keys():
            lines[str(label)] = [before.get(label, 0) - after.get(label, 0) for before, after in each]
    per_pair = baseline.num_clips // max(1, len(pairs))
    spread = paired_spread(lines, [before - after for before, after in pairs], per_pair)
    return close_ledger(owned[0], owned[1], (), scale, spread)
