"""The kernels in Triton: one program per token, one pass over its channels, statistics in float32.

Attention to a text has one program per head and tile of queries, the rotation of a cache's keys one per some rows of a sample.

The product of two 16-bit numbers is exact in float32, so what is rounded where decides the result: the same as in the reference,
but for the order of sums. Without gradients. Nothing syncs, and no configuration depends on a length.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_FP8 = torch.float8_e4m3fn
TILE: Final = (64, 32, 4, 2)
"""Of `text_attention` in 16 bits: queries of a program, text rows at a time, warps, stages. The fastest of 17 on an H200 at 4,680
queries and 12 heads of 128: 12, 15 and 21 us for 12, 64 and 128 distinct rows, where cuDNN takes 34 for all 512."""
WIDE_TILE: Final = (32, 32, 8, 1)
"""The same in float32, or with heads of more than 128 channels."""
TURNED_ROWS: Final = (64, 4)
"""Of `turn_keys`: rows of a program, warps."""
_SECTOR: Final = 32
"""Bytes that memory moves at least: a part of one is read before it is written."""


@triton.jit
def _largest(x):
    """Return the largest magnitude; NaN if there is one, because NaN has the largest bits."""
    return tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _scale(most):
    """Compute the scale of a row in FP8 and its reciprocal, rounded as in `strobe.eightbit.impl.reference`."""
    scale = most * 0.002232142857142857  # 1 / 448
    scale = tl.where(scale < 1e-12, 1e-12, scale)
    return scale, tl.div_rn(1.0, scale)


@triton.jit
def _gelu(x):
    """Compute GELU by tanh, `x / (1 + exp(-2 u))`, `u = sqrt(2 / pi) * (x + 0.044715 x^3)`, rounded to x's dtype, as float32.

    The reciprocal is a squared `rsqrt`, one instruction where a division takes many.
    """
    wide = x.to(tl.float32)
    power = wide * (-2.302208198144325 - 0.1029432395800235 * wide * wide)  # -2 u in units of log 2
    root = tl.rsqrt(1.0 + tl.exp2(power))
    return (wide * root * root).to(x.dtype).to(tl.float32)


@triton.jit
def _turned(x, weight, cos, sin, eps, dim: tl.constexpr, block_heads: tl.constexpr, block_width: tl.constexpr):
    """Norm one token's queries or keys over all channels and rotate them in pairs; channels past the width are 0."""
    wide = x.to(tl.float32)
    normed = (wide * tl.rsqrt(tl.sum(wide * wide) / dim + eps)).to(x.dtype)
    weighed = (normed.to(tl.float32) * weight.to(x.dtype).to(tl.float32)).to(x.dtype).to(tl.float32)
    real, imaginary = tl.split(weighed.reshape(block_heads, block_width // 2, 2))
    turned = tl.join(real * cos - imaginary * sin, real * sin + imaginary * cos)
    return turned.reshape(block_heads, block_width).to(x.dtype)


@triton.jit(do_not_specialize=["num_tokens"])
def _turn_kernel(
    packed_ptr, weight_q_ptr, weight_k_ptr, rope_ptr, q_ptr, keys_ptr, values_ptr, rows_ptr,
    keys_batch, keys_row, values_batch, values_row, num_tokens, eps,
    heads: tl.constexpr, width: tl.constexpr, block_heads: tl.constexpr, block_width: tl.constexpr,
    with_q: tl.constexpr, write: tl.constexpr,
):  # fmt: skip
    """Process all heads of one token: norm and rotate queries and keys, and store keys and values in their row."""
    dim: tl.constexpr = heads * width
    token, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    entry = batch * num_tokens + token
    head, channel = tl.arange(0, block_heads)[:, None], tl.arange(0, block_width)[None, :]
    inside, there = head * width + channel, (head < heads) & (channel < width)
    source = packed_ptr + entry * ((3 if with_q else 2) * dim) + inside
    row = tl.load(rows_ptr + token) if write else token.to(tl.int64)
    kept = there & (row >= 0)
    first_k: tl.constexpr = dim if with_q else 0
    k = tl.load(source + first_k, mask=kept, other=0.0)
    angles = tl.load(rope_ptr + token * width + channel, mask=channel < width, other=0.0)
    cos, sin = tl.split(angles.reshape(1, block_width // 2, 2))
    if with_q:
        q = tl.load(source, mask=there, other=0.0)
    if write:
        v = tl.load(source + first_k + dim, mask=kept, other=0.0)
        tl.store(values_ptr + batch * values_batch + row * values_row + inside, v, mask=kept)
    weight_k = tl.load(weight_k_ptr + inside, mask=there, other=0.0)
    k = _turned(k, weight_k, cos, sin, eps, dim, block_heads, block_width)
    tl.store(keys_ptr + batch * keys_batch + row * keys_row + inside, k, mask=kept)
    if with_q:
        weight_q = tl.load(weight_q_ptr + inside, mask=there, other=0.0)
        q = _turned(q, weight_q, cos, sin, eps, dim, block_heads, block_width)
        tl.store(q_ptr + entry * dim + inside, q, mask=there)


@triton.jit
def _rms_norm_kernel(x_ptr, weight_ptr, out_ptr, eps, dim: tl.constexpr, block: tl.constexpr):
    """Norm one token."""
    channel = tl.arange(0, block)
    there = channel < dim
    at = tl.program_id(0).to(tl.int64) * dim + channel
    x = tl.load(x_ptr + at, mask=there, other=0.0)
    weight = tl.load(weight_ptr + channel, mask=there, other=0.0).to(x.dtype)
    wide = x.to(tl.float32)
    normed = (wide * tl.rsqrt(tl.sum(wide * wide) / dim + eps)).to(x.dtype)
    tl.store(out_ptr + at, (normed.to(tl.float32) * weight.to(tl.float32)).to(x.dtype), mask=there)


@triton.jit(do_not_specialize=["num_tokens", "frame_tokens"])
def _norm_kernel(
    x_ptr, y_ptr, gate_ptr, scale_ptr, shift_ptr, sum_ptr, out_ptr, out_scale_ptr,
    gate_batch, gate_frame, scale_batch, scale_frame, shift_batch, shift_frame, num_tokens, frame_tokens, eps,
    dim: tl.constexpr, block: tl.constexpr, from_one: tl.constexpr,
):  # fmt: skip
    """Process one token: gated sum, layer norm, factor and summand; quantise to FP8 if there is a tensor of scales."""
    token, batch = tl.program_id(0), tl.program_id(1)
    frame, channel = token // frame_tokens, tl.arange(0, block)
    there = channel < dim
    at = (batch.to(tl.int64) * num_tokens + token) * dim + channel
    x = tl.load(x_ptr + at, mask=there, other=0.0)
    wide = x.to(tl.float32)
    if y_ptr is not None:
        y = tl.load(y_ptr + at, mask=there, other=0.0).to(tl.float32)
        if gate_ptr is not None:
            gate = tl.load(gate_ptr + batch * gate_batch + frame * gate_frame + channel, mask=there, other=0.0)
            y *= gate.to(x.dtype).to(tl.float32)
        x = (wide + y).to(x.dtype)
        tl.store(sum_ptr + at, x, mask=there)
        wide = x.to(tl.float32)
    factor = tl.load(scale_ptr + batch * scale_batch + frame * scale_frame + channel, mask=there, other=0.0)
    shift = tl.load(shift_ptr + batch * shift_batch + frame * shift_frame + channel, mask=there, other=0.0)
    if from_one:
        factor = (1.0 + factor.to(tl.float32)).to(factor.dtype)
    centred = tl.where(there, wide - tl.sum(wide) / dim, 0.0)
    normed = centred * tl.rsqrt(tl.sum(centred * centred) / dim + eps)
    out = (normed * factor.to(x.dtype).to(tl.float32) + shift.to(x.dtype).to(tl.float32)).to(x.dtype)
    if out_scale_ptr is not None:
        out = tl.where(there, out.to(tl.float32), 0.0)
        size, steps = _scale(_largest(out))
        tl.store(out_scale_ptr + batch.to(tl.int64) * num_tokens + token, size)
        out = (out * steps).to(tl.float8e4nv)
    tl.store(out_ptr + at, out, mask=there)


@triton.jit
def _gelu_quantize_kernel(x_ptr, out_ptr, scale_ptr, dim: tl.constexpr, block: tl.constexpr, tail: tl.constexpr):
    """Process one token in two parts, so that few threads idle: `block` channels, then up to `tail` more if that is not 0."""
    row = tl.program_id(0).to(tl.int64)
    at = row * dim + tl.arange(0, block)
    first = tl.load(x_ptr + at)
    if tail > 0:  # all is asked for before any of it is used
        rest = block + tl.arange(0, tail)
        there, behind = rest < dim, row * dim + rest
        second = tl.load(x_ptr + behind, mask=there, other=0.0)
    first = _gelu(first)
    most = _largest(first)
    if tail > 0:
        second = _gelu(second)
        other = _largest(second)
        most = tl.where((other > most) | (other != other), other, most)
    scale, steps = _scale(most)
    tl.store(scale_ptr + row, scale)
    tl.store(out_ptr + at, (first * steps).to(tl.float8e4nv))
    if tail > 0:
        tl.store(out_ptr + behind, (second * steps).to(tl.float8e4nv), mask=there)


@triton.jit(do_not_specialize=["num_queries"])
def _text_attention_kernel(
    q_ptr, k_ptr, v_ptr, distinct_ptr, out_ptr,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, num_queries, scale,
    num_rows: tl.constexpr, heads: tl.constexpr, width: tl.constexpr, block_width: tl.constexpr,
    queries: tl.constexpr, rows: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Attend from a tile of queries of one head to the distinct rows of the text, with a running softmax in base 2.

    The number of rows is read on the device, so that one launch, and one graph, serves every prompt.
    """
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    query = tl.program_id(0).to(tl.int64) * queries + tl.arange(0, queries)
    channel = tl.arange(0, block_width)
    there = (query < num_queries)[:, None] & (channel < width)[None, :]
    at = batch * q_batch + head * q_head + query[:, None] * q_row + channel[None, :]
    q = tl.load(q_ptr + at, mask=there, other=0.0)
    most, total = tl.full((queries,), -1e30, tl.float32), tl.zeros((queries,), tl.float32)
    out = tl.zeros((queries, block_width), tl.float32)
    distinct = tl.load(distinct_ptr + batch)
    behind = tl.log2((num_rows - distinct + 1).to(tl.float32))  # the last one stands for so many
    for first in tl.range(0, distinct, rows, num_stages=stages):
        row = first + tl.arange(0, rows)
        kept = (row < distinct)[:, None] & (channel < width)[None, :]
        k = tl.load(k_ptr + batch * k_batch + head * k_head + row[:, None] * k_row + channel[None, :], mask=kept, other=0.0)
        v = tl.load(v_ptr + batch * v_batch + head * v_head + row[:, None] * v_row + channel[None, :], mask=kept, other=0.0)
        count = tl.where(row < distinct - 1, 0.0, tl.where(row == distinct - 1, behind, float("-inf")))
        scores = tl.dot(q, k.T, input_precision="ieee") * scale + count[None, :]
        now = tl.maximum(most, tl.max(scores, 1))
        weights, shrink = tl.exp2(scores - now[:, None]), tl.exp2(most - now)
        total = total * shrink + tl.sum(weights, 1)
        out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision="ieee")
        most = now
    out = (out / total[:, None]).to(q.dtype)
    tl.store(out_ptr + ((batch * num_queries + query)[:, None] * heads + head) * width + channel[None, :], out, mask=there)


@triton.jit(do_not_specialize=["num_rows"])
def _turn_keys_kernel(
    keys_ptr, turns_ptr, out_ptr, keys_layer, keys_batch, out_layer, out_batch, batch_size, num_rows,
    width: tl.constexpr, turned: tl.constexpr, written: tl.constexpr, block: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    """Rotate some rows of one sample in one layer; a row is one head of one token.

    Its first `turned` channels are rotated, those up to `written` are copied.
    """
    layer, batch = (tl.program_id(1) // batch_size).to(tl.int64), (tl.program_id(1) % batch_size).to(tl.int64)
    first, row, channel = tl.program_id(0).to(tl.int64) * rows, tl.arange(0, rows)[:, None], tl.arange(0, block)[None, :]
    there, inside = (first + row < num_rows) & (channel < written), row * width + channel
    keys = tl.load(keys_ptr + layer * keys_layer + batch * keys_batch + first * width + inside, mask=there, other=0.0)
    angles = tl.load(turns_ptr + channel, mask=channel < turned, other=0.0)
    cos, sin = tl.split(angles.reshape(1, block // 2, 2))
    real, imaginary = tl.split(keys.to(tl.float32).reshape(rows, block // 2, 2))
    new = tl.join(real * cos - imaginary * sin, real * sin + imaginary * cos).reshape(rows, block).to(keys.dtype)
    new = tl.where(channel < turned, new, keys)
    tl.store(out_ptr + layer * out_layer + batch * out_batch + first * width + inside, new, mask=there)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute `reference.rms_norm`."""
    x, dim = x.contiguous(), x.shape[-1]
    out, block = torch.empty_like(x), triton.next_power_of_2(dim)
    with torch.cuda.device_of(x):
        _rms_norm_kernel[(x.numel() // dim,)](x, weight, out, eps, dim=dim, block=block, num_warps=_warps(dim, block))
    return out


def turn(
    packed: Tensor, weight_q: Tensor | None, weight_k: Tensor, rope: Tensor, num_heads: int, eps: float
) -> tuple[Tensor | None, Tensor]:
    """Compute `reference.turn`."""
    keys = packed.new_empty(*packed.shape[:2], num_heads, weight_k.shape[0] // num_heads)
    return _turn(packed, weight_q, weight_k, rope, keys, None, None, eps), keys


def turn_and_write(
    packed: Tensor,
    weight_q: Tensor | None,
    weight_k: Tensor,
    rope: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    eps: float,
) -> Tensor | None:
    """Compute `reference.turn_and_write`."""
    return _turn(packed, weight_q, weight_k, rope, keys, values, rows, eps)


def _turn(
    packed: Tensor,
    weight_q: Tensor | None,
    weight_k: Tensor,
    rope: Tensor,
    keys: Tensor,
    values: Tensor | None,
    rows: Tensor | None,
    eps: float,
) -> Tensor | None:
    """Launch over every token; without `rows` keys are stored at their token's place."""
    batch, num_tokens, _ = packed.shape
    heads, width = keys.shape[2:]
    q = None if weight_q is None else packed.new_empty(batch, num_tokens, heads, width)
    block_heads, block_width = triton.next_power_of_2(heads), triton.next_power_of_2(width)
    with torch.cuda.device_of(packed):
        _turn_kernel[(num_tokens, batch)](
            packed.contiguous(), weight_q, weight_k, rope.contiguous(), q, keys, values, rows,
            *keys.stride()[:2], *((0, 0) if values is None else values.stride()[:2]), num_tokens, eps,
            heads=heads, width=width, block_heads=block_heads, block_width=block_width,
            with_q=weight_q is not None, write=rows is not None,
            num_warps=_warps(heads * width, block_heads * block_width),
            enable_fp_fusion=False,  # the plain path rounds every product
        )  # fmt: skip
    return q


def norm(
    x: Tensor, y: Tensor | None, gate: Tensor | None, scale: Tensor, shift: Tensor, from_one: bool, eps: float, fp8: bool
) -> list[Tensor]:
    """Compute `reference.norm`."""
    batch, num_tokens, dim = x.shape
    x, y = x.contiguous(), None if y is None else y.contiguous()
    total, out = None if y is None else torch.empty_like(x), torch.empty_like(x, dtype=_FP8 if fp8 else x.dtype)
    sizes = x.new_empty(batch, num_tokens, 1, dtype=torch.float32) if fp8 else None
    frames = max(1 if table is None else table.shape[1] for table in (gate, scale, shift))
    block = triton.next_power_of_2(dim)
    with torch.cuda.device_of(x):
        _norm_kernel[(num_tokens, batch)](
            x, y, gate, scale, shift, total, out, sizes, *_steps(gate), *_steps(scale), *_steps(shift),
            num_tokens, num_tokens // frames, eps, dim=dim, block=block, from_one=from_one,
            num_warps=_warps(dim, block, 16 if fp8 else 8),
        )  # fmt: skip
    return [tensor for tensor in (total, out, sizes) if tensor is not None]


def gelu_quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `reference.gelu_quantize`."""
    x, dim = x.contiguous(), x.shape[-1]
    out, scale = torch.empty_like(x, dtype=_FP8), x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
    block = triton.next_power_of_2(dim + 1) // 2  # the largest power of 2 that is not above dim
    tail = triton.next_power_of_2(dim - block) if dim > block else 0
    with torch.cuda.device_of(x):
        _gelu_quantize_kernel[(x.numel() // dim,)](x, out, scale, dim=dim, block=block, tail=tail, num_warps=_warps(block, block))
    return out, scale


def text_attention(q: Tensor, k: Tensor, v: Tensor, distinct: Tensor, tile: tuple[int, int, int, int] | None = None) -> Tensor:
    """Compute `reference.text_attention`.

    Args:
        tile: see `TILE`; None: that for the dtype and head width.
    """
    q, k, v = (each if each.stride(3) == 1 else each.contiguous() for each in (q, k, v))
    batch, num_queries, heads, width = q.shape
    out, block_width = q.new_empty(q.shape), max(16, triton.next_power_of_2(width))
    narrow = q.element_size() == 2 and block_width <= 128
    queries, rows, warps, stages = tile or (TILE if narrow else WIDE_TILE)
    with torch.cuda.device_of(q):
        _text_attention_kernel[(triton.cdiv(num_queries, queries), heads, batch)](
            q, k, v, distinct.contiguous(), out, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            num_queries, width**-0.5 * 1.4426950408889634,
            num_rows=k.shape[1], heads=heads, width=width, block_width=block_width,
            queries=queries, rows=rows, stages=stages, num_warps=warps,
        )  # fmt: skip
    return out


def turn_keys(keys: Tensor, turns: Tensor, out: Tensor, tile: tuple[int, int] = TURNED_ROWS) -> None:
    """Rotate as `reference.turn_keys`; also writes other channels that share a memory sector with rotated ones.

    Args:
        tile: see `TURNED_ROWS`.
    """
    layers, batch, tokens, heads, width = keys.shape
    turned, (rows, warps) = turns.numel(), tile
    if 0 in (turned, keys.numel()):
        return
    at_once = _SECTOR // keys.element_size()
    written = min(width, triton.cdiv(turned, at_once) * at_once)
    with torch.cuda.device_of(keys):
        _turn_keys_kernel[(triton.cdiv(tokens * heads, rows), layers * batch)](
            keys, turns.contiguous(), out, *keys.stride()[:2], *out.stride()[:2], batch, tokens * heads,
            width=width, turned=turned, written=written, block=triton.next_power_of_2(written), rows=rows,
            num_warps=warps, enable_fp_fusion=False,  # every product is rounded
        )  # fmt: skip


def _steps(table: Tensor | None) -> tuple[int, int]:
    """Return the strides from sample to sample and frame to frame; 0 where one row serves all."""
    if table is None:
        return 0, 0
    return table.stride(0) if table.shape[0] > 1 else 0, table.stride(1) if table.shape[1] > 1 else 0


def _warps(dim: int, block: int, at_once: int = 8) -> int:
    """Return the warps of a program: at least 32 channels per thread, and no thread without channels.

    A thread takes `at_once` channels at a time, 16 bytes of the narrowest tensor; what lies behind `dim` for all threads at once
    costs nothing.
    """
    warps = max(1, min(8, block // 1024))
    while warps > 1 and dim % (warps * 32 * at_once):
        warps //= 2
    return warps
