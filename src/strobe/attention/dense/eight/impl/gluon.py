"""Attention in eight bits in Gluon, for Hopper: one warp loads, two groups of four warps attend with 64 queries each.

A level of a weight is a denormal float: its bits are the whole number. One fused multiply-add takes a product to its level, one
instruction packs two levels into bytes and cuts off what is negative. A group asks for its next products before it adds up what
the last weights gave, so the matrix units work while it adds. What is rounded, how work is split and what is merged are
`impl/triton.py`'s.
"""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from strobe.attention.dense.eight.impl import triton
from strobe.attention.dense.eight.impl.reference import FARTHEST, FLATTEST, HEADROOM, OFFSET, QUERIES, STEEPEST
from strobe.attention.types import AttentionOutput, AttentionSpec
from strobe.eightbit.rounded import BLOCK, RoundedKeys, RoundedQueries

_OFFSET = gl.constexpr(OFFSET)
_OFFSET_BITS = gl.constexpr(int(OFFSET))
_STEEPEST = gl.constexpr(STEEPEST)
_FLATTEST = gl.constexpr(FLATTEST)
_HEADROOM = gl.constexpr(HEADROOM)
_FARTHEST = gl.constexpr(FARTHEST)
_NEVER = gl.constexpr(-1e30)
_MAGIC = gl.constexpr(12582912.0)
"""1.5 * 2^23: a number below 2^22 that is added to it is rounded."""
_TINY = gl.constexpr(2.0**-149)
"""The float whose bits are 1. Products come as floats of this unit, from 2^-149 to 2^-127."""
_PACK = gl.constexpr("{ .reg .b32 t; cvt.pack.sat.u8.s32.b32 t, $4, $3, 0; cvt.pack.sat.u8.s32.b32 $0, $2, $1, t; }")
"""Four whole numbers to bytes, from 0 to 255."""
_FOUR_ONES = gl.constexpr(0x38383838)
"""The bits of four FP8 ones: Triton 3.6 stores an FP8 tensor of this shape wrongly."""
_GROUP = gl.constexpr(64)
"""Queries of a group of four warps."""
_STAGES: Final = 3
"""Blocks of keys in the ring: two, three and four are within 2 % of each other at all lengths measured."""
_REGISTERS: Final = 168
"""Of a thread before the groups trade them: those that attend then have 240, the one that loads 24."""


