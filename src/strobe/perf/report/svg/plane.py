"""Scatter plot on two axes; tick labels stand inside the plot, so that it needs no margins and fits any width."""

from __future__ import annotations

from typing import Final

from strobe.perf.report.model import Axis, Level, Mark, Plane
from strobe.perf.report.svg import colour, esc, linear_ticks, percent, tick_text
from strobe.perf.report.text import significant

_HEIGHT: Final = 300
_TOP: Final = 0.14
_LABEL_GAP: Final = 0.055
_LEAST_SPAN: Final = 0.005
"""Relative difference below which values are drawn level with each other instead of magnified."""
_PER_UNIT: Final = {"": 1.0, "ms": 1e6, "dB": 1.0}


class Scale:
    """Linear scale of one axis with a margin on both sides; the margin of an upright axis does not reach below zero."""

    def __init__(self, axis: Axis, values: list[float], *, upright: bool) -> None:
        self.per_unit = _PER_UNIT[axis.unit]
        self.whole = axis.whole
        low, high = min(values), max(values)
        margin = max(0.08 * (high - low), _LEAST_SPAN * max(abs(low), abs(high))) or 1.0
        self.low = 0.0 if low >= 0 and (axis.from_zero or (upright and low < margin)) else low - margin
        self.high = high + margin

    def at(self, value: float) -> float:
        """Return the position of a value from the low end, in [0, 1]."""
        return (value - self.low) / (self.high - self.low)

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Return position and label of round values in the axis' unit."""
        values = linear_ticks(self.low / self.per_unit, self.high / self.per_unit, count, whole=self.whole)
        step = values[1] - values[0] if len(values) > 1 else 1.0
        return [(self.at(value * self.per_unit), tick_text(value, step)) for value in values]


def _y(part: float) -> str:
    return percent(1 - 0.1 - part * (1 - 0.1 - _TOP))


def _grid(plane: Plane, x: Scale, y: Scale) -> tuple[str, str]:
    """Draw the grid lines, to lie under the points, and the labels, to lie over them."""
    lines, labels = [], []
    for part, text in y.ticks(5):
        lines.append(f'<line class="grid" x1="0" x2="100%" y1="{_y(part)}" y2="{_y(part)}"/>')
        labels.append(f'<text class="tick" x="2" y="{_y(part)}" dy="-3">{text}</text>')
    for part, text in x.ticks(6):
        if 0.02 <= part <= 0.98:
            lines.append(f'<line class="stub" x1="{percent(part)}" x2="{percent(part)}" y1="90%" y2="92%"/>')
            labels.append(f'<text class="tick" x="{percent(part)}" y="97.5%" text-anchor="middle">{text}</text>')
    unit = f", {plane.y.unit}" if plane.y.unit else ""
    labels.append(f'<text class="axis-title" x="2" y="12">{esc(plane.y.title)}{unit}</text>')
    return "".join(lines), "".join(labels)


def _dot(mark: Mark, left: float, up: float) -> str:
    """Draw a point as a circle; a point above the axis as an arrow head at its end."""
    look = f'class="dot {colour(mark.series)}{" hollow" if mark.hollow else ""}"'
    if mark.above:
        place = f'x="{percent(left)}" y="{_y(up)}"'
        return f'<svg {place} overflow="visible" aria-hidden="true"><path {look} d="M-6 5L0 -6L6 5Z"/></svg>'
    return f'<circle {look} cx="{percent(left)}" cy="{_y(up)}" r="5"/>'


def _reach(mark: Mark, x: Scale, y: Scale, up: float) -> str:
    """Draw the intervals of a point as lines under it."""
    lines = ""
    if mark.low is not None and mark.high is not None:
        ends = f'x1="{percent(x.at(mark.low))}" x2="{percent(x.at(mark.high))}"'
        lines += f'<line class="whisker thin {colour(mark.series)}" {ends} y1="{_y(up)}" y2="{_y(up)}"/>'
    return lines


def _mark(mark: Mark, place: tuple[float, float], label_y: float | None) -> str:
    left, up = place
    dot = _dot(mark, left, up)
    if label_y is None:
        return dot
    anchor, shift = ("end", -10) if left > 0.7 else ("start", 10)
    where = f'x="{percent(left)}" dx="{shift}" y="{_y(label_y)}" dy="4" text-anchor="{anchor}"'
    return f'{dot}<text class="mark" {where}>{esc(mark.label)}</text>'


def _label_heights(places: list[tuple[float, float]], labelled: list[bool]) -> list[float | None]:
    """Return the heights of labels, with those of close points pushed apart upwards from the lowest."""
    heights: list[float | None] = [None] * len(places)
    taken: list[tuple[float, float]] = []
    for index in sorted(range(len(places)), key=lambda index: (places[index][1], places[index][0], index)):
        if not labelled[index]:
            continue
        left, height = places[index]
        for other_left, other_height in sorted(taken, key=lambda item: item[1]):
            if abs(other_left - left) < 0.25 and abs(other_height - height) < _LABEL_GAP:
                height = other_height + _LABEL_GAP
        taken.append((left, height))
        heights[index] = height
    return heights


def _level(level: Level, y: Scale) -> str:
    part = y.at(level.y)
    title = f"<title>{esc(level.label)}: {significant(level.y / y.per_unit)}</title>" if level.label else ""
    return f'<line class="level {colour(level.series)}" x1="0" x2="100%" y1="{_y(part)}" y2="{_y(part)}">{title}</line>'


def _legend_item(series: int, name: str) -> str:
    dot = f'<circle class="dot {colour(series)}" cx="6" cy="6" r="4.5"/>'
    return f'<li><svg width="12" height="12" aria-hidden="true">{dot}</svg>{esc(name)}</li>'


def draw_plane(plane: Plane, alt: str) -> str:
    """Draw the plot and its legend: names of series, and of points whose labels have no room beside them."""
    ends = [end for mark in plane.marks for end in (mark.low, mark.high) if end is not None]
    x = Scale(plane.x, [mark.x for mark in plane.marks] + ends, upright=False)
    finite = [mark.y for mark in plane.marks if not mark.above] + [level.y for level in plane.levels]
    y = Scale(plane.y, finite or [0.0], upright=True)
    places = [(x.at(mark.x), 1.0 if mark.above else y.at(mark.y)) for mark in plane.marks]
    heights = _label_heights(places, [bool(mark.label) for mark in plane.marks])
    body = "".join(_level(level, y) for level in plane.levels)
    body += "".join(_reach(mark, x, y, place[1]) for mark, place in zip(plane.marks, places, strict=True))
    body += "".join(_mark(mark, place, height) for mark, place, height in zip(plane.marks, places, heights, strict=True))
    unit = f", {plane.x.unit}" if plane.x.unit else ""
    labelled = "".join(_legend_item(mark.series, mark.label) for mark in plane.marks if mark.label)
    legend = "".join(_legend_item(index, name) for index, name in enumerate(plane.series))
    lists = f'<ul class="legend">{legend}</ul>' if legend else ""
    lists += f'<ul class="legend narrow" aria-hidden="true">{labelled}</ul>' if labelled else ""
    lines, labels = _grid(plane, x, y)
    return (
        f'<svg class="plane" role="img" height="{_HEIGHT}"><title>{esc(alt)}</title>{lines}{body}{labels}</svg>'
        f'<div class="x-title">{esc(plane.x.title)}{unit}</div>{lists}'
    )
