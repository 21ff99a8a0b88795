"""Launches of device events: delays, queue length, and the gaps between kernels."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.activity import (
    BUSY,
    CAUSES,
    HOST_LATE,
    LAUNCH_LATENCY,
    PROFILER_OVERHEAD,
    QUEUED,
    UNLINKED,
    Activity,
    DeviceView,
    EventView,
    Slices,
    activity,
    joined,
)
from strobe.perf.analysis.device.intervals import (
    Covered,
    Distribution,
    Grouped,
    Intervals,
    Ints,
    column,
    grouped,
    overlaps,
    totals,
)
from strobe.perf.analysis.device.kernels import kernel_name
from strobe.perf.trace import columns
from strobe.perf.trace.columns import blocks, different
from strobe.perf.trace.events import DEVICE_KINDS, NO_CORRELATION, OF_KERNEL, Trace
from strobe.perf.trace.join import of_several

# Launches of device events: delays, causes of idle time, and signs of events that the trace lost.
#
# `delay_ss = device start - start of the launch call`, `delay_es = device start - end of the launch call`; a negative delay is
# legal (a kernel may start before the call that launched it returns) and is kept. Events without a known launch call have none.

LaunchKind = Literal["single", "graph-first", "graph-rest"]
LAUNCH_KINDS: Final[tuple[LaunchKind, ...]] = ("single", "graph-first", "graph-rest")
MIN_IDLE_SHARE: Final = 0.05
"""Least idle share of the span for a verdict other than `busy`."""
MAX_PROMPT_NS: Final = 20_000
"""Longest launch delay that means an empty queue, ns."""
_GRAPH: Final = re.compile("GraphLaunch")
_PARTS: Final = (re.compile("StreamBeginCapture"), re.compile("StreamEndCapture"), _GRAPH)

Verdict = Literal[
    "busy", "host-bound", "host late, slow launches", "launch latency", "queued", "profiler overhead", "unknown", "mixed"
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Delays:
    """Launch delays of some device events.

    Args:
        start_to_start: from the start of the launch call to the start on the device.
        end_to_start: from the end of the launch call.
        num_negative_ss: of the former, how many are negative: clocks or correlation are wrong.
        num_negative_es: of the latter: the event started while the call still ran.
    """

    start_to_start: Distribution
    end_to_start: Distribution
    num_negative_ss: int
    num_negative_es: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRow:
    """Launch calls of one name whose device events lie in the window.

    Args:
        name: such as `cudaLaunchKernel`.
        n: number of calls.
        num_events: device events they launched.
        host: durations of the calls.
        delays: delays of their first device events in the window; of all of them if the first ones lie outside.
    """

    name: str
    n: int
    num_events: int
    host: Distribution
    delays: Delays


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Launches of the events that start in a window of one device.

    Args:
        device: its number.
        num_events: events that start in the window.
        num_unlinked: of these, without a known launch call.
        kinds: delays of events launched one by one, of the first event of a graph launch, and of its others: those wait for the
            graph's own events, not for the host. A graph is a call by that name or one that launched several events.
        calls: by name of the launch call, most events first.
        num_uncorrelated: events that carry no correlation, so that no call can answer for them; they are among the unlinked.
        verdict: verdict on the idle time, see `judge_idle`.
        activity: account of the same window; the verdict rests on its idle causes and `late_delay_ns`. Delays of other launches
            tell how long the queue was, not how fast a launch is.
    """

    device: int
    num_events: int
    num_unlinked: int
    num_uncorrelated: int
    kinds: Mapping[LaunchKind, Delays]
    calls: tuple[CallRow, ...]
    verdict: Verdict
    activity: Activity


