"""A ring with the frames behind the sink in tiles and coarse keys beside them, so that a pass may attend to some tiles.

Its rows are the sink, the staging rows, and the tiles of the slots that take turns. The frames of a pass that fit are staged: in
raster order right behind the frames of the sink, so that both are attended in one call; frames of the sink thereby lie in their
own slots, and the others go to their tiles when other frames are opened. The ring does not attend and does not select. It says
which rows of its tensors a pass sees whole and which tiles are history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from strobe.cache.policy import RingPolicy

_WIDE: Final = (torch.complex128, torch.complex64)
"""Wider than the elements of most caches. On an H200 three frames of 30 layers take 230 us as complex128 and 706 as bfloat16."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HistoryTiles:
    """The tile layout of one latent frame in a ring, and the share of past tiles that a pass skips.

    Args:
        grid: tokens of a frame, height and width.
        rows: row of each token in tile order, int64 `[N]`.
        sizes: tokens of each tile, int32 `[T]`.
        block: rows of a tile; those past its size are padding and stay 0.
        whole: no tile has padding.
        staged: frames behind the sink that a pass may stage; those of one with more go to their tiles at once.
        sparsity: share of the history tiles that is left out.
        pool: coarse keys of one frame, one per tile: `[B, T * block, H, D]` to float32 `[B, H, T, D]`.
    """

    grid: tuple[int, int]
    rows: Tensor
    sizes: Tensor
    block: int
    whole: bool
    staged: int
    sparsity: float
    pool: Callable[[Tensor], Tensor]

    @property
    def num_tiles(self) -> int:
        """Number of tiles of a frame."""
        return self.sizes.shape[0]

    @property
    def num_rows(self) -> int:
        """Number of rows of a frame, padding included."""
        return self.num_tiles * self.block


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reach:
    """The part of the tensors of `strobe.cache.kv.TiledStep.write` that a pass attends to, and whether its own keys are in it.

    Args:
        tiles: how frames behind the sink lie.
        whole_rows: leading rows that are seen whole, in raster order: frames of the sink that were there before this pass, and
            those of the pass if they are staged.
        covered: leading tokens of the pass that these rows stand for, so that their own keys are not attended apart: all if they
            are staged, else those in whose place the sink stays.
        tiled_from: first row of the frames in tiles.
        sizes: tokens of each tile from there on if it is history, else 0, int32 `[local * T]`; the cache's, as `rows` are.
        num_tiles: how many are history.
        means: their coarse keys, float32 `[L, B, H, local * T, D]`.
    """

    tiles: HistoryTiles
    whole_rows: int
    covered: int
    tiled_from: int
    sizes: Tensor
    num_tiles: int
    means: Tensor


