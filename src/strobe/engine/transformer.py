"""The transformer prepared for one configuration: what does not depend on the latents is computed once, in eight bits if asked.

`Transformer` quantises once, after a LoRA was merged and Q, K and V were fused and before layers are compiled. Another LoRA then
goes through `requantize_linears` instead of `merge` and `fuse_qkv`: addresses stay, so recorded passes stay valid.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from strobe.cache.kv import CacheStep
from strobe.core.device import upload, uploaded
from strobe.core.errors import ConfigError
from strobe.core.settings import forgo_cublaslt_workspace
from strobe.core.spans import CONDITIONS, TEXT_KV, span
from strobe.eightbit.rounded import BLOCK
from strobe.engine.graphs import CudaGraphs, Mode, Replaying, Runner
from strobe.engine.resolve import ResolvedConfig
from strobe.models.checkpoint import on_meta
from strobe.models.lora import Lora, attach, merge, updated
from strobe.models.wan import CausalWan
from strobe.models.wan.layers import Modulation, TextKV, device_table, rope_table
from strobe.models.wan.linears import EightBitLinear, Fp8Linear, Int8Linear

QKV: Final = ("q", "k", "v")
LINEARS: Final = ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "cross_attn.q", "cross_attn.o", "ffn.0", "ffn.2")
"""What runs in every pass, by name in a layer. Text keys and values, embeddings, time path and head stay native: they are small,
or run once per prompt."""


@torch.no_grad()
def quantize_linears(dit: CausalWan, config: ResolvedConfig) -> None:
    """Replace linear layers of a prepared transformer by eight-bit ones, as `linear_format` and `simulate` say.

    Fused Q, K and V are one layer, of which theirs are parts. Call it once; see `requantize_linears` for other weights.

    Args:
        dit: changed in place.
        config: `linear_format` "native" changes nothing.

    Raises:
        ConfigError: a layer is no plain linear layer, or its sizes do not fit FP8; nothing was changed.
    """
    if config.linear_format == "native":
        return
    fp8 = config.linear_format == "fp8"
    make = partial(Fp8Linear.from_linear, simulate=config.simulate) if fp8 else Int8Linear.from_linear
    made: dict[str, EightBitLinear] = {}
    for index, layer in enumerate(dit.layers):
        for name in ("self_attn.fused", *LINEARS[len(QKV) :]) if dit.qkv_fused else LINEARS:
            linear = layer.get_submodule(name)
            if not isinstance(linear, nn.Linear):
                raise ConfigError(
                    f"blocks.{index}.{name} is a {type(linear).__name__}, and only an nn.Linear can be quantised: "
                    "merge the LoRA, and quantise once"
                )
            made[f"blocks.{index}.{name}"] = make(linear)
    for name, eight in made.items():
        _place(dit, name, eight)


@torch.no_grad()
def requantize_linears(dit: CausalWan, base: CausalWan, loras: Sequence[Lora]) -> None:
    """Make the weights of a quantised transformer those of `base` with LoRAs merged in, or without any; addresses stay.

    The result is that of merging, then quantising: it does not depend on what was merged before.

    Args:
        dit: what `quantize_linears` changed; changed in place.
        base, loras: see `strobe.models.lora.merge`.

    Raises:
        WeightsError: a LoRA is not one of this model's.
    """
    merge(dit, loras, base)  # what stayed native

    def value(name: str) -> Tensor:
        return updated(name, base.get_parameter(name).to(dit.device), loras)

    for name, layer in _held(dit):
        layer.requantize(torch.cat([value(f"{part}.weight") for part in _parts(name)]))
        if layer.bias is not None:
            layer.bias.copy_(torch.cat([value(f"{part}.bias") for part in _parts(name)]))


def _place(dit: CausalWan, name: str, layer: EightBitLinear) -> None:
    dit.set_submodule(name, layer)
    home, _, own = name.rpartition(".")
    if own != "fused":
        return
    dim = layer.values.shape[0] // len(QKV)
    for index, part in enumerate(QKV):
        dit.set_submodule(f"{home}.{part}", layer.part(index * dim, (index + 1) * dim))
    dit.set_submodule(f"{home}.fused_kv", layer.part(dim, len(QKV) * dim))


def _held(dit: CausalWan) -> Iterator[tuple[str, EightBitLinear]]:
    """List the eight-bit layers that are not part of another one."""
    found = {name: module for name, module in dit.named_modules() if isinstance(module, EightBitLinear)}
    homes = {name.removesuffix(".fused") for name in found if name.endswith(".fused")}
    parts = {f"{home}.{part}" for home in homes for part in (*QKV, "fused_kv")}
    yield from ((name, layer) for name, layer in found.items() if name not in parts)


def _parts(name: str) -> tuple[str, ...]:
    """Return the names of the original layers that a layer was made from."""
    home, _, own = name.rpartition(".")
    return tuple(f"{home}.{part}" for part in QKV) if own == "fused" else (name,)


CLEAN = 0.0
"""Timestep of finished latents."""
Timestep = float | tuple[float, ...]
"""One timestep, or one for each latent frame of a pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextContext:
    """A prompt as the transformer's passes take it.

    Args:
        text: text encoder's output [B, L, text_dim].
        kv: cross-attention keys and values of every layer.
    """

    text: Tensor
    kv: TextKV


