"""What the analysis says of our own captures of an H200, against the same worked out again from the raw events."""

from __future__ import annotations

import re
from collections import defaultdict

import msgspec
import pytest

import trace_oracle as oracle
from captures import H200, Raw, Span
from strobe.perf.analysis.comparable import record_facts, trace_facts
from strobe.perf.analysis.device.activity import Activity, activity, device_views
from strobe.perf.analysis.device.kernels import kernel_name, kernel_table
from strobe.perf.analysis.device.launch import Delays, Launch
from strobe.perf.analysis.structure.ranges import range_table
from strobe.perf.analysis.structure.sections import find_sections, parse_section
from strobe.perf.analysis.structure.steps import HELD_UP, LAST, Steps, find_steps
from strobe.perf.records.store import read_run
from strobe.perf.trace import Trace, read_trace

NAMES = ["graph", "eager", "compiled", "pair/traces/sdpa", "pair/traces/sparse-triton"]


@pytest.fixture(scope="module", params=NAMES)
def both(request: pytest.FixtureRequest) -> tuple[Trace, Raw]:
    return read_trace(H200 / f"{request.param}.json.gz"), Raw(request.param)


def _trace(name: str) -> Trace:
    return read_trace(H200 / f"{name}.json.gz")


def _activity(trace: Trace) -> Activity:
    (view,) = device_views(trace)
    return activity(view)


def test_busy_and_idle(both: tuple[Trace, Raw]) -> None:
    trace, raw = both
    account = _activity(trace)
    done, idle = account.device, account.idle
    spans = [(start, end) for _, start, end in raw.device]
    assert (done.events, done.sum_ns, done.busy_ns) == (
        len(spans),
        sum(end - start for start, end in spans),
        oracle.union(spans),
    )
    assert done.span_ns == max(end for _, end in spans) - min(start for start, _ in spans)
    assert not raw.facts.overhead() or max(oracle.span(e)[1] for e in raw.facts.complete if e["cat"] == "overhead") < spans[0][0]
    assert {cause: ns for cause, ns in idle.items() if ns} == {cause: ns for cause, ns in raw.idle().items() if ns}
    assert sum(idle.values()) == done.idle_ns == done.span_ns - done.busy_ns
    assert done.unlinked_events == raw.facts.unlinked() == 0


def test_kernels(both: tuple[Trace, Raw]) -> None:
    trace, raw = both
    (view,) = device_views(trace)
    table = [row for row, _ in kernel_table(view)]
    expected: dict[str, list[int]] = defaultdict(list)
    for event, start, end in raw.device:
        expected[kernel_name(event["name"]).group].append(end - start)
    assert {row.kernel: (row.calls, row.sum_ns, row.min_ns, row.max_ns) for row in table} == {
        group: (len(each), sum(each), min(each), max(each)) for group, each in expected.items()
    }
    assert sum(row.exclusive_ns for row in table) == oracle.union([(s, e) for _, s, e in raw.device])


def test_the_names_of_todays_libraries_group_well() -> None:
    groups = {kernel_name(name).group for name in NAMES for name in _trace(name).device_events.names}
    assert groups == {
        "_tile_kernel", "_score_kernel", "_coarse_kernel", "_select_kernel", "_forward_kernel", "_finish_kernel",
        "nvjet_sm90_tst", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "Memset (Device)",
        "triton_per_fused_add_mul_silu_sum", "cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>",
    }  # fmt: skip


def test_a_graph_launch_is_one_call_of_many_kernels() -> None:
    trace, raw = _trace("graph"), Raw("graph")
    assert raw.launched_by("cudaGraphLaunch") == [28, 28, 28], "4 layers of 7 kernels, 3 steps"
    (view,) = device_views(trace)
    found = Launch(view)
    assert [(row.call, row.calls, row.events) for row in found.calls] == [("cudaGraphLaunch", 3, 84)]
    firsts, rest, seen = list[Span](), list[Span](), set[int]()
    for event, start, _ in raw.device:
        called, returned = raw.host(event)
        (rest if event["args"]["correlation"] in seen else firsts).append((start - called, start - returned))
        seen.add(event["args"]["correlation"])

    def said(delays: Delays) -> tuple[int, ...]:
        ss, es = delays.start_to_start, delays.end_to_start
        return (ss.n, ss.sum_ns, ss.min_ns, ss.max_ns, es.sum_ns, es.min_ns, es.max_ns)

    def expected(delays: list[Span]) -> tuple[int, ...]:
        ss, es = zip(*delays, strict=True)
        return (len(ss), sum(ss), min(ss), max(ss), sum(es), min(es), max(es))

    assert {kind: said(delays) for kind, delays in found.kinds.items()} == {
        "graph-first": expected(firsts), "graph-rest": expected(rest),
    }  # fmt: skip
    assert (len(firsts), len(rest)) == (3, 81)


def test_the_verdicts() -> None:
    verdicts = {}
    for name in NAMES:
        verdicts[name] = _activity(_trace(name)).device.verdict
    assert verdicts == {
        "graph": "busy", "eager": "host-bound", "compiled": "host-bound", "pair/traces/sdpa": "busy",
        "pair/traces/sparse-triton": "host-bound",
    }  # fmt: skip
    assert _activity(_trace("graph")).idle["host_late"] == 0, "no kernel of a graph but the first can be late"


