"""What repeats is found with its anchor, and nothing is found where nothing repeats."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.analysis.structure.steps import Period, find_periods

_LAYER = ["norm", "qkv", "attn", "proj", "up", "down"]
_STEP = ["embed", *_LAYER * 8, "head", "sample"]


def _find(names: list[str], pause: dict[str, int] | None = None) -> tuple[Period, ...]:
    texts = tuple(dict.fromkeys(names))
    ids = np.array([texts.index(name) for name in names], np.int64)
    return find_periods(ids, texts, None if pause is None else np.array([pause.get(name, 0) for name in names], np.int64))


def test_the_step_is_found_above_its_layers() -> None:
    step, layer = _find(_STEP * 6, {"embed": 50, "norm": 1})[:2]
    assert (step.anchor, step.after, step.periods, set(step.kernels)) == ("embed", "", 6, {len(_STEP)})
    assert step.starts == tuple(range(0, 6 * len(_STEP), len(_STEP)))
    assert (step.likeness, step.identical, step.covered, step.head, step.rest) == (1.0, 1.0, 1.0, 0, 0)
    assert (step.anchors, step.confidence) == (3, "high")  # embed, head and sample occur once in each
    assert layer.anchor in _LAYER and np.median(layer.kernels) == len(_LAYER) and len(layer.starts) == 48


def test_the_anchor_is_the_one_after_the_longest_pauses() -> None:
    assert _find(_STEP * 12, {"head": 9, "embed": 8})[0].anchor == "head"
    assert _find(_STEP * 12, {"head": 8, "embed": 9})[0].anchor == "embed"
    assert _find(_STEP * 4, {"head": 9})[0].anchor == "embed"  # of few periods none is given up for it


def test_a_step_without_a_name_of_its_own_is_found_by_a_pair() -> None:
    step = ["a", "b", "b", "c", "a", "c", "c", "b"]  # every name comes several times; only "a" right after "b" starts a step
    found = _find(step * 9)[0]
    assert np.median(found.kernels) == len(step) and found.after and found.confidence == "high"


def test_cut_off_periods_at_both_ends() -> None:
    names = (_STEP * 7)[20:-13]
    found = _find(names)[0]
    assert set(found.kernels) == {len(_STEP)} and found.periods == 5
    assert found.head < len(_STEP) and found.rest < len(_STEP)
    assert found.head + 5 * len(_STEP) + found.rest == len(names)
    assert found.covered == 5 * len(_STEP) / len(names)


def test_steps_that_differ_a_little_are_still_steps() -> None:
    rng = random.Random(0)
    steps = [[*(["copy"] if rng.random() < 0.3 else []), *_STEP, *["log"] * rng.randrange(2)] for _ in range(40)]
    found = _find([name for step in steps for name in step])[0]
    assert found.periods >= 39 and 0.97 < found.likeness < 1.0 and found.identical < 1.0
    assert min(found.kernels) < max(found.kernels) and found.confidence == "high"


def test_chance_events_in_a_long_run_are_no_step() -> None:
    names = _STEP * 80
    for place in (100, 1_100, 2_120, 3_130):
        names.insert(place, "workspace")
    found = _find(names)
    assert found[0].anchor != "workspace" and np.median(found[0].kernels) == len(_STEP)


def test_likeness_by_hand() -> None:
    step = ["embed", *(f"k{i}" for i in range(19))]
    found = _find([*step, *step, *step[:7], "extra", *step[7:], *step, "embed"])[0]
    # one of four periods has one kernel more than the median's 20, times 4 / 3
    assert found.likeness == pytest.approx(1 - (4 / 3) / 20 / 4) and found.identical == 0.75
    assert found.kernels == (20, 20, 21, 20) and (found.head, found.rest) == (0, 1)


def test_the_longest_period_is_found_below_any_number_of_shorter_ones() -> None:
    """More names come at even distances, four times in a step each, than distances are tried."""
    step = ["embed", *["rest"] * 13_499]
    for distance in sorted({round(2 * 1.08**number) for number in range(101)}):
        start = next(at for at in itertools.count(1) if set(step[at : at + 4 * distance : distance]) == {"rest"})
        step[start : start + 4 * distance : distance] = [f"every {distance}"] * 4
    found = _find(step * 4)[0]
    assert (found.anchor, found.after, set(found.kernels), found.identical) == ("embed", "", {len(step)}, 1.0)


def test_a_last_stretch_of_other_kernels_is_no_period() -> None:
    other = ["embed", *_LAYER * 5, *["copy"] * (len(_STEP) - 1 - len(_LAYER) * 5)]
    found = _find([*_STEP * 5, *other])[0]
    assert (found.anchor, found.kernels, len(found.starts)) == ("embed", (len(_STEP),) * 5, 6)
    assert (found.head, found.rest) == (0, len(_STEP)) and found.confidence == "low"


@pytest.mark.parametrize(
    ("changed", "confidence"),
    [
        ({}, "high"),
        ({"likeness": 0.9699}, "medium"),
        ({"kernels": (20,) * 4}, "medium"),
        ({"rest": 16}, "medium"),
        ({"kernels": (20,) * 3, "likeness": 0.95, "rest": 0}, "medium"),
        ({"likeness": 0.9499}, "low"),
        ({"kernels": (20,) * 2, "rest": 0}, "low"),
        ({"kernels": (25, 25, 100), "head": 50, "rest": 50}, "medium"),
        ({"kernels": (25, 25, 100), "head": 50, "rest": 51}, "low"),
        ({"head": 19, "rest": 0}, "high"),
        ({"head": 20, "rest": 0}, "low"),
    ],
)
def test_confidence_at_its_limits(changed: dict[str, Any], confidence: str) -> None:
    """5 periods of 97 % likeness over 80 % of the sequence are the least for a high one."""
    limits = {"kernels": (20,) * 5, "likeness": 0.97, "head": 10, "rest": 15} | changed
    assert Period(anchor="a", after="", starts=(), identical=1.0, anchors=1, **limits).confidence == confidence


def test_two_repetitions_only_if_they_are_the_same() -> None:
    assert _find(_STEP * 3)[0].periods == 3
    found = _find(["load", *_STEP * 2, "embed", "stop"])[0]
    assert (found.periods, found.confidence) == (2, "low")
    other = ["embed", "copy", *_LAYER * 8, "head", "sample"]
    assert all(np.median(period.kernels) < len(_STEP) for period in _find(["load", *_STEP, *other, "embed", "stop"]))


def test_the_layers_of_one_pass_have_low_confidence() -> None:
    names = ["embed", "mask", *["pre"] * 8, *_LAYER * 12, *["post"] * 7]
    found = _find(names)[0]
    assert (len(found.starts), found.periods, found.confidence) == (12, 12, "low")


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b"] * 2, [f"k{i}" for i in range(100)], ["a"] * 100])
def test_nothing_to_find(names: list[str]) -> None:
    assert _find(names) == ()


@given(st.integers(0, 10_000), st.integers(3, 9), st.integers(20, 300))
def test_random_kernels_are_not_called_a_step(seed: int, num_names: int, length: int) -> None:
    rng = random.Random(seed)
    found = _find([f"k{rng.randrange(num_names)}" for _ in range(length)])
    assert all(period.confidence == "low" for period in found)


@given(st.lists(st.integers(0, 30), min_size=4, max_size=60), st.integers(5, 20))
def test_what_repeats_exactly_is_found(step: list[int], times: int) -> None:
    names = ["anchor", *(f"k{name}" for name in step)]
    found = _find(names * times)
    assert any(set(period.kernels) == {len(names)} and period.identical == 1.0 for period in found)
    for period in found:
        assert len(period.starts) - 1 <= period.periods <= len(period.starts)
        assert period.head + sum(period.kernels) + period.rest == times * len(names)
