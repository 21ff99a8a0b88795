"""Device time against asking each nanosecond of random small traces; launches, the verdict and the signs of loss; names."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from strobe.core.errors import DataError
from strobe.perf.analysis.device import kernels
from strobe.perf.analysis.device.activity import (
    ACTIVITIES,
    BUSY,
    CAUSES,
    PRIORITY,
    Activity,
    DeviceView,
    activity,
    device_views,
    idle_strip,
)
from strobe.perf.analysis.device.intervals import Window, distribution, distributions
from strobe.perf.analysis.device.kernels import demangle, full_name, kernel_name, kernel_part, kernel_table
from strobe.perf.analysis.device.launch import Gaps, Launch, QueueRow, past_end_ns, queues, short_graphs, unanswered_calls
from strobe.perf.analysis.parts import Part
from strobe.perf.measure.stats import P99_SAMPLES, percentile
from strobe.perf.trace import DeviceEvent, HostEvent, Trace

_NAMES = {
    "kernel": ("void f<4, SiluFunctor<float> >(int)", "void f<2, SiluFunctor<float> >(int)", "triton_poi_fused_add_1"),
    "comm": ("ncclDevKernel_AllReduce(int)",),
    "memset": ("Memset (Device)",),
    "memcpy": ("Memcpy DtoD (Device -> Device)", "Memcpy HtoD (Pageable -> Device)", "Memcpy PtoP (Device -> Device)"),
}
_KINDS = ("kernel", "kernel", "kernel", "comm", "memset", "memcpy")
_CALLS = st.builds(
    lambda name, start, length: HostEvent(name, start, start + length, 0),
    st.sampled_from(["cudaLaunchKernel", "cudaGraphLaunch"]), st.integers(-10, 70), st.integers(0, 9),
)  # fmt: skip


@st.composite
def _events(draw: st.DrawFn, hosts: list[HostEvent]) -> DeviceEvent:
    kind = draw(st.sampled_from(_KINDS))
    start = draw(st.integers(0, 60))
    return DeviceEvent(
        draw(st.sampled_from(_NAMES[kind])), kind, start, start + draw(st.integers(0, 9)), draw(st.sampled_from([0, 0, 3])),
        draw(st.integers(0, 1)), 0, draw(st.sampled_from([None, *hosts])), draw(st.sampled_from(["", "8x1"])),
    )  # fmt: skip


@st.composite
def _traces(draw: st.DrawFn) -> Trace:
    hosts = draw(st.lists(_CALLS, max_size=6, unique=True))
    drawn = draw(st.lists(_events(hosts), min_size=1, max_size=12))
    counts: Counter[HostEvent | None] = Counter()
    events = []
    for event in sorted(drawn, key=lambda e: (e.start_ns, -e.end_ns, e.name)):
        events.append(event._replace(ordinal=counts[event.host] if event.host else 0))
        counts[event.host] += 1
    overhead = draw(st.sampled_from([(), ((5, 9), (20, 22), (30, 60))]))
    return trace_of(events, overhead=overhead, base_ns=draw(st.integers(0, 9)))


_WINDOW = st.builds(
    lambda at, length: Window(start_ns=at, end_ns=at + length, label="w"), st.integers(-5, 65), st.integers(1, 40)
)
_WINDOWS = st.one_of(st.none(), _WINDOW)


class _Moments:
    """One device asked nanosecond by nanosecond."""

    def __init__(self, view: DeviceView) -> None:
        self.view, trace = view, view.trace
        self.events = [event for event in trace.device_events if event.device == view.device]
        first, last = self.events[0].start_ns, max(event.end_ns for event in self.events)
        window = view.window
        self.begin, self.stop = (first, last) if window is None else (window.start_ns, window.end_ns)
        self.known = range(min(first, self.begin), max(last, self.stop))
        self.owner = {moment: self._owner(moment) for moment in self.known}

    def running(self, moment: int) -> list[DeviceEvent]:
        return [event for event in self.events if event.start_ns <= moment < event.end_ns]

    def inside(self) -> Iterator[tuple[DeviceEvent, int]]:
        """The events that overlap the window and how much of each does."""
        for event in self.events:
            shared = min(event.end_ns, self.stop) - max(event.start_ns, self.begin)
            empty = event.start_ns == event.end_ns
            if shared > 0 or (empty and self.begin <= event.start_ns < self.stop + (self.view.window is None)):
                yield event, shared

    def _owner(self, moment: int) -> DeviceEvent | None:
        return min(self.running(moment), key=lambda e: (PRIORITY.index(e.kind), self.events.index(e)), default=None)

    def class_of(self, moment: int) -> str:
        """The kind that owns the moment, or why nothing ran."""
        owner = self.owner[moment]
        if owner is not None:
            return owner.kind
        gap_start, following = moment, moment
        while gap_start - 1 in self.known and self.owner[gap_start - 1] is None:
            gap_start -= 1
        while following in self.known and self.owner[following] is None:
            following += 1
        event = self.owner.get(following)
        if event is None or event.host is None:
            return "unlinked"
        if event.ordinal or (event.host.start_ns < gap_start and gap_start > self.known.start):
            return "queued"
        if moment >= event.host.start_ns:
            return "launch_latency"
        held = any(each.start_ns <= moment < each.end_ns for each in self.view.trace.overheads)
        return "profiler_overhead" if held else "host_late"

    def time_of(self, kinds: set[str]) -> int:
        """Moments of the window in which something of these kinds runs."""
        return sum(any(e.kind in kinds for e in self.running(m)) for m in range(self.begin, self.stop))


@given(trace=_traces(), window=_WINDOWS)
def test_activity(trace: Trace, window: Window | None) -> None:
    views = device_views(trace, window)
    assert [view.device for view in views] == sorted({event.device for event in trace.device_events})
    for view in views:
        account, asked = activity(view), _Moments(view)
        found, idle = account.device, account.idle
        inside = list(asked.inside())
        owners = list(zip(view.slices.event.tolist(), view.slices.cause.tolist(), strict=True))
        assert not any(one == other and one[1] == BUSY for one, other in pairwise(owners)), "one slice for each stretch"
        classes = Counter(asked.class_of(moment) for moment in range(asked.begin, asked.stop))
        assert found.span_ns == asked.stop - asked.begin == found.busy_ns + found.idle_ns
        assert idle == {cause: classes[cause] for cause in CAUSES} and sum(idle.values()) == found.idle_ns
        assert (found.events, found.sum_ns) == (len(inside), sum(shared for _, shared in inside))
        assert view.num_cut == sum(shared < e.end_ns - e.start_ns for e, shared in inside)
        assert found.overlap_ns == found.sum_ns - asked.time_of(set(_NAMES))
        assert [row.kind for row in account.kinds] == [kind for kind in PRIORITY if any(e.kind == kind for e, _ in inside)]
        for row in account.kinds:
            mine = [shared for e, shared in inside if e.kind == row.kind]
            assert (row.events, row.sum_ns) == (len(mine), sum(mine))
            assert (row.union_ns, row.exclusive_ns) == (asked.time_of({row.kind}), classes[row.kind])
        unlinked = [shared for e, shared in inside if e.host is None]
        assert (found.unlinked_events, found.unlinked_ns) == (len(unlinked), sum(unlinked))
        compute = asked.time_of({"kernel", "memset"})
        assert found.exposed_communication_ns == asked.time_of({"kernel", "memset", "comm"}) - compute
        assert found.exposed_copies_ns == found.busy_ns - compute - found.exposed_communication_ns
        for stream in account.streams:
            mine = [e for e, _ in inside if e.stream == stream.stream]
            parts = [range(max(e.start_ns, asked.begin), min(e.end_ns, asked.stop)) for e in mine]
            shared = [min(a.stop, b.stop) - max(a.start, b.start) for a, b in combinations(parts, 2) if a and b]
            assert (stream.events, stream.sum_ns) == (len(mine), sum(map(len, parts)))
            assert stream.busy_ns == len({moment for part in parts for moment in part})
            assert stream.overlap_pairs == sum(length > 0 for length in shared)
            assert stream.longest_overlap_ns == max([0, *shared])


@given(traces=st.lists(_traces(), min_size=1, max_size=3), num_bins=st.integers(1, 20))
def test_the_strip_says_what_each_bin_held(traces: list[Trace], num_bins: int) -> None:
    views = [view for trace in traces for view in device_views(trace) if view.span_ns]
    if not views:
        return
    aligned, edges_ns, lanes = idle_strip(views, num_bins)
    assert edges_ns[0] == 0
    lengths = {right - left for left, right in pairwise(edges_ns)}
    assert max(lengths) - min(lengths) <= 1 <= min(lengths)
    starts = [view.trace.base_ns + view.begin_ns for view in views]
    ends = [start + view.span_ns for start, view in zip(starts, views, strict=True)]
    assert aligned == (max(starts) < min(ends))
    for view, lane, start in zip(views, lanes, starts, strict=True):
        asked = _Moments(view)
        zero = start - min(starts) if aligned else 0
        expected = [[0] * (len(edges_ns) - 1) for _ in ACTIVITIES]
        for at in range(view.span_ns):
            bin_ = next(b for b, edge in enumerate(edges_ns[1:]) if zero + at < edge)
            expected[ACTIVITIES.index(asked.class_of(view.begin_ns + at))][bin_] += 1
        assert [list(row) for row in lane] == expected


@given(trace=_traces(), window=_WINDOWS, by=st.sampled_from(["name", "shape"]))
def test_the_kernel_table(trace: Trace, window: Window | None, by: str) -> None:
    for view in device_views(trace, window):
        table, asked = kernel_table(view, by), _Moments(view)
        found = [row for row, _ in table]
        calls: dict[tuple[str, ...], list[tuple[DeviceEvent, int]]] = defaultdict(list)
        exclusive: Counter[tuple[str, ...]] = Counter()

        def key(event: DeviceEvent) -> tuple[str, ...]:
            return kernel_name(event.name), event.shape if by == "shape" else "", event.kind

        for event, shared in asked.inside():
            calls[key(event)].append((event, shared))
        for moment in range(asked.begin, asked.stop):
            owner = asked.owner[moment]
            exclusive.update([key(owner)] if owner else [])
        assert sorted((row.kernel, row.shape, row.kind) for row in found) == sorted(calls)
        assert sum(row.exclusive_ns for row in found) == exclusive.total()
        assert [row.exclusive_ns for row in found] == sorted((row.exclusive_ns for row in found), reverse=True)
        for row, names in table:
            mine = calls[row.kernel, row.shape, row.kind]
            times = sorted(shared for _, shared in mine)
            owned = exclusive[row.kernel, row.shape, row.kind]
            assert (row.calls, row.sum_ns, row.exclusive_ns) == (len(times), sum(times), owned)
            assert (row.min_ns, row.p50_ns, row.max_ns) == (times[0], times[(len(times) - 1) // 2], times[-1])
            assert row.unlinked_calls == sum(event.host is None for event, _ in mine)
            members: dict[str, list[int]] = defaultdict(list)
            for event, shared in mine:
                members[event.name].append(shared)
            assert {each.name: (each.calls, each.sum_ns) for each in names} == {n: (len(t), sum(t)) for n, t in members.items()}


@given(trace=_traces(), window=_WINDOWS)
def test_the_gap_table(trace: Trace, window: Window | None) -> None:
    for view in device_views(trace, window):
        found, asked = Gaps(view), _Moments(view)
        kernels = [e for e in asked.events if e.kind in ("kernel", "comm") and e.start_ns < e.end_ns]
        rows: dict[tuple[str, str], list[Counter[str]]] = defaultdict(list)
        copies: dict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
        for following in kernels:
            reached = max((e.end_ns for e in kernels if e.start_ns < following.start_ns), default=following.start_ns)
            gap = range(max(reached, asked.begin), min(following.start_ns, asked.stop))
            alike = [e for e in kernels if e.start_ns == following.start_ns]
            if not gap or following is not alike[0]:
                continue
            before = [e for e in kernels if e.end_ns == reached][-1]
            pair = kernel_name(before.name), kernel_name(following.name)
            spent = Counter[str]()
            for moment in gap:
                owner, what = asked.owner[moment], asked.class_of(moment)
                if owner is not None and owner.kind == "memcpy":
                    what = "dtod" if "DtoD" in owner.name else "other"
                    copies[pair] |= {(asked.events.index(owner), gap.start)} if what == "dtod" else set()
                spent[what] += 1
            rows[pair].append(spent)
        assert sorted((row.after, row.before) for row in found.rows) == sorted(rows)
        for row in found.rows:
            mine, total = rows[row.after, row.before], sum(rows[row.after, row.before], Counter())
            lengths = sorted(spent.total() for spent in mine)
            assert (row.n, row.sum_ns, row.max_ns) == (len(mine), sum(lengths), lengths[-1])
            assert row.p50_ns == lengths[(len(lengths) - 1) // 2]
            total["other_copy"] = total.pop("other", 0)
            assert all(getattr(row, f"{what}_ns") == total[what] for what in (*CAUSES, "dtod", "other_copy", "memset"))
            assert row.dtod_copies == len(copies[row.after, row.before])
        ran = [m for m in range(asked.begin, asked.stop) if any(e.kind in ("kernel", "comm") for e in asked.running(m))]
        first = next((m for m in range(asked.begin, asked.stop) if any(e.start_ns <= m for e in kernels)), asked.stop)
        assert (found.kernel_ns, found.head_ns) == (len(ran), first - asked.begin)
        assert found.gap_ns == sum(spent.total() for mine in rows.values() for spent in mine)
        assert found.kernel_ns + found.gap_ns + found.head_ns + found.tail_ns == found.span_ns and found.tail_ns >= 0


@given(trace=_traces(), window=_WINDOWS)
def test_launch_delays(trace: Trace, window: Window | None) -> None:
    answers = Counter(event.host for event in trace.device_events)
    for view in device_views(trace, window):
        found, asked = Launch(view), _Moments(view)
        starting = [e for e in asked.events if window is None or window.start_ns <= e.start_ns < window.end_ns]
        assert (found.num_events, found.num_unlinked) == (len(starting), sum(e.host is None for e in starting))
        kinds: dict[str, list[DeviceEvent]] = defaultdict(list)
        calls: dict[str, list[DeviceEvent]] = defaultdict(list)
        for event in starting:
            if event.host is not None:
                graph = answers[event.host] > 1 or event.host.name == "cudaGraphLaunch"
                kinds["graph-rest" if graph and event.ordinal else "graph-first" if graph else "single"].append(event)
                calls[event.host.name].append(event)
        assert set(found.kinds) == set(kinds) and {row.call for row in found.calls} == set(calls)
        for kind, events in kinds.items():
            for (delays, negative), moment in zip(found.kinds[kind], ("start_ns", "end_ns"), strict=True):
                expected = sorted(event.start_ns - getattr(event.host, moment) for event in events)
                assert (delays.n, delays.sum_ns, delays.min_ns) == (len(expected), sum(expected), expected[0])
                assert (delays.max_ns, negative) == (expected[-1], sum(delay < 0 for delay in expected))
        for row in found.calls:
            hosts = {event.host for event in calls[row.call]}
            took = [each.end_ns - each.start_ns for each in hosts if each]
            assert (row.calls, row.events, row.host_sum_ns) == (len(hosts), len(calls[row.call]), sum(took))


@pytest.mark.parametrize("spans", [[(0, 1 << 61)] * 2, [(-(1 << 61), 0), (1 << 61, (1 << 61) + 1)]])
def test_times_beyond_64_bits_are_refused(spans: list[tuple[int, int]]) -> None:
    events = [DeviceEvent("k", "kernel", start, end, 0, 7, 0, None) for start, end in spans]
    with pytest.raises(DataError, match="146 years"):
        device_views(trace_of(events))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-(10**12), 10**12)), max_size=40))
def test_each_group_is_described_alone(samples: list[tuple[int, int]]) -> None:
    group, values = (np.array(part, np.int64) for part in (zip(*samples, strict=True) if samples else ([], [])))
    for number, found in enumerate(distributions(values, group, 5)):
        mine = sorted(value for of, value in samples if of == number)
        assert (found is None) == (not mine)
        if found is not None:
            assert (found.n, found.sum_ns, found.min_ns, found.max_ns) == (len(mine), sum(mine), mine[0], mine[-1])
            assert (found.p50_ns, found.p99_ns, found.mean_ns) == (percentile(mine, 0.5), None, sum(mine) / len(mine))


@pytest.mark.parametrize("n", [1, P99_SAMPLES - 1, P99_SAMPLES, 1001])
def test_p99_needs_enough_samples_and_is_one_of_them(n: int) -> None:
    values = np.random.default_rng(n).integers(0, 1 << 60, n)
    found = distribution(values)
    assert found is not None
    assert found.p99_ns == (percentile(values.tolist(), 0.99) if n >= P99_SAMPLES else None)
    assert all(type(value) is int for value in (found.n, found.sum_ns, found.min_ns, found.p50_ns, found.max_ns))


def _counted(rows: list[tuple[int, int]], begin: int, end: int) -> Counter[int]:
    """How long the queue has each length: the rows are when each event was launched and when it started."""
    return Counter(sum(called <= now < start for called, start in rows) for now in range(begin, end))


def _check(found: QueueRow, spent: Counter[int]) -> None:
    whole = sum(spent.values())
    assert found.empty_ns == spent[0] and found.span_ns == whole
    assert found.longest == max(spent, default=0)
    assert found.waited_ns == sum(length * ns for length, ns in spent.items())
    listed = sorted(spent.elements())
    assert found.median == (listed[(whole - 1) // 2] if listed else 0)


_ROW = st.tuples(st.integers(0, 60), st.integers(-5, 50), st.integers(0, 20), st.integers(0, 2), st.booleans())


@given(st.lists(_ROW, min_size=1, max_size=40), _WINDOWS)
def test_queues_against_every_nanosecond(rows: list[tuple[int, int, int, int, bool]], window: Window | None) -> None:
    events = []
    for called, delay, length, stream, linked in rows:
        start, host = called + delay, HostEvent("launch", called, called + 1, 0) if linked else None
        events.append(DeviceEvent("k", "kernel", start, start + length, 0, stream, 0, host))
    trace = trace_of(events)
    (view,) = device_views(trace, window)
    whole, *streams = queues(view)
    known = [(called, called + delay, stream) for called, delay, _, stream, linked in rows if linked]
    _check(whole, _counted([(called, start) for called, start, _ in known], view.begin_ns, view.end_ns))
    numbers = sorted({row[3] for row in rows})
    assert [queue.stream for queue in streams] == (numbers if len(numbers) > 1 else [])
    for queue in streams:
        mine = [(called, start) for called, start, stream in known if stream == queue.stream]
        _check(queue, _counted(mine, view.begin_ns, view.end_ns))
    assert sum(queue.waited_ns for queue in streams) in (0, whole.waited_ns)


def _kernel(start: int, end: int, host: HostEvent | None, ordinal: int = 0, **fields: Any) -> DeviceEvent:
    return DeviceEvent("k", "kernel", start, end, 0, 7, ordinal, host)._replace(**fields)


def _done(trace: Trace) -> Activity:
    (view,) = device_views(trace)
    return activity(view)


def _run(delay_ns: int, work_ns: int, pause_ns: int) -> list[DeviceEvent]:
    """Launches `pause_ns` after the work before them ended."""
    events, now = [], 0
    for _ in range(20):
        host = HostEvent("cudaLaunchKernel", now + pause_ns, now + pause_ns + 5, 0)
        start = host.start_ns + delay_ns
        events.append(_kernel(start, start + work_ns, host))
        now = start + work_ns
    return events


@pytest.mark.parametrize(
    ("events", "overhead", "verdict"),
    [
        (_run(5_000, 10_000, 50_000), (), "host-bound"),
        (_run(19_999, 1, 50_000), (), "host-bound"),  # the limit is in nanoseconds
        (_run(20_000, 1, 50_000), (), "host late, slow launches"),
        (_run(5_000, 10_000_000, 50_000), (), "busy"),  # 99 % busy, though all idle time is the host's
        (_run(50_000, 10_000, 20_000), (), "launch latency"),
        (_run(5_000, 10_000, 50_000), ((0, 10_000_000),), "profiler overhead"),
        ([_kernel(100 * i, 100 * i + 10, HostEvent("cudaLaunchKernel", i, i + 1, 0)) for i in range(20)], (), "queued"),
        ([_kernel(100 * i, 100 * i + 10, None) for i in range(5)], (), "unknown"),
        ([_kernel(0, 10, None), _kernel(30, 40, HostEvent("c", 20, 21, 0))], (), "mixed"),
        ([_kernel(0, 0, None)], (), "busy"),
    ],
)
def test_verdicts(events: list[DeviceEvent], overhead: tuple[tuple[int, int], ...], verdict: str) -> None:
    assert _done(trace_of(events, overhead=overhead)).device.verdict == verdict


def test_launches_without_events_and_events_after_the_end() -> None:
    trace = trace_of([_kernel(0, 50, None)], launched={"hipGraphLaunch": (9, 2), "cudaLaunchKernel": (5, 0)}, window_end_ns=40)
    assert (unanswered_calls(trace), past_end_ns(trace, device_views(trace))) == ({"hipGraphLaunch": (9, 2)}, 10)
    for sound in (trace_of([]), trace_of([_kernel(0, 50, None)], window_end_ns=60)):
        assert not (unanswered_calls(sound) or short_graphs(sound) or past_end_ns(sound, device_views(sound)))


def _graphs(*sizes: int) -> list[DeviceEvent]:
    """Graph launches that record so many events each, all of one kernel."""
    events = []
    for i, nodes in enumerate(sizes):
        host = HostEvent("hipGraphLaunch", 1_000 * i, 1_000 * i + 1, 0)
        events += [_kernel(1_000 * i + 10 * (n + 1), 1_000 * i + 10 * (n + 1) + 5, host, n) for n in range(nodes)]
    return events


def test_graphs_that_start_alike_are_told_apart_by_their_size() -> None:
    """As the passes of a denoising stream do, of which the last one of a frame block is shorter."""
    assert not short_graphs(trace_of(_graphs(6, 6, 4, 6, 6, 4, 9)))  # the last stands alone, and nothing is larger
    found = short_graphs(trace_of(_graphs(6, 6, 3, 4, 6, 5, 4, 1)))
    assert [each[2:] for each in found] == [(4, 4, (1, 3)), (4, 6, (5,))]


def test_a_graph_with_kernels_of_its_own_is_another() -> None:
    """As the pass that derives a stream's past again, once, amid larger ones."""
    *alike, first, second, third = _graphs(6, 6, 3)
    assert len(short_graphs(trace_of([*alike, first, second, third]))) == 1
    own = [first, second._replace(name="a"), third._replace(name="b")]
    assert not short_graphs(trace_of([*alike, *own]))


