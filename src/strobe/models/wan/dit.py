"""The causal Wan transformer: one frame block in, its flow out, over cached keys and values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strobe.cache.kv import CacheStep
from strobe.core.errors import ShapeError
from strobe.core.shapes import LatentShape, TokenGrid
from strobe.core.spans import DIT_FORWARD, HEAD, PATCH_EMBEDDING, span
from strobe.models.wan.config import WanConfig
from strobe.models.wan.fused import FusedPass
from strobe.models.wan.kernels.api import KernelImpl, check_impl
from strobe.models.wan.layers import (
    Modulation,
    TextKV,
    WanLayer,
    device_table,
    distinct_rows,
    modulate,
    random_modulation,
    rope_table,
)


class OutputHead(nn.Module):
    """Modulated norm and the projection back to latent patches."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.head = nn.Linear(config.dim, config.patch[0] * config.patch[1] * config.latent_channels)
        self.modulation = nn.Parameter(random_modulation(2, config.dim))


def sinusoid(timesteps: Tensor, dim: int) -> Tensor:
    """Compute `cat[cos(t f), sin(t f)]` with `f_i = 10000 ** (-i / (dim / 2))`, in float64: `[..., dim]`."""
    half = dim // 2
    freqs = 10_000.0 ** (-torch.arange(half, dtype=torch.float64, device=timesteps.device) / half)
    angles = timesteps.double().unsqueeze(-1) * freqs
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


