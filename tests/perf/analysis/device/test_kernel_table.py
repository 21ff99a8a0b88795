"""The kernel table by hand, and against what other tools get wrong."""

from collections.abc import Callable

import pytest

from strobe.perf.analysis.device.activity import activity, device_views
from strobe.perf.analysis.device.kernels import KernelRow, kernel_table
from strobe.perf.measure.stats import P99_SAMPLES
from strobe.perf.trace import DeviceEvent, HostEvent, Trace

MakeTrace = Callable[..., Trace]


def _kernel(name: str, start: int, end: int, stream: int = 7, shape: str = "", host: HostEvent | None = None) -> DeviceEvent:
    return DeviceEvent(name, "kernel", start, end, 0, stream, 0, host, shape)


def _rows(trace: Trace, by: str = "name") -> tuple[KernelRow, ...]:
    (view,) = device_views(trace)
    return tuple(row for row, _ in kernel_table(view, by))


@pytest.mark.parametrize("epoch", [0, 1_751_410_836_000_000_001])
def test_events_shorter_than_a_microsecond_keep_every_nanosecond(make_trace: MakeTrace, epoch: int) -> None:
    """Rounding starts up and ends down to microseconds loses up to 1 µs a call; here it would lose all.

    A float64 of a time since the epoch loses up to 256 ns of it.
    """
    events = [_kernel("k", epoch + start, epoch + start + 777) for start in range(0, 100_000, 1_000)]
    trace = make_trace(events)
    (row,) = _rows(trace)
    assert (row.sum_ns, row.exclusive_ns, row.min_ns, row.max_ns) == (77_700, 77_700, 777, 777)
    (view,) = device_views(trace)
    assert activity(view).device.idle_ns == 99 * 223


@pytest.mark.parametrize("n", [P99_SAMPLES - 1, P99_SAMPLES])
def test_p99_needs_enough_calls_and_no_outlier_is_removed(make_trace: MakeTrace, n: int) -> None:
    slow = [_kernel("k", 10_000 * i, 10_000 * i + (9_000 if i == 0 else 10)) for i in range(n)]
    (row,) = _rows(make_trace(slow))
    assert (row.max_ns, row.p99_ns) == (9_000, 10 if n == P99_SAMPLES else None)
