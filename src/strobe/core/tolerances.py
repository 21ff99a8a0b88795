"""Allowed errors of found values, by measure and dtype, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

Measure = Literal[
    "latents", "call", "sampled", "lse", "rounding", "element", "sparse element", "element of a library", "lse of a library",
    "sparse lse of a library",
]  # fmt: skip

TOLERANCES: Final[Mapping[Measure, Mapping[str, float]]] = MappingProxyType(
    {
        # root mean square of the difference / of the expected values, of latents over a few frame blocks: each feeds on those
        # before it, so rounding grows
        "latents": {"float32": 1e-4, "bfloat16": 0.1},
        # the same of one attention call against the reference in float64
        "call": {"float64": 1e-6, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2},
        # the same of chosen queries of a large call; float32 is that of a GPU's matrix units
        "sampled": {"float32": 1e-4, "float16": 3e-3, "bfloat16": 1e-2},
        # largest absolute error of an lse of those queries
        "lse": {"float32": 1e-4, "float16": 5e-3, "bfloat16": 1e-2},
        # largest error of one element where the same numbers are added in another order
        "rounding": {"float32": 1e-6},
        # largest error of one element, of outputs and gradients of an operator of ours, relative and beside the largest value
        "element": {"float64": 1e-12, "float32": 1e-5, "float16": 3e-3, "bfloat16": 2e-2},
        # the same of block-sparse attention, whose softmax is in float32 at any dtype
        "sparse element": {"float64": 1e-6, "float32": 1e-5, "float16": 3e-3, "bfloat16": 2e-2},
        # the same where a library on a GPU computes it
        "element of a library": {"float32": 1e-4, "float16": 3e-3, "bfloat16": 2e-2},
        # the same of the lse of dense attention, and of block-sparse attention, by the dtype of q
        "lse of a library": {"float32": 1e-4, "float16": 3e-3, "bfloat16": 3e-3},
        "sparse lse of a library": {"float32": 2e-3, "float16": 2e-3, "bfloat16": 2e-3},
    }
)


def tolerance(measure: Measure, dtype: object) -> float:
    """Return the largest error of a measure.

    Args:
        dtype: torch's, or its name.
    """
    return TOLERANCES[measure][str(dtype).removeprefix("torch.")]
