"""What the stages of a stream must compute and move, from the sizes of the model that runs."""

from __future__ import annotations

from collections.abc import Iterator

from strobe.core import costs
from strobe.core.costs import Cost, PassShape, TransformerShape
from strobe.core.shapes import LatentShape
from strobe.core.spans import ATTENTION_KERNEL, COMMIT, DENOISE_STEP, VAE_DECODE
from strobe.engine.config import ResolvedConfig
from strobe.engine.load import Model
from strobe.engine.sparsity import attended_keys
from strobe.engine.stream import latent_shape
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.perf.records.record import SpanCost


def transformer_shape(model: Model) -> TransformerShape:
    """Sizes of a loaded model's transformer."""
    config = model.dit.config
    return TransformerShape(
        name=model.name,
        num_layers=config.num_layers,
        dim=config.dim,
        ffn_dim=config.ffn_dim,
        num_heads=config.num_heads,
        text_tokens=config.text_len,
        latent_channels=config.latent_channels,
        patch=config.patch,
        stride=model.defaults.stride,
        frame_block=model.defaults.frame_block,
        source="the loaded model",
    )


def steady_pass(model: Model, config: ResolvedConfig, *, commit: bool = False) -> PassShape:
    """A pass over a frame block with a full window; `commit`: the one that writes a finished block."""
    grid = latent_shape(model.defaults, model.dit.config).token_grid(model.dit.config.patch)
    return PassShape(
        q_tokens=config.frame_block * grid.tokens_per_frame,
        kv_tokens=attended_keys(grid, config),
        dtype=dtype_name(config),
        last_layer_kv_only=commit and config.knobs.commit_kv_only,
    )


def dtype_name(config: ResolvedConfig) -> str:
    """The dtype of weights and activations, without `torch.`"""
    return str(config.dtype).removeprefix("torch.")


def stream_costs(model: Model, config: ResolvedConfig) -> tuple[SpanCost, ...]:
    """Cost of one denoise step, commit pass, self-attention kernel call and decoder call of a steady frame block."""
    shape = transformer_shape(model)
    step = costs.transformer_pass(shape, steady_pass(model, config))
    commit = costs.transformer_pass(shape, steady_pass(model, config, commit=True))
    (kernel,) = (part.each for part in step if part.name == ATTENTION_KERNEL)
    decode = sum((cost for _, cost in decoder_stages(model, dtype_name(config))), Cost())
    found = {DENOISE_STEP: costs.total(step), COMMIT: costs.total(commit), ATTENTION_KERNEL: kernel}
    if decode != Cost():
        found[VAE_DECODE] = decode
    return tuple(
        SpanCost(span=name, flops=cost.flops, read_bytes=cost.read_bytes, write_bytes=cost.write_bytes)
        for name, cost in found.items()
    )


def decoder_stages(model: Model, dtype: str) -> tuple[tuple[str, Cost], ...]:
    """Convolutions of one decoder call over a frame block: by module of the tiny decoder, Wan's as a whole, of others none."""
    latents, vae = latent_shape(model.defaults, model.dit.config), model.vae
    if isinstance(vae, TinyVAE):
        return tuple(_stages(vae.config, latents, dtype))
    if not isinstance(vae, WanVAE):
        return ()
    sizes = vae.config
    shape = costs.VideoDecoderShape(
        width=sizes.width,
        latent_channels=sizes.latent_channels,
        multipliers=sizes.multipliers,
        residual_blocks=sizes.num_blocks,
        doubles_time=tuple(reversed(sizes.halve_time)),
        source="the loaded model",
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
