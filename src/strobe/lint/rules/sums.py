"""Rules for totals, shares, and rows that are counted twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from strobe.lint.document import Row
from strobe.lint.finding import Claim, Rule
from strobe.lint.names import is_total, words
from strobe.lint.quantity import Bounds, Quantity, exactly, printed
from strobe.lint.study import LintStudy
from strobe.lint.views import Series, SeriesEntry, View

NOT_ADDITIVE: Final = re.compile(
    r"(?i)\b(?:overlap\w*|concurrent\w*|parallel|async\w*|union|nest(?:s|ed|ing)?|contains? every|inclusive|not additive|"
    r"do(?:es)? not add|top[- ]?\d+|largest \d+|first \d+|selected|excerpt|examples? only|wall[- ]?clock|wall time|critical path|"
    r"double[- ]count\w*)\b"
)
"""Words that state that the rows do not add up to the total."""

_ADDITIVE: Final = frozenset({"time", "memory", "count", "work"})
_SUMMABLE: Final = frozenset({"", "mean", "sum"})
_WALL: Final = re.compile(r"(?i)\b(?:wall|elapsed|end[- ]to[- ]end|e2e|span)\b")
_RUNNING: Final = re.compile(r"(?i)\b(?:excluding|without|until|till|up to|cumulative|running|remaining|including)\b")
"""Heads of columns whose rows overlap: each is the whole without or up to something."""
_MORE: Final = re.compile(r"(?i)^(?:\.\.\.|…|etc)")
HUNDRED: Final = Fraction(100)


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of figures cut at a total: the parts since the total before it, and that total."""

    view: View
    series: Series
    parts: tuple[SeriesEntry, ...]
    total: SeriesEntry
    everything: tuple[SeriesEntry, ...]
    totals: tuple[SeriesEntry, ...]


def _closed(view: View, series: Series) -> Iterator[Column]:
    """Yield each total of a column with the parts above it; for a total in the first row, the parts below."""
    if view.table.origin == "lines":
        yield from _closed_lines(view, series)
        return
    within = {child for parent, children in _hierarchy(view) if series.of(parent) is not None for child in children}
    since: list[SeriesEntry] = []
    leaves: list[SeriesEntry] = []
    totals: list[SeriesEntry] = []
    entries = [entry for entry in series.entries if entry.row not in within]
    if entries and is_total(entries[0].key):
        entries = [*entries[1:], entries[0]] if sum(is_total(entry.key) for entry in entries) == 1 else entries
    for entry in entries:
        if not is_total(entry.key):
            since.append(entry)
            leaves.append(entry)
            continue
        if entry.quantity is not None and (since or totals):
            yield Column(
                view=view, series=series, parts=tuple(since), total=entry, everything=tuple(leaves), totals=tuple(totals)
            )
        totals.append(entry)
        since = []


def _closed_lines(view: View, series: Series) -> Iterator[Column]:
    """Yield totals of printed output: each closes the lines or totals under its own heading, unless it names a group."""
    rows = view.table.rows
    within = {child for parent, children in _hierarchy(view) if series.of(parent) is not None for child in children}
    for entry in series.entries:
        if entry.quantity is None or not is_total(entry.key) or group_of(view, entry):
            continue
        near = [other for other in series.entries if rows[other.row].group == rows[entry.row].group and other is not entry]
        near = [other for other in near if other.row not in within]
        leaves = tuple(other for other in near if not is_total(other.key))
        totals = tuple(other for other in near if is_total(other.key))
        if leaves or totals:
            yield Column(view=view, series=series, parts=leaves, total=entry, everything=leaves, totals=totals)


def _sum(entries: Iterable[SeriesEntry]) -> Bounds | None:
    """Add up the intervals of printed parts; None if one of them is not a figure. Empty cells count as zero."""
    total = exactly(0)
    for entry in entries:
        if entry.quantity is None:
            if not entry.cell.empty:
                return None
            continue
        total += entry.quantity.bounds
    return total


def adds_up(column: Column) -> bool | None:
    """Return True if the total equals the sum of its parts, of all parts, or of earlier totals; None if undecidable."""
    claimed = column.total.quantity
    assert claimed is not None
    choices = [column.parts, column.everything, column.totals, (*column.totals, *column.parts)]
    sums = [_sum(choice) for choice in choices if len([entry for entry in choice if entry.quantity]) >= 2]
    known = [each for each in sums if each is not None]
    return any(claimed.bounds.overlaps(each) for each in known) if known else None


def additive(view: View, series: Series) -> bool:
    """Return True for a column whose parts may be added: times, memory, counts; no peaks, percentiles or rates."""
    metric = series.metric
    if metric.kind not in _ADDITIVE or metric.statistic not in _SUMMABLE or not view.by_columns:
        return False
    return not _RUNNING.search(metric.title) and (metric.kind != "memory" or "peak" not in metric.title.lower())


def explained(view: View) -> bool:
    """Return True if the document says why the rows need not add up."""
    table = view.table
    return NOT_ADDITIVE.search(table.context) is not None or any(_MORE.match(row.label) for row in table.rows)


def _hierarchy(view: View) -> list[tuple[int, list[int]]]:
    """Return rows with their child rows below: indented, or named after them (`attn`, `attn / qkv`, `attn.qkv`)."""
    rows = view.table.rows
    families = []
    for number, row in enumerate(rows):
        children = []
        for other, later in enumerate(rows[number + 1 :], number + 1):
            if is_total(later.label) or not _below(row, later, view.table.origin == "lines"):
                break
            children.append(other)
        if len(children) >= 2 and not is_total(row.label):
            families.append((number, children))
    return families


