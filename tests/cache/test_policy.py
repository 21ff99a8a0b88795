"""Slots by plain ints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.cache.policy import RingPolicy
from strobe.core.errors import ConfigError

windows = st.tuples(st.integers(1, 24), st.integers(0, 12)).filter(lambda pair: pair[0] > pair[1])


def test_slots_of_the_reference_window() -> None:
    policy = RingPolicy(window=12, sink=3)
    assert [policy.slot(frame) for frame in range(15)] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 3, 4, 5]
    assert policy.frames(15) == (0, 1, 2, 12, 13, 14, 6, 7, 8, 9, 10, 11)


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


def test_smallest_possible_window_is_accepted() -> None:
    RingPolicy(window=6, sink=3).check_block(3)
