"""Rendering of scenes to pictures: anti-aliased, shaded shapes over a landscape that scrolls by, on CPU or GPU."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from strobe.core.errors import ShapeError
from strobe.models.shapes.grammar import BACKGROUNDS, COLOURS, COLUMNS, DIRECTIONS, SHAPES, SPEEDS, Rgb

SIZE = 128
"""Height and width of a picture in pixels."""

MARGIN = 18
"""Pixels beyond each border that belong to an object's way: it leaves the picture whole before it returns on the other side."""

WAY = SIZE + 2 * MARGIN
RADII = (15.0, 18.0)
"""Smallest and largest radius of an object in pixels. The area differs little between shapes of one radius."""

EDGE = 1.5  # pixels over which an outline fades
STAR_INNER = 0.5  # inner over outer radius of the star
DARKEST = 0.72  # share of its colour that the side of an object away from the light has

HORIZON = 84  # row where the ground begins
NEAR_SCROLL, FAR_SCROLL = 1.0, 0.25  # pixels per frame that the nearest row of the ground and the hills move to the left
TILE, HILL = 64.0, 64.0  # pixels after which the nearest row of the ground and the hills repeat
SHADOW_ROW = 112.0  # where shadows fall

PLACES = 6
"""Numbers that say where everything is: `(x, y)` of the first and the second object, scroll of the ground, scroll of the hills."""

LANDSCAPES: Final[dict[str, tuple[Rgb, Rgb, Rgb, Rgb, Rgb, Rgb]]] = {
    "black": ((2, 4, 16), (18, 26, 58), (10, 14, 32), (14, 18, 36), (26, 30, 50), (26, 30, 38)),
    "navy": ((16, 20, 84), (112, 66, 84), (40, 28, 72), (58, 42, 84), (34, 26, 58), (46, 22, 0)),
    "gray": ((88, 96, 108), (116, 122, 128), (80, 88, 98), (92, 96, 100), (68, 72, 76), (8, 8, 6)),
    "forest": ((12, 44, 56), (64, 100, 84), (16, 56, 42), (28, 72, 32), (20, 52, 26), (20, 22, 4)),
}
"""Colours of each background: top of the sky, sky at the horizon, hills, ground far and near, and what its sun adds."""


def _outlines() -> dict[str, tuple[float, float, float, float, float, float]]:
    """Describe each outline by `(folds, turn, angle_1, offset_1, angle_2, offset_2)`, lengths in radii.

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
    return outlines


@lru_cache(maxsize=8)
def _outline_table(device: torch.device) -> Tensor:
    return torch.tensor(list(_outlines().values()), device=device)


@lru_cache(maxsize=8)
def palette(device: torch.device) -> Tensor:
    """Return object colours `[8, 3]` in [0, 1], float32."""
    return torch.tensor(list(COLOURS.values()), device=device) / 255


@lru_cache(maxsize=8)
def _landscape_table(device: torch.device) -> Tensor:
    assert tuple(LANDSCAPES) == BACKGROUNDS
    return torch.tensor(list(LANDSCAPES.values()), device=device) / 255  # [4, 6, 3]


def coverage(shape: Tensor, offset_x: Tensor, offset_y: Tensor, radius: Tensor) -> Tensor:
    """Compute the share of each pixel that an object covers: `clamp(1/2 - distance / EDGE, 0, 1)`.

    The distance to the outline is signed and in pixels, negative inside.

    Args:
        shape: numbers of the shapes, int `[M]`.
        offset_x: pixel centre minus object centre along x, float `[M, X]`.
        offset_y: the same along y, float `[M, Y]`.
        radius: pixels, float `[M]`.

    Returns:
        float `[M, Y, X]` in [0, 1].
    """
    outline = _outline_table(shape.device)[shape]  # [M, 6]
    folds, turn, angle_1, offset_1, angle_2, offset_2 = outline[:, :, None, None].unbind(1)
    x, y, radius = offset_x[:, None, :], offset_y[:, :, None], radius[:, None, None]
    distance = torch.hypot(x, y)  # [M, Y, X]
    half = math.pi / folds.clamp(min=1)
    angle = torch.atan2(y, x) - turn + half
    angle = (torch.remainder(angle, 2 * half) - half).abs() * (folds > 0)
    outside_1 = distance * torch.cos(angle - angle_1) - offset_1 * radius
    outside_2 = distance * torch.cos(angle - angle_2) - offset_2 * radius
    return (0.5 - torch.maximum(outside_1, outside_2) / EDGE).clamp_(0, 1)


def wrapped(difference: Tensor, size: float = WAY) -> Tensor:
    """Return the shortest signed difference on a circle of `size` pixels, in [-size/2, size/2)."""
    return torch.remainder(difference + size / 2, size) - size / 2


@lru_cache(maxsize=8)
def tiles(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the ground's perspective: pixels of the nearest row for one of each row, and the sign of its tiles, `[rows]` each."""
    rows = torch.arange(HORIZON, SIZE, device=device, dtype=torch.float32)
    depth = (SIZE - 1 - HORIZON + 12) / (rows - HORIZON + 12)
    return depth, torch.tanh(3 * torch.cos(2 * math.pi * 1.25 * (depth - 1)))


