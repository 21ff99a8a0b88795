"""Video-sparse attention of packed sequences: the coarse stage, the selection and the fine stage stay inside each sequence.

As `video_sparse_attention` of every sequence by itself, over blocks of consecutive tokens. How many blocks a sequence has is
known to the device alone; nothing waits for it. All blocks are scored against all, and the scores between two sequences hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from strobe.attention.around import ambient
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.coarse import Estimator, block_scores, pool, topk_of
from strobe.attention.sparse.packed import PackedLayout, to_packed_lse
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.types import AttentionOutput, expect, scale_of
from strobe.core.errors import ConfigError, ShapeError

_MEANS = Estimator()


def video_sparse_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_kv: Tensor,
    *,
    block: int = 64,
    topk: int | None = None,
    sparsity: float | None = None,
    gate: Tensor | None = None,
    coarse: bool | None = None,
    estimator: Estimator = _MEANS,
    softmax_scale: float | None = None,
    impl: str = "auto",
    return_lse: bool = False,
) -> AttentionOutput:
    """Run video-sparse attention on each packed sequence by itself, in one call: `out = fine + gate * coarse`.

    Every sequence is cut into blocks of consecutive tokens, the last one ragged; tokens of a video lie tile by tile.
    Every query block sees the key blocks of its own sequence that score best, ties to the lowest index.

    Args:
        q: `[T_q, H, D]`, the queries of all sequences one after the other.
        k: `[T_kv, H_kv, D]`.
        v: like k.
        cu_seqlens_q: int32 `[n + 1]` on the device: where each sequence begins, and the end.
        cu_seqlens_kv: likewise of the keys.
        block: tokens of a block.
        topk: key blocks that every query block sees; all of its sequence, if there are fewer.
        sparsity: in its place, the share of a sequence's key blocks that is skipped.
        gate: weight of the coarse output, `[T_q, H, D]` or what broadcasts to it.
        coarse: add the coarse output; by default only if a gate is given.
        estimator: how blocks are scored.
        softmax_scale: default `D ** -0.5`.
        impl: of the fine stage, as in `block_sparse_attention`.
        return_lse: also return the lse of the fine stage.

    Returns:
        out `[T_q, H, D]`, lse float32 `[H, T_q]`.

    Raises:
        ShapeError: the arguments do not fit together.
        ConfigError: neither or both of topk and sparsity, or one out of range.
        ImplUnavailableError: the named impl cannot run this call.
    """
    if cu_seqlens_q.shape != cu_seqlens_kv.shape:
        given = tuple(cu_seqlens_kv.shape)
        raise ShapeError(f"cu_seqlens_kv: got shape {given}, expected {tuple(cu_seqlens_q.shape)} like cu_seqlens_q")
    if gate is not None:
        expect("gate", gate, Tensor, f"a tensor of what broadcasts to q's {tuple(q.shape)}")
    queries, keys = PackedLayout.of(cu_seqlens_q, q.shape[0], block), PackedLayout.of(cu_seqlens_kv, k.shape[0], block)
    own = keys.first_blocks.diff()  # key blocks of each sequence
    wanted, most = _numbers(own, topk, sparsity, keys.num_blocks)
    scale = q.shape[2] ** -0.5 if softmax_scale is None else scale_of(softmax_scale)
    rows = (queries.to_blocks(q), keys.to_blocks(k), keys.to_blocks(v))
    with ambient(q):
        adds = gate is not None if coarse is None else coarse
        hidden = queries.sequences[:, None] != keys.sequences  # [N_q, N_kv]: blocks of another sequence
        with torch.no_grad():
            scores = _scores(rows[0], rows[1], queries, keys, scale, estimator)
            # the least score of an own block is above that of another sequence's
            scores = scores.clamp(min=torch.finfo(scores.dtype).min).masked_fill(hidden, float("-inf"))
            best = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :most]
            numbers = torch.cat((wanted, wanted.new_zeros(1)))[queries.sequences].where(queries.sizes > 0, 0)  # [N_q]
            counts = numbers.to(torch.int32).expand(scores.shape[:3]).contiguous()
            best = best.masked_fill(torch.arange(most, device=q.device) >= counts.unsqueeze(-1), keys.num_blocks)
            indices = best.sort(dim=-1).values.clamp(max=max(keys.num_blocks - 1, 0)).to(torch.int32)
        selection = BlockSelection(
            indices=indices,
            counts=counts,
            block=block,
            q_sizes=queries.sizes,
            kv_sizes=keys.sizes,
            finite_padding=True,
            known_bound=keys.num_blocks,
        )
        fine = block_sparse_attention(*rows, selection, softmax_scale=scale, impl=impl, return_lse=return_lse)
        out = queries.to_packed(fine.out)
        if adds:
            mean_scores = _scores(rows[0], rows[1], queries, keys, scale, _MEANS).masked_fill(hidden, float("-inf"))
            out = out + _coarse(mean_scores, rows[2], queries, keys, gate, out)
    return AttentionOutput(out=out, lse=None if fine.lse is None else to_packed_lse(fine.lse, queries))


def _numbers(own: Tensor, topk: int | None, sparsity: float | None, bound: int) -> tuple[Tensor, int]:
    """Return the key blocks to select for each sequence, int64 `[n]`, and an upper bound that the host knows."""
    if (topk is None) == (sparsity is None):
        raise ConfigError(f"give either topk or sparsity; got topk={topk}, sparsity={sparsity}")
    if topk is not None:
        number = topk_of(topk)
        if not isinstance(number, int) or number < 1:
            raise ConfigError(f"topk: got {topk}, expected a number from 1")
        return own.clamp(max=number), min(number, bound)
    expect("sparsity", sparsity, (int, float), "0 (dense) to below 1")
    assert sparsity is not None
    if not 0 <= sparsity < 1:
        raise ConfigError(f"sparsity: got {sparsity}, expected 0 (dense) to below 1")
    share = (own.double() * (1 - sparsity)).mul(1e9).round().div(1e9)  # 0.3 * 10 is 3, not 3.0000000000000004
    return share.ceil().long().clamp(min=1).minimum(own), bound


def _scores(
    q: Tensor, k: Tensor, queries: PackedLayout, keys: PackedLayout, softmax_scale: float, estimator: Estimator
) -> Tensor:
    return block_scores(q, k, queries.sizes, keys.sizes, queries.block, softmax_scale, estimator)


def _coarse(scores: Tensor, v: Tensor, queries: PackedLayout, keys: PackedLayout, gate: Tensor | None, like: Tensor) -> Tensor:
    """Attend block over block, the same for all tokens of a block, `[T_q, H, D]`; 0 where a sequence has no key."""
    nothing = scores.isneginf().all(dim=-1, keepdim=True)  # blocks left over, and sequences without a key
    weights = torch.softmax(scores.masked_fill(nothing, 0), dim=-1).masked_fill(nothing, 0)
    values = pool(v, keys.sizes, keys.block).to(scores.dtype).repeat_interleave(scores.shape[1] // v.shape[2], dim=1)
    rows = (weights @ values)[0].transpose(0, 1).to(like.dtype)  # [N_q, H, D]
    if rows.shape[0] == 0:
        return torch.zeros_like(like)
    of_tokens = queries.rows.clamp(min=0) // queries.block
    added = rows.index_select(0, of_tokens).masked_fill((queries.rows < 0)[:, None, None], 0)
    return added if gate is None else added * gate.to(like.dtype)
