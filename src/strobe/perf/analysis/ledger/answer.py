"""The answer in a few lines: what a steady frame block spends on each part, before and after, and how much of it has a name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from strobe.perf.analysis.ledger.clip import Explained, Kind
from strobe.perf.analysis.ledger.parts import NAMELESS, Part, part_of
from strobe.perf.analysis.runs.timeline import Label

MOST_LINES: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class PartLine:
    """One part on both sides, or the small ones together.

    Args:
        parts: what the time was spent on; several in the line of all that is too small for one of its own.
        baseline_ns, candidate_ns: mean of a steady frame block.
        share: of what a steady frame block saves; None if it saves nothing.
        elsewhere_ns: what a clip saves on this part outside its steady frame blocks.
    """

    parts: tuple[Part, ...]
    baseline_ns: Fraction
    candidate_ns: Fraction
    share: float | None
    elsewhere_ns: Fraction

    @property
    def saved_ns(self) -> Fraction:
        """What a steady frame block saves."""
        return self.baseline_ns - self.candidate_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class KindLine:
    """What a clip saves in its frame blocks of one kind: `num_blocks` of them."""

    kind: Kind
    num_blocks: int
    baseline_ns: Fraction
    candidate_ns: Fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Where the difference between two variants comes from.

    Args:
        lines: at most `MOST_LINES`, what saved most first; they add up to a steady frame block.
        kinds: what each kind of frame block adds to a clip; they add up to a clip.
        num_steady: steady frame blocks in a clip; 0: there are none, and the lines are of all frame blocks.
        explained_time: share of the clips of the side where it is smaller that has a name.
        explained_saving: share of the saving that has a name; None if nothing is saved.
        disturbed: by how much the tracer lengthened the traced frame blocks of the baseline and the candidate; on a CPU the share
            of the clips that marking regions took.
        varied: by how much of their mean the busy times of the traced steady frame blocks differ, of the baseline and the
            candidate; 0 on a CPU.
        stood_for: frame blocks that the traces lack, of the baseline and the candidate; others of their kind stand for them.
        merged: regions that one side does not show, each with what its time counts as instead.
        traced: whether a trace was used.
    """

    lines: tuple[PartLine, ...]
    kinds: tuple[KindLine, ...]
    num_steady: int
    explained_time: float
    explained_saving: float | None
    disturbed: tuple[float, float]
    varied: tuple[float, float]
    stood_for: tuple[tuple[int, ...], tuple[int, ...]]
    merged: tuple[tuple[str, str], ...]
    traced: bool

    @property
    def baseline_ns(self) -> Fraction:
        """A steady frame block of the baseline."""
        return sum((line.baseline_ns for line in self.lines), Fraction(0))

    @property
    def candidate_ns(self) -> Fraction:
        """A steady frame block of the candidate."""
        return sum((line.candidate_ns for line in self.lines), Fraction(0))


def answer(baseline: Explained, candidate: Explained) -> Answer:
    """Sum up both sides by part and by kind of frame block."""
    sides = (baseline, candidate)
    kind = Kind.STEADY if all(side.num_blocks.get(Kind.STEADY) for side in sides) else None
    per_block = [_per_block(side, kind) for side in sides]
    outside = [_elsewhere(side, kind) for side in sides]
    saved = sum(per_block[0].values()) - sum(per_block[1].values())
    lines = []
    for inside in _grouped(per_block, outside):
        b, c = (sum((times[each] for each in inside), Fraction(0)) for times in per_block)
        beyond = sum((outside[0][each] - outside[1][each] for each in inside), Fraction(0))
        share = float((b - c) / saved) if saved else None
        lines.append(PartLine(parts=inside, baseline_ns=b, candidate_ns=c, share=share, elsewhere_ns=beyond))
    return Answer(
        lines=tuple(lines),
        kinds=tuple(_kinds(baseline, candidate)),
        num_steady=baseline.num_blocks.get(Kind.STEADY, 0) if kind else 0,
        explained_time=min(_explained(side) for side in sides),
        explained_saving=_explained_saving(baseline, candidate),
        disturbed=(_disturbed(baseline), _disturbed(candidate)),
        varied=(_varied(baseline), _varied(candidate)),
        stood_for=(baseline.stood_for, candidate.stood_for),
        merged=baseline.merged,
        traced=bool(baseline.traced_ns or candidate.traced_ns),
    )


