"""Training batches: scenes, prompts, trajectories and pictures, all made on the training device."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import torch
from torch import Tensor

from strobe.models.shapes.clips import FADE, SIZES, draw_scenes
from strobe.models.shapes.grammar import HELD_OUT, Thing, describe, describe_background, name
from strobe.models.shapes.oracle import likeness
from strobe.models.shapes.render import HILL, HORIZON, RADII, SIZE, TILE, advance, palette, render, tiles
from strobe.models.text.words import WordEncoder

MOST_PHRASE = 9
"""Words of one object's part of a sentence: two of them, an `and` and a background fit into a prompt."""

LEAST_SEEN = 60.0
"""Pixels of an object that must be in the picture for its place to be read from there."""


class PromptTable:
    """Several phrases for every object and every background, as token numbers on the training device."""

    def __init__(self, text: WordEncoder, device: torch.device, *, sentences: int = 16, seed: int = 0) -> None:
        rng = random.Random(seed)
        self.length = text.length
        rows = itertools.product(*(range(size) for size in SIZES[:4]))
        things = [Thing(colour=row[0], shape=row[1], direction=row[2], speed=row[3]) for row in rows]

        def table(phrases: list[str], width: int) -> Tensor:
            numbers = [[text.index[word] for word in phrase.split()] for phrase in phrases]
            return torch.tensor([row + [0] * (width - len(row)) for row in numbers], device=device)

        self.things = table([_short(thing, rng) for thing in things for _ in range(sentences)], MOST_PHRASE)
        self.names = table([name(thing) for thing in things], MOST_PHRASE)
        self.backgrounds = table([describe_background(b, rng) for b in range(SIZES[4]) for _ in range(sentences)], 4)
        self.join = text.index["and"]
        self.sentences = sentences

    def draw(self, attributes: Tensor) -> Tensor:
        """Draw a sentence for each scene: attributes `[..., 9]` to token numbers `[..., length]`."""
        flat = attributes.flatten(0, -2)

        def chance(share: float) -> Tensor:
            return torch.rand(len(flat), 1, device=flat.device) < share

        one, other = self._phrase(flat[:, :4]), self._phrase(flat[:, 5:])
        together = (flat[:, 2:4] == flat[:, 7:]).all(1, keepdim=True) & chance(0.5)
        swap = chance(0.5)
        first, second = torch.where(swap, flat[:, 5:], flat[:, :4]), torch.where(swap, one, other)
        first = torch.where(together, self._name(first), torch.where(swap, other, one))
        place = self.backgrounds[flat[:, 4] * self.sentences + torch.randint_like(flat[:, 4], self.sentences)]
        two = (flat[:, 0] >= 0) & (flat[:, 5] >= 0)
        join = (two * self.join).unsqueeze(1)
        ahead = chance(0.25)
        whole = torch.cat((place * ahead, first, join, second, place * ~ahead), dim=1)
        order = (whole == 0).long().argsort(dim=1, stable=True)  # words to the front, in their order
        tokens = whole.gather(1, order)[:, : self.length]
        return tokens.unflatten(0, attributes.shape[:-1])

    def _phrase(self, thing: Tensor) -> Tensor:
        number = self._number(thing) * self.sentences + torch.randint_like(thing[:, 0], self.sentences)
        return self.things[number] * (thing[:, :1] >= 0)

    def _name(self, thing: Tensor) -> Tensor:
        return self.names[self._number(thing)] * (thing[:, :1] >= 0)

    def _number(self, thing: Tensor) -> Tensor:
        number = torch.zeros_like(thing[:, 0])
        for size, value in zip(SIZES[:4], thing.clamp(min=0).unbind(1), strict=True):
            number = number * size + value
        return number


def _short(thing: Thing, rng: random.Random) -> str:
    phrase = describe(thing, rng)
    while len(phrase.split()) > MOST_PHRASE:
        phrase = describe(thing, rng)
    return phrase