def _below(row: Row, later: Row, lines: bool) -> bool:
    if later.depth > row.depth:
        return True
    if later.depth < row.depth or (lines and later.group != row.group):
        return False
    own, other = row.label.strip().lower(), later.label.strip().lower()
    return bool(own) and other.startswith(own) and re.match(r"\s*(?:/|\.|::|:|>|→|->|_)\s*\w", other[len(own) :]) is not None


def total_sum(study: LintStudy) -> Iterator[Claim]:
    """Compare each total with the sum of the rows it closes."""
    for view in study.views:
        if view.table.origin == "list" or explained(view):
            continue
        for series in view.series:
            if not additive(view, series):
                continue
            for column in _closed(view, series):
                if not _WALL.search(column.total.key) and adds_up(column) is False:
                    yield _missed(study, column)


def _missed(study: LintStudy, column: Column) -> Claim:
    claimed = column.total.quantity
    parts = _sum(next(each for each in (column.parts, column.everything, column.totals) if len(each) >= 2))
    assert claimed is not None and parts is not None
    right, off = parts.middle, claimed.value - parts.middle
    how = "unattributed: say so in a row of its own" if off > 0 else "more than the total"
    if _hierarchy(column.view):
        how += "; a row that is made of others is counted with the rows it is made of, or not at all"
    return Claim(
        place=study.figure_place(column.view, column.series, column.total),
        said=f"{column.total.key}: {claimed.text}",
        corrected=printed(right, claimed, more=0),
        why=f"the rows above add up to {printed(right, claimed)}; {printed(abs(off), claimed)} {how}",
    )


def group_of(view: View, total: SeriesEntry) -> list[SeriesEntry]:
    """Return the rows of the group that a printed total names: `Total Computation` and the rows under `COMPUTATION:`."""
    rows = view.table.rows
    own = set(words(total.key)) - {"total"}
    found = []
    for number, row in enumerate(rows):
        if row.group != rows[total.row].group and own and own == set(words(row.group)):
            found.append(SeriesEntry(key=row.label, cell=row.cells[0], row=number, position=number))
    return found


def group_sums(study: LintStudy) -> Iterator[Claim]:
    """Compare the totals of a printed summary with the groups of rows they name, their shares included."""
    for view in study.views:
        if view.table.origin != "lines" or explained(view):
            continue
        sums = [(total, found) for total in _totals(view) if (found := _group_sum(view, total)) is not None]
        off = [(total, parts) for total, parts in sums if not _quantity(total).bounds.overlaps(parts)]
        leaves = sum((parts.middle for _, parts in sums), Fraction(0))
        for total, parts in off:
            yield _group_claim(study, view, total, parts, leaves if len(sums) > 1 else Fraction(0))


def _quantity(entry: SeriesEntry) -> Quantity:
    assert entry.quantity is not None
    return entry.quantity


def _totals(view: View) -> list[SeriesEntry]:
    values = [series for series in view.series if series.metric.kind == "time"]
    return [entry for series in values for entry in series.entries if entry.quantity is not None and is_total(entry.key)]


def _group_sum(view: View, total: SeriesEntry) -> Bounds | None:
    """Return the sum of the group that a total names, from the column of totals if there is one."""
    rows = {entry.row for entry in group_of(view, total)}
    columns = sorted(
        (series for series in view.series if series.metric.kind == "time"), key=lambda each: each.metric.statistic != "sum"
    )
    for series in columns:
        members = [entry for entry in series.entries if entry.row in rows and entry.quantity is not None]
        if len(members) == len(rows) >= 2:
            return _sum(members)
    return None


def _group_claim(study: LintStudy, view: View, total: SeriesEntry, parts: Bounds, leaves: Fraction) -> Claim:
    claimed = _quantity(total)
    series = next(series for series in view.series if total in series.entries)
    excess = claimed.value - parts.middle
    share = next(
        (
            entry.quantity
            for each in view.of_kind("share", "number", "change")
            for entry in each.entries
            if entry.row == total.row and entry.quantity and entry.quantity.dimension == "percent"
        ),
        None,
    )
    said = f"{total.key}: {claimed.text}" + (f" ({share.text})" if share else "")
    fraction = ""
    if leaves:
        part = float(100 * parts.middle / leaves)
        fraction = f" = {part:.2f} % of {printed(leaves, claimed, more=0)}, the rest {100 - part:.2f} %"
    parent = leaves and excess > 0 and abs(excess - leaves) <= leaves / 50
    why = (
        f"the excess of {printed(excess, claimed, more=0)} is all rows together ({printed(leaves, claimed, more=0)}): "
        "a parent was counted with its children"
        if parent
        else f"{printed(abs(excess), claimed)} {'is attributed to nothing' if excess > 0 else 'is missing'}"
    )
    return Claim(
        place=study.figure_place(view, series, total),
        said=said,
        corrected=f"{printed(parts.middle, claimed, more=0)}{fraction}",
        why=f"the rows under that heading add up to {printed(parts.middle, claimed, more=0)}; {why}",
    )


RULES: Final = (
    Rule(
        id="total-sum",
        meaning="A total is the sum of its rows; what it holds beyond them has a row of its own.",
        check=total_sum,
    ),
    Rule(id="group-sum", meaning="A total in printed output is the sum of the group of lines it names.", check=group_sums),
)
