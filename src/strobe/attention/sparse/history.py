"""Few new queries over a long past: some keys attended whole, of the rest the tiles worth seeing, one softmax over all of them.

With `A` the keys attended whole and `T_i` the history tiles that query tile `i` selects, the output of a query of tile `i` is

    out = softmax_j(q . k_j * softmax_scale) v_j    over j in A and in the tiles of T_i

computed as attention over `A` and over `T_i` apart and merged by lse. The coarse keys of the history are given, so that whoever
keeps the keys pools each tile once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor

from strobe.attention.dense import dense_attention
from strobe.attention.impls import ambient
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.coarse import Estimator, budget, pool, pooled_scores, select_blocks
from strobe.attention.sparse.layout import TileLayout, held
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.stages.types import Wish
from strobe.attention.sparse.video import fuses
from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput
from strobe.core.errors import ShapeError
from strobe.core.spans import ATTENTION_FINISH, ATTENTION_KERNEL, ATTENTION_SELECT, ATTENTION_TILE, span

_MEANS: Final = Estimator()
_KEPT: Final = 256
_WISHES: Final[dict[tuple[Any, ...], Wish]] = {}


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
    estimator: Estimator = _MEANS


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
    """Attention of every query over the dense keys and over the history tiles that its tile selects.

    Every query tile takes exactly `max(1, ceil((1 - sparsity) * num_tiles))` open tiles, those of largest coarse score, ties to
    the lowest index. Differentiable in q, the dense keys and values and the history's, not through the selection.

    Args:
        q: `[B, S_q, H, D]` in raster order of the grid of `q_tiles`.
        dense: keys and values that every query sees, each `[B, S, H_kv, D]`: a sink, the frames of the queries themselves.
        history: the rest.
        q_tiles: tiles of the queries; of the history's block.
        sparsity: share of the open history tiles that is skipped, 0 to below 1.
        softmax_scale: default `D ** -0.5`.
        impl: of the attention over the selected tiles, as in `block_sparse_attention`.
        return_lse: also return the natural-log softmax denominator, float32 `[B, H, S_q]`.

    Raises:
        ShapeError: the arguments do not fit together, or there is no key at all.
        ConfigError: the sparsity is out of range.
        ImplUnavailableError: the named impl cannot run this call.

    Source: the selection is that of Video Sparse Attention, arXiv 2505.13389; the merge is in `strobe.attention.state`.
    """
    _check(q, history, q_tiles)
    parts, scale = [(k, v) for k, v in dense if k.shape[1]], q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    rows: list[Tensor | None] = [None] * len(parts)
    if not history.num_tiles:
        with span(ATTENTION_KERNEL):
            lse_wanted = return_lse or len(parts) > 1
            states = [dense_attention(q, k, v, softmax_scale=scale, return_lse=lse_wanted) for k, v in parts]
    else:
        per_head = budget(None, sparsity, q.shape[2], history.num_tiles)
        wish = _wish(per_head, q.shape[0], q_tiles.num_tiles, scale, q.device) if _fuses(q, history) else None
        with _beside(q.device, wish is not None) as side:
            with side:
                tiled, selection = _selected(q, history, q_tiles, per_head, scale, wish)
                with span(ATTENTION_KERNEL):
                    fine = block_sparse_attention(
                        tiled, history.keys, history.values, selection, softmax_scale=scale, impl=impl, return_lse=True
                    )
            with span(ATTENTION_KERNEL):
                states = [dense_attention(q, k, v, softmax_scale=scale, return_lse=True) for k, v in parts]
        states, rows = [*states, fine], [*rows, q_tiles.rows(q.device)]
    with span(ATTENTION_FINISH):
        result = states[0] if len(states) == 1 and rows[0] is None else merge(states, rows=rows, return_lse=return_lse)
    return AttentionOutput(out=result.out, lse=result.lse if return_lse else None)


@contextmanager
def _beside(device: torch.device, fused: bool) -> Iterator[AbstractContextManager[object]]:
    """What is recorded into a CUDA graph within what it gives runs beside what else is recorded here; else nothing changes.

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
    """Where what runs beside other parts of a recorded pass is recorded."""
    return torch.cuda.Stream(device)


