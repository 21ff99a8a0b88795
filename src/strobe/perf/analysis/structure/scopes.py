"""Which range or module of the host a device event was launched in: by its launch call, on the thread of that call."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.intervals import Ints, column
from strobe.perf.analysis.device.views import Work
from strobe.perf.trace.events import DEVICE_KINDS, HostEvents, Trace

if TYPE_CHECKING:
    from strobe.perf.analysis.structure.window import Window

NOWHERE: Final = -1
"""The scope of what was launched in none."""
ROOT: Final = 0
"""The path that lies above all others."""
WORK: Final = (DEVICE_KINDS.index("kernel"), DEVICE_KINDS.index("comm"))
"""The kinds that count as kernels: not copies and memsets."""

NUMBERED: Final = re.compile(r"(?P<base>.*?\S)(?:\s*[#_]\s*|\s+)\d+")
"""A name with a number: `ProfilerStep#3`, `Linear_12`, `step 7`."""


def unnumbered(scopes: HostEvents) -> HostEvents:
    """The same scopes under their names without numbers: `ProfilerStep#3` is `ProfilerStep`, `step 7` is `step`."""
    bases: dict[str, int] = {}
    number = np.array([bases.setdefault(base_of(name), len(bases)) for name in scopes.names], np.int32)
    return replace(scopes, names=tuple(bases), name=array("i", number[column(scopes.name)].tobytes() if len(number) else b""))


def base_of(name: str) -> str:
    """The name without the number at its end, if there is one."""
    found = NUMBERED.fullmatch(name)
    return found["base"] if found else name


def ranges_and_modules(trace: Trace) -> HostEvents:
    """Ranges and modules together, in order of start, an enclosing one before what it encloses."""
    parts = (trace.ranges, trace.modules)
    columns = [[column(values) for values in (part.name, part.start_ns, part.end_ns, part.thread)] for part in parts]
    columns[1][0] = columns[1][0] + len(trace.ranges.names)
    name, start, end, thread = (np.concatenate(pair) for pair in zip(*columns, strict=True))
    order = np.lexsort((-end, start))
    return HostEvents(
        names=(*trace.ranges.names, *trace.modules.names),
        name=array("i", name[order].astype(np.int32).tobytes()),
        start_ns=array("q", start[order].tobytes()),
        end_ns=array("q", end[order].tobytes()),
        thread=array("i", thread[order].astype(np.int32).tobytes()),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Launches:
    """The device events whose launch call is known, by thread and in order of launch.

    Args:
        event: position among the trace's device events.
        launch_ns: start of the launch call.
        threads: the stretch `[first, last)` of these columns that belongs to each thread.
    """

    event: Ints
    launch_ns: Ints
    threads: Mapping[int, tuple[int, int]]

    def of(self, scopes: HostEvents, chosen: Ints) -> tuple[Ints, Ints]:
        """Return the stretch `[first, last)` of these columns that each of the chosen scopes launched, nested ones included."""
        first, last = np.zeros(len(chosen), np.int64), np.zeros(len(chosen), np.int64)
        thread, start, end = (column(values)[chosen] for values in (scopes.thread, scopes.start_ns, scopes.end_ns))
        for number, (left, right) in self.threads.items():
            mine = np.flatnonzero(thread == number)
            launched = self.launch_ns[left:right]
            first[mine] = left + np.searchsorted(launched, start[mine])
            last[mine] = left + np.searchsorted(launched, end[mine])
        return first, last


def launches(trace: Trace, chosen: Ints | None = None) -> Launches:
    """Sort the linked device events by the thread and start of their launch call, those of one call by their own start.

    Args:
        trace: the trace.
        chosen: ascending positions among its device events, if not all count.
    """
    events = trace.device_events
    host = column(events.host)
    event = np.flatnonzero(host >= 0) if chosen is None else chosen[host[chosen] >= 0]
    start, thread = column(events.hosts.start_ns), column(events.hosts.thread)
    rank = np.empty(len(start), np.int64)
    rank[np.lexsort((start, thread))] = np.arange(len(start))
    event = event[np.argsort(rank[host[event]], kind="stable")]
    of_thread = thread[host[event]]
    numbers, first = np.unique(of_thread, return_index=True)
    edges = [*first.tolist(), len(event)]
    threads = {number: (edges[i], edges[i + 1]) for i, number in enumerate(numbers.tolist())}
    return Launches(event=event, launch_ns=start[host[event]], threads=threads)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The events of one device that overlap a window, cut to it, in order of start.

    Args:
        position: among the trace's device events.
        start: nanoseconds; `end` likewise.
        host: position of the launch call, negative where it is not known.
        is_kernel: kernels and communication, not copies and memsets.
        launched: those with a known launch call, by thread and in order of launch.
        place: where each of those is in the columns of this part.
    """

    position: Ints
    start: Ints
    end: Ints
    host: NDArray[np.int32]
    is_kernel: NDArray[np.bool_]
    launched: Launches
    place: Ints

    @property
    def length(self) -> Ints:
        """Nanoseconds of each event."""
        return self.end - self.start

    def spans(self, first: Ints, last: Ints) -> Ints:
        """From the first start to the last end of stretches `[first, last)` of the launched events; 0 for an empty one."""
        some = last > first
        edges = np.stack((first[some], last[some]), axis=1).ravel()
        span = np.zeros(len(first), np.int64)
        if len(edges):
            earliest = np.minimum.reduceat(np.append(self.start[self.place], 0), edges)[::2]
            span[some] = np.maximum.reduceat(np.append(self.end[self.place], 0), edges)[::2] - earliest
        return span