class Transformer:
    """A copy of a transformer on the device, in the dtype and with the knobs of a configuration.

    With a knob off the pass does again what the official code does again in every pass (see `strobe.engine.config.Knobs`).

    Args:
        dit: weights; left as they are.
        config: what to prepare for.
        block_tokens: tokens of a frame block; passes of this size are what is compiled.
        loras: merged into the copy, or with knob `merge_lora` off beside it.

    Raises:
        WeightsError: a LoRA is not one of this model's.
    """

    def __init__(self, dit: CausalWan, config: ResolvedConfig, block_tokens: int, loras: Sequence[Lora] = ()) -> None:
        if config.device.type == "cuda":
            forgo_cublaslt_workspace()
        self.knobs = config.knobs
        self._base, self._config = dit, config
        compiled = config.knobs.compile and not config.knobs.fused_kernels
        self.runner = CudaGraphs(config.device) if config.knobs.cuda_graphs else Runner()
        self.dit = copied(dit, config.device, config.dtype)
        self.loras: tuple[Lora, ...] = ()
        self._quantized = False
        self._in_bands = config.attention_format == "int8" and config.sparsity > 0
        self._rope: tuple[tuple[int, ...], Tensor] | None = None
        self._rows: dict[Timestep, Modulation] = {}
        self.use_loras(loras)
        if config.linear_format != "native":
            quantize_linears(self.dit, config)
            self._quantized = True
        if self.knobs.fused_kernels:
            self.dit.use_kernels()
        if compiled:
            self.dit.compile_pieces(block_tokens)

    def share(self, runner: Runner | None = None) -> Transformer:
        """Return a transformer with the same weights for another stream.

        Args:
            runner: of its passes; None: one of the same kind as here.
        """
        other = copy.copy(self)
        other.runner = self.runner.fresh() if runner is None else runner
        return other

    @torch.no_grad()
    def use_loras(self, loras: Sequence[Lora]) -> None:
        """Run with these LoRAs, or with none, from now on.

        Merged weights are computed from the originals and keep their addresses, so that recorded passes go on with them. With a
        LoRA beside the weights passes are recorded again.

        What was made under other weights is stale afterwards: texts read and frames in a cache.

        Raises:
            ConfigError: one would stand beside eight-bit weights, or fused Q, K and V.
            WeightsError: a LoRA is not one of this model's; what runs stays as it is.
        """
        off = {
            "linear_format 'native'": self._config.linear_format != "native",
            "fused_qkv off": self.knobs.fused_qkv and any(name.endswith(LINEARS[:3]) for lora in loras for name in lora.pairs),
        }
        if loras and not self._config.asked.knobs.merge_lora and (wrong := [what for what, found in off.items() if found]):
            raise ConfigError(f"these weights have no LoRA beside them: turn knob merge_lora on, or use {' and '.join(wrong)}")
        for lora in loras:
            lora.check(self._base)
        if loras or self.loras:
            if not self._config.asked.knobs.merge_lora:
                attach(self.dit, loras, self._base)
                self.runner.reset()
            elif self._quantized:
                requantize_linears(self.dit, self._base, loras)
            else:
                merge(self.dit, loras, self._base)
        self.loras = tuple(loras)
        if self.knobs.fused_qkv and not self._quantized:
            self.dit.fuse_qkv()
        if self.knobs.modulation_table:
            self._rows = {timestep: self._modulation(timestep, 1) for timestep in (*self._config.schedule.warped, CLEAN)}

    def read(self, text: Tensor) -> TextContext:
        """Prepare a prompt: text encoder's output [B, L, text_dim] to keys and values."""
        text = upload(text, self.dit.device) if text.device.type == "cpu" else text.to(self.dit.device)
        with span(TEXT_KV):
            return TextContext(text=text, kv=self.dit.text_kv(text))

    def flow(self, latents: Tensor, timestep: Timestep, text: TextContext, cache: CacheStep) -> Tensor:
        """Predict the flow [B, F, C, Y, X] of noisy latents; writes their keys and values into the cache.

        The next call may overwrite the result.

        Args:
            latents: [B, F, C, Y, X], float32.
            timestep: as the transformer is told, in [0, 1000]: one, or one for each latent frame.
            text: the prompt.
            cache: where the frames go.
        """
        flow = self._run("flow", latents, self.conditions(latents, timestep, text, cache), cache)
        assert flow is not None
        return flow

    def write(self, latents: Tensor, text: TextContext, cache: CacheStep) -> None:
        """Write the keys and values of clean latents [B, F, C, Y, X] into the cache."""
        self._run("write", latents, self.conditions(latents, CLEAN, text, cache), cache)

    def _run(
        self,
        mode: Mode,
        latents: Tensor,
        conditions: tuple[Modulation, TextKV, Tensor],
        cache: CacheStep,
        replaying: Replaying = nullcontext,
    ) -> Tensor | None:
        body = self.dit.commit if mode == "write" and self.knobs.commit_kv_only else self.dit
        if not self._in_bands:
            return self.runner.run(mode, body, (latents, *conditions), cache, replaying)
        grid, patch = self.dit.grid(latents), self.dit.config.patch
        ordered = swap_in_bands(latents, band_rows(grid.height), patch)
        flow = self.runner.run(mode, body, (ordered, *conditions), cache, replaying)
        return None if flow is None else swap_in_bands(flow, grid.width, patch)

    def conditions(
        self, latents: Tensor, timestep: Timestep, text: TextContext, cache: CacheStep
    ) -> tuple[Modulation, TextKV, Tensor]:
        """Return the inputs of a pass besides its latents: modulation, text keys and values, rotations."""
        with span(CONDITIONS):
            modulation = self._rows.get(timestep)
            if modulation is None:
                modulation = self._modulation(timestep, latents.shape[1])
                if self.knobs.modulation_table:
                    self._rows[timestep] = modulation
            if not self.knobs.text_once:
                self.dit.embed_text(text.text)  # what the official code computes and, its keys being cached, does not use
            return modulation, text.kv, self._rotations(latents, cache.positions)

    def _modulation(self, timestep: Timestep, num_frames: int) -> Modulation:
        if isinstance(timestep, tuple):
            return self.dit.modulation(torch.tensor([timestep], dtype=torch.float64).to(self.dit.device))
        timesteps = torch.full((1, num_frames), timestep, dtype=torch.float64, device=self.dit.device)
        return self.dit.modulation(timesteps)

    def _rotations(self, latents: Tensor, positions: tuple[int, ...]) -> Tensor:
        held, dit = self._rope, self.dit
        if held is not None and held[0] == positions:
            return held[1]
        grid = dit.grid(latents)
        turns = rope_table(dit.config, positions, grid.height, grid.width, dit.device if self.knobs.rope_table else None)
        if self._in_bands:
            bands = (len(positions), -1, band_rows(grid.height), grid.width)
            turns = turns.unflatten(0, bands).transpose(2, 3).flatten(0, 3)
        if not self.knobs.rope_table:
            return turns.to(dit.device)  # complex128
        self._rope = positions, device_table(turns, dit.dtype, dit.device)
        return self._rope[1]


