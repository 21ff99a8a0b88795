"""Columns give back what was put in, and order does what its comment says."""

from __future__ import annotations

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.trace import columns
from strobe.perf.trace.columns import GrowingColumn, different, looked_up, renumber, taken, time_order, view

_NUMBERS = st.one_of(
    st.integers(-5, 5), st.integers(-(2**31) - 2, -(2**31) + 2), st.integers(2**31 - 2, 2**31 + 2), st.just(2**61)
)


@given(st.lists(st.lists(_NUMBERS, max_size=4), max_size=6))
def test_a_column_keeps_every_number(parts: list[list[int]]) -> None:
    column = GrowingColumn()
    for part in parts:
        column.extend(part)
    numbers = [number for part in parts for number in part]
    assert len(column) == len(numbers)
    data = column.release()
    assert (data.tolist(), len(column)) == (numbers, 0)
    assert data.itemsize == (4 if all(-(2**31) <= number < 2**31 for number in numbers) else 8)


_ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2), st.integers(0, 1)), max_size=40)


@given(_ROWS, st.integers(1, 9))
def test_order_is_by_start_then_length_then_ties(rows: list[tuple[int, int, int, int]], block: int) -> None:
    start, duration, first, second = (np.array([row[i] for row in rows], np.int64) for i in range(4))
    turned = np.array([2, 1, 0])
    kept, columns.BLOCK = columns.BLOCK, block
    try:
        order = time_order(start, duration, (second,), (first, turned)).tolist()
    finally:
        columns.BLOCK = kept
    assert sorted(order) == list(range(len(rows)))
    assert [rows[i] for i in order] == sorted(rows, key=lambda row: (row[0], -row[1], -row[2], row[3]))


def _column(*numbers: int) -> array[int]:
    column = GrowingColumn()
    column.extend(numbers)
    return column.release()


def test_taking_and_looking_up() -> None:
    assert taken(_column(10, 11, 12, 13), np.array([3, 0, 3], np.int32)).tolist() == [13, 10, 13]
    small, large = looked_up([5, 6], _column(1, 0, 1)), looked_up([5, -6], _column(1, 0, 1), 300)
    assert (small.tolist(), small.itemsize, large.tolist(), large.itemsize) == ([6, 5, 6], 1, [-6, 5, -6], 2)
    ids = _column(1, -1, 0)
    renumber(ids, [7, 8])
    assert ids.tolist() == [8, -1, 7]


@given(st.lists(st.integers(-(1 << 62), 1 << 62) | st.integers(-20, 20), max_size=40), st.sampled_from([np.int64, np.int8]))
def test_the_different_values_are_those_of_a_set(values: list[int], kind: type[np.signedinteger]) -> None:
    given_values = np.array([value % 100 if kind is np.int8 else value for value in values], kind)
    found = different(given_values)
    assert found.tolist() == sorted(set(given_values.tolist())) and found.dtype == np.int64


def test_numpy_sees_columns_of_8_bytes_as_the_integers_it_is_fast_with() -> None:
    """The type of an array of `q` equals `int64` and yet is another: what only knows `int64` takes it value by value."""
    column = array("q", [1, 2, 3])
    assert view(column).dtype.num == np.dtype(np.int64).num != np.asarray(column).dtype.num
    assert np.shares_memory(view(column), np.asarray(column))
