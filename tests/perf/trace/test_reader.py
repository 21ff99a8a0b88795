"""The reader on every layout, broken in every way: what can be read is read, what cannot is counted, and damage is named."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import damaged
import layouts
from layouts import compact, indented, kineto, write
from made_traces import device_events
from strobe.core.errors import DataError, TraceFormatError
from strobe.perf.logs import read_log
from strobe.perf.report.study import load_trace_study
from strobe.perf.report.trace_page.build import trace_banners
from strobe.perf.trace import DeviceEvent, HostEvent, ReadCounts, Trace, chunks, columns, find_traces, read_trace
from strobe.perf.trace.columns import GrowingColumn, column_ns, nanoseconds
from strobe.perf.trace.join import join
from strobe.perf.trace.tables import DeviceTable, EventKind, HostTable, InputTable, LaunchTable, threads_of
from synthetic import META, START, event, kernel, launch, sample


def _facts(trace: Trace) -> tuple[object, ...]:
    """Everything but the path and the metadata."""
    columns = trace.ops, trace.ranges, trace.modules, trace.device_events, trace.regions, trace.overheads, trace.threads
    return *columns, trace.launched, trace.window_end_ns, trace.counts


@pytest.fixture(params=[chunks.CHUNK_BYTES, 2048, 701])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Small chunks put the cuts everywhere."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", request.param)
    monkeypatch.setattr(chunks, "BLOCK_BYTES", request.param)
    return request.param


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read_trace(write(tmp_path_factory.mktemp("known") / "t.json", compact(sample(), META)))


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_layout_gives_the_same_trace(
    layout: layouts.Layout, suffix: str, shuffle: bool, known: Trace, tmp_path: Path, chunk_bytes: int
) -> None:
    events = layouts.shuffled(sample()) if shuffle else sample()
    trace = read_trace(write(tmp_path / f"t{suffix}", layout(events, META)))
    assert _facts(trace) == _facts(known)
    assert (trace.base_ns, trace.rank, len(trace.devices)) == (
        (0, None, 0) if layout is layouts.bare else (META["baseTimeNanoseconds"], 3, 2)
    )


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.97, 0.9999])
def test_truncated_files_are_read_as_far_as_they_go(suffix: str, share: float, tmp_path: Path, chunk_bytes: int) -> None:
    text = compact([event("cpu_op", f"op{i}", f"{i}.5", "0.25", nested=[{"a": i}]) for i in range(400)], {}).encode()
    if suffix == ".json":
        left = text[: int(len(text) * share)]
        (tmp_path / "t.json").write_bytes(left)
    else:
        packed = gzip.compress(text)
        packed = packed[: int(len(packed) * share)]
        (tmp_path / "t.json.gz").write_bytes(packed)
        left = gzip.zlib.decompressobj(31).decompress(packed)
    trace = read_trace(tmp_path / f"t{suffix}")
    assert (trace.counts.truncated, trace.counts.lost) == (True, 0)
    assert trace.counts.events == len(trace.ops) == left.count(b"}]}}")


@pytest.mark.parametrize("ending", ["", ",", ",\n", "\n]", ",\n]", "]\n}\n", '],\n"deviceProperties": [{"name": "A"},'])
def test_a_file_that_ends_between_two_events(ending: str, tmp_path: Path, chunk_bytes: int) -> None:
    events = ",".join(json.dumps(event("cpu_op", f"op{i}", str(i), "1")) for i in range(30))
    trace = read_trace(write(tmp_path / "t.json", '{"traceEvents":[' + events + ending))
    assert [op.name for op in trace.ops] == [f"op{i}" for i in range(30)]
    assert (trace.counts.events, trace.counts.lost) == (30, 0)
    assert trace.counts.truncated == ("]" not in ending or "deviceProperties" in ending)


_BROKEN = {
    "unescaped quote": (b'"graph_node<1>"', b'"graph "node<1>"', 2, 0),
    "control character": (b'"graph_node<1>"', b'"graph\x01node<1>"', 0, 2),
    "raw newline": (b'"graph_node<1>"', b'"graph\nnode<1>"', 0, 2),
    "bad utf-8": (b'"graph_node<1>"', b'"graph\xff\xfe<1>"', 0, 2),
    "backslashes of a path": (b'"graph_node<1>"', rb'"C:\Users\x\node"', 0, 2),
    "a backslash before u": (b'"graph_node<1>"', rb'"C:\user\node"', 0, 2),
    "half a surrogate": (b'"graph_node<1>"', rb'"\ud83d"', 2, 0),
    "time as text": (b'"ts":7900000000031.001', b'"ts":"7900000000031.001"', 0, 0),
    "time as a word": (b'"ts":7900000000031.001', b'"ts":"soon"', 1, 0),
    "no number": (b'"ts":7900000000031.001', b'"ts":NaN', 1, 0),
    "no time": (b'"ts":7900000000031.001', b'"tt":7', 1, 0),
    "a number of 5000 digits": (b'"ts":7900000000031.001', b'"ts":' + b"7" * 5000, 1, 0),
    "negative duration": (b'"dur":0.999', b'"dur":-0.999', 0, 6),
    "a duration as a word": (b'"dur":0.999,"args":{"device"', b'"dur":"long","args":{"device"', 5, 0),
    "inner names": (b'"args":{"device":0,"stream":7,"correlation":77}', b'"args":{"l":[{"a":"b"c"},{"name":"d"}]}', 10, 0),
    "a long way": (b'"stream":7,"correlation":77}}', b'"x" [{"a":1},{"b":2}],"c":"' + b"y" * 5000 + b'"}}', 5, 0),
    "wrong type": (b'"name":"graph_node<1>"', b'"name":["graph"]', 2, 0),
    "wrong arguments": (b'"args":{"device":0,"stream":7,"correlation":77}', b'"args":[7]', 5, 0),
    "not an object": (b'"traceEvents":[', b'"traceEvents":[null,1.5,', 2, 0),
    "texts and lists": (b'"traceEvents":[', b'"traceEvents":["a",[[]],[{}],', 3, 0),
    "a missing brace": (b'"name":"graph_node<1>","pid":0,"tid":7,', b'"name":{"graph_node<1>","pid":0,"tid":7,', 2, 0),
    "a stray bracket": (b'"args":{"device":0,"stream":7,"correlation":77}', b'"args":[{"a":"b"c"},{"d":1}]', 5, 0),
    "very deep": (b'"name":"graph_node<1>"', b'"name":' + b"[" * 20_000, 2, 0),
    "trailing comma": (b'"cat":"kernel"}],"text":"traceEvents\\": [ \\\\"}}]', b'"cat":"kernel"}]}},\n]', 0, 0),
    "doubled comma": (b'},{"ph":"s"', b'},,{"ph":"s"', 0, 0),
}


@pytest.mark.parametrize("what", _BROKEN)
def test_broken_events_are_counted_and_the_others_read(what: str, tmp_path: Path, chunk_bytes: int) -> None:
    good, bad, lost, mended = _BROKEN[what]
    text = compact(sample(), META).encode()
    assert good in text
    (tmp_path / "t.json").write_bytes(text.replace(good, bad))
    trace = read_trace(tmp_path / "t.json")
    assert (trace.counts.lost, trace.counts.mended, trace.counts.truncated) == (lost, mended, False)
    assert len(trace.ops) == 40
    assert len(trace.device_events) == 7 - (text.count(good) if lost and b"traceEvents" not in good else 0)
    assert all(one.end_ns >= one.start_ns for one in trace.device_events)
    assert (trace.base_ns, trace.rank) == (META["baseTimeNanoseconds"], 3)


@pytest.mark.parametrize(
    "filler", ['"text": ' + json.dumps('x}, {"ph": "X' * 1000), '"list": [' + '{"ph": "X"}, ' * 1000 + "{}]"]
)
def test_an_event_longer_than_a_chunk_is_read(filler: str, tmp_path: Path, chunk_bytes: int) -> None:
    text = compact(sample(), META).replace('"correlation":78', f'{filler},"correlation":78')
    trace = read_trace(write(tmp_path / "t.json", text))
    assert trace.counts.clean and (len(trace.ops), len(trace.device_events)) == (40, 7)


def test_an_event_that_is_far_too_long_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in ((chunks, "CHUNK_BYTES", 701), (chunks, "BLOCK_BYTES", 701), (chunks, "MAX_EVENT_BYTES", 20_000)):
        monkeypatch.setattr(module, name, value)
    text = compact(sample(), META).replace('"correlation":78', '"text":"' + "x" * 30_000 + '","correlation":78', 1)
    trace = read_trace(write(tmp_path / "t.json", text))
    assert trace.counts.lost >= 1 and (len(trace.ops), len(trace.device_events)) == (40, 7)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "nothing to read"),
        (b"  \n", "nothing to read"),
        (b"\x1f\x8b\x08", "nothing to read"),
        (b'{"run": "3f2c", "spans": [{"v": 1}]}', "no traceEvents"),
        (b"a log line\nanother", "no traceEvents"),
        (b"[1, 2, 3]", "none of its 3 events"),
        (b"[" + b"1, " * 200_000 + b"1]", "none of"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_reason(text: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(text)
    with pytest.raises(TraceFormatError, match=says):
        read_trace(tmp_path / "t.json")
    with pytest.raises(TraceFormatError, match="No such file"):
        read_trace(tmp_path / "absent.json")
    with pytest.raises(TraceFormatError, match="cannot read"):
        read_trace(tmp_path)


@pytest.mark.parametrize("layout", [indented, kineto])
@pytest.mark.parametrize(
    ("good", "bad"), [('"schemaVersion": 1', '"note": "1\n2"'), ('"schemaVersion": 1', '"note": "a "quote", "schemaVersion": 1')]
)
def test_a_damaged_head_loses_no_event_and_no_base(
    layout: layouts.Layout, good: str, bad: str, known: Trace, tmp_path: Path
) -> None:
    trace = read_trace(write(tmp_path / "t.json", layout(sample(), META).replace(good, bad)))
    assert (trace.counts.mended, trace.counts.lost) == (1, 0)
    assert (trace.device_events, trace.base_ns) == (known.device_events, META["baseTimeNanoseconds"])
    assert ("note" in trace.metadata) == ("\n" in bad)


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\n  ", b"\xef\xbb\xbf\r\n"])
def test_marks_and_space_before_the_text_do_not_matter(before: bytes, known: Trace, tmp_path: Path, chunk_bytes: int) -> None:
    assert _facts(read_trace(write(tmp_path / "t.json", before + compact(sample(), META).encode()))) == _facts(known)
    bare = layouts.bare(sample(), META).encode()
    assert read_trace(write(tmp_path / "t.json", before + bare)).device_events == known.device_events


def test_folders_are_searched_for_traces(tmp_path: Path) -> None:
    for name in ("b/rank1.json.gz", "b/rank0.json", "b/note.txt", "a.json", "b/c/rank2.pt.trace.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    names = ["a.json", "b/c/rank2.pt.trace.json", "b/rank0.json", "b/rank1.json.gz"]
    assert find_traces([tmp_path]) == tuple(tmp_path / name for name in names)
    assert find_traces([tmp_path / "b/rank0.json", tmp_path / "b"]) == tuple(tmp_path / names[i] for i in (2, 1, 3))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no trace in"):
        find_traces([tmp_path / "empty"])


def test_progress_ends_at_the_size_of_the_file(tmp_path: Path, chunk_bytes: int) -> None:
    path, calls = write(tmp_path / "t.json.gz", compact(sample(400), META)), []
    read_trace(path, progress=lambda done, total, what: calls.append((done, total, what)))
    assert calls[-1] == (path.stat().st_size, path.stat().st_size, "t.json.gz")
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)


def test_a_cut_may_fall_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad, _, _ = _BROKEN["inner names"]
    text = compact(sample(3), {}).encode().replace(good, bad).replace(b'{"ph":"s"', b'12345,{"ph":"s"')
    whole = read_trace(write(tmp_path / "t.json", text))
    assert (whole.counts.lost, len(whole.ops), len(whole.device_events)) == (11, 3, 2)
    for size in range(31, 500):
        monkeypatch.setattr(chunks, "BLOCK_BYTES", size)
        assert read_trace(tmp_path / "t.json") == whole, size


@pytest.mark.parametrize(
    "junk", ['{"x":bad}', "[]", '"abc"', "]}}", "{}}", "1 2", '"', "}" * 99, '{"ph":"X","cat":"kernel","name":"a"b"}']
)
def test_events_are_found_again_after_much_that_is_none(junk: str, known: Trace, tmp_path: Path, chunk_bytes: int) -> None:
    good = json.dumps(event("cpu_op", "first", "1", "1"))
    text = '{"traceEvents":[' + good + f",{junk}" * 2000 + "," + compact(sample(), {}).removeprefix('{"traceEvents":[')
    trace = read_trace(write(tmp_path / "t.json", text))
    assert trace.counts.lost and [op.name for op in trace.ops][:1] == ["first"]
    assert (len(trace.ops), trace.device_events) == (41, known.device_events)


OBJECT, BARE, KINETO = (layout(sample(20), META) for layout in (compact, layouts.bare, kineto))
LATE = compact(sample(20), {}).removesuffix("}") + f', "baseTimeNanoseconds": {META["baseTimeNanoseconds"]}}}'
MANY = BARE.count('"ph"')
ENDS = {
    "two objects": (OBJECT * 2, (MANY, MANY, 0, False)),
    "two objects on two lines": (f"{OBJECT}\n{OBJECT}", (MANY, MANY, 0, False)),
    "two lists": (f"{BARE}\n{BARE}", (MANY, MANY, 0, False)),
    "a list, then an object": (BARE + OBJECT, (MANY, MANY, 0, False)),
    "three objects": (OBJECT * 3, (2 * MANY, 2 * MANY, 0, False)),
    "an object, then something": (f"{OBJECT}garbage", (1, 1, 0, False)),
    "a list, then something": (f"{BARE}]", (1, 1, 0, False)),
    "a brace too many, which may close a damaged event": (OBJECT + "}", (0, 1, 0, True)),
    "a stray bracket before the metadata": ("]], ".join(LATE.rsplit("], ", 1)), (0, 1, 0, False)),
    "a damaged tail": (KINETO.replace('"name": "B"', '"name": "B" or so'), (0, 0, 1, False)),
}
"""What stands in the file; how much lies behind its end, is lost, and is mended; and whether the file ends too early."""


@pytest.mark.parametrize("what", ENDS)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_what_stands_behind_the_events_is_counted_and_costs_none(
    what: str, suffix: str, tmp_path: Path, chunk_bytes: int
) -> None:
    text, expected = ENDS[what]
    trace = read_trace(write(tmp_path / f"t{suffix}", text))
    counts = trace.counts
    assert (counts.trailing, counts.lost, counts.mended, counts.truncated) == expected and not counts.clean
    assert (len(trace.ops), len(trace.device_events)) == (20, 7)
    assert trace.base_ns == (0 if text.startswith("[") else META["baseTimeNanoseconds"])


@pytest.mark.parametrize("padding", ["", "\n", " \r\n\t", "\x00" * 700, "\n\x00\n"])
def test_blanks_behind_the_end_are_nothing(padding: str, tmp_path: Path, chunk_bytes: int) -> None:
    for text in (OBJECT, KINETO, BARE, '{"traceEvents": []}'):
        assert read_trace(write(tmp_path / "t.json", text + padding)).counts.clean


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
@pytest.mark.parametrize("stray", ["]", " ] ", "],", "]]", "]\n" * 3])
def test_a_stray_bracket_between_events_is_lost_and_the_events_behind_it_are_read(
    layout: layouts.Layout, stray: str, known: Trace, tmp_path: Path, chunk_bytes: int
) -> None:
    text = layout([event("cpu_op", "first", "1", "1"), event("cpu_op", "SECOND", "2", "1"), *sample()], META)
    place = text.index("SECOND")
    place = text.rindex("{", 0, text.rindex(":", 0, place)) if layout is not layouts.turned else text.rindex('{"args"', 0, place)
    trace = read_trace(write(tmp_path / "t.json", text[:place] + stray + text[place:]))
    counts = trace.counts
    assert (counts.lost, counts.trailing, counts.mended, counts.truncated) == (stray.count("]"), 0, 0, False)
    assert (len(trace.ops), trace.device_events) == (42, known.device_events)


@pytest.mark.parametrize(
    ("text_bytes", "closed", "names", "lost"),
    [
        (7 << 20, True, 11, 0),  # an event of up to 8 MB is read
        (20 << 20, True, 10, 1),
        (7 << 20, False, 9, 1),  # its open text reaches into the next one
        (20 << 20, False, 10, 1),
    ],
)
def test_one_event_is_read_up_to_8_mb_and_never_held_whole_beyond(
    text_bytes: int, closed: bool, names: int, lost: int, tmp_path: Path
) -> None:
    events = [json.dumps(event("cpu_op", f"op{i}", str(i), "1")) for i in range(10)]
    end = '"}}' if closed else ""
    events.insert(5, '{"ph":"X","cat":"cpu_op","name":"long","ts":5,"dur":1,"args":{"text":"' + "x" * text_bytes + end)
    path = write(tmp_path / "t.json", '{"traceEvents":[' + ",".join(events) + "]}")
    tracemalloc.start()
    trace = read_trace(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(trace.ops), trace.counts.lost >= lost, trace.counts.clean) == (names, True, not lost)
    assert peak < 120 << 20


_TIMES = [
    (b"7900000000000.001", 7_900_000_000_000_001),
    (b"1751410836123456.789", 1_751_410_836_123_456_789),  # epoch microseconds: float64 steps by 0.25 us there
    (b"4376923800717.955", 4_376_923_800_717_955), (b"0", 0), (b"12", 12_000), (b"0.5", 500), (b"-3.25", -3250),
    (b"1.2345", 1234), (b"1.2355", 1236), (b"1.0000000000000001", 1000), (b"7.9e12", 7_900_000_000_000_000), (b"1.5e-05", 0),
    (b'"123.4"', 123_400), (b"4611686018427387.903", 2**62 - 1),
]  # fmt: skip
_NO_TIMES = [
    b"", b"null", b"1e400000000", b"NaN", b"99999999999999999", b"[1]", b'"\xff"', b'"1,5"', b"5.", b"1.2.3", b'"."', b"true",
    b"4611686018427387.904", b"9999999999999999.999", b'"1 2"', b"-",
]  # fmt: skip


@pytest.mark.parametrize(("digits", "expected"), _TIMES)
def test_digits_become_exact_nanoseconds(digits: bytes, expected: int) -> None:
    assert nanoseconds(digits) == expected


@pytest.mark.parametrize("digits", [one for one in _NO_TIMES if one != b"5."])
def test_what_is_no_time_is_refused(digits: bytes) -> None:
    with pytest.raises(ValueError):
        nanoseconds(digits)


@given(st.integers(-(2**61), 2**61))
def test_digits_are_exact_at_any_size(value: int) -> None:
    sign, size = ("-" if value < 0 else ""), abs(value)
    assert nanoseconds(f"{sign}{size // 1000}.{size % 1000:03d}".encode()) == value


def _plain(whole: int, decimals: int, fraction: int) -> bytes:
    return b"%d.%0*d" % (whole, decimals, fraction % 10**decimals) if decimals else b"%d" % whole


_PLAIN = st.builds(_plain, st.integers(0, 10**16), st.integers(0, 4), st.integers(0, 9999))
_ODD = st.sampled_from([digits for digits, _ in _TIMES] + _NO_TIMES)


def _one(digits: bytes) -> tuple[int, bool]:
    try:
        return nanoseconds(digits), False
    except ValueError:
        return 0, True


@given(st.lists(st.one_of(_PLAIN, _ODD), max_size=30))
def test_a_column_says_what_its_numbers_say_one_by_one(texts: list[bytes]) -> None:
    values, bad = column_ns([msgspec.Raw(text) for text in texts])
    assert list(zip(values.tolist(), bad.tolist(), strict=True)) == [_one(text) for text in texts]


_NUMBERS = st.one_of(
    st.integers(-5, 5), st.integers(-(2**31) - 2, -(2**31) + 2), st.integers(2**31 - 2, 2**31 + 2), st.just(2**61)
)


@given(st.lists(st.lists(_NUMBERS, max_size=4), max_size=6))
def test_a_column_keeps_every_number(parts: list[list[int]]) -> None:
    column = GrowingColumn()
    for part in parts:
        column.extend(part)
    numbers = [number for part in parts for number in part]
    assert len(column) == len(numbers)
    data = column.release()
    assert (data.tolist(), len(column)) == (numbers, 0)
    assert data.itemsize == (4 if all(-(2**31) <= number < 2**31 for number in numbers) else 8)


def test_device_events_round_trip_and_store_a_graph_launch_once() -> None:
    launch = HostEvent("cudaGraphLaunch", 1, 3, 0)
    rows = [DeviceEvent("k", "kernel", 4 + i, 5 + i, 1, 7, i, launch) for i in range(3)]
    rows.append(DeviceEvent("copy", "memcpy", 9, 9, 0, -1, 0, None))
    store = device_events(rows)
    assert list(store) == rows
    assert list(store.hosts) == [launch]


def test_counts_are_clean_only_if_nothing_was_bad() -> None:
    assert ReadCounts(events=5).clean
    assert not any(ReadCounts(events=5, **bad).clean for bad in ({"lost": 1}, {"mended": 1}, {"truncated": True}))


# Device events and their launch calls against a plain second calculation, and how much memory joining them needs at its peak.


class Call(NamedTuple):
    """A launch call as the file has it, in microseconds."""

    correlation: int
    start: int
    length: int
    name: str
    tid: int


class Ran(NamedTuple):
    """A kernel as the file has it."""

    start: int
    length: int
    correlation: int
    name: str
    stream: int


def _expected(calls: Sequence[Call], ran: Sequence[Ran]) -> tuple[list[tuple[Any, ...]], dict[str, tuple[int, int]]]:
    outermost: dict[int, Call] = {}
    for call in sorted(calls, key=lambda one: (one.start, -one.length, one.name, one.tid)):
        outermost.setdefault(call.correlation, call)
    seen, found = Counter[int](), []
    for one in sorted(ran, key=lambda one: (one.start, -one.length, one.name, one.stream, one.correlation)):
        call = outermost.get(one.correlation)
        host = call and (call.name, call.start, call.start + call.length, f"4/{call.tid}")
        ordinal = seen[one.correlation] if call else 0
        found.append((one.name, one.stream, one.start, one.start + one.length, ordinal, host))
        seen[one.correlation] += 1
    launched: dict[str, tuple[int, int]] = {}
    for call in outermost.values():
        n, bad = launched.get(call.name, (0, 0))
        launched[call.name] = n + 1, bad + (call.correlation not in seen)
    tells = re.compile("launch|memcpy|memset", re.IGNORECASE)
    return found, {name: both for name, both in launched.items() if both[1] < both[0] or tells.search(name)}


NAMES = ("cudaLaunchKernel", "cuLaunchKernelEx", "hipMemsetAsync", "cudaFree", "allocate")
CALLS = st.builds(Call, st.integers(1, 6), st.integers(0, 4), st.integers(0, 3), st.sampled_from(NAMES), st.integers(1, 2))
RAN = st.builds(Ran, st.integers(0, 4), st.integers(0, 2), st.integers(1, 8), st.sampled_from("ab"), st.integers(1, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("join")


def _as_written(columns: tuple[Any, ...], *_: object) -> tuple[np.ndarray, tuple[str, ...], bool]:
    """Events at random overlap and repeat; what becomes of such is test_damage's."""
    return np.ones(len(columns[0]), np.bool_), (), False


