"""The data flow of one call: exchange of queries and keys, attention, exchange of the result, and the same backwards.

On a grid of `tree x heads` ranks, an exchange along a row of the grid turns 'my rows, all heads' into 'the row's rows, my heads',
and the strategy then works along a column. A plain group is a grid with one column, `ulysses` a grid with one row.

A strategy is how the ranks' parts meet: partial results travel and keys stay (`combine`), or keys travel around a ring. In a
combination every rank holds a part of the keys, has attended all queries over it, and sends outputs with their lse. In a ring
each rank attends its own rows over every rank's keys in turn. The README has the maths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import torch
from torch import Tensor

from strobe.attention.double_backward import first_derivatives_only
from strobe.attention.state import merge
from strobe.attention.tree.comm import CollectiveCall, Exchange
from strobe.attention.tree.local import (
    Shard,
    empty_state,
    local_attention,
    local_gradients,
    merge_messages,
    pack,
    pack_state,
    unpack,
    unpack_state,
)
from strobe.attention.tree.placement import Segment, Span, split
from strobe.attention.tree.spec import Placement, Strategy, TreeSpec
from strobe.attention.types import AttentionOutput
from strobe.core.spans import span

LOCAL: Final = "tree_local"
"""The region of attention of this rank's queries over keys that it holds, for a recorder in the slot of `core/spans`."""
MERGE: Final = "tree_merge"
"""The region of partial results put together, and weighed for a sum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A tensor `[B, S, H, W]` in slices, one for each rank.

    Args:
        dim: 1 (rows) or 2 (heads).
        spans: slice of each rank.
    """

    dim: int
    spans: tuple[Span, ...]

    @classmethod
    def of_rows(cls, lengths: Sequence[int]) -> Cut:
        """Return the cut into runs of so many rows."""
        return cls(dim=1, spans=tuple(pairwise(accumulate(lengths, initial=0))))

    def of(self, tensor: Tensor, rank: int) -> Tensor:
        """Return a rank's slice."""
        start, stop = self.spans[rank]
        return tensor.narrow(self.dim, start, stop - start)

    def shapes(self, like: Tensor) -> list[tuple[int, ...]]:
        """Return the shapes of all slices, which are those of `like` but for their own dimension."""
        before, after = like.shape[: self.dim], like.shape[self.dim + 1 :]
        return [(*before, stop - start, *after) for start, stop in self.spans]


def _gather(call: CollectiveCall, tensor: Tensor, cut: Cut) -> Tensor:
    """Put the slices of all ranks together."""
    return tensor if call.size == 1 else torch.cat(call.gather(tensor, cut.shapes(tensor)), dim=cut.dim)


