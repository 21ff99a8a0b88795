"""Detection of a clip's attributes from its pixels, without learned parts: what was drawn, where, and how it moves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from strobe.core.errors import ShapeError
from strobe.models.shapes.grammar import BACKGROUNDS, CHOICES, COLUMNS, SHAPES
from strobe.models.shapes.render import DARKEST, PLACES, SIZE, coverage, palette, render, wrapped

MIN_AREA = 100.0  # pixels of an object in the picture, below which it is not seen; whole ones cover 450 .. 950
MIN_SHARE = 0.45  # of an object in the picture, below which its shape is not read
MIN_MOTION = 0.3  # pixels per frame, below which nothing moves
FAST_FROM = 2.0  # pixels per frame, halfway between slow (1) and fast (3)
TEMPLATE_RADII = (15.5, 17.5)
FIELD = 96  # side of the field that templates are moved over, in pixels of the halved picture: it and a template's size around it
CHUNK = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Detection:
    """What `detect` read from N clips of F frames: of the two largest objects in each frame, in the order of their colours.

    Numbers are positions in `grammar.CHOICES`, -1 where nothing could be read.

    Args:
        colour: int64 `[N, F, 2]`; -1: no such object is seen.
        shape: int64 `[N, F, 2]`; where too little of the object is in the picture, what the clip's other frames show.
        direction: int64 `[N, F, 2]`, the same in all frames of a clip that show a colour.
        speed: int64 `[N, F, 2]`, likewise.
        background: int64 `[N, F]`.
        centre: `(x, y)` in pixels, float32 `[N, F, 2, 2]`; meaningless where no object is.
        velocity: median step `(x, y)` of the object's edges in pixels per frame, float32 `[N, F, 2, 2]`; NaN where unknown.
        colour_rgb: mean colour of the object, float32 `[N, F, 2, 3]`; meaningless where no object is.
        shape_iou: overlap with the best template, float32 `[N, F, 2]` in [0, 1].
    """

    colour: Tensor
    shape: Tensor
    direction: Tensor
    speed: Tensor
    background: Tensor
    centre: Tensor
    velocity: Tensor
    colour_rgb: Tensor
    shape_iou: Tensor

    @property
    def seen(self) -> Tensor:
        """Number of objects that are seen, int64 `[N, F]`."""
        return (self.colour >= 0).sum(-1)

    @property
    def labels(self) -> Tensor:
        """Labels in the order of `grammar.COLUMNS`, int64 `[N, F, 9]`."""
        things = torch.stack((self.colour, self.shape, self.direction, self.speed), -1)  # [N, F, 2, 4]
        return torch.cat((things[..., 0, :], self.background[..., None], things[..., 1, :]), -1)

    def right(self, attributes: Tensor) -> Tensor:
        """Compare with the attributes that were asked for, int `[N, F or 1, 9]`: 1 where all labels of a frame are right, else 0.

        NaN where fewer objects are seen than were asked for, or one of them is cut off all the clip: it may be on its way outside the
        picture, or behind the other.
        float64 `[N, F]`.
        """
        right = (self.labels == attributes).all(-1).double()
        hidden = self.seen < (attributes[..., [0, 5]] >= 0).sum(-1)
        cut = (self.colour >= 0) & ((self.shape < 0) | self.velocity.isnan().all(-1))
        return torch.where(hidden | cut.any(-1), torch.nan, right)


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """Share of frames, in [0, 1], whose label is right, per attribute and of both objects where there are two.

    `every` counts frames where all are. `seen` is the share of frames with all objects in sight; the others count nowhere else.
    """

    colour: float
    shape: float
    direction: float
    speed: float
    background: float
    every: float
    seen: float


def accuracy(detection: Detection, attributes: Tensor) -> Accuracy:
    """Compare with the attributes that were asked for, int `[N, 9]` or `[N, F, 9]`. A label of -1 is wrong; so is all, if no frame
    counts.

    Raises:
        ShapeError: `attributes` has another number of clips or frames, or there is nothing to compare.
    """
    labels = detection.labels
    wanted = attributes[:, None] if attributes.ndim == 2 else attributes
    fits = wanted.ndim == 3 and wanted.shape[0] == labels.shape[0] and wanted.shape[1] in (1, labels.shape[1])
    if not fits or labels.numel() == 0 or wanted.shape[2] != len(COLUMNS):
        raise ShapeError(f"accuracy: attributes {list(attributes.shape)} do not fit detected labels {list(labels.shape)}")
    wanted = wanted.to(labels.device)
    right = labels == wanted
    counted = detection.right(wanted).isfinite()
    columns = {name: [at for at, each in enumerate(COLUMNS) if each == name] for name in CHOICES} | {"every": [*range(len(COLUMNS))]}
    shares = {
        name: right[..., at].all(-1)[counted].double().mean().nan_to_num().item() for name, at in columns.items()
    }
    return Accuracy(**shares, seen=counted.double().mean().item())


def detect(frames: Tensor) -> Detection:
    """Read clips. Colour, shape and background are read frame by frame, direction and speed from the motion over the whole clip.

    Background: the nearest sky of 4. Objects: the two of 8 hues with most pixels, if there are enough. Shape: the best soft
    intersection over union with templates of several radii at every place, over what neither a border nor the other object hides.
    Motion: the median over the clip of the steps of those edges that no border cuts.

    Args:
        frames: float `[N, F, 3, 128, 128]` in [0, 1], on any device. Cut a clip where its prompt changes.

    Raises:
        ShapeError: another size.
    """
    if frames.ndim != 5 or frames.shape[2:] != (3, SIZE, SIZE) or not frames.is_floating_point():
        raise ShapeError(f"the oracle reads float frames [N, F, 3, {SIZE}, {SIZE}], given {frames.dtype} {list(frames.shape)}")
    clip = frames.shape[:2]
    parts = [_read(part.float()) for part in frames.detach().flatten(0, 1).split(CHUNK)]
    colour, shape, background, centre, extents, rgb, iou = (
        torch.cat(column).unflatten(0, clip) for column in zip(*parts, strict=True)
    )
    velocity = _velocity(colour, extents)
    shape = torch.where((colour >= 0) & (shape < 0), _usual_shape(colour, shape), shape)
    direction, speed = _headings(velocity)
    return Detection(
        colour=colour,
        shape=shape,
        direction=direction,
        speed=speed,
        background=background,
        centre=centre,
        velocity=velocity,
        colour_rgb=rgb,
        shape_iou=iou,
    )


def likeness(pixels: Tensor, colour: Tensor) -> Tensor:
    """Say how far each pixel `[M, 3, Y, X]` has the hue of an object of a colour `[M, 3]` in some light: 1 yes, 0 no, `[M, Y, X]`."""
    base = colour[:, :, None, None]
    light = ((pixels * base).sum(1, keepdim=True) / base.square().sum(1, keepdim=True)).clamp(DARKEST, 1.1)
    distance = (pixels - light * base).square().sum(1).sqrt()
    return ((0.22 - distance) / 0.1).clamp(0, 1)


def flicker(detection: Detection) -> Tensor:
    """Measure the mean absolute second time difference of the objects' mean colour, float32 `[N]`; 0 if steady or evenly fading.

    NaN where a clip has no three neighbouring frames with the same object.
    """
    rgb, colour = detection.colour_rgb, detection.colour
    bend = (rgb[:, 2:] - 2 * rgb[:, 1:-1] + rgb[:, :-2]).abs().mean(-1)  # [N, F - 2, 2]
    same = (colour[:, 2:] >= 0) & (colour[:, 2:] == colour[:, 1:-1]) & (colour[:, 2:] == colour[:, :-2])
    return torch.where(same, bend, torch.nan).flatten(1).nanmean(1)


@lru_cache(maxsize=8)
def _skies(device: torch.device) -> Tensor:
    """Return the colour of every fourth row of each background's sky, `[4, rows, 3]`."""
    rows = torch.full((len(BACKGROUNDS), 1, len(COLUMNS)), -1, device=device)
    rows[:, 0, COLUMNS.index("background")] = torch.arange(len(BACKGROUNDS), device=device)
    places, radius = torch.zeros(len(BACKGROUNDS), 1, PLACES, device=device), torch.ones(len(BACKGROUNDS), device=device)
    return _sky(render(rows, places, radius)[:, 0])


