"""How the last wave of programs is split over the keys."""

from __future__ import annotations

import pytest

from strobe.attention.dense.impl.waves import Split, split_last_wave


@pytest.mark.parametrize(
    ("q_len", "kv_len", "expected"),
    [
        (4680, 18720, Split(first=33 * 128, parts=2)),  # 444 programs: three waves of 132, then 48 as 96 of half the length
        (1560, 18720, Split(first=11 * 128, parts=4)),  # 156: one wave, then 24 as 96 of a quarter
        (32768, 32768, None),  # 3,072: 24 waves, the last one a third full, which is little of the whole
        (4680, 512, None),  # a merge would take longer than it saves
        (11 * 128, 18720, None),  # one full wave
        (4680, 18719, None),  # keys that cannot be cut evenly: 18719 is prime
    ],
)
def test_twelve_heads_on_132_multiprocessors(q_len: int, kv_len: int, expected: Split | None) -> None:
    assert split_last_wave(q_len, kv_len, 12, 128, 132) == expected


@pytest.mark.parametrize("heads", [1, 5, 12, 40])
@pytest.mark.parametrize("kv_len", [1024, 8640, 18720])
def test_a_split_is_one(heads: int, kv_len: int) -> None:
    """Some queries stay for it, in whole tiles before, and its parts are equal."""
    found = [split_last_wave(q_len, kv_len, heads, 128, 132) for q_len in range(1, 6000, 37)]
    for q_len, split in zip(range(1, 6000, 37), found, strict=True):
        if split is not None:
            assert 0 <= split.first < q_len and split.first % 128 == 0 and kv_len % split.parts == 0 and split.parts >= 2
    assert any(found) or kv_len == 1024
