"""How device events were launched: delays, whether the host kept up, and whether the trace holds all that was launched.

`delay_ss = device start - start of the launch call`, `delay_es = device start - end of the launch call`; a negative delay is
legal (a kernel may start before the call that launched it returns) and is kept. Events without a known launch call have none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.activity import Activity, activity
from strobe.perf.analysis.device.distribution import Distribution, distribution
from strobe.perf.analysis.device.idle import HOST_LATE, LAUNCH_LATENCY, PROFILER_OVERHEAD, QUEUED, UNLINKED
from strobe.perf.analysis.device.intervals import Ints
from strobe.perf.analysis.device.views import DeviceView
from strobe.perf.trace.events import Trace

LaunchKind = Literal["single", "graph-first", "graph-rest"]
LAUNCH_KINDS: Final[tuple[LaunchKind, ...]] = ("single", "graph-first", "graph-rest")
MIN_IDLE_SHARE: Final = 0.05
"""A device that is idle for less of the span is kept busy, whatever the idle time waited for."""
MAX_PROMPT_NS: Final = 20_000
"""A launch that starts within 20 µs found an empty queue."""
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
    """All launch calls of one name that device events of the window answer to.

    Args:
        name: such as `cudaLaunchKernel`.
        n: number of calls.
        num_events: device events they launched.
        host: durations of the calls.
        delays: of their first device events in the window; of all of them if the first ones lie outside.
    """

    name: str
    n: int
    num_events: int
    host: Distribution
    delays: Delays


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """How the events that start in a window of one device were launched.

    Args:
        device: its number.
        num_events: events that start in the window.
        num_unlinked: of these, without a known launch call.
        kinds: delays of events launched one by one, of the first event of a graph launch, and of its others: those wait for the
            graph's own events, not for the host. A graph is a call by that name or one that launched several events.
        calls: by name of the launch call, most events first.
        verdict: what the idle time says, see `judge_idle`.
        median_ns: the start-to-start delay the verdict rests on: the median of single launches, of first events of graphs where
            there are none.
        activity: of the same window.
    """

    device: int
    num_events: int
    num_unlinked: int
    kinds: Mapping[LaunchKind, Delays]
    calls: tuple[CallRow, ...]
    verdict: Verdict
    median_ns: int | None
    activity: Activity


def launch(view: DeviceView) -> Launch:
    """Analyse how the events of one device were launched."""
    work, hosts = view.work, view.trace.device_events.hosts
    last = work.start <= view.end_ns if view.window is None else work.start < view.end_ns
    starting = np.flatnonzero((work.start >= view.begin_ns) & last)
    linked = starting[work.host[starting] >= 0]
    host, is_rest = work.host[linked], work.ordinal[linked] > 0
    is_graph = _graphs(view.trace)[host]
    masks: dict[LaunchKind, NDArray[np.bool_]] = {
        "single": ~is_graph, "graph-first": is_graph & ~is_rest, "graph-rest": is_graph & is_rest
    }  # fmt: skip
    begin, returned = np.asarray(hosts.start_ns)[host], np.asarray(hosts.end_ns)[host]
    delay_ss, delay_es = work.start[linked] - begin, work.start[linked] - returned
    kinds = {kind: found for kind, mask in masks.items() if (found := _delays(delay_ss[mask], delay_es[mask])) is not None}
    calls = []
    name = np.asarray(hosts.name)[host]
    for number in np.unique(name).tolist():
        of_name = name == number
        used = np.unique(host[of_name])
        took = distribution(np.asarray(hosts.end_ns)[used] - np.asarray(hosts.start_ns)[used])
        first = of_name & ~is_rest
        found = _delays(delay_ss[first], delay_es[first]) or _delays(delay_ss[of_name], delay_es[of_name])
        assert took is not None and found is not None
        calls.append(CallRow(name=hosts.names[number], n=took.n, num_events=int(of_name.sum()), host=took, delays=found))
    done = activity(view)
    typical = kinds.get("single") or kinds.get("graph-first")
    median = None if typical is None else typical.start_to_start.p50_ns
    return Launch(
        device=view.device,
        num_events=len(starting),
        num_unlinked=len(starting) - len(linked),
        kinds=kinds,
        calls=tuple(sorted(calls, key=lambda row: (-row.num_events, row.name))),
        verdict=judge_idle(done, median),
        median_ns=median,
        activity=done,
    )


def judge_idle(done: Activity, median_ns: int | None) -> Verdict:
    """Say in a word what keeps a device from being busy.

    `busy`: idle for less than `MIN_IDLE_SHARE` of the span. Otherwise the cause of more than half of the idle time: `host-bound`
    if it is the host being late and a typical launch starts within `MAX_PROMPT_NS`; `host late, slow launches` if it starts later
    than that; `launch latency`, `queued`, `profiler overhead`, or `unknown` (launches before the window). `mixed`: none has more
    than half.

    Args:
        done: busy and idle time.
        median_ns: typical start-to-start delay, `None` if there is none.
    """
    if done.idle_ns < MIN_IDLE_SHARE * done.span_ns or not done.idle_ns:
        return "busy"
    cause = max(done.idle, key=lambda name: done.idle[name])
    if 2 * done.idle[cause] <= done.idle_ns:
        return "mixed"
    if cause == HOST_LATE:
        return "host-bound" if median_ns is not None and median_ns < MAX_PROMPT_NS else "host late, slow launches"
    verdicts: dict[str, Verdict] = {
        LAUNCH_LATENCY: "launch latency", QUEUED: "queued", PROFILER_OVERHEAD: "profiler overhead", UNLINKED: "unknown"
    }  # fmt: skip
    return verdicts[cause]


def _graphs(trace: Trace) -> NDArray[np.bool_]:
    """Whether each launch call launched a graph."""
    hosts, host = trace.device_events.hosts, np.asarray(trace.device_events.host)
    several = np.bincount(host[host >= 0], minlength=len(hosts)) > 1
    named = np.array([bool(_GRAPH.search(name)) for name in hosts.names], np.bool_)
    return several | named[np.asarray(hosts.name)] if len(hosts) else several


def _delays(delay_ss: Ints, delay_es: Ints) -> Delays | None:
    found_ss, found_es = distribution(delay_ss), distribution(delay_es)
    if found_ss is None or found_es is None:
        return None
    return Delays(
        start_to_start=found_ss,
        end_to_start=found_es,
        num_negative_ss=int((delay_ss < 0).sum()),
        num_negative_es=int((delay_es < 0).sum()),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortGraph:
    """Graph launches that recorded fewer events than their like.

    Args:
        call: name of the launch call.
        first: name of the first event; launches that start with the same one are taken for launches of the same graph.
        n: launches of the graph.
        num_nodes: events of most of them.
        short: how many events each of the launches with fewer recorded.
    """

    call: str
    first: str
    n: int
    num_nodes: int
    short: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Integrity:
    """Signs that a trace does not hold all that was launched, or holds it wrongly. The profiler itself says nothing of it.

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
    events, host = trace.device_events, np.asarray(trace.device_events.host)
    launches = np.flatnonzero(_graphs(trace))
    nodes = np.bincount(host[host >= 0], minlength=len(events.hosts))
    heads = np.flatnonzero((host >= 0) & (np.asarray(events.ordinal) == 0))
    first = dict(zip(host[heads].tolist(), heads.tolist(), strict=True))
    alike: dict[tuple[int, int], list[int]] = {}
    for call in launches.tolist():
        if call in first:
            alike.setdefault((events.hosts.name[call], events.name[first[call]]), []).append(int(nodes[call]))
    found = []
    for (call, name), counts in alike.items():
        (most, times), *_ = sorted(Counter(counts).items(), key=lambda item: (-item[1], -item[0]))
        short = tuple(sorted(count for count in counts if count < most))
        if times > 1 and short:
            found.append(
                ShortGraph(call=events.hosts.names[call], first=events.names[name], n=len(counts), num_nodes=most, short=short)
            )
    return sorted(found, key=lambda graph: (graph.call, graph.first))


def _impossible(view: DeviceView) -> list[tuple[int, int, int]]:
    found = []
    for stream in np.unique(view.work.stream).tolist():
        mine = view.work.stream == stream
        start, end = view.work.start[mine], view.work.end[mine]
        excess = int((end - start).sum()) - int(end.max() - start[0])
        if excess > 0:
            found.append((view.device, stream, excess))
    return found
