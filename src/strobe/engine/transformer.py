"""The transformer made ready for one configuration: everything that does not depend on the latents is worked out once."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from strobe.cache.kv import CacheStep
from strobe.engine.config import ResolvedConfig
from strobe.models.wan import rope
from strobe.models.wan.dit import CausalWan, Modulation, TextKV

CLEAN = 0.0
"""Timestep of finished latents."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextContext:
    """A prompt as the transformer uses it.

    Args:
        text: text encoder's output [B, L, text_dim].
        kv: cross-attention keys and values of every layer.
    """

    text: Tensor
    kv: TextKV


class Transformer:
    """A copy of a `CausalWan` on the device, in the dtype and with the knobs of a configuration.

    With a knob off the pass does again what the official code does again in every pass (see `strobe.engine.config.Knobs`).

    Args:
        dit: weights; left as they are.
        config: what to prepare for.
        block_tokens: tokens of a frame block; passes of this size are what is compiled.
    """

    def __init__(self, dit: CausalWan, config: ResolvedConfig, block_tokens: int) -> None:
        self.dit = copy.deepcopy(dit).to(device=config.device, dtype=config.dtype).requires_grad_(False).eval()
        self.knobs = config.knobs
        self._rope: tuple[tuple[int, ...], Tensor] | None = None
        self._rows: dict[float, Modulation] = {}
        if self.knobs.fused_qkv:
            self.dit.fuse_qkv()
        if self.knobs.modulation_table:
            self._rows = {timestep: self._modulation(timestep, 1) for timestep in (*config.schedule.warped, CLEAN)}
        if self.knobs.compile:
            for layer in self.dit.layers:
                layer.compile_pieces(block_tokens)

    def read(self, text: Tensor) -> TextContext:
        """Prepare a prompt: text encoder's output [B, L, text_dim] to keys and values."""
        text = text.to(self.dit.device)
        return TextContext(text=text, kv=self.dit.text_kv(text))

    def flow(self, latents: Tensor, timestep: float, text: TextContext, cache: CacheStep) -> Tensor:
        """Predict the flow [B, F, C, Y, X] of noisy latents; writes their keys and values into the cache.

        Args:
            latents: [B, F, C, Y, X], float32.
            timestep: as the transformer is told, in [0, 1000].
            text: the prompt.
            cache: where the frames go.
        """
        flow: Tensor = self.dit(latents, *self.conditions(latents, timestep, text, cache), cache)
        return flow

    def write(self, latents: Tensor, text: TextContext, cache: CacheStep) -> None:
        """Write the keys and values of clean latents [B, F, C, Y, X] into the cache."""
        run = self.dit.commit if self.knobs.commit_kv_only else self.dit
        run(latents, *self.conditions(latents, CLEAN, text, cache), cache)

    def conditions(
        self, latents: Tensor, timestep: float, text: TextContext, cache: CacheStep
    ) -> tuple[Modulation, TextKV, Tensor]:
        """All that a pass is told besides its latents: modulation, text keys and values, rotations."""
        modulation = self._rows.get(timestep) or self._modulation(timestep, latents.shape[1])
        if not self.knobs.text_once:
            self.dit.embed_text(text.text)  # what the official code computes and, its keys being cached, does not use
        return modulation, text.kv, self._rotations(latents, cache.positions)

    def _modulation(self, timestep: float, num_frames: int) -> Modulation:
        timesteps = torch.full((1, num_frames), timestep, dtype=torch.float64, device=self.dit.device)
        return self.dit.modulation(timesteps)

    def _rotations(self, latents: Tensor, positions: tuple[int, ...]) -> Tensor:
        grid = self.dit.grid(latents)
        if not self.knobs.rope_table:
            return rope.table(self.dit.config, positions, grid.height, grid.width).to(self.dit.device)  # complex128
        held = self._rope  # read once: forks share this object, each maybe in a thread of its own
        if held is None or held[0] != positions:
            held = self._rope = positions, self.dit.rope(positions, grid)
        return held[1]
