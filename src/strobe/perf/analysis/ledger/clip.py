"""Time of one variant's timed clips, label by label, exactly.

The time of a clip is that of the untraced run: of each frame block from its start to the start of the next, and of what lies
around them. How it divides comes

* on a CPU from the regions that the same clips added up;
* on a GPU from a traced clip: its busy time counts as it is, and idle is what the timed frame blocks have left over, divided as
  the trace's idle time is by cause and place. What the trace shows beyond the timed run is a label of its own, negative.

Frame blocks are accounted for by kind, since the clock of a GPU at its power limit moves single ones by several per cent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise
from typing import Final, TypeVar

from strobe.core import spans
from strobe.core.errors import DataError
from strobe.perf.analysis.device.idle import IDLE
from strobe.perf.analysis.ledger.parts import AROUND, MISMATCH, NOT_APART, UNTRACED
from strobe.perf.analysis.runs.partition import Partition
from strobe.perf.analysis.runs.timeline import TIMED, Label, Path
from strobe.perf.records.record import Clip, Regions, Span
from strobe.perf.records.store import RunRecords

K = TypeVar("K", bound=Hashable)
_AROUND_LABEL: Final = Label(("clip",), AROUND)


class Kind(StrEnum):
    """Kinds of frame block, and the time around them."""

    FIRST = "first"
    FILLING = "filling"
    STEADY = "steady"
    SWITCH = "switch"
    AROUND = "start and end"


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
    kinds: Mapping[Kind, Labels]
    num_blocks: Mapping[Kind, int]
    calls: Mapping[str, tuple[int, int]]
    units: tuple[Labels, ...]
    pairs: tuple[Labels, ...] = ()
    traced_ns: int = 0
    timed_ns: int = 0
    marking_ns: int = 0
    stood_for: tuple[int, ...] = ()
    merged: tuple[tuple[str, str], ...] = ()

    @property
    def labels(self) -> Counter[Label]:
        """Time of each label in all clips, ns."""
        total: Counter[Label] = Counter()
        for labels in self.kinds.values():
            for label, ns in labels.items():
                total[label] += ns
        return total


def block_kinds(run: RunRecords, names: Collection[str]) -> tuple[Kind, ...]:
    """Return the kind of each frame block of a clip: steady only if it is steady in all of these variants.

    A run of the caller's own code says nothing of windows and switches: all blocks but the first count as steady. Calls of
    functions are one block, all alike.
    """
    work = run.header.workload
    if run.header.kind == "calls":
        return (Kind.STEADY,)
    if work is None:
        last = max((span.index or 0 for span in run.spans if span.name == spans.FRAME_BLOCK), default=0)
        return (Kind.FIRST, *[Kind.STEADY] * last)
    full = max((run.variant(name).window or 0 for name in names), default=0)
    switches = {prompt.frame_block for prompt in work.prompts}
    kinds = []
    for index in range(work.frame_blocks):
        filling = (index + 1) * work.latents_per_block < full
        kinds.append(Kind.FIRST if index == 0 else Kind.SWITCH if index in switches else Kind.FILLING if filling else Kind.STEADY)
    return tuple(kinds)


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


_TOLD: Final = (spans.ATTENTION_KERNEL, spans.ATTENTION, spans.CROSS_ATTENTION, spans.FFN, spans.VAE_DECODE)
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
            sides = [replace(_relabelled(side, _until(name)), merged=(*side.merged, (name, above))) for side in sides]
    return sides[0], sides[1]


def _until(name: str) -> Callable[[Path], Path]:
    return lambda path: path[: path.index(name)] if name in path else path


def _relabelled(side: Explained, path_of: Callable[[Path], Path]) -> Explained:
    """Return the same time under other paths."""

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


# --------------------------------------------------------------------------------------------------------- timed clips


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """One clip without a profiler: the time of each frame block until the next one starts, and all other time."""

    blocks_ns: tuple[int, ...]
    around_ns: int

    @property
    def took_ns(self) -> int:
        """Time of the clip from end to end, ns."""
        return sum(self.blocks_ns) + self.around_ns


def cut_clips(run: RunRecords, clips: Iterable[Clip]) -> dict[int, Timed]:
    """Cut timed clips at the starts of their frame blocks, the last at its own end; return them by the clips' order.

    Raises:
        DataError: a clip without an end-to-end region, or that lacks frame blocks.
    """
    of_clip: defaultdict[int, list[Span]] = defaultdict(list)
    for span in run.spans:
        of_clip[span.order].append(span)
    return {clip.order: _timed(clip, of_clip[clip.order]) for clip in clips}


def _timed(clip: Clip, mine: Sequence[Span]) -> Timed:
    e2e = [span for span in mine if span.name == spans.E2E]
    blocks = sorted((span for span in mine if span.name == spans.FRAME_BLOCK), key=lambda span: span.index or 0)
    if len(e2e) != 1 or [span.index for span in blocks] != list(range(len(blocks))) or not blocks:
        raise DataError(f"clip {clip.clip} of {clip.variant!r} lacks its end-to-end region or frame blocks; measure it again")
    starts = [span.start_ns for span in blocks] + [blocks[-1].start_ns + blocks[-1].value_ns]
    lengths = tuple(after - before for before, after in pairwise(starts))
    return Timed(blocks_ns=lengths, around_ns=e2e[0].value_ns - sum(lengths))


# ---------------------------------------------------------------------------------------------------------------- a CPU


def explain_by_regions(run: RunRecords, pairs: Sequence[Sequence[Clip]], kinds: Sequence[Kind]) -> Explained:
    """Account for timed clips by the regions that were timed in them.

    Args:
        pairs: the clips of each pair.
        kinds: kinds of the frame blocks.

    Raises:
        DataError: a clip without such regions, or regions longer than what contains them.
    """
    lines = {line.order: line for line in run.regions}
    by_kind: defaultdict[Kind, Counter[Label]] = defaultdict(Counter)
    calls: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    units, marking = [], 0
    cut = cut_clips(run, (clip for clips in pairs for clip in clips))
    for clips in pairs:
        unit: Counter[Label] = Counter()
        for clip in clips:
            line = lines.get(clip.order)
            if line is None:
                raise DataError(f"clip {clip.clip} of {clip.variant!r} added up no regions; measure it again")
            timed = cut[clip.order]
            own = _own_times(line, timed, calls)
            for index, labels in enumerate(own):
                by_kind[kinds[index]].update(labels)
                unit.update(labels)
            by_kind[Kind.AROUND][_AROUND_LABEL] += timed.around_ns
            unit[_AROUND_LABEL] += timed.around_ns
            marking += line.region_ns * sum(map(sum, line.calls))
        units.append(unit)
    return Explained(
        num_clips=sum(map(len, pairs)),
        kinds={kind: by_kind[kind] for kind in Kind if kind in by_kind},
        num_blocks=Counter(kinds),
        calls={name: (count, ns) for name, (count, ns) in calls.items()},
        units=tuple(units),
        pairs=tuple(units),
        marking_ns=marking,
    )


def _own_times(line: Regions, timed: Timed, calls: Mapping[str, list[int]]) -> list[Counter[Label]]:
    """Compute the time of each path without its inner regions, by frame block; the frame block's own time is the rest."""
    found: list[Counter[Label]] = [Counter({Label((), TIMED): ns}) for ns in timed.blocks_ns]
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


