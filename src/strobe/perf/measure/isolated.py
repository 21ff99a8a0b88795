"""Timing of one operation by itself, repeated while nothing else runs; its time inside a pass differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from strobe.core.device import synchronize
from strobe.core.errors import ConfigError
from strobe.perf.measure.stopwatch import Stopwatch
from strobe.perf.records.record import Clock

if TYPE_CHECKING:
    import torch

_BATCH: Final = 50
"""Calls on a GPU between two synchronisations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolated:
    """Times of an operation that runs alone.

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
    """Time repeated calls of one function that runs alone.

    On a CPU each call is timed with the host clock. On a GPU each call lies between two CUDA events; the calls of a batch are
    launched while the GPU is kept busy, so that they run one after the other without waiting for the host, and their events are
    read once per batch.

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
    on_gpu, watch = device.type == "cuda", Stopwatch(device, cold=cold)
    host_ns = watch.probe(run).host_ns if on_gpu and not waits else 0
    laps = [watch.lap(run, min(_BATCH, iterations - done), host_ns) for done in range(0, iterations, _BATCH)]
    return Isolated(
        times_ns=tuple(value for lap in laps for value in lap.times_ns),
        clock=laps[0].clock,
        cold=cold and on_gpu,
        queued=on_gpu and not waits,
    )
