"""Launches of device events: delays, queue length, and the gaps between kernels."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated as A
from typing import Any, Final, Literal, TypeAlias

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
    DeviceView,
    EventView,
    Slices,
    joined,
)
from strobe.perf.analysis.device.intervals import (
    Covered,
    Distribution,
    Intervals,
    Ints,
    column,
    distributions,
    marked,
    overlaps,
    totals,
)
from strobe.perf.analysis.device.kernels import kernel_name
from strobe.perf.table.fields import count_cell
from strobe.perf.table.model import Code, Count, ExactTime, Number
from strobe.perf.table.rows import OnDevice, col, micros, part_of, term, thousandths
from strobe.perf.trace.columns import blocks, different
from strobe.perf.trace.events import DEVICE_KINDS, NO_CORRELATION, OF_KERNEL, Trace
from strobe.perf.trace.join import of_several

# Launches of device events: delays, and signs of events that the trace lost.
#
# `delay_ss = device start - start of the launch call`, `delay_es = device start - end of the launch call`; a negative delay is
# legal (a kernel may start before the call that launched it returns) and is kept. Events without a known launch call have none.

LaunchKind = Literal["single", "graph-first", "graph-rest"]
LAUNCH_KINDS: Final[tuple[LaunchKind, ...]] = ("single", "graph-first", "graph-rest")
_GRAPH: Final = re.compile("GraphLaunch")
_PARTS: Final = (re.compile("StreamBeginCapture"), re.compile("StreamEndCapture"), _GRAPH)


Delays: TypeAlias = tuple[Distribution, int]
"""Delays of some device events since the start or the end of their launch calls, and how many are negative. Since the start they
mean that clocks or correlation are wrong; since the end, that the event started while the call still ran."""


class LaunchRow(OnDevice, frozen=True, kw_only=True):
    """Launch calls of one name that launched events of one device."""

    call: A[str, col("name of the call, e.g. `cudaLaunchKernel`", "launch call", Code)]
    calls: A[int, col("number of calls", "calls", Count)]
    events: A[int, col("number of device events that the calls launched", "events", Count)]
    host_sum_ns: A[int, col("sum of the durations of the calls on the host, over all threads", "host sum", ExactTime)]
    host_p50_ns: A[int, col("median duration of a call on the host", "host p50", micros)]
    host_max_ns: A[int, col("duration of the longest call on the host", "host max", micros)]
    delay_p50_ns: A[int, term("median time from the start of a call to the start of its first device event", "delay p50", micros)]
    delay_max_ns: A[
        int, term("longest time from the start of a call to the start of its first device event", "delay max", micros)
    ]


class Launch:
    """Launches of the events that start in a window of one device.

    Args:
        is_graph: result of `graph_calls` for its trace; computed if not given.

    Attributes:
        num_unlinked: of these, without a known launch call.
        num_uncorrelated: of these, events that carry no correlation, so that no call can answer for them.
        kinds: delays since start and since end of the call, of events launched one by one, of the first event of a graph
            launch, and of its others: those wait for the graph's own events, not for the host. A graph is a call by that name or
            one that launched several events.
        calls: by name of the launch call, most events first; delays are those of the first device events of the calls in the
            window, or of all of them if the first ones lie outside.
    """

    def __init__(self, view: DeviceView, is_graph: NDArray[np.bool_] | None = None) -> None:
        hosts, start = view.trace.device_events.hosts, view.work.start
        graphs = graph_calls(view.trace) if is_graph is None else is_graph
        last = start <= view.end_ns if view.window is None else start < view.end_ns
        some = (start >= view.begin_ns) & last
        work = view.work if some.all() else view.work.at(np.flatnonzero(some))
        self.num_events, self.num_unlinked = len(work), int((work.host < 0).sum())
        self.num_uncorrelated = int((work.host == NO_CORRELATION).sum())
        linked = work.host >= 0
        work = work if linked.all() else work.at(np.flatnonzero(linked))
        host, rest = work.host, work.ordinal > 0
        begin, end = column(hosts.start_ns), column(hosts.end_ns)
        kind = (1 + rest.astype(np.int8)) * graphs[host]
        sides = zip(*(_delays(work.start - edge[host], kind) for edge in (begin, end)), strict=True)
        self.kinds = {kind: own for kind, own in zip(LAUNCH_KINDS, sides, strict=True) if None not in own}
        names, name, used = hosts.names, np.asarray(hosts.name), different(host)
        of_host = distributions((end - begin)[used], name[used], len(names))
        by_name = distributions(work.start - begin[host], 2 * name[host].astype(np.int64) + rest, 2 * len(names))
        found = []
        for number, calls in enumerate(of_host):
            both = [each for each in by_name[2 * number : 2 * number + 2] if each is not None]
            if calls is not None:
                row = LaunchRow(
                    **view.where, call=names[number], calls=calls.n, events=sum(each.n for each in both),
                    host_sum_ns=calls.sum_ns, host_p50_ns=calls.p50_ns, host_max_ns=calls.max_ns,
                    delay_p50_ns=both[0].p50_ns, delay_max_ns=both[0].max_ns,
                )  # fmt: skip
                found.append(row)
        self.calls = tuple(sorted(found, key=lambda row: (-row.events, row.call)))


def _delays(delay: Ints, kind: NDArray[Any]) -> list[Delays | None]:
    negative = np.bincount(kind[delay < 0], minlength=len(LAUNCH_KINDS)).tolist()
    found = zip(distributions(delay, kind, len(LAUNCH_KINDS)), negative, strict=True)
    return [None if delays is None else (delays, below) for delays, below in found]


def graph_calls(trace: Trace) -> NDArray[np.bool_]:
    """Mark launch calls that launched a graph: by their name, or because they launched several events."""
    hosts = trace.device_events.hosts
    several = of_several(np.asarray(trace.device_events.host), len(hosts))
    return several | marked(hosts, _GRAPH.search)


def captured_calls(trace: Trace) -> Iterator[Ints]:
    """Yield the launches of each capture of a graph, as positions in `trace.unanswered`: what the host launched meanwhile."""
    calls, thread = trace.unanswered, np.asarray(trace.unanswered.thread)
    begins, ends, graphs = (marked(calls, pattern.search) for pattern in _PARTS)
    launches, last, rows = ~(begins | ends | graphs), np.flatnonzero(ends), np.arange(len(calls))
    for row in np.flatnonzero(begins).tolist():
        end = next((other for other in last[np.searchsorted(last, row) :].tolist() if thread[other] == thread[row]), row)
        yield np.flatnonzero(launches & (rows > row) & (rows < end))


ShortGraph: TypeAlias = tuple[str, str, int, int, tuple[int, ...]]
"""Launches of a graph that recorded fewer events than others of it: name of the launch call and of the first event, launches of
the graph, events of the others, and how many events each of these recorded, the fewest first.

