"""Columns of integers that grow, block-wise work on long ones in constant temporary memory, and times from their decimal text."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

BLOCK: Final = 1 << 15
_DENSE: Final = 16
"""Range / count of integers below which they are deduplicated by counting, ten times as fast as sorting or hashing."""
Ids = npt.NDArray[np.int32]


class GrowingColumn:
    """Integers in 4 bytes each until one of them needs 8."""

    def __init__(self, code: str = "i") -> None:
        self._data = array(code)

    def __len__(self) -> int:
        return len(self._data)

    def extend(self, values: Integers | Sequence[int]) -> None:
        new = np.asarray(values, np.int64)
        if self._data.typecode == "i" and len(new) and (int(new.max()) >= 1 << 31 or int(new.min()) < -(1 << 31)):
            self._data = array("q", np.array(self._data, np.int64).tobytes())
        self._data.frombytes(new.astype(np.dtype(self._data.typecode)).tobytes())

    def release(self) -> array[int]:
        """Hand out the values and keep none."""
        data, self._data = self._data, array(self._data.typecode)
        return data


def different(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the distinct values of integers, ascending."""
    if not len(values):
        return np.empty(0, np.int64)
    low, high = int(values.min()), int(values.max())
    if high - low < _DENSE * len(values):
        found: npt.NDArray[np.int64] = np.flatnonzero(np.bincount(values.astype(np.int64) - low)) + low
        return found
    ordered = np.sort(values.astype(np.int64), kind="stable")  # what is nearly in order costs little; np.unique hashes it
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]


def code_for(low: int, high: int) -> str:
    """Return the type code of the smallest integers that hold both `low` and `high`."""
    return next(code for code in "bBhHiq" if np.iinfo(code).min <= low and high <= np.iinfo(code).max)


def narrow(values: Sequence[int] | npt.NDArray[Any]) -> array[int]:
    """Return the values as a column of the smallest integers that hold them."""
    given = np.asarray(values)
    if not len(given):
        return array("b")
    code = code_for(int(given.min()), int(given.max()))
    return array(code, given.astype(np.dtype(code), copy=False).tobytes())


def view(column: array[int]) -> Integers:
    """View a column as a numpy array without a copy; 8-byte integers as `int64`, since numpy does not take `q` everywhere."""
    return np.frombuffer(column, np.int64 if column.typecode == "q" else np.dtype(column.typecode))


def blank(code: str, count: int) -> array[int]:
    """Return a column of zeros."""
    return array(code, [0]) * count


def blocks(count: int) -> Iterator[slice]:
    """Yield the blocks of a column as slices."""
    return (slice(at, min(at + BLOCK, count)) for at in range(0, count, BLOCK))


def taken(column: array[int], places: Ids) -> array[int]:
    """Return the column's values at each place as a new column."""
    new, old = blank(column.typecode, len(places)), view(column)
    for block in blocks(len(places)):
        view(new)[block] = old[places[block]]
    return new


def looked_up(table: Sequence[int], ids: array[int], *others: int) -> array[int]:
    """Return `table` at each id as a new column of the smallest integers that hold the table and `others`."""
    code = code_for(min((*table, *others), default=0), max((*table, *others), default=0))
    new, numbers = blank(code, len(ids)), np.asarray(table, np.dtype(code))
    for block in blocks(len(ids)):
        view(new)[block] = numbers[view(ids)[block]]
    return new


def renumber(ids: array[int], table: Sequence[int] | Ids) -> None:
    """Replace each id by `table` at that id; -1 stays."""
    numbers = np.append(np.asarray(table, np.int32), np.int32(-1))
    for block in blocks(len(ids)):
        view(ids)[block] = numbers[view(ids)[block]]


def ranks(values: Sequence[Any]) -> Ids:
    """Return the position of each value among the sorted ones."""
    found = np.empty(len(values), np.int32)
    found[sorted(range(len(values)), key=values.__getitem__)] = np.arange(len(values), dtype=np.int32)
    return found


def distinct(values: Sequence[str], used: Sequence[int] | None = None) -> tuple[tuple[str, ...], list[int]]:
    """Return the distinct values, sorted, and the number of each input value; 0 for values that are not used."""
    texts = sorted({values[i] for i in used} if used is not None else set(values))
    place = {text: number for number, text in enumerate(texts)}
    return tuple(texts), [place.get(value, 0) for value in values]


