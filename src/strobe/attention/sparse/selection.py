"""The key blocks that each query block attends to, as compact indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field

import torch
from torch import Tensor

from strobe.attention.sparse.layout import check_block
from strobe.attention.types import expect
from strobe.core.errors import ShapeError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BlockSelection:
    """Selected key blocks per query block, compact.

    Query block `i` is rows `[i * block, i * block + q_sizes[i])` of q, key block `j` likewise of k and v; rows beyond a block's
    size are padding: as queries they give out 0 and lse -inf, as keys they are never seen, and their gradients are 0.

    Args:
        indices: int32 `[B, H, N_q, K]`: of row `[b, h, i]` the first `counts[b, h, i]` entries are distinct key blocks in any
            order; the others are never read. `H` is that of q.
        counts: int32 `[B, H, N_q]`, 0 to K; 0 makes an empty row.
        block: tokens of a block, of queries and of keys.
        q_sizes: valid tokens of each query block, 0 to `block`, int32 `[N_q]`; None if all are whole.
        kv_sizes: likewise of the key blocks, int32 `[N_kv]`.
        finite_padding: padding rows of q, k and v hold finite numbers, as `TileLayout.to_tiles` leaves them, and need not be
            cleared first; by default they may hold anything, NaN included.
        known_count: what every entry of `counts` is, where the host knows it: some kernels are faster for it. It is read as
            `uniform_count`, and said of these counts alone: `dataclasses.replace` drops it.
        known_bound: a number that every index in use is below, where the host knows that the entries of a row are distinct and
            from 0 to below it: no pass over the indices looks at that again. It is read as `index_bound`, and dropped likewise.
    """

    indices: Tensor
    counts: Tensor
    block: int
    q_sizes: Tensor | None = None
    kv_sizes: Tensor | None = None
    finite_padding: bool = False
    known_count: InitVar[int | None] = None
    known_bound: InitVar[int | None] = None
    uniform_count: int | None = field(init=False)
    index_bound: int | None = field(init=False)

    def __post_init__(self, known_count: int | None, known_bound: int | None) -> None:
        object.__setattr__(self, "uniform_count", known_count)
        object.__setattr__(self, "index_bound", known_bound)

    @classmethod
    def from_mask(
        cls, mask: Tensor, *, block: int, q_sizes: Tensor | None = None, kv_sizes: Tensor | None = None
    ) -> BlockSelection:
        """Build a selection from a boolean mask `[B, H, N_q, N_kv]`: True where the block is seen. Indices ascend; no host sync.

        Raises:
            ShapeError: the mask is not boolean or not 4-D.
        """
        if mask.dtype != torch.bool or mask.dim() != 4:
            raise ShapeError(f"mask: got {tuple(mask.shape)} {mask.dtype}, expected [B, H, N_q, N_kv] torch.bool")
        seen_first = torch.sort(mask.to(torch.int8), dim=-1, descending=True, stable=True).indices
        return cls(
            indices=seen_first.to(torch.int32),
            counts=mask.sum(dim=-1, dtype=torch.int32),
            block=block,
            q_sizes=q_sizes,
            kv_sizes=kv_sizes,
            known_bound=mask.shape[-1],
        )

    def within(self, num_kv_blocks: int) -> bool:
        """Return whether the host knows that every index in use is below `num_kv_blocks`."""
        return self.index_bound is not None and self.index_bound <= num_kv_blocks

    def used(self, num_kv_blocks: int) -> Tensor:
        """Return which entries are read, boolean like the indices: before the row's count, and naming an existing key block."""
        counted = torch.arange(self.indices.shape[-1], device=self.indices.device) < self.counts.unsqueeze(-1)
        return counted & (self.indices >= 0) & (self.indices < num_kv_blocks)

    def mask(self, num_kv_blocks: int) -> Tensor:
        """Return the selection as a boolean mask `[B, H, N_q, num_kv_blocks]`."""
        found = self.indices.new_zeros((*self.indices.shape[:-1], num_kv_blocks + 1), dtype=torch.bool)
        used = self.used(num_kv_blocks)
        target = torch.where(used, self.indices, num_kv_blocks).long()  # unused entries go to a column that is cut off
        return found.scatter_(-1, target, True)[..., :num_kv_blocks]


