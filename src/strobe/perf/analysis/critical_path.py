"""Critical path of a trace: its dependency graph, and the length of the trace without some of its work."""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from statistics import median_low
from typing import Annotated as A
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from strobe.core.errors import DataError
from strobe.perf.analysis.device.intervals import Window, column
from strobe.perf.analysis.device.kernels import kernel_name, kernel_part
from strobe.perf.table.model import Cell, Code, Count, ExactTime, Number, Text
from strobe.perf.table.rows import DocumentPart, col, term
from strobe.perf.trace.events import DeviceEvent, Trace

# Dependency graph of a trace: calls of the host, device events, and the waits between them.
#
# Nodes are moments of the host (a launch call starts, a call that waits starts or returns) and device events. By an edge, a
# node begins at least a lag after its source. Where the edge decided when the node began, the lag is the traced one; elsewhere
# it is the usual lag of its kind if that fits. So every node begins exactly when it did in the trace.

MOST_EVENTS: Final = 1 << 17
"""Most device events of a graph, which takes an object for each."""
_WHOLE_DEVICE: Final = re.compile(r"(?=\w++\Z)\w*(?:Device|Ctx)Synchronize\w*")
_LAUNCH, _DEVICE, _RETURN, _COPIED = range(4)
"""Order of nodes at the same moment: launch call, device event, return of a call that waited, of a copy that was waited for."""
_Moment: TypeAlias = tuple[int, int, tuple[int, ...]]
"""A moment of the host: when, which of these it is, and the device events (by number) that must have ended."""


Lag: TypeAlias = Literal[
    "host", "launch latency", "gap in a stream", "overlap in a stream", "wait for another stream", "synchronisation",
    "before the first launch",
]  # fmt: skip
"""Kinds of delay between a node and the node it waited for."""


class GraphEdge(NamedTuple):
    """Constraint on a node: it begins at least `lag_ns` after the end of `source`, or its start. Source -1: the graph's start."""

    source: int
    from_end: bool
    lag_ns: int
    kind: Lag


def work_graph(trace: Trace, window: Window | None = None) -> WorkGraph:
    """Build the graph of a trace; of the device events that start in the window, if there is one."""
    start = column(trace.device_events.start_ns)
    inside = np.arange(len(start)) if window is None else np.flatnonzero((start >= window.start_ns) & (start < window.end_ns))
    if not len(inside):
        raise DataError(f"{trace.path}: no device event starts there, so there is no critical path")
    if len(inside) > MOST_EVENTS:
        raise DataError(
            f"{trace.path}: {len(inside)} device events are too many for the critical path, {MOST_EVENTS} at most: "
            "give a --window"
        )
    events = [trace.device_events[position] for position in inside.tolist()]
    begins = (events[0].start_ns, *(one.host.start_ns for one in events if one.host))
    begin = min(begins) if window is None else window.start_ns
    return WorkGraph(events, sorted(_moments(trace, events, begin)), begin)


def _moments(trace: Trace, events: Sequence[DeviceEvent], begin: int) -> Iterator[_Moment]:
    """Yield launch calls, copies that were waited for, and calls that wait."""
    calls = {(one.host.start_ns, one.host.end_ns) for one in events if one.host}
    yield from ((start, _LAUNCH, ()) for start, _ in calls if start >= begin)
    of_stream: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, one in enumerate(events):
        of_stream[one.device, one.stream].append(number)
        if one.kind == "memcpy" and one.host and begin <= one.end_ns <= one.host.end_ns:
            yield one.host.end_ns, _COPIED, (number,)
    queues = [_awaited(events, of_stream[stream]) for stream in sorted(of_stream)]
    stop = max(one.end_ns for one in events)
    for call in trace.waits:
        if begin <= call.start_ns and call.end_ns <= stop:
            yield call.start_ns, _LAUNCH, ()
            awaited = [queue(call.start_ns, call.end_ns) for queue in queues]
            known = [one for one in awaited if one is not None]
            if not _WHOLE_DEVICE.fullmatch(call.name):
                known = sorted(known, key=lambda one: events[one].end_ns)[-1:]
            yield call.end_ns, _RETURN, tuple(known)


