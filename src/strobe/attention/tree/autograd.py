"""The call as one step of autograd: whatever the strategy, the way back is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from strobe.attention.double_backward import first_derivatives_only
from strobe.attention.tree.flow import Flow, Saved, backward, forward
from strobe.attention.tree.local import Shard


class _TreeFunction(torch.autograd.Function):
    """`(q, k, v) -> (out, lse)` with gradients through both."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, flow: Flow, again: Callable[[], Flow]) -> tuple[Tensor, Tensor]:
        """Run the call; `again` starts its way back."""
        state, queries, shard = forward(flow, q, k, v)
        assert state.lse is not None
        ctx.again, ctx.segments, ctx.kv_shapes = again, shard.segments, (k.shape, v.shape)
        out, lse = state.out.contiguous(), state.lse.contiguous()
        ctx.save_for_backward(queries, shard.k, shard.v, out, lse)
        return out, lse

    @staticmethod
    @first_derivatives_only("tree_attention")  # `out` and `lse` lead to q, k and v, of which parts are saved
    def backward(ctx: Any, saved: tuple[Tensor, ...], *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Every rank must come here."""
        queries, k, v, out, lse = saved
        shard = Shard(k=k, v=v, segments=ctx.segments)
        d_out, d_lse = d_outputs
        found = backward(
            ctx.again(), Saved(queries=queries, shard=shard, out=out, lse=lse, kv_shapes=ctx.kv_shapes), d_out, d_lse
        )
        return *found, None, None


def run(q: Tensor, k: Tensor, v: Tensor, flow: Flow, again: Callable[[], Flow]) -> tuple[Tensor, Tensor]:
    """`(out, lse)` with gradients through both; `again` starts the way back."""
    out, lse = _TreeFunction.apply(q, k, v, flow, again)  # type: ignore[no-untyped-call]
    return out, lse
