"""Pareto front of speed and quality, its sweet spot, and the use of each point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from strobe.perf.report.model import Ratio

BEST: Final = 60.0
"""Quality from which pictures count as equal, dB: a mean error of a quarter of an 8-bit step."""
RULE: Final = (
    "A difference in speed that its interval does not prove counts as none.",
    "On the front is what nothing measured beats in speed without losing quality, or in quality without losing speed.",
    f"The sweet spot is the point of the front nearest to the corner that is fastest and best: log of the speedup against dB, "
    f"each scaled from the front's worst (0) to its best (1), dB counted up to {BEST:g}. Of two equally near the better one.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One setting: speedup over the base, quality in dB (infinite: the pictures equal the reference's).

    Args:
        speed: what counts; 1 where the interval does not prove a difference.
        measured: what was measured, and its interval.
    """

    label: str
    speed: float
    score: float
    measured: Ratio = field(default_factory=lambda: Ratio(1.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """A point of the Pareto front and the situation to use it in."""

    point: Point
    sweet: bool
    when: str


def front(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points that no other point beats in speed and quality, fastest first; of equal points the first given."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda each: (-each.speed, -_quality(each))):
        if all(_quality(point) > _quality(other) for other in kept):
            kept.append(point)
    return tuple(kept)


def advise(points: Sequence[Point]) -> tuple[Advice, ...]:
    """Return the Pareto front with its sweet spot and the use of each point; empty without points."""
    found = front(points)
    if not found:
        return ()
    speeds, scores = [math.log(point.speed) for point in found], [_quality(point) for point in found]
    far = [math.hypot(_gap(speed, speeds), _gap(score, scores)) for speed, score in zip(speeds, scores, strict=True)]
    sweet = min(range(len(found)), key=lambda index: (round(far[index], 9), -scores[index]))
    return tuple(Advice(point=point, sweet=index == sweet, when=_when(index, sweet, found)) for index, point in enumerate(found))


def _gap(value: float, values: Sequence[float]) -> float:
    """Return the distance of a value from the largest one, as a share of the range of all values."""
    width = max(values) - min(values)
    return (max(values) - value) / width if width else 0.0


def _quality(point: Point) -> float:
    return min(point.score, BEST)


def _when(index: int, sweet: int, found: Sequence[Point]) -> str:
    point, last = found[index], len(found) - 1
    if not last:
        return "always: nothing measured is proven faster, and nothing is better"
    lost = _quality(found[-1]) - _quality(point)
    words = "by default" if index == sweet else ""
    if index == 0:
        words = f"{words + ', and ' if words else ''}where speed counts above all: {lost:.1f} dB below the best of the front"
    elif index == last:
        slower = 100 * (found[0].speed / point.speed - 1)
        words = f"{words + ', and ' if words else ''}where no loss is allowed: the fastest of the front is {slower:.0f} % faster"
    elif index < sweet:
        words = f"where the sweet spot is too slow: {point.speed / found[sweet].speed:.2f}x of its speed"
    elif index > sweet:
        words = f"where the sweet spot loses too much: {_quality(point) - _quality(found[sweet]):.1f} dB above it"
    return words
