"""Times of every level in one side's log: rounds of a stage, steady values of timers, and calls."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import takewhile
from typing import Final, Literal

import numpy as np

from strobe.core.errors import DataError
from strobe.perf.analysis.device.intervals import Distribution, distribution
from strobe.perf.analysis.steady import FEWEST, find_steady
from strobe.perf.logs.patterns import Unit
from strobe.perf.logs.series import Constraint, Log, Resolved, Series, resolve_units, short
from strobe.perf.measure.stats import percentile
from strobe.perf.table.rows import gathered

# Rounds of a stage in a log: their times, averages with and without warm-up, and the calls inside each.

STAGE: Final = "denois|diffusion"
"""Default pattern of the stage's name."""
START_UP: Final = "start-up: longer than anything in the second half"
FIRST: Final = f"first round: a fixed rule, because fewer than {FEWEST} rounds cannot be tested for a trend"


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRequest:
    """A log with the known facts about the timer that is looked for.

    Args:
        constraints: bounds of one value.
        min_ns: shorter values are left out; with this or `max_ns` the window replaces the search for the steady state.
        max_ns: longer values are left out.
        calls: how often the thing happens in each round of the stage, if the user gives it.
    """

    log: Log
    constraints: tuple[Constraint, ...] = ()
    unit: Unit | None = None
    min_ns: int | None = None
    max_ns: int | None = None
    calls: int | None = None

    @property
    def window(self) -> str:
        """Bounds of the window in words; empty without a window."""
        low = "" if self.min_ns is None else f"at least {short(self.min_ns)}"
        high = "" if self.max_ns is None else f"at most {short(self.max_ns)}"
        return " and ".join(filter(None, (low, high)))

    def outside(self, values_ns: Sequence[int]) -> dict[int, str]:
        """Return the indices of the values outside the window, with the cause."""
        low, high = self.min_ns or 0, max(values_ns, default=0) if self.max_ns is None else self.max_ns
        cause = f"outside the window: {self.window}"
        return {index: cause for index, value in enumerate(values_ns) if not low <= value <= high}


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRounds:
    """Rounds of one stage in one log.

    Args:
        resolved: one series for each rank, with its units.
        rounds_ns: time of each round, of the rank that took longest; `run_01` is the first.
        excluded: indices of rounds that are no part of the average without warm-up, with the cause.
        note: findings in words; empty if the other fields hold all of them.
        incomplete: rounds at the end that not every rank has; they are left out.
    """

    name: str
    resolved: tuple[Resolved, ...]
    rounds_ns: tuple[int, ...]
    excluded: Mapping[int, str]
    note: str
    incomplete: int

    @property
    def kept_ns(self) -> tuple[int, ...]:
        return tuple(value for index, value in enumerate(self.rounds_ns) if index not in self.excluded)

    @property
    def avg_all_rounds_ns(self) -> Fraction:
        return Fraction(sum(self.rounds_ns), len(self.rounds_ns))

    @property
    def avg_excl_warmup_ns(self) -> Fraction | None:
        """Mean of the rounds that count, ns; None if there are none."""
        return Fraction(sum(self.kept_ns), len(self.kept_ns)) if self.kept_ns else None


def stage_rounds(request: LogRequest, name: str = STAGE) -> tuple[StageRounds, ...]:
    """Return the rounds of each stage whose name matches a regular expression, any case; one result per name.

    In a log that times steps and no stage of that name, a round is a step. docs/logs.md says which rounds count.

    Raises:
        DataError: the log has no such stage, none of its values can be used, or a unit is not known; see `resolve_units`.
    """
    stages = (*request.log.of("stage", name), *request.log.of("e2e", name))
    chosen = stages or request.log.of("step", name) or (request.log.of("step") if name == STAGE else ())
    found = gathered(((series.name, series.pattern), series) for series in chosen)
    if not found:
        other = "; --stage chooses another stage" * bool(request.log.of("stage"))
        raise DataError(f"{request.log.path}: no stage {name!r}; {request.log.content}{other}")
    return tuple(_rounds(request, stage, group) for (stage, _), group in found.items())


