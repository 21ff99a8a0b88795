from __future__ import annotations

import pytest
import torch

from strobe.core.errors import ConfigError
from strobe.perf.measure import timing
from strobe.perf.measure.timing import time_isolated

CPU = torch.device("cpu")


def test_every_call_is_a_sample_and_warm_up_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only the calls move: the first by 1 ns, the second by 2, and so on."""
    calls: list[int] = []
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: sum(calls))
    found = time_isolated(lambda: calls.append(len(calls) + 1), iterations=5, device=CPU, warmup=2)
    assert found == ((3, 4, 5, 6, 7), "perf_counter")


@pytest.mark.parametrize(("iterations", "warmup"), [(0, 1), (1, 0)])
def test_no_calls_are_refused(iterations: int, warmup: int) -> None:
    with pytest.raises(ConfigError, match="at least 1 of each"):
        time_isolated(lambda: None, iterations=iterations, device=CPU, warmup=warmup)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("cold", [False, True])
def test_queued_calls_have_no_launch_gaps(cold: bool) -> None:
    """A tiny kernel takes a few microseconds on the GPU; launching it from Python takes longer than that."""
    device = torch.device("cuda", 0)
    x = torch.ones(1024, device=device)
    times_ns, clock = time_isolated(lambda: x.add_(1), iterations=120, device=device, cold=cold)
    assert (len(times_ns), clock) == (120, "cuda_event") and sorted(times_ns)[60] < 20_000
    assert len(time_isolated(lambda: x.sum().item(), iterations=3, device=device, waits=True)[0]) == 3
