"""The strategies that combine the ranks' parts: partial results travel and keys stay (`combine`), or keys travel around a ring.

In a combination every rank holds a part of the keys, has attended all queries over it, and sends outputs with their lse. In a
ring each rank attends its own rows over every rank's keys in turn. The README has the maths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from strobe.attention.state import merge
from strobe.attention.tree.comm import CollectiveCall, Exchange
from strobe.attention.tree.comm.symmetric import gather_symmetric
from strobe.attention.tree.local import Shard, empty_state, local_attention
from strobe.attention.tree.packing import merge_messages, pack_state, unpack_state
from strobe.attention.tree.placement import Segment, Span, split
from strobe.attention.tree.spec import Strategy, TreeSpec
from strobe.attention.types import AttentionOutput
from strobe.core.spans import span

LOCAL: Final = "tree_local"
"""The region of attention of this rank's queries over keys that it holds, for a recorder in the slot of `core/spans`."""
MERGE: Final = "tree_merge"
"""The region of partial results put together, and weighed for a sum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """The slice of the result that each rank wants.

    Args:
        dim: 1 (rows) or 2 (heads).
        spans: slice of each rank.
    """

    dim: int
    spans: tuple[Span, ...]

    def of(self, tensor: Tensor, rank: int) -> Tensor:
        """Return a rank's slice of `[B, S, H, ...]`."""
        start, stop = self.spans[rank]
        return tensor.narrow(self.dim, start, stop - start)


def combine(call: CollectiveCall, strategy: Strategy, part: AttentionOutput, cut: Cut | None) -> AttentionOutput:
    """Merge every rank's part.

    Args:
        part: this rank's, `[B, S, H, Dv]` with lse.
        cut: what each rank wants; None: everything.

    Returns:
        This rank's slice of the whole; the same bits on every rank that has a row, except where an all-reduce sums.
    """
    if call.size == 1:
        return part
    head_dim_v = part.out.shape[3]
    if strategy == "alltoall":
        return _by_exchange(call, part, cut) if cut else _by_exchange_and_gather(call, part)
    if strategy == "allreduce3":
        whole = _by_all_reduce(call, part)
        assert whole.lse is not None
        if cut is None:
            return whole
        return AttentionOutput(out=cut.of(whole.out, call.rank), lse=cut.of(whole.lse.transpose(1, 2), call.rank).transpose(1, 2))
    gather = gather_symmetric if strategy == "symmetric" else CollectiveCall.gather
    packed = gather(call, pack_state(part))
    if cut:
        packed = [cut.of(each, call.rank) for each in packed]
    with span(MERGE):
        return merge_messages(packed, head_dim_v)


def _by_exchange(call: CollectiveCall, part: AttentionOutput, cut: Cut) -> AttentionOutput:
    """Exchange parts so that every rank gets all parts of its slice, and merge them in rank order."""
    packed = pack_state(part)
    sends = [cut.of(packed, rank) for rank in range(call.size)]
    arrived = call.exchange(sends, [tuple(sends[call.rank].shape)] * call.size).wait()
    with span(MERGE):
        return merge_messages(arrived, part.out.shape[3])


def _by_exchange_and_gather(call: CollectiveCall, part: AttentionOutput) -> AttentionOutput:
    """Merge a share of the rows on each rank, then gather: `2 (P-1)/P` messages, where a gather of parts sends `P-1`."""
    packed = pack_state(part)
    rows = packed.view(1, -1, 1, packed.shape[3])  # the rows of all batches and heads, in one line
    spans = split(rows.shape[1], call.size)
    mine = pack_state(_by_exchange(call, unpack_state(rows, part.out.shape[3]), Cut(dim=1, spans=spans)))
    shapes = [(1, stop - start, 1, packed.shape[3]) for start, stop in spans]
    whole = torch.cat(call.gather(mine, shapes), dim=1).view(packed.shape)
    return unpack_state(whole, part.out.shape[3])


def _by_all_reduce(call: CollectiveCall, part: AttentionOutput) -> AttentionOutput:
    """Merge by all-reduce, algorithm 3 of arXiv 2408.04093.

    `m = max L_r`, `d = sum exp(L_r - m)`, `n = sum exp(L_r - m) out_r`, `out = n / d`.
    """
    assert part.lse is not None
    wide = torch.promote_types(part.out.dtype, torch.float32)
    top = call.all_reduce(part.lse.clone(), largest=True)  # [B, H, S]
    with span(MERGE):
        top = torch.where(top.isneginf(), torch.zeros_like(top), top)
        weight = torch.exp(part.lse - top).transpose(1, 2).unsqueeze(-1).to(wide).contiguous()  # [B, S, H, 1]
        weighted = part.out.to(wide) * weight
    total = call.all_reduce(weight)
    weighted = call.all_reduce(weighted)
    with span(MERGE):
        empty = total == 0
        divisor = torch.where(empty, torch.ones_like(total), total)
        lse = torch.where(empty, float("-inf"), torch.log(divisor)).squeeze(-1).transpose(1, 2).float() + top
        return AttentionOutput(out=(weighted / divisor).to(part.out.dtype), lse=lse)


def ring_attention(
    call: CollectiveCall, q: Tensor, shard: Shard, segments: Sequence[tuple[Segment, ...]], spec: TreeSpec, queries: Span
) -> AttentionOutput:
    """Attend from this rank's rows to the keys of all ranks; the next keys travel while the present ones are used.

    Args:
        q: this rank's rows `[B, n, H, D]`.
        shard: this rank's keys, owned rows only.
        segments: of every rank.
        queries: which rows q are.
    """
    head_dim = shard.k.shape[3]
    shapes = [
        (shard.k.shape[0], sum(each.length for each in of_rank), shard.k.shape[2], head_dim + shard.v.shape[3])
        for of_rank in segments
    ]
    held = torch.cat([shard.k, shard.v], dim=-1)
    wide = torch.promote_types(q.dtype, torch.float32)
    state = empty_state(q.to(wide), shard.v.shape[3])
    for step in range(call.size):
        source = (call.rank - step) % call.size
        travelling = pass_on(call, held, shapes, source) if step + 1 < call.size else None
        here = Shard(k=held[..., :head_dim], v=held[..., head_dim:], segments=segments[source])
        with span(LOCAL):
            part = local_attention(q, here, spec.mask, queries, spec.softmax_scale)
        with span(MERGE):
            state = merge([state, AttentionOutput(out=part.out.to(wide), lse=part.lse)])
        if travelling is not None:
            held = travelling.wait()[(call.rank - 1) % call.size]
    return AttentionOutput(out=state.out.to(q.dtype), lse=state.lse)


def pass_on(call: CollectiveCall, held: Tensor, shapes: Sequence[tuple[int, ...]], source: int) -> Exchange:
    """Send the held keys to the right neighbour and receive those of the left one."""
    nothing = (0, *shapes[source][1:])
    left, right = (call.rank - 1) % call.size, (call.rank + 1) % call.size
    sends = [held if rank == right else held.new_empty(nothing) for rank in range(call.size)]
    expected = [shapes[(source - 1) % call.size] if rank == left else nothing for rank in range(call.size)]
    return call.exchange(sends, expected)
