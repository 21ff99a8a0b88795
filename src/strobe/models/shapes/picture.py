"""Rendering of scenes to pictures: anti-aliased shapes over a tiled floor that a camera follows, batched, on CPU or GPU."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from strobe.core.errors import ShapeError
from strobe.models.shapes.grammar import BACKGROUNDS, COLOURS, DIRECTIONS, NUM_ATTRIBUTES, SHAPES, SPEEDS, Rgb

SIZE = 128
"""Height and width of a picture in pixels."""

RADII = (22.0, 28.0)
"""Smallest and largest radius of a lone shape in pixels. The area differs little between shapes of one radius."""

PAIR_RADIUS = 0.7
"""Radius of each of two shapes over that of a lone one."""

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

SHADE = 0.12
"""How much brighter a shape is towards the upper left, and darker towards the lower right."""

SHADOW = 0.55
"""Brightness of the floor in a shape's shadow."""

SHADOW_OFFSET = (3.0, 5.0)
"""Where a shadow falls, `(x, y)` in pixels from its shape."""

EDGE = 2.5  # pixels over which an outline fades
TILE_EDGE = 2.5  # slope of the tiles' edges: a sine times this, cut at one
STAR_INNER = 0.5  # inner over outer radius of the star


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
    outline = _outline_table(shape.device)[shape]  # [M, 6]
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


