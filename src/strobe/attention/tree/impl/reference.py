"""Tree attention in one process: dense attention over the keys of all ranks in order of position. The specification."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from strobe.attention.tree.placement import KVShards, Mask, Segment
from strobe.attention.types import AttentionOutput


def reference(
    q: Tensor, ks: Sequence[Tensor], vs: Sequence[Tensor], shards: KVShards, mask: Mask, softmax_scale: float | None = None
) -> AttentionOutput:
    """Attend from all queries to the owned keys of all ranks.

    Args:
        q: `[B, S_q, H, D]`, all queries.
        ks: of each rank `[B, S_r, H_kv, D]`; rows that the rank does not own may hold anything.
        vs: of each rank `[B, S_r, H_kv, Dv]`.
        shards: who owns which positions.
        mask: by global position.
        softmax_scale: default `D ** -0.5`.

    Returns:
        `out` `[B, S_q, H, Dv]` in the dtype of q, computed in float32 (float64 for float64); lse float32 `[B, H, S_q]`.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    rows = [
        (segment.start + i, rank, row + i)
        for rank, segments in enumerate(shards.ranks)
        for row, segment in _rows(segments)
        if segment.owned
        for i in range(segment.length)
    ]
    rows.sort()
    k = torch.stack([ks[rank][:, row] for _, rank, row in rows], dim=1) if rows else ks[0][:, :0]  # [B, S, H_kv, D]
    v = torch.stack([vs[rank][:, row] for _, rank, row in rows], dim=1) if rows else vs[0][:, :0]
    groups = q.shape[2] // k.shape[2]
    queries = q.transpose(1, 2).to(wide)  # [B, H, S_q, D]
    keys = k.transpose(1, 2).repeat_interleave(groups, dim=1).to(wide)
    values = v.transpose(1, 2).repeat_interleave(groups, dim=1).to(wide)
    scores = queries @ keys.transpose(-1, -2) * (q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale)
    visible = torch.tensor(
        [[_sees(mask.q_start + i, position, mask) for position, _, _ in rows] for i in range(q.shape[1])], dtype=torch.bool
    ).reshape(q.shape[1], len(rows))
    scores = scores.masked_fill(~visible, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1) if rows else scores.new_full(scores.shape[:-1], float("-inf"))
    weights = torch.exp(scores - lse.masked_fill(lse.isneginf(), 0).unsqueeze(-1))
    return AttentionOutput(out=(weights @ values).transpose(1, 2).to(q.dtype), lse=lse.float())


def _rows(segments: Sequence[Segment]) -> list[tuple[int, Segment]]:
    starts = accumulate((segment.length for segment in segments), initial=0)
    return list(zip(starts, segments, strict=False))


def _sees(query: int, key: int, mask: Mask) -> bool:
    if mask.causal and key > query:
        return False
    return mask.window is None or key < mask.sinks or abs(query - key) < mask.window
