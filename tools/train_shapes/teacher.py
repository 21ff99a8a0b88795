"""Stage 2: the many-step teacher, a flow-matching model of whole clips with clean context beside every noisy frame block."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from strobe.cache.policy import RingPolicy
from strobe.models.shapes.config import FRAME_BLOCK
from strobe.models.shapes.picture import SIZE
from strobe.models.text.words import WordEncoder
from strobe.models.vae.tiny import TinyVAE
from strobe.models.wan.dit import CausalWan
from train_shapes.clips import draw_scenes
from train_shapes.state import Progress, Trainer
from train_shapes.world import PromptTable, draw_block, start_from_noise, switch_scenes

STEPS = 4400
SECONDS = 450
BATCH = 96
SAVE_EVERY = 30.0  # seconds
BLOCKS = 4
"""Frame blocks of a clip: as many as the largest window holds, so every relative position of a stream is seen."""

POLICIES = (RingPolicy(window=12, sink=3), RingPolicy(window=8, sink=3), RingPolicy(window=6, sink=1))
SWITCH_SHARE = 0.2
CONTEXT_NOISE = 0.1


def block_causal_mask(policy: RingPolicy, blocks: int, tokens_per_frame: int) -> Tensor:
    """Build the attention mask for the sequence [clean frames | noisy frames].

    A clean frame block sees the clean frames a cache would hold after it was written. A noisy one sees the clean frames a cache
    would hold while it is written, with its own noisy frames in place of its clean ones.

    Returns:
        bool `[2 S, 2 S]`, True = attend, `S = blocks * FRAME_BLOCK * tokens_per_frame`.
    """
    frames = blocks * FRAME_BLOCK
    mask = torch.zeros(2 * frames, 2 * frames, dtype=torch.bool)
    for block in range(blocks):
        own = slice(block * FRAME_BLOCK, (block + 1) * FRAME_BLOCK)
        noisy = slice(frames + own.start, frames + own.stop)
        kept = list(policy.frames(own.stop))
        mask[own, kept] = True
        mask[noisy, [frame for frame in kept if frame < own.start]] = True
        mask[noisy, noisy] = True
    return mask.repeat_interleave(tokens_per_frame, 0).repeat_interleave(tokens_per_frame, 1)


@torch.no_grad()
def draw_clips(vae: TinyVAE, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw true clips whose start follows from their noise, with prompt switches: latents `[B, F, ...]`, scenes `[B, n, 7]`."""
    count, device = len(noise), noise.device
    scenes = draw_scenes(count, device)
    previous = scenes
    place, camera, radius = start_from_noise(noise[:, :FRAME_BLOCK])
    frames, shown = [], []
    for block in range(BLOCKS):
        length = vae.config.stride.frames(block * FRAME_BLOCK, FRAME_BLOCK)
        pictures, camera = draw_block(scenes, previous, camera, place, radius, length)
        frames.append(pictures)
        shown.append(scenes)
        previous, scenes = scenes, switch_scenes(scenes, SWITCH_SHARE)
    return vae.encode(torch.cat(frames, dim=1)), torch.stack(shown, dim=1)


def forward_clip(dit: CausalWan, clean: Tensor, noisy: Tensor, levels: Tensor, text: Tensor, mask: Tensor) -> Tensor:
    """Predict the flow of all noisy frame blocks in one pass.

    Args:
        clean: context latents `[B, F, C, Y, X]`.
        noisy: `[B, F, C, Y, X]`.
        levels: noise level of each frame, `[B, F]`.
        text: one prompt per frame block, `[B * F / FRAME_BLOCK, L, text_dim]`, block by block.
        mask: see `block_causal_mask`.

    Returns:
        flow `[B, F, C, Y, X]`.
    """
    frames = clean.shape[1]
    both = torch.cat((clean, noisy), dim=1)
    timesteps = torch.cat((torch.zeros_like(levels), 1000 * levels), dim=1)
    per_sample = text.unflatten(0, (len(clean), -1))
    text_kv = dit.text_kv(torch.cat((per_sample, per_sample), dim=1).flatten(0, 1))
    positions = (*range(frames), *range(frames))
    flow: Tensor = dit(both, dit.modulation(timesteps), text_kv, dit.rope(positions, dit.grid(both)), None, mask)
    return flow[:, frames:]


def _loss(models: tuple[CausalWan, WordEncoder, TinyVAE], prompts: PromptTable, mask: Tensor) -> Tensor:
    dit, text, vae = models
    device = dit.device
    side = SIZE // vae.config.stride.space
    shape = (BATCH, BLOCKS * FRAME_BLOCK, vae.config.latent_channels, side, side)
    noise = torch.randn(shape, device=device)
    clean, scenes = draw_clips(vae, noise)
    uniform = torch.rand(BATCH, BLOCKS, device=device)
    level = 2 * uniform / (1 + uniform)
    level[torch.rand_like(level) < 0.1] = 1.0
    level = level.repeat_interleave(FRAME_BLOCK, dim=1)[:, :, None, None, None]
    noisy = (1 - level) * clean + level * noise
    dirt = CONTEXT_NOISE * torch.rand(BATCH, 1, 1, 1, 1, device=device) * (torch.rand(BATCH, 1, 1, 1, 1, device=device) < 0.5)
    context = (1 - dirt) * clean + dirt * torch.randn_like(clean)
    encoded = text(prompts.draw(scenes).flatten(0, 1))
    flow = forward_clip(dit, context, noisy, level.flatten(1), encoded, mask)
    return (flow.float() - (noise - clean)).square().mean()


def compile_for_training(dit: CausalWan) -> None:
    """Fuse the pieces of every layer on a GPU."""
    if dit.device.type == "cuda":
        torch._dynamo.config.recompile_limit = 64
        warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")
        for layer in dit.layers:
            layer.compile_pieces()


def train(
    dit: CausalWan, text: WordEncoder, vae: TinyVAE, folder: Path, *, scale: float = 1.0, seed: int = 0
) -> Iterator[Progress]:
    """Train transformer and text encoder in place. Resumes from `folder/teacher.safetensors`."""
    device = dit.device
    vae.requires_grad_(False)
    models = nn.ModuleDict({"dit": dit, "text": text})
    trainer = Trainer(models, total=max(1, int(STEPS * scale)), seconds=SECONDS * scale, peak=1e-3)
    checkpoint = folder / "teacher.safetensors"
    if checkpoint.exists():
        trainer.load(checkpoint)
    side = SIZE // vae.config.stride.space // dit.config.patch[0]
    masks = [block_causal_mask(policy, BLOCKS, side * side).to(device) for policy in POLICIES]
    prompts = PromptTable(text, device)
    compile_for_training(dit)
    while trainer.done() < 1:
        torch.manual_seed(seed * 1_000_003 + trainer.step)
        mask = masks[0 if trainer.step % 2 else 1 + trainer.step // 2 % 2]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = _loss((dit, text, vae), prompts, mask)
        trainer.update(loss)
        if trainer.step % 50 == 0 or trainer.done() == 1:
            values = {"loss": loss.item()}
            yield trainer.progress("teacher", values)
        if trainer.due(SAVE_EVERY):
            trainer.save(checkpoint)
    trainer.use_average()
    trainer.save(checkpoint)
