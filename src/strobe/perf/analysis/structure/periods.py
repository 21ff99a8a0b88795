"""Finds repetitions in a sequence of kernel names: an anchor that occurs once in every period.

A name (or a name right after another one) that occurs at even distances cuts the sequence into candidates for a period. They are
one if the kernels in them are the same: the counts of every name are compared with the median over all periods. Of the anchors
that explain the sequence about equally well the one with the longest period is the best, because the layers of a step repeat too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.device_work import EventView
from strobe.perf.analysis.device.intervals import Ints, reach
from strobe.perf.analysis.structure.scopes import WORK
from strobe.perf.trace.columns import Column, blocks, code_for

FEWEST: Final = 3
"""Fewest occurrences of an anchor in a repetition."""
ALIKE: Final = 0.9
"""Least mean likeness of periods of the same work."""
_MANY: Final = 5
_TOLERANCE: Final = 0.03
"""Largest deficit in likeness of a period against a shorter one, if it occurs `_MANY` times."""
_TOLERANCE_OF_FEW: Final = 0.005
"""Largest such deficit of a period that occurs less often: any two long stretches look somewhat alike."""
_EVEN: Final = 0.75
"""Least share of an anchor's distances that lie within `_NEAR` of their median."""
_NEAR: Final = 0.15
_REACH: Final = 0.5
"""Least share of the sequence between the first and the last anchor."""
_SPARE_ONE: Final = 10
"""Fewest periods of which one may be dropped for an anchor after longer pauses."""
_TRIED: Final = 48
_SAMPLED: Final = 256

Numbers: TypeAlias = NDArray[np.integer]
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """A repetition in a sequence of kernels.

    Args:
        anchor: name of the kernel that occurs once in every period and starts it here.
        after: name of the kernel right before it, where the anchor's own name occurs more often; else empty.
        starts: position of each anchor in the sequence.
        kernels: kernels in each complete period: from every anchor to the next, and after the last one if a whole period follows.
        likeness: mean over the periods of 1 - (kernels that differ from the median period) / (kernels of the median period), of
            256 periods evenly chosen if there are more (times n / (n - 1): each has a part in the median).
        identical: share of those periods whose names are, in order, those of the most frequent one.
        head: kernels before the first period.
        rest: kernels after the last complete one.
        anchors: names that occur as often (give or take one) at the same distance, this one included.
    """

    anchor: str
    after: str
    starts: tuple[int, ...]
    kernels: tuple[int, ...]
    likeness: float
    identical: float
    head: int
    rest: int
    anchors: int

    @property
    def periods(self) -> int:
        """Number of complete periods."""
        return len(self.kernels)

    @property
    def covered(self) -> float:
        """Share of the sequence that lies in complete periods."""
        inside = sum(self.kernels)
        return inside / (self.head + inside + self.rest)

    @property
    def confidence(self) -> Confidence:
        """Confidence that the period is a step.

        `high`: at least 5 periods, 97 % alike, 80 % of the sequence. `medium`: at least 3, 95 % alike, 60 % of it. `low`: less,
        or a whole period or more of other kernels before or after, as it is around the layers of a single pass.
        """
        if max(self.head, self.rest) >= max(self.kernels):
            return "low"
        if self.periods >= 5 and self.likeness >= 0.97 and self.covered >= 0.8:
            return "high"
        return "medium" if self.periods >= 3 and self.likeness >= 0.95 and self.covered >= 0.6 else "low"


class _Anchor(NamedTuple):
    """A name, or a pair of names, that occurs evenly."""

    found: NDArray[np.int32]
    distance: int
    pair: bool

    @property
    def places(self) -> Ints:
        """Positions of the anchor; of a pair, those of its second name."""
        return self.found.astype(np.int64) + self.pair

    def periods(self, length: int) -> int:
        """Return the number of periods in a sequence of this length, including a last one that fits without a next anchor."""
        return len(self.found) - (int(self.found[-1]) + self.pair + self.distance > length)


class _Cut(NamedTuple):
    """A sequence cut at an anchor."""

    anchor: _Anchor
    lengths: Ints
    likeness: float
    identical: float
    anchors: int


class Repetitions(NamedTuple):
    """Repetitions of a device's kernels, on the stream that has most of them.

    Args:
        place: positions of these kernels among the device's events.
        periods: the longest first; they count into `place`.
    """

    place: NDArray[np.int32]
    periods: tuple[Period, ...]


