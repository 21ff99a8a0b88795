"""Block-sparse attention on a CPU: gather the selected key blocks of a few query blocks, then torch's own kernel over them.

The chunks are small enough that gathered keys and values stay in the cache, so skipped blocks cost nothing: the time is
proportional to the selected blocks. Query blocks are taken in order of their counts, so unequal counts waste little. Gradients
are batched matrix products over the same chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from strobe.attention.sparse.padding import cleared, padding_rows
from strobe.attention.sparse.selection import BlockSelection

_CHUNK_BYTES = 1 << 20
"""Gathered keys of one chunk; a few times this should fit the last-level cache."""


class _Blocks(NamedTuple):
    """q `[B*H*N_q, block, D]`, k and v `[B*H_kv*N_kv, block, D]` in float32 (float64 for float64), padding rows 0."""

    q: Tensor
    k: Tensor
    v: Tensor
    groups: int


class _Chunk(NamedTuple):
    """Some query blocks and the keys they see.

    Args:
        rows: of `_Blocks.q`, int64 `[n]`.
        gather: rows of `_Blocks.k`, int64 `[n * K]`.
        hidden: keys that are not seen, boolean `[n, 1, K * block]`; None if all are.
    """

    rows: Tensor
    gather: Tensor
    hidden: Tensor | None


def forward(q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection, softmax_scale: float) -> tuple[Tensor, Tensor]:
    """Return out `[B, S_q, H, D]` and lse float32 `[B, H, S_q]`."""
    blocks = _split(q, k, v, selection)
    out = torch.zeros_like(blocks.q)
    lse = blocks.q.new_full(blocks.q.shape[:2], float("-inf"))
    for chunk in _chunks(selection, blocks):
        keys, values = (_gathered(each, chunk).unsqueeze(1) for each in (blocks.k, blocks.v))  # [n, 1, K * block, D]
        bias = None
        if chunk.hidden is not None:
            bias = torch.zeros_like(chunk.hidden, dtype=keys.dtype).masked_fill_(chunk.hidden, float("-inf")).unsqueeze(1)
        queries = blocks.q[chunk.rows].unsqueeze(1)
        found, denominators = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys, values, attn_mask=bias, scale=softmax_scale
        )
        found, denominators = found.squeeze(1), denominators.squeeze(1)
        if chunk.hidden is not None:
            nothing = chunk.hidden.all(dim=-1)  # [n, 1]: padding keys only
            found = found.masked_fill(nothing.unsqueeze(-1), 0)
            denominators = denominators.masked_fill(nothing, float("-inf"))
        out[chunk.rows], lse[chunk.rows] = found, denominators.to(lse.dtype)
    batch, q_len, heads, _ = q.shape
    lse = lse.view(batch, heads, q_len)
    if selection.q_sizes is not None:
        lse = lse.masked_fill(padding_rows(selection.q_sizes, selection.block), float("-inf"))
    return _joined(out, q, selection.q_sizes, selection.block), lse.float()


def backward(
    grads: tuple[Tensor, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: tuple[Tensor, Tensor],
    selection: BlockSelection,
    softmax_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, given those of `(out, lse)` and `(out, lse)` itself; the same in every run."""
    blocks = _split(q, k, v, selection)
    clean = (cleared(tensor, selection.q_sizes, selection.block) for tensor in (grads[0], state[0]))
    d_out, out = (_rows_of_blocks(tensor, selection.block).to(blocks.q.dtype) for tensor in clean)
    empty = state[1].isneginf()
    lse = state[1].masked_fill(empty, float("inf")).to(blocks.q.dtype).view(-1, selection.block, 1)  # exp(score - inf) = 0
    d_lse = grads[1].masked_fill(empty, 0).to(blocks.q.dtype).view(-1, selection.block, 1)
    delta = (d_out * out).sum(dim=-1, keepdim=True) - d_lse  # [B*H*N_q, block, 1]
    dq, dk, dv = torch.zeros_like(blocks.q), torch.zeros_like(blocks.k), torch.zeros_like(blocks.v)
    for chunk in _chunks(selection, blocks):
        rows, size = chunk.rows, (-1, *blocks.k.shape[1:])
        weights = (_scores(blocks, chunk, softmax_scale) - lse[rows]).exp_()
        d_weights = torch.bmm(d_out[rows], _gathered(blocks.v, chunk).transpose(1, 2))
        d_scores = d_weights.sub_(delta[rows]).mul_(weights).mul_(softmax_scale)
        dq[rows] = torch.bmm(d_scores, _gathered(blocks.k, chunk))
        dk.index_add_(0, chunk.gather, torch.bmm(d_scores.transpose(1, 2), blocks.q[rows]).view(size))
        dv.index_add_(0, chunk.gather, torch.bmm(weights.transpose(1, 2), d_out[rows]).view(size))
    q_sizes, kv_sizes, block = selection.q_sizes, selection.kv_sizes, selection.block
    return _joined(dq, q, q_sizes, block), _joined(dk, k, kv_sizes, block), _joined(dv, v, kv_sizes, block)


