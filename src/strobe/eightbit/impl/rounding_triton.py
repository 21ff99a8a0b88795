"""Rounding for attention in eight bits in Triton: queries, keys and values in one launch, each read once and written once.

A program takes some rows of one head: of queries, of keys, or of what stands in a block of the values. Values are put transposed,
in the order of `rounded.ORDER`, so their programs own whole blocks of columns, which a run of tokens fills but for its first and
last one: only those are written number by number.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from strobe.eightbit.rounded import LOG2E, Arriving, RoundedKeys, hadamard

_MAGIC = tl.constexpr(12582912.0)
"""1.5 * 2^23: a float32 plus it has the rounded number in its low bits."""
_ROWS: Final = 128
"""Queries, or keys, of a program."""
_SPAN: Final = 64
"""Columns of values of a program."""
_WARPS: Final = 8


@triton.jit
def in_order(p, rows: tl.constexpr, keys: tl.constexpr):
    """Put columns into the order of the values."""
    apart = p.reshape(rows, keys // 32, 2, 2, 4, 2)
    return apart.permute(0, 1, 2, 4, 3, 5).reshape(rows, keys)


@triton.jit
def _near(x):
    """Round to int8, to the nearest; what is beyond takes the largest."""
    return (tl.minimum(tl.maximum(x, -127.0), 127.0) + _MAGIC).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
def _turned(ptr, turn_ptr, place, there, channel, dim: tl.constexpr):
    """Load rows and turn them."""
    x = tl.load(ptr + place[:, None] + channel[None, :], mask=there[:, None], other=0.0)
    return tl.dot(x, tl.load(turn_ptr + channel[:, None] * dim + channel[None, :])).to(tl.float32)


@triton.jit(do_not_specialize=["num_q", "num_k", "run", "blocks", "q_tiles", "k_tiles"])
def _round_kernel(
    q_ptr, k_ptr, v_ptr, rows_ptr, turn_ptr, k_mean_ptr, k_scale_ptr, v_mean_ptr, v_scale_ptr,
    small_q_ptr, q_scale_ptr, taken_ptr, small_k_ptr, small_v_ptr,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, kept_batch, kept_head, wide_batch, wide_head, width,
    num_q, num_k, run, blocks, q_tiles, k_tiles, factor,
    with_taken: tl.constexpr, rows: tl.constexpr, span: tl.constexpr, dim: tl.constexpr,
):  # fmt: skip
    """Round some queries, some keys, or some columns of values of one head of one sample."""
    piece, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    line = batch * tl.num_programs(1) + head  # of constants and queries
    channel = tl.arange(0, dim)
    if piece < q_tiles:
        at = piece * rows + tl.arange(0, rows)
        there = at < num_q
        turned = _turned(q_ptr + batch * q_batch + head * q_head, turn_ptr, at.to(tl.int64) * q_row, there, channel, dim)
        most = tl.maximum(tl.max(tl.abs(turned), 1), 1e-12)
        place = (line * num_q + at)[:, None] * dim + channel[None, :]
        tl.store(small_q_ptr + place, _near(turned * (127.0 / most)[:, None]), mask=there[:, None])
        tl.store(q_scale_ptr + line * num_q + at, most / 127.0 * factor * tl.load(k_scale_ptr + line), mask=there)
        if with_taken:
            taken = tl.sum(turned * tl.load(k_mean_ptr + line * dim + channel)[None, :], 1) * factor * 0.6931471805599453
            tl.store(taken_ptr + line * num_q + at, taken, mask=there)
    elif piece < q_tiles + k_tiles:
        at = (piece - q_tiles) * rows + tl.arange(0, rows)
        row = tl.load(rows_ptr + at, mask=at < num_k, other=-1)
        there = row >= 0
        turned = _turned(k_ptr + batch * k_batch + head * k_head, turn_ptr, at.to(tl.int64) * k_row, there, channel, dim)
        turned -= tl.load(k_mean_ptr + line * dim + channel)[None, :]
        place = batch * kept_batch + head.to(tl.int64) * kept_head + row[:, None] * dim + channel[None, :]
        tl.store(small_k_ptr + place, _near(turned * (1.0 / tl.load(k_scale_ptr + line))), mask=there[:, None])
    else:
        number = (piece - q_tiles - k_tiles) // blocks
        start = tl.load(rows_ptr + number * run).to(tl.int32)
        begin = (start // span + (piece - q_tiles - k_tiles) % blocks) * span
        if (start >= 0) & (begin < start + run):
            spot = tl.arange(0, span)
            there = (begin + spot >= start) & (begin + spot < start + run)
            token = (number * run + begin - start + spot).to(tl.int64)
            place = batch * v_batch + head * v_head + token[:, None] * v_row + channel[None, :]
            v = tl.load(v_ptr + place, mask=there[:, None], other=0.0)
            mean, scale = tl.load(v_mean_ptr + line * dim + channel), tl.load(v_scale_ptr + line * dim + channel)
            smooth = (v.to(tl.float32) - mean[None, :]) * (1.0 / scale)[None, :]
            small = tl.minimum(tl.maximum(smooth, -448.0), 448.0).to(tl.float8e4nv)
            small = in_order(tl.trans(small), dim, span)
            target = small_v_ptr + batch * wide_batch + head.to(tl.int64) * wide_head + begin
            target += channel[:, None] * width + spot[None, :]
            if (begin >= start) & (begin + span <= start + run):
                tl.store(target, small)
            else:
                key = (spot // 32) * 32 + ((spot >> 4) & 1) * 16 + ((spot >> 1) & 1) * 8 + ((spot >> 2) & 3) * 2 + (spot & 1)
                seen = (begin + key >= start) & (begin + key < start + run)
                tl.store(target, small, mask=seen[None, :])


def store(kept: RoundedKeys, new: Arriving) -> None:
    """Store as `rounding.store`."""
    _launch(None, kept, 0.0, new, False)


def round_queries(
    q: Tensor, kept: RoundedKeys, softmax_scale: float, new: Arriving | None, with_taken: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Round as `rounding.round_queries`."""
    return _launch(q, kept, softmax_scale, new, with_taken)


