"""Sequences of several lengths in one tensor: block-sparse attention over `cu_seqlens`, without a host sync.

Every sequence is cut into blocks of its own, the last one with padding. How many blocks that makes is known to the device alone:
there are always as many as there could be, `T // block + n`, and those left over are empty.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from strobe.attention.around import ambient, transformed
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.coarse import Estimator, block_scores, check_sparsity, pool, topk_of
from strobe.attention.sparse.entries import check_entries, looks
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.types import AttentionOutput, expect, scale_of, traced
from strobe.core.errors import ConfigError, ShapeError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedLayout:
    """The place of each token of packed sequences in rows of blocks; all tables are on the device.

    Args:
        block: rows of a block.
        num_tokens: of all sequences.
        sizes: valid rows of each block, int32 `[N]`, 0 for the blocks left over at the end.
        sequences: which sequence each block belongs to, int64 `[N]`, `n` for those left over.
        first_blocks: first block of each sequence and the number of all blocks in use, int64 `[n + 1]`.
        tokens: token of each row, int64 `[N * block]`, -1 for padding.
        rows: row of each token, int64 `[T]`, -1 for a token that no sequence has.
    """

    block: int
    num_tokens: int
    sizes: Tensor
    sequences: Tensor
    first_blocks: Tensor
    tokens: Tensor
    rows: Tensor

    @classmethod
    def of(cls, cu_seqlens: Tensor, num_tokens: int, block: int) -> PackedLayout:
        """Lay out sequences: tokens `cu_seqlens[i]` to `cu_seqlens[i + 1]` are sequence `i`; a sequence may be empty.

        Args:
            cu_seqlens: int32 `[n + 1]`, from 0 ascending to at most `num_tokens`; what it holds is checked where the entries of
                a selection are: on a CPU, and anywhere with `STROBE_CHECK=1`.
            num_tokens: rows of the packed tensors.
            block: tokens of a block.

        Raises:
            ShapeError: cu_seqlens is not int32 `[n + 1]`, or not ascending from 0 to at most `num_tokens`.
        """
        if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1 or cu_seqlens.dtype != torch.int32:
            raise ShapeError(f"cu_seqlens: got {tuple(cu_seqlens.shape)} {cu_seqlens.dtype}, expected [n + 1] torch.int32")
        if looks(cu_seqlens):
            given = cu_seqlens.tolist()
            if given[0] != 0 or given != sorted(given) or given[-1] > num_tokens:
                shown = ", ".join(map(str, given[:8])) + (", ..." if len(given) > 8 else "")
                wanted = f"numbers that ascend from 0 to at most {num_tokens}, the rows there are"
                raise ShapeError(f"cu_seqlens: got [{shown}], expected {wanted}")
        bounds, device, number = cu_seqlens.long(), cu_seqlens.device, cu_seqlens.shape[0] - 1
        lengths = bounds.diff()
        first_blocks = torch.cat((bounds.new_zeros(1), ((lengths + block - 1) // block).cumsum(0)))
        padded = torch.cat((lengths, lengths.new_zeros(1)))  # one more sequence, empty: what is left over belongs to it

        blocks = torch.arange(num_tokens // block + number, device=device)
        sequences = torch.searchsorted(first_blocks[1:].contiguous(), blocks, right=True)
        begins = (blocks - first_blocks[sequences]) * block  # first token of each block in its sequence
        sizes = (padded[sequences] - begins).clamp(0, block)
        inside = torch.arange(block, device=device)
        tokens = ((bounds[sequences] + begins)[:, None] + inside).masked_fill(inside >= sizes[:, None], -1)

        each = torch.arange(num_tokens, device=device)
        owners = torch.searchsorted(bounds[1:].contiguous(), each, right=True)
        rows = first_blocks[owners] * block + each - bounds[owners]
        return cls(
            block=block,
            num_tokens=num_tokens,
            sizes=sizes.to(torch.int32),
            sequences=sequences,
            first_blocks=first_blocks,
            tokens=tokens.flatten(),
            rows=rows.masked_fill(each >= bounds[-1], -1),
        )

    @property
    def num_blocks(self) -> int:
        """Upper bound of the number of blocks, known to the host."""
        return self.sizes.shape[0]

    def to_blocks(self, packed: Tensor) -> Tensor:
        """Arrange tokens `[T, H, D]` as rows `[1, N * block, H, D]`; padding rows are 0."""
        if packed.dim() != 3 or packed.shape[0] != self.num_tokens or (packed.itemsize < 2 and packed.is_floating_point()):
            wanted = f"[{self.num_tokens}, H, D] of over 8 bits"
            raise ShapeError(f"packed: got shape {tuple(packed.shape)} {packed.dtype}, expected {wanted}")
        return _moved(packed, self.tokens, self.rows).unsqueeze(0)

    def to_packed(self, rows: Tensor) -> Tensor:
        """Return rows `[1, N * block, H, D]` to tokens `[T, H, D]`; tokens of no sequence are 0."""
        return _moved(rows.squeeze(0), self.rows, self.tokens)


def block_sparse_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    counts: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_kv: Tensor,
    *,
    block: int,
    softmax_scale: float | None = None,
    impl: str = "auto",
    return_lse: bool = False,
    deterministic: bool = False,
) -> AttentionOutput:
    """Run `block_sparse_attention` on each sequence by itself, in one call.

    Args:
        q: `[T_q, H, D]`, the queries of all sequences one after the other.
        k: `[T_kv, H_kv, D]`.
        v: like k.
        indices: int32 `[H, N_q, K]` with `N_q = T_q // block + n`: the query blocks of all sequences one after the other,
            then rows left over. The entries are key blocks of the same sequence, counted from its own first one.
        counts: int32 `[H, N_q]`, as in `BlockSelection`; those of rows left over do not matter.
        cu_seqlens_q: int32 `[n + 1]` on the device: where each sequence begins, and the end.
        cu_seqlens_kv: likewise of the keys.
        block: tokens of a block.
        softmax_scale: default `D ** -0.5`.
        impl: as in `block_sparse_attention`.
        return_lse: also return the lse.
        deterministic: as in `block_sparse_attention`.

    Returns:
        out `[T_q, H, D]`, lse float32 `[H, T_q]`.

    Raises:
        ShapeError: the arguments do not fit together, or on a CPU an index names no key block of its sequence; on a GPU such an
            index reads nothing.
        ImplUnavailableError: the named impl cannot run this call.
    """
    queries, keys = _layouts(q, k, cu_seqlens_q, cu_seqlens_kv, block)
    if indices.dim() != 3 or tuple(indices.shape[:2]) != (q.shape[1], queries.num_blocks):
        wanted = f"[{q.shape[1]}, {queries.num_blocks}, K]"
        raise ShapeError(f"indices: got shape {tuple(indices.shape)}, expected {wanted} for {queries.num_blocks} query blocks")
    selection = BlockSelection(
        indices=indices.unsqueeze(0),
        counts=counts.where(queries.sizes > 0, 0).unsqueeze(0),
        block=block,
        q_sizes=queries.sizes,
        kv_sizes=keys.sizes,
        finite_padding=True,
    )
    selection = replace(selection, indices=_among_all(selection, queries, keys))
    found = block_sparse_attention(
        queries.to_blocks(q),
        keys.to_blocks(k),
        keys.to_blocks(v),
        selection,
        softmax_scale=softmax_scale,
        impl=impl,
        return_lse=return_lse,
        deterministic=deterministic,
    )
    return AttentionOutput(out=queries.to_packed(found.out), lse=None if found.lse is None else to_packed_lse(found.lse, queries))


def _layouts(q: Tensor, k: Tensor, cu_q: Tensor, cu_kv: Tensor, block: int) -> tuple[PackedLayout, PackedLayout]:
    if cu_q.shape != cu_kv.shape:
        raise ShapeError(f"cu_seqlens_kv: got shape {tuple(cu_kv.shape)}, expected {tuple(cu_q.shape)} like cu_seqlens_q")
    return PackedLayout.of(cu_q, q.shape[0], block), PackedLayout.of(cu_kv, k.shape[0], block)


def to_packed_lse(lse: Tensor, queries: PackedLayout) -> Tensor:
    """Convert the lse of rows of blocks, `[1, H, N * block]`, to that of tokens, `[H, T]`; -inf for tokens of no sequence."""
    nowhere = queries.rows < 0
    return _moved(lse[0].T, queries.rows, queries.tokens).masked_fill(nowhere[:, None], float("-inf")).T


def _among_all(selection: BlockSelection, queries: PackedLayout, keys: PackedLayout) -> Tensor:
    """Convert indices that count from a sequence's first key block to indices that count from the first block of all.

    One that is not of the sequence becomes -1, which names no key block: else it would name one of another sequence.
    """
    numbers = torch.cat((keys.first_blocks.diff(), keys.first_blocks.new_zeros(1)))  # the rows left over have none
    indices, own = selection.indices, numbers[queries.sequences][:, None]  # [N_q, 1]
    if not torch._C._functorch.is_batchedtensor(indices):
        check_entries(selection, own)
    first = keys.first_blocks[queries.sequences][:, None]
    return torch.where((indices >= 0) & (indices < own), indices + first, -1).to(indices.dtype)


class _Moved(torch.autograd.Function):
    """Gathering of rows by a table, whose gradient is gathered by the table of the other direction instead of scattered."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        rows, table, back = inputs
        ctx.save_for_backward(table, back)
        return _gathered(rows, table)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        table, back = ctx.saved_tensors
        return _moved(grads[0], back, table), None, None


