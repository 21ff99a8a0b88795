"""Rules on what figures stand on: samples, references, and copies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from typing import Final, NamedTuple

from strobe.core.printable import first_of
from strobe.lint.document import DocumentSection
from strobe.lint.quantity import QUALITY
from strobe.lint.rules.tables import frames_of_block
from strobe.lint.rules.units import levels
from strobe.lint.study import Claim, LintFigure, LintStudy, MetricSeries, Rule, View
from strobe.perf.measure.stats import P99_SAMPLES

_COUNT_HEAD: Final = re.compile(
    r"(?i)^(?:#|n|num|calls?|counts?|samples?|iterations?|iters?|runs?|reps?|launches|instances|occurrences?|frames|blocks|"
    r"requests)(?: \(.*\))?$|^(?:number|num|#) (?:of )?\w+$"
)
_N: Final = r"(?<![\w.,])(\d{1,3}(?:,\d{3})+|\d+)"
_NOUNS: Final = (
    r"(?:iterations?|iters?|samples?|runs?|repetitions?|repeats?|reps?|trials?|measurements?|requests?|calls?|rounds?|clips?)"
)
_STATED: Final = re.compile(
    rf"(?i){_N}\s+(?:timed |measured |steady(?:-state)? |profiled |benchmark )*{_NOUNS}\b"
    rf"|(?<![\w.])(?:n|num_?(?:samples|iters?|iterations|runs)|{_NOUNS})\s*[=:]\s*{_N}\b"
    rf"|--(?:[a-z]+-)*(?:{_NOUNS}|requests|frames)[ =]{_N}\b"
)
"""A number of samples: `100 iterations`, `n = 33`, or a flag of a command."""
_SIZED: Final = re.compile(
    rf"(?i){_N}\s+(?:timed |measured |steady(?:-state)? |pixel |latent )*(?:frames?|(?:frame )?blocks?|switches|prompts)\b"
)
_BENCHMARK: Final = re.compile(r"(?i)\b(?:benchmark\w*|bench|measured|measurements?|mode|over|timed|profil\w+|sampled?)\b")
_WARM: Final = re.compile(r"(?i)\bwarm-?up\b")
_SETUP: Final = re.compile(r"(?i)\b(?:environment|set-?up|method\w*|configuration|settings|protocol|benchmark|hardware|how)\b")


class _Samples(NamedTuple):
    """A number of samples stated in the document, its wording and its place."""

    n: int
    text: str
    line: int
    section: DocumentSection


def percentile_samples(study: LintStudy) -> Iterator[Claim]:
    """Find p99s, and percentiles beyond, with too small a stated number of samples."""
    stated = list(_statements(study))
    groups: dict[tuple[int, str, _Samples], list[LintFigure]] = {}
    for view in study.views:
        for series in view.of_kind("time", "number", "rate", "memory"):
            for figure in series.figures if series.metric.statistic.startswith("p99") else ():
                found = _own_count(view, figure) or _stated_for(figure, stated)
                if found is not None and found.n < P99_SAMPLES:
                    groups.setdefault((id(view), series.metric.title, found), []).append(figure)
    size = frames_of_block(study) if groups else 0
    for (_, title, found), figures in groups.items():
        blocks = found.n // size if size and re.search(r"(?i)\bframes?$", found.text) else 0
        yield Claim(
            place=figures[0].place,
            said=f"{title}: {first_of([figure.quantity.text for figure in figures], 1)}",
            corrected=f"max of {blocks or found.n}",
            why=f"{found.text} (line {found.line})"
            + (f", {blocks} frame blocks" if blocks else "")
            + f"; {figures[0].metric.statistic} needs {P99_SAMPLES} samples",
            also=tuple(figure.place for figure in figures[1:]),
        )


def _stated_for(figure: LintFigure, stated: list[_Samples]) -> _Samples | None:
    """Return the most samples stated in the chapter of a figure, else in the document's setup."""
    chapter = [each for each in stated if each.section.path[:2] == figure.table.section.path[:2]]
    setup = [
        each for each in stated
        if len(each.section.path) <= 1 or (len(each.section.path) == 2 and _SETUP.search(each.section.title))
    ]  # fmt: skip
    return max(chapter or setup, key=lambda each: each.n, default=None)


def _own_count(view: View, figure: LintFigure) -> _Samples | None:
    """Return the samples that the row, the cell, the caption or a note of a figure states."""
    line, section = figure.place.line, view.table.section
    for series in view.series:
        count = series.of(figure.position) if _COUNT_HEAD.match(series.metric.title) else None
        if count is not None and count.value.denominator == 1:
            return _Samples(int(count.value), f"{series.metric.title} {count.text}", line, section)
    texts = (figure.cell.text, view.table.caption, *view.table.notes)
    return next((_Samples(n, words, line, section) for text in texts for n, words in _counts(text)), None)


def _counts(text: str) -> Iterator[tuple[int, str]]:
    for found in (*_STATED.finditer(text), *(_SIZED.finditer(text) if _BENCHMARK.search(text) else ())):
        if not _WARM.search(text[max(0, found.start() - 12) : found.end() + 12]):
            yield int(next(number for number in found.groups() if number).replace(",", "")), found[0]