def launch(view: DeviceView, is_graph: NDArray[np.bool_] | None = None) -> Launch:
    """Analyse the launches of one device's events: delays, calls by name, and the cause of idle time.

    Args:
        view: the device.
        is_graph: result of `graph_calls` for its trace; computed if not given.
    """
    calls = _LaunchCalls(view, graph_calls(view.trace) if is_graph is None else is_graph)
    names = len(calls.hosts.names)
    by_kind = calls.delays(lambda part, rest: np.where(rest, 2, 1) * calls.is_graph[part.host], len(LAUNCH_KINDS))
    by_name = calls.delays(lambda part, rest: 2 * calls.name[part.host] + rest, 2 * names)
    took = grouped(calls.durations, names)
    rows = []
    for number, host in enumerate(took):
        if host is not None:
            first, rest = by_name[2 * number : 2 * number + 2]
            delays = first or rest
            assert delays is not None
            num_events = sum(found.start_to_start.n for found in (first, rest) if found is not None)
            rows.append(CallRow(name=calls.hosts.names[number], n=host.n, num_events=num_events, host=host, delays=delays))
    kinds = {kind: found for kind, found in zip(LAUNCH_KINDS, by_kind, strict=True) if found is not None}
    done = activity(view)
    return Launch(
        device=view.device,
        num_events=calls.num_events,
        num_unlinked=calls.num_unlinked,
        num_uncorrelated=calls.num_uncorrelated,
        kinds=kinds,
        calls=tuple(sorted(rows, key=lambda row: (-row.num_events, row.name))),
        verdict=judge_idle(done),
        activity=done,
    )


class _LaunchCalls:
    """Events that start in the window of a view, with their launch calls."""

    def __init__(self, view: DeviceView, is_graph: NDArray[np.bool_]) -> None:
        self._view, self.is_graph = view, is_graph
        self.hosts = view.trace.device_events.hosts
        self.name, self.begin, self.end = np.asarray(self.hosts.name), column(self.hosts.start_ns), column(self.hosts.end_ns)
        self.num_events = self.num_unlinked = self.num_uncorrelated = 0
        used = [np.empty(0, np.int64)]
        for work in self._starting():
            linked = work.host >= 0
            self.num_events += len(linked)
            self.num_unlinked += int((~linked).sum())
            self.num_uncorrelated += int((work.host == NO_CORRELATION).sum())
            used.append(different(work.host[linked]))
        self._used = different(np.concatenate(used))

    def _starting(self) -> Iterator[EventView]:
        view = self._view
        for _, work in view.work.parts():
            start = work.start
            last = start <= view.end_ns if view.window is None else start < view.end_ns
            yield work.at(np.flatnonzero((start >= view.begin_ns) & last))

    def delays(self, group: Callable[[EventView, NDArray[np.bool_]], NDArray[np.integer]], num: int) -> list[Delays | None]:
        """Return the delays of each group of linked events.

        Args:
            group: gives the group of some events, and is told which of them are not the first of their call.
        """
        negative = np.zeros((2, num), np.int64)

        def since(edge: Ints) -> Iterator[Grouped]:
            for work in self._starting():
                linked = work.at(np.flatnonzero(work.host >= 0))
                yield linked.start - edge[linked.host], group(linked, linked.ordinal > 0)

        sides = [grouped(lambda edge=edge: since(edge), num) for edge in (self.begin, self.end)]  # type: ignore[misc]
        for row, edge in zip(negative, (self.begin, self.end), strict=True):
            for delay, which in since(edge):
                row += np.bincount(which[delay < 0], minlength=num)
        return [
            None
            if ss is None or es is None
            else Delays(start_to_start=ss, end_to_start=es, num_negative_ss=negative_ss, num_negative_es=negative_es)
            for ss, es, (negative_ss, negative_es) in zip(*sides, negative.T.tolist(), strict=True)
        ]

    def durations(self) -> Iterator[Grouped]:
        """Yield durations of the calls that launched one of the events, grouped by name."""
        for block in blocks(len(self._used)):
            used = self._used[block]
            yield self.end[used] - self.begin[used], self.name[used]


