from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from strobe.core.errors import ConfigError
from strobe.perf.measure.stats import paired_interval
from strobe.perf.measure.timing import palindrome


def test_one_candidate_is_abba() -> None:
    assert palindrome("B", ["C"]) == ("B", "C", "C", "B")
    assert palindrome("B", ["C1", "C2", "C3"]) == ("B", "C1", "C2", "C3", "C3", "C2", "C1", "B")


@pytest.mark.parametrize(("baseline", "candidates"), [("a", []), ("a", ["a"]), ("a", ["b", "b"])])
def test_names_that_make_no_comparison_are_refused(baseline: str, candidates: list[str]) -> None:
    with pytest.raises(ConfigError):
        palindrome(baseline, candidates)


@pytest.mark.parametrize("num_candidates", [1, 2, 3, 5])
def test_linear_drift_cancels_exactly(num_candidates: int) -> None:
    names = [f"c{number}" for number in range(num_candidates)]
    cost = {name: Fraction(100 + 7 * number) for number, name in enumerate(["b", *names])}
    for drift in (Fraction(3, 100), Fraction(-1, 50)):
        order = palindrome("b", names) * 3
        times = [cost[name] * (1 + drift * place) for place, name in enumerate(order)]
        length = len(order) // 3
        for first in range(0, len(order), length):
            block = list(zip(order, times, strict=True))[first : first + length]
            sums = {name: sum(time for other, time in block if other == name) for name in cost}
            assert all(sums["b"] / sums[name] == cost["b"] / cost[name] for name in names)


def coverage(*, truth: float, drift: float, stalls: float, candidates: int, palindromes: int, trials: int) -> float:
    """Share of simulated comparisons whose 95 % interval holds the true ratio; noise 0.5 % per clip, drift over the whole run."""
    draw = random.Random(42)
    names = [f"c{number}" for number in range(candidates)]
    order = palindrome("b", names)
    length = len(order) * palindromes
    hits = 0
    for _ in range(trials):
        logs = []
        for lap in range(palindromes):
            sums = dict.fromkeys(order, 0.0)
            for place, name in enumerate(order):
                stalled = 1.05 if draw.random() < stalls else 1.0
                trend = 1 + drift * (lap * len(order) + place) / length
                sums[name] += (truth if name == "b" else 1.0) * math.exp(draw.gauss(0, 0.005)) * stalled * trend
            logs.append(math.log(sums["b"] / sums[names[-1]]))
        interval = paired_interval(logs)
        assert interval is not None
        hits += interval.low <= truth <= interval.high
    return hits / trials


@pytest.mark.parametrize("truth", [1.0, 1.25])
@pytest.mark.parametrize("drift", [0.0, 0.02, 0.2])
@pytest.mark.parametrize(("candidates", "palindromes"), [(1, 5), (3, 4), (4, 10)])
def test_the_interval_holds_the_truth_as_often_as_it_says(truth: float, drift: float, candidates: int, palindromes: int) -> None:
    share = coverage(truth=truth, drift=drift, stalls=0, candidates=candidates, palindromes=palindromes, trials=2000)
    assert 0.93 <= share <= 0.98


def test_stalls_do_not_make_the_interval_claim_too_much() -> None:
    assert coverage(truth=1.25, drift=0.02, stalls=0.05, candidates=1, palindromes=10, trials=1000) >= 0.93
