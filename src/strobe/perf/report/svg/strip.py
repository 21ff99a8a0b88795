"""Stacked shares of classes over a whole trace, one lane per device or stream; no script is needed to see them."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from strobe.perf.report.model import Strip, StripLane
from strobe.perf.report.svg import esc
from strobe.perf.report.svg.timeline import kind_legend, time_axis
from strobe.perf.report.text import shorten

_LANE: Final = 64
_TOP: Final = 22
_HEIGHT: Final = 34
_STEPS: Final = 100
"""Steps of height in a lane: hundredths, finer than a pixel."""


def _edges(lane: StripLane) -> list[list[int]]:
    """Return the upper edge of every class in every bin, in steps from the bottom; the first row is the bottom."""
    totals, edges = [0] * len(lane.permille[0]), [[0] * len(lane.permille[0])]
    for shares in lane.permille:
        totals = [total + share for total, share in zip(totals, shares, strict=True)]
        edges.append([min(_STEPS, round(total * _STEPS / 1000)) for total in totals])
    return edges


def _path(lower: list[int], upper: list[int]) -> str:
    """Return the SVG path of rectangles between two edges; neighbours of equal height are one."""
    parts, at = [], 0
    for (low, high), group in groupby(zip(lower, upper, strict=True)):
        width = sum(1 for _ in group)
        if high > low:
            parts.append(f"M{at} {_STEPS - low}h{width}V{_STEPS - high}H{at}z")
        at += width
    return "".join(parts)


def _lane(index: int, lane: StripLane, picture: Strip, name: str) -> str:
    top, edges = index * _LANE, _edges(lane)
    shapes = []
    for number, kind in enumerate(picture.kinds):
        path = _path(edges[number], edges[number + 1])
        if path:  # a clip in units of the lane: the hatches under it keep their size
            place = f"{name}-{index}-{number}"
            shapes.append(
                f'<clipPath id="{place}" clipPathUnits="objectBoundingBox">'
                f'<path transform="scale({1 / len(edges[0]):.9f} {1 / _STEPS})" d="{path}"/></clipPath>'
                f'<rect class="{kind.style}" width="100%" height="{_HEIGHT}" clip-path="url(#{place})"/>'
            )
    return (
        f'<text class="lane-title" x="0" y="{top + 15}">{esc(shorten(lane.label))}</text>'
        f'<svg x="0" width="100%" y="{top + _TOP}" height="{_HEIGHT}">'
        f'<rect class="lane-ground" width="100%" height="{_HEIGHT}"/>{"".join(shapes)}</svg>'
    )


def draw_strip(picture: Strip, alt: str, name: str) -> str:
    """Draw the lanes, the axis and the legend.

    Args:
        picture: what to draw.
        alt: the picture in words.
        name: unique on the page.
    """
    lanes = "".join(_lane(index, lane, picture, name) for index, lane in enumerate(picture.lanes) if lane.permille)
    top = len(picture.lanes) * _LANE
    axis = time_axis(picture.length_ns, top)
    return (
        f'<svg class="lanes" role="img" height="{top + 22}"><title>{esc(alt)}</title>{lanes}{axis}</svg>'
        f'<div class="x-title">ms from the start</div>{kind_legend(picture.kinds)}'
    )
