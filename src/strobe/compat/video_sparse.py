"""FastVideo's `video_sparse_attn`: `[B, H, S, D]`, tokens already in tile order, coarse plus fine."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.coarse import Estimator, block_scores, budget, coarse_attention, select_blocks
from strobe.attention.sparse.layout import check_block
from strobe.attention.sparse.selection import BlockSelection
from strobe.core.errors import ShapeError


def video_sparse_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    variable_block_sizes: Tensor | None = None,
    q_variable_block_sizes: Tensor | None = None,
    topk: int = 8,
    block_size: int | Sequence[int] = 64,
    compress_attn_weight: Tensor | None = None,
) -> Tensor:
    """Video sparse attention over tokens in tile order: `coarse * compress_attn_weight + fine`, without a weight `coarse + fine`.

    Args:
        q: `[B, H, S_q, D]`, `S_q` a multiple of the block.
        k: `[B, H, S_kv, D]`.
        v: like k.
        variable_block_sizes: valid tokens of each key block, `[S_kv / block]`; all are whole if not given.
        q_variable_block_sizes: likewise of the query blocks; those of the keys if not given and `S_q == S_kv`.
        topk: key blocks that every query block sees; all, if there are fewer.
        block_size: tokens of a block: 64, 128, 256, or the sides of a tile with that many, such as `(4, 8, 8)`.
        compress_attn_weight: gate of the coarse output, `[B, H, S_q, D]` or what broadcasts to it.

    Returns:
        `[B, H, S_q, D]`.

    Raises:
        ShapeError: the arguments do not fit together.

    Source: the signature of fastvideo-kernel 0.3; the sequence of arguments is kept.
    """
    block = block_size if isinstance(block_size, int) else prod(block_size)
    check_block(block)
    if q.dim() != 4 or k.dim() != 4:
        raise ShapeError(f"q and k: got shapes {tuple(q.shape)} and {tuple(k.shape)}, expected [B, H, S, D]")
    if q.shape[2] % block or k.shape[2] % block:
        raise ShapeError(f"q and k: got {q.shape[2]} and {k.shape[2]} rows, expected multiples of the block's {block}")
    if q_variable_block_sizes is None and q.shape[2] == k.shape[2]:
        q_variable_block_sizes = variable_block_sizes
    if q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3] or k.shape != v.shape:
        given = f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        raise ShapeError(f"q, k and v: got shapes {given}, expected one batch, number of heads and head_dim, and k and v alike")
    q_sizes = _sizes(q_variable_block_sizes, q.shape[2] // block, block, "q_variable_block_sizes", q.device)
    kv_sizes = _sizes(variable_block_sizes, k.shape[2] // block, block, "variable_block_sizes", q.device)
    queries, keys, values = (tensor.transpose(1, 2) for tensor in (q, k, v))  # [B, S, H, D]
    scale = q.shape[-1] ** -0.5
    scores = block_scores(queries, keys, q_sizes, kv_sizes, block, scale, Estimator())
    chosen = budget(min(topk, len(kv_sizes)), None, q.shape[1], len(kv_sizes))
    indices, counts = select_blocks(scores, chosen, None)
    selection = BlockSelection(
        indices=indices,
        counts=counts,
        block=block,
        q_sizes=q_sizes,
        kv_sizes=kv_sizes,
        known_count=chosen[0],
        known_bound=len(kv_sizes),
    )
    fine = block_sparse_attention(queries, keys, values, selection, softmax_scale=scale).out.transpose(1, 2)
    coarse = coarse_attention(scores, values, kv_sizes, block).to(fine.dtype).repeat_interleave(block, dim=2)
    return fine + (coarse if compress_attn_weight is None else coarse * compress_attn_weight)


def _sizes(sizes: Tensor | None, number: int, block: int, name: str, device: torch.device) -> Tensor:
    if sizes is None:
        return torch.full((number,), block, dtype=torch.int32, device=device)
    if tuple(sizes.shape) != (number,):
        raise ShapeError(f"{name}: got shape {tuple(sizes.shape)}, expected ({number},)")
    return sizes.to(device=device, dtype=torch.int32)
