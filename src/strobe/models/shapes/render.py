"""Rendering of scenes to pictures: batched anti-aliased shapes on a torus, on CPU or GPU."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from strobe.core.errors import ShapeError
from strobe.models.shapes.grammar import BACKGROUNDS, CHOICES, COLOURS, DIRECTIONS, SHAPES, SPEEDS, Rgb

SIZE = 128
"""Height and width of a picture in pixels."""

RADII = (22.0, 28.0)
"""Smallest and largest radius of an object in pixels. The area differs little between shapes of one radius."""

EDGE = 4.0  # pixels over which an outline fades: soft edges keep the pictures free of detail finer than a latent can hold
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


def wrapped(difference: Tensor, size: int = SIZE) -> Tensor:
    """Return the shortest signed difference on a circle of `size` pixels, in [-size/2, size/2)."""
    return torch.remainder(difference + size / 2, size) - size / 2


def _check(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != expected:
        raise ShapeError(f"render: {name} is {list(tensor.shape)}, expected {list(expected)}")


def _parts(length: int, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, length, chunk)]


def _picture(attributes: Tensor, centres: Tensor, radius: Tensor, size: int) -> Tensor:
    """Draw single frames `[M, 3, size, size]` from attributes `[M, 5]`, centres `[M, 2]` and radius `[M]`."""
    colours, backgrounds = palette(attributes.device)
    colour, background = colours[attributes[:, 0], :, None, None], backgrounds[attributes[:, 4], :, None, None]
    pixels = torch.arange(size, device=attributes.device, dtype=torch.float32)
    offset = wrapped(pixels - centres[:, :, None], size)  # [M, 2, size]
    cover = coverage(attributes[:, 1], offset[:, 0], offset[:, 1], radius)
    return torch.addcmul(background, cover[:, None], colour - background)


def render(
    attributes: Tensor,
    centres: Tensor,
    radius: Tensor,
    *,
    fade: Tensor | None = None,
    previous: Tensor | None = None,
    size: int = SIZE,
    chunk: int = 4096,
) -> Tensor:
    """Draw clips of one object that wraps around at the borders, on the device of `attributes`.

    Args:
        attributes: numbers in the order of `grammar.CHOICES`, int `[N, F, 5]` (direction and speed do not show in one picture).
        centres: `(x, y)` of the object in pixels, float `[N, F, 2]`; any real number, taken modulo `size`.
        radius: pixels, float `[N]`.
        fade: weight in [0, 1] of the picture drawn with `previous` at the same place, float `[N, F]`.
        previous: attributes to fade away from, int `[N, F, 5]`; given together with `fade`.
        size: height and width in pixels.
        chunk: frames drawn at once; bounds the memory for intermediate values to about `chunk * size**2 * 40` bytes.

    Returns:
        float32 `[N, F, 3, size, size]` in [0, 1].

    Raises:
        ShapeError: sizes do not fit, or only one of `fade` and `previous` is given.
    """
    num_clips, num_frames = attributes.shape[:2]
    if (fade is None) != (previous is None):
        raise ShapeError("render takes `fade` and `previous` together or neither")
    _check("attributes", attributes, (num_clips, num_frames, len(CHOICES)))
    _check("centres", centres, (num_clips, num_frames, 2))
    _check("radius", radius, (num_clips,))
    frames = torch.empty(num_clips * num_frames, 3, size, size, device=attributes.device)
    now, where = attributes.flatten(0, 1), centres.float().flatten(0, 1)
    radii = radius.float()[:, None].expand(num_clips, num_frames).flatten()
    for part in _parts(len(frames), chunk):
        frames[part] = _picture(now[part], where[part], radii[part], size)
    if fade is not None and previous is not None:
        _check("fade", fade, (num_clips, num_frames))
        _check("previous", previous, (num_clips, num_frames, len(CHOICES)))
        weight, before = fade.float().flatten()[:, None, None, None], previous.flatten(0, 1)
        for part in _parts(len(frames), chunk):
            frames[part].lerp_(_picture(before[part], where[part], radii[part], size), weight[part])
    return frames.reshape(num_clips, num_frames, 3, size, size)


def advance(centres: Tensor, attributes: Tensor, size: int = SIZE) -> Tensor:
    """Move objects: frame f is one step of `direction * speed` of that frame's attributes after frame f - 1.

    Args:
        centres: `(x, y)` in pixels just before the first frame (so the first frame has moved by one step), float `[N, 2]`.
        attributes: int `[N, F, 5]`; they may change from frame to frame.
        size: the torus, in pixels.

    Returns:
        float32 `[N, F, 2]` in [0, size).
    """
    headings = torch.tensor(list(DIRECTIONS.values()), device=attributes.device, dtype=torch.float32)
    speeds = torch.tensor(list(SPEEDS.values()), device=attributes.device, dtype=torch.float32)
    steps = headings[attributes[..., 2]] * speeds[attributes[..., 3], None]  # [N, F, 2]
    return torch.remainder(centres.float()[:, None] + steps.cumsum(1), size)
