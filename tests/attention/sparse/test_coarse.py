"""The coarse stage where tiles are ragged or runs of rows are empty, against a plain count over tokens."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from strobe.attention.sparse.coarse import Estimator, Forced, block_scores, forced_blocks
from strobe.attention.sparse.layout import TileLayout


@pytest.mark.parametrize("step", [1, 2, 3, 4])
@pytest.mark.parametrize("frames", [1, 3, 7, 8])
def test_a_tile_is_forced_if_one_of_its_tokens_is(frames: int, step: int) -> None:
    layout = TileLayout((frames, 5, 3), (step, 4, 2), 64)
    tokens = layout.tokens().view(layout.num_tiles, layout.block)
    numbers = [[int(token) // 15 for token in tile if token < layout.num_tokens] for tile in tokens]
    for first, last in itertools.product(range(frames + 1), repeat=2):
        if not first + last:
            continue
        forced = Forced(first_frames=first, last_frames=last)
        found = forced_blocks(forced, layout, layout, [layout.num_tiles])
        expected = [any(frame < first or frame >= frames - last for frame in held) for held in numbers]
        assert found is not None and found.tolist() == [expected] * layout.num_tiles, forced


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_runs_without_a_token_count_for_nothing(parts: int) -> None:
    """Of queries and of keys; what lies in their rows does not matter."""
    block, sizes = 64, torch.tensor([64, 1, 17, 32, 33, 0], dtype=torch.int32)
    generator = torch.Generator().manual_seed(parts)
    q, k = (torch.randn(1, len(sizes) * block, 1, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    found = block_scores(q, k, sizes, sizes, block, 0.25, Estimator(parts=parts))[0, 0]
    step = block // parts

    def means(rows: torch.Tensor, tile: int) -> list[torch.Tensor]:
        held = rows[0, tile * block : tile * block + int(sizes[tile]), 0]
        return [run.mean(dim=0) for run in held.split(step)] if len(held) else []

    for i, j in itertools.product(range(len(sizes)), repeat=2):
        scores = [float(a @ b) * 0.25 for a in means(q, i) for b in means(k, j)]
        if not scores:
            assert i == 5 or found[i, j] == -math.inf  # a tile without a key is never taken; a tile without a query asks nothing
            continue
        expected = scores[0] if parts == 1 else math.log(sum(map(math.exp, scores)))
        assert found[i, j].item() == pytest.approx(expected, abs=1e-12)
