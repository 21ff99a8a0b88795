"""The reader against an independent one (standard library, exact decimals), on every layout, broken in every way."""

import gzip
import json
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.core.errors import TraceFormatError
from strobe.perf.trace import Device, HostEvent, Trace, chunks, read_trace
from strobe.perf.trace.reader import nanoseconds

_BASE = 1_790_857_026_000_000_000
_TAIL = {
    "deviceProperties": [{"id": 0, "name": 'GPU "A"'}, {"id": 1, "name": "B"}],
    "distributedInfo": {"rank": "3", "world_size": 8},
}


def _event(cat: str, name: str, ts: str, dur: str, **args: object) -> dict:
    """An event whose times are written as these digits (see `_digits`)."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 4, "tid": 17, "ts": f"@{ts}@", "dur": f"@{dur}@", "args": args}


def _sample(num_ops: int = 40) -> list[dict]:
    """Host operators, our spans, launches of all kinds and their device events, near the end of a quarter (7.9e12 us)."""
    start = 7_900_000_000_000
    events: list[dict] = [
        {"ph": "M", "name": "process_name", "pid": 4, "tid": 0, "ts": "@0.000@", "args": {"name": "python"}},
        _event("Trace", "PyTorch Profiler (0)", f"{start}.001", "9000.000") | {"pid": "Spans", "tid": "PyTorch Profiler"},
        _event("user_annotation", "strobe::frame_block#3", f"{start}.003", "5000.500"),
        _event("user_annotation", 'strobe::a user\'s "span"', f"{start}.007", "12.345"),
        _event("user_annotation", "ProfilerStep#3", f"{start}.003", "5000.500"),
        _event("python_function", 'nn.Module: }, {"ph": "X"', f"{start}.003", "1.000", **{"Python id": 1}),
        _event("overhead", "Activity Buffer Request", f"{start + 50}.000", "10.000") | {"pid": -1},
        _event("overhead", "Buffer Flush", f"{start + 55}.000", "10.500") | {"pid": -1},
        _event("cuda_runtime", "cudaGraphLaunch", f"{start + 20}.000", "5.250", correlation=77),
        _event("cuda_driver", "cuLaunchKernelEx", f"{start + 31}.125", "1.000", correlation=78),
        _event("cuda_runtime", "cudaLaunchKernelExC", f"{start + 31}.000", "2.000", correlation=78),
        _event("cuda_runtime", "cudaDeviceSynchronize", f"{start + 90}.000", "2.000", correlation=79),
        _event("gpu_memcpy", "Memcpy HtoD", f"{start + 1}.000", "0.001", correlation=5, device=0, stream=7),
        _event("gpu_user_annotation", "strobe::frame_block#3", f"{start + 20}.000", "90.000"),
        _event("kernel", "ncclDevKernel_AllReduce", f"{start + 40}.000", "0.000", correlation=78, device=1, stream=20),
        {"ph": "s", "cat": "ac2g", "id": 77, "pid": 4, "tid": 17, "ts": f"@{start}.000@", "name": "ac2g"},
        {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": f"@{start}.000@", "s": "g"},
    ]
    for i in range(5):
        node = {"correlation": 77, "device": 0, "stream": 7}
        events.append(_event("kernel", f"graph_node<{i % 2}>", f"{start + 30 + i}.{i:03d}", "0.999", **node))
    for i in range(num_ops):
        nested = {"Input Dims": [[1, 2], []], "list": [{"a": i}, {"ph": "X", "cat": "kernel"}], "text": 'traceEvents": [ \\'}
        op = _event("cpu_op", f"aten::op{i % 7}", f"{start + i}.{i:03d}", f"{i}.{999 - i:03d}", **nested)
        events.append(op | {"tid": 17 + i % 2})
    return events


def _digits(text: str) -> str:
    """Write `"@12.500@"` as the number 12.500, digit for digit."""
    return text.replace('"@', "").replace('@"', "")


def _indented(events: list[dict]) -> str:
    return _digits(json.dumps({"schemaVersion": 1, "traceEvents": events, "baseTimeNanoseconds": _BASE, **_TAIL}, indent=2))


def _kineto(events: list[dict]) -> str:
    body = ",\n".join(
        "  {\n" + ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in e.items()) + "\n  }" for e in events
    )
    head = json.dumps({"deviceProperties": [{"name": "x"}, {"name": "y"}], "baseTimeNanoseconds": _BASE})[:-1]
    return _digits(f'{head},\n "traceEvents": [\n{body}\n  ],"traceName": "out/a.json" }}\n')


def _compact(events: list[dict]) -> str:
    return _digits(json.dumps({"baseTimeNanoseconds": _BASE, **_TAIL, "traceEvents": events}, separators=(",", ":")))


def _keys_reversed(events: list[dict]) -> str:
    turned = [dict(reversed(event.items())) for event in events]
    decoy = {"note": {"traceEvents": [{"ph": "X"}], "s": '"traceEvents": ['}}
    return _digits(json.dumps(decoy | {"traceEvents": turned, "baseTimeNanoseconds": _BASE}))


def _shuffled(events: list[dict]) -> str:
    return _compact(random.Random(4).sample(events, len(events)))


def _bare_list(events: list[dict]) -> str:
    return _digits(json.dumps(events))


_LAYOUTS = [_indented, _kineto, _compact, _keys_reversed, _shuffled, _bare_list]


def _write(path: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def _facts(trace: Trace) -> tuple[object, ...]:
    """What must not depend on the layout. Threads are named, for their numbers follow the file's order."""
    ops = sorted((op.name, op.start_ns, op.end_ns, trace.threads[op.thread]) for op in trace.ops)
    regions = [(region.name, region.index, region.start_ns, region.end_ns) for region in trace.regions]
    device = [(e[:8], e.host and (e.host[:3], trace.threads[e.host.thread])) for e in trace.device_events]
    return ops, regions, device, trace.overhead, trace.counts.events, trace.counts.clean


