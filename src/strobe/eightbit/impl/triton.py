"""Rows in eight bits, in Triton: each tensor is read once and written once. Same bits as the reference.

Products must not be fused with the sums after them, which would round once where the reference rounds twice.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from strobe.eightbit.impl.reference import LIMITS, SMALLEST
from strobe.eightbit.types import Quantized

_ELEMENTS: Final = 4096
"""Numbers that a program holds at a time, unless one row has more."""


@triton.jit
def _magnitudes(x):
    """Return the bits of |x|, which sort like the numbers, with NaN above all."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _scales(bits, inverse_limit: tl.constexpr, smallest: tl.constexpr):
    """Compute scales from the bits of the rows' largest magnitudes; NaN stays."""
    scale = bits.to(tl.float32, bitcast=True) * inverse_limit
    return tl.where(scale < smallest, smallest, scale)


@triton.jit
def _rounded(x, scale, as_int: tl.constexpr):
    """Compute `x / scale` in eight bits; integers are rounded by adding and subtracting 1.5 * 2^23, whose step is one."""
    steps = x * tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
    if as_int:
        whole = (steps + 12582912.0) - 12582912.0
        values = tl.where(steps == steps, whole, 0.0).to(tl.int8)
    else:
        values = steps.to(tl.float8e4nv)
    return values


@triton.jit
def _rows_kernel(
    x_ptr, values_ptr, scale_ptr, num_rows, width, x_row,
    rows: tl.constexpr, columns: tl.constexpr, inverse_limit: tl.constexpr, smallest: tl.constexpr, as_int: tl.constexpr,
):  # fmt: skip
    """Quantise some rows: read, scale and store."""
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    column = tl.arange(0, columns)
    there = (row < num_rows)[:, None] & (column < width)[None, :]
    x = tl.load(x_ptr + row[:, None] * x_row + column[None, :], mask=there, other=0.0).to(tl.float32)
    scale = _scales(tl.max(_magnitudes(x), 1), inverse_limit, smallest)
    tl.store(values_ptr + row[:, None] * width + column[None, :], _rounded(x, scale[:, None], as_int), mask=there)
    tl.store(scale_ptr + row, scale, mask=row < num_rows)


@triton.jit
def _store_kernel(
    k_ptr, v_ptr, rows_ptr, values_ptr, scale_ptr,
    k_batch, k_row, k_head, v_batch, v_row, v_head, pair_lines, batch_lines, num_lines, heads,
    lines: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    inverse_limit: tl.constexpr, smallest: tl.constexpr, as_int: tl.constexpr,
):  # fmt: skip
    """Quantise and store some heads of some tokens of k or v; a line is one head of one token."""
    which, batch = (tl.program_id(1) % 2).to(tl.int64), (tl.program_id(1) // 2).to(tl.int64)
    line = tl.program_id(0) * lines + tl.arange(0, lines)
    there = line < num_lines
    token, head = (line // heads).to(tl.int64), (line % heads).to(tl.int64)
    channel = tl.arange(0, channels)
    inside = there[:, None] & (channel < width)[None, :]
    if which == 0:
        source = k_ptr + batch * k_batch + (token * k_row + head * k_head)[:, None]
    else:
        source = v_ptr + batch * v_batch + (token * v_row + head * v_head)[:, None]
    x = tl.load(source + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = _scales(tl.max(_magnitudes(x), 1), inverse_limit, smallest)
    row = tl.load(rows_ptr + token, mask=there, other=-1)
    target = which * pair_lines + batch * batch_lines + row * heads + head
    kept = there & (row >= 0)
    values = _rounded(x, scale[:, None], as_int)
    tl.store(values_ptr + target[:, None] * width + channel[None, :], values, mask=inside & kept[:, None])
    tl.store(scale_ptr + target, scale, mask=kept)


@triton.jit
def _expand_kernel(
    values_ptr, scale_ptr, out_ptr, pair_lines, batch_lines, out_pair, out_batch, num_lines,
    lines: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Dequantise some lines of keys or values."""
    which, batch = (tl.program_id(1) % 2).to(tl.int64), (tl.program_id(1) // 2).to(tl.int64)
    line = tl.program_id(0).to(tl.int64) * lines + tl.arange(0, lines)
    there = line < num_lines
    channel = tl.arange(0, channels)
    inside = there[:, None] & (channel < width)[None, :]
    source = which * pair_lines + batch * batch_lines + line
    values = tl.load(values_ptr + source[:, None] * width + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + source, mask=there, other=0.0)
    target = out_ptr + which * out_pair + batch * out_batch + line[:, None] * width + channel[None, :]
    tl.store(target, (values * scale[:, None]).to(out_ptr.dtype.element_ty), mask=inside)


def quantize_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantise as `reference.quantize_rows`, in one pass over x."""
    width = x.shape[-1]
    flat = x.reshape(-1, width)
    flat = flat if flat.stride(1) == 1 else flat.contiguous()
    values = torch.empty(x.shape, dtype=dtype, device=x.device)
    scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    columns = triton.next_power_of_2(width)
    rows = max(1, _ELEMENTS // columns)
    if flat.shape[0]:
        with torch.cuda.device_of(x):
            _rows_kernel[(triton.cdiv(flat.shape[0], rows),)](
                flat, values, scale, flat.shape[0], width, flat.stride(0), rows=rows, columns=columns,
                num_warps=4 if columns <= _ELEMENTS else 8, **_to(dtype),
            )  # fmt: skip
    return values, scale


def store_rows(pair: tuple[Tensor, Tensor], rows: Tensor, kept: Quantized) -> None:
    """Store as `reference.store_rows`, in one pass."""
    k, v = (each if each.stride(3) == 1 else each.contiguous() for each in pair)
    batch, tokens, heads, width = k.shape
    channels = triton.next_power_of_2(width)
    lines = max(1, _ELEMENTS // channels)
    strides = [each // width for each in kept.values.stride()[:2]]
    with torch.cuda.device_of(rows):
        _store_kernel[(triton.cdiv(tokens * heads, lines), 2 * batch)](
            k, v, rows, kept.values, kept.scale, *k.stride()[:3], *v.stride()[:3], *strides, tokens * heads, heads,
            lines=lines, width=width, channels=channels, num_warps=4, **_to(kept.values.dtype),
        )  # fmt: skip


def expand_rows(kept: Quantized, out: Tensor) -> None:
    """Dequantise as `reference.expand_rows`, in one pass."""
    _, batch, rows, heads, width = out.shape
    channels = triton.next_power_of_2(width)
    lines = max(1, _ELEMENTS // channels)
    strides = [each // width for each in kept.values.stride()[:2]]
    with torch.cuda.device_of(out):
        _expand_kernel[(triton.cdiv(rows * heads, lines), 2 * batch)](
            kept.values, kept.scale, out, *strides, *out.stride()[:2], rows * heads,
            lines=lines, width=width, channels=channels, num_warps=4,
        )  # fmt: skip


def _to(dtype: torch.dtype) -> dict[str, float | bool]:
    return {
        "inverse_limit": 1.0 / LIMITS[dtype], "smallest": SMALLEST, "as_int": dtype == torch.int8, "enable_fp_fusion": False,
    }  # fmt: skip
