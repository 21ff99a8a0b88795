"""Stage 3: the few-step student, trained on its own streams.

Each round rolls a batch of streams over the ring cache as inference does: few steps with fresh noise, commit pass, prompt
switches with recache, windows and step counts of every preset in the mix. After every frame block the next true pictures are
drawn from where the model's *own* last frame shows shapes and floor, and each denoise step learns to reach them (imitation of an
expert on the learner's own states: DAgger, Ross et al. 2011). So errors do not accumulate, and every target is a function of what
the model sees.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from strobe.cache.kv import CacheShape, RingCache
from strobe.cache.policy import RingPolicy
from strobe.models.shapes.config import FRAME_BLOCK, SHIFT, TIMESTEPS
from strobe.models.shapes.oracle import locate
from strobe.models.shapes.picture import SIZE
from strobe.models.text.words import WordEncoder
from strobe.models.vae.tiny import TinyVAE
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.flow import add_noise, shifted_sigma, to_x0
from strobe.models.wan.layers import Modulation, TextKV, rotate_temporal
from train_shapes.clips import draw_scenes
from train_shapes.state import Progress, Trainer
from train_shapes.teacher import POLICIES, compile_for_training
from train_shapes.world import PromptTable, draw_block, start_from_noise, switch_scenes

STEPS = 5200
SECONDS = 600
BATCH = 96
SAVE_EVERY = 30.0  # seconds
SCHEDULES = (TIMESTEPS, (1000.0, 500.0, 250.0), (1000.0, 250.0))
LENGTHS = (1, 1, 2, 4, 8, 16, 48)
"""Frame blocks of a round. Many are short: the first frame block is the hardest, for only there the context decides nothing."""

SWITCH_RATE = 0.15
"""Chance that a frame block begins with new prompts for part of the batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Models:
    """The networks that the stage trains and uses, with the table of prompts."""

    dit: CausalWan
    text: WordEncoder
    vae: TinyVAE
    prompts: PromptTable


