"""A document as rules see it: tables of figures by metric, sentences, lines of code, and what was measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from strobe.core.costs import DEVICES, TRANSFORMERS, DevicePeaks, TransformerShape, device_peaks
from strobe.core.errors import ConfigError, unknown_choice
from strobe.lint.quantity import Metric, Quantity, is_metric, metric_of, quantities

EMPTY: Final = frozenset({"", "-", "--", "---", "–", "—", "n/a", "na", "none", "."})
"""Texts of cells without a figure."""
_REST: Final = ("note", "notes", "comment", "comments", "remark", "remarks", "description")
VALUE: Final = "value"
"""Head of the first number after a label of printed output or of a list."""
Titles = tuple[str, ...]
"""A section: its heading below the headings above it. The part before the first heading has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimPlace:
    """Place of a claim in a document. Lines count from 1."""

    line: int
    table: str = ""
    row: str = ""
    column: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCell:
    """One table cell. `quantity` is its number, if it holds one."""

    text: str
    quantity: Quantity | None = None

    @property
    def empty(self) -> bool:
        """Whether the cell is blank or holds a dash: no figure here."""
        return re.sub(r"\s*\(.*\)$", "", self.text.strip()).lower() in EMPTY


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentRow:
    """One table row; `depth` is the indentation of its label, `group` the heading line above it."""

    cells: tuple[TableCell, ...]
    line: int
    depth: int = 0
    group: str = ""

    @property
    def label(self) -> str:
        """Text of the first cell."""
        return self.cells[0].text


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LintFigure:
    """A cell of a metric's column or row.

    Args:
        name: its configuration or part.
        row, column: where in the table.
        position: number of the configuration or part; figures of two series with the same number belong together.
    """

    name: str
    cell: TableCell
    row: int
    column: int
    position: int
    metric: Metric
    table: DocumentTable

    @property
    def quantity(self) -> Quantity:
        """The number in the cell, which holds one."""
        assert self.cell.quantity is not None
        return self.cell.quantity

    @property
    def place(self) -> ClaimPlace:
        """Place of the cell."""
        row, column = self.table.rows[self.row], self.table.header[self.column]
        return ClaimPlace(line=row.line, table=row.group or self.table.name, row=row.label, column=column)


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


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentTable:
    """One table with its caption and the notes below it, whatever it was written as."""

    section: Titles
    caption: str
    header: tuple[str, ...]
    rows: tuple[DocumentRow, ...]
    line: int
    origin: Literal["table", "list", "lines"] = "table"
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Heading and caption of the table; the caption alone if that is specific enough."""
        above = () if len(self.caption.split()) > 2 else self.section[-1:]
        return ": ".join(part for part in (*above, self.caption) if part)

    @property
    def context(self) -> str:
        """All text around the table: headings, caption, column heads and notes."""
        return " | ".join((*self.section, self.caption, *self.header, *self.notes))

    @cached_property
    def by_columns(self) -> bool:
        """Whether metrics are the columns, and each row is a configuration or part; else the other way round."""
        rows = _share_of_metrics(row.label for row in self.rows)
        if self.origin != "table":
            return self.origin == "lines" or rows <= 0.5
        columns = list(zip(*(row.cells for row in self.rows), strict=True))[1:]
        mixed = any(len({cell.quantity.dimension for cell in column if cell.quantity}) > 1 for column in columns)
        return not mixed and (rows <= 0.5 or _share_of_metrics(self.header[1:]) >= rows)

    def _series(self, title: str, places: Iterable[tuple[int, int]], across: bool) -> MetricSeries:
        """Make a series of the cells at rows and columns: along a row (`across`), or down a column."""
        cells = [(row, column, self.rows[row].cells[column]) for row, column in places]
        units = Counter(cell.quantity.unit for _, _, cell in cells if cell.quantity and cell.quantity.unit)
        metric = metric_of(title, units.most_common(1)[0][0] if units else None)
        entries = (
            LintFigure(
                name=self.header[column] if across else self.rows[row].label, cell=cell, row=row, column=column,
                position=column if across else row, metric=metric, table=self,
            )
            for row, column, cell in cells
        )  # fmt: skip
        return MetricSeries(metric=metric, entries=tuple(entries))

    @cached_property
    def _columns(self) -> dict[int, MetricSeries]:
        """Every column but the first and the remarks, as a series."""
        titles = {column: title for column, title in enumerate(self.header) if column and title.lower() not in _REST}
        rows = range(len(self.rows))
        return {column: self._series(title, [(row, column) for row in rows], False) for column, title in titles.items()}

    @property
    def computed(self) -> list[MetricSeries]:
        """Columns that are computed from others, such as `Change` and `Speedup`."""
        return [each for each in self._columns.values() if each.metric.kind == "change" and each.figures]

    @cached_property
    def series(self) -> tuple[MetricSeries, ...]:
        """The metrics of the table, those of most whose cells are figures."""
        found = list(self._columns.values())
        if not self.by_columns:
            columns = [column for column, series in self._columns.items() if series.metric.kind != "change"]
            rows = [(number, row.label) for number, row in enumerate(self.rows) if row.label.lower() not in _REST]
            found = [self._series(label, [(number, column) for column in columns], True) for number, label in rows]
        filled = [(each, sum(not entry.cell.empty for entry in each.entries)) for each in found if each.figures]
        return tuple(each for each, cells in filled if 2 * len(each.figures) >= cells - 1)

    def of_kind(self, *kinds: str) -> list[MetricSeries]:
        """Return the series of the given kinds of metric."""
        return [series for series in self.series if series.metric.kind in kinds]


def _share_of_metrics(labels: Iterable[str]) -> float:
    found = [is_metric(label) for label in labels]
    return sum(found) / max(1, len(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """A sentence of running text.

    Args:
        lead: beginning of its paragraph or list item, up to the colon.
        paragraph: the whole paragraph or list item.
    """

    text: str
    line: int
    section: Titles
    lead: str = ""
    paragraph: str = ""

    @property
    def found(self) -> tuple[Quantity, ...]:
        """Numbers in the sentence."""
        return quantities(self.text)

    def about(self, figures: Iterable[LintFigure]) -> list[LintFigure]:
        """Return the figures whose name the sentence has, else its paragraph or the nearest heading.

        A name inside a longer one does not count; case counts outside of headings.
        """
        texts = ((self.text, 0), (self.paragraph.removeprefix(self.lead), 0))
        for text, flags in (*texts, *((title, re.IGNORECASE) for title in reversed(self.section))):
            named = {
                figure.name for figure in figures
                if figure.name and re.search(rf"(?<![\w-]){re.escape(figure.name)}(?![\w-])", text, flags)
            }  # fmt: skip
            longest = {name for name in named if not any(name != other and name in other for other in named)}
            if longest:
                return [figure for figure in figures if figure.name in longest]
        return []


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
class LintDocument:
    """A file as tables, sentences and lines of code; `ignored`: lines that a comment takes out of one rule (or all, `*`)."""

    tables: tuple[DocumentTable, ...] = ()
    sentences: tuple[Sentence, ...] = ()
    code: tuple[Sentence, ...] = ()
    ignored: tuple[tuple[range, str], ...] = ()
    options: LintOptions = LintOptions()

    @cached_property
    def figures(self) -> tuple[LintFigure, ...]:
        """All figures of all tables, in order."""
        return tuple(figure for table in self.tables for series in table.series for figure in series.figures)


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
    also: Sequence[ClaimPlace] = ()
    rule: str = ""
    severity: Literal["error", "warning"] = "error"