def test_delays_behind_a_busy_device_do_not_hide_a_late_host() -> None:
    """Idle for half of the time, all but 1 % of it with the host late; the median launch waits 0.6 ms in the queue."""
    events, now = [], 0
    for _ in range(4):  # bursts of 30 launches into a queue that backs up, then the host stays away until long after it drained
        ends = now + 6_600
        for i in range(30):
            host = HostEvent("cudaLaunchKernel", now + 10 * i, now + 10 * i + 5, 0)
            start = max(ends, host.start_ns + 6_600)
            ends = start + 40_000
            events.append(_kernel(start, ends, host))
        now = ends + 1_200_000  # the device is idle for half of the time
    (view,) = device_views(trace_of(events))
    found = activity(view)
    assert found.device.idle_ns > 0.4 * found.device.span_ns
    assert found.idle["host_late"] > 0.98 * found.device.idle_ns
    assert Launch(view).kinds["single"][0][0].p50_ns > 500_000
    assert (found.device.verdict, found.late_delay_ns) == ("host-bound", 6_600)


def test_overhead_in_a_gap_does_not_count_its_launch_twice() -> None:
    """Gaps that overhead splits into three pieces end with one launch each: 5, 5 and 9 µs, not 9, 9, 9."""
    events, overhead, now = [], [], 0
    for delay in (0, 5_000, 5_000, 9_000):
        host = HostEvent("cudaLaunchKernel", now + 100_000, now + 100_005, 0)
        if delay == 9_000:
            overhead += [(now + 20_000, now + 21_000), (now + 40_000, now + 41_000), (now + 60_000, now + 61_000)]
        start = host.start_ns + delay
        events.append(_kernel(start, start + 1_000, host))
        now = start + 1_000
    found = _done(trace_of(events, overhead=tuple(overhead)))
    assert (found.device.verdict, found.late_delay_ns) == ("host-bound", 5_000)