def calls_per_stage(log: Log, inner: Series, rounds: StageRounds) -> int | None:
    """Count the values of `inner` in a round of a stage that is not warm-up; None if these rounds differ or have none.

    It is the count of one process only if the lines of `inner` say their rank.
    """
    counts = [len(calls) for calls in calls_of_rounds(log, inner, rounds)]
    steady = {count for index, count in enumerate(counts) if index not in rounds.excluded}
    return steady.pop() if any(counts) and len(steady) == 1 else None


def calls_of_rounds(log: Log, inner: Series, rounds: StageRounds) -> tuple[range, ...]:
    """Return for each round the indices of the values of `inner` between the line of any stage before it and its own.

    The lines of the rank of `inner` count; if no stage says that rank, those of the first one that the stage has.
    """
    own = next((resolved.series for resolved in rounds.resolved if resolved.series.rank == inner.rank), rounds.resolved[0].series)
    edges = sorted(position for series in log.of("stage") if series.rank == own.rank for position in series.positions)
    found, calls = [], inner.positions
    for position in own.positions[: len(rounds.rounds_ns)]:
        before = bisect_left(edges, position)
        start = edges[before - 1] if before else -1
        found.append(range(bisect_right(calls, start), bisect_left(calls, position)))
    return tuple(found)


def start_up(values: Sequence[int]) -> int:
    """Count the values at the start that are each longer than every value of the second half."""
    half = len(values) // 2
    if not half:
        return 0
    longest = max(values[-half:])
    return sum(1 for _ in takewhile(lambda value: value > longest, values[:-half]))


def _rounds(request: LogRequest, name: str, group: Sequence[Series]) -> StageRounds:
    resolved = tuple(resolve_units(series, request.constraints, request.unit) for series in group)
    ranks = tuple(each for each in resolved if each.series.rank is not None)
    nameless = sum(len(each.values_ns) for each in resolved if each.series.rank is None)
    beside = 0 < len(ranks) < len(resolved) and nameless != max(len(each.values_ns) for each in ranks)
    resolved = ranks if beside else resolved  # such lines are no process of their own
    count = min(len(each.values_ns) for each in resolved)
    if not count:
        left_out = "; ".join(f"{series.title}: {series.left_out}" for series in group)
        raise DataError(f"{request.log.path}: stage {name!r} has no value that is a time for every rank; left out: {left_out}")
    rounds = tuple(max(each.values_ns[index] for each in resolved) for index in range(count))
    causes = {
        index: sample.cause for each in resolved for index, sample in enumerate(each.series.samples[:count]) if sample.cause
    }
    excluded, note = _warm_up(request, rounds, causes)
    if beside:
        note = "; ".join(filter(None, (note, f"values whose line names no rank, in no round: {nameless}")))
    incomplete = max(len(each.values_ns) for each in resolved) - count
    return StageRounds(name=name, resolved=resolved, rounds_ns=rounds, excluded=excluded, note=note, incomplete=incomplete)


def _warm_up(request: LogRequest, values: Sequence[int], causes: Mapping[int, str]) -> tuple[Mapping[int, str], str]:
    """Return the rounds left out of the average without warm-up, by cause, and a note."""
    if request.window:
        return request.outside(values), ""
    if causes:
        steady = find_steady(values, causes)
    elif len(values) < FEWEST:
        return {0: FIRST} if len(values) > 1 else {}, "" if len(values) > 1 else "one round: whether it is warm-up cannot be told"
    else:
        steady = find_steady(values, dict.fromkeys(range(start_up(values)), START_UP))
    return steady.excluded, steady.note


# Steady values of a log's timer, rank by rank, and the method of their selection.

OUTLIER: Final = 3
"""Interquartile ranges above the third quartile beyond which a value is an outlier."""

