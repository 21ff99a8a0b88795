"""Launch delays, the verdict and the signs of loss, by hand and against what other tools get wrong."""

from typing import Any

import pytest

from made_traces import trace_of
from strobe.perf.analysis.device.activity import Activity, activity, device_views
from strobe.perf.analysis.device.launch import Launch, past_end_ns, short_graphs, unanswered_calls
from strobe.perf.trace import DeviceEvent, HostEvent, Trace


def _kernel(start: int, end: int, host: HostEvent | None, ordinal: int = 0, **fields: Any) -> DeviceEvent:
    return DeviceEvent("k", "kernel", start, end, 0, 7, ordinal, host)._replace(**fields)


def _launch(trace: Trace) -> Launch:
    (view,) = device_views(trace)
    return Launch(view)


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


def _backlog(delay_ns: int, bursts: int = 4) -> list[DeviceEvent]:
    """Bursts of 30 launches into a queue that backs up, then the host stays away until long after it has drained."""
    events, now = [], 0
    for _ in range(bursts):
        ends = now + delay_ns
        for i in range(30):
            host = HostEvent("cudaLaunchKernel", now + 10 * i, now + 10 * i + 5, 0)
            start = max(ends, host.start_ns + delay_ns)
            ends = start + 40_000
            events.append(_kernel(start, ends, host))
        now = ends + 1_200_000  # the device is idle for half of the time
    return events


def test_delays_behind_a_busy_device_do_not_hide_a_late_host() -> None:
    """Idle for half of the time, all but 1 % of it with the host late; the median launch waits 0.6 ms in the queue."""
    found = _done(trace_of(_backlog(6_600)))
    assert found.device.idle_ns > 0.4 * found.device.span_ns
    assert found.idle["host_late"] > 0.98 * found.device.idle_ns
    assert _launch(trace_of(_backlog(6_600))).kinds["single"][0][0].p50_ns > 500_000
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