def _trade(call: CollectiveCall, tensor: Tensor, leaving: Cut, arriving: Cut) -> Tensor:
    """Send each rank its slice along one dimension, and put together what arrives, which is cut along the other."""
    if call.size == 1:
        return tensor
    sends = [leaving.of(tensor, rank) for rank in range(call.size)]
    return torch.cat(call.exchange(sends, arriving.shapes(sends[call.rank])).wait(), dim=arriving.dim)


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
    packed = call.gather(pack_state(part))
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
    cut = Cut(dim=1, spans=split(rows.shape[1], call.size))
    mine = pack_state(_by_exchange(call, unpack_state(rows, part.out.shape[3]), cut))
    return unpack_state(_gather(call, mine, cut).view(packed.shape), part.out.shape[3])


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
    """Attend from this rank's rows `[B, n, H, D]` to the keys of all ranks; the next keys travel while the present are used."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Redistribution:
    """The ranks, calls and key segments of one call, as this rank knows them.

    Args:
        spec: what all ranks agreed on.
        tree: the call on this rank's column of the grid.
        heads: the call on this rank's row.
        segments: of each rank's buffer (of each row of the grid where keys are placed by heads); only this rank's where positions
            do not matter.
    """

    spec: TreeSpec
    tree: CollectiveCall
    heads: CollectiveCall
    segments: tuple[tuple[Segment, ...], ...]

    def row_ranks(self, tree_rank: int) -> range:
        """Return the ranks of a row of the grid."""
        return range(tree_rank * self.heads.size, (tree_rank + 1) * self.heads.size)

    @property
    def mine(self) -> tuple[Segment, ...]:
        """The segments of this rank's buffer."""
        rank = self.tree.rank if self.spec.kv_placement == "heads" else self.row_ranks(self.tree.rank)[self.heads.rank]
        return self.segments[rank if len(self.segments) > 1 else 0]

    @property
    def kv_cut(self) -> Cut:
        """Key heads of each column; spans differ in size where the heads do not divide."""
        return Cut(dim=2, spans=split(self.spec.num_kv_heads, self.heads.size))

    @property
    def head_cut(self) -> Cut:
        """Query heads of each column: those of its key heads."""
        group = self.spec.num_heads // self.spec.num_kv_heads
        return Cut(dim=2, spans=tuple((start * group, stop * group) for start, stop in self.kv_cut.spans))

    @property
    def row_cut(self) -> Cut:
        """Queries of each rank of this row of the grid, among those of the row."""
        spans = (self.spec.rows[rank] for rank in self.row_ranks(self.tree.rank))
        return Cut.of_rows([stop - start for start, stop in spans])

    @property
    def key_cut(self) -> Cut:
        """Owned keys of each rank of this row of the grid, where all lengths are known."""
        buffers = (owned_segments(self.segments[rank]) for rank in self.row_ranks(self.tree.rank))
        return Cut.of_rows([sum(segment.length for segment in each) for each in buffers])

    @property
    def tree_rows(self) -> Cut:
        """Queries of each row of the grid."""
        rows, width = self.spec.rows, self.heads.size
        spans = (rows[first : first + width] for first in range(0, len(rows), width))
        return Cut(dim=1, spans=tuple((each[0][0], each[-1][1]) for each in spans))

    @property
    def tree_heads(self) -> Cut:
        """The share that each row of the grid has in the heads of this column."""
        start, stop = self.head_cut.spans[self.heads.rank]
        return Cut(dim=2, spans=split(stop - start, self.tree.size))


def forward(flow: Redistribution, q: Tensor, k: Tensor, v: Tensor) -> tuple[AttentionOutput, Tensor, Shard]:
    """Compute the result in its wanted placement, and all queries and this rank's keys, which the backward needs."""
    spec, shard = flow.spec, _keys_in(flow, k, v)
    if spec.strategy == "ring":
        cut, rank = flow.tree_rows, flow.tree.rank
        rows = _rows_to_heads(flow, q) if spec.q_placement == "sequence" else cut.of(_whole(flow, q, spec.q_placement), rank)
        state = ring_attention(flow.tree, rows, shard, _by_tree_rank(flow), spec, cut.spans[rank])
        result = _out_of_ring(flow, state)
        queries = _gather(flow.tree, rows, cut) if spec.needs_grad else rows
    else:
        queries = _whole(flow, q, spec.q_placement)
        with span(LOCAL):
            state = local_attention(queries, shard, spec.mask, (0, spec.q_len), spec.softmax_scale)
        wanted = {"replicated": None, "sequence": flow.tree_rows, "heads": flow.tree_heads}[spec.out_placement]
        assert spec.strategy != "auto", "a flow begins when the strategy is chosen"
        result = _out(flow, combine(flow.tree, spec.strategy, state, wanted))
    flow.tree.meet()
    flow.heads.meet()
    return result, queries, shard


