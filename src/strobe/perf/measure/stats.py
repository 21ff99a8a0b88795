"""Statistics of ratios: intervals, floors, percentiles, slopes. Plain Python, no other library."""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeVar

LEVEL: Final = 0.95
P99_SAMPLES: Final = 459
"""Fewest samples whose largest is above the 99th percentile at 99 % confidence: 0.99 ** 459 < 0.01."""
FLOOR: Final = 0.01
"""Smallest relative difference that counts: below 1 % the verdict is never "faster" or "slower"."""
FLOOR_NS: Final = 1_000
"""Smallest absolute difference that counts, ns: 1 µs, the resolution of a CUDA event."""
RESOLUTION: Final = 0.05
"""Largest reach of an interval beyond 1 with the verdict "no difference"."""
BOOTSTRAP_SAMPLES: Final = 30
"""Fewest samples from which a percentile bootstrap of a plain mean or median holds: with 5 its 95 % interval holds 89 %."""
RESAMPLES: Final = 2_000
"""Bootstrap samples; the ends of an interval move by about 1 / sqrt(RESAMPLES) of it."""

Verdict = Literal["faster", "slower", "no difference", "inconclusive"]
Operator = Literal[">=", ">", "<=", "<"]
Real = TypeVar("Real", int, float)


class Interval(NamedTuple):
    """Bounds that hold the true value with probability `LEVEL`."""

    low: float
    high: float


@functools.cache
def t_quantile(p: float, dof: float) -> float:
    """Return the quantile of Student's t: P(T <= t) = p.

    Args:
        p: probability in (0, 1).
        dof: degrees of freedom, > 0, need not be whole.
    """
    if p < 0.5:
        return -t_quantile(1 - p, dof)
    if p == 0.5:
        return 0.0
    # P(|T| > t) = I_x(dof / 2, 1 / 2) with x = dof / (dof + t^2): bisection in x, which the tail is monotone in.
    tail, low, high = 2 * (1 - p), 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if _incomplete_beta(dof / 2, 0.5, middle) < tail:
            low = middle
        else:
            high = middle
    return math.sqrt(dof * (1 - high) / high)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Compute the regularised incomplete beta I_x(a, b) by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    total = d
    for m in range(1, 500):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + term * d), 1 + term / c
            total *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * total