def part_of(trace: Trace, work: Work, window: Window | None) -> Part:
    """Take the events of a device that overlap the window, all of them without one; an event of length 0 where it starts."""
    position, start, end, host, kind = work.position, work.start, work.end, work.host, work.kind
    if window is not None:
        left, right = window.start_ns, window.end_ns
        inside = np.flatnonzero((start < right) & ((end > left) | (start == end) & (start >= left)))
        start, end = np.maximum(start[inside], left), np.minimum(end[inside], right)
        position, host, kind = position[inside], host[inside], kind[inside]
    launched = launches(trace, position)
    place = launched.event if len(position) == len(trace.device_events) else np.searchsorted(position, launched.event)
    is_kernel = np.isin(kind, WORK)
    return Part(position=position, start=start, end=end, host=host, is_kernel=is_kernel, launched=launched, place=place)


class GraphPaths(NamedTuple):
    """Which events of a part carry a module path: `place` counts into its columns, `path` into `texts`."""

    texts: tuple[str, ...]
    place: Ints
    path: Ints


def graph_paths(trace: Trace, part: Part) -> GraphPaths:
    """Find the events of a part that carry a module path."""
    texts: dict[str, int] = {}
    carriers = np.fromiter(trace.module_paths, np.int64, len(trace.module_paths))
    path = np.array([texts.setdefault(text, len(texts)) for text in trace.module_paths.values()], np.int64)
    here = np.isin(carriers, part.position)
    return GraphPaths(tuple(texts), np.searchsorted(part.position, carriers[here]), path[here])


def totals(values: Ints, group: Ints, num_groups: int) -> Ints:
    """Sum of the values of each group."""
    total = np.zeros(num_groups, np.int64)
    np.add.at(total, group, values)
    return total


def before(values: NDArray[np.integer | np.bool_]) -> Ints:
    """Sum of the values before each position, and at last of all."""
    total = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=total[1:])
    return total


@dataclass(frozen=True, kw_only=True, slots=True)
class Nesting:
    """How scopes contain each other on their threads.

    Args:
        parent: the innermost scope that was open on the thread when each started; `NOWHERE` at the top.
        bounds: by thread, the moments at which another scope becomes the innermost one.
        innermost: by thread, the innermost scope from each of the bounds on.
    """

    parent: Ints
    bounds: Mapping[int, Ints]
    innermost: Mapping[int, Ints]

    def at(self, thread: int, moments: Ints) -> Ints:
        """Return the innermost scope that is open on the thread at each moment."""
        if thread not in self.bounds:
            return np.full(len(moments), NOWHERE, np.int64)
        position = np.searchsorted(self.bounds[thread], moments, side="right") - 1
        return np.where(position < 0, NOWHERE, self.innermost[thread][np.maximum(position, 0)])

    def owners(self, launched: Launches) -> Ints:
        """Return the innermost scope that launched each of the device events."""
        owner = np.full(len(launched.event), NOWHERE, np.int64)
        for thread, (left, right) in launched.threads.items():
            owner[left:right] = self.at(thread, launched.launch_ns[left:right])
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
    """Paths of names as numbers; every path has a higher number than the one above it, and `ROOT` lies above itself."""

    def __init__(self) -> None:
        self.names = [""]
        self.above = [ROOT]
        self._numbers: dict[tuple[int, str], int] = {}

    def number(self, above: int, name: str) -> int:
        """Number of the path `name` below another path."""
        found = self._numbers.get((above, name))
        if found is None:
            found = self._numbers[above, name] = len(self.names)
            self.names.append(name)
            self.above.append(above)
        return found

    def of(self, scopes: HostEvents, nesting: Nesting) -> list[int]:
        """The number of each scope's path."""
        numbers: list[int] = []
        for parent, name in zip(nesting.parent.tolist(), scopes.name, strict=True):
            numbers.append(self.number(ROOT if parent == NOWHERE else numbers[parent], scopes.names[name]))
        return numbers

    def spelled(self, number: int) -> tuple[str, ...]:
        """The names of a path, from the outermost on."""
        names: list[str] = []
        while number != ROOT:
            names.append(self.names[number])
            number = self.above[number]
        return tuple(reversed(names))


def nest(scopes: HostEvents) -> Nesting:
    """Find what contains what. Of two scopes that overlap, the one that started last is the inner one while it is open."""
    ends, parents = scopes.end_ns.tolist(), []
    stacks: dict[int, list[int]] = {}
    changes: dict[int, tuple[list[int], list[int]]] = {}
    for scope, (start, thread) in enumerate(zip(scopes.start_ns.tolist(), scopes.thread.tolist(), strict=True)):
        stack = stacks.setdefault(thread, [])
        moments, owners = changes.setdefault(thread, ([], []))
        _close(stack, ends, start, moments, owners)
        parents.append(stack[-1] if stack else NOWHERE)
        stack.append(scope)
        moments.append(start)
        owners.append(scope)
    for thread, stack in stacks.items():
        _close(stack, ends, None, *changes[thread])
    return Nesting(
        parent=np.array(parents, np.int64),
        bounds={thread: np.array(moments, np.int64) for thread, (moments, _) in changes.items()},
        innermost={thread: np.array(owners, np.int64) for thread, (_, owners) in changes.items()},
    )


def _close(stack: list[int], ends: list[int], until: int | None, moments: list[int], owners: list[int]) -> None:
    """Take the scopes that end by `until` off the stack and note who is innermost after each of them."""
    while stack and (until is None or ends[stack[-1]] <= until):
        moment = ends[stack.pop()]
        while stack and ends[stack[-1]] <= moment:
            stack.pop()
        moments.append(moment)
        owners.append(stack[-1] if stack else NOWHERE)
