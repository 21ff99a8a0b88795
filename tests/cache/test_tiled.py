"""A ring with tiles shows a pass the frames of the plain ring: the sink and history in their places, the rest its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ring_frames import SHAPE, content, frame_set, turn_into, turned_content, write
from strobe.cache.kv import HistoryTiles, RingCache
from strobe.cache.policy import RingPolicy
from strobe.core.errors import ShapeError
from strobe.core.tolerances import tolerance

ELEMENT = tolerance("element", "float32")
ROUNDING = tolerance("rounding", "float32")

ROWS = torch.tensor([5, 0, 1])  # two tiles of four rows: tokens 1 and 2 in the first, token 0 in the second
SIZES = torch.tensor([2, 1], dtype=torch.int32)


def pool(keys: Tensor) -> Tensor:
    """Means of tokens 1 and 2, and token 0 itself, whose row is not the first of its tile: a pooled padding row would show."""
    return torch.stack([(keys[:, 0] + keys[:, 1]) / 2, keys[:, 5]], dim=2)


TILES = HistoryTiles(grid=(1, 3), rows=ROWS, sizes=SIZES, block=4, whole=False, staged=3, sparsity=0.5, pool=pool)
OPTIONS: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32, "positions": "rebased", "rotate": turn_into}


def ring(window: int, sink: int, tiles: HistoryTiles | None = TILES) -> RingCache:
    return RingCache(SHAPE, RingPolicy(window=window, sink=sink), tiles=tiles, **OPTIONS)


def poisoned(window: int, sink: int, staged: int = 3) -> RingCache:
    """NaN in all that is never to be seen before it is written; padding stays 0."""
    cache = ring(window, sink, replace(TILES, staged=staged))
    for buffer in (cache.keys, cache.values):
        buffer[:, :, : (sink + staged) * 3] = torch.nan
        local = buffer[:, :, (sink + staged) * 3 :].unflatten(2, (-1, 8))
        local[:, :, :, ROWS] = torch.nan
    return cache


def seen(step: Any, written: list[tuple[Tensor, Tensor]], layer: int, which: int, version: int) -> Tensor:
    """All keys or values that a pass may see, frame by frame: sink, history, its own."""
    reach, buffer = step.reach, written[layer][which]
    own = [turned_content(step.positions, step.positions, layer, version), content(step.positions, layer, version + 50)][which]
    frames = [buffer[:, : reach.whole_rows]]
    open_tiles = reach.sizes.view(-1, 2)
    assert reach.num_tiles == (open_tiles > 0).sum()
    for slot, sizes in enumerate(open_tiles):
        assert sizes.tolist() in ([0, 0], [2, 1])
        if sizes[0]:
            start = reach.tiled_from + slot * 8
            frames.append(buffer[:, start : start + 8][:, ROWS])
    return torch.cat([*frames, own[:, reach.covered :]], dim=1)


def check_means(reach: Any, keys: Tensor, layer: int) -> None:
    for slot in reach.sizes.view(-1, 2)[:, 0].nonzero().flatten().tolist():
        start = reach.tiled_from + slot * 8
        frame = keys[:, start : start + 8][:, ROWS]  # [B, 3, H, D]
        expected = torch.stack([frame[:, 1:].mean(dim=1), frame[:, 0]], dim=2)
        torch.testing.assert_close(reach.means[layer, :, :, 2 * slot : 2 * slot + 2], expected, rtol=0, atol=ROUNDING)


def test_each_frame_is_pooled_once() -> None:
    calls = []

    def counted(keys: Tensor) -> Tensor:
        calls.append(keys.shape[0])
        return pool(keys)

    cache = RingCache(SHAPE, RingPolicy(window=8, sink=2), tiles=replace(TILES, pool=counted), **OPTIONS)
    for block in range(5):
        for _ in range(3):
            write(cache.at(3 * block, 3))
    assert calls == [SHAPE.num_layers * SHAPE.batch] * 10  # frames 2 to 11: behind the sink, finished


@dataclass
class Naive:
    """What a ring holds: the version of every frame that it keeps, by number."""

    window: int
    sink: int
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

    def rows(self, layer: int, which: int, fresh: dict[int, int]) -> Tensor:
        """All keys or values: those kept, and those of a pass."""
        shift, found = max(0, self.end - self.origin - self.window), []
        for frame, version in [*self.frames.items(), *fresh.items()]:
            turned = frame + (shift if frame < self.origin + self.sink and frame not in fresh else 0)
            found.append(content((frame,), layer, version + 50) if which else turned_content((frame,), (turned,), layer, version))
        return torch.cat(found, dim=1)


def same_frames(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(torch.tensor(frame_set(found)), torch.tensor(frame_set(expected)), rtol=0, atol=ELEMENT)


class Played:
    """A ring and its naive twin, through the same moves."""

    def __init__(self, window: int, sink: int, staged: int) -> None:
        self.cache, self.twin = poisoned(window, sink, staged), Naive(window, sink)
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
            for which in (0, 1):
                same_frames(seen(step, written, layer, which, self.version), seen_frames.rows(layer, which, fresh))
            check_means(reach, written[layer][0], layer)
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
                self.cache, self.known = poisoned(twin.window, twin.sink, self.staged), {}
            self.cache.restore(state)
            self.twin = replace(twin)


def moves(local: int) -> Any:
    sizes, flag = st.integers(1, min(local, 4)), st.booleans()
    return st.lists(
        st.one_of(
            st.tuples(st.just("next"), sizes),
            st.tuples(st.just("next"), sizes),
            st.tuples(st.just("again"), st.integers(1, local + 3), flag),
            st.tuples(st.just("rewrite"), st.integers(0, 4), flag),
            st.tuples(st.just("snapshot")),
            st.tuples(st.just("restore"), flag),
        ),
        max_size=20,
    )


@given(st.data())
def test_whatever_comes_it_holds_what_a_dict_of_frames_holds(data: st.DataObject) -> None:
    sink, local = data.draw(st.sampled_from((0, 1, 3))), data.draw(st.integers(1, 6))
    game = Played(sink + local, sink, data.draw(st.integers(0, 4)))
    game.next(data.draw(st.integers(1, min(local, 4) + sink)))
    for name, *arguments in data.draw(moves(local)):
        getattr(game, name)(*arguments)
    state = game.cache.snapshot()
    for layer in range(SHAPE.num_layers):
        for which, buffer in enumerate((state.keys, state.values)):
            local_rows = buffer[layer][:, sink * 3 :].unflatten(1, (-1, 8))[:, :, ROWS].flatten(1, 2)
            rows = torch.cat((buffer[layer][:, : sink * 3], local_rows), dim=1)
            used = rows[:, : 3 * min(sink + local, game.twin.end - game.twin.origin)]
            same_frames(used, game.twin.rows(layer, which, {}))


@pytest.mark.parametrize("staged", [3, 2])
def test_gradients_reach_the_keys_and_values_of_a_pass(staged: int) -> None:
    """A block of 3 is staged or not; what later passes store does not disturb them."""
    cache = ring(6, 1, replace(TILES, staged=staged))
    write(cache.at(0, 3))
    step = cache.at(3, 3)
    new = tuple(content(range(3, 6), 0, version).requires_grad_() for version in (1, 2))
    kept = step.write(0, *new)
    assert step.staged == (staged == 3) and torch.equal(cache.keys[0], kept[0]) and torch.equal(cache.values[0], kept[1])
    dense = [
        torch.cat((each[:, : step.reach.whole_rows], own[:, step.reach.covered :]), dim=1)
        for each, own in zip(kept, new, strict=True)
    ]
    loss = (dense[0] * dense[1]).sum()
    write(cache.at(6, 3))
    loss.backward()
    for own, other in (new, new[::-1]):
        torch.testing.assert_close(own.grad, other.detach(), rtol=0, atol=0)


def test_what_does_not_fit_is_refused() -> None:
    cache = ring(6, 1)
    with pytest.raises(ShapeError, match=r"\(2, 9, 2, 4\)"):
        cache.at(0, 3).write(0, content(range(2), 0), content(range(2), 0))
    with pytest.raises(ShapeError):
        ring(6, 1, None).restore(cache.snapshot())


def test_frames_that_are_gone_are_not_copied() -> None:
    """Beside the sink there is room for one block."""
    cache = poisoned(4, 1)
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
