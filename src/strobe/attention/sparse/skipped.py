"""What a selection skips, by its means: each skipped tile stands as one key and one value, with the weight of its tokens.

With `K_j`, `V_j` the means and `n_j` the tokens of tile `j`, and `R_i` the tiles that query tile `i` skips, a query `x` of it has

    w_j = n_j exp(x . K_j * softmax_scale)        L' = log sum_{j in R_i} w_j        out' = sum_{j in R_i} w_j exp(-L') V_j

which merges with the attention over the selected tiles by their lse. If the keys of each skipped tile are equal, that is dense
attention; else `L'` is too small, as an exponential's mean is above the exponential of the mean.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from strobe.attention.sparse.coarse import pool
from strobe.attention.sparse.padding import padding_rows
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.stages.types import Tiled
from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput

_MOST: Final = 2**25
"""Weights that are held at a time, where no gradient keeps them all."""


def add_skipped(fine: AttentionOutput, tiled: Tiled, selection: BlockSelection, softmax_scale: float) -> AttentionOutput:
    """Merge attention over the selected tiles with attention over the means of those that are not.

    Means, weights and sums are float32 (float64 for float64); differentiable in all operands and in the lse.

    Args:
        fine: attention over the selection, with its lse, in tile order.
        tiled: its operands; what padding rows hold does not matter.

    Returns:
        `out` and `lse` over all tiles; padding queries have out 0 and lse -inf if `q_sizes` tells of them.
    """
    q, k, v = tiled.q, tiled.k, tiled.v
    block, heads = selection.block, q.shape[2]
    keys, values = (pool(each, selection.kv_sizes, block).repeat_interleave(heads // k.shape[2], dim=1) for each in (k, v))
    added = log_weights(selection, keys.shape[2], keys.dtype)
    if selection.q_sizes is not None:
        q = q.masked_fill(padding_rows(selection.q_sizes, block)[:, None, None], 0)
    step = max(1, _MOST // max(1, q.shape[0] * heads * block * keys.shape[2]))
    parts = [
        _over_means(rows, keys, values, bias, softmax_scale)
        for rows, bias in zip(q.unflatten(1, (-1, block)).split(step, dim=1), added.split(step, dim=2), strict=True)
    ]
    out, lse = torch.cat([part[0] for part in parts], dim=1).to(fine.out.dtype), torch.cat([part[1] for part in parts], dim=2)
    if selection.q_sizes is not None:
        padding = padding_rows(selection.q_sizes, block)
        out, lse = out.masked_fill(padding[:, None, None], 0), lse.masked_fill(padding, float("-inf"))
    return merge([fine, AttentionOutput(out=out, lse=lse)])


def log_weights(selection: BlockSelection, num_kv: int, dtype: torch.dtype) -> Tensor:
    """Return the log of the tokens of each skipped tile, -inf for a selected one, `[B, H, N_q, N_kv]`."""
    seen, sizes = selection.mask(num_kv), selection.kv_sizes
    tokens = seen.new_full((num_kv,), selection.block, dtype=dtype) if sizes is None else sizes.to(dtype)
    return torch.where(seen, float("-inf"), tokens.log())


def _over_means(q: Tensor, keys: Tensor, values: Tensor, added: Tensor, softmax_scale: float) -> tuple[Tensor, Tensor]:
    """Attend over one key per tile: out `[B, n * block, H, D]` and lse float32 `[B, H, n * block]`; empty rows as a merge wants.

    Args:
        q: `[B, n, block, H, D]`.
        keys: `[B, H, N_kv, D]`.
        values: like keys.
        added: to the logits of all rows of a tile, `[B, H, n, N_kv]`; -inf for what is not seen.
    """
    rows = q.permute(0, 3, 1, 2, 4).to(keys.dtype)  # [B, H, n, block, D]
    logits = rows @ keys.unsqueeze(2).transpose(-1, -2) * softmax_scale + added.unsqueeze(3)
    empty = added.isneginf().all(dim=-1)[..., None, None]  # [B, H, n, 1, 1]
    logits = logits.masked_fill(empty, 0)
    lse = torch.logsumexp(logits, dim=-1, keepdim=True)
    out = (torch.exp(logits - lse) @ values.unsqueeze(2)).masked_fill(empty, 0)
    lse = lse.masked_fill(empty, float("-inf")).squeeze(-1).flatten(2, 3)
    return out.flatten(2, 3).transpose(1, 2), lse.float()
