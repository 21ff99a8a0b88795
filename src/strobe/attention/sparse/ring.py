"""Video-sparse attention over a sequence that lies on several ranks: coarse keys meet everywhere, keys travel in a ring.

Rank r holds whole tiles `T_r` of queries, keys and values. The means of all key tiles are gathered, so every rank scores its own
query tiles as one device would and selects the same `M(i)`. Then each shard comes by once, and with `L_ri` the lse of the queries
of tile i over `M(i) & T_r`

    L_i = log sum_r exp(L_ri)        out_i = sum_r exp(L_ri - L_i) out_ri

A rank keeps its own share, the shard at hand and the one that arrives: O(S / P). The backward sends the keys around again. Given
the whole `L` and `out` of a row, the gradients of each shard are exact by themselves; those of its keys go straight to its owner.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from strobe.attention.around import ambient
from strobe.attention.double_backward import first_derivatives_only
from strobe.attention.impls import announce
from strobe.attention.sparse import custom_ops
from strobe.attention.sparse.coarse import pool
from strobe.attention.sparse.layout import TileLayout, held, made_apart, tile_layout
from strobe.attention.sparse.selection import BlockSelection, shard_cuts, shard_list
from strobe.attention.sparse.stages.types import Grid, Rope, Selected, Tiled
from strobe.attention.sparse.tiled import Attended, Plan, chosen_impl, selection_of, stages_of
from strobe.attention.sparse.video_plan import Layout, VideoCall, VideoOptions, plan_of
from strobe.attention.state import merge
from strobe.attention.tree.comm import Agreement, CollectiveCall, Comm, comm_of
from strobe.attention.tree.local import empty_state
from strobe.attention.tree.placement import split, whole_numbers
from strobe.attention.tree.plan import Kind
from strobe.attention.tree.redistribute import MERGE, pass_on
from strobe.attention.tree.spec import DTYPES
from strobe.attention.types import AttentionOutput, TensorMeta, outside_graphs
from strobe.core.errors import ConfigError, ShapeError
from strobe.core.spans import ATTENTION_FINISH, ATTENTION_KERNEL, ATTENTION_SELECT, ATTENTION_TILE, span

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Tensors = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ring:
    """One kind of call as one rank knows it.

    Args:
        tiles: of the whole sequence.
        bounds: the first tile of each rank, and the number of all tiles.
        edges: the same on the device, int32.
        rank: this one.
        q_rows: where the rows of this rank's queries are.
        kv_rows: likewise of its keys and values.
        all_rows: of the keys of all ranks, in tile order.
        kv_sizes: valid tokens of each tile of each rank; None where all are whole.
        plan: of the stages, over the largest shard.
        text: the call in words.
        digest: of all that must be equal on every rank.
    """

    tiles: TileLayout
    bounds: tuple[int, ...]
    edges: Tensor
    rank: int
    q_rows: Grid
    kv_rows: Grid
    all_rows: Grid
    kv_sizes: tuple[Tensor | None, ...]
    plan: Plan
    text: str
    digest: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """Tiles of each rank."""
        return tuple(stop - start for start, stop in pairwise(self.bounds))

    def meets(self, source: int) -> bool:
        """Whether this rank has queries and `source` has keys."""
        return self.numbers[self.rank] > 0 and self.numbers[source] > 0

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of each rank's keys and values as a message."""
        spec = self.plan.spec
        return [(2, spec.batch, number * spec.block, spec.num_kv_heads, spec.head_dim) for number in self.numbers]

    def sent(self) -> tuple[tuple[str, Kind, int], ...]:
        """Return what the rank that sends most sends in a forward pass: a name, the kind of message, bytes."""
        spec, wish, ranks = self.plan.spec, self.plan.wish, len(self.numbers)
        wide = torch.promote_types(spec.dtype, torch.float32).itemsize
        runs = 1 + wish.coarse
        row = spec.batch * max(self.numbers) * spec.num_kv_heads * spec.head_dim
        hop = 2 * row * spec.block * spec.dtype.itemsize
        hops: list[tuple[str, Kind, int]] = [(f"keys, hop {step}", "exchange", hop) for step in range(1, ranks)]
        return (("coarse keys", "gather", (ranks - 1) * row * runs * wide), *hops)

    def begin(self, comm: Comm, direction: str = "") -> CollectiveCall:
        """Begin a call of all ranks, which agree on it before its first message."""
        spec, digest = self.plan.spec, zlib.crc32(f"{self.digest}{direction}".encode())
        call = comm.begin(self.text + direction, digest, comm.timeout_s(spec.device))
        call.first = Agreement(call, digest, None, (spec.num_kv_heads, spec.head_dim), spec.device).wait
        return call

    def cuts(self, indices: Tensor, counts: Tensor) -> Tensor:
        """Return where the tiles of each rank begin in the lists of this rank's queries."""
        return shard_cuts(indices, None if self.plan.spec.uniform else counts, self.edges)

    def selection(self, indices: Tensor, cuts: Tensor, source: int) -> BlockSelection:
        """Return what this rank's queries select among the tiles of `source`."""
        indices, counts = shard_list(indices, cuts, self.bounds, source)
        masked = not self.plan.fused or self.q_rows.tiled  # else what padding queries give is dropped in the end
        return BlockSelection(
            indices=indices,
            counts=counts,
            block=self.tiles.block,
            q_sizes=self.q_rows.ragged_sizes if masked else None,
            kv_sizes=self.kv_sizes[source],
            finite_padding=True,
            known_bound=self.numbers[source],
        )