@given(calls=st.lists(CALLS, max_size=14), ran=st.lists(RAN, max_size=24), block=st.sampled_from([1, 3, 8, 1 << 15]))
def test_events_get_the_calls_and_ordinals_of_a_plain_calculation(
    calls: list[Call], ran: list[Ran], block: int, folder: Path
) -> None:
    events = [
        event("cuda_runtime", one.name, str(one.start), str(one.length), correlation=one.correlation) | {"tid": one.tid}
        for one in calls
    ]
    events += [kernel(one.name, str(one.start), str(one.length), one.correlation, stream=one.stream) for one in ran]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "BLOCK", block)
        patch.setattr("strobe.perf.trace.join.mend", _as_written)
        trace = read_trace(write(folder / "t.json", compact(events, {})))
    found, launched = _expected(calls, ran)
    said: list[tuple[Any, ...]] = []  # the device events with their calls, in microseconds
    for one in trace.device_events:
        host = one.host and (
            one.host.name, one.host.start_ns // 1000, one.host.end_ns // 1000, trace.threads[one.host.thread]
        )  # fmt: skip
        said.append((one.name, one.stream, one.start_ns // 1000, one.end_ns // 1000, one.ordinal, host))
    assert said == found
    if ran or not calls:
        assert trace.launched == launched


@pytest.mark.parametrize("nodes", [3, 100, 300, 40_000])
def test_a_graph_may_have_more_nodes_than_a_block_or_a_short_number(nodes: int) -> None:
    """Nodes of two graphs in turn, so that both lie in every block."""
    devices, launches = DeviceTable(linked=False), LaunchTable()
    devices.works[EventKind("k", 0, 0, 7, "")] = 0
    launches.calls["cudaGraphLaunch", 1, 1] = 0
    number = np.arange(2 * nodes)
    for column, values in (
        (devices.work, number * 0), (devices.start, number), (devices.duration, number * 0 + 1),
        (devices.correlation, number % 2 + 1), (launches.call, [0, 0]), (launches.start, [0, 0]), (launches.duration, [1, 2]),
        (launches.correlation, [1, 2]),
    ):  # fmt: skip
        column.extend(values)
    joined, _, _ = join(Path("t.json"), devices, launches, InputTable(), threads_of([launches]))
    assert (np.asarray(joined.device_events.ordinal) == number // 2).all()
    assert [joined.device_events[row].host.end_ns for row in (0, 1, 2 * nodes - 2)] == [1, 2, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("listed", "used", "numbers"),
    [
        ([0], [2, 2], [2]),
        ([0], [2, None], [2]),  # an event without a device is on none
        ([5], [None], [5]),
        ([0], [2, 3], [0]),
        ([0, 1], [2, 2], [0, 1]),
        ([0, 1], [1, 1], [0, 1]),
        ([], [2], []),
    ],
)
def test_only_an_only_device_gets_the_number_of_its_events(
    listed: list[int], used: list[int | None], numbers: list[int], folder: Path
) -> None:
    events = [kernel("k", str(5 * at), "1", at + 1, device=device) for at, device in enumerate(used)]
    for one in events:
        one["pid"] = one["args"]["device"] if one["args"]["device"] is not None else "spans"
    meta = {"deviceProperties": [{"id": number, "name": f"gpu {number}"} for number in listed]}
    found = read_trace(write(folder / "t.json", compact(events, meta))).devices
    assert found == {index: f"gpu {number}" for index, number in zip(numbers, listed, strict=True)}


def _filled(count: int, nodes: int, spread: int) -> tuple[DeviceTable, LaunchTable]:
    """Kernels in bad order, launched singly or `nodes` at a time; `spread` of them start together."""
    rng = np.random.default_rng(1)
    order = rng.permutation(count)
    devices, launches = DeviceTable(linked=False), LaunchTable()
    for i in range(7):
        devices.works[EventKind(f"k{i}", 0, i % 2, 7, f"grid {i}")] = i
    launches.calls["cudaLaunchKernel", 1, 1] = 0
    for part in np.array_split(order, 50):
        devices.work.extend(part % 7)
        devices.start.extend(7_900_000_000_000_000 + part // spread * 1009)
        devices.duration.extend(part % 100)
        devices.correlation.extend(part // nodes)
        firsts = part[part % nodes == 0]
        launches.call.extend(firsts * 0)
        launches.start.extend(7_900_000_000_000_000 + firsts * 1000)
        launches.duration.extend(firsts % 50)
        launches.correlation.extend(firsts // nodes)
    return devices, launches


def _peak(count: int, nodes: int, spread: int) -> tuple[int, Trace]:
    tracemalloc.start()
    devices, launches = _filled(count, nodes, spread)
    joined, _, _ = join(Path("t.json"), devices, launches, InputTable(), threads_of([HostTable(), launches]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak, joined


@pytest.mark.parametrize(("nodes", "spread"), [(1, 1), (1, 4), (2, 1), (30, 1)])
def test_memory_grows_by_at_most_64_bytes_per_device_event(nodes: int, spread: int) -> None:
    few, many = 200_000, 500_000
    (small, _), (large, joined) = _peak(few, nodes, spread), _peak(many, nodes, spread)
    assert large - small <= 64 * (many - few)
    assert (len(joined.device_events), len(joined.device_events.hosts)) == (many, -(-many // nodes))
    assert joined.device_events[many - 1].host is not None


def test_numbers_of_64_bits_take_their_room_and_are_kept() -> None:
    devices, launches = _filled(1000, 1, 1)
    devices.duration.release()
    devices.duration.extend(np.arange(1000) + 2**40)
    launches.correlation.release()
    joined, _, _ = join(Path("t.json"), devices, launches, InputTable(), threads_of([launches]))
    assert {event.end_ns - event.start_ns for event in joined.device_events} == set(range(2**40, 2**40 + 1000))


EPOCH = 1_600_000_000_000_000
"""Microseconds: times of old traces count from 1970."""


def _read(tmp_path: Path, events: list[dict[str, Any]]) -> Trace:
    return read_trace(write(tmp_path / "t.json", compact(events, {})))


def _in_line(count: int, first: int = START, name: str = "gemm", **more: object) -> list[dict[str, Any]]:
    """Kernels of 80 µs, 100 µs apart, each launched 50 µs before."""
    calls = [launch(str(first + 100 * i - 50), "5", i + 1) for i in range(count)]
    return [*calls, *(kernel(name, str(first + 100 * i), "80", i + 1, **more) for i in range(count))]


def _ms(trace: Trace) -> tuple[float, float]:
    """Sum and span of the durations of all events."""
    events = trace.device_events
    total = sum(events.end_ns) - sum(events.start_ns)
    return total / 1e6, (max(events.end_ns) - min(events.start_ns)) / 1e6


def test_events_at_time_zero_are_left_out_and_named(tmp_path: Path) -> None:
    events = _in_line(32, EPOCH)
    for one in events[-20:-16]:
        one |= {"ts": "0", "dur": "0"}
    trace = _read(tmp_path, events)
    assert len(trace.device_events) == 28 and _ms(trace) == (2.24, 3.18)
    (said,) = trace.damage
    assert said.startswith(
        "4 events lie up to 18,519 days before their launch calls, and before all work of the host, left out: 4 gemm"
    )


def test_a_duration_over_later_events_of_its_stream_ends_at_the_next_one(tmp_path: Path) -> None:
    events = _in_line(20)
    events[20 + 5]["dur"] = "50000"
    trace = _read(tmp_path, events)
    (said,) = trace.damage
    assert (
        said
        == "1 gemm lasts 50 ms, 625 times its median, over 14 later events of its own stream: cut at the start of the next one"
    )
    assert _ms(trace) == (1.62, 1.98)


def test_a_last_event_that_lasts_much_longer_than_the_only_other_of_its_work_is_named(tmp_path: Path) -> None:
    rare = [launch(str(START + at), "5", 90 + at, "cudaLaunchKernel") for at in (10, 210)]
    rare += [kernel("rare", str(START + at + 5), dur, 90 + at, stream=20) for at, dur in ((10, "88"), (210, "8800"))]
    (said,) = _read(tmp_path, [*_in_line(20), *rare]).damage
    assert said == "1 rare lasts 8.8 ms, 100 times its median; no later event shows when it ended"
    rare[-1]["dur"] = "8799"
    assert _read(tmp_path, [*_in_line(20), *rare]).damage == ()


def test_an_event_over_those_of_another_stream_or_of_its_own_graph_is_none(tmp_path: Path) -> None:
    other = kernel("comm", str(START + 20), "1900", 99, stream=20)
    graph = [launch(str(START + 2000), "5", 200, "cudaGraphLaunch"), kernel("branch", str(START + 2100), "500", 200)]
    graph += [kernel("small", str(START + 2110 + 20 * i), "10", 200) for i in range(10)]
    assert _read(tmp_path, [*_in_line(20), other, *graph]).damage == ()


def test_events_written_twice_count_once(tmp_path: Path) -> None:
    once = [*_in_line(16), *(event("user_annotation", f"ProfilerStep#{i}", str(START + 400 * i), "390") for i in range(4))]
    trace = _read(tmp_path, [*once, *once])
    assert trace.damage == ("16 of 32 device events are exact duplicates of another and count once",)
    assert (trace.device_events, trace.ranges) == (_read(tmp_path, once).device_events, _read(tmp_path, once).ranges)


def test_two_processes_with_the_same_numbers_are_refused(tmp_path: Path) -> None:
    other = [one | {"pid": 5} if one["cat"] != "kernel" else one for one in _in_line(16, START + 7)]
    with pytest.raises(TraceFormatError, match=r"processes 4, 5 give 16 launch calls the same numbers.*a trace of its own"):
        _read(tmp_path, [*_in_line(16), *other])


def test_numbers_that_json_does_not_have_are_mended_and_what_is_lost_has_a_reason(tmp_path: Path) -> None:
    events = _in_line(16, occupancy=float("nan"), blocks=float("-inf"), note="NaN")
    events[-1]["ts"] = float("nan")
    events[-2]["name"] = ["gemm"]
    trace = _read(tmp_path, events)
    assert len(trace.device_events) == 14
    assert (trace.counts.mended, trace.counts.lost) == (15, 2)
    assert sum(trace.counts.reasons.values()) == 2
    assert trace.counts.events + trace.counts.lost == len(events)


@pytest.mark.parametrize("early", [True, False])
def test_a_stray_event_does_not_stretch_the_window(early: bool, tmp_path: Path) -> None:
    at = START - 60_000 if early else START + 90_000
    stray = [launch(str(at - 20), "5", 500), kernel("stray", str(at), "4", 500)]
    trace = _read(tmp_path, [*stray, *_in_line(40)])
    assert len(trace.device_events) == 40 and _ms(trace) == (3.2, 3.98)
    (said,) = trace.damage
    assert said.startswith("1 event lies up to ") and said.endswith("in which all others of device 0 ran, left out: 1 stray")


def test_work_before_a_long_pause_is_no_stray(tmp_path: Path) -> None:
    trace = _read(tmp_path, [*_in_line(40), *_in_line(30, START + 900_000)])
    assert len(trace.device_events) == 70


def test_clocks_that_differ_are_named_and_nothing_is_left_out(tmp_path: Path) -> None:
    events = [one if one["cat"] != "kernel" else one | {"ts": str(int(one["ts"]) - 500)} for one in _in_line(16)]
    trace = _read(tmp_path, events)
    assert len(trace.device_events) == 16
    assert trace.damage == ("16 of 16 device events start before their launch calls: the clocks of host and device differ",)


# ----------------------------------------------------------------------------------------------------------------- the exam

_NAMES = ("Damaged", "Events lost", "Events mended", "Work of one stream overlaps", "The trace may not hold")
"""Titles of banners that say that something in the events is wrong."""


def _figures(trace: Trace) -> dict[str, float]:
    """Events, their span, busy time and the time of each kernel, by a plain calculation."""
    events, reached, busy = sorted(trace.device_events, key=lambda one: one.start_ns), 0, 0
    kernels = Counter[str]()
    for one in events:
        busy += max(0, one.end_ns - max(one.start_ns, reached))
        reached = max(reached, one.end_ns)
        kernels[one.name] += one.end_ns - one.start_ns
    return {"events": len(events), "span": reached - events[0].start_ns, "busy": busy, **kernels}


@settings(max_examples=settings().max_examples // 5)
@given(seed=st.integers(0, 1 << 32), kind=st.sampled_from(sorted(damaged.DAMAGE)))
def test_no_damage_moves_a_figure_unnamed(seed: int, kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("exam", numbered=True)
    events = damaged.clean(rng)
    good = read_trace(write(folder / "good.json", compact(events, {})))
    assert good.damage == ()
    path = write(folder / "bad.json", compact(damaged.DAMAGE[kind](events, rng), {}))
    try:
        study = load_trace_study([path])
    except TraceFormatError:
        return
    after = _figures(study.traces[0])
    if any(abs(after.get(name, 0) - value) > 0.01 * value for name, value in _figures(good).items()):
        assert any(banner.title.startswith(_NAMES) for banner in trace_banners(study)), kind


@pytest.mark.parametrize(
    ("name", "head"), [("zstandard", b"\x28\xb5\x2f\xfd\x04\x58"), ("xz", lzma.compress(b"")), ("zip", b"PK\x03\x04")]
)
def test_a_file_compressed_otherwise_is_told_so(name: str, head: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(head + 50 * b"\x00")
    for read in (read_trace, read_log):
        with pytest.raises(DataError, match=f"a: compressed as {name}, and only gzip is read; decompress it"):
            read(path)
