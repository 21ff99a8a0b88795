"""Caches of keys and values as a configuration asks for them, and tiles of past frames for queries that skip some of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from torch import Tensor

from strobe.attention.sparse.coarse import budget, pool
from strobe.attention.sparse.layout import TileLayout, tile_layout
from strobe.cache.kv import CacheShape, HistoryTiles, KVCache, RingCache
from strobe.cache.quantized import EightBitRing, QuantizedRing, block_number
from strobe.cache.rings import AheadRing, RollingCache, ShotRing
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.core.shapes import LatentShape, TokenGrid
from strobe.eightbit.rounded import BLOCK as ROUNDED_BLOCK
from strobe.engine.parallel.rank import RankContext, SharedCache
from strobe.engine.resolve import ResolvedConfig, without_kernel
from strobe.models.wan.config import WanConfig
from strobe.models.wan.kernels.api import turn_keys
from strobe.models.wan.layers import rotate_temporal, temporal_turns

BLOCK: Final = 64
"""Rows of a tile."""


def frame_tiles(grid: TokenGrid) -> TileLayout:
    """Return the tile layout of one latent frame with the fewest padding rows.

    Raises:
        ConfigError: a frame has so few tokens that most of a tile would be padding.
    """
    if 2 * grid.tokens_per_frame < BLOCK:
        raise ConfigError(
            f"sparsity: a latent frame has {grid.height}x{grid.width} tokens and fills less than half of a tile of {BLOCK}; "
            f"set sparsity to 0, or choose a frame size with at least {BLOCK // 2} tokens per latent frame"
        )
    return tile_layout((1, grid.height, grid.width), "auto", BLOCK)


def history_tiles(grid: TokenGrid, config: ResolvedConfig) -> HistoryTiles | None:
    """Return the tiles in which a cache keeps frames of a grid; None without sparsity.

    Raises: see `frame_tiles`.
    """
    if not config.sparsity:
        return None
    layout = frame_tiles(grid)
    sizes = layout.sizes(config.device)
    return HistoryTiles(
        grid=(grid.height, grid.width),
        rows=layout.rows(config.device),
        sizes=sizes,
        block=BLOCK,
        whole=layout.whole,
        staged=config.frame_block,
        sparsity=config.sparsity,
        pool=partial(pool, sizes=sizes, block=BLOCK),
    )


def attended_keys(grid: TokenGrid, config: ResolvedConfig, frame_block: int | None = None) -> int:
    """Count the keys that a query of a frame block attends to; tiles of unequal sizes count with their mean, rounded down.

    Blocks of keys in eight bits count as whole, the last one too.

    Args:
        grid: of a latent frame.
        config: window, sink and sparsity.
        frame_block: its number in a stream without prompt switches; None: a steady one, which finds the window full.
    """
    policy = config.policy
    window, past = policy.window, policy.local - config.frame_block
    if frame_block is not None:
        frames = config.latents_of(frame_block)
        window, past = policy.filled(frames.stop), len(policy.history(frames.start, frames.stop))
    if not config.sparsity or not past:
        return window * grid.tokens_per_frame
    if config.attention_format == "int8":
        blocks = block_number(grid.tokens_per_frame, window, past, config.sparsity)
        return min(window * grid.tokens_per_frame, blocks * ROUNDED_BLOCK)
    tiles = frame_tiles(grid).num_tiles
    (topk,) = budget(None, config.sparsity, 1, past * tiles)
    return (window - past) * grid.tokens_per_frame + topk * grid.tokens_per_frame // tiles


def check_blocks(grid: TokenGrid, config: ResolvedConfig) -> None:
    """Check that, where there is a past, passes of a full window leave out blocks of keys, if the configuration asks for it.

    Raises:
        ConfigError: attention is in eight bits, and no block would be left out.
    """
    tokens, window, past = grid.tokens_per_frame, config.policy.window, config.policy.local - config.frame_block
    if config.attention_format == "native" or not config.sparsity or past <= 0:
        return
    if block_number(tokens, window, past, config.sparsity) >= -(-window * tokens // ROUNDED_BLOCK):
        raise ConfigError(
            f"sparsity {config.sparsity} in eight bits leaves out whole blocks of {ROUNDED_BLOCK} keys, and none of a window of "
            f"{window} latent frames of {tokens} tokens: set sparsity to 0, or attention_format to 'native'"
        )


def cache_shape(dit: WanConfig, grid: TokenGrid, batch: int) -> CacheShape:
    """Return the shape of the cache of `batch` streams for a token grid."""
    return CacheShape(
        num_layers=dit.num_layers,
        batch=batch,
        tokens_per_frame=grid.tokens_per_frame,
        num_heads=dit.num_heads,
        head_dim=dit.head_dim,
    )


def new_cache(
    dit: WanConfig, latents: LatentShape, config: ResolvedConfig, batch: int, share: RankContext | None = None
) -> KVCache:
    """Make an empty cache.

    Args:
        batch: streams of the cache.
        share: this process's of a stream on several devices; the cache is that of its share then.

    Raises:
        ConfigError: no key would be left out, although `sparsity` asks for it.
        ImplUnavailableError: attention in eight bits does not run on this device, or not with heads of this size.
    """
    grid = latents.token_grid(dit.patch)
    shape = cache_shape(dit, grid, batch)
    if config.attention_format != "native" and (reason := without_kernel(config.device, config.dtype, dit.head_dim)):
        raise ImplUnavailableError(config.attention_format, reason, ("attention_format 'native'",), what="attention_format")
    check_blocks(grid, config)
    kind: Callable[..., KVCache]
    if config.past == "rolling":
        kind = AheadRing
    elif not config.knobs.ring_cache:
        kind = RollingCache
    elif config.attention_format == "int8":
        kind = partial(EightBitRing, sparsity=config.sparsity)
    elif config.kv_format == "native":
        kind = partial(RingCache, tiles=history_tiles(grid, config))
    else:
        kind = partial(QuantizedRing, to=config.kv_format)

    cache = kind(
        shape if share is None else share.shape(shape),
        config.policy,
        device=config.device,
        dtype=config.dtype,
        positions=config.positions,
        rotate=partial(_rotate_by_kernel if config.knobs.fused_kernels else rotate_temporal, dit),
    )
    if config.past == "shots":
        assert isinstance(cache, (RingCache, QuantizedRing)) and share is None, "the configuration was checked"
        return ShotRing(cache)
    return cache if share is None else SharedCache(cache, share.layout, share.devices)


def _rotate_by_kernel(dit: WanConfig, keys: Tensor, frames: int, out: Tensor) -> None:
    turn_keys(keys, temporal_turns(dit, frames, keys.device), out, impl="triton")
