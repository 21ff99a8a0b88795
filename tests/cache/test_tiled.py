"""A ring with tiles shows a pass the frames of the plain ring: the sink and history in their places, the rest its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ring_frames import SHAPE, content, frame_set, turn_into, turned_content, write
from strobe.cache.kv import RingCache
from strobe.cache.policy import RingPolicy
from strobe.cache.tiled import HistoryTiles
from strobe.core.errors import ShapeError

ROWS = torch.tensor([5, 0, 1])  # two tiles of four rows: tokens 1 and 2 in the first, token 0 in the second
SIZES = torch.tensor([2, 1], dtype=torch.int32)


def pool(keys: Tensor) -> Tensor:
    """Means of tokens 1 and 2, and token 0 itself, whose row is not the first of its tile: a pooled padding row would show."""
    return torch.stack([(keys[:, 0] + keys[:, 1]) / 2, keys[:, 5]], dim=2)


TILES = HistoryTiles(grid=(1, 3), rows=ROWS, sizes=SIZES, block=4, whole=False, sparsity=0.5, pool=pool)
OPTIONS: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32, "positions": "rebased", "rotate": turn_into}


def ring(window: int, sink: int, tiles: HistoryTiles | None = TILES) -> RingCache:
    return RingCache(SHAPE, RingPolicy(window=window, sink=sink), tiles=tiles, **OPTIONS)


def seen(step: Any, written: list[tuple[Tensor, Tensor]], layer: int, which: int, version: int) -> Tensor:
    """All keys or values that a pass may see, frame by frame: sink, history, its own."""
    reach, buffer = step.reach, written[layer][which]
    own = [turned_content(step.positions, step.positions, layer, version), content(step.positions, layer, version + 50)][which]
    frames = [buffer[:, : reach.sink_rows]]
    open_tiles = reach.sizes.view(-1, 2)
    assert reach.num_tiles == (open_tiles > 0).sum()
    for slot, sizes in enumerate(open_tiles):
        assert sizes.tolist() in ([0, 0], [2, 1])
        if sizes[0]:
            start = reach.tiled_from + slot * 8
            frames.append(buffer[:, start : start + 8][:, ROWS])
    return torch.cat([*frames, own[:, reach.unseen :]], dim=1)


def check(tiled: RingCache, step: Any, plain_step: Any, version: int) -> None:
    mine, other = write(step, version), write(plain_step, version)
    for layer in range(SHAPE.num_layers):
        for which in (0, 1):
            found = seen(step, mine, layer, which, version)
            torch.testing.assert_close(
                torch.tensor(frame_set(found)), torch.tensor(frame_set(other[layer][which])), rtol=0, atol=1e-6
            )
        reach = step.reach
        for slot in reach.sizes.view(-1, 2)[:, 0].nonzero().flatten().tolist():
            start = reach.tiled_from + slot * 8
            frame = mine[layer][0][:, start : start + 8][:, ROWS]  # [B, 3, H, D]
            expected = torch.stack([frame[:, 1:].mean(dim=1), frame[:, 0]], dim=2)
            torch.testing.assert_close(reach.means[layer, :, :, 2 * slot : 2 * slot + 2], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sizes", [(3,) * 9, (1,) + (3,) * 8, (1, 2, 3, 1) * 4])
@pytest.mark.parametrize(("window", "sink"), [(12, 3), (8, 3), (6, 1), (6, 3), (7, 2), (5, 0), (3, 0), (30, 3)])
def test_it_shows_the_frames_of_the_plain_ring(window: int, sink: int, sizes: tuple[int, ...]) -> None:
    tiled, plain, first = ring(window, sink), ring(window, sink, None), 0
    for buffer in (tiled.keys, tiled.values):
        local = buffer[:, :, sink * 3 :].unflatten(2, (-1, 8))
        local[:, :, :, ROWS] = torch.nan  # padding stays 0; what is never written must never be seen
    for size in sizes:
        for version in (1, 2, 0):
            check(tiled, tiled.at(first, size), plain.at(first, size), version)
        first += size


@pytest.mark.parametrize("keep_sink", [True, False])
@pytest.mark.parametrize("blocks_before", [1, 3, 4, 7])
@pytest.mark.parametrize(("window", "sink"), [(12, 3), (8, 3), (6, 1), (5, 0)])
def test_a_rewritten_window_is_pooled_again(window: int, sink: int, blocks_before: int, keep_sink: bool) -> None:
    tiled, plain = ring(window, sink), ring(window, sink, None)
    for block in range(blocks_before):
        for cache in (tiled, plain):
            write(cache.at(3 * block, 3))
    end = 3 * blocks_before
    steps = [cache.rewrite(end, keep_sink=keep_sink) for cache in (tiled, plain)]
    assert steps[0].reach.num_tiles == 0  # the pass is the window
    check(tiled, *steps, version=9)
    for block in range(blocks_before, blocks_before + 4):
        check(tiled, tiled.at(3 * block, 3), plain.at(3 * block, 3), version=1)


@pytest.mark.parametrize("blocks_before", [1, 5])
def test_a_snapshot_brings_the_coarse_keys_back(blocks_before: int) -> None:
    cache, other = ring(8, 2), ring(8, 2)

    def go_on(cache: RingCache) -> list[Tensor]:
        found = []
        for block in range(blocks_before, blocks_before + 4):
            step = cache.at(3 * block, 3)
            found += [tensor.clone() for pair in write(step) for tensor in pair]
            found += [step.reach.means[:, :, :, (step.reach.sizes > 0).nonzero().flatten()].clone()]
        return found

    for block in range(blocks_before):
        write(cache.at(3 * block, 3))
    state = cache.snapshot()
    expected = go_on(cache)
    cache.restore(state)
    other.restore(state)
    for again in (go_on(cache), go_on(other)):
        assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))
    with pytest.raises(ShapeError):
        ring(8, 2, None).restore(state)


def test_each_frame_is_pooled_once() -> None:
    calls = []

    def counted(keys: Tensor) -> Tensor:
        calls.append(keys.shape[0])
        return pool(keys)

    cache = RingCache(
        SHAPE, RingPolicy(window=8, sink=2), tiles=HistoryTiles(
            grid=(1, 3), rows=ROWS, sizes=SIZES, block=4, whole=False, sparsity=0.5, pool=counted
        ), **OPTIONS,
    )  # fmt: skip
    for block in range(5):
        for _ in range(3):
            write(cache.at(3 * block, 3))
    assert calls == [SHAPE.num_layers * SHAPE.batch] * 10  # frames 2 to 11: behind the sink, finished


def test_wrong_shapes_are_refused() -> None:
    step = ring(6, 1).at(0, 3)
    with pytest.raises(ShapeError, match=r"\(2, 9, 2, 4\)"):
        step.write(0, content(range(2), 0), content(range(2), 0))
