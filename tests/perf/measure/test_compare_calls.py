from __future__ import annotations

import itertools

import pytest

from strobe.core.errors import ConfigError
from strobe.perf.measure import compare_calls as module
from strobe.perf.measure.compare_calls import compare_calls


class Clock:
    """A clock that only work advances, and that drifts: each call costs a little more than the one before."""

    def __init__(self, drift_ns: int) -> None:
        self.now_ns = 0
        self.drift_ns = drift_ns
        self.calls = 0

    def work(self, cost_ns: int) -> None:
        self.now_ns += cost_ns + self.drift_ns * self.calls
        self.calls += 1


@pytest.mark.parametrize("drift_ns", [0, 5_000])
def test_the_ratio_is_exact_under_linear_drift(monkeypatch: pytest.MonkeyPatch, drift_ns: int) -> None:
    clock = Clock(drift_ns)
    monkeypatch.setattr(module.time, "perf_counter_ns", lambda: clock.now_ns)
    found = compare_calls(lambda: clock.work(3_000_000), lambda: clock.work(3_000_000), rounds=4)
    assert (found.ratio, found.verdict) == (1.0, "no difference")
    found = compare_calls(lambda: clock.work(3_000_000), lambda: clock.work(2_000_000), rounds=4)
    assert found.verdict == "faster"
    assert found.ratio == pytest.approx(1.5, rel=0.1 if drift_ns else 1e-12)
    assert found.interval is not None
    assert found.interval.low <= found.ratio <= found.interval.high
    assert found.calls_per_sample == 1


def test_the_order_is_abba_and_warm_up_comes_first() -> None:
    log: list[str] = []
    found = compare_calls(lambda: log.append("a"), lambda: log.append("b"), warmup=2, rounds=3)
    assert "".join(log[:6]) == "ababab"
    runs = [(name, len(list(group))) for name, group in itertools.groupby(log[6:])]
    n = found.calls_per_sample
    assert runs == [("a", n), ("b", 2 * n), ("a", 2 * n), ("b", 2 * n), ("a", 2 * n), ("b", 2 * n), ("a", n)]
    assert len(found.samples) == 3


def test_one_round_has_no_interval_and_claims_nothing() -> None:
    found = compare_calls(lambda: None, lambda: None, rounds=1)
    assert (found.interval, found.verdict) == (None, "inconclusive")


@pytest.mark.parametrize(("warmup", "rounds"), [(0, 1), (1, 0)])
def test_counts_below_one_are_refused(warmup: int, rounds: int) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        compare_calls(lambda: None, lambda: None, warmup=warmup, rounds=rounds)
