"""Selection by share of the coarse attention against a plain walk over its definition, and the operator that selects so."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from strobe.attention.explain import explain
from strobe.attention.sparse.coarse import Estimator, Forced, block_scores
from strobe.attention.sparse.layout import TileLayout, tile_layout
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.share import select_share, share_mask
from strobe.attention.sparse.video import video_sparse_attention
from strobe.core.errors import ConfigError
from strobe.core.tolerances import tolerance

GRIDS = ((3, 5, 6), (1, 1, 1), (5, 6, 7), (7, 9, 1))


def walked(scores: list[float], share: float, forced: list[bool]) -> tuple[set[int], float]:
    """Forced tiles, then those of largest score until the share is reached; and how near a sum came to the share."""
    weights = [math.exp(score) for score in scores]
    taken, held, near = {j for j, must in enumerate(forced) if must}, 0.0, 1.0
    for j in sorted(range(len(scores)), key=lambda j: (not forced[j], -scores[j], j)):
        if held >= share * sum(weights):
            break
        taken.add(j)
        held += weights[j]
        near = min(near, abs(held / sum(weights) - share))
    return taken, near


@given(st.data())
def test_the_fewest_tiles_that_hold_the_share(data: st.DataObject) -> None:
    tiles, share = data.draw(st.integers(1, 9)), data.draw(st.floats(0.01, 0.99))
    rows = data.draw(st.lists(st.lists(st.integers(-3, 3), min_size=tiles, max_size=tiles), min_size=1, max_size=3))
    forced = [[data.draw(st.booleans()) for _ in range(tiles)] for _ in rows] if data.draw(st.booleans()) else None
    walks = [walked([*map(float, row)], share, [False] * tiles if forced is None else forced[i]) for i, row in enumerate(rows)]
    assume(min(near for _, near in walks) > 1e-9)
    scores, must = torch.tensor([[rows]], dtype=torch.float64), None if forced is None else torch.tensor(forced)
    mask = share_mask(scores, share, must)
    assert [set(row.nonzero()[:, 0].tolist()) for row in mask[0, 0]] == [taken for taken, _ in walks]
    indices, counts = select_share(scores, share, must)
    assert [row[:n].tolist() for row, n in zip(indices[0, 0], counts[0, 0], strict=True)] == [sorted(taken) for taken, _ in walks]


def test_a_tile_without_a_token_is_not_needed_and_a_nan_shows() -> None:
    scores = torch.tensor([[[[0.0, -math.inf, 0.0, -math.inf], [0.0, math.nan, 0.0, 0.0]]]])
    assert share_mask(scores, 0.999)[0, 0].tolist() == [[True, False, True, False], [True] * 4]


def drawn(grid: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sum(grid))
    sizes = ((math.prod(grid), heads, 8) for heads in (4, 2, 2))
    q, k, v = (torch.randn(2, *size, generator=generator, dtype=torch.float64) for size in sizes)
    return q, k, v


def expected(q: Tensor, k: Tensor, v: Tensor, layout: TileLayout, share: float, own: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Out, lse and counts of selected tiles, in float64, differentiable; nothing shared with the package but the tiles."""
    tokens = layout.tokens().view(layout.num_tiles, -1)
    tiles = [row[row < layout.num_tokens] for row in tokens]
    out, lse = torch.zeros_like(q), torch.zeros(q.shape[0], q.shape[2], q.shape[1], dtype=q.dtype)
    counts = torch.zeros(q.shape[0], q.shape[2], len(tiles), dtype=torch.int32)
    for b, h, i in itertools.product(range(q.shape[0]), range(q.shape[2]), range(len(tiles))):
        keys, values, rows = k[b, :, h // 2], v[b, :, h // 2], tiles[i]
        scores = [(q[b, rows, h].mean(0) @ keys[tile].mean(0)).item() * q.shape[-1] ** -0.5 for tile in tiles]
        taken, near = walked(scores, share, [own and j == i for j in range(len(tiles))])
        assert near > 1e-9
        seen = torch.cat([tiles[j] for j in sorted(taken)])
        logits = q[b, rows, h] @ keys[seen].T * q.shape[-1] ** -0.5
        out[b, rows, h], lse[b, h, rows] = torch.softmax(logits, -1) @ values[seen], logits.logsumexp(-1)
        counts[b, h, i] = len(taken)
    return out, lse, counts


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("impl", "share", "own"), [("cpu", 0.35, False), ("reference", 0.8, True)])
def test_the_operator_is_its_definition(impl: str, grid: tuple[int, ...], share: float, own: bool) -> None:
    layout = tile_layout(grid, (3, 4, 4))
    q, k, v = operands = tuple(each.requires_grad_() for each in drawn(grid))
    options: dict[str, Any] = {"grid": grid, "tile": (3, 4, 4), "share": share, "forced": Forced(own=own), "impl": impl}
    found = video_sparse_attention(q, k, v, **options, return_lse=True)
    out, lse, counts = expected(q, k, v, layout, share, own)
    assert torch.equal(found.selection.counts, counts) and found.selection.uniform_count is None
    near = tolerance("sparse element", "float64")
    torch.testing.assert_close(found.out, out, atol=near, rtol=near)
    assert found.lse is not None
    torch.testing.assert_close(found.lse.double(), lse, atol=near, rtol=near)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    for got, want in zip(*(torch.autograd.grad((each * weight).sum(), operands) for each in (found.out, out)), strict=True):
        torch.testing.assert_close(got, want, atol=near, rtol=near)


