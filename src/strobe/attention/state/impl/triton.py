"""Merging in Triton: every part is read once and the result is written once.

Without gradients. Weights and sums are float32; nothing syncs, and no configuration depends on a length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from strobe.attention.sparse.launch import Launcher
from strobe.attention.types import AttentionOutput

_State = tuple[Tensor, Tensor, Tensor | None]
"""`(out, lse, rows)` of a part."""
_ELEMENTS: Final = 4096
"""Elements of each part that a program holds."""
_MOST: Final = 4
"""States that a launch merges."""


@triton.jit
def _lse_of(lse_ptr, rows_ptr, at, there, batch, head, step_batch, step_head, step_row):
    """Load the row numbers of one part, and the lse of these rows."""
    row = at.to(tl.int64)
    if rows_ptr is not None:
        row = tl.load(rows_ptr + at, mask=there, other=0)
    lse = tl.load(lse_ptr + batch * step_batch + head * step_head + row * step_row, mask=there, other=float("-inf"))
    return row, lse


@triton.jit
def _part_of(out_ptr, row, weight, there, channel, batch, head, step_batch, step_row, step_head, width: tl.constexpr):
    """Load the rows of one part times their weight; a NaN with weight 0 stays NaN."""
    at = batch * step_batch + head * step_head + row[:, None] * step_row + channel[None, :]
    out = tl.load(out_ptr + at, mask=there[:, None] & (channel < width)[None, :], other=0.0)
    return out.to(tl.float32) * weight[:, None]


@triton.jit
def _merge_kernel(
    out_ptr, lse_ptr,
    out_0_ptr, lse_0_ptr, rows_0_ptr, out_1_ptr, lse_1_ptr, rows_1_ptr,
    out_2_ptr, lse_2_ptr, rows_2_ptr, out_3_ptr, lse_3_ptr, rows_3_ptr,
    out_batch, out_row, out_head, lse_batch, lse_head, lse_row,
    out_batch_0, out_row_0, out_head_0, lse_batch_0, lse_head_0, lse_row_0,
    out_batch_1, out_row_1, out_head_1, lse_batch_1, lse_head_1, lse_row_1,
    out_batch_2, out_row_2, out_head_2, lse_batch_2, lse_head_2, lse_row_2,
    out_batch_3, out_row_3, out_head_3, lse_batch_3, lse_head_3, lse_row_3,
    num_rows, num_heads,
    run: tl.constexpr, width: tl.constexpr, padded: tl.constexpr, parts: tl.constexpr,
):  # fmt: skip
    """Merge one run of rows of one head: the weights of all parts, then their sum."""
    head, batch = (tl.program_id(0) % num_heads).to(tl.int64), tl.program_id(1).to(tl.int64)
    at, channel = tl.program_id(0) // num_heads * run + tl.arange(0, run), tl.arange(0, padded)
    there = at < num_rows
    row_0, lse_0 = _lse_of(lse_0_ptr, rows_0_ptr, at, there, batch, head, lse_batch_0, lse_head_0, lse_row_0)
    top = lse_0
    if parts > 1:
        row_1, lse_1 = _lse_of(lse_1_ptr, rows_1_ptr, at, there, batch, head, lse_batch_1, lse_head_1, lse_row_1)
        top = tl.maximum(top, lse_1)
    if parts > 2:
        row_2, lse_2 = _lse_of(lse_2_ptr, rows_2_ptr, at, there, batch, head, lse_batch_2, lse_head_2, lse_row_2)
        top = tl.maximum(top, lse_2)
    if parts > 3:
        row_3, lse_3 = _lse_of(lse_3_ptr, rows_3_ptr, at, there, batch, head, lse_batch_3, lse_head_3, lse_row_3)
        top = tl.maximum(top, lse_3)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.exp(lse_0 - top)
    acc = _part_of(out_0_ptr, row_0, total, there, channel, batch, head, out_batch_0, out_row_0, out_head_0, width)
    if parts > 1:
        weight = tl.exp(lse_1 - top)
        total += weight
        acc += _part_of(out_1_ptr, row_1, weight, there, channel, batch, head, out_batch_1, out_row_1, out_head_1, width)
    if parts > 2:
        weight = tl.exp(lse_2 - top)
        total += weight
        acc += _part_of(out_2_ptr, row_2, weight, there, channel, batch, head, out_batch_2, out_row_2, out_head_2, width)
    if parts > 3:
        weight = tl.exp(lse_3 - top)
        total += weight
        acc += _part_of(out_3_ptr, row_3, weight, there, channel, batch, head, out_batch_3, out_row_3, out_head_3, width)
    divisor = tl.where(total == 0.0, 1.0, total)
    tl.debug_barrier()  # the result may go where a part lies, and every warp reads every lse
    place = batch * out_batch + head * out_head + at.to(tl.int64)[:, None] * out_row + channel[None, :]
    out = (acc * (1.0 / divisor)[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + place, out, mask=there[:, None] & (channel < width)[None, :])
    if lse_ptr is not None:
        lse = tl.where(total == 0.0, float("-inf"), top + tl.log(divisor))
        tl.store(lse_ptr + batch * lse_batch + head * lse_head + at.to(tl.int64) * lse_row, lse, mask=there)


_MERGE: Final = Launcher(_merge_kernel)


def merge(states: Sequence[_State], into: AttentionOutput | None, return_lse: bool) -> AttentionOutput:
    """Merge as `reference.merge`, states of 16 or 32 bits, written where `into` says; a launch for 4, one more for every 3.

    Over more than 4 states the lse of what is merged so far is rounded once more. Every lse is therefore taken relative to the
    largest of its row first: float32 rounds 30 by up to 1e-6, and the log of a sum of few weights by 1e-7.
    """
    first, _, rows = states[0]
    batch, _, heads, width = first.shape
    number = first.shape[1] if rows is None else rows.shape[0]
    if into is None:
        out = torch.empty((batch, number, heads, width), dtype=first.dtype, device=first.device)
        lse = torch.empty((batch, heads, number), dtype=torch.float32, device=first.device) if return_lse else None
        into = AttentionOutput(out=out, lse=lse)
    if into.out.numel() == 0:
        return into
    top = None
    if len(states) > _MOST:
        states, top = _relative(states)
    while len(states) > _MOST:  # outputs merged so far stay float32
        wide = torch.empty((batch, number, heads, width), dtype=torch.float32, device=first.device)
        lse = torch.empty((batch, heads, number), dtype=torch.float32, device=first.device)
        _launch(states[:_MOST], wide, lse)
        states = [(wide, lse, None), *states[_MOST:]]
    target = into.out if into.out.stride(3) == 1 else torch.empty_like(into.out, memory_format=torch.contiguous_format)
    _launch(states, target, into.lse)
    if target is not into.out:
        into.out.copy_(target)
    if top is not None and into.lse is not None:
        into.lse.add_(top)
    return into


def _relative(states: Sequence[_State]) -> tuple[list[_State], Tensor]:
    """Subtract from every lse the largest of its row; return the states and these maxima, [B, H, S], 0 for rows empty in all."""
    chosen = [lse if rows is None else lse.index_select(2, rows) for _, lse, rows in states]
    top = torch.stack(chosen).amax(dim=0)
    top = torch.where(top.isneginf(), torch.zeros_like(top), top)
    relative = []
    for (out, lse, rows), its in zip(states, chosen, strict=True):
        less = its - top
        relative.append((out, less if rows is None else torch.empty_like(lse).index_copy_(2, rows, less), rows))
    return relative, top


def _launch(states: Sequence[_State], out: Tensor, into_lse: Tensor | None) -> None:
    """Merge at most 4 states."""
    batch, number, heads, width = out.shape
    padded = triton.next_power_of_2(width)
    run = max(1, min(64, _ELEMENTS // padded))
    pointers: list[Tensor | None] = [out, into_lse]
    numbers = [*out.stride()[:3], *((0, 0, 0) if into_lse is None else into_lse.stride())]
    for part, lse, places in states:
        whole = part if part.stride(3) == 1 else part.contiguous()
        pointers += [whole, lse, None if places is None else places.contiguous()]
        numbers += [*whole.stride()[:3], *lse.stride()]
    missing = _MOST - len(states)
    _MERGE(
        (-(-number // run) * heads, batch, 1),
        (*pointers, *(None,) * (3 * missing)),
        (*numbers, *(0,) * (6 * missing), number, heads),
        (run, width, padded, len(states)),
        num_warps=4,
    )
