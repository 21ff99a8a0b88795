"""Dense attention through `torch.nn.functional.scaled_dot_product_attention`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from strobe.attention.impls import Impl
from strobe.attention.types import AttentionOutput, AttentionSpec


def run(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> AttentionOutput:
    """Attention by the kernel torch picks for this device; with the lse by torch's flash kernel for a CPU."""
    queries, keys, values = (tensor.transpose(1, 2) for tensor in (q, k, v))
    groups = spec.num_heads // spec.num_kv_heads
    if spec.return_lse:
        keys, values = (tensor.repeat_interleave(groups, dim=1) if groups > 1 else tensor for tensor in (keys, values))
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = flash(queries, keys, values, 0.0, False, scale=spec.softmax_scale)
        return AttentionOutput(out=out.transpose(1, 2), lse=lse.float())
    out = F.scaled_dot_product_attention(queries, keys, values, scale=spec.softmax_scale, enable_gqa=groups > 1)
    return AttentionOutput(out=out.transpose(1, 2), lse=None)


def _refuses(spec: AttentionSpec) -> str | None:
    if spec.kv_len == 0:
        return "scaled_dot_product_attention does not define attention over no keys"
    if spec.return_lse and spec.device.type != "cpu":
        return "it returns the lse on a CPU only"
    if spec.return_lse and spec.needs_grad:
        return "torch's flash kernel has no gradient through the lse"
    return None


IMPL = Impl(name="sdpa", refuses=_refuses, run=run)
