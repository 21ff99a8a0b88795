"""Rings and the rolling cache show a pass the frames that they are to keep, at their positions, whatever happened before."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ring_frames import SHAPE, content, frame_set, turn_into, turned_content, write
from strobe.cache.kv import HistoryTiles, RingCache
from strobe.cache.policy import RingPolicy
from strobe.cache.quantized import EightBitRing, QuantizedRing
from strobe.cache.rings import RollingCache
from strobe.core.errors import ConfigError, SessionError, ShapeError
from strobe.core.tolerances import tolerance

ELEMENT = tolerance("element", "float32")
ROUNDING = tolerance("rounding", "float32")

EIGHT = partial(QuantizedRing, to="int8")
ROWS = torch.tensor([5, 0, 1])  # two tiles of four rows: tokens 1 and 2 in the first, token 0 in the second
SIZES = torch.tensor([2, 1], dtype=torch.int32)


def pool(keys: Tensor) -> Tensor:
    """Means of tokens 1 and 2, and token 0 itself, whose row is not the first of its tile: a pooled padding row would show."""
    return torch.stack([(keys[:, 0] + keys[:, 1]) / 2, keys[:, 5]], dim=2)


TILES = HistoryTiles(grid=(1, 3), rows=ROWS, sizes=SIZES, block=4, whole=False, staged=3, sparsity=0.5, pool=pool)


def build(kind: Any, window: int, sink: int, **options: Any) -> Any:
    policy = RingPolicy(window=window, sink=sink)
    return kind(SHAPE, policy, device=torch.device("cpu"), dtype=torch.float32, **options)


def ring(window: int, sink: int, tiles: HistoryTiles | None = TILES) -> RingCache:
    cache: RingCache = build(RingCache, window, sink, positions="rebased", rotate=turn_into, tiles=tiles)
    return cache


def poisoned(kind: str, window: int, sink: int, positions: str = "rebased", staged: int = 3) -> Any:
    """A cache with NaN in all that is never to be seen before it is written; padding of tiles stays 0."""
    options: dict[str, Any] = {"positions": positions, "rotate": turn_into}
    if kind != "tiled":
        cache = build({"ring": RingCache, "rolling": RollingCache}[kind], window, sink, **options)
        cache.keys.fill_(torch.nan)
        cache.values.fill_(torch.nan)
        return cache
    cache = build(RingCache, window, sink, tiles=replace(TILES, staged=staged), **options)
    for buffer in (cache.keys, cache.values):
        buffer[:, :, : (sink + staged) * 3] = torch.nan
        local = buffer[:, :, (sink + staged) * 3 :].unflatten(2, (-1, 8))
        local[:, :, :, ROWS] = torch.nan
    return cache


def seen(step: Any, written: list[tuple[Tensor, Tensor]], layer: int, version: int) -> Tensor:
    """All keys and values, side by side, that a pass may see; of tiles frame by frame: sink, history, its own."""
    both = torch.cat(written[layer], dim=-1)
    if step.reach is None:
        return both
    reach, positions = step.reach, step.positions
    own = torch.cat((turned_content(positions, positions, layer, version), content(positions, layer, version + 50)), dim=-1)
    frames = [both[:, : reach.whole_rows]]
    open_tiles = reach.sizes.view(-1, 2)
    assert reach.num_tiles == (open_tiles > 0).sum()
    for slot, sizes in enumerate(open_tiles):
        assert sizes.tolist() in ([0, 0], [2, 1])
        if sizes[0]:
            start = reach.tiled_from + slot * 8
            frames.append(both[:, start : start + 8][:, ROWS])
    return torch.cat([*frames, own[:, reach.covered :]], dim=1)


def check_means(reach: Any, keys: Tensor, layer: int) -> None:
    for slot in reach.sizes.view(-1, 2)[:, 0].nonzero().flatten().tolist():
        start = reach.tiled_from + slot * 8
        frame = keys[:, start : start + 8][:, ROWS]  # [B, 3, H, D]
        expected = torch.stack([frame[:, 1:].mean(dim=1), frame[:, 0]], dim=2)
        torch.testing.assert_close(reach.means[layer, :, :, 2 * slot : 2 * slot + 2], expected, rtol=0, atol=ROUNDING)


@dataclass
class Naive:
    """What a cache holds: the version of every frame that it keeps, by number."""

    window: int
    sink: int
    rebased: bool
    origin: int = 0
    end: int = 0
    frames: dict[int, int] = field(default_factory=dict)

    def go_to(self, end: int) -> None:
        """Forget what is not kept once frames up to `end` are written."""
        self.end = end
        behind = max(self.origin + self.sink, end - (self.window - self.sink))
        self.frames = {
            frame: version
            for frame, version in self.frames.items()
            if frame < end and (self.origin <= frame < self.origin + self.sink or frame >= behind)
        }

    def rows(self, layer: int, fresh: dict[int, int]) -> Tensor:
        """All keys and values, side by side: those kept, and those of a pass."""
        shift, found = max(0, self.end - self.origin - self.window) if self.rebased else 0, []
        for frame, version in [*self.frames.items(), *fresh.items()]:
            turned = frame + (shift if frame < self.origin + self.sink and frame not in fresh else 0)
            keys, values = turned_content((frame,), (turned,), layer, version), content((frame,), layer, version + 50)
            found.append(torch.cat((keys, values), dim=-1))
        return torch.cat(found, dim=1)


class Played:
    """A cache and its naive twin, through the same moves."""

    def __init__(self, kind: str, window: int, sink: int, positions: str, staged: int) -> None:
        self.fresh = partial(poisoned, kind, window, sink, positions, staged)
        self.cache, self.twin = self.fresh(), Naive(window, sink, positions == "rebased")
        self.staged, self.version, self.known = staged, 0, {}
        self.kept: tuple[Any, Naive] | None = None

    def passed(self, step: Any, skip: int, staged: bool) -> None:
        """Write the frames of a step anew, and look at all that it sees."""
        self.version += 1
        written, reach = write(step, self.version), step.reach
        fresh = dict.fromkeys(step.positions[skip:], self.version)
        before = {frame: self.twin.frames[frame] for frame in self.twin.frames if frame not in fresh}
        seen_frames = replace(self.twin, frames=before)
        for layer in range(SHAPE.num_layers):
            found, expected = (
                frame_set(each) for each in (seen(step, written, layer, self.version), seen_frames.rows(layer, fresh))
            )
            torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=0, atol=ELEMENT)
            if reach is not None:
                check_means(reach, written[layer][0], layer)
        if reach is not None:
            assert step.staged == staged and reach.covered == 3 * (len(step.positions) if staged else skip)
            facts = (len(step.positions), step.skipped, reach.whole_rows, reach.covered, reach.num_tiles, step.staged)
            assert self.known.setdefault(step.signature, facts) == facts
        self.twin.frames = self.twin.frames | fresh

    def opened(self, first: int, *, leave: bool = False) -> None:
        """The frames from `first` on, which are the next or the last ones; left as they are, they stay what they were."""
        step = self.cache.at(first, self.twin.end - first)
        behind = self.twin.end - max(first, self.twin.origin + self.twin.sink)
        if not leave:
            self.passed(step, 0, behind <= self.staged)

    def next(self, size: int) -> None:
        first = self.twin.end
        self.twin.go_to(first + size)
        self.opened(first)

    def again(self, size: int, leave: bool) -> None:
        local, first = self.twin.window - self.twin.sink, self.twin.end - size
        if first >= max(self.twin.origin, 0) and self.twin.end - max(first, self.twin.origin + self.twin.sink) <= local:
            self.opened(first, leave=leave)

    def rewrite(self, back: int, keep_sink: bool) -> None:
        end = self.twin.end - back
        first = max(0, end - self.twin.window)
        if end < 1 or first < self.twin.origin:
            return
        step = self.cache.rewrite(end, keep_sink=keep_sink)
        if not keep_sink:
            self.twin.origin = first
        skip = self.twin.sink if first > self.twin.origin else 0
        self.twin.go_to(end)
        self.passed(step, skip, staged=False)

    def snapshot(self) -> None:
        self.kept = self.cache.snapshot(), replace(self.twin)

    def restore(self, elsewhere: bool) -> None:
        if self.kept is not None:
            state, twin = self.kept
            if elsewhere:
                self.cache, self.known = self.fresh(), {}
            self.cache.restore(state)
            self.twin = replace(twin)

    def reset(self) -> None:
        self.cache.reset()
        self.twin = Naive(self.twin.window, self.twin.sink, self.twin.rebased)


def moves(local: int) -> Any:
    sizes, flag = st.integers(1, min(local, 4)), st.booleans()
    kinds = [st.tuples(st.just("next"), sizes), st.tuples(st.just("rewrite"), st.integers(0, 4), flag)] * 2
    kinds += [st.tuples(st.just("again"), st.integers(1, local + 3), flag)]
    kinds += [st.tuples(st.just("snapshot")), st.tuples(st.just("restore"), flag)]
    return st.lists(st.one_of(kinds), min_size=5, max_size=20)


@pytest.mark.parametrize("kind", ["ring", "rolling", "tiled"])
@given(data=st.data())
def test_whatever_comes_it_holds_what_a_dict_of_frames_holds(kind: str, data: st.DataObject) -> None:
    sink, local = data.draw(st.sampled_from((0, 1, 3))), data.draw(st.integers(1, 6))
    game = Played(kind, sink + local, sink, data.draw(st.sampled_from(("rebased", "absolute"))), data.draw(st.integers(0, 4)))
    game.next(data.draw(st.integers(1, min(local, 4) + sink)))
    for size in data.draw(st.lists(st.integers(1, min(local, 4)), max_size=6)):
        game.next(size)
    for name, *arguments in data.draw(moves(local)):
        getattr(game, name)(*arguments)
    game.snapshot()
    game.restore(True)
    game.next(1)
    game.reset()
    game.next(1)


@pytest.mark.parametrize("kind", ["ring", "rolling", "tiled"])
def test_a_renewed_sink_is_turned_anew(kind: str) -> None:
    """Also by as many frames as the one before it was turned last."""
    game = Played(kind, 6, 1, "rebased", 3)
    for _ in range(3):
        game.next(3)
    game.rewrite(0, keep_sink=False)
    game.next(3)


def test_each_frame_is_pooled_once() -> None:
    calls = []

    def counted(keys: Tensor) -> Tensor:
        calls.append(keys.shape[0])
        return pool(keys)

    cache = ring(8, 2, replace(TILES, pool=counted))
    for block in range(5):
        for _ in range(3):
            write(cache.at(3 * block, 3))
    assert calls == [SHAPE.num_layers * SHAPE.batch] * 10  # frames 2 to 11: behind the sink, finished


@pytest.mark.parametrize("staged", [3, 2, None])
def test_gradients_reach_the_keys_and_values_of_a_pass(staged: int | None) -> None:
    """A block of 3 is staged or not, or there are no tiles; what later passes store does not disturb them."""
    cache = ring(6, 1, None if staged is None else replace(TILES, staged=staged))
    write(cache.at(0, 3))
    step = cache.at(3, 3)
    new = tuple(content(range(3, 6), 0, version).requires_grad_() for version in (1, 2))
    kept = dense = step.write(0, *new)
    assert step.staged == (staged != 2)
    if staged is not None:
        assert torch.equal(cache.keys[0], kept[0]) and torch.equal(cache.values[0], kept[1])
        both, reach = zip(kept, new, strict=True), step.reach
        dense = [torch.cat((each[:, : reach.whole_rows], own[:, reach.covered :]), dim=1) for each, own in both]
    loss = (dense[0] * dense[1]).sum()
    write(cache.at(6, 3))
    loss.backward()
    for own, other in (new, new[::-1]):
        torch.testing.assert_close(own.grad, other.detach(), rtol=0, atol=0)
    assert not cache.keys.requires_grad


def test_frames_that_are_gone_are_not_copied() -> None:
    """Beside the sink there is room for one block."""
    cache = poisoned("tiled", 4, 1)
    for first in (0, 3, 6):
        write(cache.at(first, 3))
    kept = cache.keys[:, :, 4 * 3 :].unflatten(2, (-1, 8))[:, :, :, ROWS]
    assert kept.shape[2] == 3 and kept.isnan().all()
    assert cache.snapshot().keys.isfinite().all()


def test_nothing_is_read_back() -> None:
    """On a device that has no numbers."""
    meta = torch.device("meta")
    tiles = replace(TILES, rows=ROWS.to(meta), sizes=SIZES.to(meta))
    cache = RingCache(SHAPE, RingPolicy(window=8, sink=2), tiles=tiles, device=meta, dtype=torch.float32)
    for first in (0, 0, 3, 6, 9, 9):
        cache.at(first, 3)
    state = cache.snapshot()
    cache.rewrite(keep_sink=True)
    cache.restore(state)
    assert cache.at(9, 3).reach.num_tiles == 2 * 3 and cache.at(12, 3).reach.num_tiles == 2 * 3


def test_ring_returns_views_of_tensors_that_never_move() -> None:
    ring = build(RingCache, 6, 1)
    address = ring.keys.data_ptr()
    for block in range(6):
        (keys, values), *_ = write(ring.at(3 * block, 3))
        assert keys.data_ptr() == address and keys._base is not None
    assert values.shape == (2, 18, 2, 4)


@pytest.mark.parametrize("kind", [RingCache, RollingCache, EIGHT, partial(QuantizedRing, to="fp8"), EightBitRing])
def test_a_snapshot_leaves_tensors_where_they_are_and_fits_its_own_kind(kind: Any) -> None:
    cache = build(kind, 7, 2, positions="rebased", rotate=turn_into)
    for block in range(5):
        write(cache.at(3 * block, 3))
    write(cache.rewrite(keep_sink=False), 9)  # the sink is another one then
    state, addresses = cache.snapshot(), [each.data_ptr() for each in cache._held()]
    write(cache.at(15, 3))
    cache.restore(state)
    assert (state.origin, state.end, cache.end) == (8, 15, 15)
    assert [each.data_ptr() for each in cache._held()] == addresses
    own = EIGHT if isinstance(kind, partial) else RingCache if kind is RollingCache else kind
    others = [build(each, 7, 2) for each in (RingCache, EIGHT, EightBitRing) if each is not own]
    for wrong in (build(kind, 8, 2), *([] if kind is RollingCache else [build(kind, 7, 1)]), *others):
        with pytest.raises(ShapeError):
            wrong.restore(state)


KINDS = [RingCache, RollingCache, EIGHT, EightBitRing]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("at", (4, 3), SessionError), ("at", (1, 1), SessionError), ("at", (3, 0), SessionError), ("at", (3, 6), ConfigError),
        ("rewrite", (0,), SessionError), ("rewrite", (4,), SessionError),
    ],
)  # fmt: skip
def test_wrong_frames_are_refused_and_nothing_changes(
    kind: Any, name: str, arguments: tuple[int, ...], error: type[Exception]
) -> None:
    cache = build(kind, 6, 1)
    write(cache.at(0, 3))
    with pytest.raises(error):
        getattr(cache, name)(*arguments, **({"keep_sink": True} if name == "rewrite" else {}))
    assert cache.end == 3


@pytest.mark.parametrize("kind", [RingCache, EIGHT, EightBitRing])
def test_wrong_shapes_and_missing_rotation_are_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match="rotate"):
        build(kind, 6, 1, positions="rebased")
    build(kind, 6, 0, positions="rebased")
    caches = [build(kind, 6, 1), *([ring(6, 1)] if kind is RingCache else [])]
    for step in (cache.at(0, 3) for cache in caches):
        with pytest.raises(ShapeError, match=r"\(2, 9, 2, 4\)"):
            step.write(0, content(range(2), 0), content(range(2), 0))
    if kind is RingCache:  # without tiles, and with them
        with pytest.raises(ShapeError):
            ring(6, 1, None).restore(ring(6, 1).snapshot())


@pytest.mark.parametrize(
    ("window", "sink", "block", "words"),
    [
        (6, 4, 3, ["smallest window with sink 4: 7", "largest sink with window 6: 3"]),
        (2, 0, 3, ["smallest window with sink 0: 3"]),
    ],
)
def test_impossible_blocks_name_the_limits(window: int, sink: int, block: int, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        RingPolicy(window=window, sink=sink).check_block(block)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(("window", "sink"), [(3, 3), (0, 0), (4, -1), (2, 5)])
def test_impossible_policies(window: int, sink: int) -> None:
    with pytest.raises(ConfigError):
        RingPolicy(window=window, sink=sink)
