"""Ledger of two sides: parts, timed clips, intervals, and lines that add up to the difference exactly."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise, takewhile
from typing import Annotated as A
from typing import Final, Literal, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from strobe.core import spans
from strobe.core.errors import DataError
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, DENOISE_STEP
from strobe.perf.analysis.device.activity import HOST_LATE, IDLE, LAUNCH_LATENCY, PROFILER_OVERHEAD, UNLINKED
from strobe.perf.analysis.parts import OF_KERNELS, OF_REGION, OF_STAGE, Part
from strobe.perf.analysis.runs.timeline import KERNEL, NOT_LINKED, OP, OUTSIDE, TIMED, UNMATCHED, Label, Partition, Path, summed
from strobe.perf.measure.stats import LEVEL, Interval, mean_bounds, percentile
from strobe.perf.records.record import Clip, Regions
from strobe.perf.records.store import RunRecords
from strobe.perf.table.fields import exact_cell
from strobe.perf.table.model import Code, LevelName, Share
from strobe.perf.table.rows import col, gathered

MISMATCH: Final = "timed run minus trace"
"""Activity of the untraced run's time beyond the trace; negative where the trace shows more."""
FOCAL: Final = ("focal",)
"""Path of the focal kernels of a foreign trace."""
UNTRACED: Final = "untraced"
"""Activity of frame blocks of a kind that no trace holds."""
AROUND: Final = "before and after the frame blocks"
"""Activity of a clip's time outside its frame blocks."""
NOT_APART: Final = "not told apart"
"""Innermost name of work in a graph whose kernels cannot be labelled, and of the same pass on the other side."""
_COPIES: Final = frozenset({"memcpy", "memset"})
_WAITING: Final = frozenset({HOST_LATE, LAUNCH_LATENCY, PROFILER_OVERHEAD})
_OF_REGION: Final = OF_REGION | {part.value: part for part in OF_KERNELS}
"""Other kernels of a compiled pass have their part as the innermost region."""


def part_of(label: Label) -> Part:
    """Return the part that a label belongs to."""
    path, activity = label
    if activity in (MISMATCH, UNTRACED) or path in (NOT_LINKED, OUTSIDE) or UNMATCHED in path:
        return Part.UNNAMED
    if activity == AROUND:
        return Part.ENDS
    if activity in IDLE:
        return Part.WAITING if activity in _WAITING else Part.GAPS
    if not path:
        return Part.UNNAMED
    if NOT_APART in path:
        return Part.PASS
    if activity == "comm":
        return Part.COMMUNICATION
    stage = OF_STAGE.get(path[0], Part.UNNAMED)
    if stage is Part.DECODING:
        return stage
    if activity in _COPIES:
        return Part.COPIES
    return next((_OF_REGION[name] for name in reversed(path) if name in _OF_REGION), stage)


def trace_part(label: Label) -> Part:
    """Return the part that a label of a foreign trace belongs to.

    Args:
        label: focal kernel, section or step, and what ran there; without a path, what a log measured beyond the trace.
    """
    path, activity = label
    if not path or activity == UNLINKED:
        return Part.UNNAMED
    if activity in IDLE:
        return Part.WAITING if activity in _WAITING else Part.GAPS
    if path == FOCAL:
        return Part.FOCAL
    if activity == "comm":
        return Part.COMMUNICATION
    if activity in _COPIES:
        return Part.COPIES
    return Part.SECTION if path == ("section",) else Part.OTHER_KERNELS


# Time of one variant's timed clips, label by label, exactly.
#
# The time of a clip is that of the untraced run: of each frame block from its start to the start of the next, and of what lies
# around them. How it divides comes
#
# * on a CPU from the regions that the same clips added up;
# * on a GPU from a traced clip: its busy time counts as it is, and idle is what the timed frame blocks have left over, divided as
#   the trace's idle time is by cause and place. What the trace shows beyond the timed run is a label of its own, negative.
#
# Frame blocks are accounted for by kind, since the clock of a GPU at its power limit moves single ones by several per cent.

