"""A capture of our own against a plain recount from its JSON."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

from strobe.perf.analysis.device.activity import activity, device_views
from strobe.perf.analysis.device.kernels import kernel_table
from strobe.perf.trace import read_trace

_CAPTURE = Path(__file__).parents[4] / "benchmarks" / "presets-h200" / "traces" / "ultra.json.gz"
_KINDS = {"kernel": "kernel", "gpu_memset": "memset", "gpu_memcpy": "memcpy"}


def _ns(microseconds: Any) -> int:
    value = Decimal(microseconds) * 1000
    assert value == value.to_integral_value()
    return int(value)


def test_a_capture_adds_up_as_its_json_does() -> None:
    recorded = json.loads(gzip.decompress(_CAPTURE.read_bytes()), parse_float=Decimal)["traceEvents"]
    events = sorted(
        ((_ns(e["ts"]), _ns(e["ts"]) + _ns(e["dur"]), e) for e in recorded if e.get("cat") in _KINDS), key=lambda found: found[:2]
    )
    reached, busy = events[0][0], 0
    for start, end, _ in events:
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    (view,) = device_views(read_trace(_CAPTURE))
    account = activity(view)
    found = account.device
    assert (found.events, found.sum_ns) == (len(events), sum(end - start for start, end, _ in events))
    assert (found.busy_ns, found.span_ns) == (busy, reached - events[0][0])
    assert {row.kind: row.events for row in account.kinds} == Counter(_KINDS[e["cat"]] for *_, e in events)
    assert {row.stream: row.events for row in account.streams} == Counter(e["args"]["stream"] for *_, e in events)
    rows = kernel_table(view)
    counts, sums = Counter[str](), Counter[str]()
    for start, end, e in events:
        counts[e["name"]] += 1
        sums[e["name"]] += end - start
    members = {each.name: (each.calls, each.sum_ns) for _, names in rows for each in names}
    assert members == {name: (n, sums[name]) for name, n in counts.items()}
    assert sum(row.exclusive_ns for row, _ in rows) == busy
