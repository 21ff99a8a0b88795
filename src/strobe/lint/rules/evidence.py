"""What a figure needs beside it: a unit, enough samples, a reference, a source of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple

from strobe.core.printable import first_of
from strobe.lint.document import Claim, DocumentTable, LintDocument, LintFigure, Titles
from strobe.lint.markdown import VALUE
from strobe.lint.quantity import QUALITY, is_total, metric_of, words
from strobe.lint.rules.formulas import frames_of_block
from strobe.perf.measure.stats import P99_SAMPLES

_UNITS_OF: Final = {"time": "ms, µs or s", "memory": "GB, GiB or MB"}
_LABELLED: Final = re.compile(r"(?i)(?:^|[\s_])(?:latency|duration|elapsed|runtime|time)$")
"""A label of printed output or a list that ends in the word for a time."""


def no_unit(document: LintDocument) -> Iterator[Claim]:
    """Find columns or rows of times or memory without a unit in the cells, the head or the caption."""
    for table in document.tables:
        context = metric_of(f"{table.caption} {' '.join(table.section[-1:])}", None)
        for series in table.series:
            bare = [figure for figure in series.figures if figure.quantity.unit is None]
            title, kind, statistic = series.metric.title, series.metric.kind, series.metric.statistic
            if table.origin != "table":
                bare = [figure for figure in bare if title == VALUE and _LABELLED.search(figure.name)]
                title, kind = bare[0].name if bare else "", "time"
            elif len(bare) < len(series.figures):
                continue
            elif kind == "number" and statistic not in ("", "sum"):  # `Mean` below a heading `Latency`
                kind = context.kind
            if bare and kind in _UNITS_OF:
                yield Claim(
                    place=bare[0].place,
                    said=f"{title}: {bare[0].quantity.text}",
                    corrected=f"{title} ({_UNITS_OF[kind]})",
                    why=f"no unit beside the figure, in its head or in the caption ({len(bare)} without one)",
                )


# ---------------------------------------------------------------------------------------------------------------- samples

_COUNT_HEAD: Final = re.compile(
    r"(?i)^(?:#|n|num|calls?|counts?|samples?|iterations?|iters?|runs?|reps?|launches|instances|occurrences?|frames|blocks|"
    r"requests)(?: \(.*\))?$|^(?:number|num|#) (?:of )?\w+$"
)
_N: Final = r"(?<![\w.,])(\d{1,3}(?:,\d{3})+|\d{1,9})\b"
_WHICH: Final = r"\s+(?:timed |measured |steady(?:-state)? |profiled |benchmark |pixel |latent )*"
_NOUNS: Final = (
    r"(?:iterations?|iters?|samples?|runs?|repetitions?|repeats?|reps?|trials?|measurements?|requests?|calls?|rounds?|clips?)"
)
_STATED: Final = re.compile(
    rf"(?i){_N}{_WHICH}{_NOUNS}\b|(?<![\w.])(?:n|num_?(?:samples|iters?|iterations|runs)|{_NOUNS})\s*[=:]\s*{_N}\b"
    rf"|--(?:[a-z]+-)*(?:{_NOUNS}|requests|frames)[ =]{_N}\b"
)
"""A number of samples: `100 iterations`, `n = 33`, or a flag of a command."""
_SIZED: Final = re.compile(rf"(?i){_N}{_WHICH}(?:frames?|(?:frame )?blocks?|switches|prompts)\b")
_BENCHMARK: Final = re.compile(r"(?i)\b(?:benchmark\w*|bench|measured|measurements?|mode|over|timed|profil\w+|sampled?)\b")
_WARM: Final = re.compile(r"(?i)\bwarm-?up\b")


class _Samples(NamedTuple):
    """A number of samples stated in the document, its wording and its place."""

    n: int
    text: str
    line: int
    section: Titles


def percentile_samples(document: LintDocument) -> Iterator[Claim]:
    """Find p99s, and percentiles beyond, with too small a number of samples: of the row, else of the chapter, else at all."""
    stated = list(_statements(document))
    groups: dict[tuple[DocumentTable, str, _Samples], list[LintFigure]] = {}
    for figure in document.figures:
        if figure.metric.statistic.startswith("p99") and figure.metric.kind in ("time", "number", "rate", "memory"):
            chapter = [each for each in stated if each.section[:2] == figure.table.section[:2]]
            found = _own_count(figure) or max(chapter or stated, default=None)
            if found is not None and found.n < P99_SAMPLES:
                groups.setdefault((figure.table, figure.metric.title, found), []).append(figure)
    size = frames_of_block(document) if groups else 0
    for (_, title, found), figures in groups.items():
        blocks = found.n // size if size and re.search(r"(?i)\bframes?$", found.text) else 0
        yield Claim(
            place=figures[0].place,
            said=f"{title}: {first_of([figure.quantity.text for figure in figures], 1)}",
            corrected=f"max of {blocks or found.n}",
            why=f"{found.text} (line {found.line})"
            + (f", {blocks} frame blocks" if blocks else "")
            + f"; {figures[0].metric.statistic} needs {P99_SAMPLES} samples",
            also=[figure.place for figure in figures[1:]],
        )


def _own_count(figure: LintFigure) -> _Samples | None:
    """Return the samples that a column beside a figure counts."""
    for series in figure.table.series:
        count = series.of(figure.position) if _COUNT_HEAD.match(series.metric.title) else None
        if count is not None and count.value.denominator == 1:
            text = f"{series.metric.title} {count.text}"
            return _Samples(int(count.value), text, figure.place.line, figure.table.section)
    return None


def _statements(document: LintDocument) -> Iterator[_Samples]:
    """Yield every number of samples in the document: in sentences, cells of settings, and flags of commands."""
    rows = [(table, row) for table in document.tables if len(table.header) == 2 for row in table.rows]
    settings = [(f"{row.label}: {row.cells[-1].text}", row.line, table.section) for table, row in rows]
    said = [(each.text, each.line, each.section) for each in document.sentences]
    code = [(each.text, each.line, each.section) for each in document.code]
    for at, (text, line, section) in enumerate((*said, *settings, *code)):
        for found in (*_STATED.finditer(text), *(_SIZED.finditer(text) if _BENCHMARK.search(text) else ())):
            flag = found[0].startswith("--") or at < len(said) + len(settings)
            if flag and not _WARM.search(text[max(0, found.start() - 12) : found.end() + 12]):
                yield _Samples(int(next(filter(None, found.groups())).replace(",", "")), found[0], line, section)


# ------------------------------------------------------------------------------------------------------------- references

_NAMED: Final = re.compile(
    r"(?i)\b(?:against|vs\.?|versus|compared (?:to|with)|relative to|with respect to|w\.r\.t\.?|reference(?: is| are|:| =)|"
    r"ground[- ]truth|reconstruct\w*|(?:to|from|of) the (?:original|input|source|reference)|"
    r"references? (?:clip|video|image|frame|output|preset|run)s?|held[- ]out|(?:validation|test) \w+|measured (?:on|to|from))\b"
)
_REFERENCE: Final = re.compile(r"(?i)^\s*(?:reference|ref\.?|baseline \(reference\)|ground truth|original)\s*$")


def quality_reference(document: LintDocument) -> Iterator[Claim]:
    """Find tables of PSNR, SSIM, LPIPS or the like without a named reference, neither in the table nor its section."""
    for table in document.tables:
        figures = [figure for series in table.of_kind("quality") for figure in series.figures]
        texts = [table.caption, *table.header, *table.notes, *table.section[1:]]
        texts += [cell.text for row in table.rows for cell in row.cells[1:]]
        texts += [each.text for each in document.sentences if each.section[: len(table.section)] == table.section]
        own = next(filter(_not_itself, figures), None)
        named = any(_NAMED.search(text) for text in texts)
        for first in [own] if own else [] if named else figures[:1]:
            name, names = first.metric.quality, ", ".join(dict.fromkeys(each.metric.quality.upper() for each in figures))
            itself = f"against itself its {name.upper()} is {QUALITY[name]}"
            what = itself if own else "which frames, from which preset, dtype and seed"
            yield Claim(
                place=first.place,
                said=f"{first.name}{' is the reference' if own else ''}: {first.metric.title} {first.cell.text}",
                corrected=f"name the reference of {names}: {what}",
                why="nothing in the table or its section says what was compared with what",
            )


def _not_itself(figure: LintFigure) -> bool:
    """Return True for a figure of what calls itself the reference, if a reference cannot have it against itself."""
    rows, bounds, ideal = figure.table.rows, figure.quantity.bounds, QUALITY[figure.metric.quality]
    cells = rows[figure.row].cells if figure.table.by_columns else [row.cells[figure.position] for row in rows]
    perfect = ideal.isdigit() and bounds.low <= int(ideal) <= bounds.high
    return any(_REFERENCE.match(cell.text) for cell in cells) and not perfect and not re.search(r"(?i)inf|∞", figure.cell.text)


# ---------------------------------------------------------------------------------------------------------------- sources

CLOSE: Final = Fraction(1, 10_000)
"""Relative difference up to which two figures are examined."""
DIGITS: Final = 5
CHANCE: Final = 0.01
"""Probability of so close a pair among all figures, below which the pair is reported."""
_OTHER_BASIS: Final = re.compile(
    r"(?i)\b(?:sum|total|all calls|saved|share|budget|overhead|launch|gap|idle|delta|difference|per token|per frame|speed-?up)\b"
)


def coincidence(document: LintDocument) -> Iterator[Claim]:
    """Find two times of different names in different tables or groups that agree to four digits or more.

    If `m` figures were spread evenly over the logarithm of their range, the chance that some pair lies within a relative distance
    `d` is `m (m - 1) d / ln(max / min)`; below 1 % a copy is likelier than luck.
    """
    times = {
        figure.quantity.value: figure
        for figure in reversed(document.figures)
        if figure.quantity.dimension == "time" and figure.quantity.value > 0
    }
    for low, high in pairwise(sorted(times) if len(times) >= 3 else ()):
        distance = float((high - low) / low)
        chance = len(times) * (len(times) - 1) * distance / math.log(max(times) / min(times))
        if distance > CLOSE or chance >= CHANCE:
            continue
        one, two = both = sorted((times[low], times[high]), key=lambda figure: figure.place.line)
        groups = [(figure.table, figure.table.rows[figure.row].group) for figure in both]
        names = [set(words(figure.name)) for figure in both]
        may_be_one = groups[0] == groups[1] or names[0] <= names[1] or names[1] <= names[0]
        if not may_be_one and all(map(_single_time, both)):
            yield Claim(
                place=two.place,
                said=f"{two.name}: {two.quantity.text}",
                corrected="say where each figure comes from: one of them may be a copy",
                why=f"{one.name} {one.quantity.text} (line {one.place.line}), of another table, differs by "
                f"{distance:.1g} of it; by chance: {chance:.1g}",
                also=(one.place,),
            )


def _single_time(figure: LintFigure) -> bool:
    """Return True for a time to many digits that is no sum and no difference."""
    texts = (figure.name, figure.metric.title, figure.table.rows[figure.row].group, figure.table.caption)
    plain = figure.quantity.digits >= DIGITS and figure.quantity.plain and figure.metric.statistic in ("", "mean", "p50")
    return plain and not is_total(figure.name) and not any(_OTHER_BASIS.search(text) for text in texts)
