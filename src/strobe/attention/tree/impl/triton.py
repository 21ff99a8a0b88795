"""Messages of partial results on a GPU, made in one launch and merged in one: with few queries launches are what they cost."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16
"""Rows of a program."""


@triton.jit
def _pack_kernel(
    message_ptr, out_ptr, lse_ptr, rows, queries, heads, out_b, out_s, out_h, lse_b, lse_h, lse_s,
    width: tl.constexpr, row_floats: tl.constexpr, dim: tl.constexpr, padded: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Rows `[B, S, H]` of a message: the output, zeros, and the lse in the last four bytes."""
    row = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = row < rows
    b, s, h = row // (queries * heads), row // heads % queries, row % heads
    column = tl.arange(0, padded)
    out = tl.load(
        out_ptr + (b * out_b + s * out_s + h * out_h)[:, None] + column[None, :],
        mask=inside[:, None] & (column < dim)[None, :],
        other=0.0,
    )
    lse = tl.load(lse_ptr + b * lse_b + h * lse_h + s * lse_s, mask=inside)
    room: tl.constexpr = width - width // row_floats  # elements before the lse: a float32 is one of them or two
    tl.store(message_ptr + row[:, None] * width + column[None, :], out, mask=inside[:, None] & (column < room)[None, :])
    floats = message_ptr.to(tl.pointer_type(tl.float32), bitcast=True)
    tl.store(floats + row * row_floats + row_floats - 1, lse, mask=inside)


@triton.jit
def _merge_kernel(
    messages, out_ptr, lse_ptr, rows, queries, heads,
    width: tl.constexpr, row_floats: tl.constexpr, dim: tl.constexpr, padded: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """`top = max_i L_i`, `out = sum_i exp(L_i - top) out_i / sum_i exp(L_i - top)`, parts in order; see `state.merge`."""
    row = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = row < rows
    column = tl.arange(0, padded)
    kept = inside[:, None] & (column < dim)[None, :]
    last = row * row_floats + row_floats - 1
    top = tl.full([block], float("-inf"), tl.float32)
    for i in tl.static_range(len(messages)):
        floats = messages[i].to(tl.pointer_type(tl.float32), bitcast=True)
        top = tl.maximum(top, tl.load(floats + last, mask=inside, other=0.0))
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros([block], tl.float32)
    weighted = tl.zeros([block, padded], tl.float32)
    for i in tl.static_range(len(messages)):
        floats = messages[i].to(tl.pointer_type(tl.float32), bitcast=True)
        weight = tl.exp(tl.load(floats + last, mask=inside, other=0.0) - top)
        part = tl.load(messages[i] + row[:, None] * width + column[None, :], mask=kept, other=0.0)
        total += weight
        weighted += part.to(tl.float32) * weight[:, None]
    empty = total == 0
    divisor = tl.where(empty, 1.0, total)
    tl.store(
        out_ptr + row[:, None] * dim + column[None, :], (weighted / divisor[:, None]).to(out_ptr.dtype.element_ty), mask=kept
    )
    b, s, h = row // (queries * heads), row // heads % queries, row % heads
    lse = tl.where(empty, float("-inf"), top + tl.log(divisor))
    tl.store(lse_ptr + (b * heads + h) * queries + s, lse, mask=inside)


def pack_message(out: Tensor, lse: Tensor, width: int) -> Tensor:
    """As `wire.pack` with one number a row; `width` elements a row."""
    batch, queries, heads, dim = out.shape
    out = out if out.stride(3) == 1 else out.contiguous()
    message = out.new_empty(batch, queries, heads, width)
    rows, row_floats = batch * queries * heads, width * out.element_size() // 4
    if rows:
        _pack_kernel[(triton.cdiv(rows, ROWS),)](
            message, out, lse, rows, queries, heads, *out.stride()[:3], *lse.stride(),
            width, row_floats, dim, triton.next_power_of_2(width - width // row_floats), ROWS,
        )  # fmt: skip
    return message


def merge_messages(messages: Sequence[Tensor], dim: int) -> tuple[Tensor, Tensor]:
    """As `state.merge` of messages `[B, S, H, W]` of one shape and dtype, float32 or 16 bits: `(out, lse)`."""
    whole = tuple(each.contiguous() for each in messages)
    batch, queries, heads, width = whole[0].shape
    out = whole[0].new_empty(batch, queries, heads, dim)
    lse = torch.empty(batch, heads, queries, dtype=torch.float32, device=out.device)
    rows = batch * queries * heads
    if rows:
        _merge_kernel[(triton.cdiv(rows, ROWS),)](
            whole, out, lse, rows, queries, heads,
            width, width * out.element_size() // 4, dim, triton.next_power_of_2(dim), ROWS,
        )  # fmt: skip
    return out, lse
