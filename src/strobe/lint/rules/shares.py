"""Rules for percentages of a whole, and for other columns that follow from their neighbours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from strobe.lint.finding import Claim, Rule
from strobe.lint.names import is_total, listed, words
from strobe.lint.quantity import Bounds, Quantity, exactly, printed
from strobe.lint.rules.sums import HUNDRED, additive, explained
from strobe.lint.study import LintStudy
from strobe.lint.views import Series, SeriesEntry, View

ROUNDED: Final = Fraction(1, 2)
"""Tolerance of a share beyond its printed digits, percentage points."""
COMPLETE: Final = Fraction(1, 20)
"""Relative difference of the rows' sum from the implied total up to which the list is complete."""
MANY: Final = 5
"""Fewest rows of an incomplete list that must agree on a total."""
NEAR: Final = Fraction(12)
"""Distance of the sum from 100 %, in points, up to which shares are taken for shares of one whole."""


def _rows(series: Series) -> list[tuple[SeriesEntry, Quantity]]:
    return [(entry, figure) for entry, figure in series.figures if not is_total(entry.key)]


def share_sum(study: LintStudy) -> Iterator[Claim]:
    """Add up the columns of shares that have a total of 100 %, or are near enough to be meant so."""
    for view in study.views:
        nested = view.table.origin == "table" and any(row.depth for row in view.table.rows)
        if not view.by_columns or view.table.origin == "list" or nested or explained(view):
            continue
        for series in view.of_kind("share"):
            rows = _rows(series)
            if len(rows) >= 2 and all(figure.plain for _, figure in rows) and not _of_other(view, series):
                yield from _hundred(study, view, series, rows)


def _hundred(study: LintStudy, view: View, series: Series, rows: Sequence[tuple[SeriesEntry, Quantity]]) -> Iterator[Claim]:
    """Yield shares whose sum is not their stated total, or is somewhat more than 100 %."""
    total = next(((entry, figure) for entry, figure in series.figures if is_total(entry.key)), None)
    added = sum((figure.bounds for _, figure in rows), exactly(0))
    whole = total[1].bounds if total else exactly(HUNDRED)
    meant = total is not None or added.low > HUNDRED
    if meant and not added.overlaps(whole) and abs(added.middle - whole.middle) <= NEAR:
        yield Claim(
            place=study.figure_place(view, series, total[0] if total else rows[-1][0]),
            said=f"{series.metric.title}: {total[1].text if total else f'{len(rows)} rows of one whole'}",
            corrected=printed(added.middle, rows[0][1], more=0),
            why=_sum_text(rows, added),
        )


def _sum_text(rows: Sequence[tuple[SeriesEntry, Quantity]], added: Bounds) -> str:
    shown = [figure.text for _, figure in rows[:8]] + (["..."] if len(rows) > 8 else [])
    return f"{' + '.join(shown)} = {float(added.middle):.1f}%, not 100%"


def _of_other(view: View, series: Series) -> bool:
    """Return True if single shares contradict the figures beside them: those are reported instead."""
    return any(_off(view, series, values) for values in view.series if additive(view, values))


def share_of_total(study: LintStudy) -> Iterator[Claim]:
    """Compare every share with part / total of the figures beside it."""
    for view in study.views:
        for series in view.of_kind("share") if view.by_columns else ():
            columns = [values for values in view.series if additive(view, values) and _whole(series, values) is not None]
            found = [_off(view, series, values) for values in columns]
            if not found or [] in found or _of_the_row(view, series):
                continue
            for entry, said, right in found[0] or []:
                yield Claim(
                    place=study.figure_place(view, series, entry),
                    said=f"{entry.key}: {said.text}",
                    corrected=printed(right.middle, said, more=0),
                    why=f"{columns[0].metric.title} of this row over that of all rows is {printed(right.middle, said)}",
                )


def _of_the_row(view: View, shares: Series) -> bool:
    """Return True if each share is the ratio of two figures of its own row, such as busy of length."""
    columns = view.of_kind("time", "memory", "count", "work")
    return any(one is not two and _quotient(shares, one, two) for one in columns for two in columns)


def _quotient(shares: Series, one: Series, two: Series) -> bool:
    rows = [(figure, one.of(entry.position), two.of(entry.position)) for entry, figure in _rows(shares)]
    known = [(figure, a, b) for figure, a, b in rows if a is not None and b is not None and b.bounds.low > 0]
    return len(known) >= 2 and all(figure.bounds.overlaps(a.bounds / b.bounds * exactly(HUNDRED)) for figure, a, b in known)


def _whole(shares: Series, values: Series) -> Bounds | None:
    """Return the total that most rows imply by value / share, if it is the column's sum or many rows imply it."""
    pairs = [
        (figure, value)
        for entry, figure in _rows(shares)
        if (value := values.of(entry.position)) is not None and figure.bounds.low > 0 and figure.plain
    ]
    if len(pairs) < 3:
        return None
    implied = [value.bounds / figure.bounds * exactly(HUNDRED) for figure, value in pairs]
    groups = [[other for other in implied if other.overlaps(each)] for each in implied]
    common = [(len(group), max(other.low for other in group), min(other.high for other in group)) for group in groups]
    agreed, low, high = max(
        ((count, low, high) for count, low, high in common if low <= high), default=(0, Fraction(0), Fraction(0))
    )
    added = sum((value.value for _, value in pairs), Fraction(0))
    complete = low - added * COMPLETE <= added <= high + added * COMPLETE
    enough = 5 * agreed >= 3 * len(pairs) and (complete or (agreed >= MANY and 5 * agreed >= 4 * len(pairs)))
    return Bounds(low, high) if enough else None