class TiledFrames:
    """The frames behind the sink of one ring, in tiles. Frames are counted from the sink's first.

    Args:
        tiles: how they lie.
        policy: which slot a frame has.
        tokens_per_frame: rows of a frame in raster order.
        keys: of the ring, `[L, B, rows, H, D]`; the tiles are its last rows.
        values: same.
    """

    def __init__(self, tiles: HistoryTiles, policy: RingPolicy, tokens_per_frame: int, keys: Tensor, values: Tensor) -> None:
        self._tiles, self._policy, self._tokens = tiles, policy, tokens_per_frame
        self._buffers = keys, values
        self._tiled_from = keys.shape[2] - policy.local * tiles.num_rows
        layers, batch, _, heads, width = keys.shape
        number, wide = policy.local * tiles.num_tiles, torch.promote_types(keys.dtype, torch.float32)
        self.means = torch.zeros(layers, batch, heads, number, width, device=keys.device, dtype=wide)
        self._sizes = torch.zeros(number, device=keys.device, dtype=torch.int32)
        self._staged = range(0)  # frames that are not in their tiles, the first of them first in the staging rows
        self._pooled = 0  # frames before it have their coarse keys, as far as they are kept

    def forget(self, first: int = 0) -> None:
        """Forget staged frames, and pool frames from `first` on again later."""
        self._staged, self._pooled = range(0), min(self._pooled, first)

    def open(self, first: int, end: int, *, again: bool) -> bool:
        """Open frames, which were written before if `again`; all before them become history. Return whether they are staged."""
        behind = range(max(first, self._policy.sink), end)
        fits = len(behind) <= self._tiles.staged
        opened = behind if fits else range(0)
        if opened != self._staged:
            for buffer in self._buffers:
                self.settle(buffer, buffer[:, :, self._tiled_from :], end)
            self._staged = opened
            if again:
                self._stage()
        self._pool(first, end)
        return fits

    def settle(self, buffer: Tensor, tiled: Tensor, end: int) -> None:
        """Copy staged frames of a buffer into their tiles, if they are kept once frames up to `end` are written.

        Args:
            tiled: takes it, `[L, B, local * T * block, H, D]`: the frames in tiles of the same buffer, or of a copy.
        """
        for frame in range(max(self._staged.start, end - self._policy.local), self._staged.stop):
            _wide(self._slot(tiled, frame)).index_copy_(2, self._tiles.rows, _wide(self._staging(buffer, frame)))

    def reach(self, first: int, end: int, *, skip: int, staged: bool) -> Reach:
        """Return the reach of a pass over frames `first` to `end`, of which the first `skip` are not kept."""
        tiles, sink = self._tiles, self._policy.sink
        held, covered = self._policy.history(first, end), end - first if staged else skip
        open_slots = self._sizes.zero_().view(self._policy.local, tiles.num_tiles)
        for frame in held:
            open_slots[self._policy.slot(frame) - sink].copy_(tiles.sizes)
        return Reach(
            tiles=tiles,
            whole_rows=(min(sink, first) + covered if staged else min(sink, first + skip)) * self._tokens,
            covered=covered * self._tokens,
            tiled_from=self._tiled_from,
            sizes=self._sizes,
            num_tiles=len(held) * tiles.num_tiles,
            means=self.means,
        )

    def _stage(self) -> None:
        """Copy the opened frames from their tiles to the staging rows, because a pass need not write them anew."""
        for buffer in self._buffers:
            for frame in self._staged:
                slot = self._slot(buffer[:, :, self._tiled_from :], frame)
                _wide(self._staging(buffer, frame)).copy_(_wide(slot).index_select(2, self._tiles.rows))

    def _pool(self, first: int, end: int) -> None:
        """Pool the coarse keys of the frames that became history: kept, behind the sink, before `first`."""
        held, number, keys = self._policy.history(first, end), self._tiles.num_tiles, self._buffers[0]
        for frame in range(max(held.start, self._pooled), held.stop):
            tiled = self._slot(keys[:, :, self._tiled_from :], frame)
            slot = self._policy.slot(frame) - self._policy.sink
            means = self._tiles.pool(tiled.flatten(0, 1)).unflatten(0, tiled.shape[:2])
            self.means[:, :, :, slot * number : (slot + 1) * number] = means
        self._pooled = first

    def _staging(self, buffer: Tensor, frame: int) -> Tensor:
        """Return the rows of a staged frame."""
        start = (self._policy.sink + frame - self._staged.start) * self._tokens
        return buffer[:, :, start : start + self._tokens]

    def _slot(self, tiled: Tensor, frame: int) -> Tensor:
        """Return the rows of a frame in tiles."""
        slot, rows = self._policy.slot(frame) - self._policy.sink, self._tiles.num_rows
        return tiled[:, :, slot * rows : (slot + 1) * rows]


def _wide(tensor: Tensor) -> Tensor:
    """View memory in the widest elements that the last dimension allows, because torch copies rows element by element."""
    num_bytes = tensor.shape[-1] * tensor.element_size()
    return tensor.view(next((dtype for dtype in _WIDE if num_bytes % dtype.itemsize == 0), tensor.dtype))