def stands(scenes: Tensor, place: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Compute where the two shapes of each scene stand, and how large they are; a lone shape is the first.

    Args:
        scenes: attributes, int `[M, 7]`.
        place: where on the picture, each of `(x, y)` in [-1, 1], float `[M, 2]`.
        radius: of a lone shape in pixels, float `[M]`.

    Returns:
        centres in pixels `[M, 2 shapes, 2]`, and the radius of each in pixels `[M]`.
    """
    alone = (scenes[:, 5] < 0)[:, None, None]
    lone = SIZE / 2 + LONE_SPREAD * place[:, None]
    middle = place.new_tensor([[x, SIZE / 2] for x in PAIR_X])
    pair = middle + place[:, None] * place.new_tensor(PAIR_SPREAD)
    return torch.where(alone, lone, pair), radius * torch.where(alone[:, 0, 0], 1.0, PAIR_RADIUS)


def _check(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != expected:
        raise ShapeError(f"render: {name} is {list(tensor.shape)}, expected {list(expected)}")


def _parts(length: int, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, length, chunk)]


def light(device: torch.device) -> Tensor:
    """Return how bright the light on the floor is in each row of a picture, 1 on average, float32 `[SIZE, 1]`."""
    rows = torch.arange(SIZE, device=device, dtype=torch.float32)[:, None]
    return 1 + LIGHT * (1 - (2 * rows + 1) / SIZE)


def _floor(camera: Tensor) -> Tensor:
    """Draw the brightness of the tiles, 1 on average: `[M, SIZE, SIZE]` from the camera's place `(x, y)` in pixels, `[M, 2]`."""
    pixels = torch.arange(SIZE, device=camera.device, dtype=torch.float32)
    waves = torch.sin((pixels + camera[:, :, None]) * (2 * math.pi / PERIOD)) * TILE_EDGE  # [M, 2, SIZE]
    across, along = waves.clamp(-1, 1).unbind(1)
    return 1 + TILES * along[:, :, None] * across[:, None, :]


def _picture(scenes: Tensor, camera: Tensor, place: Tensor, radius: Tensor) -> Tensor:
    """Draw single frames `[M, 3, SIZE, SIZE]` from scenes `[M, 7]`, cameras `[M, 2]`, places `[M, 2]` and radius `[M]`."""
    colours, backgrounds = palette(scenes.device)
    centres, radii = stands(scenes, place, radius)
    pixels = torch.arange(SIZE, device=scenes.device, dtype=torch.float32)
    brightness = _floor(camera) * light(scenes.device)
    shapes = []
    for number, (colour, shape) in enumerate(((0, 1), (5, 6))):
        there = (scenes[:, shape] >= 0)[:, None, None]
        offset = pixels - centres[:, number, :, None]  # [M, 2, SIZE]
        form = scenes[:, shape].clamp(min=0)
        shadow = coverage(form, offset[:, 0] - SHADOW_OFFSET[0], offset[:, 1] - SHADOW_OFFSET[1], radii) * there
        brightness = brightness * (1 - (1 - SHADOW) * shadow)
        slope = (offset[:, 1, :, None] + offset[:, 0, None, :]) / (2 * radii[:, None, None])
        tone = colours[scenes[:, colour].clamp(min=0), :, None, None] * (1 - SHADE * slope.clamp(-1, 1))[:, None]
        shapes.append((coverage(form, offset[:, 0], offset[:, 1], radii) * there, tone))
    frame = backgrounds[scenes[:, 4], :, None, None] * brightness[:, None]
    for cover, tone in shapes:
        frame = torch.lerp(frame, tone, cover[:, None])
    return frame.clamp_(0, 1)


def render(
    scenes: Tensor,
    camera: Tensor,
    place: Tensor,
    radius: Tensor,
    *,
    fade: Tensor | None = None,
    previous: Tensor | None = None,
    chunk: int = 1024,
) -> Tensor:
    """Draw clips of one or two shapes over a tiled floor, on the device of `scenes`.

    The camera follows the shapes: they stay where they are on the picture, and the floor moves under them.

    Args:
        scenes: numbers in the order of `Scene.attributes`, int `[N, F, 7]` (direction and speed do not show in one picture).
        camera: `(x, y)` of the camera over the floor in pixels, float `[N, F, 2]`; taken modulo `PERIOD`.
        place: where the shapes stand, each of `(x, y)` in [-1, 1], float `[N, 2]`; see `stands`.
        radius: of a lone shape in pixels, float `[N]`.
        fade: weight in [0, 1] of the picture drawn with `previous` at the same place, float `[N, F]`.
        previous: scenes to fade away from, int `[N, F, 7]`; given together with `fade`.
        chunk: frames drawn at once; bounds the memory for intermediate values to about `chunk * SIZE**2 * 100` bytes.

    Returns:
        float32 `[N, F, 3, SIZE, SIZE]` in [0, 1].

    Raises:
        ShapeError: sizes do not fit, or only one of `fade` and `previous` is given.
    """
    num_clips, num_frames = scenes.shape[:2]
    if (fade is None) != (previous is None):
        raise ShapeError("render takes `fade` and `previous` together or neither")
    _check("scenes", scenes, (num_clips, num_frames, NUM_ATTRIBUTES))
    _check("camera", camera, (num_clips, num_frames, 2))
    _check("place", place, (num_clips, 2))
    _check("radius", radius, (num_clips,))
    frames = torch.empty(num_clips * num_frames, 3, SIZE, SIZE, device=scenes.device)
    now, where = scenes.flatten(0, 1), camera.float().flatten(0, 1)
    radii = radius.float()[:, None].expand(num_clips, num_frames).flatten()
    places = place.float()[:, None].expand(num_clips, num_frames, 2).flatten(0, 1)
    for part in _parts(len(frames), chunk):
        frames[part] = _picture(now[part], where[part], places[part], radii[part])
    if fade is not None and previous is not None:
        _check("fade", fade, (num_clips, num_frames))
        _check("previous", previous, (num_clips, num_frames, NUM_ATTRIBUTES))
        weight, before = fade.float().flatten()[:, None, None, None], previous.flatten(0, 1)
        for part in _parts(len(frames), chunk):
            frames[part].lerp_(_picture(before[part], where[part], places[part], radii[part]), weight[part])
    return frames.reshape(num_clips, num_frames, 3, SIZE, SIZE)


def advance(camera: Tensor, scenes: Tensor) -> Tensor:
    """Move cameras: frame f is one step of `direction * speed` of that frame's scene after frame f - 1.

    Args:
        camera: `(x, y)` in pixels just before the first frame (so the first frame has moved by one step), float `[N, 2]`.
        scenes: int `[N, F, 7]`; they may change from frame to frame.

    Returns:
        float32 `[N, F, 2]` in [0, PERIOD).
    """
    headings = torch.tensor(list(DIRECTIONS.values()), device=scenes.device, dtype=torch.float32)
    speeds = torch.tensor(list(SPEEDS.values()), device=scenes.device, dtype=torch.float32)
    steps = headings[scenes[..., 2]] * speeds[scenes[..., 3], None]  # [N, F, 2]
    return torch.remainder(camera.float()[:, None] + steps.cumsum(1), PERIOD)
