"""Kinds of kernels, by their names: attention, matrix products, or others.

Libraries name their matrix products by a few words (GEMM, nvjet, Tensile's Cijk) and attention by fewer; what PyTorch's compiler
fuses into pointwise and reduction kernels carries the names of other operators and is neither. A kernel with an unknown
name is counted with the others, so the kinds always add up.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from strobe.perf.analysis.device.names import kernel_name

_FUSED: Final = re.compile(r"triton_(?:poi|per|red|for)_")
_ATTENTION: Final = re.compile(r"flash|fmha|attn|attention|attend|sdpa", re.IGNORECASE)
_MATRIX: Final = re.compile(
    r"gemm|gemv|nvjet|cijk_|matmul|splitk|(?<![a-z])(?:add|badd|b)?mm(?![a-z])"
    r"|conv(?:ol|\dd|_|$)|(?<![a-z])(?:fprop|dgrad|wgrad)(?![a-z])|winograd",
    re.IGNORECASE,
)


class KernelKind(StrEnum):
    """Kinds of computation of a kernel."""

    ATTENTION = "attention"
    MATRIX = "matrix products"
    OTHER = "other"


def kernel_kind(raw: str) -> KernelKind:
    """Return the kind of computation that a kernel's name in the trace tells."""
    name = kernel_name(raw).group
    if _FUSED.match(name):
        return KernelKind.OTHER
    if _ATTENTION.search(name):
        return KernelKind.ATTENTION
    return KernelKind.MATRIX if _MATRIX.search(name) else KernelKind.OTHER
