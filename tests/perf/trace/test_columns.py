"""Columns give back what was put in, and the stores of events the rows they were made of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.trace import DeviceEvent, DeviceEvents, HostEvent, ReadCounts
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


def test_device_events_round_trip_and_store_a_graph_launch_once() -> None:
    launch = HostEvent("cudaGraphLaunch", 1, 3, 0)
    rows = [DeviceEvent("k", "kernel", 4 + i, 5 + i, 1, 7, i, launch) for i in range(3)]
    rows.append(DeviceEvent("copy", "memcpy", 9, 9, 0, -1, 0, None))
    store = DeviceEvents.from_rows(rows)
    assert list(store) == rows
    assert list(store.hosts) == [launch]


def test_counts_are_clean_only_if_nothing_was_bad() -> None:
    assert ReadCounts(events=5).clean
    assert not any(ReadCounts(events=5, **bad).clean for bad in ({"lost": 1}, {"mended": 1}, {"truncated": True}))
