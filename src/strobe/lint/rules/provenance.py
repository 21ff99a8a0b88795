"""Rules for figures of different things that agree too well to be measurements."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from typing import Final

from strobe.lint.finding import Claim, Rule
from strobe.lint.names import key
from strobe.lint.rules.units import levels, rank_of
from strobe.lint.study import LintStudy
from strobe.lint.views import Series, SeriesEntry, View

CLOSE: Final = Fraction(1, 10_000)
"""Relative difference up to which two figures are examined."""
DIGITS: Final = 5
CHANCE: Final = 0.01
"""Probability of so close a pair among all figures, below which the pair is reported."""
COPIED_DIGITS: Final = 7
"""Fewest significant digits in all that make two equal rows a copy; fewer may agree by chance."""


def coincidence(study: LintStudy) -> Iterator[Claim]:
    """Find two times of different variants at different levels that agree to four digits or more.

    If `m` figures were spread evenly over the logarithm of their range, the chance that some pair lies within a relative distance
    `d` is `m (m - 1) d / ln(max / min)`; below 1 % a copy is likelier than luck.
    """
    found = [level for level in levels(study) if level.quantity.digits >= DIGITS and level.quantity.value > 0]
    times = {
        figure.quantity.value for figure in study.figures if figure.quantity.dimension == "time" and figure.quantity.value > 0
    }
    if len(times) < 3:
        return
    span = math.log(max(times) / min(times))
    seen: set[tuple[Fraction, Fraction]] = set()
    for one, two in combinations(sorted(found, key=lambda level: level.place.line), 2):
        low, high = sorted((one.quantity.value, two.quantity.value))
        distance = float((high - low) / low)
        chance = len(times) * (len(times) - 1) * distance / span
        near = low != high and high - low <= CLOSE * low and chance < CHANCE
        if near and one.rank != two.rank and one.variant != two.variant and (low, high) not in seen:
            seen.add((low, high))
            yield Claim(
                place=two.place,
                said=f"{two.label}: {two.quantity.text}",
                corrected="say where each figure comes from: one of them may be a copy",
                why=(
                    f"{one.label} {one.quantity.text} ({one.place.short}), of another level, differs by {distance:.1g} of it; "
                    f"by chance: {chance:.1g}"
                ),
                also=(one.place,),
            )


def copied_row(study: LintStudy) -> Iterator[Claim]:
    """Find two configurations with the same times, digit for digit, in every column."""
    for view in study.views:
        times = [series for series in view.of_kind("time") if series.metric.statistic != "spread"]
        if view.table.origin != "table" or len(times) < 2:
            continue
        firsts: dict[tuple[str, ...], SeriesEntry] = {}
        for entry in times[0].entries:
            figures = tuple(figure for each in times if (figure := each.of(entry.position)) is not None)
            digits = sum({figure.value: figure.digits for figure in figures}.values())
            told = _CHOSEN.search(entry.key) or _RATE.search(entry.key)
            if len({figure.value for figure in figures}) < 2 or digits < COPIED_DIGITS or told:
                continue
            first = firsts.setdefault(tuple(figure.text for figure in figures), entry)
            rounded = _nested(first.key, entry.key) and all(figure.digits < DIGITS for figure in figures)
            if first is not entry and not _names(first.key, entry.key) and not rounded:
                yield _copied(study, view, times[0], (first, entry))


_CHOSEN: Final = re.compile(r"(?i)\b(?:best|worst|slowest|fastest|median|selected|chosen|default|recommended|same)\b")
"""Labels of rows that repeat another row by definition, such as best or worst."""
_RATE: Final = re.compile(r"/\s?s\b")
"""Labels of rates: two of them are the same where nothing is padded."""


def _names(one: str, two: str) -> bool:
    """Return True if one label is or contains the other."""
    return key(one) in key(two) or key(two) in key(one)


def _nested(one: str, two: str) -> bool:
    """Return True if the labels name a level and the one right around it, which may add less than a printed digit."""
    inner, outer = rank_of(one), rank_of(two)
    return inner is not None and outer is not None and abs(outer - inner) == 1


def _copied(study: LintStudy, view: View, series: Series, entries: tuple[SeriesEntry, SeriesEntry]) -> Claim:
    one, two = entries
    return Claim(
        place=study.figure_place(view, series, two),
        said=f"{two.key}: {two.cell.text}",
        corrected=f"measure {two.key}, or say that it is {one.key}",
        why=f"every time of this row is that of {one.key} (line {one.cell.line}), digit for digit",
        also=(study.figure_place(view, series, one),),
    )


RULES: Final = (
    Rule(
        id="coincidence",
        meaning="Times of different variants at different levels that agree to four digits need a source.",
        severity="warning",
        check=coincidence,
    ),
    Rule(
        id="copied-row",
        meaning="Two configurations do not have the same times in every digit.",
        severity="warning",
        check=copied_row,
    ),
)
