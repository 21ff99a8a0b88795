"""Dense attention by FlashAttention-3 (flash_attn_interface), which is built from source for compute capability 9.0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from strobe.attention.double_backward import first_derivatives_only
from strobe.attention.impls import MISSING, Impl, hash_of, no_card_for, short
from strobe.attention.types import AttentionOutput, AttentionSpec


def run(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> AttentionOutput:
    """Attention by the library's public function, which returns the natural-log lse `[B, H, S_q]`."""
    from flash_attn_interface import flash_attn_func

    if spec.needs_grad:
        out = _Differentiable.apply(q, k, v, spec.softmax_scale)  # type: ignore[no-untyped-call]
        return AttentionOutput(out=out, lse=None)
    if not spec.return_lse:
        return AttentionOutput(out=_attend(q, k, v, spec.softmax_scale), lse=None)
    out, lse = flash_attn_func(q, k, v, softmax_scale=spec.softmax_scale, return_attn_probs=True)[:2]
    return AttentionOutput(out=out, lse=lse)


def _attend(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float) -> Tensor:
    from flash_attn_interface import flash_attn_func

    found = flash_attn_func(q, k, v, softmax_scale=softmax_scale)
    out: Tensor = found[0] if isinstance(found, tuple) else found
    return out


class _Differentiable(torch.autograd.Function):
    """The library's function and its gradients, which refuse to be differentiated; its own would be cut off from q, k and v."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        q, k, v = (tensor.detach().requires_grad_() for tensor in inputs[:3])
        with torch.enable_grad():
            out = _attend(q, k, v, inputs[3])
        ctx.step = (q, k, v), out
        ctx.save_for_backward(*inputs[:3])
        return out.detach()

    @staticmethod
    @first_derivatives_only("dense_attention", ["reference"])
    def backward(ctx: Any, _: Sequence[Tensor], *grads: Any) -> tuple[Tensor | None, ...]:
        leaves, out = ctx.step
        return *torch.autograd.grad(out, leaves, grads[0], retain_graph=True), None


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
