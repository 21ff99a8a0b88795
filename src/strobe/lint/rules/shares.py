"""Rules for percentages of a whole, and for other columns that follow from their neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from strobe.lint.finding import Claim, Rule
from strobe.lint.names import is_total
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


RULES: Final = (
    Rule(id="share-sum", meaning="Shares of one whole add up to 100 %.", check=share_sum),
    Rule(id="share-of-total", meaning="A share is the figure of its row over that of all rows.", check=share_of_total),
)
