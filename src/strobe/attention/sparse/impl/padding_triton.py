"""Empty the padding rows of a result on a GPU, in one launch that touches nothing else."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _empty_padding_kernel(
    out_ptr, lse_ptr, sizes_ptr, rows, heads, block: tl.constexpr, width: tl.constexpr, padded: tl.constexpr
):
    """One program per block and head."""
    number, row_of_heads = tl.program_id(0), tl.program_id(1)
    size = tl.load(sizes_ptr + number)
    if size < block:
        inside, columns = tl.arange(0, block), tl.arange(0, padded)
        row = number * block + inside
        batch, head = (row_of_heads // heads).to(tl.int64), row_of_heads % heads
        at = ((batch * rows + row) * heads + head) * width
        unused = inside >= size
        zeros = tl.zeros([block, padded], out_ptr.dtype.element_ty)
        tl.store(out_ptr + at[:, None] + columns[None, :], zeros, mask=unused[:, None] & (columns < width)[None, :])
        tl.store(lse_ptr + row_of_heads.to(tl.int64) * rows + row, tl.full([block], float("-inf"), tl.float32), mask=unused)


def empty_padding_on_gpu_(out: Tensor, lse: Tensor, sizes: Tensor, block: int) -> None:
    """Out `[B, S, H, D]` and lse `[B, H, S]`, both contiguous: 0 and -inf in the padding rows."""
    batch, rows, heads, width = out.shape
    grid = (sizes.shape[0], batch * heads)
    _empty_padding_kernel[grid](out, lse, sizes, rows, heads, block=block, width=width, padded=triton.next_power_of_2(width))
