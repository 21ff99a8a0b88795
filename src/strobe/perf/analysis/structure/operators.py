"""Operator table of a trace without device events: host time by operator, by self time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strobe.perf.analysis.device.distribution import Distribution, distributions
from strobe.perf.analysis.device.intervals import column, totals
from strobe.perf.analysis.structure.scopes import nest, unnumbered
from strobe.perf.analysis.window import Window
from strobe.perf.trace.events import Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorRow:
    """All calls of one operator on all threads.

    Args:
        name: name of the operator.
        calls: their durations, each with the operators it calls.
        self_ns: time in which it ran and no operator it called did; adds up over rows to the busy time of the threads.
    """

    name: str
    calls: Distribution
    self_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadRow:
    """One host thread: number of calls in the window, and the time in which any operator ran."""

    name: str
    num_calls: int
    busy_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Operators:
    """Rows by descending self time, threads by descending busy time.

    Args:
        start_ns: start of the window.
        end_ns: its end.
    """

    start_ns: int
    end_ns: int
    threads: tuple[ThreadRow, ...]
    rows: tuple[OperatorRow, ...]

    @property
    def span_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns

    @property
    def busy_ns(self) -> int:
        """Time in which operators ran, summed over threads, ns."""
        return sum(thread.busy_ns for thread in self.threads)


def operators(trace: Trace, window: Window | None = None) -> Operators | None:
    """Tabulate the operators of a window, by default from the first operator's start to the last one's end.

    Calls are those that ran in the window, whole; self time is what lies in the window. `None` if the trace holds no operators.
    """
    ops = trace.ops
    if not len(ops):
        return None
    start, end = column(ops.start_ns), column(ops.end_ns)
    name, thread = column(ops.name), column(ops.thread)
    left, right = (window.start_ns, window.end_ns) if window else (int(start.min()), int(end.max()))
    self_ns = np.zeros(len(ops), np.int64)
    nesting = nest(ops)
    for number, moments in nesting.bounds.items():
        owner = nesting.innermost[number]
        own = np.diff(np.clip(moments, left, right), append=right)
        np.add.at(self_ns, owner[owner >= 0], own[owner >= 0])
    inside = (start < right) & (end > left) | (start >= left) & (end <= right)
    calls = distributions((end - start)[inside], name[inside], len(ops.names))
    by_name = totals(self_ns, name, len(ops.names)).tolist()
    busy = totals(self_ns, thread, len(trace.threads)).tolist()
    counts = np.bincount(thread[inside], minlength=len(trace.threads)).tolist()
    rows = [
        OperatorRow(name=text, calls=found, self_ns=own)
        for text, found, own in zip(ops.names, calls, by_name, strict=True)
        if found is not None
    ]
    threads = [
        ThreadRow(name=text, num_calls=count, busy_ns=ns)
        for text, count, ns in zip(trace.threads, counts, busy, strict=True)
        if count or ns
    ]
    return Operators(
        start_ns=left,
        end_ns=right,
        threads=tuple(sorted(threads, key=lambda row: (-row.busy_ns, row.name))),
        rows=tuple(sorted(rows, key=lambda row: (-row.self_ns, row.name))),
    )


def host_ranges(trace: Trace, window: Window | None = None) -> dict[str, Distribution]:
    """Return the durations of the host's ranges that ran in the window, longest time first; they contain each other.

    Ranges of one name without its number are one, on all threads.
    """
    ranges = unnumbered(trace.ranges)
    start, end = column(ranges.start_ns), column(ranges.end_ns)
    inside = np.ones(len(ranges), np.bool_) if window is None else (start < window.end_ns) & (end > window.start_ns)
    calls = distributions((end - start)[inside], column(ranges.name)[inside], len(ranges.names))
    found = [(name, one) for name, one in zip(ranges.names, calls, strict=True) if one is not None]
    return dict(sorted(found, key=lambda each: (-each[1].sum_ns, each[0])))
