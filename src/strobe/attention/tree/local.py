"""The local work of a rank: attention over the keys it owns, its share of the gradients, and the messages of partial results.

Each row of a message holds its output and then its float32 numbers, so that rows can be sliced. On a GPU a message is made in one
launch (`impl/triton.py`), where Triton is installed, and `state.merge` merges messages where they lie, as views; float64, and
everything on a CPU, takes plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from strobe.attention.around import ambient
from strobe.attention.dense.api import dense_attention
from strobe.attention.state import merge
from strobe.attention.tree.placement import BufferRun, Mask, Segment, Span, pieces
from strobe.attention.types import AttentionOutput
from strobe.core.libraries import broken

SCORES_BYTES = 64 * 2**20
"""What the scores of one step may take."""


Hidden = Callable[[int, int], Tensor | None]
"""`hidden_keys` of a part: where its queries `start..stop` do not see its keys."""
Rows = tuple[Tensor, Tensor, Tensor]
"""What a query's gradient needs of the whole result, whoever owns its keys: gradient of out `[B, S_q, H, Dv]`; lse `[B, H, S_q]`;
delta, `rowsum(d_out * out) - d_lse`, `[B, H, S_q]`."""


def hidden_keys(mask: Mask, first_query: int, keys: Tensor, start: int, stop: int) -> Tensor | None:
    """Return True where query `start..stop` does not see a key, `[stop - start, S_kv]`; None if nothing can be hidden.

    Args:
        mask: the rule.
        first_query: global position of query 0.
        keys: global positions of the keys, int64 `[S_kv]`.
    """
    if not mask.hides:
        return None
    position = torch.arange(first_query + start, first_query + stop, device=keys.device).unsqueeze(1)
    hidden = torch.zeros(stop - start, len(keys), dtype=torch.bool, device=keys.device)
    if mask.causal:
        hidden |= keys > position
    if mask.window is not None:
        hidden |= ((keys - position).abs() >= mask.window) & (keys >= mask.sinks)
    return hidden


def wide_of(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which sums of a tensor are computed, at least float32."""
    return torch.promote_types(tensor.dtype, torch.float32)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, hidden: Hidden, softmax_scale: float) -> AttentionOutput:
    """Attend with hidden keys; a query that sees none has out 0 and lse -inf.

    Args:
        q: `[B, S_q, H, D]`.
        k: `[B, S_kv, H_kv, D]`, at least one key.
        v: `[B, S_kv, H_kv, Dv]`.

    Returns:
        `out` `[B, S_q, H, Dv]` float32 (float64 for float64); lse float32 `[B, H, S_q]`.
    """
    keys, values = _grouped(k), _grouped(v)
    batch, q_len, num_heads, _ = q.shape
    out = keys.new_empty(batch, q_len, num_heads, v.shape[3])
    lse = torch.empty(batch, num_heads, q_len, dtype=torch.float32, device=q.device)
    with ambient(q):
        for start, stop in _chunks(q, k):
            queries = _query_rows(q[:, start:stop], k.shape[2]) * softmax_scale  # [B, Hk, G * n, D]
            scores = queries @ keys.transpose(-1, -2)
            unseen = hidden(start, stop)
            if unseen is not None:
                scores.unflatten(2, (-1, stop - start)).masked_fill_(unseen, float("-inf"))
            top = scores.amax(dim=-1, keepdim=True)
            weights = scores.sub_(top.masked_fill(top.isneginf(), 0)).exp_()
            total = weights.sum(dim=-1, keepdim=True)  # 0 where no key is seen
            out[:, start:stop] = _unrows((weights @ values).div_(total.masked_fill(total == 0, 1)), stop - start)
            lse[:, :, start:stop] = (top + total.log()).reshape(batch, num_heads, stop - start)
    return AttentionOutput(out=out, lse=lse)


