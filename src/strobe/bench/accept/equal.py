"""Checks of one computation against another: streamed against one pass over all, denoising against a linear estimate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from strobe.bench.accept.verdict import judged, reported
from strobe.bench.gate import relative_error
from strobe.core.tolerances import tolerance
from strobe.engine.caches import new_cache
from strobe.engine.config import EngineConfig
from strobe.engine.decode import FrameDecoder
from strobe.engine.model import Model, latent_shape
from strobe.engine.noise import draw_block
from strobe.engine.presets import quality
from strobe.engine.resolve import ResolvedConfig, resolve
from strobe.engine.transformer import CLEAN, Transformer
from strobe.engine.weighted import encode_prompts
from strobe.models.wan.flow import add_noise, to_x0
from strobe.perf.records.record import Check

BLOCKS: Final = 3
"""Frame blocks that are compared."""
MOST_GAIN: Final = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Flows:
    """Flows of the last of some frame blocks at every timestep, each the result of streaming and of one pass over all.

    Args:
        streamed, whole: [F, C, Y, X] of each timestep.
        x0: clean latents that each streamed flow leads to.
    """

    streamed: tuple[Tensor, ...]
    whole: tuple[Tensor, ...]
    x0: tuple[Tensor, ...]


def plain(model: Model, asked: EngineConfig, device: torch.device) -> ResolvedConfig:
    """Return a configuration that computes what the preset's model does, with nothing evicted, left out or in eight bits."""
    window = BLOCKS * model.defaults.frame_block
    config = replace(quality(), name="accept", window=window, sink=0, positions="absolute", dtype=asked.dtype)
    config = replace(config, timesteps=asked.timesteps, shift=asked.shift)
    return resolve(config, model.defaults, device)


@torch.inference_mode()
def check_equal(model: Model, config: ResolvedConfig, prompt: str, latents: Tensor, seed: int) -> Iterator[Check]:
    """Check that streaming and one pass over all give the same flows and frames, and that the flows remove noise.

    Args:
        model: what is checked.
        config: as `plain` returns it.
        prompt: of the latents.
        latents: the first `BLOCKS` frame blocks of a clip [F, C, Y, X].
        seed: of the noise that is added.
    """
    prepared = model.shelf.take(model, config)
    dit, decoder = prepared.parts()
    try:
        flows = flows_of(dit, model, config, prompt, latents.to(config.device), seed)
        pieces, whole = (decoded(decoder, latents.to(config.device), size) for size in (config.frame_block, len(latents)))
    finally:
        decoder.close()
        prepared.release(dit)
    errors = [relative_error(*pair) for pair in zip(flows.streamed, flows.whole, strict=True)]
    limit = tolerance("latents", config.dtype)
    yield judged(
        "stream",
        "streaming_against_one_pass",
        max(errors),
        f"flow of frame block {BLOCKS - 1} over cached keys and values against one pass over all {BLOCKS} with a block-causal "
        "mask, largest relative error of all timesteps",
        f"fact: both are the same sums; rounding in {config.dtype} is within {limit:g}".replace("torch.", ""),
        bounds=(None, limit),
    )
    yield from _check_gain(config, flows, latents.to(config.device))
    error = (pieces.int() - whole.int()).abs().max().item()
    most = 1.0 if config.dtype == torch.float32 else 255 * tolerance("element of a library", config.dtype)
    yield judged(
        "stream",
        "streamed_frames_against_one_call",
        error,
        f"largest difference of a pixel between {BLOCKS} frame blocks decoded one by one and in one call",
        f"fact: the decoder is causal in time; rounding in {config.dtype} is within {most:g} levels".replace("torch.", ""),
        bounds=(None, most),
        unit="of 255 levels",
    )


