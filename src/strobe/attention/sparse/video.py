"""The front door of attention over a video: the coarse stage selects, `block_sparse_attention`'s impls compute.

Everything a call's shapes and options decide is worked out once, in a `_Plan`, and kept.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from operator import index
from typing import Any, Final, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from strobe.attention.impls import ambient, announce
from strobe.attention.sparse.coarse import Estimator, Forced, budget, check_parts, forced_blocks
from strobe.attention.sparse.impl import reference as reference_impl
from strobe.attention.sparse.impls import RUN, choose
from strobe.attention.sparse.layout import TileLayout, held, tile_layout
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.sparse.stages.impl import reference
from strobe.attention.sparse.stages.types import Grid, Selected, Tiled, Wish
from strobe.attention.types import AttentionOutput, Face, check
from strobe.core.errors import ConfigError, ShapeError
from strobe.core.settings import read_settings
from strobe.core.spans import ATTENTION_FINISH, ATTENTION_KERNEL, ATTENTION_SELECT, ATTENTION_TILE, span

Layout = Literal["raster", "tiled"]
TileName = tuple[int, ...] | int | Literal["auto"]

_FREE: Final = Forced()
_MEANS: Final = Estimator()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class VideoAttentionOutput:
    """Result of video-sparse attention.

    Args:
        out: `[B, S_q, H, D]` in the layout and dtype of q.
        lse: of the fine stage, float32 `[B, H, S_q]` in the layout of q; None unless it was asked for.
        selection: what the coarse stage took; its counts belong to every call of this kind and are not to be written to.
        recall: share of the dense attention's mass that the selected tiles hold, float32 `[B, H]`, mean over the probed queries;
            None unless it was asked for.
        q_tiles: how the grid of q was cut, such as what `tile="auto"` took; its `padding` is the share of rows that costs.
        kv_tiles: likewise the grid of k and v.
    """

    out: Tensor
    lse: Tensor | None
    selection: BlockSelection
    recall: Tensor | None
    q_tiles: TileLayout
    kv_tiles: TileLayout


def video_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    grid: Iterable[int],
    kv_grid: Iterable[int] | None = None,
    tile: Iterable[int] | int | Literal["auto"] = (4, 4, 4),
    kv_tile: Iterable[int] | int | Literal["auto"] | None = None,
    topk: int | Sequence[int] | None = None,
    sparsity: float | None = None,
    gate: Tensor | None = None,
    coarse: bool | None = None,
    forced: Forced = _FREE,
    estimator: Estimator = _MEANS,
    rope: tuple[Tensor, Tensor] | None = None,
    softmax_scale: float | None = None,
    q_layout: Layout = "raster",
    kv_layout: Layout = "raster",
    impl: str = "auto",
    return_lse: bool = False,
    probe: int = 0,
) -> VideoAttentionOutput:
    """Attention over a video: every tile of queries sees the key tiles that a coarse pass finds worth seeing.

    `out = fine + gate * coarse`: fine is softmax attention over the selected tiles, coarse is attention of tile over tile, the
    same for all queries of a tile.

    Args:
        q: `[B, S_q, H, D]`.
        k: `[B, S_kv, H_kv, D]`.
        v: like k.
        grid: tokens of q in (time, height, width).
        kv_grid: likewise of k and v, such as the frames of a key-value cache; by default that of q.
        tile: tokens of a tile in (time, height, width), a block size, or `auto` for the fewest padding rows.
        kv_tile: likewise of the keys; by default that of q, and over another grid a tile inside one frame.
        topk: key tiles that every query tile sees, or one number per head.
        sparsity: in its place, the share of the key tiles that is skipped.
        gate: weight of the coarse output, `[B, S_q, H, D]` or what broadcasts to it, in the layout of q.
        coarse: add the coarse output; by default only if a gate is given, because without a trained gate the sum is no
            replacement for dense attention; False computes none, whatever the gate.
        forced: key tiles that are selected whatever they score.
        estimator: how tiles are scored.
        rope: (cos, sin), each `[S, D / 2]` in raster order: q and k are rotated by pairs of channels (2i, 2i + 1) first.
        softmax_scale: default `D ** -0.5`.
        q_layout: `raster`, or `tiled`: rows in tile order, as `TileLayout.to_tiles` makes them. The output has the same.
            Padding rows of q must hold finite numbers if a gradient is asked for.
        kv_layout: likewise of k and v; padding rows must hold finite numbers.
        impl: of the fine stage, as in `block_sparse_attention`.
        return_lse: also return the lse of the fine stage.
        probe: queries per head, evenly spaced, to measure the recall with; 0 for none.

    Raises:
        ShapeError: the arguments do not fit together.
        ConfigError: neither or both of topk and sparsity, or a policy that cannot be met.
        ImplUnavailableError: the named impl cannot run this call.
    """
    call = _Call(
        Face.of(q),
        Face.of(k),
        Face.of(v),
        forced,
        estimator,
        tuple(grid),
        None if kv_grid is None else tuple(kv_grid),
        tile if isinstance(tile, (int, str)) else tuple(tile),
        kv_tile if kv_tile is None or isinstance(kv_tile, (int, str)) else tuple(kv_tile),
        None if topk is None else index(topk) if not isinstance(topk, Iterable) else tuple(topk),
        sparsity,
        gate is not None,
        coarse,
        rope is not None,
        None if softmax_scale is None else float(softmax_scale),
        q_layout,
        kv_layout,
        impl,
        return_lse or probe > 0,
        _graded(q, k, v, *(rope or ())),
        _graded(q, k, v, gate, *(rope or ())),
        torch.are_deterministic_algorithms_enabled(),
    )
    if probe < 0:
        raise ConfigError(f"probe: got {probe}, expected 0 for none or a number of queries")
    plan = _plan_of(call, type(q) in (Tensor, torch.nn.Parameter))
    if rope is not None:
        _check_rope(rope, q)
    with ambient(q):
        out, fine, selection, tiled = _run(plan, (q, k, v), rope, None if gate is None else _spread(gate, q))
        recall = None if probe == 0 else _recall(tiled.q, tiled.k, fine, plan, probe)
        lse = None if fine.lse is None or not return_lse else _in_order(fine.lse, plan.q_rows)
    return VideoAttentionOutput(
        out=out, lse=lse, selection=selection, recall=recall, q_tiles=plan.q_tiles, kv_tiles=plan.kv_tiles
    )


def _run(
    plan: _Plan, tensors: tuple[Tensor, Tensor, Tensor], rope: tuple[Tensor, Tensor] | None, gate: Tensor | None
) -> tuple[Tensor, AttentionOutput, BlockSelection, Tiled]:
    """Return the output in the order of the queries, the fine stage's result, what it saw, and its operands."""
    fused = plan.fused and not torch.compiler.is_compiling()  # a compiler fuses the plain ones itself
    stages, wish, q_rows, kv_rows = _fused_stages() if fused else reference, plan.wish, plan.q_rows, plan.kv_rows
    with span(ATTENTION_TILE):
        tiled = stages.tile(*tensors, q_rows, kv_rows, rope, wish)
    with span(ATTENTION_SELECT):
        chosen = stages.select(tiled, q_rows, kv_rows, wish)
    selection = _selection(plan, chosen, q_rows.ragged_sizes)
    # padding queries that the last stage drops are 0 here, and need no masking
    seen = selection if not fused or q_rows.tiled or q_rows.ragged_sizes is None else _selection(plan, chosen, None)
    with span(ATTENTION_KERNEL):
        fine = RUN[plan.impl](tiled.q, tiled.k, tiled.v, seen, plan.spec)
    with span(ATTENTION_FINISH):
        out = stages.finish(fine.out, chosen.coarse, gate, q_rows)
    return out, fine, selection, tiled


