"""Columns of integers that grow, and block-wise work on long columns, so that temporary memory stays constant."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from strobe.perf.trace.digits import Integers

BLOCK: Final = 1 << 15
_DENSE: Final = 16
"""Range / count of integers below which they are deduplicated by counting, ten times as fast as sorting or hashing."""
Ids = npt.NDArray[np.int32]

T = TypeVar("T", bound=Hashable)


class GrowingColumn:
    """Integers in 4 bytes each until one of them needs 8."""

    def __init__(self, code: str = "i") -> None:
        self._data = array(code)

    def __len__(self) -> int:
        return len(self._data)

    def extend(self, values: Integers | Sequence[int]) -> None:
        """Append values."""
        new = np.asarray(values, np.int64)
        if self._data.typecode == "i" and len(new) and (int(new.max()) >= 1 << 31 or int(new.min()) < -(1 << 31)):
            self._data = array("q", np.array(self._data, np.int64).tobytes())
        self._data.frombytes(new.astype(np.dtype(self._data.typecode)).tobytes())

    def release(self) -> array[int]:
        """Hand out the values and keep none."""
        data, self._data = self._data, array(self._data.typecode)
        return data


class Interned(Generic[T]):
    """Distinct values, numbered as they come."""

    def __init__(self) -> None:
        self._ids: dict[T, int] = {}

    def id_of(self, value: T) -> int:
        """Return the number of a value, a new one for a new value."""
        return self._ids.setdefault(value, len(self._ids))

    def ids_of(self, values: Sequence[T]) -> list[int]:
        """Return the number of each value."""
        found: list[Any] = list(map(self._ids.get, values))
        return list(map(self.id_of, values)) if None in found else found

    def values(self) -> tuple[T, ...]:
        """Return the distinct values, by number."""
        return tuple(self._ids)


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
