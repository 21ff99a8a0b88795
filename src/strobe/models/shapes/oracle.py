"""Detection of a clip's attributes from its pixels, without learned parts: what was drawn, where, and how it moves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from strobe.core.errors import ShapeError
from strobe.models.shapes.grammar import CHOICES, SHAPES
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

CONTRAST = 0.18  # RGB distance to the floor from which a pixel may belong to a shape; the least between two colours is 0.23
TONES = (0.3, 1.45)  # brightness of the floor over its colour: tiles, light and shadows
RING = 4  # pixels along the border that show the floor alone
MIN_AREA, MAX_AREA = 250, SIZE * SIZE // 3  # pixels of a shape; real ones cover 600 .. 2700
GAP = slice(58, 71)  # columns between two shapes, of which one at least is empty
MIN_MOTION = 0.3  # pixels per frame, below which nothing moves
FAST_FROM = 2.0  # pixels per frame, halfway between slow (1) and fast (3)
WAVES = 0.25  # least strength of the tiles, over that of drawn ones, from which the floor's place can be read
CROP = 80  # side of the window that a centred object is compared in; the largest template is 75 pixels wide
TEMPLATE_RADII = tuple(range(14, 31))


@dataclass(frozen=True, kw_only=True, slots=True)
class Detection:
    """Labels that `detect` read from N clips of F frames: positions in `grammar.CHOICES`, -1 where nothing could be read.

    Args:
        labels: in the order of `Scene.attributes`, int64 `[N, F, 7]`; every frame has the direction and speed of its clip.
        valid: whether each frame shows one shape or two, bool `[N, F]`.
        place: where the shapes stand, `(x, y)` in [-1, 1] each axis by itself, float32 `[N, F, 2]`; NaN where not valid.
        camera: `(x, y)` over the floor in pixels, float32 `[N, F, 2]` in [0, PERIOD), up to half a period along both axes at
            once, which gives the same floor; NaN where no floor shows.
        colour_rgb: mean colour of the first shape's inner pixels, float32 `[N, F, 3]`; meaningless where not valid.
        shape_iou: overlap with the best template, the lesser of two shapes, float32 `[N, F]` in [0, 1].
    """

    labels: Tensor
    valid: Tensor
    place: Tensor
    camera: Tensor
    colour_rgb: Tensor
    shape_iou: Tensor


def accuracy(detection: Detection, scenes: Tensor) -> dict[str, float]:
    """Compare with the scenes that were asked for, int `[N, 7]` or `[N, F, 7]`. A label of -1 is wrong where one was asked for.

    Returns:
        share of frames, in [0, 1], whose label is right, by attribute; `second` is colour and shape of the second shape, or that
            there is none; `every` counts frames where all are.

    Raises:
        ShapeError: `scenes` has another number of clips or frames, or there is nothing to compare.
    """
    labels = detection.labels
    wanted = scenes[:, None] if scenes.ndim == 2 else scenes
    fits = wanted.ndim == 3 and wanted.shape[0] == labels.shape[0] and wanted.shape[1] in (1, labels.shape[1])
    if not fits or labels.numel() == 0:
        raise ShapeError(f"accuracy: scenes {list(scenes.shape)} do not fit detected labels {list(labels.shape)}")
    right = labels == wanted.to(labels.device)
    every = right.all(-1) & detection.valid
    together = torch.cat((right[..., :5], right[..., 5:].all(-1, keepdim=True), every[..., None]), -1)
    return dict(zip((*CHOICES, "second", "every"), together.double().mean((0, 1)).tolist(), strict=True))


def detect(frames: Tensor) -> Detection:
    """Read clips: shapes and background frame by frame, direction and speed from how the floor moves over the whole clip.

    Background: the mean colour along the border, nearest of 4. Shapes: pixels far from every brightness of that colour, one
    group or two with an empty column between them. Colour: mean of the inner pixels, nearest of 8. Outline: the best soft
    intersection over union with templates of all radii at the group's centre. Motion: the median over the clip of the floor's
    step from frame to frame, from the phases of its two diagonal waves.

    Args:
        frames: float `[N, F, 3, 128, 128]` in [0, 1], on any device. Cut a clip where its prompt changes.

    Raises:
        ShapeError: another size.
    """
    num_clips, num_frames = _check(frames)
    pixels = frames.detach().flatten(0, 1).float()  # [M, 3, Y, X]
    colours, backgrounds = palette(pixels.device)
    base, distance = _distance_to_floor(pixels)
    sides, pair, valid = _sides(distance)
    read = [_read(pixels, distance * side, colours) for side in sides]
    camera = _camera(pixels, base, distance)

    def per_frame(values: Tensor) -> Tensor:
        return values.reshape(num_clips, num_frames, *values.shape[1:])

    clip = [values[:, None].expand(num_clips, num_frames).flatten() for values in _motion(per_frame(camera))]
    background = torch.cdist(base, backgrounds).argmin(1)
    (colour, shape, rgb, iou), (other, form, _, other_iou) = read
    second = pair & valid
    labels = [torch.where(valid, each, -1) for each in (colour, shape)]
    labels += [*clip, background, *(torch.where(second, each, -1) for each in (other, form))]
    return Detection(
        labels=per_frame(torch.stack(labels, -1)),
        valid=per_frame(valid),
        place=per_frame(_place(distance, sides, pair, valid)),
        camera=per_frame(camera),
        colour_rgb=per_frame(rgb),
        shape_iou=per_frame(torch.where(second, torch.minimum(iou, other_iou), iou)),
    )


def locate(frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Read where everything is in single frames, much cheaper than `detect`.

    Args:
        frames: float `[M, 3, 128, 128]` in [0, 1].

    Returns:
        whether there are two shapes, bool `[M]`; `place` and `camera` as in `Detection`, float32 `[M, 2]`, NaN where none is.

    Raises:
        ShapeError: another size.
    """
    _check(frames[None])
    pixels = frames.detach().float()
    base, distance = _distance_to_floor(pixels)
    sides, pair, valid = _sides(distance)
    return pair, _place(distance, sides, pair, valid), _camera(pixels, base, distance)