def gradients(q: Tensor, k: Tensor, v: Tensor, rows: Rows, hidden: Hidden, softmax_scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients from one part of the keys: of all queries (to be summed over parts), and of these keys and values.

    `P = exp(s q k^T - L)`, `dV = P^T dO`, `dS = P * (dO V^T - delta)`, `dQ = s dS K`, `dK = s dS^T Q`.
    """
    keys, values = _grouped(k), _grouped(v)
    num_kv_heads = k.shape[2]
    d_q = keys.new_zeros(q.shape)
    d_keys, d_values = torch.zeros_like(keys), torch.zeros_like(values)
    if k.shape[1] == 0:
        return d_q, torch.zeros_like(k), torch.zeros_like(v)
    for start, stop in _chunks(q, k):
        queries, d_out = _query_rows(q[:, start:stop], num_kv_heads), _query_rows(rows[0][:, start:stop], num_kv_heads)
        lse, delta = (each[:, :, start:stop].reshape(*queries.shape[:3], 1).to(keys.dtype) for each in rows[1:])
        weights = torch.exp(queries @ keys.transpose(-1, -2) * softmax_scale - lse.masked_fill(lse.isneginf(), 0))
        unseen = hidden(start, stop)
        if unseen is not None:
            weights.unflatten(2, (-1, stop - start)).masked_fill_(unseen, 0)
        d_values += weights.transpose(-1, -2) @ d_out
        d_scores = weights * (d_out @ values.transpose(-1, -2) - delta) * softmax_scale
        d_q[:, start:stop] = _unrows(d_scores @ keys, stop - start)
        d_keys += d_scores.transpose(-1, -2) @ queries
    return d_q, d_keys.transpose(1, 2).to(k.dtype), d_values.transpose(1, 2).to(v.dtype)


def _chunks(q: Tensor, k: Tensor) -> Iterator[tuple[int, int]]:
    """Split the queries into runs whose scores fit into `SCORES_BYTES`."""
    row_bytes = q.shape[0] * q.shape[2] * k.shape[1] * wide_of(q).itemsize
    step = max(1, SCORES_BYTES // max(1, row_bytes))
    return ((start, min(start + step, q.shape[1])) for start in range(0, q.shape[1], step))


def _grouped(tensor: Tensor) -> Tensor:
    """Convert `[B, S, Hk, D]` to wide `[B, Hk, S, D]`."""
    return tensor.transpose(1, 2).to(wide_of(tensor))


def _query_rows(tensor: Tensor, num_kv_heads: int) -> Tensor:
    """Convert `[B, n, H, D]` to wide `[B, Hk, G * n, D]`: the queries of a group are rows of one product, no key is copied."""
    batch, number, num_heads, dim = tensor.shape
    rows = tensor.transpose(1, 2).reshape(batch, num_kv_heads, num_heads // num_kv_heads * number, dim)
    return rows.to(wide_of(tensor))


def _unrows(tensor: Tensor, number: int) -> Tensor:
    """Convert `[B, Hk, G * n, D]` back to `[B, n, H, D]`."""
    rows: Tensor = tensor.unflatten(2, (-1, number)).flatten(1, 2)
    return rows.transpose(1, 2)


def row_elements(head_dim_v: int, dtype: torch.dtype, num_stats: int = 1) -> int:
    """Return the number of elements of a packed row: the output, its alignment, and the float32 numbers."""
    align = max(4 // dtype.itemsize, 1)
    out, stats = -(-head_dim_v // align) * align, -(-num_stats * 4 // dtype.itemsize)
    return out + stats


def row_bytes(head_dim_v: int, dtype: torch.dtype) -> int:
    """Return the bytes of one packed row of a partial result."""
    return row_elements(head_dim_v, dtype) * dtype.itemsize


def pack(out: Tensor, *stats: Tensor) -> Tensor:
    """Pack `out` `[B, S, H, Dv]` and numbers `[B, H, S]` into one contiguous `[B, S, H, W]` of the dtype of `out`."""
    packed = out.new_zeros((*out.shape[:-1], row_elements(out.shape[-1], out.dtype, len(stats))))
    packed[..., : out.shape[-1]] = out
    numbers = packed.view(torch.float32)
    for place, stat in enumerate(stats):
        numbers[..., numbers.shape[-1] - len(stats) + place] = stat.transpose(1, 2)
    return packed


def unpack(packed: Tensor, head_dim_v: int, num_stats: int = 1) -> tuple[Tensor, ...]:
    """Unpack `(out, *stats)` from a message, as views."""
    numbers = packed.view(torch.float32)
    stats = (numbers[..., numbers.shape[-1] - num_stats + place].transpose(1, 2) for place in range(num_stats))
    return packed[..., :head_dim_v], *stats


def pack_state(state: AttentionOutput) -> Tensor:
    """Pack a partial result into a message."""
    assert state.lse is not None
    if state.out.is_cuda and state.out.dtype != torch.float64 and not broken("triton.language"):
        from strobe.attention.tree.impl.triton import pack_message

        with ambient(state.out):  # Triton launches on the current device
            return pack_message(state.out, state.lse, row_elements(state.out.shape[3], state.out.dtype))
    return pack(state.out, state.lse)


def unpack_state(packed: Tensor, head_dim_v: int) -> AttentionOutput:
    """Unpack a partial result from a message."""
    out, lse = unpack(packed, head_dim_v)
    return AttentionOutput(out=out, lse=lse)


def merge_messages(messages: Sequence[Tensor], head_dim_v: int) -> AttentionOutput:
    """Merge the partial results of messages of one shape, in their order."""
    return merge([unpack_state(each, head_dim_v) for each in messages])


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """Keys of one rank (or of several ranks together) with their global positions.

    Args:
        k: `[B, S, H_kv, D]`.
        v: `[B, S, H_kv, Dv]`.
        segments: where the rows are; all of them are owned.
    """

    k: Tensor
    v: Tensor
    segments: tuple[Segment, ...]


def local_attention(q: Tensor, shard: Shard, mask: Mask, queries: Span, softmax_scale: float) -> AttentionOutput:
    """Attend from queries `queries[0]..queries[1]` to the keys of a shard; without any: out 0, lse -inf.

    Keys that all queries see go to `dense_attention` (on a CPU, for few queries, to plain PyTorch, which is faster there), those
    that only some see to plain PyTorch; the two merge.

    Args:
        q: `[B, queries[1] - queries[0], H, D]`.

    Returns:
        `out` in the dtype of q, lse float32.
    """
    if q.numel() == 0:
        return empty_state(q, shard.v.shape[3])
    seen = list(pieces(shard.segments, mask, queries))
    parts = []
    for kind in ("all", "some"):
        chosen = [piece for piece in seen if piece.seen == kind]
        if not chosen:
            continue
        k, v = _rows(shard.k, chosen), _rows(shard.v, chosen)
        few = q.device.type == "cpu" and q.dtype.itemsize >= 4 and q.shape[1] * q.shape[2] <= 4 * k.shape[2]
        if kind == "all" and not few:  # two matrix products beat a fused kernel for few rows for each key head
            parts.append(_dense(q, k, v, softmax_scale))
        else:
            parts.append(masked_attention(q, k, v, _hidden(chosen, mask, queries, q.device), softmax_scale))
    if not parts:
        return empty_state(q, shard.v.shape[3])
    if len(parts) == 1:
        return AttentionOutput(out=parts[0].out.to(q.dtype), lse=parts[0].lse)
    merged = merge([AttentionOutput(out=part.out.to(wide_of(q)), lse=part.lse) for part in parts])
    return AttentionOutput(out=merged.out.to(q.dtype), lse=merged.lse)


def empty_state(q: Tensor, head_dim_v: int) -> AttentionOutput:
    """Return the result of attention without any key: out 0, lse -inf."""
    batch, q_len, num_heads, _ = q.shape
    lse = torch.full((batch, num_heads, q_len), float("-inf"), dtype=torch.float32, device=q.device)
    return AttentionOutput(out=q.new_zeros(batch, q_len, num_heads, head_dim_v), lse=lse)


def local_gradients(
    q: Tensor, shard: Shard, rows: Rows, mask: Mask, queries: Span, softmax_scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute this shard's part of dQ (wide), and its dK and dV: 0 in rows that no query sees."""
    d_k, d_v = torch.zeros_like(shard.k), torch.zeros_like(shard.v)
    seen = list(pieces(shard.segments, mask, queries))
    if not seen or q.numel() == 0:
        return q.new_zeros(q.shape, dtype=wide_of(q)), d_k, d_v
    hidden = _hidden(seen, mask, queries, q.device)
    d_q, d_seen_k, d_seen_v = gradients(q, _rows(shard.k, seen), _rows(shard.v, seen), rows, hidden, softmax_scale)
    start = 0
    for piece in seen:
        d_k[:, piece.row : piece.row + piece.length] = d_seen_k[:, start : start + piece.length]
        d_v[:, piece.row : piece.row + piece.length] = d_seen_v[:, start : start + piece.length]
        start += piece.length
    return d_q, d_k, d_v


def _dense(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float) -> AttentionOutput:
    """Run `dense_attention` with the queries of a group as more queries of one head; the smaller head_dim is zero-padded."""
    batch, q_len, num_heads, head_dim = q.shape
    groups, head_dim_v = num_heads // k.shape[2], v.shape[3]
    grouped = q.unflatten(2, (-1, groups)).transpose(2, 3).reshape(batch, q_len * groups, -1, head_dim)  # [B, S*G, Hk, D]
    wide = max(head_dim, head_dim_v)
    grouped, k, v = (each if each.shape[3] == wide else F.pad(each, (0, wide - each.shape[3])) for each in (grouped, k, v))
    state = dense_attention(grouped, k, v, softmax_scale=softmax_scale, return_lse=True)
    assert state.lse is not None
    out = state.out[..., :head_dim_v].unflatten(1, (q_len, groups)).transpose(2, 3).reshape(batch, q_len, num_heads, head_dim_v)
    lse = state.lse.unflatten(2, (q_len, groups)).transpose(2, 3).reshape(batch, num_heads, q_len)
    return AttentionOutput(out=out, lse=lse)


def _rows(tensor: Tensor, chosen: Sequence[BufferRun]) -> Tensor:
    """Return the rows of some pieces, in order; a view where they are neighbours."""
    offsets = accumulate((piece.length for piece in chosen), initial=0)  # rows before each, if they were laid end to end
    runs = [list(run) for _, run in groupby(zip(chosen, offsets, strict=False), key=lambda each: each[0].row - each[1])]
    parts = [tensor[:, run[0][0].row : run[-1][0].row + run[-1][0].length] for run in runs]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _hidden(chosen: Sequence[BufferRun], mask: Mask, queries: Span, device: torch.device) -> Hidden:
    positions = [torch.arange(piece.start, piece.start + piece.length, device=device) for piece in chosen]
    return partial(hidden_keys, mask, mask.q_start + queries[0], torch.cat(positions))
