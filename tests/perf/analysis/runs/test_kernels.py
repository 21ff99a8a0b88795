"""The kernel table against a plain recount."""

import statistics

import pytest

from strobe.perf.analysis.runs.breakdown import region_kernels
from strobe.perf.analysis.runs.timeline import Label, Partition, RegionCall, Tile
from strobe.perf.measure.stats import P99_SAMPLES


def _partition(calls: list[RegionCall]) -> Partition:
    total = sum(call.exclusive_ns for call in calls)
    tile = Tile(index=0, start_ns=0, end_ns=total, owned={Label((), "op"): total})
    return Partition(device="cpu", tiles=(tile,), calls=tuple(calls), overlap=())


def test_rows_by_span_and_name_in_order_of_exclusive_time() -> None:
    ffn, attention = Label(("denoise_step", "ffn"), "op"), Label(("commit", "attention"), "op")
    calls = [
        RegionCall("mm", ffn, 0, 10, 4), RegionCall("mm", ffn, 20, 30, 30), RegionCall("mm", ffn, 60, 20, 20),
        RegionCall("mm", ffn, 90, 0, 0),
        RegionCall("mm", attention, 100, 7, 7), RegionCall("linear", ffn, 0, 100, 55),
    ]  # fmt: skip
    table = region_kernels(_partition(calls))
    assert [(region, row.kernel, row.exclusive_ns) for region, row in table] == [
        ("ffn", "linear", 55), ("ffn", "mm", 54), ("attention", "mm", 7),
    ]  # fmt: skip
    mm = table[1][1]
    assert (mm.calls, mm.sum_ns, mm.min_ns, mm.p50_ns, mm.mean_ns, mm.max_ns, mm.p99_ns) == (4, 60, 0, 10, 15.0, 30, None)


@pytest.mark.parametrize("n", [1, 2, P99_SAMPLES - 1, P99_SAMPLES, 1000])
def test_percentiles_are_samples_and_p99_needs_enough_of_them(n: int) -> None:
    durations = [(i * 7919) % n for i in range(n)]
    _, row = region_kernels(_partition([RegionCall("k", Label((), "kernel"), 0, d, d) for d in durations]))[0]
    assert row.p50_ns == statistics.median_low(durations)
    if n < P99_SAMPLES:
        assert row.p99_ns is None
    else:
        assert row.p99_ns in durations
        assert sum(d <= row.p99_ns for d in durations) >= 0.99 * n > sum(d < row.p99_ns for d in durations)


def test_an_empty_partition_has_an_empty_table() -> None:
    assert region_kernels(_partition([])) == ()
