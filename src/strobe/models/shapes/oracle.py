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
from strobe.models.shapes.render import SIZE, coverage, palette, wrapped

CONTRAST = 0.2  # RGB distance to the background from which a pixel may belong to an object; the least between two colours is 0.49
MIN_AREA, MAX_AREA = 300, SIZE * SIZE // 3  # pixels of an object; real ones cover 1000 .. 2700
MIN_MOTION = 0.3  # pixels per frame, below which nothing moves
FAST_FROM = 2.0  # pixels per frame, halfway between slow (1) and fast (3)
CROP = 80  # side of the window that a centred object is compared in; the largest template is 75 pixels wide
TEMPLATE_RADII = tuple(range(20, 31))


@dataclass(frozen=True, kw_only=True, slots=True)
class Detection:
    """Labels that `detect` read from N clips of F frames: positions in `grammar.CHOICES`, -1 where nothing could be read.

    Args:
        colour: int64 `[N, F]`.
        shape: int64 `[N, F]`.
        direction: int64 `[N]`, one for the clip.
        speed: int64 `[N]`, one for the clip.
        background: int64 `[N, F]`.
        valid: whether an object was found, bool `[N, F]`.
        centre: `(x, y)` in pixels, float32 `[N, F, 2]`; meaningless where not valid.
        velocity: median step `(x, y)` in pixels per frame, float32 `[N, 2]`; NaN where no two neighbouring frames are valid.
        colour_rgb: mean colour of the object's inner pixels, float32 `[N, F, 3]`; meaningless where not valid.
        shape_iou: overlap with the best template, float32 `[N, F]` in [0, 1].
    """

    colour: Tensor
    shape: Tensor
    direction: Tensor
    speed: Tensor
    background: Tensor
    valid: Tensor
    centre: Tensor
    velocity: Tensor
    colour_rgb: Tensor
    shape_iou: Tensor

    @property
    def labels(self) -> Tensor:
        """Labels in the order of `grammar.CHOICES`, int64 `[N, F, 5]`; every frame has the direction and speed of its clip."""
        clip = torch.stack((self.direction, self.speed), -1)[:, None].expand(*self.colour.shape, 2)
        return torch.cat((torch.stack((self.colour, self.shape), -1), clip, self.background[..., None]), -1)


def accuracy(detection: Detection, attributes: Tensor) -> dict[str, float]:
    """Compare with the attributes that were asked for, int `[N, 5]` or `[N, F, 5]`. A label of -1 is wrong.

    Returns:
        share of frames, in [0, 1], whose label is right, by attribute; `every` counts frames where all five are.

    Raises:
        ShapeError: `attributes` has another number of clips or frames, or there is nothing to compare.
    """
    labels = detection.labels
    wanted = attributes[:, None] if attributes.ndim == 2 else attributes
    fits = wanted.ndim == 3 and wanted.shape[0] == labels.shape[0] and wanted.shape[1] in (1, labels.shape[1])
    if not fits or labels.numel() == 0:
        raise ShapeError(f"accuracy: attributes {list(attributes.shape)} do not fit detected labels {list(labels.shape)}")
    right = labels == wanted.to(labels.device)
    shares = [*right.double().mean((0, 1)).tolist(), right.all(-1).double().mean().item()]
    return dict(zip((*CHOICES, "every"), shares, strict=True))


def detect(frames: Tensor) -> Detection:
    """Read clips. Colour, shape and background are read frame by frame, direction and speed from the motion over the whole clip.

    Background: the median colour, nearest of 4. Object: how far each pixel is from the background, relative to the object's own
    distance. Colour: mean of its inner pixels, nearest of 8. Shape: the best soft intersection over union with templates of all
    radii at the object's centre. Motion: the median over the clip of the centre's step from frame to frame on the torus.

    Args:
        frames: float `[N, F, 3, 128, 128]` in [0, 1], on any device. Cut a clip where its prompt changes.

    Raises:
        ShapeError: another size.
    """
    num_clips, num_frames = _check(frames)
    pixels = frames.detach().flatten(0, 1).float()  # [M, 3, Y, X]
    backdrop, distance = _distance_to_background(pixels)
    colours, backgrounds = palette(pixels.device)

    mask = (distance > CONTRAST).float()
    area = mask.sum((1, 2))
    contrast = (distance * mask).sum((1, 2)) / area.clamp(min=1)
    cover = distance / contrast.clamp(min=CONTRAST)[:, None, None]  # about 1 inside, 0 outside, in between at the outline
    inner = (cover > 0.8).float()
    rgb = torch.einsum("mcyx,myx->mc", pixels, inner) / inner.sum((1, 2)).clamp(min=1)[:, None]
    cover = ((cover - 0.25) * 2).clamp(0, 1)  # steeper: neither noise outside nor shading inside counts
    centre = _centre(cover)
    shape, iou = _match_shape(cover, centre)
    valid = (area >= MIN_AREA) & (area <= MAX_AREA)

    def per_frame(values: Tensor) -> Tensor:
        return values.reshape(num_clips, num_frames, *values.shape[1:])

    direction, speed, velocity = _motion(per_frame(centre), per_frame(valid))
    nowhere = torch.full_like(shape, -1)
    return Detection(
        colour=per_frame(torch.where(valid, torch.cdist(rgb, colours).argmin(1), nowhere)),
        shape=per_frame(torch.where(valid, shape, nowhere)),
        direction=direction,
        speed=speed,
        background=per_frame(torch.cdist(backdrop, backgrounds).argmin(1)),
        valid=per_frame(valid),
        centre=per_frame(centre),
        velocity=velocity,
        colour_rgb=per_frame(rgb),
        shape_iou=per_frame(iou),
    )