_LAMBDA = (
    "(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#4}::operator()() const::{lambda(c10::BFloat16)#1}"
)
_AT = "void at::native::"
_FA2_TRAITS = "<128, 128, 64, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >"


@pytest.mark.parametrize(
    ("raw", "group"),
    [
        # PyTorch: what the kernel computes is a template argument
        (
            f"{_AT}vectorized_elementwise_kernel<8, at::native::tanh_kernel_cuda{_LAMBDA}, std::array<char*, 2ul> >(int)",
            "vectorized_elementwise_kernel<tanh_kernel_cuda>",
        ),
        (
            f"{_AT}vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<long, long, bool, at::native::(anonymous "
            "namespace)::CompareEqFunctor<long> >, std::array<char*, 2ul> >(int)",
            "vectorized_elementwise_kernel<CompareEqFunctor>",
        ),
        (
            f"{_AT}(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata"
            "<2>, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>(int)",
            "multi_tensor_apply_kernel<plus>",
        ),
        # attention, generation by generation
        (
            f"void pytorch_flash::flash_fwd_splitkv_kernel<pytorch_flash::Flash_fwd_kernel_traits{_FA2_TRAITS}, false>(P)",
            "pytorch_flash::flash_fwd_splitkv_kernel",
        ),
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
            "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cutlass::bfloat16_t> > > >(flash::Params)",
            "cutlass::device_kernel<FlashAttnFwdSm90>",
        ),
        ("kernel_flash_fwd_sm100FlashForwardSm100_object_at__tensor0000o11101213_0", "kernel_flash_fwd_sm100FlashForwardSm100"),
        ("cudnn_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1", "cudnn_native_sdpa_sm90_flash_fprop_wgmma_f16"),
        # matrix products, by family
        ("nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT", "nvjet_sm90_tst"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn", "ampere_bf16_s16816gemm_bf16"),
        ("depthwise_conv_3x3_kernel", "depthwise_conv_3x3_kernel"),
        ("void Wrapped<Foo>::run<Bar>(int)", "Wrapped::run<Foo>"),
        (
            "void cutlass::Kernel2<cutlass_80_bf16_gemm_bf16_32x32_128x2_tn>(Params)",
            "cutlass::Kernel2<cutlass_80_bf16_gemm_bf16>",
        ),
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN",
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs",
        ),
        ("batched_transpose_256x4_half", "batched_transpose"),
        # code generators
        ("triton_poi_fused_add_cos_sin_12", "triton_poi_fused_add_cos_sin"),
        ("loop_add_fusion.12", "loop_add_fusion"),
        ("_attn_fwd_0d1d2d3de4de5c", "_attn_fwd"),
        ("my_kernel_3fa9b2c4d5e6", "my_kernel"),
        # communication, copies, names that say all they can
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclArgs<4096ul>)", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        ("attn_fwd", "attn_fwd"),
        ("64x64", "64x64"),
        ("void ", "void "),
        ("", ""),
    ],
)
def test_groups(raw: str, group: str) -> None:
    assert kernel_name(raw) == group


