"""What is on a picture of the bundled model: measures, colours, outlines and light, which its frames are read by."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from strobe.models.shapes.grammar import BACKGROUNDS, COLOURS, SHAPES, Rgb

SIZE = 128
"""Height and width of a picture in pixels."""

LONE_SPREAD = 24.0
"""A lone shape stands within this many pixels of the picture's centre, on either axis."""

PAIR_SPREAD = (4.0, 20.0)
"""The same for each of two shapes, along x and y, about the places `PAIR_X`."""

PAIR_X = (33.0, 95.0)

PERIOD = 32.0
"""Pixels after which the floor repeats, on either axis: two tiles."""

TILES = 0.25
"""How much brighter and darker tiles are than the background's colour."""

LIGHT = 0.1
"""How much brighter the floor is at the top of the picture, and darker at its bottom."""

EDGE = 2.5  # pixels over which an outline fades
TILE_EDGE = 2.5  # slope of the tiles' edges: a sine times this, cut at one
STAR_INNER = 0.5  # inner over outer radius of the star


@lru_cache(maxsize=8)
def _outlines(device: torch.device) -> Tensor:
    """Return a row for each outline, `[5, 6]`: `(folds, turn, angle_1, offset_1, angle_2, offset_2)`, lengths in radii.

    All five shapes have `folds` equal sectors, mirror-symmetric about an axis, the first axis at angle `turn`. With a the angle
    to the nearest axis and r the distance to the centre, inside is r cos(a - angle_i) <= offset_i for both i. Zero folds: a = 0.
    """
    tip = 1.25
    # The star's edge runs from the tip (tip, 0) to the notch; its normal and its distance to the centre follow.
    notch_x, notch_y = STAR_INNER * tip * math.cos(math.pi / 5), STAR_INNER * tip * math.sin(math.pi / 5)
    star_angle = math.atan2(tip - notch_x, notch_y)
    star = tip * math.cos(star_angle)
    up = -math.pi / 2
    outlines = {
        "circle": (0.0, 0.0, 0.0, 1.0, 0.0, 1.0),
        "square": (4.0, 0.0, 0.0, 0.86, 0.0, 0.86),
        "triangle": (3.0, math.pi / 2, 0.0, tip / 2, 0.0, tip / 2),
        "star": (5.0, up, star_angle, star, star_angle, star),
        "cross": (4.0, 0.0, 0.0, 1.1, math.pi / 2, 0.38),
    }
    assert tuple(outlines) == SHAPES
    return torch.tensor(list(outlines.values()), device=device)


@lru_cache(maxsize=8)
def palette(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return object colours `[8, 3]` and background colours `[4, 3]` in [0, 1], float32."""

    def scaled(colours: dict[str, Rgb]) -> Tensor:
        return torch.tensor(list(colours.values()), device=device) / 255

    return scaled(COLOURS), scaled(BACKGROUNDS)


def coverage(shape: Tensor, offset_x: Tensor, offset_y: Tensor, radius: Tensor) -> Tensor:
    """Compute the share of each pixel that an object covers: `s * s * (3 - 2 s)`, `s = clamp(1/2 - distance / EDGE, 0, 1)`.

    The distance to the outline is signed and in pixels, negative inside.

    Args:
        shape: numbers of the shapes, int `[M]`.
        offset_x: pixel centre minus object centre along x, float `[M, X]`.
        offset_y: the same along y, float `[M, Y]`.
        radius: pixels, float `[M]`.

    Returns:
        float `[M, Y, X]` in [0, 1].
    """
    outline = _outlines(shape.device)[shape]  # [M, 6]
    folds, turn, angle_1, offset_1, angle_2, offset_2 = outline[:, :, None, None].unbind(1)
    x, y, radius = offset_x[:, None, :], offset_y[:, :, None], radius[:, None, None]
    distance = torch.hypot(x, y)  # [M, Y, X]
    half = math.pi / folds.clamp(min=1)
    angle = torch.atan2(y, x) - turn + half
    angle = (torch.remainder(angle, 2 * half) - half).abs() * (folds > 0)
    outside_1 = distance * torch.cos(angle - angle_1) - offset_1 * radius
    outside_2 = distance * torch.cos(angle - angle_2) - offset_2 * radius
    inside = (0.5 - torch.maximum(outside_1, outside_2) / EDGE).clamp_(0, 1)
    return inside * inside * (3 - 2 * inside)


def light(device: torch.device) -> Tensor:
    """Return how bright the light on the floor is in each row of a picture, 1 on average, float32 `[SIZE, 1]`."""
    rows = torch.arange(SIZE, device=device, dtype=torch.float32)[:, None]
    return 1 + LIGHT * (1 - (2 * rows + 1) / SIZE)