def planned(call: VideoCall, group: ProcessGroup | None, shards: Sequence[int] | None) -> tuple[Ring, Comm]:
    """Return the plan of a call on this rank, kept for the next one, and the ranks. Nothing is sent."""
    comm = comm_of(group)
    numbers = None if shards is None else tuple(whole_numbers("shards", shards))
    return held(_kept(call, numbers, comm.rank, comm.size), call.faces[0].device), comm


def _run(
    call: VideoCall, tensors: Tensors, rope: Rope, gate: Tensor | None, group: ProcessGroup | None, shards: Sequence[int] | None
) -> tuple[Attended, Ring]:
    """Attend over the tiles of all ranks of a group, of each as many as `shards` says; the result is that of this rank's queries.

    Raises:
        ShapeError, ConfigError, ImplUnavailableError: as `video_sparse_attention`.
        CollectiveError: ranks disagree, or one of them is gone or does not answer in time.
    """
    ring, comm = planned(call, group, shards)
    plan, stages = ring.plan, stages_of(ring.plan)
    with ambient(tensors[0], plan.choice.impl.name):
        flow = ring.begin(comm)
        with span(ATTENTION_TILE):
            tiled = stages.tile(*tensors, ring.q_rows, ring.kv_rows, rope, plan.wish)
        with span(ATTENTION_SELECT):
            chosen = _select(ring, flow, tiled)
        operands = tiled.q, tiled.k, tiled.v, chosen.indices, chosen.counts
        if plan.spec.needs_grad:
            out, lse = _Fine.apply(*operands, ring, flow)  # type: ignore[no-untyped-call]
            fine = AttentionOutput(out=out, lse=lse)
        else:
            fine = _forward(ring, flow, *operands)
        with span(ATTENTION_FINISH):
            out = stages.finish(fine.out, chosen.coarse, gate, ring.q_rows)
        selection = selection_of(plan, chosen.indices, ring.q_rows.ragged_sizes, ring.all_rows, chosen.counts)
    return Attended(out, fine, selection, tiled, fine.lse), ring


attend = outside_graphs(_run, "video-sparse attention waits for other processes")


def _select(ring: Ring, flow: CollectiveCall, tiled: Tiled) -> Selected:
    """Gather the means of all key tiles, and select among them for this rank's queries."""
    plan, wish, block, q_sizes, kv_sizes = ring.plan, ring.plan.wish, ring.tiles.block, ring.q_rows.sizes, ring.kv_rows.sizes
    with torch.set_grad_enabled(torch.is_grad_enabled() and wish.coarse):  # the selection alone has no gradient
        if tiled.means is None:
            queries, keys = pool(tiled.q, q_sizes, block), pool(tiled.k, kv_sizes, block)
            values = pool(tiled.v, kv_sizes, block) if wish.coarse else None
        else:
            queries, keys, values = tiled.means
        runs = torch.stack([keys] if values is None else [keys, values], dim=3)  # [B, H_kv, N, runs, D]
        whole: Tensor = _Gathered.apply(runs, ring, flow)  # type: ignore[no-untyped-call]
        keys, *rest = (each.contiguous() for each in whole.unbind(dim=3))
        values = rest[0] if rest else None
    here = Tiled(q=tiled.q, k=tiled.k, v=tiled.v, means=(queries, keys, values))
    chosen: Selected = stages_of(plan).select(here, ring.q_rows, ring.all_rows, wish)
    return chosen