def _awaited(events: Sequence[DeviceEvent], numbers: Sequence[int]) -> Callable[[int, int], int | None]:
    """Return a function that finds the event of one stream, whose events are in order of start, that a call waited for."""
    hosts = (events[number].host for number in reversed(numbers))
    earliest_from = list(accumulate((host.start_ns if host else -1 for host in hosts), min))[::-1]

    def find(begins: int, returned: int) -> int | None:
        """The last one launched before the call, if that had ended when it returned; else the last one that ended meanwhile."""
        place = bisect_left(earliest_from, begins) - 1
        if place < 0 or events[numbers[place]].end_ns <= returned:
            return None if place < 0 else numbers[place]
        while place >= 0 and events[numbers[place]].end_ns > begins:
            if events[numbers[place]].end_ns <= returned:
                return numbers[place]
            place -= 1
        return None

    return find


class WorkGraph:
    """Nodes in an order in which every edge leads forward, built one by one.

    Args:
        begin_ns: start of the graph: of the window, else of the first launch call or device event.

    Attributes:
        duration_ns: duration of each node; 0 for moments of the host.
        event: the device event of each node; `None` for a moment of the host.
        edges: constraints of each node; the first one decided when the node began, with its traced lag.
        launch_ns: usual time from a launch call to the start of an event that finds its stream free.
        gap_ns: usual gap between an event that was launched long before and the one before it in its stream.
    """

    def __init__(self, events: Sequence[DeviceEvent], moments: Sequence[_Moment], begin_ns: int) -> None:
        self._events, self.begin_ns = events, begin_ns
        self._bounds = list(_bounds(events))
        self.launch_ns, self.gap_ns = self._usual()
        self.start_ns, self.duration_ns, self.event = list[int](), list[int](), list[DeviceEvent | None]()
        self.edges = list[tuple[GraphEdge, ...]]()
        self._of_event, self._of_call = dict[int, int](), dict[int, int]()
        order = [(one.start_ns, _DEVICE, number) for number, one in enumerate(events)]
        order += [(at, rank, number) for number, (at, rank, _) in enumerate(moments)]
        previous = -1
        for node, (at, rank, number) in enumerate(sorted(order)):
            one = events[number] if rank == _DEVICE else None
            found = self._host_edges(moments[number], previous) if one is None else self._device_edges(number)
            self.edges.append(self._decided(at, found))
            self.start_ns.append(at)
            self.duration_ns.append(0 if one is None else one.end_ns - one.start_ns)
            self.event.append(one)
            if one is not None:
                self._of_event[number] = node
                continue
            previous = node
            if rank == _LAUNCH:
                self._of_call[at] = node

    def _usual(self) -> tuple[int, int]:
        """Return the usual launch latency and gap: medians over events whose stream was surely free, or surely busy."""
        called = [(one, one.host.start_ns, bounds) for one, bounds in zip(self._events, self._bounds, strict=True) if one.host]
        late = [(one.start_ns - at, last_end is None or last_end <= at) for one, at, (_, _, last_end, _) in called]
        every = [(delay, is_free) for delay, is_free in late if delay >= 0]
        latencies = [delay for delay, is_free in every if is_free]
        launch_ns = median_low(latencies) if latencies else min((delay for delay, _ in every), default=0)
        before = ((one, at, self._events[ended].end_ns) for one, at, (ended, *_) in called if ended is not None)
        gaps = [one.start_ns - end for one, at, end in before if at + launch_ns <= end]
        return launch_ns, median_low(gaps) if gaps else 0

    def _host_edges(self, moment: _Moment, previous: int) -> list[GraphEdge]:
        """Return the edges of a moment of the host. Threads of the host take turns."""
        at, rank, waits = moment
        if rank > _DEVICE:
            sources = previous, *(self._of_event[number] for number in waits)
            return [GraphEdge(source, True, 0, "synchronisation") for source in sources]
        return [GraphEdge(previous, True, at - self._since(previous, True), "host")]

    def _device_edges(self, number: int) -> list[GraphEdge]:
        one, (ended, last, _, other) = self._events[number], self._bounds[number]
        found = []
        if one.host and one.host.start_ns in self._of_call:
            found.append(GraphEdge(self._of_call[one.host.start_ns], True, self.launch_ns, "launch latency"))
        for earlier in dict.fromkeys(each for each in (ended, last) if each is not None):
            node, before = self._of_event[earlier], self._events[earlier]
            if before.end_ns <= one.start_ns:
                found.append(GraphEdge(node, True, self.gap_ns, "gap in a stream"))
            else:
                found.append(GraphEdge(node, False, one.start_ns - before.start_ns, "overlap in a stream"))
        if found and other is not None:
            explained = max(min(self._since(edge.source, edge.from_end) + edge.lag_ns, one.start_ns) for edge in found)
            if one.start_ns - explained > self.launch_ns and self._events[other].end_ns > explained:
                found.append(GraphEdge(self._of_event[other], True, self.gap_ns, "wait for another stream"))
        return found or [GraphEdge(-1, True, 0, "before the first launch")]

    def _since(self, source: int, from_end: bool) -> int:
        """Return the moment that the lag of an edge counts from."""
        if source < 0:
            return self.begin_ns
        return self.start_ns[source] + self.duration_ns[source] * from_end

    def _decided(self, at: int, edges: Sequence[GraphEdge]) -> tuple[GraphEdge, ...]:
        """Return the edges with their traced lags: the edge that decided comes first, with its exact lag."""
        most = [at - self._since(edge.source, edge.from_end) for edge in edges]
        left = [max(0, longest - edge.lag_ns) for longest, edge in zip(most, edges, strict=True)]
        place = left.index(min(left))
        others = (edge._replace(lag_ns=min(edge.lag_ns, longest)) for longest, edge in zip(most, edges, strict=True))
        return edges[place]._replace(lag_ns=most[place]), *(edge for i, edge in enumerate(others) if i != place)