def test_mangled_names_are_demangled_first() -> None:
    raw = (
        "_ZN7cutlass13device_kernelIN5flash23FlashAttnFwdPostprocessINS_10bfloat16_tELj256ELj192ELb1ELNS1_10SinkLayoutE0E"
        "NS_4arch4Sm90EEEEEvNT_6ParamsE"
    )
    assert full_name(raw).startswith(
        "void cutlass::device_kernel<flash::FlashAttnFwdPostprocess<cutlass::bfloat16_t, 256u, 192u,"
    )
    assert kernel_name(raw) == "cutlass::device_kernel<FlashAttnFwdPostprocess>"
    mangled = "_Z10add_kernelPfS_i.kd"
    assert (kernel_name(mangled), full_name(mangled)) == ("add_kernel", "add_kernel(float*, float*, int)")


@pytest.mark.parametrize(
    ("behind", "left"),
    [
        (" [clone .1]", ""), (".kd.kd", ""), (" [clone .isra.0] [clone .cold].kd", ""), (" [clone .part.3].kd [clone .kd]", ""),
        (" [clone .1]]", " [clone .1]]"), (" [1]", " [1]"), (" [clone .1] [2]", " [clone .1] [2]"),
    ],
)  # fmt: skip
def test_what_compilers_add_behind_a_name_is_cut(behind: str, left: str) -> None:
    assert full_name(f"add_kernel{behind}") == f"add_kernel{left}"


