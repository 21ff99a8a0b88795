"""Dense attention by FlashAttention-3 (flash_attn_interface), which is built from source for compute capability 9.0."""

from __future__ import annotations

import torch
from torch import Tensor

from strobe.attention.impls import MISSING, Impl, hash_of, no_card_for, short
from strobe.attention.types import AttentionOutput, AttentionSpec


def run(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> AttentionOutput:
    """Attention by the library's public function, which returns the natural-log lse `[B, H, S_q]`."""
    from flash_attn_interface import flash_attn_func

    if not spec.return_lse:
        out = flash_attn_func(q, k, v, softmax_scale=spec.softmax_scale)
        return AttentionOutput(out=out[0] if isinstance(out, tuple) else out, lse=None)
    out, lse = flash_attn_func(q, k, v, softmax_scale=spec.softmax_scale, return_attn_probs=True)[:2]
    return AttentionOutput(out=out, lse=lse)


def _refuses(spec: AttentionSpec) -> str | None:
    if reason := no_card_for(spec, "dense", "fa3") or MISSING["fa3"]:
        return reason
    if spec.dtype not in (torch.bfloat16, torch.float16):
        return f"it computes bfloat16 and float16, not {short(spec.dtype)}"
    if spec.head_dim not in (64, 96, 128):
        return f"it has head_dim 64, 96, 128, not {spec.head_dim}"
    if 0 in (spec.batch, spec.q_len, spec.kv_len):
        return "it takes at least one query and one key"
    if spec.softmax_scale <= 0:
        return f"it takes a positive softmax_scale, not {spec.softmax_scale}"
    if spec.return_lse and spec.needs_grad:
        return "it has no gradient through the lse"
    return None


IMPL = Impl(name="fa3", refuses=_refuses, run=run, operator="dense", kernel=hash_of("dense/impl/fa3.py"))
