"""Values, changes and commits of a history as cells."""

from __future__ import annotations

import math

from strobe.core.printable import bytes_in
from strobe.perf.analysis.history.steps import Step
from strobe.perf.measure.stats import Interval
from strobe.perf.records.history import Followed
from strobe.perf.report.blocks.fields import Unit
from strobe.perf.report.model import Cell, Number, Text, Time, Tone

_DIGITS = 4
SHORT = 10
"""Digits of a commit's hash that are shown."""


def time_unit(figure: Followed) -> Unit:
    """Unit of the figure's columns; empty if it is none of time."""
    return "ms" if figure.unit == "ns" else ""


def in_unit(figure: Followed, value: float) -> float:
    """A value as an axis without a unit of its own draws it."""
    return bytes_in(value, "MiB") if figure.unit == "bytes" else value


def value_cell(figure: Followed, value: float) -> Cell:
    """A value with four digits."""
    if figure.unit == "ns":
        return Time(value)
    shown = in_unit(figure, value)
    digits = max(0, _DIGITS - 1 - math.floor(math.log10(abs(shown)))) if shown else 0
    return Number(shown, min(digits, 9), "MiB" if figure.unit == "bytes" else "")


def interval_cell(figure: Followed, interval: Interval | None) -> Text:
    """Both ends of the interval of a value."""
    if interval is None:
        return Text("-")
    per_unit = 1e6 if figure.unit == "ns" else 1.0
    low, high = (f"{in_unit(figure, end) / per_unit:.{_DIGITS}g}" for end in (interval.low, interval.high))
    return Text(f"{low} to {high}")


def percent_text(ratio: float) -> str:
    """`+12.3 %`."""
    return f"{100 * (ratio - 1):+.1f} %"


def change_text(ratio: float, interval: Interval | None) -> str:
    """`+12.3 % [+11.8, +12.9]`."""
    ends = "" if interval is None else f" [{100 * (interval.low - 1):+.1f}, {100 * (interval.high - 1):+.1f}]"
    return f"{percent_text(ratio)}{ends}"


def is_worse(figure: Followed, ratio: float) -> bool:
    """Return whether a change of the value is one to the worse."""
    return (ratio < 1) if figure.higher else (ratio > 1)


def step_cell(figure: Followed, step: Step) -> Text:
    """The change of a step in its tone."""
    tone: Tone = "bad" if is_worse(figure, step.ratio) else "good"
    return Text(change_text(step.ratio, step.interval), tone)
