"""The whole video-sparse operator against a plain walk over its definition, and what must hold for any selection."""

from __future__ import annotations

import inspect
import math
from dataclasses import fields
from itertools import product
from threading import get_ident
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from strobe.attention.dense.api import dense_attention
from strobe.attention.explain import explain
from strobe.attention.sparse import video, video_plan
from strobe.attention.sparse.coarse import Estimator, Forced, budget, pool, select_blocks
from strobe.attention.sparse.layout import TileLayout, tile_layout
from strobe.attention.sparse.video import video_sparse_attention
from strobe.attention.sparse.video_plan import VideoOptions
from strobe.core.errors import ConfigError, ShapeError
from strobe.core.tolerances import tolerance

ELEMENT = tolerance("element", "float32")
ROUNDING = tolerance("rounding", "float32")

GRID = (3, 5, 6)


def _draw(layout_tokens: int, heads: int, seed: int = 0, width: int = 8, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed + layout_tokens + heads)
    return torch.randn(batch, layout_tokens, heads, width, generator=generator, dtype=torch.float64)


def _qkv(grid: tuple[int, int, int] = GRID, kv_grid: tuple[int, int, int] | None = None) -> tuple[Tensor, Tensor, Tensor]:
    rows, kv_rows = math.prod(grid), math.prod(kv_grid or grid)
    return _draw(rows, 4), _draw(kv_rows, 2, 1), _draw(kv_rows, 2, 2)


