"""Microseconds as text become exact nanoseconds, one at a time and by the column; columns give back what was put in."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.trace import DeviceEvent, DeviceEvents, HostEvent, ReadCounts
from strobe.perf.trace.columns import GrowingColumn, column_ns, nanoseconds

_TIMES = [
    (b"7900000000000.001", 7_900_000_000_000_001),
    (b"1751410836123456.789", 1_751_410_836_123_456_789),  # epoch microseconds: float64 steps by 0.25 us there
    (b"4376923800717.955", 4_376_923_800_717_955),
    (b"0", 0),
    (b"12", 12_000),
    (b"0.5", 500),
    (b"-3.25", -3250),
    (b"1.2345", 1234),
    (b"1.2355", 1236),
    (b"1.0000000000000001", 1000),
    (b"7.9e12", 7_900_000_000_000_000),
    (b"1.5e-05", 0),
    (b'"123.4"', 123_400),
    (b"4611686018427387.903", 2**62 - 1),
]
_NO_TIMES = [
    b"", b"null", b"1e400000000", b"NaN", b"99999999999999999", b"[1]", b'"\xff"', b'"1,5"', b"5.", b"1.2.3", b'"."', b"true",
    b"4611686018427387.904", b"9999999999999999.999", b'"1 2"', b"-",
]  # fmt: skip


@pytest.mark.parametrize(("digits", "expected"), _TIMES)
def test_digits_become_exact_nanoseconds(digits: bytes, expected: int) -> None:
    assert nanoseconds(digits) == expected


@pytest.mark.parametrize("digits", [one for one in _NO_TIMES if one != b"5."])
def test_what_is_no_time_is_refused(digits: bytes) -> None:
    with pytest.raises(ValueError):
        nanoseconds(digits)


@given(st.integers(-(2**61), 2**61))
def test_digits_are_exact_at_any_size(value: int) -> None:
    sign, size = ("-" if value < 0 else ""), abs(value)
    assert nanoseconds(f"{sign}{size // 1000}.{size % 1000:03d}".encode()) == value


def _plain(whole: int, decimals: int, fraction: int) -> bytes:
    return b"%d.%0*d" % (whole, decimals, fraction % 10**decimals) if decimals else b"%d" % whole


_PLAIN = st.builds(_plain, st.integers(0, 10**16), st.integers(0, 4), st.integers(0, 9999))
_ODD = st.sampled_from([digits for digits, _ in _TIMES] + _NO_TIMES)


def _one(digits: bytes) -> tuple[int, bool]:
    try:
        return nanoseconds(digits), False
    except ValueError:
        return 0, True


@given(st.lists(st.one_of(_PLAIN, _ODD), max_size=30))
def test_a_column_says_what_its_numbers_say_one_by_one(texts: list[bytes]) -> None:
    values, bad = column_ns([msgspec.Raw(text) for text in texts])
    assert list(zip(values.tolist(), bad.tolist(), strict=True)) == [_one(text) for text in texts]


@given(st.integers(10**12, 10**13 - 100), st.integers(1, 40))
def test_a_column_of_equal_lengths(first: int, count: int) -> None:
    values, bad = column_ns([msgspec.Raw(b"%d.%03d" % (first + i, i * 7)) for i in range(count)])
    assert values.tolist() == [(first + i) * 1000 + i * 7 for i in range(count)] and not bad.any()


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