@pytest.fixture(params=[chunks.CHUNK_BYTES, 2048, 701])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Small chunks put the cuts everywhere."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("layout", _LAYOUTS)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_every_layout_gives_the_same_trace_as_an_independent_reader(
    layout: Callable[[list[dict]], str], suffix: str, tmp_path: Path, chunk_bytes: int
) -> None:
    text = layout(_sample())
    trace = read_trace(_write(tmp_path / f"t{suffix}", text))
    assert _facts(trace) == _facts(read_trace(_write(tmp_path / "other.json", _indented(_sample()))))

    loaded = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    events = loaded if isinstance(loaded, list) else loaded["traceEvents"]
    expected = sorted(
        (e["name"], int(e["ts"] * 1000), int((e["ts"] + e["dur"]) * 1000)) for e in events if e.get("cat") == "cpu_op"
    )
    assert sorted(op[:3] for op in trace.ops) == expected
    kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy")]
    assert sorted((e.name, e.start_ns) for e in trace.device_events) == sorted(
        (e["name"], int(e["ts"] * 1000)) for e in kernels
    )
    assert trace.counts.events == len(events)


def test_metadata_before_and_after_the_events(tmp_path: Path) -> None:
    trace = read_trace(_write(tmp_path / "t.json", _indented(_sample())))
    assert (trace.base_ns, trace.rank, [device.name for device in trace.devices]) == (_BASE, 3, ['GPU "A"', "B"])
    assert read_trace(_write(tmp_path / "t.json", _kineto(_sample()))).devices == (Device(index=0, name="x"), Device(index=1, name="y"))
    assert read_trace(_write(tmp_path / "t.json", _bare_list(_sample()))).base_ns == 0


def test_spans_and_overhead(tmp_path: Path) -> None:
    trace = read_trace(_write(tmp_path / "t.json", _kineto(_sample())))
    start = 7_900_000_000_000_000
    assert [(r.name, r.index, r.start_ns - start, r.end_ns - start) for r in trace.regions] == [
        ("frame_block", 3, 3, 5_000_503),
        ('a user\'s "span"', None, 7, 12_352),
    ]
    assert [(a - start, b - start) for a, b in trace.overhead] == [(50_000, 65_500)]