@pytest.mark.parametrize("raw", ["_Znot a name", "_Z", "_Z\x00\ud800", "_ZN7cutlass13device"])
def test_what_cannot_be_demangled_stays(raw: str) -> None:
    assert kernel_name(raw) == full_name(raw) == raw


def test_without_a_cpp_runtime_names_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels._runtime.cache_clear()
    monkeypatch.setattr(kernels, "_LIBRARIES", ("libnothing-of-this-name.so",))
    try:
        assert demangle("_Z10add_kernelPfS_i") == "_Z10add_kernelPfS_i"
    finally:
        kernels._runtime.cache_clear()


@pytest.mark.parametrize(
    "raw", ["a<b", "operator<", "->", "(x)", "f<<>>>(", "void <>()", "::", "x" * 20_000, "f<" * 5_000, "_0" * 5_000]
)
def test_any_text_has_a_group(raw: str) -> None:
    assert kernel_name(raw)


NAMES = {
    Part.OTHER_ATTENTION: (
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 64, 4>>(Flash_fwd_params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90<int>>(Params)",
        "attn_fwd",
        "_attend_kernel",
        "fmha_cutlassF_f16_aligned_64x64_rf_sm80(Params)",
        "triton_tem_fused_flex_attention_1",
    ),
    Part.MATRIX: (
        "nvjet_sm90_tst_128x64_64x7_1x2_h_bz_TNT",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x64x64",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_tn_align8>(Params)",
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32",
        "void splitKreduce_kernel<32, 16, int, float>(Params)",
        "void gemv2T_kernel_val<int, float, 128>(Params)",
        "triton_tem_fused_mm_3",
        "implicit_convolve_sgemm",
        "_scaled_mm_kernel",
    ),
    Part.OTHER_KERNELS: (
        "triton_poi_fused_addmm_gelu_4",
        "triton_per_fused__scaled_dot_product_flash_attention_7",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda()::{lambda()#1}>(int)",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)",
        "softmax_warp_forward",
        "convert_fp8",
        "comma_kernel",
        "_round_kernel",
    ),
}


@pytest.mark.parametrize(("name", "part"), [(name, part) for part, names in NAMES.items() for name in names])
def test_a_name_says_what_a_kernel_computes(name: str, part: Part) -> None:
    assert kernel_part(name) == part


@pytest.mark.parametrize("epoch", [0, 1_751_410_836_000_000_001])
def test_events_shorter_than_a_microsecond_keep_every_nanosecond(epoch: int) -> None:
    """Rounding starts up and ends down to microseconds loses up to 1 µs a call; here it would lose all.

    A float64 of a time since the epoch loses up to 256 ns of it.
    """
    starts = range(epoch, epoch + 100_000, 1_000)
    (view,) = device_views(trace_of([DeviceEvent("k", "kernel", start, start + 777, 0, 7, 0, None) for start in starts]))
    ((row, _),) = kernel_table(view)
    assert (row.sum_ns, row.exclusive_ns, row.min_ns, row.max_ns) == (77_700, 77_700, 777, 777)
    assert activity(view).device.idle_ns == 99 * 223