K = TypeVar("K", bound=Hashable)
_AROUND_LABEL: Final = Label(("clip",), AROUND)
ClipKind = Literal["first", "filling", "steady", "switch", "start and end"]
"""Kinds of frame block, and the time around them."""
CLIP_KINDS: Final[tuple[ClipKind, ...]] = get_args(ClipKind)
Labels = Mapping[Label, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """Timed clips of one variant by kind of frame block and label.

    Args:
        num_clips: clips, of which every time is the sum.
        kinds: time of each label in the frame blocks of a kind; all of them add up to the clips.
        num_blocks: frame blocks of each kind in one clip.
        calls: number and exclusive time of each kernel, operator or region; they add up to the busy labels.
        units: labels of what levels are compared by, in order: each pair of clips on a CPU, each traced steady frame block on a
            GPU; not multiplied by anything.
        pairs: labels of each pair of clips, where they were timed pair by pair; else empty.
        traced_ns, timed_ns: length of the traced frame blocks, in the traced clip and as a mean of the timed ones; 0 where no
            trace was used.
        marking_ns: time that marking the regions took, in all clips.
        stood_for: frame blocks that the trace lacks although it has others of their kind, which stand for them.
        merged: regions that the other side does not show, each with what its time counts as instead on both.
    """

    num_clips: int
    kinds: Mapping[ClipKind, Labels]
    num_blocks: Mapping[ClipKind, int]
    calls: Mapping[str, tuple[int, int]]
    units: tuple[Labels, ...]
    pairs: tuple[Labels, ...] = ()
    traced_ns: int = 0
    timed_ns: int = 0
    marking_ns: int = 0
    stood_for: tuple[int, ...] = ()
    merged: tuple[tuple[str, str], ...] = ()

    @property
    def disturbed(self) -> float:
        """By how much the tracer lengthened the traced frame blocks; on a CPU the share of the clips that marking took."""
        if self.timed_ns:
            return self.traced_ns / self.timed_ns - 1
        return self.marking_ns / (sum(self.labels.values()) or 1)

    @property
    def varied(self) -> float:
        """By how much of their mean the busy times of the traced steady frame blocks differ; 0 on a CPU."""
        busy = [sum(ns for label, ns in unit.items() if label.busy) for unit in self.units] if self.traced_ns else []
        return len(busy) * (max(busy) - min(busy)) / (sum(busy) or 1) if busy else 0.0

    @property
    def labels(self) -> Counter[Label]:
        return summed(self.kinds.values())


def block_kinds(run: RunRecords, names: Collection[str]) -> tuple[ClipKind, ...]:
    """Return the kind of each frame block of a clip: steady only if it is steady in all of these variants.

    A run of the caller's own code says nothing of windows and switches: all blocks but the first count as steady. Calls of
    functions are one block, all alike.
    """
    work = run.header.workload
    steady: ClipKind = "steady"
    if run.header.kind == "calls":
        return (steady,)
    if work is None:
        last = max((span.index or 0 for span in run.spans if span.name == spans.FRAME_BLOCK), default=0)
        return ("first", *[steady] * last)
    full = max((run.variant(name).window or 0 for name in names), default=0)
    filling = [index for index in range(work.frame_blocks) if (index + 1) * work.latents_per_block < full]
    kinds: dict[int, ClipKind] = dict.fromkeys(filling, "filling")
    kinds |= {prompt.frame_block: "switch" for prompt in work.prompts}
    kinds[0] = "first"
    return tuple(kinds.get(index, steady) for index in range(work.frame_blocks))


def apportion(total: int, weights: Mapping[K, int]) -> dict[K, int]:
    """Divide a whole number in proportion to weights, exactly: what rounding leaves goes to the largest remainders.

    Raises:
        DataError: there is something to divide and nothing to divide it by.
    """
    whole = sum(weights.values())
    if not whole:
        if total:
            raise DataError(f"{total} ns cannot be divided: all weights are 0")
        return dict.fromkeys(weights, 0)
    shares = {key: divmod(total * weight, whole) for key, weight in weights.items()}
    left = total - sum(quotient for quotient, _ in shares.values())
    first = sorted(shares, key=lambda key: -shares[key][1])[:left]
    return {key: quotient + (key in first) for key, (quotient, _) in shares.items()}


def coarsened(side: Explained, stages: Collection[str]) -> Explained:
    """Put all time of these stages on one label each, so that neither side shows more detail than the other."""
    return _relabelled(side, lambda path: (path[0], NOT_APART) if path and path[0] in stages else path)


_TOLD: Final = (*(name for name in OF_REGION if name not in spans.PIECES), spans.VAE_DECODE)
"""Regions that every variant enters, the innermost first."""


def levelled(baseline: Explained, candidate: Explained) -> tuple[Explained, Explained]:
    """Bring the labels of both sides to one depth: a region that only one of them shows counts as its parent.

    A variant may lack a region because its trace does. Its time is then no saving of that region.
    """
    sides = [baseline, candidate]
    for name in _TOLD:
        shown = [any(ns and name in label.path for label, ns in side.labels.items()) for side in sides]
        if shown[0] != shown[1]:
            into = next(label.path for label, ns in sides[shown.index(True)].labels.items() if ns and name in label.path)
            above = into[into.index(name) - 1] if into.index(name) else spans.FRAME_BLOCK
            moved = [_relabelled(side, partial(_until, name)) for side in sides]
            sides = [replace(side, merged=(*side.merged, (name, above))) for side in moved]
    return sides[0], sides[1]


def _until(name: str, path: Path) -> Path:
    return tuple(takewhile(lambda each: each != name, path))


def _relabelled(side: Explained, path_of: Callable[[Path], Path]) -> Explained:
    def moved(labels: Labels) -> Counter[Label]:
        total: Counter[Label] = Counter()
        for label, ns in labels.items():
            total[Label(path_of(label.path), label.activity)] += ns
        return total

    return replace(
        side,
        kinds={kind: moved(labels) for kind, labels in side.kinds.items()},
        units=tuple(map(moved, side.units)),
        pairs=tuple(map(moved, side.pairs)),
    )


TimedClip: TypeAlias = tuple[tuple[int, ...], int]
"""One clip without a profiler: the time of each frame block until the next one starts, and all other time, ns."""


def cut_clips(run: RunRecords, clips: Iterable[Clip]) -> dict[int, TimedClip]:
    """Cut timed clips at the starts of their frame blocks, the last at its own end; return them by the clips' order.

    Raises:
        DataError: a clip without an end-to-end region, or that lacks frame blocks.
    """
    of_clip, found = gathered((span.order, span) for span in run.spans), dict[int, TimedClip]()
    for clip in clips:
        own = of_clip.get(clip.order, [])
        e2e = [span for span in own if span.name == spans.E2E]
        blocks = sorted((span for span in own if span.name == spans.FRAME_BLOCK), key=lambda span: span.index or 0)
        if len(e2e) != 1 or [span.index for span in blocks] != list(range(len(blocks))) or not blocks:
            raise DataError(f"clip {clip.clip} of {clip.variant!r} lacks its end-to-end region or frame blocks; measure it again")
        starts = [span.start_ns for span in blocks] + [blocks[-1].start_ns + blocks[-1].value_ns]
        lengths = tuple(after - before for before, after in pairwise(starts))
        found[clip.order] = lengths, e2e[0].value_ns - sum(lengths)
    return found


def explain_by_regions(run: RunRecords, pairs: Sequence[Sequence[Clip]], kinds: Sequence[ClipKind]) -> Explained:
    """Account for timed clips by the regions that were timed in them.

    Raises:
        DataError: a clip without such regions, or regions longer than what contains them.
    """
    lines = {line.order: line for line in run.regions}
    by_kind: defaultdict[ClipKind, Counter[Label]] = defaultdict(Counter)
    calls: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    units, marking = [], 0
    cut = cut_clips(run, (clip for clips in pairs for clip in clips))
    for clips in pairs:
        unit: Counter[Label] = Counter()
        for clip in clips:
            line = lines.get(clip.order)
            if line is None:
                raise DataError(f"clip {clip.clip} of {clip.variant!r} added up no regions; measure it again")
            blocks_ns, around_ns = cut[clip.order]
            own = _own_times(line, blocks_ns, calls)
            for index, labels in enumerate(own):
                by_kind[kinds[index]].update(labels)
                unit.update(labels)
            by_kind["start and end"][_AROUND_LABEL] += around_ns
            unit[_AROUND_LABEL] += around_ns
            marking += line.region_ns * sum(map(sum, line.calls))
        units.append(unit)
    return Explained(
        num_clips=sum(map(len, pairs)),
        kinds={kind: by_kind[kind] for kind in CLIP_KINDS if kind in by_kind},
        num_blocks=Counter(kinds),
        calls={name: (count, ns) for name, (count, ns) in calls.items()},
        units=tuple(units),
        pairs=tuple(units),
        marking_ns=marking,
    )


def _own_times(line: Regions, blocks_ns: Sequence[int], calls: Mapping[str, list[int]]) -> list[Counter[Label]]:
    """Compute the time of each path without its inner regions, by frame block; the frame block's own time is the rest."""
    found: list[Counter[Label]] = [Counter({Label((), TIMED): ns}) for ns in blocks_ns]
    calls[spans.FRAME_BLOCK][0] += len(found)
    for column, index in enumerate(line.blocks):
        for path, count, value_ns in zip(line.paths, line.calls, line.value_ns, strict=True):
            found[index][Label(path, TIMED)] += value_ns[column]
            found[index][Label(path[:-1], TIMED)] -= value_ns[column]
            calls[path[-1]][0] += count[column]
    for labels in found:
        for label, ns in labels.items():
            if ns < 0 and label.path:
                raise DataError(f"regions inside {' / '.join(label.path)} took {-ns} ns longer than it; measure the run again")
            calls[label.region][1] += ns
    return found


def explain_by_trace(run: RunRecords, clips: Sequence[Clip], kinds: Sequence[ClipKind], traced: Partition) -> Explained:
    """Account for timed clips by a traced clip of the same variant.

    Args:
        traced: some or all frame blocks of one clip. A kind that it lacks stays unexplained.

    Raises:
        DataError: no timed clips, or one that lacks frame blocks.
    """
    if not clips:
        raise DataError("no timed clips: time the variant before its account is made")
    timed = list(cut_clips(run, clips).values())
    tiles = {tile.index: tile for tile in traced.tiles}
    by_kind: dict[ClipKind, Labels] = {}
    for kind in dict.fromkeys(kinds):
        indices = [index for index, each in enumerate(kinds) if each == kind]
        took = sum(blocks_ns[index] for blocks_ns, _ in timed for index in indices)
        seen = [tiles[index].owned for index in indices if index in tiles]
        scale = Fraction(len(clips) * len(indices), len(seen) or 1)
        by_kind[kind] = _divided(took, seen, scale) if seen else {Label((f"{kind} frame blocks",), UNTRACED): took}
    by_kind["start and end"] = {_AROUND_LABEL: sum(around_ns for _, around_ns in timed)}
    steady = [tile for tile in traced.tiles if kinds[tile.index] == "steady"] or list(traced.tiles)
    return Explained(
        num_clips=len(clips),
        kinds=by_kind,
        num_blocks=Counter(kinds),
        calls=_calls(traced, sum(ns for label, ns in summed(by_kind.values()).items() if label.busy), len(clips)),
        units=tuple(tile.owned for tile in steady),
        traced_ns=sum(tile.end_ns - tile.start_ns for tile in traced.tiles),
        timed_ns=round(Fraction(sum(blocks_ns[index] for blocks_ns, _ in timed for index in tiles), len(clips))),
        stood_for=tuple(at for at, kind in enumerate(kinds) if at not in tiles and any(kinds[seen] == kind for seen in tiles)),
    )


def _divided(took_ns: int, seen: Sequence[Labels], scale: Fraction) -> Labels:
    """Scale the busy labels of traced frame blocks; divide the rest of the timed ones in proportion to traced idle time."""
    traced = summed(seen)
    idle = {label: ns for label, ns in traced.items() if label.activity in IDLE}
    busy = {label: ns for label, ns in traced.items() if label.activity not in IDLE}
    found = apportion(round(scale * sum(busy.values())), busy)
    left = took_ns - sum(found.values())
    if left >= 0 and any(idle.values()):
        return found | apportion(left, idle)
    return found | {Label((), MISMATCH): left}


def _calls(traced: Partition, busy_ns: int, num_clips: int) -> dict[str, tuple[int, int]]:
    """Scale the calls of the traced frame blocks to the timed clips; their time adds up to the busy labels."""
    counts: Counter[str] = Counter()
    took: Counter[str] = Counter()
    for call in traced.calls:
        counts[call.name] += num_clips
        took[call.name] += call.exclusive_ns
    shares = apportion(busy_ns, took) if any(took.values()) else dict.fromkeys(took, 0)
    return {name: (counts[name], shares[name]) for name in counts}


# 95 % intervals of the savings of a ledger's lines, from the steps or clips in which they were measured.

MIN_STEPS: Final = 5
"""Fewest steps of each side with an interval.

A percentile bootstrap is too narrow by about sqrt((n - 1) / n), and does not know how little n values say of their own spread.
For the difference of two means of n steps each, its 95 % interval held the true value in 67, 80, 86 and 89 % of 1,500 simulated
cases for n = 2, 3, 4 and 5, in 91 % for 10 and in 93 % for 30, for normal and exponential steps alike. From 5 on it fails about
twice as often as it says, and the report says so; with 3 it fails four times as often: a resample of one step alone (1 in 27) is
then likelier than the 2.5 % that an end leaves out, so that the interval of a side is no more than the range of its steps.
"""
RESAMPLES: Final = 2_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """95 % intervals of savings in ns, for one unit of the ledger. Each is of one line: they do not add up.

    Args:
        lines: by the line's name; a line that is not there has none.
        total: interval of the sum of all lines.
    """

    lines: Mapping[str, Interval] = field(default_factory=dict)
    total: Interval | None = None
    steps: A[tuple[int, ...], col("number of compared steps of the baseline and of the candidate, or of pairs of clips")] = ()
    none_because: A[str, col("reason why there are no intervals; empty if there are some")] = ""


Sampled: TypeAlias = tuple[Sequence[Mapping[Label, int]], Sequence[int], Fraction]
"""Time of each label in each step of a side; weights: 1 each if the unit is a step, the focal calls of each if it is made of
calls; and weights in a unit: 1, or the calls of a stage. A unit is `scale * sum of a label / sum of the weights`."""


def step_spread(baseline: Sampled, candidate: Sampled) -> Spread:
    """Bootstrap the saving of each label and of all: whole steps are resampled, those of each side by themselves.

    Percentile bootstrap with `RESAMPLES` resamples, the same for the same steps. Steps are taken to be independent of each other;
    the sides were measured at different times, so drift between them is in no interval.
    """
    sizes = len(baseline[0]), len(candidate[0])
    if min(sizes) < MIN_STEPS:
        return Spread(none_because=f"{sizes[0]} and {sizes[1]} compared steps, and an interval needs {MIN_STEPS} on each side")
    labels = sorted({label for side in (baseline, candidate) for step in side[0] for label in step})
    found = [_resampled(side, labels, seed) for seed, side in enumerate((baseline, candidate))]
    if found[0] is None or found[1] is None:
        return Spread(none_because="focal calls are in so few of the steps that some resamples hold none")
    saved = [_interval(column) for column in (found[0] - found[1]).T]
    return Spread(lines={str(label): each for label, each in zip(labels, saved, strict=False)}, total=saved[-1], steps=sizes)


def _resampled(side: Sampled, labels: Sequence[Label], seed: int) -> NDArray[np.float64] | None:
    """Return one unit of each label, and of their sum, in every resample; `None` if a resample has no weight.

    Sums of nanoseconds are exact in a double below 2 ** 53, so the order of summation changes nothing.
    """
    owned, step_weights, scale = side
    n = len(owned)
    rows = [
        (*(step.get(label, 0) for label in labels), sum(step.values()), weight)
        for step, weight in zip(owned, step_weights, strict=True)
    ]
    table, sums = np.array(rows, np.float64), np.empty((RESAMPLES, len(labels) + 2))
    source = np.random.PCG64(seed)
    for row in sums:
        row[:] = np.bincount((source.random_raw(n) % n).astype(np.int64), minlength=n).astype(np.float64) @ table
    weights = sums[:, -1:]
    return float(scale) * sums[:, :-1] / weights if weights.all() else None


def _interval(values: NDArray[np.float64]) -> Interval:
    ranked, edge = sorted(values.tolist()), (1 - LEVEL) / 2
    return Interval(low=percentile(ranked, edge), high=percentile(ranked, 1 - edge))


def paired_spread(saved: Mapping[str, Sequence[int]], total: Sequence[int], per_pair: int) -> Spread:
    """Compute intervals of lines timed in interleaved pairs of clips: `mean +- t * s / sqrt(n)` of the pairs' savings.

    Args:
        saved: by the line's name, what each pair saved.
        per_pair: units in a pair: clips of each variant.
    """
    if len(total) < 2:
        return Spread(none_because="fewer than two pairs")

    def interval(values: Sequence[int]) -> Interval:
        low, high = mean_bounds(values)
        return Interval(low=low / per_pair, high=high / per_pair)

    return Spread(lines={name: interval(each) for name, each in saved.items()}, total=interval(total), steps=(len(total),))


# Ledger: the difference between two sides as lines that add up to it exactly, in integer nanoseconds.
#
# There is one engine, `close_ledger`: time that labels own, put on levels that contain each other, and anchors, which are levels
# whose time was measured by itself. The line of an anchor is what the levels below leave of it, so that everything adds up.

DILATION: Final = "profiler dilation"
OUTSIDE_WINDOW: Final = "outside profiled window"


LEVEL_WORDS: Final[dict[LevelName, str]] = {
    "kernel": "kernel", "section": "attention section", "attention": "attention call", "step": "denoise step",
    "block": "frame block", "stage": "stage", "e2e": "e2e",
}  # fmt: skip
"""Levels of a ledger in order of inclusion, each the one before plus its own lines; and what the accounts of our clips say."""
CLIP_LEVELS: Final[tuple[LevelName, ...]] = ("kernel", "section", "step", "block", "e2e")
"""The levels of a clip of ours."""
MAX_REALISED: Final = 10
"""Largest saving of a level / saving of the kernel that the kernel can have caused."""
COVERS: Final = "time in which such work ran, whatever else ran at the same time"
_WORK_WORDS: Final = {"kernel": "kernels", "comm": "communication", "memcpy": "copies", "memset": "memsets"}


def total(times: Iterable[Fraction]) -> Fraction:
    """Return the exact sum of times; 0 of none."""
    return sum(times, Fraction(0))


def both_totals(both: Iterable[tuple[Fraction, Fraction]]) -> tuple[Fraction, Fraction]:
    """Return the exact sums of times of both sides; 0 of none."""
    b, c = tuple(zip(*both, strict=True)) or ((), ())
    return total(b), total(c)


@dataclass(frozen=True, kw_only=True, slots=True)
class BothSides:
    """Exact times of both sides."""

    baseline_ns: A[Fraction, col("exact time of the baseline", "baseline", exact_cell, total=sum)]
    candidate_ns: A[Fraction, col("exact time of the candidate", "candidate", exact_cell, total=sum)]

    @property
    def both(self) -> tuple[Fraction, Fraction]:
        return self.baseline_ns, self.candidate_ns

    @property
    def saved_ns(self) -> A[Fraction, col("time of the baseline - time of the candidate", "saved", exact_cell, total=sum)]:
        return self.baseline_ns - self.candidate_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class WithInterval(BothSides):
    """Exact times of both sides, with the interval of the saving where there is one."""

    interval: Interval | None = None

    @property
    def saved_low_ns(self) -> A[float | None, col("lower end of the 95 % interval of the saving; null: no interval")]:
        return None if self.interval is None else round(self.interval.low, 3)

    @property
    def saved_high_ns(self) -> A[float | None, col("upper end of the interval; null: no interval")]:
        return None if self.interval is None else round(self.interval.high, 3)


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerLine(WithInterval):
    """One line of an account; its lines add up exactly.

    Args:
        name: unique in its account.
        label: of the time; empty for the lines of anchors.
    """

    level: A[LevelName, col("lowest level that contains the time")]
    name: str
    label: Label
    share: A[float | None, col("part of the saving, or of the loss, of all lines; null if that is 0", "share", Share)]
    covers_ns: A[tuple[Fraction, ...], col(f"{COVERS}, of both sides; empty: the line is no label")] = ()

    @property
    def line(self) -> A[str, col("region or activity that the time was spent on", "line")]:
        if self.label.path not in (FOCAL, ("section",), ("step",)):
            return self.name
        (place,), activity = self.label
        words = _WORK_WORDS.get(activity, f"idle: {activity}")
        if place == "focal":
            return "focal kernel" if activity == "kernel" else f"focal {words}"
        words = f"other {words}" if activity == "kernel" else words
        return f"section, {words}" if place == "section" else words


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelSum(BothSides):
    """Sum of all lines up to a level.

    Of our own runs, `kernel` and `attention section` lie inside the denoise steps. `tiles` holds this level's time in each tile
    (frame block, step, pair of clips) of the baseline and of the candidate; both are empty from the first anchor on.
    """

    level: LevelName
    tiles: tuple[tuple[int, ...], ...]

    @property
    def ratio(self) -> float | None:
        """`baseline_ns / candidate_ns`; `None`, the level is missing, if either is not positive."""
        b, c = self.both
        return float(b / c) if b > 0 and c > 0 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class CallsEffect(BothSides):
    """Saving of one kernel or operator, split into the effect of fewer calls and of faster calls, which add up.

    Args:
        calls: with `n` calls of mean exclusive time `m`, fewer calls save `(n_b - n_c)(m_b + m_c) / 2` and faster ones
            `(m_b - m_c)(n_b + n_c) / 2`. A name that only one variant calls has no second mean: all is the effect of calls.
    """

    kernel: A[str, col("normalised name of the kernel", "kernel", Code)]
    calls: A[tuple[Fraction, Fraction], col("calls per unit of the baseline and of the candidate, exact text")]

    @property
    def by_calls_ns(self) -> A[Fraction, col("saving by fewer calls", "by fewer calls", exact_cell, total=sum)]:
        return (self.calls[0] - self.calls[1]) * total(self._means) / 2

    @property
    def by_speed_ns(self) -> A[Fraction, col("saving by faster calls", "by faster calls", exact_cell, total=sum)]:
        b, c = self._means
        return (b - c) * total(self.calls) / 2

    @property
    def _means(self) -> tuple[Fraction, Fraction]:
        means = [ns / calls for ns, calls in zip(self.both, self.calls, strict=True) if calls]
        return means[0], means[-1]


UnitName = Literal["clip", "stage", "step", "call", "window"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger(WithInterval):
    """Account (ledger) of the difference in one unit, such as a step; its lines add up exactly.

    Args:
        num_units: units in which every time is a whole number of ns. Times of clips are the sum over so many paired clips, all
            others those of one unit.
        lines: in order of level.
        levels: in order; each contains the one before.
        kernels: they add up to the saving of the busy lines.
        kinds: time of the other kernels' line by part, in one unit of both; the parts add up to it.
    """

    num_units: int
    ranks: A[str, col("ranks that the account compares; empty if each side is one trace")] = ""
    unit: A[UnitName, col("unit of the times: stage, step, call or window")] = "clip"
    why: A[str, col("reason for the choice of the unit")] = ""
    missing: A[Mapping[str, str], col("by level that is not in the account: the reason")] = field(default_factory=dict)
    intervals: A[Spread, col("number of steps behind the intervals")]
    kernel_saved_ns: A[Fraction, col("saving of the focal kernel in one unit, ns as exact text; 0 if a side shows none")]
    lines: A[tuple[LedgerLine, ...], col("all lines of the account")]
    levels: tuple[LevelSum, ...]
    kernels: A[tuple[CallsEffect, ...], col("saving of each kernel, largest first")]
    kinds: Mapping[Part, tuple[Fraction, Fraction]] = field(default_factory=dict)

    @property
    def ideal_ns(self) -> A[Fraction, col("time of one unit if only the focal kernel had changed (Amdahl), ns as exact text")]:
        return self.baseline_ns - self.kernel_saved_ns

    @property
    def kernel_moved(self) -> bool:
        """Whether the whole saving is at most `MAX_REALISED` times the kernel's, so that the two can be compared."""
        return self.kernel_saved_ns > 0 and abs(self.saved_ns) <= MAX_REALISED * self.kernel_saved_ns

    @property
    def realised_share(self) -> A[float | None, col("`saved_ns` / `kernel_saved_ns`; null: the latter is too small")]:
        return float(self.saved_ns / self.kernel_saved_ns) if self.kernel_moved else None

    @property
    def lost_ns(self) -> A[Fraction, col("sum of `saved_ns` over the lines that grew, 0 or negative, ns as exact text")]:
        return total(line.saved_ns for line in self.lines if line.saved_ns < 0)


OwnedTime: TypeAlias = tuple[
    Mapping[Label, int | Fraction], Mapping[str, tuple[int | Fraction, int | Fraction]], Sequence[Mapping[Label, int]]
]
"""Time of one side: nanoseconds of each label; number of calls and exclusive nanoseconds of each kernel or operator, which add up
to the busy labels; and the labels of each traced tile, not multiplied by anything."""
Anchor: TypeAlias = tuple[LevelName, str, tuple[Fraction, Fraction]]
"""A level that was measured by itself: the level, the line of the time that the levels below leave of it, and both sides."""
KERNEL_LINE: Final = "focal kernel"
"""Line of an anchor that is the kernel itself."""


def close_ledger(
    sides: tuple[OwnedTime, OwnedTime],
    anchors: Sequence[Anchor],
    levels: Sequence[LevelName],
    level_of: Callable[[Label], LevelName],
    num_units: int,
    spread: Spread,
    inclusive: Mapping[Label, tuple[Fraction, Fraction]] = {},
) -> Ledger:
    """Put labels and anchors on levels so that they add up.

    Args:
        anchors: in order of level. The last level needs one, unless the labels are the whole.
        levels: in order; the last is the whole.
        num_units: as in `Ledger`.
        spread: how sure the savings are, for one unit.
        inclusive: time that each label covers by itself in one unit of both, whatever else ran.
    """
    rank = list(levels).index
    (before, b_calls, _), (after, c_calls, _) = sides
    took: list[tuple[LevelName, str, Label, tuple[Fraction, Fraction]]] = [
        (level_of(label), str(label), label, (Fraction(before.get(label, 0)), Fraction(after.get(label, 0))))
        for label in sorted(before.keys() | after.keys())
    ]
    for level, name, both in anchors:
        below = both_totals(item[3] for item in took if rank(item[0]) <= rank(level))
        took.append((level, name, Label((), ""), (both[0] - below[0], both[1] - below[1])))
    took.sort(key=lambda item: rank(item[0]))
    b, c = both_totals(item[3] for item in took)
    lines = tuple(
        LedgerLine(
            level=level,
            name=name,
            label=label,
            baseline_ns=b_ns,
            candidate_ns=c_ns,
            share=float((b_ns - c_ns) / (b - c)) if b != c else None,
            interval=spread.lines.get(name),
            covers_ns=inclusive.get(label, ()),
        )
        for level, name, label, (b_ns, c_ns) in took
    )
    effects = [
        CallsEffect(kernel=name, calls=(b_n, c_n), baseline_ns=b_ns, candidate_ns=c_ns)
        for name in b_calls.keys() | c_calls.keys()
        for b_n, b_ns, c_n, c_ns in [map(Fraction, (*b_calls.get(name, (0, 0)), *c_calls.get(name, (0, 0))))]
    ]
    effects.sort(key=lambda effect: (-abs(effect.saved_ns), effect.kernel))
    kernel_ns = both_totals(line.both for line in lines if line.name == KERNEL_LINE or is_attention_kernel(line.label))
    sums, reached = list[LevelSum](), set[LevelName]()
    for level in levels:
        reached.add(level)
        inside = both_totals(line.both for line in lines if line.level in reached)
        known = sides if reached.isdisjoint(anchor[0] for anchor in anchors) else ()
        tiles = [tuple(sum(ns for label, ns in tile.items() if level_of(label) in reached) for tile in side[2]) for side in known]
        sums.append(LevelSum(level=level, baseline_ns=inside[0], candidate_ns=inside[1], tiles=tuple(tiles) or ((), ())))
    found = Ledger(
        num_units=num_units,
        lines=lines,
        levels=tuple(sums),
        kernels=tuple(effects),
        baseline_ns=b,
        candidate_ns=c,
        kernel_saved_ns=kernel_ns[0] - kernel_ns[1] if all(kernel_ns) else Fraction(0),
        interval=spread.total,
        intervals=spread,
    )
    for level, _, both in anchors:
        assert next(each.both for each in found.levels if each.level == level) == both, f"{level} does not close"
    assert found.levels[-1].both == found.both, "lines do not close"
    busy = sum(line.saved_ns for line in found.lines if line.label.busy)
    assert busy == sum(each.saved_ns for each in found.kernels), "calls do not close"
    assert all(each.by_calls_ns + each.by_speed_ns == each.saved_ns for each in found.kernels), "calls and speed do not close"
    return found


def level_of(label: Label) -> LevelName:
    """Return the first level that contains the label. Attention in commit and recache passes counts in the frame block."""
    if label.activity == AROUND:
        return "e2e"
    if DENOISE_STEP not in label.path:
        return "block"
    if ATTENTION not in label.path:
        return "step"
    return "kernel" if is_attention_kernel(label) else "section"


def is_attention_kernel(label: Label) -> bool:
    """Return whether the label is the attention kernel itself (operator or region on a CPU), in any pass, or a focal kernel."""
    return label.path == FOCAL or (ATTENTION_KERNEL in label.path and label.activity in (OP, KERNEL, TIMED))


def clip_ledger(baseline: Explained, candidate: Explained, pairs: Sequence[tuple[int, int]]) -> Ledger:
    """Account for the difference between the timed clips of two variants.

    Args:
        candidate: as many clips of the other variant, on the same kind of device.
        pairs: times of both sides of each pair of clips, end to end, for the interval of the whole. Lines that were timed clip by
            clip have intervals too; those of a trace have none: one traced clip says nothing of others.

    Raises:
        DataError: unequal numbers of clips.
    """
    if baseline.num_clips != candidate.num_clips or not baseline.num_clips:
        raise DataError(f"{baseline.num_clips} clips against {candidate.num_clips}: an account needs as many of both")
    lines = {}
    if baseline.pairs and candidate.pairs:  # else the lines of one side at least are of a trace
        each = list(zip(baseline.pairs, candidate.pairs, strict=True))
        for label in baseline.labels.keys() | candidate.labels.keys():
            lines[str(label)] = [before.get(label, 0) - after.get(label, 0) for before, after in each]
    per_pair = baseline.num_clips // max(1, len(pairs))
    spread = paired_spread(lines, [before - after for before, after in pairs], per_pair)
    owned = (baseline.labels, baseline.calls, baseline.units), (candidate.labels, candidate.calls, candidate.units)
    return close_ledger(owned, (), CLIP_LEVELS, level_of, baseline.num_clips, spread)
