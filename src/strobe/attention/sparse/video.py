"""The public API of attention over a video: the coarse stage selects, `block_sparse_attention`'s impls compute.

Everything a call's shapes and options decide is worked out once, in a plan, and kept (`video_plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor

from strobe.attention.around import ambient, as_it_is
from strobe.attention.impls import Choice
from strobe.attention.sparse.coarse import Estimator, Forced, topk_of
from strobe.attention.sparse.launch import empty_on
from strobe.attention.sparse.layout import TileLayout, held
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.sparse.stages.types import Call, Grid, Rope
from strobe.attention.sparse.tiled import attend, graded, prepare, selection_of
from strobe.attention.sparse.video_plan import (
    Layout,
    VideoCall,
    VideoOptions,
    VideoPlan,
    arrangement,
    key_of,
    options_of,
    plan_of,
    plan_seen,
    see_plan,
    see_prepared,
)
from strobe.attention.types import AttentionOutput, TensorMeta, expect, scale_of
from strobe.core.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_FREE: Final = Forced()
_MEANS: Final = Estimator()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class VideoAttentionOutput:
    """Result of video-sparse attention.

    Args:
        out: `[B, S_q, H, D]` in the layout and dtype of q.
        lse: of the fine stage and of `pool_skipped`, float32 `[B, H, S_q]` in the layout of q; None unless it was asked for.
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
    group: ProcessGroup | None = None,
    shards: Sequence[int] | None = None,
    share: float | None = None,
    pool_skipped: bool = False,
) -> VideoAttentionOutput:
    """Attend over a video: every tile of queries sees the key tiles that a coarse pass ranks highest.

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
        group: the ranks over which the sequence lies; all call it together, and backward too. Each gives and gets the rows of its
            own tiles, in raster order those of `TileLayout.tokens_of`; `grid` is that of all. They wait for each other as long as
            the group's own timeout.
        shards: tiles of each rank, in tile order; 0 is allowed. By default as even as can be, the first ranks one more.

        share: in place of topk and sparsity, every query tile sees the fewest key tiles whose coarse probabilities add up to it,
            ties to the lowest index; forced tiles count. Counts differ by row, so no call is prepared. Selected in PyTorch.
        pool_skipped: each tile that is not seen counts as one key, its mean, with the weight of its tokens; without a coarse
            output alone. `lse` is then that over all tiles. No such call is prepared.

    Raises:
        ShapeError: the arguments do not fit together.
        ConfigError: not one of topk, sparsity and share, or a policy that cannot be met.
        ImplUnavailableError: the named impl cannot run this call.
        CollectiveError: ranks disagree, or one of them is gone or does not answer in time.
    """
    options = VideoOptions(
        grid=grid, kv_grid=kv_grid, tile=tile, kv_tile=kv_tile, topk=topk, sparsity=sparsity, coarse=coarse, forced=forced,
        estimator=estimator, softmax_scale=softmax_scale, q_layout=q_layout, kv_layout=kv_layout, impl=impl,
        return_lse=return_lse, probe=probe, share=share, pool_skipped=pool_skipped,
    )  # fmt: skip
    if group is None:
        if shards is not None:
            raise ConfigError(f"shards: got {shards!r} without group=, expected a process group with it")
        return _attend(q, k, v, gate, rope, options)
    return _over_ranks(q, k, v, gate, rope, options, group, shards)


def _over_ranks(
    q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, rope: Rope, options: VideoOptions, group: ProcessGroup, shards: Any
) -> VideoAttentionOutput:
    from strobe.attention.sparse import ring  # loads torch.distributed

    call, spread = _call_of(q, k, v, gate, rope, options), None if gate is None else _spread(gate, q)
    if rope is not None:
        _check_rope(rope, q)
    (out, fine, selection, _, _), here = ring.attend(call, (q, k, v), rope, spread, group, shards)
    lse = _in_order(fine.lse, here.q_rows) if options.return_lse and fine.lse is not None else None
    return VideoAttentionOutput(out=out, lse=lse, selection=selection, recall=None, q_tiles=here.tiles, kv_tiles=here.tiles)


