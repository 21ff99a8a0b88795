"""Block-sparse attention by the CuTe DSL kernels of nvidia-cudnn-frontend, on compute capability 9.0.

The forward kernels are compiled here, once per variant and for any shape, and called with torch tensors through TVM FFI: the
library's own wrapper costs several times as much host time per call. Where the host knows one number of key blocks for every
row, the kernels that need no other are taken; for blocks of 128 they are far faster. They mask padding keys, but multiply
padding values by 0: values are cleared first. The backward goes through the library's public function. It takes the gradient of
the output only, adds the gradient of q with atomics, and reads padding rows of everything: all of them are cleared first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from strobe.attention.sparse.launch import Place, dense, empty_on
from strobe.attention.sparse.padding import aligned, cleared, finite, settle_
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.stages.types import Prepared


def forward(q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection, softmax_scale: float) -> tuple[Tensor, Tensor]:
    """Return out `[B, S_q, H, D]` and lse float32 `[B, H, S_q]`."""
    batch, q_len, heads, width = q.shape
    if 0 in selection.indices.shape or k.shape[1] == 0:
        return torch.zeros_like(q), q.new_full((batch, heads, q_len), float("-inf"), dtype=torch.float32)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, q_len), dtype=torch.float32, device=q.device)
    block, sizes = selection.block, selection.kv_sizes
    queries, keys, values = aligned(q), aligned(k), aligned(finite(v, sizes, selection))
    count = selection.uniform_count or 0
    kernel = _forward_kernel(block, width, heads // k.shape[2], q.dtype, sizes is not None, count > 0, q.device.index)
    kernel(
        queries.permute(1, 3, 2, 0),
        keys.permute(1, 3, 2, 0),
        values.permute(3, 1, 2, 0),
        out.permute(1, 3, 2, 0),
        lse.permute(2, 1, 0),
        *_beside(selection, selection.indices.contiguous().permute(3, 2, 1, 0), softmax_scale),
    )
    settle_(out, lse, selection.q_sizes, block)
    return out, lse


def prepare(q: Tensor, k: Tensor, v: Tensor, selection: BlockSelection, softmax_scale: float) -> Prepared | None:
    """The forward for aligned q, k and v like these, whose queries are all valid: made in the kernel's order of dimensions."""
    (batch, q_len, heads, width), (_, kv_len, kv_heads, _), dtype = q.shape, k.shape, q.dtype
    if 0 in selection.indices.shape or kv_len == 0:
        return None
    count, sizes, empty = selection.uniform_count or 0, selection.kv_sizes, empty_on(q.device)
    kernel = _forward_kernel(selection.block, width, heads // kv_heads, dtype, sizes is not None, count > 0, q.device.index)
    q_place, lse_place = _place(q, (1, 3, 2, 0)), ((q_len, heads, batch), (1, q_len, q_len * heads))
    _, *beside = _beside(selection, selection.indices.permute(3, 2, 1, 0), softmax_scale)
    unread = selection.block == 128 and sizes is None

    def run(_: int, queries: Tensor, keys: Tensor, values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = empty(*q_place, dtype), empty(*lse_place, torch.float32)
        seen = indices.permute(3, 2, 1, 0)
        if unread:
            kernel(queries, keys, values, out, lse, seen, beside[0], seen, *beside[2:])
        else:
            kernel(queries, keys, values, out, lse, seen, *beside)
        return out, lse

    places = (q_place, _place(k, (1, 3, 2, 0)), _place(v, (3, 1, 2, 0)))
    return Prepared(places, dense(*q.shape)[1], run, lambda lse: lse.permute(2, 1, 0))


def _place(tensor: Tensor, order: tuple[int, ...]) -> Place:
    """Sizes and strides of a contiguous tensor like this one, with its dimensions in another order."""
    sizes, strides = dense(*tensor.shape)
    return tuple(sizes[dim] for dim in order), tuple(strides[dim] for dim in order)


def _beside(selection: BlockSelection, indices: Tensor, softmax_scale: float) -> tuple[Any, ...]:
    """What the kernel for a selection is given behind q, k, v, out and lse: the indices, and the rest.

    Blocks of 128 that are whole have no sizes; the kernel, which does not read them then, wants a tensor shaped as the indices.
    """
    counts, sizes = selection.counts.contiguous(), selection.kv_sizes
    seen = counts.permute(2, 1, 0)  # [N_q, H, B]
    if selection.block == 128:
        return indices, seen, indices if sizes is None else sizes, softmax_scale, selection.uniform_count or 0
    per_head = seen if sizes is None else sizes[:, None, None].expand(-1, *seen.shape[1:])  # [N_kv, H, B]
    return indices, seen, per_head, seen, softmax_scale


def backward(
    grads: tuple[Tensor, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: tuple[Tensor, Tensor],
    selection: BlockSelection,
    softmax_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, given that of `out` and `(out, lse)` itself; there is none through the lse."""
    if 0 in selection.indices.shape or k.shape[1] == 0:
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    from cudnn import BSA

    block, q_sizes, kv_sizes = selection.block, selection.q_sizes, selection.kv_sizes
    count = selection.uniform_count or None  # the library takes no count of 0 but from the device
    found = BSA.block_sparse_attention_backward(
        aligned(cleared(grads[0], q_sizes, block)),
        aligned(finite(q, q_sizes, selection)),
        aligned(finite(k, kv_sizes, selection)),
        aligned(finite(v, kv_sizes, selection)),
        aligned(state[0]),
        state[1].masked_fill(state[1].isneginf(), float("inf")),  # exp(score - inf) = 0: an empty row has no gradient
        selection.indices.contiguous(),
        count,
        kv_sizes,
        selection.counts.contiguous() if count is None else None,
        softmax_scale=softmax_scale,
        sparse_block_size=block,
        layout="bshd",
    )
    return found["dq_tensor"], found["dk_tensor"], found["dv_tensor"]


@cache
def _forward_kernel(
    block: int, width: int, groups: int, dtype: torch.dtype, ragged: bool, counted: bool, device_index: int | None
) -> Callable[..., None]:
    """Compile one variant for every shape: `(q, k, v, out, lse, indices, *_beside(...))`.

    q, k and out are `[S, D, H, B]`, v `[D, S, H, B]`, lse `[S, H, B]`, indices `[K, N_q, H, B]`; it runs on torch's current
    stream. `counted`: every row sees one number of key blocks, at least one. `device_index` keeps devices apart.
    Variants are few and never let go: a recorded CUDA graph may launch them.
    """
    import cutlass
    from cudnn.block_sparse_attention import _interface
    from cutlass import cute

    element = {torch.bfloat16: cutlass.BFloat16, torch.float16: cutlass.Float16}[dtype]
    tensors: list[Any] = [_any(element, 4, 1, 16), _any(element, 4, 1, 16), _any(element, 4, 0, 16), _any(element, 4, 1, 16)]
    tensors += [_any(cutlass.Float32, 3, 0, 4), _any(cutlass.Int32, 4, 0, 4), _any(cutlass.Int32, 3, 0, 4)]
    scale, stream = cutlass.Float32(1.0), cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    options = "--enable-tvm-ffi"
    if block == 128:
        from cudnn.block_sparse_attention.csrc.fwd.sm90_blk128.bsa_fwd_sm90 import BlockSparseAttnForwardSm90Blk128

        wide = BlockSparseAttnForwardSm90Blk128(width, width, groups, variable_count=not counted, block_sizes_mode=int(ragged))
        sizes = _any(cutlass.Int32, 1, 0, 4) if ragged else tensors[5]
        found: Callable[..., None] = cute.compile(wide, *tensors, sizes, scale, cutlass.Int32(0), stream, options=options)
        return found
    kernel = _interface.BlockSparseAttnForwardSm90Blk64(
        gqa_ratio=groups,
        head_dim=width,
        value_dim=width,
        dtype=element,
        has_block_sizes=ragged,
        allow_empty_block_nums=ragged or not counted,  # a row may see nothing but empty blocks
    )
    sizes = _any(cutlass.Int32, 3, 0, 4)
    found = cute.compile(kernel, *tensors, sizes, tensors[6], scale, stream, options=options)
    return found


def _any(element: Any, rank: int, leading: int, alignment_bytes: int) -> Any:
    """A stand-in for every tensor of this type: only the rank and the contiguous dimension are fixed."""
    from cutlass import cute

    elements = max(1, alignment_bytes * 8 // element.width)
    stride = tuple(1 if dim == leading else cute.sym_int64(divisibility=elements) for dim in range(rank))
    shape = tuple(cute.sym_int() for _ in range(rank))
    return cute.runtime.make_fake_tensor(element, shape, stride=stride, assumed_align=alignment_bytes)