def _landscape(background: Tensor, scrolls: Tensor) -> Tensor:
    """Draw sky, hills and ground `[M, 3, SIZE, SIZE]` from numbers `[M]` and scrolls `[M, 2]`."""
    device = background.device
    top, low, hills, far, near, glow = _landscape_table(device)[background][:, :, :, None, None].unbind(1)  # [M, 3, 1, 1] each
    pixels = torch.arange(SIZE, device=device, dtype=torch.float32)
    x, y = pixels[None, None, :], pixels[None, :, None]
    sun = torch.exp(-((x - 94).square() + (y - 40).square()) / (2 * 16.0**2))
    sky = torch.lerp(top, low, (y / HORIZON).clamp(max=1)) + glow * sun
    turn = 2 * math.pi / HILL * (x + scrolls[:, 1, None, None])  # [M, 1, X]
    height = 11 + 5 * torch.cos(turn) + 3 * torch.cos(2 * turn + 1)
    picture = torch.lerp(sky, hills, ((y - HORIZON + height) / EDGE + 0.5).clamp(0, 1)[:, None])
    depth, sign = tiles(device)
    across = 2 * math.pi / TILE * ((x - SIZE / 2) * depth[:, None] + scrolls[:, 0, None, None])  # [M, rows, X]
    closeness = ((y[:, HORIZON:] - HORIZON) / (SIZE - 1 - HORIZON)).clamp(0, 1)
    check = torch.tanh(3 * torch.cos(across)) * sign[:, None] * (0.05 + 0.20 * closeness)
    picture[:, :, HORIZON:] = torch.lerp(far, near, closeness) * (1 + check[:, None])
    return picture


def _put(picture: Tensor, colour: Tensor, shape: Tensor, centre: Tensor, radius: Tensor) -> Tensor:
    """Draw one object into pictures `[M, 3, SIZE, SIZE]`; a colour of -1 draws none."""
    pixels = torch.arange(SIZE, device=picture.device, dtype=torch.float32)
    x, y = (pixels - centre[:, :, None]).unbind(1)  # [M, SIZE] each
    cover = coverage(shape.clamp(min=0), x, y, radius) * (colour >= 0)[:, None, None]
    across, along = (x / radius[:, None])[:, None, :], (y / radius[:, None])[:, :, None]  # in radii
    shade = (0.92 - 0.14 * across - 0.18 * along).clamp(DARKEST, 1)
    shine = 0.3 * torch.exp(-((across + 0.35).square() + (along + 0.4).square()) / (2 * 0.2**2))
    base = palette(picture.device)[colour.clamp(min=0)][:, :, None, None]
    lit = base * shade[:, None]
    lit = lit + (1 - lit) * shine[:, None]
    return torch.lerp(picture, lit, cover[:, None])


def _shade(picture: Tensor, colour: Tensor, centre: Tensor, radius: Tensor) -> Tensor:
    """Darken the ground under an object; softer and weaker the higher it is."""
    pixels = torch.arange(SIZE, device=picture.device, dtype=torch.float32)
    high = ((SHADOW_ROW - centre[:, 1]) / SHADOW_ROW).clamp(0, 1)  # [M]
    wide = radius * (1 + 0.5 * high)
    x = (pixels - centre[:, :1]) / wide[:, None]
    y = (pixels[HORIZON:] - SHADOW_ROW) / (0.4 * wide[:, None])
    strength = (0.6 - 0.35 * high) * (colour >= 0)
    picture[:, :, HORIZON:] *= 1 - (
        strength[:, None, None] * torch.exp(-(x.square()[:, None, :] + y.square()[:, :, None]))
    ).unsqueeze(1)
    return picture


