"""Rows in eight bits, in plain PyTorch: the specification. See `strobe.eightbit.rows`."""

from __future__ import annotations

import torch
from torch import Tensor

from strobe.eightbit.types import Quantized

LIMITS = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
SMALLEST = 1e-12
"""Of a scale, so that a row of zeros has one."""


def scales(most: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute scales from the rows' largest magnitudes. A product, not a quotient: every device rounds it the same way."""
    return (most.float() * (1.0 / LIMITS[dtype])).clamp(min=SMALLEST)


def rounded(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute ``x / scale`` in eight bits."""
    steps = x.float() * scale.reciprocal()
    return steps.nan_to_num(nan=0.0).round().to(dtype) if dtype == torch.int8 else steps.to(dtype)


def quantize_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """See `rows.quantize_rows`."""
    scale = scales(x.abs().amax(dim=-1, keepdim=True), dtype)
    return rounded(x, scale, dtype), scale


def store_rows(pair: tuple[Tensor, Tensor], rows: Tensor, kept: Quantized) -> None:
    """See `rows.store_rows`."""
    stored = rows >= 0
    for index, new in enumerate(pair):
        for target, source in zip(kept, quantize_rows(new[:, stored], kept.values.dtype), strict=True):
            target[index][:, rows[stored]] = source


def expand_rows(kept: Quantized, out: Tensor) -> None:
    """See `rows.expand_rows`."""
    values, scale = (tensor[:, :, : out.shape[2]] for tensor in kept)
    out.copy_(values.float() * scale)
