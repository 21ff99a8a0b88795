"""Ranges and modules of the host: which launched each device event, the device time of each, and what held memory."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated as A
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.activity import (
    BUSY,
    CAUSES,
    HOST_LATE,
    PROFILER_OVERHEAD,
    DeviceView,
    EventView,
    WindowedEvents,
    events_by_device,
    windowed_events,
)
from strobe.perf.analysis.device.intervals import Covered, Intervals, Ints, Window, column, marked, overlaps, totals, union
from strobe.perf.table.model import Cell, Code, Count, ExactTime, Missing, Number, Text, Time, bytes_cell
from strobe.perf.table.rows import DocumentPart, OnDevice, col, term
from strobe.perf.trace.columns import different
from strobe.perf.trace.events import DEVICE_KINDS, HostEvents, Trace

# Range or module of the host that launched each device event: by its launch call, on the thread of that call.

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
    return _scopes(tuple(names), *(values[order] for values in (name, start, end, thread)))


def without(scopes: HostEvents, names: Container[str]) -> HostEvents:
    """Return the scopes that have none of these names."""
    kept = ~marked(scopes, names.__contains__)
    columns = (scopes.name, scopes.start_ns, scopes.end_ns, scopes.thread)
    return _scopes(scopes.names, *(column(values)[kept] for values in columns))


def _scopes(names: tuple[str, ...], name: Ints, start: Ints, end: Ints, thread: Ints) -> HostEvents:
    numbers, threads = (array("i", values.astype(np.int32).tobytes()) for values in (name, thread))
    starts, ends = (array("q", values.tobytes()) for values in (start, end))
    return HostEvents(names=names, name=numbers, start_ns=starts, end_ns=ends, thread=threads)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """Time of host threads, cut into numbered segments, so that launches in one segment can be counted together.

    The segments of a thread have ascending numbers, the first one lies before its first moment. The last number of all is for
    launch calls on other threads.

    Args:
        moments: by thread, ascending.
        first: by thread, the number of its first segment.
    """

    moments: Mapping[int, Ints]
    first: Mapping[int, int]
    num: int

    @classmethod
    def at(cls, thread: Ints, *moments: Ints) -> Self:
        found = {own: different(np.concatenate([each[mine] for each in moments])) for own, mine in _by_thread(thread)}
        counts = [len(own) + 1 for own in found.values()]
        first = dict(zip(found, (np.cumsum(counts) - counts).tolist(), strict=True))
        return cls(moments=found, first=first, num=sum(counts) + 1)

    def segment(self, thread: int | NDArray[np.integer], moments: Ints, side: Literal["left", "right"] = "right") -> Ints:
        """Return the segment of each moment on the thread of the same position; one on a cut is in the later, or left one."""
        found = np.full(len(moments), self.num - 1, np.int64)
        for number, mine in _by_thread(np.broadcast_to(thread, len(moments))):
            if number in self.moments:
                found[mine] = self.first[number] + np.searchsorted(self.moments[number], moments[mine], side)
        return found

    def within(self, thread: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return the segments `[first, last)` between two moments of a thread, for each pair of moments."""
        first = self.segment(thread, start, "left") + 1
        return first, np.maximum(first, self.segment(thread, end, "left") + 1)

    def of(self, scopes: HostEvents) -> tuple[Ints, Ints]:
        """Return the segments `[first, last)` that each scope consists of."""
        return self.within(column(scopes.thread), column(scopes.start_ns), column(scopes.end_ns))

    def place(self, hosts: HostEvents, host: NDArray[np.integer]) -> Ints:
        """Return the segment that each of some launch calls starts in; the last one for a negative number, which is no call."""
        found, known = np.full(len(host), self.num - 1, np.int64), np.flatnonzero(host >= 0)
        found[known] = self.segment(np.asarray(hosts.thread)[host[known]], column(hosts.start_ns)[host[known]])
        return found

    def started(self, thread: int) -> slice:
        """Return the segments of a thread that begin with one of its moments."""
        first = self.first[thread] + 1
        return slice(first, first + len(self.moments[thread]))


