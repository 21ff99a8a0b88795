from __future__ import annotations

import itertools

import pytest
import torch

from fake_gpu import FakeGpu, fake_profiler
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


@pytest.mark.parametrize("used", [True, False], ids=["a GPU in use", "a GPU that the functions use first"])
def test_by_default_kernels_are_timed_and_not_their_launches(monkeypatch: pytest.MonkeyPatch, used: bool) -> None:
    gpu = FakeGpu(monkeypatch, used=used)
    monkeypatch.setattr(module.time, "perf_counter_ns", lambda: gpu.now_ns)
    found = compare_calls(lambda: gpu.kernel(30_000_000), lambda: gpu.kernel(10_000_000), rounds=4)
    assert found.ratio == pytest.approx(3, rel=1e-3)
    assert found.device == "cuda:0"
    assert found.event_ratio == pytest.approx(3, rel=1e-3)
    assert found.samples[0].a_event_ns == (30_005_000, 30_005_000)


def test_events_leave_out_what_the_host_does_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    monkeypatch.setattr(module.time, "perf_counter_ns", lambda: gpu.now_ns)

    def with_work_of_the_host(length_ns: int) -> None:
        gpu.kernel(length_ns)
        gpu.synchronize()
        gpu.now_ns += 20_000_000

    found = compare_calls(lambda: with_work_of_the_host(40_000_000), lambda: gpu.kernel(10_000_000), device="cuda", rounds=2)
    assert found.ratio == pytest.approx(6, rel=1e-2)
    assert found.samples[0].b_event_ns == (10_005_000, 10_005_000)


def test_the_cpu_is_refused_for_a_function_that_works_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    monkeypatch.setattr(torch.profiler, "profile", fake_profiler(gpu))
    with pytest.raises(ConfigError, match='device="cpu", but the second function works on a GPU: .*; leave device out'):
        compare_calls(lambda: None, lambda: gpu.kernel(1_000), device="cpu")
    found = compare_calls(lambda: None, lambda: None, device="cpu", rounds=1)
    assert (found.device, found.event_ratio, found.samples[0].a_event_ns) == ("cpu", None, None)


def test_without_a_gpu_the_clock_of_the_host_is_read() -> None:
    found = compare_calls(lambda: None, lambda: None, rounds=2)
    assert (found.device, found.event_ratio) == ("cpu", None)


CYCLES = 20_000_000
FASTEST_HZ = 3e9


@pytest.mark.gpu
def test_kernels_of_known_length_on_a_gpu() -> None:
    """A kernel that counts cycles of the GPU's clock lasts as long as it says, whatever its launch costs."""
    torch.cuda.init()
    found = compare_calls(lambda: torch.cuda._sleep(3 * CYCLES), lambda: torch.cuda._sleep(CYCLES), rounds=6)
    assert found.device == "cuda:0"
    assert found.ratio == pytest.approx(3, rel=0.05)
    assert found.event_ratio == pytest.approx(3, rel=0.05)
    assert found.interval is not None
    assert found.interval.low > 2.5
    for sample in found.samples:
        assert min(sample.b_ns) >= CYCLES / FASTEST_HZ * 1e9
        assert sample.b_event_ns is not None
        assert sum(sample.b_event_ns) == pytest.approx(sum(sample.b_ns), rel=0.05)


@pytest.mark.gpu
def test_one_against_three_products_on_a_gpu_by_default() -> None:
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    found = compare_calls(lambda: x @ x, lambda: [x @ x for _ in range(3)], rounds=10)
    assert found.ratio == pytest.approx(1 / 3, rel=0.1)
    assert found.verdict == "slower"


@pytest.mark.gpu
def test_the_cpu_is_refused_for_tensors_of_a_gpu() -> None:
    x = torch.randn(64, 64, device="cuda")
    with pytest.raises(ConfigError, match='device="cpu", but the first function works on a GPU'):
        compare_calls(lambda: x @ x, lambda: None, device="cpu")
    assert compare_calls(lambda: None, lambda: None, device="cpu", rounds=1).device == "cpu"
