"""Finds what repeats in a sequence of kernel names: an anchor that occurs once in every period.

A name (or a name right after another one) that occurs at even distances cuts the sequence into candidates for a period. They are
one if the kernels in them are the same: the counts of every name are compared with the median over all periods. Of the anchors
that explain the sequence about equally well the one with the longest period is the best, because the layers of a step repeat too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from strobe.perf.analysis.device.intervals import Ints, reach
from strobe.perf.analysis.device.views import Work
from strobe.perf.analysis.structure.scopes import WORK

FEWEST: Final = 3
"""Occurrences of an anchor below which nothing is called a repetition."""
ALIKE: Final = 0.9
"""Mean likeness below which periods are not the same work."""
_MANY: Final = 5
_TOLERANCE: Final = 0.03
"""Likeness that a period may lack against a shorter one, if it occurs `_MANY` times."""
_TOLERANCE_OF_FEW: Final = 0.005
"""The same for a period that occurs less often: two long stretches of anything look somewhat alike."""
_EVEN: Final = 0.75
"""Share of the distances of an anchor that lie within `_NEAR` of their median."""
_NEAR: Final = 0.15
_REACH: Final = 0.5
"""Share of the sequence that lies between the first and the last anchor, at least."""
_SPARE_ONE: Final = 10
"""From so many periods on, one may be given up for an anchor after longer pauses."""
_TRIED: Final = 48
_SAMPLED: Final = 256

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
        """How far to trust that this is a step.

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

    places: Ints
    distance: int
    pair: bool

    def periods(self, length: int) -> int:
        """Periods that end in a sequence of this length, the last one too if there is room for it."""
        return len(self.places) - (int(self.places[-1]) + self.distance > length)


class _Cut(NamedTuple):
    """The sequence cut at an anchor."""

    anchor: _Anchor
    lengths: Ints
    likeness: float
    identical: float
    anchors: int


def repetitions(work: Work, texts: tuple[str, ...]) -> tuple[Ints, tuple[Period, ...]]:
    """Find what the kernels of a device repeat, on the stream that has most of them.

    Returns:
        The positions of these kernels among the device's events, and the periods, the longest first; they count into the former.
    """
    place = np.flatnonzero(np.isin(work.kind, WORK))
    if len(place):
        streams, count = np.unique(work.stream[place], return_counts=True)
        place = place[work.stream[place] == streams[np.argmax(count)]]
    start, end = work.start[place], work.end[place]
    pause = np.maximum(0, start - reach(start, end))
    return place, find_periods(work.name[place].astype(np.int64), texts, pause)


def find_periods(name: Ints, texts: tuple[str, ...], pause_ns: Ints | None = None) -> tuple[Period, ...]:
    """Find the repetitions in a sequence, the longest period first; empty if nothing repeats.

    Args:
        name: number of each kernel's name, in order.
        texts: the names.
        pause_ns: how long nothing ran before each kernel: of several possible anchors, the one after the longest pauses starts
            the period.
    """
    if len(name) < 2 * FEWEST:
        return ()
    pause = np.zeros(len(name), np.int64) if pause_ns is None else pause_ns
    pairs = np.unique(name[:-1] * len(texts) + name[1:], return_inverse=True)[1]
    cuts: dict[int, _Cut] = {}
    for anchors in (_even(name, 0), _even(pairs, 1)):
        classes: dict[int, list[_Anchor]] = {}
        for anchor in anchors:
            classes.setdefault(round(math.log(anchor.distance) / _NEAR), []).append(anchor)
        for key in sorted(classes.keys() - cuts.keys(), reverse=True)[:_TRIED]:
            most = max(anchor.periods(len(name)) for anchor in classes[key])
            alike = [anchor for anchor in classes[key] if anchor.periods(len(name)) >= most - (most >= _SPARE_ONE)]
            best = max(alike, key=lambda anchor: (int(pause[anchor.places].sum()), -int(anchor.places[0])))
            as_often = sum(abs(len(anchor.places) - len(best.places)) <= 1 for anchor in classes[key])
            cut = _cut(name, best, as_often)
            if cut is not None:
                cuts[key] = cut
    return tuple(_period(name, texts, cut) for cut in _longest_first(list(cuts.values())))


def _longest_first(cuts: list[_Cut]) -> list[_Cut]:
    """Leave out what is clearly less alike than a shorter period, and of two cuts at about the same distance the less alike."""
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


def _even(ids: Ints, offset: int) -> list[_Anchor]:
    """What occurs often enough, over enough of the sequence, at distances of which most are the same."""
    order = np.argsort(ids, kind="stable")
    first = np.flatnonzero(np.diff(ids[order], prepend=-1))
    count = np.diff(first, append=len(ids))
    reach = order[first + count - 1] - order[first]
    found = []
    for row in np.flatnonzero((count >= FEWEST) & (reach >= _REACH * len(ids)) & (reach >= 2 * count)).tolist():
        places = order[first[row] : first[row] + count[row]] + offset
        gaps = np.diff(places)
        distance = int(np.partition(gaps, len(gaps) // 2)[len(gaps) // 2])
        if np.count_nonzero(np.abs(gaps - distance) <= _NEAR * distance) >= _EVEN * len(gaps):
            found.append(_Anchor(places, distance, offset == 1))
    return found


def _cut(name: Ints, anchor: _Anchor, anchors: int) -> _Cut | None:
    """Compare the kernels between the anchors; `None` if they are not the same work."""
    lengths = np.diff(anchor.places)
    chosen = np.unique(np.linspace(0, len(lengths) - 1, min(len(lengths), _SAMPLED)).astype(np.int64))
    parts = [name[place : place + length] for place, length in zip(anchor.places[chosen], lengths[chosen], strict=True)]
    counts = np.stack([np.bincount(part, minlength=int(name.max()) + 1) for part in parts])
    middle = np.median(counts, axis=0)
    whole = max(1.0, float(middle.sum()))
    differs = np.abs(counts - middle).sum(axis=1) * (len(parts) / (len(parts) - 1))  # each period has a part in the median
    likeness = float(np.maximum(0, 1 - differs / whole).mean())
    tail = name[anchor.places[-1] : anchor.places[-1] + anchor.distance]
    if len(tail) == anchor.distance:
        unlike = np.abs(np.bincount(tail, minlength=len(middle)) - middle).sum() / whole
        lengths = np.append(lengths, anchor.distance) if unlike <= 1 - ALIKE else lengths
    if likeness < (ALIKE if len(lengths) >= FEWEST else 1.0):
        return None
    texts = [part.tobytes() for part in parts]
    return _Cut(anchor, lengths, likeness, max(map(texts.count, set(texts))) / len(texts), anchors)


def _period(name: Ints, texts: tuple[str, ...], cut: _Cut) -> Period:
    first = int(cut.anchor.places[0])
    return Period(
        anchor=texts[name[first]],
        after=texts[name[first - 1]] if cut.anchor.pair else "",
        starts=tuple(cut.anchor.places.tolist()),
        kernels=tuple(cut.lengths.tolist()),
        likeness=cut.likeness,
        identical=cut.identical,
        head=first,
        rest=len(name) - first - int(cut.lengths.sum()),
        anchors=cut.anchors,
    )
