"""The stages in Triton: one pass over the tokens before the fine stage, one after it, and the selection between on pooled tiles.

Without gradients. Sums are float32; nothing syncs, and no configuration depends on a length.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from strobe.attention.sparse.coarse import Estimator, block_scores, log_weights
from strobe.attention.sparse.launch import Launcher, Site, precision_of
from strobe.attention.sparse.layout import held, tile_layout
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.stages.types import Grid, Selected, SelectionSpec, Tiled
from strobe.attention.types import AttentionOutput
from strobe.core.device import card_of

_RUN: Final = 64
"""Rows that a program holds at a time; while it pools, up to twice as many with twice the warps."""
_STEP: Final = 16
"""Scores of a row are stored in multiples of so many, the last ones -inf: else every access to them is one element wide."""


@triton.jit
def _tile_kernel(
    q_ptr, k_ptr, v_ptr, q_out_ptr, k_out_ptr, v_out_ptr, q_mean_ptr, k_mean_ptr, v_mean_ptr,
    tokens_ptr, sizes_ptr, cos_ptr, sin_ptr,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, q_heads, kv_heads, num_tiles, angle_row, angle_step,
    block: tl.constexpr, run: tl.constexpr, width: tl.constexpr, first_tensor: tl.constexpr, num_tensors: tl.constexpr,
    move: tl.constexpr, rotated: tl.constexpr, pooled: tl.constexpr, pool_v: tl.constexpr,
):  # fmt: skip
    """Process one tile of one head of q, k or v: gather, rotate, store and average."""
    tile, head = tl.program_id(0), tl.program_id(1)
    which, batch = tl.program_id(2) % num_tensors + first_tensor, (tl.program_id(2) // num_tensors).to(tl.int64)
    if which == 0:
        source, target, mean, heads, stride_row = (
            q_ptr + batch * q_batch + head.to(tl.int64) * q_head,
            q_out_ptr,
            q_mean_ptr,
            q_heads,
            q_row,
        )
    elif which == 1:
        source, target, mean, heads, stride_row = (
            k_ptr + batch * k_batch + head.to(tl.int64) * k_head,
            k_out_ptr,
            k_mean_ptr,
            kv_heads,
            k_row,
        )
    else:
        source, target, mean, heads, stride_row = (
            v_ptr + batch * v_batch + head.to(tl.int64) * v_head,
            v_out_ptr,
            v_mean_ptr,
            kv_heads,
            v_row,
        )
    if head < heads:
        half: tl.constexpr = width // 2
        channels, inside = tl.arange(0, width), tl.arange(0, run)
        size = tl.load(sizes_ptr + tile)
        sums = tl.zeros([width], tl.float32)
        for part in tl.static_range(block // run):
            rows = tile.to(tl.int64) * block + part * run + inside
            valid = part * run + inside < size
            at = tl.load(tokens_ptr + rows, mask=valid, other=0) if move else rows
            x = tl.load(source + at[:, None] * stride_row + channels[None, :], mask=valid[:, None], other=0.0)
            if rotated and which < 2:
                angles = at[:, None] * angle_row + tl.arange(0, half)[None, :] * angle_step
                cos = tl.load(cos_ptr + angles, mask=valid[:, None], other=0.0).to(tl.float32)
                sin = tl.load(sin_ptr + angles, mask=valid[:, None], other=0.0).to(tl.float32)
                real, imaginary = tl.split(x.to(tl.float32).reshape(run, half, 2))
                turned = tl.join(real * cos - imaginary * sin, real * sin + imaginary * cos)
                x = turned.reshape(run, width).to(x.dtype)
            if move:
                tl.store(target + ((batch * num_tiles * block + rows) * heads + head)[:, None] * width + channels[None, :], x)
            if pooled:
                sums += tl.sum(x.to(tl.float32), 0)
        if pooled and (pool_v or which < 2):
            tl.store(mean + ((batch * heads + head) * num_tiles + tile) * width + channels, sums / tl.maximum(size, 1))


@triton.jit
def _score_kernel(
    q_ptr, k_ptr, scores_ptr, kv_sizes_ptr, num_heads, groups, num_q, num_kv, pitch, scale,
    rows: tl.constexpr, columns: tl.constexpr, width: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Score some query tiles against some key tiles; -inf for key tiles without a token, and past the last one."""
    row_of_heads = tl.program_id(2).to(tl.int64)
    kv_row = row_of_heads // num_heads * (num_heads // groups) + row_of_heads % num_heads // groups
    at, channels = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, width)[None, :]
    tiles = tl.program_id(1) * columns + tl.arange(0, columns)
    there = tiles < num_kv
    q = tl.load(q_ptr + (row_of_heads * num_q + at)[:, None] * width + channels, mask=(at < num_q)[:, None], other=0.0)
    k = tl.load(k_ptr + (kv_row * num_kv + tiles)[:, None] * width + channels, mask=there[:, None], other=0.0)
    seen = tl.load(kv_sizes_ptr + tiles, mask=there, other=0) > 0
    scores = tl.where(seen[None, :], tl.dot(q, k.T, input_precision=precision) * scale, float("-inf"))
    place = (row_of_heads * num_q + at)[:, None] * pitch + tiles[None, :]
    tl.store(scores_ptr + place, scores, mask=(at < num_q)[:, None] & (tiles < pitch)[None, :])


