"""The whole video-sparse operator against a plain walk over its definition, and what must hold for any selection.

Tiles are selected by number or by their share of the coarse attention; skipped ones count by their means, or not at all.
"""

from __future__ import annotations

import inspect
import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from itertools import product
from threading import Event, get_ident
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from history_on_cpu import by_definition, highest, tiles_of
from strobe.attention.dense.api import dense_attention
from strobe.attention.explain import explain
from strobe.attention.sparse import coarse, video, video_plan
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.coarse import Estimator, Forced, block_scores, budget, forced_blocks, select_blocks, share_mask
from strobe.attention.sparse.layout import TileLayout, tile_layout
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.video import VideoAttentionOutput, video_sparse_attention
from strobe.attention.sparse.video_plan import VideoOptions, written
from strobe.core.errors import ConfigError, ImplUnavailableError, ShapeError
from strobe.core.tolerances import tolerance

ELEMENT = tolerance("element", "float32")
ROUNDING = tolerance("rounding", "float32")
NEAR = tolerance("sparse element", "float64")

GRID = (3, 5, 6)


def _draw(layout_tokens: int, heads: int, seed: int = 0, width: int = 8, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed + layout_tokens + heads)
    return torch.randn(batch, layout_tokens, heads, width, generator=generator, dtype=torch.float64)


def _qkv(grid: tuple[int, int, int] = GRID, kv_grid: tuple[int, int, int] | None = None) -> tuple[Tensor, Tensor, Tensor]:
    rows, kv_rows = math.prod(grid), math.prod(kv_grid or grid)
    return _draw(rows, 4), _draw(kv_rows, 2, 1), _draw(kv_rows, 2, 2)


def _of_share(scores: list[float], share: float, forced: list[bool]) -> tuple[set[int], float]:
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


TILINGS: list[tuple[tuple[int, int, int], Any]] = [
    (GRID, (2, 2, 3)), (GRID, (4, 4, 4)), (GRID, (1, 5, 6)), (GRID, "auto"),
    ((1, 1, 1), (3, 4, 4)), ((5, 6, 7), (3, 4, 4)), ((7, 9, 1), (3, 4, 4)),
]  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "number": {},
    "gated": {"gate": True},
    "share": {"share": 0.35},
    "share and own": {"share": 0.8, "forced": Forced(own=True)},
    "skipped by means": {"pool_skipped": True},
    "skipped one by one": {"pool_skipped": True, "most": 1},
    "share and means": {"share": 0.5, "pool_skipped": True},
}


