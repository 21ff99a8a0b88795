"""Dense attention in plain PyTorch: the specification and the oracle of every other implementation."""

from __future__ import annotations

import torch
from torch import Tensor

from strobe.attention.impls import Impl
from strobe.attention.types import AttentionOutput, AttentionSpec


def run(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> AttentionOutput:
    """Attention with the scores in float32 (float64 for float64 inputs). No keys: output 0, lse -inf."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups = spec.num_heads // spec.num_kv_heads
    queries = q.transpose(1, 2).to(wide)  # [B, H, S_q, D]
    keys = k.transpose(1, 2).repeat_interleave(groups, dim=1).to(wide)  # [B, H, S_kv, D]
    values = v.transpose(1, 2).repeat_interleave(groups, dim=1).to(wide)
    if spec.kv_len == 0:
        lse = queries.new_full(queries.shape[:-1], float("-inf"))
        return AttentionOutput(out=torch.zeros_like(q), lse=lse.float() if spec.return_lse else None)
    scores = queries @ keys.transpose(-1, -2) * spec.softmax_scale  # [B, H, S_q, S_kv]
    lse = torch.logsumexp(scores, dim=-1)
    out = torch.exp(scores - lse.unsqueeze(-1)) @ values
    return AttentionOutput(out=out.transpose(1, 2).to(q.dtype), lse=lse.float() if spec.return_lse else None)


def _refuses(spec: AttentionSpec) -> str | None:
    return None


IMPL = Impl(name="reference", refuses=_refuses, run=run, operator="dense", slow=True)
