"""FastVideo's `video_sparse_attn`: `[B, H, S, D]`, tokens already in tile order, coarse plus fine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from operator import index

import torch
from torch import Tensor

from strobe.attention.around import ambient
from strobe.attention.impls import Choice
from strobe.attention.sparse.coarse import budget
from strobe.attention.sparse.entries import looks
from strobe.attention.sparse.layout import check_block
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.sparse.stages.types import Grid, SelectionSpec
from strobe.attention.sparse.tiled import Plan, Tiles, attend, chosen_impl, filled, fine_spec, fuses
from strobe.attention.types import TensorMeta, check, expect, traced
from strobe.core.errors import ShapeError


def video_sparse_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    variable_block_sizes: Tensor | None = None,
    q_variable_block_sizes: Tensor | None = None,
    topk: int = 8,
    block_size: int | Sequence[int] = 64,
    compress_attn_weight: Tensor | None = None,
    *,
    impl: str = "auto",
) -> Tensor:
    """Attend over tokens in tile order by video sparse attention: `coarse * compress_attn_weight + fine`, or `coarse + fine`.

    Args:
        q: `[B, H, S_q, D]`, `S_q` a multiple of the block. Padding rows hold finite numbers, such as zeros; those of the result
            are 0.
        k: `[B, H, S_kv, D]`.
        v: like k.
        variable_block_sizes: valid tokens of each key block, `[S_kv / block]`; all are whole if not given.
        q_variable_block_sizes: likewise of the query blocks; those of the keys if not given and `S_q == S_kv`.
        topk: key blocks that every query block sees; all, if there are fewer.
        block_size: tokens of a block: 64, 128, 256, or the sides of a tile with that many, such as `(4, 8, 8)`.
        compress_attn_weight: gate of the coarse output, `[B, H, S_q, D]` or what broadcasts to it.
        impl: of the fine stage, as in `strobe.block_sparse_attention`.

    Returns:
        `[B, H, S_q, D]`.

    Raises:
        ShapeError: the arguments do not fit together.
        ConfigError: an argument is of another type, or topk is not positive.
        ImplUnavailableError: the named impl cannot run this call.

    Source: the signature of fastvideo-kernel 0.3; the sequence of arguments is kept.
    """
    queries, keys, values = (_rows_first(name, tensor) for name, tensor in (("q", q), ("k", k), ("v", v)))
    block = _block(block_size)
    _check_shapes(q, k, v, block)
    gate = None if compress_attn_weight is None else _gate(compress_attn_weight, q)
    if q_variable_block_sizes is None and q.shape[2] == k.shape[2]:
        q_variable_block_sizes = variable_block_sizes
    q_rows = _grid(q_variable_block_sizes, q.shape[2] // block, block, "q_variable_block_sizes", q.device)
    kv_rows = _grid(variable_block_sizes, k.shape[2] // block, block, "variable_block_sizes", q.device)
    ragged = q_rows.ragged_sizes is not None or kv_rows.ragged_sizes is not None
    expect("topk", topk, int, "an int")
    faces = (TensorMeta.of("q", queries), TensorMeta.of("k", keys), TensorMeta.of("v", values))
    tiles, deterministic = Tiles(block, q_rows.num_tiles, kv_rows.num_tiles, ragged), torch.are_deterministic_algorithms_enabled()
    selected = min(index(topk), kv_rows.num_tiles)
    work_out = _worked_out if traced() else _kept
    spec, choice = work_out(faces, tiles, selected, impl, torch.is_grad_enabled(), deterministic)
    wish = SelectionSpec(
        softmax_scale=spec.softmax_scale,
        parts=1,
        per_head=(selected,),
        counts=filled(selected, (q.shape[0], q.shape[1], q_rows.num_tiles), q.device),
        forced=None,
        coarse=True,
    )
    plain = torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (q, k, v, gate))
    fused = not plain and _fuses(q, spec)
    with ambient(q, choice.impl.name):
        plan = Plan(wish=wish, spec=spec, choice=choice, fused=fused)
        return attend(plan, (queries, keys, values), (q_rows, kv_rows), None, gate).out.transpose(1, 2)


def _worked_out(
    faces: tuple[TensorMeta, TensorMeta, TensorMeta], tiles: Tiles, selected: int, impl: str, grad: bool, deterministic: bool
) -> tuple[SparseSpec, Choice[SparseSpec]]:
    """Plan the fine stage of a call and choose its impl. `grad`: gradients are recorded."""
    spec = check(*faces, None, False)
    fine = fine_spec(
        spec, tiles, budget(selected, None, 1, tiles.num_kv), needs_grad=spec.needs_grad, deterministic=deterministic
    )
    return fine, chosen_impl(fine, impl)


_kept = lru_cache(maxsize=256)(_worked_out)


def _fuses(q: Tensor, spec: SparseSpec) -> bool:
    watched = traced() or torch._C._len_torch_dispatch_stack() or type(q) not in (Tensor, torch.nn.Parameter)
    return not watched and spec.batch > 0 and fuses(spec.device, spec.dtype, spec.head_dim)


def _rows_first(name: str, tensor: Tensor) -> Tensor:
    """Transpose `[B, H, S, D]` to `[B, S, H, D]`."""
    expect(name, tensor, Tensor, "a tensor [B, H, S, D]")
    if tensor.dim() != 4:
        raise ShapeError(f"{name}: got shape {tuple(tensor.shape)}, expected [B, H, S, D]")
    return tensor.transpose(1, 2)


def _block(block_size: int | Sequence[int]) -> int:
    expect("block_size", block_size, (int, tuple, list), "the tokens of a block, or the three sides of a tile")
    block = block_size if isinstance(block_size, int) else prod(block_size)
    check_block(block)
    return block


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, block: int) -> None:
    """Check that the shapes fit together; errors name them in the caller's layout."""
    if q.shape[2] % block or k.shape[2] % block:
        raise ShapeError(f"q and k: got {q.shape[2]} and {k.shape[2]} rows, expected multiples of the block's {block}")
    if q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3] or k.shape != v.shape:
        given = f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        wanted = "[B, H, S, D] with one batch, number of heads and head_dim, and k and v alike"
        raise ShapeError(f"q, k and v: got shapes {given}, expected {wanted}")
    if k.shape[2] == 0 or 0 in (q.shape[1], q.shape[3]):
        raise ShapeError(f"q and k: got shapes {tuple(q.shape)} and {tuple(k.shape)}, expected heads, channels and key rows")