def _graded(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _in_order(lse: Tensor, q_rows: Grid) -> Tensor:
    return lse if q_rows.tiled else lse.index_select(2, q_rows.rows)


def _selection(plan: _Plan, chosen: Selected, q_sizes: Tensor | None) -> BlockSelection:
    return BlockSelection(
        indices=chosen.indices,
        counts=chosen.counts,
        block=plan.q_rows.block,
        q_sizes=q_sizes,
        kv_sizes=plan.kv_rows.ragged_sizes,
        finite_padding=True,
        known_count=plan.uniform_count,
        known_bound=plan.kv_tiles.num_tiles,
    )


class _Call(NamedTuple):
    """All that decides what happens, but for the values."""

    q: Face
    k: Face
    v: Face
    forced: Forced
    estimator: Estimator
    grid: tuple[int, ...]
    kv_grid: tuple[int, ...] | None
    tile: TileName
    kv_tile: TileName | None
    topk: int | tuple[int, ...] | None
    sparsity: float | None
    gated: bool
    coarse: bool | None
    rotated: bool
    softmax_scale: float | None
    q_layout: Layout
    kv_layout: Layout
    impl: str
    return_lse: bool
    needs_grad: bool
    plain: bool
    deterministic: bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Plan:
    """What a call comes to.

    Args:
        uniform_count: key tiles of every query tile; None if heads have numbers of their own.
        spec, impl: the fine stage.
        fused: the stages around it run fused; they have no gradients, and the compiler fuses the plain ones itself.
    """

    q_tiles: TileLayout
    kv_tiles: TileLayout
    q_rows: Grid
    kv_rows: Grid
    uniform_count: int | None
    wish: Wish
    spec: SparseSpec
    impl: str
    fused: bool


def _planned(call: _Call) -> _Plan:
    q_tiles = tile_layout(call.grid, call.tile)
    kv_tiles = _kv_tiles(q_tiles, call.kv_grid, call.kv_tile)
    spec = check(call.q, call.k, call.v, call.softmax_scale, call.return_lse)
    device = spec.device
    if call.rotated and (call.q_layout != "raster" or call.kv_layout != "raster" or q_tiles.grid != kv_tiles.grid):
        raise ConfigError("rope: needs q and k of one grid in raster order; rotate them before, and leave rope out")
    q_rows = _rows(q_tiles, call.q_layout, spec.q_len, "q", device)
    same = q_tiles == kv_tiles and call.q_layout == call.kv_layout
    kv_rows = _rows(kv_tiles, call.kv_layout, spec.kv_len, "k", device)
    per_head = budget(call.topk, call.sparsity, spec.num_heads, kv_tiles.num_tiles)
    must = forced_blocks(call.forced, q_tiles, kv_tiles, per_head)
    check_parts(call.estimator, q_tiles.block)
    sparse = SparseSpec.of(
        spec,
        q_len=q_tiles.num_rows,
        kv_len=kv_tiles.num_rows,
        block=q_tiles.block,
        most_selected=max(per_head),
        ragged=not (q_tiles.whole and kv_tiles.whole),
        uniform=min(per_head) == max(per_head),
        needs_grad=call.needs_grad,
        deterministic=call.deterministic,
    )
    wish = Wish(
        softmax_scale=spec.softmax_scale,
        parts=call.estimator.parts,
        per_head=per_head,
        counts=_counts(per_head, spec.batch, q_tiles.num_tiles).to(device),
        forced=None if must is None else must.to(device),
        coarse=call.gated if call.coarse is None else call.coarse,
    )
    return _Plan(
        q_tiles=q_tiles,
        kv_tiles=kv_tiles,
        q_rows=q_rows,
        kv_rows=q_rows if same else kv_rows,
        uniform_count=per_head[0] if sparse.uniform else None,
        wish=wish,
        spec=sparse,
        impl=announce(choose(sparse, call.impl)).impl.name if spec.batch else reference_impl.IMPL.name,
        fused=not call.plain and spec.batch > 0 and fuses(spec.device, spec.dtype, spec.head_dim),
    )


def _counts(per_head: tuple[int, ...], batch: int, num_q: int) -> Tensor:
    return torch.tensor(per_head, dtype=torch.int32)[:, None].expand(batch, -1, num_q).contiguous()


def _plan_of(call: _Call, keep: bool) -> _Plan:
    if torch.compiler.is_compiling():
        must = (call.forced.own, call.forced.first_frames, call.forced.last_frames)
        plan: _Plan = _traced(tuple(tuple(face) for face in call[:3]), must, call.estimator.parts, *call[5:])
        return plan
    return held(_kept(call), call.q.device) if keep else _planned(call)


@lru_cache(maxsize=256)
def _kept(call: _Call) -> _Plan:
    with torch.inference_mode(False):  # what an inference makes, training could not use
        return _planned(call)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _traced(faces: tuple[tuple[Any, ...], ...], forced: tuple[bool, int, int], parts: int, *rest: Any) -> _Plan:
    """The plan of a call that a compiler traces: worked out then and there. A compiler hands on plain values only."""
    policy = Forced(own=forced[0], first_frames=forced[1], last_frames=forced[2])
    q, k, v = (Face(*face) for face in faces)
    return _kept(_Call(q, k, v, policy, Estimator(parts=parts), *rest))


class _Stages(Protocol):
    tile: Callable[..., Tiled]
    select: Callable[..., Selected]
    finish: Callable[..., Tensor]


@cache
def _fused_stages() -> _Stages:
    return import_module("strobe.attention.sparse.stages.impl.triton")


@cache
def fuses(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the stages around the fine stage can run fused."""
    able = device.type == "cuda" or (device.type == "cpu" and read_settings().triton_interpret)
    known = dtype in (torch.bfloat16, torch.float16, torch.float32) and head_dim in (32, 64, 128)
    return able and known and importlib.util.find_spec("triton") is not None


def _kv_tiles(q_tiles: TileLayout, kv_grid: tuple[int, ...] | None, kv_tile: TileName | None) -> TileLayout:
    cut = q_tiles.grid if kv_grid is None else kv_grid
    if kv_tile is not None:
        return tile_layout(cut, kv_tile, q_tiles.block)
    if cut == q_tiles.grid:
        return q_tiles
    return tile_layout(cut, tile_layout((1, *cut[1:]), "auto", q_tiles.block).tile, q_tiles.block)


def _rows(layout: TileLayout, order: Layout, rows: int, name: str, device: torch.device) -> Grid:
    expected = {"raster": layout.num_tokens, "tiled": layout.num_rows}
    if order not in expected:
        raise ConfigError(f"layout of {name}: got {order!r}, expected 'raster' or 'tiled'")
    if rows != expected[order]:
        raise ShapeError(
            f"{name}: got {rows} rows, expected {expected[order]} in {order} order for grid {layout.grid} and tile {layout.tile}"
        )
    return Grid(
        block=layout.block,
        num_tiles=layout.num_tiles,
        num_tokens=layout.num_tokens,
        sizes=layout.sizes(device),
        ragged_sizes=None if layout.whole else layout.sizes(device),
        tokens=layout.tokens(device),
        rows=layout.rows(device),
        tiled=order == "tiled",
    )


def _spread(gate: Tensor, q: Tensor) -> Tensor:
    if gate.device != q.device or not gate.dtype.is_floating_point:
        raise ShapeError(f"gate: got {gate.dtype} on {gate.device}, expected a floating-point dtype on {q.device} like q")
    if gate.shape == q.shape:
        return gate
    try:
        return gate.expand(q.shape)
    except RuntimeError as error:
        wanted = f"what broadcasts to q's {tuple(q.shape)}"
        raise ShapeError(f"gate: got shape {tuple(gate.shape)}, expected {wanted}") from error


def _check_rope(rope: tuple[Tensor, Tensor], q: Tensor) -> None:
    wanted = (q.shape[1], q.shape[3] // 2)
    if len(rope) != 2 or q.shape[3] % 2:
        raise ShapeError(
            f"rope: got {len(rope)} tables for {q.shape[3]} channels, expected (cos, sin) and an even number of channels"
        )
    for name, table in zip(("cos", "sin"), rope, strict=True):
        if tuple(table.shape) != wanted or table.device != q.device:
            given = f"{tuple(table.shape)} on {table.device}"
            raise ShapeError(f"rope {name}: got shape {given}, expected {wanted} on {q.device}")


def _recall(q: Tensor, k: Tensor, fine: AttentionOutput, plan: _Plan, probe: int) -> Tensor:
    """Mean over some queries of `exp(lse of the selected tiles - lse of all keys)`; no host sync."""
    assert fine.lse is not None
    number = plan.q_rows.rows.shape[0]
    tokens = torch.linspace(0, number - 1, min(probe, number), dtype=torch.float64, device=q.device).round().long()
    rows = plan.q_rows.rows[tokens]
    queries = q.detach().index_select(1, rows).transpose(1, 2).float()  # [B, H, P, D]
    keys = k.detach().index_select(1, plan.kv_rows.rows).transpose(1, 2).float()
    keys = keys.repeat_interleave(q.shape[2] // k.shape[2], dim=1)
    dense = torch.logsumexp(queries @ keys.transpose(-1, -2) * plan.spec.softmax_scale, dim=-1)
    return torch.exp(fine.lse.detach().index_select(2, rows) - dense).mean(dim=-1)
