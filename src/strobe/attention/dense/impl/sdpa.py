"""Dense attention through the kernels of torch itself.

Without the lse torch picks the kernel on a CPU and for grouped queries; on a GPU cuDNN's kernel is called by its own name where
it runs, because torch prefers slower ones. With the lse one kernel is called by its own name on every device, and its lse is made
float32 `[B, H, S_q]`: cuDNN's has a last dimension of 1 and the memory-efficient one is padded to a multiple of 32 rows.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from strobe.attention.impls import Impl, short
from strobe.attention.types import AttentionOutput, AttentionSpec

_HALF = (torch.bfloat16, torch.float16)
FEW_QUERIES: Final = 64
"""Queries up to which torch's flash kernel, which shares the keys of a head out among multiprocessors, is as fast as any other on
an H200. 16 heads of 128, microseconds for 2 to 64 queries over 8,192 and 262,144 keys: flash 27 to 30 and 489 to 501, FA4 29 to
31 and 700 to 703 (88 and 2,670 with the lse), cuDNN 99 and 2,950."""


def run(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> AttentionOutput:
    """Attention by the fastest of torch's kernels that takes this call."""
    queries, keys, values = (tensor.transpose(1, 2) for tensor in (q, k, v))
    groups = spec.num_heads // spec.num_kv_heads
    kernel = kernel_of(spec)
    if not kernel:
        # A comparison of symbolic numbers of heads is no bool: the argument is a literal.
        options: dict[str, Any] = {"enable_gqa": True} if groups > 1 else {}
        out = F.scaled_dot_product_attention(queries, keys, values, scale=spec.softmax_scale, **options)
        return AttentionOutput(out=out.transpose(1, 2), lse=None)
    if groups > 1:
        keys, values = (tensor.repeat_interleave(groups, dim=1) for tensor in (keys, values))
    queries, keys, values = (each if each.stride(-1) == 1 else each.contiguous() for each in (queries, keys, values))
    scale, wants_lse = spec.softmax_scale, spec.return_lse or spec.needs_grad
    if kernel == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(queries, keys, values, 0.0, False, scale=scale)
    elif kernel == "cudnn":
        attention = torch.ops.aten._scaled_dot_product_cudnn_attention
        out, lse = attention(queries, keys, values, None, wants_lse, 0.0, False, False, scale=scale)[:2]
    elif kernel == "flash":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention(queries, keys, values, 0.0, False, False, scale=scale)[:2]
    else:
        attention = torch.ops.aten._scaled_dot_product_efficient_attention
        out, lse = attention(queries, keys, values, None, wants_lse, 0.0, False, scale=scale)[:2]
    return AttentionOutput(out=out.transpose(1, 2), lse=rows_of(lse, spec) if spec.return_lse else None)


def kernel_of(spec: AttentionSpec) -> str:
    """The kernel that is called by its own name, `cpu`, `cudnn`, `flash` or `efficient`; empty if torch picks."""
    if spec.device.type == "cpu":
        return "cpu" if spec.return_lse else ""
    torch_picks = spec.num_heads != spec.num_kv_heads and not spec.return_lse
    half = spec.dtype in _HALF and spec.head_dim % 8 == 0
    many, chip = spec.q_len > FEW_QUERIES and spec.kv_len > 1, spec.card.capability[0]  # torch 2.11 compiles no `>=` of tuples
    if half and many and spec.head_dim <= 128 and chip >= 9 and not torch_picks:
        return "cudnn"
    shared_out = half and spec.head_dim <= 256 and 1 < spec.q_len <= FEW_QUERIES and chip >= 8 and not torch_picks
    if not spec.return_lse and not shared_out:
        return ""
    return "flash" if half and spec.head_dim <= 256 else "efficient"


def rows_of(lse: Tensor, spec: AttentionSpec) -> Tensor:
    """A kernel's lse as float32 `[B, H, S_q]`: `[B, H, S_q, 1]` or more rows than there are queries become that."""
    if lse.dim() == 4:
        lse = lse.squeeze(-1)
    return lse[..., : spec.q_len].float()


def _refuses(spec: AttentionSpec) -> str | None:
    if spec.kv_len == 0:
        return "scaled_dot_product_attention does not define attention over no keys"
    if spec.return_lse and 0 in (spec.batch, spec.q_len):
        return "torch's kernels have no lse of no queries"
    if spec.return_lse and spec.device.type not in ("cpu", "cuda"):
        return f"it returns the lse on a CPU and on CUDA, the tensors are on {spec.device}"
    if spec.return_lse and spec.needs_grad:
        return "torch's flash kernel has no gradient through the lse"
    if spec.return_lse and spec.device.type == "cuda" and spec.dtype not in (*_HALF, torch.float32):
        return f"torch's kernels for CUDA return no lse for {short(spec.dtype)}"
    return None


IMPL = Impl(name="sdpa", refuses=_refuses, run=run, operator="dense")
