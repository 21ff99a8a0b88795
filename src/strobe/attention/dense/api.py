"""The front door of dense attention."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from strobe.attention.dense.impl import fa3, fa4, reference, sdpa
from strobe.attention.impls import Choice, Impl, ambient, select
from strobe.attention.types import AttentionOutput, AttentionSpec, check

IMPLS = (fa4.IMPL, fa3.IMPL, sdpa.IMPL, reference.IMPL)
_TORCH_FIRST = (sdpa.IMPL, fa4.IMPL, fa3.IMPL, reference.IMPL)
_FEW_KEYS: Final = 512
"""Keys up to which cuDNN is faster than FA4 on an H200: 35 against 41 microseconds for 4,680 queries, 12 heads of 128."""


@lru_cache(maxsize=256)
def _choose(spec: AttentionSpec, impl: str) -> Choice[AttentionSpec]:
    return select(spec, _order(spec), impl)


def _order(spec: AttentionSpec) -> tuple[Impl[AttentionSpec], ...]:
    """Implementations, the fastest first. FA4 gives all keys of a head and a tile of queries to one multiprocessor: few queries
    over many keys leave most of them idle. With grouped heads it reads keys that torch's kernel would have written out first.
    """
    if spec.needs_grad:
        return IMPLS
    few_keys = spec.kv_len <= _FEW_KEYS and sdpa.kernel_of(spec) == "cudnn"
    few_queries = spec.q_len <= sdpa.FEW_QUERIES and spec.num_heads == spec.num_kv_heads
    return _TORCH_FIRST if few_keys or few_queries else IMPLS


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    impl: str = "auto",
    return_lse: bool = False,
) -> AttentionOutput:
    """Softmax attention of every query over every key: `out = softmax(q k^T * softmax_scale) v`.

    Args:
        q: `[B, S_q, H, D]`.
        k: `[B, S_kv, H_kv, D]`, `H` a multiple of `H_kv`.
        v: like k.
        softmax_scale: default `D ** -0.5`.
        impl: `auto`, `fa4`, `fa3`, `sdpa` or `reference`; a named impl runs or raises.
        return_lse: also return the natural-log softmax denominator, float32 `[B, H, S_q]`.

    Raises:
        ShapeError: q, k, v do not fit together.
        ImplUnavailableError: the named impl cannot run this call.
    """
    spec = check(q, k, v, softmax_scale, return_lse)
    choice = select(spec, _order(spec), impl) if torch.compiler.is_compiling() else _choose(spec, impl)
    with ambient(q):
        return choice.impl.run(q, k, v, spec)


def explain_dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    impl: str = "auto",
    return_lse: bool = False,
) -> Choice[AttentionSpec]:
    """Say which implementation `dense_attention` would run for these tensors, and why each other was passed over."""
    return _choose(check(q, k, v, softmax_scale, return_lse), impl)
