"""One operation by itself, again and again: what it takes when nothing else runs. Not what it takes inside a pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from strobe.core.device import synchronize
from strobe.core.errors import ConfigError
from strobe.perf.records.record import Clock

if TYPE_CHECKING:
    import torch

_BATCH: Final = 50
"""Calls on a GPU between two synchronisations."""
_CYCLES_PER_NS: Final = 2.5
"""Above every GPU's clock, so that a wait counted in cycles is never too short."""
_MARGIN: Final = 2.0
_MAX_CYCLES: Final = 5_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolated:
    """Times of an operation by itself.

    Args:
        times_ns: one per call, in order.
        clock: the clock that was read.
        cold: a GPU's cache was overwritten before each call; False: it held what the call before left there.
        queued: on a GPU the calls waited in a full queue, so that no launch gap lies in a time; False on a CPU.
    """

    times_ns: tuple[int, ...]
    clock: Clock
    cold: bool
    queued: bool


def time_isolated(
    run: Callable[[], object],
    *,
    iterations: int,
    device: torch.device,
    warmup: int = 3,
    cold: bool = False,
    waits: bool = False,
) -> Isolated:
    """Time calls of a function.

    On a CPU each call is read from the host clock. On a GPU each call lies between two CUDA events; the calls of a batch are
    launched while the GPU is held up, so that they run one after the other without waiting for the host, and are read once per
    batch.

    Args:
        run: called without arguments; its result is dropped.
        iterations: timed calls, at least 1.
        device: where it works.
        warmup: calls before, at least 1: the first ones compile, choose algorithms and allocate.
        cold: overwrite the GPU's cache before each call, outside of its time. On a CPU nothing is overwritten.
        waits: the function itself waits for the GPU, so that its calls cannot be queued; launch gaps then count.

    Raises:
        ConfigError: fewer than one call.
    """
    if iterations < 1 or warmup < 1:
        raise ConfigError(f"cannot time {iterations} calls after {warmup} of warm-up; at least 1 of each")
    for _ in range(warmup):
        run()
    synchronize(device)
    if device.type == "cuda":
        times = _device_times(run, iterations, device, cold=cold, waits=waits)
        return Isolated(times_ns=times, clock="cuda_event", cold=cold, queued=not waits)
    return Isolated(times_ns=_host_times(run, iterations), clock="perf_counter", cold=False, queued=False)


def _host_times(run: Callable[[], object], iterations: int) -> tuple[int, ...]:
    times = []
    for _ in range(iterations):
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return tuple(times)


def _device_times(
    run: Callable[[], object], iterations: int, device: torch.device, *, cold: bool, waits: bool
) -> tuple[int, ...]:
    import torch

    cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    flush = torch.empty(2 * cache_bytes, dtype=torch.int8, device=device) if cold else None
    times: list[int] = []
    with torch.cuda.device(device):
        launch_ns = _launch_ns(run, flush, device)
        while len(times) < iterations:
            count = min(_BATCH, iterations - len(times))
            events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
            if not waits:
                torch.cuda._sleep(min(_MAX_CYCLES, round(launch_ns * count * _CYCLES_PER_NS * _MARGIN)))
            for first, last in events:
                if flush is not None:
                    flush.zero_()
                first.record()
                run()
                last.record()
            torch.cuda.synchronize(device)
            times += [max(1, round(first.elapsed_time(last) * 1e6)) for first, last in events]
    return tuple(times)


def _launch_ns(run: Callable[[], object], flush: torch.Tensor | None, device: torch.device) -> int:
    """Host time of launching one call, from an idle GPU."""
    start = time.perf_counter_ns()
    if flush is not None:
        flush.zero_()
    run()
    taken = time.perf_counter_ns() - start
    synchronize(device)
    return taken
