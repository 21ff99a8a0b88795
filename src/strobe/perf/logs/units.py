"""The unit of a series: declared, labelled, given by the user, or inferred by proof, never by what looks plausible."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final, Literal

from strobe.core.errors import UnitError
from strobe.perf.logs.numbers import Number
from strobe.perf.logs.series import Series
from strobe.perf.logs.vocabulary import POWER, UNITS, Unit, parse_unit

Source = Literal["declared", "label", "inferred", "override"]

LONGEST_NS: Final = 1 << 62
"""Longest duration that is believed, ns: about 146 years."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraint:
    """A bound on the duration of the timed thing, from another source than the log's label.

    `at_least`: no shorter than `bound_ns`, for example because a kernel of that length runs inside it. `at_most`: `calls` of them
    fit into `bound_ns`, for example because they run one after another inside a stage of that length.

    A unit violates a constraint only if at least half of the values do: if the median is shorter than `at_least`; or if the half
    of the `calls` that lasts no less than the median is longer than `at_most`. Outliers on either side prove nothing.

    Args:
        what: the thing that bounds it, with its length, to follow "shorter than": `the 2.76 ms kernel inside it`.
    """

    rule: Literal["at_least", "at_most"]
    bound_ns: int
    what: str
    calls: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitChoice:
    """The unit of all values that share a label, and the reason for it.

    Args:
        label: the unit as written; empty where none is.
        source: where the unit comes from.
        proven: every other unit violates a constraint, and this one none.
        differs: the unit is not the one that the label or the patterns file says.
        violated: what the unit itself violates; only an override may.
        text: the reason in words.
    """

    label: str
    unit: Unit
    source: Source
    proven: bool
    differs: bool
    violated: tuple[str, ...]
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A series with its values in nanoseconds.

    Args:
        choices: one per label that occurs, in order of first use.
        values_ns: all values in order, exact, rounded half to even below 1 ns.
    """

    series: Series
    choices: tuple[UnitChoice, ...]
    values_ns: array[int]

    @property
    def prominent(self) -> bool:
        """Whether a unit differs from the label or violates a bound: then every table of the values repeats `notes`."""
        return any(choice.differs or choice.violated for choice in self.choices)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on the source of the units, one per label."""
        return tuple(f"{self.series.title}: {choice.text}" for choice in self.choices)


def resolve_units(series: Series, constraints: Sequence[Constraint] = (), override: Unit | None = None) -> Resolved:
    """Decide the unit of each label of a series and turn the values into nanoseconds.

    The candidates are ns, µs, ms and s. An `override` is used whatever it violates. Otherwise the declared or labelled unit
    stands if it violates nothing. A label that violates a constraint, or is missing, gives way if exactly one candidate is left.
    A declared unit never gives way.

    Raises:
        UnitError: no unit can be had: none or several are left, or a declared one is contradicted. The message lists what each
            candidate violates and asks for `--unit`.
    """
    numbers = [series.number(index) for index in range(len(series))]
    labelled: dict[int, list[Number]] = {}
    for label, number in zip(series.label, numbers, strict=True):
        labelled.setdefault(label, []).append(number)
    chosen = {label: _choose(series, series.labels[label], group, constraints, override) for label, group in labelled.items()}
    values = array("q")
    for label, number in zip(series.label, numbers, strict=True):
        value = _rounded_ns(number, chosen[label].unit)
        if value >= LONGEST_NS:
            raise UnitError(f"{series.path}: {series.title}: a value of {short(value)} is no time; give another --unit")
        values.append(value)
    return Resolved(series=series, choices=tuple(chosen.values()), values_ns=values)


def short(ns: Fraction | int) -> str:
    """Format a duration with three significant digits in the unit that fits: `2.76 ms`."""
    unit: Unit = next((unit for unit in reversed(UNITS) if abs(ns) >= 10 ** POWER[unit]), "ns")
    value = Decimal(ns.numerator) / Decimal(ns.denominator * 10 ** POWER[unit])
    rounded = value.quantize(Decimal(1).scaleb(min(0, value.adjusted() - 2))) if value else value
    return f"{rounded:f} {unit}"