def backward(
    flow: Redistribution,
    queries: Tensor,
    shard: Shard,
    state: AttentionOutput,
    d_state: AttentionOutput,
    kv_shapes: tuple[torch.Size, torch.Size],
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients where q, k and v are. dK and dV are local, dQ is one all-reduce; no key moves along a column.

    Args:
        queries: all of them, this column's heads.
        shard: keys of this row of the grid, this column's heads.
        state: the result, where the caller has it.
        d_state: the gradients of its out and lse.
        kv_shapes: of the caller's k and v.
    """
    spec = flow.spec
    assert state.lse is not None and d_state.lse is not None
    wide = torch.promote_types(state.out.dtype, torch.float32)
    delta = (d_state.out.to(wide) * state.out.to(wide)).sum(-1).transpose(1, 2) - d_state.lse
    packed = _whole(flow, pack(d_state.out, state.lse, delta.float()), spec.out_placement)
    if spec.out_placement == "heads":  # shared out among the rows of the grid, where queries are not
        packed = _gather(flow.tree, packed, flow.tree_heads)
    whole_d_out, lse, whole_delta = unpack(packed, spec.head_dim_v, 2)
    rows = whole_d_out, lse, whole_delta
    d_q, d_k, d_v = local_gradients(queries, shard, rows, spec.mask, (0, spec.q_len), spec.softmax_scale)
    d_q = flow.tree.all_reduce(d_q).to(spec.dtype)
    if spec.q_placement == "replicated":
        d_q = _gather(flow.heads, d_q, flow.head_cut)
    elif spec.q_placement == "sequence":
        d_q = _trade(flow.heads, flow.tree_rows.of(d_q, flow.tree.rank), flow.row_cut, flow.head_cut)
    if flow.heads.size > 1 and spec.kv_placement == "sequence":  # the reverse of `_keys_in`, to the ranks that own the keys
        arrived = _trade(flow.heads, torch.cat([d_k, d_v], dim=-1), flow.key_cut, flow.kv_cut)
        d_k, d_v = arrived[..., : spec.head_dim], arrived[..., spec.head_dim :]
    d_k, d_v = _disowned(d_k, flow.mine, kv_shapes[0]), _disowned(d_v, flow.mine, kv_shapes[1])
    flow.tree.meet()
    flow.heads.meet()
    return d_q, d_k, d_v


class _TreeFunction(torch.autograd.Function):
    """`(q, k, v) -> (out, lse)` with gradients through both; the backward is the same for every strategy."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, flow: Redistribution, again: Callable[[], Redistribution]
    ) -> tuple[Tensor, Tensor]:
        """Run the call; `again` makes the flow of the backward."""
        state, queries, shard = forward(flow, q, k, v)
        assert state.lse is not None
        ctx.again, ctx.segments, ctx.kv_shapes = again, shard.segments, (k.shape, v.shape)
        out, lse = state.out.contiguous(), state.lse.contiguous()
        ctx.save_for_backward(queries, shard.k, shard.v, out, lse)
        return out, lse

    @staticmethod
    @first_derivatives_only(
        "tree_attention", ["PyTorch's own operations over the keys of all ranks"]
    )  # saved results lead to q, k, v
    def backward(ctx: Any, saved: tuple[Tensor, ...], *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients; every rank has to call this, because the ranks exchange messages."""
        queries, k, v, out, lse = saved
        shard, state = Shard(k=k, v=v, segments=ctx.segments), AttentionOutput(out=out, lse=lse)
        d_state = AttentionOutput(out=d_outputs[0], lse=d_outputs[1])
        return *backward(ctx.again(), queries, shard, state, d_state, ctx.kv_shapes), None, None


def run(flow: Redistribution, q: Tensor, k: Tensor, v: Tensor, again: Callable[[], Redistribution]) -> AttentionOutput:
    """Run a call, differentiable where gradients are asked for; `again` makes the flow of the backward."""
    if not flow.spec.needs_grad:
        return forward(flow, q, k, v)[0]
    out, lse = _TreeFunction.apply(q, k, v, flow, again)  # type: ignore[no-untyped-call]
    return AttentionOutput(out=out, lse=lse)


def _keys_in(flow: Redistribution, k: Tensor, v: Tensor) -> Shard:
    """Exchange keys and values: the owned keys of this row of the grid for this column's heads."""
    if flow.heads.size == 1 or flow.spec.kv_placement == "heads":
        return Shard(k=_owned(k, flow.mine), v=_owned(v, flow.mine), segments=owned_segments(flow.mine))
    both = _trade(flow.heads, torch.cat([_owned(k, flow.mine), _owned(v, flow.mine)], dim=-1), flow.kv_cut, flow.key_cut)
    dim = flow.spec.head_dim
    return Shard(k=both[..., :dim], v=both[..., dim:], segments=_by_tree_rank(flow)[flow.tree.rank])


def _by_tree_rank(flow: Redistribution) -> list[tuple[Segment, ...]]:
    """Return the segments that each row of the grid holds after `_keys_in`."""
    width = 1 if flow.spec.kv_placement == "heads" else flow.heads.size
    firsts = range(0, len(flow.segments), width)
    return [tuple(s for each in flow.segments[i : i + width] for s in owned_segments(each)) for i in firsts]


def _out(flow: Redistribution, state: AttentionOutput) -> AttentionOutput:
    """Move a result of this column's heads, cut for this row of the grid, to its wanted placement."""
    if flow.heads.size == 1 or flow.spec.out_placement == "heads":
        return state
    packed = pack_state(state)
    if flow.spec.out_placement == "replicated":
        packed = _gather(flow.heads, packed, flow.head_cut)
    else:
        packed = _trade(flow.heads, packed, flow.row_cut, flow.head_cut)
    return unpack_state(packed, flow.spec.head_dim_v)


def _out_of_ring(flow: Redistribution, state: AttentionOutput) -> AttentionOutput:
    """Move a ring's result, whose rows stay with their row of the grid, to its wanted placement."""
    if flow.spec.out_placement == "sequence":
        return _out(flow, state)
    packed = _gather(flow.tree, pack_state(state), flow.tree_rows)
    if flow.spec.out_placement == "heads":
        packed = flow.tree_heads.of(packed, flow.tree.rank)
    return _out(flow, unpack_state(packed, flow.spec.head_dim_v))


def _whole(flow: Redistribution, tensor: Tensor, placement: Placement) -> Tensor:
    """Return all queries, this column's heads, of a tensor that is placed so; of one placed by heads what there is."""
    if placement == "replicated":
        return flow.head_cut.of(tensor, flow.heads.rank)
    return _gather(flow.tree, _rows_to_heads(flow, tensor), flow.tree_rows) if placement == "sequence" else tensor


def _rows_to_heads(flow: Redistribution, tensor: Tensor) -> Tensor:
    """Exchange this rank's rows with all heads for all rows of this row of the grid with this column's heads."""
    return _trade(flow.heads, tensor, flow.head_cut, flow.row_cut)


def owned_segments(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Return the owned, non-empty segments of a buffer."""
    return tuple(segment for segment in segments if segment.owned and segment.length)


def _runs(segments: tuple[Segment, ...]) -> list[Span]:
    """Return the runs of owned rows of a buffer, with neighbouring runs joined."""
    runs: list[Span] = []
    row = 0
    for segment in segments:
        if segment.owned and segment.length:
            start = runs.pop()[0] if runs and runs[-1][1] == row else row
            runs.append((start, row + segment.length))
        row += segment.length
    return runs


def _owned(tensor: Tensor, segments: tuple[Segment, ...]) -> Tensor:
    """Return the owned rows of a buffer; a view where they are neighbours."""
    parts = [tensor[:, start:stop] for start, stop in _runs(segments)]
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0] if parts else tensor[:, :0]


def _disowned(owned: Tensor, segments: tuple[Segment, ...], shape: torch.Size) -> Tensor:
    """Put owned rows back into a buffer of the caller's shape, with 0 in all other rows."""
    runs = _runs(segments)
    if runs == [(0, shape[1])]:
        return owned
    buffer, taken = owned.new_zeros(shape), 0
    for start, stop in runs:
        buffer[:, start:stop] = owned[:, taken : taken + stop - start]
        taken += stop - start
    return buffer
