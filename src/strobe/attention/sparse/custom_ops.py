"""Block-sparse attention as custom operators for `torch.compile`, autograd and `opcheck`; every impl but the reference is one.

The impl is an argument: forward and backward of one call run in the same one. An eager call of plain tensors goes past the
operators, straight to the impl: their dispatch costs more host time than some kernels take.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor

from strobe.attention.around import ambient
from strobe.attention.double_backward import first_derivatives_only
from strobe.attention.sparse.entries import check_entries, sound
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.sparse.stages.types import Prepared
from strobe.attention.types import AttentionOutput, traced

_LIBRARIES: Final = ("cudnn", "fa4")
PREPARING: Final = ("cudnn", "triton")
"""Impls whose module has a `prepare`."""
DIFFERENTIABLE: Final = (*_LIBRARIES, "triton", "cpu")
"""Impls whose module has a `backward`."""


_FIELDS: Final = ("indices", "counts", "q_sizes", "kv_sizes", "block", "finite_padding", "known_count", "known_bound")
"""What makes a selection: four tensors, or None for them, and four plain values."""


@cache
def _kernels(impl: str) -> Any:
    return import_module(f"strobe.attention.sparse.impl.{impl}")


def _flat(selection: BlockSelection) -> tuple[Any, ...]:
    tensors = selection.indices, selection.counts, selection.q_sizes, selection.kv_sizes
    return *tensors, selection.block, selection.finite_padding, selection.uniform_count, selection.index_bound


def _selection(flat: Sequence[Any]) -> BlockSelection:
    return BlockSelection(**dict(zip(_FIELDS, flat, strict=True)))


def _for_impl(impl: str, selection: BlockSelection, k: Tensor) -> BlockSelection:
    """Make the indices of key blocks that do not exist harmless, where they are read and were not looked at."""
    unseen = impl in _LIBRARIES or torch._C._functorch.is_batchedtensor(selection.indices)
    return sound(selection, k.shape[1] // selection.block) if unseen else selection


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Return out `[B, S_q, H, D]` and lse float32 `[B, H, S_q]`; see `BlockSelection` for the rest."""
    *flat, softmax_scale, impl = rest
    selection = _selection(flat)
    if not torch._C._functorch.is_batchedtensor(selection.indices):
        check_entries(selection, k.shape[1] // selection.block)  # a compiler has traced past the check of the api
    selection = _for_impl(impl, selection, k)
    with ambient(q):  # compiled code calls this with any device current
        out, lse = _kernels(impl).forward(q, k, v, selection, softmax_scale)
    return out.contiguous(), lse.contiguous()


def _backward(d_out: Tensor, d_lse: Tensor, *saved: Any) -> tuple[Tensor, ...]:
    q, k, v, out, lse, *flat, softmax_scale, impl = saved
    selection = _for_impl(impl, _selection(flat), k)
    with ambient(q):
        found = _kernels(impl).backward((d_out, d_lse), q, k, v, (out, lse), selection, softmax_scale)
    return tuple(each.contiguous() for each in found)


_OPERANDS: Final = "Tensor q, Tensor k, Tensor v"
_CALL: Final = (
    "Tensor indices, Tensor counts, Tensor? q_sizes, Tensor? kv_sizes, SymInt block, bool finite_padding, "
    "SymInt? uniform_count, SymInt? index_bound, float softmax_scale, str impl"
)
block_sparse_forward = torch.library.custom_op(
    "strobe::block_sparse_forward", _forward, mutates_args=(), schema=f"({_OPERANDS}, {_CALL}) -> (Tensor, Tensor)"
)
block_sparse_backward = torch.library.custom_op(
    "strobe::block_sparse_backward",
    _backward,
    mutates_args=(),
    schema=f"(Tensor d_out, Tensor d_lse, {_OPERANDS}, Tensor out, Tensor lse, {_CALL}) -> (Tensor, Tensor, Tensor)",
)


@block_sparse_forward.register_fake
def _(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return out, torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32, device=q.device)


@block_sparse_backward.register_fake
def _(d_out: Tensor, d_lse: Tensor, *saved: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in saved[:3])


_first = first_derivatives_only("block_sparse_attention", ["reference"])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, indices, counts, q_sizes, kv_sizes, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output, indices, counts, q_sizes, kv_sizes)


@_first
def _differentiate(ctx: Any, saved: Sequence[Tensor], d_out: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv = block_sparse_backward(d_out, d_lse, *saved, *ctx.options)
    return dq, dk, dv, *(None,) * 10


block_sparse_forward.register_autograd(_differentiate, setup_context=_keep)


class _EagerSparse(torch.autograd.Function):
    """The kernel's forward and backward as a plain autograd function, without a custom operator around them."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        q, k, v, selection, softmax_scale, impl = inputs
        out, lse = _kernels(impl).forward(q, k, v, selection, softmax_scale)
        flat = _flat(selection)
        ctx.save_for_backward(q, k, v, out, lse, *flat[:4])
        ctx.options, ctx.softmax_scale, ctx.impl = flat[4:], softmax_scale, impl
        return out, lse

    @staticmethod
    @_first
    def backward(ctx: Any, saved: Sequence[Tensor], *grads: Any) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, *tensors = saved
        selection = _selection((*tensors, *ctx.options))
        found = _kernels(ctx.impl).backward(grads, q, k, v, (out, lse), selection, ctx.softmax_scale)
        return *found, None, None, None


def run(impl: str, q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection, spec: SparseSpec) -> AttentionOutput:
    """Run one impl: as a custom operator under a compiler, a dispatch mode or a tensor subclass, else directly."""
    if traced() or torch._C._len_torch_dispatch_stack() or type(q) not in (Tensor, torch.nn.Parameter):
        out, lse = block_sparse_forward(q, k, v, *_flat(selection), spec.softmax_scale, impl)
    elif spec.needs_grad:
        out, lse = _EagerSparse.apply(q, k, v, _for_impl(impl, selection, k), spec.softmax_scale, impl)  # type: ignore[no-untyped-call]
    else:
        out, lse = _kernels(impl).forward(q, k, v, _for_impl(impl, selection, k), spec.softmax_scale)
    return AttentionOutput(out=out, lse=lse if spec.return_lse else None)


def gradients(
    impl: str, grads: tuple[Tensor, ...], tensors: tuple[Tensor, ...], state: tuple[Tensor, ...], *seen: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v by one of `DIFFERENTIABLE`, which may be those of a part of the keys.

    Args:
        grads: of out and lse.
        tensors: q, k and v.
        state: out and lse over all keys.
        seen: the selection among these keys, known to be of them, and the softmax scale.
    """
    found: tuple[Tensor, Tensor, Tensor] = _kernels(impl).backward(grads, *tensors, state, *seen)
    return found


def prepare(impl: str, q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection, spec: SparseSpec) -> Prepared | None:
    """Prepare one of `PREPARING` for later calls without gradients, of tensors and selections like these."""
    if spec.needs_grad or not selection.within(k.shape[1] // selection.block):
        return None
    found: Prepared | None = _kernels(impl).prepare(q, k, v, selection, spec.softmax_scale)
    return found