class _Gathered(torch.autograd.Function):
    """Means `[B, H_kv, N, runs, D]` of the key tiles of all ranks, in rank order; the gradients go back to the owners."""

    @staticmethod
    def forward(ctx: Any, means: Tensor, ring: Ring, flow: CollectiveCall) -> Tensor:
        ctx.ring, ctx.comm, ctx.shape = ring, flow.comm, means.shape
        shapes = [(*means.shape[:2], number, *means.shape[3:]) for number in ring.numbers]
        return torch.cat(flow.gather(means, shapes), dim=2)

    @staticmethod
    @first_derivatives_only("video_sparse_attention", ["one device, impl='reference'"])
    def backward(ctx: Any, _: tuple[Tensor, ...], d_whole: Tensor) -> tuple[Tensor | None, ...]:
        flow = ctx.ring.begin(ctx.comm, ", backward of the coarse keys")
        sends = [each.contiguous() for each in d_whole.split(ctx.ring.numbers, dim=2)]
        arrived = flow.exchange(sends, [tuple(ctx.shape)] * flow.size).wait()
        flow.meet()
        return torch.stack(arrived).sum(dim=0), None, None


class _Fine(torch.autograd.Function):
    """`(q, k, v) -> (out, lse)` over the selected tiles of all ranks."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        q, k, v, indices, counts, ring, flow = inputs
        fine = _forward(ring, flow, q, k, v, indices, counts)
        assert fine.lse is not None
        ctx.ring, ctx.comm = ring, flow.comm
        ctx.save_for_backward(q, k, v, indices, counts, fine.out, fine.lse)
        return fine.out, fine.lse

    @staticmethod
    @first_derivatives_only("video_sparse_attention", ["one device, impl='reference'"])
    def backward(ctx: Any, saved: tuple[Tensor, ...], d_out: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
        found = _backward(ctx.ring, ctx.ring.begin(ctx.comm, ", backward"), saved, (d_out, d_lse))
        return *found, None, None, None, None


def _forward(
    ring: Ring, flow: CollectiveCall, q: Tensor, k: Tensor, v: Tensor, indices: Tensor, counts: Tensor
) -> AttentionOutput:
    impl, state, cuts = announce(ring.plan.choice).impl, None, ring.cuts(indices, counts)
    wide = torch.promote_types(q.dtype, torch.float32)
    for source, k_there, v_there in _shards(ring, flow, k, v):
        if not ring.meets(source):
            continue
        selection = ring.selection(indices, cuts, source)
        spec = replace(ring.plan.spec, kv_len=k_there.shape[1], return_lse=True, needs_grad=False)
        with span(ATTENTION_KERNEL):
            part = impl.run(q, k_there, v_there, selection, spec)
        if flow.size > 2:  # the sum of two is rounded once as it is
            part = AttentionOutput(out=part.out.to(wide), lse=part.lse)
        with span(MERGE):
            state = part if state is None else merge([state, part])
    if state is None:
        return empty_state(q, q.shape[3])
    return AttentionOutput(out=state.out.to(q.dtype), lse=state.lse)


def _backward(ring: Ring, flow: CollectiveCall, saved: tuple[Tensor, ...], d_state: tuple[Tensor, Tensor]) -> Tensors:
    """Compute the gradients of this rank's q, k and v; those of another's keys travel while the next shard is used."""
    q, k, v, indices, counts, *state = saved
    wide, size, shapes = torch.promote_types(q.dtype, torch.float32), flow.size, ring.shapes
    d_q, d_mine = torch.zeros_like(q, dtype=wide), q.new_zeros(shapes[ring.rank], dtype=wide)
    arriving, cuts = None, ring.cuts(indices, counts)
    for step, (source, k_there, v_there) in enumerate(_shards(ring, flow, k, v)):
        d_there = q.new_zeros(shapes[source])
        if ring.meets(source):
            selection = ring.selection(indices, cuts, source)
            with span(ATTENTION_KERNEL):
                d_rows, *d_keys = _gradients(ring, d_state, (q, k_there, v_there), (state[0], state[1]), selection)
            d_q, d_there = d_q + d_rows, torch.stack(d_keys)
        if step == 0:
            d_mine += d_there
            continue
        sends = [d_there if rank == source else d_there[:0] for rank in range(size)]
        asker, nothing = (ring.rank + step) % size, (0, *shapes[ring.rank][1:])
        leaving = flow.exchange(sends, [shapes[ring.rank] if rank == asker else nothing for rank in range(size)])
        if arriving is not None:
            d_mine += arriving.wait()[asker - 1]  # who asked in the step before
        arriving = leaving
    if arriving is not None:
        d_mine += arriving.wait()[ring.rank - 1]
    return d_q.to(q.dtype), d_mine[0].to(q.dtype), d_mine[1].to(q.dtype)


def _shards(ring: Ring, flow: CollectiveCall, k: Tensor, v: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield keys and values of every rank and whose they are, this rank's first; the next ones travel meanwhile."""
    held = _in_one(k, v)
    for step in range(flow.size):
        source = (ring.rank - step) % flow.size
        travelling = pass_on(flow, held, ring.shapes, source) if step + 1 < flow.size else None
        yield source, held[0], held[1]
        if travelling is not None:
            held = travelling.wait()[(ring.rank - 1) % flow.size]


