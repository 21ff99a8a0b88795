"""Timing of two functions against each other, in the order A B B A."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from strobe.core.device import gpus_in_use, resolve_device, synchronize
from strobe.core.errors import ConfigError
from strobe.perf.measure.stats import Interval, Verdict, judge, paired_interval

if TYPE_CHECKING:
    import torch

_SAMPLE_NS: Final = 200_000
"""Shortest sample on a CPU, ns; shorter calls are repeated, so that the clock's own cost does not count."""
_GPU_SAMPLE_NS: Final = 2_000_000
"""Shortest sample on a GPU, ns; a sample includes the wait for the GPU, about ten microseconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallSample:
    """One round `A B B A`: the two samples of each function, nanoseconds for all calls in a sample.

    Args:
        a_ns: wall time; on a GPU from an idle device to an idle device.
        b_ns: the same of the other function.
        a_event_ns: on a GPU the time between two CUDA events around the calls, on the current stream; None on a CPU.
        b_event_ns: the same of the other function.
    """

    a_ns: tuple[int, int]
    b_ns: tuple[int, int]
    a_event_ns: tuple[int, int] | None = None
    b_event_ns: tuple[int, int] | None = None

    @property
    def ratio(self) -> float:
        """Time of `a` / time of `b`; linear drift cancels."""
        return sum(self.a_ns) / sum(self.b_ns)

    @property
    def event_ratio(self) -> float | None:
        """Time of `a` / time of `b` by CUDA events; None on a CPU."""
        if self.a_event_ns is None or self.b_event_ns is None:
            return None
        return sum(self.a_event_ns) / sum(self.b_event_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallComparison:
    """Result of timing `a` against `b`: ratio, interval, verdict, samples.

    Args:
        ratio: median over rounds of (time of a) / (time of b); above 1: `b` is faster.
        interval: 95 % interval of the ratio, paired t on the logarithms of the rounds; None for a single round.
        floor: (shortest sample of a) / (shortest sample of b).
        samples: every round.
        calls_per_sample: calls of a function within one sample.
        verdict: `b` is "faster", "slower", "no difference" or "inconclusive".
        device: where the functions worked: "cpu", or the GPU whose events were read.
        event_ratio: on a GPU, median over rounds of the ratio by CUDA events; None on a CPU. It leaves out what the host spends
            before the first kernel and after the last.
    """

    ratio: float
    interval: Interval | None
    floor: float
    samples: tuple[CallSample, ...]
    calls_per_sample: int
    verdict: Verdict
    device: str
    event_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class _Sample:
    """Nanoseconds of one sample: wall time, and between events on a GPU."""

    wall_ns: int
    event_ns: int | None


def compare_calls(
    fn_a: Callable[[], object],
    fn_b: Callable[[], object],
    *,
    warmup: int = 3,
    rounds: int = 10,
    device: str | torch.device = "auto",
) -> CallComparison:
    """Time two functions in interleaved order A B B A and judge whether the second is faster.

    Where the process uses a GPU, a sample is wall time from an idle GPU to an idle GPU: it begins and ends with a synchronisation
    of every GPU that the process uses. Without them a clock on the host sees kernels being launched, not running.

    Args:
        fn_a: the reference; called without arguments, its result is dropped.
        fn_b: the candidate.
        warmup: calls of each before anything is timed, at least 1.
        rounds: rounds of A B B A, at least 1; an interval needs 2.
        device: where the functions work. auto: on a GPU, if the process has used one by the end of the warm-up, else on the CPU.

    Raises:
        ConfigError: `warmup` or `rounds` below 1, an unknown device, or `device="cpu"` for a function that works on a GPU.
    """
    if warmup < 1 or rounds < 1:
        raise ConfigError(f"warmup and rounds must be at least 1, got {warmup} and {rounds}")
    named = None if str(device) == "auto" else resolve_device(device)
    for _ in range(warmup):
        fn_a(), fn_b()
    gpus = _gpus(named, {"the first function": fn_a, "the second function": fn_b})
    shortest = min(_sample(fn_a, 1, gpus).wall_ns, _sample(fn_b, 1, gpus).wall_ns)
    calls = max(1, math.ceil((_GPU_SAMPLE_NS if gpus else _SAMPLE_NS) / shortest))
    samples = [_round(fn_a, fn_b, calls, gpus) for _ in range(rounds)]
    ratio = statistics.median(sample.ratio for sample in samples)
    event_ratios = [sample.event_ratio for sample in samples if sample.event_ratio is not None]
    interval = paired_interval([math.log(sample.ratio) for sample in samples])
    delta_ns = statistics.median((sum(sample.a_ns) - sum(sample.b_ns)) / 2 for sample in samples)
    return CallComparison(
        ratio=ratio,
        interval=interval,
        floor=min(min(sample.a_ns) for sample in samples) / min(min(sample.b_ns) for sample in samples),
        samples=tuple(samples),
        calls_per_sample=calls,
        verdict=judge(ratio, interval, delta_ns),
        device=str(gpus[0]) if gpus else "cpu",
        event_ratio=statistics.median(event_ratios) if event_ratios else None,
    )


def _gpus(named: torch.device | None, functions: dict[str, Callable[[], object]]) -> tuple[torch.device, ...]:
    """Return the GPUs to wait for, the one whose events are read first; none on a CPU.

    Raises:
        ConfigError: the CPU was named and a function works on a GPU.
    """
    used = gpus_in_use()
    if named is None:
        return used
    if named.type == "cuda":
        return (named, *(each for each in used if each != named))
    for name, function in functions.items():
        if used and _works_on_gpu(function):
            raise ConfigError(
                f'device="cpu", but {name} works on a GPU: its kernels would not be timed; leave device out, or give "cuda"'
            )
    return ()


def _works_on_gpu(function: Callable[[], object]) -> bool:
    """Call a function once under the profiler and return whether a GPU did any work."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        function()
        for gpu in gpus_in_use():
            synchronize(gpu)
    return any(event.device_type == DeviceType.CUDA for event in profiler.events())


def _round(fn_a: Callable[[], object], fn_b: Callable[[], object], calls: int, gpus: tuple[torch.device, ...]) -> CallSample:
    a_first, b_first, b_last, a_last = (_sample(fn, calls, gpus) for fn in (fn_a, fn_b, fn_b, fn_a))
    return CallSample(
        a_ns=(a_first.wall_ns, a_last.wall_ns),
        b_ns=(b_first.wall_ns, b_last.wall_ns),
        a_event_ns=_both(a_first, a_last),
        b_event_ns=_both(b_first, b_last),
    )


def _both(first: _Sample, last: _Sample) -> tuple[int, int] | None:
    return None if first.event_ns is None or last.event_ns is None else (first.event_ns, last.event_ns)


def _sample(fn: Callable[[], object], calls: int, gpus: tuple[torch.device, ...]) -> _Sample:
    if not gpus:
        start = time.perf_counter_ns()
        for _ in range(calls):
            fn()
        return _Sample(max(1, time.perf_counter_ns() - start), None)
    import torch

    stream = torch.cuda.current_stream(gpus[0])
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for gpu in gpus:
        synchronize(gpu)
    start = time.perf_counter_ns()
    began.record(stream)
    for _ in range(calls):
        fn()
    ended.record(stream)
    for gpu in gpus:
        synchronize(gpu)
    wall_ns = max(1, time.perf_counter_ns() - start)
    return _Sample(wall_ns, max(1, round(began.elapsed_time(ended) * 1e6)))
