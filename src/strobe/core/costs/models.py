"""Cost of models with public sizes: passes of a video transformer, a decoder call. Sizes are data, each with its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from strobe.core.costs.operations import AttentionShape, Cost, attention, conv, elementwise, kv_write, linear, norm
from strobe.core.shapes import LatentShape, VaeStride


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerShape:
    """Sizes of a video transformer with self-attention over a cache, cross-attention to a text and a feed-forward.

    Args:
        name: what a user calls it.
        num_layers, dim, ffn_dim, num_heads: of the transformer; a head has `dim / num_heads` channels.
        text_tokens: tokens attended in cross-attention, padding included.
        latent_channels: channels of a latent frame.
        patch: latent cells per token, height and width.
        stride: pixels per latent cell and frames per latent frame.
        frame_block: latent frames made at a time.
        source: where the numbers come from.
    """

    name: str
    num_layers: int
    dim: int
    ffn_dim: int
    num_heads: int
    text_tokens: int
    latent_channels: int
    patch: tuple[int, int]
    stride: VaeStride
    frame_block: int
    source: str

    @property
    def head_dim(self) -> int:
        """Number of channels of a head."""
        return self.dim // self.num_heads

    def tokens_per_frame(self, height: int, width: int) -> int:
        """Return the tokens of one latent frame of a video of `height` x `width` pixels.

        Raises:
            ShapeError: the size is not a multiple of stride and patch.
        """
        rows, columns = self.stride.latent_size(height, width)
        latent = LatentShape(frames=1, channels=self.latent_channels, height=rows, width=columns)
        return latent.token_grid(self.patch).num_tokens


WAN_1_3B: Final = TransformerShape(
    name="wan-1.3b",
    num_layers=30,
    dim=1536,
    ffn_dim=8960,
    num_heads=12,
    text_tokens=512,
    latent_channels=16,
    patch=(2, 2),
    stride=VaeStride(time=4, space=8),
    frame_block=3,
    source="Wan2.1-T2V-1.3B, config.json; frame_block: Self-Forcing, configs/self_forcing_dmd.yaml (num_frame_per_block)",
)
WAN_14B: Final = TransformerShape(
    name="wan-14b",
    num_layers=40,
    dim=5120,
    ffn_dim=13824,
    num_heads=40,
    text_tokens=512,
    latent_channels=16,
    patch=(2, 2),
    stride=VaeStride(time=4, space=8),
    frame_block=3,
    source="Wan2.1-T2V-14B, config.json; frame_block: krea-realtime-video (3 latent frames)",
)
TRANSFORMERS: Final[dict[str, TransformerShape]] = {shape.name: shape for shape in (WAN_1_3B, WAN_14B)}
"""Known transformers by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PassShape:
    """One pass of a transformer over a frame block (or, for a recache, over a window).

    Args:
        q_tokens: tokens computed.
        kv_tokens: tokens attended in self-attention, those of the pass included.
        batch: samples in lockstep.
        dtype: of weights, activations and cache.
        pairs: (query, key) token pairs of self-attention in one layer, over heads and samples; None: dense.
        last_layer_kv_only: a commit pass whose last layer computes keys and values and nothing else.
    """

    q_tokens: int
    kv_tokens: int
    batch: int = 1
    dtype: str = "bfloat16"
    pairs: int | None = None
    last_layer_kv_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CostItem:
    """One kind of operation in a pass: `calls` times `each`."""

    name: str
    calls: int
    each: Cost

    @property
    def total(self) -> Cost:
        """Cost of all calls together."""
        return self.each * self.calls


def total(parts: Sequence[CostItem]) -> Cost:
    """Add parts up."""
    return sum((part.total for part in parts), Cost())


