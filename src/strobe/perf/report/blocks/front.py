"""The Pareto front of speed and quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from strobe.perf.table.model import Ratio

BEST: Final = 60.0
"""Quality from which pictures count as equal, dB: a mean error of a quarter of an 8-bit step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontPoint:
    """One setting: speedup over the base, quality in dB (infinite: the pictures equal the reference's).

    Args:
        speed: what counts; 1 where the interval does not prove a difference.
        measured: what was measured, and its interval.
    """

    label: str
    speed: float
    score: float
    measured: Ratio = field(default_factory=lambda: Ratio(1.0))

    @property
    def quality(self) -> float:
        """Quality that counts, dB: at most `BEST`."""
        return min(self.score, BEST)


def front(points: Sequence[FrontPoint]) -> tuple[FrontPoint, ...]:
    """Return the points that no other point beats in speed and quality, fastest first; of equal points the first given."""
    kept: list[FrontPoint] = []
    for point in sorted(points, key=lambda each: (-each.speed, -each.quality)):
        if all(point.quality > other.quality for other in kept):
            kept.append(point)
    return tuple(kept)
