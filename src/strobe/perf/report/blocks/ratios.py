"""Cells of ratios with intervals, and of verdicts."""

from __future__ import annotations

from typing import Final

from strobe.perf.measure.stats import Interval, Verdict
from strobe.perf.report.model import Ratio, Text, Tone

_TONES: Final[dict[Verdict, Tone]] = {"faster": "good", "slower": "bad", "no difference": "muted", "inconclusive": "muted"}


def ratio_cell(ratio: float, interval: Interval | None) -> Ratio:
    """Return the cell of a ratio, with its interval if there is one."""
    return Ratio(ratio, interval.low, interval.high) if interval else Ratio(ratio)


def verdict_cell(verdict: Verdict) -> Text:
    """Return the cell of a verdict in its tone."""
    return Text(verdict, _TONES[verdict])
