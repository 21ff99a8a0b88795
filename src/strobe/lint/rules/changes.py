"""Rules for columns computed from other columns: changes, speedups, `vs baseline`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from strobe.lint.finding import Claim, Rule
from strobe.lint.names import key, words
from strobe.lint.quantity import Bounds, Quantity, exactly, printed
from strobe.lint.study import LintStudy
from strobe.lint.views import Series, SeriesEntry, View

FLOOR_POINTS: Final = Fraction(3, 10)
"""Tolerance of a change beyond its printed digits, percentage points."""
FLOOR_RATIO: Final = Fraction(1, 100)
"""Relative tolerance of a ratio beyond its printed digits."""
MAJORITY: Final = Fraction(3, 5)
_ONE: Final = exactly(1)
_HUNDRED: Final = exactly(100)
_REFERENCE: Final = re.compile(r"(?i)^(?:baseline|reference|ref\.?|base|1(?:\.0+)?x|[+-]?0(?:\.0+)?\s?%)$")
_STATISTIC: Final = re.compile(r"(?i)^(?:mean|avg|average|median|p50|max|min)\s+")
_OTHER: Final = re.compile(r"(?i)\b(?:median of|geo(?:metric)? ?mean|paired|pairs|per pair|interval|need not equal|bootstrap)\b")

Formula = Callable[[Bounds, Bounds], Bounds]
"""Function from reference and candidate to the printed figure."""

FORMULAS: Final[dict[str, dict[str, Formula]]] = {
    "percent": {
        "candidate / reference - 1": lambda ref, cand: (cand / ref - _ONE) * _HUNDRED,
        "1 - candidate / reference": lambda ref, cand: (_ONE - cand / ref) * _HUNDRED,
        "reference / candidate - 1": lambda ref, cand: (ref / cand - _ONE) * _HUNDRED,
        "candidate / reference": lambda ref, cand: cand / ref * _HUNDRED,
    },
    "ratio": {
        "reference / candidate": lambda ref, cand: ref / cand,
        "candidate / reference": lambda ref, cand: cand / ref,
    },
    "same": {
        "candidate - reference": lambda ref, cand: cand - ref,
        "reference - candidate": lambda ref, cand: ref - cand,
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Operands:
    """One derived figure and the two figures it may have been computed from."""

    entry: SeriesEntry
    said: Quantity
    reference: Quantity
    candidate: Quantity
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One interpretation of a derived column: a formula on the figures of one source, and the rows that fit it."""

    source: str
    formula: str
    rows: tuple[Operands, ...]
    fits: tuple[Operands, ...]

    @property
    def complete(self) -> bool:
        """Whether the formula gives the printed value in every row."""
        return len(self.fits) == len(self.rows)


def _family(said: Quantity, operand: Quantity) -> str:
    if said.dimension in ("percent", "ratio"):
        return said.dimension
    return "same" if said.dimension == operand.dimension and said.dimension != "none" else "ratio"


def _apply(operands: Operands, formula: str) -> Bounds | None:
    """Evaluate a formula over the intervals of its operands; None if it does not suit them."""
    table = FORMULAS[_family(operands.said, operands.candidate)]
    if formula not in table or operands.reference.bounds.low <= 0 or operands.candidate.bounds.low <= 0:
        return None
    return table[formula](operands.reference.bounds, operands.candidate.bounds)


def _exact(operands: Operands, formula: str) -> Fraction:
    """Evaluate a formula for the operands as printed."""
    table = FORMULAS[_family(operands.said, operands.candidate)]
    return table[formula](exactly(operands.reference.value), exactly(operands.candidate.value)).middle


def _readings(groups: dict[str, list[Operands]]) -> list[Reading]:
    """Return every source with every formula, the pair that fits most rows first."""
    found = []
    for source, rows in groups.items():
        for formula in dict.fromkeys(name for table in FORMULAS.values() for name in table):
            values = [(row, _apply(row, formula)) for row in rows]
            if values and all(value is not None for _, value in values):
                fits = tuple(row for row, value in values if value is not None and row.said.bounds.overlaps(value))
                found.append(Reading(source=source, formula=formula, rows=tuple(rows), fits=fits))
    return sorted(found, key=lambda reading: -len(reading.fits))


def _usable(entry: SeriesEntry) -> bool:
    return entry.quantity is not None and entry.quantity.plain and not entry.cell.interval


