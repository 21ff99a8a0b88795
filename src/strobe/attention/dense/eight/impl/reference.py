"""Attention in eight bits in plain PyTorch: the specification and the oracle of every other implementation."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from strobe.attention.dense.eight.rounded import BLOCK, FP8_MOST, INT8_MOST, ORDER, RoundedKeys, hadamard
from strobe.attention.types import AttentionOutput, AttentionSpec

LOG2E: Final = 1.4426950408889634
FP8_SHIFT: Final = 8.0
"""The largest weight of a row is 2^8 in FP8, so that weights down to 2^-14 of it are normal numbers."""
SMALLEST: Final = 1e-12


def store(kept: RoundedKeys, k: Tensor, v: Tensor, start: int) -> None:
    """Round keys and values `[B, T, H_kv, D]` into rows `start` and on; what is beyond a format takes its largest number."""
    end = start + k.shape[1]
    turned = k.transpose(1, 2).float() @ hadamard(k.shape[3], k.device, torch.float32)
    keys = (turned - kept.key_mean[:, :, None]) / kept.key_scale[:, :, None, None]
    kept.keys[:, :, start:end] = keys.round().clamp(-INT8_MOST, INT8_MOST).to(torch.int8)
    values = (v.permute(0, 2, 3, 1).float() - kept.value_mean[..., None]) / kept.value_scale[..., None]  # [B, H_kv, D, T]
    there = _place(kept)[start:end]
    kept.values.view(torch.int8)[..., there] = values.clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn).view(torch.int8)


def _place(kept: RoundedKeys) -> Tensor:
    """Where each key stands among the values."""
    order = torch.tensor(ORDER, device=kept.keys.device).argsort()
    groups = torch.arange(0, kept.values.shape[3], len(ORDER), device=kept.keys.device)
    return (groups[:, None] + order).flatten()


def run(q: Tensor, kept: RoundedKeys, spec: AttentionSpec) -> AttentionOutput:
    """Attend block by block of keys, sums in float32 (float64 for float64 queries). No keys: output 0, lse -inf.

    Queries are int8 with one scale per token and head; weights are FP8, relative to the largest so far of their row; the sum that
    norms them is of those that are not rounded.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups = spec.num_heads // spec.num_kv_heads

    def per_head(x: Tensor) -> Tensor:
        return x.to(wide).repeat_interleave(groups, dim=1)

    keys, values = per_head(kept.keys), per_head(kept.values)[..., _place(kept)[: spec.kv_len]]  # [B, H, S, D], [B, H, D, S]
    turned = q.transpose(1, 2).to(wide) @ hadamard(spec.head_dim, q.device, wide)  # [B, H, S_q, D]
    largest = turned.abs().amax(-1, keepdim=True).clamp_min(SMALLEST)
    queries = (turned * (INT8_MOST / largest)).round().clamp(-INT8_MOST, INT8_MOST)
    scale = largest / INT8_MOST * per_head(kept.key_scale)[..., None, None] * (spec.softmax_scale * LOG2E / spec.head_dim)

    most = turned.new_full((*turned.shape[:3], 1), float("-inf"))
    total, acc = torch.zeros_like(most), torch.zeros_like(turned)
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
        taken = (turned @ per_head(kept.key_mean)[..., None])[..., 0] * (spec.softmax_scale / spec.head_dim)
        lse = (most - FP8_SHIFT + total.log2())[..., 0] / LOG2E + taken  # what the keys lost without their mean
    return AttentionOutput(out=out.transpose(1, 2).to(q.dtype), lse=lse.float() if spec.return_lse else None)
