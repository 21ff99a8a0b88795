"""Attention in eight bits in Triton, for Hopper, and the merge of parts.

Values lie transposed, for Hopper's matrix units read both eight-bit operands along the summed axis; and their keys stand in the
order in which a thread holds the weights that it computed, so weights never change threads. A product with ones sums weights up.
Programs of the last, partly filled wave attend to parts of the keys, which are merged by the sums of their weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from strobe.attention.dense.eight.impl.reference import FARTHEST, FLATTEST, HEADROOM, OFFSET, QUERIES, STEEPEST
from strobe.attention.types import AttentionOutput, AttentionSpec
from strobe.eightbit.impl.rounding_triton import in_order
from strobe.eightbit.rounded import BLOCK, BlockBudget, RoundedKeys, RoundedQueries

_OFFSET = tl.constexpr(OFFSET)
_STEEPEST = tl.constexpr(STEEPEST)
_FLATTEST = tl.constexpr(FLATTEST)
_HEADROOM = tl.constexpr(HEADROOM)
_FARTHEST = tl.constexpr(FARTHEST)
_NEVER = tl.constexpr(-1e30)
_MAGIC = tl.constexpr(12582912.0)
_MAGIC_BITS = tl.constexpr(0x4B400000)
"""1.5 * 2^23 and its bits: a number below 2^22 that is added to it is rounded, and stands in its last bits."""
_ROWS: Final = 64
"""Queries of a program. With four warps and two stages three programs run on a multiprocessor at a time: the fastest of six."""
_RESIDENT: Final = 3
_MERGED: Final = 16
"""Rows of a program that merges."""
_MOST_PARTS: Final = 12

Launch = Callable[..., object]


@triton.jit
def _weights_of(levels):
    """Return the FP8 numbers whose bits are these levels, given with `_MAGIC` added; those below 0 are 0."""
    bits = tl.maximum(levels.to(tl.int32, bitcast=True) - _MAGIC_BITS, 0)
    return bits.to(tl.int8).to(tl.float8e4nv, bitcast=True)


@triton.jit
def _step(state, q, steep, k, v, keys_left, masked: tl.constexpr, rows: tl.constexpr, keys: tl.constexpr, with_lse: tl.constexpr):
    """Attend to one block of keys: return sums over values, octaves added (last, fewest), sums of weights and exponentials."""
    acc, off, least, total, exponentials = state
    s = tl.dot(q, k.T).to(tl.float32) + _OFFSET
    if masked:
        s = tl.where(tl.arange(0, keys)[None, :] < keys_left, s, 0.0)
    now = (tl.max(s, 1) * (steep * -0.125) + _HEADROOM) + _MAGIC - _MAGIC
    now = tl.minimum(now, least + _FARTHEST)
    fade = tl.exp2(now - off)
    levels = s * steep[:, None] + (now * 8.0 + _MAGIC)[:, None]
    if with_lse:
        each = tl.exp2(s * (steep * 0.125)[:, None] + now[:, None])
        if masked:
            each = tl.where(s > 0.0, each, 0.0)
        exponentials = exponentials * fade + tl.sum(each, 1)
    if masked:
        levels = tl.where(s > 0.0, levels, 0.0)
    p = in_order(_weights_of(levels), rows, keys)
    total = total * fade[:, None] + tl.dot(p, tl.full((keys, 16), 1.0, tl.float32).to(tl.float8e4nv))
    acc = acc * fade[:, None] + tl.dot(p, v.T)
    return acc, now, tl.minimum(least, now), total, exponentials


@triton.jit
def _steepness(scale):
    """Return the levels of a step of the product; what is not a number stays."""
    steep = 8.0 * scale
    steep = tl.where(steep > _STEEPEST, _STEEPEST, steep)
    return tl.where(steep < _FLATTEST, _FLATTEST, steep)


@triton.jit
def _block(list_ptr, place, listed: tl.constexpr):
    """Return the block of keys at a place of a list; without lists the blocks stand in order."""
    return tl.load(list_ptr + place) if listed else place


@triton.jit(do_not_specialize=["num_q", "num_kv", "blocks", "heads", "first", "tiles", "parts"])
def _attend_kernel(
    q_desc, k_desc, v_desc, scale_ptr, v_scale_ptr, v_mean_ptr, list_ptr,
    out_ptr, lse_ptr, part_ptr, part_sum_ptr, part_lse_ptr,
    num_q, num_kv, blocks, heads, first, tiles, parts,
    rows: tl.constexpr, keys: tl.constexpr, dim: tl.constexpr, queries: tl.constexpr,
    listed: tl.constexpr, with_lse: tl.constexpr,
):  # fmt: skip
    """Attend with one tile of queries of one head to `blocks` blocks of keys: the first ones, or those `listed` for `queries`.

    The first `first` programs see all of them. Each of the others sees one of `parts` parts and leaves its own result, and the
    logarithms to base 2 of its sums of weights and of exponentials. The block that is not whole is the last.
    """
    program = tl.program_id(0)
    part = tl.where(program < first, 0, (program - first) % parts)
    tile = tl.where(program < first, program, first + (program - first) // parts)
    head, row = tile // tiles, (tile % tiles) * rows
    begin = tl.where(program < first, 0, blocks * part // parts)
    end = tl.where(program < first, blocks, blocks * (part + 1) // parts)
    if listed:
        list_ptr += (head * tl.cdiv(num_q, queries) + row // queries) * blocks
    last = _block(list_ptr, blocks - 1, listed)
    whole = tl.minimum(end, tl.where((last + 1) * keys > num_kv, blocks - 1, blocks))

    at = row + tl.arange(0, rows)
    q = q_desc.load([head, row, 0]).reshape(rows, dim)
    steep = _steepness(tl.load(scale_ptr + head * num_q + at, mask=at < num_q, other=0.0))
    acc = tl.zeros((rows, dim), dtype=tl.float32)
    off, least = tl.full((rows,), -_NEVER, dtype=tl.float32), tl.full((rows,), -_NEVER, dtype=tl.float32)
    total, exponentials = tl.zeros((rows, 16), dtype=tl.float32), tl.zeros((rows,), dtype=tl.float32)
    for number in range(begin, whole):
        key = _block(list_ptr, number, listed) * keys
        k = k_desc.load([head, key, 0]).reshape(keys, dim)
        v = v_desc.load([head, 0, key]).reshape(dim, keys)
        state = (acc, off, least, total, exponentials)
        acc, off, least, total, exponentials = _step(state, q, steep, k, v, 0, False, rows, keys, with_lse)
    if whole < end:
        k = k_desc.load([head, last * keys, 0]).reshape(keys, dim)
        v = v_desc.load([head, 0, last * keys]).reshape(dim, keys)
        state, left = (acc, off, least, total, exponentials), num_kv - last * keys
        acc, off, least, total, exponentials = _step(state, q, steep, k, v, left, True, rows, keys, with_lse)

    channel = tl.arange(0, dim)
    summed = tl.max(total, 1)
    found = acc / summed[:, None]
    found *= tl.load(v_scale_ptr + head * dim + channel)[None, :]
    found += tl.load(v_mean_ptr + head * dim + channel)[None, :]
    zero = steep * (_OFFSET / 8) + off  # the logarithm to base 2 of what an exponential of 1 counts
    there = at < num_q
    if program < first:
        place = (at * heads + head)[:, None].to(tl.int64) * dim + channel[None, :]
        tl.store(out_ptr + place, found.to(out_ptr.dtype.element_ty), mask=there[:, None])
        if with_lse:
            lse = (tl.log2(exponentials) - zero) * 0.6931471805599453
            tl.store(lse_ptr + head * num_q + at, lse, mask=there)
    else:
        slot = (program - first) * rows + tl.arange(0, rows)
        tl.store(part_ptr + slot[:, None].to(tl.int64) * dim + channel[None, :], found.to(part_ptr.dtype.element_ty))
        tl.store(part_sum_ptr + slot, tl.log2(summed) - zero)
        if with_lse:
            tl.store(part_lse_ptr + slot, tl.log2(exponentials) - zero)


@triton.jit(do_not_specialize=["num_q", "heads", "first", "tiles", "parts"])
def _merge_kernel(
    part_ptr, part_sum_ptr, part_lse_ptr, out_ptr, lse_ptr, num_q, heads, first, tiles, parts,
    rows: tl.constexpr, some: tl.constexpr, dim: tl.constexpr, with_lse: tl.constexpr,
):  # fmt: skip
    """Merge the parts of `some` rows of a tile by their sums of weights."""
    program = tl.program_id(0)
    tile, inside = program // (rows // some), (program % (rows // some)) * some + tl.arange(0, some)
    head, at = (first + tile) // tiles, ((first + tile) % tiles) * rows + inside
    there = at < num_q
    channel = tl.arange(0, dim)
    most = tl.full((some,), _NEVER, dtype=tl.float32)
    for part in range(parts):
        most = tl.maximum(most, tl.load(part_sum_ptr + (tile * parts + part) * rows + inside))
    total, exponentials = tl.zeros((some,), dtype=tl.float32), tl.zeros((some,), dtype=tl.float32)
    acc = tl.zeros((some, dim), dtype=tl.float32)
    for part in range(parts):
        slot = (tile * parts + part) * rows + inside
        weight = tl.exp2(tl.load(part_sum_ptr + slot) - most)
        total += weight
        if with_lse:
            exponentials += tl.exp2(tl.load(part_lse_ptr + slot) - most)
        acc += weight[:, None] * tl.load(part_ptr + slot[:, None].to(tl.int64) * dim + channel[None, :]).to(tl.float32)
    place = (at * heads + head)[:, None].to(tl.int64) * dim + channel[None, :]
    tl.store(out_ptr + place, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=there[:, None])
    if with_lse:
        tl.store(lse_ptr + head * num_q + at, (most + tl.log2(exponentials)) * 0.6931471805599453, mask=there)


@triton.jit(do_not_specialize=["rows", "head_stride"])
def _means_kernel(
    keys_ptr, always_ptr, out_ptr, rows, heads, batch_stride, head_stride, block: tl.constexpr, dim: tl.constexpr
):  # fmt: skip
    """Compute the mean of one block of keys of one head, unless it is always taken."""
    run, line = tl.program_id(0), tl.program_id(1)
    if tl.load(always_ptr + run) == 0:
        at, channel = run * block + tl.arange(0, block), tl.arange(0, dim)
        place = (line // heads).to(tl.int64) * batch_stride + (line % heads) * head_stride + at[:, None] * dim + channel[None, :]
        keys = tl.load(keys_ptr + place, mask=(at < rows)[:, None], other=0).to(tl.float32)
        sums = tl.sum(keys, 0) / tl.minimum(rows - run * block, block)
        tl.store(out_ptr + (line * tl.num_programs(0) + run) * dim + channel, sums)


@triton.jit(do_not_specialize=["num_q", "num_kv", "number"])
def _choose_kernel(
    q_ptr, scale_ptr, means_ptr, always_ptr, out_ptr, num_q, num_kv, number,
    rows: tl.constexpr, columns: tl.constexpr, some: tl.constexpr, dim: tl.constexpr,
):  # fmt: skip
    """Choose the blocks of one tile of queries of one head: `number` of largest score, ties to the lowest."""
    tile, line = tl.program_id(0), tl.program_id(1)
    at, column, channel = tile * rows + tl.arange(0, rows), tl.arange(0, columns), tl.arange(0, some)
    there, known = at < num_q, column < num_kv
    always = tl.load(always_ptr + column, mask=known, other=0) != 0
    scale = tl.load(scale_ptr + line * num_q + at, mask=there, other=0.0)
    scores = tl.zeros((columns,), dtype=tl.float32)
    for begin in range(0, dim, some):
        place = (line * num_q + at)[:, None].to(tl.int64) * dim + begin + channel[None, :]
        query = tl.sum(tl.load(q_ptr + place, mask=there[:, None], other=0).to(tl.float32) * scale[:, None], 0)
        place = (line * num_kv + column)[:, None] * dim + begin + channel[None, :]
        scores += tl.sum(tl.load(means_ptr + place, mask=(known & (always == 0))[:, None], other=0.0) * query[None, :], 1)
    bits = scores.to(tl.int32, bitcast=True)
    ranks = tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)  # in the order of the scores
    ranks = tl.where(known, tl.where(always, 0xFFFFFFFF, ranks), 0).to(tl.uint32)
    least, bit = tl.zeros((), dtype=tl.uint32), tl.full((), 0x80000000, tl.uint32)
    for _ in range(32):  # to the largest number that so many ranks reach
        least = tl.where(tl.sum((ranks >= (least | bit)).to(tl.int32), 0) >= number, least | bit, least)
        bit = bit >> 1
    above, equal = ranks > least, (ranks == least) & known
    left = number - tl.sum(above.to(tl.int32), 0)
    chosen = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= left))
    place = (line * tl.num_programs(0) + tile) * number + tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(out_ptr + place, column, mask=chosen)


def best_blocks(q: RoundedQueries, kept: RoundedKeys, budget: BlockBudget) -> Tensor:
    """Select as `reference.best_blocks`; of keys that are always taken none is read."""
    (batch, heads, num_q, dim), keys, blocks = q.values.shape, kept.keys, budget.always.shape[0]
    tiles, columns = triton.cdiv(num_q, QUERIES), triton.next_power_of_2(blocks)
    means = torch.empty((batch, heads, blocks, dim), dtype=torch.float32, device=keys.device)
    out = torch.empty((batch, heads, tiles, budget.number), dtype=torch.int32, device=keys.device)
    _means_kernel[blocks, batch * heads](
        keys, budget.always, means, keys.shape[2], heads, *keys.stride()[:2], block=BLOCK, dim=dim, num_warps=4
    )
    shape = {"rows": QUERIES, "columns": columns, "some": 32, "dim": dim, "num_warps": max(1, min(8, columns // 128))}
    _choose_kernel[tiles, batch * heads](
        q.values, q.scale, means, budget.always, out, num_q, blocks, budget.number, **shape
    )  # fmt: skip
    return out


@lru_cache(maxsize=256)
def split(programs: int, slots: int, blocks: int) -> tuple[int, int]:
    """Split the last wave of programs, of which `slots` run at a time, so that it ends soonest, on paper.

    Returns:
        How many programs see all keys, and the parts of the keys for each other one.
    """
    first = programs // slots * slots
    rest = programs - first
    costs = {1: 1.0}
    for parts in range(2, min(_MOST_PARTS, blocks) + 1):
        waves = -(-rest * parts // slots)
        costs[parts] = waves / parts + 0.02 * waves + 0.006 * parts + 0.02
    best = min(costs, key=lambda parts: costs[parts])
    return (programs, 1) if rest == 0 or best == 1 else (first, best)


def slots(device: torch.device, resident: int) -> int:
    """Return how many programs run at a time on a device, `resident` on a multiprocessor; the interpreter has one."""
    return resident * (torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1)


def _launch(q: Tensor, k: Tensor, v: Tensor, programs: int, *rest: Any, **how: bool) -> None:
    dim = q.shape[2]
    descriptors = (
        TensorDescriptor.from_tensor(q, [1, _ROWS, dim]),
        TensorDescriptor.from_tensor(k, [1, BLOCK, dim]),
        TensorDescriptor.from_tensor(v, [1, dim, BLOCK]),
    )
    shape = {"rows": _ROWS, "keys": BLOCK, "dim": dim, "queries": QUERIES, "num_warps": 4, "num_stages": 2}
    _attend_kernel[(programs,)](*descriptors, *rest, **shape, **how)


def run(q: RoundedQueries, kept: RoundedKeys, spec: AttentionSpec, blocks: Tensor | None = None) -> AttentionOutput:
    """Attend by the kernels above."""
    return attend(q, kept, spec, blocks, _launch, _ROWS, _RESIDENT)


def attend(
    q: RoundedQueries, kept: RoundedKeys, spec: AttentionSpec, lists: Tensor | None, launch: Launch, rows: int, resident: int
) -> AttentionOutput:
    """Attend, and merge what was attended in parts.

    Args:
        lists: the blocks of keys of each tile of `QUERIES` queries, as of `attend_rounded`; None: all.
        launch: of a kernel that attends as `_attend_kernel` does, given queries, keys and values of one sample.
        rows: queries of its programs.
        resident: its programs on a multiprocessor.
    """
    num, heads, dim, device = spec.q_len, spec.num_heads, spec.head_dim, q.values.device
    out = torch.empty((spec.batch, num, heads, dim), dtype=q.dtype, device=device)
    lse = torch.empty((spec.batch, heads, num), dtype=torch.float32, device=device)
    tiles = triton.cdiv(num, rows)
    blocks = triton.cdiv(spec.kv_len, BLOCK) if lists is None else lists.shape[3]
    first, parts = split(tiles * heads, slots(device, resident), blocks)
    later = tiles * heads - first
    part = torch.empty((max(1, later * parts) * rows, dim), dtype=q.dtype, device=device)
    part_sum, part_lse = (torch.empty(part.shape[0], dtype=torch.float32, device=device) for _ in range(2))
    for each in range(spec.batch):
        listed = lse if lists is None else lists[each]  # without lists none is read
        constants = (q.scale[each], kept.value_scale[each], kept.value_mean[each], listed)
        numbers = (num, spec.kv_len, blocks, heads, first, tiles, parts)
        places = (out[each], lse[each], part, part_sum, part_lse)
        operands = (q.values[each], kept.keys[each], kept.values[each])
        how = {"listed": lists is not None, "with_lse": spec.return_lse}
        launch(*operands, first + later * parts, *constants, *places, *numbers, **how)
        if later:
            _merge_kernel[(later * (rows // _MERGED),)](
                part, part_sum, part_lse, out[each], lse[each], num, heads, first, tiles, parts,
                rows=rows, some=_MERGED, dim=dim, with_lse=spec.return_lse, num_warps=4,
            )  # fmt: skip
    if spec.return_lse and q.taken is not None:
        lse += q.taken
    return AttentionOutput(out=out, lse=lse if spec.return_lse else None)
