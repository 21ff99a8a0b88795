"""Padding rows of blocks: what they hold must not matter, and most libraries read them."""

from __future__ import annotations

import torch
from torch import Tensor

from strobe.attention.sparse.selection import BlockSelection


def padding_rows(sizes: Tensor, block: int) -> Tensor:
    """Which rows are padding, boolean `[N * block]`, for valid tokens per block int32 `[N]`."""
    return (torch.arange(block, dtype=torch.int32, device=sizes.device) >= sizes[:, None]).flatten()


def cleared(tensor: Tensor, sizes: Tensor | None, block: int) -> Tensor:
    """A copy of `[B, N * block, H, D]` with the padding rows 0; the tensor itself if no block has any."""
    return tensor if sizes is None else tensor.masked_fill(padding_rows(sizes, block)[:, None, None], 0)


def finite(tensor: Tensor, sizes: Tensor | None, selection: BlockSelection) -> Tensor:
    """`cleared`, unless the padding rows are known to hold finite numbers: then 0 times them is 0 as it is."""
    return tensor if selection.finite_padding else cleared(tensor, sizes, selection.block)


def settle_(out: Tensor, lse: Tensor, sizes: Tensor | None, block: int, seen: tuple[Tensor, Tensor] | None = None) -> None:
    """Make a library's result keep our contract, in place: its padding rows empty, no NaN hidden.

    On a GPU one launch, which touches only what changes.

    Args:
        out: contiguous `[B, S, H, D]`; 0 in padding rows afterwards.
        lse: contiguous `[B, H, S]`; -inf in padding rows afterwards.
        sizes: valid rows of each block, int32 `[N]`; None if all are whole.
        seen: two numbers of keys' blocks per row, int32 `[B, H, N]`, of a library that hides a NaN: where their sum is not 0, an
            lse of -inf stands for one and becomes it.
    """
    if sizes is None and seen is None:
        return
    if out.is_cuda:
        from strobe.attention.sparse.impl.padding_triton import settle_on_gpu_

        settle_on_gpu_(out, lse, sizes, block, seen)
        return
    if seen is not None:
        rows = lse.unflatten(2, (-1, block))
        rows.masked_fill_(rows.isneginf() & (seen[0] + seen[1] > 0).unsqueeze(-1), float("nan"))
    if sizes is not None:
        padding = padding_rows(sizes, block)
        out.masked_fill_(padding[:, None, None], 0)
        lse.masked_fill_(padding, float("-inf"))


def aligned(tensor: Tensor) -> Tensor:
    """The tensor as a TMA descriptor can read it: rows of 16-byte multiples, none of them twice; a copy only if it is not."""
    elements = 16 // tensor.element_size()
    shape, stride = tensor.shape, tensor.stride()
    if stride[-1] == 1 and tensor.data_ptr() % 16 == 0:
        for size, step in zip(shape[:-1], stride[:-1], strict=True):
            if step % elements or (step <= 0 and size > 1):
                break
        else:
            return tensor
    return tensor.clone(memory_format=torch.contiguous_format)
