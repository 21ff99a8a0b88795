"""Inputs of a cell: tensors, tiles, the selection, and the rows that are checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from strobe.attention.sparse.layout import TileLayout
from strobe.attention.sparse.selection import BlockSelection
from strobe.bench.attention.grid import GridCell, layout_of
from strobe.models.wan.rope import frequencies

DATA: Final = ("smooth", "normal")
SHARE: Final = 0.6
"""Variance of smooth data that neighbours share; the rest is noise of each token."""
REACH: Final = (3.0, 6.0, 6.0)
"""Tokens in time, height and width over which smooth data changes: correlation `exp(-|x / REACH|^2 / 2)`."""
CHECKED_ROWS: Final = 128
"""Queries of every head that the gate compares with the oracle."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """Tensors of one cell, in raster order: q, k, v, gate and the upstream gradient `[B, S, H, D]`, unit variance.

    Smooth data: every channel is `sqrt(SHARE) * f + sqrt(1 - SHARE) * noise`, where q and k share the field
    `f(x) = sqrt(2) cos(w . x + phase)`, `w ~ N(0, 1 / REACH^2)`, so that near tokens see each other, as they do in a video.
    Values have a field of their own. Normal data: noise alone, and what a query should see is anywhere.

    Args:
        cell: the cell to measure.
        tiles: how its grid is cut.
        q, k, v, gate: inputs of every implementation.
        upstream: gradient of the output, for the backward pass.
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
        """Device of the tensors."""
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

    def means(self, tensor: Tensor) -> Tensor:
        """Return the mean of each tile's tokens, float32 `[B, H, N, D]`, computed without the operator's own pooling."""
        total = tensor.new_zeros((tensor.shape[0], self.tiles.num_tiles, *tensor.shape[2:]), dtype=torch.float32)
        total = total.index_add(1, self.tile_of, tensor.float())
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

    @cached_property
    def pairs(self) -> int:
        """Count of (query token, key token) pairs in the selection, over samples and heads, without padding."""
        sizes = self.tiles.sizes(self.device).long()
        seen = sizes[self.selection.indices.long()].sum(-1)  # [B, H, N]
        return int((seen * sizes).sum().item())

    @property
    def blocks(self) -> int:
        """Count of selected blocks, over samples, heads and query blocks."""
        return self.selection.indices.numel()


def draw(cell: GridCell, *, tile: str, data: str, dtype: torch.dtype, device: torch.device, seed: int) -> Inputs:
    """Draw the tensors of a cell on the device: the same for the same device, seed and shape, whatever the block.

    Args:
        tile: one of `TILES`.
        data: one of `DATA`.
    """
    tiles = layout_of(cell.shape, cell.block, tile)
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

    def drawn(shared: Tensor | None) -> Tensor:
        return (noise() if shared is None else noise().mul_((1 - SHARE) ** 0.5).add_(shared, alpha=SHARE**0.5)).to(dtype)

    shared = field_() if data == "smooth" else None
    q, k = drawn(shared), drawn(shared)
    v = drawn(field_() if data == "smooth" else None)
    gate, upstream = drawn(None), drawn(None)
    cos, sin = _rotary(cell, device)
    return Inputs(cell=cell, tiles=tiles, q=q, k=k, v=v, gate=gate, upstream=upstream, cos=cos, sin=sin)


def _rotary(cell: GridCell, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rotary tables over time, height and width, float32 `[S, D / 2]`: a third of the pairs each, time the remainder."""
    pairs = cell.shape.head_dim // 2
    side = pairs // 3
    angles = []
    for axis, (size, count) in enumerate(zip(cell.shape.grid, (pairs - 2 * side, side, side), strict=True)):
        own = torch.outer(torch.arange(size, dtype=torch.float64), frequencies(count))
        view = [1, 1, 1, count]
        view[axis] = size
        angles.append(own.view(view).expand(*cell.shape.grid, count))
    turns = torch.cat(angles, dim=-1).flatten(0, 2).to(device)
    return turns.cos().float(), turns.sin().float()