def _reference_row(view: View, derived: Series) -> int | None:
    """Return the row that others are compared with: named in the head, marked in the column, or the first."""
    title = derived.metric.title.lower()
    named = [
        entry
        for entry in derived.entries
        if key(entry.key) and re.search(rf"\b(?:vs\.?|versus|to|over|against|than)\s+{re.escape(key(entry.key))}\b", title)
    ]
    marked = [entry for entry in derived.entries if entry.cell.empty or _REFERENCE.match(entry.cell.text.strip())]
    return next((entry.position for entry in (*named, *marked)), None)


def _against_row(view: View, derived: Series) -> dict[str, list[Operands]]:
    """Return the operands for comparing each row with one row of a column."""
    reference = _reference_row(view, derived)
    if reference is None:
        return {}
    groups: dict[str, list[Operands]] = {}
    for series in view.of_kind("time", "rate", "memory", "count", "number"):
        base = series.of(reference)
        rows = [
            Operands(entry=entry, said=said, reference=base, candidate=own, source=series.metric.title)
            for entry, said in derived.figures
            if _usable(entry)
            and entry.position != reference
            and base is not None
            and (own := series.of(entry.position)) is not None
        ]
        if rows:
            groups[series.metric.title] = rows
    return groups


def _across(view: View, derived: Series) -> dict[str, list[Operands]]:
    """Return the operands for comparing two columns of the same kind within each row."""
    columns = [series for series in view.of_kind("time", "rate", "memory") if series.metric.statistic not in ("spread",)]
    groups: dict[str, list[Operands]] = {}
    for number, first in enumerate(columns):
        for second in columns[number + 1 :]:
            if first.metric.kind != second.metric.kind or _statistics_of_one(first, second):
                continue
            source = f"{first.metric.title} and {second.metric.title}"
            groups[source] = [
                Operands(entry=entry, said=said, reference=one, candidate=two, source=source)
                for entry, said in derived.figures
                if _usable(entry) and (one := first.of(entry.position)) and (two := second.of(entry.position))
            ]
    return {source: rows for source, rows in groups.items() if rows}


def _statistics_of_one(one: Series, two: Series) -> bool:
    """Return True for two statistics of the same quantity (`SS Mean`, `SS Max`)."""
    return one.metric.statistic != two.metric.statistic and words(one.metric.title) == words(two.metric.title)


def _of_rows(view: View, derived: Series) -> dict[str, list[Operands]]:
    """Return the operands of a change column in a table with metrics as rows and two configurations as columns."""
    rows = []
    if len(view.keys) == 2:
        for series in view.series:
            entry = next(entry for entry in derived.entries if entry.row == series.index)
            figures = [figure for _, figure in series.figures]
            if _usable(entry) and entry.quantity is not None and len(figures) == 2:
                source = f"{view.keys[0]} and {view.keys[1]}"
                rows.append(Operands(entry=entry, said=entry.quantity, reference=figures[0], candidate=figures[1], source=source))
    return {rows[0].source: rows} if rows else {}


def _columns(study: LintStudy) -> Iterator[tuple[View, Series, list[Reading]]]:
    """Yield every derived column with its readings."""
    for view in study.views:
        if view.table.origin != "table" or _OTHER.search(view.table.context):
            continue
        if not view.by_columns:
            for derived in view.derived:
                yield view, derived, _readings(_of_rows(view, derived))
            continue
        for derived in view.of_kind("change"):
            yield view, derived, _readings({**_against_row(view, derived), **_across(view, derived)})


def change_column(study: LintStudy) -> Iterator[Claim]:
    """Find rows of a derived column that the formula of the other rows does not give."""
    for view, derived, readings in _columns(study):
        best = readings[0] if readings else None
        if best is None or best.complete:
            continue
        single = len(best.rows) == 1 and len({reading.source for reading in readings}) == 1 and not best.fits
        if not single and (len(best.fits) < 2 or len(best.fits) < MAJORITY * len(best.rows)):
            continue
        chosen = _obvious(best, readings) if single else best
        for row in chosen.rows:
            if row in chosen.fits:
                continue
            right = _apply(row, chosen.formula)
            if right is not None and _material(row.said, right):
                others = [
                    reading.source
                    for reading in readings
                    if reading.source != chosen.source and reading.formula == chosen.formula and _has(reading, row)
                ]
                switched = f"; it is that of {others[0]}: the column changes its statistic" if others else ""
                exact, of = _exact(row, chosen.formula), f"{chosen.source} ({row.reference.text}, {row.candidate.text})"
                yield Claim(
                    place=study.document.place(row.entry.cell.line, view.table, row.entry.key, derived.metric.title),
                    said=f"{row.entry.key}: {row.said.text}",
                    corrected=printed(exact, row.said, more=0),
                    why=f"{chosen.formula} of {of} is {printed(exact, row.said)}{switched}",
                )


