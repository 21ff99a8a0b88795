"""Columns give back what was put in, and order does what its comment says."""

from __future__ import annotations

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.trace import columns
from strobe.perf.trace.columns import Column, looked_up, renumber, taken, time_order

_NUMBERS = st.one_of(
    st.integers(-5, 5), st.integers(-(2**31) - 2, -(2**31) + 2), st.integers(2**31 - 2, 2**31 + 2), st.just(2**61)
)


@given(st.lists(st.lists(_NUMBERS, max_size=4), max_size=6))
def test_a_column_keeps_every_number(parts: list[list[int]]) -> None:
    column = Column()
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
    column = Column()
    column.extend(numbers)
    return column.release()


def test_taking_and_looking_up() -> None:
    assert taken(_column(10, 11, 12, 13), np.array([3, 0, 3], np.int32)).tolist() == [13, 10, 13]
    small, large = looked_up([5, 6], _column(1, 0, 1)), looked_up([5, -6], _column(1, 0, 1), 300)
    assert (small.tolist(), small.itemsize, large.tolist(), large.itemsize) == ([6, 5, 6], 1, [-6, 5, -6], 2)
    ids = _column(1, -1, 0)
    renumber(ids, [7, 8])
    assert ids.tolist() == [8, -1, 7]
