from __future__ import annotations

import math
import random

from strobe.perf.analysis.steady import UNSETTLED, find_steady


def test_a_warm_up_ramp_is_cut_off_and_named() -> None:
    draw = random.Random(0)
    values = [100 + 80 * math.exp(-index / 3) + draw.gauss(0, 1) for index in range(40)]
    found = find_steady(values, {})
    assert found.tested
    assert 6 <= found.kept[0] <= 20
    assert found.kept == tuple(range(found.kept[0], 40))
    assert set(found.excluded.values()) == {UNSETTLED}


def test_causes_come_first_and_every_index_is_accounted_for() -> None:
    draw = random.Random(1)
    values = [100 + draw.gauss(0, 1) for _ in range(30)]
    values[0], values[12] = 900, 450
    found = find_steady(values, {0: "compilation", 12: "prompt switch"})
    causes = found.excluded
    assert (causes[0], causes[12]) == ("compilation", "prompt switch")
    assert sorted([*causes, *found.kept]) == list(range(30))


def test_steady_noise_is_kept_nearly_whole() -> None:
    whole = 0
    for seed in range(100):
        draw = random.Random(seed)
        found = find_steady([100 + draw.gauss(0, 2) for _ in range(24)], {})
        assert found.tested
        whole += len(found.kept) >= 20
    assert whole >= 85


def test_a_stall_is_kept() -> None:
    draw = random.Random(2)
    values = [100 + draw.gauss(0, 1) for _ in range(30)]
    values[20] = 500
    assert 20 in find_steady(values, {}).kept


def test_a_series_that_never_settles_says_so() -> None:
    found = find_steady([100 + 5 * index for index in range(30)], {0: "first block"})
    assert not found.tested
    assert "no steady part" in found.note
    assert found.kept == tuple(range(1, 30))


def test_too_few_samples_are_not_tested() -> None:
    found = find_steady([9, 1, 2], {0: "first block"})
    assert (found.kept, found.tested) == ((1, 2), False)
    assert "fewer than" in found.note
    assert find_steady([], {}).kept == ()


def test_equal_samples_are_steady() -> None:
    assert find_steady([7] * 20, {}).kept == tuple(range(20))


def test_a_thousand_samples_take_no_time() -> None:
    draw = random.Random(3)
    values = [100 + (300 if index < 100 else 0) + draw.gauss(0, 1) for index in range(1000)]
    found = find_steady(values, {})
    assert found.tested
    assert 90 <= found.kept[0] <= 250
