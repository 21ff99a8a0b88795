"""The gap table by hand, and a capture of our own against a plain recount from its JSON."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from strobe.perf.analysis.device.activity import DeviceView, activity, device_views
from strobe.perf.analysis.device.kernels import kernel_table
from strobe.perf.analysis.device.launch import Gaps, launch
from strobe.perf.trace import DeviceEvent, HostEvent, Trace, read_trace

MakeTrace = Callable[..., Trace]
_CAPTURE = Path(__file__).parents[4] / "benchmarks" / "presets-h200" / "traces" / "ultra.json.gz"


def test_a_gap_by_hand(make_trace: MakeTrace) -> None:
    late, early = HostEvent("cudaLaunchKernel", 150, 155, 0), HostEvent("cudaMemcpyAsync", 5, 6, 0)
    trace = make_trace(
        [
            DeviceEvent("Memset (Device)", "memset", 0, 10, 0, 7, 0, early),
            DeviceEvent("triton_poi_fused_add_1", "kernel", 20, 100, 0, 7, 0, None),
            DeviceEvent("Memcpy DtoD (Device -> Device)", "memcpy", 90, 110, 0, 9, 0, early),
            DeviceEvent("Memcpy HtoD (Pinned -> Device)", "memcpy", 105, 120, 0, 11, 0, early),
            DeviceEvent("Memcpy DtoD (Device -> Device)", "memcpy", 130, 135, 0, 9, 0, early),
            DeviceEvent("ncclDevKernel_AllReduce(x)", "comm", 170, 180, 0, 13, 0, late),
            DeviceEvent("triton_poi_fused_add_2", "kernel", 180, 190, 0, 7, 0, None),
            DeviceEvent("Memset (Device)", "memset", 190, 200, 0, 7, 0, early),
        ],
        overhead=((140, 145),),
    )
    (view,) = device_views(trace)
    table = Gaps(view)
    (row,) = table.rows  # the communication kernel ends where the next kernel starts: no gap
    assert (row.after, row.before, row.gaps.n, row.gaps.sum_ns) == ("triton_poi_fused_add", "ncclDevKernel_AllReduce", 1, 70)
    assert row.dtod_copies == 2 and row.spent == {
        "host_late_ns": 5 + 5, "profiler_overhead_ns": 5, "launch_latency_ns": 20, "queued_ns": 10, "unlinked_ns": 0,
        "dtod_ns": 10 + 5, "other_copy_ns": 10, "memset_ns": 0,
    }  # fmt: skip
    assert (table.span_ns, table.kernel_ns, table.gap_ns, table.head_ns, table.tail_ns) == (200, 100, 70, 20, 10)


# ---- a real trace ----


@pytest.fixture(scope="module")
def recorded() -> list[dict[str, Any]]:
    """The events of a capture, with times in exact decimals."""
    return json.loads(gzip.decompress(_CAPTURE.read_bytes()), parse_float=Decimal)["traceEvents"]


@pytest.fixture(scope="module")
def view() -> DeviceView:
    (found,) = device_views(read_trace(_CAPTURE))
    return found


def _ns(microseconds: Any) -> int:
    value = Decimal(microseconds) * 1000
    assert value == value.to_integral_value()
    return int(value)


def _device_events(recorded: list[dict[str, Any]]) -> list[tuple[int, int, dict[str, Any]]]:
    kinds = {"kernel", "gpu_memcpy", "gpu_memset"}
    return sorted(
        ((_ns(e["ts"]), _ns(e["ts"]) + _ns(e["dur"]), e) for e in recorded if e.get("cat") in kinds), key=lambda found: found[:2]
    )


def test_a_capture_adds_up_as_its_json_does(recorded: list[dict[str, Any]], view: DeviceView) -> None:
    events = _device_events(recorded)
    reached, busy = events[0][0], 0
    for start, end, _ in events:
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    found = activity(view)
    assert (found.tally.events, found.sum_ns) == (len(events), sum(end - start for start, end, _ in events))
    assert (found.busy_ns, found.span_ns) == (busy, reached - events[0][0])
    by_category = Counter(e["cat"] for *_, e in events)
    assert {kind: tally.events for kind, tally in found.kinds.items()} == {
        "kernel": by_category["kernel"], "memset": by_category["gpu_memset"], "memcpy": by_category["gpu_memcpy"],
    }  # fmt: skip
    assert {number: stream.events for number, stream in found.streams.items()} == Counter(e["args"]["stream"] for *_, e in events)
    table = kernel_table(view)
    names = {member.name: (member.n, member.sum_ns) for row in table.rows for member in row.members}
    counts, sums = Counter[str](), Counter[str]()
    for start, end, e in events:
        counts[e["name"]] += 1
        sums[e["name"]] += end - start
    assert names == {name: (n, sums[name]) for name, n in counts.items()}
    assert sum(row.exclusive_ns for row in table.rows) == busy


def test_the_delays_and_gaps_of_a_capture(recorded: list[dict[str, Any]], view: DeviceView) -> None:
    calls = {
        e["args"]["correlation"]: (_ns(e["ts"]), _ns(e["ts"]) + _ns(e["dur"]))
        for e in recorded
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    events = _device_events(recorded)
    delays = sorted(start - calls[e["args"]["correlation"]][0] for start, _, e in events)
    single = launch(view).kinds["single"]
    assert (single.start_to_start.n, single.start_to_start.sum_ns) == (len(delays), sum(delays))
    assert (single.start_to_start.min_ns, single.start_to_start.max_ns) == (delays[0], delays[-1])
    assert single.end_to_start.sum_ns == sum(start - calls[e["args"]["correlation"]][1] for start, _, e in events)
    reached, gaps = None, []
    for start, end, e in events:
        if e["cat"] == "kernel" and end > start:
            gaps += [start - reached] if reached is not None and start > reached else []
            reached = max(reached or end, end)
    table = Gaps(view)
    assert (sum(row.gaps.n for row in table.rows), table.gap_ns) == (len(gaps), sum(gaps))
    assert sum(row.dtod_copies for row in table.rows) > 0