def _by_thread(thread: NDArray[np.integer]) -> Iterator[tuple[int, Ints]]:
    """Yield each thread with the positions of its entries, in order."""
    order = np.argsort(thread, kind="stable")
    numbers, first = np.unique(thread[order], return_index=True)
    if len(numbers):
        yield from zip(numbers.tolist(), np.split(order, first[1:]), strict=True)


class Launched:
    """Work launched in each segment: device events, kernels among them, their time, first start and last end."""

    def __init__(self, num: int) -> None:
        self.events, self.kernels, self.sum_ns = (np.zeros(num, np.int64) for _ in range(3))
        self.start, self.end = np.full(num, _LATE, np.int64), np.full(num, -_LATE, np.int64)

    def add(self, part: WindowedEvents, segment: Ints) -> None:
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


GraphPaths: TypeAlias = tuple[tuple[str, ...], WindowedEvents, Ints]
"""Module paths, events of a device in a window that carry one, and the position of each event's among the paths."""


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
    found = [(part.which, part.start, part.end) for part in windowed_events(work.at(which), window)] or [(which[:0],) * 3]
    inside, start, end = (np.concatenate(columns) for columns in zip(*found, strict=True))
    which = which[inside]
    return tuple(texts), WindowedEvents(which, work.at(which), start, end), path[here][inside]


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
        cuts: time cut at all starts and ends.
        owner: the innermost scope of each segment.
    """

    parent: NDArray[np.int32]
    cuts: Cuts
    owner: Ints

    def at(self, thread: int | NDArray[np.integer], moments: Ints) -> Ints:
        """Return the innermost scope that is open at each moment on the thread, or on that of the same position."""
        return self.owner[self.cuts.segment(thread, moments)]

    def of_calls(self, hosts: HostEvents, host: NDArray[np.integer]) -> Ints:
        """Return the innermost scope that each of some launch calls starts in; a negative number is no call."""
        return self.owner[self.cuts.place(hosts, host)]

    def roots(self) -> Ints:
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
        numbers: list[int] = []
        for parent, name in zip(nesting.parent.tolist(), scopes.name, strict=True):
            numbers.append(self.number(ROOT if parent == NOWHERE else numbers[parent], scopes.names[name]))
        return numbers

    def around(self, number: int) -> Iterator[int]:
        """Yield a path and those that enclose it, from the innermost on."""
        while number != ROOT:
            yield number
            number = self.above[number]

    def spelled(self, number: int) -> tuple[str, ...]:
        """Return the names of a path, from the outermost on."""
        return tuple(self.names[each] for each in reversed([*self.around(number)]))


def nest(scopes: HostEvents) -> Nesting:
    """Compute the nesting of scopes. Of two scopes that overlap, the one that started last is the inner one while it is open."""
    thread, start, end = (column(values) for values in (scopes.thread, scopes.start_ns, scopes.end_ns))
    parent, cuts = np.full(len(scopes), NOWHERE, np.int32), Cuts.at(thread, start, end)
    owner = np.full(cuts.num, NOWHERE, np.int64)
    for number, rows in _by_thread(thread):
        parent[rows], changes, innermost = _nest_thread(rows, start[rows], end[rows])
        owner[cuts.started(number)] = innermost[np.searchsorted(changes, cuts.moments[number], "right") - 1]
    return Nesting(parent=parent, cuts=cuts, owner=owner)


def _nest_thread(scopes: Ints, start: Ints, end: Ints) -> tuple[NDArray[np.int32], Ints, NDArray[np.int32]]:
    """Return the parents of one thread's scopes, the moments when the innermost scope changes, and which it is from there on."""
    parents, moments, owners = array("i"), array("q"), array("i")
    open_scopes, open_ends = [NOWHERE], [_NEVER]

    def close(until: int) -> None:
        """Close the scopes that have ended by then, the innermost first, and those around it that end no later."""
        while open_ends[-1] <= until:
            moment = open_ends[-1]
            while open_ends[-1] <= moment:
                open_ends.pop()
                open_scopes.pop()
            moments.append(moment)
            owners.append(open_scopes[-1])

    rows = (array("q", values.tobytes()) for values in (scopes, start, end))  # read faster than numpy's
    for scope, begins, ends in zip(*rows, strict=True):
        if open_ends[-1] <= begins:
            close(begins)
        parents.append(open_scopes[-1])
        moments.append(begins)
        owners.append(scope)
        open_scopes.append(scope)
        open_ends.append(ends)
    close(_NEVER - 1)
    return np.asarray(parents), np.asarray(moments), np.asarray(owners)


