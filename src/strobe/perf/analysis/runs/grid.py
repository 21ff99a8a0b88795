"""Cells of a grid of attention or tree attention: the runs in its folder, and the outcome of each contestant."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from strobe.core.errors import DataError
from strobe.perf.measure.stats import Interval, Verdict, bootstrap_interval, judge, paired_interval
from strobe.perf.records.record import CELLS, Contestant, Gate, Quality, RunKind, Variant
from strobe.perf.records.store import RunRecords, read_run, superseded

Outcome = Literal["measured", "refused", "failed", "red", "not reached"]
"""Outcomes of a contestant, in order: has numbers, cannot run here, raised an error, red gate, cell ended before its turn."""
C = TypeVar("C")


@dataclass(frozen=True, kw_only=True, eq=False)
class GridContestant:
    """One contestant of one cell.

    Args:
        reason: why it has no number; empty if it has.
        rounds: by palindrome: the times of its calls, ns.
        numbers: the quality lines.
    """

    name: str
    outcome: Outcome
    reason: str
    variant: Variant | None
    gate: Gate | None
    rounds: Mapping[int, tuple[int, ...]]
    numbers: tuple[Quality, ...]

    @property
    def settings(self) -> Contestant | None:
        """What its record says that it computes; None if it was never built."""
        return None if self.variant is None else self.variant.contestant

    @property
    def is_peer(self) -> bool:
        """Whether its record says that it is another library's."""
        return self.settings is not None and self.settings.peer

    @cached_property
    def times_ns(self) -> tuple[int, ...]:
        """Times of all timed calls, ns."""
        return tuple(value for values in self.rounds.values() for value in values)

    @property
    def median_ns(self) -> float:
        """Median call time, ns."""
        return statistics.median(self.times_ns)

    @property
    def interval(self) -> Interval | None:
        """Bootstrap interval of the median; None with fewer than 30 calls, where it would be too narrow."""
        return bootstrap_interval(statistics.median, self.times_ns, derived=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class GridSpeedup:
    """Ratio of the reference's time to a contestant's, in the same palindromes."""

    ratio: float
    interval: Interval | None
    verdict: Verdict


def speedup(reference: GridContestant, entry: GridContestant) -> GridSpeedup:
    """Compare two contestants palindrome by palindrome: the ratio of a palindrome is that of its mean call times."""
    ratios, deltas = [], []
    for number in sorted(reference.rounds.keys() & entry.rounds.keys()):
        ours, theirs = statistics.fmean(entry.rounds[number]), statistics.fmean(reference.rounds[number])
        ratios.append(theirs / ours)
        deltas.append(theirs - ours)
    ratio, interval = statistics.median(ratios), paired_interval([math.log(ratio) for ratio in ratios])
    return GridSpeedup(ratio=ratio, interval=interval, verdict=judge(ratio, interval, statistics.median(deltas)))


def _outcome(run: RunRecords, name: str, *, timed: bool) -> tuple[Outcome, str]:
    """Return the outcome of a contestant, and the reason why it has no number.

    Args:
        timed: it has calls.
    """
    left_out = next((line for line in run.excluded if line.variant == name and line.span == "clip"), None)
    if left_out is not None:
        return "refused" if left_out.kind == "refused" else "failed", left_out.cause
    gate = next((line for line in run.gates if line.variant == name), None)
    if gate is not None and not gate.passed:
        return "red", f"red gate: {gate.detail}; {gate.rule}"
    if timed:
        return "measured", ""
    return "not reached", f"not reached: {run.end.message or run.end.status if run.end else 'the cell was cut short'}"


def recorded(run: RunRecords, name: str, rounds: Mapping[int, Sequence[int]]) -> dict[str, Any]:
    """Return the fields of a `Contestant` from the records of its cell.

    Args:
        rounds: by palindrome: the times of its calls, ns.
    """
    outcome, reason = _outcome(run, name, timed=bool(rounds))
    return {
        "name": name,
        "outcome": outcome,
        "reason": reason,
        "variant": next((variant for variant in run.variants if variant.name == name), None),
        "gate": next((line for line in run.gates if line.variant == name), None),
        "rounds": {number: tuple(values) for number, values in rounds.items()},
        "numbers": tuple(line for line in run.quality if line.variant == name),
    }


def read_grid(
    folder: Path, kind: RunKind, cell: Callable[[RunRecords], C], order: Callable[[C], Any], verb: str
) -> tuple[tuple[C, ...], tuple[str, ...]]:
    """Return every cell of a grid that has records, including incomplete ones, of several attempts the last; and the folders that
    cannot be read, with the reason, one line each.

    Args:
        cell: makes a cell of a run.
        order: key that sorts the cells.
        verb: command that measures such a grid.

    Raises:
        DataError: the folder holds none.
    """
    try:
        places = sorted(path for path in (folder / CELLS).iterdir() if path.is_dir() and not path.is_symlink())
    except OSError as error:
        raise DataError(f"no cells at {folder / CELLS}: {error.strerror}; give a folder of `{verb}`") from error
    found: list[C] = []
    unread: list[str] = []
    for place in (place for place in places if not superseded(place)):
        try:
            run = read_run(place)
            if run.header.kind != kind:
                raise DataError(f"{place} holds a run of kind {run.header.kind!r}, which is no cell of `{verb}`")
            found.append(cell(run))
        except DataError as error:
            unread.append(f"{place.name}: {error}")
    if not found:
        told = f": {unread[0]}" if unread else ""
        raise DataError(f"no cell in {folder / CELLS} has records{told}; run `{verb} --out {folder}`")
    return tuple(sorted(found, key=order)), tuple(unread)


def names_in(run: RunRecords) -> Sequence[str]:
    """Return the names of all planned contestants, in order, then of those that only other lines name."""
    settings, gates = (line.name for line in run.variants), (line.variant for line in run.gates)
    return tuple(dict.fromkeys((*run.header.order, *settings, *gates, *(line.variant for line in run.excluded))))
