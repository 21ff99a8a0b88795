"""The grid of the attention benchmark: shapes, sparsities, block sizes, directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod
from typing import Final

from strobe.attention.sparse.layout import BLOCKS, TileLayout, Triple, tile_layout
from strobe.core.errors import ConfigError, unknown_choice


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """One self-attention call over a video.

    Args:
        name: as records and reports write it; without `_`.
        grid: tokens in (time, height, width).
        num_heads, head_dim: sizes of q, k and v.
    """

    name: str
    grid: Triple
    num_heads: int
    head_dim: int = 128

    @property
    def num_tokens(self) -> int:
        """Tokens of the grid."""
        return prod(self.grid)


SHAPES: Final = (
    Shape(name="wan-1.3b-480p", grid=(21, 30, 52), num_heads=12),
    Shape(name="wan-14b-720p", grid=(21, 45, 80), num_heads=40),
    Shape(name="hunyuan-video", grid=(33, 45, 80), num_heads=24),
    Shape(name="16k", grid=(16, 32, 32), num_heads=12),
    Shape(name="32k", grid=(32, 32, 32), num_heads=12),
    Shape(name="48k", grid=(48, 32, 32), num_heads=12),
    Shape(name="quick", grid=(5, 9, 12), num_heads=2, head_dim=64),
    Shape(name="quick-4k", grid=(8, 16, 32), num_heads=2, head_dim=64),
)
"""Latent grids of published models, plain sequences of whole tiles, and two small grids for a CPU: one with partial tiles,
and one long enough to measure an effect of sparsity."""
SPARSITIES: Final = (0.5, 0.7, 0.8, 0.9, 0.95)
TILES: Final = ("auto", "cube")
GRIDS: Final = ("published", "full", "scenarios", "quick")
SCENARIOS: Final = {"memory-limited": (8, 64), "maximum performance": (16, 256), "quality-critical": (32, 128)}
"""Key tiles and block size that a public guide names for each case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GridCell:
    """One entry of the grid; all implementations compute the same call.

    Args:
        sparsity: share of the key tiles that is skipped; None where `topk` is given.
        topk: key tiles that every query tile sees; None where `sparsity` is given.
        block: tokens of an attention block.
        backward: the gradient is measured, not the output.
    """

    shape: Shape
    sparsity: float | None
    block: int
    topk: int | None = None
    backward: bool = False

    @property
    def name(self) -> str:
        """Name of the cell's folder: shape, budget, block and direction."""
        budget = f"s{self.sparsity:g}" if self.topk is None else f"k{self.topk}"
        return f"{self.shape.name}_{budget}_b{self.block}_{'backward' if self.backward else 'forward'}"

    def selected(self, tiles: TileLayout) -> int:
        """Return the key tiles per query tile: `max(1, ceil((1 - sparsity) * tiles))`, or `topk`, at most all of them."""
        if self.topk is not None:
            return min(self.topk, tiles.num_tiles)
        assert self.sparsity is not None
        return max(1, ceil(round((1 - self.sparsity) * tiles.num_tiles, 9)))


def shape_named(name: str) -> Shape:
    """Return one of `SHAPES`.

    Raises:
        ConfigError: no such shape.
    """
    for shape in SHAPES:
        if shape.name == name:
            return shape
    raise unknown_choice("shape", name, [shape.name for shape in SHAPES])


def cells(
    shapes: Sequence[Shape],
    sparsities: Sequence[float],
    blocks: Sequence[int],
    *,
    topks: Sequence[int] = (),
    directions: Sequence[bool] = (False,),
) -> tuple[GridCell, ...]:
    """Return every combination of the arguments, shape by shape.

    Args:
        topks: numbers of key tiles, beside the sparsities.
        directions: False for forward, True for backward.

    Raises:
        ConfigError: a value that is not possible, or nothing to measure.
    """
    for block in blocks:
        if block not in BLOCKS:
            raise ConfigError(f"blocks: got {block}, allowed: {', '.join(map(str, BLOCKS))}")
    for sparsity in sparsities:
        if not 0 <= sparsity < 1:
            raise ConfigError(f"sparsity: got {sparsity:g}, expected 0 (all tiles) to below 1")
    if any(topk < 1 for topk in topks):
        raise ConfigError(f"topk: got {min(topks)}, expected 1 or more")
    budgets = [*((sparsity, None) for sparsity in sparsities), *((None, topk) for topk in topks)]
    found = tuple(
        GridCell(shape=shape, sparsity=sparsity, topk=topk, block=block, backward=backward)
        for shape, backward, (sparsity, topk), block in product(shapes, directions, budgets, blocks)
    )
    if not found:
        raise ConfigError("the grid is empty: name at least one shape, one sparsity or topk, and one block size")
    return found


def scenario_cells(shapes: Sequence[Shape]) -> tuple[GridCell, ...]:
    """Return the cells that the advice is based on: the public guide's settings, and four sparsities per block size."""
    guide = tuple(
        GridCell(shape=shape, sparsity=None, topk=topk, block=block) for shape in shapes for topk, block in SCENARIOS.values()
    )
    return guide + cells(shapes, (0.7, 0.8, 0.9, 0.95), BLOCKS)


def layout_of(shape: Shape, block: int, tile: str) -> TileLayout:
    """Return the tiles of a cell.

    Args:
        tile: one of `TILES`: `auto` for the fewest padding rows, `cube` for the usual tile of that block size.
    """
    return tile_layout(shape.grid, "auto" if tile == "auto" else block, block)
