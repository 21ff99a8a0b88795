"""Attention in eight bits in plain PyTorch: the specification and the oracle of every other implementation.

A weight is one of eight levels an octave: its number counts up through the bits of an FP8 number (e4m3), which are taken as they
are. So the weights between two powers of two lie on a line, up to 6 % above the exponential; the lowest octave goes down to 0.
Each block of keys has levels of its own, from its largest weight down, and is scaled where blocks are added up in float32.
A tile of queries may attend to some blocks of keys alone.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from strobe.attention.types import AttentionOutput, AttentionSpec
from strobe.eightbit.impl.rounding import places
from strobe.eightbit.rounded import BLOCK, LOG2E, BlockBudget, RoundedKeys, RoundedQueries, padded

QUERIES: Final = 128
"""Queries of a tile, which attend to the same blocks of keys."""
OFFSET: Final = 2.0**21
"""Added to a product of int8 queries and keys of 128 channels, which is then positive, before it is scaled and rounded."""
FLATTEST: Final = 1e-30
STEEPEST: Final = 0.5
"""Levels of a step of the product, at least and at most: steeper rows are all noise of the rounding of their queries."""
HEADROOM: Final = 15.24
"""Octaves, whole ones, are added to the levels of a block, so that its largest is from 118 to 126; 127 is not a number."""
FARTHEST: Final = 40.0
"""Octaves of a block below the largest before it, at most: what is farther down adds nothing in float32."""


def weights_of(levels: Tensor) -> Tensor:
    """Return the FP8 numbers whose bits are these levels; those below 0 are 0."""
    return levels.clamp(min=0).to(torch.uint8).view(torch.float8_e4m3fn)


def scores(q: RoundedQueries, kept: RoundedKeys) -> Tensor:
    """Score each tile of queries against each block of keys by the product of their means: float32 `[B, H, N_q, N_kv]`."""

    def means(rows: Tensor) -> Tensor:
        count, whole = rows.shape[2], padded(rows.shape[2])
        held = (count - torch.arange(0, whole, BLOCK, device=rows.device)).clamp(max=BLOCK)
        found: Tensor = F.pad(rows, (0, 0, 0, whole - count)).unflatten(2, (-1, BLOCK)).sum(3) / held[:, None]
        return found

    return means(q.values.float() * q.scale[..., None]) @ means(kept.keys.float()).transpose(-1, -2)


def best_blocks(q: RoundedQueries, kept: RoundedKeys, budget: BlockBudget) -> Tensor:
    """Select for each tile of queries the blocks of keys of largest score, as of `api.best_blocks`."""
    ranked = scores(q, kept).masked_fill(budget.always, torch.inf)
    best = ranked.sort(dim=-1, descending=True, stable=True).indices[..., : budget.number]
    return best.sort(dim=-1).values.int()


def run(q: RoundedQueries, kept: RoundedKeys, spec: AttentionSpec, blocks: Tensor | None = None) -> AttentionOutput:
    """Attend block by block of keys, sums in float32 (float64 for float64 queries). No keys: output 0, lse -inf.

    The output is normed by the sum of the weights, and the lse is of the exponentials that the weights stand for.

    Args:
        blocks: the blocks of keys of each tile of queries, as of `attend_rounded`; None: all.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups = spec.num_heads // spec.num_kv_heads

    def per_head(x: Tensor) -> Tensor:
        return x.to(wide).repeat_interleave(groups, dim=1)

    keys, values = (
        per_head(kept.keys),
        per_head(kept.values)[..., places(kept.values)[: spec.kv_len]],
    )  # [B, H, S, D], [B, H, D, S]
    queries = q.values.to(wide)
    steep = (8.0 * q.scale[..., None].double()).clamp(-STEEPEST, STEEPEST)
    off = least = steep.new_full((*queries.shape[:3], 1), float("inf"))  # octaves added: to the last block, and the fewest
    total, acc, exponentials = torch.zeros_like(queries[..., :1]), torch.zeros_like(queries), torch.zeros_like(off)
    seen = None if blocks is None else blocks.repeat_interleave(QUERIES, 2)[:, :, : spec.q_len]  # [B, H, S_q, K]
    for start in range(0, spec.kv_len, BLOCK):
        before = total, acc, exponentials, off, least
        exact = (queries @ keys[:, :, start : start + BLOCK].transpose(-1, -2) + OFFSET).double() * steep
        now = torch.minimum((HEADROOM - exact.amax(-1, keepdim=True) / 8).round(), least + FARTHEST)
        fade, weights = torch.exp2(now - off), weights_of(exact.round() + 8 * now).to(wide)
        exponentials = exponentials * fade + torch.exp2(exact / 8 + now).sum(-1, keepdim=True)
        total = total * fade.to(wide) + weights.sum(-1, keepdim=True)
        acc = acc * fade.to(wide) + weights @ values[..., start : start + BLOCK].transpose(-1, -2)
        off, least = now, torch.minimum(least, now)
        if seen is not None:
            held = (seen == start // BLOCK).any(-1, keepdim=True)
            after = total, acc, exponentials, off, least
            total, acc, exponentials, off, least = (torch.where(held, new, old) for new, old in zip(after, before, strict=True))

    if spec.kv_len == 0:
        out, lse = acc, -off[..., 0]
    else:
        out = acc / total * per_head(kept.value_scale)[:, :, None] + per_head(kept.value_mean)[:, :, None]
        lse = (exponentials.log2() - off - steep * (OFFSET / 8))[..., 0] / LOG2E
        if q.taken is not None:
            lse = lse + q.taken  # what the keys lost without their mean
    return AttentionOutput(out=out.transpose(1, 2).to(q.dtype), lse=lse.float() if spec.return_lse else None)
