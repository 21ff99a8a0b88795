"""What is kept of a trace, and what is not: categories, names and arguments of every vendor, year and profiler."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strobe
from layouts import compact, shuffled, write
from source import H200
from strobe.core.errors import TraceFormatError
from strobe.perf.trace import HostEvent, Trace, find_traces, read_trace, tables
from strobe.perf.trace.events import NO_CORRELATION, NO_HOST
from synthetic import META, START, event, instant, kernel, launch, sample

NS = START * 1000


def _read(tmp_path: Path, events: list[dict[str, Any]], meta: dict[str, Any] | None = None, **options: Any) -> Trace:
    return read_trace(write(tmp_path / "t.json", compact(events, META if meta is None else meta)), **options)


def test_metadata(tmp_path: Path) -> None:
    trace = _read(
        tmp_path, sample(), META | {"with_stack": 1, "trace_id": "AB", "INFO": ["x"], "cupti": {"version": 22, "more": []}}
    )
    assert (trace.base_ns, trace.rank, trace.world_size) == (META["baseTimeNanoseconds"], 3, 8)
    assert trace.devices == {0: 'GPU "A"', 1: "B"}
    assert trace.metadata == {
        "schemaVersion": "1", "with_stack": "1", "trace_id": "AB", "cupti.version": "22",
        "distributedInfo.rank": "3", "distributedInfo.world_size": "8", "distributedInfo.backend": "nccl",
    }  # fmt: skip
    assert trace.window_end_ns == NS + 9_000_125


@pytest.mark.parametrize("meta", [{}, {"distributedInfo": None}, {"distributedInfo": {"rank": True}, "deviceProperties": {}}])
def test_metadata_that_says_nothing(meta: dict[str, Any], tmp_path: Path) -> None:
    trace = _read(tmp_path, sample(), meta)
    assert (trace.base_ns, trace.rank, trace.world_size, trace.devices) == (0, None, None, {})


def test_spans_ranges_modules_and_overhead_and_device_events_joined_by_correlation(tmp_path: Path) -> None:
    trace = _read(tmp_path, sample())
    assert [(r.name, r.index, r.start_ns - NS, r.end_ns - NS) for r in trace.regions] == [
        ("frame_block", 3, 3, 5_000_503),
        ('a user\'s "span"', None, 7, 12_352),
    ]
    assert [r.name for r in trace.ranges] == ["ProfilerStep#3", "strobe::frame_block#3", 'strobe::a user\'s "span"']
    assert [(m.name, m.start_ns - NS) for m in trace.modules] == [('}, {"ph": "X"', 3)]
    assert [(name, a - NS, b - NS) for name, a, b, _ in trace.overheads] == [
        ("Activity Buffer Request", 50_000, 60_000), ("Buffer Flush", 55_000, 65_500),
    ]  # fmt: skip
    thread = trace.threads.index("4/17")
    graph = [one for one in trace.device_events if one.host is not None and one.host.name == "cudaGraphLaunch"]
    assert [one.ordinal for one in graph] == [0, 1, 2, 3, 4]
    assert {one.host for one in graph} == {HostEvent("cudaGraphLaunch", NS + 20_000, NS + 25_250, thread)}
    copy, nccl = (next(e for e in trace.device_events if e.name.startswith(name)) for name in ("Memcpy", "nccl"))
    assert (copy.host, copy.kind, copy.ordinal, copy.shape) == (None, "memcpy", 0, "4096 B")  # launched before the window: kept
    assert nccl.kind == "comm" and nccl.start_ns == nccl.end_ns and (nccl.device, nccl.stream) == (1, 20)
    assert nccl.host is not None and nccl.host.name == "cudaLaunchKernelExC"  # the driver call lies inside it
    assert trace.launched == {"cudaGraphLaunch": (1, 0), "cudaLaunchKernelExC": (1, 0)}


def test_no_capture_names_a_machine() -> None:
    for path in H200.rglob("*.json.gz"):
        meta = json.loads(gzip.decompress(path.read_bytes())) | {"traceEvents": ()}
        assert meta.keys() > {"deviceProperties"} and not re.search(r"/(?:tmp|work|root|home|opt)/", str(meta)), path


def test_what_only_looks_like_device_work_is_left_out(tmp_path: Path) -> None:
    place = {"device": 0, "stream": 7, "correlation": 1}
    others = ["cuda_sync", "cuda_event", "gpu_user_annotation", "Trace", "mtia_insight", "collective_comm", "cuda_profiler_range"]
    triton = event("cpu_op", "triton_poi_fused_0", "1", "5", stream=0, grid="grid(1,)", kernel_backend="triton", device=0)
    events = [event(category, "k", "1", "5", **place) for category in [*others, "unheard_of"]]
    counter = event("hardware_counters", "power", "1", "0", W=1) | {"ph": "C", "pid": "GPU 0 Counters"}
    begin = event("kernel", "k", "1", "5", **place) | {"ph": "B"}
    trace = _read(tmp_path, [*events, triton, counter, begin, kernel("k", "1", "5", 1)])
    assert [(one.name, one.stream) for one in trace.device_events] == [("k", 7)]
    assert [op.name for op in trace.ops] == ["triton_poi_fused_0"]
    assert trace.counts.clean


@pytest.mark.parametrize(
    ("runtime", "call", "category", "name", "kind"),
    [
        ("cuda_runtime", "hipExtModuleLaunchKernel", "kernel", "Cijk_Ailk_Bljk", "kernel"),
        ("cuda_runtime", "hipMemcpyWithStream", "gpu_memcpy", "Memcpy HtoD (Host -> Device)", "memcpy"),
        ("cuda_runtime", "hipGraphLaunch", "kernel", "rcclGenericKernel", "comm"),
        ("cuda_driver", "cuLaunchKernelEx", "kernel", "triton_", "kernel"),
        ("Runtime", "cudaLaunchKernel", "Kernel", "volta_sgemm", "kernel"),
        ("Runtime", "cudaMemsetAsync", "Memset", "Memset (Device)", "memset"),
        ("Runtime", "cudaMemcpyAsync", "Memcpy", "Memcpy DtoD", "memcpy"),
        ("mtia_runtime", "launch", "mtia_ccp_events", "aten::mm", "kernel"),
        ("mtia_runtime", "launch", "mtia_ccp_events", "hccl::allreduce", "comm"),
        ("xpu_runtime", "urEnqueueKernelLaunch", "kernel", "gemm_kernel", "kernel"),
        ("hpu_op", "launch", "kernel", "k", "kernel"),
        ("privateuse1_runtime", "LaunchKernel", "kernel", "k", "kernel"),
        ("vendor_driver", "LaunchKernel", "kernel", "k", "kernel"),
        ("cuda_runtime", "cudaLaunchKernel", "kernel", "void vllm::cross_device_reduce_1stage<half, 8>(...)", "comm"),
        ("cuda_runtime", "cudaLaunchKernel", "kernel", "void at::native::reduce_kernel<512>(...)", "kernel"),
    ],
)
def test_other_vendors_and_older_files(runtime: str, call: str, category: str, name: str, kind: str, tmp_path: Path) -> None:
    device = event(category, name, "15", "3", device=2, stream=3, correlation=1)
    trace = _read(tmp_path, [event(runtime, call, "10", "2", correlation=1), device])
    (one,) = trace.device_events
    assert (one.name, one.kind, one.start_ns, one.end_ns, one.device, one.stream) == (name, kind, 15_000, 18_000, 2, 3)
    assert one.host is not None and one.host.name == call
    assert trace.launched == {call: (1, 0)}


def test_missing_and_odd_arguments(tmp_path: Path) -> None:
    bare = {"ph": "X", "cat": "kernel", "name": "bare", "ts": "20", "dur": "1"}
    events = [
        event("kernel", "text", "10", "1", device="1", stream="20", correlation="5"),
        event("kernel", "placed", "15", "1") | {"pid": 2, "tid": 30, "args": None},
        bare,
        event("kernel", "placed", "25", "1") | {"pid": 3, "tid": 30, "args": None},
        event("cuda_runtime", "cudaLaunchKernel", "25", "1"),
        event("kernel", "far", "30", "1", device=70_000, stream=2**33, correlation=2**40),
        event("kernel", "farther", "31", "1", device=0, stream=2**33 + 1, correlation=-1),
        launch("5", "1", 5), launch("6", "1", 2**40, "cuLaunchKernel"),
    ]  # fmt: skip
    trace = _read(tmp_path, events)
    assert [(e.name, e.device, e.host and e.host.name) for e in trace.device_events] == [
        ("text", 1, "cudaLaunchKernel"), ("placed", 2, None), ("bare", -1, None), ("placed", 3, None),
        ("far", -1, "cuLaunchKernel"), ("farther", 0, None),
    ]  # fmt: skip
    assert [e.stream for e in trace.device_events][:3] == [20, 30, -1]
    far, farther = (e.stream for e in list(trace.device_events)[4:])
    assert far != farther  # streams are never pooled
    assert trace.launched == {"cuLaunchKernel": (1, 0), "cudaLaunchKernel": (1, 0)}


def test_a_cpu_trace_has_operators_in_any_case(tmp_path: Path) -> None:
    events = [one for one in sample() if one.get("cat") in ("cpu_op", "user_annotation")]
    with_ops, without = (_read(tmp_path, events, ops=ops) for ops in (True, False))
    assert with_ops == without and len(without.ops) == 40


def test_shapes(tmp_path: Path) -> None:
    sizes = [[1, 512], [], 3, [[4, 1], [4, 8]], [[], [2, 2]]]
    events = [
        event("cpu_op", "aten::mm", "1", "1", **{"External id": 9, "Input Dims": sizes}),
        event("cpu_op", "aten::item", "2", "1", **{"External id": 8, "Input Dims": []}),
        kernel("a", "3", "1", 1, **{"External id": 9, "grid": [2, 3, 4], "block": [128, 1, 1]}),
        kernel("b", "4", "1", 2, **{"External id": 8, "grid": [2, 3, 4], "block": [128, 1, 1]}),
        kernel("c", "5", "1", 3, grid="grid(3,)"),
        event("gpu_memcpy", "d", "6", "1", **{"device": 0, "stream": 7, "external id": 9, "bytes": 64}),
    ]
    plain, sized = (_read(tmp_path, events, shapes=shapes, ops=False) for shapes in (False, True))
    assert [e.shape for e in plain.device_events] == ["grid 2x3x4 block 128x1x1", "grid 2x3x4 block 128x1x1", "", "64 B"]
    text = "1x512, (4x1, 4x8), (2x2)"
    assert [e.shape for e in sized.device_events] == [text, "grid 2x3x4 block 128x1x1", "", text]
    assert len(sized.ops) == 0


@pytest.mark.parametrize("key", ["module_fqn", "name", "str", "annotation"])
def test_module_paths_and_labels_of_graph_kernels(key: str, tmp_path: Path) -> None:
    events = [kernel(f"k{i}", str(100 - i), "1", 1) for i in range(10)]
    for i in range(0, 10, 3):
        events[i]["args"][key] = f"blocks.{i}"
    trace = _read(tmp_path, [launch("1", "1", 1, "cudaGraphLaunch"), *events])
    assert trace.module_paths == {9 - i: f"blocks.{i}" for i in (9, 6, 3, 0)}
    assert all(trace.device_events[at].name == f"k{path.removeprefix('blocks.')}" for at, path in trace.module_paths.items())


def test_collectives(tmp_path: Path) -> None:
    said = {
        "Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]", "Seq": 12,
        "In msg nelems": 1024, "Out msg nelems": 2048, "dtype": "BFloat16",
    }  # fmt: skip
    op = event(
        "cpu_op", "record_param_comms", "1", "1", **{"External id": 4, **said, "Seq": 13, "Process Group Ranks": "[0, ..., 31]"}
    )
    events = [
        op,
        kernel("ncclDevKernel_AllReduce", "30", "1", 1, **said),
        kernel("ncclDevKernel_SendRecv", "40", "1", 2, **{"External id": 4}),
        kernel("ncclDevKernel_Broadcast", "50", "1", 3),
        kernel("custom", "60", "1", 4, **said | {"Seq": None, "External id": 4}),
        kernel("gemm", "20", "1", 5),
        kernel("first", "70", "1", 6, **said | {"Seq": 0, "External id": 4}),  # its own number counts
    ]
    trace = _read(tmp_path, events, ops=False)
    assert [e.kind for e in trace.device_events] == ["kernel", *["comm"] * 5]
    found = trace.collectives.items()
    assert [(event, kind.name, kind.ranks, number, kind.in_elements) for event, (kind, number) in found] == [
        (1, "allreduce", (0, 1, 2, 3), 12, 1024),
        (2, "allreduce", (0, 31), 13, 1024),
        (3, "", (), -1, -1),
        (4, "allreduce", (0, 1, 2, 3), 13, 1024),
        (5, "allreduce", (0, 1, 2, 3), 0, 1024),
    ]
    assert {(kind.group, kind.out_elements, kind.dtype) for _, (kind, _) in found if kind.name} == {("0", 2048, "BFloat16")}
    assert len(trace.ops) == 0


def _allocation(at_ns: int, allocated: int, reserved: int | None = None, **more: object) -> dict[str, Any]:
    args = {"Total Allocated": allocated, "Device Type": 1, "Device Id": 0}
    args |= {} if reserved is None else {"Total Reserved": reserved}
    return instant("[memory]", f"{at_ns // 1000}.{at_ns % 1000:03d}", cat="cpu_instant_event", args=args | more)


def test_memory_is_thinned_and_keeps_its_peaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_STRETCHES", 16)
    values = [(NS + 977 * i, (i * 7919) % 1000, (i * 104_729) % 2000) for i in range(400)]
    events = [_allocation(*value) for value in values]
    events += [_allocation(NS, at, **{"Device Type": kind, "Device Id": of}) for at, kind, of in ((5, 0, -1), (6, 6, 2))]
    events += [_allocation(NS, 9, **{"Total Allocated": None}), _allocation(NS, 10**6) | {"name": "other"}]
    events += [instant("[memory]", "1000.000", cat="cpu_instant_event")]
    del events[0]["cat"]
    cpu, cuda, hip = _read(tmp_path, shuffled(events)).memory
    assert [track.device for track in (cpu, cuda, hip)] == ["cpu", "cuda:0", "hip:2"]
    assert (cpu.allocated_bytes, hip.allocated_bytes, cpu.reserved_bytes) == ((5,), (6,), (0,))
    assert 8 < len(cuda.start_ns) <= 16 and cuda.start_ns == tuple(sorted(cuda.start_ns))
    for start, allocated, reserved in zip(cuda.start_ns, cuda.allocated_bytes, cuda.reserved_bytes, strict=True):
        inside = [value for value in values if start <= value[0] < start + cuda.step_ns]
        assert (max(v[1] for v in inside), max(v[2] for v in inside)) == (allocated, reserved)


def test_a_counter_of_what_is_bad_in_memory_events_and_window_ends(tmp_path: Path) -> None:
    trace = _read(tmp_path, [_allocation(NS, 5) | {"ts": "soon"}, instant("Record Window End", "later"), *sample()])
    assert (trace.counts.lost, trace.memory, trace.window_end_ns) == (2, (), NS + 9_000_125)


def test_more_categories_than_are_worth_knowing(tmp_path: Path) -> None:
    noise = [event(f"category {i}", "x", "1", "1") for i in range(500)]
    trace = _read(tmp_path, [*noise, *sample(), *noise])
    assert trace.counts.clean and trace.counts.events == 1000 + len(sample())
    assert (len(trace.device_events), len(trace.ops)) == (7, 40)


def test_device_work_without_a_correlation_is_told_from_work_whose_launch_is_missing(tmp_path: Path) -> None:
    dma = [event("mtia_ccp_events", "DMA In", str(10 * i), "5", device=0, stream=3) for i in range(4)]
    odd = [launch("1", "1", 0), *(kernel(f"k{i}", str(100 + i), "1", 1) for i in range(4))]
    for one, correlation in zip(odd[1:], (None, "soon", -1, 0), strict=True):
        one["args"]["correlation"] = correlation
    trace = _read(tmp_path, [*dma, *odd, kernel("late", "200", "1", 4)])
    assert list(trace.device_events.host) == [NO_CORRELATION] * 8 + [NO_HOST]


MM = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["c10::BFloat16", "c10::BFloat16"], "Concrete Inputs": ["", ""]}


def test_odd_arguments_are_no_error(tmp_path: Path) -> None:
    odd: list[dict[str, Any]] = [
        {"Input Dims": [[2, 2], "x", [[1], [2]]], "Input type": 7}, {"Input Dims": [[2, 2], [2, 2]], "Input type": [None, 3]},
        {"Input Dims": "none", "Input type": []}, {"Input Dims": []}, {},
    ]  # fmt: skip
    ops = [event("cpu_op", "aten::mm", str(i), "1", **{"External id": i}, **args) for i, args in enumerate(odd)]
    work = [kernel("k", f"{9 + i}", "1", i, **{"External id": i}) for i in range(5)]
    trace = _read(tmp_path, [*ops, *work], ops=False, shapes=True)
    assert [(one.sizes, one.types) for one, _ in trace.operators] == [(((2, 2), (), ()), ()), (((2, 2), (2, 2)), ("None", "3"))]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9999)), max_size=30), st.lists(st.integers(0, 2), min_size=6, max_size=6)
)
def test_time_of_the_operators_whose_cost_follows_from_their_inputs(launches: list[tuple[int, int]], kinds: list[int]) -> None:
    sizes = [[[8, 4], [4, 2]], [[16, 4], [4, 2]], [[3, 4], [4, 5]]]
    ops = [
        event("cpu_op", "aten::mm", "1", "1", **{"External id": i + 1}, **MM | {"Input Dims": sizes[kind]})
        for i, kind in enumerate(kinds)
    ]
    work = [
        kernel("k", f"{100 + 50 * i}", f"{ns // 1000}.{ns % 1000:03d}", i, **{"External id": op + 1})
        for i, (op, ns) in enumerate(launches)
    ]
    expected: Counter[int] = Counter()
    for op, ns in launches:
        expected[kinds[op]] += ns
    with tempfile.TemporaryDirectory() as folder:
        trace = _read(Path(folder), [*ops, *work], ops=False, shapes=True)
    assert {sizes.index([list(s) for s in one.sizes]): ns for one, ns in trace.operators} == expected


def _named(what: str, name: str, pid: int, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _plain(name: str, ts: object, dur: object, pid: int, tid: int, **args: object) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "pid": pid, "tid": tid, "args": args}


def _said(trace: Trace) -> list[tuple[Any, ...]]:
    return [(one.name, one.kind, one.start_ns, one.end_ns, one.device, one.stream) for one in trace.device_events]


def _jax() -> list[dict[str, Any]]:
    return [
        _named("process_name", "/device:GPU:1", 1), _named("thread_name", "Stream #18(Compute)", 1, 18),
        _named("thread_name", "XLA Ops", 1, 99), _named("process_name", "/host:CPU", 701),
        _plain("train", 90, 400, 701, 1, step_num="0"),
        _plain("PjitFunction(step)", 95, 10, 701, 1),
        _plain("gemm_fusion", 100, 40.5, 1, 18, hlo_op="gemm_fusion", correlation_id="0"),
        _plain("gemm_fusion", 100, 40.5, 1, 99, hlo_op="gemm_fusion"),
        _plain("MemcpyD2D", 150, 9.25, 1, 18),
        {},
    ]  # fmt: skip


def test_jax_and_its_streams(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.trace.json.gz", compact(_jax(), {"displayTimeUnit": "ns"})))
    assert _said(trace) == [("gemm_fusion", "kernel", 100_000, 140_500, 1, 18), ("MemcpyD2D", "memcpy", 150_000, 159_250, 1, 18)]
    assert [one.name for one in trace.ranges] == ["train#0"] and [one.name for one in trace.ops] == ["PjitFunction(step)"]
    assert trace.foreign.startswith("the profiler of JAX: launch calls")


def test_a_device_of_xla_without_streams_has_its_operators(tmp_path: Path) -> None:
    events = [one for one in _jax() if one.get("tid") != 18]
    assert _said(read_trace(write(tmp_path / "t.json", compact(events, {})))) == [
        ("gemm_fusion", "kernel", 100_000, 140_500, 1, 0)
    ]


def test_ascend_is_a_bare_list_with_times_as_text(tmp_path: Path) -> None:
    events = [
        _named("process_name", "Python", 1), _named("process_name", "CANN", 2), _named("process_name", "Ascend Hardware", 3),
        _named("process_name", "Overlap Analysis", 4), _named("thread_name", "Stream 2", 3, 2),
        _plain("ProfilerStep#7", "1790857026000000.125", 900, 1, 5),
        _plain("aten::mm", "1790857026000001.000", "20.5", 1, 5, **{"Input Dims": [[4, 8], [8, 2]], "Sequence number": 3})
        | {"cat": "cpu_op"},
        _plain("Node@launch", "1790857026000003.000", 4, 2, 5, connection_id=11),
        _plain("MatMulV2", "1790857026000010.250", 30.125, 3, 2, connection_id=11, **{"Task Type": "AI_CORE", "Stream Id": 2}),
        _plain("EVENT_WAIT", "1790857026000050.000", 300, 3, 2, **{"Task Type": "EVENT_WAIT"}),
        _plain("Computing", "1790857026000010.250", 30.125, 4, 1),
    ]  # fmt: skip
    trace = read_trace(write(tmp_path / "trace_view.json", json.dumps(events)))
    zero = 1_790_857_026_000_000_000
    assert _said(trace) == [("MatMulV2", "kernel", zero + 10_250, zero + 40_375, 0, 2)]
    (one,) = trace.device_events
    assert one.host is not None and (one.host.name, one.host.start_ns) == ("Node@launch", zero + 3_000)
    assert [step.name for step in trace.ranges] == ["ProfilerStep#7"] and [op.name for op in trace.ops] == ["aten::mm"]
    assert trace.foreign.startswith("the profiler of Ascend")
    detailed = read_trace(tmp_path / "trace_view.json", details=True)
    assert detailed.details is not None and [one.text for one in detailed.details.inputs] == ["4x8, 8x2"]


def _nsight(path: Path) -> Path:
    database = sqlite3.connect(path)
    run = database.execute
    run("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    texts = ("gemm<128>", "gemm", "cudaLaunchKernel_v7000", "denoise")
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(texts, 1)))
    run("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER)")
    run("INSERT INTO TARGET_INFO_GPU VALUES (0, 'GPU X', 85000000000, 132)")
    place = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER"
    run(
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({place}, demangledName INTEGER, shortName INTEGER, "
        "gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER)"
    )
    run(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({place}, copyKind INTEGER, bytes INTEGER)")
    run(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME "
        "(start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER)"
    )
    run("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, globalTid INTEGER, text TEXT, textId INTEGER)")
    for number, process in enumerate((100, 200)):  # each process counts its calls from 1
        owner = process << 24
        run("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, 1, 3)", (1_000 + number, 3_001, owner + 7))
        row = (5_001 + 9_000 * number, 9_003 + 9_000 * number, number, 7, 1, owner)
        run("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, 1, 2, 4, 2, 1, 128, 1, 1)", row)
    run("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (30000, 31000, 0, 7, 9, ?, 1, 4096)", (100 << 24,))
    run("INSERT INTO NVTX_EVENTS VALUES (500, 40000, 59, ?, NULL, 4)", ((100 << 24) + 7,))
    database.commit()
    database.close()
    return path


def test_an_export_of_nsight_systems(tmp_path: Path) -> None:
    path = _nsight(tmp_path / "report.sqlite")
    assert find_traces([tmp_path]) == (path,)
    trace = read_trace(path)
    assert _said(trace) == [
        ("gemm<128>", "kernel", 5_001, 9_003, 0, 7),
        ("gemm<128>", "kernel", 14_001, 18_003, 1, 7),
        ("Memcpy HtoD", "memcpy", 30_000, 31_000, 0, 7),
    ]
    assert [one.shape for one in trace.device_events] == ["grid 4x2x1 block 128x1x1"] * 2 + ["4096 B"]
    first, second = (one.host for one in list(trace.device_events)[:2])
    assert first is not None and second is not None
    assert (first.name, first.start_ns, trace.threads[first.thread]) == ("cudaLaunchKernel", 1_000, "100/7")
    assert (second.start_ns, trace.threads[second.thread]) == (1_001, "200/7")
    assert [(one.name, one.start_ns) for one in trace.ranges] == [("denoise", 500)]
    assert trace.devices[0] == "GPU X"
    assert trace.foreign.startswith("Nsight Systems: operators")


def test_another_database_and_a_report_that_is_not_exported_are_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "other.sqlite")
    database.execute("CREATE TABLE people (name TEXT)")
    database.commit()
    database.close()
    with pytest.raises(TraceFormatError, match=r"no table of CUDA or NVTX events \(tables: people\).*nsys export --type sqlite"):
        read_trace(tmp_path / "other.sqlite")
    with pytest.raises(TraceFormatError, match="is a report of Nsight Systems; export it"):
        read_trace(write(tmp_path / "a.nsys-rep", "x"))
    with pytest.raises(TraceFormatError, match="cannot read this SQLite file"):
        read_trace(write(tmp_path / "b.sqlite", b"SQLite format 3\x00" + b"x" * 5000))


def _unknown() -> list[dict[str, Any]]:
    name = _named("process_name", "NCCL rank 0", 77)
    pairs = [{"name": "AllReduce", "cat": "COLL", "ph": ph, "pid": 77, "tid": 1, "ts": 5} for ph in "be" for _ in range(3)]
    return [name, *pairs, _plain("proxy", 1, 1, 77, 1)]


@pytest.mark.parametrize("read", [read_trace, strobe.read_trace, lambda path: strobe.compare_traces(path, path)])
def test_a_file_of_which_nothing_is_used_is_refused_with_what_it_has(read: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", json.dumps(_unknown()))
    said = r"none of its 8 events.*6 of 'COLL', 1 of no category; its processes are called 'NCCL rank 0'; read are torch.profiler"
    with pytest.raises(TraceFormatError, match=said):
        read(path)
    write(path, json.dumps([_named("process_name", "python", 77)]))  # torch.profiler's, of a thread that did nothing
    with pytest.raises(TraceFormatError, match="no operator, range or device event; no operator ran while the profiler recorded"):
        read(path)


def test_what_is_not_used_beside_what_is_counts(tmp_path: Path) -> None:
    events = [*_unknown(), launch("1", "1", 1), kernel("k", "3", "1", 1), event("cpu_op", "op", "1", "1")]
    trace = read_trace(write(tmp_path / "t.json", compact(events * 2, {})))
    assert trace.counts.unused == {"COLL": 12, "": 2}


def test_an_operator_of_an_old_trace_may_be_a_step(tmp_path: Path) -> None:
    events = [event("Operator", f"ProfilerStep#{i}", str(10 * i), "9") for i in range(3)] + [event("Operator", "mm", "1", "2")]
    for ops in (True, False):
        trace = read_trace(write(tmp_path / "t.json", compact([*events, kernel("k", "3", "1", 1)], {})), ops=ops)
        assert [one.name for one in trace.ranges] == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
        assert len(trace.ops) == 4 * ops
