"""Short answer to a comparison: the time of a unit by part, before and after, and the share that is explained.

The unit is a steady frame block of our own runs, or what the account of two foreign traces is for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from strobe.perf.analysis.device.kernel_kinds import KernelKind
from strobe.perf.analysis.ledger.account import Line
from strobe.perf.analysis.ledger.clip import Explained, Kind
from strobe.perf.analysis.ledger.label_trace import OTHER_KERNELS
from strobe.perf.analysis.ledger.parts import BY_THE_CLOCK, NAMELESS, Part, part_of, trace_part
from strobe.perf.analysis.ledger.traces import Account, UnitName
from strobe.perf.analysis.runs.clocks import SideClocks, clock_effect, differ
from strobe.perf.analysis.runs.timeline import Label

MOST_LINES: Final = 8
_UNITS: Final[dict[UnitName, str]] = {"stage": "stage", "step": "step", "call": "focal call", "window": "traced window"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PartLine:
    """Time of one part on both sides, or of all small parts together.

    Args:
        parts: parts that the time was spent on; several in the line of all parts too small for a line.
        baseline_ns, candidate_ns: mean of a unit, such as a steady frame block.
        share: share of a unit's saving; None if it saves nothing.
        elsewhere_ns: saving of a clip on this part outside its steady frame blocks; 0 for foreign traces.
        clock_ns: part of the saving in a unit that the SM clock makes; None where the part does not go with it, or the clocks are
            equal or not known.
    """

    parts: tuple[Part, ...]
    baseline_ns: Fraction
    candidate_ns: Fraction
    share: float | None
    elsewhere_ns: Fraction
    clock_ns: Fraction | None = None

    @property
    def saved_ns(self) -> Fraction:
        """Saving in one unit, ns."""
        return self.baseline_ns - self.candidate_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class KindLine:
    """Time of a clip's frame blocks of one kind on both sides: `num_blocks` of them."""

    kind: Kind
    num_blocks: int
    baseline_ns: Fraction
    candidate_ns: Fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Difference between two sides, by part of a unit.

    Args:
        lines: at most `MOST_LINES`, what saved most first; they add up to a unit.
        unit: unit of the lines, in words: `steady frame block`, `frame block`; of foreign traces `stage`, `step`,
            `focal call` or `traced window`.
        explained_time: share of the time of the side where it is smaller that has a name.
        explained_saving: share of the saving that has a name; None if nothing is saved.
    """

    lines: tuple[PartLine, ...]
    unit: str
    explained_time: float
    explained_saving: float | None

    @property
    def baseline_ns(self) -> Fraction:
        """Time of one unit of the baseline, ns."""
        return sum((line.baseline_ns for line in self.lines), Fraction(0))

    @property
    def candidate_ns(self) -> Fraction:
        """Time of one unit of the candidate, ns."""
        return sum((line.candidate_ns for line in self.lines), Fraction(0))

    @property
    def difference(self) -> Literal["saving", "loss"]:
        """Word for the difference of which a line has its share: a loss where the candidate takes longer."""
        return "loss" if self.candidate_ns > self.baseline_ns else "saving"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipAnswer(Answer):
    """Difference between two variants of ours, in a frame block and in a whole clip.

    Args:
        kinds: time of each kind of frame block in a clip; they add up to a clip.
        num_steady: steady frame blocks in a clip; 0: there are none, and the lines are of all frame blocks.
        disturbed: by how much the tracer lengthened the traced frame blocks of the baseline and the candidate; on a CPU the share
            of the clips that marking regions took.
        varied: by how much of their mean the busy times of the traced steady frame blocks differ, of the baseline and the
            candidate; 0 on a CPU.
        stood_for: frame blocks that the traces lack, of the baseline and the candidate; others of their kind stand for them.
        merged: regions that one side does not show, each with what its time counts as instead.
        traced: whether a trace was used.
        clocks: of the baseline and the candidate; None where they were not sampled.
    """

    kinds: tuple[KindLine, ...]
    num_steady: int
    disturbed: tuple[float, float]
    varied: tuple[float, float]
    stood_for: tuple[tuple[int, ...], tuple[int, ...]]
    merged: tuple[tuple[str, str], ...]
    traced: bool
    clocks: tuple[SideClocks | None, SideClocks | None]

    @property
    def at_baseline_clock_ns(self) -> Fraction | None:
        """Time of the candidate's unit if what goes with the clock ran at the baseline's, ns; None if they do not differ."""
        before, after = self.clocks
        if before is None or after is None or not differ(before, after):
            return None
        fixed = sum((line.candidate_ns for line in self.lines if line.clock_ns is None), Fraction(0))
        scaled = sum((line.candidate_ns for line in self.lines if line.clock_ns is not None), Fraction(0))
        return fixed + scaled * after.sm_mhz / before.sm_mhz


def answer(
    baseline: Explained, candidate: Explained, clocks: tuple[SideClocks | None, SideClocks | None] = (None, None)
) -> ClipAnswer:
    """Sum up both sides by part and by kind of frame block.

    Args:
        clocks: of both sides, where they were sampled.
    """
    sides = (baseline, candidate)
    kind = Kind.STEADY if all(side.num_blocks.get(Kind.STEADY) for side in sides) else None
    per_block = [_per_block(side, kind) for side in sides]
    outside = [_elsewhere(side, kind) for side in sides]
    return ClipAnswer(
        lines=_lines(per_block, outside, clocks),
        unit="steady frame block" if kind else "frame block",
        kinds=tuple(_kinds(baseline, candidate)),
        num_steady=baseline.num_blocks.get(Kind.STEADY, 0) if kind else 0,
        explained_time=min(_explained(side) for side in sides),
        explained_saving=_explained_saving(baseline, candidate),
        disturbed=(_disturbed(baseline), _disturbed(candidate)),
        varied=(_varied(baseline), _varied(candidate)),
        stood_for=(baseline.stood_for, candidate.stood_for),
        merged=baseline.merged,
        traced=bool(baseline.traced_ns or candidate.traced_ns),
        clocks=clocks,
    )


def account_answer(account: Account) -> Answer:
    """Sum up the account of two foreign traces by part."""
    both = (dict.fromkeys(Part, Fraction(0)), dict.fromkeys(Part, Fraction(0)))
    nameless = []
    for line in account.ledger.lines:
        label, times = Label(line.path, line.activity), _times(account, line)
        shares = account.kinds if label == OTHER_KERNELS else {KernelKind.OTHER: times}
        for kind, share in shares.items():
            for found, ns in zip(both, share, strict=True):
                found[trace_part(label, kind)] += ns
        if trace_part(label) in NAMELESS:
            nameless.append(times)
    whole = account.per_unit(account.ledger.baseline_ns), account.per_unit(account.ledger.candidate_ns)
    assert tuple(sum(found.values()) for found in both) == whole, "the parts do not add up to the account"
    nothing = dict.fromkeys(Part, Fraction(0))
    named = [1 - sum(abs(times[at]) for times in nameless) / took for at, took in enumerate(whole) if took]
    saved, moved = whole[0] - whole[1], sum(abs(b - c) for b, c in nameless)
    return Answer(
        lines=_lines(both, (nothing, nothing)),
        unit=_UNITS[account.unit],
        explained_time=max(0.0, float(min(named, default=Fraction(0)))),
        explained_saving=max(0.0, float(1 - moved / abs(saved))) if saved else None,
    )


def _times(account: Account, line: Line) -> tuple[Fraction, Fraction]:
    return account.per_unit(line.baseline_ns), account.per_unit(line.candidate_ns)


def _lines(
    per_unit: Sequence[Mapping[Part, Fraction]],
    elsewhere: Sequence[Mapping[Part, Fraction]],
    clocks: tuple[SideClocks | None, SideClocks | None] = (None, None),
) -> tuple[PartLine, ...]:
    """Return one line for each group of parts, with its share of a unit's saving."""
    saved = sum(per_unit[0].values()) - sum(per_unit[1].values())
    lines = []
    for inside in _grouped(per_unit, elsewhere):
        b, c = (sum((times[each] for each in inside), Fraction(0)) for times in per_unit)
        beyond = sum((elsewhere[0][each] - elsewhere[1][each] for each in inside), Fraction(0))
        share = float((b - c) / saved) if saved else None
        clock_ns = _by_the_clock(b, c, clocks) if BY_THE_CLOCK.issuperset(inside) else None
        lines.append(PartLine(parts=inside, baseline_ns=b, candidate_ns=c, share=share, elsewhere_ns=beyond, clock_ns=clock_ns))
    return tuple(lines)


def _by_the_clock(
    baseline_ns: Fraction, candidate_ns: Fraction, clocks: tuple[SideClocks | None, SideClocks | None]
) -> Fraction | None:
    before, after = clocks
    if before is None or after is None or not differ(before, after):
        return None
    return clock_effect(baseline_ns, candidate_ns, before.sm_mhz, after.sm_mhz)


def _grouped(per_block: Sequence[Mapping[Part, Fraction]], outside: Sequence[Mapping[Part, Fraction]]) -> list[tuple[Part, ...]]:
    """Group the parts that took time: the largest by themselves, largest saving first, then all others together."""
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
    """Return the mean time by part of one frame block of a kind; without a kind, of any frame block."""
    chosen = [each for each in side.kinds if each == kind or (kind is None and each != Kind.AROUND)]
    blocks = side.num_clips * sum(side.num_blocks[each] for each in chosen)
    total: Counter[Part] = Counter()
    for each in chosen:
        for part, ns in _parts(side.kinds[each]).items():
            total[part] += ns
    return {part: Fraction(total[part], blocks or 1) for part in Part}


def _elsewhere(side: Explained, kind: Kind | None) -> dict[Part, Fraction]:
    """Return the mean time by part of a clip outside its frame blocks of the kind."""
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
