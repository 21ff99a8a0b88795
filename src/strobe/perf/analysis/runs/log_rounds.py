"""Rounds of a stage in a log: their times, averages with and without warm-up, and the calls inside each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import takewhile
from typing import Final

from strobe.core.errors import DataError
from strobe.perf.analysis.steady import FEWEST, find_steady
from strobe.perf.logs.series import Log, Series
from strobe.perf.logs.units import Constraint, Resolved, resolve_units, short
from strobe.perf.logs.vocabulary import Unit

STAGE: Final = "denois|diffusion"
"""Default pattern of the stage's name."""
START_UP: Final = "start-up: longer than anything in the second half"
FIRST: Final = f"first round: a fixed rule, because fewer than {FEWEST} rounds cannot be tested for a trend"


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRequest:
    """A log with the known facts about the timer that is looked for.

    Args:
        constraints: bounds of one value.
        unit: the unit, if the user gives it.
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
class Round:
    """One round of a stage.

    Args:
        value_ns: time of the rank that took longest.
        ranks_ns: time of each rank that says it, in the order of `StageRounds.resolved`.
        lines: where they stand in the file.
    """

    value_ns: int
    ranks_ns: tuple[int, ...]
    lines: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRounds:
    """Rounds of one stage in one log.

    Args:
        name: name of the stage.
        resolved: one series for each rank, with its units.
        rounds: `run_01` is the first.
        excluded: indices of rounds that are no part of the average without warm-up, with the cause.
        note: findings in words; empty if the other fields hold all of them.
        incomplete: rounds at the end that not every rank has; they are left out.
    """

    name: str
    resolved: tuple[Resolved, ...]
    rounds: tuple[Round, ...]
    excluded: Mapping[int, str]
    note: str
    incomplete: int

    @property
    def kept_ns(self) -> tuple[int, ...]:
        """Times of the rounds that count, ns."""
        return tuple(each.value_ns for index, each in enumerate(self.rounds) if index not in self.excluded)

    @property
    def avg_all_rounds_ns(self) -> Fraction:
        """Mean of all rounds, ns."""
        return Fraction(sum(each.value_ns for each in self.rounds), len(self.rounds))

    @property
    def avg_excl_warmup_ns(self) -> Fraction | None:
        """Mean of the rounds that count, ns; None if there are none."""
        return Fraction(sum(self.kept_ns), len(self.kept_ns)) if self.kept_ns else None


@dataclass(frozen=True, kw_only=True, slots=True)
class CallsPerStage:
    """Number of a timer's values in each round of a stage.

    Args:
        counts: values between each round's line and the line of the stage before it.
        calls: the count of the rounds that are not warm-up, if they all have the same.
        one_process: the lines say their rank, so that the count is that of one process.
    """

    counts: tuple[int, ...]
    calls: int | None
    one_process: bool


def stage_rounds(request: LogRequest, name: str = STAGE) -> tuple[StageRounds, ...]:
    """Return the rounds of each stage whose name matches a regular expression, any case; one result per name.

    In a log that times steps and no stage of that name, a round is a step.

    A round of several ranks lasts as long as its slowest rank. Warm-up is left out of one average: the rounds that the log itself
    calls so; if it calls none, those at the start that are longer than everything in the second half; then what `find_steady`
    finds to drift. With fewer than `FEWEST` rounds and none called warm-up it is the first one, by a fixed rule. A window leaves
    out what lies outside it instead.

    Raises:
        DataError: the log has no such stage, or none of its values can be used.
        UnitError: a unit is not known; see `resolve_units`.
    """
    found: dict[tuple[str, str], list[Series]] = {}
    stages = (*request.log.of("stage", name), *request.log.of("e2e", name))
    for series in stages or request.log.of("step", name) or (request.log.of("step") if name == STAGE else ()):
        found.setdefault((series.name, series.pattern), []).append(series)
    if not found:
        raise DataError(f"{request.log.path}: no stage {name!r}; {request.log.content}")
    return tuple(_rounds(request, stage, group) for (stage, _), group in found.items())


def calls_per_stage(log: Log, inner: Series, rounds: StageRounds) -> CallsPerStage | None:
    """Count the values of `inner` in each round of a stage: between the line of any stage before it and its own.

    The lines of the rank of `inner` count; if no stage says that rank, those of the first one that the stage has. None if not one
    value lies before a line of the stage.
    """
    counts = [len(calls) for calls in calls_of_rounds(log, inner, rounds)]
    if not any(counts):
        return None
    steady = {count for index, count in enumerate(counts) if index not in rounds.excluded}
    return CallsPerStage(
        counts=tuple(counts), calls=steady.pop() if len(steady) == 1 else None, one_process=inner.rank is not None
    )


def calls_of_rounds(log: Log, inner: Series, rounds: StageRounds) -> tuple[range, ...]:
    """Return for each round the indices of the values of `inner` that `calls_per_stage` counts."""
    own = next((resolved.series for resolved in rounds.resolved if resolved.series.rank == inner.rank), rounds.resolved[0].series)
    edges = sorted(position for series in log.of("stage") if series.rank == own.rank for position in series.position)
    found = []
    for position in own.position[: len(rounds.rounds)]:
        before = bisect_left(edges, position)
        start = edges[before - 1] if before else -1
        found.append(range(bisect_right(inner.position, start), bisect_left(inner.position, position)))
    return tuple(found)


def stage_constraints(rounds: StageRounds, calls: int | None = None) -> tuple[Constraint, ...]:
    """Return the bounds that a stage sets for a call inside it: `calls` of them, or one, fit into its longest round."""
    longest = max(each.value_ns for each in rounds.rounds)
    what = f"the {short(longest)} of the {rounds.name} around it, as labelled"
    return (Constraint(rule="at_most", bound_ns=longest, what=what, calls=calls or 1),)


def start_up(values: Sequence[int]) -> int:
    """Count the values at the start that are each longer than every value of the second half."""
    half = len(values) // 2
    if not half:
        return 0
    longest = max(values[-half:])
    return sum(1 for _ in takewhile(lambda value: value > longest, values[:-half]))


def _rounds(request: LogRequest, name: str, group: Sequence[Series]) -> StageRounds:
    resolved = tuple(resolve_units(series, request.constraints, request.unit) for series in group)
    count = min(len(each.values_ns) for each in resolved)
    if not count:
        raise DataError(f"{request.log.path}: stage {name!r} has no value that is a time for every rank; {request.log.content}")
    rounds = tuple(
        Round(
            value_ns=max(each.values_ns[index] for each in resolved),
            ranks_ns=tuple(each.values_ns[index] for each in resolved),
            lines=tuple(each.series.line[index] for each in resolved),
        )
        for index in range(count)
    )
    causes = {
        index: each.series.causes[each.series.cause[index]]
        for each in resolved
        for index in range(count)
        if each.series.cause[index]
    }
    excluded, note = _warm_up(request, [each.value_ns for each in rounds], causes)
    incomplete = max(len(each.values_ns) for each in resolved) - count
    return StageRounds(name=name, resolved=resolved, rounds=rounds, excluded=excluded, note=note, incomplete=incomplete)


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
    return {exclusion.index: exclusion.cause for exclusion in steady.excluded}, steady.note
