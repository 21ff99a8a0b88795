"""Skipped tiles by their means: against a plain walk over the definition, and nearer to dense attention than without."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from real_like import error
from strobe.attention.dense.api import dense_attention
from strobe.attention.sparse import skipped
from strobe.attention.sparse.coarse import Forced
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.sparse.video import video_sparse_attention
from strobe.core.errors import ConfigError
from strobe.core.tolerances import tolerance

GRIDS = ((3, 5, 6), (1, 1, 1), (5, 6, 7), (7, 9, 1))
NEAR = tolerance("sparse element", "float64")


def drawn(grid: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sum(grid))
    sizes = ((math.prod(grid), heads, 8) for heads in (4, 2, 2))
    q, k, v = (torch.randn(2, *size, generator=generator, dtype=torch.float64) for size in sizes)
    return q, k, v


@pytest.mark.parametrize("most", [2**25, 1])
@pytest.mark.parametrize("grid", GRIDS)
def test_each_skipped_tile_is_one_key_of_its_weight(grid: tuple[int, ...], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skipped, "_MOST", most)  # all tiles at a time, or one
    layout = tile_layout(grid, (3, 4, 4))
    operands = [each.requires_grad_() for each in drawn(grid)]
    q, k, v = operands
    options: dict[str, Any] = {"grid": grid, "tile": (3, 4, 4), "topk": -(-layout.num_tiles // 3), "return_lse": True}
    found = video_sparse_attention(*operands, **options, pool_skipped=True)
    mask = found.selection.mask(layout.num_tiles)
    tiles = [row[row < layout.num_tokens] for row in layout.tokens().view(layout.num_tiles, -1)]
    out, lse = torch.zeros_like(q), torch.zeros(2, 4, q.shape[1], dtype=q.dtype)
    for b, h, i in itertools.product(range(2), range(4), range(len(tiles))):
        keys, values, rows = k[b, :, h // 2], v[b, :, h // 2], tiles[i]
        seen = [(keys[tile], values[tile], 1) for j, tile in enumerate(tiles) if mask[b, h, i, j]]
        seen += [
            (keys[tile].mean(0, True), values[tile].mean(0, True), len(tile))
            for j, tile in enumerate(tiles) if not mask[b, h, i, j]
        ]  # fmt: skip
        weights = torch.cat([torch.full(key.shape[:1], math.log(n)) for key, _, n in seen])
        logits = q[b, rows, h] @ torch.cat([key for key, _, _ in seen]).T * 8**-0.5 + weights
        out[b, rows, h] = torch.softmax(logits, -1) @ torch.cat([value for _, value, _ in seen])
        lse[b, h, rows] = logits.logsumexp(-1)
    torch.testing.assert_close(found.out, out, atol=NEAR, rtol=NEAR)
    assert found.lse is not None
    torch.testing.assert_close(found.lse.double(), lse, atol=NEAR, rtol=NEAR)
    near = tolerance("gradient through an lse", "float32")  # the lse between both parts is float32
    for got, want in zip(
        *(torch.autograd.grad(each.sin().sum() + total.sum(), operands) for each, total in ((found.out, found.lse), (out, lse))),
        strict=True,
    ):
        torch.testing.assert_close(got, want, atol=near, rtol=near)


@pytest.mark.parametrize("options", [{"topk": 2}, {"share": 0.5}], ids=str)
def test_keys_that_are_equal_in_a_tile_make_it_dense_attention(options: dict[str, Any]) -> None:
    layout = tile_layout((5, 6, 7), (4, 4, 4))
    q, k, v = drawn(layout.grid)
    rows = layout.rows() // layout.block  # tile of each token
    k = k[:, : layout.num_tiles][:, rows]
    found = video_sparse_attention(q, k, v, grid=layout.grid, pool_skipped=True, return_lse=True, probe=9, **options)
    dense = dense_attention(q, k, v, impl="reference", return_lse=True)
    torch.testing.assert_close(found.out, dense.out, atol=NEAR, rtol=NEAR)
    assert found.lse is not None and dense.lse is not None and found.recall is not None
    torch.testing.assert_close(found.lse, dense.lse)
    assert (found.recall < 0.99).all(), "the recall is that of the selected tiles alone"


def test_all_tiles_skip_nothing_and_padding_is_not_read() -> None:
    layout = tile_layout((3, 5, 6), (4, 4, 4))
    operands = [each.float() for each in drawn(layout.grid)]
    tiled = [layout.to_tiles(each) for each in operands]
    padding = layout.tokens() == layout.num_tokens
    for each, poison in zip(tiled, (math.nan, 9.0, -9.0), strict=True):
        each[:, padding] = poison
    near = tolerance("element", "float32")
    for number in (1, layout.num_tiles):
        options: dict[str, Any] = {"grid": layout.grid, "topk": number, "pool_skipped": True}
        plain = video_sparse_attention(*operands, **options)
        found = video_sparse_attention(*tiled, **options, q_layout="tiled", kv_layout="tiled", return_lse=True)
        torch.testing.assert_close(layout.to_raster(found.out), plain.out, atol=near, rtol=near)
        assert found.lse is not None
        assert (found.out[:, padding] == 0).all() and found.lse[..., padding].isneginf().all() and plain.lse is None
    dense = dense_attention(*operands, impl="reference").out
    torch.testing.assert_close(plain.out, dense, atol=near, rtol=near)


def structured(grid: tuple[int, int, int], heads: int = 3, width: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of low rank that change slowly in time, height and width, and a part of their own."""
    generator = torch.Generator().manual_seed(5)
    field = torch.randn(1, 8, *(2 + size // 4 for size in grid), generator=generator)
    field = torch.nn.functional.interpolate(field, size=grid, mode="trilinear")[0].flatten(1).T  # [S, 8]

    def projected(size: float) -> Tensor:
        weight = torch.randn(8, heads, width, generator=generator) / 8**0.5
        own = torch.randn(field.shape[0], heads, width, generator=generator)
        return size * (torch.einsum("sc,chd->shd", field, weight) + 0.3 * own)[None]

    return projected(1.5), projected(1.5), projected(1.0)


def errors(operands: tuple[Tensor, Tensor, Tensor], grid: tuple[int, int, int], **options: Any) -> tuple[float, float]:
    """Relative error against dense attention, without the skipped tiles and with their means."""
    dense = dense_attention(*operands, impl="reference").out
    without, with_means = (
        error(video_sparse_attention(*operands, grid=grid, pool_skipped=pooled, **options).out, dense) for pooled in (False, True)
    )
    return without, with_means


@pytest.mark.parametrize("options", [{"sparsity": 0.8}, {"sparsity": 0.9, "forced": Forced(own=True)}, {"share": 0.6}], ids=str)
def test_means_of_what_is_skipped_lower_the_error(options: dict[str, Any]) -> None:
    grid = (8, 13, 14)
    without, with_means = errors(structured(grid), grid, **options)
    assert with_means < 0.6 * without, f"structured: {without:.3f} without, {with_means:.3f} with"
    generator = torch.Generator().manual_seed(6)
    noise = [torch.randn(1, math.prod(grid), 3, 32, generator=generator) for _ in range(3)]
    without, with_means = errors((noise[0], noise[1], noise[2]), grid, **options)
    assert with_means < without, f"random: {without:.3f} without, {with_means:.3f} with"


def test_beside_a_coarse_output_it_is_refused() -> None:
    q, k, v = drawn((3, 5, 6))
    for change in ({"gate": q}, {"coarse": True}):
        with pytest.raises(ConfigError, match="pool_skipped: got True beside a coarse output"):
            video_sparse_attention(q, k, v, grid=(3, 5, 6), topk=1, pool_skipped=True, **change)
    with pytest.raises(ConfigError, match="pool_skipped: got 0.5, expected True or False"):
        video_sparse_attention(q, k, v, grid=(3, 5, 6), topk=1, pool_skipped=0.5)  # type: ignore[arg-type]