A trace does not name the graph that a call launches. Launches with the same first event and the same number of events are taken
for one graph, since two launches rarely lose equally many events. A single launch with fewer events is taken for one of the next
larger graph, if its events are a subset of that graph's.
"""


# Signs that a trace lacks launched work or records it wrongly. The profiler itself reports none of them.


def unanswered_calls(trace: Trace) -> dict[str, tuple[int, int]]:
    """Return launch calls by name: how many there were, and how many of them no device event answers to, if any.

    Calls that only capture a graph are among them if the trace was read without details, or does not say when captures begin.
    """
    calls = trace.unanswered
    rows = {row for mine in captured_calls(trace) for row in mine.tolist()}
    captured = Counter(calls.names[calls.name[row]].partition(OF_KERNEL)[0] for row in rows)
    left = {name: (n, missing - captured[name]) for name, (n, missing) in sorted(trace.launched.items())}
    return {name: counts for name, counts in left.items() if counts[1] > 0}


def past_end_ns(trace: Trace, views: Sequence[DeviceView]) -> int:
    """Return by how much the last device event ends after the recorded window; 0 if it does not or the trace names no end."""
    last = max((int(view.work.end.max()) for view in views), default=0)
    return 0 if trace.window_end_ns is None or not views else max(0, last - trace.window_end_ns)


def short_graphs(trace: Trace) -> list[ShortGraph]:
    """Find graph launches with fewer events than most launches of the same graph."""
    launches = _graph_launches(trace)
    lone: defaultdict[tuple[tuple[str, str], int], list[tuple[int, int]]] = defaultdict(list)
    for start, by_size in launches.items():
        whole = sorted(size for size, calls in by_size.items() if len(calls) > 1)
        for size, (call, *more) in by_size.items():
            larger = bisect_right(whole, size)
            if not more and larger < len(whole):
                lone[start, whole[larger]].append((size, call))
    like = {(start, num_nodes): launches[start][num_nodes] for start, num_nodes in sorted(lone)}
    compared = {calls[0] for calls in like.values()} | {call for few in lone.values() for _, call in few}
    names = {call: Counter[int]() for call in compared}
    events, host = trace.device_events, np.asarray(trace.device_events.host)
    for block in blocks(len(host) if names else 0):
        mine = np.isin(host[block], [*compared])
        for call, name in zip(host[block][mine].tolist(), np.asarray(events.name)[block][mine].tolist(), strict=True):
            names[call][name] += 1
    found = []
    for key, calls in like.items():
        few = sorted(size for size, call in lone[key] if names[call] <= names[calls[0]])
        if few:
            found.append((*key[0], len(calls) + len(few), key[1], tuple(few)))
    return found


def _graph_launches(trace: Trace) -> dict[tuple[str, str], dict[int, list[int]]]:
    """Return graph launches by call name and first event's name, then by number of recorded events."""
    events, hosts = trace.device_events, trace.device_events.hosts
    host, ordinal, name = (np.asarray(values) for values in (events.host, events.ordinal, events.name))
    nodes, first = np.zeros(len(hosts), np.int32), np.full(len(hosts), -1, np.int32)
    graphs = np.flatnonzero(graph_calls(trace))
    for block in blocks(len(host) if len(graphs) else 0):
        linked = host[block] >= 0
        heads = linked & (ordinal[block] == 0)
        np.add.at(nodes, host[block][linked], 1)
        first[host[block][heads]] = name[block][heads]
    launches: dict[tuple[str, str], dict[int, list[int]]] = {}
    for call in graphs[first[graphs] >= 0].tolist():
        start = hosts.names[hosts.name[call]], events.names[first[call]]
        launches.setdefault(start, {}).setdefault(int(nodes[call]), []).append(call)
    return launches


