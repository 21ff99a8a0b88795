"""Columns of tables with their cells: each column is described once by its head, its value in a row, and its total."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, get_args

from strobe.perf.table.model import Cell, Column, Count, ExactTime, Missing, Row, Share, Table, Text, Time

T = TypeVar("T")
S = TypeVar("S")
Unit = Literal["", "ns", "µs", "ms", "s"]
Reason: TypeAlias = str | Callable[[T], str]
Total: TypeAlias = Callable[[Iterable[Any]], Any] | None
_CELLS: Final = get_args(Cell)


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """One column of a table whose rows are `T`.

    Args:
        head: printed above it.
        get: value in a row; a cell is shown as it is, None is missing.
        show: cell of a value, such as `Count` or `ExactTime`.
        unit: of times, printed in the head.
        numeric: read as numbers; a column with a unit is.
        hint: explains the head.
        total: what the values of several rows come to, such as `sum`; None: nothing is shown for several rows.
        missing: reason where the value is None, or what tells it of a row.
    """

    head: str
    get: Callable[[T], Any]
    show: Callable[[Any], Cell] = Text
    unit: Unit = ""
    numeric: bool = False
    hint: str = ""
    total: Total = None
    missing: Reason[T] = ""

    @property
    def column(self) -> Column:
        return Column(self.head, self.unit, self.numeric or bool(self.unit), self.hint)

    def cell(self, row: T) -> Cell:
        value = self.get(row)
        if value is None:
            return Missing(self.missing if isinstance(self.missing, str) else self.missing(row), "-")
        return self._shown(value)

    def total_cell(self, rows: Sequence[T]) -> Cell:
        """Return the column's cell in the row of totals; empty if the column has no total."""
        if self.total is None:
            return Text("")
        known = [value for row in rows if not isinstance(value := self.get(row), (*_CELLS, type(None)))]
        if not known:
            return Missing(self.missing if isinstance(self.missing, str) else "", "-")
        return self._shown(self.total(known))

    def of(self, get: Callable[[S], Any], missing: Reason[S] = "") -> Field[S]:
        """Return the same column for rows of another kind.

        Args:
            get: our row in one of theirs, or the cell that stands in its place.
            missing: reason where it is None.
        """

        def value(row: S) -> Any:
            own = get(row)
            return own if own is None or isinstance(own, _CELLS) else self.get(own)

        def why(row: S) -> str:
            own = get(row)
            reason: Any = missing if own is None else self.missing
            return str(reason(row if own is None else own) if callable(reason) else reason)

        return Field(self.head, value, self.show, self.unit, self.numeric, self.hint, self.total, why)

    def _shown(self, value: Any) -> Cell:
        cell: Cell = value if isinstance(value, _CELLS) else self.show(value)
        return cell


def count(head: str, get: Callable[[T], Any], hint: str = "", *, total: Total = None, missing: Reason[T] = "") -> Field[T]:
    """Return a column of integers."""
    return Field(head, get, Count, numeric=True, hint=hint, total=total, missing=missing)


def exact_time(head: str, get: Callable[[T], Any], hint: str = "", *, total: Total = None, missing: Reason[T] = "") -> Field[T]:
    """Return a column of integer nanoseconds, printed in ms with all digits."""
    return Field(head, get, ExactTime, "ms", hint=hint, total=total, missing=missing)


def numeric(
    head: str,
    get: Callable[[T], Any],
    hint: str = "",
    *,
    show: Callable[[Any], Cell] = Text,
    total: Total = None,
    missing: Reason[T] = "",
) -> Field[T]:
    """Return a column of numbers: cells as `get` returns them, or values that `show` (such as `share_of(whole)`) prints."""
    return Field(head, get, show, numeric=True, hint=hint, total=total, missing=missing)


def time(
    head: str, get: Callable[[T], Any], unit: Unit = "ms", hint: str = "", *, total: Total = None, missing: Reason[T] = ""
) -> Field[T]:
    """Return a column of nanoseconds, printed in the unit with four significant digits."""
    return Field(head, get, Time, unit, hint=hint, total=total, missing=missing)


