"""A ring whose frames behind the sink lie in tiles, so that a pass may attend to some of them; coarse keys lie beside them.

The ring does not attend and does not select. It says which rows of its tensors a pass sees whole and which tiles are history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from strobe.cache.rows import Signature, store

if TYPE_CHECKING:
    from strobe.cache.kv import RingCache


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HistoryTiles:
    """How the tokens of one latent frame lie in a ring, and what share of past tiles a pass leaves out.

    Args:
        grid: tokens of a frame, height and width.
        rows: row of each token in tile order, int64 `[N]`.
        sizes: tokens of each tile, int32 `[T]`.
        block: rows of a tile; those past its size are padding and stay 0.
        whole: no tile has padding.
        sparsity: share of the history tiles that is left out.
        pool: coarse keys of one frame, one per tile: `[B, T * block, H, D]` to float32 `[B, H, T, D]`.
    """

    grid: tuple[int, int]
    rows: Tensor
    sizes: Tensor
    block: int
    whole: bool
    sparsity: float
    pool: Callable[[Tensor], Tensor]

    @property
    def num_tiles(self) -> int:
        """Tiles of a frame."""
        return self.sizes.shape[0]

    @property
    def num_rows(self) -> int:
        """Rows that a frame takes, padding included."""
        return self.num_tiles * self.block


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reach:
    """What a pass sees of the tensors that `TiledStep.write` returns, and of its own keys.

    Args:
        tiles: how frames behind the sink lie.
        sink_rows: leading rows that are seen whole: frames of the sink that were there before this pass, in raster order.
        tiled_from: first row of the frames in tiles.
        unseen: leading tokens of the pass whose keys are not attended, because the sink stays in their place.
        sizes: tokens of each tile from there on if it is history, else 0, int32 `[local * T]`; the cache's, as `rows` are.
        num_tiles: how many are history.
        means: their coarse keys, float32 `[L, B, H, local * T, D]`.
    """

    tiles: HistoryTiles
    sink_rows: int
    tiled_from: int
    unseen: int
    sizes: Tensor
    num_tiles: int
    means: Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TiledStep:
    """One pass over a ring with tiles. `rows`, `skipped` and `signature` are those of a `strobe.cache.kv.RingStep`."""

    cache: RingCache
    positions: tuple[int, ...]
    rows: Tensor
    skipped: int
    reach: Reach

    @property
    def signature(self) -> Signature:
        return id(self.cache), len(self.positions), self.reach.sink_rows, self.reach.unseen, self.reach.num_tiles

    def buffers(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer as they are kept, `[B, rows, H, D]`."""
        return self.cache.keys[layer], self.cache.values[layer]

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k (after RoPE) and v [B, F*N, H, D]; return all that the layer holds, of which `reach` is seen."""
        buffers = self.buffers(layer)
        for buffer, new in zip(buffers, (k, v), strict=True):
            store(buffer, self.rows, new.detach(), self.skipped)
        return buffers
