"""Series of samples from a log, and the proof of their units."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Final, Literal, NamedTuple

from strobe.core.errors import ConfigError, UnitError
from strobe.core.printable import first_of
from strobe.perf.logs.patterns import (
    POWER,
    UNITS,
    Kind,
    LogNumber,
    Mark,
    Pattern,
    Patterns,
    Reason,
    Unit,
    decides,
    is_unit,
    parse_unit,
    read,
)

# Frozen columns of a log: one series of values per pattern, name and rank, and counts of all lines.

MAX_EXAMPLES: Final = 10
MAX_TEXT: Final = 160
_LONGEST: Final = 100_000
"""Bytes of a line, on average, that no text log has."""
_NONE: Final = -1
_COLUMNS: Final = ("stop", "label", "line", "position", "step", "block", "round", "cause")


class Example(NamedTuple):
    """A line of the log to quote: its number from 1, its text (cut if long), the pattern it concerns, and the reason."""

    line: int
    text: str
    pattern: str
    reason: str = ""


class Sample(NamedTuple):
    """One value: number and unit as written ("" for none), and its place; None where the line does not say.

    `position` counts the values of the file in order, over all series. `cause`: why the line itself calls it not steady.
    """

    line: int
    text: str
    label: str
    position: int
    step: int | None = None
    block: int | None = None
    round: int | None = None
    cause: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """Values left out of every statistic, counted by reason, with the first of them as examples."""

    counts: Mapping[Reason, int] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()

    @property
    def total(self) -> int:
        """Number of rejected values."""
        return sum(self.counts.values())

    def __str__(self) -> str:
        first = ", ".join(f"line {example.line}: {example.text}" for example in self.examples[:3])
        return f"{', '.join(f'{count} {reason}' for reason, count in self.counts.items())} ({first})" if self.counts else "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """The values of one pattern, name and rank in one file, in order of lines; about 60 bytes each.

    Args:
        path: the file.
        pattern: name of the pattern.
        kind: what is timed.
        name: as the line says it, or the pattern's.
        rank: as the line says it; None where it does not.
        declared: unit that the patterns file gives, or the format.
        mark: the decimal mark that the values show; None: none, or both.
        labels: spellings of units that occur; `label` counts into it.
        causes: why values are not steady, as lines say; `cause` counts into it, 0 is no cause.
        rejected: the values left out.
    """

    path: Path
    pattern: str
    kind: Kind
    name: str
    rank: int | None
    declared: Unit | None
    mark: Mark | None
    labels: tuple[str, ...]
    causes: tuple[str, ...]
    text: bytes
    stop: array[int]
    label: array[int]
    line: array[int]
    position: array[int]
    step: array[int]
    block: array[int]
    round: array[int]
    cause: array[int]
    rejected: Rejected

    def __len__(self) -> int:
        return len(self.stop)

    def __getitem__(self, index: int) -> Sample:
        return Sample(
            line=self.line[index],
            text=self.number_text(index),
            label=self.labels[self.label[index]],
            position=self.position[index],
            step=_said(self.step[index]),
            block=_said(self.block[index]),
            round=_said(self.round[index]),
            cause=self.causes[self.cause[index]],
        )

    def __iter__(self) -> Iterator[Sample]:
        return map(self.__getitem__, range(len(self)))

    def number_text(self, index: int) -> str:
        """Return the number of a value as the log writes it."""
        index = range(len(self))[index]
        return self.text[self.stop[index - 1] if index else 0 : self.stop[index]].decode()

    def number(self, index: int) -> LogNumber:
        """Return the exact number of a value."""
        value = read(self.number_text(index), self.mark)
        assert isinstance(value, LogNumber), "what is none has been rejected"
        return value

    @property
    def title(self) -> str:
        """Name of the series, with the rank if there is one."""
        return self.name if self.rank is None else f"{self.name}, rank {self.rank}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LineCounts:
    """Counts of lines: `lines == matched + ignored + similar`. A part of a `\\r` progress line counts as a line.

    Args:
        matched: a value was taken, also if it was then rejected; the two halves of a wrapped line are both matched.
        ignored: nothing of ours.
        similar: looks like a pattern's timing, and does not match it.
        progress: of the ignored, those that are progress bars.
        joined: wrapped lines put together again.
        mended: lines with bytes that are no text.
        cut: lines so long that only their start was read.
        truncated: the compressed file ends too early, or in something else.
    """

    lines: int = 0
    matched: int = 0
    ignored: int = 0
    similar: int = 0
    progress: int = 0
    joined: int = 0
    mended: int = 0
    cut: int = 0
    truncated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """Values and line counts read from one log file.

    Args:
        sha256: of the file as it lies on the disk.
        series: in order of their first value.
        similar: the first lines of each pattern that look like it and do not match.
        damage: of our own records: what is damaged, and what is left out for it.
        proposal: in a log without any value, a line with a time that no pattern reads, and a pattern that reads it.
    """

    path: Path
    sha256: str
    size_bytes: int
    patterns: Patterns
    series: tuple[Series, ...]
    counts: LineCounts
    similar: tuple[Example, ...]
    damage: tuple[str, ...] = ()
    proposal: str = ""

    def of(self, kind: Kind, name: str = "") -> tuple[Series, ...]:
        """Return the series of a kind whose name matches a regular expression, in any case.

        Raises:
            ConfigError: not a regular expression.
        """
        regex = compiled(name)
        return tuple(series for series in self.series if series.kind == kind and regex.search(series.name))

    @property
    def content(self) -> str:
        """Summary of the series in the log, for the message that a wanted one is missing."""
        has = first_of([f"{series.kind} {series.title!r} ({len(series)})" for series in self.series], 8)
        similar = f"; lines that look like a timing and match no pattern: {self.counts.similar:,}" if self.counts.similar else ""
        if not has and self.size_bytes > _LONGEST * max(self.counts.lines, 1):
            return "its lines are too long for a text log; strobe trace reads a profiler's trace"
        has = has or f"no timing in its lines ({self.counts.lines:,})"
        if self.proposal:
            return f"it has {has}{similar}; {self.proposal} (--patterns FILE.toml)"
        return f"it has {has}{similar}; a patterns file (--patterns) adds others"


def compiled(text: str) -> re.Pattern[str]:
    """Compile a regular expression given by a user, for any case.

    Raises:
        ConfigError: not a regular expression.
    """
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise ConfigError(f"{text!r} is not a regular expression: {error}") from error


def _said(value: int) -> int | None:
    return None if value == _NONE else value


class SeriesBuilder:
    """Collector of the values of one series; `freeze` decides how ambiguous numbers are read."""

    def __init__(self, pattern: Pattern, kind: Kind, name: str, rank: int | None) -> None:
        self._pattern, self._kind, self._name, self._rank = pattern, kind, name, rank
        self._labels: dict[str, int] = {}
        self._causes: dict[str, int] = {"": 0}
        self._marks: set[Mark] = set()
        self._unsure: list[int] = []
        self._text = bytearray()
        self._columns = {column: array("h" if column in ("label", "cause") else "q") for column in _COLUMNS}
        self._rejected: dict[Reason, int] = {}
        self._examples: list[Example] = []

    def add(self, sample: Sample) -> None:
        """Keep a value, or count it as rejected."""
        value = read(sample.text, ".")
        if sample.label and not is_unit(sample.label):
            value = "unknown unit"
        if not isinstance(value, LogNumber):
            self._reject(value, sample.line, f"{sample.text} {sample.label}".rstrip())
            return
        mark = decides(sample.text)
        if mark is not None:
            self._marks.add(mark)
        elif "," in sample.text or "." in sample.text:
            self._unsure.append(len(self._columns["stop"]))
        self._text += sample.text.encode()
        row = (
            len(self._text),
            self._labels.setdefault(sample.label, len(self._labels)),
            sample.line,
            sample.position,
            *(_NONE if place is None else place for place in (sample.step, sample.block, sample.round)),
            self._causes.setdefault(sample.cause, len(self._causes)),
        )
        for column, number in zip(_COLUMNS, row, strict=True):
            self._columns[column].append(number)

    def _reject(self, reason: Reason, line: int, text: str) -> None:
        self._rejected[reason] = self._rejected.get(reason, 0) + 1
        if len(self._examples) < MAX_EXAMPLES:
            self._examples.append(Example(line, text[:MAX_TEXT], self._pattern.name, reason))

    def _drop_ambiguous(self) -> None:
        """Reject numbers that could be read in two ways: `7,200` where no value shows which mark is the decimal one."""
        columns, text = self._columns, bytes(self._text)
        spans = {i: text[columns["stop"][i - 1] if i else 0 : columns["stop"][i]].decode() for i in self._unsure}
        dropped = {i for i, number in spans.items() if self._marks or "," in number}
        for i in sorted(dropped):
            self._reject("ambiguous", columns["line"][i], spans[i])
        kept = [i for i in range(len(columns["stop"])) if i not in dropped]
        pieces = [text[columns["stop"][i - 1] if i else 0 : columns["stop"][i]] for i in kept]
        for column in _COLUMNS:
            columns[column] = array(columns[column].typecode, (columns[column][i] for i in kept))
        columns["stop"] = array("q", accumulate(map(len, pieces)))
        self._text = bytearray(b"".join(pieces))

    def freeze(self, path: Path) -> Series:
        """Return the series of the file at `path`."""
        if self._unsure and len(self._marks) != 1:
            self._drop_ambiguous()
        return Series(
            path=path,
            pattern=self._pattern.name,
            kind=self._kind,
            name=self._name,
            rank=self._rank,
            declared="ns" if self._pattern.format == "record" else self._pattern.unit,
            mark=min(self._marks) if len(self._marks) == 1 else None,
            labels=tuple(self._labels),
            causes=tuple(self._causes),
            text=bytes(self._text),
            **self._columns,
            rejected=Rejected(counts=dict(sorted(self._rejected.items())), examples=tuple(self._examples)),
        )


# The unit of a series: declared, labelled, given by the user, or inferred by proof, never by what looks plausible.

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
    labelled: dict[int, list[LogNumber]] = {}
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
    series: Series, label: str, numbers: list[LogNumber], constraints: Sequence[Constraint], override: Unit | None
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
        evidence = violated[stated] if stated else [_listed(each, violated) for each in UNITS if each != unit]
        text = f"{said}, but only {unit} fits ({short(_exact_ns(middle, unit))}): {'; '.join(evidence)}"
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


def _exact_ns(number: LogNumber, unit: Unit) -> Fraction:
    return number.digits * Fraction(10) ** (number.exponent + POWER[unit])


def _rounded_ns(number: LogNumber, unit: Unit) -> int:
    power = number.exponent + POWER[unit]
    if power >= 0:
        return number.digits * int(10**power)
    whole, rest = divmod(number.digits, divisor := int(10**-power))
    return whole + (2 * rest > divisor or (2 * rest == divisor and whole % 2 == 1))


def _median(numbers: Sequence[LogNumber]) -> LogNumber:
    """Return the median by nearest rank: the smallest value that at least half of the values do not exceed."""
    least = min(number.exponent for number in numbers)
    ranked = sorted(numbers, key=lambda number: number.digits * 10 ** (number.exponent - least))
    return ranked[(len(ranked) - 1) // 2]