def _off(view: View, shares: Series, values: Series) -> list[tuple[SeriesEntry, Quantity, Bounds]] | None:
    """Return the rows whose share is not value / total; None if the column holds no shares of these values."""
    whole = _whole(shares, values)
    if whole is None:
        return None
    found = []
    for entry, figure in _rows(shares):
        value = values.of(entry.position)
        if value is None or not figure.plain or not value.plain:
            continue
        right = value.bounds / whole * exactly(HUNDRED)
        if not figure.bounds.overlaps(right) and abs(figure.value - right.middle) > max(ROUNDED, right.width):
            found.append((entry, figure, right))
    return found


def calls_times_mean(study: LintStudy) -> Iterator[Claim]:
    """Compare calls x mean with the sum beside them."""
    for view in study.views:
        if not view.by_columns:
            continue
        counts = [series for series in view.of_kind("count") if _counts_calls(series)]
        means = [series for series in view.of_kind("time") if series.metric.statistic == "mean"]
        sums = [series for series in view.of_kind("time") if series.metric.statistic == "sum"]
        if len(counts) == len(means) == len(sums) == 1:
            yield from _products(study, view, (counts[0], means[0], sums[0]))


def _counts_calls(series: Series) -> bool:
    return bool(
        re.search(
            r"(?i)\b(?:calls?|counts?|n|num|launches|instances|occurrences?|samples?|iterations?|iters?|runs?)\b|#",
            series.metric.title,
        )
    )


def _products(study: LintStudy, view: View, columns: tuple[Series, Series, Series]) -> Iterator[Claim]:
    counts, means, sums = columns
    rows = [
        (entry, total, count, mean)
        for entry, total in sums.figures
        if (count := counts.of(entry.position))
        and (mean := means.of(entry.position))
        and total.plain
        and mean.plain
        and not is_total(entry.key)
    ]
    off = [row for row in rows if not row[1].bounds.overlaps(row[2].bounds * row[3].bounds)]
    if 5 * len(off) > 2 * len(rows):  # then the sum is of something else
        return
    for entry, total, count, mean in off:
        right = count.value * mean.value
        yield Claim(
            place=study.figure_place(view, sums, entry),
            said=f"{entry.key}: {total.text}",
            corrected=printed(right, total, more=0),
            why=f"{count.text} x {mean.text} = {printed(right, total)}",
        )


def detail_total(study: LintStudy) -> Iterator[Claim]:
    """Compare a row of a budget with the table that breaks it down, matched by label and heading."""
    for budget in study.views:
        times = [series for series in budget.of_kind("time") if additive(budget, series)]
        if not times or not any(is_total(name) for name in budget.keys):
            continue
        for entry, figure in times[0].figures:
            details = [
                view for view in study.views if view is not budget and not is_total(entry.key) and _details(view, entry.key)
            ]
            for detail in details:
                yield from _compare(study, (budget, times[0], entry, figure), detail)


_GENERIC: Final = listed(
    "detail breakdown kernel operation op layer timing profile summary component block step table result measurement"
)


def _details(view: View, label: str) -> bool:
    """Return True if a heading repeats the label's words and adds only words like `details` or `operation`."""
    own, title = words(label), words(view.table.caption or view.table.section.title)
    telling = [word for word in own if word not in _GENERIC]
    extra = [
        word for word in title if word not in own and not any(word.startswith(other) or other.startswith(word) for other in own)
    ]
    said = all(any(word == other or (len(word) > 1 and other.startswith(word)) for other in title) for word in telling)
    return bool(telling) and said and all(word in _GENERIC for word in extra) and view.by_columns and view.table.origin == "table"


def _compare(study: LintStudy, claim: tuple[View, Series, SeriesEntry, Quantity], detail: View) -> Iterator[Claim]:
    budget, series, entry, figure = claim
    columns = [each for each in detail.of_kind("time") if additive(detail, each)]
    if (
        len(columns) != 1
        or explained(detail)
        or re.search(r"(?i)\bper (?:call|layer|block|token|head|launch)\b", detail.table.context)
    ):
        return
    rows = _rows(columns[0])
    if len(rows) < 2 or any(not each.plain for _, each in rows):
        return
    added = sum((each.bounds for _, each in rows), exactly(0))
    outliers = [each for _, each in rows if each.value > figure.bounds.high]
    rest = added - sum((each.bounds for each in outliers), exactly(0))
    if figure.bounds.overlaps(added) or figure.bounds.overlaps(rest):
        return
    right = rest if outliers and len(outliers) < len(rows) else added
    if abs(right.middle - figure.value) <= figure.value / 50:
        return
    without = f" without {', '.join(row.key for row, each in rows if each in outliers)}" if outliers and right is rest else ""
    yield Claim(
        place=study.figure_place(budget, series, entry),
        said=f"{entry.key}: {figure.text}",
        corrected=printed(right.middle, figure),
        why=f"'{detail.table.name}' (line {detail.table.line}) adds up to {printed(right.middle, figure)}{without}",
        also=(study.document.place(detail.table.line, detail.table),),
    )


RULES: Final = (
    Rule(id="share-sum", meaning="Shares of one whole add up to 100 %.", check=share_sum),
    Rule(id="share-of-total", meaning="A share is the figure of its row over that of all rows.", check=share_of_total),
    Rule(id="calls-times-mean", meaning="Calls x mean is the sum.", check=calls_times_mean),
    Rule(id="detail-total", meaning="A row of a budget equals the total of the table that breaks it down.", check=detail_total),
)
