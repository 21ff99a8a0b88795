"""Packing of partial results into messages on a GPU in one launch, because launches dominate with few queries.

Only what makes a message is here. A message is two strided views, of its outputs and of its lse; `attention/state` merges them.
"""

from __future__ import annotations

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
    """Pack rows `[B, S, H]` of a message: the output, zeros, and the lse in the last four bytes."""
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


def pack_message(out: Tensor, lse: Tensor, width: int) -> Tensor:
    """Pack as `wire.pack` with one number a row; `width` elements a row."""
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
