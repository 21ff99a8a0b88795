"""Launches of device events: delays, causes of idle time, and signs of events that the trace lost.

`delay_ss = device start - start of the launch call`, `delay_es = device start - end of the launch call`; a negative delay is
legal (a kernel may start before the call that launched it returns) and is kept. Events without a known launch call have none.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.activity import Activity, activity
from strobe.perf.analysis.device.device_work import DeviceView, EventView
from strobe.perf.analysis.device.distribution import Distribution, Grouped, grouped
from strobe.perf.analysis.device.idle import HOST_LATE, LAUNCH_LATENCY, PROFILER_OVERHEAD, QUEUED, UNLINKED
from strobe.perf.analysis.device.intervals import Ints, column
from strobe.perf.trace.columns import blocks, different
from strobe.perf.trace.events import NO_CORRELATION, Trace
from strobe.perf.trace.join import of_several

LaunchKind = Literal["single", "graph-first", "graph-rest"]
LAUNCH_KINDS: Final[tuple[LaunchKind, ...]] = ("single", "graph-first", "graph-rest")
MIN_IDLE_SHARE: Final = 0.05
"""Least idle share of the span for a verdict other than `busy`."""
MAX_PROMPT_NS: Final = 20_000
"""Longest launch delay that means an empty queue, ns."""
_GRAPH: Final = re.compile("GraphLaunch")

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
    calls = _Calls(view, graph_calls(view.trace) if is_graph is None else is_graph)
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


class _Calls:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortGraph:
    """Graph launches with fewer recorded events than other launches of the same graph.

    A trace does not name the graph that a call launches. Launches with the same first event and the same number of events are
    taken for one graph, since two launches rarely lose equally many events. A single launch with fewer events is taken for one
    of the next larger graph, if its events are a subset of that graph's.

    Args:
        call: name of the launch call.
        first: name of the first event.
        n: launches of the graph, these among them.
        num_nodes: events of the others.
        short: how many events each of these recorded.
    """

    call: str
    first: str
    n: int
    num_nodes: int
    short: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Integrity:
    """Signs that a trace lacks launched work or records it wrongly. The profiler itself reports none of them.

    Args:
        unanswered: launch calls by name: how many there were and how many no device event answers to. Calls that only capture
            a graph are among them.
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
    return Integrity(
        unanswered={name: counts for name, counts in sorted(trace.launched.items()) if counts[1]},
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
            short, (call_name, first) = tuple(sorted(size for size, _ in few)), start
            n = len(calls) + len(few)
            found.append(ShortGraph(call=call_name, first=first, n=n, num_nodes=num_nodes, short=short))
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
