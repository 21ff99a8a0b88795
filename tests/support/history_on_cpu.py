"""Fused selection from a history, compared with the plain one in Triton's interpreter.

Run it by `TRITON_INTERPRET=1 python history_on_cpu.py`.

A process of its own, because the interpreter must be chosen before Triton is imported. On a GPU: `python history_on_cpu.py cuda`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from strobe.attention.sparse import history as operator
from strobe.attention.sparse.coarse import Estimator, pool
from strobe.attention.sparse.history import History, history_attention
from strobe.attention.sparse.layout import TileLayout, tile_layout
from strobe.attention.sparse.stages.types import Tiled
from strobe.attention.sparse.tiled import Plan, select_and_attend, tile_queries

LIMITS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def tiles_of(grid: tuple[int, ...], steps: tuple[int, ...]) -> list[list[int]]:
    """List the tokens of each tile, tiles and tokens in raster order."""
    found: dict[tuple[int, ...], list[int]] = {}
    for token, place in enumerate(product(*map(range, grid))):
        found.setdefault(tuple(at // step for at, step in zip(place, steps, strict=True)), []).append(token)
    return [found[key] for key in sorted(found)]


Choice = Callable[[int, list[float]], Collection[int]]
"""The tiles that a query tile sees, from its number and the scores of all tiles."""


def by_definition(
    operands: Sequence[Tensor],
    tiles: list[list[int]],
    kv_tiles: list[list[int]],
    choose: Choice,
    *,
    gate: Tensor | None = None,
    pooled: bool = False,
    beside: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Out, lse and counts of chosen tiles, one tile at a time; nothing shared with the package.

    Args:
        pooled: a tile that is not chosen is one key, its mean, with the weight of its tokens.
        beside: keys and values that every query sees besides.
    """
    q, scale = operands[0], operands[0].shape[3] ** -0.5
    group = q.shape[2] // operands[1].shape[2]
    out, lse = torch.zeros_like(q), torch.zeros(q.shape[0], q.shape[2], q.shape[1], dtype=q.dtype)
    counts = torch.zeros(q.shape[0], q.shape[2], len(tiles), dtype=torch.int32)
    for b, h, i in product(range(q.shape[0]), range(q.shape[2]), range(len(tiles))):
        queries, (keys, values) = q[b, tiles[i], h], (each[b, :, h // group] for each in operands[1:])
        k_means, v_means = (torch.stack([each[tile].mean(dim=0) for tile in kv_tiles]) for each in (keys, values))
        scores = k_means @ queries.mean(dim=0) * scale
        taken = choose(i, scores.tolist())
        seen = [token for j in taken for token in kv_tiles[j]]
        logits, summed = queries @ keys[seen].T * scale, values[seen]
        if pooled:
            rest = [j for j in range(len(kv_tiles)) if j not in taken]
            weights = torch.tensor([len(kv_tiles[j]) for j in rest], dtype=q.dtype).log()
            logits = torch.cat([logits, queries @ k_means[rest].T * scale + weights], dim=1)
            summed = torch.cat([summed, v_means[rest]])
        if beside is not None:
            near_keys, near_values = (each[b, :, h // group] for each in beside)
            logits = torch.cat([logits, queries @ near_keys.T * scale], dim=1)
            summed = torch.cat([summed, near_values])
        out[b, tiles[i], h], lse[b, h, tiles[i]] = torch.softmax(logits, dim=-1) @ summed, logits.logsumexp(-1)
        if gate is not None:
            out[b, tiles[i], h] += gate[b, tiles[i], h] * (torch.softmax(scores, dim=-1) @ v_means)
        counts[b, h, i] = len(taken)
    return out, lse, counts


def highest(number: int, scores: list[float]) -> list[int]:
    """The tiles of highest score, ties to the lowest number."""
    return sorted(sorted(range(len(scores)), key=lambda j: (-scores[j], j))[:number])


@dataclass(frozen=True, kw_only=True)
class Case:
    """A ring of `slots` frames, `held` of which are history, seen by `frames` new ones beside `sink`; tiles of `tile` tokens."""

    batch: int = 1
    size: tuple[int, int] = (5, 7)
    frames: int = 2
    slots: int = 4
    held: tuple[int, ...] = (0, 2, 3)
    heads: tuple[int, int] = (2, 1)
    width: int = 32
    block: int = 64
    dense: int = 2
    dtype: torch.dtype = torch.float32
    sliced: bool = False
    sparsity: float = 0.6
    sink: int = 1
    tile: tuple[int, int] | None = None
    parts: int = 1


@dataclass(frozen=True, kw_only=True)
class Drawn:
    q: Tensor
    dense: list[tuple[Tensor, Tensor]]
    history: History
    q_tiles: TileLayout
    tiles: TileLayout  # of a slot


def draw(case: Case, device: str, seed: int = 0) -> Drawn:
    """Draw random tensors; the first tiles of the first two slots are equal, so that scores tie."""
    generator = torch.Generator().manual_seed(seed)
    tokens = case.size[0] * case.size[1]

    def some(length: int, heads: int) -> Tensor:
        kind = torch.promote_types(case.dtype, torch.float32)
        wide = torch.randn(case.batch, length, heads, case.width * (2 if case.sliced else 1), generator=generator, dtype=kind)
        return wide.to(device, case.dtype)[..., : case.width]

    layout = tile_layout((1, *case.size), "auto" if case.tile is None else (1, *case.tile), case.block)
    q_tiles = tile_layout((case.frames, *case.size), "auto", case.block)
    keys, values = (
        torch.cat([layout.to_tiles(some(tokens, case.heads[1])) for _ in range(case.slots)], dim=1).contiguous() for _ in "kv"
    )
    if layout.num_tiles > 1 and case.slots > 1:
        keys[:, : case.block] = keys[:, layout.num_rows : layout.num_rows + case.block]
    history = History(
        keys=keys,
        values=values,
        means=pool(keys, None, case.block, case.parts),
        sizes=torch.zeros(case.slots * layout.num_tiles, dtype=torch.int32, device=device),
        num_tiles=len(case.held) * layout.num_tiles,
        block=case.block,
        whole=layout.whole,
        estimator=Estimator(parts=case.parts),
    )
    open_slots(history, layout, case.held)
    dense = [(some(n * tokens, case.heads[1]), some(n * tokens, case.heads[1])) for n in (case.sink, case.frames)][: case.dense]
    return Drawn(q=some(case.frames * tokens, case.heads[0]), dense=dense, history=history, q_tiles=q_tiles, tiles=layout)


def open_slots(history: History, layout: TileLayout, held: tuple[int, ...]) -> None:
    """Make the given slots the history, in the existing tensors; coarse keys of the others become NaN."""
    number, sizes = history.sizes.shape[0] // layout.num_tiles, layout.sizes(history.sizes.device)
    each_slot = (each.chunk(number, dim) for each, dim in ((history.keys, 1), (history.means, 2), (history.sizes, 0)))
    for slot, (keys, means, own) in enumerate(zip(*each_slot, strict=True)):
        means.copy_(pool(keys, sizes, history.block, history.estimator.parts) if slot in held else means * float("nan"))
        own.copy_(sizes * (slot in held))


def selected(plan: Plan, q: Tensor, history: History, tiles: TileLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries in tile order, with indices and counts of their selected tiles."""
    q_rows, kv_rows = operator._grids(history, tiles, q.device)
    tiled, means = tile_queries(plan, q, q_rows)
    there = Tiled(q=tiled, k=history.keys, v=history.values, means=(means, history.means, None))
    _, chosen, _ = select_and_attend(plan, there, q_rows, kv_rows)
    return tiled, chosen.indices, chosen.counts


def compare(case: Case, device: str) -> None:
    """Check that fused and plain selection agree, with and without lse, and that a call with gradients takes the plain one.

    Both take the same tiles in the same order; the rest is equal up to rounding.
    """
    drawn = draw(case, device)
    q, history, tiles = drawn.q, drawn.history, drawn.q_tiles
    assert operator._fuses(q, history) and not operator._fuses(q.detach().requires_grad_(), history)
    plan = operator._planned(q, history, tiles, case.sparsity, case.width**-0.5, "reference")
    assert plan.fused
    found, expected = (selected(replace(plan, fused=fused), q, history, tiles) for fused in (True, False))
    assert torch.equal(found[0], expected[0]) and torch.equal(found[2], expected[2]) and found[1].dtype == torch.int32, case
    same = (found[1] == expected[1]).all(dim=-1)  # [B, H, N_q]
    # a GPU adds in another order: two scores may be one to the last bit
    assert bool(same.all()) if device == "cpu" else same.float().mean().item() > 0.995, case
    read = same[:, :, tiles.rows(device) // case.block]  # [B, H, S]
    closed = torch.nonzero(history.sizes == 0).flatten()
    assert not torch.isin(found[1], closed).any()
    options = {"q_tiles": tiles, "sparsity": case.sparsity, "impl": "reference"}
    fast, bare = (history_attention(q, drawn.dense, history, **options, return_lse=lse) for lse in (True, False))
    wide = [(k.float(), v.float()) for k, v in drawn.dense]
    exact = replace(history, keys=history.keys.float(), values=history.values.float())
    plain = history_attention(q.detach().float().requires_grad_(), wide, exact, **options, return_lse=True)
    assert plain.out.requires_grad and plain.lse is not None and fast.lse is not None and bare.lse is None
    assert torch.equal(fast.out, bare.out) and fast.out.dtype == case.dtype and fast.out.is_contiguous()
    limit = LIMITS[case.dtype]
    for got, want in ((fast.out.float().transpose(1, 2), plain.out.transpose(1, 2)), (fast.lse, plain.lse)):
        torch.testing.assert_close(got[read], want.detach()[read], atol=limit, rtol=limit, msg=str(case))


CASES = (
    Case(batch=2, held=(0, 1, 3)),
    Case(size=(8, 8), frames=3, held=(1, 3), heads=(1, 1), dense=1, sliced=True, sparsity=0.9),  # whole tiles
    Case(size=(9, 9), slots=3, held=(2,), heads=(2, 1), dense=0, dtype=torch.float16, sparsity=0.0),
    Case(size=(10, 11), frames=1, block=128, held=(0, 1, 2, 3), heads=(1, 1)),
)
LARGE = Case(batch=2, slots=9, held=(0, 1, 2, 6, 7, 8), frames=3, sparsity=0.8)
ON_A_GPU = tuple(
    replace(LARGE, size=size, heads=heads, width=width, dtype=dtype, dense=dense)
    for size in ((30, 52), (9, 13))
    for heads in ((12, 12), (4, 1))
    for dtype, width in ((torch.bfloat16, 128), (torch.float16, 64), (torch.float32, 32))
    for dense in (0, 1, 2)
)

if __name__ == "__main__":
    place = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    cases = CASES if place == "cpu" else CASES + ON_A_GPU
    for each in cases[:2] if sys.argv[2:] == ["two"] else cases:
        compare(each, place)