def switch_scenes(scenes: Tensor, share: float) -> Tensor:
    """Give a share of the scenes `[N, 9]` a new prompt: half of those change everything, half keep about two thirds."""
    count, device = len(scenes), scenes.device
    fresh = draw_scenes(count, device)
    keep = torch.rand(scenes.shape, device=device) < 0.67
    keep[:, 5:] &= (scenes[:, 5:6] >= 0) == (fresh[:, 5:6] >= 0)  # no half of an object
    keep &= torch.rand(count, 1, device=device) < 0.5
    changed = torch.where(keep, scenes, fresh)
    added = (torch.rand(count, 1, device=device) < 0.25) & keep.any(1, keepdim=True)  # the first stays, the second comes or goes
    changed = torch.where(added, torch.cat((scenes[:, :5], fresh[:, 5:]), dim=1), changed)
    bad = changed[:, 0] == changed[:, 5]
    for colour, shape in HELD_OUT:
        for at in (0, 5):
            bad |= (changed[:, at] == colour) & (changed[:, at + 1] == shape)
    changed = torch.where(bad.unsqueeze(1), fresh, changed)
    return torch.where(torch.rand(count, 1, device=device) < share, changed, scenes)


def start_from_noise(noise: Tensor, scenes: Tensor) -> tuple[Tensor, Tensor]:
    """Derive the places and the size of a stream's objects from the noise of its first frame block.

    The means of seven channels over the block are Gaussian; their normal distribution functions are uniform and give the numbers.
    This couples noise and data without changing either's distribution, so that the first block, the only one whose content the
    context does not determine, is a function of its noise (conditional flow matching with a coupling, Tong et al. 2023).

    Args:
        noise: standard normal `[B, F, C, Y, X]`.
        scenes: attributes `[B, 9]`; two objects start side by side, one starts in the middle.

    Returns:
        places `[B, 6]`, and the radius in pixels `[B]`.
    """
    channels = noise[:, :, :7].float()
    mean = channels.mean(dim=(1, 3, 4)) * math.sqrt(channels[0, :, 0].numel())
    uniform = torch.erf(mean / math.sqrt(2))  # [B, 7] in [-1, 1]
    radius = sum(RADII) / 2 + (RADII[1] - RADII[0]) / 2 * uniform[:, 2]
    two = scenes[:, 5] >= 0
    x = torch.where(two, 36 + 12 * uniform[:, 0], SIZE / 2 + 30 * uniform[:, 0])
    y, other_y = (56 + 28 * uniform[:, at] for at in (1, 4))
    other_x = 92 + 12 * uniform[:, 3]
    scrolls = ((uniform[:, 5] + 1) / 2 * TILE, (uniform[:, 6] + 1) / 2 * HILL)
    return torch.stack((x, y, other_x, other_y, *scrolls), dim=1), radius


