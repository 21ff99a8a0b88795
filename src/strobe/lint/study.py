"""What rules ask: tables read as figures by metric, what was measured, and the finding that a rule makes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from strobe.core.costs import DEVICES, TRANSFORMERS, DevicePeaks, TransformerShape, device_peaks
from strobe.core.errors import ConfigError, unknown_choice
from strobe.lint.document import ClaimPlace, DocumentRow, DocumentSection, DocumentTable, LintDocument, TableCell
from strobe.lint.quantity import Metric, Quantity, is_metric, key, metric_of

_REST: Final = ("note", "notes", "comment", "comments", "remark", "remarks", "description")
_BASES: Final = re.compile(
    r"(?i)\b(?:traced|timed|per (?:call|step|clip|block|layer|frame|token|pass|gpu|rank)|one call|warm|cold|"
    r"sum of|exclusive|inclusive|compiled|eager)\b"
)
_VALUE_KEYS: Final = frozenset({"value", "", "result", "measured", "measurement"})


@dataclass(frozen=True, kw_only=True, slots=True)
class LintFigure:
    """A cell of a metric's column or row.

    Args:
        name: its configuration or part.
        row: its row in the table.
        position: number of the configuration or part; figures of two series with the same number belong together.
        by_columns: metrics are the columns of the table, and each row is a configuration or part.
    """

    name: str
    cell: TableCell
    row: int
    position: int
    metric: Metric
    table: DocumentTable
    by_columns: bool
    place: ClaimPlace

    @property
    def quantity(self) -> Quantity:
        """The number in the cell, which holds one."""
        assert self.cell.quantity is not None
        return self.cell.quantity

    @property
    def basis(self) -> str:
        """Metric together with what it is said to be measured per, such as `mean per call`."""
        found = {each.lower() for each in _BASES.findall(self.table.caption)}
        return " ".join((key(self.metric.title), *sorted(found)))


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricSeries:
    """Cells of one metric."""

    metric: Metric
    entries: tuple[LintFigure, ...]

    @property
    def figures(self) -> tuple[LintFigure, ...]:
        """Entries whose cell holds a number."""
        return tuple(entry for entry in self.entries if entry.cell.quantity is not None)

    def of(self, position: int) -> Quantity | None:
        """Return the number of the configuration or part at a position."""
        return next((entry.cell.quantity for entry in self.entries if entry.position == position), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A table as series.

    Args:
        by_columns: metrics are the columns, and each row is a configuration or part.
        keys: configurations or parts, in order.
        derived: columns that are computed from others (`Change`, `Speedup`), if metrics are rows.
    """

    table: DocumentTable
    by_columns: bool
    series: tuple[MetricSeries, ...]
    keys: tuple[str, ...]
    derived: tuple[MetricSeries, ...] = ()

    def of_kind(self, *kinds: str) -> list[MetricSeries]:
        """Return the series of the given kinds of metric."""
        return [series for series in self.series if series.metric.kind in kinds]


def _metrics_are_columns(table: DocumentTable) -> bool:
    rows = _share_of_metrics(row.label for row in table.rows)
    if table.origin == "lines":
        return True
    columns = list(zip(*(row.cells for row in table.rows), strict=True))[1:]
    mixed = any(len({cell.quantity.dimension for cell in column if cell.quantity}) > 1 for column in columns)
    if table.origin == "list":
        return rows <= 0.5
    return not mixed and (rows <= 0.5 or _share_of_metrics(table.header[1:]) >= rows)


def _share_of_metrics(labels: Iterable[str]) -> float:
    found = [is_metric(label) for label in labels]
    return sum(found) / max(1, len(found))


def _row_name(table: DocumentTable, row: DocumentRow, labels: int) -> str:
    """Return a row's label: its leading cells up to the first figure."""
    parts: list[str] = []
    for cell, title in zip(row.cells, table.header, strict=True):
        if cell.quantity is not None and parts:
            break
        if cell.text.strip():
            parts.append(cell.text)
            if cell.quantity is not None or title.lower() in _REST or labels <= len(parts):
                break
    return " / ".join(parts)


def _label_columns(table: DocumentTable) -> int:
    """Count the leading columns of labels: those before the first that has a figure in most rows."""
    for index, title in enumerate(table.header):
        figures = sum(row.cells[index].quantity is not None for row in table.rows)
        if index and (2 * figures >= max(1, len(table.rows)) or title.lower() in _REST):
            return index
    return 1


def _metric(title: str, cells: Iterable[TableCell]) -> Metric:
    units = Counter(cell.quantity.unit for cell in cells if cell.quantity is not None and cell.quantity.unit is not None)
    return metric_of(title, units.most_common(1)[0][0] if units else None)


def _about_figures(title: str, cells: Sequence[TableCell]) -> bool:
    figures = sum(cell.quantity is not None for cell in cells)
    return figures > 0 and title.lower() not in _REST and 2 * figures >= sum(not cell.empty for cell in cells) - 1


