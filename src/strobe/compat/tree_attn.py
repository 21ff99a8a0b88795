"""`tree_attn_decode` of ring-attention-pytorch: `[B, H, S, D]`, all ranks, the result on every rank."""

from __future__ import annotations

from typing import Final

import torch.distributed as dist
from torch import Tensor

from strobe.attention.tree.api import tree_attention
from strobe.attention.tree.local import Shard, local_attention
from strobe.attention.tree.placement import Mask, Segment
from strobe.attention.tree.spec import check_heads, check_tensors
from strobe.core.errors import ImplUnavailableError, ShapeError

LAYOUT: Final = "[B, H, S, D]"


def tree_attn_decode(
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    eps: float = 1e-8,
    shard_kv_seq: bool = True,
    use_triton: bool | None = None,
) -> Tensor:
    """Attend from every query to keys that are spread across all ranks; in one process without a group, plain attention.

    Args:
        q: `[B, H, S_q, D]`, the same on every rank.
        k: `[B, H_kv, S, D]`, `H` a multiple of `H_kv`; None on a rank without keys.
        v: `[B, H_kv, S, Dv]`.
        eps: kept for its place in the signature: a sum of weights is never below 1 here, or there is no key and the result is 0.
        shard_kv_seq: k and v are whole and the same on every rank, and each takes its `torch.chunk` of them; False: they are
            this rank's own, of any length.
        use_triton: True demands a GPU; which kernel runs there, `dense_attention` chooses.

    Returns:
        `[B, H, S_q, Dv]` in the dtype of q, without gradient.

    Raises:
        ShapeError: the tensors do not fit together.
        ImplUnavailableError: `use_triton=True` with tensors on a CPU.
        CollectiveError: ranks disagree, or one is gone or does not answer within 30 s.

    Source: the signature of ring-attention-pytorch 0.5; the sequence of arguments is kept.
    """
    check_tensors(q, k, v, LAYOUT)
    if k is not None:
        check_heads(q.shape[1], k.shape[1], LAYOUT)
    if use_triton and not q.is_cuda:
        raise ImplUnavailableError("triton", f"the tensors are on {q.device}", ["use_triton=False"])
    number = dist.get_world_size() if dist.is_initialized() else 1
    if shard_kv_seq:
        if k is None or v is None:
            raise ShapeError("k and v: got None, expected the whole keys and values; a rank without keys says shard_kv_seq=False")
        k, v = shard_keys(k, v, dist.get_rank() if number > 1 else 0, number)
    queries = q.detach().transpose(1, 2)
    keys, values = (None if each is None else each.detach().transpose(1, 2) for each in (k, v))
    if dist.is_initialized():
        return tree_attention(queries, keys, values).out.transpose(1, 2)
    if keys is None or values is None:
        raise ShapeError("k and v: got None in a process without other ranks, expected tensors")
    shard = Shard(k=keys, v=values, segments=(Segment(start=0, length=keys.shape[1]),))
    return local_attention(queries, shard, Mask(), (0, queries.shape[1]), q.shape[3] ** -0.5).out.transpose(1, 2)


def shard_keys(k: Tensor, v: Tensor, rank: int, num_ranks: int) -> tuple[Tensor, Tensor]:
    """Return this rank's `torch.chunk` of `[B, H_kv, S, D]`; with fewer chunks than ranks the last ranks have no keys."""
    step = max(1, -(-k.shape[2] // num_ranks))
    start, stop = min(rank * step, k.shape[2]), min((rank + 1) * step, k.shape[2])
    return k[:, :, start:stop], v[:, :, start:stop]
