"""Calls that come again: what shapes, strides and dtypes decide is worked out once, and a call only allocates and launches.

Of a call of few tokens the host takes most of the time. A later call of the same plan, with tensors of the same strides and
dtypes, does what the first one did and looks at nothing but addresses. What is kept is read alone: each call works in memory that
it allocates, so calls on several streams or threads do not meet.
"""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from strobe.attention.sparse.launch import dense, empty_on, listening, stream_on
from strobe.attention.sparse.launches import Spot, Step, fixed, launches
from strobe.attention.sparse.stages.impl import triton as stages
from strobe.attention.sparse.stages.types import Call, Grid, Prepared, Rope, SelectionSpec
from strobe.core.spans import STAGES, marked, span

_view: Final[Any] = getattr(torch._C._dynamo.guards, "_reinterpret_tensor", torch.as_strided)
"""What compiled code calls, in half the host time of `torch.as_strided` (torch 2.3 to 2.13)."""


def prepare(
    tensors: tuple[Tensor, Tensor, Tensor],
    rope: Rope,
    gate: Tensor | None,
    grids: tuple[Grid, Grid],
    wish: SelectionSpec,
    fine: Prepared,
    return_lse: bool,
) -> Call | None:
    """Prepare calls like one that ran fused just now; None where a call does more than allocate and launch.

    Args:
        tensors: q, k and v of that call.
        rope, gate: of it, as in `tiled.attend`.
        fine: its fine stage.
        return_lse: the lse is asked for.

    Returns:
        a function of q, k, v, rope and gate of the same shapes, strides and dtypes, whose device is current. It returns the
        output, the indices and the lse in tile order, None if it was not asked for; or None, having done nothing, if an address
        is no multiple of 16 bytes (of rope: not as it was), or a hook listens to launches.
    """
    (q, k, v), (q_grid, kv_grid), cos = tensors, grids, None if rope is None else rope[0]
    crooked = any(tensor.stride(3) != 1 for tensor in tensors) or (rope is not None and rope[0].stride() != rope[1].stride())
    if crooked or wish.parts > 1 or q_grid.tiled or kv_grid.tiled:
        return None
    (batch, _, heads, width), kv_heads, index, dtype = q.shape, k.shape[2], q.get_device(), q.dtype
    num_q, num_kv, coarse, gate = q_grid.num_tiles, kv_grid.num_tiles, wish.coarse, gate if wish.coarse else None
    score_site, coarse_site = stages.score_sites(q, k, num_q, num_kv, wish)
    pitch, single, number = score_site.numbers[4], torch.float32, torch.int32
    select_site = stages.select_site(batch * heads, num_q, num_kv, pitch, wish)
    gate_stride = None if gate is None else gate.stride()
    finish_site = stages.finish_site((batch, num_q * q_grid.block, heads, width), fine.stride, q_grid, gate_stride, coarse)

    # one allocation: means of the tiles, scores, the coarse output; q, k and v in tiles; what the fine stage makes, if launched
    q_mean, kv_mean = 4 * batch * heads * num_q * width, 4 * batch * kv_heads * num_kv * width
    sizes = q_mean, kv_mean, kv_mean * coarse, 4 * batch * heads * num_q * pitch, q_mean * coarse
    tiles = [prod(place[0]) * dtype.itemsize for place in fine.places]
    lse_place = dense(batch, heads, num_q * q_grid.block)
    made = [tiles[0], 0 if return_lse else 4 * prod(lse_place[0])] if fine.step else []
    *starts, room = _behind(*sizes, *tiles, *made)
    q_means, k_means, v_means, scores, sums = ((single, 1, start) for start in starts[:5])
    operands = [(dtype, 1, start) for start in starts[5:8]]
    views = [(*place, start // dtype.itemsize) for place, start in zip(fine.places, starts[5:], strict=False)]

    # addresses: the allocation, indices, out, q, k, v, cos, sin, gate, and the lse or what the fine stage returns
    given, tables = [(dtype, place, 0) for place in (4, 5, 6)], (None, None) if rope is None else rope
    turn = [None if table is None else (table.dtype, 7 + place, 0) for place, table in enumerate(tables)]
    odd = [table is not None and table.data_ptr() % 16 > 0 for table in tables]
    odd_places = tuple(11 + place for place in range(2) if odd[place])
    moved = *given, *operands, q_means, k_means, v_means if coarse else k_means
    tile: list[Step] = [
        (stages.TILE, site, (*moved, fixed(grid.tokens), fixed(grid.sizes), *turn), (), odd_places)
        for grid, site in stages.tile_sites(q, k, v, q_grid, kv_grid, None if cos is None else cos.stride(), wish)
    ]
    select: list[Step] = [
        (stages.SCORE, score_site, (q_means, k_means, scores, fixed(kv_grid.sizes)), (), ()),
        *([(stages.COARSE, coarse_site, (scores, v_means, sums), (), ())] if coarse else []),
        (stages.SELECT, select_site, (scores, fixed(wish.forced), fixed(wish.counts), (number, 2, 0)), (), ()),
    ]
    attended: Spot = (dtype, 10, 0)
    kernel: list[Step] = []
    if fine.step:
        attended, lse_at = (dtype, 1, starts[8]), (single, 10, 0) if return_lse else (single, 1, starts[9])
        kernel = [fine.step(*operands, (number, 2, 0), attended, lse_at)]
    weights = None if gate is None else (gate.dtype, 9, 0)
    ends = attended, sums if coarse else None, weights, (dtype, 3, 0), fixed(q_grid.tokens), fixed(q_grid.sizes)
    finish: list[Step] = [(stages.FINISH, finish_site, ends, (), ())]
    stages_of = zip(STAGES, (tile, select, kernel, finish), strict=True)
    parts = [(region, launches(index, *steps) if steps else None) for region, steps in stages_of]
    whole = launches(index, *tile, *select, *kernel, *finish)
    if whole is None:
        return None
    empty, stream_of = empty_on(q.device), stream_on(index)
    work_place, taken = dense(room // dtype.itemsize), dense(batch, heads, num_q, max(wish.per_head))
    out_place = dense(batch, q_grid.num_tokens, heads, width)

    def call(q: Tensor, k: Tensor, v: Tensor, rope: Rope, gate: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None] | None:
        q_at, k_at, v_at, cos_at, sin_at, gate_at = q.data_ptr(), k.data_ptr(), v.data_ptr(), 0, 0, 0
        if rope is not None:
            cos_at, sin_at = rope[0].data_ptr(), rope[1].data_ptr()
        if gate is not None and weights is not None:
            gate_at = gate.data_ptr()
        crooked = (q_at | k_at | v_at | gate_at) & 15 or [cos_at & 15 > 0, sin_at & 15 > 0] != odd
        if crooked or listening():
            return None
        stream = stream_of()
        work, indices, out = empty(*work_place, dtype), empty(*taken, number), empty(*out_place, dtype)
        lse = empty(*lse_place, single) if return_lse and kernel else None
        given = work.data_ptr(), indices.data_ptr(), out.data_ptr(), q_at, k_at, v_at, cos_at, sin_at, gate_at
        last = 0 if lse is None else lse.data_ptr()
        if kernel and not marked(STAGES):
            whole(stream, *given, last)
            return out, indices, lse
        for region, launch in parts:
            with span(region):
                if launch is not None:
                    launch(stream, *given, last)
                elif fine.run is not None:
                    queries, keys, values = [_view(work, *view) for view in views]
                    found, lse = fine.run(stream, queries, keys, values, indices)
                    last = found.data_ptr()
        return out, indices, fine.lse(lse) if return_lse and lse is not None else None

    return call


def _behind(*sizes: int) -> tuple[int, ...]:
    """Where some runs of bytes begin behind each other, and the room of all; each at a multiple of 512, as what is allocated."""
    return 0, *accumulate(-(-size // 512) * 512 for size in sizes)
