"""What the host did while the device waited is named moment by moment, and adds up."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.analysis.device.activity import activity, device_views
from strobe.perf.analysis.structure.ranges import BETWEEN, host_work
from strobe.perf.trace import read_trace
from synthetic import event, kernel, launch

MALLOC, LOAD = ("cuda_runtime", "cudaMalloc"), ("cuda_driver", "cuModuleLoadData")
TUNE, STEP = ("user_annotation", "tune"), ("user_annotation", "ProfilerStep#0")
US = 1000


def found(folder: Path, events: list[dict[str, Any]]) -> tuple[Counter[str], Counter[str], int]:
    """Return the named times of the only device, us, and what its idle time says the host was late, us."""
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (view,) = device_views(read_trace(path))
    work = host_work(view)
    idle = activity(view).idle
    assert sum(work[0].values()) == idle["host_late"] + idle["profiler_overhead"]
    late, before = (Counter({name: ns // US for name, ns in part.items()}) for part in work)
    return late, before, idle["host_late"] // US


def test_the_time_before_the_first_kernel_and_in_a_gap(tmp_path: Path) -> None:
    events = [
        event(*STEP, "0", "1000"),
        event(*MALLOC, "100", "40"),
        event(*TUNE, "200", "300"),
        event(*LOAD, "250", "100"),
        event("cuda_runtime", "cudaFree", "520", "19"),  # too short to be told
        launch("600", "5", 1),
        kernel("one", "610", "50", 1),
        event(*LOAD, "640", "100"),
        launch("800", "5", 2),
        kernel("two", "810", "50", 2),
    ]
    late, before, told = found(tmp_path, events)
    assert before == {"cudaMalloc": 40, "tune": 200, "cuModuleLoadData": 100, BETWEEN: 610 - 340}
    assert late == {"cuModuleLoadData": 80, BETWEEN: 60} and told == 140  # idle from 660 to the launch at 800


def test_a_thread_that_launches_nothing_is_not_told(tmp_path: Path) -> None:
    other = event(*LOAD, "0", "500") | {"tid": 99}
    late, before, _ = found(tmp_path, [other, launch("600", "5", 1), kernel("one", "610", "50", 1)])
    assert late == {} and before == {BETWEEN: 10}  # from the first event of the launching thread on


@given(
    cuts=st.lists(st.integers(0, 400), min_size=2, max_size=12, unique=True),
    kernels=st.lists(st.integers(10, 390), min_size=1, max_size=4, unique=True),
)
def test_each_moment_has_the_innermost_name(cuts: list[int], kernels: list[int], tmp_path_factory: Any) -> None:
    """Nested ranges, the outermost between the outermost cuts, against a walk over each microsecond."""
    edges = sorted(cuts)
    nested = [(f"range {depth}", edges[depth], edges[-1 - depth]) for depth in range(len(edges) // 2)]
    events = [event("user_annotation", name, str(start), str(end - start)) for name, start, end in nested]
    starts = sorted(kernels)
    for number, start in enumerate(starts, 1):
        events += [launch(str(start - 1), "1", number), kernel(f"k{number}", str(start), "2", number)]
    late, before, _ = found(tmp_path_factory.mktemp("host"), events)

    def name_at(moment: int) -> str:
        return next((name for name, start, end in reversed(nested) if start <= moment < end), BETWEEN)

    first = min(edges[0], starts[0] - 1)
    assert before == Counter(name_at(moment) for moment in range(first, starts[0]))
    expected: Counter[str] = Counter()
    for one, other in pairwise(starts):
        expected.update(name_at(moment) for moment in range(one + 2, other - 1))
    assert late == expected
