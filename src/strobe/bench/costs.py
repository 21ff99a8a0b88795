"""FLOPs and bytes of the stages of a stream, from the sizes of its model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

import torch.nn.functional as F

from strobe.core import costs
from strobe.core.costs import Cost, CostItem, PassShape, TransformerShape
from strobe.core.shapes import LatentShape
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, COMMIT, CROSS_ATTENTION, DENOISE_STEP, FFN, VAE_DECODE
from strobe.engine.config import ResolvedConfig
from strobe.engine.load import Model
from strobe.engine.prepared import latent_shape
from strobe.engine.sparsity import attended_keys
from strobe.engine.weighted import encode_prompts
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.wan.text import distinct_rows
from strobe.perf.records.record import SpanCost


def transformer_shape(model: Model, text_rows: int | None = None) -> TransformerShape:
    """Return the sizes of a loaded model's transformer; `text_rows`: rows of a text that passes attend, None: all."""
    config = model.dit.config
    return TransformerShape(
        name=model.name,
        num_layers=config.num_layers,
        dim=config.dim,
        ffn_dim=config.ffn_dim,
        num_heads=config.num_heads,
        text_tokens=config.text_len if text_rows is None else text_rows,
        latent_channels=config.latent_channels,
        patch=config.patch,
        stride=model.defaults.stride,
        frame_block=model.defaults.frame_block,
        source="the loaded model",
    )


def steady_pass(model: Model, config: ResolvedConfig, *, commit: bool = False) -> PassShape:
    """Return the sizes of a pass over a frame block with a full window; `commit`: of the pass that writes a finished block."""
    grid = latent_shape(model.defaults, model.dit.config).token_grid(model.dit.config.patch)
    return PassShape(
        q_tokens=config.frame_block * grid.tokens_per_frame,
        kv_tokens=attended_keys(grid, config),
        dtype=dtype_name(config),
        last_layer_kv_only=commit and config.knobs.commit_kv_only,
    )


def keys_of_blocks(model: Model, config: ResolvedConfig) -> tuple[int, ...]:
    """Return the keys per query in each frame block until the window is full; the last entry holds for all later ones."""
    grid = latent_shape(model.defaults, model.dit.config).token_grid(model.dit.config.patch)
    full = next(index for index in count(1) if config.latents_of(index).stop >= config.policy.window)
    return tuple(attended_keys(grid, config, index) for index in range(full + 1))


