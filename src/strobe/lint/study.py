"""A document with the facts that several rules need: its tables read by metric, and the names it uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from strobe.core.costs import DevicePeaks, TransformerShape, parse_dtype
from strobe.lint.devices import device_named, only_device
from strobe.lint.document import Document, DocumentSection, Place
from strobe.lint.names import key
from strobe.lint.quantity import Quantity
from strobe.lint.views import Series, SeriesEntry, View, view_of

_BASES: Final = re.compile(
    r"(?i)\b(?:traced|timed|per (?:call|step|clip|block|layer|frame|token|pass|gpu|rank)|one call|warm|cold|"
    r"sum of|exclusive|inclusive|compiled|eager)\b"
)
_VALUE_KEYS: Final = frozenset({"value", "", "result", "measured", "measurement"})
DTYPE: Final = re.compile(r"(?i)\b(?:bf16|bfloat16|fp16|float16|half|fp8\w*|float8\w*|f8\w*|int8|tf32|fp32|float32)\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Facts about a measurement that the document itself does not state.

    Args:
        frames_per_block: latent frames made at a time; with the stride of the VAE it ties FPS to the time of a block.
        model: the transformer whose time is claimed.
        tokens_per_frame: tokens of one latent frame.
        window: latent frames attended in self-attention, those computed included.
        device: the GPU that ran.
    """

    frames_per_block: int | None = None
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

    @cached_property
    def device(self) -> DevicePeaks | None:
        """The given device, or the only one that the document names."""
        return self.options.device or only_device(self._texts)

    def device_of(self, *texts: str) -> DevicePeaks | None:
        """Return the device that a row, caption or sentence names, or that of the document."""
        return next((device for text in texts if (device := device_named(text)) is not None), self.device)

    @cached_property
    def _texts(self) -> tuple[str, ...]:
        document = self.document
        cells = [cell.text for table in document.tables for row in table.rows for cell in row.cells]
        heads = [title for table in document.tables for title in (*table.header, table.caption, *table.section.titles)]
        return (*cells, *heads, *(sentence.text for sentence in document.sentences))

    @cached_property
    def dtype(self) -> str | None:
        """The only dtype the document names, or None."""
        found = {parse_dtype(word) for text in self._texts for word in DTYPE.findall(text)}
        return found.pop() if len(found) == 1 else None

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
