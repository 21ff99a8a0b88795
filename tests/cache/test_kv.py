"""Ring and rolling cache show attention the same frames, at the same positions, with the same gradients."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ring_frames import SHAPE, content, frame_set, turn, turn_into, turned_content, write
from strobe.cache.kv import CacheState, RingCache
from strobe.cache.policy import RingPolicy
from strobe.cache.quantized import EightBitRing, QuantizedRing
from strobe.cache.rings import RollingCache
from strobe.core.errors import ConfigError, SessionError, ShapeError
from strobe.core.tolerances import tolerance

ELEMENT = tolerance("element", "float32")
ROUNDING = tolerance("rounding", "float32")

EIGHT = partial(QuantizedRing, to="int8")
WINDOWS = [(12, 3), (12, 0), (8, 3), (6, 1), (6, 3), (7, 2), (5, 2), (3, 0), (4, 1), (9, 5), (30, 3)]


def build(kind: type[Any], window: int, sink: int, **options: Any) -> Any:
    policy = RingPolicy(window=window, sink=sink)
    return kind(SHAPE, policy, device=torch.device("cpu"), dtype=torch.float32, **options)


def attend(keys: Tensor, values: Tensor) -> Tensor:
    query = content((12345,), 0)
    heads = (tensor.transpose(1, 2) for tensor in (query, keys, values))
    return torch.nn.functional.scaled_dot_product_attention(*heads)


@pytest.mark.parametrize("sizes", [(3,) * 16, (1,) + (3,) * 15, (1, 2, 3, 1) * 6])
@pytest.mark.parametrize(("window", "sink"), WINDOWS)
def test_ring_shows_the_frames_of_the_rolling_cache(window: int, sink: int, sizes: tuple[int, ...]) -> None:
    ring, rolling = build(RingCache, window, sink), build(RollingCache, window, sink)
    ring.keys.fill_(torch.nan)  # what is never written must never be attended
    ring.values.fill_(torch.nan)
    first = 0
    for size in sizes:
        for version in (1, 2, 0):  # two denoise passes, then the commit pass
            mine, other = write(ring.at(first, size), version), write(rolling.at(first, size), version)
            for (ring_k, ring_v), (rolling_k, rolling_v) in zip(mine, other, strict=True):
                assert ring_k.isfinite().all() and ring_v.isfinite().all()
                assert frame_set(ring_k) == frame_set(rolling_k)
                assert frame_set(ring_v) == frame_set(rolling_v)
        first += size
        kept = [frame for frame in range(first) if frame < sink or frame >= first - (window - sink)]
        assert frame_set(mine[0][1]) == frame_set(content(kept, 0, 50))
        torch.testing.assert_close(attend(ring_k, ring_v), attend(rolling_k, rolling_v), rtol=0, atol=ROUNDING)


def test_ring_returns_views_of_tensors_that_never_move() -> None:
    ring = build(RingCache, 6, 1)
    address = ring.keys.data_ptr()
    for block in range(6):
        (keys, values), *_ = write(ring.at(3 * block, 3))
        assert keys.data_ptr() == address and keys._base is not None
    assert values.shape == (2, 18, 2, 4)


@pytest.mark.parametrize("kind", [RingCache, RollingCache])
@pytest.mark.parametrize(("window", "sink"), [(12, 3), (8, 3), (6, 1), (7, 2), (6, 0)])
def test_rebased_sink_sits_right_before_the_window(kind: type[Any], window: int, sink: int) -> None:
    cache = build(kind, window, sink, positions="rebased", rotate=turn_into)
    for block in range(9):
        end = 3 * block + 3
        for version in (1, 0):
            keys, _ = write(cache.at(3 * block, 3), version)[1]
        frames = RingPolicy(window=window, sink=sink).frames(end)
        shift = max(0, end - window)
        expected = turned_content(frames, [f + shift if f < sink else f for f in frames], 1)
        order = keys if kind is RingCache else keys.flatten()
        expected = expected if kind is RingCache else turned_content(sorted(frames), range(end - len(frames), end), 1).flatten()
        torch.testing.assert_close(order, expected, rtol=0, atol=ELEMENT)


@pytest.mark.parametrize("positions", ["absolute", "rebased"])
@pytest.mark.parametrize("keep_sink", [True, False])
@pytest.mark.parametrize("blocks_before", [1, 3, 4, 7])
@pytest.mark.parametrize(("window", "sink"), [(12, 3), (8, 3), (6, 1)])
def test_rewrite_under_a_new_prompt(window: int, sink: int, blocks_before: int, keep_sink: bool, positions: Any) -> None:
    options = {"positions": positions, "rotate": turn_into}
    ring, rolling = build(RingCache, window, sink, **options), build(RollingCache, window, sink, **options)
    for block in range(blocks_before):
        for cache in (ring, rolling):
            write(cache.at(3 * block, 3))
    cur = 3 * blocks_before
    mine = write(ring.rewrite(cur, keep_sink=keep_sink), version=9)
    other = write(rolling.rewrite(cur, keep_sink=keep_sink), version=9)
    evicting = cur > window
    first = max(0, cur - window)
    if keep_sink and evicting:
        expected = torch.cat([content(range(sink), 0, 50), content(range(cur - window + sink, cur), 0, 59)], dim=1)
    else:
        expected = content(range(first, cur), 0, 59)
    assert frame_set(mine[0][1]) == frame_set(expected)
    for block in range(blocks_before, blocks_before + 6):
        torch.testing.assert_close(attend(*mine[1]), attend(*other[1]), rtol=0, atol=ROUNDING)
        mine, other = write(ring.at(3 * block, 3)), write(rolling.at(3 * block, 3))
    sinks = content(range(sink), 0, 50) if keep_sink and evicting else content(range(first, first + sink), 0, 59)
    torch.testing.assert_close(mine[0][1][:, : sinks.shape[1]], sinks)
    if positions == "rebased":
        end = 3 * blocks_before + 18
        origin, version = (0, 0) if keep_sink and evicting else (first, 9)
        expected = turned_content(range(origin, origin + sink), range(end - window, end - window + sink), 0, version)
        torch.testing.assert_close(mine[0][0][:, : sinks.shape[1]], expected, rtol=0, atol=ELEMENT)


@pytest.mark.parametrize("kind", [RingCache, RollingCache, EIGHT, partial(QuantizedRing, to="fp8")])
@pytest.mark.parametrize("blocks_before", [1, 5])
def test_snapshot_replays_bit_equal(kind: Any, blocks_before: int) -> None:
    """In the same cache, whose tensors stay where they are, and in a new one."""
    cache, other = (build(kind, 7, 2, positions="rebased", rotate=turn_into) for _ in range(2))

    def go_on(cache: Any) -> list[Tensor]:
        steps = [write(cache.at(3 * block, 3)) for block in range(blocks_before, blocks_before + 4)]
        return [tensor.clone() for step in steps for pair in step for tensor in pair]

    for block in range(blocks_before):
        write(cache.at(3 * block, 3))
    state: CacheState = cache.snapshot()
    expected, address = go_on(cache), cache.values.data_ptr()
    for each in (cache, other):
        each.restore(state)
        assert each.end == 3 * blocks_before
        assert kind is RollingCache or cache.values.data_ptr() == address
        assert all(torch.equal(a, b) for a, b in zip(go_on(each), expected, strict=True))
    for wrong in (build(kind, 8, 2), build(RingCache if isinstance(kind, partial) else EIGHT, 7, 2)):
        with pytest.raises(ShapeError):
            wrong.restore(state)


@pytest.mark.parametrize("kind", [RingCache, RollingCache, partial(QuantizedRing, to="int8")])
@pytest.mark.parametrize("positions", ["absolute", "rebased"])
def test_a_snapshot_knows_where_a_renewed_sink_begins(kind: Any, positions: str) -> None:
    cache, other = (build(kind, 7, 2, positions=positions, rotate=turn_into) for _ in range(2))
    for block in range(4):
        write(cache.at(3 * block, 3))
    write(cache.rewrite(12, keep_sink=False), 9)
    state = cache.snapshot()
    assert (state.origin, state.end) == (5, 12)
    other.restore(state)
    for block in range(4, 8):
        for mine, theirs in zip(write(other.at(3 * block, 3)), write(cache.at(3 * block, 3)), strict=True):
            assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], theirs[1])
    other.reset()
    assert other.snapshot().origin == 0


@pytest.mark.parametrize(("window", "sink"), [(6, 1), (5, 2), (7, 3)])
@pytest.mark.parametrize("kind", [RingCache, RollingCache, partial(QuantizedRing, to="int8")])
def test_what_does_not_turn_is_always_there(kind: Any, window: int, sink: int) -> None:
    """Whatever happens to a stream, turning the one pair that turns gives what writing every channel gives. What is written has
    other numbers in every channel each time, so a channel left from before would show."""

    def turn_all(keys: Tensor, frames: int, out: Tensor) -> None:
        out.copy_(turn(keys, frames))

    caches = [build(kind, window, sink, positions="rebased", rotate=rotate) for rotate in (turn_into, turn_all)]
    saved, end, order = [(cache.snapshot(), 0) for cache in caches], 0, random.Random(window)
    happened = Counter[str]()
    for version in range(80):
        what = order.choice(["next"] * 5 + ["given up", "keep the sink", "renew it", "save", "restore", "reset"])
        if (what == "reset" and order.random() < 0.7) or (what in ("keep the sink", "renew it") and not end):
            continue
        happened[what] += end > window
        if what == "save":
            saved = [(cache.snapshot(), end) for cache in caches]
        elif what == "restore":
            for cache, (state, then) in zip(caches, saved, strict=True):
                cache.restore(state)
                end = then
        elif what == "reset":
            end = 0
            for cache in caches:
                cache.reset()
        else:
            for again in range(2):
                steps = [
                    cache.at(end, 3) if what in ("next", "given up") else cache.rewrite(end, keep_sink=what == "keep the sink")
                    for cache in caches
                ]
                for mine, other in zip(*(write(step, 2 * version + again) for step in steps), strict=True):
                    assert torch.equal(mine[0], other[0]) and torch.equal(mine[1], other[1]), (version, what)
                if what == "given up":
                    break
            end += 3 * (what == "next")
    assert all(happened[what] for what in ("next", "given up", "keep the sink", "renew it", "save", "restore")), happened


def test_gradients_reach_the_keys_of_the_pass() -> None:
    ring = build(RingCache, 6, 1)
    for block in range(3):
        write(ring.at(3 * block, 3))
    k, v = content(range(9, 12), 0).requires_grad_(), content(range(9, 12), 0, 50).requires_grad_()
    attend(*ring.at(9, 3).write(0, k, v)).sum().backward()
    history = [frame for frame in RingPolicy(window=6, sink=1).frames(12) if frame < 9]
    k2, v2 = (tensor.detach().clone().requires_grad_() for tensor in (k, v))
    old_k = turned_content(history, history, 0)
    attend(torch.cat([old_k, k2], dim=1), torch.cat([content(history, 0, 50), v2], dim=1)).sum().backward()
    torch.testing.assert_close(k.grad, k2.grad)
    torch.testing.assert_close(v.grad, v2.grad)
    assert not ring.keys.requires_grad


KINDS = [RingCache, RollingCache, EIGHT, EightBitRing]


def call_at(first: int, frames: int) -> Callable[[Any], object]:
    return lambda cache: cache.at(first, frames)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("misuse", "error"),
    [
        (call_at(4, 3), SessionError),
        (call_at(1, 1), SessionError),
        (call_at(3, 0), SessionError),
        (call_at(3, 6), ConfigError),
        (lambda cache: cache.rewrite(0, keep_sink=True), SessionError),
        (lambda cache: cache.rewrite(4, keep_sink=True), SessionError),
    ],
)
def test_wrong_frames_are_refused_and_nothing_changes(kind: Any, misuse: Callable[[Any], object], error: type[Exception]) -> None:
    cache = build(kind, 6, 1)
    write(cache.at(0, 3))
    with pytest.raises(error):
        misuse(cache)
    assert cache.end == 3


@pytest.mark.parametrize("kind", [RingCache, EIGHT, EightBitRing])
def test_wrong_shapes_and_missing_rotation_are_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match="rotate"):
        build(kind, 6, 1, positions="rebased")
    build(kind, 6, 0, positions="rebased")
    step = build(kind, 6, 1).at(0, 3)
    with pytest.raises(ShapeError, match=r"\(2, 9, 2, 4\)"):
        step.write(0, content(range(2), 0), content(range(2), 0))


windows = st.tuples(st.integers(1, 24), st.integers(0, 12)).filter(lambda pair: pair[0] > pair[1])


@given(pair=windows, sizes=st.lists(st.integers(1, 5), min_size=1, max_size=30))
def test_slots_hold_the_sink_and_the_last_frames(pair: tuple[int, int], sizes: list[int]) -> None:
    policy = RingPolicy(window=pair[0], sink=pair[1])
    slots: dict[int, int] = {}
    end = 0
    for size in (min(size, policy.local) for size in sizes):
        slots.update({policy.slot(frame): frame for frame in range(end, end + size)})
        end += size
        assert [slots[slot] for slot in range(policy.filled(end))] == list(policy.frames(end))
        assert len(slots) == policy.filled(end)
        assert set(slots.values()) == {f for f in range(end) if f < policy.sink or f >= end - policy.local}


@given(pair=windows, end=st.integers(1, 60))
def test_moved_sink_and_window_are_contiguous(pair: tuple[int, int], end: int) -> None:
    policy = RingPolicy(window=pair[0], sink=pair[1])
    positions = [f + policy.sink_shift(end) if f < policy.sink else f for f in policy.frames(end)]
    assert sorted(positions) == list(range(end - policy.filled(end), end))


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