# Device time of each range and module of the host: the work of the launch calls inside it, on its own thread.
#
# A graph's kernels belong to the range that launched the graph, and to the module path that they carry themselves. Device times
# are cut to the window, host times are not: they are those of the calls that launched work in it.

Kind = Literal["range", "module", "graph module"]
COMMUNICATION: Final = ("nccl:", "rccl:", "c10d::")
"""Prefixes of ranges around collectives; another thread or stream launches these, so most such ranges own no events."""


_SILENT: Final = Text("0", "muted", "launched nothing on their thread")
_NO_CALLS: Final = "a graph's kernels have no call of their own"


def _launched(row: RangeRow) -> int | Text:
    return row.events or _SILENT


class RangeRow(OnDevice, frozen=True, kw_only=True):
    """Device time of the calls of one range or module; sums include nested calls, exclusive times do not."""

    kind: A[str, col("`range`, `module`, or `graph module` (module path that the kernels of a graph carry)")]
    name: A[str, col("name of the range or module, without the number at its end", "name", Code)]
    calls: A[int, col("number of calls", "calls", Count, total=sum)]
    events: A[int, col("number of device events launched in the calls", "events", Count, get=_launched)]
    kernels: A[int, col("number of kernels among these", "kernels", Count, where="events")]
    sum_ns: A[int, col("sum of the durations of these events", "sum", ExactTime, where="events", of={"of all": "sum_ns"})]
    exclusive_ns: A[int, term("of events that no nested call launched", "exclusive", ExactTime, where="events", total=sum)]
    union_ns: A[int, term("time in which at least one of these events ran", "union", ExactTime, where="events")]
    span_ns: A[int, col("from first start to last end of a call's events, summed over calls", "span", ExactTime, where="events")]
    host_ns: A[int | None, col("time of the calls on the host; null for a graph module", "host", ExactTime, missing=_NO_CALLS)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges:
    """Ranges and modules of one device.

    Args:
        rows: by kind, then by descending sum; those without events last.
        events: device events in the window.
        outside_events: those that were launched outside every range and module, on their thread.
        unlinked_events: those whose launch call is not known.
    """

    device: int
    rows: tuple[RangeRow, ...]
    events: int
    sum_ns: int
    outside_events: int
    unlinked_events: int

    def of_kind(self, kind: Kind) -> tuple[RangeRow, ...]:
        return tuple(row for row in self.rows if row.kind == kind)


def range_table(trace: Trace, window: Window | None = None) -> tuple[Ranges, ...]:
    """Tabulate the ranges and modules of each device that has events; empty for a trace of a CPU."""
    views = dict(events_by_device(trace))
    rows_of: dict[int, list[RangeRow]] = {device: [] for device in views}
    scopes_of: dict[Kind, HostEvents] = {"range": trace.ranges, "module": trace.modules}
    for kind, scopes in scopes_of.items():
        for row in _rows(kind, trace, views, window, scopes):
            rows_of[row.device].append(row)
    nesting, hosts, found = nest(ranges_and_modules(trace)), trace.device_events.hosts, []

    def outside(work: EventView) -> int:
        return int(((work.host >= 0) & (nesting.of_calls(hosts, work.host) == NOWHERE)).sum())

    for device, work in views.items():
        where, carried = {"trace": trace.label, "device": device}, graph_paths(trace, work, window)
        parts = [
            (len(part.which), int(part.length.sum()), outside(part.work), int((part.work.host < 0).sum()))
            for part in windowed_events(work, window)
        ]
        rows = sorted(rows_of[device], key=lambda row: (row.kind != "range", not row.events, -row.sum_ns, row.name))
        graphs = sorted(_graph_rows(where, carried), key=lambda row: (-row.sum_ns, row.name))
        events, sum_ns, outside_events, unlinked = map(sum, zip(*parts, strict=True))
        found.append(
            Ranges(
                device=device,
                rows=(*rows, *graphs),
                events=events,
                sum_ns=sum_ns,
                outside_events=outside_events - outside(carried[1].work),
                unlinked_events=unlinked,
            )
        )
    return tuple(found)


def _rows(
    kind: Kind, trace: Trace, views: Mapping[int, EventView], window: Window | None, scopes: HostEvents
) -> Iterator[RangeRow]:
    """Yield a row for each name of one kind of scope, on each device."""
    nesting, name = nest(scopes), column(scopes.name)
    begin, end, (first, last) = column(scopes.start_ns), column(scopes.end_ns), nesting.cuts.of(scopes)
    # calls of one name on one thread, side by side: one that lies in another of them adds nothing
    group = name * (int(max(scopes.thread, default=0)) + 1) + column(scopes.thread)
    order = np.argsort(group, kind="stable")
    outer, fresh = np.zeros(len(scopes), np.bool_), first.copy()
    outer[order] = begin[order] >= _reached(end, begin[order], order, group[order])
    fresh[order] = np.maximum(fresh[order], _reached(last, first[order], order, group[order]))
    fresh = np.minimum(fresh, last)  # without the segments of earlier calls of the same name
    num, own = len(scopes.names), nesting.owner != NOWHERE
    for device, work in views.items():
        launched, united = _launched_and_united(trace, work, window, scopes, nesting)
        events, kernels, sums = (before(values) for values in (launched.events, launched.kernels, launched.sum_ns))
        counted = np.ones(len(name), np.bool_) if window is None else events[last] > events[first]
        per_call = {
            "calls": counted,
            "events": events[last] - events[fresh],
            "kernels": kernels[last] - kernels[fresh],
            "sum_ns": sums[last] - sums[fresh],
            "span_ns": np.where(outer, launched.spans(first, last), 0),
            "host_ns": np.where(outer & counted, end - begin, 0),
        }
        columns = {key: totals(values.astype(np.int64), name, num).tolist() for key, values in per_call.items()}
        columns["union_ns"] = [each.total_ns for each in united]
        columns["exclusive_ns"] = totals(launched.sum_ns[own], name[nesting.owner[own]], num).tolist()
        for text, *values in zip(scopes.names, *columns.values(), strict=True):
            if values[0]:
                told = dict(zip(columns, values, strict=True))
                yield RangeRow(trace=trace.label, device=device, kind=kind, name=text, **told)


def _reached(ends: Ints, start: Ints, which: Ints, group: Ints) -> Ints:
    """Return the latest end among the intervals before each one in its group; for the first, its own start. The intervals of a
    group lie side by side; `which` is the position of each among the ends."""
    if not len(start):
        return start
    times, rank = np.unique(ends, return_inverse=True)  # as ranks they can be packed with a group number in front
    heads = np.append(True, group[1:] != group[:-1])
    highest = np.maximum.accumulate(np.cumsum(heads) * len(times) + rank[which])
    return np.where(heads, start, np.append(start[0], times[highest[:-1] % len(times)]))


def _launched_and_united(
    trace: Trace, work: EventView, window: Window | None, scopes: HostEvents, nesting: Nesting
) -> tuple[Launched, list[Covered]]:
    """Return what was launched in each segment, and by name the time in which some event launched in a call of it ran."""
    united, launched = [Covered() for _ in scopes.names], Launched(nesting.cuts.num)
    first, last = nesting.cuts.of(scopes)
    name_of = column(scopes.name)
    for part in linked(work, window):
        segment = nesting.cuts.place(trace.device_events.hosts, part.work.host)
        launched.add(part, segment)
        segments, which = np.unique(segment, return_inverse=True)
        place, call, found = np.arange(len(segments)), nesting.owner[segments], [np.zeros((2, 0), np.int64)]
        while len(place):
            place, call = place[call != NOWHERE], call[call != NOWHERE]
            inside = (first[call] <= segments[place]) & (segments[place] < last[call])
            found.append(np.stack((place[inside], name_of[call[inside]])))
            call = nesting.parent[call]
        of_segment, name = np.concatenate(found, axis=1)
        for number in different(name).tolist():
            own = np.zeros(len(segments), np.bool_)
            own[of_segment[name == number]] = True
            united[number].add(part.start[own[which]], part.end[own[which]])
    return launched, united


def _graph_rows(where: dict[str, Any], paths: GraphPaths) -> Iterator[RangeRow]:
    """Yield a row for each module path and for each path that encloses it."""
    texts, part, of_event = paths
    order = np.argsort(of_event, kind="stable")
    own = np.split(order, np.searchsorted(of_event[order], np.arange(1, len(texts))))
    inside: dict[str, list[int]] = {}
    for path, text in enumerate(texts):
        parts = text.split(".")
        for depth in range(1, len(parts) + 1):
            inside.setdefault(".".join(parts[:depth]), []).append(path)
    exclusive = {text: path for path, text in enumerate(texts)}
    host, is_kernel = part.work.host, np.isin(part.work.kind, WORK)
    for text, members in inside.items():
        place = np.sort(np.concatenate([own[path] for path in members]))
        if not len(place):
            continue
        start, end = part.start[place], part.end[place]
        by_call = np.argsort(host[place], kind="stable")
        heads = np.flatnonzero(np.diff(host[place][by_call], prepend=-2))
        mine = own[exclusive[text]] if text in exclusive else place[:0]
        yield RangeRow(
            **where,
            kind="graph module",
            name=text,
            calls=len(heads),
            events=len(place),
            kernels=int(is_kernel[place].sum()),
            sum_ns=int((end - start).sum()),
            union_ns=union(start, end).length_ns,
            span_ns=int((np.maximum.reduceat(end[by_call], heads) - np.minimum.reduceat(start[by_call], heads)).sum()),
            exclusive_ns=int(part.length[mine].sum()),
            host_ns=None,
        )


# Call tree of device time: ranges and modules that launched the work, each nanosecond counted once.

OUTSIDE: Final = "outside ranges and modules"
UNLINKED: Final = "launch not in the trace"


class CallNode(NamedTuple):
    """Calls of one name under one path. Ranges that differ in their number alone (`ProfilerStep#3`) are one.

    Args:
        name: name of the range or module, or a part of the module path of a graph's kernel.
        calls: on the host; 0 for a part of a module path.
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
    nesting, paths = nest(scopes), Paths()
    cuts = nesting.cuts
    of_scope = np.array([*paths.of(scopes, nesting), paths.number(ROOT, OUTSIDE)], np.int64)  # nowhere is the last one
    of_segment, unlinked = of_scope[nesting.owner], paths.number(ROOT, UNLINKED)
    first, last = cuts.of(scopes)
    host_ns, found = column(scopes.end_ns) - column(scopes.start_ns), []
    for device, work in events_by_device(trace):
        self_ns, events, launched = _times(trace, (work, window), cuts, paths, of_segment, unlinked)
        called = before(launched)
        counted = np.arange(len(scopes)) if window is None else np.flatnonzero(called[last] > called[first])
        found.append((device, _tree(self_ns.tolist(), events.tolist(), paths, of_scope[counted], host_ns[counted])))
    return tuple(found)


def _times(
    trace: Trace, shown: tuple[EventView, Window | None], cuts: Cuts, paths: Paths, of_segment: Ints, unlinked: int
) -> tuple[Ints, Ints, Ints]:
    """Return device time and events by path, and events by segment; of overlapping events the first to start has the moment."""
    texts, carriers, carried = graph_paths(trace, *shown)
    covered, launched, self_ns, events = Covered(), np.zeros(cuts.num, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    for part in windowed_events(*shown):
        host = part.work.host
        known = np.flatnonzero(host >= 0)
        path = np.full(len(host), unlinked, np.int64)
        segment = cuts.place(trace.device_events.hosts, host[known])
        np.add.at(launched, segment, 1)
        path[known] = of_segment[segment]
        left, right = np.searchsorted(carriers.which, (part.which[0], part.which[-1] + 1)) if len(host) else (0, 0)
        place = np.searchsorted(part.which, carriers.which[left:right])
        path[place] = _moved(paths, path[place], carried[left:right], texts)
        own, grown = covered.add(part.start, part.end), np.zeros(len(paths.names) - len(events), np.int64)
        self_ns, events = np.append(self_ns, grown), np.append(events, grown)
        np.add.at(self_ns, path, own.end - own.start)
        np.add.at(events, path, 1)
    return self_ns, events, launched


def _moved(paths: Paths, path: Ints, carried: Ints, texts: Sequence[str]) -> Ints:
    """Return the paths of events with a module path: that path below the path that launched their graph."""
    pairs, which = np.unique(path * max(1, len(texts)) + carried, return_inverse=True)
    moved = []
    for above, text in zip(*(side.tolist() for side in np.divmod(pairs, max(1, len(texts)))), strict=True):
        for name in texts[text].split("."):
            above = paths.number(above, name)
        moved.append(above)
    return np.array(moved, np.int64)[which]


def _tree(self_ns: Sequence[int], events: Sequence[int], paths: Paths, called: Ints, host_ns: Ints) -> CallNode:
    num = len(paths.names)
    calls = np.bincount(called, minlength=num).tolist()
    on_host = totals(host_ns, called, num).tolist()
    below: list[list[CallNode]] = [[] for _ in range(num)]
    for number in range(num - 1, ROOT, -1):
        node = _node(paths.names[number], calls[number], on_host[number], events[number], self_ns[number], below[number])
        if node.events or node.calls:
            below[paths.above[number]].append(node)
    return _node("device", 0, 0, 0, 0, below[ROOT])


def _node(name: str, calls: int, host_ns: int, events: int, self_ns: int, children: Sequence[CallNode]) -> CallNode:
    inside = sum(child.events for child in children), sum(child.total_ns for child in children)
    ranked = tuple(sorted(children, key=lambda child: (-child.total_ns, child.name)))
    return CallNode(name, calls, host_ns, events + inside[0], self_ns + inside[1], self_ns, ranked)


# What the host did while a device waited for it, by name: the innermost call, operator or range of the thread that launches.

BETWEEN: Final = "outside any operator"
"""Where no recorded call, operator or range of the host was open."""
_PROFILER_STEP: Final = re.compile(r"ProfilerStep\s*#")
_BY_HOST: Final = (CAUSES.index(HOST_LATE), CAUSES.index(PROFILER_OVERHEAD))


def host_work(view: DeviceView) -> tuple[Counter[str], Counter[str]]:
    """Name what the host did while the device waited for it: on the thread whose launch ended the wait.

    Returns:
        Time by name in which the device was idle because nothing had been launched, ns, which adds up to `host_late` and
        `profiler_overhead` of its idle time; and time by name before the first event of the device, from the first event of the
        host on, ns, empty for a window.
    """
    trace, slices = view.trace, view.slices
    stores = (trace.ranges, trace.ops, trace.long_calls)
    scopes = together(*stores)
    scopes = without(scopes, {name for name in scopes.names if _PROFILER_STEP.match(name)})
    nesting = nest(scopes)
    waited = np.flatnonzero((slices.cause != BUSY) & np.isin(slices.cause, _BY_HOST))
    thread = _launched_on(view, slices.event[waited])
    late: Counter[str] = Counter()
    for number in np.unique(thread).tolist():
        some = waited[thread == number]
        late += _time_by_name(scopes, nesting, number, Intervals(slices.start[some], slices.end[some]))
    first, begin = int(_launched_on(view, np.zeros(1, np.int64))[0]), view.begin_ns
    if not view.window:
        for store in (*stores, trace.device_events.hosts):
            own = column(store.start_ns)[column(store.thread) == first]
            begin = min(begin, int(own.min(initial=begin)))
    head = Intervals(np.array([begin], np.int64), np.array([view.begin_ns], np.int64))
    return late, _time_by_name(scopes, nesting, first, head)


def _launched_on(view: DeviceView, events: Ints) -> Ints:
    """Return the host thread that launched each device event of a view, -1 where the trace does not hold the call."""
    hosts, host = view.trace.device_events.hosts, view.work.at(events).host
    threads = np.append(column(hosts.thread), -1)
    return threads[np.maximum(host, -1)]


def _time_by_name(scopes: HostEvents, nesting: Nesting, thread: int, during: Intervals) -> Counter[str]:
    spent: Counter[str] = Counter()
    if thread in nesting.cuts.moments:
        moments = nesting.cuts.moments[thread]
        _, segment, shared = overlaps(during, Intervals(moments, np.append(moments[1:], moments[-1])))
        scope = nesting.owner[nesting.cuts.started(thread)][segment]
        some = scope != NOWHERE
        total = totals(shared.length[some], column(scopes.name)[scope[some]], len(scopes.names))
        for name, ns in zip(scopes.names, total.tolist(), strict=True):
            spent[name] += ns
    spent[BETWEEN] = during.length_ns - sum(spent.values())
    return +spent


# Memory of each device over time: peaks, and the ranges and modules that were open at them.

_NO_RANGE: Final = "no range was open"


def mib(value: int) -> Number:
    """Return the cell of a size in MiB, or in KiB below 1 MiB."""
    return bytes_cell(value, "MiB", 1) if abs(value) >= 1 << 20 or not value else bytes_cell(value, "KiB", 3)


def recorded(value: int) -> Cell:
    """Return the cell of a size that is 0 where it was not recorded."""
    return mib(value) if value else Missing("not recorded", "-")


class MemoryRow(DocumentPart, frozen=True, kw_only=True):
    """Memory of one device; only devices whose allocations were recorded have a row."""

    trace: A[str, col("label of the trace, as in `files`")]
    device: A[str, col("name of the device, e.g. `cuda:0`")]
    peak_allocated_bytes: A[int, col("peak of the allocated memory", "peak allocated", mib)]
    peak_at_ns: A[int, col("time of the peak after the first recorded allocation", "at", Time)]
    peak_in: A[str, col("ranges and modules open then, innermost first", "in", Code, where="peak_in", missing=_NO_RANGE)]
    reserved_then_bytes: A[int, col("reserved memory at the peak; 0: not recorded", "reserved then", recorded)]
    peak_reserved_bytes: A[int, col("peak of the reserved memory; 0: not recorded", "peak reserved", recorded)]
    start_allocated_bytes: A[int, col("allocated memory at the start", "at the start", mib)]
    end_allocated_bytes: A[int, col("allocated memory at the end", "at the end", mib)]
    step_ns: A[int, term("times are exact to within this", "stretch", Time)]


MemoryUse: TypeAlias = tuple[MemoryRow, tuple[tuple[int, int, int], ...]]
"""Memory of one device, and points over time, of neighbours the one with the most allocated memory: time from the beginning,
allocated and reserved memory."""


def memory_use(trace: Trace, window: Window | None = None, num_points: int = 256) -> tuple[MemoryUse, ...]:
    """Summarise the memory of each device whose allocations were recorded.

    Args:
        window: the part of it to look at. Memory is recorded on the host's clock: what the host allocated during the window.
        num_points: points of the timeline at most.
    """
    found = []
    for track in trace.memory:
        columns = [np.array(part, np.int64) for part in (track.start_ns, track.allocated_bytes, track.reserved_bytes)]
        if window is not None:
            here = (columns[0] + track.step_ns > window.start_ns) & (columns[0] < window.end_ns)
            columns = [values[here] for values in columns]
        start, allocated, reserved = columns
        if not len(start):
            continue
        bins = np.array_split(np.arange(len(start)), min(num_points, len(start)))
        peak, thinned = int(allocated.argmax()), [int(part[allocated[part].argmax()]) for part in bins]
        since = start - start[0]
        row = MemoryRow(
            trace=trace.label,
            device=track.device,
            step_ns=track.step_ns,
            start_allocated_bytes=int(allocated[0]),
            end_allocated_bytes=int(allocated[-1]),
            peak_allocated_bytes=int(allocated[peak]),
            reserved_then_bytes=int(reserved[peak]),
            peak_at_ns=int(since[peak]),
            peak_reserved_bytes=int(reserved.max()),
            peak_in=" < ".join(reversed(_open_at(trace, int(start[peak])))),
        )
        points = zip(*(values[thinned].tolist() for values in (since, allocated, reserved)), strict=True)
        found.append((row, tuple(points)))
    return tuple(found)


def _open_at(trace: Trace, moment: int) -> tuple[str, ...]:
    """Return the ranges and modules open at a moment, outermost first, on the thread that had most of them open."""
    scopes = ranges_and_modules(trace)
    begin, end, thread = column(scopes.start_ns), column(scopes.end_ns), column(scopes.thread)
    open_then = np.flatnonzero((begin <= moment) & (moment < end))
    if not len(open_then):
        return ()
    most = int(np.bincount(thread[open_then]).argmax())
    return tuple(scopes.names[scopes.name[scope]] for scope in open_then.tolist() if thread[scope] == most)
