"""The kernel table by hand, and against what other tools get wrong."""

from collections.abc import Callable

import pytest

from strobe.perf.analysis.device.activity import activity, device_views
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.device.kernels import KernelRow, kernel_table
from strobe.perf.measure.stats import P99_SAMPLES
from strobe.perf.trace import DeviceEvent, HostEvent, Trace

MakeTrace = Callable[..., Trace]
_ADD = "void at::native::vectorized_elementwise_kernel<{}, at::native::CUDAFunctor_add<float>, x>(int)"


def _kernel(name: str, start: int, end: int, stream: int = 7, shape: str = "", host: HostEvent | None = None) -> DeviceEvent:
    return DeviceEvent(name, "kernel", start, end, 0, stream, 0, host, shape)


def _rows(trace: Trace, by: str = "name") -> tuple[KernelRow, ...]:
    (view,) = device_views(trace)
    return tuple(row for row, _ in kernel_table(view, by))


def test_a_table_by_hand(make_trace: MakeTrace) -> None:
    host = HostEvent("cudaLaunchKernel", 0, 1, 0)
    events = [
        _kernel(_ADD.format(4), 10, 30, shape="a", host=host), _kernel(_ADD.format(2), 25, 45, 9, shape="b"),
        _kernel("nvjet_sm90_tst_64x8_64x16", 60, 70), _kernel("_Zno", 70, 70),
        DeviceEvent("Memset (Device)", "memset", 40, 65, 0, 7, 0, None),
    ]  # fmt: skip
    trace = make_trace(events)
    (view,) = device_views(trace)
    table = kernel_table(view)
    assert [(row.kernel, row.kind, row.exclusive_ns, row.sum_ns) for row, _ in table] == [
        ("vectorized_elementwise_kernel<CUDAFunctor_add>", "kernel", 35, 40),
        ("Memset (Device)", "memset", 15, 25),
        ("nvjet_sm90_tst", "kernel", 10, 10),
        ("_Zno", "kernel", 0, 0),
    ]
    assert view.num_cut == 0
    add, names = table[0]
    assert (add.calls, add.unlinked_calls) == (2, 1)
    assert [(each.name, each.calls, each.sum_ns) for each in names] == [(_ADD.format(2), 1, 20), (_ADD.format(4), 1, 20)]
    assert [(row.kernel[:6], row.shape) for row in _rows(trace, "shape")] == [
        ("vector", "a"), ("Memset", ""), ("vector", "b"), ("nvjet_", ""), ("_Zno", ""),
    ]  # fmt: skip


def test_a_window_cuts_calls_and_says_so(make_trace: MakeTrace) -> None:
    trace = make_trace([_kernel("a", 0, 20), _kernel("b", 20, 30), _kernel("a", 40, 60)])
    (view,) = device_views(trace, Window(start_ns=10, end_ns=45, label="w"))
    table = kernel_table(view)
    assert [(row.kernel, row.calls, row.sum_ns) for row, _ in table] == [("a", 2, 15), ("b", 1, 10)]
    assert view.num_cut == 2


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


def test_many_names_keep_their_own_statistics(make_trace: MakeTrace) -> None:
    """The smallest and the largest call are calls, not sums, however many names there are."""
    events = [_kernel(f"k{name}", 1_000 * i + 40 * name, 1_000 * i + 40 * name + i + 1) for name in range(24) for i in range(30)]
    rows = _rows(make_trace(events))
    assert len(rows) == 24
    for row in rows:
        assert (row.calls, row.min_ns, row.p50_ns, row.max_ns, row.sum_ns) == (30, 1, 15, 30, 465)


def test_unlinked_events_and_the_last_step_count(make_trace: MakeTrace) -> None:
    """Launched before the window is no reason to drop work; nor is being in the last step."""
    steps = make_trace([_kernel("k", 0, 10), _kernel("k", 20, 30), _kernel("last", 40, 100)])
    assert [(row.kernel, row.calls, row.unlinked_calls) for row in _rows(steps)] == [("last", 1, 1), ("k", 2, 2)]


@pytest.mark.parametrize("n", [P99_SAMPLES - 1, P99_SAMPLES])
def test_p99_needs_enough_calls_and_no_outlier_is_removed(make_trace: MakeTrace, n: int) -> None:
    slow = [_kernel("k", 10_000 * i, 10_000 * i + (9_000 if i == 0 else 10)) for i in range(n)]
    (row,) = _rows(make_trace(slow))
    assert (row.max_ns, row.p99_ns) == (9_000, 10 if n == P99_SAMPLES else None)


def test_devices_are_never_pooled(make_trace: MakeTrace) -> None:
    events = [_kernel("k", 0, 10), _kernel("k", 5, 25)._replace(device=2)]
    tables = [kernel_table(view) for view in device_views(make_trace(events))]
    assert [(table[0][0].exclusive_ns, table[0][0].calls) for table in tables] == [(10, 1), (20, 1)]