# Queue length of a device: events whose launch call has started and that have not started themselves.


class QueueRow(OnDevice, frozen=True, kw_only=True):
    """Queue of a device or stream: events that have not started although their launch call has."""

    stream: A[int | None, col("number of the stream; null: all streams of the device together")]
    longest: A[int, col("maximum queue length, events", "max", Count)]
    median: A[int, col("median queue length over time, events", "median", Count)]
    mean: A[float, col("mean queue length over time, events", "mean", partial(Number, digits=2))]
    empty_ns: A[int, col("time in which the queue was empty", "empty", ExactTime, of={"of span": "span_ns"})]
    span_ns: A[int, col("length of the window")]
    queued_events: A[int, term("number of events that waited in the queue", "waited", Count)]
    waited_ns: A[int, col("sum of the waiting times of these events")]
    wait_ns: A[float | None, term("mean wait of these; null: none waited", "wait of one", thousandths, missing="none waited")]
    unlinked_events: A[int, term("number of events that are not counted, as their launch is not known", "unlinked", count_cell)]


def queues(view: DeviceView) -> tuple[QueueRow, ...]:
    """Return the queue of a device and, if it has several streams, of each stream by number."""
    streams = np.unique(view.work.stream).tolist()
    chosen: list[int | None] = [None, *streams] if len(streams) > 1 else [None]
    return tuple(_queue(view, stream) for stream in chosen)


def _queue(view: DeviceView, stream: int | None) -> QueueRow:
    """Measure the queue of one stream, or of all together.

    An event that starts with its call or before it never waits, and the sum of the waits is also the length added up over time.
    """
    called, unlinked, waited_ns = list[Ints](), 0, 0
    for _, part in view.work.parts():
        left, right = _waited(view, stream, part)
        called.append(left)
        waited_ns += int((right - left).sum())
        inside = (part.host < 0) & (part.start < view.end_ns) & (part.end > view.begin_ns)
        unlinked += int(inside.sum() if stream is None else (inside & (part.stream == stream)).sum())
    queued = sum(map(len, called))
    spent: dict[int, int] = defaultdict(int)
    for took, lengths in _lengths(view, stream, np.sort(np.concatenate(called))):
        some, which = np.unique(lengths, return_inverse=True)
        for length, ns in zip(some.tolist(), totals(took, which, len(some)).tolist(), strict=True):
            spent[length] += ns
    there = sorted((length, ns) for length, ns in spent.items() if ns)
    return QueueRow(
        **view.where,
        stream=stream,
        longest=there[-1][0] if there else 0,
        median=_median(there),
        mean=waited_ns / view.span_ns if view.span_ns else 0.0,
        empty_ns=spent[0],
        span_ns=view.span_ns,
        queued_events=queued,
        waited_ns=waited_ns,
        wait_ns=waited_ns / queued if queued else None,
        unlinked_events=unlinked,
    )