def _sky(pixels: Tensor) -> Tensor:
    return pixels[:, :, :64:4].median(3).values.transpose(1, 2)


def _read(pixels: Tensor) -> tuple[Tensor, ...]:
    """Read single frames `[M, 3, Y, X]`: colour, shape, background, centre, extents, mean colour and overlap."""
    colours, count = palette(pixels.device), len(pixels)
    background = (_sky(pixels)[:, None] - _skies(pixels.device)).abs().sum(3).median(2).values.argmin(1)
    some = pixels[:, :, ::2, ::2]  # enough to count by
    areas = torch.stack([4 * likeness(some, each.expand(count, 3)).sum((1, 2)) for each in colours], 1)  # [M, 8]
    most = areas.topk(2, dim=1)
    colour = torch.where(most.values >= MIN_AREA, most.indices, len(colours)).sort(1).values
    found = colour < len(colours)
    colour = torch.where(found, colour, -1)
    cover = torch.stack([likeness(pixels, colours[each.clamp(min=0)]) for each in colour.unbind(1)], 1) * found[..., None, None]
    area = cover.sum((2, 3)).clamp(min=1)
    rgb = torch.einsum("mcyx,mkyx->mkc", pixels, cover) / area[..., None]
    positions = torch.arange(SIZE, device=pixels.device, dtype=torch.float32)
    mass = torch.stack(((cover.sum(2) * positions).sum(2), (cover.sum(3) * positions).sum(2)), 2) / area[..., None]
    shape, iou, share, centre = torch.zeros_like(colour), torch.zeros_like(area), torch.zeros_like(area), torch.zeros_like(mass)
    shape[found], iou[found], share[found], centre[found] = _match_shape(cover[found], 1 - cover.flip(1)[found])
    centre = torch.where((share > 0.98)[..., None], mass, centre)
    shape = torch.where(found & (share >= MIN_SHARE), shape, -1)
    return colour, shape, background, centre, _extents(cover), rgb, iou


