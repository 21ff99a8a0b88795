"""Everything a history says, figure by figure and machine by machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strobe.perf.analysis.history.drift import Drift, drifts
from strobe.perf.analysis.history.series import Series, series_of
from strobe.perf.analysis.history.steps import Step, find_steps
from strobe.perf.measure.stats import FLOOR
from strobe.perf.records.history import SessionRecords


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A series, its steps, and the drift of its machine.

    Args:
        current: it is of the machine that measured last.
    """

    series: Series
    steps: tuple[Step, ...]
    drifts: tuple[Drift, ...]
    current: bool


def find(sessions: Sequence[SessionRecords], least: float = FLOOR) -> tuple[Found, ...]:
    """Analyse a history; the figures of the machine that measured last come first.

    Args:
        least: a change by less, as a share, is no step.
    """
    last = max((each for each in sessions if each.samples or each.failures), key=lambda each: each.session.date, default=None)
    found = [
        Found(
            series=series,
            steps=find_steps(series, least),
            drifts=drifts(series),
            current=last is not None and series.host.identity == last.session.host.identity,
        )
        for series in series_of(sessions)
    ]
    return tuple(sorted(found, key=lambda each: not each.current))
