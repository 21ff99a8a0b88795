"""Tiles: the tokens of a video in cubes, so that one block of attention is a neighbourhood in space and time.

Raster order is frame by frame, row by row. Tile order is tile by tile in (time, height, width) order, and raster order inside a
tile. Each tile fills one block of `block` rows: its valid tokens come first, padding rows follow. Tiles at the edge of the grid
hold fewer tokens; their shapes are those of the grid's remainder. Source: Video Sparse Attention, arXiv 2505.13389.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, floor, prod
from operator import index
from typing import Any, Final, Literal, TypeVar

import torch
from torch import Tensor

from strobe.attention.types import constant_when_traced
from strobe.core.errors import ShapeError

BLOCKS: Final = (64, 128, 256)
"""Tokens of an attention block, of queries and of keys."""

Triple = tuple[int, int, int]
Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class TileLayout:
    """The division of a grid of tokens into tiles; equal by value, and so are its cached index tensors.

    Args:
        grid: tokens in (time, height, width).
        tile: tokens of a whole tile in (time, height, width).
        block: rows that a tile takes: one of `BLOCKS`, at least the tile's volume.

    Raises:
        ShapeError: a size that is not positive, or a tile that does not fit a block.
    """

    grid: Triple
    tile: Triple
    block: int

    def __post_init__(self) -> None:
        for name, sizes in (("grid", self.grid), ("tile", self.tile)):
            if len(sizes) != 3 or any(not isinstance(size, int) or size < 1 for size in sizes):
                raise ShapeError(f"{name}: got {sizes}, expected three positive integers (time, height, width)")
        check_block(self.block)
        if prod(self.tile) > self.block:
            raise ShapeError(f"tile: {self.tile} holds {prod(self.tile)} tokens, expected at most the block's {self.block}")

    @property
    def num_tokens(self) -> int:
        """Tokens of the grid."""
        return prod(self.grid)

    @property
    def num_tiles(self) -> int:
        """Tiles, those at the edges included."""
        return prod([-(-size // step) for size, step in zip(self.grid, self.tile, strict=True)])  # a list: a compiler takes it

    @property
    def num_rows(self) -> int:
        """Rows in tile order, padding included."""
        return self.num_tiles * self.block

    @property
    def whole(self) -> bool:
        """Whether every row of every tile is a token."""
        return self.num_rows == self.num_tokens

    @property
    def padding(self) -> float:
        """Share of extra rows that every pass over the tokens pays: rows in tile order / tokens - 1."""
        return self.num_rows / self.num_tokens - 1

    def sizes(self, device: torch.device | str = "cpu") -> Tensor:
        """Return the valid tokens of each tile, int32 `[num_tiles]`. Kept for every later call, so not to be written to."""
        return _tables(self, torch.device(device)).sizes

    def rows(self, device: torch.device | str = "cpu") -> Tensor:
        """Return the row in tile order of each token, int64 `[num_tokens]`; not to be written to either."""
        return _tables(self, torch.device(device)).rows

    def tokens(self, device: torch.device | str = "cpu") -> Tensor:
        """Return the token of each row in tile order, `num_tokens` for padding, int64 `[num_rows]`; nor is this."""
        return _tables(self, torch.device(device)).tokens

    def tokens_of(self, start: int, stop: int) -> Tensor:
        """Return the tokens of the tiles from `start` to below `stop` in raster order, int64: those of a rank that has these."""
        tiles = self.rows() // self.block
        return ((tiles >= start) & (tiles < stop)).nonzero().squeeze(1)

    def to_tiles(self, raster: Tensor) -> Tensor:
        """Reorder `[B, num_tokens, ...]` into tile order `[B, num_rows, ...]`; padding rows are 0.

        Raises:
            ShapeError: another number of tokens.
        """
        if raster.dim() < 2 or raster.shape[1] != self.num_tokens:
            raise ShapeError(
                f"raster: got shape {tuple(raster.shape)}, expected [B, {self.num_tokens}, ...] for grid {self.grid}"
            )
        tiled = raster.new_zeros(raster.shape[0], self.num_rows, *raster.shape[2:])
        return tiled.index_copy(1, self.rows(raster.device), raster)

    def to_raster(self, tiled: Tensor) -> Tensor:
        """Reorder `[B, num_rows, ...]` back into raster order `[B, num_tokens, ...]`; padding rows are dropped.

        Raises:
            ShapeError: another number of rows.
        """
        if tiled.dim() < 2 or tiled.shape[1] != self.num_rows:
            raise ShapeError(f"tiled: got shape {tuple(tiled.shape)}, expected [B, {self.num_rows}, ...] for {self}")
        return tiled.index_select(1, self.rows(tiled.device))


def check_block(block: int) -> None:
    """Raise ShapeError unless `block` is one of `BLOCKS`."""
    if block not in BLOCKS:
        raise ShapeError(f"block: got {block!r} tokens, expected one of {', '.join(map(str, BLOCKS))}")


def tile_layout(grid: Iterable[int], tile: Iterable[int] | int | Literal["auto"], block: int | None = None) -> TileLayout:
    """Cut a grid into tiles.

    Args:
        grid: tokens in (time, height, width).
        tile: tokens of a tile in (time, height, width); an int is the tokens of a block (`64` is (4, 4, 4)); `auto` takes the
            tile of at most `block` tokens with the fewest rows (padding included), the most cube-like among equals; no side is
            under a third or over twice that of a cube of `block` tokens (of a slab, where the grid is thinner than the cube).
        block: rows of a block, by default the smallest of `BLOCKS` that holds the tile; 64 for `auto`.

    Raises:
        ShapeError: no such tile or block.
    """
    cut = tuple(grid)
    if len(cut) != 3 or any(not isinstance(size, int) or size < 1 for size in cut):
        raise ShapeError(f"grid: got {cut}, expected three positive integers (time, height, width)")
    if tile == "auto":
        return _fewest_rows(cut, 64 if block is None else block)
    if isinstance(tile, str):
        raise ShapeError(f"tile: got {tile!r}, expected (time, height, width), a block size or 'auto'")
    if isinstance(tile, int):
        if tile not in _TILE_OF_BLOCK:
            raise ShapeError(f"tile: got {tile} tokens, expected one of {', '.join(map(str, BLOCKS))}, or (time, height, width)")
        return TileLayout(cut, _TILE_OF_BLOCK[tile], tile if block is None else block)
    shape = tuple(tile)
    if len(shape) != 3:
        raise ShapeError(f"tile: got {shape}, expected three positive integers (time, height, width)")
    fitting = [size for size in BLOCKS if prod(shape) <= size]
    if block is None and not fitting:
        raise ShapeError(f"tile: {shape} holds {prod(shape)} tokens, expected at most {BLOCKS[-1]}")
    return TileLayout(cut, shape, fitting[0] if block is None else block)


_TILE_OF_BLOCK: Final[dict[int, Triple]] = {64: (4, 4, 4), 128: (2, 8, 8), 256: (4, 8, 8)}


@lru_cache(maxsize=64)
def _fewest_rows(grid: Triple, block: int) -> TileLayout:
    check_block(block)
    volume, side = float(block), 0.0
    for left, size in zip((3, 2, 1), sorted(grid), strict=True):  # where the grid is thin, the other sides share the rest
        side = volume ** (1 / left)
        if size >= side:
            break
        volume /= size
    # sides far from the cube's would pad less still, but a tile one token wide is no neighbourhood
    sides = [range(min(size, ceil(side / 3)), min(size, floor(2 * side)) + 1) for size in grid]
    shapes = [shape for shape in product(*sides) if prod(shape) <= block]
    return min(
        (TileLayout(grid, (t, h, w), block) for t, h, w in shapes),
        key=lambda layout: (layout.num_rows, max(layout.tile) / min(layout.tile), layout.tile),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    sizes: Tensor
    rows: Tensor
    tokens: Tensor


_RECORDED: Final[set[Any]] = set()


def held(found: Kept, device: torch.device) -> Kept:
    """Return `found`; while a CUDA graph is recorded keep it for ever, because the graph may be replayed at any time."""
    if device.type == "cuda" and not torch.compiler.is_dynamo_compiling() and torch.cuda.is_current_stream_capturing():
        _RECORDED.add(found)
    return found


def made_apart(make: Callable[[], Kept]) -> Kept:
    """Return what `make` makes, on a thread of its own, for tensors that are kept from call to call.

    No mode of the caller reaches it, such as inference. And none of its tensors lies in the memory pool of a CUDA graph that the
    caller warms up or records: `mode="reduce-overhead"` of torch.compile refuses those that outlive a call.
    """
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(make).result()


def _tables(layout: TileLayout, device: torch.device) -> _Tables:
    """Return the index tensors of a layout, cached unless a dispatch mode (fake tensors, tracing) makes its own."""
    if torch.compiler.is_dynamo_compiling():  # torch.export compiles too, but runs this under its fake tensors
        return _traced(_plain(layout.grid), _plain(layout.tile), index(layout.block), str(device))
    if torch._C._len_torch_dispatch_stack():
        return _made(layout, device)
    return held(_kept(layout, device), device)


def _plain(sizes: Triple) -> Triple:
    first, second, third = sizes
    return index(first), index(second), index(third)


@constant_when_traced
def _traced(grid: Triple, tile: Triple, block: int, device: str) -> _Tables:
    """Return the index tensors as constants of a traced graph; the arguments are plain values, as a compiler needs them."""
    return _kept(TileLayout(grid, tile, block), torch.device(device))


@lru_cache(maxsize=64)
def _kept(layout: TileLayout, device: torch.device) -> _Tables:
    with torch.inference_mode(False):  # what an inference makes, training could not use
        return _made(layout, device)


def _made(layout: TileLayout, device: torch.device) -> _Tables:
    (times, heights, widths), (step_t, step_h, step_w) = layout.grid, layout.tile
    t, h, w = torch.meshgrid(torch.arange(times), torch.arange(heights), torch.arange(widths), indexing="ij")
    across = -(-heights // step_h), -(-widths // step_w)
    tile = ((t // step_t) * across[0] + h // step_h) * across[1] + w // step_w  # [T, H, W], of each token
    extent_h = (heights - h // step_h * step_h).clamp(max=step_h)  # of the token's tile
    extent_w = (widths - w // step_w * step_w).clamp(max=step_w)
    inside = ((t % step_t) * extent_h + h % step_h) * extent_w + w % step_w
    rows = (tile * layout.block + inside).flatten()
    tokens = torch.full((layout.num_rows,), layout.num_tokens)
    tokens[rows] = torch.arange(layout.num_tokens)
    extents = [
        (size - torch.arange(0, size, step)).clamp(max=step) for size, step in zip(layout.grid, layout.tile, strict=True)
    ]  # of the tiles along each side
    sizes = (extents[0][:, None, None] * extents[1][:, None] * extents[2]).flatten().to(torch.int32)
    found = _Tables(sizes=sizes.to(device), rows=rows.to(device), tokens=tokens.to(device))
    for table in (found.sizes, found.rows, found.tokens):  # as torch._dynamo.mark_static, which imports the whole compiler
        table._dynamo_static_indices = {0}  # type: ignore[attr-defined]
    return found