def _waited(view: DeviceView, stream: int | None, part: EventView) -> tuple[Ints, Ints]:
    """Return the start and the end of the wait of each event that waited in the window."""
    known = part.host >= 0 if stream is None else (part.host >= 0) & (part.stream == stream)
    calls = column(view.trace.device_events.hosts.start_ns)
    left, right = np.maximum(calls[part.host[known]], view.begin_ns), np.minimum(part.start[known], view.end_ns)
    waited = left < right
    return left[waited], right[waited]


def _lengths(view: DeviceView, stream: int | None, called: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield the lengths of the queue in order, and how long it had each, in parts; `called`: starts of all waits, in order."""
    now, length, first = view.begin_ns, 0, 0
    for _, part in view.work.parts():
        started = _waited(view, stream, part)[1]
        if not len(started):
            continue
        stop = int(started[-1])
        last = int(np.searchsorted(called, stop, "right"))
        moments = np.concatenate((np.array([now]), called[first:last], started))
        order = np.argsort(moments, kind="stable")
        lengths = length + np.cumsum(np.repeat(np.array([0, 1, -1]), (1, last - first, len(started)))[order])
        yield np.diff(np.append(moments[order], stop)), lengths
        now, length, first = stop, int(lengths[-1]), last
    yield np.array([view.end_ns - now]), np.array([length])


def _median(spent: Sequence[tuple[int, int]]) -> int:
    """Return the smallest length that the queue does not exceed for half of the time."""
    whole, reached = sum(ns for _, ns in spent), 0
    for length, ns in spent:
        reached += ns
        if 2 * reached >= whole:
            return length
    return 0


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
_SPENT: Final = (*(f"{cause}_ns" for cause in CAUSES), "memset_ns", "dtod_ns", "other_copy_ns")


class GapsRow(OnDevice, frozen=True, kw_only=True):
    """Stretches without any kernel between two kernels; idle time by cause, copies and memsets in them add up to their sum."""

    after: A[str, col("normalised name of the kernel before the gap", "after", Code)]
    before: A[str, col("normalised name of the kernel that ends the gap", "before", Code)]
    n: A[int, col("number of gaps", "n", Count, total=sum)]
    sum_ns: A[int, col("sum of the gaps; adds up over rows", "sum", ExactTime, total=sum, of={"of span": "span_ns"})]
    p50_ns: A[int, col("median gap", "p50", micros)]
    max_ns: A[int, col("longest gap", "max", micros, total=max)]
    host_late_ns: A[int, term("idle: the launch call had not started yet", HOST_LATE, ExactTime, where="host_late_ns", total=sum)]
    launch_latency_ns: A[
        int, term("idle: launched, not started", LAUNCH_LATENCY, ExactTime, where="launch_latency_ns", total=sum)
    ]
    queued_ns: A[int, term("idle: waited for other work", QUEUED, ExactTime, where="queued_ns", total=sum)]
    profiler_overhead_ns: A[
        int, term("idle: host held up", PROFILER_OVERHEAD, ExactTime, where="profiler_overhead_ns", total=sum)
    ]
    unlinked_ns: A[int, term("idle: cause unknown", UNLINKED, ExactTime, where="unlinked_ns", total=sum)]
    dtod_ns: A[int, col("time of device-to-device copies in the gaps", "DtoD copies", ExactTime, where="dtod_ns", total=sum)]
    other_copy_ns: A[int, col("time of other copies in the gaps", "other copies", ExactTime, where="other_copy_ns", total=sum)]
    memset_ns: A[int, col("time of memsets in the gaps", "memsets", ExactTime, where="memset_ns", total=sum)]
    dtod_copies: A[int, col("number of device-to-device copies that ran in the gaps", "DtoD n", Count, total=sum)]


class Gaps:
    """Gaps between the kernels of one device.

    Attributes:
        rows: all gaps between a kernel of one group and a kernel of another, by descending sum.
        kernel_ns: union of kernel time, compute and communication.
        gap_ns: sum of all gaps.
        head_ns: from the start of the window to the first kernel.
        tail_ns: from the end of the last kernel to the end of the window.
    """

    def __init__(self, view: DeviceView) -> None:
        self._view, self.span_ns, ids = view, view.span_ns, dict[str, int]()
        names = view.trace.device_events.names
        self._of_name = np.array([ids.setdefault(kernel_name(name), len(ids)) for name in names], np.int64)
        self._groups = list(ids)
        self._inner = np.array([bool(_DEVICE_TO_DEVICE.search(name)) and not _PEER.search(name) for name in names], np.bool_)
        covered, first_ns = Covered(), view.end_ns
        for kernels in self._kernels():
            if len(kernels):
                first_ns = min(first_ns, int(kernels.start[0]))
            covered.add(*(np.clip(edge, view.begin_ns, view.end_ns) for edge in (kernels.start, kernels.end)))
        self.kernel_ns = covered.total_ns
        self.rows = tuple(sorted(self._rows(), key=lambda row: (-row.sum_ns, row.after, row.before)))
        self.gap_ns = sum(row.sum_ns for row in self.rows)
        self.head_ns = max(first_ns - view.begin_ns, 0)
        self.tail_ns = self.span_ns - self.kernel_ns - self.gap_ns - self.head_ns

    def _rows(self) -> Iterator[GapsRow]:
        spent, copies = self._totals()
        pairs = np.array(sorted(spent), np.int64)
        each = [(gaps.end - gaps.start, np.searchsorted(pairs, pair)) for gaps, pair in self._gaps()] or [(pairs, pairs)]
        lengths, which = (np.concatenate(columns) for columns in zip(*each, strict=True))
        for number, gaps in zip(pairs.tolist(), distributions(lengths, which, len(pairs)), strict=True):
            took = dict(zip(_SPENT, spent[number].tolist(), strict=True))
            assert gaps is not None and gaps.sum_ns == sum(took.values()), "a gap does not add up"
            after, before = divmod(number, len(self._groups))
            where = {"after": self._groups[after], "before": self._groups[before]}
            yield part_of(GapsRow, gaps, **self._view.where, **where, dtod_copies=copies[number], **took)

    def _totals(self) -> tuple[dict[int, Ints], Counter[int]]:
        """Return time by `_SPENT` and number of device-to-device copies in the gaps of each pair of groups."""
        spent: defaultdict[int, Ints] = defaultdict(lambda: np.zeros(len(_SPENT), np.int64))
        copies: Counter[int] = Counter()
        for gaps, pair, slices in self._with_slices():
            piece, gap, shared = overlaps(Intervals(slices.start, slices.end), gaps)
            busy, what = slices.cause == BUSY, slices.cause.astype(np.int64)
            copy = self._view.work.at(slices.event[busy])
            is_dtod = self._inner[copy.name] & (copy.kind == DEVICE_KINDS.index("memcpy"))
            other = np.where(copy.kind == DEVICE_KINDS.index("memset"), _SPENT.index("memset_ns"), _SPENT.index("other_copy_ns"))
            what[busy] = np.where(is_dtod, _SPENT.index("dtod_ns"), other)
            pairs, row = np.unique(pair, return_inverse=True)
            took = np.zeros((len(pairs), len(_SPENT)), np.int64)
            np.add.at(took, (row[gap], what[piece]), shared.length)
            copying = what[piece] == _SPENT.index("dtod_ns")
            ran = np.unique(np.stack((slices.event[piece][copying], gap[copying])), axis=1)
            num = np.bincount(row[ran[1]], minlength=len(pairs))
            for each, own, n in zip(pairs.tolist(), took, num.tolist(), strict=True):
                spent[each] = spent[each] + own
                copies[each] += n
        return spent, copies

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
            pair = of_end[latest[:-1]] * len(self._groups) + group
            yield Intervals(left[some], right[some]), pair[some]
            reached, before = int(far[-1]), int(of_end[latest[-1]])

    def _with_slices(self) -> Iterator[tuple[Intervals, Ints, Slices]]:
        """Yield the gaps with their pairs, and the slices up to the end of the last of them that were not yielded whole."""
        parts, held = self._view.stretches(), joined(())
        for gaps, pair in self._gaps():
            if not len(pair):
                continue
            found, moment = [held], int(gaps.end[-1])
            while not len(found[-1].end) or found[-1].end[-1] < moment:
                part = next(parts, None)
                if part is None:
                    break
                found.append(part)
            slices = joined(found)
            held = slices.between(int(np.searchsorted(slices.end, moment, "right")), None)
            yield gaps, pair, slices
