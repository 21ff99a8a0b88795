"""Attention in eight bits in plain PyTorch: the specification and the oracle of every other implementation.

A weight is one of eight levels an octave: its number counts up through the bits of an FP8 number (e4m3), which are taken as they
are. So the weights between two powers of two lie on a line, up to 6 % above the exponential, and all sums are of these weights.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from strobe.attention.types import AttentionOutput, AttentionSpec
from strobe.eightbit.impl.rounding import places
from strobe.eightbit.rounded import BLOCK, LOG2E, RoundedKeys, RoundedQueries

OFFSET: Final = 2.0**21
"""Added to a product of int8 queries and keys, which is then positive, before it is scaled and rounded to a level."""
STEEPEST: Final = 0.5
"""Levels of a step of the product, at most: steeper rows are all noise of the rounding of their queries."""
HEADROOM: Final = 15.24
"""Octaves are taken off, as whole numbers, until the largest level of a row is between 118 and 126; 127 is not a number."""
ONE: Final = 56
"""The level of the weight one."""
EXCESS: Final = 1.0404
"""Mean of the weights over the exponential, of levels that are spread evenly."""


def weights_of(levels: Tensor) -> Tensor:
    """Return the FP8 numbers whose bits are these levels; those below 0 are 0."""
    return levels.clamp(min=0).to(torch.uint8).view(torch.float8_e4m3fn)


def run(q: RoundedQueries, kept: RoundedKeys, spec: AttentionSpec) -> AttentionOutput:
    """Attend block by block of keys, sums in float32 (float64 for float64 queries). No keys: output 0, lse -inf.

    The lse has the largest weight of a row as it is, and the others without their mean excess.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups = spec.num_heads // spec.num_kv_heads

    def per_head(x: Tensor) -> Tensor:
        return x.to(wide).repeat_interleave(groups, dim=1)

    keys, values = (
        per_head(kept.keys),
        per_head(kept.values)[..., places(kept.values)[: spec.kv_len]],
    )  # [B, H, S, D], [B, H, D, S]
    queries, steep = q.values.to(wide), (8.0 * q.scale[..., None].double()).clamp(max=STEEPEST)
    top = steep.new_full((*queries.shape[:3], 1), float("-inf"))  # the largest level so far, not rounded
    off = -top  # octaves, added to what levels say
    total, acc = torch.zeros_like(queries[..., :1]), torch.zeros_like(queries)
    for start in range(0, spec.kv_len, BLOCK):
        exact = (queries @ keys[:, :, start : start + BLOCK].transpose(-1, -2) + OFFSET).double() * steep
        top = torch.maximum(top, exact.amax(-1, keepdim=True))
        now = torch.minimum(off, (HEADROOM - top / 8).round())
        fade, weights = torch.exp2(now - off).to(wide), weights_of(exact.round() + 8 * now).to(wide)
        total = total * fade + weights.sum(-1, keepdim=True)
        acc, off = acc * fade + weights @ values[..., start : start + BLOCK].transpose(-1, -2), now

    if spec.kv_len == 0:
        out, lse = acc, top[..., 0]
    else:
        out = acc / total * per_head(kept.value_scale)[:, :, None] + per_head(kept.value_mean)[:, :, None]
        others = (total.double() - weights_of(top.round() + 8 * off).double()).clamp(min=0) / EXCESS
        lse = ((others + torch.exp2((top - ONE) / 8 + off)).log2() + ONE / 8 - off - steep * (OFFSET / 8))[..., 0] / LOG2E
        if q.taken is not None:
            lse = lse + q.taken  # what the keys lost without their mean
    return AttentionOutput(out=out.transpose(1, 2).to(q.dtype), lse=lse.float() if spec.return_lse else None)
