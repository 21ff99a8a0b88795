"""Cells of ratios with intervals, and of verdicts."""

from __future__ import annotations

from typing import Final

from strobe.perf.analysis.runs.compare import Comparison
from strobe.perf.measure.stats import Interval, Verdict
from strobe.perf.report.model import Headline, Ratio, Text, Tone

_TONES: Final[dict[Verdict, Tone]] = {"faster": "good", "slower": "bad", "no difference": "muted", "inconclusive": "muted"}


def ratio_cell(ratio: float, interval: Interval | None) -> Ratio:
    """Return the cell of a ratio, with its interval if there is one."""
    return Ratio(ratio, interval.low, interval.high) if interval else Ratio(ratio)


def verdict_cell(verdict: Verdict) -> Text:
    """Return the cell of a verdict in its tone."""
    return Text(verdict, _TONES[verdict])


def speedup_headline(label: str, series: int, found: Comparison) -> Headline:
    """Return the headline of a candidate: its speedup, the verdict, and the interval over pairs."""
    pairs = f"{len(found.ratios)} pair{'s' if len(found.ratios) != 1 else ''}"
    detail = f"{pairs}, too few for an interval"
    if found.interval is not None:
        detail = f"{found.interval.low:.3f} to {found.interval.high:.3f} at {100 * found.interval.level:.0f} %, {pairs}"
    return Headline(label, series, ratio_cell(found.ratio, found.interval), verdict_cell(found.verdict), detail)