@pytest.mark.parametrize("impl", ["cpu", "reference"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("grid", "tile"), TILINGS)
def test_the_operator_is_its_definition(
    grid: tuple[int, int, int], tile: Any, way: str, impl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output, lse, counts and gradients."""
    layout, options = tile_layout(grid, tile), dict(WAYS[way])
    monkeypatch.setattr(coarse, "_MOST", options.pop("most", coarse._MOST))
    q, k, v = (each.requires_grad_() for each in _qkv(grid))
    gate = _draw(math.prod(grid), 4, 3).requires_grad_() if options.pop("gate", False) else None
    share, pooled, own = options.get("share"), options.get("pool_skipped", False), "forced" in options
    topk = None if share else max(1, layout.num_tiles // 2)

    def choose(i: int, scores: list[float]) -> list[int]:
        if share is None:
            return highest(topk, scores)
        taken, near = _of_share(scores, share, [own and i == j for j in range(len(scores))])
        assert near > 1e-9
        return sorted(taken)

    found = video_sparse_attention(q, k, v, grid=grid, tile=tile, topk=topk, gate=gate, impl=impl, return_lse=True, **options)
    tiles = tiles_of(layout.grid, layout.tile)
    out, lse, counts = by_definition((q, k, v), tiles, tiles, choose, gate=gate, pooled=pooled)
    assert torch.equal(found.selection.counts, counts) and found.selection.uniform_count == topk
    assert found.q_tiles == found.kv_tiles == layout and found.recall is None and found.lse is not None
    torch.testing.assert_close(found.out, out, atol=NEAR, rtol=NEAR)
    torch.testing.assert_close(found.lse.double(), lse, atol=NEAR, rtol=NEAR)
    inputs = [each for each in (q, k, v, gate) if each is not None]
    of_lse = 1 if pooled else 0  # between both parts the lse is float32
    near = tolerance("gradient through an lse", "float32") if pooled else NEAR
    losses = (each.sin().sum() + of_lse * total.sum() for each, total in ((found.out, found.lse), (out, lse)))
    for got, want in zip(*(torch.autograd.grad(loss, inputs) for loss in losses), strict=True):
        torch.testing.assert_close(got, want, atol=near, rtol=near)


@given(st.tuples(*[st.integers(1, 6)] * 3), st.sampled_from([(4, 4, 4), (2, 8, 8), (2, 2, 2), "auto"]))
def test_all_tiles_are_dense_attention(grid: tuple[int, int, int], tile: Any) -> None:
    q, k, v = _qkv(grid)
    found = video_sparse_attention(q, k, v, grid=grid, tile=tile, sparsity=0, return_lse=True, probe=5)
    dense = dense_attention(q, k, v, impl="reference", return_lse=True)
    torch.testing.assert_close(found.out, dense.out, atol=ROUNDING, rtol=ROUNDING)
    torch.testing.assert_close(found.lse, dense.lse)
    torch.testing.assert_close(found.recall, torch.ones(2, 4), atol=ELEMENT, rtol=0)


def test_a_short_chunk_over_a_ring_of_frames() -> None:
    grid, ring = (3, 5, 6), (7, 5, 6)
    q, k, v = _qkv(grid, ring)
    dense = dense_attention(q, k, v, impl="reference")
    every = video_sparse_attention(q, k, v, grid=grid, kv_grid=ring, sparsity=0)
    torch.testing.assert_close(every.out, dense.out, atol=ROUNDING, rtol=ROUNDING)
    sink = video_sparse_attention(q, k, v, grid=grid, kv_grid=ring, topk=2, forced=Forced(first_frames=1, last_frames=1))
    assert sink.selection.indices.flatten(0, 2).unique(dim=0).tolist() == [[0, 6]]  # a key tile is one frame here
    moved = torch.tensor([4, 5, 6, 0, 1, 2, 3])  # a ring's frames lie in any order: nothing but the indices changes
    rows = (moved[:, None] * 30 + torch.arange(30)).flatten()
    topk = video_sparse_attention(q, k, v, grid=grid, kv_grid=ring, topk=3)
    turned = video_sparse_attention(q, k[:, rows], v[:, rows], grid=grid, kv_grid=ring, topk=3)
    torch.testing.assert_close(turned.out, topk.out, atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize(
    "options",
    [
        {"topk": 2, "gate": True},
        {"share": 0.6, "estimator": Estimator(parts=4), "coarse": True},
        {"topk": 1, "pool_skipped": True},
        {"sparsity": 0, "pool_skipped": True},
    ],
    ids=str,
)
def test_tokens_may_stay_in_tile_order(options: dict[str, Any]) -> None:
    """What lies in padding rows is not read."""
    grid = (5, 6, 7)
    layout, (q, k, v) = tile_layout(grid, (4, 4, 4)), _qkv(grid)
    gate = _draw(math.prod(grid), 4, 3) if "gate" in options else None
    options = {"grid": grid, "return_lse": True} | options | {"gate": gate}
    raster = video_sparse_attention(q, k, v, **options)
    padding = layout.tokens() == layout.num_tokens
    poisoned = [None if tensor is None else layout.to_tiles(tensor) for tensor in (q, k, v, gate)]
    for tensor, poison in zip(poisoned, (math.nan, 9.0, -9.0, math.nan), strict=True):
        if tensor is not None:
            tensor[:, padding] = poison
    options |= {"q_layout": "tiled", "kv_layout": "tiled", "gate": poisoned[3]}
    tiled = video_sparse_attention(*poisoned[:3], **options)
    assert torch.equal(tiled.selection.counts, raster.selection.counts) and tiled.lse is not None and raster.lse is not None
    torch.testing.assert_close(layout.to_raster(tiled.out), raster.out, atol=ROUNDING, rtol=ROUNDING)
    torch.testing.assert_close(tiled.lse[:, :, layout.rows()], raster.lse)
    assert not tiled.out[:, padding].any() and tiled.lse[..., padding].isneginf().all()
    if options.get("sparsity") == 0:
        torch.testing.assert_close(raster.out, dense_attention(q, k, v, impl="reference").out, atol=ROUNDING, rtol=ROUNDING)


def test_rope_is_a_rotation_of_channel_pairs() -> None:
    q, k, v = _qkv()
    angles = torch.rand(math.prod(GRID), 4, dtype=torch.float64) * 6
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]
    rotated = [
        torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turns).flatten(-2) for x in (q, k)
    ]
    expected = video_sparse_attention(*rotated, v, grid=GRID, topk=2)
    found = attended(q, k, v, rope=(angles.cos(), angles.sin()))
    torch.testing.assert_close(found.out, expected.out, atol=ROUNDING, rtol=ROUNDING)


def test_coarse_is_added_only_with_a_gate_or_on_demand() -> None:
    q, k, v = _qkv()
    fine = attended(q, k, v).out
    ones = torch.ones(1, dtype=torch.float64)
    assert torch.equal(attended(q, k, v, gate=ones, coarse=False).out, fine)
    summed = attended(q, k, v, coarse=True).out
    torch.testing.assert_close(attended(q, k, v, gate=ones).out, summed)
    assert (summed - fine).abs().max() > 0.01


@pytest.mark.parametrize("pooled", [False, True])
def test_recall_is_the_mass_of_the_selected_tiles(pooled: bool) -> None:
    q, k, v = _qkv()
    found = video_sparse_attention(q, k, v, grid=GRID, tile=(2, 2, 3), topk=3, probe=math.prod(GRID), pool_skipped=pooled)
    layout, tiles = tile_layout(GRID, (2, 2, 3)), tiles_of(GRID, (2, 2, 3))
    for b, h in product(range(2), range(4)):
        weights = torch.softmax(q[b, :, h] @ k[b, :, h // 2].T * 8**-0.5, dim=-1)
        mass = 0.0
        for i, tile in enumerate(tiles):
            seen = [token for j in found.selection.indices[b, h, i].tolist() for token in tiles[j]]
            mass += weights[tile][:, seen].sum().item()
        assert found.recall[b, h].item() == pytest.approx(mass / layout.num_tokens, rel=1e-4)


def test_an_estimator_of_parts_gives_the_scores() -> None:
    layout, (q, k, v) = tile_layout((5, 6, 7), (2, 4, 8)), _qkv((5, 6, 7))
    estimator, sizes = Estimator(parts=2), layout.sizes()
    scores = block_scores(layout.to_tiles(q), layout.to_tiles(k), sizes, sizes, layout.block, 0.3, estimator)
    options: dict[str, Any] = {"grid": layout.grid, "tile": layout.tile, "estimator": estimator, "softmax_scale": 0.3}
    by_share = video_sparse_attention(q, k, v, share=0.7, **options).selection
    assert torch.equal(by_share.mask(layout.num_tiles), share_mask(scores, 0.7))
    by_number = video_sparse_attention(q, k, v, topk=2, **options).selection
    assert torch.equal(by_number.indices, select_blocks(scores, (2,) * 4, None)[0])


def test_a_tile_without_a_token_is_not_needed_and_a_nan_shows() -> None:
    scores = torch.tensor([[[[0.0, -math.inf, 0.0, -math.inf], [0.0, math.nan, 0.0, 0.0]]]])
    assert share_mask(scores, 0.999)[0, 0].tolist() == [[True, False, True, False], [True] * 4]


@given(st.integers(1, 4), st.integers(1, 12), st.data())
def test_exactly_k_tiles_ties_to_the_lowest_index(num_q: int, num_kv: int, data: st.DataObject) -> None:
    value = st.sampled_from([0.0, 1.0, -1.0, 1e30, float("-inf"), float("nan")])
    values = data.draw(st.lists(value, min_size=num_kv * num_q, max_size=num_kv * num_q))
    scores = torch.tensor(values).view(1, 1, num_q, num_kv)
    topk = data.draw(st.integers(1, num_kv))
    indices, counts = select_blocks(scores, (topk,), None)
    assert (counts == topk).all() and indices.dtype == torch.int32
    for row, found in zip(indices[0, 0].tolist(), scores[0, 0].tolist(), strict=True):
        ranked = sorted((math.isnan(score) is False, 0.0 if math.isnan(score) else -score, j) for j, score in enumerate(found))
        assert row == sorted(j for _, _, j in ranked[:topk])


def test_heads_may_have_budgets_of_their_own() -> None:
    q, k, v = _qkv()
    options: dict[str, Any] = {"grid": GRID, "tile": (2, 2, 3)}
    mixed = video_sparse_attention(q, k, v, topk=(1, 5, 5, 12), **options)
    assert mixed.selection.counts[0, :, 0].tolist() == [1, 5, 5, 12]
    for number, heads in ((1, [0]), (5, [1, 2]), (12, [3])):
        alone = video_sparse_attention(q, k, v, topk=number, **options)
        torch.testing.assert_close(mixed.out[:, :, heads], alone.out[:, :, heads])


def test_plans_that_differ_in_the_numbers_of_heads_are_found_again_and_share_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than of other plans; and what only compares equal is refused, as a first call is."""
    q, k, v = _qkv()
    monkeypatch.setattr(video_plan, "_MOST_SEEN", 3)
    video_plan._SEEN.clear()
    options: dict[str, Any] = {"grid": GRID, "tile": (2, 2, 3), "forced": Forced(own=True)}
    sets = [(1, 1 + number % 3, 1 + number // 3, 12) for number in range(20)]
    with torch.no_grad():
        first = [video_sparse_attention(q, k, v, topk=numbers, **options) for numbers in sets]
        assert len(video_plan._SEEN) == 1
        plans = [plan for alike in video_plan._SEEN.values() for plan in alike.values()]
        assert len(plans) == 20 and len({id(plan.plan.wish.forced) for plan in plans}) == 1
        with pytest.raises(ConfigError, match="topk: got 1.0"):
            video_sparse_attention(q, k, v, topk=(1.0, 1, 1, 12), **options)
        monkeypatch.setattr(video, "_call_of", lambda *_, **__: pytest.fail("the call was checked again"))
        for numbers, found in zip(sets, first, strict=True):
            again = video_sparse_attention(q, k, v, topk=numbers, **options)
            assert torch.equal(again.out, found.out) and again.selection.counts[0, :, 0].tolist() == [*numbers]
        for others in ((1, 1, 12, 1), (2, 1, 1, 12), [1, 1, 1, 12], 2):
            with pytest.raises(pytest.fail.Exception, match="the call was checked again"):
                video_sparse_attention(q, k, v, topk=others, **options)


def test_there_is_a_bound_to_the_plans_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = _qkv()
    monkeypatch.setattr(video_plan, "_MOST_SEEN", 3)
    monkeypatch.setattr(video_plan, "_MOST_NUMBERS", 4)
    video_plan._SEEN.clear()
    with torch.no_grad():
        for number in range(1, 12):
            video_sparse_attention(q, k, v, grid=GRID, tile=(2, 2, 3), topk=(1, 2, 3, number))
            assert [len(alike) for alike in video_plan._SEEN.values()] == [1 + (number - 1) % 4]
        for number in range(1, 12):
            video_sparse_attention(q, k, v, grid=GRID, tile=(2, 2, 3), topk=number)
            assert len(video_plan._SEEN) == 1 + number % 3


@pytest.mark.parametrize(
    ("sparsity", "tiles", "expected"),
    [(0.9, 100, 10), (0.7, 10, 3), (0.8, 10, 2), (0.95, 624, 32), (0, 7, 7), (0.999, 5, 1), (0.5, 5, 3)],
)
def test_sparsity_is_a_share_of_the_tiles(sparsity: float, tiles: int, expected: int) -> None:
    assert budget(None, sparsity, 3, tiles) == (expected,) * 3


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"topk": None}, ConfigError, "give either topk or sparsity; got topk=None, sparsity=None"),
        ({"topk": 0}, ConfigError, "topk: got 0, expected 1 to 4"),
        ({"topk": (1, 2)}, ConfigError, "topk: got 2 numbers, expected one, or one for each of 4 heads"),
        ({"topk": None, "sparsity": 1.0}, ConfigError, "sparsity: got 1.0, expected 0"),
        ({"grid": (3, 5, 7)}, ShapeError, r"q: got 90 rows, expected 105 in raster order .*; q is \[batch, rows, heads"),
        ({"kv_grid": (3, 5, 7)}, ShapeError, "k: got 90 rows, expected 105"),
        ({"q_layout": "tiled"}, ShapeError, "q: got 90 rows, expected 256 in tiled order"),
        ({"q_layout": "columns"}, ConfigError, "layout of q: got 'columns', expected 'raster' or 'tiled'"),
        ({"gate": torch.ones(3)}, ShapeError, r"gate: got shape \(3,\), expected what broadcasts to q's \(2, 90, 4, 8\)"),
        ({"gate": 0.5}, ConfigError, r"gate: got 0.5, expected a tensor of what broadcasts to q's \(2, 90, 4, 8\)"),
        ({"topk": torch.tensor(2)}, ConfigError, r"topk: got a tensor of shape \(\) and torch.int64, expected an int, or a"),
        ({"topk": 2.0}, ConfigError, "topk: got 2.0, expected an int, or a sequence with one for each head"),
        ({"topk": None, "sparsity": "0.9"}, ConfigError, r"sparsity: got '0.9', expected 0 \(dense\) to below 1"),
        ({"grid": 90}, ConfigError, r"grid: got 90, expected \(time, height, width\)"),
        ({"tile": 4.0}, ConfigError, r"tile: got 4.0, expected \(time, height, width\)"),
        ({"forced": True}, ConfigError, "forced: got True, expected a strobe.Forced"),
        ({"probe": 0.0}, ConfigError, "probe: got 0.0, expected 0 for none or a number of queries"),
        ({"grid": list(GRID), "topk": 2.0}, ConfigError, "topk: got 2.0, expected an int"),
        ({"estimator": Forced()}, ConfigError, "estimator: got a Forced, expected a strobe.Estimator"),
        ({"rope": (1.0, 2.0)}, ConfigError, r"rope: got 1.0, expected \(cos, sin\), two tensors"),
        ({"q": [1.0]}, ConfigError, r"q: got a list, expected a tensor \[B, S, H, D\]"),
        ({"rope": (torch.ones(90, 8),) * 2}, ShapeError, r"rope cos: got shape \(90, 8\) on cpu, expected \(90, 4\)"),
        ({"estimator": Estimator(parts=3)}, ConfigError, "estimator: got 3 parts, expected a divisor of the block's 64 rows"),
        ({"topk": None, "share": 1.0}, ConfigError, "share: got 1.0, expected above 0 to below 1; sparsity=0 takes every tile"),
        ({"share": 0.5}, ConfigError, "share: got 0.5 beside topk=2, sparsity=None; give one of the three"),
        ({"pool_skipped": True, "gate": torch.ones(1)}, ConfigError, "pool_skipped: got True beside a coarse output"),
        ({"pool_skipped": True, "coarse": True}, ConfigError, "pool_skipped: got True beside a coarse output"),
        ({"pool_skipped": 0.5}, ConfigError, "pool_skipped: got 0.5, expected True or False"),
        ({"probe": -1}, ConfigError, "probe: got -1"),
        ({"probe": True}, ConfigError, "probe: got True, expected 0 for none or a number of queries"),
        ({"estimator": Estimator(parts=2.0)}, ConfigError, "estimator parts: got 2.0, expected a divisor of the block's 64 rows"),
        ({"forced": Forced(first_frames=1.5)}, ConfigError, "forced first_frames: got 1.5, expected 0 to 3 frames"),
        ({"gate": torch.ones(2, 90, 4, 8, dtype=torch.int64)}, ShapeError, "gate: got torch.int64"),
        ({"rope": (torch.ones(90, 4),)}, ShapeError, "rope: got 1 tables for 8 channels"),
        ({"rope": (torch.ones(90, 4, device="meta"),) * 2}, ShapeError, r"rope cos: got shape \(90, 4\) on meta"),
        ({"forced": Forced(own=True), "kv_grid": (1, 9, 10)}, ConfigError, "own needs one layout"),
        ({"forced": Forced(first_frames=4)}, ConfigError, "expected 0 to 3 frames"),
        (
            {"forced": Forced(own=True, first_frames=2), "tile": (1, 5, 6)},
            ConfigError,
            "forced: 3 key tiles are forced, but 2 of 3 are selected; select 3, by sparsity=0.0 or less",
        ),
        ({"rope": (torch.ones(90, 4),) * 2, "kv_grid": (1, 9, 10)}, ConfigError, "rope: needs q and k of one grid in raster"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    """After calls that do fit: what was decided of one, and is kept, does not serve another that only compares equal."""
    q, k, v = _qkv()
    fits: dict[str, Any] = {"q": q, "k": k, "v": v, "grid": GRID, "topk": 2}
    for rope in (None, (torch.ones(90, 4),) * 2):
        for _ in range(2):
            video_sparse_attention(**fits, rope=rope)
    with pytest.raises(error, match=message):
        video_sparse_attention(**(fits | change))


def test_a_plan_is_found_again_where_nothing_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = _qkv()
    rope = (torch.ones(90, 4), torch.zeros(90, 4))
    video_plan._SEEN.clear()
    with torch.no_grad():
        first = attended(q, k, v, gate=q, rope=rope)
        monkeypatch.setattr(video, "_call_of", lambda *_, **__: pytest.fail("the call was checked again"))
        again = attended(q, k, v, gate=q, rope=rope)
        assert torch.equal(first.out, again.out)
        changes: tuple[dict[str, Any], ...] = (
            {"topk": 3}, {"grid": (5, 3, 6)}, {"gate": None}, {"rope": None}, {"forced": Forced(own=True)}, {"impl": "reference"},
            {"return_lse": True}, {"softmax_scale": 0.5}, {"estimator": Estimator(parts=2)}, {"coarse": False}, {"q": q.float()},
        )  # fmt: skip
        for change in changes:
            with pytest.raises(pytest.fail.Exception, match="the call was checked again"):
                video_sparse_attention(**({"q": q, "k": k, "v": v, "grid": GRID, "topk": 2, "gate": q, "rope": rope} | change))
    with pytest.raises(pytest.fail.Exception):
        video_sparse_attention(q.clone().requires_grad_(), k, v, grid=GRID, topk=2, gate=q, rope=rope)


OTHERS = VideoOptions(
    grid=(5, 3, 6), kv_grid=(2, 9, 5), tile=(2, 4, 8), kv_tile=(1, 8, 8), topk=3, sparsity=0.25, coarse=True,
    forced=Forced(own=True, first_frames=1, last_frames=2), estimator=Estimator(parts=4), softmax_scale=0.5, q_layout="tiled",
    kv_layout="tiled", impl="triton", return_lse=True, probe=7, share=0.5, pool_skipped=True,
)  # fmt: skip
"""Of every option a value that is not its default."""


def test_no_option_is_forgotten_between_the_call_and_the_operator_of_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that is added has a parameter of the same default, reaches the options of the call, its key and its text."""
    values, usual = OTHERS._asdict(), VideoOptions(grid=GRID)
    parameters = inspect.signature(video_sparse_attention).parameters
    assert set(parameters) - {"q", "k", "v", "gate", "rope", "group", "shards"} == set(values)
    defaults = {name: each.default for name, each in parameters.items() if name in VideoOptions._field_defaults}
    assert defaults == VideoOptions._field_defaults

    q, k, v = _qkv()
    seen: list[VideoOptions] = []
    monkeypatch.setattr(video, "_attend", lambda *arguments: seen.append(arguments[-1]))
    video_sparse_attention(q, k, v, **values)
    assert seen == [OTHERS] and video_plan.options_of(video_plan.written(OTHERS)) == OTHERS

    for name, value in values.items():
        changed = usual._replace(**{name: value})
        assert changed != usual, f"{name}: give OTHERS a value that is not the default"
        assert video_plan.options_of(video_plan.written(changed)) == changed, name
        key = video_plan.key_of(q, k, v, None, None, changed)
        assert key is None if name == "probe" else key not in (None, video_plan.key_of(q, k, v, None, None, usual)), name
    for policy in (OTHERS.forced, OTHERS.estimator):
        kept = {each.name: getattr(policy, each.name) for each in fields(policy)}
        assert all(kept[each.name] != each.default for each in fields(policy)), f"give OTHERS {policy} no default"


def test_a_plan_is_made_where_no_mode_of_the_caller_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a thread of its own: a tensor that is kept must not lie in the pool of a CUDA graph that the caller warms up."""
    threads, planned = [], video_plan._planned
    monkeypatch.setattr(video_plan, "_planned", lambda call: threads.append(get_ident()) or planned(call))
    q, k, v = _qkv()
    with torch.inference_mode():
        found = video_sparse_attention(q, k, v, grid=(2, 5, 9), topk=1)
    assert len(threads) == 1 and threads[0] != get_ident() and not found.q_tiles.sizes("cpu").is_inference()


def test_explain_tells_of_the_call_itself() -> None:
    q, k, v = _qkv()
    choice = explain(q, k, v, grid=GRID, topk=2)
    assert choice.impl.name == "cpu" and choice.note == "the stages around it run in PyTorch"
    assert "runs: cpu" in str(choice) and ("reference", "cpu comes first") in choice.passed_over
    graded = explain(q.requires_grad_(), k, v, grid=GRID, share=0.5, tile="auto", gate=torch.ones(1))
    assert graded.note == "the stages around it run in PyTorch: a gradient is asked for"
    assert explain(q, k, v, grid=GRID, topk=2, impl="reference").impl.name == "reference"
    with pytest.raises(ConfigError, match="topk: got 9, expected 1 to 4"):
        explain(q, k, v, grid=GRID, topk=9)
    with pytest.raises(ConfigError, match="topk: an argument of video_sparse_attention alone; give its grid"):
        explain(q, k, v, topk=2)
    with pytest.raises(ConfigError, match="selection: got one beside grid"):
        explain(q, k, v, attended(q, k, v).selection, grid=GRID, topk=2)


@pytest.mark.parametrize("step", [1, 2, 3, 4])
@pytest.mark.parametrize("frames", [1, 3, 7, 8])
def test_a_tile_is_forced_if_one_of_its_tokens_is(frames: int, step: int) -> None:
    layout = TileLayout((frames, 5, 3), (step, 4, 2), 64)
    tokens = layout.tokens().view(layout.num_tiles, layout.block)
    numbers = [[int(token) // 15 for token in tile if token < layout.num_tokens] for tile in tokens]
    for first, last in itertools.product(range(frames + 1), repeat=2):
        if not first + last:
            continue
        forced = Forced(first_frames=first, last_frames=last)
        found = forced_blocks(forced, layout, layout, [layout.num_tiles])
        expected = [any(frame < first or frame >= frames - last for frame in held) for held in numbers]
        assert found is not None and found.tolist() == [expected] * layout.num_tiles, forced


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_runs_without_a_token_count_for_nothing(parts: int) -> None:
    """Of queries and of keys; what lies in their rows does not matter."""
    block, sizes = 64, torch.tensor([64, 1, 17, 32, 33, 0], dtype=torch.int32)
    generator = torch.Generator().manual_seed(parts)
    q, k = (torch.randn(1, len(sizes) * block, 1, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    found = block_scores(q, k, sizes, sizes, block, 0.25, Estimator(parts=parts))[0, 0]
    step = block // parts

    def means(rows: torch.Tensor, tile: int) -> list[torch.Tensor]:
        held = rows[0, tile * block : tile * block + int(sizes[tile]), 0]
        return [run.mean(dim=0) for run in held.split(step)] if len(held) else []

    for i, j in itertools.product(range(len(sizes)), repeat=2):
        scores = [float(a @ b) * 0.25 for a in means(q, i) for b in means(k, j)]
        if not scores:
            assert i == 5 or found[i, j] == -math.inf  # a tile without a key is never taken; a tile without a query asks nothing
            continue
        expected = scores[0] if parts == 1 else math.log(sum(map(math.exp, scores)))
        assert found[i, j].item() == pytest.approx(expected, abs=1e-12)


SHARE = {"topk": None, "share": 0.6}


def draw(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(*shape, generator=generator) for _ in range(3))
    return q, k, v


def attended(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> VideoAttentionOutput:
    return video_sparse_attention(q, k, v, **{"grid": GRID, "topk": 2} | options)


def all_seen(batch: int, heads: int, blocks: int) -> BlockSelection:
    return BlockSelection.from_mask(torch.ones(batch, heads, blocks, blocks, dtype=torch.bool), block=64)


def test_no_queries_have_no_lse() -> None:
    q, k, v = torch.randn(2, 0, 1, 8), *(torch.randn(2, 4, 1, 8) for _ in range(2))
    found = dense_attention(q, k, v, return_lse=True)
    assert found.lse is not None and found.out.shape == q.shape and found.lse.shape == (2, 1, 0)


def test_an_empty_batch_gives_an_empty_result() -> None:
    q, k, v = draw(0, 64, 2, 16)
    assert block_sparse_attention(q, k, v, all_seen(0, 2, 1), return_lse=True).out.shape == q.shape
    q, k, v = draw(0, 90, 2, 16)
    assert attended(q, k, v).out.shape == q.shape


def test_angles_alone_may_need_a_gradient() -> None:
    q, k, v = draw(1, 90, 2, 16)
    angles = torch.rand(90, 8, requires_grad=True)
    found = {}
    for impl in ("cpu", "reference"):
        out = attended(q, k, v, rope=(angles.cos(), angles.sin()), impl=impl).out
        (found[impl],) = torch.autograd.grad(out.square().sum(), angles)
    torch.testing.assert_close(found["cpu"], found["reference"], atol=ELEMENT, rtol=ELEMENT)


@pytest.mark.parametrize("operator", [dense_attention, lambda q, k, v: block_sparse_attention(q, k, v, all_seen(1, 2, 1))])
def test_integers_are_refused(operator: Any) -> None:
    q = torch.ones(1, 64, 2, 16, dtype=torch.int32)
    with pytest.raises(ShapeError, match=r"q: got torch.int32, expected a floating-point dtype"):
        operator(q, q, q)


def test_a_scale_is_its_value_not_its_tensor() -> None:
    q, k, v = draw(1, 90, 2, 16)
    scale = torch.tensor(0.1)
    before = attended(q, k, v, softmax_scale=scale).out
    scale.fill_(3.0)
    after = attended(q, k, v, softmax_scale=scale).out
    assert not torch.equal(before, after) and torch.equal(after, attended(q, k, v, softmax_scale=3.0).out)


def test_inference_first_then_training() -> None:
    q, k, v = draw(1, 3 * 7 * 5, 2, 16)
    with torch.inference_mode():
        attended(q, k, v, grid=(3, 7, 5))
        tile_layout((2, 7, 5), (4, 4, 4)).to_tiles(q[:, :70])
    q.requires_grad_()
    attended(q, k, v, grid=(3, 7, 5)).out.sum().backward()
    tile_layout((2, 7, 5), (4, 4, 4)).to_tiles(q[:, :70]).sum().backward()
    assert q.grad is not None and q.grad.isfinite().all()


def test_fake_tensors_first_then_real_ones() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = attended(*(torch.empty(1, 3 * 4 * 9, 2, 16) for _ in range(3)), grid=(3, 4, 9)).out
    assert fake.shape == (1, 108, 2, 16)
    assert type(attended(*draw(1, 108, 2, 16), grid=(3, 4, 9)).out) is Tensor


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_autocast_changes_nothing(impl: str) -> None:
    q, k, v = draw(1, 90, 2, 16)
    expected = attended(q, k, v, impl=impl, coarse=True, return_lse=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attended(q, k, v, impl=impl, coarse=True, return_lse=True)
    assert found.out.dtype == torch.float32 and torch.equal(found.out, expected.out)
    assert torch.equal(found.selection.indices, expected.selection.indices)


def test_autocast_changes_nothing_while_another_thread_compiles() -> None:
    """`torch.compiler.is_compiling` is true of every thread then."""
    inside, over = Event(), Event()

    def slow(graph: Any, inputs: Any) -> Any:
        inside.set()
        assert over.wait(60)
        return graph

    expected = dense_attention(*draw(1, 90, 2, 16), impl="reference").out
    with ThreadPoolExecutor(1) as other:
        other.submit(torch.compile(lambda x: x + 1, backend=slow), torch.ones(2))
        assert inside.wait(60)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = dense_attention(*draw(1, 90, 2, 16), impl="reference").out
        over.set()
    assert torch.equal(found, expected)


def test_autocast_around_the_backward_changes_nothing() -> None:
    leaves = [each.requires_grad_() for each in draw(1, 90, 2, 16)]
    loss = attended(*leaves).out.square().sum()
    wanted = torch.autograd.grad(loss, leaves, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(map(torch.equal, torch.autograd.grad(loss, leaves), wanted))


def test_a_default_dtype_of_16_bit_leaves_the_probe_inside(request: pytest.FixtureRequest) -> None:
    q, k, v = draw(1, 8 * 16 * 18, 1, 8)
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.bfloat16)
    recall = attended(q, k, v, grid=(8, 16, 18), probe=7).recall
    assert recall is not None and recall.isfinite().all()


def test_deterministic_algorithms_are_asked_for(request: pytest.FixtureRequest) -> None:
    q, k, v = draw(1, 64, 2, 16)
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    torch.use_deterministic_algorithms(True)
    with pytest.raises(ImplUnavailableError):
        block_sparse_attention(q, k, v, all_seen(1, 2, 1), impl="cudnn")
    assert explain(q, k, v, all_seen(1, 2, 1), softmax_scale=-1.0).impl.name == "cpu"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("option", "values"), [("sparsity", (0.5, 0.75, 0.2)), ("softmax_scale", (0.1, 2.0, 0.5)), ("topk", (1, 2, 3))]
)
def test_a_compiled_call_takes_another_number(option: str, values: tuple[float, ...]) -> None:
    """The compiler makes a number symbolic at its second value; graphs of earlier values stay in use."""
    tensors = draw(1, 90, 2, 16)
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def call(number: float) -> Tensor:
        return attended(*tensors, **{"topk": None if option == "sparsity" else 2} | {option: number}).out

    compiled = torch.compile(call, fullgraph=True, backend=counter)
    for value in values:
        torch.testing.assert_close(compiled(value), call(value))
    graphs = counter.frame_count
    for value in values:
        torch.testing.assert_close(compiled(value), call(value))
    assert counter.frame_count == graphs, "nothing is compiled again"
    assert (call(values[0]) - call(values[1])).abs().max() > 1e-3, "the number matters"
    torch._dynamo.reset()


@torch.no_grad()
def test_an_exported_call_takes_any_batch() -> None:
    """Also one of so many rows that another impl is the fastest."""

    class Layer(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attended(q, k, v, topk=2).out

    sizes = {0: torch.export.Dim("batch", min=2, max=4096)}
    exported = torch.export.export(Layer(), draw(3, 90, 2, 16), dynamic_shapes=(sizes,) * 3, strict=True)
    tensors = draw(5, 90, 2, 16)
    torch.testing.assert_close(exported.module()(*tensors), Layer()(*tensors))


@pytest.mark.few(2)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("options", [{}, {"tile": "auto"}, {"forced": Forced(own=True)}, {"coarse": True, "probe": 3}, SHARE])
def test_the_video_operator_compiles_without_a_graph_break(options: dict[str, Any], grad: bool) -> None:
    q, k, v = (tensor.requires_grad_(grad) for tensor in draw(1, 90, 2, 16))

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attended(q, k, v, **options).out

    torch._dynamo.reset()
    found = torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v)
    torch.testing.assert_close(found, call(q, k, v))
    if grad:
        found.square().sum().backward()
        assert q.grad is not None and q.grad.isfinite().all()


@pytest.mark.parametrize("topk", [2, (1, 3)])
@pytest.mark.parametrize("gated", [False, True])
def test_the_operator_that_a_compiler_calls_says_what_it_returns(topk: Any, gated: bool) -> None:
    q, k, v = draw(2, 90, 2, 16)
    angles = torch.linspace(0, 6, 90 * 8).reshape(90, 8)
    gate, cos, sin = (q.flip(1), angles.cos(), angles.sin()) if gated else (None, None, None)
    own: dict[str, Any] = {"forced": Forced(own=True), "softmax_scale": 0.25, "impl": "reference", "return_lse": gated}
    told = VideoOptions(grid=GRID, kv_grid=GRID, kv_tile=(4, 4, 4), topk=topk, coarse=gated, **own)
    arguments = (q, k, v, gate, cos, sin, written(told))
    operator: Any = torch.ops.strobe.video_sparse_attention.default
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")
    torch.library.opcheck(operator, arguments, test_utils=checks)
    out, lse, indices = operator(*arguments)
    rope = None if cos is None or sin is None else (cos, sin)
    expected = attended(q, k, v, gate=gate, rope=rope, topk=topk, **own)
    assert torch.equal(out, expected.out) and torch.equal(indices, expected.selection.indices)
    assert lse.numel() == 0 if expected.lse is None else torch.equal(lse, expected.lse)
