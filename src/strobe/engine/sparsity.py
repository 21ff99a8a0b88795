"""Tiles of a stream's past frames, for queries that skip some of it."""

from __future__ import annotations

from functools import partial
from typing import Final

from strobe.attention.sparse.coarse import budget, pool
from strobe.attention.sparse.layout import TileLayout, tile_layout
from strobe.cache.tiled import HistoryTiles
from strobe.core.errors import ConfigError
from strobe.core.shapes import TokenGrid
from strobe.engine.resolve import ResolvedConfig

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
    tiles = frame_tiles(grid).num_tiles
    (topk,) = budget(None, config.sparsity, 1, past * tiles)
    return (window - past) * grid.tokens_per_frame + topk * grid.tokens_per_frame // tiles