def unipc_cost(elements: int, num_steps: int) -> Cost:
    """Return the mean cost of UniPC's own work in a step over latents of so many numbers, float32.

    The first step reads latents and flow, and writes clean latents and those of the next level. The others read also where the
    step before went on from and its clean latents (from the third step on those of two), and write where they go on from. The
    last step makes clean latents alone.
    """
    first, last = (2, 2), (2, 1)
    steps = [first, *((4 if index == 1 else 5, 3) for index in range(1, num_steps - 1)), last][-num_steps:]
    each = [costs.elementwise(elements, dtype="float32", inputs=read, outputs=made) for read, made in steps]
    whole = sum(each, Cost())
    return Cost(read_bytes=whole.read_bytes // num_steps, write_bytes=whole.write_bytes // num_steps)


def dtype_name(config: ResolvedConfig) -> str:
    """Return the dtype of weights and activations, without `torch.`"""
    return str(config.dtype).removeprefix("torch.")


_MATRICES: Final = ("qkv_projection", "output_projection", "cross_projection", "ffn_up", "ffn_down")
"""Parts of a pass whose matrices `linear_format` applies to."""
_SECTIONS: Final = {
    ATTENTION: (
        "modulated_norm", "qkv_projection", "qk_norm_rope", "kv_write", ATTENTION_KERNEL, "output_projection", "gated_residual"
    ),
    CROSS_ATTENTION: (
        "cross_norm", "cross_norm", "cross_projection", "cross_projection", "cross_attention_kernel", "cross_residual"
    ),
    FFN: ("modulated_norm", "ffn_up", "ffn_activation", "ffn_down", "gated_residual"),
}  # fmt: skip
"""Parts of a pass in each section of a layer."""


def rows_of_text(model: Model, prompts: Sequence[str], config: ResolvedConfig) -> int | None:
    """Return the rows that a pass attends under the longest of some prompts; None: all of a text.

    Fused kernels attend the distinct ones (`strobe.models.wan.text`).
    """
    if not config.knobs.fused_kernels:
        return None
    text = encode_prompts(model.text, prompts)
    return int(distinct_rows(F.pad(text, (0, 0, 0, model.dit.config.text_len - text.shape[1]))).max())


def stream_costs(model: Model, config: ResolvedConfig, text_rows: int | None = None) -> tuple[SpanCost, ...]:
    """Return the cost of one call of every region of a steady frame block whose work follows from the sizes.

    These are denoise step, commit pass, decoder call, the sections of a layer and their pieces. FP8 matrices read inputs and
    weights in one byte and are held against the FP8 peak, int8 ones read their weights in one byte. Attention in eight bits
    multiplies int8 and FP8 and is held against the FP8 peak, which that of int8 equals; its rounding is part of `kv_write`. What
    has matrices of several kinds has no one peak: its dtype names them, and only its rates are known.

    Args:
        text_rows: that a pass attends; None: all.
    """
    shape = transformer_shape(model, text_rows)
    one = {DENOISE_STEP: steady_pass(model, config), COMMIT: steady_pass(model, config, commit=True)}
    wider = {name: replace(each, kv_tokens=2 * each.kv_tokens) for name, each in one.items()}
    found, more = (_regions(shape, passes, config) for passes in (one, wider))
    decode = sum((cost for _, cost in decoder_stages(model, dtype_name(config))), Cost())
    if decode != Cost():
        found[VAE_DECODE] = more[VAE_DECODE] = decode
    return tuple(
        SpanCost(
            span=name,
            flops=cost.flops,
            read_bytes=cost.read_bytes,
            write_bytes=cost.write_bytes,
            dtype=_multiplied(name, config),
            attended_flops=more[name].flops - cost.flops,  # as many keys again cost as much again
            attended_read_bytes=more[name].read_bytes - cost.read_bytes,
        )
        for name, cost in found.items()
    )


def _regions(shape: TransformerShape, passes: Mapping[str, PassShape], config: ResolvedConfig) -> dict[str, Cost]:
    """Return the cost of one call of a denoise step, of a commit pass, of each section of a layer and of each piece."""
    parts = {name: _formatted(shape, one, config) for name, one in passes.items()}
    each = {part.name: part.each for part in parts[DENOISE_STEP]}
    sections = {name: sum((each[part] for part in inside), Cost()) for name, inside in _SECTIONS.items()}
    return {name: costs.total(own) for name, own in parts.items()} | sections | each


def _multiplied(name: str, config: ResolvedConfig) -> str:
    """Return the dtype of a region's matrix products; empty: the model's."""
    linears, eight = config.linear_format == "fp8" and not config.simulate, config.attention_format == "int8"
    if (linears and name in (*_MATRICES, FFN)) or (eight and name == ATTENTION_KERNEL):
        return "float8"
    mixed = {DENOISE_STEP: linears or eight, COMMIT: linears or eight, ATTENTION: linears or eight, CROSS_ATTENTION: linears}
    return f"float8 and {dtype_name(config)}" if mixed.get(name) else ""


def _formatted(shape: TransformerShape, one: PassShape, config: ResolvedConfig) -> tuple[CostItem, ...]:
    """Return the parts of a pass with the bytes that its matrices and its attention take in their format."""
    parts = costs.transformer_pass(shape, one)
    if config.attention_format == "int8":
        parts = tuple(_in_eight_bits(part, shape, one) for part in parts)
    if config.linear_format == "native" or config.simulate:
        return parts
    rows, dim, wide, size = one.batch * one.q_tokens, shape.dim, shape.ffn_dim, costs.element_bytes(one.dtype)
    sizes = dict.fromkeys(_MATRICES, (dim, dim)) | {
        "qkv_projection": (dim, 3 * dim),
        "ffn_up": (dim, wide),
        "ffn_down": (wide, dim),
    }
    of_input = 1 if config.linear_format == "fp8" else size
    found = []
    for part in parts:
        given, out = sizes.get(part.name, (0, 0))
        narrower = rows * given * (size - of_input) + given * out * (size - 1)
        found.append(replace(part, each=replace(part.each, read_bytes=part.each.read_bytes - narrower)))
    return tuple(found)


def _in_eight_bits(part: CostItem, shape: TransformerShape, one: PassShape) -> CostItem:
    """Return a part of a pass with self-attention in eight bits: queries, keys and values are rounded where keys are written."""
    if part.name == ATTENTION_KERNEL:
        return replace(part, each=replace(part.each, read_bytes=part.each.read_bytes // costs.element_bytes(one.dtype)))
    if part.name != "kv_write":
        return part
    elements = 3 * one.batch * one.q_tokens * shape.dim
    read = costs.elementwise(elements, dtype=one.dtype, outputs=0)
    return replace(part, each=read + costs.elementwise(elements, dtype="int8", inputs=0))


def decoder_stages(model: Model, dtype: str) -> tuple[tuple[str, Cost], ...]:
    """Return the convolutions of one decoder call by module (tiny decoder) or as a whole (Wan's); none for others."""
    latents, vae = latent_shape(model.defaults, model.dit.config), model.vae
    if isinstance(vae, TinyVAE):
        return tuple(_stages(vae.config, latents, dtype))
    if not isinstance(vae, WanVAE):
        return ()
    sizes = vae.config
    shape = costs.VideoDecoderShape(
        width=sizes.decoder_widths[0] // sizes.multipliers[0],
        latent_channels=sizes.latent_channels,
        multipliers=sizes.multipliers,
        residual_blocks=sizes.num_blocks,
        doubles_time=tuple(reversed(sizes.halve_time)),
        source="the loaded model",
        halves_channels=not sizes.residual,
        out_channels=3 * sizes.patch**2,
    )
    return (("decoder", costs.vae_decode(shape, latents, dtype=dtype)),)


def _stages(config: TinyVAEConfig, latents: LatentShape, dtype: str) -> Iterator[tuple[str, Cost]]:
    deep, middle, shallow = config.widths
    cells = latents.frames * latents.height * latents.width

    def conv(places: int, given: int, out: int, taps: int = 9) -> Cost:
        return costs.conv(places, given, out, taps=taps, dtype=dtype)

    def memory_block(places: int, width: int) -> Cost:
        return conv(places, 2 * width, width) + conv(places, width, width)

    yield "enter", conv(cells, config.latent_channels, deep)
    yield "deep1", memory_block(cells, deep)
    yield "deep2", memory_block(cells, deep)
    yield "down1", conv(cells, deep, 4 * middle, taps=1)
    yield "middle", memory_block(4 * cells, middle)
    yield "down2", conv(4 * cells, middle, 4 * shallow, taps=1)
    yield "shallow1", memory_block(16 * cells, shallow)
    yield "shallow2", memory_block(16 * cells, shallow)
    yield "leave", conv(16 * cells, shallow, 3 * config.stride.time * 4)
