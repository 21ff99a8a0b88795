"""Columns of a distribution of times, and the rule for when a p99 is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeVar

from strobe.perf.analysis.device.distribution import Distribution
from strobe.perf.measure.stats import P99_SAMPLES, Tail, tail
from strobe.perf.report.blocks.fields import Field, Unit, exact_cell
from strobe.perf.report.model import Cell, Missing, Time

T = TypeVar("T")
Figure = Literal["min", "p50", "mean", "p99", "max", "sum"]
SPREAD: Final[tuple[Figure, ...]] = ("min", "p50", "mean", "p99", "max")


def p99_hint(what: str) -> str:
    """Return the hint for a p99 column: the number of samples it needs."""
    return f"from {P99_SAMPLES} {what} on; below that the maximum is all that can be said"


def spread(
    get: Callable[[T], Distribution | Cell | None],
    unit: Unit,
    figures: Iterable[Figure] = SPREAD,
    *,
    exact: bool = False,
    what: str = "calls",
    quiet: bool = False,
    missing: str = "",
) -> tuple[Field[T], ...]:
    """Return columns for figures of a distribution of times (mean, p50, p99, ...), one each.

    Args:
        get: times of a row, or the cell that says why there are none.
        figures: in order.
        exact: print to the last nanosecond.
        what: is counted, in the hint of the p99.
        quiet: where there is no p99, leave out of how many calls the maximum is.
        missing: reason where a row has no times.
    """
    show = exact_cell if exact else Time
    hints = {"p99": p99_hint(what)}
    return tuple(
        Field(name, _figure(get, name, quiet), show, unit, hint=hints.get(name, ""), missing=missing) for name in figures
    )


def slow_end(get: Callable[[T], Sequence[float]], unit: Unit, what: str = "calls") -> Field[T]:
    """Return the column of the p99 if there are enough samples, otherwise of the largest, with the label of the one shown."""
    return Field("slow end", get, _tail, unit, hint=f"p99 from {P99_SAMPLES} {what} on, otherwise the largest")


def _tail(samples: Sequence[float]) -> Cell:
    return tail_cell(tail(samples))


def tail_cell(end: Tail) -> Time:
    """Return the cell of the slow end of some samples, with its label and their number."""
    return Time(end.value, f"{end.label} of {end.n}")


def _figure(get: Callable[[T], Distribution | Cell | None], name: Figure, quiet: bool) -> Callable[[T], Any]:
    def figure(row: T) -> Any:
        times = get(row)
        if not isinstance(times, Distribution):
            return times
        value = getattr(times, f"{name}_ns")
        return Missing("" if quiet else f"max of {times.n}", "-") if value is None else value

    return figure
