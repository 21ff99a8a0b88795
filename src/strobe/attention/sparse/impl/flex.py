"""Block-sparse attention by FlexAttention: portable, and a second oracle, because it masks tokens by a rule and not by our lists.

On a GPU it is compiled: the lists say which blocks to visit, the rule masks those with padding. On a CPU it runs as plain torch
over all pairs of tokens, where only the rule counts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from strobe.attention.sparse.entries import sound
from strobe.attention.sparse.lists import key_lists
from strobe.attention.sparse.padding import finite, padding_rows
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.types import AttentionOutput

_TILES = dict.fromkeys(("BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2"), 64)
"""Tiles of its kernels: they must divide the block."""


def run(q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection, spec: SparseSpec) -> AttentionOutput:
    """FlexAttention under a mask built from the lists; forward only."""
    selection = sound(selection, spec.kv_len // spec.block)
    q = finite(q, selection.q_sizes, selection)
    k, v = (finite(tensor, selection.kv_sizes, selection) for tensor in (k, v))
    out, found = (_compiled() if q.is_cuda and not torch.compiler.is_compiling() else flex_attention)(
        *(tensor.transpose(1, 2) for tensor in (q, k, v)),
        block_mask=_block_mask(selection, spec.kv_len // spec.block),
        scale=spec.softmax_scale,
        enable_gqa=True if spec.num_heads != spec.num_kv_heads else False,  # noqa: SIM210 (of symbolic numbers it is no bool)
        kernel_options=_TILES if q.is_cuda else None,
        return_aux=AuxRequest(lse=True),
    )
    lse = found.lse  # [B, H, S_q]
    if selection.q_sizes is not None:
        lse = lse.masked_fill(padding_rows(selection.q_sizes, spec.block), float("-inf"))
    out = out.masked_fill(lse.isneginf().unsqueeze(-1), 0).transpose(1, 2)
    return AttentionOutput(out=out, lse=lse.float() if spec.return_lse else None)


def _block_mask(selection: BlockSelection, num_kv: int) -> BlockMask:
    """The lists, and the rule: the block is selected and the key is no padding."""
    block, sizes = selection.block, selection.kv_sizes
    seen = selection.mask(num_kv)

    def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        allowed = seen[batch, head, query // block, key // block]
        return allowed if sizes is None else allowed & (key % block < sizes[key // block])

    keys = key_lists(selection)
    return BlockMask(
        (selection.indices.shape[2] * block, num_kv * block),
        keys.partial_counts,
        keys.partial if sizes is not None else keys.full,  # the kernel walks both lists in the strides of the first
        keys.full_counts,
        keys.full,
        None,
        None,
        None,
        None,
        BLOCK_SIZE=(block, block),
        mask_mod=rule,
    )


@lru_cache(maxsize=1)
def _compiled() -> Any:
    return torch.compile(flex_attention, fullgraph=True)  # with it, too many shapes are an error and not a slow path in silence