_Bounds: TypeAlias = tuple[int | None, int | None, int | None, int | None]
"""Events that may delay an event: in its stream the one that ended last before it starts, the one that started last, and the end
of all of them; on other streams of its device the event that ended last before it starts."""


def _bounds(events: Sequence[DeviceEvent]) -> Iterator[_Bounds]:
    """Yield the bounds of each event; the events are in order of start."""
    running: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    ended_on, last, last_end = dict[tuple[int, int], int](), dict[tuple[int, int], int](), dict[tuple[int, int], int]()
    for number, one in enumerate(events):
        for stream, open_ in running.items():
            while open_ and open_[0][0] <= one.start_ns:
                ended_on[stream] = heapq.heappop(open_)[1]
        stream = one.device, one.stream
        others = [each for other, each in ended_on.items() if other != stream and other[0] == stream[0]]
        elsewhere = max(others, key=lambda each: (events[each].end_ns, each), default=None)
        yield ended_on.get(stream), last.get(stream), last_end.get(stream), elsewhere
        heapq.heappush(running[stream], (one.end_ns, number))
        last[stream] = number
        last_end[stream] = max(one.end_ns, last_end.get(stream, one.end_ns))


# Longest chain through a trace, and the length of the trace if some of its work took no time.

KERNEL: Final = "kernel"
"""Value of `PathPartRow.kind` and `WhatIfRow.kind` for device events of one normalised name; other kinds are those of `Lag`."""
KIND: Final = "kind of kernel"
"""Value of `WhatIfRow.kind` for all device events of one kind of work."""
_KINDS: Final = {"comm": "communication", "memcpy": "copies", "memset": "memsets"}
_KERNELS: Final = 8
"""Most kernels with a what-if of their own: those with the most time on the path."""
_TIMES: Final = partial(Number, digits=3, unit="x")
_NOTHING_LEFT: Final = "nothing is left"


