"""Block-sparse attention by flash-attn-4 (flash_attn.cute), on compute capability 9.0.

Whole key blocks go in its list of full blocks; blocks with padding keys in its list of partial blocks, where a mask compares each
key with the end of its block; empty ones in neither. Padding values are multiplied by 0, so they are cleared first. The backward
takes the gradient through the lse exactly and adds the gradient of q with atomics.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from strobe.attention.impls import silence_fa4
from strobe.attention.sparse.lists import Lists, key_lists, query_lists
from strobe.attention.sparse.padding import aligned, cleared, finite, settle_
from strobe.attention.sparse.selection import BlockSelection

silence_fa4()


def forward(q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection, softmax_scale: float) -> tuple[Tensor, Tensor]:
    """Return out `[B, S_q, H, D]` and lse float32 `[B, H, S_q]`."""
    batch, q_len, heads, _ = q.shape
    if 0 in selection.indices.shape or k.shape[1] == 0:
        return torch.zeros_like(q), q.new_full((batch, heads, q_len), float("-inf"), dtype=torch.float32)
    from flash_attn.cute.interface import _flash_attn_fwd

    block, sizes = selection.block, selection.kv_sizes
    lists = key_lists(selection)
    out, lse, *_ = _flash_attn_fwd(
        aligned(q),
        aligned(k),
        aligned(finite(v, sizes, selection)),
        softmax_scale=softmax_scale,
        block_sparse_tensors=_for_library(lists, block),
        return_lse=True,
        **_mask_arguments(sizes, block),
    )
    settle_(out, lse, selection.q_sizes, block, (lists.full_counts, lists.partial_counts))
    return out, lse


def backward(
    grads: tuple[Tensor, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: tuple[Tensor, Tensor],
    selection: BlockSelection,
    softmax_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, given those of `(out, lse)` and `(out, lse)` itself."""
    if 0 in selection.indices.shape or k.shape[1] == 0:
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    from flash_attn.cute.interface import _flash_attn_bwd

    block, q_sizes, kv_sizes = selection.block, selection.q_sizes, selection.kv_sizes
    out, lse = state
    empty = lse.isneginf()
    dq, dk, dv = _flash_attn_bwd(
        aligned(finite(q, q_sizes, selection)),
        aligned(finite(k, kv_sizes, selection)),
        aligned(finite(v, kv_sizes, selection)),
        aligned(out),
        aligned(cleared(grads[0], q_sizes, block)),
        lse.masked_fill(empty, float("inf")),  # exp(score - inf) = 0: an empty row has no gradient
        softmax_scale=softmax_scale,
        block_sparse_tensors=_for_library(query_lists(selection, k.shape[1] // block), block),
        dlse=grads[1].masked_fill(empty, 0),
        **_mask_arguments(kv_sizes, block),
    )
    return dq, dk, dv


def _for_library(lists: Lists, block: int) -> Any:
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

    return BlockSparseTensorsTorch(
        mask_block_cnt=lists.partial_counts,
        mask_block_idx=lists.partial,
        full_block_cnt=lists.full_counts,
        full_block_idx=lists.full,
        block_size=(block, block),
    )


def _mask_arguments(sizes: Tensor | None, block: int) -> dict[str, Any]:
    """The mask of partial blocks, and the end of each block's keys that it reads."""
    if sizes is None:
        return {}
    begins = torch.arange(0, sizes.shape[0] * block, block, dtype=torch.int32, device=sizes.device)
    return {"mask_mod": _before_the_end(block), "aux_tensors": [begins + sizes]}


@lru_cache(maxsize=4)
def _before_the_end(block: int) -> Any:
    import cutlass
    from cutlass import cute
    from flash_attn.cute import utils

    @cute.jit
    def before_the_end(batch, head, query, key, lengths, tensors):  # type: ignore[no-untyped-def]
        end = utils.scalar_to_ssa(tensors[0][key[0] // block], cutlass.Int32)
        return key < end

    return before_the_end
