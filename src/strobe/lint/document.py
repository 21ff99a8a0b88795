"""A document as tables of typed cells, sentences and lines of code, each with its place in the file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from strobe.lint.quantity import Quantity, Unit, head_unit, quantities

Origin = Literal["table", "list", "lines"]

EMPTY: Final = frozenset({"", "-", "--", "---", "–", "—", "n/a", "na", "none", "."})
"""Texts of cells without a figure."""

_AFTER: Final = re.compile(r"\s*(?:$|[(\[±,;/|*†‡→]|\+/-)")
_INTERVAL: Final = re.compile(r"\[\s*[-+−]?\d[^\[\]]*[,;–-]\s*[-+−]?\d[^\[\]]*\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Place of a claim in a file. Lines count from 1; 0 in files without lines, such as JSON."""

    path: str
    line: int
    table: str = ""
    row: str = ""
    column: str = ""

    @property
    def short(self) -> str:
        """Short text of the place: `line 12`, or table and row where there are no lines."""
        return f"line {self.line}" if self.line else f"'{self.table}', {self.row}"


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentSection:
    """A heading with the headings above it; the part before the first heading has none."""

    path: tuple[int, ...] = ()
    titles: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Title of the innermost heading."""
        return self.titles[-1] if self.titles else ""

    def within(self, other: DocumentSection) -> bool:
        """Return True if this section is `other` or lies below it."""
        return self.path[: len(other.path)] == other.path


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCell:
    """One table cell. `quantity` is its number, if it holds one; `interval`: it is printed with its own bounds."""

    text: str
    line: int
    quantity: Quantity | None = None
    found: tuple[Quantity, ...] = ()
    interval: bool = False

    @property
    def empty(self) -> bool:
        """Whether the cell is blank or holds a dash: no figure here."""
        return re.sub(r"\s*\(.*\)$", "", self.text.strip()).lower() in EMPTY


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One table row; `depth` is the indentation of its label, `group` the heading line above it."""

    cells: tuple[TableCell, ...]
    line: int
    depth: int = 0
    group: str = ""

    @property
    def label(self) -> str:
        """Text of the first cell."""
        return self.cells[0].text if self.cells else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table with its caption and the notes below it, whatever it was written as."""

    section: DocumentSection
    caption: str
    header: tuple[str, ...]
    rows: tuple[Row, ...]
    line: int
    origin: Origin = "table"
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Heading and caption of the table; the caption alone if that is specific enough."""
        if len(self.caption.split()) > 2 or not self.section.title:
            return self.caption
        return f"{self.section.title}: {self.caption}" if self.caption else self.section.title

    @property
    def context(self) -> str:
        """All text around the table: headings, caption, column heads and notes."""
        return " | ".join((*self.section.titles, self.caption, *self.header, *self.notes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """A sentence of running text.

    Args:
        lead: beginning of its paragraph or list item, up to the colon.
        parent: the item or line that its list item is under.
        paragraph: the whole paragraph or list item.
    """

    text: str
    line: int
    section: DocumentSection
    lead: str = ""
    parent: str = ""
    paragraph: str = ""

    @property
    def found(self) -> tuple[Quantity, ...]:
        """Numbers in the sentence."""
        return quantities(self.text)


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeLine:
    """A line of a code block in some language: read for settings, not for claims."""

    text: str
    line: int
    section: DocumentSection


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignored:
    """Lines that a comment in the document takes out of one rule (or all, `*`)."""

    first: int
    last: int
    rule: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A file as tables, sentences and code."""

    path: str
    tables: tuple[Table, ...] = ()
    sentences: tuple[Sentence, ...] = ()
    code: tuple[CodeLine, ...] = ()
    ignored: tuple[Ignored, ...] = ()

    def place(self, line: int, table: Table | None = None, row: str = "", column: str = "") -> Place:
        """Return a place in this document."""
        return Place(path=self.path, line=line, table=table.name if table else "", row=row, column=column)

    def text_of(self, section: DocumentSection) -> str:
        """Return all sentences of a section and of the sections below it as one text."""
        return "\n".join(sentence.text for sentence in self.sentences if sentence.section.within(section))


def read_cell(text: str, line: int, unit: Unit | None = None) -> TableCell:
    """Parse a cell: it holds a number if it begins with one, followed by nothing but a unit, a note or bounds.

    Args:
        unit: unit of numbers without one.
    """
    found = quantities(text, unit)
    body = text.partition("=")[2] if "=" in text else text
    if body is not text:  # `a / b = c` is about c
        result = next((each for each in found if each.start >= len(text) - len(body)), None)
        return TableCell(text=text, line=line, quantity=result, found=found)
    first = found[0] if found else None
    about = first is not None and not text[: first.start].strip() and _AFTER.match(text, first.stop) is not None
    return TableCell(
        text=text, line=line, quantity=first if about else None, found=found, interval=_INTERVAL.search(text) is not None
    )


def column_units(header: Iterable[str], hints: Iterable[str]) -> list[Unit | None]:
    """Return the unit of each column: from its head or, for a column of times, from the caption (`all times in ms`)."""
    hint = next((unit for text in hints if (unit := caption_unit(text))), None)
    units = [head_unit(title) for title in header]
    return [
        unit or (hint if hint and index and not _NOT_TIMED.search(title) else None)
        for index, (unit, title) in enumerate(zip(units, header, strict=True))
    ]


_CAPTION_UNIT: Final = re.compile(
    r"(?i)\b(?:times?|latenc(?:y|ies)|durations?|values?|numbers?|figures|all|measured|everything)\b[^.;|]*?\bin "
    r"(?P<unit>[A-Za-zµμ]+)\b|[(\[](?P<tail>ns|µs|us|ms|s)[)\]]"
)
_NOT_TIMED: Final = re.compile(
    r"(?i)%|\b(?:calls?|count|n|num|samples?|fps|speed-?up|change|ratio|share|memory|note|notes|variant|steps?|shape|batch|size)\b|#"
)


def caption_unit(text: str) -> Unit | None:
    """Return the unit of time that a caption or an introduction declares for the numbers after it."""
    for found in _CAPTION_UNIT.finditer(text):
        unit = head_unit(f"({found['unit'] or found['tail']})")
        if unit and unit.dimension == "time":
            return unit
    return None