@gluon.jit
def _place(program, first, tiles, parts, blocks):
    """Return the head, the tile in it, and which of its blocks of keys a program takes."""
    head, tile, begin, end = program // tiles, program % tiles, 0, blocks
    if program >= first:
        part = (program - first) % parts
        head, tile = (first + (program - first) // parts) // tiles, (first + (program - first) // parts) % tiles
        begin, end = blocks * part // parts, blocks * (part + 1) // parts
    return head, tile, begin, end


@gluon.jit
def _block(list_ptr, place, listed: gl.constexpr):
    """Return the block of keys at a place of a list; without lists the blocks stand in order."""
    if listed:
        place = gl.load(list_ptr + place)
    return place


@gluon.jit
def _loads(
    q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_ready, ready, free, where, list_ptr, num_q, kept_rows,
    keys: gl.constexpr, dim: gl.constexpr, stages: gl.constexpr, groups: gl.constexpr, listed: gl.constexpr,
):  # fmt: skip
    """Load queries once, and keys and values block by block into a ring."""
    head, tile, begin, end = where
    key = _block(list_ptr, begin, listed) * keys
    row = head * num_q + tile * (_GROUP * groups)
    mbarrier.expect(q_ready, groups * q_desc.block_type.nbytes)
    for group in gl.static_range(groups):
        tma.async_copy_global_to_shared(q_desc, [row + group * _GROUP, 0], q_ready, q_smem.index(group))
    for place in range(begin, end):
        step = place - begin
        stage, turn = step % stages, (step // stages) & 1
        after = _block(list_ptr, gl.minimum(place + 1, end - 1), listed) * keys  # read before it is waited for
        mbarrier.wait(free.index(stage), turn ^ 1)
        mbarrier.expect(ready.index(stage), k_desc.block_type.nbytes + v_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(k_desc, [head * kept_rows + key, 0], ready.index(stage), k_smem.index(stage))
        tma.async_copy_global_to_shared(v_desc, [head * dim, key], ready.index(stage), v_smem.index(stage))
        key = after


@gluon.jit
def _attend(
    group, q_smem, k_smem, v_smem, one_smem, q_ready, ready, free, where,
    scale_ptr, v_scale_ptr, v_mean_ptr, out_ptr, lse_ptr, part_ptr, part_sum_ptr, part_lse_ptr,
    num_q, blocks, tail, heads, first, program,
    keys: gl.constexpr, dim: gl.constexpr, stages: gl.constexpr, groups: gl.constexpr, with_lse: gl.constexpr,
):  # fmt: skip
    """Attend with one group's queries; the last of all blocks has `tail` keys."""
    head, tile, begin, end = where
    s_layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, keys, 32])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, dim, 32])
    t_layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 8, 32])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 4)
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    t_rows: gl.constexpr = gl.SliceLayout(1, t_layout)

    at = tile * (_GROUP * groups) + group * _GROUP + gl.arange(0, _GROUP, layout=s_rows)
    steep = 8.0 * gl.load(scale_ptr + head * num_q + at, mask=at < num_q, other=0.0)
    steep = gl.where(steep > _STEEPEST, _STEEPEST, steep)  # what is not a number stays
    steep = gl.where(steep < _FLATTEST, _FLATTEST, steep)
    down, room = steep * -(2.0**19), gl.full([_GROUP], _HEADROOM, gl.float32, s_rows)
    key = gl.arange(0, keys, layout=gl.SliceLayout(0, s_layout))
    acc = gl.zeros([_GROUP, dim], gl.float32, o_layout)
    off, least = gl.full([_GROUP], -_NEVER, gl.float32, s_rows), gl.full([_GROUP], -_NEVER, gl.float32, s_rows)
    exponentials = gl.zeros([_GROUP], gl.float32, s_rows)
    total = gl.zeros([_GROUP, 8], gl.float32, t_layout)
    from_offset = gl.full([_GROUP, keys], _OFFSET_BITS, gl.int32, s_layout)
    no_o, no_t = gl.zeros([_GROUP, dim], gl.float32, o_layout), gl.zeros([_GROUP, 8], gl.float32, t_layout)
    q = q_smem.index(group)

    mbarrier.wait(q_ready, 0)
    mbarrier.wait(ready.index(0), 0)
    products = warpgroup_mma(q, k_smem.index(0).permute((1, 0)), from_offset, use_acc=True, is_async=True)
    for number in range(begin, end):
        step = number - begin
        stage, after, after_turn = step % stages, (step + 1) % stages, ((step + 1) // stages) & 1
        s = warpgroup_mma_wait(0, deps=[products]).to(gl.float32, bitcast=True)
        left = gl.where(number == blocks - 1, tail, keys)
        if left < keys:
            s = gl.where((key < left)[None, :], s, -3e38)
        high = gl.max(s.to(gl.int32, bitcast=True), 1)  # in the order of positive floats; one instruction compares three
        high = high.to(gl.float32, bitcast=True) * 2.0**127  # products * 2^-22
        now = gl.minimum(gl.fma(high, down, room) + _MAGIC - _MAGIC, least + _FARTHEST)
        fade = gl.exp2(now - off)
        if with_lse:
            each = gl.exp2((s * 2.0**127) * (steep * 2.0**19)[:, None] + now[:, None])
            if left < keys:
                each = gl.where((key < left)[None, :], each, 0.0)
            exponentials = exponentials * fade + gl.sum(each, 1)
        off, least = now, gl.minimum(least, now)
        factor = gl.expand_dims(steep, 1).broadcast_to(s.shape)
        shift = gl.expand_dims(now * (8.0 * _TINY), 1).broadcast_to(s.shape)
        levels = gl.fma(s, factor, shift)
        apart = levels.reshape([_GROUP, keys // 32, 2, 2, 4, 2]).permute((0, 1, 2, 4, 3, 5)).reshape([_GROUP, keys])
        apart = gl.convert_layout(apart, p_layout, assert_trivial=True).to(gl.int32, bitcast=True)
        weights = gl.inline_asm_elementwise(_PACK, "=r,r,r,r,r", [apart], gl.int8, True, 4).to(gl.float8e4nv, bitcast=True)
        more = number + 1 < end
        mbarrier.wait(ready.index(after), after_turn, pred=more)
        found = warpgroup_mma(weights, v_smem.index(stage).permute((1, 0)), no_o, use_acc=False, is_async=True)
        counted = warpgroup_mma(weights, one_smem.permute((1, 0)), no_t, use_acc=False, is_async=True)
        products = warpgroup_mma(q, k_smem.index(after).permute((1, 0)), from_offset, use_acc=True, is_async=True)
        sums, sum_of_weights = warpgroup_mma_wait(1, deps=[found, counted])
        mbarrier.arrive(free.index(stage), count=1)
        acc = acc * gl.convert_layout(fade, o_rows)[:, None] + sums
        total = total * gl.convert_layout(fade, t_rows)[:, None] + sum_of_weights
    warpgroup_mma_wait(0, deps=[products])

    channel = gl.arange(0, dim, layout=gl.SliceLayout(0, o_layout))
    summed = gl.convert_layout(gl.max(total, 1), s_rows)  # its eight columns are alike
    zero = steep * (_OFFSET / 8) + off  # the logarithm to base 2 of what an exponential of 1 counts
    found = acc * gl.convert_layout(1.0 / summed, o_rows)[:, None]
    found = found * gl.load(v_scale_ptr + head * dim + channel)[None, :] + gl.load(v_mean_ptr + head * dim + channel)[None, :]
    row = tile * (_GROUP * groups) + group * _GROUP + gl.arange(0, _GROUP, layout=o_rows)
    if program < first:
        place = (row * heads + head)[:, None].to(gl.int64) * dim + channel[None, :]
        gl.store(out_ptr + place, found.to(out_ptr.dtype.element_ty), mask=(row < num_q)[:, None])
        if with_lse:
            lse = (gl.log2(exponentials) - zero) * 0.6931471805599453
            gl.store(lse_ptr + head * num_q + at, lse, mask=at < num_q)
    else:
        slot = ((program - first) * groups + group) * _GROUP
        place = (slot + gl.arange(0, _GROUP, layout=o_rows))[:, None].to(gl.int64) * dim + channel[None, :]
        gl.store(part_ptr + place, found.to(part_ptr.dtype.element_ty))
        slots = slot + gl.arange(0, _GROUP, layout=s_rows)
        gl.store(part_sum_ptr + slots, gl.log2(summed) - zero)
        if with_lse:
            gl.store(part_lse_ptr + slots, gl.log2(exponentials) - zero)


@gluon.jit
def _first_group(
    q_smem, k_smem, v_smem, one_smem, q_ready, ready, free, where,
    scale_ptr, v_scale_ptr, v_mean_ptr, out_ptr, lse_ptr, part_ptr, part_sum_ptr, part_lse_ptr,
    num_q, blocks, tail, heads, first, program,
    keys: gl.constexpr, dim: gl.constexpr, stages: gl.constexpr, groups: gl.constexpr, with_lse: gl.constexpr,
):  # fmt: skip
    _attend(
        0, q_smem, k_smem, v_smem, one_smem, q_ready, ready, free, where,
        scale_ptr, v_scale_ptr, v_mean_ptr, out_ptr, lse_ptr, part_ptr, part_sum_ptr, part_lse_ptr,
        num_q, blocks, tail, heads, first, program, keys, dim, stages, groups, with_lse,
    )  # fmt: skip


@gluon.jit
def _second_group(
    q_smem, k_smem, v_smem, one_smem, q_ready, ready, free, where,
    scale_ptr, v_scale_ptr, v_mean_ptr, out_ptr, lse_ptr, part_ptr, part_sum_ptr, part_lse_ptr,
    num_q, blocks, tail, heads, first, program,
    keys: gl.constexpr, dim: gl.constexpr, stages: gl.constexpr, groups: gl.constexpr, with_lse: gl.constexpr,
):  # fmt: skip
    _attend(
        1, q_smem, k_smem, v_smem, one_smem, q_ready, ready, free, where,
        scale_ptr, v_scale_ptr, v_mean_ptr, out_ptr, lse_ptr, part_ptr, part_sum_ptr, part_lse_ptr,
        num_q, blocks, tail, heads, first, program, keys, dim, stages, groups, with_lse,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["num_q", "num_kv", "blocks", "heads", "first", "tiles", "parts", "kept_rows"])
def _attend_kernel(
    q_desc, k_desc, v_desc, scale_ptr, v_scale_ptr, v_mean_ptr, list_ptr,
    out_ptr, lse_ptr, part_ptr, part_sum_ptr, part_lse_ptr,
    num_q, num_kv, blocks, heads, first, tiles, parts, kept_rows,
    keys: gl.constexpr, dim: gl.constexpr, stages: gl.constexpr, listed: gl.constexpr, with_lse: gl.constexpr,
):  # fmt: skip
    """See the kernel of this name in `impl/triton.py`; a tile has 128 queries. Heads of keys begin every `kept_rows` rows."""
    groups: gl.constexpr = 2
    program = gl.program_id(0)
    where = _place(program, first, tiles, parts, blocks)
    if listed:
        list_ptr += (where[0] * tiles + where[1]) * blocks
    tail = num_kv - _block(list_ptr, blocks - 1, listed) * keys
    q_smem = gl.allocate_shared_memory(gl.int8, [groups] + q_desc.block_type.shape, q_desc.layout)  # noqa: RUF005
    k_smem = gl.allocate_shared_memory(gl.int8, [stages] + k_desc.block_type.shape, k_desc.layout)  # noqa: RUF005
    v_smem = gl.allocate_shared_memory(v_desc.dtype, [stages] + v_desc.block_type.shape, v_desc.layout)  # noqa: RUF005
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    ones = gl.allocate_shared_memory(gl.int32, [8, keys // 4], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    ones.store(gl.full([8, keys // 4], _FOUR_ONES, gl.int32, gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])))
    one_smem = ones._reinterpret(gl.float8e4nv, [8, keys], gl.NVMMASharedLayout.get_default_for([8, keys], gl.float8e4nv))
    mbarrier.init(q_ready, count=1)
    for stage in gl.static_range(stages):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=groups)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_first_group, (
                q_smem, k_smem, v_smem, one_smem, q_ready, ready, free, where, scale_ptr,
                v_scale_ptr, v_mean_ptr, out_ptr, lse_ptr, part_ptr, part_sum_ptr, part_lse_ptr,
                num_q, blocks, tail, heads, first, program, keys, dim, stages, groups, with_lse,
            )),
            (_second_group, (
                q_smem, k_smem, v_smem, one_smem, q_ready, ready, free, where, scale_ptr,
                v_scale_ptr, v_mean_ptr, out_ptr, lse_ptr, part_ptr, part_sum_ptr, part_lse_ptr,
                num_q, blocks, tail, heads, first, program, keys, dim, stages, groups, with_lse,
            )),
            (_loads, (
                q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_ready, ready, free, where,
                list_ptr, num_q, kept_rows, keys, dim, stages, groups, listed,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def _launch(q: Tensor, k: Tensor, v: Tensor, programs: int, *rest: Any, **how: bool) -> None:
    heads, rows, dim = k.shape
    kept_rows = k.stride(0) // dim  # of which `rows` are attended; what follows the last head's is not read
    k = k.as_strided(((heads - 1) * kept_rows + rows, dim), (dim, 1))
    descriptors = (
        TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, kind))
        for x, block, kind in (
            (q.flatten(0, 1), [_GROUP.value, dim], gl.int8),
            (k, [BLOCK, dim], gl.int8),
            (v.flatten(0, 1), [dim, BLOCK], gl.float8e4nv),
        )
    )
    shape = {"keys": BLOCK, "dim": dim, "stages": _STAGES, "num_warps": 4, "maxnreg": _REGISTERS}
    _attend_kernel[(programs,)](*descriptors, *rest, kept_rows, **shape, **how)


def run(q: RoundedQueries, kept: RoundedKeys, spec: AttentionSpec, blocks: Tensor | None = None) -> AttentionOutput:
    """Attend by the kernel above, one program on a multiprocessor at a time."""
    return triton.attend(q, kept, spec, blocks, _launch, QUERIES, 1)
