"""Rounding of queries, keys and values for attention in eight bits; see `strobe.eightbit.rounded`."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from strobe.core.libraries import broken
from strobe.eightbit.impl import rounding as reference
from strobe.eightbit.rounded import Arriving, RoundedKeys, RoundedQueries

RoundingImpl = Literal["auto", "reference", "triton"]
"""Triton runs on a GPU of compute capability 9.x with head_dim 128 and dtypes of 16 bits; "auto" takes it on every GPU."""


def store(kept: RoundedKeys, new: Arriving, *, impl: RoundingImpl = "auto") -> None:
    """Round keys and values into their rows of `kept`, in place, with its constants. What is beyond a format takes its most."""
    _home(impl, new.k).store(kept, new)


def round_queries(
    q: Tensor,
    kept: RoundedKeys,
    softmax_scale: float,
    *,
    new: Arriving | None = None,
    with_taken: bool = False,
    impl: RoundingImpl = "auto",
) -> RoundedQueries:
    """Round queries that attend to `kept`, and store keys and values there, in one launch where there are kernels.

    Args:
        q: `[B, S_q, H, D]`, any strides but 1 for the last.
        kept: whose constants they are rounded for.
        softmax_scale: of the attention.
        new: what is stored; None: nothing.
        with_taken: see `RoundedQueries.taken`.
        impl: of the rounding.
    """
    values, scale, taken = _home(impl, q).round_queries(q, kept, softmax_scale, new, with_taken)
    return RoundedQueries(values=values, scale=scale, taken=taken, dtype=q.dtype, softmax_scale=softmax_scale)


def _home(impl: RoundingImpl, x: Tensor) -> Any:
    if impl == "reference" or (impl == "auto" and not (x.is_cuda and not broken("triton.language"))):
        return reference
    from strobe.eightbit.impl import rounding_triton

    return rounding_triton