def shard_cuts(indices: Tensor, counts: Tensor | None, bounds: Tensor) -> Tensor:
    """Return where the entries of each shard of the key blocks begin in ascending lists, int64 `[B, H, N_q, P + 1]`.

    Args:
        indices: int32 `[B, H, N_q, K]`, ascending in each row up to its count.
        counts: int32 `[B, H, N_q]`; None where all K entries of every row are used.
        bounds: the first key block of each shard and the number of all, int32 `[P + 1]`.
    """
    if counts is not None:
        used = torch.arange(indices.shape[-1], device=indices.device) < counts.unsqueeze(-1)
        indices = torch.where(used, indices, bounds[-1])
    return torch.searchsorted(indices.contiguous(), bounds.expand(*indices.shape[:3], -1).contiguous())


def shard_list(indices: Tensor, cuts: Tensor, bounds: Sequence[int], shard: int) -> tuple[Tensor, Tensor]:
    """Return the entries of one shard, numbered from its first block, `[B, H, N_q, K']`, and how many they are.

    Args:
        cuts: of these lists and bounds, from `shard_cuts`.
    """
    (start, stop), most = bounds[shard : shard + 2], indices.shape[-1]
    first, after = cuts[..., shard], cuts[..., shard + 1]
    at = first.unsqueeze(-1) + torch.arange(min(most, stop - start), device=indices.device)
    return indices.gather(-1, at.clamp_(max=most - 1)) - start, (after - first).to(torch.int32)


def check_selection(selection: BlockSelection, q: Tensor, k: Tensor) -> tuple[int, int]:
    """Check a selection against q `[B, S_q, H, D]` and k `[B, S_kv, H_kv, D]`, without reading device memory.

    Returns:
        the numbers of query and key blocks.

    Raises:
        ShapeError: names the argument, what was given and what is allowed.
    """
    expect(
        "selection", selection, BlockSelection, "a strobe.BlockSelection; BlockSelection.from_mask makes one of a boolean mask"
    )
    check_block(selection.block)
    block, batch, heads = selection.block, q.shape[0], q.shape[2]
    counts = []
    for name, tensor in (("q", q), ("k", k)):
        if tensor.shape[1] % block:
            raise ShapeError(
                f"{name}: got {tensor.shape[1]} rows, expected a multiple of the block's {block}; pad the rows and say how many "
                f"of each block are valid (q_sizes, kv_sizes)"
            )
        counts.append(tensor.shape[1] // block)
    num_q, num_kv = counts
    shape = selection.indices.shape
    if len(shape) != 4 or tuple(shape[:3]) != (batch, heads, num_q) or shape[3] > num_kv:
        raise ShapeError(f"indices: got shape {tuple(shape)}, expected [{batch}, {heads}, {num_q}, K] with K at most {num_kv}")
    wanted = {
        "indices": (selection.indices, tuple(shape)),
        "counts": (selection.counts, (batch, heads, num_q)),
        "q_sizes": (selection.q_sizes, (num_q,)),
        "kv_sizes": (selection.kv_sizes, (num_kv,)),
    }
    for name, (found, expected) in wanted.items():
        if found is None:
            continue
        expect(name, found, torch.Tensor, f"a tensor {expected} torch.int32")
        if tuple(found.shape) != expected or found.dtype != torch.int32 or found.device != q.device:
            given = f"{tuple(found.shape)} {found.dtype} on {found.device}"
            raise ShapeError(f"{name}: got {given}, expected {expected} torch.int32 on {q.device}")
    if selection.uniform_count is not None and not 0 <= selection.uniform_count <= shape[3]:
        raise ShapeError(f"known_count: got {selection.uniform_count}, expected 0 to {shape[3]}, the entries of a row, or None")
    if selection.index_bound is not None and selection.index_bound < 0:
        raise ShapeError(f"known_bound: got {selection.index_bound}, expected a number of key blocks, or None")
    return num_q, num_kv
