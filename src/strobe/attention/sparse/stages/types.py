"""The values that the stages around the fine stage pass to each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from strobe.attention.sparse.launch import Place
from strobe.attention.sparse.launches import Step
from strobe.attention.sparse.layout import TileLayout

Rope = tuple[Tensor, Tensor] | None
Call = Callable[[Tensor, Tensor, Tensor, Rope, Tensor | None], tuple[Tensor, Tensor, Tensor | None] | None]
"""A prepared call of all stages: from q, k, v, rope and gate to the output, the indices and the lse in tile order."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Grid:
    """The grid of one side: where its rows come from and go to.

    Args:
        block: rows of a tile.
        num_tiles: tiles, those at the edges included.
        num_tokens: tokens of all tiles.
        sizes: valid rows of each tile, int32 `[N]`.
        ragged_sizes: the same; None if all tiles are whole.
        tokens: token of each row in tile order, the number of tokens for padding, int64 `[N * block]`; it may be None if `tiled`.
        rows: row in tile order of each token, int64; it may be None if `tiled`.
        tiled: the rows are given in tile order, and go back so.
    """

    block: int
    num_tiles: int
    num_tokens: int
    sizes: Tensor
    ragged_sizes: Tensor | None
    tokens: Tensor | None
    rows: Tensor | None
    tiled: bool

    @classmethod
    def of(cls, layout: TileLayout, device: torch.device, *, tiled: bool = False) -> Grid:
        """Return the grid of a layout, whose rows are given in raster order or `tiled`."""
        sizes = layout.sizes(device)
        return cls(
            block=layout.block,
            num_tiles=layout.num_tiles,
            num_tokens=layout.num_tokens,
            sizes=sizes,
            ragged_sizes=None if layout.whole else sizes,
            tokens=layout.tokens(device),
            rows=layout.rows(device),
            tiled=tiled,
        )

    @classmethod
    def in_tiles(cls, block: int, num_tiles: int, sizes: Tensor, ragged_sizes: Tensor | None) -> Grid:
        """Return a grid of tiles alone, which has no raster order."""
        return cls(
            block=block,
            num_tiles=num_tiles,
            num_tokens=num_tiles * block,
            sizes=sizes,
            ragged_sizes=ragged_sizes,
            tokens=None,
            rows=None,
            tiled=True,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SelectionSpec:
    """The selection to make and the coarse output to compute.

    Args:
        softmax_scale: of the scores.
        parts: runs of rows per tile that scores are taken over; see `Estimator`.
        per_head: key tiles to take for each head.
        counts: the same for every query tile, int32 `[B, H, N_q]`.
        forced: tiles that are always taken, boolean `[N_q, N_kv]`; None for none.
        coarse: whether the coarse output is wanted.
        share: of the coarse attention that the tiles of each row hold, in place of a number of them; None for the number.
        pool_skipped: the tiles that are not taken are attended to by their means.
    """

    softmax_scale: float
    parts: int
    per_head: tuple[int, ...]
    counts: Tensor
    forced: Tensor | None
    coarse: bool
    share: float | None = None
    pool_skipped: bool = False

    @property
    def pools_values(self) -> bool:
        """Whether the means of the values are needed."""
        return self.coarse or self.pool_skipped


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tiled:
    """Queries, keys and values in tile order, `[B, N * block, H, D]`, and their pooled means.

    Args:
        means: of the tiles of q, k and v, float32 `[B, H, N, D]`, or of the parts that scores are taken over; the last is None if
            the coarse output is not wanted, all are None if the pass did not pool.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    means: tuple[Tensor, Tensor, Tensor | None] | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Selected:
    """Selected key tiles.

    Args:
        indices: ascending, int32 `[B, H, N_q, K]`; those past a head's number are never read.
        counts: int32 `[B, H, N_q]`; those of the wish where the selection is fused.
        coarse: coarse output, one row per query tile, `[B, H, N_q, D]`; None if it is not wanted.
    """

    indices: Tensor
    counts: Tensor
    coarse: Tensor | None


class Prepared(NamedTuple):
    """The fine stage of calls that differ in the values of their tensors alone, with all else worked out.

    Args:
        places: sizes and strides of q, k and v in tile order, in the order of dimensions that the kernel takes.
        stride: of the output as `[B, N_q * block, H, D]`.
        run: from the current stream, q, k and v in these places, and indices `[B, H, N_q, K]`, to the output in whatever order of
            dimensions, and the lse if there is one.
        lse: turns the lse that `run` returns into `[B, H, N_q * block]`.
        step: in place of `run`, of spots of q, k, v, indices, the output and the lse, the last `[B, H, N_q * block]`: the launch.
        read: tensors whose addresses the fine stage has taken, which are not to be let go before it.
    """

    places: tuple[Place, ...]
    stride: tuple[int, ...]
    run: Callable[[int, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]] | None
    lse: Callable[[Tensor], Tensor]
    step: Callable[..., Step] | None = None
    read: tuple[Tensor | None, ...] = ()
