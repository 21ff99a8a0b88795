"""One transformer layer in parts: attention section, cross-attention, feed-forward; rotations, and a past that is faded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strobe.attention.dense import dense_attention
from strobe.attention.dense.eight import attend_rounded, best_blocks
from strobe.attention.sparse.history import History, history_attention
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput, traced
from strobe.cache.kv import CacheStep, Reach, Signature, StepAround
from strobe.cache.quantized import EightBitStep
from strobe.core.errors import ShapeError
from strobe.core.spans import (
    ATTENTION,
    ATTENTION_KERNEL,
    ATTENTION_SELECT,
    CROSS_ATTENTION,
    CROSS_ATTENTION_KERNEL,
    CROSS_NORM,
    CROSS_PROJECTION,
    CROSS_RESIDUAL,
    FFN,
    FFN_ACTIVATION,
    FFN_DOWN,
    FFN_UP,
    GATED_RESIDUAL,
    KV_WRITE,
    MODULATED_NORM,
    OUTPUT_PROJECTION,
    QK_NORM_ROPE,
    QKV_PROJECTION,
    span,
)
from strobe.eightbit.rounded import BlockBudget, RoundedKeys, RoundedQueries
from strobe.models.wan.config import WanConfig


def region(name: str) -> AbstractContextManager[object]:
    """Mark a piece of a pass (`strobe.core.spans.PIECES`); does nothing while `torch.compile` traces."""
    return nullcontext() if traced() else span(name)


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


THETA = 10_000.0


def frequencies(pairs: int, device: torch.device | None = None) -> Tensor:
    """Return the frequencies of one axis, float64 `[pairs]`."""
    return THETA ** (-torch.arange(pairs, dtype=torch.float64, device=device) / pairs)


def rope_table(
    config: WanConfig, positions: Sequence[int], height: int, width: int, device: torch.device | None = None
) -> Tensor:
    """Compute the complex rotations of the tokens of frames at `positions`.

    Args:
        positions: temporal index of each frame.
        height, width: tokens per frame.
        device: where it is worked out, None: on the CPU. Consecutive positions are not copied there, so that nothing waits.

    Returns:
        complex128 `[F * height * width, head_dim / 2]`.
    """
    axes = []
    spans = (_numbers(positions, device), _numbers(range(height), device), _numbers(range(width), device))
    for axis, (pairs, index) in enumerate(zip(config.rope_pairs, spans, strict=True)):
        angles = torch.outer(index, frequencies(pairs, device))
        shape = [1, 1, 1, pairs]
        shape[axis] = len(index)
        axes.append(angles.view(shape).expand(len(spans[0]), height, width, pairs))
    angles = torch.cat(axes, dim=-1).flatten(0, 2)  # [F*h*w, pairs]
    return torch.polar(torch.ones_like(angles), angles)


def _numbers(numbers: Sequence[int], device: torch.device | None) -> Tensor:
    consecutive = range(numbers[0], numbers[0] + len(numbers))
    if tuple(numbers) == tuple(consecutive):
        return torch.arange(consecutive.start, consecutive.stop, dtype=torch.float64, device=device)
    return torch.tensor(list(numbers), dtype=torch.float64, device=device)


def rotate(x: Tensor, rotations: Tensor) -> Tensor:
    """Rotate `x [B, S, ..., D]` by `rotations`: complex `[S, D / 2]`, or real `[S, D / 2, 2]` holding (cos, sin).

    Complex rotations set the precision of the product: complex128 is what the official code pays for.
    """
    pairs = x.unflatten(-1, (-1, 2))  # [B, S, ..., D/2, 2]
    between = (1,) * (x.dim() - 3)
    if rotations.is_complex():
        turns = rotations.view(rotations.shape[0], *between, rotations.shape[1])
        wide = pairs.to(rotations.dtype.to_real()).contiguous()
        return torch.view_as_real(torch.view_as_complex(wide) * turns).flatten(-2).to(x.dtype)
    cos, sin = rotations.view(rotations.shape[0], *between, rotations.shape[1], 2).unbind(-1)
    real, imaginary = pairs.float().unbind(-1)
    return torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1).flatten(-2).to(x.dtype)


def device_table(rotations: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Convert a table to the form in which `rotate` is fastest: complex64 for float32 on a CPU, else float32 (cos, sin) pairs."""
    if dtype == torch.float32 and device.type == "cpu":
        return rotations.to(torch.complex64)
    return torch.view_as_real(rotations).to(device=device, dtype=torch.float32)