def repetitions(work: EventView, texts: tuple[str, ...]) -> Repetitions:
    """Find the repetitions of a device's kernels, on the stream that has most of them."""
    counts: Counter[int] = Counter()
    for _, part in work.parts():
        numbers, count = np.unique(part.stream[np.isin(part.kind, WORK)], return_counts=True)
        counts.update(dict(zip(numbers.tolist(), count.tolist(), strict=True)))
    stream = min(counts, key=lambda number: (-counts[number], number), default=0)
    place, name, pause = np.empty(counts[stream], np.int32), _numbers(counts[stream], len(texts)), Column()
    at, reached = 0, None
    for first, part in work.parts():
        own = np.flatnonzero(np.isin(part.kind, WORK) & (part.stream == stream))
        if not len(own):
            continue
        place[at : at + len(own)], name[at : at + len(own)] = first + own, part.name[own]
        start, end = part.start[own], part.end[own]
        before = reach(start, end) if reached is None else np.maximum(reach(start, end), reached)
        pause.extend(np.maximum(0, start - before))
        at, reached = at + len(own), max(int(before[-1]), int(end[-1]))
    return Repetitions(place, find_periods(name, texts, np.asarray(pause.release())))


def find_periods(name: Numbers, texts: tuple[str, ...], pause_ns: Numbers | None = None) -> tuple[Period, ...]:
    """Find the repetitions in a sequence, the longest period first; empty if nothing repeats.

    Args:
        name: number of each kernel's name, in order.
        texts: the names.
        pause_ns: how long nothing ran before each kernel: of several possible anchors, the one after the longest pauses starts
            the period.
    """
    if len(name) < 2 * FEWEST:
        return ()
    cuts: dict[int, _Cut] = {}
    for is_pair in (False, True):
        classes: dict[int, list[_Anchor]] = {}
        for anchor in _even(*_pairs(name, len(texts)), True) if is_pair else _even(name, len(texts), False):
            classes.setdefault(round(math.log(anchor.distance) / _NEAR), []).append(anchor)
        for key in sorted(classes.keys() - cuts.keys(), reverse=True)[:_TRIED]:
            most = max(anchor.periods(len(name)) for anchor in classes[key])
            alike = [anchor for anchor in classes[key] if anchor.periods(len(name)) >= most - (most >= _SPARE_ONE)]
            best = max(alike, key=lambda anchor: (_sum(pause_ns, anchor.places), -int(anchor.places[0])))
            as_often = sum(abs(len(anchor.found) - len(best.found)) <= 1 for anchor in classes[key])
            cut = _cut(name, best, as_often)
            if cut is not None:
                cuts[key] = cut
    return tuple(_period(name, texts, cut) for cut in _longest_first(list(cuts.values())))


def loop_of_one(name: Numbers, texts: tuple[str, ...], start_ns: Ints) -> tuple[Period, ...]:
    """Return the period of a sequence of one kernel alone whose calls start at even distances; empty for any other sequence."""
    if len(name) <= FEWEST or (name != name[0]).any():
        return ()
    apart = np.diff(start_ns)
    middle = float(np.median(apart))
    if middle <= 0 or np.count_nonzero(np.abs(apart - middle) <= _NEAR * middle) < _EVEN * len(apart):
        return ()
    return (
        Period(
            anchor=texts[name[0]], after="", starts=tuple(range(len(name))), kernels=(1,) * len(name), likeness=1.0,
            identical=1.0, head=0, rest=0, anchors=1,
        ),
    )  # fmt: skip


def _sum(values: Numbers | None, places: Ints) -> int:
    return 0 if values is None else int(values[places].sum(dtype=np.int64))


def _numbers(count: int, limit: int) -> Numbers:
    """Return an uninitialised array for numbers up to a limit."""
    return np.empty(count, np.dtype(code_for(0, limit)))


def _pairs(name: Numbers, num_names: int) -> tuple[Numbers, int]:
    """Number the pairs of neighbours; return the number of each pair and the count of distinct ones."""

    def codes() -> Iterator[tuple[slice, Ints]]:
        for block in blocks(len(name) - 1):
            both = name[block.start : block.stop + 1].astype(np.int64)
            yield block, both[:-1] * num_names + both[1:]

    known = np.unique(np.concatenate([np.unique(code) for _, code in codes()]))
    found = _numbers(len(name) - 1, len(known))
    for block, code in codes():
        found[block] = np.searchsorted(known, code)
    return found, len(known)