def flows_of(dit: Transformer, model: Model, config: ResolvedConfig, prompt: str, latents: Tensor, seed: int) -> Flows:
    """Compute the flows of the last frame block of `latents` [F, C, Y, X] in both ways."""
    size, wan = config.frame_block, dit.dit
    text = dit.read(encode_prompts(model.text, [prompt]).to(config.device))
    cache = new_cache(wan.config, latent_shape(model.defaults, wan.config), config, 1)
    blocks = latents.float().unsqueeze(0).split(size, dim=1)
    for index, block in enumerate(blocks[:-1]):
        dit.write(block, text, cache.at(index * size, size))
    noise = draw_block(seed, (0,), BLOCKS, 1, blocks[-1].shape[1:], config.device).initial
    mask = _block_causal(len(blocks), size * dit.dit.grid(blocks[0]).tokens_per_frame, config.device)
    numbers = tuple(range((len(blocks) - 1) * size)) + tuple(range((len(blocks) - 1) * size, len(blocks) * size))
    streamed, whole, clean = [], [], []
    for sigma, timestep in zip(config.schedule.sigmas, config.schedule.warped, strict=True):
        noisy = add_noise(blocks[-1], noise, sigma)
        flow = dit.flow(noisy, timestep, text, cache.at(len(blocks) * size - size, size)).clone()
        joined = torch.cat([*blocks[:-1], noisy], dim=1)
        times = torch.tensor([[CLEAN] * (joined.shape[1] - size) + [timestep] * size], device=config.device)
        rope = wan.rope(numbers, wan.grid(joined))
        found = wan(joined, wan.modulation(times), text.kv, rope, mask=mask)[:, -size:]
        streamed.append(flow[0].float())
        whole.append(found[0].float())
        clean.append(to_x0(noisy, flow, sigma)[0])
    return Flows(streamed=tuple(streamed), whole=tuple(whole), x0=tuple(clean))


def _block_causal(blocks: int, tokens: int, device: torch.device) -> Tensor:
    """Return the mask [S, S] in which a token attends to its own frame block and to earlier ones."""
    block = torch.arange(blocks, device=device).repeat_interleave(tokens)
    return block.unsqueeze(1) >= block.unsqueeze(0)


def _check_gain(config: ResolvedConfig, flows: Flows, latents: Tensor) -> Iterator[Check]:
    """Compare the error of the model's clean latents with that of the best linear estimate from the noisy ones, by channel."""
    x0 = latents[-config.frame_block :].double()
    variance = x0.var(dim=(0, 2, 3))  # [C]
    gains = []
    for sigma, found in zip(config.schedule.sigmas, flows.x0, strict=True):
        linear = variance * sigma**2 / ((1 - sigma) ** 2 * variance + sigma**2)
        gains.append(((found.double() - x0).square().mean() / linear.mean()).item())
    meaning = (
        "mean squared error of the clean latents that the model finds in its own noised latents / that of the best linear "
        "estimate, channel by channel"
    )
    told = ", ".join(f"{gain:.3f} at {timestep:g}" for gain, timestep in zip(gains, config.schedule.timesteps, strict=True))
    lowest = max(gains[1:], default=float("nan"))
    if len(gains) > 1:
        yield judged(
            "latents",
            "denoising",
            lowest,
            f"{meaning}; largest of all timesteps but the first",
            "fact: the mean of what latents can be errs less than any linear estimate, and a draw from it at most twice as much",
            bounds=(None, MOST_GAIN),
            detail=told,
        )
    yield reported(
        "latents",
        "denoising_from_noise",
        gains[0],
        f"{meaning}; at the first timestep",
        why="pure noise says nothing of the clip, so any clip may come: reported, not judged",
    )


def decoded(decoder: FrameDecoder, latents: Tensor, size: int) -> Tensor:
    """Decode a clip's latents [F, C, Y, X] in pieces of `size` latent frames to frames uint8 [F', Y, X, 3]."""
    state, found = decoder.state(), []
    for piece in latents.float().unsqueeze(0).split(size, dim=1):
        for made in decoder.start(piece, state):
            state = made.state
            found.append(made.frames[0])
    return torch.cat(found)
