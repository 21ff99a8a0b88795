"""Totals of tables and of printed output, and formulas in sentences that make one value up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Final

from strobe.lint.document import Claim, ClaimPlace, DocumentTable, LintDocument, LintFigure, MetricSeries, Sentence
from strobe.lint.quantity import Bounds, Quantity, exactly, is_total, printed, quantities, spelled, words

_NOT_ADDITIVE: Final = re.compile(
    r"(?i)\b(?:overlap\w*|concurrent\w*|parallel|async\w*|union|nest(?:s|ed|ing)?|contains? every|inclusive|not additive|"
    r"do(?:es)? not add|top[- ]?\d+|largest \d+|first \d+|selected|excerpt|examples? only|wall[- ]?clock|wall time|critical path|"
    r"double[- ]count\w*)\b"
)
"""Words that state that the rows do not add up to the total."""
_WALL: Final = re.compile(r"(?i)\b(?:wall|elapsed|end[- ]to[- ]end|e2e|span)\b")
_RUNNING: Final = re.compile(r"(?i)\b(?:excluding|without|until|till|up to|cumulative|running|remaining|including)\b")
"""Heads of columns whose rows overlap: each is the whole without or up to something."""
_MORE: Final = re.compile(r"(?i)^(?:\.\.\.|…|etc)")


def _additive(series: MetricSeries) -> bool:
    """Return True for a column whose parts may be added: times, memory, counts; no peaks, percentiles or rates."""
    metric = series.metric
    if metric.kind not in ("time", "memory", "count", "work") or metric.statistic not in ("", "mean", "sum"):
        return False
    return not _RUNNING.search(metric.title) and (metric.kind != "memory" or "peak" not in metric.title.lower())


def _sum(entries: Iterable[LintFigure]) -> Bounds | None:
    """Add up the intervals of two parts or more; None if one of them is not a figure. Empty cells count as zero."""
    full = [entry for entry in entries if not entry.cell.empty]
    if len(full) < 2 or any(entry.cell.quantity is None for entry in full):
        return None
    return sum((entry.quantity.bounds for entry in full), exactly(0))


def _outer(entries: Sequence[LintFigure]) -> list[LintFigure]:
    """Leave out the rows set in under others or named after one (`attn / qkv`, `attn.qkv`), which that one is made of."""
    depths = [entry.table.rows[entry.row].depth for entry in entries]
    after = re.compile(r"\s*(?:/|\.|:|>|→|->|_)\s*\w")
    names = {entry.name.lower() for entry in entries}
    return [
        entry for entry, depth in zip(entries, depths, strict=True)
        if depth == min(depths)
        and not any(entry.name.lower().startswith(name) and after.match(entry.name[len(name) :]) for name in names if name)
    ]  # fmt: skip


def _choices(table: DocumentTable, series: MetricSeries) -> Iterator[tuple[LintFigure, list[list[LintFigure]], bool]]:
    """Yield each total with what it may be the sum of: the parts since the total before it, all parts, or earlier totals.

    And whether some of these are made of others. Of printed output it closes the lines under its own heading. A total in the
    first row closes the rows below it.
    """
    rows, entries = table.rows, list(series.entries)
    if entries and [entry for entry in entries if is_total(entry.name)] == entries[:1]:
        entries = [*entries[1:], entries[0]]
    for at, total in enumerate(entries):
        if is_total(total.name) and total.cell.quantity is not None and not _group_of(table, total):
            above = [entry for entry in entries[:at] if rows[entry.row].group == rows[total.row].group]
            totals = [entry for entry in above if is_total(entry.name)]
            parts = [entry for entry in above if not is_total(entry.name)]
            since = [entry for entry in parts if not totals or entries.index(entry) > entries.index(totals[-1])]
            outer = _outer(since)
            yield total, [outer, _outer(parts), totals, [*totals, *outer]], len(outer) < len(since)


def _group_of(table: DocumentTable, total: LintFigure) -> set[int]:
    """Return the rows of the group that a printed total names: `Total Computation` and the rows under `COMPUTATION:`."""
    rows, own = table.rows, set(words(total.name)) - {"total"}
    return {
        number for number, row in enumerate(rows)
        if row.group != rows[total.row].group and own and own == set(words(row.group))
    }  # fmt: skip


def _groups(table: DocumentTable) -> Iterator[tuple[LintFigure, Bounds]]:
    """Yield the totals of a printed summary that name a group of rows, with the sum of those rows."""
    times = sorted(table.of_kind("time"), key=lambda series: series.metric.statistic != "sum")
    for total in [entry for series in table.of_kind("time") for entry in series.figures if is_total(entry.name)]:
        rows = _group_of(table, total)
        members = [[entry for entry in series.figures if entry.row in rows] for series in times]
        added = (parts for found in members if len(found) == len(rows) and (parts := _sum(found)) is not None)
        if rows and (parts := next(added, None)):
            yield total, parts


def total_sum(document: LintDocument) -> Iterator[Claim]:
    """Compare each total with the sum of the rows it closes, or of the group that it names."""
    for table in document.tables:
        explained = _NOT_ADDITIVE.search(table.context) or any(_MORE.match(row.label) for row in table.rows)
        if table.origin == "list" or not table.by_columns or explained:
            continue
        groups = list(_groups(table)) if table.origin == "lines" else []
        leaves = sum((parts.middle for _, parts in groups), Fraction(0)) if len(groups) > 1 else Fraction(0)
        for total, parts in groups:
            if not total.quantity.bounds.overlaps(parts):
                yield _not_the_sum(total, parts.middle, leaves, nested=False)
        for total, choices, nested in [each for series in table.series if _additive(series) for each in _choices(table, series)]:
            sums = [added for choice in choices if (added := _sum(choice)) is not None]
            agree = any(total.quantity.bounds.overlaps(added) for added in sums)
            if sums and not agree and not _WALL.search(total.name):
                yield _not_the_sum(total, sums[0].middle, Fraction(0), nested=nested)


def _not_the_sum(total: LintFigure, right: Fraction, leaves: Fraction, *, nested: bool) -> Claim:
    """Make the finding of a total.

    Args:
        leaves: the sum of all groups, where there are several.
        nested: some of its rows are made of others.
    """
    said, off = total.quantity, total.quantity.value - right
    shown, whole = printed(right, said, more=0), printed(leaves, said, more=0)
    beside = [cell.quantity for cell in total.table.rows[total.row].cells if cell.quantity]
    share = next((f" ({each.text})" for each in beside if each.dimension == "percent"), "") if leaves else ""
    part = float(100 * right / leaves) if leaves else 0.0
    if leaves and abs(off - leaves) <= leaves / 50:
        how = f"is all rows together ({whole}): a parent was counted with its children"
    else:
        how = "unattributed: say so in a row of its own" if off > 0 else "more than the total"
    if nested:
        how += "; a row that is made of others is counted with the rows it is made of, or not at all"
    return Claim(
        place=total.place,
        said=f"{total.name}: {said.text}{share}",
        corrected=shown + (f" = {part:.2f} % of {whole}, the rest {100 - part:.2f} %" if leaves else ""),
        why=f"its rows add up to {printed(right, said)}; {printed(abs(off), said)} {how}",
    )


# --------------------------------------------------------------------------------------------------- formulas in sentences

_NUMBER: Final = r"(?:\d{1,3}(?:,\d{3}){1,9}|\d{1,30})(?:\.\d{1,30})?"
_TERM: Final = rf"{_NUMBER}(?:\s?(?:{spelled('time', 'bytes')})(?![\w/])|(?!\s?[x×]\s)(?:\s(?!x\b)[a-z][a-z-]*){{1,2}})?"
"""A number and its unit, or a word or two such as `denoising steps`."""
_PRODUCT: Final = re.compile(
    rf"(?<![\w.,)\]^])(?P<left>(?P<count>{_TERM})\s*[*×x·]\s*(?P<each>{_TERM})(?P<rest>(?:\s*\+\s*{_TERM})*))"
    rf"\s*(?:=|≈)\s*(?P<right>~?\s*{_NUMBER})"
)
SMALL: Final = 100
"""Limit below which a whole number in a formula is an exact count; larger ones may be rounded."""
APART: Final = Fraction(1, 50)
CLOSE: Final = Fraction(1, 100)
MEASURED: Final = re.compile(r"(?i)\W{0,2}\s*(?:was |were |is )?(?:measured|observed|actual|in practice)")
_MATCHES: Final = re.compile(
    r"(?i)\b(?:match(?:es|ing)?|equals?|agrees? with|confirms?|explains?|corresponds? to|consistent with|is the)\b"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Product:
    """A formula in a sentence, `4 x 144.5 ms + 45 = 623 ms (621 ms measured)`: computed, claimed and measured value."""

    sentence: Sentence
    text: str
    value: Bounds
    said: Quantity
    measured: Bounds


def _products(document: LintDocument) -> Iterator[_Product]:
    for sentence in document.sentences:
        for found in _PRODUCT.finditer(sentence.text):
            said = next((each for each in sentence.found if each.stop > found.start("right")), None)
            if said is None or said.unit is None or said.dimension not in ("time", "bytes"):
                continue
            after = [each for each in sentence.found if each.start > said.stop and each.dimension == said.dimension]
            measured = next((each.bounds for each in after if MEASURED.match(sentence.text[each.stop :])), None)
            if measured is None and _MATCHES.search(sentence.text, said.stop):  # what was measured: the claimed value
                measured = said.bounds
            if measured is not None:
                count, each, *rest = (_operand(term, said) for term in re.findall(_TERM, found["left"]))
                value = sum(rest, count * each) * exactly(said.unit.scale)
                yield _Product(sentence=sentence, text=found["left"].strip(), value=value, said=said, measured=measured)


def _operand(term: str, said: Quantity) -> Bounds:
    """Return the interval of a printed number, in the unit of the result."""
    number = re.match(_NUMBER, term)
    assert number is not None
    bare, (shown, *_) = quantities(number[0])[0], (*quantities(term), None)
    exact = bare.decimals <= 0 and bare.value < SMALL
    scale = shown.unit.scale / said.unit.scale if shown and shown.unit and said.unit and shown.dimension == said.dimension else 1
    return (exactly(bare.value) if exact else exactly(bare.value).wider(bare.rounding)) * exactly(scale)


def two_decompositions(document: LintDocument) -> Iterator[Claim]:
    """Find two products that are claimed to make up the same measured value and give different results."""
    for one, two in combinations(_products(document), 2):
        gap, measured = abs(one.value.middle - two.value.middle), one.measured.middle
        same = one.measured.overlaps(two.measured) or abs(measured - two.measured.middle) <= CLOSE * measured
        if same and not one.value.overlaps(two.value) and gap > APART * one.value.middle:
            nearer, other = sorted((one, two), key=lambda each: abs(each.value.middle - measured))
            yield Claim(
                place=ClaimPlace(line=two.sentence.line),
                said=f"{one.text} = {one.said.text} (line {one.sentence.line}) and {two.text} = {two.said.text}",
                corrected=f"one of them: {nearer.said.text} leaves no room for what {other.said.text} counts besides",
                why=f"both are said to make up {printed(measured, one.said, more=0)}, and differ by "
                f"{printed(gap, one.said, more=0)}",
                also=(ClaimPlace(line=one.sentence.line),),
            )