def _extents(cover: Tensor) -> Tensor:
    """Return the first and last column and row of an object, `(left, right, top, bottom)` `[M, 2, 4]`; NaN where a border cuts."""
    sides = []
    for profile in (cover.sum(2), cover.sum(3)):
        inside = (profile > 1.5).float()
        first, last = inside.argmax(2).float(), SIZE - 1 - inside.flip(2).argmax(2).float()
        sides += [torch.where(first > 1, first, torch.nan), torch.where(last < SIZE - 2, last, torch.nan)]
    return torch.stack(sides, 2)


def _velocity(colour: Tensor, extents: Tensor) -> Tensor:
    """Estimate the velocity `[N, F, 2, 2]` of each object, over all steps of a clip between frames that show its colour."""
    velocity = torch.full((*colour.shape, 2), torch.nan, device=colour.device)
    for number in range(len(CHOICES["colour"])):
        here = colour == number
        if not here.any():
            continue
        edges = torch.where(here[..., None], extents, 0).sum(2)  # [N, F, 4]
        edges = torch.where(here.any(2)[..., None], edges, torch.nan)
        steps = wrapped(edges.diff(dim=1)).unflatten(2, (2, 2))  # [N, F - 1, axis, side]
        if steps.shape[1]:
            pace = steps.transpose(1, 2).flatten(2).nanmedian(2).values  # [N, 2]
            velocity = torch.where(here[..., None], pace[:, None, None], velocity)
    return velocity