def _attend(q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, rope: Rope, options: VideoOptions) -> VideoAttentionOutput:
    key = key_of(q, k, v, gate, rope, options)
    found = None if key is None else plan_seen(key, q.device)
    if found is None:
        call = _call_of(q, k, v, gate, rope, options)
        found = plan_of(call, type(q) in (Tensor, torch.nn.Parameter))
        if rope is not None:
            _check_rope(rope, q)
        if found.text and options.probe == 0:
            return _as_one_operator(call.options, found, q, k, v, gate, rope)
        if key is not None:
            see_plan(key, found)
    return_lse, probe, sizes = options.return_lse, options.probe, (found.q_rows.ragged_sizes, found.kv_rows)
    tensors = q, k, v
    with ambient(q, found.plan.choice.impl.name):
        spread, place = None if gate is None else _spread(gate, q), None
        if key is not None and not torch._C._len_torch_dispatch_stack():
            place = arrangement(tensors, rope, spread)
            ready = found.ready.get(place)
            done = None if ready is None else ready(q, k, v, rope, spread)
            if done is not None:
                out, indices, seen = done
                return _output(found, out, seen, selection_of(found.plan, indices, *sizes))
        attended = attend(found.plan, tensors, (found.q_rows, found.kv_rows), rope, spread)
        out, fine, selection, tiled, seen = attended
        if place is not None and place not in found.ready:
            see_prepared(found, place, prepare(found.plan, tensors, (found.q_rows, found.kv_rows), rope, spread, attended))
        recall = None if probe == 0 else _recall(tiled.q, tiled.k, fine, found, probe)
        return _output(found, out, seen if return_lse else None, selection, recall)


def _output(
    found: VideoPlan, out: Tensor, lse: Tensor | None, selection: BlockSelection, recall: Tensor | None = None
) -> VideoAttentionOutput:
    """Return a result, with an lse whose rows are those of the tiles."""
    return VideoAttentionOutput(
        out=out,
        lse=None if lse is None else _in_order(lse, found.q_rows),
        selection=selection,
        recall=recall,
        q_tiles=found.q_tiles,
        kv_tiles=found.kv_tiles,
    )


def _as_one_operator(
    options: VideoOptions, found: VideoPlan, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, rope: Rope
) -> VideoAttentionOutput:
    per_head = found.plan.wish.per_head
    topk = list(per_head if isinstance(options.topk, tuple) else per_head[:1])
    cos, sin = (None, None) if rope is None else rope
    out, lse, indices = torch.ops.strobe.video_sparse_attention.default(q, k, v, gate, cos, sin, found.text)
    counts = torch.tensor(topk, dtype=torch.int32, device=q.device)[:, None].expand(q.shape[0], q.shape[2], indices.shape[2])
    return VideoAttentionOutput(
        out=out,
        lse=lse if options.return_lse else None,
        selection=selection_of(found.plan, indices, found.q_rows.ragged_sizes, found.kv_rows, counts),
        recall=None,
        q_tiles=found.q_tiles,
        kv_tiles=found.kv_tiles,
    )


