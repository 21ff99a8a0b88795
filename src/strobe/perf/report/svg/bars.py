"""Pictures with one row per bar: ratios with whiskers, and the waterfall."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from strobe.perf.report.model import Bar, Ratio, Waterfall, Whiskers
from strobe.perf.report.svg import colour, esc, linear_ticks, percent, tick_text
from strobe.perf.report.text import ratio_text, significant

_RATIO_TICKS: Final = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100)
_MS: Final = 1e6
_MIN_TICK_GAP: Final = 0.085


class RatioScale:
    """Logarithmic axis that includes every interval of `ratios`, and 1.0."""

    def __init__(self, ratios: Iterable[Ratio]) -> None:
        values = [1.0]
        for ratio in ratios:
            values += [bound for bound in (ratio.value, ratio.low, ratio.high) if bound is not None and bound > 0]
        margin = max(1.02, (max(values) / min(values)) ** 0.06)
        self.low, self.high = min(values) / margin, max(values) * margin

    def at(self, ratio: float) -> float:
        """Return the position of a ratio, in [0, 1]."""
        part = math.log(max(ratio, self.low) / self.low) / math.log(self.high / self.low)
        return min(1.0, part)

    def ticks(self) -> list[float]:
        """Return round ratios in range, 1.0 always among them, no two closer than a label is wide."""
        inside = [tick for tick in _RATIO_TICKS if self.low <= tick <= self.high]
        chosen = [1.0]
        for tick in sorted(inside, key=lambda tick: (abs(math.log(tick)), tick)):
            if all(abs(self.at(tick) - self.at(other)) >= _MIN_TICK_GAP for other in chosen):
                chosen.append(tick)
        return sorted(chosen)


def _rules(parts: Iterable[float], style: str) -> str:
    """Draw vertical lines of one style over the height of a row."""
    lines = "".join(f'<line x1="{at}" x2="{at}" y2="100%"/>' for at in map(percent, parts))
    return f'<g class="{style}">{lines}</g>'


def whisker_svg(ratio: Ratio, series: int, scale: RatioScale, title: str) -> str:
    """Draw one row: grid lines, the interval as a line, the value as a dot."""
    grid = _rules((scale.at(tick) for tick in scale.ticks() if tick != 1), "grid") + _rules((scale.at(1),), "one")
    at, one = percent(scale.at(ratio.value)), percent(scale.at(1))
    low = percent(scale.at(ratio.value if ratio.low is None else ratio.low))
    high = percent(scale.at(ratio.value if ratio.high is None else ratio.high))
    return (
        f'<svg class="cell {colour(series)}" role="img" height="30"><title>{esc(title)}</title>{grid}'
        f'<line class="reach" x1="{one}" x2="{at}" y1="50%" y2="50%"/>'
        f'<line class="whisker" x1="{low}" x2="{high}" y1="50%" y2="50%"/><circle class="dot" cx="{at}" cy="50%" r="3.5"/></svg>'
    )


def ratio_axis(scale: RatioScale) -> str:
    """Draw the row of tick labels under ratio rows."""
    labels = "".join(
        f'<text x="{percent(scale.at(tick))}" y="13" text-anchor="middle">{tick_text(tick)}x</text>' for tick in scale.ticks()
    )
    return f'<svg class="cell axis" height="18" aria-hidden="true">{labels}</svg>'


def draw_whiskers(picture: Whiskers) -> str:
    """Draw ratios as rows, with a heading row where the group changes."""
    scale = RatioScale(row.ratio for row in picture.rows)
    parts, group = ['<div class="rows">'], ""
    for row in picture.rows:
        if row.group != group:
            group = row.group
            parts.append(f'<div class="group">{esc(group)}</div>')
        detail = f'<span class="detail">{esc(row.detail)}</span>' if row.detail else ""
        text = ratio_text(row.ratio)
        parts.append(
            f'<div class="label">{esc(row.label)}</div>{whisker_svg(row.ratio, row.series, scale, f"{row.label}: {text}")}'
            f'<div class="value"><b>{row.ratio.value:.2f}x</b>{detail}</div>'
        )
    name = f'<div class="label axis">{esc(picture.reference)} = 1x, logarithmic</div>'
    foot = f'{name}{ratio_axis(scale)}<div class="value"></div></div>'
    return "".join([*parts, foot])


def _waterfall_domain(bars: tuple[Bar, ...]) -> tuple[float, float]:
    """Return the range of the axis: from zero, or from just below the lowest line if the lines would be slivers."""
    steps = [edge for bar in bars if not bar.total for edge in (bar.start_ns, bar.stop_ns)]
    ends = [end for bar in bars for end in (bar.low_ns, bar.high_ns) if end is not None]
    edges = steps + ends + [bar.stop_ns for bar in bars if bar.total]
    low, high = float(min([0, *edges])), float(max(edges))
    if low == 0 and steps and high - min(edges) < 0.3 * high:
        low = min(edges) - 0.25 * (high - min(edges))
    return low, high if high > low else low + 1.0


def _interval(bar: Bar, at: Callable[[float], str]) -> str:
    """Draw the interval of a bar as a line with caps."""
    if bar.low_ns is None or bar.high_ns is None:
        return ""
    low, high = at(bar.low_ns), at(bar.high_ns)
    caps = "".join(f'<line x1="{x}" x2="{x}" y1="9" y2="17"/>' for x in (low, high))
    return (
        f'<g class="interval" stroke="currentColor" stroke-width="1.5"><line x1="{low}" x2="{high}" y1="13" y2="13"/>{caps}</g>'
    )


def _interval_text(bar: Bar) -> str:
    if bar.low_ns is None or bar.high_ns is None:
        return ""
    sign = "" if bar.total else "+"
    low, high = (format((end - bar.start_ns) / _MS, f"{sign}.3f") for end in (bar.low_ns, bar.high_ns))
    return f", 95 % interval {low} to {high} ms"


def _bar_row(bar: Bar, low: float, high: float, ticks: list[float]) -> str:
    def at(ns: float) -> str:
        return percent(min(1.0, max(0.0, (ns - low) / (high - low))))

    def width(left: float, right: float) -> str:
        return percent(max(0.0015, (min(right, high) - max(left, low)) / (high - low)))

    left, right = (max(low, 0.0) if bar.total else float(min(bar.start_ns, bar.stop_ns))), max(bar.start_ns, bar.stop_ns)
    delta = bar.stop_ns - bar.start_ns
    text = significant(bar.stop_ns / _MS) if bar.total else f"{delta / _MS:+.3f}"
    grid = _rules(((tick * _MS - low) / (high - low) for tick in ticks), "grid")
    cut = '<path class="cut" d="M6 2l5 11l-5 11l5 4"/>' if bar.total and low > 0 else ""
    link = f'<line class="link" x1="{at(bar.stop_ns)}" x2="{at(bar.stop_ns)}" y1="50%" y2="100%"/>'
    return (
        f'<div class="label{" strong" if bar.total else ""}">{esc(bar.label)}</div>'
        f'<svg class="cell" role="img" height="26"><title>{esc(bar.label)}: {text} ms{_interval_text(bar)}</title>{grid}{link}'
        f'<rect class="bar {"total" if bar.total else bar.tone}" x="{at(left)}" width="{width(left, right)}" y="5" height="16"/>'
        f"{_interval(bar, at)}{cut}</svg>"
        f'<div class="value">{f"<b>{text}</b>" if bar.total else text}</div>'
    )


def draw_waterfall(picture: Waterfall) -> str:
    """Draw totals that stand on the axis and lines that float between them; a cut axis is marked on totals and in words."""
    low, high = _waterfall_domain(picture.bars)
    ticks = linear_ticks(low / _MS, high / _MS, 5)
    rows = "".join(_bar_row(bar, low, high, ticks) for bar in picture.bars)
    labels = "".join(
        f'<text x="{percent((tick * _MS - low) / (high - low))}" y="13" text-anchor="middle">{tick_text(tick)}</text>'
        for tick in ticks
    )
    cut = f", axis cut: starts at {significant(low / _MS)}" if low > 0 else ""
    axis = f'<div class="label axis">ms{cut}</div><svg class="cell axis" height="18" aria-hidden="true">{labels}</svg>'
    return f'<div class="rows">{rows}{axis}<div class="value"></div></div>'