def view_of(document: LintDocument, table: DocumentTable) -> View:
    """Decide whether columns or rows are the metrics, and read the table as series."""
    by_columns = _metrics_are_columns(table)
    labels = _label_columns(table)
    names = [_row_name(table, row, labels) if by_columns else row.label for row in table.rows]

    def series_of(title: str, cells: Iterable[tuple[int, int, TableCell]], across: bool) -> MetricSeries:
        """Make a series of cells with their rows and columns: along a row (`across`), or down a column."""
        found = list(cells)
        metric = _metric(title, [cell for _, _, cell in found])
        entries = []
        for row, column, cell in found:
            name = table.header[column] if across else names[row]
            place = document.place(cell.line, table, *((title, name) if across else (name, title)))
            entries.append(
                LintFigure(
                    name=name, cell=cell, row=row, position=column if across else row, metric=metric, table=table,
                    by_columns=by_columns, place=place,
                )
            )  # fmt: skip
        return MetricSeries(metric=metric, entries=tuple(entries))

    columns = {
        column: [(number, column, row.cells[column]) for number, row in enumerate(table.rows)]
        for column, title in enumerate(table.header)
        if column and title.lower() not in _REST
    }
    if by_columns:
        first = labels if table.origin == "table" else 1
        series = [
            series_of(table.header[column], cells, False)
            for column, cells in columns.items()
            if column >= first and _about_figures(table.header[column], [cell for _, _, cell in cells])
        ]
        return View(table=table, by_columns=True, series=tuple(series), keys=tuple(names))
    down = {column: series_of(table.header[column], cells, False) for column, cells in columns.items()}
    kept = [column for column in down if down[column].metric.kind != "change"]
    rows = [(row.label, [(number, column, row.cells[column]) for column in kept]) for number, row in enumerate(table.rows)]
    return View(
        table=table,
        by_columns=False,
        series=tuple(
            series_of(name, cells, True) for name, cells in rows if _about_figures(name, [cell for _, _, cell in cells])
        ),
        keys=tuple(table.header[column] for column in kept),
        derived=tuple(series for column, series in down.items() if column not in kept),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LintOptions:
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


def options_of(*, model: str | None, size: tuple[int, int] | None, window: int | None, device: str | None) -> LintOptions:
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
    return LintOptions(model=transformer, tokens_per_frame=tokens, window=window, device=ran)


def device_named(text: str) -> DevicePeaks | None:
    """Return the device of a name, or the first of its family (`h100`); None if there is none."""
    family = (device for device in DEVICES if text and f"{device.name} ".lower().startswith(f"{text} ".lower()))
    return device_peaks(text) or next(family, None)


@dataclass(frozen=True, kw_only=True)
class LintStudy:
    """A document and the options that go with it."""

    document: LintDocument
    options: LintOptions

    @cached_property
    def views(self) -> tuple[View, ...]:
        """Tables as series of figures by metric."""
        return tuple(view_of(self.document, table) for table in self.document.tables)

    @cached_property
    def figures(self) -> tuple[LintFigure, ...]:
        """All figures of all tables, in order."""
        return tuple(figure for view in self.views for series in view.series for figure in series.figures)

    @cached_property
    def configs(self) -> tuple[str, ...]:
        """Names of configurations as printed: rows or columns of tables that compare some, longest first."""
        names: dict[str, str] = {}
        for view in self.views:
            if view.table.origin == "table" and (view.of_kind("rate", "quality", "memory") or not view.by_columns):
                for name in view.keys:
                    if name.lower() not in _VALUE_KEYS and not re.match(r"[\d.]+\b", name):
                        names.setdefault(key(name), name)
        return tuple(sorted(names.values(), key=len, reverse=True))

    def named(self, text: str, *, any_case: bool = False) -> list[str]:
        """Return the configurations named in a text; a name inside a longer one that is named does not count."""
        rest, found = text, []
        for name in self.configs:
            pattern = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])", re.IGNORECASE if any_case else 0)
            if pattern.search(rest):
                found.append(name)
                rest = pattern.sub(" ", rest)
        return found

    def config_of(self, section: DocumentSection) -> str:
        """Return the one configuration that the nearest heading names, or empty."""
        for title in reversed(section.titles):
            found = self.named(title)
            if found:
                return found[0] if len(found) == 1 else ""
            if any_case := self.named(title, any_case=True):
                return any_case[0]
        return ""

    def config(self, figure: LintFigure) -> str:
        """Return the configuration of a figure: its name, or for a column of values the one of its heading."""
        if figure.name.lower() not in _VALUE_KEYS:
            return key(figure.name)
        return "" if figure.by_columns else key(self.config_of(figure.table.section))


Severity = Literal["error", "warning"]


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

    place: ClaimPlace
    said: str
    corrected: str
    why: str
    also: tuple[ClaimPlace, ...] = ()
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