def temporal_turns(config: WanConfig, frames: int, device: torch.device | None = None) -> Tensor:
    """Compute rotations of the temporal pairs, the first of a head, by `frames` in time: (cos, sin), float32 `[pairs, 2]`."""
    angles = frequencies(config.rope_pairs[0], device) * frames
    return torch.view_as_real(torch.polar(torch.ones_like(angles), angles).to(torch.complex64))


def turn_first(keys: Tensor, turns: Tensor, out: Tensor) -> None:
    """Rotate the first pairs of `keys [..., D]` into `out` by `turns [pairs, 2]` in float32; the others are left alone."""
    channels = 2 * turns.shape[0]
    pairs = torch.view_as_complex(keys[..., :channels].float().unflatten(-1, (-1, 2)).contiguous())
    out[..., :channels] = torch.view_as_real(pairs * torch.view_as_complex(turns)).flatten(-2)


def rotate_temporal(config: WanConfig, keys: Tensor, frames: int, out: Tensor) -> None:
    """Move already rotated keys `[..., D]` by `frames` in time, into `out`; height and width are not written.

    Args:
        out: the same keys, wherever they are in time, or `keys` itself.
    """
    turn_first(keys, temporal_turns(config, frames, keys.device), out)


Piece = Callable[..., Tensor | tuple[Tensor, ...]]
KeyValues = tuple[Tensor, Tensor]


def random_modulation(rows: int, dim: int) -> Tensor:
    """Draw a learned offset of the modulation [1, rows, dim]; on the meta device nothing is drawn, for that imports sympy."""
    empty = torch.empty(1, rows, dim)
    return empty if empty.is_meta else torch.randn(1, rows, dim) / dim**0.5


Attend = Callable[[Tensor, KeyValues | None, KeyValues | RoundedKeys, Reach | BlockBudget | None, int], Tensor]
"""`WanLayer.attend_kept`."""


@runtime_checkable
class SharedKeyValueStep(CacheStep, Protocol):
    """A step of a cache shared with other devices, which also exchanges the tensors that attention needs."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
        """Store k and v, and attend over all that the devices keep; q, k, v are of this device's tokens, all heads."""


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis, statistics in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), eps=self.eps).to(x.dtype) * self.weight.to(x.dtype)


def modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Compute `layer_norm(x) * (1 + scale) + shift` with one shift and scale per frame.

    Args:
        x: `[B, F * N, dim]`.
        shift, scale: `[B or 1, F or 1, dim]`; a single row folds into the norm's affine part.
    """
    dim = x.shape[-1]
    if shift.shape[0] == 1 and shift.shape[1] == 1:
        return F.layer_norm(x, (dim,), weight=(1 + scale).view(dim).to(x.dtype), bias=shift.view(dim).to(x.dtype), eps=eps)
    frames = x.unflatten(1, (shift.shape[1], -1))  # [B, F, N, dim]
    normed = F.layer_norm(frames, (dim,), eps=eps)
    return torch.addcmul(shift.unsqueeze(2), normed, 1 + scale.unsqueeze(2)).flatten(1, 2).to(x.dtype)


def add_gated(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """Compute `x + y * gate` with one gate `[B or 1, F or 1, dim]` per frame."""
    if gate.shape[1] == 1:
        return torch.addcmul(x, y.to(x.dtype), gate.to(x.dtype))
    frames = gate.shape[1]
    base, update = (tensor.to(x.dtype).unflatten(1, (frames, -1)) for tensor in (x, y))
    return torch.addcmul(base, update, gate.unsqueeze(2).to(x.dtype)).flatten(1, 2)


class SelfAttention(nn.Module):
    """Projections of self-attention. Queries and keys are RMS-normed over the full width before the heads are split."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.q = nn.Linear(config.dim, config.dim)
        self.k = nn.Linear(config.dim, config.dim)
        self.v = nn.Linear(config.dim, config.dim)
        self.o = nn.Linear(config.dim, config.dim)
        self.norm_q = RMSNorm(config.dim, config.eps)
        self.norm_k = RMSNorm(config.dim, config.eps)
        self.fused: nn.Module | None = None  # Q, K and V as one matrix
        self.fused_kv: nn.Module | None = None  # its part for K and V

    def fuse(self) -> None:
        """Join Q, K and V into one matrix for inference; the separate ones become views of it, so that nothing is held twice.

        Call again after weights were replaced by other tensors; its address stays.
        """
        layers = (self.q, self.k, self.v)
        assert all(isinstance(layer, nn.Linear) for layer in layers), "no LoRA stands beside them"
        dim = self.norm_q.weight.shape[0]
        if self.fused is None:
            self.fused, self.fused_kv = (nn.Linear(dim, number * dim, device="meta") for number in (3, 2))
        for name in ("weight", "bias"):
            new = torch.cat([getattr(layer, name).detach() for layer in layers])
            held: Tensor = getattr(self.fused, name).detach()
            whole = new if held.is_meta else held.copy_(new)
            pieces = (*whole.chunk(3), whole, whole[dim:])
            for layer, part in zip((*layers, self.fused, self.fused_kv), pieces, strict=True):
                setattr(layer, name, nn.Parameter(part, requires_grad=False))

    def keys_values(self, x: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys after RoPE and values, each `[B, S, H, D]`."""
        k, v = (self.k(x), self.v(x)) if self.fused_kv is None else self.fused_kv(x).chunk(2, dim=-1)
        heads = (self.num_heads, -1)
        return rotate(self.norm_k(k).unflatten(-1, heads), rope), v.unflatten(-1, heads)

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries, keys and values `[B, S, dim]`, before norms and RoPE."""
        if self.fused is None:
            return self.q(x), self.k(x), self.v(x)
        q, k, v = self.fused(x).chunk(3, dim=-1)
        return q, k, v

    def turned(self, q: Tensor, k: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        """Norm queries and keys of `qkv` and rotate them by RoPE: `[B, S, H, D]`."""
        both = torch.stack((self.norm_q(q), self.norm_k(k)), dim=2).unflatten(-1, (self.num_heads, -1))  # [B, S, 2, H, D]
        q, k = rotate(both, rope).unbind(2)
        return q, k

    def project(self, x: Tensor, rope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries and keys after RoPE, and values, each `[B, S, H, D]`."""
        with region(QKV_PROJECTION):
            q, k, v = self.qkv(x)
        with region(QK_NORM_ROPE):
            return *self.turned(q, k, rope), v.unflatten(-1, (self.num_heads, -1))


class CrossAttention(nn.Module):
    """Attention to the text; keys and values are computed once per prompt."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.q = nn.Linear(config.dim, config.dim)
        self.k = nn.Linear(config.dim, config.dim)
        self.v = nn.Linear(config.dim, config.dim)
        self.o = nn.Linear(config.dim, config.dim)
        self.norm_q = RMSNorm(config.dim, config.eps)
        self.norm_k = RMSNorm(config.dim, config.eps)

    def keys_values(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys and values `[B, L, H, D]` of embedded text `[B, L, dim]`."""
        heads = (self.num_heads, -1)
        return self.norm_k(self.k(text)).unflatten(-1, heads), self.v(text).unflatten(-1, heads)

    def forward(self, x: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from x `[B, S, dim]` to k, v `[B * P, L, H, D]`; P prompts per sample own equal runs of the tokens."""
        with region(CROSS_PROJECTION):
            q = self.q(x)
        with region(CROSS_NORM):
            q = self.norm_q(q).reshape(k.shape[0], -1, self.num_heads, k.shape[-1])
        with region(CROSS_ATTENTION_KERNEL):
            attended = dense_attention(q, k, v).out.reshape(x.shape)
        with region(CROSS_PROJECTION):
            out: Tensor = self.o(attended)
        return out


class WanLayer(nn.Module):
    """One layer: gated self-attention over the cache, cross-attention to the text, gated feed-forward."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.self_attn = SelfAttention(config)
        self.norm3 = nn.LayerNorm(config.dim, eps=config.eps)
        self.cross_attn = CrossAttention(config)
        self.ffn = nn.Sequential(
            nn.Linear(config.dim, config.ffn_dim), nn.GELU(approximate="tanh"), nn.Linear(config.ffn_dim, config.dim)
        )
        self.modulation = nn.Parameter(random_modulation(6, config.dim))

    def before(self, x: Tensor, mod: Tensor, rope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the attention section up to the cache: queries, keys and values `[B, S, H, D]`."""
        with region(MODULATED_NORM):
            normed = modulate(x, mod[..., 0, :], mod[..., 1, :], self.eps)
        return self.self_attn.project(normed, rope)

    def after(self, x: Tensor, out: Tensor, mod: Tensor) -> Tensor:
        """Run the attention section after the kernel: output projection and gated residual."""
        with region(OUTPUT_PROJECTION):
            y = self.self_attn.o(out.flatten(2))
        with region(GATED_RESIDUAL):
            return add_gated(x, y, mod[..., 2, :])

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Run the attention kernel; `mask` (True = attend, `[S_q, S_kv]`) is given on the training path only."""
        with span(ATTENTION_KERNEL):
            if mask is None:
                return dense_attention(q, k, v).out
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

    def attend_kept(
        self,
        q: Tensor | RoundedQueries,
        new: KeyValues | None,
        kept: KeyValues | RoundedKeys,
        reach: Reach | BlockBudget | None,
        index: int,
    ) -> Tensor:
        """Attend over what a cache keeps: all of it, or with a `reach` the sink, this pass and tiles or blocks of the history.

        Args:
            q: of this pass; rounded for what is kept only if that is in eight bits.
            new: keys and values of this pass; None: all are among what is kept.
            kept: what the cache returned for layer `index`.
        """
        if isinstance(kept, RoundedKeys):
            blocks = None
            if isinstance(reach, BlockBudget):
                assert isinstance(q, RoundedQueries)
                with span(ATTENTION_SELECT):
                    blocks = best_blocks(q, kept, reach)
            with span(ATTENTION_KERNEL):
                return attend_rounded(q, kept, blocks=blocks).out
        assert isinstance(q, Tensor) and not isinstance(reach, BlockBudget)
        if reach is None:
            return self.attend(q, *kept, None)
        tiles, per_frame = reach.tiles, reach.tiles.grid[0] * reach.tiles.grid[1]
        dense = [(kept[0][:, : reach.whole_rows], kept[1][:, : reach.whole_rows])]
        if new is not None:
            dense.append((new[0][:, reach.covered :], new[1][:, reach.covered :]))
        history = History(
            keys=kept[0][:, reach.tiled_from :],
            values=kept[1][:, reach.tiled_from :],
            means=reach.means[index],
            sizes=reach.sizes,
            num_tiles=reach.num_tiles,
            block=tiles.block,
            whole=tiles.whole,
        )
        q_tiles = tile_layout((q.shape[1] // per_frame, *tiles.grid), "auto", tiles.block)
        return history_attention(q, dense, history, q_tiles=q_tiles, sparsity=tiles.sparsity).out

    def attend_new(self, q: Tensor, k: Tensor, v: Tensor, index: int, kv: CacheStep) -> Tensor:
        """Store the keys and values of this pass in layer `index` of a cache, then attend to what it keeps."""
        if isinstance(kv, SharedKeyValueStep):
            return kv.attend(index, q, k, v, self.attend_kept)
        if isinstance(kv, EightBitStep):
            with span(KV_WRITE):
                queries, rounded = kv.write_beside(index, q, k, v)
            return self.attend_kept(queries, None, rounded, kv.budget, index)
        with span(KV_WRITE):
            kept = kv.write(index, k, v)
        return self.attend_kept(q, (k, v), kept, kv.reach, index)

    def section(self, x: Tensor, mod: Tensor, rope: Tensor, index: int, kv: CacheStep | None, mask: Tensor | None) -> Tensor:
        """Run the attention section: `x + gate * attention(modulated norm of x)`."""
        with span(ATTENTION):
            q, k, v = self.before(x, mod, rope)
            assert kv is None or mask is None
            out = self.attend(q, k, v, mask) if kv is None else self.attend_new(q, k, v, index, kv)
            return self.after(x, out, mod)

    def write_only(self, x: Tensor, mod: Tensor, rope: Tensor, index: int, kv: CacheStep) -> None:
        """Store this block's keys and values and compute nothing else, as a commit pass does in the last layer."""
        with span(ATTENTION):
            with span(MODULATED_NORM):
                normed = modulate(x, mod[..., 0, :], mod[..., 1, :], self.eps)
            with span(QKV_PROJECTION):
                k, v = self.self_attn.keys_values(normed, rope)
            with span(KV_WRITE):
                kv.write(index, k, v)

    def cross(self, x: Tensor, text: tuple[Tensor, Tensor]) -> Tensor:
        """Run cross-attention with its norm and residual."""
        with region(CROSS_NORM):
            normed = self.norm3(x)
        y = self.cross_attn(normed, *text)
        with region(CROSS_RESIDUAL):
            out: Tensor = x + y
        return out

    def feed_forward(self, x: Tensor, mod: Tensor) -> Tensor:
        """Run the feed-forward with its norm and gated residual."""
        up, gelu, down = self.ffn
        with region(MODULATED_NORM):
            y = modulate(x, mod[..., 3, :], mod[..., 4, :], self.eps)
        with region(FFN_UP):
            y = up(y)
        with region(FFN_ACTIVATION):
            y = gelu(y)
        with region(FFN_DOWN):
            y = down(y)
        with region(GATED_RESIDUAL):
            return add_gated(x, y, mod[..., 5, :])

    def rest(self, x: Tensor, mod: Tensor, text: tuple[Tensor, Tensor]) -> Tensor:
        """Run cross-attention and feed-forward."""
        with span(CROSS_ATTENTION):
            x = self.cross(x, text)
        with span(FFN):
            return self.feed_forward(x, mod)

    def compile_pieces(self, num_tokens: int | None = None) -> None:
        """Compile the parts around the kernel and the cache. Regions of time stay outside of them.

        Args:
            num_tokens: compile for passes of this many tokens and leave others eager, so that rare sizes (the window of a prompt
                switch) neither stall a stream nor use up the compiler's limit; None: compile for every size that comes.
        """
        for name in ("before", "after", "cross", "feed_forward"):
            eager = getattr(self, name)
            compiled = torch.compile(eager, dynamic=False)
            setattr(self, name, compiled if num_tokens is None else partial(_by_size, num_tokens, compiled, eager))


def _by_size(num_tokens: int, compiled: Piece, eager: Piece, x: Tensor, *rest: object) -> Tensor | tuple[Tensor, ...]:
    return (compiled if x.shape[1] == num_tokens else eager)(x, *rest)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FadedStep(StepAround):
    """A pass over a cache that returns its frames in their order, with faded scores: ``softmax(q k^T / sqrt(d) + b) v``.

    ``b`` is ``log(weight)`` for keys behind the `first` frames and before this pass, and 0 for all others. A constant added to
    the scores of some keys is the same constant added to the log-sum-exp of attention to them alone, so the three parts are
    attended one by one and merged.

    Args:
        step: of the cache.
        weight: in (0, 1].
        first: frames at the start that do not fade.

    Source: Scope, `krea_realtime_video/modules/causal_model.py` (0b33dbc, kv_cache_attention_bias).
    """

    weight: float
    first: int

    @property
    def signature(self) -> Signature | None:
        own = self.step.signature
        return None if own is None else (*own, self.first)

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        written = self.step.write(layer, k, v)
        assert isinstance(written, tuple), "the configuration was checked"
        return written

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
        """Store k and v `[B, S, H, D]`, and attend: `[B, S, H, D]`.

        Raises:
            ShapeError: there is no past between the first frames and this pass.
        """
        with span(KV_WRITE):
            keys, values = self.write(layer, k, v)
        begin, end = self.first * k.shape[1] // len(self.positions), keys.shape[1] - k.shape[1]
        if end <= begin:
            raise ShapeError(f"a faded past: {end} rows before this pass, of which the first {begin} do not fade; none is left")
        with span(ATTENTION_KERNEL):
            parts = []
            for low, high in ((0, begin), (begin, end), (end, keys.shape[1])):
                part = dense_attention(q, keys[:, low:high], values[:, low:high], return_lse=True)
                assert part.lse is not None
                faded = part.lse + math.log(self.weight) if low == begin else part.lse
                parts.append(AttentionOutput(out=part.out, lse=faded))
            return merge(parts, return_lse=False).out