def _choose(
    series: Series, label: str, numbers: list[Number], constraints: Sequence[Constraint], override: Unit | None
) -> UnitChoice:
    middle = _median(numbers)
    violated = {unit: _violations(_exact_ns(middle, unit), constraints) for unit in UNITS}
    left = [unit for unit in UNITS if not violated[unit]]
    stated = series.declared or (parse_unit(label) if label else None)
    said = f"declared {series.declared}" if series.declared else f"labelled {label}" if label else "without a unit"
    unit: Unit
    source: Source
    if override is not None:
        unit, source, text = override, "override", f"{said}; read as {override}, as the unit option says"
        if violated[unit]:
            text += f", against what is known: {'; '.join(violated[unit])}"
    elif stated is not None and stated in left:
        unit, source = stated, "declared" if series.declared else "label"
        text = said if series.declared and not constraints else f"{said}; {_standing(unit, left, constraints)}"
    elif len(left) == 1 and series.declared is None:
        unit, source = left[0], "inferred"
        evidence = (
            [f"{said}: {'; '.join(violated[stated])}"]
            if stated
            else [said, *(_listed(each, violated) for each in UNITS if each != unit)]
        )
        text = "; ".join([*evidence, f"{unit}: {short(_exact_ns(middle, unit))} is the only one left"])
    else:
        raise UnitError(_question(series, said, violated, left))
    differs = stated is not None and unit != stated
    return UnitChoice(
        label=label, unit=unit, source=source, proven=left == [unit], differs=differs, violated=violated[unit], text=text
    )


def _standing(unit: Unit, left: Sequence[Unit], constraints: Sequence[Constraint]) -> str:
    """Return how certain a stated unit is, in words."""
    if not constraints:
        return "unproven, nothing was given that bounds it"
    others = [other for other in left if other != unit]
    if others:
        return f"unproven, {' and '.join(others)} would fit what is known as well"
    return "proven, every other unit contradicts what is known"


def _listed(unit: Unit, violated: Mapping[Unit, Sequence[str]]) -> str:
    return f"{unit}: {'; '.join(violated[unit]) or 'contradicts nothing'}"


def _question(series: Series, said: str, violated: Mapping[Unit, Sequence[str]], left: Sequence[Unit]) -> str:
    """Return the error text that asks the user for `--unit` and lists what each candidate violates."""
    if not any(violated.values()):
        return f"{series.path}: {series.title}: {len(series)} values {said}, and nothing bounds them; say --unit ns, us, ms or s"
    if left:
        found = f"{' and '.join(left)} would all fit"
    else:
        found = "no unit fits; if the values are right, the timer did not wait for the device"
    known = ", ".join(f"[{_listed(unit, violated)}]" for unit in UNITS)
    return f"{series.path}: {series.title}: {len(series)} values {said}, and {found}: {known}; say --unit ns, us, ms or s"


def _violations(value_ns: Fraction, constraints: Iterable[Constraint]) -> tuple[str, ...]:
    found = []
    for constraint in constraints:
        if constraint.rule == "at_least" and value_ns < constraint.bound_ns:
            found.append(f"{short(value_ns)} would be shorter than {constraint.what}")
        upper_half = constraint.calls - constraint.calls // 2
        if constraint.rule == "at_most" and upper_half * value_ns > constraint.bound_ns:
            calls = f"{constraint.calls} calls of " if constraint.calls > 1 else ""
            found.append(f"{calls}{short(value_ns)} would be longer than {constraint.what}")
    if value_ns >= LONGEST_NS:
        found.append(f"{short(value_ns)} would be more than 146 years")
    return tuple(found)


def _exact_ns(number: Number, unit: Unit) -> Fraction:
    return number.digits * Fraction(10) ** (number.exponent + POWER[unit])


def _rounded_ns(number: Number, unit: Unit) -> int:
    power = number.exponent + POWER[unit]
    if power >= 0:
        return number.digits * int(10**power)
    whole, rest = divmod(number.digits, divisor := int(10**-power))
    return whole + (2 * rest > divisor or (2 * rest == divisor and whole % 2 == 1))


def _median(numbers: Sequence[Number]) -> Number:
    """Return the median by nearest rank: the smallest value that at least half of the values do not exceed."""
    least = min(number.exponent for number in numbers)
    ranked = sorted(numbers, key=lambda number: number.digits * 10 ** (number.exponent - least))
    return ranked[(len(ranked) - 1) // 2]