def judge_idle(done: Activity) -> Verdict:
    """Return a verdict on what keeps a device from being busy.

    `busy`: idle for less than `MIN_IDLE_SHARE` of the span. Otherwise the cause of more than half of the idle time: `host-bound`
    if it is the host being late and what ends such a gap typically starts within `MAX_PROMPT_NS` of its launch; `host late, slow
    launches` if it starts later than that; `launch latency`, `queued`, `profiler overhead`, or `unknown` (the trace does not hold
    the launches). `mixed`: none has more than half.

    Args:
        done: busy and idle time.
    """
    if done.idle_ns < MIN_IDLE_SHARE * done.span_ns or not done.idle_ns:
        return "busy"
    cause = max(done.idle, key=lambda name: done.idle[name])
    if 2 * done.idle[cause] <= done.idle_ns:
        return "mixed"
    if cause == HOST_LATE:
        assert done.late_delay_ns is not None, "the host was late and nothing ended a gap"
        return "host-bound" if done.late_delay_ns < MAX_PROMPT_NS else "host late, slow launches"
    verdicts: dict[str, Verdict] = {
        LAUNCH_LATENCY: "launch latency", QUEUED: "queued", PROFILER_OVERHEAD: "profiler overhead", UNLINKED: "unknown"
    }  # fmt: skip
    return verdicts[cause]


def graph_calls(trace: Trace) -> NDArray[np.bool_]:
    """Mark launch calls that launched a graph: by their name, or because they launched several events."""
    hosts = trace.device_events.hosts
    several = of_several(np.asarray(trace.device_events.host), len(hosts))
    named = np.array([bool(_GRAPH.search(name)) for name in hosts.names], np.bool_)
    return several | named[np.asarray(hosts.name)] if len(hosts) else several


def captured_calls(trace: Trace) -> Iterator[Ints]:
    """Yield the launches of each capture of a graph, as positions in `trace.unanswered`: what the host launched meanwhile."""
    calls, thread = trace.unanswered, np.asarray(trace.unanswered.thread)
    begins, ends, graphs = (np.array([pattern.search(name) is not None for name in calls.names] or [False]) for pattern in _PARTS)
    of_call, rows = np.asarray(calls.name), np.arange(len(calls))
    if not len(calls):
        return
    launches = ~(begins | ends | graphs)[of_call]
    last = np.flatnonzero(ends[of_call])
    for row in np.flatnonzero(begins[of_call]).tolist():
        end = next((other for other in last[np.searchsorted(last, row) :].tolist() if thread[other] == thread[row]), row)
        yield np.flatnonzero(launches & (rows > row) & (rows < end))


