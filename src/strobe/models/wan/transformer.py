"""What a session asks of a causal transformer, and the keys and values of its text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from strobe.cache.kv import CacheStep
from strobe.core.errors import ShapeError
from strobe.core.shapes import LatentShape, TokenGrid
from strobe.models.wan.config import WanConfig


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TextKV:
    """Keys and values of one prompt for each layer.

    Args:
        layers: keys and values `[B, L, H, D]`.
        distinct: how many first rows differ from what is behind them, and one of that, int32 `[B]`: see `distinct_rows`.
    """

    layers: tuple[tuple[Tensor, Tensor], ...]
    distinct: Tensor

    @classmethod
    def made_of(cls, tensors: tuple[Tensor, ...]) -> TextKV:
        return cls(layers=tuple(zip(tensors[1::2], tensors[2::2], strict=True)), distinct=tensors[0])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Number of distinct rows, then keys and values of one layer after the other."""
        return self.distinct, *(each for pair in self.layers for each in pair)


def distinct_rows(text: Tensor) -> Tensor:
    """Count the rows of each sample up to the first of those that are equal to all behind them: int32 `[B]`.

    Worked out where the text is, so that no host waits for it. Zeros of either sign are equal: matrix products make the same of
    them. NaN equals nothing.

    Args:
        text: `[B, L, text_dim]`, padded.
    """
    length = text.shape[1]
    numbers = torch.arange(1, length + 1, device=text.device)
    behind = ((text != text[:, -1:]).any(-1) * numbers).amax(-1)  # rows up to the last that differs from the end
    return (behind + 1).clamp_(max=length).int()


@dataclass(frozen=True, kw_only=True, slots=True)
class Modulation:
    """The rows of shift, scale and gate that a timestep gives to a pass.

    Args:
        layers: `[num_layers, B or 1, F or 1, 6, dim]`: shift, scale, gate of attention, then of the feed-forward.
        head: `[B or 1, F or 1, 2, dim]`: shift and scale of the output head.
    """

    layers: Tensor
    head: Tensor


class CausalTransformer(nn.Module, ABC):
    """A transformer that predicts the flow `v = noise - x0` of a frame block over cached keys and values.

    The engine builds copies as `type(transformer)(transformer.config)`, on the meta device too, and calls nothing that is not
    here.

    Args:
        config: sizes; rotations of positions follow from them as in `strobe.models.wan.layers`.
    """

    blocks: nn.ModuleList
    """The layers; `blocks` is the checkpoint's word."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.config = config

    @property
    @abstractmethod
    def layers(self) -> Sequence[nn.Module]:
        """`blocks`, typed."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of the weights."""

    @property
    @abstractmethod
    def qkv_fused(self) -> bool:
        """Whether `fuse_qkv` was called."""

    @abstractmethod
    def fuse_qkv(self) -> None:
        """Join Q, K and V of every layer into one matrix, for inference."""

    @abstractmethod
    def use_kernels(self) -> None:
        """Run passes without a mask through fused kernels from now on; inference only.

        Raises:
            ImplUnavailableError: they do not run on the device that the weights are on.
        """

    @abstractmethod
    def compile_pieces(self, block_tokens: int) -> None:
        """Compile what lies between attention calls, for passes of so many tokens."""

    def grid(self, latents: Tensor) -> TokenGrid:
        """Return the token grid of latents `[B, F, C, Y, X]`."""
        if latents.dim() != 5 or latents.shape[2] != self.config.latent_channels:
            raise ShapeError(f"latents: got shape {tuple(latents.shape)}, expected [B, F, {self.config.latent_channels}, Y, X]")
        _, frames, channels, height, width = latents.shape
        return LatentShape(frames=frames, channels=channels, height=height, width=width).token_grid(self.config.patch)

    @abstractmethod
    def rope(self, positions: tuple[int, ...], grid: TokenGrid) -> Tensor:
        """Compute the rotations of one frame block whose frames stand at `positions` in time."""

    @abstractmethod
    def embed_text(self, text: Tensor) -> Tensor:
        """Embed text `[B, L, text_dim]` to `[B, text_len, dim]`; padding rows are zeros before the embedding and are attended.

        Raises:
            ShapeError: more tokens, or tokens of another width, than the model was made for.
        """

    @abstractmethod
    def text_kv(self, text: Tensor) -> TextKV:
        """Compute keys and values of a prompt for every layer; text is `[B, L, text_dim]`."""

    @abstractmethod
    def modulation(self, timesteps: Tensor) -> Modulation:
        """Compute the modulation of all layers for timesteps `[B or 1, F or 1]` in [0, 1000]."""

    @abstractmethod
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

    @abstractmethod
    def commit(self, latents: Tensor, modulation: Modulation, text: TextKV, rope: Tensor, kv: CacheStep) -> None:
        """Write the keys and values of finished latents; the last layer computes nothing but those."""
