"""The coarse stage: tiles pooled to one token each, scored against each other, and the best key tiles taken.

With `n_j` the valid tokens of tile `j`, `Q_i` the mean of tile `i`'s queries and `K_j`, `V_j` the means of keys and values,

    S_ij = Q_i . K_j * softmax_scale        C_i = softmax_j(S_ij) V_j        selected_i = the k tiles j of largest S_ij

over all key tiles that hold a token. Means, scores and sums are float32. Source: Video Sparse Attention, arXiv 2505.13389.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from operator import index
from typing import Final

import torch
from torch import Tensor

from strobe.attention.around import ambient
from strobe.attention.sparse.layout import TileLayout
from strobe.attention.sparse.padding import padding_rows
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.stages.types import Tiled
from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput, expect
from strobe.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimator:
    """The estimator of the softmax mass of a pair of tiles, which the selection ranks by.

    With `parts = 1` by `S_ij`. With more, each tile is pooled in that many runs of rows and the score is
    `log sum_ab exp(Q_ia . K_jb * softmax_scale)`: what varies inside a tile is not averaged away.

    Args:
        parts: runs of rows pooled per tile; divides the block.
    """

    parts: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Forced:
    """Key tiles that are always selected; they count towards the number of selected tiles.

    Args:
        own: the tile of the queries itself; queries and keys must share one layout.
        first_frames: every tile with a token of the first frames of the keys' grid (a sink, a conditioning prefix).
        last_frames: every tile with a token of the last frames.
    """

    own: bool = False
    first_frames: int = 0
    last_frames: int = 0


def check_parts(estimator: Estimator, block: int) -> None:
    """Raise ConfigError unless the estimator's parts divide the block."""
    expect("estimator parts", estimator.parts, int, f"a divisor of the block's {block} rows")
    if estimator.parts < 1 or block % estimator.parts:
        raise ConfigError(f"estimator: got {estimator.parts} parts, expected a divisor of the block's {block} rows")