def test_device_events_are_joined_by_correlation(tmp_path: Path) -> None:
    trace = read_trace(_write(tmp_path / "t.json", _compact(_sample())))
    start, thread = 7_900_000_000_000_000, trace.threads.index("4/17")
    graph = [event for event in trace.device_events if event.host is not None and event.host.name == "cudaGraphLaunch"]
    assert [event.ordinal for event in graph] == [0, 1, 2, 3, 4]
    assert {event.host for event in graph} == {HostEvent("cudaGraphLaunch", start + 20_000, start + 25_250, thread)}
    copy, nccl = (next(e for e in trace.device_events if e.name.startswith(name)) for name in ("Memcpy", "nccl"))
    assert (copy.host, copy.kind, copy.ordinal) == (None, "memcpy", 0)  # launched before the window: kept
    assert nccl.kind == "comm" and nccl.start_ns == nccl.end_ns and (nccl.device, nccl.stream) == (1, 20)
    assert nccl.host is not None and nccl.host.name == "cudaLaunchKernelExC"  # the driver call lies inside it


def test_old_category_names_and_missing_arguments(tmp_path: Path) -> None:
    events = [
        _event("Runtime", "cudaLaunchKernel", "10", "2", correlation=1),
        _event("Kernel", "k", "15", "3", correlation=1, device="0", stream=""),
        _event("Memset", "m", "20", "1"),
        _event("Operator", "mm", "9", "4"),
    ]
    del events[2]["args"]
    trace = read_trace(_write(tmp_path / "t.json", _compact(events)))
    assert [(e.name, e.kind, e.start_ns, e.device, e.host is None) for e in trace.device_events] == [
        ("k", "kernel", 15_000, -1, False),
        ("m", "memset", 20_000, -1, True),
    ]
    assert [op.name for op in trace.ops] == ["mm"]


@pytest.mark.parametrize(
    ("digits", "expected"),
    [
        (b"7900000000000.001", 7_900_000_000_000_001),
        (b"1751410836123456.789", 1_751_410_836_123_456_789),  # epoch microseconds: float64 steps by 0.25 us there
        (b"4376923800717.955", 4_376_923_800_717_955),
        (b"0", 0),
        (b"12", 12_000),
        (b"0.5", 500),
        (b"-3.25", -3250),
        (b"1.2345", 1234),
        (b"1.2355", 1236),
        (b"1.0000000000000001", 1000),
        (b"7.9e12", 7_900_000_000_000_000),
        (b"1.5e-05", 0),
        (b'"123.4"', 123_400),
    ],
)
def test_digits_become_exact_nanoseconds(digits: bytes, expected: int) -> None:
    assert nanoseconds(digits) == expected


@given(st.integers(-(2**61), 2**61))
def test_digits_are_exact_at_any_size(value: int) -> None:
    sign, size = ("-" if value < 0 else ""), abs(value)
    assert nanoseconds(f"{sign}{size // 1000}.{size % 1000:03d}".encode()) == value


@pytest.mark.parametrize("digits", [b"", b"null", b"1e400000000", b"NaN", b"99999999999999999", b"[1]", b'"\xff"'])
def test_what_is_no_time_is_refused(digits: bytes) -> None:
    with pytest.raises(ValueError):
        nanoseconds(digits)


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.97, 0.9999])
def test_truncated_files_are_read_as_far_as_they_go(suffix: str, share: float, tmp_path: Path, chunk_bytes: int) -> None:
    text = _compact(_sample(300)).encode()
    if suffix == ".json":
        left = text[: int(len(text) * share)]
        (tmp_path / "t.json").write_bytes(left)
    else:
        packed = gzip.compress(text)
        (tmp_path / "t.json.gz").write_bytes(packed[: int(len(packed) * share)])
    trace = read_trace(tmp_path / f"t{suffix}")
    assert trace.counts.truncated and not trace.counts.lost
    if suffix == ".json":
        first = left.index(b'"traceEvents":[') + 15
        assert trace.counts.events == sum(_is_whole_event(left[first:], end) for end in range(len(left) - first))


