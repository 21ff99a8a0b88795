"""The stages before attention over a history in Triton: queries tiled and pooled in one pass, then scores, then the best tiles.

The kernels are those of `triton`; here the keys are in tiles and pooled already. Without gradients, and nothing syncs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from strobe.attention.sparse.launch import precision_of
from strobe.attention.sparse.layout import TileLayout
from strobe.attention.sparse.stages.impl.triton import _RUN, _SCORE, _STEP, _TILE, take
from strobe.attention.sparse.stages.types import Wish
from strobe.core.device import card_of


def tile(q: Tensor, tiles: TileLayout) -> tuple[Tensor, Tensor]:
    """As `tiles.to_tiles(q)`, and the means of the tiles, float32 `[B, H, N_q, D]`."""
    q, (batch, _, heads, width), device = q if q.stride(3) == 1 else q.contiguous(), q.shape, q.device
    tiled = torch.empty((batch, tiles.num_rows, heads, width), dtype=q.dtype, device=device)
    means = torch.empty((batch, heads, tiles.num_tiles, width), dtype=torch.float32, device=device)
    run = min(tiles.block, 2 * _RUN)
    _TILE(
        (tiles.num_tiles, heads, batch),
        (q, q, q, tiled, tiled, tiled, means, means, means, tiles.tokens(device), tiles.sizes(device), None, None),
        (*q.stride()[:3] * 3, heads, heads, tiles.num_tiles),
        (tiles.block, run, width, 0, 1, True, False, True, False),
        num_warps=run // 32,
    )
    return tiled, means


def select(queries: Tensor, keys: Tensor, kv_sizes: Tensor, wish: Wish) -> Tensor:
    """As `coarse.select_blocks` of `coarse.pooled_scores`, for means of whole tiles: int32 `[B, H, N_q, K]`.

    Args:
        queries: `[B, H, N_q, D]`, as `tile` returns them.
        keys: float32 `[B, H_kv, N_kv, D]`; those of key tiles without a token may be anything.
        kv_sizes: valid tokens of each key tile, int32 `[N_kv]`, read when the kernel runs.
    """
    (batch, heads, num_q, width), (_, kv_heads, num_kv, _) = queries.shape, keys.shape
    scores = torch.empty((batch, heads, num_q, -(-num_kv // _STEP) * _STEP), dtype=torch.float32, device=queries.device)
    _SCORE(
        (-(-num_q // 64), -(-num_kv // 64), batch * heads),
        (queries, keys.contiguous(), scores, kv_sizes),
        (heads, heads // kv_heads, num_q, num_kv, scores.shape[3]),
        (64, 64, width, precision_of(torch.float32, card_of(queries.device))),
        num_warps=4,
        floats=(wish.softmax_scale,),
    )
    return take(scores, num_kv, wish)
