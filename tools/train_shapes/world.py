"""Training batches: scenes, prompts, trajectories and pictures, all made on the training device."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from strobe.models.shapes.grammar import CHOICES, Scene
from strobe.models.text.words import WordEncoder
from train_shapes.clips import FADE, HELD_OUT, SIZES, describe, draw_scenes
from train_shapes.render import RADII, advance, render


class PromptTable:
    """Several sentences for every scene, as token numbers on the training device.

    It keeps sentences about a red circle and a blue square; colours, shapes and articles are put in as they are drawn.
    """

    def __init__(self, text: WordEncoder, device: torch.device, *, sentences: int = 64, seed: int = 0) -> None:
        rng = random.Random(seed)
        named = (CHOICES["colour"].index("red"), CHOICES["shape"].index("circle"))
        others = (CHOICES["colour"].index("blue"), CHOICES["shape"].index("square"))
        rows = []
        for direction, speed, background, second in itertools.product(*(range(size) for size in SIZES[2:]), (None, others)):
            scene = Scene(colour=named[0], shape=named[1], direction=direction, speed=speed, background=background, second=second)
            rows += [[text.index[word] for word in describe(scene, rng).split()] for _ in range(sentences)]
        padded = torch.tensor([row + [0] * (text.length - len(row)) for row in rows])
        slots = [text.index[word] for word in ("red", "circle", "blue", "square")]
        self.slots: Tensor = torch.full_like(padded, -1)  # which drawn word stands in each place: none, or one of six
        for number, token in enumerate(slots):
            self.slots[padded == token] = number
        for article, colour in ((4, 0), (5, 2)):
            self.slots[:, :-1][self.slots[:, 1:] == colour] = article
        self.tokens: Tensor = padded.to(device).unflatten(0, (-1, sentences))
        self.slots = self.slots.to(device).unflatten(0, (-1, sentences))
        self.colours = torch.tensor([text.index[word] for word in CHOICES["colour"]], device=device)
        self.shapes = torch.tensor([text.index[word] for word in CHOICES["shape"]], device=device)
        articles = [text.index["an" if word[0] in "aeiou" else "a"] for word in CHOICES["colour"]]
        self.articles = torch.tensor(articles, device=device)

    def draw(self, scenes: Tensor) -> Tensor:
        """Draw a sentence for each scene: `[..., 7]` to token numbers `[..., length]`."""
        colour, shape, direction, speed, background, other, form = scenes.unbind(-1)
        row = ((direction * SIZES[3] + speed) * SIZES[4] + background) * 2 + (other >= 0)
        choice = torch.randint(self.tokens.shape[1], row.shape, device=row.device)
        tokens, slots = self.tokens[row, choice], self.slots[row, choice]
        other, form = other.clamp(min=0), form.clamp(min=0)
        words = (self.colours[colour], self.shapes[shape], self.colours[other], self.shapes[form])
        drawn = torch.stack((*words, self.articles[colour], self.articles[other]), -1)
        return torch.where(slots < 0, tokens, drawn.gather(-1, slots.clamp(min=0)))


def switch_scenes(scenes: Tensor, share: float) -> Tensor:
    """Give a share of the scenes `[N, 7]` a new prompt: half of those change everything, half keep about two thirds."""
    fresh = draw_scenes(len(scenes), scenes.device)
    keep = torch.rand(scenes.shape, device=scenes.device) < 0.67
    keep[:, 6] = keep[:, 5]  # the second shape comes and goes as a whole
    keep &= torch.rand(len(scenes), 1, device=scenes.device) < 0.5
    changed = torch.where(keep, scenes, fresh)
    hidden = torch.zeros(len(scenes), dtype=torch.bool, device=scenes.device)
    for colour, shape in HELD_OUT:
        hidden |= (changed[:, 0] == colour) & (changed[:, 1] == shape)
    changed = torch.where(hidden.unsqueeze(1), fresh, changed)
    return torch.where(torch.rand(len(scenes), 1, device=scenes.device) < share, changed, scenes)


def start_from_noise(noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Derive where a stream's shapes stand and how large they are from the noise of its first frame block; its camera starts at
    0.

    The means of the first three channels over the block are Gaussian; their normal distribution functions are uniform and give
    the place on either axis and the radius. This couples noise and data without changing either's distribution, so that the
    first block, the only one whose content the context does not determine, is a function of its noise (conditional flow matching
    with a coupling, Tong et al. 2023). The camera's place is not drawn: a phase is no smooth function of noise, and a floor that
    the first block does not show is nowhere after it.

    Args:
        noise: standard normal `[B, F, C, Y, X]`.

    Returns:
        place `[B, 2]` in [-1, 1], camera `[B, 2]` in pixels, and the radius in pixels `[B]`, as `render` takes them.
    """
    channels = noise[:, :, :3].float()
    mean = channels.mean(dim=(1, 3, 4)) * math.sqrt(channels[0, :, 0].numel())
    uniform = torch.erf(mean / math.sqrt(2))  # [B, 3] in [-1, 1]
    radius = sum(RADII) / 2 + (RADII[1] - RADII[0]) / 2 * uniform[:, 2]
    return uniform[:, :2], torch.zeros_like(uniform[:, :2]), radius


@lru_cache(maxsize=2)
def renderer(device: str) -> Callable[..., Tensor]:
    """Return `render`, compiled on a GPU, where it would otherwise take as long as the training step."""
    return torch.compile(render, dynamic=False) if device == "cuda" else render


def draw_block(
    scenes: Tensor, previous: Tensor | None, camera: Tensor, place: Tensor, radius: Tensor, frames: int
) -> tuple[Tensor, Tensor]:
    """Draw the true next frames of each stream: the camera goes on, the old look fades into the new one.

    Args:
        scenes: `[B, 7]`.
        previous: scenes of the block before; None: the same.
        camera: `(x, y)` in the last frame before these, `[B, 2]`.
        place: `[B, 2]`.
        radius: `[B]`.
        frames: how many.

    Returns:
        frames `[B, F, 3, SIZE, SIZE]` and the camera in the last of them.
    """
    now = scenes.unsqueeze(1).expand(-1, frames, -1)
    cameras = advance(camera, now)
    draw = renderer(scenes.device.type)
    if previous is None:
        return draw(now, cameras, place, radius), cameras[:, -1]
    fade = torch.zeros(len(scenes), frames, device=scenes.device)
    fade[:, : len(FADE)] = torch.tensor(FADE, device=scenes.device)
    before = previous.unsqueeze(1).expand(-1, frames, -1)
    return draw(now, cameras, place, radius, fade=fade, previous=before), cameras[:, -1]