@triton.jit
def _coarse_kernel(
    scores_ptr, v_ptr, coarse_ptr, num_heads, groups, num_q, num_kv, pitch,
    rows: tl.constexpr, columns: tl.constexpr, width: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Attend tile over tile: online softmax over the scores of some query tiles."""
    row_of_heads = tl.program_id(1).to(tl.int64)
    kv_row = row_of_heads // num_heads * (num_heads // groups) + row_of_heads % num_heads // groups
    at, channels = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, width)[None, :]
    top = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    acc = tl.zeros([rows, width], tl.float32)
    for begin in range(0, num_kv, columns):
        tiles = begin + tl.arange(0, columns)
        there = tiles < num_kv
        place = (row_of_heads * num_q + at)[:, None] * pitch + tiles[None, :]
        scores = tl.load(scores_ptr + place, mask=(at < num_q)[:, None] & (tiles < pitch)[None, :], other=float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - shift[:, None])
        decay = tl.exp(top - shift)
        total = total * decay + tl.sum(weights, 1)
        v = tl.load(v_ptr + (kv_row * num_kv + tiles)[:, None] * width + channels, mask=there[:, None], other=0.0)
        acc = tl.dot(weights, v, acc * decay[:, None], input_precision=precision)
        top = higher
    tl.store(
        coarse_ptr + (row_of_heads * num_q + at)[:, None] * width + channels, acc / total[:, None], mask=(at < num_q)[:, None]
    )


@triton.jit
def _key(value):
    """Map a float to an unsigned integer that sorts in the same order; -0 becomes 0."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)


@triton.jit
def _float(key):
    """Map an unsigned integer of `_key` back to its float."""
    bits = key.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ -2147483648, ~bits).to(tl.float32, bitcast=True)


@triton.jit
def _select_kernel(
    scores_ptr, forced_ptr, counts_ptr, indices_ptr, num_q, num_kv, pitch, most,
    columns: tl.constexpr, any_forced: tl.constexpr,
):  # fmt: skip
    """Select a row's tiles of largest score, an exact number; ties go to the lowest index, NaN ranks first, forced tiles next.

    Bisection between the lowest and the highest score for a value that exactly so many reach. Where ties leave no such value it
    ends at the score they share.
    """
    entry = tl.program_id(0).to(tl.int64)
    tiles = tl.arange(0, columns)
    there = tiles < num_kv
    scores = tl.load(scores_ptr + entry * pitch + tiles, mask=tiles < pitch, other=0.0)
    keys = _key(scores)
    if any_forced:
        must = tl.load(forced_ptr + entry % num_q * num_kv + tiles, mask=there, other=0) != 0
        keys = tl.where(must, 0xFF800000, keys)  # as +inf
    keys = tl.where(scores != scores, 0xFFFFFFFF, keys)
    keys = tl.where(there, keys, 0).to(tl.uint32)
    number = tl.load(counts_ptr + entry)
    # at least `number` keys reach `low`, fewer than `number` reach `high`
    low = tl.min(tl.where(there, keys, 0xFFFFFFFF).to(tl.uint32), 0)
    high = tl.max(keys, 0)
    reached = tl.sum((keys >= high).to(tl.int32), 0)
    low = tl.where(reached >= number, high, low)
    reached = tl.where(reached >= number, reached, num_kv)
    while (reached != number) & (high - low > 1) & (low < high):
        middle = _key(0.5 * _float(low) + 0.5 * _float(high))
        middle = tl.where((middle > low) & (middle < high), middle, low + (high - low) // 2)
        found = tl.sum((keys >= middle).to(tl.int32), 0)
        reached = tl.where(found >= number, found, reached)
        low = tl.where(found >= number, middle, low)
        high = tl.where(found >= number, high, middle)
    above, equal = keys > low, keys == low
    left = number - tl.sum(above.to(tl.int32), 0)
    chosen = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= left))
    place = tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(indices_ptr + entry * most + place, tiles, mask=chosen)