Method = Literal["steady", "window", "cause"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesSummary:
    """Steady values of one series.

    Args:
        kept: their indices in the series.
        excluded: indices left out, by cause.
        method: `steady`: a suffix without a trend was found; `window`: what the user's window lets through; `cause`: all but
            what has a known cause, because no trend can be tested or no steady part was found.
        note: findings in words; empty if the other fields hold all of them.
        outliers: number `n` of kept values far above the others, and `mean_without_ns` them; None if there are none.
    """

    resolved: Resolved
    calls: Distribution
    kept: tuple[int, ...]
    excluded: Mapping[str, tuple[int, ...]]
    method: Method
    note: str
    outliers: Mapping[str, float] | None

    @property
    def series(self) -> Series:
        return self.resolved.series

    @property
    def mean_ns(self) -> Fraction:
        return Fraction(self.calls.sum_ns, self.calls.n)


def attention_summary(request: LogRequest, name: str = "", stage: str = STAGE) -> tuple[SeriesSummary, ...]:
    """Summarise the attention timers of a log, one result for each name and rank with a value that is a time.

    A stage in the same log bounds a call from above, and calls inside a round that is left out as warm-up are left out as well.

    Args:
        name: regular expression that is searched in the timers' names, any case.
        stage: the same for the stage whose rounds the calls belong to, if the log has it.

    Raises:
        DataError: the log has no such timer, none of its values can be used, or the unit is not known; see `resolve_units`.
    """
    found = request.log.of("attention", name)
    if not found:
        raise DataError(f"{request.log.path}: no attention timer{f' {name!r}' if name else ''}; {request.log.content}")
    usable = [series for series in found if len(series)]
    if not usable:
        left_out = "; ".join(f"{series.title}: {series.left_out}" for series in found)
        raise DataError(f"{request.log.path}: no value of an attention timer is a time; left out: {left_out}")
    try:
        rounds = stage_rounds(LogRequest(log=request.log), stage)
    except DataError:  # no stage, or none with a unit
        rounds = ()
    return tuple(_in_stages(request, series, rounds) for series in usable)


def summarise(request: LogRequest, series: Series, causes: Mapping[int, str] | None = None) -> SeriesSummary:
    """Summarise one series.

    Left out, in this order: what the line itself or `causes` calls not steady; the start-up, the leading values that are each
    longer than everything in the second half; what `find_steady` finds to drift. A window instead leaves out what is outside it.

    Raises:
        DataError: no value can be used, or the unit is not known.
    """
    resolved = resolve_units(series, request.constraints, request.unit)
    values = resolved.values_ns
    if not values:
        raise DataError(f"{series.path}: {series.title}: it has no value that is a time; left out: {series.left_out}")
    method: Method
    if request.window:
        method, note, dropped = "window", "", request.outside(values)
    else:
        known = {index: sample.cause for index, sample in enumerate(series) if sample.cause} | dict(causes or {})
        rest = [index for index in range(len(values)) if index not in known]
        known |= dict.fromkeys(rest[: start_up([values[index] for index in rest])], START_UP)
        steady = find_steady(values, known)
        method, note = "steady" if steady.tested else "cause", steady.note
        dropped = dict(steady.excluded)
    kept = tuple(index for index in range(len(values)) if index not in dropped)
    steady_ns = [values[index] for index in kept]
    calls = distribution(np.array(steady_ns, np.int64))
    if calls is None:
        raise DataError(
            f"{series.path}: {series.title}: all {len(values)} values are left out: {'; '.join(set(dropped.values()))}"
        )
    excluded = gathered((cause, index) for index, cause in dropped.items())
    first, third = percentile(steady_ns, 0.25), percentile(steady_ns, 0.75)
    usual = [value for value in steady_ns if value <= third + OUTLIER * (third - first)]
    unusual = len(steady_ns) - len(usual)
    return SeriesSummary(
        resolved=resolved,
        calls=calls,
        kept=kept,
        excluded={cause: tuple(indices) for cause, indices in excluded.items()},
        method=method,
        note=note,
        outliers={"n": unusual, "mean_without_ns": sum(usual) / len(usual)} if unusual else None,
    )


def _in_stages(request: LogRequest, series: Series, stages: Sequence[StageRounds]) -> SeriesSummary:
    bounds = list(request.constraints)
    warm_up: dict[int, str] = {}
    for rounds in stages:
        calls_in = calls_of_rounds(request.log, series, rounds)
        if any(calls_in):
            counted = None if series.rank is None else calls_per_stage(request.log, series, rounds)
            longest = max(rounds.rounds_ns)  # so many calls, or one, fit into it
            what = f"the {short(longest)} of the {rounds.name} around it, as labelled"
            bounds.append(Constraint(rule="at_most", bound_ns=longest, what=what, calls=request.calls or counted or 1))
            for index, inside in enumerate(calls_in):
                if index in rounds.excluded:
                    warm_up |= dict.fromkeys(inside, f"in round {index + 1} of {rounds.name}, which is warm-up")
    if len(warm_up) == len(series):
        warm_up = {}
    return summarise(replace(request, constraints=tuple(bounds)), series, warm_up)


def slowest(summaries: Sequence[SeriesSummary]) -> SeriesSummary:
    """Return the slowest rank: the one with the largest mean. Lines that name no rank are none if others name theirs."""
    ranks = [each for each in summaries if each.resolved.series.rank is not None]
    return max(ranks or summaries, key=lambda summary: summary.calls.mean_ns)


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


# Times of every level in one side's log: attention calls, steps, stage, whole run, and the calls in a stage.

NO_LOG: Final = "no log given"
NO_CALLS: Final = "calls per stage not recorded: give --calls-per-stage"
NO_STEPS: Final = "the log counts neither attention calls nor steps in its rounds"
_FILLED: Final = (Fraction(1, 2), Fraction(21, 20))
"""Bounds of the steps of a round / the round, between which they are all of its steps."""
_NEAR: Final = Fraction(1, 20)
"""Largest distance from a whole number at which a round / a mean step counts its steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """Times found in a log. A text in place of a result is the reason why there is none.

    Args:
        timers: every rank of the attention timer.
        attention: the slowest of them.
        rounds: indices of its values in each round of the stage.
        step: steps, of the slowest rank.
        calls_from: where their number comes from, or why it is not known.
        steps: steps in a stage and the mean of one, or why they are not known.
        steps_from: where their number comes from.
    """

    timers: tuple[SeriesSummary, ...]
    attention: SeriesSummary | str
    rounds: tuple[range, ...]
    stage: StageRounds | str
    step: SeriesSummary | str
    e2e: StageRounds | str
    calls: int | None
    calls_from: str
    steps: tuple[int, Fraction] | str = NO_STEPS
    steps_from: str = ""


def timings_of(
    request: LogRequest | None, stage: str = STAGE, timer: str = "", *, calls: int | None = None, processes: int | None = None
) -> Timings:
    """Collect the times of a log.

    Args:
        request: the log, with what is known of its attention timer; `None`: there is no log.
        stage: regular expression of the stage's name.
        timer: the same for the attention timer, and for steps and whole runs if the log times several; our records name them
            `variant/span`.
        processes: how many wrote the log, as far as that is known: lines of several that do not say their rank cannot be counted.

    Raises:
        DataError: the log has no such timer, or several timers or stages that fit, or the unit of a timer is not known.
    """
    calls_from = NO_CALLS if calls is None else f"given: {calls}"
    if request is None:
        return Timings(
            timers=(), attention=NO_LOG, rounds=(), stage=NO_LOG, step=NO_LOG, e2e=NO_LOG, calls=calls, calls_from=calls_from
        )
    log = request.log
    found = _stage(log, stage)
    timers = _attention(replace(request, calls=calls), timer, stage)
    attention = slowest(timers) if timers else "the log times no attention call"
    inside: tuple[range, ...] = ()
    if not isinstance(found, str) and not isinstance(attention, str):
        inside = calls_of_rounds(log, attention.series, found)
        if calls is None:
            calls, calls_from = _counted(log, attention, found, processes)
    steps = _named(log, "step", timer)
    counted, counted_from = (NO_STEPS, "") if isinstance(found, str) else _steps_of(log, found, processes)
    return Timings(
        timers=timers,
        attention=attention,
        rounds=inside,
        stage=found,
        step=steps if isinstance(steps, str) else slowest([summarise(LogRequest(log=log), each) for each in steps]),
        e2e=_whole(log, timer),
        calls=calls,
        calls_from=calls_from,
        steps=counted,
        steps_from=counted_from,
    )


def _steps_of(log: Log, stage: StageRounds, processes: int | None) -> tuple[tuple[int, Fraction] | str, str]:
    """Count the steps in a round, and their mean; only a number of steps that fill every round in which the log has some.

    The log has a value for each, or says at the end of a progress bar how many there were, or has their mean alone. Lines of
    several processes that do not say their rank count where a round has one.
    """
    many = processes not in (None, 1) or len(stage.resolved) > 1
    for series in log.of("step"):
        try:
            values = resolve_units(series).values_ns
        except DataError:
            continue
        inside = enumerate(calls_of_rounds(log, series, stage))
        rounds = [(stage.rounds_ns[at], each) for at, each in inside if each and at not in stage.excluded]
        rounds = [(whole, each) for whole, each in rounds if whole]
        alone = all(len(each) == 1 for _, each in rounds) or series.rank is not None
        for weights, words in (
            ([1] * len(series) if alone or not many else (), "values of {name!r}"),
            ([sample.step or 0 for sample in series] if alone or processes == 1 else (), "{name!r} ends there"),
        ):
            if not weights:
                continue
            counts = {sum(weights[index] for index in each) for _, each in rounds}
            took = [Fraction(sum(weights[index] * values[index] for index in each), whole) for whole, each in rounds]
            if len(counts) == 1 and (n := counts.pop()) > 0 and all(_FILLED[0] <= part <= _FILLED[1] for part in took):
                spent = sum(part * whole for part, (whole, _) in zip(took, rounds, strict=True))
                said = f"{n} steps in a round of the log ({words.format(name=series.title)})"
                return (n, Fraction(spent, n * len(rounds))), said
        means = [Fraction(whole, values[each[0]]) for whole, each in rounds if len(each) == 1 and values[each[0]]]
        whole_numbers = {round(mean) for mean in means}
        if 1 < len(means) == len(rounds) and len(whole_numbers) == 1 and all(abs(each - round(each)) <= _NEAR for each in means):
            n = whole_numbers.pop()
            mean = Fraction(sum(values[each[0]] for _, each in rounds), len(rounds))
            return (n, mean), f"{n} steps in a round of the log (it takes {n} times its mean of {series.title!r})"
    return NO_STEPS, ""


def _counted(log: Log, attention: SeriesSummary, stage: StageRounds, processes: int | None) -> tuple[int | None, str]:
    """Count the calls in a stage by the lines of their timer."""
    found, one_process = calls_per_stage(log, attention.series, stage), attention.series.rank is not None
    if found is None or (not one_process and processes not in (None, 1)):
        return None, NO_CALLS
    text = f"counted in the log: {found} values of the timer {attention.series.title!r} in each round of the stage"
    return found, text if one_process or processes == 1 else f"{text}, if one process wrote it"


def _named(log: Log, kind: Literal["step", "e2e"], name: str) -> tuple[Series, ...] | str:
    """Return the series of a kind, one per rank; a reason if there are none or it is unclear which are meant."""
    found = log.of(kind)
    if len({series.name for series in found}) > 1 and name:
        found = log.of(kind, name)
    names = dict.fromkeys(series.name for series in found)
    if len(names) > 1:
        return f"the log times several: {', '.join(map(repr, names))}; choose one with --names"
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


def _attention(request: LogRequest, timer: str, stage: str) -> tuple[SeriesSummary, ...]:
    log = request.log
    if not log.of("attention", timer):
        if timer and not any(re.search(timer, series.name, re.IGNORECASE) for series in log.series):
            raise DataError(f"{log.path}: no attention timer {timer!r}; {log.content}")
        return ()
    timers = attention_summary(request, timer, stage)
    names = dict.fromkeys(each.series.name for each in timers)
    if len(names) > 1:
        listed = ", ".join(repr(name) for name in names)
        raise DataError(f"{log.path}: {len(names)} attention timers: {listed}; choose one with --names")
    return timers
