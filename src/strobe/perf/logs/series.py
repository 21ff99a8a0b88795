"""Series of samples from a log, and the proof of their units."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Final, Literal, NamedTuple

from strobe.core.errors import ConfigError, DataError
from strobe.core.printable import first_of
from strobe.perf.logs.patterns import POWER, UNITS, Kind, Mark, Pattern, Reason, Unit, decides, is_unit, parse_unit, read
from strobe.perf.table.rows import gathered

# Frozen columns of a log: one series of values per pattern, name and rank, and counts of all lines.

MAX_EXAMPLES: Final = 10
MAX_TEXT: Final = 160
_LONGEST: Final = 100_000
"""Bytes of a line, on average, that no text log has."""


class Sample(NamedTuple):
    """One value: number and unit as written ("" for none), and its place; None where the line does not say.

    `position` counts the values of the file in order, over all series. `cause`: why the line itself calls it not steady; of
    a text to quote, which may be cut, why it is no value.
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
class Series:
    """The values of one pattern, name and rank in one file, in order of lines.

    Args:
        pattern: name of the pattern.
        name: as the line says it, or the pattern's.
        rank: as the line says it; None where it does not.
        declared: unit that the patterns file gives, or the format.
        mark: the decimal mark that the values show; None: none, or both.
        rejected: number of the values left out of every statistic, by reason.
        examples: the first of them.
    """

    path: Path
    pattern: str
    kind: Kind
    name: str
    rank: int | None
    declared: Unit | None
    mark: Mark | None
    samples: tuple[Sample, ...]
    rejected: Mapping[Reason, int]
    examples: tuple[Sample, ...]

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    @property
    def positions(self) -> list[int]:
        """Position of each value among all values of the file."""
        return [sample.position for sample in self.samples]

    @property
    def title(self) -> str:
        """Name of the series, with the rank if there is one."""
        return self.name if self.rank is None else f"{self.name}, rank {self.rank}"

    @property
    def left_out(self) -> str:
        first = ", ".join(f"line {example.line}: {example.text}" for example in self.examples[:3])
        counts = ", ".join(f"{count} {reason}" for reason, count in self.rejected.items())
        return f"{counts} ({first})" if counts else "none"


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
        similar: by pattern, the first lines that look like it and do not match.
        damage: what is damaged, and what of our own records is left out for it.
        proposal: in a log without any value, a line with a time that no pattern reads, and a pattern that reads it.
    """

    path: Path
    sha256: str
    size_bytes: int
    series: tuple[Series, ...]
    counts: LineCounts
    similar: Mapping[str, Sequence[Sample]]
    damage: tuple[str, ...] = ()
    proposal: str = ""

    def of(self, kind: Kind, name: str = "") -> tuple[Series, ...]:
        """Return the series of a kind whose name matches a regular expression, in any case."""
        regex = compiled(name)
        return tuple(series for series in self.series if series.kind == kind and regex.search(series.name))

    @property
    def content(self) -> str:
        """Summary of the series in the log, for the message that a wanted one is missing."""
        has = first_of([f"{series.kind} {series.title!r} ({len(series)})" for series in self.series], 8)
        similar = f"; lines that look like a timing and match no pattern: {self.counts.similar:,}" if self.counts.similar else ""
        if not has and self.size_bytes > _LONGEST * max(self.counts.lines, 1):
            return "its lines are too long for a text log; strobe trace reads a profiler's trace"
        has = "; ".join((has or f"no timing in its lines ({self.counts.lines:,})", *self.damage))
        if self.proposal:
            return f"it has {has}{similar}; {self.proposal} (--patterns FILE.toml)"
        return f"it has {has}{similar}; a patterns file (--patterns) adds others"


def compiled(text: str) -> re.Pattern[str]:
    """Compile a regular expression given by a user, for any case."""
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise ConfigError(f"{text!r} is not a regular expression: {error}") from error


def series_of(path: Path, pattern: Pattern, key: tuple[Kind, str, int | None], found: Iterable[Sample]) -> Series:
    """Return the series of one kind, name and rank, without the values that are no times.

    Numbers that could be read in two ways are left out too: `7,200` where no value shows which mark is the decimal one.
    """
    counts, examples = Counter[Reason](), list[Sample]()

    def reject(reason: Reason, line: int, text: str) -> None:
        counts[reason] += 1
        if len(examples) < MAX_EXAMPLES:
            examples.append(Sample(line, text[:MAX_TEXT], "", 0, cause=reason))

    times: list[tuple[Sample, Mark | None]] = []
    for sample in found:
        value = read(sample.text, ".") if not sample.label or is_unit(sample.label) else "unknown unit"
        if isinstance(value, Decimal):
            times.append((sample, decides(sample.text)))
        else:
            reject(value, sample.line, f"{sample.text} {sample.label}".rstrip())
    marks, samples = {mark for _, mark in times if mark}, list[Sample]()
    for sample, mark in times:
        if len(marks) != 1 and mark is None and ("," in sample.text or (marks and "." in sample.text)):
            reject("ambiguous", sample.line, sample.text)
        else:
            samples.append(sample)
    kind, name, rank = key
    return Series(
        path=path,
        pattern=pattern.name,
        kind=kind,
        name=name,
        rank=rank,
        declared="ns" if pattern.format == "record" else pattern.unit,
        mark=marks.pop() if len(marks) == 1 else None,
        samples=tuple(samples),
        rejected=dict(sorted(counts.items())),
        examples=tuple(examples),
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
        proven: every other unit violates a constraint, and this one none.
        differs: the unit is not the one that the label or the patterns file says.
        violated: what the unit itself violates; only an override may.
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
    values_ns: tuple[int, ...]

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
        DataError: no unit can be had: none or several are left, or a declared one is contradicted. The message lists what each
            candidate violates and asks for `--unit`.
    """
    numbers = [Decimal(read(sample.text, series.mark)) for sample in series]  # what is none has been rejected
    labelled = gathered((sample.label, number) for sample, number in zip(series, numbers, strict=True))
    chosen = {label: _choose(series, label, group, constraints, override) for label, group in labelled.items()}
    values = tuple(round(_exact_ns(number, chosen[sample.label].unit)) for sample, number in zip(series, numbers, strict=True))
    if values and max(values) >= LONGEST_NS:
        raise DataError(f"{series.path}: {series.title}: a value of {short(max(values))} is no time; give another --unit")
    return Resolved(series=series, choices=tuple(chosen.values()), values_ns=values)


def short(ns: Fraction | int) -> str:
    """Format a duration with three significant digits in the unit that fits: `2.76 ms`."""
    unit: Unit = next((unit for unit in reversed(UNITS) if abs(ns) >= 10 ** POWER[unit]), "ns")
    value = Decimal(ns.numerator) / Decimal(ns.denominator * 10 ** POWER[unit])
    rounded = value.quantize(Decimal(1).scaleb(min(0, value.adjusted() - 2))) if value else value
    return f"{rounded:f} {unit}"


def _choose(
    series: Series, label: str, numbers: list[Decimal], constraints: Sequence[Constraint], override: Unit | None
) -> UnitChoice:
    middle = sorted(numbers)[(len(numbers) - 1) // 2]  # at least half of the values do not exceed it
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
        raise DataError(_question(series, said, violated, left))
    differs = stated is not None and unit != stated
    return UnitChoice(
        label=label, unit=unit, source=source, proven=left == [unit], differs=differs, violated=violated[unit], text=text
    )


def _standing(unit: Unit, left: Sequence[Unit], constraints: Sequence[Constraint]) -> str:
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


def _exact_ns(number: Decimal, unit: Unit) -> Fraction:
    return Fraction(number) * Fraction(10) ** POWER[unit]
