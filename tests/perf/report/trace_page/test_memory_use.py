"""How much memory a whole report needs at its peak: a constant, and what the rule allows for each device event."""

from __future__ import annotations

import textwrap

import pytest

from forked import run

RULE = 64
"""Bytes for each device event, the trace itself with its launch calls included."""

_MEASURE = """
    import gc, sys, tracemalloc
    from pathlib import Path
    from made_traces import device_events
    from strobe.perf.report.export import write_events
    from strobe.perf.report.trace_page import device
    from strobe.perf.report.trace_page.build import build_trace_report
    from strobe.perf.report.study import TraceOptions, TraceStudy
    from strobe.perf.trace import DeviceEvent, HostEvent, HostEvents, Trace, columns

    columns.BLOCK, device.MAX_SLICES = 1 << 8, 1_000  # what is constant is reached with fewer events
    nodes, per_step = int(sys.argv[1]), int(sys.argv[4])

    def rows(count):
        call = None
        for i in range(count):
            at = 7_900_000_000_000_000 + 1009 * i
            if i % nodes == 0:
                call = HostEvent("cudaGraphLaunch" if nodes > 1 else "cudaLaunchKernel", at - 900, at - 100, 0)
            kind = ("kernel", "kernel", "memcpy", "kernel", "memset")[i % 5]
            yield DeviceEvent(f"k{i % 40}", kind, at, at + 100 + i * i % 1300, 0, 7 + i % 2, i % nodes, call, f"grid {i % 3}")

    def ranges(count):
        for i in range(0, count, per_step):
            at = 7_900_000_000_000_000 + 1009 * i - 950
            yield HostEvent(f"ProfilerStep#{i // per_step}", at, at + per_step * 1009, 0)

    def peak(count):
        tracemalloc.start()
        events, scopes = device_events(rows(count)), HostEvents.from_rows(ranges(count))
        none = HostEvents.empty()
        trace = Trace(path=Path("t.json"), threads=("1/1",), ops=none, regions=(), ranges=scopes, device_events=events)
        study = TraceStudy(traces=(trace,), labels=("t",), windows=(None,), options=TraceOptions(by=sys.argv[2]))
        gc.collect()
        tracemalloc.reset_peak()
        build_trace_report(study)
        write_events(study, Path(sys.argv[3]))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few, many = 5_000, 15_000
    peak(few)  # what is imported and remembered once
    print((peak(many) - peak(few)) / (many - few))
"""


@pytest.mark.few("8-shape-1000000")
@pytest.mark.parametrize(("nodes", "by", "per_step"), [(1, "name", 200), (8, "shape", 1_000_000)])
def test_a_report_needs_at_most_64_bytes_for_each_device_event(nodes: int, by: str, per_step: int, tmp_path: object) -> None:
    done = run(textwrap.dedent(_MEASURE), nodes, by, f"{tmp_path}/events.csv.gz", per_step)
    assert not done.returncode, done.stderr
    assert float(done.stdout) <= RULE