def _video(
    q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, cos: Tensor | None, sin: Tensor | None, text: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return out `[B, S_q, H, D]`, lse float32 `[B, H, S_q]` (empty unless asked for), and indices int32 `[B, H, N_q, K]`.

    A compiler calls it for calls without gradients whose stages run fused on the device. What is no tensor comes as one text:
    each argument of an operator costs the host time in every call, most of all lists.
    """
    rope = None if cos is None or sin is None else (cos, sin)
    given = [each for each in (q, k, v, gate, cos, sin) if each is not None]
    key: tuple[Any, ...] | None = None
    if as_it_is(q) and not graded(*given):
        key = text, gate is None, cos is None, sin is None, torch.are_deterministic_algorithms_enabled()
        for ready in _READY.get(key, ()):
            alike, call, _, lse_of = ready
            if alike(*given) and (done := call(q, k, v, rope, gate)) is not None:
                held(ready, q.device)
                out, indices, lse = done
                return out, lse_of(lse), indices
    options = options_of(text)
    found = _attend(q, k, v, gate, rope, options)
    if key is not None:
        _see_ready(key, given, q, k, v, gate, rope, options)
    lse = torch.empty(0, dtype=torch.float32, device=q.device) if found.lse is None else found.lse
    return found.out.contiguous(), lse.contiguous(), found.selection.indices


_MOST_READY: Final = 256
_MOST_ALIKE: Final = 64
"""Prepared calls of one text, which differ in their tensors and modes alone; the oldest one goes first."""
_READY: Final[dict[tuple[Any, ...], list[tuple[Callable[..., bool], Call, VideoPlan, Callable[[Tensor | None], Tensor]]]]] = {}
"""Prepared calls of the operator: what tells that tensors are like theirs in type, dtype, device, sizes and strides, the plan
whose tensors they read, and what makes the lse that the operator returns."""

_GUARDS: Final[Any] = getattr(torch._C._dynamo.guards, "TensorGuards", None)
"""What compiled code asks of its inputs (torch 2.3 to 2.13), in a sixth of the host time of Python."""


def _see_ready(
    key: tuple[Any, ...],
    given: list[Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None,
    rope: Rope,
    options: VideoOptions,
) -> None:
    """Keep the prepared call of a call of the operator that was just done, if there is one."""
    of_plan = key_of(q, k, v, gate, rope, options)
    plan = None if of_plan is None else plan_seen(of_plan, q.device)
    call = None if plan is None else plan.ready.get(arrangement((q, k, v), rope, gate))
    twice = len({*map(id, given)}) < len(given)  # guards say no to such a call
    if _GUARDS is None or plan is None or call is None or twice or (gate is not None and gate.shape != q.shape):
        return
    if len(_READY) >= _MOST_READY:
        _READY.clear()
    kept = _READY.setdefault(key, [])
    if any(each[1] is call and each[0](*given) for each in kept):
        return
    if len(kept) >= _MOST_ALIKE:
        del kept[0]
    empty, rows = empty_on(q.device), plan.q_rows

    def lse_of(lse: Tensor | None) -> Tensor:
        return empty((0,), (1,), torch.float32) if lse is None else _in_order(lse, rows).contiguous()

    sizes, strides = [[*each.shape] for each in given], [[*each.stride()] for each in given]
    alike = _GUARDS(*given, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    kept.append((alike, call, plan, lse_of))


def _shapes(q: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    options: Any = options_of(arguments[-1])  # written from a plan: grids, tiles and topk are filled in
    (batch, rows, heads, _), topk = q.shape, options.topk
    tiles = prod(-(-size // step) for size, step in zip(options.grid, options.tile, strict=True))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, rows) if options.return_lse else 0, dtype=torch.float32, device=q.device)
    most = topk if isinstance(topk, int) else max(topk)
    return out, lse, torch.empty((batch, heads, tiles, most), dtype=torch.int32, device=q.device)


# Without the layers of `torch.library.custom_op`: they take as long as a launch, and serve gradients, which it has none of.
_OPERATORS: Final = torch.library.Library("strobe", "FRAGMENT")
_OPERATORS.define(f"video_sparse_attention{torch.library.infer_schema(_video, mutates_args=())}")
_OPERATORS.impl("video_sparse_attention", _video, "CompositeExplicitAutograd")
torch.library.register_fake("strobe::video_sparse_attention", _shapes, lib=_OPERATORS)


def explain_video(
    q: Tensor, k: Tensor, v: Tensor, *, gate: Tensor | None = None, rope: tuple[Tensor, Tensor] | None = None, **options: Any
) -> Choice[SparseSpec]:
    """Say which implementation `video_sparse_attention` would run for its fine stage, and why each other was passed over.

    The note says how the stages around it would run.

    Args:
        options: the other arguments of `video_sparse_attention`, with the same defaults.
    """
    group, shards = options.pop("group", None), options.pop("shards", None)
    call = _call_of(q, k, v, gate, rope, VideoOptions(**options))
    said = []
    if group is None:
        plan = plan_of(call, keep=True).plan
    else:
        from strobe.attention.sparse import ring  # loads torch.distributed

        here, _ = ring.planned(call, group, shards)
        plan, sent = here.plan, [size for _, _, size in here.sent()]
        said.append(f"a rank sends {sum(sent) / 1e6:.1f} MB forward in {len(sent)} messages")
    stages = "fused, in Triton"
    if not plan.fused:
        stages = "in PyTorch: a gradient is asked for" if call.plain else "in PyTorch"
    elif plan.wish.share is not None:
        stages += ", but the selection by share in PyTorch"
    words = [f"the stages around it run {stages}", *([plan.choice.note] if plan.choice.note else [])]
    return replace(plan.choice, note="; ".join([*words, *said]))


def _call_of(q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, rope: Rope, options: VideoOptions) -> VideoCall:
    tile, kv_tile, probe = options.tile, options.kv_tile, options.probe
    expect("forced", options.forced, Forced, "a strobe.Forced")
    expect("estimator", options.estimator, Estimator, "a strobe.Estimator")
    expect("probe", probe, int, "0 for none or a number of queries")
    expect("pool_skipped", options.pool_skipped, bool, "True or False")
    if gate is not None:
        expect("gate", gate, Tensor, f"a tensor of what broadcasts to q's {tuple(q.shape)}")
    if probe < 0:
        raise ConfigError(f"probe: got {probe}, expected 0 for none or a number of queries")
    tables = () if rope is None else tuple(rope)
    for table in tables:
        expect("rope", table, Tensor, "(cos, sin), two tensors")
    return VideoCall(
        faces=(TensorMeta.of("q", q), TensorMeta.of("k", k), TensorMeta.of("v", v)),
        options=options._replace(
            grid=_three("grid", options.grid),
            kv_grid=None if options.kv_grid is None else _three("kv_grid", options.kv_grid),
            tile=tile if isinstance(tile, (int, str)) else _three("tile", tile),
            kv_tile=kv_tile if kv_tile is None or isinstance(kv_tile, (int, str)) else _three("kv_tile", kv_tile),
            topk=topk_of(options.topk),
            coarse=gate is not None if options.coarse is None else options.coarse,
            softmax_scale=None if options.softmax_scale is None else scale_of(options.softmax_scale),
            return_lse=options.return_lse if probe == 0 else True,  # a comparison of symbolic numbers is no bool
        ),
        rotated=rope is not None,
        needs_grad=graded(q, k, v, *tables),
        plain=graded(q, k, v, gate, *tables),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def _three(name: str, sizes: Iterable[int]) -> tuple[int, ...]:
    expect(name, sizes, Iterable, "(time, height, width)")
    return tuple(sizes)


def _in_order(lse: Tensor, q_rows: Grid) -> Tensor:
    return lse if q_rows.tiled or q_rows.rows is None else lse.index_select(2, q_rows.rows)


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


def _recall(q: Tensor, k: Tensor, fine: AttentionOutput, found: VideoPlan, probe: int) -> Tensor:
    """Estimate the recall: mean over some queries of `exp(lse of the selected tiles - lse of all keys)`; no host sync."""
    q_rows, kv_rows = found.q_rows.rows, found.kv_rows.rows
    assert fine.lse is not None and q_rows is not None and kv_rows is not None
    number = q_rows.shape[0]
    tokens = torch.linspace(0, number - 1, min(probe, number), dtype=torch.float64, device=q.device).round().long()
    rows = q_rows[tokens]
    queries = q.detach().index_select(1, rows).transpose(1, 2).float()  # [B, H, P, D]
    keys = k.detach().index_select(1, kv_rows).transpose(1, 2).float()
    keys = keys.repeat_interleave(q.shape[2] // k.shape[2], dim=1)
    dense = torch.logsumexp(queries @ keys.transpose(-1, -2) * found.plan.spec.softmax_scale, dim=-1)
    return torch.exp(fine.lse.detach().index_select(2, rows) - dense).mean(dim=-1)
