"""Contestants of one cell timed in palindromes, few calls at a time, within a budget of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from strobe.core.device import synchronize
from strobe.perf.records.record import Clock

MIN_ROUNDS: Final = 3
"""Fewest palindromes: with two, the interval of a ratio is too wide to say anything."""
MAX_ROUNDS: Final = 8
MAX_CALLS: Final = 6
"""Most calls of a contestant in a row."""
_CYCLES_PER_NS: Final = 2.5
"""Above every GPU's clock, so that a wait counted in cycles is never too short."""
_MARGIN: Final = 2.0
_MAX_CYCLES: Final = 2_500_000_000
_SLOW_NS: Final = 50_000_000
"""A call that takes longer is tried once."""

Run = Callable[[], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """What one call took when it was tried: on the device, and until it returned to its caller."""

    device_ns: int
    host_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Laps:
    """How often everything is called.

    Args:
        rounds: palindromes.
        calls: calls of each contestant in each of its two places of a palindrome.
    """

    rounds: int
    calls: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lap:
    """Some calls of one contestant in a row.

    Args:
        times_ns: one per call, between two CUDA events; on a CPU by the host clock.
        hosts_ns: until each call returned to its caller; empty on a CPU, where a call returns when it is done.
    """

    times_ns: tuple[int, ...]
    hosts_ns: tuple[int, ...]
    clock: Clock


def plan_laps(speeds: Mapping[str, Speed], seconds: float) -> Laps:
    """Spend the budget: as many rounds of single calls as fit, and then more calls in a row of what is fast.

    Never fewer than `MIN_ROUNDS`, whatever the budget.
    """
    budget_ns = seconds * 1e9
    cost = {name: max(speed.device_ns, speed.host_ns, 1) for name, speed in speeds.items()}
    round_ns = 2 * sum(cost.values())
    rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, int(budget_ns / max(1, round_ns))))
    spare_ns = max(0.0, budget_ns - rounds * round_ns) / max(1, len(cost))
    calls = {name: max(1, min(MAX_CALLS, 1 + int(spare_ns / (2 * rounds * each)))) for name, each in cost.items()}
    return Laps(rounds=rounds, calls=calls)


class Stopwatch:
    """Times calls on one device.

    On a GPU the calls of a lap are launched while the GPU is held up, so that they run without waiting for the host; each lies
    between two events, and the L2 cache is overwritten before each, outside of its time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flush: torch.Tensor | None = None
        if device.type == "cuda":
            size = 2 * torch.cuda.get_device_properties(device).L2_cache_size
            self._flush = torch.empty(size, dtype=torch.int8, device=device)

    def probe(self, run: Run) -> Speed:
        """Call it once, and once more if that was fast enough to be worth it; the faster counts. It has been called before."""
        synchronize(self._device)
        device: list[int] = []
        host: list[int] = []
        while len(device) < 2 and sum(device) < _SLOW_NS:
            start = time.perf_counter_ns()
            run()
            host.append(time.perf_counter_ns() - start)
            synchronize(self._device)
            device.append(time.perf_counter_ns() - start)
        return Speed(device_ns=min(device), host_ns=min(host))

    def hold(self, host_ns: int) -> None:
        """Keep a GPU busy for longer than launching takes, so that what follows waits in its queue."""
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):
                torch.cuda._sleep(min(_MAX_CYCLES, round(host_ns * _CYCLES_PER_NS * _MARGIN)))

    def lap(self, run: Run, calls: int, speed: Speed) -> Lap:
        """Time some calls in a row."""
        if self._flush is None:
            return Lap(times_ns=tuple(_timed(run) for _ in range(calls)), hosts_ns=(), clock="perf_counter")
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)]
        with torch.cuda.device(self._device):
            self.hold(calls * speed.host_ns)
            hosts = []
            for first, last in events:
                self._flush.zero_()
                first.record()
                hosts.append(_timed(run))
                last.record()
            torch.cuda.synchronize(self._device)
        times = tuple(max(1, round(first.elapsed_time(last) * 1e6)) for first, last in events)
        return Lap(times_ns=times, hosts_ns=tuple(hosts), clock="cuda_event")


def _timed(run: Run) -> int:
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start


def matmul_peak(dtype: torch.dtype, device: torch.device) -> tuple[Run, int]:
    """A square matrix product as large as the device likes, and its FLOPs: what of the device's peak this machine reaches now."""
    side = 8192 if device.type == "cuda" else 512
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return lambda: torch.mm(left, right), 2 * side**3
