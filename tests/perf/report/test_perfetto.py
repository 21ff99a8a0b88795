"""The Perfetto file parsed back: every event is there to the nanosecond, on a track where nothing overlaps it."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from reports import study_of
from strobe.core import libraries
from strobe.core.errors import ImplUnavailableError
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.report.export import in_lanes, write_perfetto
from strobe.perf.report.study import TraceStudy
from strobe.perf.trace import DeviceEvent, HostEvent, Trace

protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
BASE_NS = 1_700_000_000_000_000_007


@dataclass
class Track:
    """A track of the file: its path of names and its slices as (start, end, name, category, flows, depth)."""

    path: tuple[str, ...]
    slices: list[tuple[int, int, str, str, tuple[int, ...], int]]


def read_back(path: Path) -> list[Track]:
    """Read the file as the format's description says, with nothing of the writer."""
    data = protos.Trace.FromString(path.read_bytes())
    names, categories, tracks, parents = {}, {}, {}, {}
    begun: dict[int, list[Any]] = {}
    assert data.packet[0].sequence_flags == 1 and all(packet.sequence_flags == 2 for packet in data.packet[1:])
    for packet in data.packet:
        assert packet.trusted_packet_sequence_id == 1
        names.update({one.iid: one.name for one in packet.interned_data.event_names})
        categories.update({one.iid: one.name for one in packet.interned_data.event_categories})
        if packet.HasField("track_descriptor"):
            one = packet.track_descriptor
            assert one.uuid not in tracks
            parents[one.uuid] = one.parent_uuid
            above = tracks[one.parent_uuid].path if one.parent_uuid else ()
            tracks[one.uuid] = Track((*above, one.name), [])
            begun[one.uuid] = []
        elif packet.track_event.type == 1:
            event = packet.track_event
            (category,) = event.category_iids
            begun[event.track_uuid].append((packet.timestamp, names[event.name_iid], categories[category], tuple(event.flow_ids)))
        else:
            assert packet.track_event.type == 2
            stack = begun[packet.track_event.track_uuid]
            start, name, category, flows = stack.pop()
            tracks[packet.track_event.track_uuid].slices.append((start, packet.timestamp, name, category, flows, len(stack)))
    assert not any(begun.values())
    return [track for track in tracks.values() if track.slices]


def _trace(events: list[DeviceEvent], ranges: Sequence[HostEvent] = ()) -> Trace:
    return trace_of(events, ranges, base_ns=BASE_NS, threads=("10/11", "10/12"))


def _study(*traces: Trace, window: Window | None = None) -> TraceStudy:
    return study_of(*traces, window=window, labels=tuple(f"rank {rank}" for rank in range(len(traces))))


CALL = HostEvent("cudaLaunchKernel", 90, 95, 0)
GRAPH = HostEvent("cudaGraphLaunch", 200, 260, 1)
EVENTS = [
    DeviceEvent("gemm", "kernel", 100, 150, 0, 7, 0, CALL),
    DeviceEvent("pdl", "kernel", 140, 180, 0, 7, 0, None, "[1, 2]"),  # overlaps gemm on its stream
    DeviceEvent("inner", "kernel", 145, 148, 0, 7, 0, None),  # inside both
    DeviceEvent("</script>|`x`", "kernel", 300, 310, 0, 9, 0, GRAPH),
    DeviceEvent("node", "memcpy", 310, 310, 0, 9, 1, GRAPH),  # length 0
    DeviceEvent("node", "memcpy", 310, 333, 1, 9, 2, GRAPH),
]


def device_slices(tracks: list[Track]) -> Counter[tuple[int, int, str]]:
    return Counter(
        (start, end, name) for one in tracks if one.path[2].startswith("stream") for start, end, name, *_ in one.slices
    )


def test_every_event_is_there_to_the_nanosecond(tmp_path: Path) -> None:
    path = tmp_path / "out.pftrace"
    ranges = [HostEvent("step", 80, 400, 0), HostEvent("inner", 85, 96, 0), HostEvent("crossing", 95, 500, 0)]
    written = write_perfetto(_study(_trace(EVENTS, ranges)), path)
    tracks = read_back(path)
    assert device_slices(tracks) == Counter((BASE_NS + e.start_ns, BASE_NS + e.end_ns, e.name) for e in EVENTS)
    assert {one.path for one in tracks} == {
        ("rank 0", "device 0", "idle"), ("rank 0", "device 0", "stream 7"), ("rank 0", "device 0", "stream 7, overlap 1"),
        ("rank 0", "device 0", "stream 7, overlap 2"), ("rank 0", "device 0", "stream 9"), ("rank 0", "device 1", "stream 9"),
        ("rank 0", "host", "launch calls of 10/11"), ("rank 0", "host", "launch calls of 10/12"),
        ("rank 0", "host", "ranges of 10/11"), ("rank 0", "host", "ranges of 10/11, overlap 1"),
    }  # fmt: skip
    for one in tracks:
        if one.path[1].startswith("device"):
            assert all(depth == 0 for *_, depth in one.slices)
    by_path = {one.path: one.slices for one in tracks}
    assert [(start - BASE_NS, name, depth) for start, _, name, *_, depth in by_path["rank 0", "host", "ranges of 10/11"]] == [
        (85, "inner", 1), (80, "step", 0),
    ]  # fmt: skip
    assert written == sum(len(one.slices) for one in tracks)


