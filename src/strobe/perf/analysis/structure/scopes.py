"""Range or module of the host that launched each device event: by its launch call, on the thread of that call."""

from __future__ import annotations

import re
from array import array
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.device_work import EventView, WindowedEvents, windowed_events
from strobe.perf.analysis.device.intervals import Intervals, Ints, column
from strobe.perf.analysis.window import Window
from strobe.perf.trace.columns import different
from strobe.perf.trace.events import DEVICE_KINDS, HostEvents, Trace

NOWHERE: Final = -1
"""Scope number of work that was launched in no scope."""
ROOT: Final = 0
"""Number of the empty path, the root of all others."""
WORK: Final = (DEVICE_KINDS.index("kernel"), DEVICE_KINDS.index("comm"))
"""Kinds that count as kernels; copies and memsets do not."""

_IS_WORK: Final = np.isin(np.arange(len(DEVICE_KINDS)), WORK).astype(np.int64)
_LATE: Final = 1 << 62
_NEVER: Final = 1 << 63
NUMBERED: Final = re.compile(r"(?P<base>.*?\S)(?:\s*[#_]\s*|\s+)\d+")
"""A name with a number: `ProfilerStep#3`, `Linear_12`, `step 7`."""


def unnumbered(scopes: HostEvents) -> HostEvents:
    """Return the scopes under their names without numbers: `ProfilerStep#3` is `ProfilerStep`, `step 7` is `step`."""
    bases: dict[str, int] = {}
    number = np.array([bases.setdefault(base_of(name), len(bases)) for name in scopes.names], np.int32)
    return replace(scopes, names=tuple(bases), name=array("i", number[column(scopes.name)].tobytes() if len(number) else b""))


def base_of(name: str) -> str:
    """Return the name without the number at its end, if there is one."""
    found = NUMBERED.fullmatch(name)
    return found["base"] if found else name


def ranges_and_modules(trace: Trace) -> HostEvents:
    """Return ranges and modules together, in order of start, an enclosing one before those inside it."""
    return together(trace.ranges, trace.modules)


def together(*parts: HostEvents) -> HostEvents:
    """Merge scopes of several kinds in order of start, enclosing ones before those inside; of equal ones the earlier kind."""
    columns, names = [], list[str]()
    for part in parts:
        name, *others = (column(values) for values in (part.name, part.start_ns, part.end_ns, part.thread))
        columns.append([name + len(names), *others])
        names += part.names
    name, start, end, thread = (np.concatenate(each) for each in zip(*columns, strict=True))
    order = np.lexsort((-end, start))
    return HostEvents(
        names=tuple(names),
        name=array("i", name[order].astype(np.int32).tobytes()),
        start_ns=array("q", start[order].tobytes()),
        end_ns=array("q", end[order].tobytes()),
        thread=array("i", thread[order].astype(np.int32).tobytes()),
    )