def _grouped(per_block: Sequence[Mapping[Part, Fraction]], outside: Sequence[Mapping[Part, Fraction]]) -> list[tuple[Part, ...]]:
    """Parts that took any time: the largest ones each by itself, what saves most first, then the others together."""
    parts = [part for part in Part if any(times[part] for times in (*per_block, *outside))]
    large = sorted(parts, key=lambda part: (-max(abs(times[part]) for times in per_block), part))
    alone = large if len(large) <= MOST_LINES else large[: MOST_LINES - 1]
    alone = sorted(alone, key=lambda part: (-abs(per_block[0][part] - per_block[1][part]), part))
    rest = tuple(part for part in parts if part not in alone)
    return [*((part,) for part in alone), *([rest] if rest else [])]


def _parts(labels: Mapping[Label, int]) -> Counter[Part]:
    found: Counter[Part] = Counter()
    for label, ns in labels.items():
        found[part_of(label)] += ns
    return found


def _per_block(side: Explained, kind: Kind | None) -> dict[Part, Fraction]:
    """Mean of one frame block of the kind, or of all."""
    chosen = [each for each in side.kinds if each == kind or (kind is None and each != Kind.AROUND)]
    blocks = side.num_clips * sum(side.num_blocks[each] for each in chosen)
    total: Counter[Part] = Counter()
    for each in chosen:
        for part, ns in _parts(side.kinds[each]).items():
            total[part] += ns
    return {part: Fraction(total[part], blocks or 1) for part in Part}


def _elsewhere(side: Explained, kind: Kind | None) -> dict[Part, Fraction]:
    """Mean of a clip, outside the frame blocks of the kind."""
    total: Counter[Part] = Counter()
    for each, labels in side.kinds.items():
        if each == Kind.AROUND or (kind is not None and each != kind):
            for part, ns in _parts(labels).items():
                total[part] += ns
    return {part: Fraction(total[part], side.num_clips) for part in Part}


def _kinds(baseline: Explained, candidate: Explained) -> list[KindLine]:
    found = []
    for kind in Kind:
        if kind in baseline.kinds or kind in candidate.kinds:
            b, c = (Fraction(sum(side.kinds.get(kind, {}).values()), side.num_clips) for side in (baseline, candidate))
            found.append(KindLine(kind=kind, num_blocks=baseline.num_blocks.get(kind, 0), baseline_ns=b, candidate_ns=c))
    return found


def _nameless(side: Explained) -> Counter[Label]:
    return Counter({label: ns for label, ns in side.labels.items() if part_of(label) in NAMELESS})


def _explained(side: Explained) -> float:
    whole = sum(side.labels.values())
    return 1 - sum(map(abs, _nameless(side).values())) / whole if whole else 0.0


def _explained_saving(baseline: Explained, candidate: Explained) -> float | None:
    saved = sum(baseline.labels.values()) - sum(candidate.labels.values())
    b, c = _nameless(baseline), _nameless(candidate)
    moved = sum(abs(b.get(label, 0) - c.get(label, 0)) for label in b.keys() | c.keys())
    return max(0.0, 1 - moved / abs(saved)) if saved else None


def _disturbed(side: Explained) -> float:
    if side.timed_ns:
        return side.traced_ns / side.timed_ns - 1
    return side.marking_ns / (sum(side.labels.values()) or 1)


def _varied(side: Explained) -> float:
    busy = [sum(ns for label, ns in unit.items() if label.busy) for unit in side.units] if side.traced_ns else []
    return len(busy) * (max(busy) - min(busy)) / (sum(busy) or 1) if busy else 0.0