def _tiles(layout: TileLayout) -> list[list[int]]:
    """Tokens of each tile, in raster order."""
    (times, heights, widths), steps = layout.grid, layout.tile
    found: dict[tuple[int, ...], list[int]] = {}
    for token, place in enumerate(product(range(times), range(heights), range(widths))):
        found.setdefault(tuple(at // step for at, step in zip(place, steps, strict=True)), []).append(token)
    return [found[key] for key in sorted(found)]


def _by_definition(q: Tensor, k: Tensor, v: Tensor, layout: TileLayout, topk: int, gate: Tensor | None) -> Tensor:
    """Tile by tile in float64, nothing shared with the package."""
    out = torch.zeros_like(q)
    tiles = _tiles(layout)
    scale = q.shape[-1] ** -0.5
    for b, h in product(range(q.shape[0]), range(q.shape[2])):
        keys, values = k[b, :, h // 2], v[b, :, h // 2]
        k_means, v_means = (torch.stack([tensor[tile].mean(dim=0) for tile in tiles]) for tensor in (keys, values))
        for tile in tiles:
            scores = k_means @ q[b, tile, h].mean(dim=0) * scale
            best = sorted(range(len(tiles)), key=lambda j: (-scores[j].item(), j))[:topk]
            seen = [token for j in best for token in tiles[j]]
            out[b, tile, h] = torch.softmax(q[b, tile, h] @ keys[seen].T * scale, dim=-1) @ values[seen]
            if gate is not None:
                out[b, tile, h] += gate[b, tile, h] * (torch.softmax(scores, dim=-1) @ v_means)
    return out


@pytest.mark.parametrize("impl", ["cpu", "reference"])
@pytest.mark.parametrize("tile", [(2, 2, 3), (4, 4, 4), (1, 5, 6), "auto"])
@pytest.mark.parametrize("gated", [False, True])
def test_the_operator_is_its_definition(impl: str, tile: Any, gated: bool) -> None:
    q, k, v = _qkv()
    layout = tile_layout(GRID, tile)
    topk = max(1, layout.num_tiles // 2)
    gate = _draw(math.prod(GRID), 4, 3) if gated else None
    found = video_sparse_attention(q, k, v, grid=GRID, tile=tile, topk=topk, gate=gate, impl=impl)
    torch.testing.assert_close(found.out, _by_definition(q, k, v, layout, topk, gate), atol=ROUNDING, rtol=ROUNDING)
    assert (found.selection.counts == topk).all() and found.lse is None and found.recall is None
    assert found.selection.uniform_count == topk and found.q_tiles == found.kv_tiles == layout


@given(st.tuples(*[st.integers(1, 6)] * 3), st.sampled_from([(4, 4, 4), (2, 8, 8), (2, 2, 2), "auto"]))
def test_all_tiles_are_dense_attention(grid: tuple[int, int, int], tile: Any) -> None:
    q, k, v = _qkv(grid)
    found = video_sparse_attention(q, k, v, grid=grid, tile=tile, sparsity=0, return_lse=True, probe=5)
    dense = dense_attention(q, k, v, impl="reference", return_lse=True)
    torch.testing.assert_close(found.out, dense.out, atol=ROUNDING, rtol=ROUNDING)
    torch.testing.assert_close(found.lse, dense.lse)
    assert found.recall is not None
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


def test_tokens_may_stay_in_tile_order() -> None:
    q, k, v = _qkv()
    layout, gate = tile_layout(GRID, (4, 4, 4)), _draw(math.prod(GRID), 4, 3)
    raster = video_sparse_attention(q, k, v, grid=GRID, topk=2, gate=gate, return_lse=True)
    poisoned = [layout.to_tiles(tensor) for tensor in (q, k, v, gate)]
    padding = layout.tokens() == layout.num_tokens
    for tensor in poisoned:
        tensor[:, padding] = float("nan")
    options: dict[str, Any] = {"q_layout": "tiled", "kv_layout": "tiled", "gate": poisoned[3], "return_lse": True}
    tiled = video_sparse_attention(*poisoned[:3], grid=GRID, topk=2, **options)
    torch.testing.assert_close(layout.to_raster(tiled.out), raster.out, atol=ROUNDING, rtol=ROUNDING)
    assert tiled.lse is not None and raster.lse is not None
    torch.testing.assert_close(tiled.lse[:, :, layout.rows()], raster.lse)


def test_rope_is_a_rotation_of_channel_pairs() -> None:
    q, k, v = _qkv()
    angles = torch.rand(math.prod(GRID), 4, dtype=torch.float64) * 6
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]
    rotated = [
        torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turns).flatten(-2) for x in (q, k)
    ]
    expected = video_sparse_attention(*rotated, v, grid=GRID, topk=2)
    found = video_sparse_attention(q, k, v, grid=GRID, topk=2, rope=(angles.cos(), angles.sin()))
    torch.testing.assert_close(found.out, expected.out, atol=ROUNDING, rtol=ROUNDING)


def test_gradients_pass_through_both_stages() -> None:
    q, k, v = (tensor[:1, :, :2].float().double() for tensor in _qkv())
    gate = torch.rand(1, math.prod(GRID), 2, 1, dtype=torch.float64)
    inputs = [tensor.clone().requires_grad_() for tensor in (q, k, v, gate)]

    def gradients(impl: str) -> tuple[Tensor, ...]:
        out = video_sparse_attention(*inputs[:3], grid=GRID, topk=2, gate=inputs[3], impl=impl).out
        return torch.autograd.grad((out * torch.arange(8)).sum(), inputs)

    for found, expected in zip(gradients("cpu"), gradients("reference"), strict=True):
        torch.testing.assert_close(found, expected, atol=ELEMENT, rtol=ELEMENT)
    step = 1e-4 * torch.randn_like(v)  # v is not in the selection, so the output is linear in it
    difference = video_sparse_attention(q, k, v + step, grid=GRID, topk=2, gate=gate).out
    difference = difference - video_sparse_attention(q, k, v, grid=GRID, topk=2, gate=gate).out
    slope = (torch.autograd.grad((_out(inputs) * torch.arange(8)).sum(), inputs[2])[0] * step).sum()
    assert (difference * torch.arange(8)).sum().item() == pytest.approx(slope.item(), rel=1e-4)


def _out(inputs: list[Tensor]) -> Tensor:
    return video_sparse_attention(*inputs[:3], grid=GRID, topk=2, gate=inputs[3]).out


def test_coarse_is_added_only_with_a_gate_or_on_demand() -> None:
    q, k, v = _qkv()
    fine = video_sparse_attention(q, k, v, grid=GRID, topk=2).out
    ones = torch.ones(1, dtype=torch.float64)
    assert torch.equal(video_sparse_attention(q, k, v, grid=GRID, topk=2, gate=ones, coarse=False).out, fine)
    summed = video_sparse_attention(q, k, v, grid=GRID, topk=2, coarse=True).out
    torch.testing.assert_close(video_sparse_attention(q, k, v, grid=GRID, topk=2, gate=ones).out, summed)
    assert (summed - fine).abs().max() > 0.01


def test_recall_is_the_mass_of_the_selected_tiles() -> None:
    q, k, v = _qkv()
    found = video_sparse_attention(q, k, v, grid=GRID, tile=(2, 2, 3), topk=3, probe=math.prod(GRID))
    layout, tiles = tile_layout(GRID, (2, 2, 3)), _tiles(tile_layout(GRID, (2, 2, 3)))
    assert found.recall is not None
    for b, h in product(range(2), range(4)):
        weights = torch.softmax(q[b, :, h] @ k[b, :, h // 2].T * 8**-0.5, dim=-1)
        mass = 0.0
        for i, tile in enumerate(tiles):
            seen = [token for j in found.selection.indices[b, h, i].tolist() for token in tiles[j]]
            mass += weights[tile][:, seen].sum().item()
        assert found.recall[b, h].item() == pytest.approx(mass / layout.num_tokens, rel=1e-4)


def test_finer_estimates_see_what_the_mean_hides() -> None:
    """Two halves of a tile that cancel in the mean still attract the queries."""
    layout = tile_layout((4, 4, 8), (4, 4, 4))
    k = torch.zeros(1, 128, 1, 8)
    tiled = layout.to_tiles(k)
    tiled[:, 64:96, 0, 0], tiled[:, 96:, 0, 0] = 20.0, -20.0  # tile 1: mean 0
    tiled[:, :64, 0, 0] = 0.5  # tile 0: mean 0.5, and no key that stands out
    k = layout.to_raster(tiled)
    q = torch.zeros(1, 128, 1, 8)
    q[..., 0] = 1.0
    pick = {
        parts: video_sparse_attention(q, k, k, grid=(4, 4, 8), topk=1, estimator=Estimator(parts=parts)).selection.indices
        for parts in (1, 2, 4)
    }
    assert (pick[1] == 0).all() and (pick[2] == 1).all() and (pick[4] == 1).all()


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


def test_gradients_of_heads_with_budgets_of_their_own() -> None:
    tensors = [each.requires_grad_() for each in _qkv()]
    options: dict[str, Any] = {"grid": GRID, "tile": (2, 2, 3)}

    def gradients(topk: int | tuple[int, ...], heads: list[int]) -> list[Tensor]:
        out = video_sparse_attention(*tensors, topk=topk, **options).out
        return [*torch.autograd.grad(out[:, :, heads].square().sum(), tensors)]

    mixed = gradients((1, 5, 5, 12), [0, 1, 2, 3])
    alone = [gradients(number, heads) for number, heads in ((1, [0]), (5, [1, 2]), (12, [3]))]
    for found, *parts in zip(mixed, *alone, strict=True):
        torch.testing.assert_close(found, sum(parts))


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


def test_forced_tiles_are_always_there() -> None:
    q, k, v = _qkv((6, 5, 6))
    found = video_sparse_attention(q, k, v, grid=(6, 5, 6), tile=(2, 3, 3), topk=5, forced=Forced(own=True, first_frames=1))
    seen = found.selection.mask(12)
    assert seen[..., :4].all() and seen.diagonal(dim1=-2, dim2=-1).all() and (found.selection.counts == 5).all()
    with pytest.raises(ConfigError, match="forced: 5 key tiles are forced, but 4 of 12 are selected; select more"):
        video_sparse_attention(q, k, v, grid=(6, 5, 6), tile=(2, 3, 3), topk=4, forced=Forced(own=True, first_frames=2))
    with pytest.raises(ConfigError, match="own needs one layout"):
        video_sparse_attention(q[:, :30], k, v, grid=(1, 5, 6), kv_grid=(6, 5, 6), topk=1, forced=Forced(own=True))
    with pytest.raises(ConfigError, match="expected 0 to 6 frames"):
        video_sparse_attention(q, k, v, grid=(6, 5, 6), topk=1, forced=Forced(first_frames=7))


@pytest.mark.parametrize(
    ("sparsity", "tiles", "expected"),
    [(0.9, 100, 10), (0.7, 10, 3), (0.8, 10, 2), (0.95, 624, 32), (0, 7, 7), (0.999, 5, 1), (0.5, 5, 3)],
)
def test_sparsity_is_a_share_of_the_tiles(sparsity: float, tiles: int, expected: int) -> None:
    assert budget(None, sparsity, 3, tiles) == (expected,) * 3


def test_pooling_ignores_padding_and_takes_empty_tiles_as_0() -> None:
    tiled = torch.randn(2, 192, 3, 5)
    tiled[:, 70:] = float("nan")
    means = pool(tiled, torch.tensor([64, 6, 0], dtype=torch.int32), 64)
    expected = torch.stack([tiled[:, :64].mean(dim=1), tiled[:, 64:70].mean(dim=1), torch.zeros(2, 3, 5)], dim=2)
    torch.testing.assert_close(means, expected)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"topk": None}, ConfigError, "give either topk or sparsity; got topk=None, sparsity=None"),
        ({"sparsity": 0.5}, ConfigError, "give either topk or sparsity"),
        ({"topk": 0}, ConfigError, "topk: got 0, expected 1 to 4"),
        ({"topk": (1, 2)}, ConfigError, "topk: got 2 numbers, expected one, or one for each of 4 heads"),
        ({"topk": None, "sparsity": 1.0}, ConfigError, "sparsity: got 1.0, expected 0"),
        ({"grid": (3, 5, 7)}, ShapeError, r"q: got 90 rows, expected 105 in raster order .*; q is \[batch, rows, heads"),
        ({"kv_grid": (3, 5, 7)}, ShapeError, "k: got 90 rows, expected 105"),
        ({"q_layout": "tiled"}, ShapeError, "q: got 90 rows, expected 256 in tiled order"),
        ({"q_layout": "columns"}, ConfigError, "layout of q: got 'columns', expected 'raster' or 'tiled'"),
        ({"gate": torch.ones(3)}, ShapeError, r"gate: got shape \(3,\), expected what broadcasts to q's \(2, 90, 4, 8\)"),
        ({"gate": 0.5}, ConfigError, r"gate: got 0.5, expected a tensor of what broadcasts to q's \(2, 90, 4, 8\)"),
        (
            {"topk": torch.tensor(2)},
            ConfigError,
            r"topk: got a tensor of shape \(\) and torch.int64, expected an int, or a sequence",
        ),
        (
            {"topk": torch.tensor([1, 2, 1, 1])},
            ConfigError,
            r"topk: got a tensor of shape \(4,\) and torch.int64, expected an int",
        ),
        ({"topk": 2.0}, ConfigError, "topk: got 2.0, expected an int, or a sequence with one for each head"),
        ({"topk": ("2", 1, 1, 1)}, ConfigError, "topk: got '2', expected an int"),
        ({"topk": None, "sparsity": "0.9"}, ConfigError, r"sparsity: got '0.9', expected 0 \(dense\) to below 1"),
        ({"grid": 90}, ConfigError, r"grid: got 90, expected \(time, height, width\)"),
        ({"tile": 4.0}, ConfigError, r"tile: got 4.0, expected \(time, height, width\)"),
        ({"forced": True}, ConfigError, "forced: got True, expected a strobe.Forced"),
        ({"estimator": 4}, ConfigError, "estimator: got 4, expected a strobe.Estimator"),
        ({"probe": 0.0}, ConfigError, "probe: got 0.0, expected 0 for none or a number of queries"),
        ({"grid": list(GRID), "topk": 2.0}, ConfigError, "topk: got 2.0, expected an int"),
        ({"estimator": Forced()}, ConfigError, "estimator: got a Forced, expected a strobe.Estimator"),
        ({"rope": (torch.ones(90, 4), torch.ones(89, 4))}, ShapeError, r"rope sin: got shape \(89, 4\) on cpu"),
        ({"probe": "64"}, ConfigError, "probe: got '64', expected 0 for none or a number of queries"),
        ({"rope": (1.0, 2.0)}, ConfigError, r"rope: got 1.0, expected \(cos, sin\), two tensors"),
        ({"softmax_scale": "small"}, ConfigError, "softmax_scale: got 'small', expected a number"),
        ({"q": [1.0]}, ConfigError, r"q: got a list, expected a tensor \[B, S, H, D\]"),
        ({"rope": (torch.ones(90, 8),) * 2}, ShapeError, r"rope cos: got shape \(90, 8\) on cpu, expected \(90, 4\)"),
        ({"estimator": Estimator(parts=3)}, ConfigError, "estimator: got 3 parts, expected a divisor of the block's 64 rows"),
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
        first = video_sparse_attention(q, k, v, grid=GRID, topk=2, gate=q, rope=rope)
        monkeypatch.setattr(video, "_call_of", lambda *_, **__: pytest.fail("the call was checked again"))
        again = video_sparse_attention(q, k, v, grid=GRID, topk=2, gate=q, rope=rope)
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
    graded = explain(q.requires_grad_(), k, v, grid=GRID, sparsity=0.5, tile="auto", gate=torch.ones(1))
    assert graded.note == "the stages around it run in PyTorch: a gradient is asked for"
    assert explain(q, k, v, grid=GRID, topk=2, impl="reference").impl.name == "reference"
    with pytest.raises(ConfigError, match="topk: got 9, expected 1 to 4"):
        explain(q, k, v, grid=GRID, topk=9)
    with pytest.raises(ConfigError, match="topk: an argument of video_sparse_attention alone; give its grid"):
        explain(q, k, v, topk=2)
    with pytest.raises(ConfigError, match="selection: got one beside grid"):
        explain(q, k, v, video_sparse_attention(q, k, v, grid=GRID, topk=2).selection, grid=GRID, topk=2)


def test_rope_needs_positions_it_can_know() -> None:
    q, k, v = _qkv((3, 5, 6), (7, 5, 6))
    with pytest.raises(ConfigError, match="rope: needs q and k of one grid in raster order; rotate them before"):
        video_sparse_attention(q, k, v, grid=(3, 5, 6), kv_grid=(7, 5, 6), topk=1, rope=(torch.ones(90, 4), torch.ones(90, 4)))
