"""The plan of a call of `video_sparse_attention`: what shapes and options decide, computed once and kept for the next call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from operator import index
from types import NoneType
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor

from strobe.attention.sparse.coarse import Estimator, Forced, budget, check_parts, check_share, forced_blocks
from strobe.attention.sparse.layout import TileLayout, held, made_apart, tile_layout
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.sparse.stages.types import Call, Grid, Rope, SelectionSpec
from strobe.attention.sparse.tiled import Plan, Tiles, chosen_impl, fine_spec, fuses, graded
from strobe.attention.types import TensorMeta, check, constant_when_traced, traced
from strobe.core.errors import ConfigError, ShapeError

Layout = Literal["raster", "tiled"]
TileName = tuple[int, ...] | int | Literal["auto"]


class VideoOptions(NamedTuple):
    """What `video_sparse_attention` is given beside tensors: its arguments, their meanings and their defaults.

    The one form of them on the way to the plan, its key, and the text of the operator that a compiler calls. A named tuple, for
    it is made and hashed in every call, and a compiler takes it apart.
    """

    grid: Iterable[int]
    kv_grid: Iterable[int] | None = None
    tile: TileName | Iterable[int] = (4, 4, 4)
    kv_tile: TileName | Iterable[int] | None = None
    topk: int | Sequence[int] | None = None
    sparsity: float | None = None
    coarse: bool | None = None
    forced: Forced = Forced()
    estimator: Estimator = Estimator()
    softmax_scale: float | None = None
    q_layout: Layout = "raster"
    kv_layout: Layout = "raster"
    impl: str = "auto"
    return_lse: bool = False
    probe: int = 0
    share: float | None = None
    pool_skipped: bool = False


class VideoCall(NamedTuple):
    """The shapes and options of a call, which decide everything but the values; the key of the kept plans.

    Args:
        faces: of q, k and v.
        options: checked; grids, tiles and `topk` are tuples or single values, `coarse` is decided, a probe asks for the lse.
        rotated: whether rope is given.
        needs_grad: a gradient may be asked for of the fine stage.
        plain: the stages around it must have gradients.
    """

    faces: tuple[TensorMeta, TensorMeta, TensorMeta]
    options: VideoOptions
    rotated: bool
    needs_grad: bool
    plain: bool
    deterministic: bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class VideoPlan:
    """Both grids in tiles, the place of their rows, and the plan of the stages.

    Args:
        text: a compiler traces the call, and takes it as one operator, for its stages run fused: what the operator is told, to be
            read by `options_of`; else empty.
        ready: prepared calls, by strides and dtypes (`arrangement`) of the tensors; None where calls cannot be prepared.
    """

    q_tiles: TileLayout
    kv_tiles: TileLayout
    q_rows: Grid
    kv_rows: Grid
    plan: Plan
    text: str = ""
    ready: dict[tuple[Any, ...], Call | None] = field(default_factory=dict)


def plan_of(call: VideoCall, keep: bool) -> VideoPlan:
    """Return the plan of a call, computed or kept.

    Args:
        keep: it may be kept: the tensors are plain ones.

    Raises:
        ShapeError, ConfigError, ImplUnavailableError: as `video_sparse_attention`.
    """
    if traced():
        return _plan_of_traced(call)
    return held(_kept(call), call.faces[0].device) if keep else _planned(call)


_MOST_SEEN: Final = 256
_MOST_NUMBERS: Final = 2048
"""Plans that differ in the numbers of their heads alone, and share the rest: those of every layer and denoise step."""
_SEEN: Final[dict[tuple[Any, ...], dict[tuple[int, ...] | None, VideoPlan]]] = {}
Key = tuple[tuple[Any, ...], tuple[int, ...] | None]
"""What decides on a plan: all but the numbers of the heads, and these, if each has its own."""
_KEYED: Final = frozenset((tuple, int, float, str, bool, NoneType, Forced, Estimator))
"""Types of options that a plan is kept by: equal values of one type are the same, and stay as they are."""
_NUMBERS: Final = frozenset((int,))
"""Likewise of the numbers of the heads."""


def key_of(q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, rope: Rope, options: VideoOptions) -> Key | None:
    """Return what decides on the plan of a call, unchecked; None where the plan is not to be found by it.

    A plan is seen again only after a call of an equal key has passed every check. So what is equal must also be the same: the
    types of the options are part of the key, and 2.0 is not found by 2.
    """
    if traced() or type(q) is not Tensor or type(k) is not Tensor or type(v) is not Tensor:
        return None
    types, numbers = tuple(map(type, options)), options.topk if type(options.topk) is tuple else None
    if not _KEYED.issuperset(types) or options.probe or type(gate) not in (Tensor, NoneType):
        return None
    if numbers is not None:
        if not _NUMBERS.issuperset(map(type, numbers)):
            return None
        options = options._replace(topk=None)
    tables: tuple[Any, ...] = ()
    if rope is not None:
        if type(rope) is not tuple or len(rope) != 2 or type(rope[0]) is not Tensor or type(rope[1]) is not Tensor:
            return None
        tables = (rope[0].shape, rope[0].device, rope[1].shape, rope[1].device)
    if graded(q, k, v, gate, *(rope or ())):
        return None
    return (
        q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, gate is None, tables, options, types,
        torch.are_deterministic_algorithms_enabled(),
    ), numbers  # fmt: skip


def arrangement(tensors: tuple[Tensor, Tensor, Tensor], rope: Rope, gate: Tensor | None) -> tuple[Any, ...]:
    """Return what a prepared call rests on beside the plan: how the memory of its tensors is read."""
    q, k, v = tensors
    tables: tuple[Any, ...] = ()
    if rope is not None:
        cos, sin = rope
        tables = cos.dtype, sin.dtype, cos.stride(), sin.stride(), cos.data_ptr() & 15 > 0, sin.data_ptr() & 15 > 0
    return q.stride(), k.stride(), v.stride(), tables, None if gate is None else (gate.dtype, gate.stride())


def plan_seen(key: Key, device: torch.device) -> VideoPlan | None:
    """Return the plan of the call of an equal key, or None."""
    try:
        alike = _SEEN.get(key[0])
    except TypeError:  # something in it cannot be hashed; the checks will say what it should be
        return None
    found = None if alike is None else alike.get(key[1])
    return None if found is None else held(found, device)


def see_plan(key: Key, found: VideoPlan) -> None:
    """Keep the plan of a call that has passed every check."""
    with suppress(TypeError):
        alike = _SEEN.get(key[0])
        if alike is None:
            if len(_SEEN) >= _MOST_SEEN:
                _SEEN.clear()
            alike = _SEEN[key[0]] = {}
        if len(alike) >= _MOST_NUMBERS:
            alike.clear()
        alike[key[1]] = found


def see_prepared(found: VideoPlan, place: tuple[Any, ...], call: Call | None) -> None:
    """Keep a prepared call with its plan."""
    if len(found.ready) >= _MOST_SEEN:
        found.ready.clear()
    found.ready[place] = call


@lru_cache(maxsize=256)
def _kept(call: VideoCall) -> VideoPlan:
    return made_apart(partial(_planned, call))


def _planned(call: VideoCall) -> VideoPlan:
    options: Any = call.options  # checked, so narrower than what may be given
    layouts = options.q_layout, options.kv_layout
    q_tiles = tile_layout(options.grid, options.tile)
    kv_tiles = _kv_tiles(q_tiles, options.kv_grid, options.kv_tile)
    spec = check(*call.faces, options.softmax_scale, options.return_lse or options.pool_skipped)
    if call.rotated and (layouts != ("raster", "raster") or q_tiles.grid != kv_tiles.grid):
        raise ConfigError("rope: needs q and k of one grid in raster order; rotate them before, and leave rope out")
    q_rows = _rows(q_tiles, layouts[0], spec.q_len, "q", spec.device)
    same = q_tiles == kv_tiles and layouts[0] == layouts[1]
    kv_rows = _rows(kv_tiles, layouts[1], spec.kv_len, "k", spec.device)
    topk, share = options.topk, options.share
    if share is not None:
        check_share(share, topk, options.sparsity)
        topk = kv_tiles.num_tiles  # at most
    if options.pool_skipped and options.coarse:
        raise ConfigError("pool_skipped: got True beside a coarse output, which adds the skipped tiles too; give coarse=False")
    per_head = budget(topk, options.sparsity, spec.num_heads, kv_tiles.num_tiles)
    must = forced_blocks(options.forced, q_tiles, kv_tiles, per_head)
    check_parts(options.estimator, q_tiles.block)
    ragged = not (q_tiles.whole and kv_tiles.whole)
    tiles = Tiles(q_tiles.block, q_tiles.num_tiles, kv_tiles.num_tiles, ragged)
    fine = fine_spec(spec, tiles, per_head, needs_grad=call.needs_grad, deterministic=call.deterministic)
    if share is not None:
        fine = SparseSpec.of(fine, uniform=False)
    wish = SelectionSpec(
        softmax_scale=spec.softmax_scale,
        parts=options.estimator.parts,
        per_head=per_head,
        counts=_counts(per_head, spec.batch, q_tiles.num_tiles).to(spec.device),
        forced=None if must is None else _forced_on(options.forced, q_tiles, kv_tiles, spec.device),
        coarse=options.coarse,
        share=share,
        pool_skipped=options.pool_skipped,
    )
    by_means = share is None or options.estimator.parts == 1
    fused = by_means and not call.plain and spec.batch > 0 and fuses(spec.device, spec.dtype, spec.head_dim)
    return VideoPlan(
        q_tiles=q_tiles,
        kv_tiles=kv_tiles,
        q_rows=q_rows,
        kv_rows=q_rows if same else kv_rows,
        plan=Plan(wish=wish, spec=fine, choice=chosen_impl(fine, options.impl), fused=fused),
    )


def _plan_of_traced(call: VideoCall) -> VideoPlan:
    """Compute the plan where a compiler traces the call: lengths and grids are compiled in, batch and heads may vary.

    One number of key tiles for all heads serves any number of heads: the plan is made for one group of them.
    """
    options: Any = call.options
    spec = check(*call.faces, options.softmax_scale, options.return_lse)
    one_number = not isinstance(options.topk, tuple)
    groups = index(spec.num_heads // spec.num_kv_heads)
    heads = (groups, 1, 1) if one_number else (index(spec.num_heads), index(spec.num_kv_heads), index(spec.num_kv_heads))
    faces = tuple(
        ((1 if spec.batch else 0, index(face.shape[1]), number, index(face.shape[3])), *face[1:])
        for face, number in zip(call.faces, heads, strict=True)
    )
    found: VideoPlan = _traced(faces, tuple(_static(each) for each in options), tuple(call[2:]))
    fine = SparseSpec.of(found.plan.spec, batch=spec.batch, num_heads=spec.num_heads, num_kv_heads=spec.num_kv_heads)
    return VideoPlan(
        q_tiles=found.q_tiles,
        kv_tiles=found.kv_tiles,
        q_rows=found.q_rows,
        kv_rows=found.kv_rows,
        plan=Plan(wish=found.plan.wish, spec=fine, choice=chosen_impl(fine, options.impl), fused=False),
        text=found.text,
    )


_POLICIES: Final = {kind.__name__: (kind, tuple(each.name for each in fields(kind))) for kind in (Forced, Estimator)}


def _static(value: Any) -> Any:
    """Convert an option, in which a compiler may have made numbers symbolic, to plain values."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, tuple):
        return tuple(index(each) for each in value)
    if isinstance(value, (Forced, Estimator)):
        name = type(value).__name__
        return (name, *(_static(getattr(value, each)) for each in _POLICIES[name][1]))
    if isinstance(value, float):  # a symbolic one has no index
        from torch.fx.experimental.symbolic_shapes import guard_scalar  # loaded by the compiler; slow to load without it

        return guard_scalar(value)
    return index(value)


