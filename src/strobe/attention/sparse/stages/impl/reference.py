"""The stages in PyTorch: the specification, differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

from strobe.attention.sparse.coarse import (
    Estimator,
    block_scores,
    coarse_attention,
    pool,
    pooled_scores,
    select_blocks,
    select_share,
)
from strobe.attention.sparse.padding import padding_rows
from strobe.attention.sparse.stages.types import Grid, Selected, SelectionSpec, Tiled


def tile(
    q: Tensor, k: Tensor, v: Tensor, q_grid: Grid, kv_grid: Grid, rope: tuple[Tensor, Tensor] | None, wish: SelectionSpec
) -> Tiled:
    """Rotate q and k if `rope` is given, and put all three in tile order; padding rows are 0."""
    if rope is not None:
        q, k = rotate(q, rope), rotate(k, rope)
    return Tiled(q=gather(q, q_grid), k=gather(k, kv_grid), v=gather(v, kv_grid), means=None)


def tile_queries(q: Tensor, q_grid: Grid, wish: SelectionSpec) -> tuple[Tensor, Tensor]:
    """Put queries in tile order, padding rows 0, and compute the means of their tiles or of the tiles' parts."""
    tiled = gather(q, q_grid)
    with torch.no_grad():
        return tiled, pool(tiled, q_grid.sizes, q_grid.block, wish.parts)


def select(tiled: Tiled, q_grid: Grid, kv_grid: Grid, wish: SelectionSpec) -> Selected:
    """Score every tile against every tile and take the best; see `coarse`."""
    sizes, scale = (q_grid.ragged_sizes, kv_grid.ragged_sizes), wish.softmax_scale
    with torch.set_grad_enabled(torch.is_grad_enabled() and wish.coarse):  # the selection alone has no gradient
        scores = _scores(tiled, q_grid, kv_grid, wish)
    if wish.share is None:
        indices, counts = select_blocks(scores, wish.per_head, wish.forced)
    else:
        indices, counts = select_share(scores, wish.share, wish.forced)
    if not wish.coarse:
        return Selected(indices=indices, counts=counts, coarse=None)
    means = scores if wish.parts == 1 else block_scores(tiled.q, tiled.k, *sizes, q_grid.block, scale, Estimator())
    values = None if tiled.means is None else tiled.means[2]
    values = pool(tiled.v, sizes[1], kv_grid.block) if values is None else values
    return Selected(indices=indices, counts=counts, coarse=coarse_attention(means, values))


def _scores(tiled: Tiled, q_grid: Grid, kv_grid: Grid, wish: SelectionSpec) -> Tensor:
    block, scale, estimator = q_grid.block, wish.softmax_scale, Estimator(parts=wish.parts)
    if tiled.means is None:
        return block_scores(tiled.q, tiled.k, q_grid.ragged_sizes, kv_grid.ragged_sizes, block, scale, estimator)
    queries, keys, _ = tiled.means
    return pooled_scores(queries, keys.to(queries.dtype), (q_grid.sizes, kv_grid.sizes), block, scale, estimator)


def finish(fine: Tensor, coarse: Tensor | None, gate: Tensor | None, grid: Grid) -> Tensor:
    """Return `fine + gate * coarse` in the order of the queries as they were given.

    Args:
        fine: `[B, N * block, H, D]` in tile order.
        coarse: `[B, H, N, D]`, the same for all rows of a tile.
        gate: `[B, S, H, D]` in the order of the queries as they were given.
    """
    if coarse is None:
        return fine if grid.rows is None or grid.tiled else fine.index_select(1, grid.rows)
    rows = coarse.to(fine.dtype).transpose(1, 2)  # [B, N, H, D]
    if not grid.tiled:
        assert grid.rows is not None
        fine, rows = fine.index_select(1, grid.rows), rows.index_select(1, grid.rows // grid.block)
        return fine + (rows if gate is None else rows * gate.to(fine.dtype))
    tiles = (grid.num_tiles, grid.block)
    added = rows.unsqueeze(2)  # [B, N, 1, H, D]
    if gate is not None:
        added = added * gate.to(fine.dtype).unflatten(1, tiles)
    if grid.ragged_sizes is not None:
        padding = padding_rows(grid.ragged_sizes, grid.block).view(*tiles, 1, 1)
        added = added.masked_fill(padding, 0)
    out: Tensor = (fine.unflatten(1, tiles) + added).flatten(1, 2)
    return out


def gather(tensor: Tensor, grid: Grid) -> Tensor:
    """Reorder `[B, S, ...]` into tile order, padding rows 0; return a tensor that is in tile order already as it is."""
    if grid.tiled:
        return tensor
    assert grid.rows is not None
    rows = grid.num_tiles * grid.block
    return tensor.new_zeros(tensor.shape[0], rows, *tensor.shape[2:]).index_copy(1, grid.rows, tensor)


def rotate(tensor: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs of channels (2i, 2i + 1) of `[B, S, H, D]` by the angles whose cos and sin are `[S, D / 2]`."""
    cos, sin = (table[:, None, :] for table in rope)  # [S, 1, D / 2]
    wide = torch.promote_types(tensor.dtype, torch.float32)
    real, imaginary = tensor.to(wide).unflatten(-1, (-1, 2)).unbind(-1)
    pairs = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1)
    return pairs.flatten(-2).to(tensor.dtype)
