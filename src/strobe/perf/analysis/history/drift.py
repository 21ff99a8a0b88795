"""Drift of the machine between sessions and within one, from the commits that were measured again."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Final

import numpy as np

from strobe.perf.analysis.history.series import Series
from strobe.perf.measure.stats import FLOOR, Interval, paired_interval, welch_interval

_ENDS: Final = 2
"""Rounds at each end that are held against each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """A change of value without a change of code.

    Args:
        session: where it was seen.
        within: it was seen from the first rounds of the session to the last; False: from the first session to this one.
        ratio: value later / value earlier, of the same commits.
        interval: of the ratio.
    """

    session: str
    within: bool
    ratio: float
    interval: Interval | None

    @property
    def seen(self) -> bool:
        """Whether the interval excludes no drift, and it exceeds the floor below which nothing is called a difference."""
        real = abs(math.log(self.ratio)) > math.log1p(FLOOR)
        return real and self.interval is not None and not self.interval.low <= 1 <= self.interval.high


def drifts(series: Series) -> tuple[Drift, ...]:
    """The drift of every session that can tell of it: from the first one by the anchor, and within by all commits."""
    found = []
    for number, each in enumerate(series.rounds):
        if number and series.anchor is not None:
            later, earlier = (_anchor(series, at) for at in (number, 0))
            ratio = math.exp(statistics.fmean(later) - statistics.fmean(earlier))
            interval = welch_interval(list(map(math.exp, later)), list(map(math.exp, earlier)))
            found.append(Drift(session=each.session, within=False, ratio=ratio, interval=interval))
        if len(each.logs) >= 2 * _ENDS:
            common = ~np.isnan(each.logs).any(axis=0)
            changes = (each.logs[-_ENDS:, common].mean(axis=0) - each.logs[:_ENDS, common].mean(axis=0)).tolist()
            if len(changes) > 1:
                interval = paired_interval(changes)
                found.append(Drift(session=each.session, within=True, ratio=math.exp(float(np.mean(changes))), interval=interval))
    return tuple(found)


def _anchor(series: Series, number: int) -> list[float]:
    values = series.rounds[number].logs[:, series.anchor]
    return [float(value) for value in values[~np.isnan(values)].ravel()]