def _dynamic(value: Any) -> Any:
    """The option that `_static` made plain, also of what came through a text."""
    if not isinstance(value, (tuple, list)):
        return value
    if value and value[0] in _POLICIES:
        kind, names = _POLICIES[value[0]]
        return kind(**dict(zip(names, value[1:], strict=True)))
    return tuple(value)


@constant_when_traced
def _traced(faces: tuple[tuple[Any, ...], ...], options: tuple[Any, ...], rest: tuple[Any, ...]) -> VideoPlan:
    """Return the plan as a constant of a traced graph; the arguments are plain values, as a compiler needs them."""
    q, k, v = (TensorMeta(*face) for face in faces)
    given = VideoOptions(*map(_dynamic, options))
    found = _kept(VideoCall((q, k, v), given._replace(impl="reference"), *rest))
    one = found.plan.fused and given.share is None  # counts of a share are no constant
    return replace(found, text=written(filled(given, found))) if one else found


def filled(options: VideoOptions, found: VideoPlan) -> VideoOptions:
    """Options of a call with all that its plan decides."""
    wish, q_tiles, kv_tiles = found.plan.wish, found.q_tiles, found.kv_tiles
    return options._replace(
        grid=q_tiles.grid,
        kv_grid=kv_tiles.grid,
        tile=q_tiles.tile,
        kv_tile=kv_tiles.tile,
        topk=wish.per_head if isinstance(options.topk, tuple) else wish.per_head[0],
        sparsity=None,
        softmax_scale=wish.softmax_scale,
    )


