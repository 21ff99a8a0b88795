"""Dense attention through `torch.nn.functional.scaled_dot_product_attention`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from strobe.attention.impls import Impl
from strobe.attention.types import AttentionOutput, AttentionSpec


def run(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> AttentionOutput:
    """Attention by the kernel torch picks for this device."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        scale=spec.softmax_scale,
        enable_gqa=spec.num_heads != spec.num_kv_heads,
    )
    return AttentionOutput(out=out.transpose(1, 2), lse=None)


def _refuses(spec: AttentionSpec) -> str | None:
    if spec.return_lse:
        return "scaled_dot_product_attention does not return the lse"
    if spec.kv_len == 0:
        return "scaled_dot_product_attention does not define attention over no keys"
    return None


IMPL = Impl(name="sdpa", refuses=_refuses, run=run)