def without(scopes: HostEvents, names: Container[str]) -> HostEvents:
    """Return the scopes that have none of these names."""
    kept = np.array([name not in names for name in scopes.names] or [True])[column(scopes.name)]
    columns = ((values, column(values)[kept]) for values in (scopes.name, scopes.start_ns, scopes.end_ns, scopes.thread))
    name, start, end, thread = (
        array(old.typecode, new.astype(np.dtype(old.typecode)).tobytes()) for old, new in columns
    )  # fmt: skip
    return HostEvents(names=scopes.names, name=name, start_ns=start, end_ns=end, thread=thread)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """Time of host threads, cut into numbered segments, so that launches in one segment can be counted together.

    The segments of a thread have ascending numbers, the first one lies before its first moment. The last number of all is for
    launch calls on other threads.

    Args:
        moments: by thread, ascending.
        first: by thread, the number of its first segment.
        num: number of segments.
    """

    moments: Mapping[int, Ints]
    first: Mapping[int, int]
    num: int

    @classmethod
    def at(cls, thread: Ints, *moments: Ints) -> Self:
        """Cut each thread at its own moments."""
        found: dict[int, Ints] = {}
        for number, mine in _by_thread(thread):
            found[number] = different(np.concatenate([column[mine] for column in moments]))
        counts = [len(own) + 1 for own in found.values()]
        first = dict(zip(found, (np.cumsum(counts) - counts).tolist(), strict=True))
        return cls(moments=found, first=first, num=sum(counts) + 1)

    @classmethod
    def around(cls, *scopes: HostEvents) -> Self:
        """Cut at the starts and ends of scopes."""
        thread, start, end = (
            np.concatenate([column(values) for values in columns])
            for columns in zip(*((one.thread, one.start_ns, one.end_ns) for one in scopes), strict=True)
        )
        return cls.at(thread, start, end)

    def within(self, thread: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return the segments `[first, last)` between two moments of a thread, for each pair of moments."""
        first, last = np.zeros(len(thread), np.int64), np.zeros(len(thread), np.int64)
        for number, mine in _by_thread(thread):
            if number not in self.moments:
                continue
            moments = self.moments[number]
            first[mine] = self.first[number] + np.searchsorted(moments, start[mine], "left") + 1
            last[mine] = self.first[number] + np.searchsorted(moments, end[mine], "left") + 1
        return first, np.maximum(first, last)

    def of(self, scopes: HostEvents) -> tuple[Ints, Ints]:
        """Return the segments `[first, last)` that each scope consists of."""
        return self.within(column(scopes.thread), column(scopes.start_ns), column(scopes.end_ns))

    def place(self, hosts: HostEvents, host: NDArray[np.integer]) -> Ints:
        """Return the segment that each of some launch calls starts in."""
        found = np.full(len(host), self.num - 1, np.int64)
        thread, start = np.asarray(hosts.thread)[host], column(hosts.start_ns)[host]
        for number in different(thread).tolist():
            if number in self.moments:
                mine = thread == number
                found[mine] = self.first[number] + np.searchsorted(self.moments[number], start[mine], "right")
        return found


def _by_thread(thread: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each thread with the positions of its entries, in order."""
    order = np.argsort(thread, kind="stable")
    numbers, first = np.unique(thread[order], return_index=True)
    if len(numbers):
        yield from zip(numbers.tolist(), np.split(order, first[1:]), strict=True)


class Launched:
    """Work launched in each segment: device events, kernels among them, their time, first start and last end.

    Args:
        num: number of segments.
    """

    def __init__(self, num: int) -> None:
        self.events, self.kernels, self.sum_ns = (np.zeros(num, np.int64) for _ in range(3))
        self.start, self.end = np.full(num, _LATE, np.int64), np.full(num, -_LATE, np.int64)

    def add(self, part: WindowedEvents, segment: Ints) -> None:
        """Count events, each in its segment."""
        if not len(segment):
            return
        order = np.argsort(segment, kind="stable")
        heads = np.flatnonzero(np.diff(segment[order], prepend=NOWHERE))
        own = segment[order[heads]]
        self.events[own] += np.diff(heads, append=len(order))
        self.kernels[own] += np.add.reduceat(_IS_WORK[part.work.kind[order]], heads)
        self.sum_ns[own] += np.add.reduceat(part.length[order], heads)
        self.start[own] = np.minimum(self.start[own], np.minimum.reduceat(part.start[order], heads))
        self.end[own] = np.maximum(self.end[own], np.maximum.reduceat(part.end[order], heads))

    def bounds(self, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """Return the first start and the last end in each stretch `[first, last)`, which holds some event."""
        edges = np.stack((first, last), axis=1).ravel()
        if not len(edges):
            return first, last
        start, end = np.append(self.start, _LATE), np.append(self.end, -_LATE)
        return np.minimum.reduceat(start, edges)[::2], np.maximum.reduceat(end, edges)[::2]

    def spans(self, first: Ints, last: Ints) -> Ints:
        """Return the time from the first start to the last end in stretches `[first, last)`; 0 for one without events."""
        count = before(self.events)
        some = count[last] > count[first]
        start, end = self.bounds(first[some], last[some])
        span = np.zeros(len(first), np.int64)
        span[some] = end - start
        return span


def linked(work: EventView, window: Window | None) -> Iterator[WindowedEvents]:
    """Yield the events of a device with a known launch call that overlap a window, cut to it, in parts."""
    for part in windowed_events(work, window):
        known = np.flatnonzero(part.work.host >= 0)
        yield WindowedEvents(part.which[known], part.work.at(known), part.start[known], part.end[known])


def launched_in(trace: Trace, work: EventView, window: Window | None, cuts: Cuts) -> Launched:
    """Count the events of a device by the segment that they were launched in."""
    found = Launched(cuts.num)
    for part in linked(work, window):
        found.add(part, cuts.place(trace.device_events.hosts, part.work.host))
    return found


def device_times(trace: Trace, work: EventView, scopes: HostEvents, chosen: Ints) -> tuple[NDArray[np.bool_], Intervals]:
    """Return a mask of the chosen scopes that launched events, and first start and last end of these events for each."""
    thread, start, end = (column(values)[chosen] for values in (scopes.thread, scopes.start_ns, scopes.end_ns))
    cuts = Cuts.at(thread, start, end)
    found = launched_in(trace, work, None, cuts)
    first, last = cuts.within(thread, start, end)
    count = before(found.events)
    some: NDArray[np.bool_] = count[last] > count[first]
    return some, Intervals(*found.bounds(first[some], last[some]))


class GraphPaths(NamedTuple):
    """Events of a device in a window that carry a module path: `path` counts into `texts`."""

    texts: tuple[str, ...]
    part: WindowedEvents
    path: Ints


def graph_paths(trace: Trace, work: EventView, window: Window | None) -> GraphPaths:
    """Find the events of a device that carry a module path."""
    texts: dict[str, int] = {}
    carriers = np.fromiter(trace.module_paths, np.int64, len(trace.module_paths))
    path = np.array([texts.setdefault(text, len(texts)) for text in trace.module_paths.values()], np.int64)
    order = np.argsort(carriers)
    carriers, path = carriers[order], path[order]
    if isinstance(work.rows, slice):
        here = (carriers >= work.rows.start) & (carriers < work.rows.stop)
        which = carriers[here] - work.rows.start
    else:
        here = np.isin(carriers, work.rows)
        which = np.searchsorted(work.rows, carriers[here])
    found = list(windowed_events(work.at(which), window))
    inside = [part.which for part in found]
    if not inside:
        return GraphPaths(tuple(texts), WindowedEvents(which, work.at(which), work.start[which], work.end[which]), path[here])
    which = which[np.concatenate(inside)]
    start, end = (np.concatenate(columns) for columns in zip(*((part.start, part.end) for part in found), strict=True))
    return GraphPaths(tuple(texts), WindowedEvents(which, work.at(which), start, end), path[here][np.concatenate(inside)])


def before(values: NDArray[np.integer | np.bool_]) -> Ints:
    """Return the sum of the values before each position, and finally of all."""
    total = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=total[1:])
    return total


@dataclass(frozen=True, kw_only=True, slots=True)
class Nesting:
    """Nesting of scopes on their threads.

    Args:
        parent: the innermost scope that was open on the thread when each started; `NOWHERE` at the top.
        bounds: by thread, the moments at which another scope becomes the innermost one.
        innermost: by thread, the innermost scope from each of the bounds on.
    """

    parent: NDArray[np.int32]
    bounds: Mapping[int, Ints]
    innermost: Mapping[int, NDArray[np.int32]]

    def at(self, thread: int, moments: Ints) -> Ints:
        """Return the innermost scope that is open on the thread at each moment."""
        if thread not in self.bounds:
            return np.full(len(moments), NOWHERE, np.int64)
        position = np.searchsorted(self.bounds[thread], moments, side="right") - 1
        return np.where(position < 0, NOWHERE, self.innermost[thread][np.maximum(position, 0)])

    def owners(self, cuts: Cuts) -> Ints:
        """Return the innermost scope of each segment; the segments are cut at all starts and ends of these scopes."""
        owner = np.full(cuts.num, NOWHERE, np.int64)
        for thread, moments in cuts.moments.items():
            first = cuts.first[thread] + 1
            owner[first : first + len(moments)] = self.at(thread, moments)
        return owner

    def of_calls(self, hosts: HostEvents, host: NDArray[np.integer]) -> Ints:
        """Return the innermost scope that each of some launch calls starts in; a negative number is no call."""
        owner = np.full(len(host), NOWHERE, np.int64)
        known = np.flatnonzero(host >= 0)
        thread, start = np.asarray(hosts.thread)[host[known]], column(hosts.start_ns)[host[known]]
        for number in different(thread).tolist():
            mine = thread == number
            owner[known[mine]] = self.at(number, start[mine])
        return owner

    def roots(self) -> Ints:
        """Return the outermost scope that each scope lies in."""
        root = np.arange(len(self.parent))
        above = self.parent
        while (above != NOWHERE).any():
            root = np.where(above == NOWHERE, root, above)
            above = self.parent[root]
        return root


class Paths:
    """Paths of names as numbers; every path has a higher number than its parent, and `ROOT` is its own parent."""

    def __init__(self) -> None:
        self.names = [""]
        self.above = [ROOT]
        self._numbers: dict[tuple[int, str], int] = {}

    def number(self, above: int, name: str) -> int:
        """Return the number of the path `name` below another path."""
        found = self._numbers.get((above, name))
        if found is None:
            found = self._numbers[above, name] = len(self.names)
            self.names.append(name)
            self.above.append(above)
        return found

    def of(self, scopes: HostEvents, nesting: Nesting) -> list[int]:
        """Return the number of each scope's path."""
        numbers: list[int] = []
        for parent, name in zip(nesting.parent.tolist(), scopes.name, strict=True):
            numbers.append(self.number(ROOT if parent == NOWHERE else numbers[parent], scopes.names[name]))
        return numbers

    def spelled(self, number: int) -> tuple[str, ...]:
        """Return the names of a path, from the outermost on."""
        names: list[str] = []
        while number != ROOT:
            names.append(self.names[number])
            number = self.above[number]
        return tuple(reversed(names))


def nest(scopes: HostEvents) -> Nesting:
    """Compute the nesting of scopes. Of two scopes that overlap, the one that started last is the inner one while it is open."""
    parent = np.full(len(scopes), NOWHERE, np.int32)
    bounds, innermost = dict[int, Ints](), dict[int, NDArray[np.int32]]()
    start, end = column(scopes.start_ns), column(scopes.end_ns)
    for thread, rows in sorted(_by_thread(column(scopes.thread)), key=lambda one: int(one[1][0])):
        mine = rows.astype(np.int32)
        parent[mine], bounds[thread], innermost[thread] = _nest_thread(mine, start[mine], end[mine])
    return Nesting(parent=parent, bounds=bounds, innermost=innermost)


def _nest_thread(scopes: NDArray[np.int32], start: Ints, end: Ints) -> tuple[NDArray[np.int32], Ints, NDArray[np.int32]]:
    """Return the parents of one thread's scopes, the moments when the innermost scope changes, and which it is from there on."""
    parents, moments, owners = array("i"), array("q"), array("i")
    open_scopes, open_ends = [NOWHERE], [_NEVER]
    rows = array("i", scopes.tobytes()), array("q", start.tobytes()), array("q", end.tobytes())  # read faster than numpy's
    for scope, begins, ends in zip(*rows, strict=True):
        while open_ends[-1] <= begins:
            moments.append(_close(open_scopes, open_ends))
            owners.append(open_scopes[-1])
        parents.append(open_scopes[-1])
        moments.append(begins)
        owners.append(scope)
        open_scopes.append(scope)
        open_ends.append(ends)
    while len(open_ends) > 1:
        moments.append(_close(open_scopes, open_ends))
        owners.append(open_scopes[-1])
    return np.asarray(parents), np.asarray(moments), np.asarray(owners)


def _close(open_scopes: list[int], open_ends: list[int]) -> int:
    """Close the innermost scope, and those around it that end no later; return when it ended."""
    moment = open_ends[-1]
    while open_ends[-1] <= moment:
        open_ends.pop()
        open_scopes.pop()
    return moment
