"""Kernels of a trace whose name matches a regular expression, and the bounds that they set for a timer around them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np

from strobe.core.errors import DataError
from strobe.perf.analysis.device.device_work import all_events
from strobe.perf.analysis.device.distribution import Distribution, distribution
from strobe.perf.analysis.device.intervals import column, totals
from strobe.perf.analysis.device.kernel_kinds import KernelKind, kernel_kind
from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.analysis.structure.scopes import device_times
from strobe.perf.analysis.structure.sections import pattern
from strobe.perf.logs.units import Constraint, short
from strobe.perf.measure.stats import percentile
from strobe.perf.trace.events import Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class FocalKernels:
    """Device events of one device whose name matches a regular expression.

    Args:
        rank: rank of the process, where the trace names it.
        pattern: the regular expression.
        names: the names found, normalised, those with most calls first.
        num_same: calls of the name with most calls.
        calls: their durations.
        window_ns: from the start of the device's first event to the end of its last, of any name.
    """

    path: Path
    rank: int | None
    device: int
    pattern: str
    names: tuple[str, ...]
    num_same: int
    calls: Distribution
    window_ns: int


_NEARLY_ALL: Final = Fraction(9, 10)


def attention_kernel(traces: Sequence[Trace]) -> str | None:
    """Return a regular expression of the kernel that takes nine tenths or more of all attention; None if there is none."""
    spent: Counter[str] = Counter()
    names: dict[str, set[str]] = {}
    for trace in traces:
        events = trace.device_events
        took = totals(column(events.end_ns) - column(events.start_ns), column(events.name), len(events.names))
        for raw, ns in zip(events.names, took.tolist(), strict=True):
            if kernel_kind(raw) is KernelKind.ATTENTION:
                group, full = kernel_name(raw).group, kernel_name(raw).full
                spent[group] += ns
                names.setdefault(group, set()).add(full)
    if not spent:
        return None
    (first, most), *_ = spent.most_common(1)
    if most < _NEARLY_ALL * spent.total():
        return None
    fulls = sorted(names[first])
    return re.escape(first) if all(first in full for full in fulls) else "|".join(map(re.escape, fulls))


def focal_kernels(trace: Trace, text: str) -> tuple[FocalKernels, ...]:
    """Search the names of device events, as the trace has them and demangled; one result for each device with a match.

    Raises:
        ConfigError: not a regular expression.
    """
    searched, events = pattern(text), trace.device_events
    hit = [bool(searched.search(name) or searched.search(kernel_name(name).full)) for name in events.names]
    start, end, device, name = (column(values) for values in (events.start_ns, events.end_ns, events.device, events.name))
    chosen = np.array(hit or [False])[name]
    found = []
    for number in np.unique(device[chosen]).tolist():
        own = device == number
        focal = np.flatnonzero(own & chosen)
        calls = distribution(end[focal] - start[focal])
        assert calls is not None, "a device is listed because it has a match"
        ids, counts = np.unique(name[focal], return_counts=True)
        groups = Counter[str]()
        for i, count in zip(ids.tolist(), counts.tolist(), strict=True):
            groups[kernel_name(events.names[i]).group] += count
        found.append(
            FocalKernels(
                path=trace.path,
                rank=trace.rank,
                device=number,
                pattern=text,
                names=tuple(sorted(groups, key=lambda name: (-groups[name], name))),
                num_same=max(groups.values()),
                calls=calls,
                window_ns=int(end[own].max() - start[own].min()),
            )
        )
    return tuple(found)


def kernel_constraints(found: Sequence[FocalKernels]) -> tuple[Constraint, ...]:
    """Return the bounds that kernels set for a call that runs one of them, or two, inside.

    A call is no shorter than the shortest kernel, and calls that run one after another fit into the trace they are in: as many as
    there are kernels of one name, less one that may be in it only in part.
    """
    if not found:
        return ()
    least = min(found, key=lambda kernels: kernels.calls.min_ns)
    tightest = min(found, key=lambda kernels: Fraction(kernels.window_ns, kernels.num_same))
    bound = least.calls.min_ns
    what = f"the {short(bound)} kernel inside it ({least.names[0][:60]}, shortest of {least.calls.n})"
    floor = Constraint(rule="at_least", bound_ns=bound, what=what)
    if tightest.num_same < 2:
        return (floor,)
    whole = f"the whole trace of {short(tightest.window_ns)} that has them"
    return floor, Constraint(rule="at_most", bound_ns=tightest.window_ns, what=whole, calls=tightest.num_same - 1)


def device_spans(trace: Trace, text: str) -> tuple[int, ...]:
    """Return the device time of each call of a range, in order: from the first start to the last end of its work.

    Args:
        text: regular expression that is searched in the names of ranges.

    Raises:
        ConfigError: not a regular expression.
    """
    searched, ranges = pattern(text), trace.ranges
    hit = np.array([searched.search(name) is not None for name in ranges.names] or [False])
    _, times = device_times(trace, all_events(trace), ranges, np.flatnonzero(hit[np.asarray(ranges.name)]))
    return tuple((times.end - times.start).tolist())


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceEvidence:
    """Bounds on a timer from traces of the same run configuration.

    Args:
        constraints: bounds on its values.
        focal: the focal kernels, if they were asked for.
        span_ns: device time of one call of the range that the timer is around, median; None if that was not asked for.
        span_name: the range, in words.
    """

    constraints: tuple[Constraint, ...] = ()
    focal: tuple[FocalKernels, ...] = ()
    span_ns: int | None = None
    span_name: str = ""


def trace_evidence(traces: Sequence[Trace], focal: str | None = None, timed: str | None = None) -> TraceEvidence:
    """Collect the bounds that the traces of one side, one per rank, set for a timer.

    Args:
        focal: regular expression of the kernel inside the timer.
        timed: regular expression of the range that the timer is around.

    Raises:
        ConfigError: not a regular expression.
        DataError: the traces have no such kernel or range.
    """
    found = () if focal is None else tuple(kernels for trace in traces for kernels in focal_kernels(trace, focal))
    spans = () if timed is None else tuple(span for trace in traces for span in device_spans(trace, timed))
    files = ", ".join(str(trace.path) for trace in traces)
    if focal is not None and not found:
        raise DataError(f"no device event of {files} has a name with {focal!r}; `strobe trace` lists the names")
    if timed is not None and not spans:
        raise DataError(f"no range of {files} with {timed!r} in its name launched device work; `strobe trace` lists the ranges")
    bounds = kernel_constraints(found)
    if not spans:
        return TraceEvidence(constraints=bounds, focal=found)
    what = f"the {short(min(spans))} that the device takes for the range {timed}, shortest of {len(spans)}"
    floor = Constraint(rule="at_least", bound_ns=min(spans), what=what)
    return TraceEvidence(
        constraints=(*bounds, floor), focal=found, span_ns=percentile(spans, 0.5), span_name=f"the range {timed}"
    )
