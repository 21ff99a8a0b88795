"""Times of every level in one side's log: attention calls, steps, stage, whole run, and the calls in a stage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from strobe.core.errors import DataError
from strobe.perf.analysis.runs.log_metrics import SeriesSummary, attention_summary, slowest, summarise
from strobe.perf.analysis.runs.log_rounds import STAGE, LogRequest, StageRounds, calls_of_rounds, calls_per_stage, stage_rounds
from strobe.perf.logs import Constraint, Log, Series, Unit

NO_LOG: Final = "no log given"
NO_CALLS: Final = "calls per stage not recorded: give --calls-per-stage"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Selection of the timers in a log.

    Args:
        stage: regular expression of the stage's name.
        timer: the same for the attention timer, and for steps and whole runs if the log times several; our records name them
            `variant/span`.
        unit: unit of the timer's values as written.
        min_ns: shorter calls are left out.
        max_ns: longer calls are left out.
        calls: focal calls in a stage.
        processes: how many wrote the log, as far as that is known: lines of several that do not say their rank cannot be counted.
    """

    stage: str = STAGE
    timer: str = ""
    unit: Unit | None = None
    min_ns: int | None = None
    max_ns: int | None = None
    calls: int | None = None
    processes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """Times found in a log. A text in place of a result is the reason why there is none.

    Args:
        timers: every rank of the attention timer.
        attention: the slowest of them.
        rounds: indices of its values in each round of the stage.
        stage: the rounds of the stage.
        step: steps, of the slowest rank.
        e2e: whole runs.
        calls: focal calls in a stage.
        calls_from: where their number comes from, or why it is not known.
    """

    timers: tuple[SeriesSummary, ...]
    attention: SeriesSummary | str
    rounds: tuple[range, ...]
    stage: StageRounds | str
    step: SeriesSummary | str
    e2e: StageRounds | str
    calls: int | None
    calls_from: str


def timings_of(log: Log | None, wanted: Wanted, constraints: Sequence[Constraint] = ()) -> Timings:
    """Collect the times of a log.

    Args:
        log: `None`: there is none.
        constraints: bounds of one attention call from elsewhere.

    Raises:
        DataError: the log has no such timer, or several timers or stages that fit.
        UnitError: the unit of a timer is not known.
    """
    calls, calls_from = wanted.calls, NO_CALLS if wanted.calls is None else f"given: {wanted.calls}"
    if log is None:
        return Timings(
            timers=(), attention=NO_LOG, rounds=(), stage=NO_LOG, step=NO_LOG, e2e=NO_LOG, calls=calls, calls_from=calls_from
        )
    stage = _stage(log, wanted.stage)
    timers = _attention(log, wanted, constraints)
    attention = slowest(timers) if timers else "the log times no attention call"
    rounds: tuple[range, ...] = ()
    if not isinstance(stage, str) and not isinstance(attention, str):
        rounds = calls_of_rounds(log, attention.series, stage)
        if calls is None:
            calls, calls_from = _counted(log, attention, stage, wanted.processes)
    steps = _named(log, "step", wanted.timer)
    return Timings(
        timers=timers,
        attention=attention,
        rounds=rounds,
        stage=stage,
        step=steps if isinstance(steps, str) else slowest([summarise(LogRequest(log=log), each) for each in steps]),
        e2e=_whole(log, wanted.timer),
        calls=calls,
        calls_from=calls_from,
    )


def _counted(log: Log, attention: SeriesSummary, stage: StageRounds, processes: int | None) -> tuple[int | None, str]:
    """Count the calls in a stage by the lines of their timer."""
    found = calls_per_stage(log, attention.series, stage)
    if found is None or found.calls is None or (not found.one_process and processes not in (None, 1)):
        return None, NO_CALLS
    text = f"counted in the log: {found.calls} values of the timer {attention.series.title!r} in each round of the stage"
    return found.calls, text if found.one_process or processes == 1 else f"{text}, if one process wrote it"


def _named(log: Log, kind: Literal["step", "e2e"], name: str) -> tuple[Series, ...] | str:
    """Return the series of a kind, one per rank; a reason if there are none or it is unclear which are meant."""
    found = log.of(kind)
    if len({series.name for series in found}) > 1 and name:
        found = log.of(kind, name)
    names = dict.fromkeys(series.name for series in found)
    if len(names) > 1:
        return f"the log times several: {', '.join(map(repr, names))}; choose one with --baseline-name or --candidate-name"
    return found or f"the log times no {'step' if kind == 'step' else 'whole run'}"


def _whole(log: Log, name: str) -> StageRounds | str:
    series = _named(log, "e2e", name)
    if isinstance(series, str):
        return series
    return next(
        rounds for rounds in stage_rounds(LogRequest(log=log), re.escape(series[0].name)) if rounds.name == series[0].name
    )


def _stage(log: Log, name: str) -> StageRounds | str:
    """Return the one stage whose name matches, or the reason why there is none."""
    if not log.of("stage", name):
        return f"the log times no stage {name!r}"
    found = [rounds for rounds in stage_rounds(LogRequest(log=log), name) if rounds.resolved[0].series.kind == "stage"]
    if len(found) > 1:
        names = ", ".join(repr(rounds.name) for rounds in found)
        raise DataError(f"{log.path}: {len(found)} stages match {name!r}: {names}; choose one with --stage")
    return found[0]


def _attention(log: Log, wanted: Wanted, constraints: Sequence[Constraint]) -> tuple[SeriesSummary, ...]:
    if not log.of("attention", wanted.timer):
        if wanted.timer and not any(re.search(wanted.timer, series.name, re.IGNORECASE) for series in log.series):
            raise DataError(f"{log.path}: no attention timer {wanted.timer!r}; {log.content}")
        return ()
    request = LogRequest(
        log=log,
        constraints=tuple(constraints),
        unit=wanted.unit,
        min_ns=wanted.min_ns,
        max_ns=wanted.max_ns,
        calls=wanted.calls,
    )
    timers = attention_summary(request, wanted.timer, wanted.stage)
    names = dict.fromkeys(timer.series.name for timer in timers)
    if len(names) > 1:
        listed = ", ".join(repr(name) for name in names)
        raise DataError(
            f"{log.path}: {len(names)} attention timers: {listed}; choose one with --baseline-name or --candidate-name"
        )
    return timers