def _has(reading: Reading, row: Operands) -> bool:
    return any(fit.entry is row.entry for fit in reading.fits)


def _obvious(best: Reading, readings: Sequence[Reading]) -> Reading:
    """Return the reading that unit and sign suggest, for a column whose only row fits no formula."""
    said = best.rows[0].said
    wanted = "reference / candidate" if said.dimension != "percent" else "candidate / reference - 1"
    if said.dimension == "percent" and not said.signed:
        wanted = "1 - candidate / reference" if best.rows[0].candidate.value < best.rows[0].reference.value else wanted
    return next((reading for reading in readings if reading.formula == wanted), best)


def _material(said: Quantity, right: Bounds) -> bool:
    off = max(said.bounds.low - right.high, right.low - said.bounds.high, Fraction(0))
    if said.dimension == "percent":
        return off > FLOOR_POINTS
    return off > FLOOR_RATIO * abs(right.middle)


def statistic_unnamed(study: LintStudy) -> Iterator[Claim]:
    """Find derived columns beside several statistics of one quantity that do not say which of them they compare."""
    for view, derived, readings in _columns(study):
        if not view.by_columns:
            continue
        complete = [reading for reading in readings if reading.complete and len(reading.rows) >= 2]
        sources = {reading.source for reading in complete}
        if len(sources) != 1:
            continue
        source = (
            next(series for series in view.series if series.metric.title == complete[0].source)
            if complete[0].source in {series.metric.title for series in view.series}
            else None
        )
        if source is None or not source.metric.statistic:
            continue
        siblings = [
            series
            for series in view.of_kind("time")
            if series is not source and _statistics_of_one(series, source) and series.metric.statistic
        ]
        if siblings and not _says(view, derived, source):
            yield _unnamed(study, view, derived, (source, siblings[0], complete[0]))


def _says(view: View, derived: Series, source: Series) -> bool:
    """Return True if the column's head, the caption or a note names the statistic."""
    names = {"mean": r"mean|avg|average", "p50": r"p50|median", "max": r"max\w*|worst", "min": r"min\w*|best"}
    pattern = names.get(source.metric.statistic, re.escape(source.metric.statistic))
    texts = (derived.metric.title, view.table.caption, *view.table.notes)
    return any(re.search(rf"(?i)\b(?:{pattern})\b", text) for text in texts)


def _unnamed(study: LintStudy, view: View, derived: Series, found: tuple[Series, Series, Reading]) -> Claim:
    source, sibling, reading = found
    base = sibling.of(_reference_row(view, derived) or 0)
    for row in reading.rows:
        own = sibling.of(row.entry.position)
        if base is not None and own is not None:
            other = _apply(
                Operands(entry=row.entry, said=row.said, reference=base, candidate=own, source=sibling.metric.title),
                reading.formula,
            )
            if other is not None and not row.said.bounds.overlaps(other):
                by_sibling = f"{printed(other.middle, row.said, more=0)} by {sibling.metric.title}"
                difference = f"; {row.entry.key}: {row.said.text} by {source.metric.title}, {by_sibling}"
                break
    else:
        difference = ""
    return Claim(
        place=study.document.place(view.table.line, view.table, "", derived.metric.title),
        said=derived.metric.title,
        corrected=f"{source.metric.title} {re.sub(_STATISTIC, '', derived.metric.title)}",
        why=f"every row is {reading.formula} of {source.metric.title}, and the head does not say so{difference}",
    )


RULES: Final = (
    Rule(
        id="change-column",
        meaning="A change or speedup is that of one statistic, by one formula, in every row.",
        check=change_column,
    ),
    Rule(
        id="statistic-unnamed",
        meaning="A column computed from one of several statistics in the table says from which.",
        severity="warning",
        check=statistic_unnamed,
    ),
)
