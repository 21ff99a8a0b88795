"""Block-sparse attention in Triton: one program per run of queries (per run of keys for the gradients of k and v).

Portable: keys, values and whatever a loop walks over are read through tensor descriptors, which Hopper's copy engine serves and
other GPUs emulate. Scores are kept in units of log 2. The scores of the next step are computed before this step's softmax, so
that matrix units and the rest work at once. Gradients are gathered, never added by atomics: each program owns what it writes,
so they are the same bits in every run. No launch depends on a count: nothing syncs. A configuration
follows the card and the dtype, no length.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from strobe.attention.sparse.launch import Launcher, Site, dense, descriptor, precision_of
from strobe.attention.sparse.launches import Spot, Step, fixed
from strobe.attention.sparse.padding import aligned, cleared, finite
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.stages.types import Prepared
from strobe.core.device import Card, card_of

_LOG2E: Final = 1.4426950408889634
_ROWS: Final = {torch.bfloat16: 64, torch.float16: 64, torch.float32: 32}
"""Queries of a program, and keys of a step, where matrix units read shared memory or keep sums of their own."""
_ROOMY: Final = (9, 10, 11)
"""First numbers of the compute capabilities where they do. Elsewhere all is in registers, which so many rows overflow: by 2 KiB a
thread on 8.9, with 106 KiB of shared memory for the gradients of keys in float32, of which an 8.9 or 12.0 has 99."""


@triton.jit
def _tile(desc, batch, first, head, rows: tl.constexpr, width: tl.constexpr):
    """Rows `first` to `first + rows` of one head, `[rows, width]`."""
    return desc.load([batch, first, head, 0]).reshape([rows, width])


@triton.jit
def _own(pointer, batch, first, head, stride_batch, stride_row, stride_head, rows: tl.constexpr, width: tl.constexpr):
    """The same without a descriptor: for what a program keeps, which the copy engine's next tiles must not overwrite.

    Loaded with four dimensions, because what is reshaped reaches the matrix units from registers, not from shared memory.
    """
    at = (first + tl.arange(0, rows)).to(tl.int64)[None, :, None, None] * stride_row
    base = pointer + batch.to(tl.int64) * stride_batch + head.to(tl.int64) * stride_head
    return tl.load(base + at + tl.arange(0, width)[None, None, None, :]).reshape([rows, width])


@triton.jit
def _there(number, num_kv, bounded: tl.constexpr):
    """The key block an index names; if it names none, the one past the last, whose keys are read as 0, and hidden.

    `bounded`: the host knows that every index names one.
    """
    return number if bounded else tl.where((number >= 0) & (number < num_kv), number, num_kv)


@triton.jit
def _key_of(row, step, num_kv, steps: tl.constexpr, rows: tl.constexpr, block: tl.constexpr, bounded: tl.constexpr):
    """First key of a step: key blocks in the order of the indices, each in `steps` runs."""
    return _there(tl.load(row + step // steps), num_kv, bounded) * block + (step % steps) * rows


@triton.jit
def _number(counts_ptr, entry, most, bounded: tl.constexpr):
    """Key blocks of a row, no more than it has entries."""
    count = tl.load(counts_ptr + entry)
    return count if bounded else tl.minimum(tl.maximum(count, 0), most)


@triton.jit
def _seen(first, num_kv, sizes_ptr, block: tl.constexpr, rows: tl.constexpr, ragged: tl.constexpr, bounded: tl.constexpr):
    """Which keys from `first` on are neither padding nor past the last key block."""
    if not ragged:
        size = tl.where(first // block < num_kv, block, 0)
    elif bounded:
        size = tl.load(sizes_ptr + first // block)
    else:
        size = tl.load(sizes_ptr + first // block, mask=first // block < num_kv, other=0)
    return first % block + tl.arange(0, rows) < size


@triton.jit
def _forward_kernel(
    k_desc, v_desc, out_desc, q_ptr, lse_ptr, indices_ptr, counts_ptr, q_sizes_ptr, kv_sizes_ptr,
    q_batch, q_row, q_head, num_heads, groups, num_q, num_kv, most, uniform_count, scale_log2,
    block: tl.constexpr, rows: tl.constexpr, width: tl.constexpr, ragged_kv: tl.constexpr, precision: tl.constexpr,
    stages: tl.constexpr, ragged_q: tl.constexpr, bounded: tl.constexpr, uniform: tl.constexpr,
):  # fmt: skip
    """Online softmax over the selected key blocks of one run of queries. `scale_log2` is positive."""
    steps: tl.constexpr = block // rows
    hides: tl.constexpr = ragged_kv or not bounded
    run, row_of_heads = tl.program_id(0), tl.program_id(1)
    query_block = run // steps
    batch, head = row_of_heads // num_heads, row_of_heads % num_heads
    kv_head = head // groups
    at = run * rows + tl.arange(0, rows)
    valid = (run % steps) * rows + tl.arange(0, rows) < (tl.load(q_sizes_ptr + query_block) if ragged_q else block)
    q = _own(q_ptr, batch, run * rows, head, q_batch, q_row, q_head, rows, width)  # what a padding row holds stays in that row

    top = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    acc = tl.zeros([rows, width], tl.float32)
    entry = row_of_heads.to(tl.int64) * num_q + query_block
    row = indices_ptr + entry * most
    if uniform:  # the first index need not wait for the count
        last = uniform_count * steps - 1
        first = _there(tl.load(row), num_kv, bounded) * block
    else:
        last = _number(counts_ptr, entry, most, bounded) * steps - 1
        first = _there(tl.load(row, mask=last >= 0, other=0), num_kv, bounded) * block
    scores = tl.dot(q, _tile(k_desc, batch, first, kv_head, rows, width).T, input_precision=precision)
    if hides:
        scores = tl.where(_seen(first, num_kv, kv_sizes_ptr, block, rows, ragged_kv, bounded)[None, :], scores, float("-inf"))
    for step in tl.range(last + 1, num_stages=stages):
        following = _key_of(row, tl.minimum(step + 1, last), num_kv, steps, rows, block, bounded)
        keys = _tile(k_desc, batch, following, kv_head, rows, width)
        values = _tile(v_desc, batch, first, kv_head, rows, width)
        ahead = tl.dot(q, keys.T, input_precision=precision)
        if hides:
            ahead = tl.where(
                _seen(following, num_kv, kv_sizes_ptr, block, rows, ragged_kv, bounded)[None, :], ahead, float("-inf")
            )
        higher = tl.maximum(top, tl.max(scores, 1))
        shift = higher * scale_log2
        if hides:
            shift = tl.where(higher == float("-inf"), 0.0, shift)
        weights = tl.exp2(scores * scale_log2 - shift[:, None])
        decay = tl.exp2(top * scale_log2 - shift)
        total = total * decay + tl.sum(weights, 1)
        acc = tl.dot(weights.to(values.dtype), values, acc * decay[:, None], input_precision=precision)
        top, scores, first = higher, ahead, following

    empty = (total == 0) | (valid == 0)  # a total of NaN is not empty: what is broken must show
    filled = tl.where(empty, 1.0, total)
    out = tl.where(empty[:, None], 0.0, acc / filled[:, None])
    lse = tl.where(empty, float("-inf"), (top * scale_log2 + tl.log2(filled)) * 0.6931471805599453)
    out_desc.store([batch, run * rows, head, 0], out.to(q.dtype).reshape([1, rows, 1, width]))
    tl.store(lse_ptr + row_of_heads.to(tl.int64) * num_q * block + at, lse)


@triton.jit
def _d_scores(q, d_out, keys, values, lse, delta, first, num_kv, sizes_ptr, scale, block: tl.constexpr, rows: tl.constexpr,
              ragged: tl.constexpr, bounded: tl.constexpr, precision: tl.constexpr):  # fmt: skip
    """Gradient of the scaled scores of some queries against the keys from `first` on."""
    weights = tl.exp2(tl.dot(q, keys.T, input_precision=precision) * (scale * 1.4426950408889634) - lse[:, None])
    if ragged or not bounded:
        weights = tl.where(_seen(first, num_kv, sizes_ptr, block, rows, ragged, bounded)[None, :], weights, 0.0)
    d_weights = tl.dot(d_out, values.T, input_precision=precision)
    return (weights * (d_weights - delta[:, None])).to(keys.dtype)


@triton.jit
def _d_query_kernel(
    k_desc, v_desc, d_q_desc, q_ptr, d_out_ptr, lse_ptr, delta_ptr, indices_ptr, counts_ptr, q_sizes_ptr, kv_sizes_ptr,
    q_batch, q_row, q_head, o_batch, o_row, o_head, num_heads, groups, num_q, num_kv, most, scale,
    block: tl.constexpr, rows: tl.constexpr, width: tl.constexpr, ragged_kv: tl.constexpr, precision: tl.constexpr,
    stages: tl.constexpr, ragged_q: tl.constexpr, bounded: tl.constexpr,
):  # fmt: skip
    """Gradient of one run of queries. `scale` is positive."""
    steps: tl.constexpr = block // rows
    run, row_of_heads = tl.program_id(0), tl.program_id(1)
    query_block = run // steps
    batch, head = row_of_heads // num_heads, row_of_heads % num_heads
    kv_head = head // groups
    at = run * rows + tl.arange(0, rows)
    valid = (run % steps) * rows + tl.arange(0, rows) < (tl.load(q_sizes_ptr + query_block) if ragged_q else block)
    q = _own(q_ptr, batch, run * rows, head, q_batch, q_row, q_head, rows, width)
    d_out = _own(d_out_ptr, batch, run * rows, head, o_batch, o_row, o_head, rows, width)
    per_row = row_of_heads.to(tl.int64) * num_q * block + at
    lse = tl.load(lse_ptr + per_row) * 1.4426950408889634
    lse = tl.where(lse == float("-inf"), float("inf"), lse)  # exp2(score - inf) = 0: an empty row has no gradient
    delta = tl.load(delta_ptr + per_row)

    entry = row_of_heads.to(tl.int64) * num_q + query_block
    row = indices_ptr + entry * most
    count = _number(counts_ptr, entry, most, bounded) * steps
    # the first step stands before the loop, where nothing is yet in flight: so q and d_out move to registers once and for all
    first = _there(tl.load(row, mask=count > 0, other=0), num_kv, bounded) * block
    keys = _tile(k_desc, batch, first, kv_head, rows, width)
    values = _tile(v_desc, batch, first, kv_head, rows, width)
    d_scores = _d_scores(
        q, d_out, keys, values, lse, delta, first, num_kv, kv_sizes_ptr, scale, block, rows, ragged_kv, bounded, precision
    )
    acc = tl.dot(d_scores, keys, input_precision=precision)
    for step in tl.range(1, count, num_stages=stages):
        first = _key_of(row, step, num_kv, steps, rows, block, bounded)
        keys = _tile(k_desc, batch, first, kv_head, rows, width)
        values = _tile(v_desc, batch, first, kv_head, rows, width)
        d_scores = _d_scores(
            q, d_out, keys, values, lse, delta, first, num_kv, kv_sizes_ptr, scale, block, rows, ragged_kv, bounded, precision
        )
        acc = tl.dot(d_scores, keys, acc, input_precision=precision)

    # a row that sees none of these keys may have the lse of others; what the first step read is not its own
    live = valid & (lse != float("inf")) & (count > 0)
    d_q = tl.where(live[:, None], acc * scale, 0.0).to(q.dtype)
    d_q_desc.store([batch, run * rows, head, 0], d_q.reshape([1, rows, 1, width]))


@triton.jit
def _d_key_kernel(
    q_desc, d_out_desc, d_k_desc, d_v_desc, k_ptr, v_ptr, lse_ptr, delta_ptr, begins_ptr, queries_ptr, kv_sizes_ptr,
    k_batch, k_row, k_head, v_batch, v_row, v_head, num_heads, groups, num_q, num_kv, scale,
    block: tl.constexpr, rows: tl.constexpr, width: tl.constexpr, ragged_kv: tl.constexpr, precision: tl.constexpr,
    stages: tl.constexpr,
):  # fmt: skip
    """Gradients of one run of keys and values: over every query head of the group, every query block that sees them.

    The lse of a padding query is -inf, so it weighs nothing; `q` and `d_out` must be finite there. `scale` is positive.
    """
    steps: tl.constexpr = block // rows
    run, row_of_heads = tl.program_id(0), tl.program_id(1)
    kv_heads = num_heads // groups
    key_block = run // steps
    batch, kv_head = row_of_heads // kv_heads, row_of_heads % kv_heads
    seen = (run % steps) * rows + tl.arange(0, rows) < (tl.load(kv_sizes_ptr + key_block) if ragged_kv else block)
    at = (run * rows + tl.arange(0, rows)).to(tl.int64)[:, None]  # kept in shared memory: registers are full of sums
    channels = tl.arange(0, width)[None, :]
    keys = tl.load(k_ptr + batch.to(tl.int64) * k_batch + kv_head.to(tl.int64) * k_head + at * k_row + channels)
    values = tl.load(v_ptr + batch.to(tl.int64) * v_batch + kv_head.to(tl.int64) * v_head + at * v_row + channels)

    d_keys = tl.zeros([rows, width], tl.float32)
    d_values = tl.zeros([rows, width], tl.float32)
    for group in range(groups):
        head = kv_head * groups + group
        row = (batch * num_heads + head).to(tl.int64)
        entry = row * num_kv + key_block
        begin, end = tl.load(begins_ptr + entry), tl.load(begins_ptr + entry + 1)
        for step in tl.range((end - begin).to(tl.int32) * steps, num_stages=stages):
            first = _key_of(queries_ptr + begin, step, num_q, steps, rows, block, True)
            q = _tile(q_desc, batch, first, head, rows, width)
            scores = tl.dot(keys, q.T, input_precision=precision)  # [keys, queries]
            per_row = row * num_q * block + first + tl.arange(0, rows)
            lse = tl.load(lse_ptr + per_row) * 1.4426950408889634
            lse = tl.where(lse == float("-inf"), float("inf"), lse)
            weights = tl.exp2(scores * (scale * 1.4426950408889634) - lse[None, :])
            d_out = _tile(d_out_desc, batch, first, head, rows, width)
            d_values = tl.dot(weights.to(d_out.dtype), d_out, d_values, input_precision=precision)
            d_weights = tl.dot(values, d_out.T, input_precision=precision)
            d_scores = weights * (d_weights - tl.load(delta_ptr + per_row)[None, :])
            d_keys = tl.dot(d_scores.to(q.dtype), q, d_keys, input_precision=precision)

    d_k = tl.where(seen[:, None], d_keys * scale, 0.0).to(keys.dtype)
    d_v = tl.where(seen[:, None], d_values, 0.0).to(keys.dtype)
    d_k_desc.store([batch, run * rows, kv_head, 0], d_k.reshape([1, rows, 1, width]))
    d_v_desc.store([batch, run * rows, kv_head, 0], d_v.reshape([1, rows, 1, width]))


@triton.jit
def _delta_kernel(
    d_out_ptr, out_ptr, d_lse_ptr, lse_ptr, delta_ptr, d_batch, d_row, d_head, o_batch, o_row, o_head, num_heads, q_len,
    rows: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """`sum(d_out * out) - d_lse` of every query; 0 where it sees no key, whatever was handed in."""
    row_of_heads = tl.program_id(1)
    batch, head = row_of_heads // num_heads, row_of_heads % num_heads
    at = tl.program_id(0) * rows + tl.arange(0, rows)
    channels, per_row = tl.arange(0, width)[None, :], row_of_heads.to(tl.int64) * q_len + at
    place = at.to(tl.int64)[:, None]
    d_out = tl.load(d_out_ptr + batch.to(tl.int64) * d_batch + head.to(tl.int64) * d_head + place * d_row + channels)
    out = tl.load(out_ptr + batch.to(tl.int64) * o_batch + head.to(tl.int64) * o_head + place * o_row + channels)
    delta = tl.sum(d_out.to(tl.float32) * out.to(tl.float32), 1) - tl.load(d_lse_ptr + per_row)
    tl.store(delta_ptr + per_row, tl.where(tl.load(lse_ptr + per_row) == float("-inf"), 0.0, delta))


@triton.jit
def _mark_kernel(indices_ptr, counts_ptr, marks_ptr, num_q, num_kv, most, words, columns: tl.constexpr):
    """Set the bit of one query block in the row of every key block that it sees; an index that names none sets no bit."""
    entry = tl.program_id(0).to(tl.int64)
    row, query_block = entry // num_q, entry % num_q
    count = tl.minimum(tl.load(counts_ptr + entry), most)
    for begin in range(0, count, columns):
        at = begin + tl.arange(0, columns)
        key_block = tl.load(indices_ptr + entry * most + at, mask=at < count, other=-1)
        place = (row * num_kv + key_block) * words + query_block // 32
        there = (key_block >= 0) & (key_block < num_kv)
        tl.atomic_or(marks_ptr + place, (1 << (query_block % 32)).to(tl.int32), mask=there, sem="relaxed")


@triton.jit
def _list_kernel(marks_ptr, counts_ptr, begins_ptr, queries_ptr, words, columns: tl.constexpr, listed: tl.constexpr):
    """Count the marks of one key block, or list them in ascending order from where its list begins."""
    entry = tl.program_id(0).to(tl.int64)
    found = tl.load(begins_ptr + entry) if listed else tl.zeros([], tl.int64)
    for begin in range(0, words * 32, columns):
        at = begin + tl.arange(0, columns)
        word = tl.load(marks_ptr + entry * words + at // 32, mask=at < words * 32, other=0)
        bits = (word >> (at % 32)) & 1
        if listed:
            tl.store(queries_ptr + found + tl.cumsum(bits, 0) - 1, at, mask=bits == 1)
        found += tl.sum(bits, 0)
    if not listed:
        tl.store(counts_ptr + entry, found)


_FORWARD: Final = Launcher(_forward_kernel)
_D_QUERY: Final = Launcher(_d_query_kernel)
_D_KEY: Final = Launcher(_d_key_kernel)
_DELTA: Final = Launcher(_delta_kernel)
_MARK: Final = Launcher(_mark_kernel)
_LIST: Final = Launcher(_list_kernel)


def forward(q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection, softmax_scale: float) -> tuple[Tensor, Tensor]:
    """Return out `[B, S_q, H, D]` and lse float32 `[B, H, S_q]`."""
    q, softmax_scale = _positive(q, softmax_scale)
    q = q if q.stride(3) == 1 else q.contiguous()
    q_sizes, kv_sizes = selection.q_sizes, selection.kv_sizes
    k, v = aligned(k), aligned(finite(v, kv_sizes, selection))
    (batch, q_len, heads, _), kv_len, device = q.shape, k.shape[1], q.device
    out = torch.empty(q.shape, dtype=q.dtype, device=device)
    lse = torch.empty((batch, heads, q_len), dtype=torch.float32, device=device)
    if q_len == 0 or kv_len == 0:
        return out.zero_(), lse.fill_(float("-inf"))
    site, rows = _forward_site(q, k, selection, softmax_scale)
    _FORWARD.at(
        site,
        (q, lse, selection.indices.contiguous(), selection.counts.contiguous(), q_sizes, kv_sizes),
        (_descriptor(k, rows), _descriptor(v, rows), _descriptor(out, rows)),
    )
    return out, lse


def prepare(q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection, softmax_scale: float) -> Prepared | None:
    """The forward kernel for contiguous q, k and v like these, whose queries are all valid."""
    if softmax_scale <= 0 or q.shape[1] == 0 or k.shape[1] == 0:
        return None
    (site, rows), places = _forward_site(q, k, selection, softmax_scale), tuple(dense(*each.shape) for each in (q, k, v))
    block, beside = (1, rows, 1, q.shape[3]), (fixed(selection.counts), None, fixed(selection.kv_sizes))

    def step(q: Spot, k: Spot, v: Spot, indices: Spot, out: Spot, lse: Spot) -> Step:
        described = tuple(zip((k, v, out), (*places[1:], places[0]), (block,) * 3, strict=True))
        return _FORWARD, site, (q, lse, indices, *beside), described, ()

    return Prepared(places, places[0][1], None, lambda lse: lse, step, (selection.counts, selection.kv_sizes))


def _forward_site(q: Tensor, k: Tensor, selection: BlockSelection, softmax_scale: float) -> tuple[Site, int]:
    """Where the forward kernel is launched, and the queries of a program."""
    (batch, q_len, heads, _), (_, kv_len, kv_heads, _), count = q.shape, k.shape, selection.uniform_count or 0
    num_kv, constants = kv_len // selection.block, _constants(q, selection, 3)
    numbers = (heads, heads // kv_heads, q_len // selection.block, num_kv, selection.indices.shape[3], count)
    site = Site(
        (q_len // constants[1], batch * heads, 1),
        (*q.stride()[:3], *numbers),
        (*constants, selection.q_sizes is not None, selection.within(num_kv), count > 0),
        4,
        (softmax_scale * _LOG2E,),
    )
    return site, constants[1]


def backward(
    grads: tuple[Tensor, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: tuple[Tensor, Tensor],
    selection: BlockSelection,
    softmax_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, given those of `(out, lse)` and `(out, lse)` itself."""
    given, q_sizes, kv_sizes, block = softmax_scale, selection.q_sizes, selection.kv_sizes, selection.block
    q, softmax_scale = _positive(q, softmax_scale)
    q = aligned(finite(q, q_sizes, selection))
    k, v = (aligned(finite(tensor, kv_sizes, selection)) for tensor in (k, v))
    d_out = aligned(cleared(grads[0], q_sizes, block))
    batch, q_len, heads, width = q.shape
    kv_len, kv_heads, lse = k.shape[1], k.shape[2], state[1].contiguous()
    d_q = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    d_k, d_v = (torch.empty(k.shape, dtype=k.dtype, device=k.device) for _ in range(2))
    if q_len == 0 or kv_len == 0:
        return d_q.zero_(), d_k.zero_(), d_v.zero_()
    out, delta, rows = state[0], torch.empty_like(lse), rows_of(q.dtype, card_of(q.device))
    _DELTA(
        (q_len // rows, batch * heads, 1),
        (d_out, out, grads[1].contiguous(), lse, delta),
        (*d_out.stride()[:3], *out.stride()[:3], heads, q_len),
        (rows, width),
        num_warps=4,
    )
    num_q, num_kv, groups, indices = q_len // block, kv_len // block, heads // kv_heads, selection.indices.contiguous()
    _D_QUERY(
        (q_len // rows, batch * heads, 1),
        (q, d_out, lse, delta, indices, selection.counts.contiguous(), q_sizes, kv_sizes),
        (*q.stride()[:3], *d_out.stride()[:3], heads, groups, num_q, num_kv, indices.shape[3]),
        (*_constants(q, selection, 3), q_sizes is not None, selection.within(num_kv)),
        num_warps=4,
        floats=(softmax_scale,),
        descriptors=(_descriptor(k, rows), _descriptor(v, rows), _descriptor(d_q, rows)),
    )
    begins, queries = queries_of_keys(selection, num_kv)
    _D_KEY(
        (kv_len // rows, batch * kv_heads, 1),
        (k, v, lse, delta, begins, queries, kv_sizes),
        (*k.stride()[:3], *v.stride()[:3], heads, groups, num_q, num_kv),
        _constants(q, selection, 2),
        num_warps=4,
        floats=(softmax_scale,),
        descriptors=tuple(_descriptor(each, rows) for each in (q, d_out, d_k, d_v)),
    )
    if given <= 0:  # d_q is that of the q which the kernels saw, `given / softmax_scale` times the caller's
        d_q = d_q * (given / softmax_scale)
    return d_q, d_k, d_v


def queries_of_keys(selection: BlockSelection, num_kv: int) -> tuple[Tensor, Tensor]:
    """Turn the selection around, on the device and without a sync.

    Returns:
        begins int64 `[B * H * N_kv + 1]` and query blocks int32: key block `j` of head `b, h` is seen by
        `queries[begins[e] : begins[e + 1]]`, ascending, with `e = (b * H + h) * N_kv + j`.
    """
    batch, heads, num_q, most = selection.indices.shape
    entries, words, device = batch * heads * num_kv, -(-num_q // 32), selection.indices.device
    marks = torch.zeros(entries, words, dtype=torch.int32, device=device)
    counts, begins = (torch.zeros(number, dtype=torch.int64, device=device) for number in (entries, entries + 1))
    queries = torch.empty(batch * heads * num_q * most, dtype=torch.int32, device=device)
    indices, seen = selection.indices.contiguous(), selection.counts.contiguous()
    _MARK((batch * heads * num_q, 1, 1), (indices, seen, marks), (num_q, num_kv, most, words), (128,), num_warps=1)
    _LIST((entries, 1, 1), (marks, counts, begins, queries), (words,), (512, False), num_warps=1)
    torch.cumsum(counts, 0, out=begins[1:])
    _LIST((entries, 1, 1), (marks, counts, begins, queries), (words,), (512, True), num_warps=1)
    return begins, queries


def rows_of(dtype: torch.dtype, card: Card) -> int:
    """Queries of a program, and keys of a step, on a card; in the interpreter as on the roomy ones."""
    return _ROWS[dtype] // (2 if card.vendor and card.capability[0] not in _ROOMY else 1)


def _descriptor(tensor: Tensor, rows: int) -> Any:
    """Runs of rows of one head of `[B, S, H, D]`, which is `aligned` and not empty."""
    return descriptor(tensor, (tensor.shape, tensor.stride()), (1, rows, 1, tensor.shape[3]))


def _positive(q: Tensor, softmax_scale: float) -> tuple[Tensor, float]:
    """Queries and a positive scale that give the same scores: the largest scaled score is then that of the largest score."""
    return (q, softmax_scale) if softmax_scale > 0 else (q * (-1.0 if softmax_scale else 0.0), -softmax_scale or 1.0)


def _constants(q: Tensor, selection: BlockSelection, stages: int) -> tuple[int, int, int, bool, str, int]:
    """Block, rows, width, whether key blocks hold padding, precision and stages."""
    card = card_of(q.device)
    stages = 1 if q.dtype == torch.float32 else stages  # more tiles of float32 do not fit shared memory
    ragged, precision = selection.kv_sizes is not None, precision_of(q.dtype, card)
    return selection.block, rows_of(q.dtype, card), q.shape[3], ragged, precision, stages