def test_one_stream_overlaps_inside_a_graph() -> None:
    raw, done = Raw("graph"), _activity(_trace("graph"))
    overlaps = [e0 - s1 for (_, _, e0), (_, s1, _) in zip(raw.device, raw.device[1:], strict=False) if s1 < e0]
    (stream,) = done.streams
    assert (len(overlaps), sum(overlaps)) == (3, stream.overlap_ns) and done.device.overlap_ns == stream.overlap_ns == 449


@pytest.mark.parametrize(("name", "count"), [("graph", 3), ("eager", 3), ("pair/traces/sdpa", 10)])
def test_steps_tile_the_span(name: str, count: int) -> None:
    trace, raw = _trace(name), Raw(name)
    (found,) = find_steps(trace).values()
    assert isinstance(found, Steps)
    ranges = raw.facts.spans("user_annotation", "ProfilerStep#")
    assert (found.source, [step.number for step in found.steps]) == ("range", sorted(int(span[0]) for span in ranges))
    for step in found.steps:
        _, begin, end, _ = next(span for span in ranges if int(span[0]) == step.number)
        own = [(s, e) for event, s, e in raw.device if begin <= raw.host(event)[0] < end]
        assert (step.start_ns, step.host_ns) == (min(own)[0], end - begin)
    lasts = [step.start_ns for step in found.steps[1:]] + [max(end for _, _, end in raw.device)]
    assert [step.end_ns for step in found.steps] == lasts and len(lasts) == count
    assert found.before_ns + sum(step.length_ns for step in found.steps) + found.after_ns == found.end_ns - found.start_ns


@pytest.mark.parametrize("name", ["graph", "eager"])
def test_a_region_owns_what_the_profiler_projects(name: str) -> None:
    """Kineto's own projection starts 1 ns early and ends 1 ns late."""
    trace, raw = _trace(name), Raw(name)
    projected = [oracle.span(event) for event in raw.facts.complete if event["cat"] == "gpu_user_annotation"]
    (ranges,) = range_table(trace)
    (row,) = [row for row in ranges.rows if row.name == "strobe::denoise_step"]
    assert (row.calls, row.events, row.span_ns) == (3, 84, sum(end - start - 2 for start, end in projected))
    assert (row.sum_ns, ranges.outside_events) == (sum(end - start for _, start, end in raw.device), 0)


def test_a_compiled_region_owns_its_kernels() -> None:
    (ranges,) = range_table(_trace("compiled"))
    (row,) = ranges.rows
    raw = Raw("compiled")
    host = [end - start for name, start, end, _ in raw.facts.spans("cpu_op") if name == "Torch-Compiled Region: 0/0"]
    assert (row.name, row.calls, row.events, row.host_ns) == ("Torch-Compiled Region: 0/0", 3, 6, sum(host))
    assert row.sum_ns == sum(end - start for _, start, end in raw.device)


def test_the_profiler_at_work_is_no_steady_step() -> None:
    (found,) = find_steps(_trace("compiled"), "Torch-Compiled").values()
    assert isinstance(found, Steps)
    assert found.steady.kept == (1,)
    assert found.steady.excluded == {0: HELD_UP, 2: LAST}


@pytest.mark.parametrize("name", ["graph", "eager"])
def test_sections_around_the_attention_kernel(name: str) -> None:
    trace, raw = _trace(name), Raw(name)
    (found,) = find_sections(trace, parse_section("_tile_kernel:start -> _forward_kernel -> _finish_kernel:end"))
    begins, ends = raw.named("_tile_kernel"), raw.named("_finish_kernel")
    expected = []
    for start, _ in raw.named("_forward_kernel"):
        left = max(begin for begin, _ in begins if begin < start)
        right = min(end for begin, end in ends if begin > start)
        expected.append((left, right))
    assert [(one.start_ns, one.end_ns) for one in found.found] == expected and len(expected) == 12
    spans = [(start, end) for _, start, end in raw.device]
    for one in found.found:
        inside = [(max(s, one.start_ns), min(e, one.end_ns)) for s, e in spans if s < one.end_ns and e > one.start_ns]
        assert one.busy_ns == oracle.union(inside)
    assert not found.skipped and not found.overlapping


def test_what_the_captures_say_of_themselves() -> None:
    facts = {name: trace_facts([_trace(name)]) for name in NAMES}
    assert {name: (each["graphs"], each["compiled"]) for name, each in facts.items()} == {
        "graph": ("yes", "none seen"), "eager": ("none seen", "none seen"), "compiled": ("none seen", "yes"),
        "pair/traces/sdpa": ("none seen", "none seen"), "pair/traces/sparse-triton": ("none seen", "none seen"),
    }  # fmt: skip
    assert {(each["device"], each["devices"], each["cuda"]) for each in facts.values()} == {("NVIDIA H200", "1", "13.0")}


def test_records_of_a_call_say_its_sizes() -> None:
    run = read_run(H200 / "pair")
    found = {variant.name: record_facts(run.header, variant) for variant in run.variants}
    assert {(each["tokens"], each["batch"], each["dtype"]) for each in found.values()} == {("8192", "1", "bfloat16")}
    assert [each["sparsity"] for each in found.values()] == ["0.0", "0.8984375"]
    longer = {"batch": 2, "q_tokens": 4680, "kv_tokens": 18720}
    (sizes,) = [variant for variant in run.variants if variant.name == "sdpa"]
    assert record_facts(run.header, msgspec.structs.replace(sizes, sizes=longer))["tokens"] == "4680 queries, 18720 keys"


def test_no_capture_names_a_machine() -> None:
    for name in NAMES:
        assert not re.search(r"/(?:tmp|work|root|home|opt)/", str(Raw(name).meta)), name
