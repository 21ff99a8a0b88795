"""Allowed errors of found values, by measure and dtype, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

Measure = Literal[
    "latents", "call", "sampled", "lse", "rounding", "element", "sparse element", "element of a library", "lse of a library",
    "sparse lse of a library",
    "merge", "gradient of a merge", "gradient through an lse", "any scale", "video of a GPU", "lse of a video of a GPU",
    "harmless entry", "checked query", "scale of a row", "eight bits", "layer", "fused layer", "pass", "convolution",
    "rotation", "eight-bit layer", "transformer",
    "flow", "stream", "stream of a GPU", "stream of two GPUs", "stream far away", "recomputed past", "text",
    "corner of a picture", "moved picture", "world", "resumed weights",
    "eight-bit attention", "eight-bit attention of noise", "eight-bit kernel", "lse in eight bits", "lse of an eight-bit kernel",
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
        # largest error of one element of attention merged from parts against the whole, whose lse between the parts is float32;
        # and of its gradients, and of those through an lse, also relative to the largest
        "merge": {"float32": 2e-6},
        "gradient of a merge": {"float32": 5e-6},
        "gradient through an lse": {"float32": 2e-5},
        # the same of attention at any softmax scale, up to one at which scores reach 1000
        "any scale": {"float32": 5e-4},
        # the same of video attention on a GPU, and its lse
        "video of a GPU": {"bfloat16": 4e-2},
        "lse of a video of a GPU": {"bfloat16": 5e-3},
        # the same of block-sparse attention with entries that must be harmless
        "harmless entry": {"float16": 4e-3},
        # the same of queries that a benchmark chose to check
        "checked query": {"float64": 1e-9},
        # relative error of the scale of a row in eight bits, and error of its numbers beside the largest
        "scale of a row": {"float32": 3e-7},
        "eight bits": {"float8_e4m3fn": 0.01},
        # root mean square of the difference / of the expected values, of attention in eight bits against attention in float64: of
        # inputs as video models make them, and of independent normal numbers, whose output is an average of noise; and of its
        # kernels against its reference, where a rounded number may fall the other way, and where parts have other largest weights
        "eight-bit attention": {"float64": 2e-2, "float32": 2e-2, "float16": 2e-2, "bfloat16": 2e-2},
        "eight-bit attention of noise": {"float64": 6e-2, "float32": 6e-2, "float16": 6e-2, "bfloat16": 6e-2},
        "eight-bit kernel": {"float16": 6e-3, "bfloat16": 6e-3},
        # root mean square error of the lse of both
        "lse in eight bits": {"float64": 2e-2, "float32": 2e-2, "float16": 2e-2, "bfloat16": 2e-2},
        "lse of an eight-bit kernel": {"float16": 1e-3, "bfloat16": 1e-3},
        # largest error of one element of a layer, of a layer that a kernel fuses, of a pass, of a convolution in another form
        "layer": {"float32": 2e-6},
        "fused layer": {"float32": 5e-6},
        "pass": {"float32": 2e-5},
        "convolution": {"float64": 1e-13, "bfloat16": 0.1},
        # the same, relative, of rotated queries and keys; of a layer in eight bits against the same numbers by hand, whose result
        # a GPU's matrix units write in bfloat16; of a whole transformer
        "rotation": {"float64": 1e-12, "float32": 1e-6},
        "eight-bit layer": {"float32": 1e-5, "bfloat16": 1e-2},
        "transformer": {"float32": 1e-5},
        # the same of noise and clean latents against each other
        "flow": {"float32": 5e-7},
        # the same of latents streamed in two ways; on a GPU; on two; after 1,000,000 latent frames
        "stream": {"float32": 2e-5, "bfloat16": 0.2},
        "stream of a GPU": {"float32": 2e-3},
        "stream of two GPUs": {"float32": 1e-4},
        "recomputed past": {"float32": 1e-5},
        "stream far away": {"float32": 1e-3},
        # the same of embeddings of a text, where TF32 may be on
        "text": {"float32": 1e-3},
        # the same of a drawn picture near a corner, and of a floor that has moved
        "corner of a picture": {"float32": 0.25},
        "moved picture": {"float32": 2e-4},
        # the same of the course of a world, and of weights trained on after a pause, whose moments are kept in bfloat16 or not
        "world": {"float32": 1e-4},
        "resumed weights": {"float32": 5e-5, "bfloat16": 2e-3},
    }
)


def tolerance(measure: Measure, dtype: object) -> float:
    """Return the largest error of a measure.

    Args:
        dtype: torch's, or its name.
    """
    return TOLERANCES[measure][str(dtype).removeprefix("torch.")]
