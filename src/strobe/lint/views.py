"""Tables as series of figures of one metric, whether the metrics are the columns or the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from strobe.lint.document import Row, Table, TableCell
from strobe.lint.names import Metric, is_metric, metric_of
from strobe.lint.quantity import Quantity, Unit

_REST: Final = ("note", "notes", "comment", "comments", "remark", "remarks", "description")


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesEntry:
    """One figure of a series: the name of its configuration or part, and its cell.

    Args:
        row: its row in the table.
        position: number of the configuration or part; entries of two series with the same number belong together.
    """

    key: str
    cell: TableCell
    row: int
    position: int

    @property
    def quantity(self) -> Quantity | None:
        """The figure in the cell; None if the cell holds none."""
        return self.cell.quantity


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Figures of one metric. `index` is its column, or its row where metrics are rows."""

    metric: Metric
    index: int
    entries: tuple[SeriesEntry, ...]

    @property
    def figures(self) -> tuple[tuple[SeriesEntry, Quantity], ...]:
        """Entries whose cell holds a figure."""
        return tuple((entry, entry.quantity) for entry in self.entries if entry.quantity is not None)

    def of(self, position: int) -> Quantity | None:
        """Return the figure of the configuration or part at a position."""
        return next((entry.quantity for entry in self.entries if entry.position == position), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A table as series.

    Args:
        by_columns: metrics are the columns, and each row is a configuration or part.
        keys: configurations or parts, in order.
        derived: columns that are computed from others (`Change`, `Speedup`), if metrics are rows: figures by the row's index.
    """

    table: Table
    by_columns: bool
    series: tuple[Series, ...]
    keys: tuple[str, ...]
    derived: tuple[Series, ...] = ()

    def where(self, series: Series, entry: SeriesEntry) -> tuple[str, str]:
        """Return the printed row and column of a figure."""
        return (entry.key, series.metric.title) if self.by_columns else (series.metric.title, entry.key)

    def of_kind(self, *kinds: str) -> list[Series]:
        """Return the series of the given kinds of metric."""
        return [series for series in self.series if series.metric.kind in kinds]


def view_of(table: Table) -> View:
    """Decide whether columns or rows are the metrics, and read the table as series."""
    return _by_columns(table) if _metrics_are_columns(table) else _by_rows(table)


def _metrics_are_columns(table: Table) -> bool:
    if table.origin == "lines":
        return True
    heads, labels = table.header[1:], [row.label for row in table.rows]
    column_units = [
        _common_unit([row.cells[index] for row in table.rows if index < len(row.cells)]) for index in range(1, len(table.header))
    ]
    mixed = sum(unit == "mixed" for unit in column_units)
    named = sum(is_metric(head) for head in heads) / max(1, len(heads))
    rows_named = sum(is_metric(label) for label in labels) / max(1, len(labels))
    if table.origin == "list":
        return rows_named <= 0.5
    if mixed or rows_named > 0.5:
        return named >= rows_named and not mixed
    return True


def _common_unit(cells: Sequence[TableCell]) -> str:
    found = {cell.quantity.dimension for cell in cells if cell.quantity is not None}
    return "mixed" if len(found) > 1 else "".join(found)


def row_name(table: Table, row: Row) -> str:
    """Return a row's label: its leading cells up to the first figure."""
    parts: list[str] = []
    for cell, title in zip(row.cells, table.header, strict=False):
        if cell.quantity is not None and parts:
            break
        if not cell.text.strip():
            continue
        parts.append(cell.text)
        if cell.quantity is not None or title.lower() in _REST:
            break
        if _label_columns(table) <= len(parts):
            break
    return " / ".join(parts)


def _label_columns(table: Table) -> int:
    """Count the leading columns of labels: those before the first that has a figure in most rows."""
    count = 0
    for index, title in enumerate(table.header):
        figures = sum(index < len(row.cells) and row.cells[index].quantity is not None for row in table.rows)
        if index and (2 * figures >= max(1, len(table.rows)) or title.lower() in _REST):
            break
        count += 1
    return count if count < len(table.header) else 1


def _unit(cells: Sequence[TableCell]) -> Unit | None:
    units = Counter(cell.quantity.unit for cell in cells if cell.quantity is not None and cell.quantity.unit is not None)
    return units.most_common(1)[0][0] if units else None


def _by_columns(table: Table) -> View:
    names = [row_name(table, row) for row in table.rows]
    first = max(1, _label_columns(table)) if table.origin == "table" else 1
    series = []
    for index in range(first, len(table.header)):
        entries = tuple(
            SeriesEntry(key=name, cell=row.cells[index], row=number, position=number)
            for number, (name, row) in enumerate(zip(names, table.rows, strict=True))
            if index < len(row.cells)
        )
        if _about_figures(table.header[index], entries):
            metric = metric_of(table.header[index], _unit([entry.cell for entry in entries]))
            series.append(Series(metric=metric, index=index, entries=entries))
    return View(table=table, by_columns=True, series=tuple(series), keys=tuple(names))


def _about_figures(title: str, entries: Sequence[SeriesEntry]) -> bool:
    figures = sum(entry.quantity is not None for entry in entries)
    return figures > 0 and title.lower() not in _REST and 2 * figures >= sum(not entry.cell.empty for entry in entries) - 1


def _by_rows(table: Table) -> View:
    columns = [title for title in table.header[1:] if title.lower() not in _REST]
    cells = {
        title: [(row, cell) for row in table.rows for head, cell in zip(table.header, row.cells, strict=False) if head == title]
        for title in columns
    }
    change = [title for title in columns if metric_of(title, _unit([cell for _, cell in cells[title]])).kind == "change"]
    series = []
    for number, row in enumerate(table.rows):
        entries = tuple(
            SeriesEntry(key=title, cell=cell, row=number, position=position)
            for position, (title, cell) in list(enumerate(zip(table.header, row.cells, strict=False)))[1:]
            if title in columns and title not in change
        )
        if _about_figures(row.label, entries):
            metric = metric_of(row.label, _unit([entry.cell for entry in entries]))
            series.append(Series(metric=metric, index=number, entries=entries))
    derived = tuple(
        Series(
            metric=metric_of(title, _unit([cell for _, cell in cells[title]])),
            index=number,
            entries=tuple(
                SeriesEntry(key=row.label, cell=cell, row=at, position=at) for at, (row, cell) in enumerate(cells[title])
            ),
        )
        for number, title in enumerate(table.header)
        if title in change
    )
    keys = tuple(title for title in columns if title not in change)
    return View(table=table, by_columns=False, series=tuple(series), keys=keys, derived=derived)