def _longest_first(cuts: list[_Cut]) -> list[_Cut]:
    """Drop cuts clearly less alike than a shorter period and, of two at about one distance, the less alike; longest first."""
    kept: list[_Cut] = []
    best = 0.0
    for cut in sorted(cuts, key=lambda cut: cut.anchor.distance):
        missing = _TOLERANCE if len(cut.lengths) >= _MANY else _TOLERANCE_OF_FEW
        if cut.likeness < best - missing:
            continue
        if kept and cut.anchor.distance - kept[-1].anchor.distance <= _NEAR * cut.anchor.distance:
            if cut.likeness <= kept[-1].likeness:
                continue
            kept.pop()
        kept.append(cut)
        best = max(best, cut.likeness)
    return kept[::-1]


def _even(ids: Numbers, num: int, is_pair: bool) -> list[_Anchor]:
    """Return the anchors: names that occur often enough, over enough of the sequence, mostly at equal distances."""
    count = np.zeros(num, np.int64)
    for block in blocks(len(ids)):
        count += np.bincount(ids[block], minlength=num)
    first = np.cumsum(count) - count
    order, free = np.empty(len(ids), np.int32), first.copy()
    for block in blocks(len(ids)):
        ranked = np.argsort(ids[block], kind="stable")
        own = np.bincount(ids[block], minlength=num)
        order[np.arange(len(ranked)) + np.repeat(free - (np.cumsum(own) - own), own)] = block.start + ranked
        free += own
    found = []
    for row in np.flatnonzero(count >= FEWEST).tolist():
        rows = order[first[row] : first[row] + count[row]]
        reached = int(rows[-1]) - int(rows[0])
        if reached < _REACH * len(ids) or reached < 2 * count[row]:
            continue
        gaps = np.diff(rows)
        distance = int(np.partition(gaps, len(gaps) // 2)[len(gaps) // 2])
        if np.count_nonzero(np.abs(gaps - distance) <= _NEAR * distance) >= _EVEN * len(gaps):
            found.append(_Anchor(rows, distance, is_pair))
    return found


def _cut(name: Numbers, anchor: _Anchor, anchors: int) -> _Cut | None:
    """Compare the kernels between the anchors; `None` if they are not the same work."""
    anchor = anchor._replace(found=anchor.found.copy())  # lets go of those of all anchors
    places = anchor.places
    lengths = np.diff(places)
    chosen = np.unique(np.linspace(0, len(lengths) - 1, min(len(lengths), _SAMPLED)).astype(np.int64))
    parts = [name[place : place + length] for place, length in zip(places[chosen], lengths[chosen], strict=True)]
    counts = np.stack([np.bincount(part, minlength=int(name.max()) + 1) for part in parts])
    middle = np.median(counts, axis=0)
    whole = max(1.0, float(middle.sum()))
    differs = np.abs(counts - middle).sum(axis=1) * (len(parts) / (len(parts) - 1))  # each period has a part in the median
    likeness = float(np.maximum(0, 1 - differs / whole).mean())
    tail = name[places[-1] : places[-1] + anchor.distance]
    if len(tail) == anchor.distance:
        unlike = np.abs(np.bincount(tail, minlength=len(middle)) - middle).sum() / whole
        lengths = np.append(lengths, anchor.distance) if unlike <= 1 - ALIKE else lengths
    if likeness < (ALIKE if len(lengths) >= FEWEST else 1.0):
        return None
    texts = [part.tobytes() for part in parts]
    return _Cut(anchor, lengths, likeness, max(map(texts.count, set(texts))) / len(texts), anchors)


def _period(name: Numbers, texts: tuple[str, ...], cut: _Cut) -> Period:
    places = cut.anchor.places.tolist()
    first = places[0]
    return Period(
        anchor=texts[name[first]],
        after=texts[name[first - 1]] if cut.anchor.pair else "",
        starts=tuple(places),
        kernels=tuple(cut.lengths.tolist()),
        likeness=cut.likeness,
        identical=cut.identical,
        head=first,
        rest=len(name) - first - int(cut.lengths.sum()),
        anchors=cut.anchors,
    )
