"""Operands of the cases of block-sparse attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from strobe.attention.sparse.selection import BlockSelection

POISON: Final = 1 << 29
"""What entries that are not to be read hold: a block that nobody has."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one case."""

    heads: int = 4
    kv_heads: int = 4
    num_q: int = 5
    num_kv: int = 7
    width: int = 128
    block: int = 64
    batch: int = 2
    ragged: bool = True
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        kind = "ragged" if self.ragged else "whole"
        return f"{name}-{self.block}x{self.width}-{self.heads}/{self.kv_heads}-{self.num_q}x{self.num_kv}-{kind}"


SHAPES: Final = (
    Shape(),
    Shape(ragged=False),
    Shape(block=128),
    Shape(block=128, ragged=False),
    Shape(width=64),
    Shape(width=64, block=128),
    Shape(kv_heads=2),
    Shape(kv_heads=1, block=128),
    Shape(dtype=torch.float16),
    Shape(dtype=torch.float16, block=128, width=64, kv_heads=2),
    Shape(num_q=1, num_kv=1, batch=1, ragged=False),
    Shape(num_q=1, num_kv=31, batch=1),
    Shape(num_q=33, num_kv=3, block=128),
    Shape(num_q=3, num_kv=1, width=64, heads=1, kv_heads=1),
)
PORTABLE: Final = (
    Shape(dtype=torch.float32),
    Shape(dtype=torch.float32, kv_heads=2, block=128, width=64),
    Shape(dtype=torch.float32, width=32, ragged=False),
    Shape(width=32, block=256),
)
"""What the portable implementations take beside that."""

Operands = tuple[Tensor, Tensor, Tensor, BlockSelection]


def draw(shape: Shape, device: torch.device, seed: int = 0) -> Operands:
    """Draw q, k, v and a selection with empty rows, all counts and unordered indices; padding and unused entries are poisoned."""
    generator = torch.Generator().manual_seed(seed)
    block = shape.block

    def tokens(blocks: int, heads: int) -> Tensor:
        return torch.randn(shape.batch, blocks * block, heads, shape.width, generator=generator)

    q, k, v = tokens(shape.num_q, shape.heads), tokens(shape.num_kv, shape.kv_heads), tokens(shape.num_kv, shape.kv_heads)
    mask = torch.rand(shape.batch, shape.heads, shape.num_q, shape.num_kv, generator=generator) < 0.5
    mask[0, 0, 0] = shape.num_q * shape.num_kv == 1
    sizes: list[Tensor | None] = [None, None]
    if shape.ragged:
        for side, (number, tensors) in enumerate(((shape.num_q, [q]), (shape.num_kv, [k, v]))):
            valid = torch.randint(0, block + 1, (number,), generator=generator, dtype=torch.int32)
            valid[0] = block
            padding = (torch.arange(block) >= valid[:, None]).flatten()
            for tensor in tensors:
                tensor[:, padding] = float("nan")
            sizes[side] = valid.to(device)
    selection = BlockSelection.from_mask(mask, block=block)
    indices = selection.indices.masked_fill(torch.arange(shape.num_kv) >= selection.counts[..., None], POISON)
    selection = replace(selection, indices=indices.to(device), counts=selection.counts.to(device))
    q, k, v = (tensor.to(shape.dtype).to(device) for tensor in (q, k, v))
    return q, k, v, replace(selection, q_sizes=sizes[0], kv_sizes=sizes[1])


def upstream(out: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Draw gradients of an output `[B, S, H, D]`, rounded to a dtype, and of its lse."""
    generator = torch.Generator().manual_seed(9)
    d_out = torch.randn(out.shape, generator=generator).to(dtype)
    d_lse = torch.randn(out.shape[0], out.shape[2], out.shape[1], generator=generator)
    return d_out.to(out.device), d_lse.to(out.device)


def outside(block: int, device: torch.device) -> tuple[Operands, BlockSelection]:
    """Draw operands whose selection also names key blocks that do not exist, and the same without those; unseen keys are NaN."""
    q, k, v, selection = draw(Shape(block=block, ragged=False), device)
    some = torch.rand(2, 4, 5, 7, generator=torch.Generator().manual_seed(1)) < 0.6
    kept = selection.mask(7) & some.to(device)
    seen = kept.gather(-1, selection.indices.clamp(0, 6).long())
    named = torch.where(seen, selection.indices, selection.indices + 7)
    for number in range(7):
        if not kept[..., number].any():
            k[:, number * block : (number + 1) * block] = float("nan")
    return (q, k, v, replace(selection, indices=named)), BlockSelection.from_mask(kept, block=block)