def flicker(detection: Detection) -> Tensor:
    """Measure the mean absolute second time difference of the first shape's colour, float32 `[N]`; 0 if steady or evenly fading.

    NaN where a clip has no three neighbouring frames with a shape.
    """
    rgb, valid = detection.colour_rgb, detection.valid
    bend = (rgb[:, 2:] - 2 * rgb[:, 1:-1] + rgb[:, :-2]).abs().mean(-1)  # [N, F - 2]
    return torch.where(valid[:, 2:] & valid[:, 1:-1] & valid[:, :-2], bend, torch.nan).nanmean(1)


def _check(frames: Tensor) -> tuple[int, int]:
    if frames.ndim != 5 or frames.shape[2:] != (3, SIZE, SIZE) or not frames.is_floating_point():
        raise ShapeError(f"the oracle reads float frames [N, F, 3, {SIZE}, {SIZE}], given {frames.dtype} {list(frames.shape)}")
    return frames.shape[0], frames.shape[1]


@lru_cache(maxsize=8)
def _ring(device: torch.device) -> Tensor:
    ring = torch.ones(SIZE, SIZE, dtype=torch.bool, device=device)
    ring[RING:-RING, RING:-RING] = False
    return ring


def _distance_to_floor(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the floor's colour `[M, 3]`, and each pixel's RGB distance to it at the nearest brightness, `[M, Y, X]`."""
    base = pixels[:, :, _ring(pixels.device)].mean(2)
    direction = base[:, :, None, None]
    tone = (pixels * direction).sum(1, keepdim=True) / direction.square().sum(1, keepdim=True).clamp(min=1e-6)
    return base, (pixels - tone.clamp_(*TONES) * direction).square_().sum(1).sqrt_()


def _sides(distance: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Part the pixels of shapes into those of both, float `[M, Y, X]`; whether there are two; whether any is seen."""
    mask = (distance > CONTRAST).float()
    columns = mask.sum(1)  # [M, X]
    left, right = columns[:, : GAP.start].sum(1), columns[:, GAP.stop :].sum(1)
    pair = (columns[:, GAP].amin(1) < 1) & (left >= MIN_AREA) & (right >= MIN_AREA)
    area = columns.sum(1)
    on_the_left = torch.arange(SIZE, device=distance.device) < SIZE // 2
    first = mask * (on_the_left | ~pair[:, None, None])
    return (first, mask - first), pair, (area >= MIN_AREA) & (area <= MAX_AREA)


def _read(pixels: Tensor, distance: Tensor, colours: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read one shape: colour `[M]`, shape `[M]`, mean colour of its inner pixels `[M, 3]`, overlap with its template `[M]`."""
    cover = _cover(distance)
    inner = (cover > 0.99).float()
    rgb = torch.einsum("mcyx,myx->mc", pixels, inner) / inner.sum((1, 2)).clamp(min=1)[:, None]
    shape, iou = _match_shape(cover, _centre(cover))
    return torch.cdist(rgb, colours).argmin(1), shape, rgb, iou


def _cover(distance: Tensor) -> Tensor:
    """Return how far each pixel belongs to a shape, in [0, 1], `[M, Y, X]`, from the distances of its pixels, 0 elsewhere."""
    contrast = distance.sum((1, 2)) / (distance > 0).sum((1, 2)).clamp(min=1)
    cover = distance / contrast.clamp(min=CONTRAST)[:, None, None]  # about 1 inside, 0 outside, in between at the outline
    return ((cover - 0.25) * 2).clamp(0, 1)  # steeper: neither noise outside nor shading inside counts


def _centre(weight: Tensor) -> Tensor:
    """Compute the centre of mass `(x, y)` in pixels, `[M, 2]`; the picture's centre where there is none."""
    profiles = torch.stack((weight.sum(1), weight.sum(2)), 1)  # [M, 2, 128] along x, along y
    mass = profiles.sum(2)
    positions = torch.arange(SIZE, device=weight.device, dtype=torch.float32)
    return torch.where(mass > 0, (profiles * positions).sum(2) / mass.clamp(min=1e-9), SIZE / 2)


def _place(distance: Tensor, sides: tuple[Tensor, Tensor], pair: Tensor, valid: Tensor) -> Tensor:
    """Return where the shapes stand, in units of their spread, from their centres of mass; `[M, 2]`, NaN where none is."""
    first, second = (_centre(_cover(distance * side)) for side in sides)
    middles = first.new_tensor([[x, SIZE / 2] for x in PAIR_X])
    two = ((first - middles[0]) + (second - middles[1])) / 2 / first.new_tensor(PAIR_SPREAD)
    place = torch.where(pair[:, None], two, (first - SIZE / 2) / LONE_SPREAD)
    return torch.where(valid[:, None], place.clamp(-1, 1), torch.nan)


@lru_cache(maxsize=8)
def _diagonals(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return `cos` and `-sin` of the waves along both diagonals, `[2, Y, X]` each."""
    pixels = torch.arange(SIZE, device=device, dtype=torch.float32) * (2 * math.pi / PERIOD)
    turns = torch.stack((pixels[None] + pixels[:, None], pixels[None] - pixels[:, None]))
    return turns.cos(), -turns.sin()


@lru_cache(maxsize=1)
def _drawn_strength() -> float:
    waves = torch.sin(torch.arange(SIZE) * (2 * math.pi / PERIOD))
    first = 2 * float((waves * (TILE_EDGE * waves).clamp(-1, 1)).mean())  # amplitude of one axis's first wave
    return TILES * first * first / 4


def _camera(pixels: Tensor, base: Tensor, distance: Tensor) -> Tensor:
    """Read the camera's place over the floor, `(x, y)` `[M, 2]`, from the phases of the product of two sines: with a = k (x + u)
    and b = k (y + v), sin a sin b = (cos(a - b) - cos(a + b)) / 2. NaN where the waves are too weak.
    """
    tone = torch.einsum("mcyx,mc->myx", pixels, base) / base.square().sum(1).clamp(min=1e-6)[:, None, None]
    tone = tone / light(pixels.device) - 1
    seen = (tone.abs() < 0.5) & (distance < CONTRAST / 2)  # neither shapes nor deep shadows
    waves = tone * seen
    real, imaginary = (torch.einsum("myx,kyx->mk", waves, wave) for wave in _diagonals(pixels.device))
    strength = torch.hypot(real, imaginary).amin(1) / seen.sum((1, 2)).clamp(min=1)
    phase = torch.atan2(imaginary * imaginary.new_tensor([-1.0, 1.0]), real * real.new_tensor([-1.0, 1.0]))
    sums, differences = phase.unbind(1)
    camera = torch.stack((sums + differences, sums - differences), 1) * (PERIOD / (4 * math.pi))
    return torch.where((strength > WAVES * _drawn_strength())[:, None], torch.remainder(camera, PERIOD), torch.nan)


@lru_cache(maxsize=8)
def _templates(device: torch.device) -> tuple[Tensor, Tensor]:
    """Draw centred templates `[K, CROP * CROP]`, shape-major over `TEMPLATE_RADII`, and sum their squares `[K]`."""
    shape = torch.arange(len(SHAPES), device=device).repeat_interleave(len(TEMPLATE_RADII))
    radius = torch.tensor(TEMPLATE_RADII, device=device, dtype=torch.float32).repeat(len(SHAPES))
    offset = (torch.arange(CROP, device=device, dtype=torch.float32) - CROP // 2).expand(len(shape), CROP)
    templates = coverage(shape, offset, offset, radius).flatten(1)
    return templates, templates.square().sum(1)


def _match_shape(cover: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best shape `[M]` and its soft IoU `[M]`: a.b / (a.a + b.b - a.b), coverages a (seen) and b (template)."""
    corner = centre.floor()
    window = torch.arange(-(CROP // 2), CROP // 2 + 1, device=cover.device)
    index = torch.remainder(corner.long()[:, :, None] + window, SIZE)  # [M, 2, CROP + 1]
    frame = torch.arange(len(cover), device=cover.device)[:, None, None]
    crop = cover[frame, index[:, 1, :, None], index[:, 0, None, :]]  # [M, CROP + 1, CROP + 1]
    rest_x, rest_y = (centre - corner)[:, :, None, None].unbind(1)
    crop = torch.lerp(crop[:, :-1], crop[:, 1:], rest_y)
    crop = torch.lerp(crop[:, :, :-1], crop[:, :, 1:], rest_x).flatten(1)  # the centre now lies on pixel CROP // 2
    templates, template_squares = _templates(cover.device)
    common = functional.linear(crop, templates)  # [M, K]
    iou = common / (crop.square().sum(1, keepdim=True) + template_squares - common)
    best = iou.reshape(-1, len(SHAPES), len(TEMPLATE_RADII)).amax(2).max(1)
    return best.indices, best.values


def floor_step(before: Tensor, after: Tensor) -> Tensor:
    """Return the shortest step between cameras `[..., 2]`: floors repeat after a period, and after half of one on both axes."""
    step = after - before
    half = PERIOD / 2
    whole = torch.remainder(step + half, PERIOD) - half
    both = torch.remainder(step, PERIOD) - half
    return torch.where((whole.abs().sum(-1) <= both.abs().sum(-1))[..., None], whole, both)


def _motion(camera: Tensor) -> tuple[Tensor, Tensor]:
    """Estimate direction `[N]` and speed `[N]` from the median step of cameras `[N, F, 2]` between frames with a floor."""
    steps = floor_step(camera[:, :-1], camera[:, 1:])
    if steps.shape[1] == 0:
        steps = steps.new_full((len(camera), 1, 2), torch.nan)
    x, y = steps.nanmedian(1).values.unbind(1)
    across = torch.where(x < 0, 0, 1)  # left, right
    along = torch.where(y < 0, 2, 3)  # up, down
    pace = torch.maximum(x.abs(), y.abs())
    moves = pace >= MIN_MOTION  # false for NaN
    direction = torch.where(x.abs() >= y.abs(), across, along)
    speed = (pace >= FAST_FROM).long()
    return torch.where(moves, direction, -1), torch.where(moves, speed, -1)