ShortGraph: TypeAlias = tuple[str, str, int, int, tuple[int, ...]]
"""Launches of a graph that recorded fewer events than others of it: name of the launch call and of the first event, launches of
the graph, events of the others, and how many events each of these recorded, the fewest first.

A trace does not name the graph that a call launches. Launches with the same first event and the same number of events are taken
for one graph, since two launches rarely lose equally many events. A single launch with fewer events is taken for one of the next
larger graph, if its events are a subset of that graph's.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Integrity:
    """Signs that a trace lacks launched work or records it wrongly. The profiler itself reports none of them.

    Args:
        unanswered: launch calls by name: how many there were and how many no device event answers to. Calls that only capture
            a graph are among them if the trace was read without details, or does not say when captures begin.
        short_graphs: graph launches with fewer events than most launches of the same graph.
        past_end_ns: by how much the last device event ends after the recorded window; 0 if it does not or the trace names no end.
        impossible: streams whose durations add up to more than the time from their first start to their last end, as `(device,
            stream, excess in nanoseconds)`: more than overlap within a stream explains if the excess is large.
    """

    unanswered: Mapping[str, tuple[int, int]]
    short_graphs: tuple[ShortGraph, ...]
    past_end_ns: int
    impossible: tuple[tuple[int, int, int], ...]


def integrity(trace: Trace, views: Sequence[DeviceView]) -> Integrity:
    """Look for signs of loss in a whole trace.

    Args:
        trace: the trace.
        views: its devices.
    """
    last = max((int(view.work.end.max()) for view in views), default=0)
    calls = trace.unanswered
    rows = {row for mine in captured_calls(trace) for row in mine.tolist()}
    captured = Counter(calls.names[calls.name[row]].partition(OF_KERNEL)[0] for row in rows)
    unanswered = {name: (n, missing - captured[name]) for name, (n, missing) in sorted(trace.launched.items())}
    return Integrity(
        unanswered={name: counts for name, counts in unanswered.items() if counts[1] > 0},
        short_graphs=tuple(_short_graphs(trace)),
        past_end_ns=0 if trace.window_end_ns is None or not views else max(0, last - trace.window_end_ns),
        impossible=tuple(found for view in views for found in _impossible(view)),
    )


def _short_graphs(trace: Trace) -> list[ShortGraph]:
    launches, lone = _graph_launches(trace), []
    for start, by_size in launches.items():
        whole = sorted(size for size, calls in by_size.items() if len(calls) > 1)
        for size, (call, *more) in by_size.items():
            larger = bisect_right(whole, size)
            if not more and larger < len(whole):
                lone.append((start, whole[larger], size, call))
    likes = {(start, size): launches[start][size] for start, size, *_ in lone}
    names = _names_of(trace, np.array(sorted({call for *_, call in lone} | {calls[0] for calls in likes.values()}), np.int32))
    found = []
    for (start, num_nodes), calls in sorted(likes.items()):
        few = [(size, call) for *like, size, call in lone if like == [start, num_nodes] and names[call] <= names[calls[0]]]
        if few:
            found.append((*start, len(calls) + len(few), num_nodes, tuple(sorted(size for size, _ in few))))
    return found


def _graph_launches(trace: Trace) -> dict[tuple[str, str], dict[int, list[int]]]:
    """Return graph launches by call name and first event's name, then by number of recorded events."""
    events = trace.device_events
    host, hosts = np.asarray(events.host), events.hosts
    graphs = np.flatnonzero(graph_calls(trace)).astype(np.int32)
    nodes, first = np.zeros(len(graphs), np.int32), np.full(len(graphs), -1, np.int64)
    for block in blocks(len(host) if len(graphs) else 0):
        place = np.minimum(np.searchsorted(graphs, host[block]), len(graphs) - 1)
        mine = graphs[place] == host[block]
        np.add.at(nodes, place[mine], 1)
        heads = mine & (np.asarray(events.ordinal)[block] == 0)
        first[place[heads]] = np.asarray(events.name)[block][heads]
    launches: dict[tuple[str, str], dict[int, list[int]]] = {}
    for call, size, name in zip(graphs.tolist(), nodes.tolist(), first.tolist(), strict=True):
        if name >= 0:
            start = hosts.names[hosts.name[call]], events.names[name]
            launches.setdefault(start, {}).setdefault(size, []).append(call)
    return launches


def _names_of(trace: Trace, calls: NDArray[np.int32]) -> dict[int, Counter[int]]:
    """Count the events of each name that some launch calls launched."""
    names = {int(call): Counter[int]() for call in calls}
    events, host = trace.device_events, np.asarray(trace.device_events.host)
    for block in blocks(len(host) if names else 0):
        mine = np.isin(host[block], calls)
        for call, name in zip(host[block][mine].tolist(), np.asarray(events.name)[block][mine].tolist(), strict=True):
            names[call][name] += 1
    return names


def _impossible(view: DeviceView) -> list[tuple[int, int, int]]:
    spans: dict[int, tuple[int, int, int]] = {}  # by stream: sum of durations, first start, last end
    for _, work in view.work.parts():
        stream, start, end = work.stream, work.start, work.end
        for number in different(stream).tolist():
            mine = stream == number
            total, first, last = spans.get(number, (0, int(start[mine][0]), int(end[mine][0])))
            spans[number] = total + int((end - start)[mine].sum()), first, max(last, int(end[mine].max()))
    excess = {number: total - (last - first) for number, (total, first, last) in sorted(spans.items())}
    return [(view.device, number, ns) for number, ns in excess.items() if ns > 0]


