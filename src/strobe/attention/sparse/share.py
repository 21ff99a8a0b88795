"""Selection by share: for every query tile as many key tiles as hold a share of its coarse attention.

With the coarse probabilities `P_ij = softmax_j(S_ij)` of `coarse` and the key tiles in the order of the selection, forced ones
first, then by score, ties to the lowest index: the forced ones and the shortest prefix whose `P_ij` add up to the share.
"""

from __future__ import annotations

import torch
from torch import Tensor

from strobe.attention.sparse.coarse import Estimator, block_scores
from strobe.attention.sparse.layout import TileLayout
from strobe.attention.types import expect
from strobe.core.errors import ConfigError


def check_share(share: float, topk: object, sparsity: object) -> None:
    """Raise ConfigError unless a share is above 0 and below 1 and stands alone."""
    expect("share", share, float, "above 0 to below 1")
    if not 0 < share < 1:
        raise ConfigError(f"share: got {share}, expected above 0 to below 1; sparsity=0 takes every tile")
    if topk is not None or sparsity is not None:
        raise ConfigError(f"share: got {share} beside topk={topk}, sparsity={sparsity}; give one of the three")


def share_mask(scores: Tensor, share: float, forced: Tensor | None = None) -> Tensor:
    """Return the key tiles that hold a share of each query tile's coarse attention, boolean like the scores; at least one.

    Sums are float64. A row with a NaN takes every tile, so that it shows in the result.

    Args:
        scores: of `block_scores`, `[B, H, N_q, N_kv]`.
        share: above 0 to below 1.
        forced: boolean `[N_q, N_kv]`; None for none.
    """
    scores = scores.detach()
    ranked = scores if forced is None else scores.masked_fill(forced, float("inf"))
    order = torch.sort(ranked, dim=-1, descending=True, stable=True).indices
    sums = torch.softmax(scores.double(), dim=-1).gather(-1, order).cumsum(dim=-1)
    taken = ~(sums.roll(1, dims=-1) >= share)  # the sum before each tile
    taken[..., :1] = True
    mask = torch.zeros_like(taken).scatter(-1, order, taken)
    return mask if forced is None else mask | forced


def select_share(scores: Tensor, share: float, forced: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return `share_mask` as indices, ascending in each row, and counts, as a `BlockSelection` holds them; no host sync."""
    mask = share_mask(scores, share, forced)
    places = torch.arange(mask.shape[-1], dtype=torch.int32, device=mask.device)
    indices = places.expand(mask.shape).masked_fill(~mask, mask.shape[-1]).sort(dim=-1).values
    return indices, mask.sum(dim=-1, dtype=torch.int32)


def share_held(
    q: Tensor,
    k: Tensor,
    layout: TileLayout,
    forced: Tensor | None = None,
    queries: int = 64,
    kv_layout: TileLayout | None = None,
) -> Tensor:
    """Return the share of dense attention's weight in the first key tiles of the selection, float32 `[H, N_kv]`, summed over B.

    Args:
        q: `[B, S, H, D]` in raster order.
        k: likewise; of as many heads.
        forced: boolean `[N_q, N_kv]`; None for none.
        queries: of each head, evenly spaced, that are measured.
        kv_layout: tiles of the keys, where they are others than those of the queries.
    """
    kv_layout = kv_layout or layout
    scale, block = q.shape[-1] ** -0.5, layout.block
    tiled_q, tiled_k = layout.to_tiles(q), kv_layout.to_tiles(k)
    scores = block_scores(tiled_q, tiled_k, layout.sizes(q.device), kv_layout.sizes(q.device), block, scale, Estimator())
    ranked = scores if forced is None else scores.masked_fill(forced.to(q.device), float("inf"))
    order = torch.sort(ranked, dim=-1, descending=True, stable=True).indices  # [B, H, N_q, N_kv]
    number = min(queries, layout.num_tokens)
    tokens = torch.linspace(0, layout.num_tokens - 1, number, dtype=torch.float64, device=q.device).round().long()
    rows, padding = layout.rows(q.device)[tokens], kv_layout.tokens(q.device) == kv_layout.num_tokens
    found = torch.zeros(q.shape[2], kv_layout.num_tiles, device=q.device)
    for sample in range(q.shape[0]):
        asking, keys = (each[sample].transpose(0, 1).float() for each in (tiled_q[:, rows], tiled_k))  # [H, P or rows, D]
        weights = torch.softmax((asking @ keys.transpose(-1, -2) * scale).masked_fill(padding, float("-inf")), dim=-1)
        held = weights.unflatten(-1, (-1, block)).sum(dim=-1).gather(-1, order[sample][:, rows // block])  # [H, P, N_kv]
        found += held.cumsum(dim=-1).mean(dim=1)
    return found