def _gate(weight: Tensor, q: Tensor) -> Tensor:
    """Expand the weight to every element of q, `[B, S, H, D]`."""
    expect("compress_attn_weight", weight, Tensor, f"a tensor of what broadcasts to q's {tuple(q.shape)}")
    try:
        return weight.expand(q.shape).transpose(1, 2)
    except RuntimeError as error:
        wanted = f"what broadcasts to q's {tuple(q.shape)}, [B, H, S, D]"
        raise ShapeError(f"compress_attn_weight: got shape {tuple(weight.shape)}, expected {wanted}") from error


def _grid(sizes: Tensor | None, number: int, block: int, name: str, device: torch.device) -> Grid:
    """Return the grid of tiles that are given in tile order, with the tokens of each."""
    if sizes is not None:
        expect(name, sizes, Tensor, f"a tensor of shape ({number},)")
        if tuple(sizes.shape) != (number,):
            raise ShapeError(f"{name}: got shape {tuple(sizes.shape)}, expected ({number},)")
        sizes = sizes.to(device=device, dtype=torch.int32)
        if looks(sizes) and bool(((sizes < 0) | (sizes > block)).any()):
            low, high = sizes.aminmax()
            raise ShapeError(f"{name}: got {int(low)} to {int(high)} tokens in a block, expected 0 to {block}")
    return Grid.in_tiles(block, number, filled(block, (number,), device) if sizes is None else sizes, sizes)
