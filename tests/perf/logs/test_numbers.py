"""Numbers as logs print them."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.logs.patterns import decides, read


def exactly(text: str, mark: str | None = None) -> Fraction:
    number = read(text, mark)
    assert isinstance(number, Decimal), number
    return Fraction(number)


@pytest.mark.parametrize(
    ("text", "mark", "value"),
    [
        ("9.53", None, "9.53"),
        ("9,53", None, "9.53"),
        ("7,200.81", None, "7200.81"),
        ("7.200,81", None, "7200.81"),
        ("1,234,567", None, "1234567"),
        ("1.234.567,8", None, "1234567.8"),
        ("7\u202f200,81", None, "7200.81"),
        ("1'234.5", None, "1234.5"),
        ("1_000", None, "1000"),
        ("7,200", ".", "7200"),
        ("7,200", ",", "7.2"),
        ("7.200", None, "7.2"),
        ("7.200", ",", "7200"),
        ("0,953", None, "0.953"),
        ("1e-03", None, "0.001"),
        ("1.5E+3", None, "1500"),
        ("9,5e-3", None, "0.0095"),
        (".5", None, "0.5"),
        ("+5", None, "5"),
        ("-0.0", None, "0"),
        ("0.009293003007769585", None, "0.009293003007769585"),
        ("12345678901234567890.5", None, "12345678901234567890.5"),
    ],
)
def test_a_number_is_read_exactly(text: str, mark: str | None, value: str) -> None:
    assert exactly(text, mark) == Fraction(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nan", "nan"),
        ("-NaN", "nan"),
        ("inf", "infinite"),
        ("-Infinity", "infinite"),
        ("-0.5", "negative"),
        ("-7,200.5", "negative"),
        ("7,200", "ambiguous"),
        ("1.2.3", "unreadable"),
        ("1,23.4", "unreadable"),
        ("1e999999999", "unreadable"),
        ("1e" + "9" * 30, "unreadable"),
        ("0." + "1" * 5000, "unreadable"),
    ],
)
def test_what_is_no_time_is_named(text: str, reason: str) -> None:
    assert read(text, None) == reason


@pytest.mark.parametrize(
    ("text", "mark"),
    [("7", None), ("7,200", None), ("7.200", None), ("9,53", ","), ("9.53", "."), ("1,234,567", "."), ("nan", None)],
)
def test_a_number_shows_its_mark_or_not(text: str, mark: str | None) -> None:
    assert decides(text) == mark


@given(st.integers(0, 10**16), st.integers(0, 12), st.sampled_from([(",", "."), (".", ","), ("_", "."), ("\u202f", ",")]))
def test_grouped_numbers_come_back(digits: int, places: int, marks: tuple[str, str]) -> None:
    group, mark = marks
    text = f"{Decimal(digits).scaleb(-places):,.{places}f}".translate({ord(","): group, ord("."): mark})
    assert exactly(text, mark) == Fraction(digits, 10**places)


@given(st.floats(0, 1e12, allow_subnormal=False).filter(lambda value: value == 0 or value > 1e-15))
def test_what_python_prints_comes_back(value: float) -> None:
    assert exactly(repr(value), ".") == Fraction(Decimal(repr(value)))
