"""One figure over the commits of one machine, every value relative to a commit that all its sessions measured."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from strobe.perf.measure.stats import Interval, median_interval
from strobe.perf.records.history import Failure, Followed, Host, Revision, SessionRecords

Values = npt.NDArray[np.float64]
EXACT: Final = 1e-9
"""Figures that differ by less, as a share, are the same."""
_COMMON: Final = 3
"""Fewest commits that all rounds of a session share for their median to tell how fast the machine was in a round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """Logarithms of one session: a row per round, a column per commit of the series, NaN where nothing was measured.

    Args:
        anchor: column that ties the session to the others; None: the session was the only one.
    """

    session: str
    logs: Values
    anchor: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One commit that was measured.

    Args:
        value: median, less what the machine was faster or slower in each round and session.
        interval: of the median, from order statistics; None below 6 samples.
        samples: measurements.
    """

    revision: Revision
    value: float
    interval: Interval | None
    samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A figure over the commits of one machine.

    Args:
        points: commits that were measured, oldest first.
        rounds: what they were measured by, one for each session.
        anchor: number of the commit that ties sessions together; None: there is one session.
        failed: commits that were not measured, and why.
        revisions: every commit of the range, measured or not, oldest first.
        untied: sessions that are left out, for they do not have the anchor.
    """

    figure: Followed
    host: Host
    points: tuple[Point, ...]
    rounds: tuple[Rounds, ...]
    anchor: int | None
    failed: Mapping[str, Failure]
    revisions: tuple[Revision, ...]
    untied: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether every commit gave the same value each time, twice or more: a program that counts, not one that is timed."""
        own = [_column([each.logs for each in self.rounds], at) for at in range(len(self.points))]
        return all(len(each) > 1 and max(each) - min(each) < EXACT for each in own)

    @property
    def levels(self) -> Values:
        """Logarithm of every point's value."""
        return np.log([point.value for point in self.points])


def revisions_of(sessions: Sequence[SessionRecords]) -> tuple[Revision, ...]:
    """Every commit of some sessions in order; where two branches have one at the same place, that of the later session."""
    by_position = {each.position: each for session in sessions for each in session.revisions}
    return tuple(by_position[position] for position in sorted(by_position))


def anchor_of(sessions: Sequence[SessionRecords]) -> str | None:
    """The commit that a new session measures again: the one that most sessions have, of equals the oldest; None: none yet."""
    seen = Counter(commit for session in sessions for commit in {sample.commit for sample in session.samples})
    order = [each.commit for each in revisions_of(sessions) if each.commit in seen]
    return max(order, key=lambda commit: seen[commit], default=None)


def series_of(sessions: Sequence[SessionRecords]) -> tuple[Series, ...]:
    """Every figure of every machine of a history; of the machine that measured last at the end."""
    hosts: dict[tuple[object, ...], list[SessionRecords]] = {}
    for session in sessions:
        own = hosts.pop(session.session.host.identity, [])
        hosts[session.session.host.identity] = [*own, session]  # in the order of their last session
    found = []
    for own in hosts.values():
        figures = dict.fromkeys(figure for session in own for figure in session.session.figures)
        found += [_series(own, revisions_of(sessions), figure) for figure in figures]
    return tuple(found)


def _series(sessions: Sequence[SessionRecords], revisions: tuple[Revision, ...], figure: Followed) -> Series:
    """One figure of one machine."""
    taken = [session for session in sessions if any(figure.name in sample.figures for sample in session.samples)]
    anchor = anchor_of(taken)
    has = [session for session in taken if any(sample.commit == anchor for sample in session.samples)]
    measured = {sample.commit for session in has for sample in session.samples if figure.name in sample.figures}
    chosen = [each for each in revisions if each.commit in measured]
    column = {each.commit: at for at, each in enumerate(chosen)}
    tied = len(has) > 1 and anchor in column
    rounds = tuple(_rounds(session, figure.name, column, column[anchor] if tied and anchor else None) for session in has)
    rounds = tuple(each for each in rounds if each.logs.size)
    levels = levels_of(rounds, [each.logs[None] for each in rounds])[0] if chosen else np.empty(0)
    logs = [_column([each.logs for each in rounds], at) for at in range(len(chosen))]
    base = statistics.median(statistics.median(own) - level for own, level in zip(logs, levels, strict=True)) if chosen else 0.0
    points = []
    cleared = [relative(each, each.logs[None])[0] for each in rounds]
    for at, (each, level) in enumerate(zip(chosen, levels, strict=True)):
        own = _column(cleared, at)
        spread, value = median_interval(own), float(level) + base
        shift = value - statistics.median(own)
        interval = None if spread is None else Interval(low=math.exp(spread.low + shift), high=math.exp(spread.high + shift))
        points.append(Point(revision=each, value=math.exp(value), interval=interval, samples=len(own)))
    failures = {each.commit: each for session in sessions for each in session.failures if each.commit not in measured}
    return Series(
        figure=figure,
        host=sessions[-1].session.host,
        points=tuple(points),
        rounds=rounds,
        anchor=column.get(anchor or "") if tied else None,
        failed=failures,
        revisions=revisions,
        untied=tuple(session.session.session for session in taken if session not in has),
    )


def _rounds(session: SessionRecords, name: str, column: Mapping[str, int], anchor: int | None) -> Rounds:
    """The samples of a session as a table."""
    own = [sample for sample in session.samples if name in sample.figures and sample.commit in column]
    rows = {number: at for at, number in enumerate(sorted({sample.round for sample in own}))}
    logs = np.full((len(rows), len(column)), np.nan)
    for sample in own:
        logs[rows[sample.round], column[sample.commit]] = math.log(sample.figures[name])
    return Rounds(session=session.session.session, logs=logs, anchor=anchor)


def _column(tables: Sequence[Values], at: int) -> list[float]:
    """Return the values of one commit."""
    values = np.concatenate([each[:, at] for each in tables])
    return [float(value) for value in values[~np.isnan(values)]]


def relative(each: Rounds, table: Values) -> Values:
    """Logarithms of a session less what its machine was: in each round, as the commits tell that are in all, and by the anchor.

    Args:
        each: the session.
        table: its logarithms, several times, [B, rounds, commits]: as they are or permuted.

    Returns:
        [B, rounds, commits].
    """
    present = ~np.isnan(each.logs)
    common = present.all(axis=0)
    if common.sum() >= _COMMON:
        table = table - np.median(table[:, :, common], axis=2, keepdims=True)
    if each.anchor is not None:
        table = table - np.median(table[:, present[:, each.anchor], each.anchor], axis=1)[:, None, None]
    return table


def levels_of(rounds: Sequence[Rounds], tables: Sequence[Values]) -> Values:
    """Level of each commit: the median over the rounds of a session, of `relative`; of several sessions the mean by samples.

    Args:
        rounds: of the sessions.
        tables: logarithms of each, several times, [B, rounds, commits].

    Returns:
        [B, commits].
    """
    num, commits = tables[0].shape[0], tables[0].shape[2]
    total, count = np.zeros((num, commits)), np.zeros(commits)
    for each, table in zip(rounds, tables, strict=True):
        own, present = relative(each, table), ~np.isnan(each.logs)
        for at in np.flatnonzero(present.any(axis=0)):
            samples = present[:, at].sum()
            total[:, at] += samples * np.median(own[:, present[:, at], at], axis=1)
            count[at] += samples
    return total / count