def _launch(
    q: Tensor | None, kept: RoundedKeys, softmax_scale: float, new: Arriving | None, with_taken: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Round queries, or none, and store keys and values, or none."""
    some = next(each for each in (q, new and new.k) if each is not None)
    device, (batch, heads, _, dim) = some.device, kept.keys.shape
    num_q, num_k = 0 if q is None else q.shape[1], 0 if new is None else new.k.shape[1]
    q_tiles, k_tiles, blocks, v_tiles = triton.cdiv(num_q, _ROWS), triton.cdiv(num_k, _ROWS), 1, 0
    if new is not None and new.v is not None and num_k:
        blocks = (new.run - 2) // _SPAN + 2  # that a run touches at most
        v_tiles = num_k // new.run * blocks
    small = torch.empty((batch, heads, num_q, dim), dtype=torch.int8, device=device)
    scale = torch.empty((batch, heads, num_q), dtype=torch.float32, device=device)
    taken = torch.empty_like(scale) if with_taken else None
    k = v = some  # where there are none, no program reads them
    rows = torch.empty(0, dtype=torch.int64, device=device)
    if new is not None:
        k, v, rows = new.k, new.k if new.v is None else new.v, new.rows
    inputs = [each if each.stride(3) == 1 else each.contiguous() for each in (some if q is None else q, k, v)]
    strides = [stride for each in inputs for stride in each.stride()[:3]]
    if q_tiles + k_tiles + v_tiles:
        _round_kernel[(q_tiles + k_tiles + v_tiles, heads, batch)](
            *inputs, rows, hadamard(dim, device, some.dtype), kept.key_mean, kept.key_scale, kept.value_mean, kept.value_scale,
            small, scale, scale if taken is None else taken, kept.keys, kept.values,
            *strides, *kept.keys.stride()[:2], *kept.values.stride()[:3],
            num_q, num_k, 1 if new is None else new.run, blocks, q_tiles, k_tiles, softmax_scale * LOG2E / dim,
            with_taken=with_taken, rows=_ROWS, span=_SPAN, dim=dim, num_warps=_WARPS,
        )  # fmt: skip
    return small, scale, taken
