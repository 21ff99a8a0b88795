"""Block-sparse attention in plain PyTorch: the specification and the oracle of every other implementation."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from strobe.attention.impls import Impl
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.types import AttentionOutput


def token_mask(selection: BlockSelection, num_kv_blocks: int) -> Tensor:
    """Return the keys that each query sees, boolean `[B, H, S_q, S_kv]`: the blocks' mask without padding rows and columns."""
    block, blocks = selection.block, selection.mask(num_kv_blocks)
    mask = blocks.repeat_interleave(block, dim=2).repeat_interleave(block, dim=3)
    inside = torch.arange(block, device=mask.device)
    if selection.q_sizes is not None:
        mask = mask & (inside < selection.q_sizes[:, None]).flatten()[:, None]
    if selection.kv_sizes is not None:
        mask = mask & (inside < selection.kv_sizes[:, None]).flatten()
    return mask


def run(q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection, spec: SparseSpec) -> AttentionOutput:
    """Dense attention under the token mask, scores in float32 (float64 for float64 inputs).

    What padding rows hold never matters, NaN included; a row that sees nothing has out 0, lse -inf and no gradient.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups = spec.num_heads // spec.num_kv_heads
    mask = token_mask(selection, spec.kv_len // selection.block)  # [B, H, S_q, S_kv]
    empty = ~mask.any(dim=-1, keepdim=True)  # [B, H, S_q, 1]
    unseen = ~mask.any(dim=-2).any(dim=1) if spec.q_len else mask.new_ones(spec.batch, spec.kv_len)  # [B, S_kv]
    queries = q.transpose(1, 2).to(wide).masked_fill(empty, 0)  # [B, H, S_q, D]
    keys, values = (
        tensor.to(wide).masked_fill(unseen[:, :, None, None], 0).transpose(1, 2).repeat_interleave(groups, dim=1)
        for tensor in (k, v)
    )
    scores = queries @ keys.transpose(-1, -2) * spec.softmax_scale  # [B, H, S_q, S_kv]
    scores = scores.masked_fill(~mask, float("-inf")).masked_fill(empty, 0)
    lse = torch.logsumexp(scores, dim=-1, keepdim=True) if spec.kv_len else scores.new_zeros(*scores.shape[:-1], 1)
    out = (torch.exp(scores - lse) @ values).masked_fill(empty, 0)
    return AttentionOutput(
        out=out.transpose(1, 2).to(q.dtype),
        lse=lse.masked_fill(empty, float("-inf")).squeeze(-1).float() if spec.return_lse else None,
    )


def _refuses(spec: SparseSpec) -> str | None:
    return None


IMPL: Final[Impl[SparseSpec]] = Impl(name="reference", refuses=_refuses, run=run, operator="sparse", slow=True)
