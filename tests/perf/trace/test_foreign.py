"""Traces of other profilers come out in the same columns, and files of which nothing is used are refused."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import strobe
from layouts import compact, write
from strobe.core.errors import TraceFormatError
from strobe.perf.trace import Trace, find_traces, read_trace
from synthetic import event, kernel, launch


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
    assert _said(trace) == [
        ("gemm_fusion", "kernel", 100_000, 140_500, 1, 18),
        ("MemcpyD2D", "memcpy", 150_000, 159_250, 1, 18),
    ]
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
