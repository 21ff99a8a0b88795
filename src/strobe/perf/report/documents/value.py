"""Base of all documents: tables of flat rows that convert to dictionaries and display in a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec
from msgspec import Meta, inspect

from strobe.core.errors import unknown_choice
from strobe.core.notebook import html_table, text_table
from strobe.core.printable import clean
from strobe.perf.measure.stats import Interval

SCHEMA_VERSION: Final = 1
"""Schema version of documents. Adding a key keeps it; removing, renaming or redefining one raises it."""

BRIEF_ROWS: Final = 5
"""Rows of each table that `print` shows."""

TraceLabel = Annotated[str, Meta(description="label of the trace, as in `files`")]


class DocumentPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a document; a row of a table if its values are plain."""


class OnDevice(DocumentPart, frozen=True, kw_only=True):
    """A row about one device of one trace."""

    trace: TraceLabel
    device: Annotated[int, Meta(description="number of the device in the trace")]


PartT = TypeVar("PartT", bound=DocumentPart)


def part_of(kind: type[PartT], *sources: object, **given: object) -> PartT:
    """Build a part: a field that is not given is the attribute of the same name of the first source that has one."""
    for name in kind.__struct_fields__:
        if name not in given:
            source = next(each for each in sources if hasattr(each, name))
            given[name] = getattr(source, name)
    return kind(**given)


def ends(interval: Interval | None, low: str = "low", high: str = "high") -> dict[str, float | None]:
    """Return the ends of an interval under the names of their fields; None where there is no interval."""
    return {low: None, high: None} if interval is None else {low: interval.low, high: interval.high}


class Document(DocumentPart, frozen=True, kw_only=True):
    """Result of a verb, with tables of flat rows."""

    MAIN: ClassVar[str] = ""
    SHOWN: ClassVar[tuple[str, ...]] = ()
    BRIEF: ClassVar[dict[str, tuple[str, ...]]] = {}

    v: Annotated[int, Meta(description="schema version of the document")] = SCHEMA_VERSION

    def rows(self, table: str = "") -> list[dict[str, Any]]:
        """Return a table as one dictionary per row: `pandas.DataFrame(found.rows())`.

        Args:
            table: name of a field that is a table; by default the main one.

        Raises:
            ConfigError: there is no such table.
        """
        tables = table_names(type(self))
        chosen = table or self.MAIN
        if chosen not in tables:
            raise unknown_choice("table", chosen, tables)
        return [msgspec.structs.asdict(row) for row in getattr(self, chosen)]

    def brief(self) -> Mapping[str, tuple[str, ...]]:
        """Return the tables that `print` shows, with their columns."""
        return self.BRIEF

    def title(self) -> str:
        """Return a one-line summary of the document."""
        return type(self).__name__

    def __str__(self) -> str:
        """Return a few lines: the title and the first rows of the tables that say most, and where the rest is."""
        lines = [clean(self.title())]
        for name, columns in self.brief().items():
            if rows := self.rows(name):
                lines += ["", *map(clean, text_table(rows, columns, BRIEF_ROWS))]
        return "\n".join((*lines, "", "rows() and rows(TABLE) have all rows; docs/json.md lists the tables."))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the title and the main tables."""
        tables = (html_table(name, self.rows(name)) for name in self.SHOWN)
        return f"<h4>{escape(self.title())}</h4>{''.join(tables)}"


def table_names(kind: type[Document]) -> tuple[str, ...]:
    """Return the names of a document's fields that are tables."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return tuple(field.name for field in info.fields if _is_table(field.type))


def _is_table(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.Metadata):
        return _is_table(kind.type)
    return isinstance(kind, inspect.VarTupleType) and isinstance(kind.item_type, inspect.StructType)


def to_json(document: DocumentPart) -> dict[str, Any]:
    """Return a document as the dictionary that its JSON is."""
    plain: dict[str, Any] = _as_json(msgspec.to_builtins(document))
    return plain


def _as_json(value: Any) -> Any:
    """Convert a value to JSON types: lists, and null for numbers that are not finite. File names keep bytes that are no text."""
    if isinstance(value, dict):
        return {name: _as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
