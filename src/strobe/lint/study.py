"""What rules ask: a document with its tables read by metric, what was measured, and the finding that a rule makes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from strobe.core.costs import DEVICES, TRANSFORMERS, DevicePeaks, TransformerShape
from strobe.core.errors import ConfigError, unknown_choice
from strobe.lint.document import Document, DocumentSection, Place, Row, Table, TableCell
from strobe.lint.quantity import Metric, Quantity, Unit, is_metric, key, metric_of

_MAKERS: Final = frozenset({"nvidia", "amd", "geforce", "instinct", "gpu", "tesla", "rtx"})


def _words(text: str) -> tuple[str, ...]:
    spaced = re.sub(r"(?<=\d)\s(?=GB\b)", "", re.sub(r"[-_/(),:;|!?]|\.(?!\d)", " ", text))
    found = (re.sub(r"^sxm\d$", "sxm", word.lower()) for word in spaced.split())
    return tuple(word for word in found if word not in _MAKERS)


_NAMES: Final = tuple((device, _words(device.name)) for device in DEVICES)
FAMILIES: Final = tuple(dict.fromkeys(words[0] for _, words in _NAMES))
"""First words of the names of known devices, e.g. `h100`."""


def device_named(text: str) -> DevicePeaks | None:
    """Return the device that a text names (`NVIDIA H100 80GB HBM3`, `h100`); None if it names none or several families."""
    pool = _words(text)
    families = {family for family in FAMILIES if family in pool}
    if len(families) != 1:
        return None
    family = families.pop()
    siblings = [(sum(word in pool for word in words), device) for device, words in _NAMES if words[0] == family]
    best = max(score for score, _ in siblings)
    return max((device for score, device in siblings if score == best), key=_speed)


def _speed(device: DevicePeaks) -> tuple[int, int]:
    return max(device.flops_per_s.values()), device.bandwidth_bytes_per_s


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


_BASES: Final = re.compile(
    r"(?i)\b(?:traced|timed|per (?:call|step|clip|block|layer|frame|token|pass|gpu|rank)|one call|warm|cold|"
    r"sum of|exclusive|inclusive|compiled|eager)\b"
)
_VALUE_KEYS: Final = frozenset({"value", "", "result", "measured", "measurement"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Facts about a measurement that the document itself does not state.

    Args:
        model: the transformer whose time is claimed.
        tokens_per_frame: tokens of one latent frame.
        window: latent frames attended in self-attention, those computed included.
        device: the GPU that ran.
    """

    model: TransformerShape | None = None
    tokens_per_frame: int | None = None
    window: int | None = None
    device: DevicePeaks | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure of a table: its configuration, metric and place."""

    view: View
    series: Series
    entry: SeriesEntry
    quantity: Quantity
    config: str
    metric: str
    place: Place


@dataclass(frozen=True, kw_only=True)
class LintStudy:
    """A document and the options that go with it."""

    document: Document
    options: Options

    @cached_property
    def views(self) -> tuple[View, ...]:
        """Tables as series of figures by metric."""
        return tuple(view_of(table) for table in self.document.tables)

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """All figures of all tables, in order."""
        return tuple(figure for view in self.views for figure in self._figures_of(view))

    @cached_property
    def configs(self) -> tuple[str, ...]:
        """Names of configurations as printed: rows or columns of tables that compare some, longest first."""
        names: dict[str, str] = {}
        for view in self.views:
            kinds = {series.metric.kind for series in view.series}
            if view.table.origin == "table" and ({"rate", "quality", "memory"} & kinds or not view.by_columns):
                for name in view.keys:
                    if name.lower() not in _VALUE_KEYS and not re.match(r"[\d.]+\b", name):
                        names.setdefault(key(name), name)
        return tuple(sorted(names.values(), key=len, reverse=True))

    def named(self, text: str) -> list[str]:
        """Return the configurations named in a text; a name inside a longer one that is named does not count."""
        rest, found = text, []
        for name in self.configs:
            pattern = rf"(?<![\w-]){re.escape(name)}(?![\w-])"
            if re.search(pattern, rest):
                found.append(name)
                rest = re.sub(pattern, " ", rest)
        return found

    def config_of(self, section: DocumentSection) -> str:
        """Return the one configuration that the nearest heading names, or empty."""
        for title in reversed(section.titles):
            found = self.named(title)
            if found:
                return found[0] if len(found) == 1 else ""
            lower = [name for name in self.configs if re.search(rf"(?i)(?<![\w-]){re.escape(name)}(?![\w-])", title)]
            if lower:
                return lower[0]
        return ""

    def _figures_of(self, view: View) -> Iterator[Figure]:
        basis = " ".join(sorted({found.lower() for found in _BASES.findall(view.table.caption)}))
        owner = self.config_of(view.table.section) if not view.by_columns else ""
        for series in view.series:
            for entry, quantity in series.figures:
                config = entry.key
                if config.lower() in _VALUE_KEYS:
                    config = owner
                row, column = view.where(series, entry)
                yield Figure(
                    view=view,
                    series=series,
                    entry=entry,
                    quantity=quantity,
                    config=key(config),
                    metric=f"{key(series.metric.title)} {basis}".strip(),
                    place=self.document.place(entry.cell.line, view.table, row, column),
                )

    def figure_place(self, view: View, series: Series, entry: SeriesEntry) -> Place:
        """Return the place of one figure."""
        row, column = view.where(series, entry)
        return self.document.place(entry.cell.line, view.table, row, column)


Severity = Literal["error", "warning"]


def options_of(*, model: str | None, size: tuple[int, int] | None, window: int | None, device: str | None) -> Options:
    """Validate the user's statements and derive tokens from them.

    Raises:
        ConfigError: an unknown model or device, a size or a window without a model, or a window that is not positive.
        ShapeError: a size that is not a multiple of the model's stride and patch.
    """
    if window is not None and window <= 0:
        raise ConfigError(f"--window {window}: give a positive number")
    if model is None and (window is not None or size is not None):
        raise ConfigError(f"--size and --window say nothing without --model; known: {', '.join(TRANSFORMERS)}")
    if model is not None and model not in TRANSFORMERS:
        raise unknown_choice("model", model, TRANSFORMERS)
    ran = None if device is None else device_named(device)
    if device is not None and ran is None:
        raise unknown_choice("device", device, (each.name for each in DEVICES))
    transformer = None if model is None else TRANSFORMERS[model]
    tokens = transformer.tokens_per_frame(*size) if transformer is not None and size is not None else None
    return Options(model=transformer, tokens_per_frame=tokens, window=window, device=ran)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One claim that does not hold.

    Args:
        place: where it stands.
        said: the claim as printed.
        corrected: correct value, or the information that has to be added.
        why: the numbers that show it.
        also: other places with the same claim, or the place that contradicts it.
        rule: id of the rule that found it.
        severity: `error`: the numbers contradict each other or the hardware; `warning`: what is needed to judge them is missing.
    """

    place: Place
    said: str
    corrected: str
    why: str
    also: tuple[Place, ...] = ()
    rule: str = ""
    severity: Severity = "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A rule: its id, its meaning in one sentence, and the function that looks for violations.

    Args:
        needs: options without which it finds nothing, in words; empty: none.
    """

    id: str
    meaning: str
    check: Callable[[LintStudy], Iterable[Claim]]
    severity: Severity = "error"
    needs: str = ""