def transformer_pass(shape: TransformerShape, one: PassShape) -> tuple[CostItem, ...]:
    """Compute the cost of one pass, part by part, without text keys and values and the time path, which are computed once.

    FLOPs of a layer: linears `8 S d^2` (self), `4 S d^2` (cross) and `4 S d f` (feed-forward), attention `4 S K d` and `4 S L d`.
    """
    rows, dim, dtype = one.batch * one.q_tokens, shape.dim, one.dtype
    full = shape.num_layers - one.last_layer_kv_only
    own = AttentionShape(
        batch=one.batch, q_tokens=one.q_tokens, kv_tokens=one.kv_tokens, num_heads=shape.num_heads, head_dim=shape.head_dim
    )
    text = AttentionShape(
        batch=one.batch, q_tokens=one.q_tokens, kv_tokens=shape.text_tokens, num_heads=shape.num_heads, head_dim=shape.head_dim
    )
    latents = shape.patch[0] * shape.patch[1] * shape.latent_channels
    square = linear(rows, dim, dim, dtype=dtype)
    layers = (
        CostItem(name="modulated_norm", calls=2 * full, each=norm(rows, dim, dtype=dtype)),
        CostItem(name="qkv_projection", calls=full, each=linear(rows, dim, 3 * dim, dtype=dtype)),
        CostItem(name="qk_norm_rope", calls=full, each=elementwise(2 * rows * dim, dtype=dtype)),
        CostItem(name="kv_write", calls=shape.num_layers, each=kv_write(rows, shape.num_heads, shape.head_dim, dtype=dtype)),
        CostItem(name="attention_kernel", calls=full, each=attention(own, dtype=dtype, pairs=one.pairs)),
        CostItem(name="output_projection", calls=full, each=square),
        CostItem(name="gated_residual", calls=2 * full, each=elementwise(rows * dim, inputs=2, dtype=dtype)),
        CostItem(name="cross_norm", calls=2 * full, each=norm(rows, dim, dtype=dtype)),
        CostItem(name="cross_projection", calls=2 * full, each=square),
        CostItem(name="cross_attention_kernel", calls=full, each=attention(text, dtype=dtype)),
        CostItem(name="cross_residual", calls=full, each=elementwise(rows * dim, inputs=2, dtype=dtype)),
        CostItem(name="ffn_up", calls=full, each=linear(rows, dim, shape.ffn_dim, dtype=dtype)),
        CostItem(name="ffn_activation", calls=full, each=elementwise(rows * shape.ffn_dim, dtype=dtype)),
        CostItem(name="ffn_down", calls=full, each=linear(rows, shape.ffn_dim, dim, dtype=dtype)),
    )
    embed = CostItem(name="patch_embedding", calls=1, each=linear(rows, latents, dim, dtype=dtype))
    if one.last_layer_kv_only:
        last_qk = elementwise(rows * dim, dtype=dtype)
        kv = norm(rows, dim, dtype=dtype) + linear(rows, dim, 2 * dim, dtype=dtype) + last_qk
        return (embed, *layers, CostItem(name="last_layer_kv", calls=1, each=kv))
    head = norm(rows, dim, dtype=dtype) + linear(rows, dim, latents, dtype=dtype)
    return (embed, *layers, CostItem(name="head", calls=1, each=head))


# ---------------------------------------------------------------------------------------------------------- VAE decoder


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoDecoderShape:
    """Sizes of a causal 3-D convolutional decoder that doubles height and width between its levels.

    Args:
        width: channels of the last level; level i has `width * multipliers[-1 - i]`.
        residual_blocks: per level, plus one.
        doubles_time: after which level the number of frames doubles too; the last level doubles nothing.
        halves_channels: where height and width double, channels are halved.
        out_channels: of the last convolution.
    """

    width: int
    latent_channels: int
    multipliers: tuple[int, ...]
    residual_blocks: int
    doubles_time: tuple[bool, ...]
    source: str
    halves_channels: bool = True
    out_channels: int = 3


WAN_VAE: Final = VideoDecoderShape(
    width=96,
    latent_channels=16,
    multipliers=(1, 2, 4, 4),
    residual_blocks=2,
    doubles_time=(True, True, False),
    source="Wan2.1, wan/modules/vae.py: WanVAE(dim=96, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2)",
)


def vae_decode(shape: VideoDecoderShape, latent: LatentShape, *, dtype: str, first: bool = False) -> Cost:
    """Compute the cost of decoding `latent.frames` latent frames; with `first` a video begins, and its first frame stays single.

    Convolutions and the one attention over a frame of latents count; norms, activations and upsampling move bytes that a fused
    kernel would not and are left out.
    """
    frames, height, width = latent.frames, latent.height, latent.width
    widths = [shape.width * factor for factor in (shape.multipliers[-1], *reversed(shape.multipliers))]
    cells = frames * height * width
    deep = widths[0]
    cost = conv(cells, shape.latent_channels, shape.latent_channels, taps=1, dtype=dtype)
    cost += conv(cells, shape.latent_channels, deep, taps=27, dtype=dtype)
    cost += 2 * _residual_block(cells, deep, deep, dtype)
    own = AttentionShape(batch=frames, q_tokens=height * width, kv_tokens=height * width, num_heads=1, head_dim=deep)
    cost += linear(cells, deep, 3 * deep, dtype=dtype) + attention(own, dtype=dtype) + linear(cells, deep, deep, dtype=dtype)
    channels = deep
    for level, out in enumerate(widths[1:]):
        cost += _residual_block(cells, channels, out, dtype) + shape.residual_blocks * _residual_block(cells, out, out, dtype)
        channels = out
        if level < len(shape.doubles_time):
            if shape.doubles_time[level] and not first:
                cost += conv(cells, out, 2 * out, taps=3, dtype=dtype)
                cells *= 2
            cells, channels = 4 * cells, out // 2 if shape.halves_channels else out
            cost += conv(cells, out, channels, taps=9, dtype=dtype)
    return cost + conv(cells, channels, shape.out_channels, taps=27, dtype=dtype)


def _residual_block(cells: int, given: int, out: int, dtype: str) -> Cost:
    cost = conv(cells, given, out, taps=27, dtype=dtype) + conv(cells, out, out, taps=27, dtype=dtype)
    return cost + conv(cells, given, out, taps=1, dtype=dtype) if given != out else cost
