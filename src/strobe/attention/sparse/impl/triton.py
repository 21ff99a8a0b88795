"""Block-sparse attention in Triton: one program per run of 64 queries (per run of 64 keys for the gradients of k and v).

Portable: keys, values and whatever a loop walks over are read through tensor descriptors, which Hopper's copy engine serves and
other GPUs emulate. Scores are kept in units of log 2. The scores of the next step are computed before this step's softmax, so
that matrix units and the rest work at once. Gradients are gathered, never added by atomics: each program owns what it writes,
so they are the same bits in every run. No launch depends on a count: nothing syncs. No configuration depends on a length.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from strobe.attention.sparse.selection import BlockSelection

_LOG2E: Final = 1.4426950408889634
_ROWS: Final = 64
"""Queries of a program, and keys of a step."""


@triton.jit
def _tile(desc, batch, first, head, rows: tl.constexpr, width: tl.constexpr):
    """Rows `first` to `first + rows` of one head, `[rows, width]`."""
    return desc.load([batch, first, head, 0]).reshape([rows, width])


@triton.jit
def _key_of(row, step, steps: tl.constexpr, rows: tl.constexpr, block: tl.constexpr):
    """First key of a step: key blocks in the order of the indices, each in `steps` runs."""
    return tl.load(row + step // steps) * block + (step % steps) * rows


@triton.jit
def _scores(q, k_desc, batch, first, kv_head, sizes_ptr, block: tl.constexpr, rows: tl.constexpr, width: tl.constexpr,
            ragged: tl.constexpr, precision: tl.constexpr):  # fmt: skip
    """Scores of the queries against the keys from `first` on, `[rows, rows]`; -inf where a key is padding."""
    keys = _tile(k_desc, batch, first, kv_head, rows, width)
    scores = tl.dot(q, keys.T, input_precision=precision)
    if ragged:
        seen = first % block + tl.arange(0, rows) < tl.load(sizes_ptr + first // block)
        scores = tl.where(seen[None, :], scores, float("-inf"))
    return scores


@triton.jit
def _forward_kernel(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, indices_ptr, counts_ptr, q_sizes_ptr, kv_sizes_ptr,
    num_heads, groups, num_q, most, scale_log2,
    block: tl.constexpr, rows: tl.constexpr, width: tl.constexpr,
    ragged_q: tl.constexpr, ragged_kv: tl.constexpr, precision: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Online softmax over the selected key blocks of one run of queries. `scale_log2` is positive."""
    steps: tl.constexpr = block // rows
    run, row_of_heads = tl.program_id(0), tl.program_id(1)
    query_block = run // steps
    batch, head = row_of_heads // num_heads, row_of_heads % num_heads
    kv_head = head // groups
    at = run * rows + tl.arange(0, rows)
    valid = (run % steps) * rows + tl.arange(0, rows) < (tl.load(q_sizes_ptr + query_block) if ragged_q else block)
    q = _tile(q_desc, batch, run * rows, head, rows, width)  # what a padding row holds stays in that row

    top = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    acc = tl.zeros([rows, width], tl.float32)
    entry = row_of_heads.to(tl.int64) * num_q + query_block
    row = indices_ptr + entry * most
    last = tl.load(counts_ptr + entry) * steps - 1
    first = tl.load(row, mask=last >= 0, other=0) * block
    scores = _scores(q, k_desc, batch, first, kv_head, kv_sizes_ptr, block, rows, width, ragged_kv, precision)
    for step in tl.range(last + 1, num_stages=stages):
        following = _key_of(row, tl.minimum(step + 1, last), steps, rows, block)
        ahead = _scores(q, k_desc, batch, following, kv_head, kv_sizes_ptr, block, rows, width, ragged_kv, precision)
        values = _tile(v_desc, batch, first, kv_head, rows, width)
        higher = tl.maximum(top, tl.max(scores, 1))
        shift = higher * scale_log2
        if ragged_kv:
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
def _d_query_kernel(
    q_desc, k_desc, v_desc, d_out_desc, lse_ptr, delta_ptr, d_q_desc, indices_ptr, counts_ptr, q_sizes_ptr, kv_sizes_ptr,
    num_heads, groups, num_q, most, scale,
    block: tl.constexpr, rows: tl.constexpr, width: tl.constexpr,
    ragged_q: tl.constexpr, ragged_kv: tl.constexpr, precision: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Gradient of one run of queries. `scale` is positive."""
    steps: tl.constexpr = block // rows
    run, row_of_heads = tl.program_id(0), tl.program_id(1)
    query_block = run // steps
    batch, head = row_of_heads // num_heads, row_of_heads % num_heads
    kv_head = head // groups
    at = run * rows + tl.arange(0, rows)
    valid = (run % steps) * rows + tl.arange(0, rows) < (tl.load(q_sizes_ptr + query_block) if ragged_q else block)
    q = _tile(q_desc, batch, run * rows, head, rows, width)
    d_out = _tile(d_out_desc, batch, run * rows, head, rows, width)
    per_row = row_of_heads.to(tl.int64) * num_q * block + at
    lse = tl.load(lse_ptr + per_row) * 1.4426950408889634
    lse = tl.where(lse == float("-inf"), float("inf"), lse)  # exp2(score - inf) = 0: an empty row has no gradient
    delta = tl.load(delta_ptr + per_row)

    acc = tl.zeros([rows, width], tl.float32)
    entry = row_of_heads.to(tl.int64) * num_q + query_block
    row = indices_ptr + entry * most
    for step in tl.range(tl.load(counts_ptr + entry) * steps, num_stages=stages):
        first = _key_of(row, step, steps, rows, block)
        keys = _tile(k_desc, batch, first, kv_head, rows, width)
        scores = tl.dot(q, keys.T, input_precision=precision)
        values = _tile(v_desc, batch, first, kv_head, rows, width)
        d_weights = tl.dot(d_out, values.T, input_precision=precision)
        weights = tl.exp2(scores * (scale * 1.4426950408889634) - lse[:, None])
        if ragged_kv:
            seen = first % block + tl.arange(0, rows) < tl.load(kv_sizes_ptr + first // block)
            weights = tl.where(seen[None, :], weights, 0.0)
        d_scores = weights * (d_weights - delta[:, None])
        acc = tl.dot(d_scores.to(keys.dtype), keys, acc, input_precision=precision)

    d_q = tl.where(valid[:, None], acc * scale, 0.0).to(q.dtype)
    d_q_desc.store([batch, run * rows, head, 0], d_q.reshape([1, rows, 1, width]))


@triton.jit
def _d_key_kernel(
    q_desc, k_desc, v_desc, d_out_desc, lse_ptr, delta_ptr, d_k_desc, d_v_desc, begins_ptr, queries_ptr, kv_sizes_ptr,
    num_heads, groups, num_q, num_kv, scale,
    block: tl.constexpr, rows: tl.constexpr, width: tl.constexpr,
    ragged_kv: tl.constexpr, precision: tl.constexpr, stages: tl.constexpr,
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
    keys = _tile(k_desc, batch, run * rows, kv_head, rows, width)
    values = _tile(v_desc, batch, run * rows, kv_head, rows, width)

    d_keys = tl.zeros([rows, width], tl.float32)
    d_values = tl.zeros([rows, width], tl.float32)
    for group in range(groups):
        head = kv_head * groups + group
        row = (batch * num_heads + head).to(tl.int64)
        entry = row * num_kv + key_block
        begin, end = tl.load(begins_ptr + entry), tl.load(begins_ptr + entry + 1)
        for step in tl.range((end - begin).to(tl.int32) * steps, num_stages=stages):
            first = _key_of(queries_ptr + begin, step, steps, rows, block)
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


def forward(q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection, softmax_scale: float) -> tuple[Tensor, Tensor]:
    """Return out `[B, S_q, H, D]` and lse float32 `[B, H, S_q]`."""
    q, softmax_scale = _positive(q, softmax_scale)
    q, k, v = _aligned(q), _aligned(k), _aligned(_cleared(v, selection.kv_sizes, selection))
    batch, q_len, heads, _ = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(batch, heads, q_len, dtype=torch.float32, device=q.device)
    if q_len == 0 or k.shape[1] == 0:
        return out.zero_(), lse.fill_(float("-inf"))
    _forward_kernel[(q_len // _ROWS, batch * heads)](
        *(_descriptor(tensor) for tensor in (q, k, v, out)), lse,
        selection.indices.contiguous(), selection.counts.contiguous(), selection.q_sizes, selection.kv_sizes,
        heads, heads // k.shape[2], q_len // selection.block, selection.indices.shape[3], softmax_scale * _LOG2E,
        num_warps=4, **_constants(q, selection, 3), ragged_q=selection.q_sizes is not None,
    )  # fmt: skip
    return out, lse


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
    given = softmax_scale
    q, softmax_scale = _positive(q, softmax_scale)
    q = _aligned(_cleared(q, selection.q_sizes, selection))
    k, v = (_aligned(_cleared(tensor, selection.kv_sizes, selection)) for tensor in (k, v))
    d_out = _aligned(_cleared(grads[0], selection.q_sizes, None))
    batch, q_len, heads, _ = q.shape
    kv_len, kv_heads, lse = k.shape[1], k.shape[2], state[1].contiguous()
    d_q = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    d_k, d_v = (torch.empty(k.shape, dtype=k.dtype, device=k.device) for _ in range(2))
    if q_len == 0 or kv_len == 0:
        return d_q.zero_(), d_k.zero_(), d_v.zero_()
    delta = (d_out.float() * state[0].float()).sum(dim=-1).transpose(1, 2) - grads[1]  # [B, H, S_q]
    delta = delta.masked_fill(lse.isneginf(), 0).contiguous()  # the lse of an empty row has no gradient, whatever was handed in
    num_q, num_kv, groups, indices = q_len // selection.block, kv_len // selection.block, heads // kv_heads, selection.indices
    options = _constants(q, selection, 2)
    _d_query_kernel[(q_len // _ROWS, batch * heads)](
        *(_descriptor(tensor) for tensor in (q, k, v, d_out)), lse, delta, _descriptor(d_q),
        indices.contiguous(), selection.counts.contiguous(), selection.q_sizes, selection.kv_sizes,
        heads, groups, num_q, indices.shape[3], softmax_scale,
        num_warps=4, **options, ragged_q=selection.q_sizes is not None,
    )  # fmt: skip
    begins, queries = queries_of_keys(selection, num_kv)
    _d_key_kernel[(kv_len // _ROWS, batch * kv_heads)](
        *(_descriptor(tensor) for tensor in (q, k, v, d_out)), lse, delta, _descriptor(d_k), _descriptor(d_v), begins, queries,
        selection.kv_sizes, heads, groups, num_q, num_kv, softmax_scale,
        num_warps=4, **options,
    )  # fmt: skip
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
    device = selection.indices.device
    row = torch.arange(batch * heads, device=device).view(batch, heads, 1, 1)
    used = torch.arange(most, device=device) < selection.counts.unsqueeze(-1)
    entry = torch.where(used, row * num_kv + selection.indices, batch * heads * num_kv).flatten()  # unused ones go to the end
    ranked, order = torch.sort(entry, stable=True)
    begins = torch.searchsorted(ranked, torch.arange(batch * heads * num_kv + 1, device=device))
    return begins, (order // max(1, most) % max(1, num_q)).to(torch.int32)


def _descriptor(tensor: Tensor) -> TensorDescriptor:
    """Runs of `_ROWS` rows of one head of `[B, S, H, D]`."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, _ROWS, 1, tensor.shape[3]])


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor as a descriptor can address it: last dimension contiguous, the rest in steps of 16 bytes."""
    bytes_each = tensor.element_size()
    steps = (tensor.data_ptr(), *(stride * bytes_each for stride in tensor.stride()[:3]))
    return tensor if tensor.stride(3) == 1 and not any(step % 16 for step in steps) else tensor.contiguous()


def _cleared(tensor: Tensor, sizes: Tensor | None, selection: BlockSelection | None) -> Tensor:
    """The tensor with padding rows 0, unless they are known to be finite: 0 times what they hold must be 0."""
    if sizes is None or (selection is not None and selection.finite_padding):
        return tensor
    block = tensor.shape[1] // sizes.shape[0]
    return tensor.masked_fill((torch.arange(block, device=tensor.device) >= sizes[:, None]).flatten()[:, None, None], 0)


def _positive(q: Tensor, softmax_scale: float) -> tuple[Tensor, float]:
    """Queries and a positive scale that give the same scores: the largest scaled score is then that of the largest score."""
    return (q, softmax_scale) if softmax_scale > 0 else (q * (-1.0 if softmax_scale else 0.0), -softmax_scale or 1.0)


def _constants(q: Tensor, selection: BlockSelection, stages: int) -> dict[str, Any]:
    return {
        "block": selection.block,
        "rows": _ROWS,
        "width": q.shape[-1],
        "ragged_kv": selection.kv_sizes is not None,
        "precision": "ieee" if q.dtype == torch.float32 else "tf32",  # 16-bit inputs have one precision
        "stages": 1 if q.dtype == torch.float32 else stages,  # more tiles of float32 do not fit shared memory
    }
