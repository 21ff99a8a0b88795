"""Prediction of a stream's memory, on one device or on a rank of several, before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import torch
from torch import nn

from strobe.cache.quantized import SCALE_BYTES, eightbit_ring_bytes, ring_bytes
from strobe.core.device import GIB, available_bytes
from strobe.core.errors import StrobeError
from strobe.core.shapes import LatentShape, TokenGrid
from strobe.engine.caches import cache_shape, check_blocks, frame_tiles
from strobe.engine.decode import VideoVAE
from strobe.engine.graphs import CAPTURES
from strobe.engine.model import ModelParts, latent_shape
from strobe.engine.parallel.layout import Layout
from strobe.engine.resolve import ResolvedConfig
from strobe.engine.transformer import LINEARS
from strobe.models.checkpoint import on_meta
from strobe.models.vae.kernels.api import unavailable
from strobe.models.vae.stream import predict_state_bytes
from strobe.models.vae.tiny import TinyVAE
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.wan import CausalWan
from strobe.models.wan.config import WanConfig

CACHED: Final = "keys and values"
WEIGHTS: Final = ("transformer weights", "autoencoder weights")
"""The parts that sessions of one model and configuration share."""
LARGEST: Final = "largest pass"
"""The part of a prediction that is only there while a stream works, but for one with graphs, which hold it."""


def predict(parts: ModelParts, config: ResolvedConfig, batch: int = 1) -> dict[str, int]:
    """Predict the memory of a stream of `batch` samples on its device, without the text encoder, which stays where it was loaded.

    Returns:
        bytes by part; `LARGEST` is estimated from the largest tensors that live at once, all others are counted from shapes.
    """
    dit, size = parts.dit.config, config.dtype.itemsize
    latents = latent_shape(parts.defaults, dit)
    grid = latents.token_grid(dit.patch)
    beside = 0 if config.asked.knobs.merge_lora else sum(lora.num_params for lora in parts.loras)
    text, timestep = _conditions(dit, config, batch)
    steps = len({*config.schedule.warped, 0.0}) + _rows_ahead(config) if config.knobs.modulation_table else 0
    vae_bytes, memories = _decoder(parts.vae, (latents.height, latents.width), config.dtype, batch)
    height, width = parts.defaults.frame_size
    ends = batch * config.num_recomputed * 3 * height * width * 4
    transformer, decoder = _activations(parts, config, batch)
    # in parallel to other work the stream keeps the memories before the frame block until all of it is decoded
    decoder += memories * (2 if config.knobs.overlap_decode and not config.knobs.block_decode else 1)
    both = transformer + decoder if config.knobs.late_frames else max(transformer, decoder)
    return {
        WEIGHTS[0]: _weights(parts.dit, config) + beside * size,
        CACHED: _cached(dit, grid, config, batch),
        "text keys and values": text,
        "modulation tables": steps * timestep,
        WEIGHTS[1]: vae_bytes,
        "decoder memories": memories,
        **({"frames to encode again": ends} if ends else {}),  # where the past is recomputed
        "inputs of graphs": _static(dit, latents, config, batch),
        LARGEST: both,
    }


def check(parts: Mapping[str, int], free_bytes: int | None, device: torch.device) -> None:
    """Check that a prediction fits into `free_bytes`; None: unknown, and not checked.

    Raises:
        StrobeError: it does not; says what is the largest and what to lower.
    """
    total = sum(parts.values())
    if free_bytes is None or total <= free_bytes:
        return
    largest = sorted(parts, key=parts.__getitem__, reverse=True)[:3]
    held = ", ".join(f"{name} {parts[name] / GIB:.1f}" for name in largest)
    raise StrobeError(
        f"a stream would take about {total / GIB:.1f} GiB, and {device} has {free_bytes / GIB:.1f} GiB free ({held} GiB); "
        "lower the frame size, the window or the number of samples, or free the device"
    )


Claim = tuple[int, int]
"""Bytes that one of several sessions on a device holds for as long as it is open, and those that it needs only while it works, or
a snapshot copies its cache: sessions that work one after the other need the largest once."""


def claim_of(parts: Mapping[str, int], config: ResolvedConfig) -> Claim:
    """Split a prediction: the largest pass is passing, the rest held; graphs hold that too."""
    passing = 0 if config.knobs.cuda_graphs else parts[LARGEST]
    return sum(parts.values()) - passing, max(passing, parts[CACHED])


def check_together(sessions: Mapping[str, Claim], free_bytes: int | None, device: torch.device) -> None:
    """Check that sessions fit that are open together and work in turn; `free_bytes` None: unknown, and not checked.

    Raises:
        StrobeError: they do not; says what each takes, how many would fit and what to lower.
    """
    if free_bytes is None:
        return
    takes, held, passing, fitting = 0, 0, 0, 0
    for own, working in sessions.values():
        held, passing = held + own, max(passing, working)
        takes = held + passing
        fitting += takes <= free_bytes
    if takes <= free_bytes:
        return
    each = ", ".join(f"{name} {own / GIB:.1f}" for name, (own, _) in sessions.items())
    some = f"the first {fitting} would fit" if fitting else "not even the first would fit"
    raise StrobeError(
        f"{len(sessions)} sessions open at a time would take about {takes / GIB:.1f} GiB, and {device} has "
        f"{free_bytes / GIB:.1f} GiB free ({each} GiB, and {passing / GIB:.1f} for whichever is at work); {some}: "
        "compare fewer in one run, lower the frame size or the windows, or free the device"
    )


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that a stream could take.

    Of a GPU those that are free, and those that torch keeps and does not use. What a recorded graph keeps
    is its own; of graphs that are gone it is given back first. Of a CPU what Linux has available; elsewhere None.
    """
    if device.type != "cuda":
        return available_bytes()
    with CAPTURES:
        torch.cuda.empty_cache()
    index = torch.cuda.current_device() if device.index is None else device.index
    common = (each for each in torch.cuda.memory_snapshot() if each["device"] == index and each["segment_pool_id"] == (0, 0))
    unused: int = sum(each["total_size"] - each["allocated_size"] for each in common)
    return torch.cuda.mem_get_info(device)[0] + unused