def band_rows(height: int) -> int:
    """Return the rows of a band of tokens, a divisor of the height, in which a block of keys comes nearest to a square."""
    return min((rows for rows in range(1, height + 1) if height % rows == 0), key=lambda rows: abs(math.log(rows**2 / BLOCK)))


def swap_in_bands(latents: Tensor, rows: int, patch: tuple[int, int]) -> Tensor:
    """Swap rows and columns of tokens within bands of so many rows of tokens: `[B, F, C, Y, X]` to a narrow, high grid.

    Tokens in raster order of the result go through a band column by column, so those of a block of keys lie close together. With
    the former width for `rows` it is undone.
    """
    cells = latents.unflatten(3, (-1, rows, patch[0])).unflatten(6, (-1, patch[1]))  # [B, F, C, bands, rows, ph, w, pw]
    swapped: Tensor = cells.permute(0, 1, 2, 3, 6, 5, 4, 7)
    return swapped.flatten(3, 5).flatten(4, 5)


def copied(dit: CausalWan, device: torch.device, dtype: torch.dtype) -> CausalWan:
    """Copy a transformer to a device and dtype, piece by piece, so that no second copy of the original is ever held."""
    with on_meta():
        copy = type(dit)(dit.config)
    copy.load_state_dict(uploaded(dit.state_dict(), device, dtype), strict=True, assign=True)
    return copy.requires_grad_(False).eval()
