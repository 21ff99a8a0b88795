"""Call tree of device time: ranges and modules that launched the work, each nanosecond counted once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from strobe.perf.analysis.device.device_work import EventView, events_by_device, windowed_events
from strobe.perf.analysis.device.intervals import Covered, Ints, column, totals
from strobe.perf.analysis.structure.scopes import ROOT, Cuts, Paths, before, graph_paths, nest, ranges_and_modules, unnumbered
from strobe.perf.analysis.window import Window
from strobe.perf.trace.events import Trace

OUTSIDE: Final = "outside ranges and modules"
UNLINKED: Final = "launch not in the trace"


@dataclass(frozen=True, kw_only=True, slots=True)
class CallNode:
    """Calls of one name under one path. Ranges that differ in their number alone (`ProfilerStep#3`) are one.

    Args:
        name: name of the range or module, or a part of the module path of a graph's kernel.
        calls: on the host; 0 for a part of a module path.
        host_ns: time of the calls on the host.
        events: device events launched in it, nested calls included.
        total_ns: their time; where events overlap, the moment belongs to the one that started first.
        self_ns: the part of it that was launched in no nested call.
        children: by descending total.
    """

    name: str
    calls: int
    host_ns: int
    events: int
    total_ns: int
    self_ns: int
    children: tuple[CallNode, ...]


def call_trees(trace: Trace, window: Window | None = None) -> tuple[tuple[int, CallNode], ...]:
    """Return the number and the tree of each device that has events; the root's total is its busy time."""
    scopes = ranges_and_modules(replace(trace, ranges=unnumbered(trace.ranges)))
    nesting, paths, cuts = nest(scopes), Paths(), Cuts.around(scopes)
    of_scope = np.array([*paths.of(scopes, nesting), paths.number(ROOT, OUTSIDE)], np.int64)  # nowhere is the last one
    below = _Below(trace, paths, of_scope[nesting.owners(cuts)], paths.number(ROOT, UNLINKED))
    first, last = cuts.of(scopes)
    host_ns, found = column(scopes.end_ns) - column(scopes.start_ns), []
    for device, work in events_by_device(trace):
        times = below.times(work, window, cuts)
        called = before(times.launched)
        counted = np.arange(len(scopes)) if window is None else np.flatnonzero(called[last] > called[first])
        found.append((device, _tree(times, paths, of_scope[counted], host_ns[counted])))
    return tuple(found)


class _Times:
    """Device time and events by path, and the number of events launched in each segment."""

    def __init__(self, num_segments: int) -> None:
        self.self_ns = self.events = np.zeros(0, np.int64)
        self.launched = np.zeros(num_segments, np.int64)

    def add(self, path: Ints, own_ns: Ints, num: int) -> None:
        """Count some events, each under its path; there may be more paths than before."""
        self.self_ns, self.events = (
            np.append(column, np.zeros(num - len(column), np.int64)) for column in (self.self_ns, self.events)
        )
        np.add.at(self.self_ns, path, own_ns)
        np.add.at(self.events, path, 1)


class _Below:
    """Finder of the path of each device event.

    Args:
        of_segment: path of what was launched in each segment.
        unlinked: path of what has no known launch call.
    """

    def __init__(self, trace: Trace, paths: Paths, of_segment: Ints, unlinked: int) -> None:
        self._hosts, self._trace, self._paths = trace.device_events.hosts, trace, paths
        self._of_segment, self._unlinked = of_segment, unlinked

    def times(self, work: EventView, window: Window | None, cuts: Cuts) -> _Times:
        """Add up the time of a device by path; where events overlap, the moment belongs to the one that started first."""
        carried, covered, times = graph_paths(self._trace, work, window), Covered(), _Times(cuts.num)
        for part in windowed_events(work, window):
            host = part.work.host
            known = np.flatnonzero(host >= 0)
            path = np.full(len(host), self._unlinked, np.int64)
            segment = cuts.place(self._hosts, host[known])
            np.add.at(times.launched, segment, 1)
            path[known] = self._of_segment[segment]
            left, right = np.searchsorted(carried.part.which, (part.which[0], part.which[-1] + 1)) if len(host) else (0, 0)
            place = np.searchsorted(part.which, carried.part.which[left:right])
            path[place] = self._moved(path[place], carried.path[left:right], carried.texts)
            own = covered.add(part.start, part.end)
            times.add(path, own.end - own.start, len(self._paths.names))
        return times

    def _moved(self, path: Ints, carried: Ints, texts: Sequence[str]) -> Ints:
        """Return the paths of events with a module path: that path below the path that launched their graph."""
        pairs, which = np.unique(path * max(1, len(texts)) + carried, return_inverse=True)
        moved = []
        for above, text in zip(*(side.tolist() for side in np.divmod(pairs, max(1, len(texts)))), strict=True):
            for name in texts[text].split("."):
                above = self._paths.number(above, name)
            moved.append(above)
        return np.array(moved, np.int64)[which]


def _tree(times: _Times, paths: Paths, called: Ints, host_ns: Ints) -> CallNode:
    num = len(paths.names)
    times.add(called[:0], host_ns[:0], num)
    self_ns, events = times.self_ns.tolist(), times.events.tolist()
    calls = np.bincount(called, minlength=num).tolist()
    on_host = totals(host_ns, called, num).tolist()
    below: list[list[CallNode]] = [[] for _ in range(num)]
    for number in range(num - 1, ROOT, -1):
        node = _node(paths.names[number], calls[number], on_host[number], events[number], self_ns[number], below[number])
        if node.events or node.calls:
            below[paths.above[number]].append(node)
    return _node("device", 0, 0, 0, 0, below[ROOT])


def _node(name: str, calls: int, host_ns: int, events: int, self_ns: int, children: Sequence[CallNode]) -> CallNode:
    return CallNode(
        name=name,
        calls=calls,
        host_ns=host_ns,
        events=events + sum(child.events for child in children),
        total_ns=self_ns + sum(child.total_ns for child in children),
        self_ns=self_ns,
        children=tuple(sorted(children, key=lambda child: (-child.total_ns, child.name))),
    )
