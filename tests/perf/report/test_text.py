"""Numbers as text: units, digits, signs."""

from __future__ import annotations

import pytest

from strobe.core.printable import clean
from strobe.perf.report.model import (
    MAX_NAME,
    Code,
    Column,
    Count,
    ExactTime,
    Missing,
    Number,
    Ratio,
    Share,
    Text,
    Time,
    cell_text,
    exact_ms,
    shorten,
    significant,
)
from strobe.perf.report.svg import RatioScale, linear_ticks, percent, tick_text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7200.80759, "7201"), (12.999318, "13.00"), (9.5341, "9.534"), (0.0020004, "0.002000"), (-0.5, "-0.5000"),
     (123456.7, "123457"), (999.96, "1000"), (float("inf"), "inf")],
)  # fmt: skip
def test_four_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text


def test_exact_times_add_up_as_printed() -> None:
    assert [exact_ms(ns) for ns in (1, -1, 0, 1_446_198_900, -2_751_012)] == [
        "0.000001", "-0.000001", "0.000000", "1446.198900", "-2.751012",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "unit", "text"),
    [
        (Time(1_500_000), "", "1.500 ms"),
        (Time(1_500_000), "ms", "1.500"),
        (Time(1_500), "µs", "1.500"),
        (Time(2e9), "s", "2.000"),
        (ExactTime(-5), "ms", "-0.000005"),
        (Ratio(1.2513), "", "1.25x"),
        (Ratio(1.2513, 1.2, 1.3), "", "1.251x [1.200, 1.300]"),
        (Share(0.512), "", "51.2 %"),
        (Share(-0.0001), "", "0.0 %"),
        (Number(3.14159, 2, "dB"), "", "3.14 dB"),
        (Count(7), "", "7"),
        (Missing("why"), "", "not measured"),
        (Missing("why", "-"), "", "-"),
        (Text("a\nb"), "", "a\\nb"),
        (Code("\x07"), "", "\\x07"),
    ],
)
def test_cells(cell: object, unit: str, text: str) -> None:
    assert cell_text(cell, Column("c", unit)) == text  # type: ignore[arg-type]


def test_marks_that_change_how_text_is_read_are_made_visible() -> None:
    assert clean("a\u202eb\u2066c\u200bd\ufeffe\x85f\udc80g") == "a\\u202eb\\u2066c\\u200bd\\ufeffe\\x85f\\udc80g"
    assert clean("naïve — 中文 😀") == "naïve — 中文 😀"


def test_long_names_keep_both_ends() -> None:
    name = "begin" + "x" * 5000 + "end"
    assert shorten("void at::native::f<c10::BFloat16>(" + "at::T, " * 20 + ")") == "f<BFloat16>(" + "T, " * 20 + ")"
    assert shorten("at::short") == "at::short"
    assert len(shorten(name)) <= MAX_NAME and shorten(name).startswith("begin") and shorten(name).endswith("end")
    assert clean(name) == name


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 7200), (-3, 3), (0.0001, 0.0009), (0.97, 0.98), (5, 5)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    ticks = linear_ticks(low, high, 5)
    assert 1 <= len(ticks) <= 7 and all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
    labels = [tick_text(tick, ticks[1] - ticks[0]) for tick in ticks] if len(ticks) > 1 else []
    assert len(set(labels)) == len(labels) and [float(label) for label in labels] == pytest.approx(ticks[: len(labels)], abs=1e-9)


def test_coordinates() -> None:
    assert [percent(part) for part in (0, 1, 0.5, 1 / 3)] == ["0%", "100%", "50%", "33.333%"]


def test_ratio_axis_holds_every_bound_and_one() -> None:
    scale = RatioScale([Ratio(2.0, 1.5, 3.0), Ratio(0.8)])
    places = [scale.at(value) for value in (0.8, 1.0, 1.5, 2.0, 3.0)]
    assert places == sorted(places) and places[0] > 0 and places[-1] < 1 and 1.0 in scale.ticks()
    assert RatioScale([]).ticks() == [1.0]
