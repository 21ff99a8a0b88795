"""A check of the order of a transformer's layers: would the model find clean latents better with two of them exchanged?"""

from __future__ import annotations

from itertools import combinations
from typing import Final

import torch
from torch import Tensor

from strobe.bench.accept.verdict import reported
from strobe.engine.model import Model
from strobe.engine.noise import draw_block
from strobe.engine.resolve import ResolvedConfig
from strobe.engine.weighted import encode_prompts
from strobe.models.wan.flow import add_noise, to_x0
from strobe.models.wan.text import TextKV
from strobe.models.wan.transformer import CausalTransformer
from strobe.perf.records.record import Check

ALL_PAIRS: Final = 16
"""Most layers of which all pairs are exchanged; of more, those that are at most `NEAR` apart."""
NEAR: Final = 3
DRAWS: Final = 4
"""Draws of the noise."""


@torch.inference_mode()
def check_order(model: Model, config: ResolvedConfig, prompt: str, latents: Tensor, seed: int) -> Check:
    """Compare the error of the clean latents of a frame block as it is with that under each exchange of two layers.

    Args:
        model: what is checked.
        config: as `strobe.bench.accept.equal.plain` returns it.
        prompt: of the latents.
        latents: of one frame block that the model made [F, C, Y, X].
        seed: of the noise that is added.
    """
    prepared = model.shelf.take(model, config)
    dit, decoder = prepared.parts()
    try:
        text = dit.read(encode_prompts(model.text, [prompt] * DRAWS))
        ratio, pair = best_exchange(dit.dit, config, text.kv, latents.to(config.device), seed)
    finally:
        decoder.close()
        prepared.release(dit)
    return reported(
        "latents",
        "layer_order",
        ratio,
        "mean squared error of the clean latents found in noised ones with two layers exchanged / as they are, smallest of all "
        f"pairs (of more than {ALL_PAIRS} layers those at most {NEAR} apart); where clips are bad, the pair to look at first",
        why="a distilled model draws a clip where the mean errs least, so an exchange may lower its error: reported, not judged",
        detail=f"layers {pair[0]} and {pair[1]}",
    )


def best_exchange(
    wan: CausalTransformer, config: ResolvedConfig, text: TextKV, latents: Tensor, seed: int
) -> tuple[float, tuple[int, int]]:
    """Return the smallest error under an exchange of two layers over the error without, and the numbers of the two."""
    size, layers, schedule = latents.shape[0], wan.blocks, config.schedule
    latents = latents.float().expand(DRAWS, *latents.shape)
    at = 1 if len(schedule.sigmas) > 1 else 0
    sigma, timestep = schedule.sigmas[at], schedule.warped[at]
    noisy = add_noise(latents, draw_block(seed, range(DRAWS), 0, 1, latents.shape[1:], config.device).initial, sigma)
    rope = wan.rope(tuple(range(size)), wan.grid(latents))

    def error() -> float:
        rows = wan.modulation(torch.tensor([[timestep]], device=config.device))
        return (to_x0(noisy, wan(noisy, rows, text, rope), sigma) - latents).double().square().mean().item()

    before, found = error(), []
    for first, second in combinations(range(len(layers)), 2):
        if len(layers) <= ALL_PAIRS or second - first <= NEAR:
            layers[first], layers[second] = layers[second], layers[first]
            found.append((error() / before, (first, second)))
            layers[first], layers[second] = layers[second], layers[first]
    return min(found)
