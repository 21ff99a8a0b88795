"""Steps: places where a series changes its level.

The levels of the commits are cut into segments by least squares, exactly, by dynamic programming; how many segments there are
is tested. One more is taken as long as the largest change within a segment is larger than chance makes it, in both of two ways:

* **rounds**: if all commits were equally fast, the values of a round could have fallen to its commits in any other order, for the
  order was drawn. The values of every round are permuted within the segments, and the levels worked out anew.
* **commits**: builds differ a little without a change of speed (where code lies in memory). The spread of the commits comes from
  the differences of neighbours, by their median, which steps do not move, and normal noise of that spread is drawn.

Rounds are asked where the commits of a segment share some, commits where there are `FEWEST` of them. The change looked for is any
stretch of commits that differs from the rest of its segment. Draws are seeded: the same history gives the same steps.

Where every commit gave the same value each time, nothing is drawn: every change is one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strobe.perf.analysis.history.series import EXACT, Point, Series, Values, levels_of
from strobe.perf.measure.stats import FLOOR, LEVEL, Interval, paired_interval, welch_interval

ALPHA: Final = 1 - LEVEL
"""How often a series without any step may be said to have some."""
DRAWS: Final = 999
FEWEST: Final = 6
"""Commits from which their spread is known well enough."""
MOST: Final = 40
"""Steps that are looked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A change of level between two neighbouring points of a series.

    Args:
        before: last point before it.
        after: first point after it.
        first, last: points of the level before it begin, and of the level after it end.
        ratio: value after it / value before it.
        interval: of the ratio; None: the two sides share no round, or too few.
        paired: the interval is of rounds that measured both sides; False: of sessions apart, tied by the anchor.
        p: how often chance makes such a change between its neighbours.
        between: commits between the two points that were not measured, or failed.
    """

    before: int
    after: int
    first: int
    last: int
    ratio: float
    interval: Interval | None
    paired: bool
    p: float
    between: int


def find_steps(series: Series, least: float = FLOOR) -> tuple[Step, ...]:
    """Find the steps of a series, oldest first.

    Args:
        least: a change of the value by less, as a share, is no step.
    """
    levels = series.levels
    if len(levels) < 2:
        return ()
    cuts = _search(series, levels)
    while cuts:  # the smallest goes first; its neighbours then have another level beside them
        bounds = (0, *cuts, len(levels))
        sizes = [abs(levels[b:c].mean() - levels[a:b].mean()) for a, b, c in zip(bounds, bounds[1:], bounds[2:], strict=False)]
        smallest = int(np.argmin(sizes))
        if sizes[smallest] > math.log1p(least):
            break
        cuts = [cut for at, cut in enumerate(cuts) if at != smallest]
    bounds = (0, *cuts, len(levels))
    return tuple(_step(series, levels, a, b, c) for a, b, c in zip(bounds, bounds[1:], bounds[2:], strict=False))


def ratio_between(series: Series, before: Sequence[int], after: Sequence[int]) -> tuple[float, Interval | None, bool]:
    """The value of some points over that of others, with its interval, and whether rounds measured both.

    Rounds that have both sides give one ratio each (`paired_interval`). Without two of them, the values of a round less the
    anchor's are held against each other (`welch_interval`).
    """
    pairs = [
        float(np.nanmean(row[list(after)]) - np.nanmean(row[list(before)]))
        for each in series.rounds
        for row in each.logs
        if not np.isnan(row[list(before)]).all() and not np.isnan(row[list(after)]).all()
    ]
    if len(pairs) > 1:
        return math.exp(statistics.fmean(pairs)), paired_interval(pairs), True
    levels = series.levels
    ratio = float(np.exp(levels[list(after)].mean() - levels[list(before)].mean()))
    later, earlier = ([math.exp(value) for value in _relative(series, side)] for side in (after, before))
    return ratio, welch_interval(later, earlier), False


def _relative(series: Series, side: Sequence[int]) -> Iterator[float]:
    """A side's mean of each round, relative to the anchor's median in that session."""
    for each in series.rounds:
        base = 0.0 if each.anchor is None else float(np.nanmedian(each.logs[:, each.anchor]))
        for row in each.logs[:, list(side)]:
            if not np.isnan(row).all():
                yield float(np.nanmean(row)) - base


def best_cuts(levels: Values, most: int) -> list[list[int]]:
    """Return the places of `0, 1, ..., most` cuts that leave the least sum of squares: exactly, by dynamic programming.

    Returns:
        for each number of cuts, the places where a segment begins.
    """
    n = len(levels)
    sums, squares = (np.concatenate([[0.0], np.cumsum(values)]) for values in (levels, levels**2))
    start, stop = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    length = np.maximum(stop - start, 1)
    cost = np.where(stop > start, squares[stop] - squares[start] - (sums[stop] - sums[start]) ** 2 / length, np.inf)
    best, origins = cost[0].copy(), []
    for _ in range(min(most, n - 1)):
        ways = best[:, None] + cost
        origins.append(ways.argmin(axis=0))
        best = ways.min(axis=0)
    found = []
    for many in range(len(origins) + 1):
        cuts, end = [], n
        for origin in reversed(origins[:many]):
            end = int(origin[end])
            cuts.append(end)
        found.append(cuts[::-1])
    return found


def largest_change(levels: Values) -> Values:
    """The most that the sum of squares falls when one stretch of a segment gets a level of its own.

    Args:
        levels: [B, commits of the segment].

    Returns:
        [B].
    """
    n = levels.shape[1]
    found = np.zeros(levels.shape[0])
    centred = levels - levels.mean(axis=1, keepdims=True)
    sums = np.concatenate([np.zeros((levels.shape[0], 1)), np.cumsum(centred, axis=1)], axis=1)
    for width in range(1, n):
        moved = np.abs(sums[:, width:] - sums[:, :-width]).max(axis=1)
        np.maximum(found, moved**2 * n / (width * (n - width)), out=found)
    return found


def _search(series: Series, levels: Values) -> list[int]:
    """Return the places where segments begin after the first."""
    if series.exact:
        return [at for at in range(1, len(levels)) if abs(levels[at] - levels[at - 1]) >= EXACT]
    candidates = best_cuts(levels, min(MOST, len(levels) - 1))
    for cuts in candidates:
        if chance(series, levels, [range(a, b) for a, b in zip((0, *cuts), (*cuts, len(levels)), strict=True)]) > ALPHA:
            return cuts
    return candidates[-1]


def chance(series: Series, levels: Values, segments: Sequence[range]) -> float:
    """Return the share of segments without any step that change as much as these do; 1 where nothing can be told."""
    flat = all(np.ptp(levels[list(each)]) < EXACT for each in segments)
    if flat:
        return 1.0
    if series.exact:
        return 0.0
    told = [each for each in segments if len(each) > 1]
    asked = [by_rounds for by_rounds in (_by_rounds(series, levels, told),) if by_rounds is not None]
    if sum(map(len, told)) >= FEWEST:
        asked.append(_by_commits(levels, told))
    return max(asked, default=1.0)


def _by_rounds(series: Series, levels: Values, segments: Sequence[range]) -> float | None:
    """Permute every round within the segments whose commits share rounds; None: none do."""
    shared = [each for each in segments if _share_rounds(series, each)]
    if not shared:
        return None
    draw = np.random.default_rng(0)
    tables = []
    for each in series.rounds:
        table = np.repeat(each.logs[None], DRAWS, axis=0)
        for row in range(table.shape[1]):
            for segment in shared:
                there = [at for at in segment if not np.isnan(each.logs[row, at])]
                table[:, row, there] = draw.permuted(table[:, row, there], axis=1)
        tables.append(table)
    drawn = levels_of(series.rounds, tables)
    return _share_above(levels, drawn, shared)


def _share_rounds(series: Series, segment: range) -> bool:
    """Return whether each commit of a segment was measured in a round with another one of it."""
    tied: set[int] = set()
    for each in series.rounds:
        for row in each.logs:
            there = [at for at in segment if not np.isnan(row[at])]
            tied.update(there if len(there) > 1 else ())
    return len(tied) == len(segment)


def _by_commits(levels: Values, segments: Sequence[range]) -> float:
    """Draw normal noise of the commits' own spread."""
    drawn = np.random.default_rng(1).standard_normal((DRAWS, len(levels)))
    own, others = _spread(levels[None], segments)[0], _spread(drawn, segments)
    return _share_above(levels / max(own, EXACT), drawn / others[:, None], segments)


