"""What a cell of the grid of attention calls is: its shapes, its inputs, and who may run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import ceil, prod
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from strobe.attention.sparse.layout import BLOCKS, TileLayout, Triple, tile_layout
from strobe.attention.sparse.selection import BlockSelection
from strobe.core.errors import ConfigError, unknown_choice
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL
from strobe.models.captured import CapturedCall, read_calls, read_video
from strobe.models.wan.config import WanConfig
from strobe.models.wan.layers import rope_table
from strobe.perf.records import record


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """One self-attention call over a video.

    Args:
        name: as records and reports write it; without `_`.
        grid: tokens in (time, height, width).
    """

    name: str
    grid: Triple
    num_heads: int
    head_dim: int = 128

    @property
    def num_tokens(self) -> int:
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
GRIDS: Final = ("published", "full", "quick")


@dataclass(frozen=True, kw_only=True, slots=True)
class GridCell:
    """One entry of the grid; all implementations compute the same call.

    Args:
        sparsity: share of the key tiles that is skipped; None where `topk` is given.
        topk: key tiles that every query tile sees; None where `sparsity` is given.
        captured: file, number and facts of the call whose q, k and v are measured; None: they are drawn. Its contestants have
            budgets of their own.
    """

    shape: Shape
    sparsity: float | None
    block: int
    topk: int | None = None
    backward: bool = False
    captured: tuple[Path, int, CapturedCall] | None = None

    @property
    def name(self) -> str:
        budget = f"k{self.topk}" if self.sparsity is None else f"s{self.sparsity:g}"
        if self.captured is not None:
            budget = f"call{self.captured[1]:03}"
        return f"{self.shape.name}_{budget}_b{self.block}_{'backward' if self.backward else 'forward'}"

    def selected(self, tiles: TileLayout) -> int:
        """Return the key tiles per query tile: `max(1, ceil((1 - sparsity) * tiles))`, or `topk`, at most all of them."""
        if self.topk is not None:
            return min(self.topk, tiles.num_tiles)
        assert self.sparsity is not None
        return max(1, ceil(round((1 - self.sparsity) * tiles.num_tiles, 9)))


def shape_named(name: str) -> Shape:
    """Return one of `SHAPES`."""
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
        directions: False for forward, True for backward.
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
    return tuple(
        GridCell(shape=shape, sparsity=sparsity, topk=topk, block=block, backward=backward)
        for shape, backward, (sparsity, topk), block in product(shapes, directions, budgets, blocks)
    )


def captured_cells(file: Path, levels: Sequence[float], blocks: Sequence[int]) -> tuple[GridCell, ...]:
    """Return a cell for every call of a file of `strobe.capture`.

    Args:
        levels: shares of the key tiles that its contestants skip.
    """
    found = []
    for number, (call, (heads, width)) in enumerate(read_calls(file)):
        name = "-".join((call.model, "x".join(map(str, call.grid)))).replace("_", "-")
        shape = Shape(name=name, grid=call.grid, num_heads=heads, head_dim=width)
        cut = {cell.block: cell for cell in cells((shape,), levels, blocks)}.values()
        found += [replace(cell, sparsity=None, captured=(file, number, call)) for cell in cut]
    if not found:
        raise ConfigError(f"{file} holds no call; capture it again")
    return tuple(found)


SHARE: Final = 0.6
"""Variance of smooth data that neighbours share; the rest is noise of each token."""
REACH: Final = (3.0, 6.0, 6.0)
"""Tokens in time, height and width over which smooth data changes: correlation `exp(-|x / REACH|^2 / 2)`."""
CHECKED_ROWS: Final = 128
"""Queries of every head that the gate compares with the oracle."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CellTensors:
    """Tensors of one cell, in raster order: q, k, v, gate and the upstream gradient `[B, S, H, D]`, unit variance.

    Data are smooth: every channel is `sqrt(SHARE) * f + sqrt(1 - SHARE) * noise`, where q and k share the field
    `f(x) = sqrt(2) cos(w . x + phase)`, `w ~ N(0, 1 / REACH^2)`, so that near tokens see each other, as they do in a video.
    Values have a field of their own.

    Args:
        cos, sin: rotary tables `[S, D / 2]`, float32, for the operator that rotates.
    """

    cell: GridCell
    tiles: TileLayout
    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor
    upstream: Tensor
    cos: Tensor
    sin: Tensor

    @property
    def device(self) -> torch.device:
        return self.q.device

    @cached_property
    def tiled(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v in tile order, padding rows 0."""
        q, k, v = (self.tiles.to_tiles(tensor) for tensor in (self.q, self.k, self.v))
        return q, k, v

    @cached_property
    def tile_of(self) -> Tensor:
        """Tile of each token, int64 `[S]`."""
        return self.tiles.rows(self.device) // self.tiles.block

    @cached_property
    def checked(self) -> Tensor:
        """Tokens whose outputs are checked, evenly spaced, int64 `[R]`."""
        count = min(CHECKED_ROWS, self.tiles.num_tokens)
        return torch.linspace(0, self.tiles.num_tokens - 1, count, device=self.device).round().long()

    def means(self, tensor: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the mean of each tile's tokens, `[B, H, N, D]`, computed without the operator's own pooling."""
        total = tensor.new_zeros((tensor.shape[0], self.tiles.num_tiles, *tensor.shape[2:]), dtype=dtype)
        total = total.index_add(1, self.tile_of, tensor.to(dtype))
        return (total / self.tiles.sizes(self.device)[:, None, None]).transpose(1, 2)

    @cached_property
    def selection(self) -> BlockSelection:
        """Tiles of largest score between tile means, exactly as many as the cell asks for; for the fine stage alone."""
        count = self.cell.selected(self.tiles)
        queries, keys = self.means(self.q), self.means(self.k)
        best = torch.topk(queries @ keys.transpose(-1, -2), count, dim=-1).indices
        indices = best.sort(dim=-1).values.to(torch.int32)
        sizes = None if self.tiles.whole else self.tiles.sizes(self.device)
        counts = indices.new_full(indices.shape[:3], count)
        return BlockSelection(
            indices=indices,
            counts=counts,
            block=self.tiles.block,
            q_sizes=sizes,
            kv_sizes=sizes,
            known_count=count,
            known_bound=self.tiles.num_tiles,
        )

    def at(self, level: float | None) -> CellTensors:
        """Return the same tensors with a share of the key tiles that is skipped; None: these."""
        return self if level is None else replace(self, cell=replace(self.cell, sparsity=level))


def draw(cell: GridCell, *, tile: str, dtype: torch.dtype, device: torch.device, seed: int) -> CellTensors:
    """Draw the tensors of a cell on the device, or read captured ones: the same for the same device, seed and shape.

    Args:
        tile: one of `TILES`: `auto` for the fewest padding rows, `cube` for the usual tile of that block size.
    """
    tiles = tile_layout(cell.shape.grid, "auto" if tile == "auto" else cell.block, cell.block)
    if cell.captured is not None:
        q, k, v = read_video(*cell.captured, dtype, device)
        none = q.new_zeros(()).expand(q.shape)  # no contestant of such a cell has a gate, a gradient or a rotation
        table = none[0, :, 0, ::2]
        return CellTensors(cell=cell, tiles=tiles, q=q, k=k, v=v, gate=none, upstream=none, cos=table, sin=table)
    generator = torch.Generator(device).manual_seed(seed)
    shape = (1, cell.shape.num_tokens, cell.shape.num_heads, cell.shape.head_dim)
    places = torch.cartesian_prod(*(torch.arange(size, dtype=torch.float32, device=device) for size in cell.shape.grid))
    places = places.view(-1, 3)

    def noise() -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    def field_() -> Tensor:
        waves = torch.randn(3, shape[2] * shape[3], generator=generator, device=device)
        waves /= torch.tensor(REACH, device=device)[:, None]
        phases = 2 * torch.pi * torch.rand(shape[2] * shape[3], generator=generator, device=device)
        return (places @ waves + phases).cos_().mul_(2**0.5).view(shape)

    def smooth(shared: Tensor) -> Tensor:
        return noise().mul_((1 - SHARE) ** 0.5).add_(shared, alpha=SHARE**0.5).to(dtype)

    shared = field_()
    q, k, v = smooth(shared), smooth(shared), smooth(field_())
    gate, upstream = noise().to(dtype), noise().to(dtype)
    frames, height, width = cell.shape.grid
    turns = rope_table(WanConfig(dim=cell.shape.head_dim, num_heads=1), range(frames), height, width)
    cos, sin = (each.float().to(device) for each in (turns.real, turns.imag))
    return CellTensors(cell=cell, tiles=tiles, q=q, k=k, v=v, gate=gate, upstream=upstream, cos=cos, sin=sin)


Kind = Literal["dense", "fine", "tiled", "raster", "vsa"]
"""Computations: dense attention; the fine stage for a given selection; the whole operator, from tile or raster order, with a
coarse part; the same without, by one of several methods of selection."""


PEER: Final = "peer"
"""Group of contestants of other libraries."""


def parsed(name: str) -> tuple[str, str, float | None]:
    """Split the name of a contestant, `kind:impl` or `peer:name`, with or without a level, `kind:impl@0.8`: the share of the key
    tiles that it skips, or of the weight that `share` keeps."""
    group, _, rest = name.partition(":")
    impl, _, level = rest.partition("@")
    return group, impl, float(level) if level else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Result of a call: `out` in the contestant's layout; `lse` `[B, H, S]`, natural log; the selection, if it made its own."""

    out: Tensor
    lse: Tensor | None = None
    selection: BlockSelection | None = None


Call = Callable[..., Found]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BoundContestant:
    """An implementation bound to the tensors of a cell.

    Args:
        name: `kind:impl`, or `peer:name`.
        kind: its computation; the gate compares it with the oracle of that kind.
        leaves: tensors that the call takes: q, k, v and, where the coarse output has one, its gate; in the contestant's layout.
        call: the implementation: it takes the leaves and `lse`, whether to return the log-sum-exp too.
        heads_first: its layout is `[B, H, S, D]`, not `[B, S, H, D]`.
        coarse: the coarse output is added, weighted by the fourth leaf if there is one.
        corrected: skipped tiles count by their means.
        close: its own selection is not known, so that ties may differ: checked for similarity, not within rounding.
        gradient: the gradients of q, k, v from an upstream gradient, where autograd does not give them: called once with what the
            forward pass found, it returns what is timed.
        reason: why the others were passed over, where the choice was automatic.
    """

    name: str
    kind: Kind
    impl: str
    leaves: tuple[Tensor, ...]
    call: Call
    heads_first: bool = False
    tiled: bool = False
    coarse: bool = False
    corrected: bool = False
    close: bool = False
    gradient: Callable[[Found, Tensor], Callable[[], tuple[Tensor, ...]]] | None = None
    reason: str = ""

    @property
    def line(self) -> record.Contestant:
        group, impl, level = parsed(self.name)
        work: record.Work = self.kind if self.kind in ("dense", "fine") else "whole"
        return record.Contestant(work=work, impl=impl, peer=group == PEER, raster=self.kind == "raster", level=level)

    @property
    def span(self) -> str:
        return ATTENTION_KERNEL if self.kind in ("dense", "fine") else ATTENTION

    @torch.no_grad()
    def forward(self) -> Tensor:
        return self.call(*self.leaves, lse=False).out

    def backward(self, inputs: CellTensors, upstream: Tensor) -> Callable[[], tuple[Tensor, ...]]:
        """Run forward once and return the timed backward call: the gradients of all leaves, in the contestant's layout.

        Args:
            upstream: gradient of the output in raster order `[B, S, H, D]`.
        """
        rows = inputs.tiles.to_tiles(upstream) if self.tiled else upstream
        given = rows.transpose(1, 2).contiguous() if self.heads_first else rows
        if self.gradient is not None:
            with torch.no_grad():
                return self.gradient(self.call(*self.leaves, lse=True), given)
        leaves = tuple(leaf.detach().requires_grad_() for leaf in self.leaves)
        out = self.call(*leaves, lse=False).out
        return lambda: torch.autograd.grad(out, leaves, given, retain_graph=True)

    def as_raster(self, own: Tensor, inputs: CellTensors) -> Tensor:
        """Convert a tensor in the contestant's layout to `[B, S, H, D]` in raster order."""
        rows = own.transpose(1, 2) if self.heads_first else own
        return rows.index_select(1, inputs.tiles.rows(own.device)) if self.tiled else rows
