"""Which implementation an attention call would run."""

from __future__ import annotations

from torch import Tensor

from strobe.attention.dense.api import explain_dense
from strobe.attention.impls import Choice
from strobe.attention.sparse.api import explain_block_sparse
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.types import AttentionSpec


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    selection: BlockSelection | None = None,
    *,
    softmax_scale: float | None = None,
    impl: str = "auto",
    return_lse: bool = False,
    deterministic: bool = False,
) -> Choice[AttentionSpec] | Choice[SparseSpec]:
    """Say which implementation would run for these tensors, and why each other was passed over. Nothing runs.

    Args:
        q: `[B, S_q, H, D]`.
        k: `[B, S_kv, H_kv, D]`.
        v: like k.
        selection: of `block_sparse_attention`; without one, the call is `dense_attention`.
        softmax_scale: as it would be given.
        impl: the name that would be given.
        return_lse: whether the lse would be asked for.
        deterministic: as in `block_sparse_attention`.

    Raises:
        ShapeError: the arguments do not fit together.
        ImplUnavailableError: the named impl cannot run this call.
    """
    if selection is None:
        return explain_dense(q, k, v, softmax_scale=softmax_scale, impl=impl, return_lse=return_lse)
    return explain_block_sparse(
        q, k, v, selection, softmax_scale=softmax_scale, impl=impl, return_lse=return_lse, deterministic=deterministic
    )
