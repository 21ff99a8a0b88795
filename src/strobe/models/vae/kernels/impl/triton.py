"""The kernels in Triton, for GPUs that copy tiles by themselves (compute capability 9.0 and later).

A bordered video is one run of pixels, and the three pixels of a row that an output sees lie side by side in it. So a convolution
is a product of matrices whose rows overlap: for each of 9 offsets (frame, row) `3 C` numbers, by a descriptor whose row stride is
`C`. Pixels of the border are computed with the others and written as zeros. Sums are in float32 and rounded once.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

WHOLE: Final = 256
"""Most channels that one program computes, so that it can norm them."""
_PIXELS: Final = 32
"""Most pixels of a program that computes no convolution."""
_NUMBERS: Final = 8192
"""Most numbers of such a program: more would not stay in registers."""


@triton.jit
def _norm_silu(x, scale, gamma_ptr, channel, channels: tl.constexpr):
    gamma = tl.load(gamma_ptr + channel, mask=channel < channels, other=0.0).to(tl.float32)
    normed = x * scale[:, None] * gamma[None, :]
    return normed / (1.0 + tl.exp(-normed))


@triton.jit
def _add(total, bias_ptr, skip, batch, at, first, channel, channels: tl.constexpr, with_skip: tl.constexpr):
    """Add bias and skip; past the last channel everything stays 0."""
    total += tl.load(bias_ptr + channel, mask=channel < channels, other=0.0).to(tl.float32)[None, :]
    if with_skip:
        total += skip.load([batch, at, first]).reshape(total.shape[0], total.shape[1]).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["plane", "row", "height", "width"])
def _convolve_kernel(
    seen, taps, more_taps, skip, more_skip, out, more_out, bias_ptr, gamma_ptr, plane, row, height, width, eps,
    channels: tl.constexpr, tiles: tl.constexpr, steps: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, more: tl.constexpr, depth: tl.constexpr,
    with_skip: tl.constexpr, with_norm: tl.constexpr,
):  # fmt: skip
    """Compute `rows` pixels of a sample in `columns` channels, and in `more` besides: 96 are 64 and 32."""
    batch, first = tl.program_id(1), (tl.program_id(0) % tiles) * columns
    at = (tl.program_id(0) // tiles) * rows
    total = tl.zeros((rows, columns), tl.float32)
    if more:
        rest = tl.zeros((rows, more), tl.float32)
    for step in tl.range(0, 9 * steps):
        tap, inner = step // steps, (step % steps) * depth
        start = at - row - 1 + (tap // 3) * plane + (tap % 3) * row
        numbers = seen.load([batch, start, inner]).reshape(rows, depth)
        total = tl.dot(numbers, taps.load([tap, first, inner]).reshape(columns, depth).T, total, input_precision="ieee")
        if more:
            rest = tl.dot(numbers, more_taps.load([tap, columns, inner]).reshape(more, depth).T, rest, input_precision="ieee")
    pixel, channel = at + tl.arange(0, rows), first + tl.arange(0, columns)
    total = _add(total, bias_ptr, skip, batch, at, first, channel, channels, with_skip)
    if more:
        others = columns + tl.arange(0, more)
        rest = _add(rest, bias_ptr, more_skip, batch, at, columns, others, channels, with_skip)
    if with_norm:
        square = tl.sum(total * total, axis=1)
        if more:
            square += tl.sum(rest * rest, axis=1)
        scale = tl.rsqrt(square / channels + eps)
        total = _norm_silu(total, scale, gamma_ptr, channel, channels)
        if more:
            rest = _norm_silu(rest, scale, gamma_ptr, others, channels)
    y, x = (pixel % plane) // row, pixel % row
    inside = ((y >= 1) & (y <= height) & (x >= 1) & (x <= width))[:, None]
    out.store([batch, at, first], tl.where(inside, total, 0.0).to(out.dtype).reshape(1, rows, columns))
    if more:
        more_out.store([batch, at, columns], tl.where(inside, rest, 0.0).to(out.dtype).reshape(1, rows, more))


@triton.jit(do_not_specialize=["frames", "height", "width"])
def _norm_kernel(
    x_ptr, bias_ptr, gamma_ptr, before_ptr, seen_ptr, after_ptr, copy_ptr, x_batch, x_frame, x_row, x_column,
    frames, height, width, eps, channels: tl.constexpr, block: tl.constexpr, pixels: tl.constexpr,
    with_bias: tl.constexpr, with_before: tl.constexpr, normed: tl.constexpr, copied: tl.constexpr,
):  # fmt: skip
    """Write some pixels of two frames before and `frames` frames, with border, and the last two of all without.

    With `normed` the frames come from `x`; else they lie in `seen` already, and only what is remembered is written.
    """
    batch, row, plane = tl.program_id(1).to(tl.int64), width + 2, (height + 2) * (width + 2)
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    frame, y, x = pixel // plane, (pixel % plane) // row - 1, pixel % row - 1
    if not normed:
        frame += tl.where(frame >= 2, frames - 2, 0)  # of four frames: the two before and the last two
    channel = tl.arange(0, block)
    inside = (frame < 2 + frames) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    old, new = inside & (frame < 2), inside & (frame >= 2)
    there = (channel < channels)[None, :]
    place = (y * width + x) * channels  # in a frame without border
    at = ((batch * (2 + frames) + frame) * plane + (y + 1) * row + x + 1) * channels
    if normed:
        source = batch * x_batch + (frame - 2).to(tl.int64) * x_frame + y.to(tl.int64) * x_row + x.to(tl.int64) * x_column
        made = tl.load(x_ptr + source[:, None] + channel[None, :], mask=new[:, None] & there, other=0.0).to(tl.float32)
        if with_bias:
            bias = tl.load(bias_ptr + channel, mask=channel < channels, other=0.0).to(tl.float32)
            made = tl.where(new[:, None], made + bias[None, :], 0.0)
        if copied:
            drawn = ((frame >= 2) & (frame < 2 + frames))[:, None] & there
            copy = copy_ptr + (at - (2 * batch + 2) * plane * channels)[:, None] + channel[None, :]
            tl.store(copy, made.to(copy_ptr.dtype.element_ty), mask=drawn)
        scale = tl.rsqrt(tl.sum(made * made, axis=1) / channels + eps)
        made = _norm_silu(made, scale, gamma_ptr, channel, channels)
    else:
        made = tl.load(seen_ptr + at[:, None] + channel[None, :], mask=new[:, None] & there, other=0.0).to(tl.float32)
    if with_before:
        held = before_ptr + ((batch * 2 + frame) * height * width * channels + place)[:, None] + channel[None, :]
        made = tl.where(old[:, None], tl.load(held, mask=old[:, None] & there, other=0.0).to(tl.float32), made)
    made = made.to(seen_ptr.dtype.element_ty)
    drawn = (frame < 2 + frames) if normed else (frame < 2)
    tl.store(seen_ptr + at[:, None] + channel[None, :], made, mask=drawn[:, None] & there)
    kept = after_ptr + ((batch * 2 + frame - frames) * height * width * channels + place)[:, None] + channel[None, :]
    tl.store(kept, made, mask=(inside & (frame >= frames))[:, None] & there)


@triton.jit(do_not_specialize=["frames", "height", "width"])
def _add_taps_kernel(
    parts_ptr, bias_ptr, out_ptr, frames, height, width,
    channels: tl.constexpr, stride: tl.constexpr, block: tl.constexpr, pixels: tl.constexpr,
):  # fmt: skip
    """Add what the neighbours of some pixels give them."""
    batch, row, plane = tl.program_id(1).to(tl.int64), width + 2, (height + 2) * (width + 2)
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    frame, y, x = pixel // (height * width), (pixel % (height * width)) // width, pixel % width
    channel = tl.arange(0, block)
    mask = (frame < frames)[:, None] & (channel < channels)[None, :]
    first = parts_ptr + ((batch * (2 + frames) + frame) * plane + y * row + x) * stride
    total = tl.zeros((pixels, block), tl.float32)
    for tap in tl.static_range(27):
        at = ((tap // 9) * plane + (tap // 3 % 3) * row + tap % 3) * stride + tap * channels
        total += tl.load((first + at)[:, None] + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    total += tl.load(bias_ptr + channel, mask=channel < channels, other=0.0).to(tl.float32)[None, :]
    at = out_ptr + (batch * frames * height * width + pixel)[:, None] * channels + channel[None, :]
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=mask)


def convolve(seen: Tensor, weight: Tensor, bias: Tensor, skip: Tensor | None) -> Tensor:
    """See `api.convolve`."""
    batch, planes, height, width, _ = seen.shape
    out = seen.new_empty(batch, planes - 2, height, width, weight.shape[0])
    _convolve(seen, weight, bias, skip, None, 0.0, out)
    return out


def convolve_norm(
    seen: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, before: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """See `api.convolve_norm`."""
    out = seen.new_empty(*seen.shape[:4], weight.shape[0])
    _convolve(seen, weight, bias, None, gamma, eps, out[:, 2:])
    return out, _remember(out, before)


def norm(
    x: Tensor, bias: Tensor | None, gamma: Tensor, before: Tensor | None, eps: float, copied: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """See `api.norm`."""
    batch, frames, height, width, channels = x.shape
    seen = x.new_empty(batch, 2 + frames, height + 2, width + 2, channels)
    after, copy = x.new_empty(batch, 2, height, width, channels), x.new_empty(batch, frames, *seen.shape[2:]) if copied else None
    block, pixels = _block(channels)
    with torch.cuda.device_of(x):
        _norm_kernel[(triton.cdiv((2 + frames) * (height + 2) * (width + 2), pixels), batch)](
            x, bias, gamma, before, seen, after, copy, *x.stride()[:4], frames, height, width, eps,
            channels, block, pixels, bias is not None, before is not None, True, copied,
        )  # fmt: skip
    return seen, after, copy


def add_taps(parts: Tensor, bias: Tensor) -> Tensor:
    """See `api.leave`."""
    batch, planes, height, width, stride = parts.shape
    out = parts.new_empty(batch, planes - 2, height - 2, width - 2, bias.numel())
    pixels = 4 * _PIXELS
    with torch.cuda.device_of(parts):
        _add_taps_kernel[(triton.cdiv(out[0, ..., 0].numel(), pixels), batch)](
            parts, bias, out, planes - 2, height - 2, width - 2,
            bias.numel(), stride, triton.next_power_of_2(bias.numel()), pixels,
        )  # fmt: skip
    return out


def _block(channels: int) -> tuple[int, int]:
    """Return the power of two that holds all channels, and how many pixels of so many a program takes."""
    block = triton.next_power_of_2(channels)
    return block, max(1, min(_PIXELS, _NUMBERS // block))


def tile_of(channels: int, inputs: int, with_skip: bool) -> tuple[int, int, int, int, int]:
    """Return pixels, channels, more channels and inputs of a program's tiles, and its stages: the fastest of those tried.

    Up to 256 channels are one program's, so that it can norm them, as two powers of two: 96 are 64 and 32. With a skip, 96 are
    faster as 128 of which 32 are zeros.
    """
    depth = 32 if inputs % 64 else 64
    if channels > WHOLE:
        return 256, 128, 0, depth, 4
    columns = max(16, 1 << (channels.bit_length() - 1))
    more = max(16, triton.next_power_of_2(channels - columns)) if channels > columns else 0
    if with_skip and columns + more < 128:
        columns, more = triton.next_power_of_2(columns + more), 0
    return 256 if columns + more <= 192 else 128, columns, more, depth, 4 if columns + more <= 128 else 3


def _convolve(
    seen: Tensor, weight: Tensor, bias: Tensor, skip: Tensor | None, gamma: Tensor | None, eps: float, out: Tensor
) -> None:
    """Write a convolution to `out`, bordered, whose samples may lie apart."""
    batch, planes, height, width, inputs = seen.shape
    plane, channels = height * width, weight.shape[0]
    rows, columns, more, depth, stages = tile_of(channels, inputs, skip is not None)
    runs = seen.as_strided((batch, planes * plane - 2, 3 * inputs), (planes * plane * inputs, inputs, 1))
    taps = weight.movedim(1, -1).reshape(channels, 9, 3 * inputs).transpose(0, 1)  # [9, C', 3 C], a view of contiguous channels
    old, made = None if skip is None else skip.flatten(1, 3), out.flatten(1, 3)
    tiles = 1 if more else triton.cdiv(channels, columns)
    with torch.cuda.device_of(seen):
        _convolve_kernel[(triton.cdiv((planes - 2) * plane, rows) * tiles, batch)](
            TensorDescriptor.from_tensor(runs, [1, rows, depth]),
            *(_tiles(taps, [1, own, depth]) for own in (columns, more)),
            *(_tiles(tensor, [1, rows, own]) for tensor in (old, made) for own in (columns, more)),
            bias, gamma, plane, width, height - 2, width - 2, eps, channels, tiles, triton.cdiv(3 * inputs, depth),
            rows, columns, more, depth, skip is not None, gamma is not None, num_warps=8, num_stages=stages,
        )  # fmt: skip


def _tiles(tensor: Tensor | None, tile: list[int]) -> TensorDescriptor | None:
    return None if tensor is None or not all(tile) else TensorDescriptor.from_tensor(tensor, tile)


def _remember(seen: Tensor, before: Tensor | None) -> Tensor:
    """Write the two frames before in front of those that a convolution left, and return the last two of all."""
    batch, planes, height, width, channels = seen.shape
    after = seen.new_empty(batch, 2, height - 2, width - 2, channels)
    block, pixels = _block(channels)
    with torch.cuda.device_of(seen):
        _norm_kernel[(triton.cdiv(4 * height * width, pixels), batch)](
            None, None, None, before, seen, after, None, 0, 0, 0, 0, planes - 2, height - 2, width - 2, 0.0,
            channels, block, pixels, False, before is not None, False, False,
        )  # fmt: skip
    return after