def _selected(
    q: Tensor, history: History, q_tiles: TileLayout, per_head: tuple[int, ...], scale: float, wish: Wish | None
) -> tuple[Tensor, BlockSelection]:
    """The queries in tile order, and the best of the open tiles for each of theirs; with a wish, fused."""
    if wish is None:
        tiled, indices, counts = _plain(q, history, q_tiles, per_head, scale)
    else:
        tiled, indices, counts = _fused(q, history, q_tiles, wish)
    return tiled, BlockSelection(
        indices=indices,
        counts=counts,
        block=history.block,
        # padding queries that the merge does not read are 0, and need no masking
        q_sizes=None if q_tiles.whole or wish is not None else q_tiles.sizes(q.device),
        kv_sizes=None if history.whole else history.sizes,
        finite_padding=True,
        known_count=per_head[0],
        known_bound=history.sizes.shape[0],
    )


def _plain(
    q: Tensor, history: History, q_tiles: TileLayout, per_head: tuple[int, ...], scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Tile, score and select: the specification, differentiable in q."""
    sizes, estimator = q_tiles.sizes(q.device), history.estimator
    with span(ATTENTION_TILE):
        tiled = q_tiles.to_tiles(q)
    with span(ATTENTION_SELECT), torch.no_grad():
        means = pool(tiled, sizes, history.block, estimator.parts)
        scores = pooled_scores(
            means, history.means.to(means.dtype), (sizes, history.sizes), history.block, scale, estimator
        )  # closed tiles score -inf
        return tiled, *select_blocks(scores, per_head, None)


def _fused(q: Tensor, history: History, q_tiles: TileLayout, wish: Wish) -> tuple[Tensor, Tensor, Tensor]:
    """As `_plain`, in three launches."""
    stages = import_module("strobe.attention.sparse.stages.impl.history_triton")
    with ambient(q):
        with span(ATTENTION_TILE):
            tiled, means = stages.tile(q, q_tiles)
        with span(ATTENTION_SELECT):
            indices = stages.select(means, history.means.to(means.dtype), history.sizes, wish)
    return tiled, indices, wish.counts


def _wish(per_head: tuple[int, ...], batch: int, num_q: int, scale: float, device: torch.device) -> Wish:
    """What is to be selected. Its counts are filled on the current stream and kept for that stream: nothing waits for them."""
    cuda = device.type == "cuda"
    key = (per_head, batch, num_q, scale, device, torch.cuda.current_stream(device).cuda_stream if cuda else 0)
    found = _WISHES.get(key)
    if found is not None:
        return held(found, device)
    with torch.inference_mode(False):  # what an inference makes, training could not use
        counts = torch.full((batch, len(per_head), num_q), per_head[0], dtype=torch.int32, device=device)
    found = Wish(softmax_scale=scale, parts=1, per_head=per_head, counts=counts, forced=None, coarse=False)
    if not (cuda and torch.cuda.is_current_stream_capturing()):  # a recording fills its own, when it is replayed
        if len(_WISHES) >= _KEPT:
            _WISHES.clear()
        _WISHES[key] = found
    return found


def _fuses(q: Tensor, history: History) -> bool:
    """Whether the stages can run fused; a compiler fuses the plain ones itself."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or type(q) not in (Tensor, torch.nn.Parameter):
        return False
    graded = torch.is_grad_enabled() and q.requires_grad
    return not graded and history.estimator.parts == 1 and q.shape[0] > 0 and fuses(q.device, q.dtype, q.shape[3])


def _check(q: Tensor, history: History, q_tiles: TileLayout) -> None:
    """Check what the operators inside cannot: the rest is theirs."""
    if q.dim() != 4 or q.shape[1] != q_tiles.num_tokens:
        raise ShapeError(f"q: got shape {tuple(q.shape)}, expected [B, {q_tiles.num_tokens}, H, D] for grid {q_tiles.grid}")
    if q_tiles.block != history.block:
        raise ShapeError(f"q_tiles: got blocks of {q_tiles.block}, expected the history's {history.block}")
    batch, rows, heads, width = history.keys.shape
    number = rows // history.block
    expected = {"means": (batch, heads, number * history.estimator.parts, width), "sizes": (number,)}
    for name, shape in expected.items():
        found = tuple(getattr(history, name).shape)
        if found != shape:
            raise ShapeError(f"history {name}: got shape {found}, expected {shape} for keys {tuple(history.keys.shape)}")
    if not 0 <= history.num_tiles <= number:
        raise ShapeError(f"history num_tiles: got {history.num_tiles}, expected 0 to {number}, the tiles there are")
