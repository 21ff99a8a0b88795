"""Attention in eight bits in Triton, for Hopper. `reference.py` is the specification.

Queries and keys are int8; weights and values int8, FP8 or bfloat16. Eight-bit values lie transposed, `[H, D, keys]`, because the
matrix units of Hopper read both eight-bit operands along the summed axis; and their keys stand in another order within each 32
(`ORDER`), the one in which a thread holds the weights that it computed, so weights never change threads.

Maxima and sums are in units of log 2. In int8 weights are relative to the largest of their block of keys, so that those of a
block of small weights keep seven bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

MAGIC = tl.constexpr(12582912.0)
"""1.5 * 2^23: a float32 plus it has the rounded number in its low bits."""
LOG2_127 = tl.constexpr(6.988684686772166)
FP8_SHIFT = tl.constexpr(8.0)
NEVER = tl.constexpr(-1e30)
ORDER = [16 * high + 8 * low + 2 * thread + each for high in (0, 1) for thread in range(4) for low in (0, 1) for each in (0, 1)]
"""Which key of 32 stands where among transposed values."""


@triton.jit
def _in_order(p, rows: tl.constexpr, keys: tl.constexpr):
    """Put weights into the order of the values; nothing moves between threads."""
    apart = p.reshape(rows, keys // 32, 2, 2, 4, 2)
    return apart.permute(0, 1, 2, 4, 3, 5).reshape(rows, keys)


@triton.jit
def _step(
    state, q, scale, k, v, keys_left,
    masked: tl.constexpr, pv: tl.constexpr, two_level: tl.constexpr, rows: tl.constexpr, keys: tl.constexpr,
):  # fmt: skip
    """Attend to one block of keys: return sums over values, maximum and sum of weights."""
    acc, most, total = state
    s = tl.dot(q, k.T).to(tl.float32)
    if masked:
        s = tl.where(tl.arange(0, keys)[None, :] < keys_left, s, -3e38)
    local = tl.max(s, 1) * scale
    now = tl.maximum(most, local)
    fade = tl.exp2(most - now)
    if pv == "int8":
        p = tl.exp2(s * scale[:, None] - (local - LOG2_127)[:, None])
        join = tl.exp2(local - now)
        total = total * fade + tl.sum(p, 1) * join
        small = (p + MAGIC).to(tl.int32, bitcast=True).to(tl.int8)
        found = tl.dot(_in_order(small, rows, keys), v.T)
        acc = acc * fade[:, None] + found.to(tl.float32) * join[:, None]
    elif pv == "fp8":
        p = tl.exp2(s * scale[:, None] - (now - FP8_SHIFT)[:, None])
        total = total * fade + tl.sum(p, 1)
        small = _in_order(p.to(tl.float8e4nv), rows, keys)
        if two_level:  # noqa: SIM108 -- the compiler takes branches of a constant apart
            acc = acc * fade[:, None] + tl.dot(small, v.T)
        else:
            acc = tl.dot(small, v.T, acc * fade[:, None])
    else:
        p = tl.exp2(s * scale[:, None] - now[:, None])
        total = total * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
    return acc, now, total


@triton.jit(do_not_specialize=["num_q", "num_kv", "heads", "first", "tiles", "parts"])
def attend_kernel(
    q_desc, k_desc, v_desc, scale_ptr, v_scale_ptr, v_mean_ptr, out_ptr, lse_ptr, part_ptr, part_lse_ptr,
    num_q, num_kv, heads, first, tiles, parts,
    pv: tl.constexpr, two_level: tl.constexpr,
    rows: tl.constexpr, keys: tl.constexpr, dim: tl.constexpr,
):  # fmt: skip
    """Attend with one tile of queries of one head.

    The first `first` programs see all keys. Each of the others sees one of `parts` parts and leaves its own result and lse.
    """
    program = tl.program_id(0)
    part = tl.where(program < first, 0, (program - first) % parts)
    tile = tl.where(program < first, program, first + (program - first) // parts)
    head, row = tile // tiles, (tile % tiles) * rows
    blocks = tl.cdiv(num_kv, keys)
    begin = tl.where(program < first, 0, blocks * part // parts)
    end = tl.where(program < first, blocks, blocks * (part + 1) // parts)
    whole = tl.minimum(end, num_kv // keys)

    at = row + tl.arange(0, rows)
    q = q_desc.load([head, row, 0]).reshape(rows, dim)
    scale = tl.load(scale_ptr + head * num_q + at, mask=at < num_q, other=0.0)
    acc = tl.zeros((rows, dim), dtype=tl.float32)
    most = tl.full((rows,), NEVER, dtype=tl.float32)
    total = tl.zeros((rows,), dtype=tl.float32)
    for block in range(begin, whole):
        k = k_desc.load([head, block * keys, 0]).reshape(keys, dim)
        if pv == "bf16":
            v = v_desc.load([head, block * keys, 0]).reshape(keys, dim)
        else:
            v = v_desc.load([head, 0, block * keys]).reshape(dim, keys)
        acc, most, total = _step((acc, most, total), q, scale, k, v, 0, False, pv, two_level, rows, keys)
    if whole < end:
        k = k_desc.load([head, whole * keys, 0]).reshape(keys, dim)
        if pv == "bf16":
            v = v_desc.load([head, whole * keys, 0]).reshape(keys, dim)
        else:
            v = v_desc.load([head, 0, whole * keys]).reshape(dim, keys)
        left = num_kv - whole * keys
        acc, most, total = _step((acc, most, total), q, scale, k, v, left, True, pv, two_level, rows, keys)

    channel = tl.arange(0, dim)
    found = acc / total[:, None]
    if pv == "int8":
        most -= LOG2_127
    elif pv == "fp8":
        most -= FP8_SHIFT
    found *= tl.load(v_scale_ptr + head * dim + channel)[None, :]
    found += tl.load(v_mean_ptr + head * dim + channel)[None, :]
    lse = (most + tl.log2(total)) * 0.6931471805599453
    there = at < num_q
    if program < first:
        place = (at * heads + head)[:, None].to(tl.int64) * dim + channel[None, :]
        tl.store(out_ptr + place, found.to(out_ptr.dtype.element_ty), mask=there[:, None])
        tl.store(lse_ptr + head * num_q + at, lse, mask=there)
    else:
        slot = (program - first) * rows + tl.arange(0, rows)
        tl.store(part_ptr + slot[:, None].to(tl.int64) * dim + channel[None, :], found.to(part_ptr.dtype.element_ty))
        tl.store(part_lse_ptr + slot, lse)


@triton.jit(do_not_specialize=["num_q", "heads", "first", "tiles", "parts"])
def merge_kernel(
    part_ptr, part_lse_ptr, out_ptr, lse_ptr, num_q, heads, first, tiles, parts,
    rows: tl.constexpr, some: tl.constexpr, dim: tl.constexpr,
):  # fmt: skip
    """Merge the parts of `some` rows of a tile by lse."""
    program = tl.program_id(0)
    tile, inside = program // (rows // some), (program % (rows // some)) * some + tl.arange(0, some)
    head, at = (first + tile) // tiles, ((first + tile) % tiles) * rows + inside
    channel = tl.arange(0, dim)
    most = tl.full((some,), NEVER, dtype=tl.float32)
    for part in range(parts):
        most = tl.maximum(most, tl.load(part_lse_ptr + (tile * parts + part) * rows + inside))
    total = tl.zeros((some,), dtype=tl.float32)
    acc = tl.zeros((some, dim), dtype=tl.float32)
    for part in range(parts):
        slot = (tile * parts + part) * rows + inside
        weight = tl.exp(tl.load(part_lse_ptr + slot) - most)
        total += weight
        acc += weight[:, None] * tl.load(part_ptr + slot[:, None].to(tl.int64) * dim + channel[None, :]).to(tl.float32)
    there = at < num_q
    place = (at * heads + head)[:, None].to(tl.int64) * dim + channel[None, :]
    tl.store(out_ptr + place, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=there[:, None])
    tl.store(lse_ptr + head * num_q + at, most + tl.log(total), mask=there)


@triton.jit
def _near(x):
    """Round to int8, to the nearest; what is beyond takes the largest."""
    return (tl.minimum(tl.maximum(x, -127.0), 127.0) + MAGIC).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit(do_not_specialize=["num_q", "heads"])
def queries_kernel(
    q_ptr, turn_ptr, k_scale_ptr, small_ptr, scale_ptr, num_q, heads, factor,
    rows: tl.constexpr, dim: tl.constexpr,
):  # fmt: skip
    """Turn queries of one head by Hadamard and round them; their scale takes in the keys' and `factor`."""
    head, at, channel = tl.program_id(1), tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, dim)
    there = at < num_q
    place = (at * heads + head)[:, None].to(tl.int64) * dim + channel[None, :]
    q = tl.load(q_ptr + place, mask=there[:, None], other=0.0)
    turned = tl.dot(q, tl.load(turn_ptr + channel[:, None] * dim + channel[None, :])).to(tl.float32)
    most = tl.maximum(tl.max(tl.abs(turned), 1), 1e-12)
    place = (head * num_q + at)[:, None].to(tl.int64) * dim + channel[None, :]
    tl.store(small_ptr + place, _near(turned * (127.0 / most)[:, None]), mask=there[:, None])
    tl.store(scale_ptr + head * num_q + at, most / 127.0 * factor * tl.load(k_scale_ptr + head), mask=there)