def _weights(dit: CausalWan, config: ResolvedConfig) -> int:
    """Return the bytes of the transformer; eight-bit linear layers take a byte per weight and a float32 scale per output."""
    num_bytes = sum(parameter.numel() for parameter in dit.parameters()) * config.dtype.itemsize
    for layer in dit.layers if config.linear_format != "native" else ():
        for name in LINEARS:
            weight = layer.get_parameter(f"{name}.weight")
            num_bytes += weight.numel() * (1 - config.dtype.itemsize) + weight.shape[0] * SCALE_BYTES
    return num_bytes


def _conditions(dit: WanConfig, config: ResolvedConfig, batch: int) -> tuple[int, int]:
    """Return the bytes of a prompt's keys, values and row counts, and of the modulation of a timestep."""
    size = config.dtype.itemsize
    return batch * (2 * dit.text_len * dit.dim * dit.num_layers * size + 4), (6 * dit.num_layers + 2) * dit.dim * size


def _static(dit: WanConfig, latents: LatentShape, config: ResolvedConfig, batch: int) -> int:
    """Return the bytes of recorded passes' static inputs: text, timestep, and per number of frames latents and rotations."""
    if not config.knobs.cuda_graphs:
        return 0
    frames = sum(config.pass_frames)
    rotations = latents.token_grid(dit.patch).tokens_per_frame * dit.head_dim
    cells = batch * latents.channels * latents.height * latents.width
    text, timestep = _conditions(dit, config, batch)
    return text + (1 + _rows_ahead(config)) * timestep + frames * (cells + rotations) * 4


def _rows_ahead(config: ResolvedConfig) -> int:
    """Return the rows of modulation of passes over several frame blocks, a row per latent frame."""
    size = config.frame_block
    return sum(range(size, config.num_ahead + size + 1, size)) if config.past == "rolling" else 0


def _cached(dit: WanConfig, grid: TokenGrid, config: ResolvedConfig, batch: int) -> int:
    """Return the bytes of the cache: keys and values with staged frames, a copy of a sink that turns, float32 coarse keys."""
    if config.attention_format == "int8":
        check_blocks(grid, config)  # told before anything is made
        return eightbit_ring_bytes(cache_shape(dit, grid, batch), config.policy, config.dtype, config.positions)
    if config.kv_format != "native":
        return ring_bytes(cache_shape(dit, grid, batch), config.policy, config.dtype)
    policy, size, channels = config.policy, config.dtype.itemsize, batch * dit.dim * dit.num_layers
    copies = 2 if not config.knobs.ring_cache and config.positions == "absolute" else 3
    sink = copies * policy.sink * grid.tokens_per_frame * size
    if not config.sparsity:
        return channels * (sink + 2 * policy.local * grid.tokens_per_frame * size)
    tiles = frame_tiles(grid)
    staged = 2 * config.frame_block * grid.tokens_per_frame * size
    return channels * (sink + staged + policy.local * (2 * tiles.num_rows * size + tiles.num_tiles * 4))


