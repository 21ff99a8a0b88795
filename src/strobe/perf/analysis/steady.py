"""Selection of the steady samples of a series: samples with a known cause to differ are left out, then a drifting start."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from strobe.perf.measure.stats import theil_sen

FEWEST: Final = 6
"""Fewest samples of a trend test."""
STARTS: Final = 64
"""Most suffixes tried in a long series, evenly spread."""
GROUPS: Final = 128
"""Most points of a trend test: a longer suffix is tested on medians of this many groups of neighbours."""

UNSETTLED: Final = "not yet steady"


@dataclass(frozen=True, kw_only=True, slots=True)
class SteadyState:
    """The steady part of a series.

    Args:
        excluded: every other index in order, with its cause.
        tested: a suffix passed the test. False: too few samples, or none passed, and only known causes were excluded.
    """

    kept: tuple[int, ...]
    excluded: Mapping[int, str]
    tested: bool
    note: str


def find_steady(values: Sequence[float], causes: Mapping[int, str]) -> SteadyState:
    """Exclude samples by cause, then keep the longest suffix that shows no trend.

    A suffix is steady if the 95 % interval of its Theil-Sen slope contains 0, the medians of its two halves differ by no more
    than the noise, and the median of its first six samples lies within twice the noise of its own (a short slow start tilts
    neither slope nor halves). Noise is 1.4826 x (median absolute deviation of successive differences) / sqrt(2).

    Args:
        values: one duration per index, in the order they happened.
        causes: indices known to differ (compilation, cache not full, prompt switch, ...) and why.
    """
    known = {index: causes[index] for index in range(len(values)) if index in causes}
    rest = [index for index in range(len(values)) if index not in causes]
    if len(rest) < FEWEST:
        note = f"{len(rest)} samples, fewer than the {FEWEST} that a test of the trend needs; excluded by cause only"
        return SteadyState(kept=tuple(rest), excluded=known, tested=False, note=note)
    last = len(rest) - FEWEST
    for start in sorted({round(step * last / min(last or 1, STARTS)) for step in range(min(last, STARTS) + 1)}):
        if _is_steady([float(values[index]) for index in rest[start:]]):
            excluded = known | dict.fromkeys(rest[:start], UNSETTLED)
            return SteadyState(kept=tuple(rest[start:]), excluded=dict(sorted(excluded.items())), tested=True, note="")
    return SteadyState(kept=tuple(rest), excluded=known, tested=False, note="no steady part found; excluded by cause only")


def _is_steady(values: list[float]) -> bool:
    if len(values) > GROUPS:
        edges = [round(group * len(values) / GROUPS) for group in range(GROUPS + 1)]
        values = [statistics.median(values[first:last]) for first, last in pairwise(edges)]
    _, slope = theil_sen(values)
    if not slope.low <= 0 <= slope.high:
        return False
    steps = [after - before for before, after in pairwise(values)]
    middle = statistics.median(steps)
    noise = 1.4826 * statistics.median(abs(step - middle) for step in steps) / 2**0.5
    half = len(values) // 2
    halves = statistics.median(values[:half]) - statistics.median(values[-half:])
    start = statistics.median(values[:FEWEST]) - statistics.median(values)
    return abs(halves) <= noise and abs(start) <= 2 * noise
