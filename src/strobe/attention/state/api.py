"""The algebra of partial attention: results over disjoint sets of keys merge into the result over their union.

An `AttentionOutput` with its lse is a sufficient statistic: with `L_i` the natural-log softmax denominator of part `i`,

    L = log sum_i exp(L_i)          out = sum_i exp(L_i - L) out_i

is attention over all keys, whatever the order and grouping. An empty part (`L_i = -inf`, `out_i = 0`) is the neutral element.
Source: online softmax, Milakov and Gimelshein, arXiv 1805.02867; tree attention, arXiv 2408.04093.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module

import torch
from torch import Tensor

from strobe.attention.around import ambient
from strobe.attention.state.impl import reference
from strobe.attention.types import AttentionOutput, traced
from strobe.core.errors import ImplUnavailableError, ShapeError, unknown_choice
from strobe.core.libraries import broken
from strobe.core.settings import read_settings

_State = tuple[Tensor, Tensor, Tensor | None]


def merge(
    states: Sequence[AttentionOutput],
    *,
    rows: Sequence[Tensor | None] | None = None,
    into: AttentionOutput | None = None,
    return_lse: bool = True,
    impl: str = "auto",
) -> AttentionOutput:
    """Merge attention over disjoint sets of keys into attention over their union.

    Exact up to rounding: weights and sums are float32 (float64 for float64 outputs) and the result is rounded once.
    Differentiable in every `out` and through every `lse`. A row that is empty in all parts stays empty: out 0, lse -inf,
    gradients 0. A NaN in any part is in the result.

    Args:
        states: at least one; `out` `[B, S, H, D]` of one dtype, `lse` float32 `[B, H, S]`. All of one shape, but for the rows.
        rows: for each state where the rows of the result lie in it, int64 `[S]`, or None where they lie as they are. Such a
            state may have any number of rows; those that `rows` does not name are not read.
        into: where the result goes and what is returned, such as some rows of larger tensors; it may be the memory of a state
            without `rows`. Its lse may be None.
        return_lse: also return the lse; with `into` it is that one's.
        impl: `auto`, `triton` or `reference`; `auto` takes `triton` where it runs and no gradient is wanted.

    Returns:
        `out` in the dtype of the parts, `lse` float32 `[B, H, S]`.

    Raises:
        ShapeError: no state, a state without lse, or states that do not fit together.
        ConfigError: no impl has that name.
        ImplUnavailableError: the named impl cannot run this call.
    """
    parts = _checked(states, rows)
    if into is not None:
        part, _, place = parts[0]
        wanted = (part.shape[0], part.shape[1] if place is None else place.shape[0], *part.shape[2:])
        _check("into.out", into.out, wanted, part.dtype, part)
        if into.lse is not None:
            _check_lse("into", into.lse, into.out)
    out = parts[0][0]
    with ambient(out):
        if _takes_triton(parts, impl):
            merged: AttentionOutput = import_module("strobe.attention.state.impl.triton").merge(parts, into, return_lse)
            return merged
        merged = reference.merge(parts)
    assert merged.lse is not None
    if into is None:
        return AttentionOutput(out=merged.out, lse=merged.lse.float() if return_lse else None)
    into.out.copy_(merged.out)
    if into.lse is not None:
        into.lse.copy_(merged.lse)
    return into


def _takes_triton(parts: Sequence[_State], impl: str) -> bool:
    """Choose the Triton kernel (True) or plain PyTorch; under torch.compile `auto` takes PyTorch, which the compiler fuses."""
    if impl not in ("auto", "triton", "reference"):
        raise unknown_choice("impl", impl, ("auto", "triton", "reference"))
    if impl == "reference" or (impl == "auto" and traced()):
        return False
    reason = _refuses(parts)
    if reason is not None and impl == "triton":
        raise ImplUnavailableError("triton", reason, alternatives=("reference",))
    return reason is None


def _refuses(parts: Sequence[_State]) -> str | None:
    out = parts[0][0]
    if not _runs(out.device.type):
        return f"it needs Triton and a CUDA device, and the states are on {out.device}"
    if out.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"it has no {out.dtype}"
    if torch.is_grad_enabled() and any(out.requires_grad or lse.requires_grad for out, lse, _ in parts):
        return "it has no gradient"
    if traced() or torch._C._len_torch_dispatch_stack() or any(type(out) is not Tensor for out, _, _ in parts):
        return "something looks at the operations"
    return None


@cache
def _runs(device_type: str) -> bool:
    able = device_type == "cuda" or (device_type == "cpu" and read_settings().triton_interpret)
    return able and not broken("triton.language")


def _checked(states: Sequence[AttentionOutput], rows: Sequence[Tensor | None] | None) -> list[_State]:
    if not states:
        raise ShapeError("states: got none, expected at least one AttentionOutput")
    places = [None] * len(states) if rows is None else list(rows)
    if len(places) != len(states):
        raise ShapeError(f"rows: got {len(places)} entries, expected one, a tensor or None, for each of {len(states)} states")
    first = states[0].out
    if first.dim() != 4 or first.itemsize < 2:
        raise ShapeError(f"states[0].out: got shape {tuple(first.shape)} {first.dtype}, expected [B, S, H, D] of over 8 bits")
    wide = torch.promote_types(first.dtype, torch.float32)
    number = first.shape[1] if places[0] is None else places[0].shape[0]
    parts = []
    for i, (state, place) in enumerate(zip(states, places, strict=True)):
        length = state.out.shape[1] if place is not None and state.out.dim() == 4 else number
        _check(f"states[{i}].out", state.out, (first.shape[0], length, *first.shape[2:]), first.dtype, first, " like states[0]")
        if state.lse is None:
            raise ShapeError(f"states[{i}].lse: got None, expected the lse; call the operator with return_lse=True")
        _check_lse(f"states[{i}]", state.lse, state.out)
        if place is not None:
            _check(f"rows[{i}]", place, (number,), torch.int64, first)
        parts.append((state.out, state.lse.to(wide), place))
    return parts


def _check(name: str, found: Tensor, shape: tuple[int, ...], dtype: torch.dtype, like: Tensor, why: str = "") -> None:
    if tuple(found.shape) != shape or found.dtype != dtype or found.device != like.device:
        given = f"{tuple(found.shape)} {found.dtype} on {found.device}"
        raise ShapeError(f"{name}: got {given}, expected {shape} {dtype} on {like.device}{why}")


def _check_lse(name: str, lse: Tensor, out: Tensor) -> None:
    wanted = (out.shape[0], out.shape[2], out.shape[1])
    if tuple(lse.shape) != wanted or lse.dtype != torch.float32:
        raise ShapeError(f"{name}.lse: got {tuple(lse.shape)} {lse.dtype}, expected {wanted} torch.float32")
