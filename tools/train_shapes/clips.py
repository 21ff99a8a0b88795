"""Clips of random scenes, made on the device: what the autoencoder learns from and is measured on."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from strobe.models.shapes.grammar import (
    BACKGROUNDS,
    CHOICES,
    COLOURS,
    DEFAULTS,
    DIRECTIONS,
    SHAPES,
    SPEEDS,
    SYNONYMS,
    VERBS,
    Scene,
    article,
)
from strobe.models.shapes.picture import PERIOD
from strobe.models.vae.tiny import TinyVAE
from train_shapes.render import RADII, advance, render

SIZES = tuple(len(values) for values in CHOICES.values())
FADE = (0.75, 0.5, 0.25)
"""Weight of the old picture in the first frames after a prompt switch."""


HELD_OUT = frozenset(
    (CHOICES["colour"].index(colour), SHAPES.index(shape))
    for colour, shape in (("green", "triangle"), ("orange", "cross"), ("purple", "square"), ("cyan", "star"))
)
"""`(colour, shape)` numbers that training never shows: 4 of 40, no colour and no shape twice."""

# {adverb} and {place} may be empty; no sentence has more than 20 words.
_TEMPLATES = (
    "{shapes} {verb} {direction} {adverb} {place}",
    "{shapes} {adverb} {verb} {direction} {place}",
    "{shapes} {verb} {direction} {place} {adverb}",
    "{place} {shapes} {verb} {direction} {adverb}",
    "{shapes} {to_be} {adverb} {verb} {direction} {place}",
)
_PLACES = ("on a {0} background", "over a {0} background", "on a {0} backdrop", "on {0}")


def describe(scene: Scene, rng: random.Random) -> str:
    """Describe a scene in a random sentence that `parse` reads back; defaults are left out half of the time."""
    colour, shape, direction, speed, background, *second = scene.words
    headings = SYNONYMS[direction]
    if direction in ("left", "right"):
        headings += (f"to the {direction}",)
    said_speed = speed != DEFAULTS["speed"] or rng.random() < 0.5
    said_background = background != DEFAULTS["background"] or rng.random() < 0.5
    adverbs = {"slow": ("slowly", "at slow speed"), "fast": ("quickly", "fast", "at fast speed")}[speed]
    shapes = [f"{article(hue)} {hue} {form}" for hue, form in ((colour, shape), *([second] if second else ()))]
    sentence = rng.choice(_TEMPLATES).format(
        shapes=" and ".join(shapes),
        to_be="are" if second else "is",
        verb=rng.choice(VERBS),
        direction=rng.choice(headings),
        adverb=rng.choice(adverbs) if said_speed else "",
        place=rng.choice(_PLACES).format(rng.choice(SYNONYMS.get(background, (background,)))) if said_background else "",
    )
    return " ".join(sentence.split())


def sample_scene(rng: random.Random, *, held_out: bool = False) -> Scene:
    """Draw a scene of one shape or two, each uniform over the seen (default) or over the held-out combinations."""
    pairs = [
        (colour, shape)
        for colour in range(len(COLOURS))
        for shape in range(len(SHAPES))
        if ((colour, shape) in HELD_OUT) == held_out
    ]
    colour, shape = rng.choice(pairs)
    return Scene(
        colour=colour,
        shape=shape,
        direction=rng.randrange(len(DIRECTIONS)),
        speed=rng.randrange(len(SPEEDS)),
        background=rng.randrange(len(BACKGROUNDS)),
        second=rng.choice(pairs) if rng.random() < 0.5 else None,
    )


def draw_scenes(count: int, device: torch.device) -> Tensor:
    """Draw random seen scenes, half of them of two shapes, int64 `[count, 7]`."""
    pairs = [(c, s) for c in range(SIZES[0]) for s in range(SIZES[1]) if (c, s) not in HELD_OUT]
    first, second = torch.tensor(pairs, device=device)[torch.randint(len(pairs), (2, count), device=device)]
    second = torch.where(torch.rand(count, 1, device=device) < 0.5, second, -1)
    rest = [torch.randint(size, (count,), device=device) for size in SIZES[2:]]
    return torch.cat((first, torch.stack(rest, dim=-1), second), dim=-1)


def draw_radius(count: int, device: torch.device) -> Tensor:
    """Draw object sizes in pixels, float `[count]`."""
    return RADII[0] + (RADII[1] - RADII[0]) * torch.rand(count, device=device)


def draw_clips(count: int, latents: int, device: torch.device, draw: Callable[..., Tensor] = render) -> Tensor:
    """Draw random clips `[B, 4 * latents, 3, SIZE, SIZE]` with `render` or what equals it; half of them switch their scene."""
    frames = 4 * latents
    first, second = draw_scenes(count, device), draw_scenes(count, device)
    at = torch.randint(0, 2 * frames, (count, 1), device=device)
    since = torch.arange(frames, device=device) - at  # [B, F] frames since the switch
    attributes = torch.where((since >= 0).unsqueeze(-1), second.unsqueeze(1), first.unsqueeze(1))
    weights = torch.zeros(count, frames, device=device)
    for step, weight in enumerate(FADE):
        weights = torch.where(since == step, weight, weights)
    camera = advance(PERIOD * torch.rand(count, 2, device=device), attributes)
    place = 2 * torch.rand(count, 2, device=device) - 1
    previous = first.unsqueeze(1).expand_as(attributes)
    return draw(attributes, camera, place, draw_radius(count, device), fade=weights, previous=previous)


@torch.no_grad()
def measure(vae: TinyVAE, device: torch.device, *, clips: int = 64) -> float:
    """Measure the PSNR over unseen clips, encoded and decoded as a stream from its first frame, dB."""
    torch.manual_seed(2)
    frames = draw_clips(clips, 6, device)[:, 3:]
    return float(-10 * torch.log10(mse_loss(vae.decode(vae.encode(frames)).float(), frames)))