def _kernel_or_lag(row: PathPartRow | WhatIfRow) -> Cell:
    return Code(row.name) if row.kind == KERNEL else Text(row.kind if isinstance(row, PathPartRow) else row.said())


def _kind_or_lag(row: PathPartRow | WhatIfRow) -> str:
    return row.kind if row.kind in (KERNEL, KIND) else "lag"


class CriticalPathRow(DocumentPart, frozen=True, kw_only=True):
    """Critical path of one trace: the longest chain through host, queue and devices."""

    trace: A[str, col("label of the trace, as in `files`")]
    begin_ns: A[int, col("start on the clock of the trace: the first launch call or device event, or start of the window")]
    duration_ns: A[int, col("time from `begin_ns` to the end of the last device event")]
    events: A[int, col("number of device events")]
    inferred_events: A[int, col("number of device events that are assumed to have waited for another stream")]
    usual_launch_ns: A[int, col("median latency of launches to a free stream")]
    usual_gap_ns: A[int, col("median gap between queued events of a stream")]


class PathPartRow(DocumentPart, frozen=True, kw_only=True):
    """One part of a critical path; the parts add up to its duration."""

    trace: A[str, col("label of the trace, as in `files`")]
    name: A[str, col("name of the kernel; empty for a delay", "on the path", get=_kernel_or_lag)]
    kind: A[str, col("`kernel`, or the kind of delay, e.g. `host`; docs/traces.md explains them", "kind", get=_kind_or_lag)]
    path_ns: A[int, col("time on the critical path", "time", ExactTime, total=sum, of={"share": "duration_ns"})]
    n: A[int, col("number of occurrences on the path", "times", Count, total=sum)]


class WhatIfRow(DocumentPart, frozen=True, kw_only=True):
    """Predicted duration of one trace if one kernel, kind of kernel or delay took no time."""

    trace: A[str, col("label of the trace, as in `files`")]
    name: A[str, col("name of it; empty for a delay", "if this took no time", get=_kernel_or_lag)]
    kind: A[str, col("`kernel`, `kind of kernel`, `host` or `launch latency`", "kind", get=_kind_or_lag)]
    removed_ns: A[int, term("total time of this work in the trace, on the critical path and off it", "removed", ExactTime)]
    duration_ns: A[int, term("predicted duration without this work", "the trace takes", ExactTime)]
    ratio: A[float | None, term("duration with it / without it; null: nothing is left", "faster", _TIMES, missing=_NOTHING_LEFT)]

    def said(self) -> str:
        name = "other kernels" if self.name == "other" and self.kind != KERNEL else self.name
        return name or ("the work of the host between launches" if self.kind == "host" else self.kind)


CriticalPath: TypeAlias = tuple[CriticalPathRow, tuple[PathPartRow, ...], tuple[WhatIfRow, ...]]
"""The path, its parts, largest first, and the trace without some of its work, shortest first."""


def critical_path(trace: Trace, window: Window | None = None) -> CriticalPath:
    """Return the critical path of a trace that was read with details, or of the device events that start in a window.

    Raises:
        DataError: it has no device events there, or too many.
    """
    graph = work_graph(trace, window)
    duration = _length(graph, graph.start_ns, graph.duration_ns)
    parts = _parts(graph, trace.label)
    path = CriticalPathRow(
        trace=trace.label,
        begin_ns=graph.begin_ns,
        duration_ns=duration,
        events=sum(event is not None for event in graph.event),
        inferred_events=sum(edge.kind == "wait for another stream" for edges in graph.edges for edge in edges),
        usual_launch_ns=graph.launch_ns,
        usual_gap_ns=graph.gap_ns,
    )
    found = _what_ifs(graph, parts, trace, duration)
    return path, parts, tuple(sorted(found, key=lambda one: (one.duration_ns, one.kind, one.name)))