def _picture(attributes: Tensor, places: Tensor, radius: Tensor) -> Tensor:
    """Draw single frames `[M, 3, SIZE, SIZE]` from attributes `[M, 9]`, places `[M, 6]` and radius `[M]`.

    Of two objects, that whose colour has the lower number is in front.
    """
    picture = _landscape(attributes[:, 4], places[:, 4:])
    swap = attributes[:, 5] > attributes[:, 0]  # the second is behind
    behind, front = torch.where(swap, 5, 0), torch.where(swap, 0, 5)
    where = places[:, :4].unflatten(1, (2, 2))
    drawn = []
    for first in (behind, front):
        colour, shape = (attributes.gather(1, (first + offset).unsqueeze(1))[:, 0] for offset in (0, 1))
        centre = torch.where((first == 0).unsqueeze(1), where[:, 0], where[:, 1])
        drawn.append((colour, shape, centre))
    for colour, _, centre in drawn:
        picture = _shade(picture, colour, centre, radius)
    for colour, shape, centre in drawn:
        picture = _put(picture, colour, shape, centre, radius)
    return picture


def _check(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != expected:
        raise ShapeError(f"render: {name} is {list(tensor.shape)}, expected {list(expected)}")


def render(
    attributes: Tensor,
    places: Tensor,
    radius: Tensor,
    *,
    fade: Tensor | None = None,
    previous: Tensor | None = None,
    chunk: int = 1024,
) -> Tensor:
    """Draw clips on the device of `attributes`.

    Args:
        attributes: numbers in the order of `grammar.COLUMNS`, int `[N, F, 9]` (direction and speed do not show in one picture).
        places: where everything is, float `[N, F, 6]`; see `PLACES`.
        radius: of all objects of a clip, pixels, float `[N]`.
        fade: weight in [0, 1] of the picture drawn with `previous` at the same places, float `[N, F]`.
        previous: attributes to fade away from, int `[N, F, 9]`; given together with `fade`.
        chunk: frames drawn at once; bounds the memory for intermediate values to about `chunk` megabytes.

    Returns:
        float32 `[N, F, 3, SIZE, SIZE]` in [0, 1].

    Raises:
        ShapeError: sizes do not fit, or only one of `fade` and `previous` is given.
    """
    num_clips, num_frames = attributes.shape[:2]
    if (fade is None) != (previous is None):
        raise ShapeError("render takes `fade` and `previous` together or neither")
    _check("attributes", attributes, (num_clips, num_frames, len(COLUMNS)))
    _check("places", places, (num_clips, num_frames, PLACES))
    _check("radius", radius, (num_clips,))
    frames = torch.empty(num_clips * num_frames, 3, SIZE, SIZE, device=attributes.device)
    now, where = attributes.flatten(0, 1), places.float().flatten(0, 1)
    radii = radius.float()[:, None].expand(num_clips, num_frames).flatten()
    for part in torch.arange(len(frames), device=frames.device).split(chunk):
        frames[part] = _picture(now[part], where[part], radii[part])
    if fade is not None and previous is not None:
        _check("fade", fade, (num_clips, num_frames))
        _check("previous", previous, (num_clips, num_frames, len(COLUMNS)))
        weight, before = fade.float().flatten(), previous.flatten(0, 1)
        for part in weight.nonzero()[:, 0].split(chunk):
            old = _picture(before[part], where[part], radii[part])
            frames[part] = torch.lerp(frames[part], old, weight[part, None, None, None])
    return frames.reshape(num_clips, num_frames, 3, SIZE, SIZE)


def advance(places: Tensor, attributes: Tensor) -> Tensor:
    """Move everything: frame f is one step of that frame's attributes after frame f - 1.

    Args:
        places: just before the first frame (so the first frame has moved by one step), float `[N, 6]`.
        attributes: int `[N, F, 9]`; they may change from frame to frame.

    Returns:
        float32 `[N, F, 6]`: objects in [-MARGIN, SIZE + MARGIN), scrolls in [0, TILE) and [0, HILL).
    """
    device = attributes.device
    headings = torch.tensor([*DIRECTIONS.values(), (0, 0)], device=device, dtype=torch.float32)  # the last is of no object
    speeds = torch.tensor([*SPEEDS.values(), 0], device=device, dtype=torch.float32)
    first = headings[attributes[..., 2]] * speeds[attributes[..., 3], None]  # [N, F, 2]
    second = headings[attributes[..., 7]] * speeds[attributes[..., 8], None]
    scroll = torch.tensor((NEAR_SCROLL, FAR_SCROLL), device=device).expand_as(first)
    moved = places.float()[:, None] + torch.cat((first, second, scroll), dim=-1).cumsum(1)
    return torch.cat(
        (
            torch.remainder(moved[..., :4] + MARGIN, WAY) - MARGIN,
            torch.remainder(moved[..., 4:5], TILE),
            torch.remainder(moved[..., 5:], HILL),
        ),
        dim=-1,
    )
