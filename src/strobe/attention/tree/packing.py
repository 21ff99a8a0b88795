"""The message format of partial results: each row holds its output and then its float32 numbers, so that rows can be sliced.

On a GPU a message is made in one launch (`impl/triton.py`), where Triton is installed, and `state.merge` merges messages where
they lie, as views; float64, and everything on a CPU, takes plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from strobe.attention.around import ambient
from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput
from strobe.core.libraries import broken


def row_elements(head_dim_v: int, dtype: torch.dtype, num_stats: int = 1) -> int:
    """Return the number of elements of a packed row: the output, its alignment, and the float32 numbers."""
    align = max(4 // dtype.itemsize, 1)
    out, stats = -(-head_dim_v // align) * align, -(-num_stats * 4 // dtype.itemsize)
    return out + stats


def row_bytes(head_dim_v: int, dtype: torch.dtype) -> int:
    """Return the bytes of one packed row of a partial result."""
    return row_elements(head_dim_v, dtype) * dtype.itemsize


def pack(out: Tensor, *stats: Tensor) -> Tensor:
    """Pack `out` `[B, S, H, Dv]` and numbers `[B, H, S]` into one contiguous `[B, S, H, W]` of the dtype of `out`."""
    packed = out.new_zeros((*out.shape[:-1], row_elements(out.shape[-1], out.dtype, len(stats))))
    packed[..., : out.shape[-1]] = out
    numbers = packed.view(torch.float32)
    for place, stat in enumerate(stats):
        numbers[..., numbers.shape[-1] - len(stats) + place] = stat.transpose(1, 2)
    return packed


def unpack(packed: Tensor, head_dim_v: int, num_stats: int = 1) -> tuple[Tensor, ...]:
    """Unpack `(out, *stats)` from a message, as views."""
    numbers = packed.view(torch.float32)
    stats = (numbers[..., numbers.shape[-1] - num_stats + place].transpose(1, 2) for place in range(num_stats))
    return packed[..., :head_dim_v], *stats


def pack_state(state: AttentionOutput) -> Tensor:
    """Pack a partial result into a message."""
    assert state.lse is not None
    if _in_one_launch(state.out):
        from strobe.attention.tree.impl.triton import pack_message

        with ambient(state.out):  # Triton launches on the current device
            return pack_message(state.out, state.lse, row_elements(state.out.shape[3], state.out.dtype))
    return pack(state.out, state.lse)


def unpack_state(packed: Tensor, head_dim_v: int) -> AttentionOutput:
    """Unpack a partial result from a message."""
    out, lse = unpack(packed, head_dim_v)
    return AttentionOutput(out=out, lse=lse)


def merge_messages(messages: Sequence[Tensor], head_dim_v: int) -> AttentionOutput:
    """Merge the partial results of messages of one shape, in their order."""
    return merge([unpack_state(each, head_dim_v) for each in messages])


def _in_one_launch(tensor: Tensor) -> bool:
    return tensor.is_cuda and tensor.dtype != torch.float64 and not broken("triton.language")