def _split(q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection) -> _Blocks:
    wide = torch.promote_types(q.dtype, torch.float32)
    queries = cleared(q, selection.q_sizes, selection.block)
    keys, values = (cleared(tensor, selection.kv_sizes, selection.block) for tensor in (k, v))
    blocks = [_rows_of_blocks(tensor, selection.block).to(wide) for tensor in (queries, keys, values)]
    return _Blocks(blocks[0], blocks[1], blocks[2], q.shape[2] // k.shape[2])


def _rows_of_blocks(tensor: Tensor, block: int) -> Tensor:
    """`[B, S, H, D]` to `[B*H*N, block, D]`."""
    return tensor.transpose(1, 2).reshape(-1, block, tensor.shape[-1])


def _joined(blocks: Tensor, like: Tensor, sizes: Tensor | None, block: int) -> Tensor:
    """`[B*H*N, block, D]` back to `[B, S, H, D]`, dtype as `like`, padding rows 0."""
    batch, length, heads, width = like.shape
    return cleared(blocks.view(batch, heads, length, width).transpose(1, 2).to(like.dtype), sizes, block)


def _scores(blocks: _Blocks, chunk: _Chunk, softmax_scale: float) -> Tensor:
    scores = torch.bmm(blocks.q[chunk.rows] * softmax_scale, _gathered(blocks.k, chunk).transpose(1, 2))
    return scores if chunk.hidden is None else scores.masked_fill_(chunk.hidden, float("-inf"))


def _gathered(blocks: Tensor, chunk: _Chunk) -> Tensor:
    """Keys or values of a chunk, `[n, K * block, D]`."""
    return blocks.index_select(0, chunk.gather).view(chunk.rows.numel(), -1, blocks.shape[-1])


def _chunks(selection: BlockSelection, blocks: _Blocks) -> Iterator[_Chunk]:
    """Yield every query block that sees a key block, some at a time, those with the most key blocks first."""
    batch, heads, num_q, _ = selection.indices.shape
    num_kv = blocks.k.shape[0] // (batch * (heads // blocks.groups)) if batch else 0
    head = torch.arange(batch * heads) // blocks.groups  # row of k's heads
    indices = (selection.indices.reshape(batch * heads, num_q, -1).long() + head[:, None, None] * num_kv).flatten(0, 1)
    counts, order = selection.counts.flatten().long().sort(descending=True, stable=True)
    bytes_per_block = blocks.k.shape[1] * blocks.k.shape[2] * blocks.k.element_size()
    begin, filled = 0, int((counts > 0).sum())
    while begin < filled:
        most = int(counts[begin])
        end = min(filled, begin + max(1, _CHUNK_BYTES // (most * bytes_per_block)))
        rows, used = order[begin:end], torch.arange(most) < counts[begin:end, None]
        chosen = indices[rows, :most]
        chosen = torch.where(used, chosen, chosen[:, :1])  # the row's own first block again, and hidden
        yield _Chunk(rows, chosen.flatten(), _hidden(used, chosen, num_kv, selection))
        begin = end


def _hidden(used: Tensor, chosen: Tensor, num_kv: int, selection: BlockSelection) -> Tensor | None:
    if selection.kv_sizes is None and bool(used.all()):
        return None
    sizes = torch.full_like(chosen, selection.block) if selection.kv_sizes is None else selection.kv_sizes[chosen % num_kv].long()
    sizes = torch.where(used, sizes, 0)  # [n, K]
    return (torch.arange(selection.block) >= sizes.unsqueeze(-1)).view(len(chosen), 1, -1)