def mean_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the bounds of the mean of at least two values: mean +- t * s / sqrt(n)."""
    mean = statistics.fmean(values)
    half = t_quantile((1 + LEVEL) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def paired_interval(log_ratios: Sequence[float], ratio: float | None = None) -> Interval | None:
    """Return exp(mean +- t * s / sqrt(n)) of the logarithms of pairs, widened to hold `ratio`; None for fewer than two."""
    if len(log_ratios) < 2:
        return None
    low, high = map(math.exp, mean_bounds(log_ratios))
    return Interval(low=min(low, ratio or low), high=max(high, ratio or high))


def welch_interval(reference: Sequence[float], candidate: Sequence[float]) -> Interval | None:
    """Return the interval of geometric mean(reference) / geometric mean(candidate) for samples that are not paired.

    Welch's t on logarithms; None where either has fewer than two samples. Drift between the two is not corrected.
    """
    if len(reference) < 2 or len(candidate) < 2:
        return None
    logs = [math.log(value) for value in reference], [math.log(value) for value in candidate]
    mean = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    parts = [statistics.variance(values) / len(values) for values in logs]
    variance = sum(parts)
    if variance == 0:
        return Interval(low=math.exp(mean), high=math.exp(mean))
    dof = variance**2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, logs, strict=True))
    half = t_quantile((1 + LEVEL) / 2, dof) * math.sqrt(variance)
    return Interval(low=math.exp(mean - half), high=math.exp(mean + half))


def judge(ratio: float, interval: Interval | None, delta_ns: float) -> Verdict:
    """Return the verdict that a ratio (reference time / candidate time) and its interval allow.

    `faster` or `slower`: the interval excludes 1, and the difference exceeds both `FLOOR` and `FLOOR_NS`. `no difference`:
    otherwise, if the interval stays within `RESOLUTION` of 1. `inconclusive`: the rest.
    """
    if interval is None:
        return "inconclusive"
    real = _real(ratio, delta_ns)
    if real and interval.low > 1:
        return "faster"
    if real and interval.high < 1:
        return "slower"
    within = max(-math.log(interval.low), math.log(interval.high)) <= math.log1p(RESOLUTION)
    return "no difference" if within else "inconclusive"


def proven(op: Operator, bound: float, ratio: float, interval: Interval | None, delta_ns: float | None) -> bool:
    """Return whether a ratio (reference time / candidate time) meets a bound beyond doubt; gates use it.

    The whole interval must meet the bound. A bound that claims a difference (above 1 with `>=` or `>`, below 1 with `<=` or `<`,
    and 1 itself with `>` or `<`) also needs one that exceeds `FLOOR` and `FLOOR_NS`, as in `judge`. Without an interval nothing
    is proven.

    Args:
        delta_ns: reference time - candidate time; None: not known, then only `FLOOR` is asked for.
    """
    if interval is None:
        return False
    upward = op in (">=", ">")
    edge = interval.low if upward else interval.high
    meets = {">=": edge >= bound, ">": edge > bound, "<=": edge <= bound, "<": edge < bound}[op]
    claims = bound > 1 or (bound == 1 and op == ">") if upward else bound < 1 or (bound == 1 and op == "<")
    return meets and not (claims and not _real(ratio, delta_ns))


def _real(ratio: float, delta_ns: float | None) -> bool:
    return abs(math.log(ratio)) > math.log1p(FLOOR) and (delta_ns is None or abs(delta_ns) > FLOOR_NS)


def bootstrap_interval(statistic: Callable[[Sequence[float]], float], values: Sequence[float]) -> Interval | None:
    """Return the percentile bootstrap interval of `statistic(values)`; the same samples give the same interval.

    None below `BOOTSTRAP_SAMPLES` samples, where it is too narrow. A sample is a whole step: calls inside one are correlated.
    """
    if len(values) < BOOTSTRAP_SAMPLES:
        return None
    draw = random.Random(0)
    found = sorted(statistic(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    edge = (1 - LEVEL) / 2
    return Interval(low=percentile(found, edge), high=percentile(found, 1 - edge))


def outliers(values: Sequence[float], what: str) -> tuple[str, ...]:
    """Say how many samples lie outside Tukey's fences, `1.5 (q3 - q1)` beyond the quartiles, and what the mean would be without.

    They stay in every statistic. Nothing is said of none, nor of fewer than 4 samples, which have no quartiles.
    """
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) >= 4 else (0, 0, math.inf)
    kept = [value for value in values if 2.5 * low - 1.5 * high <= value <= 2.5 * high - 1.5 * low]
    if len(kept) == len(values):
        return ()
    effect = 100 * (statistics.fmean(kept) / statistics.fmean(values) - 1)
    count = f"{len(values) - len(kept)} of {len(values)} {what}"
    return (f"{count} lie outside Tukey's fences and are kept; without them the mean would change by {effect:+.2g} %",)


def percentile(values: Sequence[Real], share: float) -> Real:
    """Return the smallest sample that at least `share` of the samples do not exceed (nearest rank)."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def p99(values: Sequence[Real]) -> Real | None:
    """Return the 99th percentile (nearest rank); None below `P99_SAMPLES` samples, too few to tell it from the largest."""
    place = p99_place(len(values))
    return None if place is None else sorted(values)[place]


def p99_place(n: int) -> int | None:
    """Return the index of the 99th percentile (nearest rank) among `n` samples in ascending order; None below `P99_SAMPLES`."""
    return (99 * n + 99) // 100 - 1 if n >= P99_SAMPLES else None


def tail(values: Sequence[float]) -> tuple[Literal["p99", "max"], float]:
    """Return the 99th percentile, or the largest sample where there are too few for it."""
    found = p99(values)
    return ("max", max(values)) if found is None else ("p99", found)


def theil_sen(values: Sequence[float]) -> tuple[float, Interval]:
    """Return the median of the slopes between all pairs of samples, with Sen's interval from Kendall's statistic.

    Args:
        values: at least three samples, one unit apart.
    """
    n = len(values)
    slopes = sorted((values[j] - values[i]) / (j - i) for i in range(n) for j in range(i + 1, n))
    spread = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2) * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, round((len(slopes) - spread) / 2) - 1)
    high = min(len(slopes) - 1, round((len(slopes) + spread) / 2))
    return statistics.median(slopes), Interval(low=slopes[low], high=slopes[high])
