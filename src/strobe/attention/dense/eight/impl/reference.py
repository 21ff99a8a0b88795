"""Attention in eight bits in plain PyTorch: the specification and the oracle of every other implementation."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from strobe.attention.types import AttentionOutput, AttentionSpec
from strobe.eightbit.impl.rounding import places
from strobe.eightbit.rounded import BLOCK, LOG2E, RoundedKeys, RoundedQueries

FP8_SHIFT: Final = 8.0
"""The largest weight of a row is 2^8 in FP8, so that weights down to 2^-14 of it are normal numbers."""


def run(q: RoundedQueries, kept: RoundedKeys, spec: AttentionSpec) -> AttentionOutput:
    """Attend block by block of keys, sums in float32 (float64 for float64 queries). No keys: output 0, lse -inf.

    Weights are FP8, relative to the largest so far of their row; the sum that norms them is of those that are not rounded.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups = spec.num_heads // spec.num_kv_heads

    def per_head(x: Tensor) -> Tensor:
        return x.to(wide).repeat_interleave(groups, dim=1)

    keys, values = (
        per_head(kept.keys),
        per_head(kept.values)[..., places(kept.values)[: spec.kv_len]],
    )  # [B, H, S, D], [B, H, D, S]
    queries, scale = q.values.to(wide), q.scale[..., None]
    most = queries.new_full((*queries.shape[:3], 1), float("-inf"))
    total, acc = torch.zeros_like(most), torch.zeros_like(queries)
    for start in range(0, spec.kv_len, BLOCK):
        logits = queries @ keys[:, :, start : start + BLOCK].transpose(-1, -2) * scale
        now = torch.maximum(most, logits.amax(-1, keepdim=True))
        fade, weights = torch.exp2(most - now), torch.exp2(logits - now + FP8_SHIFT)
        total = total * fade + weights.sum(-1, keepdim=True)
        rounded = weights.float().to(torch.float8_e4m3fn).to(wide)
        acc, most = acc * fade + rounded @ values[..., start : start + BLOCK].transpose(-1, -2), now

    if spec.kv_len == 0:
        out, lse = acc, most[..., 0]
    else:
        out = acc / total * per_head(kept.value_scale)[:, :, None] + per_head(kept.value_mean)[:, :, None]
        lse = (most - FP8_SHIFT + total.log2())[..., 0] / LOG2E
        if q.taken is not None:
            lse = lse + q.taken  # what the keys lost without their mean
    return AttentionOutput(out=out.transpose(1, 2).to(q.dtype), lse=lse.float() if spec.return_lse else None)