# ---------------------------------------------------------------------------------------------------------------- a GPU


def explain_by_trace(run: RunRecords, clips: Sequence[Clip], kinds: Sequence[Kind], traced: Partition) -> Explained:
    """Account for timed clips by a traced clip of the same variant.

    Args:
        clips: the timed clips.
        kinds: kinds of the frame blocks.
        traced: some or all frame blocks of one clip. A kind that it lacks stays unexplained.

    Raises:
        DataError: no timed clips, or one that lacks frame blocks.
    """
    if not clips:
        raise DataError("no timed clips: time the variant before its account is made")
    timed = list(cut_clips(run, clips).values())
    tiles = {tile.index: tile for tile in traced.tiles}
    by_kind: dict[Kind, Labels] = {}
    for kind in dict.fromkeys(kinds):
        indices = [index for index, each in enumerate(kinds) if each == kind]
        took = sum(clip.blocks_ns[index] for clip in timed for index in indices)
        seen = [tiles[index].owned for index in indices if index in tiles]
        scale = Fraction(len(clips) * len(indices), len(seen) or 1)
        by_kind[kind] = _divided(took, seen, scale) if seen else {Label((f"{kind.value} frame blocks",), UNTRACED): took}
    by_kind[Kind.AROUND] = {_AROUND_LABEL: sum(clip.around_ns for clip in timed)}
    steady = [tile for tile in traced.tiles if kinds[tile.index] == Kind.STEADY] or list(traced.tiles)
    total: Counter[Label] = Counter()
    for labels in by_kind.values():
        for label, ns in labels.items():
            total[label] += ns
    return Explained(
        num_clips=len(clips),
        kinds=by_kind,
        num_blocks=Counter(kinds),
        calls=_calls(traced, sum(ns for label, ns in total.items() if label.busy), len(clips)),
        units=tuple(tile.owned for tile in steady),
        traced_ns=sum(tile.end_ns - tile.start_ns for tile in traced.tiles),
        timed_ns=round(Fraction(sum(clip.blocks_ns[index] for clip in timed for index in tiles), len(clips))),
        stood_for=tuple(at for at, kind in enumerate(kinds) if at not in tiles and any(kinds[seen] == kind for seen in tiles)),
    )


def _divided(took_ns: int, seen: Sequence[Labels], scale: Fraction) -> Labels:
    """Scale the busy labels of traced frame blocks; divide the rest of the timed ones in proportion to traced idle time."""
    traced: Counter[Label] = Counter()
    for labels in seen:
        for label, ns in labels.items():
            traced[label] += ns
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
