"""Pictures as inline SVG in percent coordinates: text keeps its size at every width, and no script is needed to see them."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable
from html import escape as _escape
from itertools import pairwise
from typing import Final, TypeAlias

from strobe.core.printable import clean
from strobe.perf.table.model import (
    Axis,
    Bar,
    Flame,
    Frame,
    Lane,
    Plane,
    PlotPoint,
    Ratio,
    Timeline,
    Waterfall,
    Whiskers,
    ratio_text,
    shorten,
    significant,
)
from strobe.perf.table.rows import gathered

_COLOURS: Final = 9


def esc(text: str) -> str:
    """Escape text for element content and quoted attributes."""
    return _escape(clean(text), quote=True)


def colour(series: int) -> str:
    """Return the CSS class of a series; nine colours repeat."""
    return f"s{series % _COLOURS}"


def percent(part: float) -> str:
    """Format a fraction as a percent coordinate with three decimals, without trailing zeros."""
    text = f"{100 * part:.3f}".rstrip("0").rstrip(".")
    return f"{text or '0'}%"


def linear_ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """Return about `count` round values in [low, high], with steps of 1, 2 or 5 times a power of ten, at least 1 if `whole`."""
    if high <= low:
        return [low]
    raw, power = (high - low) / count, 1.0
    while power * 10 <= raw:
        power *= 10
    while power > raw:
        power /= 10
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    step = max(1.0, step) if whole else step
    first = -(-low // step)
    ticks = []
    while first * step <= high * (1 + 1e-9):
        ticks.append(first * step)
        first += 1
    return ticks


def tick_text(value: float, step: float = 1e-3) -> str:
    """Format a tick with as many decimals as ticks `step` apart need, without trailing zeros or a sign on zero."""
    text = f"{value + 0.0:.{max(0, 1 - math.floor(math.log10(step)))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# Pictures with one row per bar: ratios with whiskers, and the waterfall.

_RATIO_TICKS: Final = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100)
_MS: Final = 1e6
_MIN_TICK_GAP: Final = 0.085


Bounds: TypeAlias = tuple[float, float]
"""Ends of a logarithmic axis of ratios."""


def ratio_bounds(ratios: Iterable[Ratio]) -> Bounds:
    """Return the ends of an axis that includes every interval of `ratios`, and 1.0."""
    given = (bound for ratio in ratios for bound in (ratio.value, ratio.low, ratio.high))
    values = [1.0, *(bound for bound in given if bound is not None and bound > 0)]
    margin = max(1.02, (max(values) / min(values)) ** 0.06)
    return min(values) / margin, max(values) * margin


def ratio_place(ratio: float, bounds: Bounds) -> float:
    """Return where on the axis a ratio lies, 0 to 1."""
    low, high = bounds
    return min(1.0, math.log(max(ratio, low) / low) / math.log(high / low))


def ratio_ticks(bounds: Bounds) -> list[float]:
    """Return round ratios in range, 1.0 always among them, no two closer than a label is wide."""
    chosen = [1.0]
    for tick in sorted(_RATIO_TICKS, key=lambda tick: (abs(math.log(tick)), tick)):
        gaps = (abs(ratio_place(tick, bounds) - ratio_place(other, bounds)) for other in chosen)
        if bounds[0] <= tick <= bounds[1] and all(gap >= _MIN_TICK_GAP for gap in gaps):
            chosen.append(tick)
    return sorted(chosen)


def _rules(parts: Iterable[float], style: str) -> str:
    lines = "".join(f'<line x1="{at}" x2="{at}" y2="100%"/>' for at in map(percent, parts))
    return f'<g class="{style}">{lines}</g>'


def whisker_svg(ratio: Ratio, series: int, bounds: Bounds, title: str) -> str:
    """Draw one row: grid lines, the interval as a line, the value as a dot."""
    grid = _rules((ratio_place(tick, bounds) for tick in ratio_ticks(bounds) if tick != 1), "grid")
    ends = (1.0, ratio.value, *(ratio.value if end is None else end for end in (ratio.low, ratio.high)))
    one, at, low, high = (percent(ratio_place(end, bounds)) for end in ends)
    return (
        f'<svg class="cell {colour(series)}" role="img" height="30"><title>{esc(title)}</title>'
        f"{grid}{_rules((ratio_place(1, bounds),), 'one')}"
        f'<line class="reach" x1="{one}" x2="{at}" y1="50%" y2="50%"/>'
        f'<line class="whisker" x1="{low}" x2="{high}" y1="50%" y2="50%"/><circle class="dot" cx="{at}" cy="50%" r="3.5"/></svg>'
    )


def ratio_axis(bounds: Bounds) -> str:
    """Draw the row of tick labels under ratio rows."""
    return _axis((ratio_place(tick, bounds), f"{tick_text(tick)}x") for tick in ratio_ticks(bounds))


def _axis(ticks: Iterable[tuple[float, str]]) -> str:
    labels = "".join(f'<text x="{percent(part)}" y="13" text-anchor="middle">{text}</text>' for part, text in ticks)
    return f'<svg class="cell axis" height="18" aria-hidden="true">{labels}</svg>'


def draw_whiskers(picture: Whiskers) -> str:
    """Draw ratios as rows, with a heading row where the group changes."""
    bounds = ratio_bounds(row.ratio for row in picture.rows)
    parts, group = ['<div class="rows">'], ""
    for row in picture.rows:
        if row.group != group:
            group = row.group
            parts.append(f'<div class="group">{esc(group)}</div>')
        detail = f'<span class="detail">{esc(row.detail)}</span>' if row.detail else ""
        text = ratio_text(row.ratio)
        parts.append(
            f'<div class="label">{esc(row.label)}</div>{whisker_svg(row.ratio, row.series, bounds, f"{row.label}: {text}")}'
            f'<div class="value"><b>{ratio_text(Ratio(row.ratio.value))}</b>{detail}</div>'
        )
    name = f'<div class="label axis">{esc(picture.reference)} = 1x, logarithmic</div>'
    foot = f'{name}{ratio_axis(bounds)}<div class="value"></div></div>'
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


def _interval(bar: Bar, at: Callable[[float], str]) -> tuple[str, str]:
    if bar.low_ns is None or bar.high_ns is None:
        return "", ""
    low, high = (format((end - bar.start_ns) / _MS, f"{'' if bar.total else '+'}.3f") for end in (bar.low_ns, bar.high_ns))
    left, right = at(bar.low_ns), at(bar.high_ns)
    caps = "".join(f'<line x1="{x}" x2="{x}" y1="9" y2="17"/>' for x in (left, right))
    line = f'<line x1="{left}" x2="{right}" y1="13" y2="13"/>{caps}'
    words = f", 95 % interval {low} to {high} ms"
    return words, f'<g class="interval" stroke="currentColor" stroke-width="1.5">{line}</g>'


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
    words, interval = _interval(bar, at)
    link = f'<line class="link" x1="{at(bar.stop_ns)}" x2="{at(bar.stop_ns)}" y1="50%" y2="100%"/>'
    return (
        f'<div class="label{" strong" if bar.total else ""}">{esc(bar.label)}</div>'
        f'<svg class="cell" role="img" height="26"><title>{esc(bar.label)}: {text} ms{words}</title>{grid}{link}'
        f'<rect class="bar {"total" if bar.total else bar.tone}" x="{at(left)}" width="{width(left, right)}" y="5" height="16"/>'
        f"{interval}{cut}</svg>"
        f'<div class="value">{f"<b>{text}</b>" if bar.total else text}</div>'
    )


def draw_waterfall(picture: Waterfall) -> str:
    """Draw totals that stand on the axis and lines that float between them; a cut axis is marked on totals and in words."""
    low, high = _waterfall_domain(picture.bars)
    ticks = linear_ticks(low / _MS, high / _MS, 5)
    rows = "".join(_bar_row(bar, low, high, ticks) for bar in picture.bars)
    labels = _axis(((tick * _MS - low) / (high - low), tick_text(tick)) for tick in ticks)
    cut = f", axis cut: starts at {significant(low / _MS)}" if low > 0 else ""
    axis = f'<div class="label axis">ms{cut}</div>{labels}'
    return f'<div class="rows">{rows}{axis}<div class="value"></div></div>'


# Flame graphs with the root on top: widths are times; a differential one is coloured by the difference.

_CHANGES: Final = (
    ("less3", "30 % less or more"), ("less2", "10 to 30 % less"), ("less1", "2 to 10 % less"), ("same", "within 2 %"),
    ("more1", "2 to 10 % more"), ("more2", "10 to 30 % more"), ("more3", "30 % more or more"),
)  # fmt: skip
MAX_FRAMES: Final = 400
"""Frames drawn in all flames of a page; the narrowest are left out first."""
_ROW: Final = 20
_LEAST_LABEL: Final = 0.03
_LEAST_FRAME: Final = 0.0005
"""Smallest width of a drawn frame, as a share: narrower ones would be less than half a pixel."""
_FLAME_STEPS: Final = ((0.02, ""), (0.1, "1"), (0.3, "2"), (float("inf"), "3"))
"""Colours by relative difference: below 2 % of the larger side grey; 10 % and 30 % separate light, middle and full colour."""


def _look(frame: Frame, total: int, differential: bool) -> tuple[str, str]:
    """Return the style of a frame, and what it says."""
    label, after = shorten(frame.label), significant(frame.candidate_ns / _MS)
    if not differential:
        number = 1 + zlib.crc32(frame.label.encode("utf-8", "surrogatepass")) % 4
        return f"work{number}", f"{label}: {after} ms, {100 * frame.candidate_ns / total:.1f} %"
    change = frame.candidate_ns - frame.baseline_ns
    part = abs(change) / max(frame.baseline_ns, frame.candidate_ns, 1)
    step = next(name for limit, name in _FLAME_STEPS if part < limit)
    relative = f" ({100 * change / frame.baseline_ns:+.1f} %)" if frame.baseline_ns else ""
    says = f"{label}: {significant(frame.baseline_ns / _MS)} to {after} ms, {change / _MS:+.3f} ms{relative}"
    return f"{'more' if change > 0 else 'less'}{step}" if step else "same", says


def draw_flame(picture: Flame, alt: str, max_frames: int = MAX_FRAMES) -> str:
    """Draw the frames wide enough to be seen (the widest if there are too many), and the legend of a differential graph.

    A frame is as wide as its larger side, or as its children need.
    """
    order, waiting = list[tuple[Frame, int, int]](), [(picture.root, -1, 0)]  # frame, position of its parent, depth
    while waiting:
        frame, parent, depth = waiting.pop()
        waiting += ((child, len(order), depth + 1) for child in reversed(frame.children))
        order.append((frame, parent, depth))
    widths, inside = [0] * len(order), [0] * (len(order) + 1)
    for at, (frame, parent, _) in reversed(list(enumerate(order))):
        widths[at] = max(frame.baseline_ns, frame.candidate_ns, inside[at])
        inside[parent] += widths[at]
    lefts, free = list[int](), [0] * (len(order) + 1)  # free: where the next child of a frame starts; the root's is the last
    for at, (_, parent, _) in enumerate(order):
        lefts.append(free[parent])
        free[at] = free[parent]
        free[parent] += widths[at]
    total = widths[0]
    if not total:
        return f'<p class="small">{esc(alt)}: no time was spent.</p>'
    # a parent is never narrower than its child and comes first: no drawn frame hangs in the air
    seen = [at for at, width in enumerate(widths) if width >= _LEAST_FRAME * total]
    widest = sorted(seen, key=lambda at: (-widths[at], order[at][2], lefts[at]))[:max_frames]
    frames = []
    for at in sorted(widest, key=lambda at: (order[at][2], lefts[at])):
        frame, _, depth = order[at]
        label = esc(shorten(frame.label)) if widths[at] >= _LEAST_LABEL * total else ""
        text = f'<text x="4" y="14">{label}</text>' if label else ""
        style, says = _look(frame, max(1, picture.root.candidate_ns), picture.differential)
        frames.append(
            f'<svg x="{percent(lefts[at] / total)}" y="{depth * _ROW}" width="{percent(widths[at] / total)}" height="{_ROW}">'
            f'<title>{esc(says)}</title><rect class="{style}"/>{text}</svg>'
        )
    height = (1 + max(order[at][2] for at in widest)) * _ROW
    rest = sum(width > 0 for width in widths) - len(widest)
    note = f'<p class="small">{rest} narrow frames are not drawn; the table has the times.</p>' if rest else ""
    svg = f'<svg class="flame" role="img" height="{height}"><title>{esc(alt)}</title>{"".join(frames)}</svg>'
    return svg + (_swatches(_CHANGES) if picture.differential else "") + note


# Scatter plot on two axes; tick labels stand inside the plot, so that it needs no margins and fits any width.

_PLANE_HEIGHT: Final = 300
_PLANE_TOP: Final = 0.14
_LABEL_GAP: Final = 0.055
_LEAST_SPAN: Final = 0.005
"""Relative difference below which values are drawn level with each other instead of magnified."""
_PER_UNIT: Final = {"": 1.0, "ms": 1e6, "dB": 1.0}


def _plane_bounds(axis: Axis, values: list[float], *, upright: bool) -> Bounds:
    """Return the ends of a linear axis with a margin on both sides; that of an upright axis does not reach below zero."""
    low, high = min(values), max(values)
    margin = max(0.08 * (high - low), _LEAST_SPAN * max(abs(low), abs(high))) or 1.0
    return 0.0 if low >= 0 and (axis.from_zero or (upright and low < margin)) else low - margin, high + margin


def _place(value: float, bounds: Bounds) -> float:
    return (value - bounds[0]) / (bounds[1] - bounds[0])


def _plane_ticks(axis: Axis, bounds: Bounds, count: int) -> list[tuple[float, str]]:
    unit = _PER_UNIT[axis.unit]
    values = linear_ticks(bounds[0] / unit, bounds[1] / unit, count, whole=axis.whole)
    step = values[1] - values[0] if len(values) > 1 else 1.0
    return [(_place(value * unit, bounds), tick_text(value, step)) for value in values]


def _y(part: float) -> str:
    return percent(1 - 0.1 - part * (1 - 0.1 - _PLANE_TOP))


def _grid(plane: Plane, x: Bounds, y: Bounds) -> tuple[str, str]:
    lines, labels = [], []
    for part, text in _plane_ticks(plane.y, y, 5):
        lines.append(f'<line class="grid" x1="0" x2="100%" y1="{_y(part)}" y2="{_y(part)}"/>')
        labels.append(f'<text class="tick" x="2" y="{_y(part)}" dy="-3">{text}</text>')
    for part, text in _plane_ticks(plane.x, x, 6):
        if 0.02 <= part <= 0.98:
            lines.append(f'<line class="stub" x1="{percent(part)}" x2="{percent(part)}" y1="90%" y2="92%"/>')
            labels.append(f'<text class="tick" x="{percent(part)}" y="97.5%" text-anchor="middle">{text}</text>')
    unit = f", {plane.y.unit}" if plane.y.unit else ""
    labels.append(f'<text class="axis-title" x="2" y="12">{esc(plane.y.title)}{unit}</text>')
    return "".join(lines), "".join(labels)


def _reach(mark: PlotPoint, x: Bounds, up: float) -> str:
    if mark.low is None or mark.high is None:
        return ""
    ends = f'x1="{percent(_place(mark.low, x))}" x2="{percent(_place(mark.high, x))}"'
    return f'<line class="whisker thin {colour(mark.series)}" {ends} y1="{_y(up)}" y2="{_y(up)}"/>'


def _mark(mark: PlotPoint, place: tuple[float, float], label_y: float | None) -> str:
    left, up = place
    look = f'class="dot {colour(mark.series)}{" hollow" if mark.hollow else ""}"'
    dot = f'<circle {look} cx="{percent(left)}" cy="{_y(up)}" r="5"/>'
    if mark.above:
        head = f'<path {look} d="M-6 5L0 -6L6 5Z"/>'
        dot = f'<svg x="{percent(left)}" y="{_y(up)}" overflow="visible" aria-hidden="true">{head}</svg>'
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


def _legend_item(series: int, name: str) -> str:
    dot = f'<circle class="dot {colour(series)}" cx="6" cy="6" r="4.5"/>'
    return f'<li><svg width="12" height="12" aria-hidden="true">{dot}</svg>{esc(name)}</li>'


def draw_plane(plane: Plane, alt: str) -> str:
    """Draw the plot and its legend: names of series, and of points whose labels have no room beside them."""
    ends = [end for mark in plane.marks for end in (mark.low, mark.high) if end is not None]
    x = _plane_bounds(plane.x, [mark.x for mark in plane.marks] + ends, upright=False)
    finite = [mark.y for mark in plane.marks if not mark.above]
    y = _plane_bounds(plane.y, finite or [0.0], upright=True)
    places = [(_place(mark.x, x), 1.0 if mark.above else _place(mark.y, y)) for mark in plane.marks]
    heights = _label_heights(places, [bool(mark.label) for mark in plane.marks])
    body = "".join(
        f'<line class="level {colour(0)}" x1="{percent(x0)}" x2="{percent(x1)}" y1="{_y(y0)}" y2="{_y(y1)}"/>'
        for (x0, y0), (x1, y1) in pairwise(places[at] for at in plane.joined)
    )
    body += "".join(_reach(mark, x, place[1]) for mark, place in zip(plane.marks, places, strict=True))
    body += "".join(_mark(mark, place, height) for mark, place, height in zip(plane.marks, places, heights, strict=True))
    unit = f", {plane.x.unit}" if plane.x.unit else ""
    labelled = "".join(_legend_item(mark.series, mark.label) for mark in plane.marks if mark.label)
    legend = "".join(_legend_item(index, name) for index, name in enumerate(plane.series))
    lists = f'<ul class="legend">{legend}</ul>' if legend else ""
    lists += f'<ul class="legend narrow" aria-hidden="true">{labelled}</ul>' if labelled else ""
    lines, labels = _grid(plane, x, y)
    return (
        f'<svg class="plane" role="img" height="{_PLANE_HEIGHT}"><title>{esc(alt)}</title>{lines}{body}{labels}</svg>'
        f'<div class="x-title">{esc(plane.x.title)}{unit}</div>{lists}'
    )


# Lanes of slices on one axis in nanoseconds, drawn without a script; the page's script adds zoom and a readout.

_TIMELINE_LANE: Final = 72
_STRIP_TOP: Final = 24
_STRIP: Final = 34
_HATCHES: Final = {  # angle and distance of the lines of each gap class
    "gap1": (45, 5), "gap2": (-45, 5), "gap3": (0, 5), "gap4": (90, 5), "gap5": (45, 9),
}  # fmt: skip


def hatch_patterns() -> str:
    """Draw the definitions of the hatches, once per page."""
    patterns = "".join(
        f'<pattern id="{name}" width="{step}" height="{step}" patternUnits="userSpaceOnUse" patternTransform="rotate({angle})">'
        f'<line class="hatch" x1="0" x2="0" y1="0" y2="{step}"/></pattern>'
        for name, (angle, step) in _HATCHES.items()
    )
    return f'<svg width="0" height="0" class="defs" aria-hidden="true"><defs>{patterns}</defs></svg>'


def _timeline_lane(index: int, lane: Lane, picture: Timeline) -> str:
    top, length = index * _TIMELINE_LANE, picture.length_ns
    groups = gathered(
        (kind, f'<rect x="{percent(start / length)}" width="{percent(duration / length)}"/>')
        for start, duration, kind in zip(lane.start_ns, lane.duration_ns, lane.kind, strict=True)
    )
    slices = "".join(f'<g class="{picture.kinds[kind].style}">{"".join(groups[kind])}</g>' for kind in sorted(groups))
    return (
        f'<text class="lane-title" x="0" y="{top + 16}">{esc(shorten(lane.label))}'
        f'<tspan class="tick" dx="8">{significant(lane.length_ns / _MS)} ms</tspan></text>'
        f'<svg class="zoom" x="0" width="100%" y="{top + _STRIP_TOP}" height="{_STRIP}">'
        f'<rect class="lane-ground" x="0" width="{percent(lane.length_ns / length)}"/>{slices}</svg>'
    )


def _time_axis(length_ns: int, top: int) -> str:
    parts = []
    for tick in linear_ticks(0, length_ns / _MS, 8):
        at = percent(tick * _MS / length_ns)
        anchor = "start" if tick == 0 else "middle"
        parts.append(f'<line class="stub" x1="{at}" x2="{at}" y1="0" y2="5"/>')
        parts.append(f'<text class="tick" x="{at}" y="17" text-anchor="{anchor}">{tick_text(tick)}</text>')
    return f'<svg class="zoom ticks" x="0" width="100%" y="{top}" height="20">{"".join(parts)}</svg>'


def _swatches(items: Iterable[tuple[str, str]]) -> str:
    shown = (
        f'<li><svg width="22" height="12" aria-hidden="true"><rect class="{style}" width="22" height="12"/></svg>{esc(name)}</li>'
        for style, name in items
    )
    return f'<ul class="legend">{"".join(shown)}</ul>'


def draw_timeline(picture: Timeline, alt: str) -> str:
    """Draw the lanes, the axis and the legend, with the data for the script and the place of its readout."""
    height = len(picture.lanes) * _TIMELINE_LANE + 22
    lanes = "".join(_timeline_lane(index, lane, picture) for index, lane in enumerate(picture.lanes))
    joins = (lane for lane in picture.lanes if lane.num_joined)
    joined = "; ".join(f"{shorten(lane.label)} {lane.num_joined} of {lane.num_total} slices" for lane in joins)
    note = f"Too short to be drawn alone, so sorted by class among their neighbours: {joined}."
    thin = f'<p class="small">{esc(note)}</p>' if joined else ""
    legend = _swatches((kind.style, shorten(kind.label)) for kind in picture.kinds)
    keys = {"length": "length_ns", "t": "start_ns", "d": "duration_ns", "n": "name", "k": "kind"}
    slices = [{"label": shorten(lane.label)} | {key: getattr(lane, of) for key, of in keys.items()} for lane in picture.lanes]
    names, kinds = [shorten(name) for name in picture.names], [shorten(kind.label) for kind in picture.kinds]
    data = {"length": picture.length_ns, "names": names, "kinds": kinds, "lanes": slices}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)  # for the readout
    for mark in "<>&":  # escaped so that no name can close the script element
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return (
        f'<div class="timeline" data-lane="{_TIMELINE_LANE}"><svg class="lanes" role="img" height="{height}" tabindex="0">'
        f"<title>{esc(alt)}</title>"
        f"{lanes}{_time_axis(picture.length_ns, len(picture.lanes) * _TIMELINE_LANE)}</svg>"
        f'<div class="x-title">ms from the start</div>'
        f'<p class="readout" aria-live="polite"></p>{legend}{thin}'
        f'<script type="application/json">{text}</script></div>'
    )