@triton.jit
def _finish_kernel(
    fine_ptr, coarse_ptr, gate_ptr, out_ptr, tokens_ptr, sizes_ptr,
    fine_batch, fine_row, fine_head, gate_batch, gate_row, gate_head, gate_channel, num_heads, num_tokens, num_tiles,
    block: tl.constexpr, run: tl.constexpr, width: tl.constexpr,
    move: tl.constexpr, with_coarse: tl.constexpr, gated: tl.constexpr,
):  # fmt: skip
    """Finish one run of rows of one head: weigh and add the coarse row, and store it where the token was."""
    runs: tl.constexpr = block // run
    tile, part = tl.program_id(0) // runs, tl.program_id(0) % runs
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    channels = tl.arange(0, width)[None, :]
    inside = part * run + tl.arange(0, run)
    rows = tile.to(tl.int64) * block + inside
    valid = inside < tl.load(sizes_ptr + tile)
    at = tl.load(tokens_ptr + rows, mask=valid, other=0) if move else rows
    place = batch * fine_batch + head.to(tl.int64) * fine_head + rows[:, None] * fine_row + channels
    out = tl.load(fine_ptr + place, mask=valid[:, None], other=0.0)
    if with_coarse:
        add = tl.load(coarse_ptr + ((batch * num_heads + head) * num_tiles + tile) * width + channels)
        if gated:
            gates = (
                gate_ptr + batch * gate_batch + head.to(tl.int64) * gate_head + at[:, None] * gate_row + channels * gate_channel
            )
            add = add * tl.load(gates, mask=valid[:, None], other=0.0).to(tl.float32)
        out = tl.where(valid[:, None], out.to(tl.float32) + add, 0.0).to(out.dtype)
    target = ((batch * num_tokens + at) * num_heads + head)[:, None] * width + channels
    tl.store(out_ptr + target, out, mask=(valid if move else inside < block)[:, None])


