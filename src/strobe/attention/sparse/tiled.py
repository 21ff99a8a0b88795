"""Video-sparse attention of what is in tiles: score every tile against every tile, take the best, attend over them.

The one path behind `video_sparse_attention`, `history_attention` and the calls of others. It needs of each side its tiles and how
many tokens each holds; where the rows come from, a grid of tokens, a ring of frames or a caller's own order, is no concern of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from strobe.attention.around import ambient
from strobe.attention.impls import EIGHT_BITS, Choice, announce
from strobe.attention.sparse.coarse import add_skipped
from strobe.attention.sparse.impl import reference as reference_impl
from strobe.attention.sparse.impls import choose
from strobe.attention.sparse.launch import dense
from strobe.attention.sparse.layout import held
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.sparse.stages.impl import reference
from strobe.attention.sparse.stages.types import Call, Grid, Prepared, Rope, Selected, SelectionSpec, Tiled
from strobe.attention.types import AttentionOutput, AttentionSpec, traced
from strobe.core.libraries import broken
from strobe.core.settings import read_settings
from strobe.core.spans import ATTENTION_FINISH, ATTENTION_KERNEL, ATTENTION_SELECT, ATTENTION_TILE, span


class Tiles(NamedTuple):
    """The tiles of a call: rows of one, how many of queries and of keys, and whether any holds fewer tokens than rows."""

    block: int
    num_q: int
    num_kv: int
    ragged: bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Plan:
    """The settings of one call: coarse selection, fine stage, implementation.

    Args:
        wish: of the coarse stage.
        spec: of the fine stage.
        choice: of the fine stage's impl.
        fused: the stages around it run fused; they have no gradients, and a compiler fuses the plain ones itself.
    """

    wish: SelectionSpec
    spec: SparseSpec
    choice: Choice[SparseSpec]
    fused: bool


class Attended(NamedTuple):
    """The output in the order of the queries, the fine stage's result in tile order, what it saw, its operands, and the lse.

    The lse, in tile order, is of the output without the coarse one: of the fine stage, and of what `pool_skipped` adds.
    """

    out: Tensor
    fine: AttentionOutput
    selection: BlockSelection
    tiled: Tiled
    lse: Tensor | None


def fine_spec(
    spec: AttentionSpec, tiles: Tiles, per_head: tuple[int, ...], *, needs_grad: bool, deterministic: bool
) -> SparseSpec:
    """The fine stage of a call as one of block-sparse attention."""
    return SparseSpec.of(
        spec,
        q_len=tiles.num_q * tiles.block,
        kv_len=tiles.num_kv * tiles.block,
        block=tiles.block,
        most_selected=max(per_head),
        ragged=tiles.ragged,
        uniform=min(per_head) == max(per_head),
        needs_grad=needs_grad,
        deterministic=deterministic,
    )


_choose = lru_cache(maxsize=256)(choose)


def chosen_impl(spec: SparseSpec, name: str) -> Choice[SparseSpec]:
    """The impl of the fine stage; over no sample the reference, because no kernel is launched over nothing."""
    if not spec.batch:
        return Choice(impl=reference_impl.IMPL, passed_over=(), note="")
    return choose(spec, name) if traced() else _choose(spec, name)


@cache
def fuses(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the stages around the fine stage can run fused."""
    able = device.type == "cuda" or (device.type == "cpu" and read_settings().triton_interpret)
    known = dtype in (torch.bfloat16, torch.float16, torch.float32) and head_dim in (32, 64, 128)
    return able and known and not broken("triton.language")


@cache
def _fused_stages() -> Any:
    return import_module("strobe.attention.sparse.stages.impl.triton")


def stages_of(plan: Plan) -> Any:
    """The stages around the fine stage, fused or in PyTorch."""
    return _fused_stages() if plan.fused else reference


def attend(
    plan: Plan, tensors: tuple[Tensor, Tensor, Tensor], grids: tuple[Grid, Grid], rope: Rope, gate: Tensor | None
) -> Attended:
    """Attention of queries over the tiles they select, and the coarse output on top.

    Args:
        tensors: q, k, v, each in the order its grid says.
        grids: of the queries and of the keys.
        rope: as in `video_sparse_attention`.
        gate: of the coarse output, of the shape of q.
    """
    if tensors[0].dtype in EIGHT_BITS:  # the reference alone runs there, and gathers nothing in eight bits
        q, k, v = (each.float() for each in tensors)
        attended = attend(plan, (q, k, v), grids, rope, gate)
        return attended._replace(out=attended.out.to(tensors[0].dtype))
    stages, (q_rows, kv_rows) = stages_of(plan), grids
    with span(ATTENTION_TILE):
        tiled = stages.tile(*tensors, q_rows, kv_rows, rope, plan.wish)
    fine, chosen, selection = select_and_attend(plan, tiled, q_rows, kv_rows)
    with span(ATTENTION_FINISH):
        seen = fine
        if plan.wish.pool_skipped:
            add = import_module("strobe.attention.sparse.stages.impl.triton").add_skipped if plan.fused else add_skipped
            seen = add(fine, tiled, selection, plan.spec.softmax_scale)
        out = stages.finish(seen.out, chosen.coarse, gate, q_rows)
    return Attended(out, fine, selection, tiled, seen.lse)