def both_sides(
    names: tuple[str, str],
    both: Callable[[T], tuple[int | Fraction, int | Fraction]],
    hint: str = "",
    *,
    show: Callable[[int | Fraction], Cell] = lambda ns: exact_cell(ns),
) -> tuple[Field[T], ...]:
    """Return the columns of the times of two sides and of what the second saves, in ms, to the nanosecond."""
    return (
        Field(names[0], lambda row: both(row)[0], show, "ms", hint=hint, total=sum),
        Field(names[1], lambda row: both(row)[1], show, "ms", hint=hint, total=sum),
        Field("saved", lambda row: both(row)[0] - both(row)[1], show, "ms", total=sum),
    )


def beside(
    head: str, labels: Iterable[str], unit: Unit = "", *, numeric: bool = False, show: Callable[[Any], Cell] = Text
) -> tuple[Field[Sequence[Any]], ...]:
    """Return the columns of rows that are a name and one value for each label."""

    def value(at: int) -> Callable[[Sequence[Any]], Any]:
        return lambda row: row[at]

    columns = (Field(label, value(at), show, unit, numeric) for at, label in enumerate(labels, start=1))
    return (Field(head, value(0)), *columns)


def heads(fields: Iterable[Field[T]]) -> tuple[Column, ...]:
    """Return the heads of the columns."""
    return tuple(field.column for field in fields)


def rows_of(
    fields: Sequence[Field[T]],
    rows: Sequence[T],
    *,
    top: int | None = None,
    left: str = "rows",
    totals: Iterable[tuple[str, Sequence[T]]] = (),
    words_in: int = 0,
    strong: Callable[[T], bool] = lambda row: False,
    strong_rest: bool = True,
) -> tuple[Row, ...]:
    """Build the rows of a table.

    Args:
        top: rows that are shown; the others are one row together.
        left: what the others are called: `12 more rows`.
        totals: further rows of several together, each with its words.
        words_in: column that the words of several rows stand in.
        strong: whether a row is a total, an average or the chosen one.
        strong_rest: the row of the others is strong too.
    """
    shown = [Row(tuple(field.cell(row) for field in fields), strong(row)) for row in rows[:top]]
    rest = () if top is None else rows[top:]
    others = ((f"{len(rest)} more {left}".rstrip(), rest, strong_rest), *((*each, True) for each in totals))
    for words, several, is_strong in others:
        if several:
            cells = [field.total_cell(several) for field in fields]
            cells[words_in] = Text(words)
            shown.append(Row(tuple(cells), is_strong))
    return tuple(shown)


def table_of(
    caption: str,
    fields: Sequence[Field[T]],
    rows: Sequence[T],
    *,
    top: int | None = None,
    strong: Callable[[T], bool] = lambda row: False,
    notes: Iterable[str] = (),
    sortable: bool = False,
    collapsed: bool = False,
) -> Table:
    """Build a table of rows; `rows_of` describes `top` and `strong`."""
    shown = rows_of(fields, rows, top=top, strong=strong)
    return Table(caption, heads(fields), shown, tuple(notes), sortable=sortable, collapsed=collapsed)


def left_out(rows: Sequence[object], top: int, what: str = "rows are left out") -> tuple[str, ...]:
    """Return the note that a table shows the first `top` rows alone; empty if it shows all."""
    return (f"{len(rows) - top} more {what}.",) if len(rows) > top else ()


def padded(width: int, *cells: Cell, strong: bool = False) -> Row:
    """Return a row of the cells, filled with empty cells up to the width of the table."""
    return Row((*cells, *(Text(""),) * (width - len(cells))), strong=strong)


def exact_cell(ns: float | Fraction) -> Cell:
    """Return the cell of a time to the nearest nanosecond."""
    return ExactTime(round(ns))


def share_cell(part: float | Fraction, whole: float | Fraction, reason: str = "") -> Cell:
    """Return the cell of a part's share of a whole; missing, for the given reason, if the whole is zero."""
    return Share(float(part / whole)) if whole else Missing(reason, "-")


def share_of(whole: float | Fraction, reason: str = "") -> Callable[[float | Fraction], Cell]:
    """Return the function that turns a part into its share of the whole, for a `Field`."""
    return lambda part: share_cell(part, whole, reason)


def count_cell(value: int) -> Cell:
    """Return the cell of a count that should be 0: marked bad if it is not, missing if it is."""
    return Text(str(value), "bad") if value else Missing("", "-")
