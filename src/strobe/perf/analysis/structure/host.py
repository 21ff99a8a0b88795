"""What the host did while a device waited for it, by name: the innermost call, operator or range of the thread that launches."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import numpy as np

from strobe.perf.analysis.device.activity import BUSY, CAUSES, HOST_LATE, PROFILER_OVERHEAD, DeviceView, joined
from strobe.perf.analysis.device.intervals import Intervals, Ints, column, overlaps, totals
from strobe.perf.analysis.structure.ranges import NOWHERE, Nesting, nest, together, without
from strobe.perf.trace.events import HostEvents

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
    stores = (trace.ranges, trace.ops, trace.long_calls)
    scopes = together(*stores)
    scopes = without(scopes, {name for name in scopes.names if _STEP.match(name)})
    nesting = nest(scopes)
    waited = np.flatnonzero((slices.cause != BUSY) & np.isin(slices.cause, _BY_HOST))
    thread = _launched_on(view, slices.event[waited])
    late: Counter[str] = Counter()
    for number in np.unique(thread).tolist():
        some = waited[thread == number]
        late += _named(scopes, nesting, number, Intervals(slices.start[some], slices.end[some]))
    first, begin = int(_launched_on(view, np.zeros(1, np.int64))[0]), view.begin_ns
    if not view.window:
        for store in (*stores, trace.device_events.hosts):
            own = column(store.start_ns)[column(store.thread) == first]
            begin = min(begin, int(own.min(initial=begin)))
    head = Intervals(np.array([begin], np.int64), np.array([view.begin_ns], np.int64))
    return late, _named(scopes, nesting, first, head)


def _launched_on(view: DeviceView, events: Ints) -> Ints:
    """Return the host thread that launched each device event of a view, -1 where the trace does not hold the call."""
    hosts, host = view.trace.device_events.hosts, view.work.at(events).host
    threads = np.append(column(hosts.thread), -1)
    return threads[np.maximum(host, -1)]


def _named(scopes: HostEvents, nesting: Nesting, thread: int, during: Intervals) -> Counter[str]:
    spent: Counter[str] = Counter()
    if thread in nesting.bounds:
        bounds = nesting.bounds[thread]
        shared = overlaps(during, Intervals(bounds, np.append(bounds[1:], bounds[-1])))
        scope = nesting.innermost[thread][shared.b]
        some = scope != NOWHERE
        total = totals((shared.end - shared.start)[some], column(scopes.name)[scope[some]], len(scopes.names))
        for name, ns in zip(scopes.names, total.tolist(), strict=True):
            spent[name] += ns
    spent[BETWEEN] = during.length_ns - sum(spent.values())
    return +spent