class CausalWan(nn.Module):
    """Causal Wan2.1 text-to-video transformer, predicting the flow `v = noise - x0` of a frame block.

    Attention inside the block is bidirectional; what it sees of earlier frames is what the cache returns.
    Parameter names follow the original Wan checkpoint.

    Args:
        config: sizes; rotations of positions follow from them as in `strobe.models.wan.layers`.

    Source: Wan2.1 (2025); Self-Forcing (Huang et al. 2025) for the causal use.
    """

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        self.patch_embedding = nn.Conv3d(config.latent_channels, dim, (1, *config.patch), stride=(1, *config.patch))
        self.text_embedding = nn.Sequential(nn.Linear(config.text_dim, dim), nn.GELU(approximate="tanh"), nn.Linear(dim, dim))
        self.time_embedding = nn.Sequential(nn.Linear(config.freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(WanLayer(config) for _ in range(config.num_layers))
        self.head = OutputHead(config)
        self.kernels: KernelImpl | None = None

    @property
    def layers(self) -> list[WanLayer]:
        return [layer for layer in self.blocks if isinstance(layer, WanLayer)]

    @property
    def dtype(self) -> torch.dtype:
        return self.patch_embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.patch_embedding.weight.device

    @property
    def qkv_fused(self) -> bool:
        return self.layers[0].self_attn.fused is not None

    def fuse_qkv(self) -> None:
        """Join Q, K and V of every layer into one matrix, for inference."""
        for layer in self.layers:
            layer.self_attn.fuse()

    def use_kernels(self, impl: KernelImpl = "triton") -> None:
        """Run passes without a mask through the fused kernels of `strobe.models.wan.kernels` from now on; inference only.

        `Transformer` calls it once with knob `fused_kernels` on, in place of `compile_pieces`: what the kernels leave over are
        matrix products, whose bias and GELU are part of them, and attention.

        Args:
            impl: "triton", or "reference" (plain PyTorch, any device).

        Raises:
            ConfigError: no impl has that name.
            ImplUnavailableError: it does not run on the device that the weights are on.
        """
        check_impl(impl, self.device)
        self.kernels = impl

    def grid(self, latents: Tensor) -> TokenGrid:
        """Return the token grid of latents `[B, F, C, Y, X]`."""
        if latents.dim() != 5 or latents.shape[2] != self.config.latent_channels:
            raise ShapeError(f"latents: got shape {tuple(latents.shape)}, expected [B, F, {self.config.latent_channels}, Y, X]")
        _, frames, channels, height, width = latents.shape
        return LatentShape(frames=frames, channels=channels, height=height, width=width).token_grid(self.config.patch)

    def rope(self, positions: tuple[int, ...], grid: TokenGrid) -> Tensor:
        """Compute the rotations of one frame block whose frames stand at `positions` in time."""
        rotations = rope_table(self.config, positions, grid.height, grid.width)
        return device_table(rotations, self.dtype, self.device)

    def compile_pieces(self, block_tokens: int) -> None:
        """Compile what lies between attention calls, for passes of so many tokens."""
        for layer in self.layers:
            layer.compile_pieces(block_tokens)

    def embed_text(self, text: Tensor) -> Tensor:
        """Embed text `[B, L, text_dim]` to `[B, text_len, dim]`; padding rows are zeros before the embedding and are attended.

        Raises:
            ShapeError: more tokens, or tokens of another width, than the model was made for.
        """
        out: Tensor = self.text_embedding(self._padded(text))
        return out

    def _padded(self, text: Tensor) -> Tensor:
        padding = self.config.text_len - text.shape[1]
        if padding < 0 or text.shape[2] != self.config.text_dim:
            raise ShapeError(f"text: got {tuple(text.shape)}, expected [B, 1..{self.config.text_len}, {self.config.text_dim}]")
        return F.pad(text, (0, 0, 0, padding)).to(self.dtype)

    def text_kv(self, text: Tensor) -> TextKV:
        """Compute keys and values of a prompt for every layer; text is `[B, L, text_dim]`."""
        padded = self._padded(text)
        embedded = self.text_embedding(padded)
        layers = tuple(layer.cross_attn.keys_values(embedded) for layer in self.layers)
        return TextKV(layers=layers, distinct=distinct_rows(padded))

    def modulation(self, timesteps: Tensor) -> Modulation:
        """Compute the modulation of all layers for timesteps `[B or 1, F or 1]` in [0, 1000]."""
        e = self.time_embedding(sinusoid(timesteps, self.config.freq_dim).to(self.dtype))  # [B, F, dim]
        e0 = self.time_projection(e).unflatten(-1, (6, -1))  # [B, F, 6, dim]
        layers = torch.stack([e0 + layer.modulation.unsqueeze(0) for layer in self.layers])
        return Modulation(layers=layers, head=e.unsqueeze(2) + self.head.modulation.unsqueeze(0))

    def patchify(self, latents: Tensor) -> Tensor:
        """Convert latents `[B, F, C, Y, X]` to tokens `[B, F * N, dim]`."""
        ph, pw = self.config.patch
        patches = latents.unflatten(3, (-1, ph)).unflatten(5, (-1, pw))  # [B, F, C, h, ph, w, pw]
        patches = patches.permute(0, 1, 3, 5, 2, 4, 6).flatten(4).flatten(1, 3)
        tokens = F.linear(patches.to(self.dtype), self.patch_embedding.weight.flatten(1), self.patch_embedding.bias)
        return tokens.to(self.dtype)  # under autocast the residual stream stays wide

    def unpatchify(self, tokens: Tensor, grid: TokenGrid) -> Tensor:
        """Convert head output `[B, F * N, ph * pw * C]` to latents `[B, F, C, Y, X]`."""
        ph, pw = self.config.patch
        cells: Tensor = tokens.unflatten(-1, (ph, pw, -1)).unflatten(1, (grid.frames, grid.height, grid.width))
        return cells.permute(0, 1, 6, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)

    def project_out(self, x: Tensor, head: Tensor, grid: TokenGrid) -> Tensor:
        """Project tokens `[B, F * N, dim]` to the flow `[B, F, C, Y, X]`."""
        return self.unpatchify(self.head.head(modulate(x, head[..., 0, :], head[..., 1, :], self.config.eps)), grid)

    def fused(self, modulation: Modulation, text: TextKV, rope: Tensor, kv: CacheStep | None) -> FusedPass | None:
        """Return a pass with fused kernels, or None if they are not in use."""
        if self.kernels is None:
            return None
        mods, head = modulation.layers, modulation.head
        return FusedPass(layers=self.layers, impl=self.kernels, mods=mods, head=head, text=text, rope=rope, kv=kv)

    def forward(
        self,
        latents: Tensor,
        modulation: Modulation,
        text: TextKV,
        rope: Tensor,
        kv: CacheStep | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Run one pass: predict the flow of a frame block, and store its keys and values.

        Args:
            latents: noisy (or, in a commit pass, clean) latents `[B, F, C, Y, X]`.
            modulation: rows of the timesteps of this pass.
            text: the prompt's keys and values.
            rope: rotations of this block's tokens.
            kv: where keys and values go and what is attended; None attends to this pass's own tokens.
            mask: `[S, S]`, True = attend; the training path, which has no cache.

        Returns:
            flow `[B, F, C, Y, X]`.
        """
        grid = self.grid(latents)
        with span(PATCH_EMBEDDING):
            x = self.patchify(latents)
        if mask is None and (fused := self.fused(modulation, text, rope, kv)):
            with span(DIT_FORWARD):
                x = fused.run(x)
            with span(HEAD):
                return self.unpatchify(self.head.head(x), grid)
        with span(DIT_FORWARD):
            for index, layer in enumerate(self.layers):
                x = layer.section(x, modulation.layers[index], rope, index, kv, mask)
                x = layer.rest(x, modulation.layers[index], text.layers[index])
        with span(HEAD):
            return self.project_out(x, modulation.head, grid)

    def commit(self, latents: Tensor, modulation: Modulation, text: TextKV, rope: Tensor, kv: CacheStep) -> None:
        """Write the keys and values of finished latents; the last layer computes nothing but those."""
        with span(PATCH_EMBEDDING):
            x = self.patchify(latents)
        if fused := self.fused(modulation, text, rope, kv):
            with span(DIT_FORWARD):
                return fused.commit(x)
        *before, last = self.layers
        with span(DIT_FORWARD):
            for index, layer in enumerate(before):
                x = layer.section(x, modulation.layers[index], rope, index, kv, None)
                x = layer.rest(x, modulation.layers[index], text.layers[index])
            last.write_only(x, modulation.layers[-1], rope, len(before), kv)
