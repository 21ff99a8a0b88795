"""The front door of attention over a video: the coarse stage selects, `block_sparse_attention` computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.coarse import (
    Estimator,
    Forced,
    block_scores,
    budget,
    coarse_attention,
    forced_blocks,
    select_blocks,
)
from strobe.attention.sparse.layout import TileLayout, tile_layout
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.types import AttentionOutput, check
from strobe.core.errors import ConfigError, ShapeError

Layout = Literal["raster", "tiled"]

_FREE: Final = Forced()
_MEANS: Final = Estimator()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class VideoAttentionOutput:
    """Result of video-sparse attention.

    Args:
        out: `[B, S_q, H, D]` in the layout and dtype of q.
        lse: of the fine stage, float32 `[B, H, S_q]` in the layout of q; None unless it was asked for.
        selection: what the coarse stage took.
        recall: share of the dense attention's mass that the selected tiles hold, float32 `[B, H]`, mean over the probed queries;
            None unless it was asked for.
    """

    out: Tensor
    lse: Tensor | None
    selection: BlockSelection
    recall: Tensor | None


def video_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    grid: Iterable[int],
    kv_grid: Iterable[int] | None = None,
    tile: Iterable[int] | int | Literal["auto"] = (4, 4, 4),
    kv_tile: Iterable[int] | int | Literal["auto"] | None = None,
    topk: int | Sequence[int] | None = None,
    sparsity: float | None = None,
    gate: Tensor | None = None,
    coarse: bool | None = None,
    forced: Forced = _FREE,
    estimator: Estimator = _MEANS,
    rope: tuple[Tensor, Tensor] | None = None,
    softmax_scale: float | None = None,
    q_layout: Layout = "raster",
    kv_layout: Layout = "raster",
    impl: str = "auto",
    return_lse: bool = False,
    probe: int = 0,
) -> VideoAttentionOutput:
    """Attention over a video: every tile of queries sees the key tiles that a coarse pass finds worth seeing.

    `out = fine + gate * coarse`: fine is softmax attention over the selected tiles, coarse is attention of tile over tile, the
    same for all queries of a tile.

    Args:
        q: `[B, S_q, H, D]`.
        k: `[B, S_kv, H_kv, D]`.
        v: like k.
        grid: tokens of q in (time, height, width).
        kv_grid: likewise of k and v, such as the frames of a key-value cache; by default that of q.
        tile: tokens of a tile in (time, height, width), a block size, or `auto` for the fewest padding rows.
        kv_tile: likewise of the keys; by default that of q, and over another grid a tile inside one frame.
        topk: key tiles that every query tile sees, or one number per head.
        sparsity: in its place, the share of the key tiles that is skipped.
        gate: weight of the coarse output, `[B, S_q, H, D]` or what broadcasts to it, in the layout of q.
        coarse: add the coarse output; by default only if a gate is given, because without a trained gate the sum is no
            replacement for dense attention.
        forced: key tiles that are selected whatever they score.
        estimator: how tiles are scored.
        rope: (cos, sin), each `[S, D / 2]` in raster order: q and k are rotated by pairs of channels (2i, 2i + 1) first.
        softmax_scale: default `D ** -0.5`.
        q_layout: `raster`, or `tiled`: rows in tile order, as `TileLayout.to_tiles` makes them. The output has the same.
        kv_layout: likewise of k and v.
        impl: of the fine stage, as in `block_sparse_attention`.
        return_lse: also return the lse of the fine stage.
        probe: queries per head, evenly spaced, to measure the recall with; 0 for none.

    Raises:
        ShapeError: the arguments do not fit together.
        ConfigError: neither or both of topk and sparsity, or a policy that cannot be met.
        ImplUnavailableError: the named impl cannot run this call.
    """
    q_tiles = tile_layout(grid, tile)
    kv_tiles = _kv_tiles(q_tiles, kv_grid, kv_tile)
    scale = check(q, k, v, softmax_scale, return_lse).softmax_scale
    if rope is not None:
        q, k = _rotated(q, k, rope, q_layout, kv_layout)
    q = _tiled(q, q_tiles, q_layout, "q")
    k, v = (_tiled(tensor, kv_tiles, kv_layout, name) for tensor, name in ((k, "k"), (v, "v")))
    q_sizes, kv_sizes, block = q_tiles.sizes(q.device), kv_tiles.sizes(q.device), q_tiles.block
    per_head = budget(topk, sparsity, q.shape[2], kv_tiles.num_tiles)
    must = forced_blocks(forced, q_tiles, kv_tiles, per_head)
    add_coarse = gate is not None if coarse is None else coarse
    scores = block_scores(q, k, q_sizes, kv_sizes, block, scale, estimator)
    indices, counts = select_blocks(scores, per_head, None if must is None else must.to(q.device))
    selection = BlockSelection(
        indices=indices,
        counts=counts,
        block=block,
        q_sizes=None if q_tiles.whole else q_sizes,
        kv_sizes=None if kv_tiles.whole else kv_sizes,
    )
    fine = block_sparse_attention(q, k, v, selection, softmax_scale=scale, impl=impl, return_lse=return_lse or probe > 0)
    out = fine.out
    if add_coarse:
        means = scores if estimator == _MEANS else block_scores(q, k, q_sizes, kv_sizes, block, scale, _MEANS)
        rows = coarse_attention(means, v, kv_sizes, block).to(out.dtype).repeat_interleave(block, dim=2).transpose(1, 2)
        out = out + (rows if gate is None else rows * _gate_rows(gate, q, q_tiles, q_layout))
    recall = None if probe == 0 else _recall(q, k, fine, q_tiles, kv_tiles, scale, probe)
    lse = fine.lse if return_lse else None
    if q_layout == "raster":
        out = q_tiles.to_raster(out)
        lse = None if lse is None else lse.index_select(2, q_tiles.rows(q.device))
    return VideoAttentionOutput(out=out, lse=lse, selection=selection, recall=recall)


def _kv_tiles(
    q_tiles: TileLayout, kv_grid: Iterable[int] | None, kv_tile: Iterable[int] | int | Literal["auto"] | None
) -> TileLayout:
    cut = q_tiles.grid if kv_grid is None else tuple(kv_grid)
    if kv_tile is not None:
        return tile_layout(cut, kv_tile, q_tiles.block)
    if cut == q_tiles.grid:
        return q_tiles
    return tile_layout(cut, tile_layout((1, *cut[1:]), "auto", q_tiles.block).tile, q_tiles.block)


def _tiled(tensor: Tensor, layout: TileLayout, order: Layout, name: str) -> Tensor:
    expected = {"raster": layout.num_tokens, "tiled": layout.num_rows}
    if order not in expected:
        raise ConfigError(f"layout of {name}: got {order!r}, expected 'raster' or 'tiled'")
    if tensor.shape[1] != expected[order]:
        raise ShapeError(
            f"{name}: got {tensor.shape[1]} rows, expected {expected[order]} in {order} order for grid {layout.grid} "
            f"and tile {layout.tile}"
        )
    return layout.to_tiles(tensor) if order == "raster" else tensor


def _gate_rows(gate: Tensor, q: Tensor, layout: TileLayout, order: Layout) -> Tensor:
    rows = layout.num_tokens if order == "raster" else layout.num_rows
    try:
        spread = gate.expand(q.shape[0], rows, *q.shape[2:])
    except RuntimeError as error:
        raise ShapeError(f"gate: got shape {tuple(gate.shape)}, expected what broadcasts to [B, {rows}, H, D]") from error
    return _tiled(spread, layout, order, "gate").to(q.dtype)


def _rotated(q: Tensor, k: Tensor, rope: tuple[Tensor, Tensor], q_layout: Layout, kv_layout: Layout) -> tuple[Tensor, Tensor]:
    """Rotate q and k; positions are those of the raster order, so both must be in it and share one grid."""
    if q_layout != "raster" or kv_layout != "raster" or q.shape[1] != k.shape[1]:
        raise ConfigError("rope: needs q and k of one grid in raster order; rotate them before, and leave rope out")
    wanted = (q.shape[1], q.shape[3] // 2)
    for name, table in zip(("cos", "sin"), rope, strict=True):
        if tuple(table.shape) != wanted:
            raise ShapeError(f"rope {name}: got shape {tuple(table.shape)}, expected {wanted}")
    cos, sin = (table[:, None, :] for table in rope)  # [S, 1, D / 2]
    rotated = []
    for tensor in (q, k):
        wide = torch.promote_types(tensor.dtype, torch.float32)
        real, imaginary = tensor.to(wide).unflatten(-1, (-1, 2)).unbind(-1)
        pairs = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1)
        rotated.append(pairs.flatten(-2).to(tensor.dtype))
    return rotated[0], rotated[1]


def _recall(
    q: Tensor, k: Tensor, fine: AttentionOutput, q_tiles: TileLayout, kv_tiles: TileLayout, scale: float, probe: int
) -> Tensor:
    """Mean over some queries of `exp(lse of the selected tiles - lse of all keys)`; no host sync."""
    assert fine.lse is not None
    tokens = torch.linspace(0, q_tiles.num_tokens - 1, min(probe, q_tiles.num_tokens), device=q.device).round().long()
    rows = q_tiles.rows(q.device)[tokens]
    queries = q.detach().index_select(1, rows).transpose(1, 2).float()  # [B, H, P, D]
    keys = k.detach().index_select(1, kv_tiles.rows(q.device)).transpose(1, 2).float()
    keys = keys.repeat_interleave(q.shape[2] // k.shape[2], dim=1)
    dense = torch.logsumexp(queries @ keys.transpose(-1, -2) * scale, dim=-1)
    return torch.exp(fine.lse.detach().index_select(2, rows) - dense).mean(dim=-1)