def _in_one(k: Tensor, v: Tensor) -> Tensor:
    one = k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr() and v.data_ptr() - k.data_ptr() == k.nbytes
    if one and k.is_contiguous() and v.is_contiguous():
        return k.as_strided((2, *k.shape), (k.numel(), *k.stride()))
    return torch.stack([k, v])


def _gradients(
    ring: Ring, d_state: tuple[Tensor, Tensor], tensors: Tensors, state: tuple[Tensor, Tensor], selection: BlockSelection
) -> Tensors:
    """Compute what one shard adds to the gradients of q, and those of its keys and values, from the state over all shards."""
    impl, scale = ring.plan.choice.impl, ring.plan.spec.softmax_scale
    if impl.name in custom_ops.DIFFERENTIABLE:
        return custom_ops.gradients(impl.name, d_state, tensors, state, selection, scale)
    (d_out, d_lse), (out, lse) = d_state, state
    spec = replace(ring.plan.spec, kv_len=tensors[1].shape[1], return_lse=True)
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in tensors]
        part = impl.run(leaves[0], leaves[1], leaves[2], selection, spec)
    assert part.lse is not None
    weight = torch.exp(part.lse - lse).masked_fill(part.lse.isneginf(), 0)  # [B, H, S_q], of this shard in the whole
    slope = (d_out * (part.out - out)).sum(dim=-1).transpose(1, 2) + d_lse
    d_part = (d_out * weight.transpose(1, 2).unsqueeze(-1)).to(out.dtype), (weight * slope).to(lse.dtype)
    d_q, d_k, d_v = torch.autograd.grad((part.out, part.lse), leaves, d_part)
    return d_q, d_k, d_v


@lru_cache(maxsize=64)
def _kept(*call: Any) -> Ring:
    return made_apart(partial(_planned, *call))


