"""Printed numbers: value, unit and the interval their digits allow."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.lint.quantity import UNITS, Bounds, exactly, head_unit, printed, quantities


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("735.6 ms", [("0.7356", "time")]),
        ("12-frame window", [("12", "count")]),
        ("about 24 GB", [("24e9", "bytes")]),
        ("24 GiB", [(str(24 * 2**30), "bytes")]),
        ("1,001 blocks", [("1001", "count")]),
        ("9.1 FPS (302ms)", [("9.1", "rate"), ("0.302", "time")]),
        ("1e-03 ms", [("1e-6", "time")]),
        ("−21.8%", [("-21.8", "percent")]),
        ("2.40x, 3×", [("2.4", "ratio"), ("3", "ratio")]),
        ("4 × 144.5ms", [("4", "none"), ("0.1445", "time")]),
        ("3.35 TB/s HBM3", [("3.35e12", "bandwidth")]),
        ("538 GFLOP at 2.4 PF/s", [("538e9", "work"), ("2.4e15", "compute")]),
        ("1.3B parameters, 256K", []),
        ("run_01 gpt-4 H100 v2.7.0 2025-12-20 12:30 480x832 FlashAttention-2 3fa9c1d2", []),
        ("profile_results_02-16/latency.md", []),
        ("172.97 ms/frame", [("0.17297", "time")]),
    ],
)
def test_what_is_read(text: str, expected: list[tuple[str, str]]) -> None:
    assert [(each.value, each.dimension) for each in quantities(text)] == [(Fraction(value), kind) for value, kind in expected]


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("9.1", "9.05", "9.15"),
        ("9.10", "9.095", "9.105"),
        ("302 ms", "0.3015", "0.3025"),
        ("302", "302", "302"),
        ("30 blocks", "30", "30"),
        ("~575 ms", "0.54625", "0.60375"),
        ("about 20 %", "15", "25"),
        ("< 24 GB", "0", "24e9"),
        ("under 24 GB", "0", "24e9"),
        ("110-120ms", "0.1095", "0.1205"),
    ],
)
def test_the_interval_of_printed_digits(text: str, low: str, high: str) -> None:
    (found,) = quantities(text)
    assert found.bounds == Bounds(Fraction(low), Fraction(high))


@given(
    value=st.decimals(min_value="0.001", max_value="99999", places=6),
    digits=st.integers(0, 5),
    unit=st.sampled_from(["ns", "µs", "ms", "s", "GB", "FPS", "%", "x", "TB/s"]),
)
def test_the_interval_holds_the_value_that_was_printed(value: Fraction, digits: int, unit: str) -> None:
    text = f"{value:.{digits}f} {unit}" if unit not in ("%", "x") else f"{value:.{digits}f}{unit}"
    (found,) = quantities(f"it is {text} long")
    true = Fraction(value) * UNITS[unit].scale
    assert found.bounds.low <= true <= found.bounds.high and found.unit == UNITS[unit]
    assert found.bounds.width == UNITS[unit].scale / 10**digits


_sides = st.tuples(st.integers(1, 500), st.integers(0, 40))


@given(one=_sides, two=_sides, inside=st.tuples(st.integers(0, 10), st.integers(0, 10)))
def test_interval_arithmetic_holds_every_result(one: tuple[int, int], two: tuple[int, int], inside: tuple[int, int]) -> None:
    a, b = (Bounds(Fraction(low), Fraction(low + width)) for low, width in (one, two))
    x, y = (bounds.low + bounds.width * part / 10 for bounds, part in zip((a, b), inside, strict=True))
    for bounds, value in ((a + b, x + y), (a - b, x - y), (a * b, x * y), (a / b, x / y)):
        assert bounds.low <= value <= bounds.high
    assert a.overlaps(exactly(x)) and (a.overlaps(b) == (max(a.low, b.low) <= min(a.high, b.high)))


@pytest.mark.parametrize(
    ("head", "unit"),
    [
        ("Mean (ms)", "ms"),
        ("latency_ms", "ms"),
        ("Memory [GB]", "GB"),
        ("pixel FPS", "FPS"),
        ("% of step", "%"),
        ("Share %", "%"),
        ("TFLOP/s", "TFLOP/s"),
        ("PSNR (dB)", "dB"),
        ("times in µs", "µs"),
        ("Mean", None),
        ("Experiment (s) and more", None),
    ],
)
def test_the_unit_of_a_head(head: str, unit: str | None) -> None:
    assert head_unit(head) == (UNITS[unit] if unit else None)


def test_printing_keeps_the_unit_and_adds_a_digit() -> None:
    (fps, change, calls) = quantities("9.1 FPS, +12.0%, 3 calls")
    assert printed(Fraction(3000, 302), fps) == "9.93 FPS"
    assert printed(Fraction(25, 2), change, more=0) == "+12.5%"
    assert printed(Fraction(150), calls, more=0) == "150 calls"
