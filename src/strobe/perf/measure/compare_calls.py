"""Two functions of the caller's own, timed against each other."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from strobe.core.device import resolve_device, synchronize
from strobe.core.errors import ConfigError
from strobe.perf.measure.stats import Interval, Verdict, judge, paired_interval

if TYPE_CHECKING:
    import torch

_SAMPLE_NS: Final = 200_000
"""Shorter calls are repeated within a sample until it lasts this long, so that the clock's own cost does not count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallSample:
    """One round `A B B A`: the two samples of each function, nanoseconds for all calls in a sample."""

    a_ns: tuple[int, int]
    b_ns: tuple[int, int]

    @property
    def ratio(self) -> float:
        """Time of `a` / time of `b`; drift that is linear in time cancels."""
        return sum(self.a_ns) / sum(self.b_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallComparison:
    """How much faster `b` is than `a`.

    Args:
        ratio: median over rounds of (time of a) / (time of b); above 1: `b` is faster.
        interval: 95 % interval of the ratio, paired t on the logarithms of the rounds; None for a single round.
        floor: (shortest sample of a) / (shortest sample of b).
        samples: every round.
        calls_per_sample: calls of a function within one sample.
        verdict: `b` is "faster", "slower", "no difference" or "inconclusive".
    """

    ratio: float
    interval: Interval | None
    floor: float
    samples: tuple[CallSample, ...]
    calls_per_sample: int
    verdict: Verdict


def compare_calls(
    fn_a: Callable[[], object],
    fn_b: Callable[[], object],
    *,
    warmup: int = 3,
    rounds: int = 10,
    device: str | torch.device = "cpu",
) -> CallComparison:
    """Time two functions in interleaved order A B B A and say which is faster.

    Args:
        fn_a: the reference; called without arguments, its result is dropped.
        fn_b: the candidate.
        warmup: calls of each before anything is timed, at least 1.
        rounds: rounds of A B B A, at least 1; an interval needs 2.
        device: where the functions work: on a GPU each sample ends with one synchronisation.

    Raises:
        ConfigError: `warmup` or `rounds` below 1, or an unknown device.
    """
    if warmup < 1 or rounds < 1:
        raise ConfigError(f"warmup and rounds must be at least 1, got {warmup} and {rounds}")
    place = resolve_device(device)
    for _ in range(warmup):
        fn_a(), fn_b()
    shortest = min(_sample(fn_a, 1, place), _sample(fn_b, 1, place))
    calls = max(1, math.ceil(_SAMPLE_NS / max(1, shortest)))
    samples = []
    for _ in range(rounds):
        a_first, b_first, b_last, a_last = (_sample(fn, calls, place) for fn in (fn_a, fn_b, fn_b, fn_a))
        samples.append(CallSample(a_ns=(a_first, a_last), b_ns=(b_first, b_last)))
    ratio = statistics.median(sample.ratio for sample in samples)
    interval = paired_interval([math.log(sample.ratio) for sample in samples])
    delta_ns = statistics.median((sum(sample.a_ns) - sum(sample.b_ns)) / 2 for sample in samples)
    return CallComparison(
        ratio=ratio,
        interval=interval,
        floor=min(min(sample.a_ns) for sample in samples) / min(min(sample.b_ns) for sample in samples),
        samples=tuple(samples),
        calls_per_sample=calls,
        verdict=judge(ratio, interval, delta_ns),
    )


def _sample(fn: Callable[[], object], calls: int, device: torch.device) -> int:
    synchronize(device)
    start = time.perf_counter_ns()
    for _ in range(calls):
        fn()
    synchronize(device)
    return max(1, time.perf_counter_ns() - start)