def written(options: VideoOptions) -> str:
    """Write checked options as a text, which `options_of` reads."""
    return json.dumps({name: _static(value) for name, value in options._asdict().items()})


@lru_cache(maxsize=256)
def options_of(text: str) -> VideoOptions:
    """Read what was `written`."""
    return VideoOptions(**{name: _dynamic(value) for name, value in json.loads(text).items()})


def _forced_on(forced: Forced, q_tiles: TileLayout, kv_tiles: TileLayout, device: torch.device) -> Tensor:
    """Return the mask of forced tiles on a device, one for all plans that differ in numbers alone; a mode makes its own."""
    if torch._C._len_torch_dispatch_stack() or torch.is_inference_mode_enabled():
        return _forced_kept.__wrapped__(forced, q_tiles, kv_tiles, device)
    return _forced_kept(forced, q_tiles, kv_tiles, device)


@lru_cache(maxsize=64)
def _forced_kept(forced: Forced, q_tiles: TileLayout, kv_tiles: TileLayout, device: torch.device) -> Tensor:
    must = forced_blocks(forced, q_tiles, kv_tiles, (kv_tiles.num_tiles,))
    assert must is not None
    return must.to(device)


def _counts(per_head: Sequence[int], batch: int, num_q: int) -> Tensor:
    return torch.tensor(per_head, dtype=torch.int32)[:, None].expand(batch, -1, num_q).contiguous()


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
            f"; {name} is [batch, rows, heads, head_dim]"
        )
    return Grid.of(layout, device, tiled=order == "tiled")
