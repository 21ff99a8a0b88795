"""Selection of blocks of keys in eight bits, for `attend_rounded`: what history in tiles is for keys in full precision.

Blocks are pooled from the numbers that are kept. The vector per head that all keys lost adds the same to every score of a row, so
it changes no choice.
"""

from __future__ import annotations

from importlib import import_module

from torch import Tensor

from strobe.attention.around import ambient
from strobe.attention.dense.eight.impl import reference as plain
from strobe.attention.sparse.stages.impl import reference
from strobe.attention.sparse.stages.types import Grid, SelectionSpec, Tiled
from strobe.attention.sparse.tiled import fuses
from strobe.eightbit.rounded import BLOCK, BlockBudget, RoundedKeys, RoundedQueries


def best_blocks(q: RoundedQueries, kept: RoundedKeys, budget: BlockBudget) -> Tensor:
    """Select for each tile of 128 queries the blocks of 128 keys of largest score: int32 `[B, H, N_q, number]`, ascending.

    The score is the product of the mean query of the tile and the mean key of the block. Blocks that are always taken come first,
    ties go to the lowest number.

    Args:
        q: rounded for `kept`.
        budget: of so many queries and keys.

    Source: the selection of Video Sparse Attention, arXiv 2505.13389.
    """
    (num_q, num_kv), sizes = budget.always.shape, budget.sizes
    spec = SelectionSpec(
        softmax_scale=1.0, parts=1, per_head=(budget.number,), counts=budget.counts, forced=budget.always, coarse=False
    )
    fused = fuses(q.values.device, q.scale.dtype, q.values.shape[3])
    pooling = import_module("strobe.attention.dense.eight.impl.triton") if fused else plain
    stages = import_module("strobe.attention.sparse.stages.impl.triton") if fused else reference
    with ambient(q.values):
        means = pooling.means(q.values, q.scale), pooling.means(kept.keys, None), None
        queries, keys = q.values.transpose(1, 2), kept.keys.transpose(1, 2)
        tiled = Tiled(q=queries, k=keys, v=keys, means=means)
        grids = (Grid.in_tiles(BLOCK, number, sizes, None) for number in (num_q, num_kv))
        found: Tensor = stages.select(tiled, *grids, spec).indices
    return found
