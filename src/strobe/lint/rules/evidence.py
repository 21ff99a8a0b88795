"""Rules on what figures stand on: samples, references, counts of calls, and copies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Final

from strobe.core.printable import first_of
from strobe.lint.document import DocumentSection, Table, TableCell
from strobe.lint.quantity import QUALITY, quantities
from strobe.lint.rules.tables import frames_of_block
from strobe.lint.rules.units import levels
from strobe.lint.study import Claim, Figure, LintStudy, Rule, Series, SeriesEntry, View
from strobe.perf.measure.stats import P99_SAMPLES

_COUNT_HEAD: Final = re.compile(
    r"(?i)^(?:#|n|num|calls?|counts?|samples?|iterations?|iters?|runs?|reps?|launches|instances|occurrences?|frames|blocks|"
    r"requests)(?: \(.*\))?$|^(?:number|num|#) (?:of )?\w+$"
)
_N: Final = r"(?<![\w.,])(\d{1,3}(?:,\d{3})+|\d+)"
_NOUNS: Final = (
    r"(?:iterations?|iters?|samples?|runs?|repetitions?|repeats?|reps?|trials?|measurements?|requests?|calls?|rounds?|clips?)"
)
_STATED: Final = re.compile(rf"(?i){_N}\s+(?:timed |measured |steady(?:-state)? |profiled |benchmark )*(?P<noun>{_NOUNS})\b")
_SIZED: Final = re.compile(
    rf"(?i){_N}\s+(?:timed |measured |steady(?:-state)? |pixel |latent )*(?:frames?|(?:frame )?blocks?|switches|prompts)\b"
)
_EQUALS: Final = re.compile(
    r"(?i)(?<![\w.])(?:n|num_?(?:samples|iters?|iterations|runs)|samples|iterations|iters|runs|repetitions)\s*[=:]\s*(\d{1,3}(?:,\d{3})+|\d+)\b"
)
_FLAG: Final = re.compile(
    r"(?i)--(?:[a-z]+-)*(?:iterations?|iters?|runs?|samples?|repeats?|reps?|rounds?|requests|frames)[ =](\d+)\b"
)
_BENCHMARK: Final = re.compile(r"(?i)\b(?:benchmark\w*|bench|measured|measurements?|mode|over|timed|profil\w+|sampled?)\b")
_WARM: Final = re.compile(r"(?i)\bwarm-?up\b")
_SETUP: Final = re.compile(r"(?i)\b(?:environment|set-?up|method\w*|configuration|settings|protocol|benchmark|hardware|how)\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """A number of samples stated in the document, its place and its wording."""

    n: int
    line: int
    section: DocumentSection
    text: str


def percentile_samples(study: LintStudy) -> Iterator[Claim]:
    """Find p99s, and percentiles beyond, with too small a stated number of samples."""
    stated = list(_statements(study))
    groups: dict[tuple[int, str, Samples], list[Figure]] = {}
    for figure in study.figures:
        if not figure.series.metric.statistic.startswith("p99") or figure.series.metric.kind not in (
            "time",
            "number",
            "rate",
            "memory",
        ):
            continue
        found = _samples_of(figure, stated)
        if found is not None and found.n < P99_SAMPLES:
            groups.setdefault((id(figure.view), figure.series.metric.title, found), []).append(figure)
    for (_, _, found), figures in groups.items():
        yield _claim(study, figures, found)


def _claim(study: LintStudy, figures: list[Figure], found: Samples) -> Claim:
    first = figures[0]
    title = first.series.metric.title
    blocks = _blocks(study, found)
    return Claim(
        place=first.place,
        said=f"{title}: {first_of([figure.quantity.text for figure in figures], 1)}",
        corrected=f"max of {blocks or found.n}",
        why=f"{found.text} (line {found.line})"
        + (f", {blocks} frame blocks" if blocks else "")
        + f"; {first.series.metric.statistic} needs {P99_SAMPLES} samples",
        also=tuple(figure.place for figure in figures[1:]),
    )


def _blocks(study: LintStudy, found: Samples) -> int:
    """Convert a number of frames to frame blocks, since latencies are measured per block."""
    size = frames_of_block(study)
    return found.n // size if size and re.search(r"(?i)\bframes?$", found.text) else 0


def _samples_of(figure: Figure, stated: list[Samples]) -> Samples | None:
    """Return the samples behind a figure: a count in its row, else the most stated in its section or document."""
    own = _own_count(figure)
    if own is not None:
        return own
    section = figure.view.table.section
    chapter = [each for each in stated if each.section.path[:2] == section.path[:2]]
    general = [
        each
        for each in stated
        if len(each.section.path) <= 1 or (len(each.section.path) == 2 and _SETUP.search(each.section.title))
    ]
    pool = chapter or general
    return max(pool, key=lambda each: each.n) if pool else None


def _own_count(figure: Figure) -> Samples | None:
    view, section = figure.view, figure.view.table.section
    for series in view.series:
        if _COUNT_HEAD.match(series.metric.title):
            count = series.of(figure.entry.position)
            if count is not None and count.value.denominator == 1:
                return Samples(
                    n=int(count.value), line=figure.place.line, section=section, text=f"{series.metric.title} {count.text}"
                )
    for text in (figure.entry.cell.text, figure.view.table.caption, *figure.view.table.notes):
        for n, words in _counts(text):
            return Samples(n=n, line=figure.place.line, section=section, text=words)
    return None


def _counts(text: str) -> Iterator[tuple[int, str]]:
    for pattern in (_STATED, _EQUALS, _FLAG):
        for found in pattern.finditer(text):
            if not _WARM.search(text[max(0, found.start() - 12) : found.end() + 12]):
                yield int(found[1].replace(",", "")), found[0]
    if _BENCHMARK.search(text):
        for found in _SIZED.finditer(text):
            yield int(found[1].replace(",", "")), found[0]


def _statements(study: LintStudy) -> Iterator[Samples]:
    """Yield every number of samples in the document: in sentences, cells of settings, and flags of commands."""
    for sentence in study.document.sentences:
        for n, text in _counts(sentence.text):
            yield Samples(n=n, line=sentence.line, section=sentence.section, text=text)
    for line in study.document.code:
        for n, text in ((int(found[1]), found[0]) for found in _FLAG.finditer(line.text)):
            yield Samples(n=n, line=line.line, section=line.section, text=text)
    for table in study.document.tables:
        yield from _in_table(table)


def _in_table(table: Table) -> Iterator[Samples]:
    """Yield the samples of a settings table: `Benchmark mode | quick (100 frames)`, `Iterations | 100`."""
    if len(table.header) != 2:
        return
    for row in table.rows:
        text = f"{row.label}: {row.cells[-1].text}"
        for n, words in _counts(text):
            yield Samples(n=n, line=row.line, section=table.section, text=words)
        if re.fullmatch(rf"(?i){_NOUNS}|(?:number|num|#) of {_NOUNS}|n", row.label.strip()):
            for found in quantities(row.cells[-1].text)[:1]:
                yield Samples(n=int(found.value), line=row.line, section=table.section, text=text)


# ------------------------------------------------------------------------------------------------------------------ order


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
        series = view.of_kind("quality")
        if not series or not any(each.figures for each in series):
            continue
        table = view.table
        texts = [table.caption, *table.header, *table.notes, *table.section.titles[1:], study.document.text_of(table.section)]
        texts += [cell.text for row in table.rows for cell in row.cells[1:]]
        own = _own_reference(view, series)
        if own is not None:
            yield _finite(study, view, own)
        elif not any(_NAMED.search(text) for text in texts):
            each = series[0]
            entry, figure = each.figures[0]
            names = ", ".join(dict.fromkeys(QUALITY[one.metric.quality][0] for one in series))
            yield Claim(
                place=study.figure_place(view, each, entry),
                said=f"{entry.key}: {each.metric.title} {figure.text}",
                corrected=f"name the reference of {names}: which frames, from which preset, dtype and seed",
                why="nothing in the table or its section says what was compared with what",
            )


def _own_reference(view: View, series: list[Series]) -> tuple[Series, SeriesEntry] | None:
    """Return a row that calls itself the reference but has figures that a reference cannot have against itself."""
    table = view.table
    for each in series:
        ideal = QUALITY[each.metric.quality][1]
        for entry, figure in each.figures:
            cells = table.rows[entry.row].cells if view.by_columns else _column(view, entry)
            if any(_REFERENCE.match(cell.text) for cell in cells):
                perfect = ideal.isdigit() and figure.bounds.low <= int(ideal) <= figure.bounds.high
                if not perfect and "inf" not in entry.cell.text.lower() and "∞" not in entry.cell.text:
                    return each, entry
    return None


def _column(view: View, entry: SeriesEntry) -> list[TableCell]:
    return [row.cells[entry.position] for row in view.table.rows if entry.position < len(row.cells)]


def _finite(study: LintStudy, view: View, own: tuple[Series, SeriesEntry]) -> Claim:
    series, entry = own
    name, ideal = QUALITY[series.metric.quality]
    return Claim(
        place=study.figure_place(view, series, entry),
        said=f"{entry.key} is the reference, {series.metric.title} {entry.cell.text}",
        corrected=f"name the reference: against itself its {name} is {ideal}",
        why=f"a {name} of {entry.cell.text} was measured against something else, which nothing names",
    )


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