def test_padding_rows_are_not_read() -> None:
    layout = tile_layout((5, 6, 7), (4, 4, 4))
    q, k, v = (each.float() for each in drawn(layout.grid))
    options: dict[str, Any] = {"grid": layout.grid, "share": 0.6, "estimator": Estimator(parts=4), "coarse": True}
    plain = video_sparse_attention(q, k, v, **options)
    tiled = [layout.to_tiles(each) for each in (q, k, v)]
    padding = layout.tokens() == layout.num_tokens
    for each, poison in zip(tiled, (math.nan, 9.0, -9.0), strict=True):
        each[:, padding] = poison
    found = video_sparse_attention(*tiled, **options, q_layout="tiled", kv_layout="tiled")
    assert torch.equal(found.selection.counts, plain.selection.counts) and len(plain.selection.counts.unique()) > 1
    near = tolerance("element", "float32")
    torch.testing.assert_close(layout.to_raster(found.out), plain.out, atol=near, rtol=near)


def test_an_estimator_of_parts_gives_the_probabilities() -> None:
    layout = tile_layout((5, 6, 7), (2, 4, 8))
    q, k, v = drawn(layout.grid)
    estimator, sizes = Estimator(parts=2), layout.sizes()
    scores = block_scores(layout.to_tiles(q), layout.to_tiles(k), sizes, sizes, layout.block, 0.3, estimator)
    found = video_sparse_attention(q, k, v, grid=layout.grid, tile=layout.tile, share=0.7, estimator=estimator, softmax_scale=0.3)
    assert torch.equal(found.selection.mask(layout.num_tiles), share_mask(scores, 0.7))
    whole = BlockSelection.from_mask(share_mask(scores, 0.7), block=layout.block)
    assert torch.equal(whole.counts, found.selection.counts)


def test_compiled_it_is_the_same() -> None:
    q, k, v = drawn((3, 5, 6))
    plain = video_sparse_attention(q, k, v, grid=(3, 5, 6), share=0.6)
    torch._dynamo.reset()
    found = torch.compile(video_sparse_attention, fullgraph=True, backend="eager")(q, k, v, grid=(3, 5, 6), share=0.6)
    assert torch.equal(found.out, plain.out) and torch.equal(found.selection.counts, plain.selection.counts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"share": 1.0}, "share: got 1.0, expected above 0 to below 1; sparsity=0 takes every tile"),
        ({"share": 0}, "share: got 0, expected above 0 to below 1"),
        ({"share": 0.5, "topk": 2}, "share: got 0.5 beside topk=2, sparsity=None; give one of the three"),
        ({"share": 0.5, "sparsity": 0.5}, "share: got 0.5 beside topk=None, sparsity=0.5"),
    ],
)
def test_what_is_no_share_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        video_sparse_attention(*drawn((3, 5, 6)), grid=(3, 5, 6), **change)


def test_explain_tells_of_it() -> None:
    q, k, v = drawn((3, 5, 6))
    choice = explain(q, k, v, grid=(3, 5, 6), share=0.5)
    assert choice.impl.name == "cpu" and choice.note == "the stages around it run in PyTorch"
