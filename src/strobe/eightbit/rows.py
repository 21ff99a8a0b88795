"""Rows in eight bits: `x = values * scale` with one float32 scale per row.

``scale = max(max |x| / limit, 1e-12)`` and ``values = round(x / scale)``, to the nearest, ties to even: `limit` is 448 for
"fp8" (float8_e4m3fn) and 127 for "int8" (symmetric). A row of zeros stays one. A NaN or an infinity makes its whole row NaN.
The error is at most half a step: ``scale / 2`` for "int8"; for "fp8" ``|x| / 16``, or ``scale / 1024`` where that is more.

Source: FP8 Formats for Deep Learning (Micikevicius et al. 2022), section 3.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Literal

import torch
from torch import Tensor

from strobe.core.device import card_of
from strobe.core.libraries import broken
from strobe.eightbit.impl import reference
from strobe.eightbit.types import Quantized

EightBit = Literal["fp8", "int8"]
DTYPES: Final[dict[EightBit, torch.dtype]] = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
FP8_CAPABILITY: Final = (8, 9)
"""First compute capability whose instructions turn numbers into FP8. AMD's GPUs have other formats, or none."""


def quantize_rows(x: Tensor, to: EightBit = "fp8") -> Quantized:
    """Quantise the rows of x, one scale each; see the module for the formula.

    On a GPU one kernel reads x once; under `torch.compile`, which fuses it with what comes before, and on a CPU it is plain
    PyTorch. Both give the same bits.

    Args:
        x: `[..., K]`, float32, float16 or bfloat16.
        to: format of the values.
    """
    values, scale = _impl(x, to).quantize_rows(x, DTYPES[to])
    return Quantized(values=values, scale=scale)


def store_rows(pair: tuple[Tensor, Tensor], rows: Tensor, kept: Quantized) -> None:
    """Quantise tokens head by head and store them at their rows. Nothing syncs.

    Args:
        pair: keys and values `[B, T, H, D]`, any strides but 1 for the last.
        rows: int64 `[T]` on the device, row of each token; -1: it is not stored.
        kept: `[2, B, R, H, D]` and `[2, B, R, H, 1]`, keys first; written in place.
    """
    _impl(rows, "int8" if kept.values.dtype == torch.int8 else "fp8").store_rows(pair, rows, kept)


def expand_rows(kept: Quantized, out: Tensor) -> None:
    """Dequantise as many leading rows as `out` has. Nothing syncs.

    Args:
        kept: `[2, B, R, H, D]` and `[2, B, R, H, 1]`.
        out: `[2, B, rows, H, D]`, contiguous but for its first two strides; written in place.
    """
    _impl(out, "int8" if kept.values.dtype == torch.int8 else "fp8").expand_rows(kept, out)


def _impl(x: Tensor, to: EightBit) -> Any:
    """Return the module to use: Triton on a GPU with the needed instructions, else the reference, which a compiler can trace."""
    if not x.is_cuda or torch.compiler.is_compiling() or not _has_kernels(x.device, to):
        return reference
    from strobe.eightbit.impl import triton

    return triton


@cache
def _has_kernels(device: torch.device, to: EightBit) -> bool:
    return (to == "int8" or card_of(device).capability >= FP8_CAPABILITY) and not broken("triton.language")
