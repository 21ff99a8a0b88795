"""Few new queries over a long past: some keys are attended whole, the best tiles of the rest are selected, in one softmax.

With `A` the keys attended whole and `T_i` the history tiles that query tile `i` selects, the output of a query of tile `i` is

    out = softmax_j(q . k_j * softmax_scale) v_j    over j in A and in the tiles of T_i

computed as attention over `A` and over `T_i` apart and merged by lse. The coarse keys of the history are given, so that whoever
keeps the keys pools each tile once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from operator import index

import torch
from torch import Tensor

from strobe.attention.around import ambient
from strobe.attention.dense import dense_attention
from strobe.attention.sparse.coarse import Estimator, budget
from strobe.attention.sparse.layout import TileLayout
from strobe.attention.sparse.stages.types import Grid, SelectionSpec, Tiled
from strobe.attention.sparse.tiled import Plan, Tiles, chosen_impl, filled, fine_spec, fuses, select_and_attend, tile_queries
from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput, check, expect, scale_of, traced
from strobe.core.errors import ShapeError
from strobe.core.spans import ATTENTION_FINISH, ATTENTION_KERNEL, span


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class History:
    """Keys and values in tiles, of which some are open to selection, such as the slots of a ring cache.

    What closed tiles hold does not matter, NaN included, to any impl but `flex`, which reads every key.

    Args:
        keys: `[B, N * block, H_kv, D]` in tile order; padding rows of open tiles hold finite numbers.
        values: like keys.
        means: coarse keys as `coarse.pool` makes them, `[B, H_kv, N * parts, D]`; those of closed tiles may be anything.
        sizes: tokens of each tile, int32 `[N]`; 0 closes it.
        num_tiles: how many are open, known without asking the device.
        block: rows of a tile.
        whole: open tiles have no padding rows.
        estimator: how tiles are scored.
    """

    keys: Tensor
    values: Tensor
    means: Tensor
    sizes: Tensor
    num_tiles: int
    block: int
    whole: bool = False
    estimator: Estimator = field(default_factory=lambda: Estimator())  # a compiler cannot call the class itself


def history_attention(
    q: Tensor,
    dense: Sequence[tuple[Tensor, Tensor]],
    history: History,
    *,
    q_tiles: TileLayout,
    sparsity: float,
    softmax_scale: float | None = None,
    impl: str = "auto",
    return_lse: bool = False,
) -> AttentionOutput:
    """Attend from every query to the dense keys and to the history tiles that its tile selects.

    Every query tile takes exactly `max(1, ceil((1 - sparsity) * num_tiles))` open tiles, those of largest coarse score, ties to
    the lowest index. Differentiable in q, the dense keys and values and the history's, not through the selection.

    Args:
        q: `[B, S_q, H, D]` in raster order of the grid of `q_tiles`.
        dense: keys and values that every query sees, each `[B, S, H_kv, D]`: a sink, the frames of the queries themselves.
        history: the rest.
        q_tiles: tiles of the queries; of the history's block.
        sparsity: share of the open history tiles that is skipped, 0 to below 1.
        softmax_scale: default `D ** -0.5`.
        impl: of the attention over the selected tiles, as in `block_sparse_attention`; `reference` also over the dense keys.
        return_lse: also return the natural-log softmax denominator, float32 `[B, H, S_q]`.

    Raises:
        ShapeError: the arguments do not fit together, or there is no key at all.
        ConfigError: the sparsity is out of range.
        ImplUnavailableError: the named impl cannot run this call.

    Source: the selection is that of Video Sparse Attention, arXiv 2505.13389; the merge is in `strobe.attention.state`.
    """
    _check(q, history, q_tiles)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else scale_of(softmax_scale)
    parts = [(k, v) for k, v in dense if k.shape[1]]
    beside = "reference" if impl == "reference" else "auto"
    rows: list[Tensor | None] = [None] * len(parts)
    if not history.num_tiles:
        with span(ATTENTION_KERNEL):
            lse_wanted = return_lse or len(parts) > 1
            states = [dense_attention(q, k, v, softmax_scale=scale, impl=beside, return_lse=lse_wanted) for k, v in parts]
    else:
        plan = _planned(q, history, q_tiles, sparsity, scale, impl)
        with _beside(q.device, plan.fused) as side:
            with side:
                q_rows, kv_rows = _grids(history, q_tiles, q.device)
                with ambient(q, plan.choice.impl.name):
                    tiled, means = tile_queries(plan, q, q_rows)
                    there = Tiled(q=tiled, k=history.keys, v=history.values, means=(means, history.means, None))
                    fine = select_and_attend(plan, there, q_rows, kv_rows)[0]  # in tile order
            with span(ATTENTION_KERNEL):
                states = [dense_attention(q, k, v, softmax_scale=scale, impl=beside, return_lse=True) for k, v in parts]
        states, rows = [*states, fine], [*rows, q_tiles.rows(q.device)]
    with span(ATTENTION_FINISH):
        result = states[0] if len(states) == 1 and rows[0] is None else merge(states, rows=rows, return_lse=return_lse)
    return AttentionOutput(out=result.out, lse=result.lse if return_lse else None)


@contextmanager
def _beside(device: torch.device, fused: bool) -> Iterator[AbstractContextManager[object]]:
    """Give a context whose work runs on a side stream in a captured CUDA graph, parallel to the rest; elsewhere it does nothing.

    Only in a graph: what is freed on the stream may be taken again at once, and only there is one thread sure to be alone on it.
    Only with a fused selection: the plain one has matrix products, for which a library would keep a workspace for the stream.
    """
    if device.type != "cuda" or not fused or not torch.cuda.is_current_stream_capturing():
        yield nullcontext()
        return
    here, side = torch.cuda.current_stream(device), side_stream(device)
    side.wait_stream(here)
    try:
        yield torch.cuda.stream(side)
    finally:
        here.wait_stream(side)


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the CUDA stream on which work parallel to the rest of a captured pass is recorded, one per device."""
    return torch.cuda.Stream(device)


