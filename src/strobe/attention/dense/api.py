"""The public API of dense attention."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from torch import Tensor

from strobe.attention.around import ambient
from strobe.attention.dense.impl import blocks, fa4, reference, sdpa
from strobe.attention.impls import Choice, Impl, announce, plugged, select
from strobe.attention.types import AttentionOutput, AttentionSpec, check, traced
from strobe.core.errors import ImplUnavailableError

_OURS = (fa4.IMPL, sdpa.IMPL, blocks.TRITON, blocks.CPU, reference.IMPL)
PLUGGED = plugged("dense", _OURS)
IMPLS = (*_OURS, *PLUGGED)
_TORCH_FIRST = (sdpa.IMPL, *(impl for impl in IMPLS if impl is not sdpa.IMPL))
_MOST_KEYS: Final = 1024
"""Keys up to which `auto` may take the reference, which holds every pair of a query and a key in memory, several times."""
_FEW_KEYS: Final = 512
"""Keys up to which cuDNN is faster than FA4 on an H200: 35 against 41 microseconds for 4,680 queries, 12 heads of 128."""


def choose(spec: AttentionSpec, impl: str) -> Choice[AttentionSpec]:
    """Choose the named implementation, or the fastest; that is the reference only over few keys.

    Raises:
        ConfigError: no implementation has that name.
        ImplUnavailableError: none that is fit, or the named one cannot run this call.
    """
    choice = select(spec, _order(spec), impl)
    if impl == "auto" and choice.impl is reference.IMPL and spec.kv_len > _MOST_KEYS:
        pairs = f"{spec.q_len} x {spec.kv_len}"
        reasons = "; ".join(f"{other}: {why}" for other, why in choice.passed_over)
        why = f"only the reference is left, which holds all {pairs} pairs of tokens for every head in memory ({reasons})"
        raise ImplUnavailableError("auto", why, [reference.IMPL.name])
    return choice


_choose = lru_cache(maxsize=256)(choose)


def _order(spec: AttentionSpec) -> tuple[Impl[AttentionSpec], ...]:
    """Order the implementations, the fastest first.

    FA4 gives all keys of a head and a tile of queries to one multiprocessor: few queries over many keys leave most of them idle.
    With grouped heads it reads keys that torch's kernel would have written out first.
    """
    if spec.needs_grad:
        return IMPLS
    few_keys = spec.kv_len <= _FEW_KEYS and sdpa.kernel_of(spec) == "cudnn"
    few_queries = spec.q_len <= sdpa.FEW_QUERIES and spec.num_heads == spec.num_kv_heads
    return _TORCH_FIRST if few_keys or few_queries else IMPLS


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float | None = None, impl: str = "auto", return_lse: bool = False
) -> AttentionOutput:
    """Attend from every query to every key: `out = softmax(q k^T * softmax_scale) v`.

    Args:
        q: `[B, S_q, H, D]`.
        k: `[B, S_kv, H_kv, D]`, `H` a multiple of `H_kv`.
        v: like k.
        softmax_scale: default `D ** -0.5`.
        impl: `auto`, `fa4`, `sdpa`, `triton`, `cpu` or `reference`; a named impl runs or raises.
        return_lse: also return the natural-log softmax denominator, float32 `[B, H, S_q]`.

    Raises:
        ShapeError: q, k, v do not fit together.
        ImplUnavailableError: the named impl cannot run this call.
    """
    spec = check(q, k, v, softmax_scale, return_lse)
    choice = choose(spec, impl) if traced() else _choose(spec, impl)
    announce(choice)
    with ambient(q, choice.impl.name):
        return choice.impl.run(q, k, v, spec)


def explain_dense(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float | None = None, impl: str = "auto", return_lse: bool = False
) -> Choice[AttentionSpec]:
    """Say which implementation `dense_attention` would run for these tensors, and why each other was passed over."""
    return _choose(check(q, k, v, softmax_scale, return_lse), impl)
