"""Rows of tables: a class describes its columns once; pages, the terminal, JSON documents and their manual follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from operator import attrgetter
from typing import Annotated as A
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Meta, inspect

from strobe.perf.table.fields import Field, Reason, Total, Unit, exact_cell, share_cell, share_of
from strobe.perf.table.model import Cell, Count, ExactTime, Number, Text, Time


class DocumentPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a document; a row of a table if its values are plain."""


class OnDevice(DocumentPart, frozen=True, kw_only=True):
    """A row about one device of one trace."""

    trace: A[str, Meta(description="label of the trace, as in `files`")]
    device: A[int, Meta(description="number of the device in the trace")]


PartT = TypeVar("PartT", bound=DocumentPart)


def part_of(kind: type[PartT], /, *sources: object, **given: object) -> PartT:
    """Build a part: a field that is not given is the attribute of the same name of the first source that has one.

    Fractions become exact text: `12345/7`.
    """
    for name in kind.__struct_fields__:
        if name not in given:
            source = next(each for each in sources if hasattr(each, name))
            given[name] = getattr(source, name)
    return kind(**{name: str(value) if isinstance(value, Fraction) else value for name, value in given.items()})


def exact_text(ns: str | Fraction) -> Cell:
    """Return the cell of a time that is exact text."""
    return exact_cell(Fraction(ns))


def exact_sum(times: Iterable[str]) -> Fraction:
    """Return the sum of times that are exact text."""
    return sum(map(Fraction, times), Fraction(0))


def micros(ns: float) -> Time:
    """Return the cell of a time whose column is in µs."""
    return Time(ns)


def thousandths(ns: float) -> Number:
    """Return the cell of a time in µs with three decimals."""
    return Number(ns / 1e3, 3)


_UNITS: Final[dict[Any, Unit]] = {
    ExactTime: "ms",
    Time: "ms",
    exact_text: "ms",
    micros: "µs",
    exact_cell: "ms",
    thousandths: "µs",
}


def col(
    meaning: str,
    head: str = "",
    show: Callable[[Any], Cell] = Text,
    *,
    get: Callable[[Any], Any] | None = None,
    where: str = "",
    total: Total = None,
    missing: Reason[Any] = "",
    of: Mapping[str, str] = {},
) -> Meta:
    """Describe a field of a row class.

    Args:
        meaning: of the key, in the manual of the documents.
        head: of its column; empty: it is in documents alone.
        show: cell of a value.
        get: what the column shows of a row; by default the value of the field.
        where: field without which, or with 0 in which, a row has nothing to show here.
        total: as in `Field`; `missing` likewise.
        of: heads of the columns of shares that follow, with the name of what each is a share of.
    """
    if not head:
        return Meta(description=meaning)
    field = Field(head, get or attrgetter(""), show, _UNITS.get(show, ""), False, "", total, missing)
    return Meta(description=meaning, extra={"field": field, "where": where if get is None else None, "of": of})


def term(meaning: str, head: str, show: Callable[[Any], Cell] = Text, **given: Any) -> Meta:
    """Describe a field, as `col` does, whose head the page explains: a word of ours, or one that others use otherwise."""
    described = col(meaning, head, show, **given).extra or {}
    field = replace(described["field"], hint=meaning.replace("`", ""))
    return Meta(description=meaning, extra={**described, "field": field})


@cache
def _described(kind: type[PartT]) -> Mapping[str, tuple[Field[PartT], Mapping[str, str]]]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    found = {}
    for name, described in ((each.name, each.type) for each in info.fields if isinstance(each.type, inspect.Metadata)):
        if extra := described.extra:
            where, kinds = extra["where"], getattr(described.type, "types", (described.type,))
            field = replace(extra["field"], numeric=any(isinstance(each, inspect.IntType | inspect.FloatType) for each in kinds))
            found[name] = (field if where is None else replace(field, get=_value(name, where)), extra["of"])
    return found


def _value(name: str, where: str) -> Callable[[Any], Any]:
    return (lambda row: getattr(row, name) if getattr(row, where) else None) if where else attrgetter(name)


def columns(kind: type[PartT], *names: str, of: object = None) -> tuple[Field[PartT], ...]:
    """Return the columns of a table of such rows: those of the named fields, or of all fields with a head.

    Args:
        names: of the fields, in order; none: all, in the order of the class.
        of: has what shares are of, for all rows together; or returns what has it for a row, by default the row itself.
    """
    described = _described(kind)
    found: list[Field[PartT]] = []
    for field, shares in (described[name] for name in names or described):
        found.append(field)
        found += (_share(head, field, whole, of) for head, whole in shares.items())
    return tuple(found)


def _share(head: str, part: Field[PartT], whole: str, of: object) -> Field[PartT]:
    if of is not None and not callable(of):
        return Field(head, part.get, share_of(getattr(of, whole)), numeric=True, total=part.total, missing=part.missing)

    def share(row: PartT) -> Cell | None:
        own = part.get(row)
        return None if own is None else share_cell(own, getattr(row if of is None else of(row), whole))

    return Field(head, share, numeric=True, missing=part.missing)


def of_calls(row: Any) -> str:
    """Return the reason why a row of calls has no p99."""
    return f"max of {row.calls}"


class TimedRow(DocumentPart, frozen=True, kw_only=True):
    """Durations of several calls or events."""

    trace: A[str, col("label of the trace, as in `files`")]
    calls: A[int, col("number of calls", "n", Count, total=sum)]
    sum_ns: A[int, col("sum of the durations, of nested calls and waiting too", "sum", ExactTime, total=sum)]
    min_ns: A[int, col("shortest duration", "min", micros)]
    p50_ns: A[int, col("median duration", "p50", micros)]
    mean_ns: A[float, col("mean duration", "mean", micros)]
    p99_ns: A[int | None, col("99th percentile; null below 459 calls", "p99", micros, missing=of_calls)]
    max_ns: A[int, col("longest duration", "max", micros)]


FIGURES: Final = ("min_ns", "p50_ns", "mean_ns", "p99_ns", "max_ns")
"""Columns of `TimedRow` that say how durations spread."""