def _spread(levels: Values, segments: Sequence[range]) -> Values:
    """Spread of the commits from the differences of neighbours within segments, [B]."""
    differences = np.concatenate([np.diff(levels[:, each.start : each.stop], axis=1) for each in segments], axis=1)
    spread: Values = 1.4826 / math.sqrt(2) * np.median(np.abs(differences), axis=1)
    return spread


def _share_above(levels: Values, drawn: Values, segments: Sequence[range]) -> float:
    """The share of draws whose largest change is that of the levels or more; the levels count as one of them."""
    found = max(float(largest_change(levels[None, each.start : each.stop])[0]) for each in segments)
    others = np.max([largest_change(drawn[:, each.start : each.stop]) for each in segments], axis=0)
    return float((1 + (others >= found * (1 - 1e-9)).sum()) / (1 + len(drawn)))


def _step(series: Series, levels: Values, first: int, at: int, stop: int) -> Step:
    before, after = range(first, at), range(at, stop)
    ratio, interval, paired = ratio_between(series, before, after)
    places: list[Point] = [series.points[at - 1], series.points[at]]
    return Step(
        before=at - 1,
        after=at,
        first=first,
        last=stop - 1,
        ratio=ratio,
        interval=interval,
        paired=paired,
        p=chance(series, levels, [range(first, stop)]),
        between=places[1].revision.position - places[0].revision.position - 1,
    )