@triton.jit
def _skipped_kernel(
    q_ptr, k_ptr, v_ptr, added_ptr, fine_ptr, fine_lse_ptr, sizes_ptr, out_ptr, lse_ptr,
    q_batch, q_row, q_head, fine_batch, fine_row, fine_head, num_heads, groups, num_q, num_kv, scale,
    block: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, width: tl.constexpr, stages: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Go on with the softmax of the fine stage over one key per tile, for one run of rows of a query tile."""
    row_of_heads = tl.program_id(1).to(tl.int64)
    batch, head = row_of_heads // num_heads, row_of_heads % num_heads
    kv_row = batch * (num_heads // groups) + head // groups
    at, channels = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows), tl.arange(0, width)[None, :]
    tile = tl.program_id(0) * rows // block
    q = tl.load(q_ptr + batch * q_batch + head * q_head + at[:, None] * q_row + channels)
    top = tl.load(fine_lse_ptr + row_of_heads * num_q * block + at)
    total = tl.where(top == float("-inf"), 0.0, 1.0)
    acc = tl.load(fine_ptr + batch * fine_batch + head * fine_head + at[:, None] * fine_row + channels).to(tl.float32)
    for begin in tl.range(0, num_kv, columns, num_stages=stages):
        tiles = begin + tl.arange(0, columns)
        there = tiles < num_kv
        place = (kv_row * num_kv + tiles)[:, None] * width + channels
        k = tl.load(k_ptr + place, mask=there[:, None], other=0.0)
        added = tl.load(added_ptr + (row_of_heads * num_q + tile) * num_kv + tiles, mask=there, other=float("-inf"))
        logits = tl.dot(q, k.T, input_precision=precision) * scale + added[None, :]
        higher = tl.maximum(top, tl.max(logits, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        weights, decay = tl.exp(logits - shift[:, None]), tl.exp(top - shift)
        total = total * decay + tl.sum(weights, 1)
        v = tl.load(v_ptr + place, mask=there[:, None], other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision=precision)
        top = higher
    divisor = tl.where(total == 0.0, 1.0, total)
    out, lse = acc / divisor[:, None], tl.where(total == 0.0, float("-inf"), top + tl.log(divisor))
    if sizes_ptr is not None:
        valid = at - tile * block < tl.load(sizes_ptr + tile)
        out, lse = tl.where(valid[:, None], out, 0.0), tl.where(valid, lse, float("-inf"))
    tl.store(out_ptr + (batch * num_q * block + at)[:, None] * num_heads * width + head * width + channels, out)
    tl.store(lse_ptr + row_of_heads * num_q * block + at, lse)


TILE: Final = Launcher(_tile_kernel)
SCORE: Final = Launcher(_score_kernel)
COARSE: Final = Launcher(_coarse_kernel)
SELECT: Final = Launcher(_select_kernel)
FINISH: Final = Launcher(_finish_kernel)
SKIPPED: Final = Launcher(_skipped_kernel)


def tile(
    q: Tensor, k: Tensor, v: Tensor, q_grid: Grid, kv_grid: Grid, rope: tuple[Tensor, Tensor] | None, wish: SelectionSpec
) -> Tiled:
    """Reorder and rotate as `reference.tile`, and compute the means of the tiles in the same pass."""
    pooled = wish.parts == 1 or wish.pools_values
    q, k, v, (batch, _, heads, width), kv_heads = _rows(q), _rows(k), _rows(v), q.shape, k.shape[2]
    keys, values = k, v
    if not kv_grid.tiled:  # behind each other: one message to another rank
        keys, values = torch.empty((2, batch, kv_grid.num_tiles * kv_grid.block, kv_heads, width), dtype=k.dtype, device=k.device)
    tiled = Tiled(
        q=_like_tiles(q, q_grid),
        k=keys,
        v=values,
        means=(
            _means(q, (batch, heads, q_grid.num_tiles, width)),
            _means(k, (batch, kv_heads, kv_grid.num_tiles, width)),
            _means(v, (batch, kv_heads, kv_grid.num_tiles, width)) if wish.pools_values else None,
        )
        if pooled
        else None,
    )
    cos, sin, angle_strides = _tables(rope)
    q_means, k_means, v_means = tiled.means or (None, None, None)
    means = (q_means, k_means, k_means if v_means is None else v_means)  # of one type; without the coarse output v has none
    for grid, site in tile_sites(q, k, v, q_grid, kv_grid, None if rope is None else angle_strides, wish):
        TILE.at(site, (q, k, v, tiled.q, tiled.k, tiled.v, *means, grid.tokens, grid.sizes, cos, sin))
    return tiled


def tile_sites(
    q: Tensor, k: Tensor, v: Tensor, q_grid: Grid, kv_grid: Grid, angle_strides: tuple[int, ...] | None, wish: SelectionSpec
) -> list[tuple[Grid, Site]]:
    """Return the launches of `TILE` for q, k and v, whose rows are contiguous, and the grid of each.

    Args:
        angle_strides: of cos and sin; None if nothing is rotated.
    """
    pooled, (batch, _, heads, width), kv_heads = wish.parts == 1 or wish.pools_values, q.shape, k.shape[2]
    together = q_grid.sizes is kv_grid.sizes and q_grid.tiled == kv_grid.tiled
    numbers = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], heads, kv_heads)
    last = 3 if wish.pools_values or not kv_grid.tiled else 2  # nothing is to be done to values that are tiled and not pooled
    found = []
    for first, end, grid in ((0, last, q_grid),) if together else ((0, 1, q_grid), (1, last, kv_grid)):
        if grid.tiled and not pooled:
            continue
        run = min(grid.block, 2 * _RUN)
        site = Site(
            (grid.num_tiles, max(heads, kv_heads), (end - first) * batch),
            (*numbers, grid.num_tiles, *(angle_strides or (0, 0))),
            (grid.block, run, width, first, end - first, not grid.tiled, angle_strides is not None, pooled, wish.pools_values),
            run // 32,
        )
        found.append((grid, site))
    return found


def rotate(q: Tensor, k: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Rotate q and k as `reference.rotate`, both in one pass: the rows are moved as into tiles that keep their order."""
    q, k, (batch, rows, heads, width), kv_heads = _rows(q), _rows(k), q.shape, k.shape[2]
    grid = held(_in_order(rows, q.device), q.device)
    turned, keys, (cos, sin, angle_strides) = _like_tiles(q, grid), _like_tiles(k, grid), _tables(rope)
    TILE(
        (grid.num_tiles, max(heads, kv_heads), 2 * batch),
        (q, k, k, turned, keys, keys, None, None, None, grid.tokens, grid.sizes, cos, sin),
        (*q.stride()[:3], *k.stride()[:3], *k.stride()[:3], heads, kv_heads, grid.num_tiles, *angle_strides),
        (_RUN, _RUN, width, 0, 2, True, True, False, False),
        num_warps=_RUN // 32,
    )
    return (turned, keys) if grid.ragged_sizes is None else (turned[:, :rows], keys[:, :rows])


@lru_cache(maxsize=64)
def _in_order(rows: int, device: torch.device) -> Grid:
    """Rows cut into runs, each where it was."""
    with torch.inference_mode(False):  # what an inference makes, training could not use
        return Grid.of(tile_layout((1, 1, rows), (1, 1, _RUN), _RUN), device)


def tile_queries(q: Tensor, q_grid: Grid, wish: SelectionSpec) -> tuple[Tensor, Tensor]:
    """Reorder as `reference.tile_queries`, in one pass; for whole tiles, not parts of them."""
    q, (batch, _, heads, width) = _rows(q), q.shape
    tiled, means = _like_tiles(q, q_grid), _means(q, (batch, heads, q_grid.num_tiles, width))
    run = min(q_grid.block, 2 * _RUN)
    TILE(
        (q_grid.num_tiles, heads, batch),
        (q, q, q, tiled, tiled, tiled, means, means, means, q_grid.tokens, q_grid.sizes, None, None),
        (*q.stride()[:3] * 3, heads, heads, q_grid.num_tiles, 0, 0),
        (q_grid.block, run, width, 0, 1, not q_grid.tiled, False, True, False),
        num_warps=run // 32,
    )
    return tiled, means


def select(tiled: Tiled, q_grid: Grid, kv_grid: Grid, wish: SelectionSpec) -> Selected:
    """Select as `reference.select`, from the means that `tile` computed or, of the keys, that a cache keeps."""
    (batch, _, heads, width), device = tiled.q.shape, tiled.q.device
    num_q, num_kv = q_grid.num_tiles, kv_grid.num_tiles
    scores = coarse = None
    if tiled.means is not None:
        q_means, k_means, v_means = tiled.means
        if k_means.dtype != q_means.dtype or not k_means.is_contiguous():
            k_means = k_means.to(q_means.dtype).contiguous()
        score, attend = score_sites(tiled.q, tiled.k, num_q, num_kv, wish)
        scores = torch.empty((batch, heads, num_q, score.numbers[4]), dtype=torch.float32, device=device)
        SCORE.at(score, (q_means, k_means, scores, kv_grid.sizes))
        if v_means is not None and wish.coarse:
            coarse = torch.empty((batch, heads, num_q, width), dtype=torch.float32, device=device)
            COARSE.at(attend, (scores, v_means, coarse))
    if wish.parts > 1:
        estimator, sizes = Estimator(parts=wish.parts), (q_grid.sizes, kv_grid.sizes)
        scores = block_scores(tiled.q, tiled.k, *sizes, q_grid.block, wish.softmax_scale, estimator).contiguous()
    assert scores is not None
    return Selected(indices=take(scores, num_kv, wish), counts=wish.counts, coarse=coarse)


def score_sites(q: Tensor, k: Tensor, num_q: int, num_kv: int, wish: SelectionSpec) -> tuple[Site, Site]:
    """Return the launches of `SCORE` and `COARSE` for so many tiles; the last of their numbers is the pitch of the scores."""
    (batch, _, heads, width), card = q.shape, card_of(q.device)
    numbers = (heads, heads // k.shape[2], num_q, num_kv, -(-num_kv // _STEP) * _STEP)
    score = Site(
        (-(-num_q // 64), -(-num_kv // 64), batch * heads),
        numbers,
        (64, 64, width, precision_of(torch.float32, card)),
        4,
        (wish.softmax_scale,),
    )
    attend = Site((-(-num_q // 32), batch * heads, 1), numbers, (32, 64, width, precision_of(q.dtype, card)), 4)
    return score, attend


def take(scores: Tensor, num_kv: int, wish: SelectionSpec) -> Tensor:
    """Select as `coarse.select_blocks`, from the first `num_kv` columns of the contiguous `scores`."""
    batch, heads, num_q, pitch = scores.shape
    indices = torch.empty((batch, heads, num_q, max(wish.per_head)), dtype=torch.int32, device=scores.device)
    SELECT.at(select_site(batch * heads, num_q, num_kv, pitch, wish), (scores, wish.forced, wish.counts, indices))
    return indices


def select_site(rows_of_heads: int, num_q: int, num_kv: int, pitch: int, wish: SelectionSpec) -> Site:
    """Return the launch of `SELECT` for scores of a pitch."""
    columns = 1 << (num_kv - 1).bit_length()
    return Site(
        (rows_of_heads * num_q, 1, 1),
        (num_q, num_kv, pitch, max(wish.per_head)),
        (columns, wish.forced is not None),
        max(1, min(8, columns // 1024)),
    )


def finish(fine: Tensor, coarse: Tensor | None, gate: Tensor | None, grid: Grid) -> Tensor:
    """Finish as `reference.finish`, in one pass; the sum is rounded once."""
    if grid.tiled and coarse is None:
        return fine
    fine, (batch, rows, heads, width) = _rows(fine), fine.shape
    num_tokens = rows if grid.tiled else grid.num_tokens
    out = torch.empty((batch, num_tokens, heads, width), dtype=fine.dtype, device=fine.device)
    gate = None if coarse is None else gate
    site = finish_site(fine.shape, fine.stride(), grid, None if gate is None else gate.stride(), coarse is not None)
    FINISH.at(site, (fine, coarse, gate, out, grid.tokens, grid.sizes))
    return out


def finish_site(
    shape: tuple[int, ...], stride: tuple[int, ...], grid: Grid, gate_stride: tuple[int, ...] | None, coarse: bool
) -> Site:
    """Return the launch of `FINISH` for a fine output of this shape and stride."""
    batch, rows, heads, width = shape
    return Site(
        (rows // _RUN, heads, batch),
        (*stride[:3], *(gate_stride or (0, 0, 0, 0)), heads, rows if grid.tiled else grid.num_tokens, grid.num_tiles),
        (grid.block, _RUN, width, not grid.tiled, coarse, gate_stride is not None),
        4,
    )


def add_skipped(fine: AttentionOutput, tiled: Tiled, selection: BlockSelection, softmax_scale: float) -> AttentionOutput:
    """Add as `skipped.add_skipped`, without gradients, in one pass over the means that `tile` computed."""
    assert tiled.means is not None and fine.lse is not None
    q, attended, block = _rows(tiled.q), _rows(fine.out), selection.block
    (batch, rows, heads, width), num_q = q.shape, q.shape[1] // block
    _, keys, values = (None if means is None else means.to(q.dtype) for means in tiled.means)
    assert keys is not None and values is not None
    added = log_weights(selection, keys.shape[2], torch.float32)
    out = torch.empty((batch, rows, heads, width), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, rows), dtype=torch.float32, device=q.device)
    run, stages = (_RUN, 2) if q.dtype.itemsize == 2 else (_RUN // 2, 1)  # so much that every card has the shared memory
    site = Site(
        (rows // run, batch * heads, 1),
        (*q.stride()[:3], *attended.stride()[:3], heads, heads // keys.shape[1], num_q, keys.shape[2]),
        (block, run, run, width, stages, precision_of(q.dtype, card_of(q.device))),
        4,
        (softmax_scale,),
    )
    SKIPPED.at(site, (q, keys, values, added, attended, fine.lse.contiguous(), selection.q_sizes, out, lse))
    return AttentionOutput(out=out, lse=lse)


def _rows(tensor: Tensor) -> Tensor:
    """Return the tensor, copied unless its last dimension is contiguous."""
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def _tables(rope: tuple[Tensor, Tensor] | None) -> tuple[Tensor | None, Tensor | None, tuple[int, ...]]:
    """Return cos and sin, copied unless they have the same strides, and these strides."""
    if rope is None:
        return None, None, (0, 0)
    cos, sin = rope
    if cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    return cos, sin, cos.stride()


def _like_tiles(tensor: Tensor, grid: Grid) -> Tensor:
    """Allocate a tensor for the rows in tile order; return the tensor itself if it is in tile order already."""
    if grid.tiled:
        return tensor
    batch, _, heads, width = tensor.shape
    return torch.empty((batch, grid.num_tiles * grid.block, heads, width), dtype=tensor.dtype, device=tensor.device)


def _means(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)