def pool(tiled: Tensor, sizes: Tensor | None, block: int, parts: int = 1) -> Tensor:
    """Compute the mean of the valid tokens of each tile, or of each of `parts` runs of rows; 0 where there are none.

    Args:
        tiled: `[B, N * block, H, D]`; what padding rows hold does not matter.
        sizes: valid tokens of each tile, int32 `[N]`; None if all are whole.

    Returns:
        float32 (float64 for float64) `[B, H, N * parts, D]`.
    """
    batch, rows, heads, width = tiled.shape
    step = block // parts
    wide = torch.promote_types(tiled.dtype, torch.float32)
    cells = tiled.view(batch, rows // step, step, heads, width)
    if sizes is None:
        return cells.mean(dim=2, dtype=wide).transpose(1, 2)
    valid = (torch.arange(block, device=tiled.device) < sizes[:, None]).view(-1, step)  # [N * parts, step]
    kept = cells.masked_fill(~valid[:, :, None, None], 0).sum(dim=2, dtype=wide)
    means = kept / valid.sum(dim=1).clamp(min=1)[:, None, None]  # [B, N * parts, H, D]
    return means.transpose(1, 2)


def block_scores(
    q: Tensor, k: Tensor, q_sizes: Tensor | None, kv_sizes: Tensor | None, block: int, softmax_scale: float, estimator: Estimator
) -> Tensor:
    """Score every query tile against every key tile, float32 `[B, H, N_q, N_kv]`; -inf for key tiles without a token.

    Args:
        q: `[B, N_q * block, H, D]` in tile order.
        k: `[B, N_kv * block, H_kv, D]` in tile order.
        q_sizes: valid tokens of each tile of queries, int32 `[N_q]`; None if all are whole.
        kv_sizes: likewise of keys.

    Raises:
        ConfigError: the estimator's parts do not divide the block.
    """
    check_parts(estimator, block)
    queries, keys = (pool(rows, sizes, block, estimator.parts) for rows, sizes in ((q, q_sizes), (k, kv_sizes)))
    return pooled_scores(queries, keys, (q_sizes, kv_sizes), block, softmax_scale, estimator)


def pooled_scores(
    queries: Tensor,
    keys: Tensor,
    sizes: tuple[Tensor | None, Tensor | None],
    block: int,
    softmax_scale: float,
    estimator: Estimator,
) -> Tensor:
    """Compute `block_scores` from queries and keys that are pooled already.

    Args:
        queries: of `pool`, `[B, H, N_q * parts, D]`.
        keys: of `pool`, `[B, H_kv, N_kv * parts, D]`; those of key tiles without a token may be anything.
        sizes: valid tokens of each tile of queries and of keys, int32 `[N_q]` and `[N_kv]`; None if all are whole.
    """
    parts, keys = estimator.parts, keys.repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)
    scores: Tensor = queries @ keys.transpose(-1, -2) * softmax_scale  # [B, H, N_q * parts, N_kv * parts]
    starts = torch.arange(0, block, block // parts, device=queries.device)
    q_sizes, kv_sizes = sizes
    if kv_sizes is not None:  # runs that hold no token
        scores = scores.masked_fill((starts >= kv_sizes[:, None]).flatten(), float("-inf"))
    if parts == 1:
        return scores
    if q_sizes is not None:
        scores = scores.masked_fill((starts >= q_sizes[:, None]).flatten()[:, None], float("-inf"))
    runs = scores.unflatten(-1, (-1, parts)).unflatten(-3, (-1, parts))  # [B, H, N_q, parts, N_kv, parts]
    return torch.logsumexp(runs, dim=(-3, -1))


def coarse_attention(scores: Tensor, values: Tensor) -> Tensor:
    """Attend tile over tile: `softmax(scores) V`, one row per query tile.

    Args:
        scores: of `block_scores` with the mean estimator.
        values: of `pool`, `[B, H_kv, N_kv, D]`.

    Returns:
        `[B, H, N_q, D]`, dtype of the scores.
    """
    values = values.to(scores.dtype).repeat_interleave(scores.shape[1] // values.shape[1], dim=1)
    out: Tensor = torch.softmax(scores, dim=-1) @ values
    return out


def topk_of(topk: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """Convert a number of key tiles, or one for each head, to plain ints.

    Raises:
        ConfigError: it is neither.
    """
    if topk is None:
        return None
    wanted = "an int, or a sequence with one for each head"
    if isinstance(topk, Sequence) and not isinstance(topk, str):
        for each in topk:
            expect("topk", each, int, wanted)
        return tuple(index(each) for each in topk)
    expect("topk", topk, int, wanted)
    return index(topk)


def check_sparsity(sparsity: float | None) -> float:
    """Return a share of key tiles to skip; raise ConfigError unless it is 0 to below 1."""
    expect("sparsity", sparsity, (int, float), "0 (dense) to below 1")
    assert sparsity is not None
    if not 0 <= sparsity < 1:
        raise ConfigError(f"sparsity: got {sparsity}, expected 0 (dense) to below 1")
    return sparsity


def budget(topk: int | Sequence[int] | None, sparsity: float | None, num_heads: int, num_tiles: int) -> tuple[int, ...]:
    """Return the number of key tiles to select, for each head.

    Args:
        topk: of every head, or one per head.
        sparsity: share of the key tiles to skip: `topk = max(1, ceil((1 - sparsity) * num_tiles))`.

    Raises:
        ConfigError: both or neither are given, or they are out of range.
    """
    if (topk is None) == (sparsity is None):
        raise ConfigError(f"give either topk or sparsity; got topk={topk}, sparsity={sparsity}")
    if sparsity is not None:
        topk = max(1, ceil(round((1 - check_sparsity(sparsity)) * num_tiles, 9)))  # 0.3 * 10 is 3, not 3.0000000000000004
    per_head = (topk,) * num_heads if isinstance(topk, int) else tuple(topk or ())
    if len(per_head) != num_heads:
        raise ConfigError(f"topk: got {len(per_head)} numbers, expected one, or one for each of {num_heads} heads")
    if not all(1 <= number <= num_tiles for number in per_head):
        raise ConfigError(f"topk: got {topk}, expected 1 to {num_tiles}, the number of key tiles")
    return per_head


def select_blocks(scores: Tensor, per_head: Sequence[int], forced: Tensor | None) -> tuple[Tensor, Tensor]:
    """Take the key tiles of largest score: exactly as many as asked for, ties to the lowest index, forced ones first.

    A score of NaN counts as the largest, so that it shows in the result. Key tiles without a token come last.

    Args:
        scores: `[B, H, N_q, N_kv]`.
        per_head: tiles to take, for each head.
        forced: boolean `[N_q, N_kv]`.

    Returns:
        indices, ascending in each row, and counts, as a `BlockSelection` holds them.
    """
    most = max(per_head)
    ranked = scores.detach() if forced is None else scores.detach().masked_fill(forced, float("inf"))
    best = torch.sort(ranked, dim=-1, descending=True, stable=True).indices[..., :most]
    if min(per_head) == most:  # nothing is copied from the host
        counts = torch.full(scores.shape[:3], most, dtype=torch.int32, device=scores.device)
        return best.sort(dim=-1).values.to(torch.int32), counts
    numbers = torch.tensor(per_head, dtype=torch.int32, device=scores.device)
    # the entries past a head's number must sort to the end
    best = best.masked_fill(torch.arange(most, device=scores.device) >= numbers[:, None, None], scores.shape[-1])
    indices = best.sort(dim=-1).values.to(torch.int32)
    counts = numbers[:, None].expand(scores.shape[:3]).contiguous()
    return indices, counts


def forced_blocks(forced: Forced, q_layout: TileLayout, kv_layout: TileLayout, per_head: Sequence[int]) -> Tensor | None:
    """Return the mask of key tiles that are always selected, boolean `[N_q, N_kv]` on the CPU; None for none.

    Raises:
        ConfigError: more tiles are forced than selected, or `own` where queries and keys have different layouts.
    """
    if forced == Forced():
        return None
    found = torch.zeros(q_layout.num_tiles, kv_layout.num_tiles, dtype=torch.bool)
    if forced.own:
        if q_layout != kv_layout:
            raise ConfigError(f"forced: own needs one layout for queries and keys; got {q_layout} and {kv_layout}")
        found.fill_diagonal_(True)
    frames, step = kv_layout.grid[0], kv_layout.tile[0]
    for name in ("first_frames", "last_frames"):
        expect(f"forced {name}", getattr(forced, name), int, f"0 to {frames} frames, those of the keys")
    tiles_per_step = kv_layout.num_tiles // -(-frames // step)
    if not (0 <= forced.first_frames <= frames and 0 <= forced.last_frames <= frames):
        raise ConfigError(f"forced: got {forced}, expected 0 to {frames} frames, those of the keys")
    found[:, : -(-forced.first_frames // step) * tiles_per_step] = True
    if forced.last_frames:
        found[:, (frames - forced.last_frames) // step * tiles_per_step :] = True
    most = int(found.sum(dim=-1).max())
    if most > min(per_head):
        raise ConfigError(
            f"forced: {most} key tiles are forced, but {min(per_head)} of {kv_layout.num_tiles} are selected; select {most}, by "
            f"sparsity={floor(100 - 100 * most / kv_layout.num_tiles) / 100} or less, or force fewer"
        )
    return found


def check_share(share: float, topk: object, sparsity: object) -> None:
    """Raise ConfigError unless a share is above 0 and below 1 and stands alone."""
    expect("share", share, float, "above 0 to below 1")
    if not 0 < share < 1:
        raise ConfigError(f"share: got {share}, expected above 0 to below 1; sparsity=0 takes every tile")
    if topk is not None or sparsity is not None:
        raise ConfigError(f"share: got {share} beside topk={topk}, sparsity={sparsity}; give one of the three")


def share_mask(scores: Tensor, share: float, forced: Tensor | None = None) -> Tensor:
    """Return the key tiles that hold a share of each query tile's coarse attention, boolean like the scores; at least one.

    With `P_ij = softmax_j(S_ij)`, forced tiles and the shortest prefix in the order of the selection (by score, ties to the
    lowest index) whose `P_ij` add up to the share. Sums are float64. A row with a NaN takes every tile, so that it shows.

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
    q: Tensor, k: Tensor, layout: TileLayout, forced: Tensor | None = None, queries: int = 64, kv_layout: TileLayout | None = None
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
    with ambient(q):
        scores = block_scores(tiled_q, tiled_k, layout.sizes(q.device), kv_layout.sizes(q.device), block, scale, Estimator())
        ranked = scores if forced is None else scores.masked_fill(forced.to(q.device), float("inf"))
        order = torch.sort(ranked, dim=-1, descending=True, stable=True).indices  # [B, H, N_q, N_kv]
        number = min(queries, layout.num_tokens)
        tokens = torch.linspace(0, layout.num_tokens - 1, number, dtype=torch.float64, device=q.device).round().long()
        rows, padding = layout.rows(q.device)[tokens], kv_layout.tokens(q.device) == kv_layout.num_tokens
        found = torch.zeros(q.shape[2], kv_layout.num_tiles, dtype=torch.float32, device=q.device)
        for sample in range(q.shape[0]):
            asking, keys = (each[sample].transpose(0, 1).float() for each in (tiled_q[:, rows], tiled_k))  # [H, P or rows, D]
            weights = torch.softmax((asking @ keys.transpose(-1, -2) * scale).masked_fill(padding, float("-inf")), dim=-1)
            held = weights.unflatten(-1, (-1, block)).sum(dim=-1).gather(-1, order[sample][:, rows // block])  # [H, P, N_kv]
            found += held.cumsum(dim=-1).mean(dim=1)
    return found


# What a selection skips, by its means: each skipped tile stands as one key and one value, with the weight of its tokens.

_MOST: Final = 2**25
"""Weights that are held at a time, where no gradient keeps them all."""


def add_skipped(fine: AttentionOutput, tiled: Tiled, selection: BlockSelection, softmax_scale: float) -> AttentionOutput:
    """Merge attention over the selected tiles with attention over the means of those that are not.

    With `K_j`, `V_j` the means and `n_j` the tokens of tile `j`, and `R_i` the tiles that query tile `i` skips, a query `x` has

        w_j = n_j exp(x . K_j * softmax_scale)      L' = log sum_{j in R_i} w_j      out' = sum_{j in R_i} w_j exp(-L') V_j

    which merges with the other by their lse. If the keys of each skipped tile are equal, that is dense attention; else `L'` is
    too small, as an exponential's mean is above the exponential of the mean. Means, weights and sums are float32 (float64 for
    float64); differentiable in all operands and in the lse.

    Args:
        fine: attention over the selection, with its lse, in tile order.
        tiled: its operands; what padding rows hold does not matter.

    Returns:
        `out` and `lse` over all tiles; padding queries have out 0 and lse -inf if `q_sizes` tells of them.
    """
    q, k, v = tiled.q, tiled.k, tiled.v
    block, heads = selection.block, q.shape[2]
    keys, values = (pool(each, selection.kv_sizes, block).repeat_interleave(heads // k.shape[2], dim=1) for each in (k, v))
    added = log_weights(selection, keys.shape[2], keys.dtype)
    if selection.q_sizes is not None:
        q = q.masked_fill(padding_rows(selection.q_sizes, block)[:, None, None], 0)
    step = max(1, _MOST // max(1, q.shape[0] * heads * block * keys.shape[2]))
    parts = [
        _over_means(rows, keys, values, bias, softmax_scale)
        for rows, bias in zip(q.unflatten(1, (-1, block)).split(step, dim=1), added.split(step, dim=2), strict=True)
    ]
    out, lse = torch.cat([part[0] for part in parts], dim=1).to(fine.out.dtype), torch.cat([part[1] for part in parts], dim=2)
    if selection.q_sizes is not None:
        padding = padding_rows(selection.q_sizes, block)
        out, lse = out.masked_fill(padding[:, None, None], 0), lse.masked_fill(padding, float("-inf"))
    return merge([fine, AttentionOutput(out=out, lse=lse)])


def log_weights(selection: BlockSelection, num_kv: int, dtype: torch.dtype) -> Tensor:
    """Return the log of the tokens of each skipped tile, -inf for a selected one, `[B, H, N_q, N_kv]`."""
    seen, sizes = selection.mask(num_kv), selection.kv_sizes
    tokens = seen.new_full((num_kv,), selection.block, dtype=dtype) if sizes is None else sizes.to(dtype)
    return torch.where(seen, float("-inf"), tokens.log())


def _over_means(q: Tensor, keys: Tensor, values: Tensor, added: Tensor, softmax_scale: float) -> tuple[Tensor, Tensor]:
    """Attend over one key per tile: out `[B, n * block, H, D]` and lse float32 `[B, H, n * block]`; empty rows as a merge wants.

    q is `[B, n, block, H, D]`, keys and values are `[B, H, N_kv, D]`. `added` `[B, H, n, N_kv]`, to the logits of all rows of a
    tile, is -inf for what is not seen.
    """
    rows = q.permute(0, 3, 1, 2, 4).to(keys.dtype)  # [B, H, n, block, D]
    logits = rows @ keys.unsqueeze(2).transpose(-1, -2) * softmax_scale + added.unsqueeze(3)
    empty = added.isneginf().all(dim=-1)[..., None, None]  # [B, H, n, 1, 1]
    logits = logits.masked_fill(empty, 0)
    lse = torch.logsumexp(logits, dim=-1, keepdim=True)
    out = (torch.exp(logits - lse) @ values.unsqueeze(2)).masked_fill(empty, 0)
    lse = lse.masked_fill(empty, float("-inf")).squeeze(-1).flatten(2, 3)
    return out.flatten(2, 3).transpose(1, 2), lse.float()