@triton.jit(do_not_specialize=["start", "count", "num_kv", "width", "heads"])
def keys_kernel(
    k_ptr, v_ptr, turn_ptr, k_mean_ptr, k_scale_ptr, v_mean_ptr, v_scale_ptr, small_k_ptr, small_v_ptr,
    start, count, num_kv, width, heads,
    pv: tl.constexpr, rows: tl.constexpr, dim: tl.constexpr,
):  # fmt: skip
    """Round some rows of keys and values of one head where they lie in the cache, rows `start` to `start + count`."""
    head, channel = tl.program_id(1), tl.arange(0, dim)
    at0 = (start // rows + tl.program_id(0)) * rows
    at = at0 + tl.arange(0, rows)
    there = (at >= start) & (at < start + count)
    place = ((at - start) * heads + head)[:, None].to(tl.int64) * dim + channel[None, :]
    k = tl.load(k_ptr + place, mask=there[:, None], other=0.0)
    v = tl.load(v_ptr + place, mask=there[:, None], other=0.0)
    turned = tl.dot(k, tl.load(turn_ptr + channel[:, None] * dim + channel[None, :])).to(tl.float32)
    turned -= tl.load(k_mean_ptr + head * dim + channel)[None, :]
    row = (head * num_kv + at)[:, None].to(tl.int64) * dim + channel[None, :]
    tl.store(small_k_ptr + row, _near(turned * (1.0 / tl.load(k_scale_ptr + head))), mask=there[:, None])
    if pv == "bf16":
        tl.store(small_v_ptr + row, v, mask=there[:, None])
    else:
        mean, scale = tl.load(v_mean_ptr + head * dim + channel), tl.load(v_scale_ptr + head * dim + channel)
        smooth = (v.to(tl.float32) - mean[None, :]) * (1.0 / scale)[None, :]
        if pv == "int8":
            small = _near(smooth)
        if pv == "fp8":
            small = tl.minimum(tl.maximum(smooth, -448.0), 448.0).to(tl.float8e4nv)
        spot = tl.arange(0, rows)
        key = (spot // 32) * 32 + ((spot >> 4) & 1) * 16 + ((spot >> 1) & 1) * 8 + ((spot >> 2) & 3) * 2 + (spot & 1)
        key += at0
        place = (head * dim + channel)[:, None].to(tl.int64) * width + at0 + spot[None, :]
        tl.store(
            small_v_ptr + place, _in_order(tl.trans(small), dim, rows), mask=((key >= start) & (key < start + count))[None, :]
        )
