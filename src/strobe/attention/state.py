"""The algebra of partial attention: results over disjoint sets of keys merge into the result over their union.

An `AttentionOutput` with its lse is a sufficient statistic: with `L_i` the natural-log softmax denominator of part `i`,

    L = log sum_i exp(L_i)          out = sum_i exp(L_i - L) out_i

is attention over all keys, whatever the order and grouping. An empty part (`L_i = -inf`, `out_i = 0`) is the neutral element.
Source: online softmax, Milakov and Gimelshein, arXiv 1805.02867; tree attention, arXiv 2408.04093.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from strobe.attention.types import AttentionOutput
from strobe.core.errors import ShapeError


def merge(states: Sequence[AttentionOutput]) -> AttentionOutput:
    """Merge attention over disjoint sets of keys into attention over their union.

    Exact up to rounding: weights and sums are float32 (float64 for float64 outputs) and the result is rounded once.
    Differentiable in every `out` and through every `lse`. A row that is empty in all parts stays empty: out 0, lse -inf,
    gradients 0. A NaN in any part is in the result.

    Args:
        states: at least one; `out` `[B, S, H, D]` of one shape and dtype, `lse` float32 `[B, H, S]`.

    Returns:
        `out` in the dtype of the parts, `lse` float32 `[B, H, S]`.

    Raises:
        ShapeError: no state, a state without lse, or states that do not fit together.
    """
    lses = _checked(states)
    wide = torch.promote_types(states[0].out.dtype, torch.float32)
    with torch.no_grad():
        top = torch.stack(lses).amax(dim=0)  # [B, H, S]; any constant gives the same result, this one cannot overflow
        top = torch.where(top.isinf() & (top < 0), torch.zeros_like(top), top)
    total = torch.zeros_like(top)
    weighted: Tensor | None = None
    for state, lse in zip(states, lses, strict=True):
        weight = torch.exp(lse - top)  # [B, H, S]
        total = total + weight
        part = state.out.to(wide) * _per_row(weight.to(wide))
        weighted = part if weighted is None else weighted + part
    assert weighted is not None
    empty = total == 0
    divisor = torch.where(empty, torch.ones_like(total), total)
    lse = torch.where(empty, torch.full_like(total, float("-inf")), top + torch.log(divisor))
    return AttentionOutput(out=(weighted / _per_row(divisor.to(wide))).to(states[0].out.dtype), lse=lse)


def _checked(states: Sequence[AttentionOutput]) -> list[Tensor]:
    """The lse of every state, once they all fit together."""
    if not states:
        raise ShapeError("states: got none, expected at least one AttentionOutput")
    out = states[0].out
    if out.dim() != 4:
        raise ShapeError(f"states[0].out: got shape {tuple(out.shape)}, expected [B, S, H, D]")
    rows = (out.shape[0], out.shape[2], out.shape[1])
    lses = []
    for i, state in enumerate(states):
        if state.out.shape != out.shape or state.out.dtype != out.dtype or state.out.device != out.device:
            given, wanted = (f"{tuple(each.shape)} {each.dtype} on {each.device}" for each in (state.out, out))
            raise ShapeError(f"states[{i}].out: got {given}, expected {wanted} like states[0]")
        if state.lse is None:
            raise ShapeError(f"states[{i}].lse: got None, expected the lse; call the operator with return_lse=True")
        if state.lse.shape != rows or state.lse.dtype != torch.float32:
            raise ShapeError(f"states[{i}].lse: got {tuple(state.lse.shape)} {state.lse.dtype}, expected {rows} torch.float32")
        lses.append(state.lse)
    return lses


def _per_row(weight: Tensor) -> Tensor:
    """A factor per row, laid out like `out`: `[B, H, S]` to `[B, S, H, 1]`."""
    return weight.transpose(1, 2).unsqueeze(-1)
