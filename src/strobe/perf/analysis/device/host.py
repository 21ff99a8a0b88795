"""What the host did while a device waited for it, by name: the innermost call, operator or range of the thread that launches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from strobe.perf.analysis.device.activity import BUSY, CAUSES, HOST_LATE, PROFILER_OVERHEAD, DeviceView, joined
from strobe.perf.analysis.device.intervals import Intervals, Ints, column, overlaps
from strobe.perf.trace.events import HostEvents, Trace

BETWEEN: Final = "outside any operator"
"""Where no recorded call, operator or range of the host was open."""
_STEP: Final = re.compile(r"ProfilerStep\s*#")
_BY_HOST: Final = (CAUSES.index(HOST_LATE), CAUSES.index(PROFILER_OVERHEAD))


def host_work(view: DeviceView) -> tuple[Counter[str], Counter[str]]:
    """Name what the host did while the device waited for it: on the thread whose launch ended the wait.

    Returns:
        Time by name in which the device was idle because nothing had been launched, ns, which adds up to `host_late` and
        `profiler_overhead` of its idle time; and time by name before the first event of the device, from the first event of the
        host on, ns, empty for a window.
    """
    trace, slices = view.trace, joined(view.stretches())
    waited = np.flatnonzero((slices.cause != BUSY) & np.isin(slices.cause, _BY_HOST))
    thread = _launched_on(view, slices.event[waited])
    late: Counter[str] = Counter()
    for number in np.unique(thread).tolist():
        some = waited[thread == number]
        late += _named(trace, number, Intervals(slices.start[some], slices.end[some]))
    first, begin = int(_launched_on(view, np.zeros(1, np.int64))[0]), view.begin_ns
    if not view.window:
        for store in (*_stores(trace), trace.device_events.hosts):
            own = column(store.start_ns)[column(store.thread) == first]
            begin = min(begin, int(own.min(initial=begin)))
    head = Intervals(np.array([begin], np.int64), np.array([view.begin_ns], np.int64))
    return late, _named(trace, first, head)


def _launched_on(view: DeviceView, events: Ints) -> Ints:
    """Return the host thread that launched each device event of a view, -1 where the trace does not hold the call."""
    hosts, host = view.trace.device_events.hosts, view.work.at(events).host
    threads = np.append(column(hosts.thread), -1)
    return threads[np.maximum(host, -1)]


def _stores(trace: Trace) -> tuple[HostEvents, ...]:
    return trace.ranges, trace.ops, trace.long_calls


def _named(trace: Trace, thread: int, during: Intervals) -> Counter[str]:
    """Return the time of intervals by what a thread did in them."""
    spent: Counter[str] = Counter()
    for name, found in _innermost(trace, thread, during):
        shared = overlaps(found, during)
        spent[name] += int((shared.end - shared.start).sum())
    spent[BETWEEN] = during.length_ns - sum(spent.values())
    return +spent


def _innermost(trace: Trace, thread: int, during: Intervals) -> Iterator[tuple[str, Intervals]]:
    """Yield, by name, the moments at which an event of a thread was the innermost one, of events that touch the intervals."""
    events = sorted((start, -end, name) for store in _stores(trace) for name, start, end in _touching(store, thread, during))
    own: dict[str, list[tuple[int, int]]] = {}
    open_: list[tuple[int, str]] = []  # end and name, the innermost last
    at = 0

    def close(until: int) -> None:
        nonlocal at
        while open_ and open_[-1][0] <= until:
            end, name = open_.pop()
            if end > at:
                own.setdefault(name, []).append((at, end))
                at = end
        if open_ and until > at:
            own.setdefault(open_[-1][1], []).append((at, until))
        at = max(at, until)

    for start, negative, name in events:
        close(start)
        open_.append((min(-negative, open_[-1][0]) if open_ else -negative, name))
    close(max((end for end, _ in open_), default=at))
    for name, pieces in own.items():
        start, end = np.array(pieces, np.int64).T
        yield name, Intervals(start, end)


def _touching(store: HostEvents, thread: int, during: Intervals) -> Iterator[tuple[str, int, int]]:
    """Yield the events of a thread that share time with the intervals, but for those that enclose a whole step."""
    start, end, name = column(store.start_ns), column(store.end_ns), column(store.name)
    touch = np.searchsorted(during.end, start, "right") < np.searchsorted(during.start, end, "left")
    some = np.flatnonzero(touch & (column(store.thread) == thread))
    texts = [None if _STEP.match(text) else text for text in store.names]
    for number, begin, stop in zip(name[some].tolist(), start[some].tolist(), end[some].tolist(), strict=True):
        if (text := texts[number]) is not None:
            yield text, begin, stop
