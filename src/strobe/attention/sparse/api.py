"""The public API of block-sparse attention for a given selection."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from strobe.attention.around import ambient
from strobe.attention.impls import announce
from strobe.attention.sparse.entries import check_entries
from strobe.attention.sparse.impl import reference
from strobe.attention.sparse.impls import choose
from strobe.attention.sparse.selection import BlockSelection, check_selection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.types import AttentionOutput, check, traced

_choose = lru_cache(maxsize=256)(choose)


def block_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    selection: BlockSelection,
    *,
    softmax_scale: float | None = None,
    impl: str = "auto",
    return_lse: bool = False,
    deterministic: bool = False,
) -> AttentionOutput:
    """Attend from every query to the valid keys of the blocks that its block selects.

    `out_i = softmax_j(q_i . k_j * softmax_scale) v_j` over `j` in the selected blocks; a query that sees no key has out 0, lse
    -inf and gradients 0.

    Args:
        q: `[B, N_q * block, H, D]`; padding rows may hold anything.
        k: `[B, N_kv * block, H_kv, D]`, `H` a multiple of `H_kv`.
        v: like k.
        selection: which key blocks each query block sees.
        softmax_scale: default `D ** -0.5`.
        impl: `auto`, `cudnn`, `fa4`, `triton`, `cpu`, `flex` or `reference`; a named impl runs or raises.
        return_lse: also return the natural-log softmax denominator, float32 `[B, H, S_q]`.
        deterministic: gradients must be the same bits in every run; so they must under `torch.use_deterministic_algorithms`.

    Raises:
        ShapeError: the arguments do not fit together, or on a CPU an index names no key block; on a GPU such an index reads
            nothing, and `STROBE_CHECK=1` in the environment makes it raise.
        ImplUnavailableError: the named impl cannot run this call.
    """
    spec = spec_of(q, k, v, selection, softmax_scale, return_lse, deterministic)
    if not torch._C._functorch.is_batchedtensor(selection.indices):  # torch.vmap looks at no values
        check_entries(selection, spec.kv_len // spec.block)
    choice = choose(spec, impl) if traced() else _choose(spec, impl)
    announce(choice)
    run = reference.run if 0 in (spec.batch, spec.q_len) else choice.impl.run  # no kernel is launched over nothing
    with ambient(q, choice.impl.name):
        return run(q, k, v, selection, spec)


def spec_of(
    q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection, softmax_scale: float | None, return_lse: bool, deterministic: bool
) -> SparseSpec:
    """Check the arguments of a call, but for what the selection holds, and describe it. Raises: see `block_sparse_attention`."""
    dense = check(q, k, v, softmax_scale, return_lse)
    _, num_kv = check_selection(selection, q, k)
    return SparseSpec.of(
        dense,
        block=selection.block,
        most_selected=selection.indices.shape[3],
        ragged=selection.q_sizes is not None or selection.kv_sizes is not None,
        uniform=bool(selection.uniform_count) and selection.within(num_kv),  # else what is dropped may leave unequal counts
        deterministic=deterministic or torch.are_deterministic_algorithms_enabled(),
    )