def _gathered(rows: Tensor, table: Tensor) -> Tensor:
    """Return `rows[table]`, with 0 where the table holds -1."""
    if rows.shape[0] == 0:
        return rows.new_zeros((table.shape[0], *rows.shape[1:]))
    taken = rows.index_select(0, table.clamp(min=0))
    return taken.masked_fill((table < 0).view(-1, *[1] * (rows.dim() - 1)), 0)


def _moved(rows: Tensor, table: Tensor, back: Tensor) -> Tensor:
    if not traced() and transformed():  # of a function of its own it would ask for rules
        return _gathered(rows, table)
    return _Moved.apply(rows, table, back)  # type: ignore[no-untyped-call, no-any-return]


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
    Every query block sees the key blocks of its own sequence that score best, ties to the lowest index. How many blocks a
    sequence has is known to the device alone; all are scored against all, and the scores between two sequences hidden.

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
    if gate is not None:
        expect("gate", gate, Tensor, f"a tensor of what broadcasts to q's {tuple(q.shape)}")
    queries, keys = _layouts(q, k, cu_seqlens_q, cu_seqlens_kv, block)
    own = keys.first_blocks.diff()  # key blocks of each sequence
    wanted, most = _numbers(own, topk, sparsity, keys.num_blocks)
    scale = q.shape[2] ** -0.5 if softmax_scale is None else scale_of(softmax_scale)
    rows = (queries.to_blocks(q), keys.to_blocks(k), keys.to_blocks(v))
    scored = partial(block_scores, *rows[:2], queries.sizes, keys.sizes, block, scale)
    with ambient(q):
        adds = gate is not None if coarse is None else coarse
        hidden = queries.sequences[:, None] != keys.sequences  # [N_q, N_kv]: blocks of another sequence
        with torch.no_grad():
            scores = scored(estimator)
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
            mean_scores = scored(_MEANS).masked_fill(hidden, float("-inf"))
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
    sparsity = check_sparsity(sparsity)
    share = (own.double() * (1 - sparsity)).mul(1e9).round().div(1e9)  # 0.3 * 10 is 3, not 3.0000000000000004
    return share.ceil().long().clamp(min=1).minimum(own), bound


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
