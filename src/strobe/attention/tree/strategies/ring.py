"""Keys travel around the ring, queries stay: each rank attends its own rows over every rank's keys in turn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from strobe.attention.state import merge
from strobe.attention.tree.comm import Call, Exchange
from strobe.attention.tree.local import Shard, empty_state, local_attention
from strobe.attention.tree.marks import LOCAL, MERGE
from strobe.attention.tree.placement import Segment, Span
from strobe.attention.tree.spec import TreeSpec
from strobe.attention.types import AttentionOutput
from strobe.core.spans import span


def ring_attention(
    call: Call, q: Tensor, shard: Shard, segments: Sequence[tuple[Segment, ...]], spec: TreeSpec, queries: Span
) -> AttentionOutput:
    """Attention of this rank's rows over the keys of all ranks; the next keys travel while the present ones are used.

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
        travelling = _pass_on(call, held, shapes, source) if step + 1 < call.size else None
        here = Shard(k=held[..., :head_dim], v=held[..., head_dim:], segments=segments[source])
        with span(LOCAL):
            part = local_attention(q, here, spec.mask, queries, spec.softmax_scale)
        with span(MERGE):
            state = merge([state, AttentionOutput(out=part.out.to(wide), lse=part.lse)])
        if travelling is not None:
            held = travelling.wait()[(call.rank - 1) % call.size]
    return AttentionOutput(out=state.out.to(q.dtype), lse=state.lse)


def _pass_on(call: Call, held: Tensor, shapes: Sequence[tuple[int, ...]], source: int) -> Exchange:
    """Send what is held to the right and receive what the left holds."""
    nothing = (0, *shapes[source][1:])
    left, right = (call.rank - 1) % call.size, (call.rank + 1) % call.size
    sends = [held if rank == right else held.new_empty(nothing) for rank in range(call.size)]
    expected = [shapes[(source - 1) % call.size] if rank == left else nothing for rank in range(call.size)]
    return call.exchange(sends, expected)
