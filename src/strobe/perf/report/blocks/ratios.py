"""Ratios with their intervals, and verdicts, as cells."""

from __future__ import annotations

from typing import Final

from strobe.perf.measure.stats import Interval, Verdict
from strobe.perf.report.model import Ratio, Text, Tone

_TONES: Final[dict[Verdict, Tone]] = {"faster": "good", "slower": "bad", "no difference": "muted", "inconclusive": "muted"}


def ratio_cell(ratio: float, interval: Interval | None) -> Ratio:
    """A ratio with its bounds, if it has any."""
    return Ratio(ratio, interval.low, interval.high) if interval else Ratio(ratio)


def verdict_cell(verdict: Verdict) -> Text:
    """The verdict in its tone."""
    return Text(verdict, _TONES[verdict])