def time_order(start: Integers, duration: Integers, *ties: Sequence[npt.NDArray[Any]]) -> Ids:
    """Return positions in order of start; at equal starts the longer event first, then by the ties, the last tie first.

    A tie is a chain of columns: the first one at the position gives the place in the second one, and so on.
    """
    order = np.argsort(start, kind="stable").astype(np.int32)
    at = 0
    while at < len(order):
        end = min(at + BLOCK, len(order))
        while end < len(order) and start[order[end]] == start[order[end - 1]]:
            end += 1
        some = order[at:end]
        starts = start[some]
        if (starts[1:] == starts[:-1]).any():
            keys = []
            for tie in ties:
                key: npt.NDArray[Any] = some
                for column in tie:
                    key = column[key]
                keys.append(key)
            order[at:end] = some[np.lexsort((*keys, -duration[some].astype(np.int64), starts))]
        at = end
    return order


Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LIMIT: Final = 1 << 62  # a start plus a duration then fits 64 bits
_MICROSECONDS: Final = re.compile(rb"(-?)([0-9]{1,16})(?:\.([0-9]{1,3}))?")
_MAX_WHOLE: Final = 16
_MAX_DECIMALS: Final = 3
_COMMA, _DOT, _ZERO = b",.0"


def nanoseconds(digits: bytes) -> int:
    """Turn decimal microseconds into integer nanoseconds, exactly; digits below 1 ns are rounded half to even.

    Raises:
        ValueError: not a finite number, or beyond 64 bits.
    """
    match = _MICROSECONDS.fullmatch(digits)
    if match:
        sign, whole, fraction = match.groups(b"")
        value = int(sign + whole + fraction.ljust(_MAX_DECIMALS, b"0"))
    else:
        try:
            microseconds = Decimal(digits.decode("ascii").strip('"'))
        except InvalidOperation as error:
            raise ValueError(f"not a number: {digits!r}") from error
        if not microseconds.is_finite() or microseconds.adjusted() > _MAX_WHOLE - 1:
            raise ValueError(f"not a time in microseconds: {digits!r}")
        value = int(microseconds.scaleb(_MAX_DECIMALS).to_integral_value(ROUND_HALF_EVEN))
    if abs(value) >= LIMIT:
        raise ValueError(f"beyond 64 bits in nanoseconds: {digits!r}")
    return value


def column_ns(texts: Sequence[msgspec.Raw]) -> tuple[Integers, Flags]:
    """Convert each text as `nanoseconds` does; return the times and a mask of texts that are no time (0 there)."""
    if not texts:
        return np.empty(0, np.int64), np.empty(0, np.bool_)
    values, rest = _plain(b",".join(texts) + b",", len(texts))
    bad = np.zeros(len(texts), np.bool_)
    for row in np.flatnonzero(rest).tolist():
        try:
            values[row] = nanoseconds(bytes(texts[row]))
        except ValueError:
            values[row], bad[row] = 0, True
    return values, bad


def _plain(text: bytes, count: int) -> tuple[Integers, Flags]:
    """Parse the plain numbers in `text`, each followed by a comma; return them and a mask of those that are not plain."""
    codes = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(codes == _COMMA)
    if len(ends) != count:  # a comma inside a text
        return np.zeros(count, np.int64), np.ones(count, np.bool_)
    lengths = np.diff(ends, prepend=-1) - 1
    width = min(int(lengths.max()), _MAX_WHOLE + 1 + _MAX_DECIMALS) or 1
    if int(lengths.min()) == width:
        columns = np.ascontiguousarray(codes.reshape(count, width + 1)[:, width - 1 :: -1].T)
    else:
        places = np.arange(1, width + 1)[:, None]
        columns = np.where(places <= lengths, codes.take(ends - places, mode="clip"), _ZERO)
    dots = columns == _DOT
    decimals = dots.argmax(0)
    dotted = dots.any(0)
    plain = (((columns - np.uint8(_ZERO)) < 10) | dots).all(0) & (dots.sum(0) <= 1) & (lengths > 0) & (lengths <= width)
    plain &= ~dotted | ((decimals >= 1) & (decimals <= _MAX_DECIMALS))
    whole = lengths - dotted - decimals
    plain &= (whole >= 1) & (whole <= _MAX_WHOLE)
    values = np.zeros(count, np.uint64)
    for many in np.flatnonzero(np.bincount(decimals[plain])).tolist():
        rows = plain & (decimals == many)
        digits = columns if rows.all() else columns[:, rows]
        values[rows] = _horner(digits, many) * np.uint64(10 ** (_MAX_DECIMALS - many))
    plain &= values < LIMIT
    return values.astype(np.int64), ~plain


def _horner(columns: npt.NDArray[np.uint8], decimals: int) -> npt.NDArray[np.uint64]:
    """Return the digits of each number (last digit first) as an integer, without the dot before `decimals` digits."""
    values = np.zeros(columns.shape[1], np.uint64)
    for place in range(len(columns) - 1, -1, -1):
        if decimals == 0 or place != decimals:
            values *= np.uint64(10)
            values += columns[place] - np.uint8(_ZERO)
    return values