def hand_over(scenes: Tensor, previous: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Say which object of the new scenes goes on from which of the old: one of the same colour from that, else in their order.

    An object that is new beside another one appears half a picture beside that and as far from the bottom as that is from the top.

    Returns:
        the old scenes and the places with their objects in the order of the new scenes.
    """
    old, new = previous[:, (0, 5)], scenes[:, (0, 5)]
    swap = ((new >= 0) & (new == old.flip(1))).any(1) & ~((new >= 0) & (new == old)).any(1)
    swap = swap.unsqueeze(1)
    previous = torch.where(swap, torch.cat((previous[:, 5:], previous[:, 4:5], previous[:, :4]), dim=1), previous)
    places = torch.where(swap, torch.cat((places[:, 2:4], places[:, :2], places[:, 4:]), dim=1), places)
    across = torch.stack(
        (torch.remainder(places[:, (2, 0)] + SIZE / 2, SIZE), SIZE - places[:, (3, 1)].clamp(0, SIZE)), dim=2
    )  # [B, 2, 2]: of each object, opposite of the other
    fresh = (previous[:, (0, 5)] < 0).unsqueeze(2)
    objects = torch.where(fresh, across, places[:, :4].unflatten(1, (2, 2)))
    return previous, torch.cat((objects.flatten(1), places[:, 4:]), dim=1)


def draw_block(scenes: Tensor, previous: Tensor | None, places: Tensor, radius: Tensor, frames: int) -> tuple[Tensor, Tensor]:
    """Draw the true next frames of each stream: everything goes on from `places`, the old look fades into the new one.

    Args:
        scenes: attributes, `[B, 9]`.
        previous: attributes in the block before, after `hand_over`; None: the same.
        places: in the last frame before these, `[B, 6]`.
        radius: `[B]`.
        frames: how many.

    Returns:
        frames `[B, F, 3, SIZE, SIZE]` and the places in the last of them.
    """
    attributes = scenes.unsqueeze(1).expand(-1, frames, -1)
    way = advance(places, attributes)
    if previous is None:
        return render(attributes, way, radius), way[:, -1]
    fade = torch.zeros(len(scenes), frames, device=scenes.device)
    fade[:, : len(FADE)] = torch.tensor(FADE, device=scenes.device)
    before = previous.unsqueeze(1).expand(-1, frames, -1)
    return render(attributes, way, radius, fade=fade, previous=before), way[:, -1]


def read_places(seen: Tensor, scenes: Tensor, places: Tensor, radius: Tensor) -> Tensor:
    """Correct expected places by a picture: whatever is read from it is read from the true picture too, and the difference added.

    So what an object hides, or a border cuts off, counts on both sides. What is not seen stays where it should be.

    Args:
        seen: the model's picture, float `[B, 3, SIZE, SIZE]`.
        scenes: attributes, `[B, 9]`.
        places: where everything should be in it, `[B, 6]`.
        radius: `[B]`.
    """
    true = render(scenes.unsqueeze(1), places.unsqueeze(1), radius)[:, 0]
    both = torch.stack((seen.float(), true))
    objects = [_object_shift(both, scenes[:, at]) for at in (0, 5)]
    scrolls = [_scroll_shift(both, _ground_wave, TILE), _scroll_shift(both, _hill_wave, HILL)]
    moved = places + torch.cat((*objects, *scrolls), dim=1)
    return torch.cat((moved[:, :4], moved[:, 4:5].remainder(TILE), moved[:, 5:].remainder(HILL)), dim=1)


def _object_shift(both: Tensor, colour: Tensor) -> Tensor:
    """Return by how much the object of that colour is elsewhere in the first of both pictures than in the second, `[B, 2]`."""
    colours = palette(both.device)[colour.clamp(min=0)]
    weight = torch.stack([likeness(picture, colours) for picture in both])  # [2, B, Y, X]
    area = weight.sum((2, 3))
    pixels = torch.arange(SIZE, device=both.device, dtype=torch.float32)
    centre = torch.stack(((weight.sum(2) * pixels).sum(2), (weight.sum(3) * pixels).sum(2)), dim=2) / area.clamp(min=1)[..., None]
    usable = (area > LEAST_SEEN).all(0) & (area[0] < 2 * area[1]) & (area[1] < 2 * area[0]) & (colour >= 0)
    return (centre[0] - centre[1]).clamp(-8, 8) * usable.unsqueeze(1)


def _ground_wave(pictures: Tensor) -> Tensor:
    """Sum the ground's brightness against the wave of its tiles: complex `[..., B]`."""
    depth, sign = tiles(pictures.device)
    x = torch.arange(SIZE, device=pictures.device, dtype=torch.float32) - SIZE / 2
    angle = 2 * math.pi / TILE * x * depth[:, None]
    rows = slice(12, None)  # near enough to have contrast
    bright = pictures[..., HORIZON:, :].mean(-3)
    bright = (bright - bright.mean(-1, keepdim=True))[..., rows, :]
    return (bright * torch.polar(sign[:, None].expand_as(angle), -angle)[rows]).sum((-1, -2))


def _hill_wave(pictures: Tensor) -> Tensor:
    """Sum the brightness where the tops of the hills are against the wave of the hills: complex `[..., B]`."""
    x = torch.arange(SIZE, device=pictures.device, dtype=torch.float32)
    bright = pictures[..., HORIZON - 20 : HORIZON - 3, :].mean((-3, -2))
    return (bright * torch.polar(torch.ones_like(x), -2 * math.pi / HILL * x)).sum(-1)


def _scroll_shift(both: Tensor, wave: Callable[[Tensor], Tensor], period: float) -> Tensor:
    """Return by how much the first of both pictures has scrolled further than the second, `[B, 1]`, at most four pixels."""
    seen, true = wave(both)
    shift = torch.angle(seen * true.conj()) * period / (2 * math.pi)
    return (shift.clamp(-4, 4) * (seen.abs() > 0.3 * true.abs())).unsqueeze(1)
