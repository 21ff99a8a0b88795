"""Rendering of scenes to pictures: anti-aliased shapes over a tiled floor that a camera follows, batched, on CPU or GPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from strobe.core.errors import ShapeError
from strobe.models.shapes.grammar import CHOICES, DIRECTIONS, SPEEDS
from strobe.models.shapes.picture import (
    LONE_SPREAD,
    PAIR_SPREAD,
    PAIR_X,
    PERIOD,
    SIZE,
    TILE_EDGE,
    TILES,
    coverage,
    light,
    palette,
)

NUM_ATTRIBUTES = len(CHOICES) + 2
"""Numbers of a scene: those of `CHOICES`, then colour and shape of the second shape."""

RADII = (22.0, 28.0)
"""Smallest and largest radius of a lone shape in pixels. The area differs little between shapes of one radius."""

PAIR_RADIUS = 0.7
"""Radius of each of two shapes over that of a lone one."""

SHADE = 0.12
"""How much brighter a shape is towards the upper left, and darker towards the lower right."""

SHADOW = 0.55
"""Brightness of the floor in a shape's shadow."""

SHADOW_OFFSET = (3.0, 5.0)
"""Where a shadow falls, `(x, y)` in pixels from its shape."""


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