def _headings(velocity: Tensor) -> tuple[Tensor, Tensor]:
    """Return direction and speed of velocities `[..., 2]`; an axis along which nothing is known does not count."""
    x, y = velocity.nan_to_num(0).unbind(-1)
    across = torch.where(x < 0, 0, 1)  # left, right
    along = torch.where(y < 0, 2, 3)  # up, down
    pace = torch.maximum(x.abs(), y.abs())
    direction = torch.where(x.abs() >= y.abs(), across, along)
    moves = pace >= MIN_MOTION
    return torch.where(moves, direction, -1), torch.where(moves, (pace >= FAST_FROM).long(), -1)


def _usual_shape(colour: Tensor, shape: Tensor) -> Tensor:
    """Return, for each object, the shape that most frames of its clip show in its colour, int64 `[N, F, 2]`; -1 if none does."""
    colours, shapes = len(CHOICES["colour"]), len(SHAPES)
    read = shape >= 0
    number = torch.where(read, colour * shapes + shape, colours * shapes).flatten(1)
    votes = torch.zeros(len(colour), colours * shapes + 1, device=colour.device).scatter_add_(
        1, number, torch.ones_like(number, dtype=torch.float32)
    )
    most = votes[:, :-1].unflatten(1, (colours, shapes)).max(2)
    usual = torch.where(most.values > 0, most.indices, -1)  # [N, 8]
    return usual.gather(1, colour.clamp(min=0).flatten(1)).view_as(colour)


@lru_cache(maxsize=8)
def _templates(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Draw templates of half the size, shape-major over `TEMPLATE_RADII`: transforms of them and of their squares, and the sums
    of these `[K]`."""
    shape = torch.arange(len(SHAPES), device=device).repeat_interleave(len(TEMPLATE_RADII))
    radius = torch.tensor(TEMPLATE_RADII, device=device).repeat(len(SHAPES))
    offset = (torch.arange(2 * FIELD, device=device, dtype=torch.float32) - FIELD - 0.5).expand(len(shape), 2 * FIELD)
    drawn = functional.avg_pool2d(coverage(shape, offset, offset, radius), 2).roll((-FIELD // 2, -FIELD // 2), (1, 2))
    return torch.fft.rfft2(drawn).conj(), torch.fft.rfft2(drawn.square()).conj(), drawn.square().sum((1, 2))


def _match_shape(cover: Tensor, open_: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Find each object's template and its place.

    Args:
        cover: how far each pixel is the object's, `[K, Y, X]`.
        open_: how far nothing else can hide it there, `[K, Y, X]`.

    Returns:
        the best shape `[K]`; its soft IoU `[K]`, a.b / (a.a + b.b - a.b) of coverages a (seen) and b (template) over what is open;
        the share of the template that is open `[K]`; its centre `(x, y)` in pixels `[K, 2]`.
    """
    templates, squares, whole = _templates(cover.device)
    small, clear = (functional.avg_pool2d(each, 2) for each in (cover, open_))
    size = (FIELD, FIELD)
    common = torch.fft.irfft2(torch.fft.rfft2(small, s=size)[:, None] * templates, s=size)  # [K, T, FIELD, FIELD]
    shown = torch.fft.irfft2(torch.fft.rfft2(clear, s=size)[:, None] * squares, s=size)
    own = small.square().sum((1, 2))[:, None, None, None]
    iou = common / (own + shown - common).clamp(min=1e-3)
    iou = torch.where(shown >= 0.15 * whole[:, None, None], iou, 0)
    best = iou.flatten(1).max(1)
    share = (shown / whole[:, None, None]).flatten(1).gather(1, best.indices[:, None])[:, 0]
    place = best.indices % FIELD**2
    where = torch.stack((place % FIELD, place // FIELD), 1)
    where = torch.where(where > SIZE // 2 + (FIELD - SIZE // 2) // 2, where - FIELD, where)
    return best.indices // FIELD**2 // len(TEMPLATE_RADII), best.values, share, 2 * where + 0.5
