"""Lanes of slices on one axis in nanoseconds, drawn without a script; the page's script adds zoom and a readout."""

from __future__ import annotations

import json
from typing import Final

from strobe.perf.report.model import Kind, Lane, Timeline
from strobe.perf.report.svg import esc, linear_ticks, percent, tick_text
from strobe.perf.report.text import shorten, significant

_LANE: Final = 72
_STRIP_TOP: Final = 24
_STRIP: Final = 34
_MS: Final = 1e6
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


def _slices(lane: Lane, kinds: tuple[Kind, ...], length: int) -> str:
    groups: dict[int, list[str]] = {}
    for start, duration, kind in zip(lane.start_ns, lane.duration_ns, lane.kind, strict=True):
        rect = f'<rect x="{percent(start / length)}" width="{percent(duration / length)}"/>'
        groups.setdefault(kind, []).append(rect)
    return "".join(f'<g class="{kinds[kind].style}">{"".join(groups[kind])}</g>' for kind in sorted(groups))


def _lane(index: int, lane: Lane, picture: Timeline) -> str:
    top = index * _LANE
    return (
        f'<text class="lane-title" x="0" y="{top + 16}">{esc(shorten(lane.label))}'
        f'<tspan class="tick" dx="8">{significant(lane.length_ns / _MS)} ms</tspan></text>'
        f'<svg class="zoom" x="0" width="100%" y="{top + _STRIP_TOP}" height="{_STRIP}">'
        f'<rect class="lane-ground" x="0" width="{percent(lane.length_ns / picture.length_ns)}"/>'
        f"{_slices(lane, picture.kinds, picture.length_ns)}</svg>"
    )


def time_axis(length_ns: int, top: int) -> str:
    """Draw ticks in milliseconds from 0 to `length_ns`, `top` pixels down."""
    parts = []
    for tick in linear_ticks(0, length_ns / _MS, 8):
        at = percent(tick * _MS / length_ns)
        anchor = "start" if tick == 0 else "middle"
        parts.append(f'<line class="stub" x1="{at}" x2="{at}" y1="0" y2="5"/>')
        parts.append(f'<text class="tick" x="{at}" y="17" text-anchor="{anchor}">{tick_text(tick)}</text>')
    return f'<svg class="zoom ticks" x="0" width="100%" y="{top}" height="20">{"".join(parts)}</svg>'


def kind_legend(kinds: tuple[Kind, ...]) -> str:
    """Draw a swatch and a name for each class."""
    swatches = (
        f'<svg width="22" height="12" aria-hidden="true"><rect class="{kind.style}" width="22" height="12"/></svg>'
        for kind in kinds
    )
    items = "".join(f"<li>{swatch}{esc(shorten(kind.label))}</li>" for swatch, kind in zip(swatches, kinds, strict=True))
    return f'<ul class="legend">{items}</ul>'


def embedded_json(picture: Timeline) -> str:
    """Return the slices as JSON for the readout; `<`, `>` and `&` are escaped so that no name can close the script element."""
    lanes = [
        {
            "label": shorten(lane.label),
            "length": lane.length_ns,
            "t": lane.start_ns,
            "d": lane.duration_ns,
            "n": lane.name,
            "k": lane.kind,
        }
        for lane in picture.lanes
    ]
    data = {
        "length": picture.length_ns,
        "names": [shorten(name) for name in picture.names],
        "kinds": [shorten(kind.label) for kind in picture.kinds],
        "lanes": lanes,
    }
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def draw_timeline(picture: Timeline, alt: str) -> str:
    """Draw the lanes, the axis and the legend, with the data for the script and the place of its readout."""
    height = len(picture.lanes) * _LANE + 22
    lanes = "".join(_lane(index, lane, picture) for index, lane in enumerate(picture.lanes))
    joined = "; ".join(
        f"{shorten(lane.label)} {lane.num_joined} of {lane.num_total} slices" for lane in picture.lanes if lane.num_joined
    )
    most = "joined with their neighbours in the colour of the class that owns most"
    how = "sorted by class among their neighbours" if picture.by_class else most
    note = f"Too short to be drawn alone, so {how}: {joined}."
    thin = f'<p class="small">{esc(note)}</p>' if joined else ""
    style = "timeline sums" if picture.by_class else "timeline"
    return (
        f'<div class="{style}" data-lane="{_LANE}"><svg class="lanes" role="img" height="{height}" tabindex="0">'
        f"<title>{esc(alt)}</title>"
        f"{lanes}{time_axis(picture.length_ns, len(picture.lanes) * _LANE)}</svg>"
        f'<div class="x-title">ms from the start of each step</div>'
        f'<p class="readout" aria-live="polite"></p>{kind_legend(picture.kinds)}{thin}'
        f'<script type="application/json">{embedded_json(picture)}</script></div>'
    )