def _planned(call: VideoCall, numbers: tuple[int, ...] | None, rank: int, size: int) -> Ring:
    """Plan the call as if one device had it all, and cut this rank's share out of the plan."""
    options: Any = call.options
    if options.kv_grid is not None or options.kv_tile is not None or options.probe:
        given = ", ".join(f"{name}={getattr(options, name)!r}" for name in ("kv_grid", "kv_tile", "probe"))
        raise ConfigError(f"group: got {given}, expected None, None and 0: queries and keys of all ranks share one grid")
    if options.share is not None or options.pool_skipped or options.estimator.parts != 1:
        given = f"share={options.share}, pool_skipped={options.pool_skipped}, {options.estimator}"
        raise ConfigError(f"group: got {given}, expected None, False and one part: one device alone computes the others")
    if call.faces[0].dtype not in DTYPES:
        raise ShapeError(f"q: got {call.faces[0].dtype}, expected float64, float32, bfloat16 or float16 on several ranks")
    tiles = tile_layout(options.grid, options.tile)
    if numbers is None:
        numbers = tuple(stop - start for start, stop in split(tiles.num_tiles, size))
    if len(numbers) != size or sum(numbers) != tiles.num_tiles:
        wanted = f"{size} numbers with the sum {tiles.num_tiles}, the tiles of grid {tiles.grid} cut by {tiles.tile}"
        raise ShapeError(f"shards: got {list(numbers)}, expected the tiles of each rank, {wanted}")
    bounds = tuple(accumulate(numbers, initial=0))
    orders = options.q_layout, options.kv_layout, options.kv_layout
    q, k, v = map(partial(_of_all, tiles, bounds, rank), "qkv", call.faces, orders)
    faces = q, k, v
    whole = plan_of(call._replace(faces=faces), keep=False)
    wish, start, stop = whole.plan.wish, bounds[rank], bounds[rank + 1]
    wish = replace(
        wish,
        counts=wish.counts[..., start:stop].clone(memory_format=torch.contiguous_format),
        forced=None if wish.forced is None else wish.forced[start:stop].clone(),
    )
    spec = replace(whole.plan.spec, q_len=numbers[rank] * tiles.block, kv_len=max(numbers) * tiles.block)
    fused = whole.plan.fused and stop > start
    said = {name: each for name, each in options._asdict().items() if each != VideoOptions._field_defaults.get(name)}
    graded = "".join(name for name, face in zip("qkv", faces, strict=True) if face.requires_grad and call.needs_grad)
    shape, beside = list(q.shape), (call.rotated, call.plain, call.deterministic)
    return Ring(
        tiles=tiles,
        bounds=bounds,
        edges=torch.tensor(bounds, dtype=torch.int32, device=faces[0].device),
        rank=rank,
        q_rows=_cut(whole.q_rows, start, stop),
        kv_rows=_cut(whole.kv_rows, start, stop),
        all_rows=replace(whole.kv_rows, tokens=None, rows=None, tiled=True),
        kv_sizes=tuple(None if tiles.whole else whole.kv_rows.sizes[i:j].clone() for i, j in pairwise(bounds)),
        plan=Plan(wish=wish, spec=spec, choice=chosen_impl(replace(spec, uniform=False), options.impl), fused=fused),
        text=f"video_sparse_attention q {shape}, kv heads {spec.num_kv_heads}, {str(spec.dtype).removeprefix('torch.')}, "
        f"tiles {list(numbers)}, {', '.join(f'{name}={each}' for name, each in said.items())}"
        + (f", with gradients of {graded or 'rope'}" if call.needs_grad else ""),
        digest=zlib.crc32(repr((options, numbers, [face[:2] for face in faces], graded, beside)).encode()),
    )


def _of_all(tiles: TileLayout, bounds: tuple[int, ...], rank: int, name: str, face: TensorMeta, order: Layout) -> TensorMeta:
    """Check the rows of a tensor of this rank, and return the face that it has over all ranks."""
    start, stop = bounds[rank], bounds[rank + 1]
    rows, whole = tiles.tokens_of(start, stop).numel(), tiles.num_tokens
    if order == "tiled":
        rows, whole = (stop - start) * tiles.block, tiles.num_rows
    if len(face.shape) == 4 and face.shape[1] != rows:
        raise ShapeError(
            f"{name}: got {face.shape[1]} rows, expected {rows} in {order} order, those of tiles {start} to below {stop}; "
            "shards= says how many tiles each rank has, and TileLayout.tokens_of which tokens they are"
        )
    return face._replace(shape=(*face.shape[:1], whole, *face.shape[2:]))


def _cut(rows: Grid, start: int, stop: int) -> Grid:
    assert rows.rows is not None
    mine = rows.rows[(rows.rows >= start * rows.block) & (rows.rows < stop * rows.block)] - start * rows.block
    tokens = torch.full(((stop - start) * rows.block,), mine.numel(), device=mine.device)
    tokens[mine] = torch.arange(mine.numel(), device=mine.device)
    return replace(
        rows,
        num_tiles=stop - start,
        num_tokens=mine.numel(),
        sizes=rows.sizes[start:stop].clone(),  # a kernel may read from a multiple of 16 bytes on
        ragged_sizes=None if rows.ragged_sizes is None else rows.ragged_sizes[start:stop].clone(),
        tokens=tokens,
        rows=mine,
    )