def _decoder(vae: VideoVAE, latent_size: tuple[int, int], dtype: torch.dtype, batch: int) -> tuple[int, int]:
    """Return the bytes of an autoencoder's weights and of its decoder's memories in a dtype."""
    weights = sum(tensor.numel() for tensor in (*vae.parameters(), *vae.buffers())) * dtype.itemsize
    kind: Any = type(vae)
    return weights, _memories(kind, vae.config, dtype) * batch * latent_size[0] * latent_size[1]


@lru_cache
def _memories(kind: Any, sizes: Any, dtype: torch.dtype) -> int:
    """Return the bytes of a decoder's memories for one latent cell."""
    with on_meta():
        bare: nn.Module = kind(sizes)
    made = bare.to(dtype)
    assert isinstance(made, kind)
    return predict_state_bytes(made, 1, (1, 1))


def _activations(parts: ModelParts, config: ResolvedConfig, batch: int) -> tuple[int, int]:
    """Estimate the bytes of the largest activations of transformer and decoder.

    Of the transformer they are the feed-forward or attention of a recache over the window; of the decoder its last resolution:
    in the Wan VAE the input of a residual block and what leads to its last convolution, which reads two frames more. The factors
    7, 5, 4 and 2 count tensors of that resolution; those of compiled decoders are fitted to what an H100 and an H200 held at most
    (benchmarks/families-h100, benchmarks/engine-h200).
    """
    dit = parts.dit.config
    latents = latent_shape(parts.defaults, dit)
    tokens = batch * max(config.pass_frames) * latents.token_grid(dit.patch).tokens_per_frame
    feed_forward = 2 * dit.dim + 2 * dit.ffn_dim
    attention = 8 * dit.dim
    transformer = tokens * max(feed_forward, attention) * config.dtype.itemsize
    height, width = parts.defaults.frame_size
    frames = latents.frames if config.knobs.block_decode else 1
    vae, compiled = parts.vae, config.knobs.compile and config.knobs.block_decode
    compiled = compiled and bool(unavailable("triton", config.device, config.dtype))
    patch = 1 if isinstance(vae, TinyVAE) else vae.config.patch  # pixels come so many by so many in the last layer
    cells = batch * frames * parts.defaults.stride.time * height * width // patch**2
    if isinstance(vae, WanVAE):
        channels: float = min(vae.config.decoder_widths)
        count = (7 if vae.config.residual and not compiled else 5) * cells + 2 * batch * height * width // patch**2
    elif isinstance(vae, TinyVAE):
        channels, count = vae.config.widths[-1] / 4, 4 * cells
    else:
        channels, count = min(vae.config.widths), 2 * cells
    return transformer, int(count * channels) * config.dtype.itemsize


LEADERS = ("autoencoder weights", "decoder memories")


def check_room(parts: ModelParts, config: ResolvedConfig, layout: Layout | None, batch: int, *, there: bool = False) -> None:
    """Check that the memory that a session of `batch` samples needs is free on its device.

    Args: as of `strobe.engine.memory.predict`, and
        layout: of this rank; None: the session has one device.
        there: the weights are on the device already, for another session.

    Raises:
        StrobeError: it does not; says what is the largest and what to lower.
    """
    held = predict(parts, config, batch) if layout is None else predict_ranks(parts, config, [layout], batch)[0]
    needed = {name: num_bytes for name, num_bytes in held.items() if not (there and name in WEIGHTS)}
    check(needed, free_bytes(config.device), config.device)


def predict_ranks(parts: ModelParts, config: ResolvedConfig, layouts: Sequence[Layout], batch: int = 1) -> list[dict[str, int]]:
    """Predict the memory of ranks of a session of `batch` samples: all weights, its share of the cache, rank 0's decoder."""
    together = replace(config, knobs=replace(config.knobs, late_frames=True))
    whole, largest = predict(parts, config, batch), predict(parts, together, batch)[LARGEST]
    transformer, _ = _activations(parts, config, batch)
    found = []
    for layout in layouts:
        own, decoder = _pass(transformer, layout), largest - transformer if layout.rank == 0 else 0
        (first, last), (low, high) = layout.kept(), layout.heads()
        share, everything = (last - first) * (high - low), layout.tokens_per_frame * layout.num_heads
        held = {CACHED: whole[CACHED] * share // everything}
        held[LARGEST] = own + decoder if config.knobs.late_frames else max(own, decoder)
        held |= {} if layout.rank == 0 else dict.fromkeys(LEADERS, 0)
        found.append(whole | held)
    return found


def _pass(num_bytes: int, layout: Layout) -> int:
    """Return a rank's share of one device's largest pass: its tokens, and messages of all tokens for its heads."""
    mine = num_bytes * layout.counts[layout.rank] / layout.tokens_per_frame
    messages = num_bytes / 4 / layout.degrees.ulysses if layout.degrees.num_ranks > 1 else 0
    return int(mine + messages)
