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
MOST_ROWS: Final = 3
MOST_PARTS: Final = 2


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
    since: list[SeriesEntry] = []
    leaves: list[SeriesEntry] = []
    totals: list[SeriesEntry] = []
    entries = list(series.entries)
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
    for entry in series.entries:
        if entry.quantity is None or not is_total(entry.key) or group_of(view, entry):
            continue
        near = [other for other in series.entries if rows[other.row].group == rows[entry.row].group and other is not entry]
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
                if _WALL.search(column.total.key) or adds_up(column) is not False:
                    continue
                if _counted_twice(view, column) is None:
                    yield _missed(study, column)


def _missed(study: LintStudy, column: Column) -> Claim:
    claimed = column.total.quantity
    parts = _sum(next(each for each in (column.parts, column.everything, column.totals) if len(each) >= 2))
    assert claimed is not None and parts is not None
    right, off = parts.middle, claimed.value - parts.middle
    how = "unattributed: say so in a row of its own" if off > 0 else "more than the total"
    return Claim(
        place=study.figure_place(column.view, column.series, column.total),
        said=f"{column.total.key}: {claimed.text}",
        corrected=printed(right, claimed, more=0),
        why=f"the rows above add up to {printed(right, claimed)}; {printed(abs(off), claimed)} {how}",
    )


def _counted_twice(view: View, column: Column) -> tuple[SeriesEntry, list[SeriesEntry]] | None:
    """Return the first parent row whose children are counted in the total as well, with them; None if there is none."""
    by_row = {entry.row: entry for entry in column.everything}
    for parent, children in _hierarchy(view):
        if parent in by_row and all(child in by_row for child in children):
            return by_row[parent], [by_row[child] for child in children]
    return None


def children_with_parent(study: LintStudy) -> Iterator[Claim]:
    """Find totals that count a row together with the rows that are its parts."""
    for view in study.views:
        if view.table.origin == "list":
            continue
        for series in view.series:
            if not additive(view, series) and series.metric.kind != "share":
                continue
            for column in _closed(view, series):
                yield from _double(study, column)


def _double(study: LintStudy, column: Column) -> Iterator[Claim]:
    claimed = column.total.quantity
    families = _hierarchy(column.view)
    below = {child for _, children in families for child in children}
    everything = _sum(column.everything)
    top = _sum(entry for entry in column.everything if entry.row not in below)
    if claimed is None or not families or everything is None or top is None:
        return
    if claimed.bounds.overlaps(top):
        return
    parents = [column.view.table.rows[parent].label for parent, _ in families]
    twice = claimed.bounds.overlaps(everything)
    yield Claim(
        place=study.figure_place(column.view, column.series, column.total),
        said=f"{column.total.key}: {claimed.text}",
        corrected=printed(top.middle, claimed, more=0),
        why=(
            f"{', '.join(parents)}: counted together with the rows it is made of"
            if twice
            else f"the rows on the upper level add up to {printed(top.middle, claimed)}"
        ),
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


def percentile_sum(study: LintStudy) -> Iterator[Claim]:
    """Find totals of percentiles or maxima computed as the sum of the parts' values."""
    for view in study.views:
        for series in view.of_kind("time"):
            if series.metric.statistic in _SUMMABLE or series.metric.statistic == "spread" or not view.by_columns:
                continue
            for column in _closed(view, series):
                figures = [entry.quantity for entry in column.parts if entry.quantity is not None]
                if len(figures) >= MOST_ROWS and adds_up(column):
                    claimed, statistic = _quantity(column.total), series.metric.statistic
                    yield Claim(
                        place=study.figure_place(view, series, column.total),
                        said=f"{column.total.key}: {claimed.text} in {series.metric.title}",
                        corrected=f"the {statistic} of the whole, measured; {claimed.text} if all parts are slow at once",
                        why=f"it is the sum of the {statistic} of {len(figures)} rows, which need not fall into the same sample",
                    )


def row_sum(study: LintStudy) -> Iterator[Claim]:
    """Find rows whose total column differs from the sum of the columns before it, where most rows agree."""
    for view in study.views:
        if not view.by_columns or view.table.origin == "lines" or explained(view):
            continue
        for total in view.of_kind("time", "memory"):
            if not is_total(total.metric.title):
                continue
            parts = [
                series for series in view.of_kind(total.metric.kind) if series.index < total.index and not series.metric.statistic
            ]
            yield from _other_rows(study, view, total, parts)


def _other_rows(study: LintStudy, view: View, total: Series, parts: list[Series]) -> Iterator[Claim]:
    sums: list[tuple[SeriesEntry, Quantity, Bounds]] = []
    for entry, said in total.figures:
        own = [quantity for series in parts if (quantity := series.of(entry.position)) is not None]
        if len(own) == len(parts) >= MOST_PARTS and said.plain and all(each.dimension == said.dimension for each in own):
            sums.append((entry, said, sum((each.bounds for each in own), exactly(0))))
    wrong = [each for each in sums if not each[1].bounds.overlaps(each[2])]
    if len(sums) >= MOST_ROWS and 3 * len(wrong) <= len(sums):
        for entry, said, whole in wrong:
            yield Claim(
                place=study.figure_place(view, total, entry),
                said=f"{entry.key}: {said.text}",
                corrected=printed(whole.middle, said, more=0),
                why=f"{len(sums) - len(wrong)} of {len(sums)} rows add up {', '.join(each.metric.title for each in parts)}",
            )


RULES: Final = (
    Rule(
        id="total-sum",
        meaning="A total is the sum of its rows; what it holds beyond them has a row of its own.",
        check=total_sum,
    ),
    Rule(
        id="row-sum",
        meaning="A total column that is the sum of the columns before it in most rows is so in every row.",
        check=row_sum,
    ),
    Rule(id="group-sum", meaning="A total in printed output is the sum of the group of lines it names.", check=group_sums),
    Rule(
        id="children-with-parent",
        meaning="A total counts a row or the rows it is made of, never both.",
        check=children_with_parent,
    ),
    Rule(
        id="percentile-sum",
        meaning="Percentiles and maxima of parts do not add up to that of the whole.",
        severity="warning",
        check=percentile_sum,
    ),
)