def _statements(study: LintStudy) -> Iterator[_Samples]:
    """Yield every number of samples in the document: in sentences, cells of settings, and flags of commands."""
    flags = [(line, True) for line in study.document.code]
    for sentence, flag in [*((sentence, False) for sentence in study.document.sentences), *flags]:
        for n, text in _counts(sentence.text):
            if not flag or text.startswith("--"):
                yield _Samples(n, text, sentence.line, sentence.section)
    for table in study.document.tables:
        for row in table.rows if len(table.header) == 2 else ():  # settings: `Benchmark mode | quick (100 frames)`
            for n, words in _counts(f"{row.label}: {row.cells[-1].text}"):
                yield _Samples(n, words, row.line, table.section)


# ------------------------------------------------------------------------------------------------------------- references

_NAMED: Final = re.compile(
    r"(?i)\b(?:against|vs\.?|versus|compared (?:to|with)|relative to|with respect to|w\.r\.t\.?|reference(?: is| are|:| =)|"
    r"ground[- ]truth|reconstruct\w*|to the (?:original|input|source|reference)|from the (?:original|reference)|"
    r"of the (?:original|input)|references? (?:clip|video|image|frame|output|preset|run)s?|"
    r"held[- ]out|validation set|test (?:set|split|views?|images?)|measured (?:on|to|from))\b"
)
_REFERENCE: Final = re.compile(r"(?i)^\s*(?:reference|ref\.?|baseline \(reference\)|ground truth|original)\s*$")


def quality_reference(study: LintStudy) -> Iterator[Claim]:
    """Find tables of PSNR, SSIM, LPIPS or the like without a named reference, neither in the table nor its section."""
    for view in study.views:
        series = [each for each in view.of_kind("quality") if each.figures]
        table = view.table
        texts = [table.caption, *table.header, *table.notes, *table.section.titles[1:], study.document.text_of(table.section)]
        texts += [cell.text for row in table.rows for cell in row.cells[1:]]
        own = _own_reference(view, series)
        if own is not None:
            name, ideal = QUALITY[own.metric.quality]
            yield Claim(
                place=own.place,
                said=f"{own.name} is the reference, {own.metric.title} {own.cell.text}",
                corrected=f"name the reference: against itself its {name} is {ideal}",
                why=f"a {name} of {own.cell.text} was measured against something else, which nothing names",
            )
        elif series and not any(_NAMED.search(text) for text in texts):
            first, names = series[0].figures[0], dict.fromkeys(QUALITY[each.metric.quality][0] for each in series)
            yield Claim(
                place=first.place,
                said=f"{first.name}: {first.metric.title} {first.quantity.text}",
                corrected=f"name the reference of {', '.join(names)}: which frames, from which preset, dtype and seed",
                why="nothing in the table or its section says what was compared with what",
            )


def _own_reference(view: View, series: list[MetricSeries]) -> LintFigure | None:
    """Return a figure of the row that calls itself the reference, if a reference cannot have it against itself."""
    rows = view.table.rows
    for figure in [figure for each in series for figure in each.figures]:
        ideal, bounds = QUALITY[figure.metric.quality][1], figure.quantity.bounds
        cells = rows[figure.row].cells if view.by_columns else [row.cells[figure.position] for row in rows]
        perfect = ideal.isdigit() and bounds.low <= int(ideal) <= bounds.high
        if any(_REFERENCE.match(cell.text) for cell in cells) and not perfect and not re.search(r"(?i)inf|∞", figure.cell.text):
            return figure
    return None


CLOSE: Final = Fraction(1, 10_000)
"""Relative difference up to which two figures are examined."""
DIGITS: Final = 5
CHANCE: Final = 0.01
"""Probability of so close a pair among all figures, below which the pair is reported."""


def coincidence(study: LintStudy) -> Iterator[Claim]:
    """Find two times of different variants at different levels that agree to four digits or more.

    If `m` figures were spread evenly over the logarithm of their range, the chance that some pair lies within a relative distance
    `d` is `m (m - 1) d / ln(max / min)`; below 1 % a copy is likelier than luck.
    """
    found = [level for level in levels(study) if level.quantity.digits >= DIGITS and level.quantity.value > 0]
    times = {
        figure.quantity.value for figure in study.figures if figure.quantity.dimension == "time" and figure.quantity.value > 0
    }
    seen: set[tuple[Fraction, Fraction]] = set()
    for one, two in combinations(sorted(found, key=lambda level: level.figure.place.line), 2):
        low, high = sorted((one.quantity.value, two.quantity.value))
        near = low != high and high - low <= CLOSE * low and len(times) >= 3 and (low, high) not in seen
        if not near or one.rank == two.rank or one.variant == two.variant:
            continue
        distance = float((high - low) / low)
        chance = len(times) * (len(times) - 1) * distance / math.log(max(times) / min(times))
        if chance < CHANCE:
            seen.add((low, high))
            yield Claim(
                place=two.figure.place,
                said=f"{two.label}: {two.quantity.text}",
                corrected="say where each figure comes from: one of them may be a copy",
                why=f"{one.label} {one.quantity.text} (line {one.figure.place.line}), of another level, differs by "
                f"{distance:.1g} of it; by chance: {chance:.1g}",
                also=(one.figure.place,),
            )


RULES: Final = (
    Rule(
        id="percentile-samples",
        meaning=f"A p99 stands on at least {P99_SAMPLES} samples; below that it is called the largest of n.",
        severity="warning",
        check=percentile_samples,
    ),
    Rule(
        id="quality-reference",
        meaning="A metric that compares pictures names what they are compared with.",
        severity="warning",
        check=quality_reference,
    ),
    Rule(
        id="coincidence",
        meaning="Times of different variants at different levels that agree to four digits need a source.",
        severity="warning",
        check=coincidence,
    ),
)