def _planned(q: Tensor, history: History, q_tiles: TileLayout, sparsity: float, scale: float, impl: str) -> Plan:
    """Plan the selection for every query tile, and choose the impl that attends over it."""
    keys, values, num_tiles = history.keys, history.values, index(history.num_tiles)
    spec, (selected,) = check(q, keys, values, scale, True), budget(None, sparsity, 1, num_tiles)
    tiles = Tiles(history.block, q_tiles.num_tiles, history.sizes.shape[0], not (q_tiles.whole and history.whole))
    deterministic = torch.are_deterministic_algorithms_enabled()
    fine = fine_spec(spec, tiles, (selected,), needs_grad=spec.needs_grad, deterministic=deterministic)
    wish = SelectionSpec(
        softmax_scale=scale,
        parts=index(history.estimator.parts),
        per_head=(selected,),
        counts=filled(selected, (spec.batch, spec.num_heads, q_tiles.num_tiles), q.device),
        forced=None,
        coarse=False,
    )
    return Plan(wish=wish, spec=fine, choice=chosen_impl(fine, impl), fused=_fuses(q, history))


def _grids(history: History, q_tiles: TileLayout, device: torch.device) -> tuple[Grid, Grid]:
    """Return the grids of the queries, in raster order, and of the history, in tiles; closed tiles have size 0 and score -inf."""
    sizes = history.sizes
    keys = Grid.in_tiles(history.block, sizes.shape[0], sizes, None if history.whole else sizes)
    return Grid.of(q_tiles, device), keys


def _fuses(q: Tensor, history: History) -> bool:
    """Return whether the stages can run in the fused kernels; never under torch.compile, which fuses the plain ones itself."""
    if traced() or torch._C._len_torch_dispatch_stack() or type(q) not in (Tensor, torch.nn.Parameter):
        return False
    graded = torch.is_grad_enabled() and q.requires_grad
    return not graded and history.estimator.parts == 1 and q.shape[0] > 0 and fuses(q.device, q.dtype, q.shape[3])


def _check(q: Tensor, history: History, q_tiles: TileLayout) -> None:
    expect("q", q, Tensor, "a tensor [B, S, H, D]")
    expect("history", history, History, "a strobe.History")
    expect("q_tiles", q_tiles, TileLayout, "a strobe.TileLayout; strobe.tile_layout makes one")
    if q.dim() != 4 or q.shape[1] != q_tiles.num_tokens or q.itemsize < 2:
        asked = f"[B, {q_tiles.num_tokens}, H, D] of over 8 bits for grid {q_tiles.grid}"
        raise ShapeError(f"q: got shape {tuple(q.shape)} {q.dtype}, expected {asked}")
    if q_tiles.block != history.block:
        raise ShapeError(f"q_tiles: got blocks of {q_tiles.block}, expected the history's {history.block}")
    if history.keys.dim() != 4 or history.keys.shape[1] % history.block:
        shape = tuple(history.keys.shape)
        raise ShapeError(f"history keys: got shape {shape}, expected [B, N * {history.block}, H_kv, D], rows in whole tiles")
    batch, rows, heads, width = history.keys.shape
    number = rows // history.block
    expected = {"means": (batch, heads, number * history.estimator.parts, width), "sizes": (number,)}
    for name, wanted in expected.items():
        found = tuple(getattr(history, name).shape)
        if found != wanted:
            raise ShapeError(f"history {name}: got shape {found}, expected {wanted} for keys {tuple(history.keys.shape)}")
    if history.sizes.dtype != torch.int32 or history.sizes.device != q.device:
        given = f"{history.sizes.dtype} on {history.sizes.device}"
        raise ShapeError(f"history sizes: got {given}, expected torch.int32 on {q.device} like q")
    if not 0 <= history.num_tiles <= number:
        raise ShapeError(f"history num_tiles: got {history.num_tiles}, expected 0 to {number}, the tiles there are")
