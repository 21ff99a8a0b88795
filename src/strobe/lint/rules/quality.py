"""Rules for quality metrics whose reference is not named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from strobe.lint.document import TableCell
from strobe.lint.finding import Claim, Rule
from strobe.lint.names import QUALITY
from strobe.lint.study import LintStudy
from strobe.lint.views import Series, SeriesEntry, View

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


RULES: Final = (
    Rule(
        id="quality-reference",
        meaning="A metric that compares pictures names what they are compared with.",
        severity="warning",
        check=quality_reference,
    ),
)
