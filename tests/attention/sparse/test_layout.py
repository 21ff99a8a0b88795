"""Tiling is a permutation with padding at each tile's end, for any grid."""

from __future__ import annotations

import gc
import weakref
from itertools import product
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strobe.attention.sparse import layout
from strobe.attention.sparse.layout import TileLayout, tile_layout
from strobe.core.errors import ShapeError

_GRIDS = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
_TILES = st.sampled_from([(4, 4, 4), (2, 8, 8), (4, 8, 8), (3, 5, 4), (1, 8, 8), (1, 1, 1), (5, 3, 2)])


def _by_loops(layout: TileLayout) -> tuple[list[int], list[int]]:
    """Row of each token and size of each tile, by walking tile after tile."""
    row_of: dict[tuple[int, ...], int] = {}
    sizes = []
    counts = [range(-(-size // step)) for size, step in zip(layout.grid, layout.tile, strict=True)]
    for place in product(*counts):
        starts = [i * step for i, step in zip(place, layout.tile, strict=True)]
        ends = [min(s + step, size) for s, step, size in zip(starts, layout.tile, layout.grid, strict=True)]
        tokens = list(product(*map(range, starts, ends)))
        row_of |= {token: len(sizes) * layout.block + inside for inside, token in enumerate(tokens)}
        sizes.append(len(tokens))
    return [row_of[key] for key in sorted(row_of)], sizes


@given(_GRIDS, _TILES)
def test_the_tables_are_those_of_a_walk(grid: tuple[int, int, int], tile: tuple[int, int, int]) -> None:
    layout = tile_layout(grid, tile)
    rows, sizes = _by_loops(layout)
    assert layout.rows().tolist() == rows and layout.sizes().tolist() == sizes
    assert (layout.num_tokens, layout.num_tiles, layout.num_rows) == (len(rows), len(sizes), len(sizes) * layout.block)
    tokens = layout.tokens().tolist()
    assert [tokens[row] for row in rows] == list(range(len(rows)))
    assert sum(token == layout.num_tokens for token in tokens) == layout.num_rows - layout.num_tokens
    assert layout.padding == pytest.approx(layout.num_rows / prod(grid) - 1)


def test_an_int_is_the_tokens_of_a_block() -> None:
    assert tile_layout((21, 30, 52), 64) == TileLayout((21, 30, 52), (4, 4, 4), 64)
    assert tile_layout((21, 30, 52), 128).tile == (2, 8, 8) and tile_layout((21, 30, 52), 256).tile == (4, 8, 8)
    assert tile_layout((8, 8, 8), (2, 2, 2), block=128).block == 128


def test_auto_takes_the_fewest_rows() -> None:
    layout = tile_layout((21, 30, 52), "auto")
    assert layout.num_rows <= tile_layout((21, 30, 52), (3, 5, 4)).num_rows < tile_layout((21, 30, 52), (4, 4, 4)).num_rows
    assert round(tile_layout((21, 30, 52), (4, 4, 4)).padding, 2) == 0.22
    assert layout.padding < 0.07 and min(layout.tile) >= 2 and max(layout.tile) <= 8
    chunk = tile_layout((3, 30, 52), "auto")
    assert chunk.num_rows < tile_layout((3, 30, 52), (4, 4, 4)).num_rows
    assert tile_layout((1, 1, 1), "auto").num_tiles == 1
    assert tile_layout((1, 30, 52), "auto").padding < 0.15  # a slab: one frame of a frame-granular cache
    assert tile_layout((16, 16, 16), "auto").tile == (4, 4, 4)  # the cube, where nothing pads less


def test_what_a_recorded_graph_reads_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    class Table:
        """Something that can be watched."""

    monkeypatch.setattr(layout, "_RECORDED", set())
    alive = []
    for place, recording in (("cuda", True), ("cuda", False), ("cpu", True)):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda recording=recording: recording)
        seen = weakref.ref(layout.held(Table(), torch.device(place)))
        gc.collect()
        alive.append(seen() is not None)
    assert alive == [True, False, False]


@pytest.mark.parametrize(
    ("grid", "tile", "block", "message"),
    [
        ((0, 4, 4), 64, None, r"grid: got \(0, 4, 4\)"),
        ((4, 4), 64, None, r"grid: got \(4, 4\), expected three positive"),
        ((0, 4, 4), "auto", None, r"grid: got \(0, 4, 4\)"),
        ((4, 4, 4.0), "auto", None, r"grid: got \(4, 4, 4.0\), expected three positive"),
        ((4, 4, 4), 32, None, "tile: got 32 tokens, expected one of 64, 128, 256"),
        ((4, 4, 4), (4, 4), None, r"tile: got \(4, 4\)"),
        ((4, 4, 4), (8, 8, 8), None, "holds 512 tokens, expected at most 256"),
        ((4, 4, 4), (4, 4, 4), 32, "block: got 32 tokens, expected one of 64, 128, 256"),
        ((4, 4, 4), (4, 8, 8), 64, "holds 256 tokens, expected at most the block's 64"),
        ((4, 4, 4), "cube", None, "tile: got 'cube'"),
    ],
)
def test_what_does_not_fit_is_refused(grid: object, tile: object, block: int | None, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        tile_layout(grid, tile, block)  # type: ignore[arg-type]


def test_another_number_of_tokens_is_refused() -> None:
    layout = tile_layout((2, 2, 2), 64)
    with pytest.raises(ShapeError, match=r"raster: got shape \(1, 7, 3\), expected \[B, 8, ...\]"):
        layout.to_tiles(torch.zeros(1, 7, 3))
    with pytest.raises(ShapeError, match=r"tiled: got shape \(1, 8, 3\), expected \[B, 64, ...\]"):
        layout.to_raster(torch.zeros(1, 8, 3))


def test_an_export_leaves_no_fake_tables_behind() -> None:
    class InTiles(torch.nn.Module):
        def forward(self, raster: torch.Tensor) -> torch.Tensor:
            return tile_layout((3, 5, 7), (2, 3, 4)).to_tiles(raster)

    raster = torch.arange(105.0).view(1, 105, 1)
    exported = torch.export.export(InTiles(), (raster,)).module()
    assert type(InTiles()(raster)) is torch.Tensor and torch.equal(exported(raster), InTiles()(raster))
