"""Rows of tables: a class describes its columns once; pages, the terminal, JSON documents and their manual follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Annotated as A
from typing import Any, ClassVar, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

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


T = TypeVar("T", bound=Hashable)
PartT = TypeVar("PartT", bound=DocumentPart)
K = TypeVar("K")
V = TypeVar("V")


def gathered(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, both in their order."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def part_of(kind: type[PartT], /, *sources: object, **given: object) -> PartT:
    """Build a part: a field that is not given is the attribute of the same name of the first source that has one."""
    for name in kind.__struct_fields__:
        if name not in given:
            source = next(each for each in sources if hasattr(each, name))
            given[name] = getattr(source, name)
    return kind(**given)


# What a document has of a class: the attributes with a description. A class that is computed with may have others beside them.


@cache
def described(kind: type) -> Mapping[str, Any]:
    """Return the types of the attributes of a class that documents have, by name: of fields, then of properties."""
    found = get_type_hints(kind, include_extras=True)
    for base in reversed(kind.__mro__):
        getters = {name: each.fget for name, each in vars(base).items() if isinstance(each, property)}
        found |= {name: get_type_hints(getter, include_extras=True).get("return") for name, getter in getters.items()}
    return {name: hint for name, hint in found.items() if any(isinstance(each, Meta) for each in _annotations(hint))}


def _annotations(hint: Any) -> tuple[Any, ...]:
    """Return what is said of a type, or of a member of a union."""
    if get_origin(hint) in (UnionType, Union):
        return tuple(each for member in get_args(hint) for each in _annotations(member))
    return getattr(hint, "__metadata__", ())


@cache
def struct_of(kind: type) -> type[msgspec.Struct]:
    """Return the struct that the JSON of a class has: of its described attributes, in which exact times are text."""
    hints = {name: _plain(hint) for name, hint in described(kind).items()}
    if issubclass(kind, msgspec.Struct) and hints == described(kind) and hints.keys() == set(kind.__struct_fields__):
        return kind
    defaults = {each.name: each.default for each in msgspec.structs.fields(kind)} if issubclass(kind, msgspec.Struct) else {}
    required = {name: (name, hint) for name, hint in hints.items()}
    given = {name: (name, hints[name], each) for name, each in defaults.items() if each is not msgspec.NODEFAULT}
    told = {"__doc__": (kind.__doc__ or "").partition("\n\n    Args:")[0]}
    return msgspec.defstruct(
        kind.__name__, (required | given).values(), bases=(DocumentPart,), module=kind.__module__, namespace=told,
        frozen=True, kw_only=True,
    )  # fmt: skip


def _plain(hint: Any) -> Any:
    if hint is Fraction:
        return str
    if isinstance(hint, type) and not get_args(hint):
        return struct_of(hint) if described(hint) else hint
    origin, inside = get_origin(hint), get_args(hint)
    if origin is A:
        return A[(_plain(inside[0]), *inside[1:])]
    if origin in (UnionType, Union):
        return Union[tuple(map(_plain, inside))]  # noqa: UP007
    return hint if origin in (None, Literal, ClassVar) else origin[tuple(map(_plain, inside))]


def to_json(value: Any) -> Any:
    """Return a document, or a part of one, as JSON has it.

    Exact times are text, such as `12345/7`; numbers that are not finite are null. File names keep bytes that are no text.
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, Mapping):
        return {name: to_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return list(map(to_json, value))
    kind: type[Hashable] = type(value)
    return {name: to_json(getattr(value, name)) for name in described(kind)}


def as_row(value: Hashable) -> dict[str, Any]:
    """Return a row of a table as a dictionary; exact times are numbers."""
    own = {name: getattr(value, name) for name in described(type(value))}
    return {name: float(each) if isinstance(each, Fraction) else each for name, each in own.items()}


def micros(ns: float) -> Time:
    """Return the cell of a time whose column is in µs."""
    return Time(ns)


def thousandths(ns: float) -> Number:
    """Return the cell of a time in µs with three decimals."""
    return Number(ns / 1e3, 3)


_UNITS: Final[dict[Any, Unit]] = {ExactTime: "ms", Time: "ms", micros: "µs", exact_cell: "ms", thousandths: "µs"}


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
    """Describe a field of a row class, or what a property of it returns.

    Args:
        meaning: of the key, in the manual of the documents.
        head: of its column; empty: it is in documents alone.
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
def _columns(kind: type[T]) -> Mapping[str, tuple[Field[T], Mapping[str, str]]]:
    info = inspect.type_info(struct_of(kind))
    assert isinstance(info, inspect.StructType)
    found = {}
    for name, own in ((each.name, each.type) for each in info.fields if isinstance(each.type, inspect.Metadata)):
        if extra := own.extra:
            where, kinds = extra["where"], getattr(own.type, "types", (own.type,))
            field = replace(extra["field"], numeric=any(isinstance(each, inspect.IntType | inspect.FloatType) for each in kinds))
            found[name] = (field if where is None else replace(field, get=_value(name, where)), extra["of"])
    return found


def _value(name: str, where: str) -> Callable[[Any], Any]:
    return (lambda row: getattr(row, name) if getattr(row, where) else None) if where else attrgetter(name)


def columns(kind: type[T], *names: str, of: object = None) -> tuple[Field[T], ...]:
    """Return the columns of a table of such rows: those of the named attributes, or of all with a head.

    Args:
        names: of the attributes, in order; none: all, in the order of the class.
        of: has what shares are of, for all rows together; or returns what has it for a row, by default the row itself.
    """
    own = _columns(kind)
    found: list[Field[T]] = []
    for field, shares in (own[name] for name in names or own):
        found.append(field)
        found += (_share(head, field, whole, of) for head, whole in shares.items())
    return tuple(found)


def _share(head: str, part: Field[T], whole: str, of: object) -> Field[T]:
    if of is not None and not callable(of):
        return Field(head, part.get, share_of(getattr(of, whole)), numeric=True, total=part.total, missing=part.missing)

    def share(row: T) -> Cell | None:
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
