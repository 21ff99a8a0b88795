"""Make a library's result ours on a GPU, in one launch that touches nothing but what is to change."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from strobe.attention.sparse.launch import Launcher


@triton.jit
def _settle_kernel(
    out_ptr, lse_ptr, sizes_ptr, first_seen_ptr, second_seen_ptr, rows, heads,
    block: tl.constexpr, width: tl.constexpr, padded: tl.constexpr, ragged: tl.constexpr, hidden_nan: tl.constexpr,
):  # fmt: skip
    """One program per block and head."""
    number, row_of_heads = tl.program_id(0), tl.program_id(1)
    inside = tl.arange(0, block)
    row = number * block + inside
    lse_at = lse_ptr + row_of_heads.to(tl.int64) * rows + row
    size = tl.load(sizes_ptr + number) if ragged else block
    if hidden_nan:
        entry = row_of_heads.to(tl.int64) * (rows // block) + number
        if tl.load(first_seen_ptr + entry) + tl.load(second_seen_ptr + entry) > 0:
            hidden = (tl.load(lse_at) == float("-inf")) & (inside < size)
            tl.store(lse_at, tl.full([block], float("nan"), tl.float32), mask=hidden)
    if size < block:
        columns = tl.arange(0, padded)
        batch, head = (row_of_heads // heads).to(tl.int64), row_of_heads % heads
        at = ((batch * rows + row) * heads + head) * width
        unused = inside >= size
        zeros = tl.zeros([block, padded], out_ptr.dtype.element_ty)
        tl.store(out_ptr + at[:, None] + columns[None, :], zeros, mask=unused[:, None] & (columns < width)[None, :])
        tl.store(lse_at, tl.full([block], float("-inf"), tl.float32), mask=unused)


_SETTLE: Final = Launcher(_settle_kernel)


def settle_on_gpu_(out: Tensor, lse: Tensor, sizes: Tensor | None, block: int, seen: tuple[Tensor, Tensor] | None) -> None:
    """As `padding.settle_`, for out `[B, S, H, D]` and lse `[B, H, S]`, both contiguous."""
    batch, rows, heads, width = out.shape
    _SETTLE(
        (rows // block, batch * heads, 1),
        (out, lse, sizes, *(seen or (None, None))),
        (rows, heads),
        (block, width, 1 << (width - 1).bit_length(), sizes is not None, seen is not None),
        num_warps=4,
    )
