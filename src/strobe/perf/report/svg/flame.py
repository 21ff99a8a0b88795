"""Flame graphs with the root on top: widths are times; a differential one is coloured by the difference."""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

from strobe.perf.report.model import Flame, Frame
from strobe.perf.report.svg import esc, percent
from strobe.perf.report.text import shorten, significant

MAX_FRAMES: Final = 400
"""Frames drawn in all flames of a page; the narrowest are left out first."""
_ROW: Final = 20
_LEAST_LABEL: Final = 0.03
_LEAST_FRAME: Final = 0.0005
"""Smallest width of a drawn frame, as a share: narrower ones would be less than half a pixel."""
_MS: Final = 1e6
_STEPS: Final = ((0.02, ""), (0.1, "1"), (0.3, "2"), (float("inf"), "3"))
"""Colours by relative difference: below 2 % of the larger side grey; 10 % and 30 % separate light, middle and full colour."""


class _Box(NamedTuple):
    frame: Frame
    left: int
    width: int
    depth: int


def _boxes(root: Frame) -> list[_Box]:
    """Return every frame with its place, parents before children.

    A frame is as wide as the larger of its two sides, or wider if its children need more because one grew and another shrank.
    """
    order, waiting = list[tuple[Frame, int, int]](), [(root, -1, 0)]  # frame, position of its parent, depth
    while waiting:
        frame, parent, depth = waiting.pop()
        waiting += ((child, len(order), depth + 1) for child in reversed(frame.children))
        order.append((frame, parent, depth))
    widths, inside = [0] * len(order), [0] * (len(order) + 1)
    for position in reversed(range(len(order))):
        frame, parent, _ = order[position]
        widths[position] = max(frame.baseline_ns, frame.candidate_ns, inside[position])
        inside[parent] += widths[position]
    boxes, free = list[_Box](), [0] * (len(order) + 1)  # free: where the next child of a frame starts; the root's is the last
    for position, (frame, parent, depth) in enumerate(order):
        boxes.append(_Box(frame, free[parent], widths[position], depth))
        free[position] = free[parent]
        free[parent] += widths[position]
    return boxes


def _style(frame: Frame, differential: bool) -> str:
    if not differential:
        return f"work{1 + zlib.crc32(frame.label.encode('utf-8', 'surrogatepass')) % 4}"
    change = frame.candidate_ns - frame.baseline_ns
    part = abs(change) / max(frame.baseline_ns, frame.candidate_ns, 1)
    step = next(name for limit, name in _STEPS if part < limit)
    return f"{'more' if change > 0 else 'less'}{step}" if step else "same"


def _says(frame: Frame, total: int, differential: bool) -> str:
    label = shorten(frame.label)
    if not differential:
        return f"{label}: {significant(frame.candidate_ns / _MS)} ms, {100 * frame.candidate_ns / total:.1f} %"
    change = frame.candidate_ns - frame.baseline_ns
    sides = f"{significant(frame.baseline_ns / _MS)} to {significant(frame.candidate_ns / _MS)} ms"
    part = f" ({100 * change / frame.baseline_ns:+.1f} %)" if frame.baseline_ns else ""
    return f"{label}: {sides}, {change / _MS:+.3f} ms{part}"


def _frame(box: _Box, picture: Flame, total: int) -> str:
    label = esc(shorten(box.frame.label)) if box.width >= _LEAST_LABEL * total else ""
    text = f'<text x="4" y="14">{label}</text>' if label else ""
    says = esc(_says(box.frame, max(1, picture.root.candidate_ns), picture.differential))
    return (
        f'<svg x="{percent(box.left / total)}" y="{box.depth * _ROW}" width="{percent(box.width / total)}" height="{_ROW}">'
        f'<title>{says}</title><rect class="{_style(box.frame, picture.differential)}"/>{text}</svg>'
    )


def _legend(differential: bool) -> str:
    if not differential:
        return ""
    names = (
        ("less3", "30 % less or more"), ("less2", "10 to 30 % less"), ("less1", "2 to 10 % less"), ("same", "within 2 %"),
        ("more1", "2 to 10 % more"), ("more2", "10 to 30 % more"), ("more3", "30 % more or more"),
    )  # fmt: skip
    items = "".join(
        f'<li><svg width="22" height="12" aria-hidden="true"><rect class="{style}" width="22" height="12"/></svg>{name}</li>'
        for style, name in names
    )
    return f'<ul class="legend">{items}</ul>'


def draw_flame(picture: Flame, alt: str, max_frames: int = MAX_FRAMES) -> str:
    """Draw the frames wide enough to be seen (the widest if there are too many), and the legend of a differential graph."""
    boxes = [box for box in _boxes(picture.root) if box.width > 0]
    if not boxes:
        return f'<p class="small">{esc(alt)}: no time was spent.</p>'
    total = boxes[0].width
    # a parent is never narrower than its child and comes first: no drawn frame hangs in the air
    seen = [box for box in boxes if box.width >= _LEAST_FRAME * total]
    drawn = sorted(
        sorted(seen, key=lambda box: (-box.width, box.depth, box.left))[:max_frames], key=lambda box: (box.depth, box.left)
    )
    height = (1 + drawn[-1].depth) * _ROW
    frames = "".join(_frame(box, picture, total) for box in drawn)
    rest = len(boxes) - len(drawn)
    note = f'<p class="small">{rest} narrow frames are not drawn; the table has the times.</p>' if rest else ""
    svg = f'<svg class="flame" role="img" height="{height}"><title>{esc(alt)}</title>{frames}</svg>'
    return svg + _legend(picture.differential) + note