# Queue length of a device: events whose launch call has started and that have not started themselves.

LENGTHS: Final = ((0, 0), (1, 3), (4, 31), (32, None))
"""Bins of queue length for plots: shortest and longest length of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    """Queue of one stream, or of a whole device.

    Args:
        stream: its number; `None` for all streams of the device together.
        queued: events that waited in it during the window; one that starts with its call or before it never does.
        unlinked: events whose launch call is not known; they are not counted.
        span_ns: length of the window.
        empty_ns: time with a length of 0.
        longest: the largest length.
        median: the length that it has for half of the time at most.
        total_ns: sum of the times that events waited within the window, which is also the length added up over time.
        edges_ns: bins of equal length, from the start of the window.
        lengths_ns: for each of `LENGTHS`, the time in each bin.
    """

    stream: int | None
    queued: int
    unlinked: int
    span_ns: int
    empty_ns: int
    longest: int
    median: int
    total_ns: int
    edges_ns: tuple[int, ...]
    lengths_ns: tuple[tuple[int, ...], ...]

    @property
    def mean(self) -> float:
        """Mean length over time."""
        return self.total_ns / self.span_ns if self.span_ns else 0.0


def queues(view: DeviceView, num_bins: int = 1) -> tuple[Queue, ...]:
    """Return the queue of a device and, if it has several streams, of each stream by number.

    Args:
        view: the device during a window.
        num_bins: bins of `lengths_ns`.
    """
    streams = np.unique(view.work.stream).tolist()
    chosen: list[int | None] = [None, *streams] if len(streams) > 1 else [None]
    return tuple(_queue(view, stream, num_bins) for stream in chosen)


def _queue(view: DeviceView, stream: int | None, num_bins: int) -> Queue:
    waits = _Waits(view, stream)
    edges = view.begin_ns + np.arange(num_bins + 1) * view.span_ns // num_bins
    binned = np.zeros((len(LENGTHS), num_bins), np.int64)
    spent: dict[int, int] = defaultdict(int)
    for moments, stop, lengths in waits.stretches():
        took = np.diff(np.append(moments, stop))
        some, which = np.unique(lengths, return_inverse=True)
        for length, ns in zip(some.tolist(), totals(took, which, len(some)).tolist(), strict=True):
            spent[length] += ns
        for place, bounds in enumerate(LENGTHS):
            binned[place] += _binned(moments, took, _within(lengths, *bounds), np.clip(edges, moments[0], stop))
    there = sorted((length, ns) for length, ns in spent.items() if ns)
    return Queue(
        stream=stream,
        queued=waits.num,
        unlinked=waits.unlinked,
        span_ns=view.span_ns,
        empty_ns=spent[0],
        longest=there[-1][0] if there else 0,
        median=_median(there),
        total_ns=waits.total_ns,
        edges_ns=tuple((edges - view.begin_ns).tolist()),
        lengths_ns=tuple(tuple(own.tolist()) for own in binned),
    )


class _Waits:
    """The events that waited in a queue: 4 bytes for each event of the device.

    Args:
        view: the device during a window.
        stream: the queue of this stream; `None` for all.
    """

    def __init__(self, view: DeviceView, stream: int | None) -> None:
        self._view, self._stream = view, stream
        self._calls = np.asarray(view.trace.device_events.hosts.start_ns)
        self.unlinked = self.total_ns = self.num = 0
        hosts = np.empty(len(view.work), np.int32)
        for _, part in view.work.parts():
            host, left, right = self._waited(part)
            hosts[self.num : self.num + len(host)] = host
            self.num += len(host)
            self.total_ns += int((right - left).sum())
            inside = (part.host < 0) & (part.start < view.end_ns) & (part.end > view.begin_ns)
            self.unlinked += int(inside.sum() if stream is None else (inside & (part.stream == stream)).sum())
        self._hosts = hosts[: self.num]
        self._hosts.sort()  # calls that were read are in order of start
        if (np.diff(self._calls) < 0).any():
            self._hosts = self._hosts[np.argsort(self._calls[self._hosts], kind="stable")]

    def _waited(self, part: EventView) -> tuple[NDArray[np.int32], Ints, Ints]:
        """Select the events that waited in the window; return their calls and the start and end of each wait."""
        known = part.host >= 0 if self._stream is None else (part.host >= 0) & (part.stream == self._stream)
        host = part.host[known]
        left, right = self._called(host), np.minimum(part.start[known], self._view.end_ns)
        waited = left < right
        return host[waited], left[waited], right[waited]

    def _called(self, host: NDArray[np.int32]) -> Ints:
        called: Ints = np.maximum(self._calls[host], self._view.begin_ns)
        return called

    def _started(self) -> Iterator[Ints]:
        """Yield the ends of the waits, in order, in parts."""
        for _, part in self._view.work.parts():
            _, _, right = self._waited(part)
            if len(right):
                yield right

    def stretches(self) -> Iterator[tuple[Ints, int, Ints]]:
        """Yield the moments at which the queue changes, in parts, the end of the last one, and the length from each on."""
        now, length, i, none = self._view.begin_ns, 0, 0, np.empty(0, np.int64)
        following = self._started()
        started = next(following, none)
        while i < self.num or len(started):
            called = self._called(self._hosts[i : i + columns.BLOCK])
            limits = [int(called[-1])] if i + len(called) < self.num else []
            limits += [int(started[-1])] if len(started) else []  # others may follow either
            stop = min(limits) if limits else int(called[-1])
            more = int(np.searchsorted(called, stop, "right")), int(np.searchsorted(started, stop, "right"))
            moments = np.concatenate((np.array([now]), called[: more[0]], started[: more[1]]))
            change = np.repeat(np.array([0, 1, -1]), (1, *more))
            order = np.argsort(moments, kind="stable")
            lengths = length + np.cumsum(change[order])
            yield moments[order], stop, lengths
            now, length, i, started = stop, int(lengths[-1]), i + more[0], started[more[1] :]
            if not len(started):
                started = next(following, none)
        yield np.array([now]), self._view.end_ns, np.array([length])


def _median(spent: Sequence[tuple[int, int]]) -> int:
    """Return the smallest length that the queue does not exceed for half of the time."""
    whole, reached = sum(ns for _, ns in spent), 0
    for length, ns in spent:
        reached += ns
        if 2 * reached >= whole:
            return length
    return 0


def _within(lengths: Ints, low: int, high: int | None) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = lengths >= low
    return found if high is None else found & (lengths <= high)


def _binned(moments: Ints, took: Ints, chosen: NDArray[np.bool_], edges: Ints) -> Ints:
    """Return the time of the chosen steps in each bin between two edges."""
    own = np.where(chosen, took, 0)
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(own)))
    step = np.searchsorted(moments, edges, "right") - 1
    reached: Ints = before[step] + np.where(chosen[step], np.minimum(edges - moments[step], own[step]), 0)
    return np.diff(reached)


# Gaps between kernels of a device, by the kernels before and after.
#
# A gap is a stretch in which no kernel (compute or communication) runs on any stream of the device, between one that ended and
# one that starts. Memory copies and memsets do not end a gap: what they take of it is listed beside the idle causes, so that
#
#     sum of gaps = idle in them + copies in them + memsets in them
#
# exactly, and `kernels + gaps + head + tail = span`, where `kernels` is the union of kernel time, `head` what lies before the
# first kernel and `tail` what lies after the last one. Of several kernels that end together, the one that started last gives the
# gap its name, of several that start together the longest. Where copies and memsets overlap inside a gap, the priority of the
# view decides what owns the time. At the edge of a window a gap is cut.

_DEVICE_TO_DEVICE: Final = re.compile(r"DtoD|Device -> Device|DeviceToDevice")
_PEER: Final = re.compile(r"PtoP|Peer")
_COLUMNS: Final = (*CAUSES, "memset", "dtod", "other_copies")


@dataclass(frozen=True, kw_only=True, slots=True)
class GapRow:
    """All gaps between a kernel of one group and a kernel of another.

    Args:
        before: group of the kernel that ended.
        after: group of the kernel that starts.
        gaps: their lengths.
        idle: time in them by cause, one for each of `idle.CAUSES`.
        num_dtod: device-to-device copies that ran in them.
        dtod_ns: time of these, inside the gaps.
        other_copy_ns: time of other copies, inside the gaps.
        memset_ns: time of memsets, inside the gaps.
    """

    before: str
    after: str
    gaps: Distribution
    idle: Mapping[str, int]
    num_dtod: int
    dtod_ns: int
    other_copy_ns: int
    memset_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GapTable:
    """The gaps of one device.

    Args:
        device: its number.
        rows: by descending sum.
        span_ns: length of the window.
        kernel_ns: union of kernel time, compute and communication.
        gap_ns: sum of all gaps.
        head_ns: from the start of the window to the first kernel.
        tail_ns: from the end of the last kernel to the end of the window.
    """

    device: int
    rows: tuple[GapRow, ...]
    span_ns: int
    kernel_ns: int
    gap_ns: int
    head_ns: int
    tail_ns: int


def gap_table(view: DeviceView) -> GapTable:
    """Tabulate the gaps between the kernels of one device."""
    begin, stop = view.begin_ns, view.end_ns
    groups, of_name = _groups(view)
    found = _FoundGaps(view, of_name, len(groups))
    pairs = np.array(sorted(found.spent), np.int64)
    lengths = grouped(lambda: found.lengths(pairs), len(pairs))
    rows, sums_ns = [], 0
    for number, gaps in zip(pairs.tolist(), lengths, strict=True):
        columns = found.spent[number].tolist()
        assert gaps is not None and gaps.sum_ns == sum(columns), "a gap does not add up"
        took = dict(zip(_COLUMNS, columns, strict=True))
        sums_ns += gaps.sum_ns
        rows.append(
            GapRow(
                before=groups[number // len(groups)],
                after=groups[number % len(groups)],
                gaps=gaps,
                idle={cause: took[cause] for cause in CAUSES},
                num_dtod=found.copies[number],
                dtod_ns=took["dtod"],
                other_copy_ns=took["other_copies"],
                memset_ns=took["memset"],
            )
        )
    head = stop - begin if found.first_ns is None else min(max(found.first_ns - begin, 0), stop - begin)
    return GapTable(
        device=view.device,
        rows=tuple(sorted(rows, key=lambda row: (-row.gaps.sum_ns, row.before, row.after))),
        span_ns=stop - begin,
        kernel_ns=found.kernel_ns,
        gap_ns=sums_ns,
        head_ns=head,
        tail_ns=stop - begin - found.kernel_ns - sums_ns - head,
    )


def _groups(view: DeviceView) -> tuple[list[str], Ints]:
    """Return the groups, and the group of each name."""
    ids: dict[str, int] = {}
    of_name = [ids.setdefault(kernel_name(name).group, len(ids)) for name in view.trace.device_events.names]
    return list(ids), np.array(of_name, np.int64)


class _FoundGaps:
    """Totals of the gaps of a device, collected in parts.

    `spent` is the time in the gaps of each pair of groups by `_COLUMNS`, `copies` the number of device-to-device copies in them.
    """

    def __init__(self, view: DeviceView, of_name: Ints, num_groups: int) -> None:
        self._view, self._of_name, self._num_groups = view, of_name, num_groups
        names = view.trace.device_events.names
        inner = [bool(_DEVICE_TO_DEVICE.search(name)) and not _PEER.search(name) for name in names]
        self._inner = np.array(inner, np.bool_)
        self.spent: dict[int, Ints] = {}
        self.copies: Counter[int] = Counter()
        self.first_ns: int | None = None
        slices = _Ahead(view.stretches())
        for gaps, pair in self._gaps():
            if len(pair):
                self._add(gaps, pair, slices.until(int(gaps.end[-1])))
        covered = Covered()
        for kernels in self._kernels():
            if self.first_ns is None and len(kernels):
                self.first_ns = int(kernels.start[0])
            covered.add(*(np.clip(edge, view.begin_ns, view.end_ns) for edge in (kernels.start, kernels.end)))
        self.kernel_ns = covered.total_ns

    def lengths(self, pairs: Ints) -> Iterator[Grouped]:
        """Yield the lengths of the gaps, and the position of each one's pair in `pairs`."""
        for gaps, pair in self._gaps():
            yield gaps.end - gaps.start, np.searchsorted(pairs, pair)

    def _kernels(self) -> Iterator[EventView]:
        for _, work in self._view.work.parts():
            kind = work.kind
            is_kernel = (kind == DEVICE_KINDS.index("kernel")) | (kind == DEVICE_KINDS.index("comm"))
            yield work.at(np.flatnonzero(is_kernel & (work.end > work.start)))

    def _gaps(self) -> Iterator[tuple[Intervals, Ints]]:
        """Yield the gaps inside the window, each with its pair: group before times the number of groups, plus group after."""
        reached: int | None = None
        before = 0  # group of the kernel that reached so far
        for kernels in self._kernels():
            if not len(kernels):
                continue
            start, end, group = kernels.start, kernels.end, self._of_name[kernels.name]
            if reached is None:
                reached = int(start[0])
            ends, of_end = np.append(reached, end), np.append(before, group)
            far = np.maximum.accumulate(ends)
            latest = np.maximum.accumulate(np.where(ends == far, np.arange(len(ends)), 0))
            left, right = np.maximum(far[:-1], self._view.begin_ns), np.minimum(start, self._view.end_ns)
            some = (start > far[:-1]) & (right > left)
            pair = of_end[latest[:-1]] * self._num_groups + group
            yield Intervals(left[some], right[some]), pair[some]
            reached, before = int(far[-1]), int(of_end[latest[-1]])

    def _add(self, gaps: Intervals, pair: Ints, slices: Slices) -> None:
        found = overlaps(Intervals(slices.start, slices.end), gaps)
        busy = slices.cause == BUSY
        column = slices.cause.astype(np.int64)
        copy = self._view.work.at(slices.event[busy])
        is_dtod = self._inner[copy.name] & (copy.kind == DEVICE_KINDS.index("memcpy"))
        other = np.where(copy.kind == DEVICE_KINDS.index("memset"), _COLUMNS.index("memset"), _COLUMNS.index("other_copies"))
        column[busy] = np.where(is_dtod, _COLUMNS.index("dtod"), other)
        pairs, row = np.unique(pair, return_inverse=True)
        spent = np.zeros((len(pairs), len(_COLUMNS)), np.int64)
        np.add.at(spent.reshape(-1), row[found.b] * len(_COLUMNS) + column[found.a], found.end - found.start)
        copying = column[found.a] == _COLUMNS.index("dtod")
        ran = np.unique(np.stack((slices.event[found.a][copying], found.b[copying])), axis=1)
        copies = np.bincount(row[ran[1]], minlength=len(pairs))
        for each, took, n in zip(pairs.tolist(), spent, copies.tolist(), strict=True):
            self.spent[each] = self.spent[each] + took if each in self.spent else took
            self.copies[each] += n


class _Ahead:
    """Buffer over slices that are read in parts, in order of time."""

    def __init__(self, parts: Iterator[Slices]) -> None:
        self._parts, self._rest = parts, joined(())

    def until(self, moment: int) -> Slices:
        """Return the slices not yet returned whole, up to the one that reaches the moment."""
        held = [self._rest]
        while not len(held[-1].end) or held[-1].end[-1] < moment:
            part = next(self._parts, None)
            if part is None:
                break
            held.append(part)
        found = joined(held)
        self._rest = found.between(int(np.searchsorted(found.end, moment, "right")), None)
        return found
