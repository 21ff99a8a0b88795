"""Drop the entries of a selection that name no key block, on a GPU, in one launch."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from strobe.attention.sparse.launch import Launcher


@triton.jit
def _keep_kernel(indices_ptr, counts_ptr, kept_ptr, numbers_ptr, most, num_kv, columns: tl.constexpr):
    """One program per row: what is kept moves to the front, in its order."""
    entry = tl.program_id(0).to(tl.int64)
    count = tl.minimum(tl.load(counts_ptr + entry), most)
    number = tl.zeros([], tl.int32)
    for begin in range(0, count, columns):
        at = begin + tl.arange(0, columns)
        index = tl.load(indices_ptr + entry * most + at, mask=at < count, other=-1)
        keep = (index >= 0) & (index < num_kv)
        place = number + tl.cumsum(keep.to(tl.int32), 0) - 1
        tl.store(kept_ptr + entry * most + place, index, mask=keep)
        number += tl.sum(keep.to(tl.int32), 0)
    tl.store(numbers_ptr + entry, number)


_KEEP: Final = Launcher(_keep_kernel)


def kept_on_gpu(indices: Tensor, counts: Tensor, num_kv: int) -> tuple[Tensor, Tensor]:
    """The entries of each row that name one of `num_kv` key blocks, at its front, and how many they are.

    Args:
        indices: int32 `[B, H, N_q, K]`; of the result, the entries past the number are 0.
        counts: int32 `[B, H, N_q]`; what is above K or below 0 counts as K or 0.
    """
    batch, heads, num_q, most = indices.shape
    found, numbers = torch.zeros_like(indices, memory_format=torch.contiguous_format), torch.empty_like(counts).contiguous()
    if indices.numel() == 0:
        return found, numbers.zero_()
    _KEEP(
        (batch * heads * num_q, 1, 1),
        (indices.contiguous(), counts.contiguous(), found, numbers),
        (most, num_kv),
        (min(1024, 1 << (most - 1).bit_length()),),
        num_warps=1,
    )
    return found, numbers
