"""A ring whose frames behind the sink lie in tiles, so that a pass may attend to some of them; coarse keys lie beside them.

The ring does not attend and does not select. It says which rows of its tensors a pass sees whole and which tiles are history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from strobe.cache.policy import SlotRun
from strobe.core.errors import ShapeError

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
        sizes: tokens of each tile from there on if it is history, else 0, int32 `[local * T]`.
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
    """One pass over a ring with tiles: `runs` are the slots written."""

    cache: RingCache
    positions: tuple[int, ...]
    runs: tuple[SlotRun, ...]
    reach: Reach

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k (after RoPE) and v [B, F*N, H, D]; return all that the layer holds, of which `reach` is seen."""
        buffers = self.cache.keys[layer], self.cache.values[layer]
        for buffer, new in zip(buffers, (k, v), strict=True):
            self._store(buffer, new.detach())
        return buffers

    def _store(self, buffer: Tensor, new: Tensor) -> None:
        tokens, tiles, sink = self.cache.shape.tokens_per_frame, self.reach.tiles, self.cache.policy.sink
        expected = (buffer.shape[0], len(self.positions) * tokens, *buffer.shape[2:])
        if tuple(new.shape) != expected:
            raise ShapeError(f"keys and values of this pass have shape {tuple(new.shape)}; the cache expects {expected}")
        frames = new.unflatten(1, (-1, tokens))
        local = buffer[:, self.reach.tiled_from :].unflatten(1, (-1, tiles.num_rows))
        for run in self.runs:
            in_sink = min(run.length, max(0, sink - run.slot))
            head = new[:, run.source * tokens : (run.source + in_sink) * tokens]
            buffer[:, run.slot * tokens : (run.slot + in_sink) * tokens] = head
            if in_sink < run.length:
                slots = local[:, run.slot + in_sink - sink : run.slot + run.length - sink]
                slots.index_copy_(2, tiles.rows, frames[:, run.source + in_sink : run.source + run.length])
