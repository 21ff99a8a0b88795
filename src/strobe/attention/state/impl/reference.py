"""Merging in PyTorch: the specification, differentiable."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from strobe.attention.types import AttentionOutput


def merge(states: Sequence[tuple[Tensor, Tensor, Tensor | None]]) -> AttentionOutput:
    """Merge `(out, lse, rows)` of each part; weights and sums are float32 (float64 for float64), the result is rounded once."""
    outs = [out if rows is None else out.index_select(1, rows) for out, _, rows in states]
    lses = [lse if rows is None else lse.index_select(2, rows) for _, lse, rows in states]
    wide = torch.promote_types(outs[0].dtype, torch.float32)
    with torch.no_grad():
        top = torch.stack(lses).amax(dim=0)  # [B, H, S]; any constant gives the same result, this one cannot overflow
        top = torch.where(top.isinf() & (top < 0), torch.zeros_like(top), top)
    total = torch.zeros_like(top)
    weighted: Tensor | None = None
    for out, lse in zip(outs, lses, strict=True):
        weight = torch.exp(lse - top)  # [B, H, S]
        total = total + weight
        part = out.to(wide) * _per_row(weight.to(wide))
        weighted = part if weighted is None else weighted + part
    assert weighted is not None
    empty = total == 0
    divisor = torch.where(empty, torch.ones_like(total), total)
    lse = torch.where(empty, torch.full_like(total, float("-inf")), top + torch.log(divisor))
    return AttentionOutput(out=(weighted / _per_row(divisor.to(wide))).to(outs[0].dtype), lse=lse)


def _per_row(weight: Tensor) -> Tensor:
    """Reshape a factor per row to the layout of `out`: `[B, H, S]` to `[B, S, H, 1]`."""
    return weight.transpose(1, 2).unsqueeze(-1)
