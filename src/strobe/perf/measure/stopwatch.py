"""Stopwatch for single calls: CUDA events around queued calls on a GPU, the host clock around each call on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from strobe.core.device import synchronize
from strobe.perf.records.record import Clock

if TYPE_CHECKING:
    import torch

_CYCLES_PER_NS: Final = 2.5
"""GPU cycles per ns, above every GPU's clock, so that a wait counted in cycles is never too short."""
_MARGIN: Final = 2.0
_MAX_CYCLES: Final = 5_000_000_000
_SLOW_NS: Final = 50_000_000
"""Duration above which a call is tried only once, ns."""

Run = Callable[[], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Time of one trial call, ns: until the device finished, and until the call returned."""

    device_ns: int
    host_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lap:
    """Times of several calls in a row.

    Args:
        times_ns: one per call, between two CUDA events; on a CPU by the host clock.
        hosts_ns: until each call returned to its caller; empty on a CPU, where a call returns when it is done.
        clock: the clock that was read.
    """

    times_ns: tuple[int, ...]
    hosts_ns: tuple[int, ...]
    clock: Clock


class Stopwatch:
    """Stopwatch for calls on one device.

    On a GPU the calls of a lap are launched while the GPU is kept busy, so that they run without waiting for the host; each lies
    between two events.

    Args:
        device: where the calls work.
        cold: overwrite a GPU's L2 cache before each call, outside of its time. On a CPU nothing is overwritten.
    """

    def __init__(self, device: torch.device, *, cold: bool) -> None:
        import torch

        self._device = device
        self._flush: torch.Tensor | None = None
        if cold and device.type == "cuda":
            size = 2 * torch.cuda.get_device_properties(device).L2_cache_size
            self._flush = torch.empty(size, dtype=torch.int8, device=device)

    def probe(self, run: Run) -> Speed:
        """Time one warmed-up call, and a second one if the first was fast; return the faster."""
        synchronize(self._device)
        device: list[int] = []
        host: list[int] = []
        while len(device) < 2 and sum(device) < _SLOW_NS:
            start = time.perf_counter_ns()
            self._overwrite()
            run()
            host.append(time.perf_counter_ns() - start)
            synchronize(self._device)
            device.append(time.perf_counter_ns() - start)
        return Speed(device_ns=min(device), host_ns=min(host))

    def hold(self, host_ns: int) -> None:
        """Keep a GPU busy for longer than launching takes, so that the next calls wait in its queue."""
        if self._device.type == "cuda":
            import torch

            with torch.cuda.device(self._device):
                torch.cuda._sleep(min(_MAX_CYCLES, round(host_ns * _CYCLES_PER_NS * _MARGIN)))

    def lap(self, run: Run, calls: int, host_ns: int) -> Lap:
        """Time several calls in a row.

        Args:
            calls: how many.
            host_ns: what launching one takes, for a queue; 0 for calls that wait for the GPU themselves and cannot be queued.
        """
        if self._device.type != "cuda":
            return Lap(times_ns=tuple(_timed(run) for _ in range(calls)), hosts_ns=(), clock="perf_counter")
        import torch

        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)]
        with torch.cuda.device(self._device):
            if host_ns:
                self.hold(calls * host_ns)
            hosts = []
            for first, last in events:
                self._overwrite()
                first.record()
                hosts.append(_timed(run))
                last.record()
            torch.cuda.synchronize(self._device)
        times = tuple(max(1, round(first.elapsed_time(last) * 1e6)) for first, last in events)
        return Lap(times_ns=times, hosts_ns=tuple(hosts), clock="cuda_event")

    def _overwrite(self) -> None:
        if self._flush is not None:
            self._flush.zero_()


def _timed(run: Run) -> int:
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start
