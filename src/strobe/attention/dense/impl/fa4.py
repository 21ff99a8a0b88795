"""Dense attention by flash-attn-4 (flash_attn.cute), on compute capability 8.0 and later; gradients through the lse are exact.

Calls without gradients go to its public function. With gradients its two kernels are called, because the function's own gradients
would be cut off from q, k and v in a second backward. Under `torch.compile` they are reached through custom operators. Where the
last wave of programs would be nearly empty, its queries attend to parts of the keys, which are merged by lse (`waves`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from strobe.attention.dense.impl.waves import Split, split_last_wave
from strobe.attention.double_backward import first_derivatives_only
from strobe.attention.impls import MISSING, Impl, hash_of, no_card_for, short, silence_fa4
from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput, AttentionSpec, check

silence_fa4()
_TILE: Final = 128
"""Queries of one of its programs, for head_dim 128."""


def run(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> AttentionOutput:
    """Attention by the library's kernels; strides other than of the last dimension are read in place."""
    if torch.compiler.is_compiling():
        out, lse = fa4_forward(q, k, v, spec.softmax_scale, spec.needs_grad)
    elif spec.needs_grad:
        out, lse = _Eager.apply(q, k, v, spec.softmax_scale)  # type: ignore[no-untyped-call]
    elif (split := _split(spec)) is not None:
        return _in_parts(q, k, v, spec, split)
    else:
        from flash_attn.cute import flash_attn_func

        out, lse = flash_attn_func(q, k, v, softmax_scale=spec.softmax_scale, return_lse=spec.return_lse)
    return AttentionOutput(out=out, lse=lse if spec.return_lse else None)


def _split(spec: AttentionSpec) -> Split | None:
    """How the last wave is split; None for gradients, several samples, grouped heads, and tiles of other sizes."""
    if spec.batch != 1 or spec.num_heads != spec.num_kv_heads or spec.head_dim != 128 or spec.needs_grad:
        return None
    count = torch.cuda.get_device_properties(spec.device).multi_processor_count
    return split_last_wave(spec.q_len, spec.kv_len, spec.num_heads, _TILE, count)


def _in_parts(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, split: Split) -> AttentionOutput:
    """The first queries over all keys; the rest over parts of the keys, as samples of one call."""
    from flash_attn.cute import interface

    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = q.new_empty((1, q.shape[2], q.shape[1]), dtype=torch.float32)  # always: the kernel without it would be compiled too
    attend = partial(interface._flash_attn_fwd, softmax_scale=spec.softmax_scale, return_lse=True)
    if split.first:
        attend(q[:, : split.first], k, v, out=out[:, : split.first], lse=lse[..., : split.first])
    keys, values = (each.unflatten(1, (split.parts, -1))[0] for each in (k, v))
    rest, their_lse, *_ = attend(q[:, split.first :].expand(split.parts, -1, -1, -1), keys, values)
    states = [AttentionOutput(out=rest[i : i + 1], lse=their_lse[i : i + 1]) for i in range(split.parts)]
    merge(states, into=AttentionOutput(out=out[:, split.first :], lse=lse[..., split.first :]))
    return AttentionOutput(out=out, lse=lse if spec.return_lse else None)


@torch.library.custom_op("strobe::fa4_forward", mutates_args=())
def fa4_forward(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, needs_grad: bool) -> tuple[Tensor, Tensor]:
    """Return out `[B, S_q, H, D]` and lse float32 `[B, H, S_q]`; the last wave is split as uncompiled."""
    spec = replace(check(q, k, v, softmax_scale, return_lse=True), needs_grad=needs_grad)
    if (split := _split(spec)) is None:
        return _forward(q, k, v, softmax_scale)
    found = _in_parts(q, k, v, spec, split)
    assert found.lse is not None
    return found.out, found.lse


def _forward(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float) -> tuple[Tensor, Tensor]:
    from flash_attn.cute import interface

    out, lse, *_ = interface._flash_attn_fwd(q, k, v, softmax_scale=softmax_scale, return_lse=True)
    return out, lse


@fa4_forward.register_fake
def _(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32, device=q.device)
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), lse


@torch.library.custom_op("strobe::fa4_backward", mutates_args=())
def fa4_backward(
    d_out: Tensor, d_lse: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, softmax_scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v."""
    return _backward(d_out, d_lse, (q, k, v), (out, lse), softmax_scale)


def _backward(
    d_out: Tensor, d_lse: Tensor, inputs: Sequence[Tensor], state: Sequence[Tensor], softmax_scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    from flash_attn.cute import interface

    dq, dk, dv = interface._flash_attn_bwd(
        *inputs, state[0], d_out.contiguous(), state[1], softmax_scale=softmax_scale, dlse=d_lse.contiguous()
    )
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


@fa4_backward.register_fake
def _(d_out: Tensor, d_lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in (q, k, v))
    return dq, dk, dv


_first = first_derivatives_only("dense_attention", ["reference"])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.softmax_scale = inputs[3]


@_first
def _differentiate(ctx: Any, saved: Sequence[Tensor], d_out: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
    return *fa4_backward(d_out, d_lse, *saved, ctx.softmax_scale), None, None


fa4_forward.register_autograd(_differentiate, setup_context=_keep)


class _Eager(torch.autograd.Function):
    """The same two kernels without an operator around them."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        found = _forward(*inputs)
        _keep(ctx, inputs, found)
        return found

    @staticmethod
    @_first
    def backward(ctx: Any, saved: Sequence[Tensor], *grads: Any) -> tuple[Tensor | None, ...]:
        d_out, d_lse = grads
        return *_backward(d_out, d_lse, saved[:3], saved[3:], ctx.softmax_scale), None


def _refuses(spec: AttentionSpec) -> str | None:
    if reason := no_card_for(spec, "dense", "fa4") or MISSING["fa4"]:
        return reason
    if spec.needs_grad and spec.card.capability[0] < 9:
        return f"its backward runs on compute capability 9.0 and later, {spec.device} has {spec.card}"
    if spec.dtype not in (torch.bfloat16, torch.float16):
        return f"it computes bfloat16 and float16, not {short(spec.dtype)}"
    if spec.head_dim not in (64, 96, 128):
        return f"it has head_dim 64, 96, 128, not {spec.head_dim}"
    if 0 in (spec.batch, spec.q_len, spec.kv_len):
        return "it takes at least one query and one key"
    if spec.softmax_scale <= 0:
        return f"it takes a positive softmax_scale, not {spec.softmax_scale}"
    return None


IMPL = Impl(name="fa4", refuses=_refuses, run=run, operator="dense", kernel=hash_of("dense/impl/fa4.py", "dense/impl/waves.py"))
