"""Steady values of a log's timer, rank by rank, and the method of their selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from strobe.core.errors import DataError
from strobe.perf.analysis.device.distribution import Distribution, distribution
from strobe.perf.analysis.runs.log_rounds import (
    STAGE,
    START_UP,
    LogRequest,
    StageRounds,
    calls_of_rounds,
    calls_per_stage,
    stage_constraints,
    stage_rounds,
    start_up,
)
from strobe.perf.analysis.steady import find_steady
from strobe.perf.logs.series import Log, Series
from strobe.perf.logs.units import Resolved, resolve_units, short
from strobe.perf.measure.stats import percentile

OUTLIER: Final = 3
"""Interquartile ranges above the third quartile beyond which a value is an outlier."""

Method = Literal["steady", "window", "cause"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outliers:
    """Kept values far above the others, and the mean that would be left without them."""

    n: int
    mean_without_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesSummary:
    """Steady values of one series.

    Args:
        calls: the kept values.
        kept: their indices in the series.
        excluded: indices left out, by cause.
        method: `steady`: a suffix without a trend was found; `window`: what the user's window lets through; `cause`: all but
            what has a known cause, because no trend can be tested or no steady part was found.
        note: findings in words; empty if the other fields hold all of them.
        outliers: outliers among the kept values; None if there are none.
    """

    resolved: Resolved
    calls: Distribution
    kept: tuple[int, ...]
    excluded: Mapping[str, tuple[int, ...]]
    method: Method
    note: str
    outliers: Outliers | None

    @property
    def series(self) -> Series:
        """Series that the values come from."""
        return self.resolved.series

    @property
    def values_ns(self) -> tuple[int, ...]:
        """The kept values, in order."""
        return tuple(self.resolved.values_ns[index] for index in self.kept)


def attention_summary(request: LogRequest, name: str = "", stage: str = STAGE) -> tuple[SeriesSummary, ...]:
    """Summarise the attention timers of a log, one result for each name and rank with a value that is a time.

    A stage in the same log bounds a call from above, and calls inside a round that is left out as warm-up are left out as well.

    Args:
        name: regular expression that is searched in the timers' names, any case.
        stage: the same for the stage whose rounds the calls belong to, if the log has it.

    Raises:
        DataError: the log has no such timer, or none of its values can be used.
        UnitError: the unit is not known; see `resolve_units`.
    """
    found = request.log.of("attention", name)
    if not found:
        raise DataError(f"{request.log.path}: no attention timer{f' {name!r}' if name else ''}; {request.log.content}")
    usable = [series for series in found if len(series)]
    if not usable:
        left_out = "; ".join(f"{series.title}: {series.rejected}" for series in found)
        raise DataError(f"{request.log.path}: no value of an attention timer is a time; left out: {left_out}")
    rounds = _stages(request.log, stage)
    return tuple(_in_stages(request, series, rounds) for series in usable)


def summarise(request: LogRequest, series: Series, causes: Mapping[int, str] | None = None) -> SeriesSummary:
    """Summarise one series.

    Left out, in this order: what the line itself or `causes` calls not steady; the start-up, the leading values that are each
    longer than everything in the second half; what `find_steady` finds to drift. A window instead leaves out what is outside it.

    Raises:
        DataError: no value can be used.
        UnitError: the unit is not known.
    """
    resolved = resolve_units(series, request.constraints, request.unit)
    values = resolved.values_ns
    if not values:
        raise DataError(f"{series.path}: {series.title}: it has no value that is a time; left out: {series.rejected}")
    method: Method
    if request.window:
        method, note, dropped = "window", "", request.outside(values)
    else:
        known = {index: series.causes[cause] for index, cause in enumerate(series.cause) if cause} | dict(causes or {})
        rest = [index for index in range(len(values)) if index not in known]
        known |= dict.fromkeys(rest[: start_up([values[index] for index in rest])], START_UP)
        steady = find_steady(values, known)
        method, note = "steady" if steady.tested else "cause", steady.note
        dropped = {exclusion.index: exclusion.cause for exclusion in steady.excluded}
    kept = tuple(index for index in range(len(values)) if index not in dropped)
    calls = distribution(np.array([values[index] for index in kept], np.int64))
    if calls is None:
        raise DataError(
            f"{series.path}: {series.title}: all {len(values)} values are left out: {'; '.join(set(dropped.values()))}"
        )
    excluded: dict[str, list[int]] = {}
    for index, cause in dropped.items():
        excluded.setdefault(cause, []).append(index)
    return SeriesSummary(
        resolved=resolved,
        calls=calls,
        kept=kept,
        excluded={cause: tuple(indices) for cause, indices in excluded.items()},
        method=method,
        note=note,
        outliers=_outliers([values[index] for index in kept]),
    )


def _stages(log: Log, stage: str) -> tuple[StageRounds, ...]:
    """Return the stages that the calls may lie in; none if the log has none with a unit."""
    try:
        return stage_rounds(LogRequest(log=log), stage)
    except DataError:
        return ()


def _in_stages(request: LogRequest, series: Series, stages: Sequence[StageRounds]) -> SeriesSummary:
    bounds = list(request.constraints)
    warm_up: dict[int, str] = {}
    for rounds in stages:
        counted = calls_per_stage(request.log, series, rounds)
        if counted is not None:
            calls = request.calls or (counted.calls if counted.one_process else None)
            bounds += stage_constraints(rounds, calls)
            for index, inside in enumerate(calls_of_rounds(request.log, series, rounds)):
                if index in rounds.excluded:
                    warm_up |= dict.fromkeys(inside, f"in round {index + 1} of {rounds.name}, which is warm-up")
    if len(warm_up) == len(series):
        warm_up = {}
    return summarise(replace(request, constraints=tuple(bounds)), series, warm_up)


def slowest(summaries: Sequence[SeriesSummary]) -> SeriesSummary:
    """Return the slowest rank: the one with the largest mean."""
    return max(summaries, key=lambda summary: summary.calls.mean_ns)


def unsynchronised(summary: SeriesSummary, device_ns: int, what: str) -> str | None:
    """Return a warning if a timer did not wait for the device: its median is below half of the device's time; else None.

    Args:
        device_ns: device time of one call of what the timer is around.
        what: the thing that takes it, e.g. `range attention in trace.json`.
    """
    median = summary.calls.p50_ns
    if 2 * median >= device_ns:
        return None
    return (
        f"{summary.series.title}: the median of {short(median)} is far below the {short(device_ns)} that the device takes for "
        f"{what}: the timer read the host's clock without waiting for the device, and timed the launch"
    )


def _outliers(values: Sequence[int]) -> Outliers | None:
    first, third = percentile(values, 0.25), percentile(values, 0.75)
    usual = [value for value in values if value <= third + OUTLIER * (third - first)]
    if len(usual) == len(values):
        return None
    return Outliers(n=len(values) - len(usual), mean_without_ns=sum(usual) / len(usual))
