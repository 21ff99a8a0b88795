"""Block-sparse attention in Triton: one program per query block (and per key block for the gradients of k and v).

Portable: it needs nothing of one architecture. Scores are kept in units of log 2. Gradients are gathered, never added by
atomics: each program owns what it writes, so they are the same bits in every run. No launch depends on a count: nothing syncs.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from strobe.attention.sparse.selection import BlockSelection

_LOG2E: Final = 1.4426950408889634


@triton.jit
def _tile(base, rows, stride_row, valid, width: tl.constexpr, ragged: tl.constexpr):
    """Load rows of one head, `[len(rows), width]`; what padding rows hold is not read."""
    pointers = base + rows.to(tl.int64)[:, None] * stride_row + tl.arange(0, width)[None, :]
    if ragged:
        return tl.load(pointers, mask=valid[:, None], other=0.0)
    return tl.load(pointers)


@triton.jit
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, indices_ptr, counts_ptr, q_sizes_ptr, kv_sizes_ptr,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, o_batch, o_row, o_head,
    num_heads, groups, num_q, most, scale_log2,
    block: tl.constexpr, rows_m: tl.constexpr, rows_n: tl.constexpr, width: tl.constexpr,
    ragged_q: tl.constexpr, ragged_kv: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Online softmax over the selected key blocks of one run of `rows_m` queries."""
    runs: tl.constexpr = block // rows_m
    steps: tl.constexpr = block // rows_n
    run, row_of_heads = tl.program_id(0), tl.program_id(1)
    query_block, first = run // runs, (run % runs) * rows_m
    batch, head = (row_of_heads // num_heads).to(tl.int64), row_of_heads % num_heads
    kv_head = head // groups
    inside = first + tl.arange(0, rows_m)
    rows = query_block * block + inside
    valid = inside < (tl.load(q_sizes_ptr + query_block) if ragged_q else block)
    q = _tile(q_ptr + batch * q_batch + head * q_head, rows, q_row, valid, width, ragged_q)
    k_base, v_base = k_ptr + batch * k_batch + kv_head * k_head, v_ptr + batch * v_batch + kv_head * v_head

    top = tl.full([rows_m], float("-inf"), tl.float32)
    total = tl.zeros([rows_m], tl.float32)
    acc = tl.zeros([rows_m, width], tl.float32)
    entry = row_of_heads.to(tl.int64) * num_q + query_block
    for step in range(tl.load(counts_ptr + entry) * steps):
        key_block = tl.load(indices_ptr + entry * most + step // steps)
        inside_n = (step % steps) * rows_n + tl.arange(0, rows_n)
        seen = inside_n < (tl.load(kv_sizes_ptr + key_block) if ragged_kv else block)
        keys = _tile(k_base, key_block * block + inside_n, k_row, seen, width, ragged_kv)
        scores = tl.dot(q, tl.trans(keys), input_precision=precision) * scale_log2
        if ragged_kv:
            scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher) if ragged_kv else higher
        decay = tl.exp2(top - shift)
        weights = tl.exp2(scores - shift[:, None])
        total = total * decay + tl.sum(weights, 1)
        values = _tile(v_base, key_block * block + inside_n, v_row, seen, width, ragged_kv)
        acc = tl.dot(weights.to(values.dtype), values, acc * decay[:, None], input_precision=precision)
        top = higher

    filled = (total > 0) & valid
    out = tl.where(filled[:, None], acc / tl.where(total > 0, total, 1.0)[:, None], 0.0)
    # a NaN in a valid token must show: `total > 0` is false for NaN
    broken = (total != total) & valid
    out = tl.where(broken[:, None], float("nan"), out)
    lse = tl.where(filled, (top + tl.log2(tl.where(total > 0, total, 1.0))) * 0.6931471805599453, float("-inf"))
    lse = tl.where(broken, float("nan"), lse)
    pointers = out_ptr + batch * o_batch + head * o_head + rows.to(tl.int64)[:, None] * o_row + tl.arange(0, width)[None, :]
    tl.store(pointers, out.to(out_ptr.dtype.element_ty))
    tl.store(lse_ptr + row_of_heads.to(tl.int64) * num_q * block + rows, lse)


@triton.jit
def _d_query_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, d_q_ptr, indices_ptr, counts_ptr, q_sizes_ptr, kv_sizes_ptr,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, o_batch, o_row, o_head,
    num_heads, groups, num_q, most, scale,
    block: tl.constexpr, rows_m: tl.constexpr, rows_n: tl.constexpr, width: tl.constexpr,
    ragged_q: tl.constexpr, ragged_kv: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Gradient of one run of `rows_m` queries; `d_out` and `d_q` share the strides `o_*`."""
    runs: tl.constexpr = block // rows_m
    steps: tl.constexpr = block // rows_n
    run, row_of_heads = tl.program_id(0), tl.program_id(1)
    query_block, first = run // runs, (run % runs) * rows_m
    batch, head = (row_of_heads // num_heads).to(tl.int64), row_of_heads % num_heads
    kv_head = head // groups
    inside = first + tl.arange(0, rows_m)
    rows = query_block * block + inside
    valid = inside < (tl.load(q_sizes_ptr + query_block) if ragged_q else block)
    q = _tile(q_ptr + batch * q_batch + head * q_head, rows, q_row, valid, width, ragged_q)
    d_out = _tile(d_out_ptr + batch * o_batch + head * o_head, rows, o_row, valid, width, ragged_q)
    per_row = row_of_heads.to(tl.int64) * num_q * block + rows
    lse = tl.load(lse_ptr + per_row) * 1.4426950408889634
    lse = tl.where(lse == float("-inf"), float("inf"), lse)  # exp2(score - inf) = 0: an empty row has no gradient
    delta = tl.load(delta_ptr + per_row)
    k_base, v_base = k_ptr + batch * k_batch + kv_head * k_head, v_ptr + batch * v_batch + kv_head * v_head

    acc = tl.zeros([rows_m, width], tl.float32)
    entry = row_of_heads.to(tl.int64) * num_q + query_block
    for step in range(tl.load(counts_ptr + entry) * steps):
        key_block = tl.load(indices_ptr + entry * most + step // steps)
        inside_n = (step % steps) * rows_n + tl.arange(0, rows_n)
        seen = inside_n < (tl.load(kv_sizes_ptr + key_block) if ragged_kv else block)
        keys = _tile(k_base, key_block * block + inside_n, k_row, seen, width, ragged_kv)
        values = _tile(v_base, key_block * block + inside_n, v_row, seen, width, ragged_kv)
        weights = tl.exp2(tl.dot(q, tl.trans(keys), input_precision=precision) * (scale * 1.4426950408889634) - lse[:, None])
        if ragged_kv:
            weights = tl.where(seen[None, :], weights, 0.0)
        d_scores = weights * (tl.dot(d_out, tl.trans(values), input_precision=precision) - delta[:, None]) * scale
        acc = tl.dot(d_scores.to(keys.dtype), keys, acc, input_precision=precision)

    pointers = d_q_ptr + batch * o_batch + head * o_head + rows.to(tl.int64)[:, None] * o_row + tl.arange(0, width)[None, :]
    tl.store(pointers, tl.where(valid[:, None], acc, 0.0).to(d_q_ptr.dtype.element_ty))


@triton.jit
def _d_key_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, d_k_ptr, d_v_ptr, begins_ptr, queries_ptr, q_sizes_ptr, kv_sizes_ptr,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, o_batch, o_row, o_head, g_batch, g_row, g_head,
    num_heads, groups, num_q, num_kv, scale,
    block: tl.constexpr, rows_m: tl.constexpr, rows_n: tl.constexpr, width: tl.constexpr,
    ragged_q: tl.constexpr, ragged_kv: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Gradients of one run of `rows_n` keys and values: over every query head of the group, every query block that sees them."""
    runs: tl.constexpr = block // rows_n
    steps: tl.constexpr = block // rows_m
    run, row_of_heads = tl.program_id(0), tl.program_id(1)
    kv_heads = num_heads // groups
    key_block, first = run // runs, (run % runs) * rows_n
    batch, kv_head = (row_of_heads // kv_heads).to(tl.int64), row_of_heads % kv_heads
    inside = first + tl.arange(0, rows_n)
    rows = key_block * block + inside
    seen = inside < (tl.load(kv_sizes_ptr + key_block) if ragged_kv else block)
    keys = _tile(k_ptr + batch * k_batch + kv_head * k_head, rows, k_row, seen, width, ragged_kv)
    values = _tile(v_ptr + batch * v_batch + kv_head * v_head, rows, v_row, seen, width, ragged_kv)

    d_keys = tl.zeros([rows_n, width], tl.float32)
    d_values = tl.zeros([rows_n, width], tl.float32)
    for group in range(groups):
        head = kv_head * groups + group
        row = (row_of_heads // kv_heads) * num_heads + head
        q_base, o_base = q_ptr + batch * q_batch + head * q_head, d_out_ptr + batch * o_batch + head * o_head
        entry = row.to(tl.int64) * num_kv + key_block
        begin, end = tl.load(begins_ptr + entry), tl.load(begins_ptr + entry + 1)
        for step in range((end - begin).to(tl.int32) * steps):
            query_block = tl.load(queries_ptr + begin + step // steps)
            inside_m = (step % steps) * rows_m + tl.arange(0, rows_m)
            valid = inside_m < (tl.load(q_sizes_ptr + query_block) if ragged_q else block)
            at = query_block * block + inside_m
            q = _tile(q_base, at, q_row, valid, width, ragged_q)
            d_out = _tile(o_base, at, o_row, valid, width, ragged_q)
            per_row = row.to(tl.int64) * num_q * block + at
            lse = tl.load(lse_ptr + per_row) * 1.4426950408889634
            lse = tl.where(lse == float("-inf"), float("inf"), lse)
            delta = tl.load(delta_ptr + per_row)
            scores = tl.dot(keys, tl.trans(q), input_precision=precision) * (scale * 1.4426950408889634)
            weights = tl.exp2(scores - lse[None, :])  # [rows_n, rows_m]
            d_values = tl.dot(weights.to(d_out.dtype), d_out, d_values, input_precision=precision)
            d_weights = tl.dot(values, tl.trans(d_out), input_precision=precision)
            d_scores = weights * (d_weights - delta[None, :]) * scale
            d_keys = tl.dot(d_scores.to(q.dtype), q, d_keys, input_precision=precision)

    offsets = batch * g_batch + kv_head * g_head + rows.to(tl.int64)[:, None] * g_row + tl.arange(0, width)[None, :]
    tl.store(d_k_ptr + offsets, tl.where(seen[:, None], d_keys, 0.0).to(d_k_ptr.dtype.element_ty))
    tl.store(d_v_ptr + offsets, tl.where(seen[:, None], d_values, 0.0).to(d_v_ptr.dtype.element_ty))


def forward(q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection, softmax_scale: float) -> tuple[Tensor, Tensor]:
    """Return out `[B, S_q, H, D]` and lse float32 `[B, H, S_q]`."""
    q, k, v = (_dense_rows(tensor) for tensor in (q, k, v))
    batch, q_len, heads, _ = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(batch, heads, q_len, dtype=torch.float32, device=q.device)
    rows_m, rows_n = min(selection.block, 128), 64
    num_q = q_len // selection.block
    _forward_kernel[(q_len // rows_m, batch * heads)](
        q, k, v, out, lse, selection.indices.contiguous(), selection.counts.contiguous(), selection.q_sizes, selection.kv_sizes,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        heads, heads // k.shape[2], num_q, selection.indices.shape[3], softmax_scale * _LOG2E,
        rows_m=rows_m, rows_n=rows_n, num_warps=4 if rows_m == 64 else 8, num_stages=3, **_constants(q, selection),
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
    q, k, v = (_dense_rows(tensor) for tensor in (q, k, v))
    batch, q_len, heads, _ = q.shape
    kv_len, kv_heads = k.shape[1], k.shape[2]
    d_out, lse = grads[0].contiguous(), state[1].contiguous()
    delta = (d_out.float() * state[0].float()).sum(dim=-1).transpose(1, 2) - grads[1]  # [B, H, S_q]
    delta = delta.masked_fill(lse.isneginf(), 0).contiguous()  # a padding row of d_out may hold anything
    num_q, num_kv = q_len // selection.block, kv_len // selection.block
    d_q = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    d_k, d_v = (torch.empty(k.shape, dtype=k.dtype, device=k.device) for _ in range(2))
    rows_m, rows_n, indices = 64, 64, selection.indices.contiguous()
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *d_out.stride()[:3])
    options = _constants(q, selection)
    _d_query_kernel[(q_len // rows_m, batch * heads)](
        q, k, v, d_out, lse, delta, d_q, indices, selection.counts.contiguous(), selection.q_sizes, selection.kv_sizes,
        *strides, heads, heads // kv_heads, num_q, indices.shape[3], softmax_scale,
        rows_m=rows_m, rows_n=rows_n, num_warps=4, num_stages=2, **options,
    )  # fmt: skip
    begins, queries = queries_of_keys(selection, num_kv)
    _d_key_kernel[(kv_len // rows_n, batch * kv_heads)](
        q, k, v, d_out, lse, delta, d_k, d_v, begins, queries, selection.q_sizes, selection.kv_sizes,
        *strides, *d_k.stride()[:3], heads, heads // kv_heads, num_q, num_kv, softmax_scale,
        rows_m=rows_m, rows_n=rows_n, num_warps=4, num_stages=2, **options,
    )  # fmt: skip
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


def _dense_rows(tensor: Tensor) -> Tensor:
    """The tensor with its last dimension contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _constants(q: Tensor, selection: BlockSelection) -> dict[str, Any]:
    return {
        "block": selection.block,
        "width": q.shape[-1],
        "ragged_q": selection.q_sizes is not None,
        "ragged_kv": selection.kv_sizes is not None,
        "precision": "ieee" if q.dtype == torch.float32 else "tf32",  # 16-bit inputs have one precision
    }