def prepare(
    plan: Plan, tensors: tuple[Tensor, Tensor, Tensor], grids: tuple[Grid, Grid], rope: Rope, gate: Tensor | None, done: Attended
) -> Call | None:
    """Prepare calls like one that `attend` has done; None where they go on as it did."""
    impl, spec, tiled, (_, kv_rows) = plan.choice.impl, plan.spec, done.tiled, grids
    stock = plan.wish.share is None and not plan.wish.pool_skipped  # else a call does more than launch
    if not plan.fused or not stock or spec.deterministic:  # then torch fills what it allocates
        return None
    operands, stride, fine = (tiled.q, tiled.k, tiled.v), done.fine.out.stride(), None
    if impl.prepare is not None:
        fine = impl.prepare(*operands, selection_of(plan, done.selection.indices, None, kv_rows), spec)

    def run(_: int, q: Tensor, k: Tensor, v: Tensor, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        found = impl.run(q, k, v, selection_of(plan, indices, None, kv_rows), spec)
        if found.out.stride() == stride:
            return found.out, found.lse
        return torch.empty_strided(found.out.shape, stride, dtype=spec.dtype, device=spec.device).copy_(found.out), found.lse

    if fine is None:
        q_place, k_place, v_place = (dense(*each.shape) for each in operands)
        fine = Prepared((q_place, k_place, v_place), stride, run, lambda lse: lse)
    module = import_module("strobe.attention.sparse.stages.impl.prepared")
    found: Call | None = module.prepare(tensors, rope, gate, grids, plan.wish, fine, spec.return_lse)
    return found


def tile_queries(plan: Plan, q: Tensor, q_rows: Grid) -> tuple[Tensor, Tensor]:
    """Queries in tile order and the means of their tiles, for keys whose means are known."""
    with span(ATTENTION_TILE):
        found: tuple[Tensor, Tensor] = stages_of(plan).tile_queries(q, q_rows, plan.wish)
        return found


def rotate(q: Tensor, k: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Rotate q and k `[B, S, H, D]` by pairs of channels, as `video_sparse_attention` does; in one kernel where it fuses.

    Args:
        rope: (cos, sin), each `[S, D / 2]`.
    """
    if not _rotates_fused(q, k, rope):
        return reference.rotate(q, rope), reference.rotate(k, rope)
    with ambient(q):
        turned: tuple[Tensor, Tensor] = _fused_stages().rotate(q, k, rope)
        return turned


def _rotates_fused(q: Tensor, k: Tensor, rope: tuple[Tensor, Tensor]) -> bool:
    """Whether the kernel takes the call; what does not fit together is left to the plain rotation, which says so."""
    if traced() or torch._C._len_torch_dispatch_stack() or type(q) is not Tensor or type(k) is not Tensor:
        return False  # a compiler fuses the plain one itself
    (_, rows, _, width), device = q.shape, q.device
    fitting = k.shape[1] == rows and k.shape[3] == width and (k.dtype, k.device) == (q.dtype, device)
    tables = all(type(each) is Tensor and each.shape == (rows, width // 2) and each.device == device for each in rope)
    return fitting and tables and q.numel() > 0 and fuses(device, q.dtype, width) and not graded(q, k, *rope)


def graded(*tensors: Tensor | None) -> bool:
    """Whether a gradient may be asked for of one of the tensors."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def select_and_attend(plan: Plan, tiled: Tiled, q_rows: Grid, kv_rows: Grid) -> tuple[AttentionOutput, Selected, BlockSelection]:
    """The fine stage over what the coarse stage takes; the padding queries of its result may hold anything finite."""
    with span(ATTENTION_SELECT):
        selecting = stages_of(plan) if plan.wish.share is None else reference  # no kernel selects by share
        chosen = selecting.select(tiled, q_rows, kv_rows, plan.wish)
    selection = selection_of(plan, chosen.indices, q_rows.ragged_sizes, kv_rows, chosen.counts)
    # padding queries that the last stage drops are 0 here, and need no masking
    masked = not plan.fused or q_rows.tiled or q_rows.ragged_sizes is None
    seen = selection if masked else selection_of(plan, chosen.indices, None, kv_rows, chosen.counts)
    with span(ATTENTION_KERNEL):
        fine = announce(plan.choice).impl.run(tiled.q, tiled.k, tiled.v, seen, plan.spec)
    return fine, chosen, selection


def selection_of(
    plan: Plan, indices: Tensor, q_sizes: Tensor | None, kv_rows: Grid, counts: Tensor | None = None
) -> BlockSelection:
    """Return the selection that the coarse stage of a call has made.

    Args:
        counts: of the rows; by default those of the wish.
    """
    return BlockSelection(
        indices=indices,
        counts=plan.wish.counts if counts is None else counts,
        block=plan.spec.block,
        q_sizes=q_sizes,
        kv_sizes=kv_rows.ragged_sizes,
        finite_padding=True,
        known_count=max(plan.wish.per_head) if plan.spec.uniform else None,
        known_bound=kv_rows.num_tiles,
    )


_KEPT: Final = 256
_FILLED: Final[dict[tuple[object, ...], Tensor]] = {}


def filled(value: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """An int32 tensor of one value, not to be written to. It is filled on the current stream and kept for that stream."""
    if traced() or torch._C._len_torch_dispatch_stack():
        return torch.full(shape, value, dtype=torch.int32, device=device)
    cuda = device.type == "cuda"
    key = (value, shape, device, torch.cuda.current_stream(device).cuda_stream if cuda else 0)
    found = _FILLED.get(key)
    if found is not None:
        return held(found, device)
    with torch.inference_mode(False):  # what an inference makes, training could not use
        found = torch.full(shape, value, dtype=torch.int32, device=device)
    if not (cuda and torch.cuda.is_current_stream_capturing()):  # a recording fills its own, when it is replayed
        if len(_FILLED) >= _KEPT:
            _FILLED.clear()
        _FILLED[key] = found
    return found