def test_launch_calls_and_their_events_share_a_flow(tmp_path: Path) -> None:
    write_perfetto(_study(_trace(EVENTS), _trace(EVENTS)), tmp_path / "x")
    flows: dict[int, set[str]] = {}
    for one in read_back(tmp_path / "x"):
        for _, _, name, _, linked, _ in one.slices:
            for flow in linked:
                flows.setdefault(flow, set()).add(f"{one.path[0]} {name}")
    assert sorted(map(sorted, flows.values())) == sorted(
        [[f"{rank} cudaLaunchKernel", f"{rank} gemm"] for rank in ("rank 0", "rank 1")]
        + [[f"{rank} </script>|`x`", f"{rank} cudaGraphLaunch", f"{rank} node"] for rank in ("rank 0", "rank 1")]
    )


def test_idle_classes_tile_what_no_stream_does(tmp_path: Path) -> None:
    write_perfetto(_study(_trace(EVENTS)), tmp_path / "x")
    (idle,) = [one for one in read_back(tmp_path / "x") if one.path[2] == "idle"]
    # the gap before the graph: the host is late until it calls, then the launch takes its time
    assert [(start - BASE_NS, end - BASE_NS, name) for start, end, name, *_ in idle.slices] == [
        (180, 200, "idle: host late"), (200, 300, "idle: launch latency"),
    ]  # fmt: skip


def test_only_the_chosen_window_is_written(tmp_path: Path) -> None:
    ranges = [HostEvent("early", 0, 50, 0), HostEvent("launching", 88, 99, 0), HostEvent("late", 200, 220, 0)]
    window = Window(start_ns=120, end_ns=144, label="w")
    write_perfetto(_study(_trace(EVENTS, ranges), window=window), tmp_path / "x")
    tracks = read_back(tmp_path / "x")
    assert device_slices(tracks) == Counter({(BASE_NS + 100, BASE_NS + 150, "gemm"): 1, (BASE_NS + 140, BASE_NS + 180, "pdl"): 1})
    host = [name for one in tracks if one.path[1] == "host" for _, _, name, *_ in one.slices]
    assert host == ["cudaLaunchKernel", "launching"]


ROWS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=25)


@given(ROWS, st.booleans())
def test_lanes_hold_everything_and_nothing_crosses(rows: list[tuple[int, int]], nested: bool) -> None:
    ordered = sorted((start, -(start + length)) for start, length in rows)
    slices = [HostEvent(str(n), start, -end, 0) for n, (start, end) in enumerate(ordered)]
    placed = [(lane, piece) for lane, (piece, *_) in in_lanes(((each, "c", 0) for each in slices), nested=nested)]
    assert [piece for _, piece in placed] == slices
    lanes = [[piece for place, piece in placed if place == lane] for lane in range(1 + max(place for place, _ in placed))]
    assert all(lanes)
    for lane in lanes:
        for n, one in enumerate(lane):
            for other in lane[n + 1 :]:
                inside = other.end_ns <= one.end_ns
                assert other.start_ns >= one.end_ns or (nested and inside)
    if not nested and all(length for _, length in rows):  # no fewer lanes would do
        most = max(sum(a.start_ns <= moment < a.end_ns for a in slices) for moment in range(45))
        assert len(lanes) == most
    assert all(before <= after for lane in lanes for before, after in pairwise(piece.start_ns for piece in lane))


def test_a_clock_that_starts_late_is_moved(tmp_path: Path) -> None:
    trace = replace(_trace([DeviceEvent("a", "kernel", -500, -400, 0, 7, 0, None)]), base_ns=100)
    write_perfetto(_study(trace), tmp_path / "x")
    assert device_slices(read_back(tmp_path / "x")) == Counter({(0, 100, "a"): 1})


@pytest.mark.parametrize("window", [None, Window(start_ns=0, end_ns=3, label="w")])
def test_a_cpu_trace_has_its_ranges(tmp_path: Path, window: Window | None) -> None:
    write_perfetto(_study(_trace([], [HostEvent("step", 1, 5, 1)]), window=window), tmp_path / "x")
    (track,) = read_back(tmp_path / "x")
    assert track.path == ("rank 0", "host", "ranges of 10/12")


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_TRIED", {})
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace.perfetto_trace_pb2", None)
    with pytest.raises(ImplUnavailableError, match=r"pip install .*\[perfetto\]"):
        write_perfetto(_study(_trace(EVENTS)), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_nothing_is_downloaded() -> None:
    importlib.import_module("strobe.perf.report.export")
    assert "perfetto.trace_processor" not in sys.modules