class Streams:
    """A batch of streams in lockstep: cache, scenes, where everything is, and the last latents."""

    def __init__(self, models: Models, policy: RingPolicy, schedule: tuple[float, ...]) -> None:
        self.models = models
        self.sigmas = [shifted_sigma(timestep, SHIFT) for timestep in schedule]
        dit, device = models.dit, models.dit.device
        side = SIZE // models.vae.config.stride.space
        self.latent_shape = (BATCH, FRAME_BLOCK, models.vae.config.latent_channels, side, side)
        shape = CacheShape(
            num_layers=dit.config.num_layers,
            batch=BATCH,
            tokens_per_frame=(side // dit.config.patch[0]) * (side // dit.config.patch[1]),
            num_heads=dit.config.num_heads,
            head_dim=dit.config.head_dim,
        )
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        rotate = partial(rotate_temporal, dit.config)
        self.cache = RingCache(shape, policy, device=device, dtype=dtype, positions="rebased", rotate=rotate)
        self.scenes = draw_scenes(BATCH, device)
        self.previous = self.scenes
        self.place, self.camera = torch.zeros(2, BATCH, 2, device=device)
        self.radius = torch.zeros(BATCH, device=device)
        self.history = torch.zeros(BATCH, 0, *self.latent_shape[2:], device=device)
        self.tokens = models.prompts.draw(self.scenes)

    def block(self, *, switch: float, recache: bool) -> Tensor:
        """Generate one frame block, the first pass of each step with gradients; returns the loss."""
        self.previous = self.scenes
        if switch and self.cache.end:
            self.scenes = switch_scenes(self.scenes, switch)
            changed = (self.scenes != self.previous).any(dim=1, keepdim=True)
            self.tokens = torch.where(changed, self.models.prompts.draw(self.scenes), self.tokens)
        text = self.models.dit.text_kv(self.models.text(self.tokens))
        if switch and recache and self.cache.end:
            self._recache(text)
        noise = torch.randn(self.latent_shape, device=self.radius.device)
        if self.cache.end == 0:
            self.place, self.camera, self.radius = start_from_noise(noise)
        target, camera = self._target()
        x0, loss = self._denoise(noise, target, text)
        self._finish(x0, camera, text)
        return loss

    @torch.no_grad()
    def _target(self) -> tuple[Tensor, Tensor]:
        """Draw the true latents of this frame block and the camera in its last frame."""
        vae, first = self.models.vae, self.cache.end == 0
        frames = vae.config.stride.frames(self.cache.end, FRAME_BLOCK)
        before = None if self.scenes is self.previous else self.previous
        pictures, camera = draw_block(self.scenes, before, self.camera, self.place, self.radius, frames)
        return vae.encode(pictures) if first else vae.encode_groups(pictures), camera

    def _denoise(self, noise: Tensor, target: Tensor, text: TextKV) -> tuple[Tensor, Tensor]:
        dit, first = self.models.dit, self.cache.end
        step = self.cache.at(first, FRAME_BLOCK)
        rope = dit.rope(step.positions, dit.grid(noise))
        levels = torch.tensor([self.sigmas], device=noise.device).T.unsqueeze(1)  # [steps, 1, 1]
        losses, x = [], noise
        for index, sigma in enumerate(self.sigmas):
            modulation: Modulation = dit.modulation(1000 * levels[index])
            x0 = to_x0(x, dit(x, modulation, text, rope, step), sigma)
            error = x0 - target
            losses.append(error.square().mean() + 0.5 * error.abs().mean())
            x0 = x0.detach()
            if index + 1 < len(self.sigmas):
                x = add_noise(x0, torch.randn_like(x0), self.sigmas[index + 1])
        return x0, torch.stack(losses).mean()

    @torch.no_grad()
    def _recache(self, text: TextKV) -> None:
        dit = self.models.dit
        step = self.cache.rewrite(self.cache.end, keep_sink=True)
        latents = self.history[:, -len(step.positions) :]
        dit.commit(latents, self._clean(), text, dit.rope(step.positions, dit.grid(latents)), step)

    @torch.no_grad()
    def _finish(self, x0: Tensor, camera: Tensor, text: TextKV) -> None:
        """Run the commit pass, then read the last decoded frame; what is not seen as prompted is where it should be."""
        dit, vae = self.models.dit, self.models.vae
        step = self.cache.at(self.cache.end - FRAME_BLOCK, FRAME_BLOCK)
        dit.commit(x0, self._clean(), text, dit.rope(step.positions, dit.grid(x0)), step)
        self.history = torch.cat((self.history, x0), dim=1)[:, -self.cache.policy.window :]
        last = vae.decode_groups(x0[:, -2:])[0][:, -1].float().clamp(0, 1)
        pair, place, seen = locate(last)
        as_prompted = (pair == (self.scenes[:, 5] >= 0))[:, None] & ~place.isnan()
        self.place = torch.where(as_prompted, place, self.place)
        self.camera = torch.where(seen.isnan(), camera, seen)

    def _clean(self) -> Modulation:
        return self.models.dit.modulation(torch.zeros(1, 1, device=self.radius.device))


def plan_round(rng: random.Random) -> tuple[RingPolicy, tuple[float, ...], int]:
    """Draw window, schedule and length of a round: half of the time a preset's own pair, else any pair."""
    pair = rng.randrange(len(SCHEDULES))
    other = pair if rng.random() < 0.5 else rng.randrange(len(SCHEDULES))
    return POLICIES[pair], SCHEDULES[other], rng.choice(LENGTHS)


def train(
    dit: CausalWan, text: WordEncoder, vae: TinyVAE, folder: Path, *, scale: float = 1.0, seed: int = 0
) -> Iterator[Progress]:
    """Train transformer and text encoder in place. Resumes from `folder/student.safetensors`."""
    device = dit.device
    vae.requires_grad_(False)
    models = Models(dit=dit, text=text, vae=vae, prompts=PromptTable(text, device))
    trainer = Trainer(
        nn.ModuleDict({"dit": dit, "text": text}), total=max(1, int(STEPS * scale)), seconds=SECONDS * scale, peak=4e-4
    )
    checkpoint = folder / "student.safetensors"
    if checkpoint.exists():
        trainer.load(checkpoint)
    compile_for_training(dit)
    while trainer.done() < 1:
        torch.manual_seed(seed * 1_000_003 + trainer.step)
        rng = random.Random(seed * 1_000_003 + trainer.step)
        policy, schedule, blocks = plan_round(rng)
        streams = Streams(models, policy, schedule)
        for _ in range(blocks):
            switch = rng.choice((0.5, 1.0)) if rng.random() < SWITCH_RATE else 0.0
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = streams.block(switch=switch, recache=rng.random() < 0.75)
            trainer.update(loss)
            if trainer.step % 50 == 0 or trainer.done() == 1:
                values = {"loss": loss.item(), "blocks": streams.cache.end / FRAME_BLOCK, "steps": len(schedule)}
                yield trainer.progress("student", values)
            if trainer.due(SAVE_EVERY):
                trainer.save(checkpoint)
            if trainer.done() == 1:
                break
    trainer.use_average()
    trainer.save(checkpoint)
