"""Training batches: scenes, prompts, trajectories and pictures, all made on the training device."""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor

from strobe.models.shapes.clips import FADE, SIZES, draw_scenes
from strobe.models.shapes.grammar import CHOICES, HELD_OUT, Scene
from strobe.models.shapes.render import RADII, SIZE, advance, render
from strobe.models.text.words import WordEncoder

START_SPREAD = 24.0
"""A stream's object starts within this many pixels of the picture's centre, on either axis."""


class PromptTable:
    """Several sentences for every scene, as token numbers on the training device."""

    def __init__(self, text: WordEncoder, device: torch.device, *, sentences: int = 16, seed: int = 0) -> None:
        rng = random.Random(seed)
        grid = torch.cartesian_prod(*(torch.arange(size) for size in SIZES))
        fields = tuple(CHOICES)
        scenes = [Scene(**dict(zip(fields, row, strict=True))) for row in grid.tolist()]
        prompts = [scene.prompt(rng) for scene in scenes for _ in range(sentences)]
        rows = [text.tokenize(prompt) for prompt in prompts]
        padded = [row + [0] * (text.length - len(row)) for row in rows]
        self.tokens: Tensor = torch.tensor(padded, device=device).unflatten(0, (len(scenes), sentences))

    def draw(self, attributes: Tensor) -> Tensor:
        """Draw a sentence for each scene: attributes `[..., 5]` to token numbers `[..., length]`."""
        number = torch.zeros_like(attributes[..., 0])
        for size, value in zip(SIZES, attributes.unbind(-1), strict=True):
            number = number * size + value
        choice = torch.randint(self.tokens.shape[1], number.shape, device=number.device)
        return self.tokens[number, choice]


def switch_scenes(scenes: Tensor, share: float) -> Tensor:
    """Give a share of the scenes `[N, 5]` a new prompt: half of those change everything, half keep about two thirds."""
    fresh = draw_scenes(len(scenes), scenes.device)
    keep = torch.rand(scenes.shape, device=scenes.device) < 0.67
    keep &= torch.rand(len(scenes), 1, device=scenes.device) < 0.5
    changed = torch.where(keep, scenes, fresh)
    hidden = torch.zeros(len(scenes), dtype=torch.bool, device=scenes.device)
    for colour, shape in HELD_OUT:
        hidden |= (changed[:, 0] == colour) & (changed[:, 1] == shape)
    changed = torch.where(hidden.unsqueeze(1), fresh, changed)
    return torch.where(torch.rand(len(scenes), 1, device=scenes.device) < share, changed, scenes)


def start_from_noise(noise: Tensor) -> tuple[Tensor, Tensor]:
    """Derive the start and size of a stream's object from the noise of its first frame block.

    The means of the first three channels over the block are Gaussian; their normal distribution functions are uniform and give
    the offset on either axis and the radius. This couples noise and data without changing either's distribution, so that the
    first block, the only one whose content the context does not determine, is a function of its noise (conditional flow matching
    with a coupling, Tong et al. 2023).

    Args:
        noise: standard normal `[B, F, C, Y, X]`.

    Returns:
        `(x, y)` in pixels `[B, 2]`, and the radius in pixels `[B]`.
    """
    channels = noise[:, :, :3].float()
    mean = channels.mean(dim=(1, 3, 4)) * math.sqrt(channels[0, :, 0].numel())
    uniform = torch.erf(mean / math.sqrt(2))  # [B, 3] in [-1, 1]
    radius = sum(RADII) / 2 + (RADII[1] - RADII[0]) / 2 * uniform[:, 2]
    return SIZE / 2 + START_SPREAD * uniform[:, :2], radius


def draw_block(scenes: Tensor, previous: Tensor | None, centre: Tensor, radius: Tensor, frames: int) -> tuple[Tensor, Tensor]:
    """Draw the true next frames of each stream: the object goes on from `centre`, the old look fades into the new one.

    Args:
        scenes: attributes, `[B, 5]`.
        previous: attributes in the block before; None: the same.
        centre: `(x, y)` in the last frame before these, `[B, 2]`.
        radius: `[B]`.
        frames: how many.

    Returns:
        frames `[B, F, 3, SIZE, SIZE]` and the centre in the last of them.
    """
    attributes = scenes.unsqueeze(1).expand(-1, frames, -1)
    centres = advance(centre, attributes)
    if previous is None:
        return render(attributes, centres, radius), centres[:, -1]
    fade = torch.zeros(len(scenes), frames, device=scenes.device)
    fade[:, : len(FADE)] = torch.tensor(FADE, device=scenes.device)
    before = previous.unsqueeze(1).expand(-1, frames, -1)
    return render(attributes, centres, radius, fade=fade, previous=before), centres[:, -1]
