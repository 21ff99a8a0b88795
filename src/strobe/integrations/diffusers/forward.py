"""State shared by the layers of a transformer: the options of `sparsify`, and facts of the running forward pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor
from typing import Any, Literal

import torch
from torch import Tensor

from strobe.attention.sparse.coarse import Forced, budget, forced_blocks
from strobe.attention.sparse.layout import tile_layout
from strobe.core.errors import ConfigError, ShapeError

Rope = tuple[Tensor, Tensor]
Triple = tuple[int, int, int]
TileName = tuple[int, ...] | int | Literal["auto"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseOptions:
    """Options of the layers' sparse attention.

    Args:
        sparsity: share of the key tiles that a sparse layer skips.
        tile: as in `video_sparse_attention`.
        impl: of the fine stage, as in `video_sparse_attention`.
        forced: key tiles that are selected whatever they score.
        dense_steps: denoise steps in which every layer is dense, counted from 0.
        dense_layers: layers that are dense in every step, counted from 0.
    """

    sparsity: float
    tile: TileName
    impl: str
    forced: Forced
    dense_steps: frozenset[int]
    dense_layers: frozenset[int]


def numbers_of(name: str, given: int | Iterable[int], most: int | None = None) -> frozenset[int]:
    """Return the numbers that an option names: the first `given`, or those listed.

    Args:
        most: numbers from 0 to below this are allowed; None for any.

    Raises:
        ConfigError: no such numbers.
    """
    wanted = "a number of them, counted from the first, or their numbers, counted from 0"
    if isinstance(given, bool) or not isinstance(given, (int, Iterable)) or isinstance(given, str):
        raise ConfigError(f"{name}: got {given!r}, expected {wanted}")
    numbers = frozenset(range(given)) if isinstance(given, int) else frozenset(given)
    if not all(isinstance(each, int) and each >= 0 for each in numbers) or (isinstance(given, int) and given < 0):
        raise ConfigError(f"{name}: got {given!r}, expected {wanted}")
    if most is not None and numbers and max(numbers) >= most:
        raise ConfigError(f"{name}: got {max(numbers)}, expected numbers below {most}: there are {most} of them")
    return numbers


def grid_of(given: Any) -> Triple:
    """Return a grid of tokens as it was given.

    Raises:
        ConfigError: it is none.
    """
    sizes = tuple(given) if isinstance(given, Iterable) else ()
    if len(sizes) != 3 or not all(type(size) is int and size > 0 for size in sizes):
        raise ConfigError(f"grid: got {given!r}, expected three positive integers (time, height, width)")
    t, h, w = sizes
    return t, h, w


class Forward:
    """Facts of the running forward pass; the transformer's pre-hook writes them, the layers read them.

    The attributes are plain: a compiler guards on the few that a layer reads.
    """

    def __init__(self, options: SparseOptions) -> None:
        self.options = options
        self.grid: Triple | None = None
        self.text_lengths: tuple[int, ...] = ()  # text tokens of each sample, padding left out
        self.dense = False  # the whole step is
        self.ran_dense = self.ran_sparse = False  # such a step was taken
        self.device: torch.device | None = None
        self.probe = 0  # queries that a recall is measured with
        self.recalls: dict[str, list[Tensor]] = {}
        self._turned: tuple[Tensor, Rope] | None = None  # Wan's angles, and the tables made of them

    def enter(self, grid: Triple, latents: Tensor) -> None:
        """Set the grid of a forward pass.

        Raises:
            ShapeError: the tile is larger than the grid.
            ConfigError: more key tiles are forced than selected.
        """
        if grid != self.grid:
            self.check_tile(grid)
            self.check_forced(grid)
            self.grid = grid
        self.device = latents.device

    def leave(self) -> None:
        """Drop what belongs to a forward pass that has ended."""
        self._turned = None

    def tables(self, angles: Rope) -> Rope:
        """Convert Wan's rotations `[1, S, 1, D]`, every angle twice, to (cos, sin), each `[S, D / 2]`, once for all layers.

        Under a compiler they are views, so that no compiled layer copies them in a kernel of its own.
        """
        if torch.compiler.is_compiling():
            return _halves(angles)
        if self._turned is None or self._turned[0] is not angles[0]:
            cos, sin = _halves(angles)
            self._turned = angles[0], (cos.contiguous(), sin.contiguous())
        return self._turned[1]

    def check_tile(self, grid: Triple) -> None:
        """Raise ShapeError if the tile that was asked for is larger than a grid."""
        if self.options.tile == "auto":
            return
        tile = tile_layout(grid, self.options.tile).tile
        if any(side > size for side, size in zip(tile, grid, strict=True)):
            raise ShapeError(
                f"tile: {tile} is larger than the video's grid of {grid} tokens in (time, height, width); "
                "give a smaller tile, or tile='auto'"
            )

    def check_forced(self, grid: Triple) -> None:
        """Raise ConfigError if more key tiles of a grid are forced than the sparsity selects."""
        options = self.options
        if options.forced == Forced() or options.sparsity == 0 or torch.compiler.is_compiling():
            return
        layout = tile_layout(grid, options.tile)
        tiles, selected = layout.num_tiles, budget(None, options.sparsity, 1, layout.num_tiles)[0]
        forced = forced_blocks(options.forced, layout, layout, (tiles,))
        most = 0 if forced is None else int(forced.sum(dim=-1).max())
        if most > selected:
            raise ConfigError(
                f"forced: {most} of {tiles} key tiles are forced, but sparsity={options.sparsity} selects {selected}; "
                f"give sparsity={floor(100 * (tiles - most) / tiles) / 100} or less, or force fewer"
            )


def _halves(angles: Rope) -> Rope:
    cos, sin = angles
    return cos[0, :, 0, 0::2], sin[0, :, 0, 1::2]


class Arguments:
    """Arguments of a forward call by name, whether they were given by place or by keyword."""

    def __init__(self, places: dict[str, int], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._places, self._args, self._kwargs = places, args, kwargs

    def __getitem__(self, name: str) -> Any:
        """Return the argument, or None if it was not given."""
        if name in self._kwargs:
            return self._kwargs[name]
        place = self._places.get(name, len(self._args))  # an older diffusers does not know every argument
        return self._args[place] if place < len(self._args) else None