def centroids(frames: Tensor) -> Tensor:
    """Locate the object: `(x, y)` in pixels, float32 `[N, F, 2]`, NaN where there is none. Much cheaper than `detect`.

    Args:
        frames: float `[N, F, 3, 128, 128]` in [0, 1].

    Raises:
        ShapeError: another size.
    """
    num_clips, num_frames = _check(frames)
    _, distance = _distance_to_background(frames.detach().flatten(0, 1).float())
    weight = (distance - CONTRAST).clamp_(min=0)
    area = (weight > 0).sum((1, 2))
    found = (area >= MIN_AREA) & (area <= MAX_AREA)
    centre = torch.where(found[:, None], _centre(weight), torch.nan)
    return centre.reshape(num_clips, num_frames, 2)


def flicker(detection: Detection) -> Tensor:
    """Measure the mean absolute second time difference of the object's mean colour, float32 `[N]`; 0 if steady or evenly fading.

    NaN where a clip has no three neighbouring frames with an object.
    """
    rgb, valid = detection.colour_rgb, detection.valid
    bend = (rgb[:, 2:] - 2 * rgb[:, 1:-1] + rgb[:, :-2]).abs().mean(-1)  # [N, F - 2]
    return torch.where(valid[:, 2:] & valid[:, 1:-1] & valid[:, :-2], bend, torch.nan).nanmean(1)


def _check(frames: Tensor) -> tuple[int, int]:
    if frames.ndim != 5 or frames.shape[2:] != (3, SIZE, SIZE) or not frames.is_floating_point():
        raise ShapeError(f"the oracle reads float frames [N, F, 3, {SIZE}, {SIZE}], given {frames.dtype} {list(frames.shape)}")
    return frames.shape[0], frames.shape[1]


def _distance_to_background(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the background colour `[M, 3]`, a median over every 4th pixel, and each pixel's RGB distance to it `[M, Y, X]`."""
    backdrop = pixels[:, :, ::4, ::4].flatten(2).median(2).values
    return backdrop, (pixels - backdrop[:, :, None, None]).square_().sum(1).sqrt_()


def _centre(weight: Tensor) -> Tensor:
    """Compute the centre of mass on the torus, `(x, y)` `[M, 2]` in [0, 128): circular mean plus the mean offset from it."""
    profiles = torch.stack((weight.sum(1), weight.sum(2)), 1)  # [M, 2, 128] along x, along y
    profiles = profiles / profiles.sum(2, keepdim=True).clamp(min=1e-9)
    positions = torch.arange(SIZE, device=weight.device, dtype=torch.float32)
    turn = positions * (2 * math.pi / SIZE)
    angle = torch.atan2((profiles * turn.sin()).sum(2), (profiles * turn.cos()).sum(2))
    centre = angle * (SIZE / (2 * math.pi))  # [M, 2]
    offset = (profiles * wrapped(positions - centre[..., None])).sum(2)
    return torch.remainder(centre + offset, SIZE)


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


def _motion(centre: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Estimate direction `[N]`, speed `[N]` and velocity `[N, 2]` from centres `[N, F, 2]`, over steps with two valid frames."""
    steps = wrapped(centre.diff(dim=1))
    steps = torch.where((valid[:, 1:] & valid[:, :-1])[..., None], steps, torch.nan)
    if steps.shape[1] == 0:
        steps = steps.new_full((len(centre), 1, 2), torch.nan)
    velocity = steps.nanmedian(1).values
    x, y = velocity.unbind(1)
    across = torch.where(x < 0, 0, 1)  # left, right
    along = torch.where(y < 0, 2, 3)  # up, down
    pace = torch.maximum(x.abs(), y.abs())
    moves = pace >= MIN_MOTION  # false for NaN
    direction = torch.where(x.abs() >= y.abs(), across, along)
    speed = (pace >= FAST_FROM).long()
    return torch.where(moves, direction, -1), torch.where(moves, speed, -1), velocity