def _is_whole_event(text: bytes, end: int) -> bool:
    """Whether the array of events, closed after this byte, is valid and grew by one event there."""
    if text[end : end + 1] != b"}":
        return False
    try:
        json.loads(b"[" + text[: end + 1] + b"]")
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("ending", ["", ",", ",\n", "\n]", ",\n]", "]\n}\n", '],\n"deviceProperties": [{"name": "A"},'])
def test_a_file_that_ends_between_two_events(ending: str, tmp_path: Path, chunk_bytes: int) -> None:
    events = [_event("cpu_op", f"op{i}", f"{i}.5", "0.25") for i in range(30)]
    trace = read_trace(_write(tmp_path / "t.json", _digits('{"traceEvents":[' + ",".join(map(json.dumps, events)) + ending)))
    assert [op.name for op in trace.ops] == [f"op{i}" for i in range(30)]
    assert (trace.counts.events, trace.counts.lost) == (30, 0)
    assert trace.counts.truncated == ("]" not in ending or "deviceProperties" in ending)


def test_gzip_of_several_members_and_padding(tmp_path: Path, chunk_bytes: int) -> None:
    text = _compact(_sample()).encode()
    packed = b"".join(gzip.compress(text[i : i + 999]) for i in range(0, len(text), 999)) + b"\0" * 512
    (tmp_path / "t.json.gz").write_bytes(packed)
    trace = read_trace(tmp_path / "t.json.gz")
    assert _facts(trace) == _facts(read_trace(_write(tmp_path / "t.json", text)))


_BROKEN = {
    "unescaped quote": (b'"graph_node<1>"', b'"graph "node<1>"', 2, 0),
    "control character": (b'"graph_node<1>"', b'"graph\x01node<1>"', 0, 2),
    "raw newline": (b'"graph_node<1>"', b'"graph\nnode<1>"', 0, 2),
    "bad utf-8": (b'"graph_node<1>"', b'"graph\xff\xfe<1>"', 0, 2),
    "time as a word": (b'"ts":7900000000031.001', b'"ts":"soon"', 1, 0),
    "negative duration": (b'"dur":0.999', b'"dur":-0.999', 0, 6),
    "wrong type": (b'"name":"graph_node<1>"', b'"name":["graph"]', 2, 0),
    "not an object": (b'"traceEvents":[', b'"traceEvents":[null,', 1, 0),
    "trailing comma": (b"}]}", b"},\n]}", 0, 0),
    "doubled comma": (b'},{"ph":"s"', b'},,{"ph":"s"', 0, 0),
}


@pytest.mark.parametrize("what", _BROKEN)
def test_broken_events_are_counted_and_the_others_read(what: str, tmp_path: Path, chunk_bytes: int) -> None:
    good, bad, lost, mended = _BROKEN[what]
    text = _digits(json.dumps({"baseTimeNanoseconds": _BASE, "traceEvents": _sample()}, separators=(",", ":"))).encode()
    assert good in text
    (tmp_path / "t.json").write_bytes(text.replace(good, bad))
    trace = read_trace(tmp_path / "t.json")
    assert (trace.counts.lost, trace.counts.mended, trace.counts.truncated) == (lost, mended, False)
    assert len(trace.ops) == 40
    assert len(trace.device_events) == 7 - (0 if what == "not an object" else lost)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "nothing to read"),
        (b"  \n", "nothing to read"),
        (b"\x1f\x8b\x08", "nothing to read"),
        (b'{"run": "3f2c", "spans": [{"v": 1}]}', "no traceEvents"),
        (b"a log line\nanother", "no traceEvents"),
        (b"[1, 2, 3]", "none of its 3 events"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_reason(text: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(text)
    with pytest.raises(TraceFormatError, match=says):
        read_trace(tmp_path / "t.json")
    with pytest.raises(TraceFormatError, match="No such file"):
        read_trace(tmp_path / "absent.json")


def test_an_empty_trace_is_a_trace(tmp_path: Path) -> None:
    trace = read_trace(_write(tmp_path / "t.json", '{"traceEvents": []}'))
    assert trace.counts.clean and not len(trace.ops) and not len(trace.device_events)


@given(data=st.data())
def test_no_damage_crashes_the_reader(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = bytearray(_kineto(_sample(4)).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        junk = data.draw(st.one_of(st.binary(max_size=6), st.sampled_from([b'"', b"{", b"}", b"]", b'},{"', b"\\", b"[" * 3000])))
        text[at : at + data.draw(st.integers(0, 40))] = junk
    path = tmp_path_factory.mktemp("fuzz") / "t.json"
    path.write_bytes(text)
    try:
        trace = read_trace(path)
    except TraceFormatError:
        return
    assert trace.counts.events >= len(trace.ops) + len(trace.device_events)
