"""Synthetic events for tests. Times are decimal texts of microseconds."""

from __future__ import annotations

from typing import Any

BASE = 1_790_857_026_000_000_000
START = 7_900_000_000_000
"""Microseconds near the end of a quarter, where no float is exact."""
META = {
    "schemaVersion": 1,
    "baseTimeNanoseconds": BASE,
    "deviceProperties": [
        {"id": 0, "name": 'GPU "A"', "totalGlobalMem": 85_018_279_936, "numSms": 132, "computeMajor": 9, "computeMinor": 0},
        {"id": 1, "name": "B"},
    ],
    "distributedInfo": {"rank": "3", "world_size": 8, "backend": "nccl", "pg_config": [{"pg_size": 8}]},
}


def event(cat: str, name: str, ts: str, dur: str, **args: object) -> dict[str, Any]:
    """Return a complete event of a host thread."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 4, "tid": 17, "ts": ts, "dur": dur, "args": args}


def kernel(name: str, ts: str, dur: str, correlation: int, **args: object) -> dict[str, Any]:
    """Return a kernel on stream 7 of device 0."""
    place = {"device": 0, "stream": 7, "correlation": correlation}
    return event("kernel", name, ts, dur, **(place | args)) | {"pid": 0, "tid": 7}


def launch(ts: str, dur: str, correlation: int, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    """Return a launch call."""
    return event("cuda_runtime", name, ts, dur, correlation=correlation)


def instant(name: str, ts: str, **more: object) -> dict[str, Any]:
    """Return an instant event without a category."""
    return {"ph": "i", "name": name, "pid": "", "tid": "", "ts": ts, "s": "g", **more}


def sample(num_ops: int = 40) -> list[dict[str, Any]]:
    """Return operators, our spans, launches of all kinds with their device events, and events that resemble others."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 4, "tid": 0, "ts": "0.000", "args": {"name": "python"}},
        event("Trace", "PyTorch Profiler (0)", f"{START}.001", "9000.000") | {"pid": "Spans", "tid": "PyTorch Profiler"},
        event("user_annotation", "strobe::frame_block#3", f"{START}.003", "5000.500"),
        event("user_annotation", 'strobe::a user\'s "span"', f"{START}.007", "12.345"),
        event("user_annotation", "ProfilerStep#3", f"{START}.003", "5000.500"),
        event("python_function", 'nn.Module: }, {"ph": "X"', f"{START}.003", "1.000", **{"Python id": 1}),
        event("overhead", "Activity Buffer Request", f"{START + 50}.000", "10.000") | {"pid": -1},
        event("overhead", "Buffer Flush", f"{START + 55}.000", "10.500") | {"pid": -1},
        launch(f"{START + 20}.000", "5.250", 77, "cudaGraphLaunch"),
        event("cuda_driver", "cuLaunchKernelEx", f"{START + 31}.125", "1.000", correlation=78),
        launch(f"{START + 31}.000", "2.000", 78, "cudaLaunchKernelExC"),
        launch(f"{START + 90}.000", "2.000", 79, "cudaDeviceSynchronize"),
        event("gpu_memcpy", "Memcpy HtoD", f"{START + 1}.000", "0.001", correlation=5, device=0, stream=7, bytes=4096),
        event("gpu_user_annotation", "strobe::frame_block#3", f"{START + 20}.000", "90.000"),
        kernel("ncclDevKernel_AllReduce", f"{START + 40}.000", "0.000", 78, device=1, stream=20),
        {"ph": "s", "cat": "ac2g", "id": 77, "pid": 4, "tid": 17, "ts": f"{START}.000", "name": "ac2g"},
        instant("Record Window End", f"{START + 9000}.125"),
    ]
    events += [kernel(f"graph_node<{i % 2}>", f"{START + 30 + i}.{i:03d}", "0.999", 77) for i in range(5)]
    for i in range(num_ops):
        nested = {"Input Dims": [[1, 2], []], "list": [{"a": i}, {"ph": "X", "cat": "kernel"}], "text": 'traceEvents": [ \\'}
        op = event("cpu_op", f"aten::op{i % 7}", f"{START + i}.{i:03d}", f"{i}.{999 - i:03d}", **nested)
        events.append(op | {"tid": 17 + i % 2})
    return events