def simulate(graph: WorkGraph, duration_ns: Sequence[int], free: Lag | None = None) -> list[int]:
    """Return the start of every node, with other durations; lags of the kind that is free are 0."""
    starts: list[int] = []
    for edges in graph.edges:
        ready = []
        for source, from_end, lag, kind in edges:
            wait = 0 if kind == free else lag
            if source < 0:
                ready.append(graph.begin_ns + wait)
            elif from_end:
                ready.append(starts[source] + duration_ns[source] + wait)
            else:  # it ran beside its source, which may be shorter now
                ready.append(starts[source] + min(wait, duration_ns[source]))
        starts.append(max(ready))
    return starts


def _length(graph: WorkGraph, starts: Sequence[int], durations: Sequence[int]) -> int:
    ends = [start + took for start, took, event in zip(starts, durations, graph.event, strict=True) if event]
    return max(ends) - graph.begin_ns


def _parts(graph: WorkGraph, label: str) -> tuple[PathPartRow, ...]:
    """Follow the path back from the event that ends last."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    last = [node for node, event in enumerate(graph.event) if event]
    node, from_end = max(last, key=lambda each: (graph.start_ns[each] + graph.duration_ns[each], -each)), True
    while node >= 0:
        if from_end and graph.event[node]:
            found[KERNEL, _group(graph.event[node])].append(graph.duration_ns[node])
        edge = graph.edges[node][0]
        overlaps = edge.kind == "overlap in a stream"
        found[(KERNEL, _group(graph.event[edge.source])) if overlaps else (edge.kind, "")].append(edge.lag_ns)
        node, from_end = edge.source, edge.from_end
    parts = [
        PathPartRow(trace=label, kind=kind, name=name, path_ns=sum(times), n=len(times))
        for (kind, name), times in found.items()
        if any(times)
    ]
    return tuple(sorted(parts, key=lambda part: (-part.path_ns, part.kind, part.name)))


def _group(event: DeviceEvent | None) -> str:
    return kernel_name(event.name) if event else ""


def _what_ifs(graph: WorkGraph, parts: Sequence[PathPartRow], trace: Trace, duration: int) -> Iterator[WhatIfRow]:
    """Yield the trace without host time, without launch latency, without each kind of work, without the largest kernels."""
    took = graph.duration_ns

    def row(kind: str, name: str, removed_ns: int, left: Sequence[int], free: Lag | None = None) -> WhatIfRow:
        left_ns = _length(graph, simulate(graph, left, free), left)
        ratio = duration / left_ns if left_ns else None
        told = {"trace": trace.label, "kind": kind, "name": name}
        return WhatIfRow(**told, removed_ns=removed_ns, duration_ns=left_ns, ratio=ratio)

    lags: tuple[Lag, Lag] = ("host", "launch latency")
    for kind in lags:
        yield row(kind, "", sum(edges[0].lag_ns for edges in graph.edges if edges[0].kind == kind), took, kind)
    work_of = {name: kernel_part(name).removesuffix(" kernels") for name in trace.device_events.names}
    names = [part.name for part in parts if part.kind == KERNEL][:_KERNELS]
    groups = [_group(event) for event in graph.event]
    works = [(_KINDS.get(event.kind) or work_of[event.name]) if event else "" for event in graph.event]
    for what, labels, wanted in ((KIND, works, sorted(set(works) - {""})), (KERNEL, groups, names)):
        for name in wanted:
            left = [0 if label == name else ns for label, ns in zip(labels, took, strict=True)]
            yield row(what, name, sum(took) - sum(left), left)
