"""Columns give back what was put in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.trace.columns import GrowingColumn

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
