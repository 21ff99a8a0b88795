"""Calls that come again: what shapes, strides and dtypes decide is worked out once, and a call only allocates and launches.

Of a call of few tokens the host takes most of the time. A later call of the same plan, with tensors of the same strides and
dtypes, does what the first one did and looks at nothing but addresses. What is kept is read alone: each call works in memory that
it allocates, so calls on several streams or threads do not meet.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from strobe.attention.sparse.launch import dense, empty_on, listening, stream_on
from strobe.attention.sparse.stages.impl import triton as stages
from strobe.attention.sparse.stages.types import Call, Grid, Prepared, Rope, SelectionSpec
from strobe.core.spans import ATTENTION_FINISH, ATTENTION_KERNEL, ATTENTION_SELECT, ATTENTION_TILE, span


def prepare(
    tensors: tuple[Tensor, Tensor, Tensor],
    rope: Rope,
    gate: Tensor | None,
    grids: tuple[Grid, Grid],
    wish: SelectionSpec,
    fine: Prepared,
) -> Call | None:
    """Prepare calls like one that ran fused just now; None where a call does more than allocate and launch.

    Args:
        tensors: q, k and v of that call.
        rope, gate: of it, as in `tiled.attend`.
        fine: its fine stage.

    Returns:
        a function of q, k, v, rope and gate of the same shapes, strides and dtypes, whose device is current. It returns the
        output, the indices and the lse in tile order; or None, having done nothing, if an address is no multiple of 16 bytes (of
        rope: not as it was), or a hook listens to launches.
    """
    (q, k, v), (q_grid, kv_grid), cos = tensors, grids, None if rope is None else rope[0]
    crooked = any(tensor.stride(3) != 1 for tensor in tensors) or (rope is not None and rope[0].stride() != rope[1].stride())
    if crooked or wish.parts > 1 or q_grid.tiled or kv_grid.tiled:
        return None
    (batch, _, heads, width), kv_heads, index, device = q.shape, k.shape[2], q.get_device(), q.device
    num_q, num_kv, most = q_grid.num_tiles, kv_grid.num_tiles, max(wish.per_head)
    coarse, dtype, single, number = wish.coarse, q.dtype, torch.float32, torch.int32

    score_site, coarse_site = stages.score_sites(q, k, num_q, num_kv, wish)
    pitch = score_site.numbers[4]
    q_place, k_place, v_place = fine.places
    q_mean, kv_mean = batch * heads * num_q * width, batch * kv_heads * num_kv * width
    # float32 of one allocation, behind each other: means of q, k and v, scores, the coarse output
    (k_from, v_from, scores_from, added_from), room = _behind(
        q_mean, kv_mean, kv_mean if coarse else 0, batch * heads * num_q * pitch, q_mean if coarse else 0
    )
    taken = dense(batch, heads, num_q, most)
    out_place = dense(batch, q_grid.num_tokens, heads, width)

    angles = None if cos is None else cos.dtype
    odd = () if rope is None else tuple(11 + place for place, table in enumerate(rope) if table.data_ptr() & 15)
    turned_odd = (11 in odd, 12 in odd)
    moved = (dtype,) * 6 + (single,) * 3
    tile_launches: list[tuple[Any, tuple[int | None, ...]]] = []
    for grid, site in stages.tile_sites(q, k, v, q_grid, kv_grid, None if cos is None else cos.stride(), wish):
        kinds = (*moved, _kind(grid.tokens), number, angles, None if rope is None else rope[1].dtype)
        tile_launches.append((stages.TILE.bound(site, kinds, index, odd), _addresses(grid.tokens, grid.sizes)))
    score: Any = stages.SCORE.bound(score_site, (single, single, single, number), index)
    attend = stages.COARSE.bound(coarse_site, (single, single, single), index) if coarse else None
    select_site = stages.select_site(batch * heads, num_q, num_kv, pitch, wish)
    select: Any = stages.SELECT.bound(select_site, (single, _kind(wish.forced), number, number), index)
    finish_site = stages.finish_site(
        (batch, num_q * q_grid.block, heads, width), fine.stride, q_grid,
        None if gate is None or not coarse else gate.stride(), coarse,
    )  # fmt: skip
    gate_kind = gate.dtype if gate is not None and coarse else None
    ends = (dtype, single if coarse else None, gate_kind, dtype, _kind(q_grid.tokens), number)
    finish: Any = stages.FINISH.bound(finish_site, ends, index)
    launches = (*(launch for launch, _ in tile_launches), score, select, finish, *((attend,) if coarse else ()))
    if None in launches:
        return None
    (kv_sizes,), wanted = _addresses(kv_grid.sizes), _addresses(wish.forced, wish.counts)
    q_rows = _addresses(q_grid.tokens, q_grid.sizes)
    empty, stream_of = empty_on(device), stream_on(index)
    unturned: tuple[int | None, int | None] = (None, None)

    def call(q: Tensor, k: Tensor, v: Tensor, rope: Rope, gate: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None] | None:
        given: tuple[int, ...] = (q.data_ptr(), k.data_ptr(), v.data_ptr())
        bits, turn = given[0] | given[1] | given[2], unturned
        if rope is not None:
            cos_at, sin_at = turn = rope[0].data_ptr(), rope[1].data_ptr()
            if (cos_at & 15 > 0, sin_at & 15 > 0) != turned_odd:
                return None
        weights = None
        if gate is not None and gate_kind is not None:
            weights = gate.data_ptr()
            bits |= weights
        if bits & 15 or listening():
            return None
        stream = stream_of()
        with span(ATTENTION_TILE):
            queries, keys, values = empty(*q_place, dtype), empty(*k_place, dtype), empty(*v_place, dtype)
            work = empty(room, (1,), single)
            q_means = work.data_ptr()
            k_means, v_means, scores, sums = q_means + k_from, q_means + v_from, q_means + scores_from, q_means + added_from
            given += queries.data_ptr(), keys.data_ptr(), values.data_ptr(), q_means, k_means, v_means if coarse else k_means
            for launch, rows in tile_launches:
                launch(stream, *given, *rows, *turn)
        with span(ATTENTION_SELECT):
            indices = empty(*taken, number)
            score(stream, q_means, k_means, scores, kv_sizes)
            if attend is not None:
                attend(stream, scores, v_means, sums)
            select(stream, scores, *wanted, indices.data_ptr())
        with span(ATTENTION_KERNEL):
            attended, lse = fine.run(stream, queries, keys, values, indices)
        with span(ATTENTION_FINISH):
            out = empty(*out_place, dtype)
            finish(stream, attended.data_ptr(), sums if coarse else None, weights, out.data_ptr(), *q_rows)
        return out, indices, None if lse is None else fine.lse(lse)

    return call


def _behind(*numbers: int) -> tuple[tuple[int, ...], tuple[int]]:
    """Where all but the first of some runs of float32 begin behind each other, bytes, and the room of all, elements.

    Each begins at a multiple of 512 bytes, as what is allocated by itself.
    """
    ends = tuple(accumulate(-(-number // 128) * 128 for number in numbers))
    return tuple(4 * end for end in ends[:-1]), (ends[-1],)


def _kind(tensor: Tensor | None) -> torch.dtype | None:
    return None if tensor is None else tensor.dtype


def _addresses(*tensors: Tensor | None) -> tuple[int | None, ...]:
    return tuple(None if tensor is None else tensor.data_ptr() for tensor in tensors)
