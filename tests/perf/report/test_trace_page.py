"""The page of a trace: its answer, what was read, the banners, and every section; hostile traces, and the memory it takes."""

from __future__ import annotations

import cProfile
import json
import textwrap
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forked import run
from layouts import compact, write
from made_traces import trace_of
from reports import column, decode_report, notes, section, study_of, tables, values
from source import ROOT
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.report.blocks.kernels import MAX_MEMBERS
from strobe.perf.report.documents.api import read_trace
from strobe.perf.report.export import write_events
from strobe.perf.report.study import TraceOptions, TraceStudy, load_trace_study, trace_labels
from strobe.perf.report.trace_page.build import build_trace_report
from strobe.perf.report.trace_page.device import _MEANING, activity_section, gaps_section, launch_section, memory_section
from strobe.perf.report.trace_page.structure import (
    MAX_DEPTH,
    MAX_FRAMES,
    collectives_section,
    device_kernels,
    ranges_section,
    sections_section,
    steps_section,
)
from strobe.perf.report.write import MAX_PAGE_BYTES, render, render_html, render_markdown
from strobe.perf.table import model as m
from strobe.perf.trace import CollectiveKind, DeviceEvent, HostEvent, HostEvents, MemoryTrack, ReadCounts, Trace
from strobe.perf.trace.events import NO_CORRELATION, NO_HOST
from synthetic import META, event, kernel, launch

EVIL = "</script><script>alert(1)</script>|`x`\x1b[31m\u202e" + "y" * 4000


def _event(launch: int | None, start: int, end: int, name: str = "k", kind: str = "kernel", stream: int = 7) -> DeviceEvent:
    host = None if launch is None else HostEvent("cudaLaunchKernel", launch, launch + 1, 0)
    return DeviceEvent(name, kind, start, end, 0, stream, 0, host)


def busy_trace(name: str = "gemm", steps: int = 4, **more: Any) -> Trace:
    """Steps of 1 ms: a kernel of 0.3 ms, one of 0.1 ms, and half a millisecond in which the host is late."""
    events, ranges = [], []
    for step in range(steps):
        at = step * 1_000_000
        ranges.append(HostEvent(f"ProfilerStep#{step}", at, at + 900_000, 0))
        for start, length, own in ((10_000, 300_000, name), (400_000, 100_000, "other")):
            call = HostEvent("cudaLaunchKernel", at + start - 4_000, at + start - 1_000, 0)
            events.append(DeviceEvent(own, "kernel", at + start, at + start + length, 0, 7, 0, call))
    return trace_of(events, ranges=ranges, **more)


def titles(report: m.Report) -> dict[str, tuple[str, ...]]:
    return {banner.title: banner.items for banner in report.banners}


def test_the_top_says_what_was_read_and_each_device_in_a_line() -> None:
    trace = busy_trace(devices={0: "GPU X"}, counts=ReadCounts(events=77), rank=3, world_size=8)
    report = build_trace_report(study_of(trace))
    facts = {fact.name: fact.value for fact in report.facts}
    assert facts == {"Devices": m.Code("GPU X"), "Window": m.Text("the whole trace")}
    (file,) = tables(section(report, "overview"))[1].rows
    assert file.cells[2:6] == (m.Count(3), m.Count(8), m.Count(77), m.Count(8))
    devices = tables(section(report, "overview"))[0]
    (row,) = devices.rows
    span, busy = 3 * 1_000_000 + 490_000, 4 * 400_000
    assert m.ExactTime(span) in row.cells and m.ExactTime(busy) in row.cells and m.ExactTime(span - busy) in row.cells
    assert m.Share(busy / span) in row.cells and m.Share(0.75) in row.cells and m.Text("host-bound", "bad") in row.cells
    assert any("gemm" in getattr(cell, "text", "") for cell in row.cells)
    assert report.subtitle.endswith("host-bound")


def test_what_weakens_the_numbers_stands_above_them() -> None:
    counts = ReadCounts(events=90, lost=10, mended=5, truncated=True)
    overlapping = [
        _event(None, 0, 50_000, "a"), _event(None, 40_000, 90_000, "b")
    ]  # fmt: skip
    trace = trace_of(overlapping, counts=counts, launched={"cudaLaunchKernel": (5, 3), "fine": (4, 0)}, window_end_ns=20_000)
    found = titles(build_trace_report(study_of(trace)))
    assert list(found)[:2] == ["Truncated", "Events lost"]
    assert "10 of 100 events could not be read" in found["Events lost"][0] and "5 events" in found["Events mended"][0]
    loss = " ".join(found["The trace may not hold all that ran"])
    assert "3 of 5 cudaLaunchKernel" in loss and "fine" not in loss and "0.070 ms after the recorded window" in loss
    (overlap,) = next(items for title, items in found.items() if title.startswith("Work of one stream overlaps"))
    assert "1 pair of 2 events, 10.000 µs in all" in overlap


def end_of(counts: ReadCounts) -> tuple[m.Text, dict[str, tuple[str, ...]]]:
    """What the table of files says of a trace with these counts, and the banners."""
    report = build_trace_report(study_of(busy_trace(counts=counts)))
    return column(tables(section(report, "overview"))[1], "end")[0], titles(report)


def test_a_trace_that_lost_something_is_never_complete() -> None:
    assert end_of(ReadCounts(events=9))[0] == end_of(ReadCounts(events=9, mended=1))[0] == m.Text("complete")
    cell, said = end_of(ReadCounts(events=9, lost=7, trailing=6))
    assert cell == m.Text("incomplete", "bad")
    assert said["Events lost"][0] == "t is incomplete: 7 of 16 events could not be read"
    assert "6 of these stand behind the end of the JSON" in said["Events lost"][1]
    assert len(end_of(ReadCounts(events=9, lost=7))[1]["Events lost"]) == 1


@pytest.mark.parametrize(
    ("lengths", "uneven"),
    [
        ((1_000_000,) * 12, False),
        ((1_000_000, 1_490_000) * 6, False),
        ((1_000_000, 1_510_000) * 6, True),
        ((1_000_000, 3_000_000) * 6, True),
        ((1_000_000,) * 20 + (9_000_000,) + (1_000_000,) * 20, False),  # one of many is an outlier
    ],
)
def test_uneven_steps_are_said(lengths: tuple[int, ...], uneven: bool) -> None:
    events, ranges, now = [], [], 0
    for number, length in enumerate(lengths):
        host = HostEvent("cudaLaunchKernel", now - 50, now - 40, 0)
        ranges.append(HostEvent(f"ProfilerStep#{number}", now - 60, now - 30, 0))
        events.append(DeviceEvent("k", "kernel", now, now + length, 0, 7, 0, host))
        now += length
    report = build_trace_report(study_of(trace_of(events, ranges=ranges)))
    said = titles(report).get("Uneven steps", ())
    assert bool(said) == uneven
    assert not uneven or "no mean or median stands for all of them" in said[0]
    assert ("the steps are uneven" in notes(section(report, "steps"))) == uneven


def test_why_a_launch_is_not_known_is_said() -> None:
    def report_of(hosts: Sequence[int]) -> str:
        events = [_event(None, 10_000 * i, 10_000 * i + 2_000, "dma") for i in range(len(hosts))]
        trace = trace_of(events)
        return render_markdown(build_trace_report(study_of(replace(trace, device_events=replace(
            trace.device_events, host=array("i", hosts)
        )))))  # fmt: skip

    without = report_of([NO_CORRELATION] * 4)
    assert "4 of 4 events have no known launch call: 4 carry no correlation." in without
    assert "before the trace" not in without and "nothing says what launched them" in without
    missing = report_of([NO_HOST] * 3 + [NO_CORRELATION])
    assert "no known launch call: 3 were launched before the trace, 1 carry no correlation." in missing
    assert "it lies before the trace; record a longer window" in missing


def test_a_job_of_many_ranks_has_short_banners_and_says_what_differs() -> None:
    told = ({"rank": str(rank), "with_stack": "1"} for rank in range(12))
    ranks = [busy_trace(rank=rank, path=Path(f"{rank}.json"), metadata=own) for rank, own in enumerate(told)]
    report = build_trace_report(study_of(*ranks))
    items = titles(report)["The profiler may have slowed the host down"]
    assert len(items) == 9 and items[7].startswith("rank 7") and items[8] == "and 4 more like these"
    said = tables(section(report, "overview"))[-1]
    assert [row.cells for row in said.rows] == [
        (m.Code("rank"), m.Text("differs: 12 values", "bad")),
        (m.Code("with_stack"), m.Code("1")),
    ]


def test_a_late_host_that_the_profiler_held_up_is_said() -> None:
    options = {"with_stack": "1", "profile_memory": "0", "record_shapes": "1"}
    found = titles(build_trace_report(study_of(busy_trace(metadata=options))))
    (said,) = found["The profiler may have slowed the host down"]
    assert said.startswith("t: with_stack, record_shapes slowed the host") and "without the profiler" in said
    assert "The profiler may have slowed the host down" not in titles(build_trace_report(study_of(busy_trace())))
    busy = trace_of([_event(None, 0, 50_000, "a")], metadata=options)
    assert titles(build_trace_report(study_of(busy))) == {}


HOST = trace_of((), ops=[HostEvent("aten::mm", 0, 10_000, 0), HostEvent("aten::add", 2_000, 3_000, 0)])


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (HOST, "host events only"),
        (trace_of((), [HostEvent("mine", 0, 10, 0)], counts=ReadCounts(events=1)), "no operator ran while the profiler recorded"),
        (trace_of((), launched={"cudaLaunchKernel": (12, 12)}), "12 launch calls were recorded and no device event answers"),
        (trace_of(()), "t: the trace holds no events at all"),
        (trace_of((), counts=ReadCounts(events=7, truncated=True)), "before the place where the file ends"),
    ],
)
def test_no_device_events_are_a_result(trace: Trace, said: str) -> None:
    page = build_trace_report(study_of(trace, steps="mine"))
    assert said in titles(page)["No device events"][0]
    assert "Nothing that matches 'mine' starts a step: steps are of device events." in str(page.sections)
    assert ("ranges on the host" in str(page.sections)) == bool(len(trace.ranges))


def test_without_device_events_the_operators_are_shown() -> None:
    reports = [build_trace_report(study_of(HOST, **top)) for top in ({}, {"top": 1})]
    assert "answer" not in [each.id for each in reports[0].sections]
    whole, short = (section(report, "operators").blocks[1] for report in reports)
    assert isinstance(whole, m.Table) and [row.cells[2] for row in whole.rows] == [m.ExactTime(9_000), m.ExactTime(1_000)]
    assert isinstance(short, m.Table) and short.rows[-1].cells[:3] == (m.Text("1 more rows"), m.Count(1), m.ExactTime(1_000))


def test_the_picture_of_a_step_tiles_it() -> None:
    report = build_trace_report(study_of(busy_trace()))
    (figure,) = section(report, "timeline").blocks
    (lane,) = figure.picture.lanes
    assert lane.label.endswith("ProfilerStep#1") or lane.label.endswith("ProfilerStep#0")
    drawn = [(figure.picture.kinds[kind].label, ns) for kind, ns in zip(lane.kind, lane.duration_ns, strict=True)]
    assert drawn == [
        ("top kernel: gemm", 300_000), ("idle: host late", 86_000), ("idle: launch latency", 4_000), ("other kernels", 100_000),
        ("idle: host late", 506_000), ("idle: launch latency", 4_000),
    ]  # fmt: skip
    whole = {row.cells[0]: row.cells[1] for row in figure.table.rows}
    assert whole[m.Text("idle: host late")] == m.ExactTime(592_000) and whole[m.Text("in all")] == m.ExactTime(1_000_000)


def test_of_a_long_trace_without_steps_the_middle_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.perf.report.trace_page.device.MAX_SLICES", 6)
    lengths = [7 * n * n % 83 + 5 for n in range(20)]  # nothing repeats
    events = [_event(None, 1000 * n, 1000 * n + lengths[n], f"k{n}") for n in range(20)]
    (figure,) = section(build_trace_report(study_of(trace_of(events))), "timeline").blocks
    (lane,) = figure.picture.lanes
    names = [figure.picture.names[name] for name in lane.name]
    assert names[1::2] == ["idle: cause unknown"] * 3 or names[::2] == ["idle: cause unknown"] * 3
    first = int(next(name for name in names if name.startswith("k"))[1:])
    assert [name for name in names if name.startswith("k")] == [f"k{first + n}" for n in range(3)] and 7 <= first <= 9
    assert " ms of the whole trace" in lane.label


@pytest.mark.parametrize(
    ("files", "labels"),
    [
        ({"x/a.json.gz": 0, "y/b.json": 5}, ("rank 0", "rank 5")),
        ({"x/a.json.gz": 0, "y/b.json": 0}, ("a", "b")),
        ({"x/a.json.gz": None, "y/a.json": 1}, ("x/a", "y/a")),
        ({"x/a.json.gz": 0, "x/a.json": 0}, ("a (1)", "a (2)")),
        ({"x/a.json.gz": 4}, ("a",)),
    ],
)
def test_labels_tell_the_traces_apart(files: dict[str, int | None], labels: tuple[str, ...]) -> None:
    assert trace_labels([trace_of((), path=Path("/p", path), rank=rank) for path, rank in files.items()]) == labels


def test_many_hostile_ranks_make_a_small_page_and_no_element(tmp_path: Path) -> None:
    names = [f"{EVIL}{'z' * n}{n}" for n in range(120)]
    events = [
        DeviceEvent(name, "kernel", 10 * n, 10 * n + 7, n % 2, n % 5, 0, HostEvent(EVIL, 10 * n - 5, 10 * n - 1, 0), f"[{EVIL}]")
        for n, name in enumerate(names * 3)
    ]
    ranges = [HostEvent(f"step {EVIL}#{n}", 500 * n, 500 * n + 490, 0) for n in range(7)]
    one = trace_of(events, ranges=ranges, metadata={EVIL: EVIL}, devices={0: EVIL}, threads=(EVIL,))
    traces = [replace(one, rank=rank, path=Path(f"{rank}.json")) for rank in range(8)]
    report = build_trace_report(study_of(*traces, by="shape"))
    assert decode_report(m.encode_report(report)) == report
    page = render(report, "html")
    assert len(page.encode()) < MAX_PAGE_BYTES
    assert "<script>alert" not in page and "\x1b" not in page and page.count("<script") <= 2 + len(report.sections)
    markdown = render_markdown(report)
    assert "<script" not in markdown and "\x1b" not in markdown
    assert render_html(report) == render_html(build_trace_report(study_of(*traces, by="shape")))
    write_events(study_of(*traces), tmp_path / "events.csv.gz")


def plain(folder: Path, name: str, rank: int, starts: Sequence[int], base_us: int = 0) -> None:
    """Write the trace of a rank with kernels of 40 µs."""
    kernels = [{"ph": "X", "cat": "kernel", "name": "k", "ts": f"{at}.000", "dur": "40.000"} for at in starts]
    document = {"baseTimeNanoseconds": 1000 * base_us, "distributedInfo": {"rank": rank}, "traceEvents": kernels}
    (folder / f"{name}.json").write_text(json.dumps(document))


def test_times_of_a_window_count_from_the_first_event_of_all_ranks_that_ran_together(tmp_path: Path) -> None:
    plain(tmp_path, "a", 0, (100, 300), 5_000)
    plain(tmp_path, "b", 1, (100, 300), 5_050)  # 50 µs later than the other
    asked = TraceOptions(window="10us..220us")
    zero, one = load_trace_study([tmp_path], asked).windows
    assert zero is not None and (zero.start_ns, zero.end_ns) == (110_000, 320_000)
    assert one is not None and (one.start_ns, one.end_ns) == (60_000, 270_000)
    assert build_trace_report(load_trace_study([tmp_path], TraceOptions(window="0us..20us"))).sections  # before one rank starts
    plain(tmp_path, "b", 1, (100, 300), 900_000)  # another run
    assert [one and one.start_ns for one in load_trace_study([tmp_path], asked).windows] == [110_000, 110_000]


def test_a_study_is_read_in_order_of_rank_with_one_progress(tmp_path: Path) -> None:
    plain(tmp_path, "b", 0, (1,))
    plain(tmp_path, "a", 1, (1,))
    told: list[tuple[int, int, str]] = []
    study = load_trace_study([tmp_path], progress=lambda *now: told.append(now))
    assert study.labels == ("rank 0", "rank 1") and [trace.path.name for trace in study.traces] == ["b.json", "a.json"]
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert {of for _, of, _ in told} == {total} and max(done for done, *_ in told) == total
    assert [done for done, *_ in told] == sorted(done for done, *_ in told)


def calls_of_a_page(num: int) -> tuple[int, int]:
    """Calls of all functions, and of the search for periods, that the page of so many devices takes.

    Each runs a loop of four kernels, two of them launched by one graph, under ranges of the host.
    """
    events, ranges = [], []
    for step in range(6):
        ranges.append(HostEvent(f"step {step}", 100_000 * step, 100_000 * step + 90_000, 0))
        for device in range(num):
            at = 100_000 * step + 17 * device
            graph = HostEvent("cudaGraphLaunch", at + 400, at + 500, 0)
            for place, name in enumerate(("a", "b", "c", "c")):
                host = graph if place > 1 else HostEvent("cudaLaunchKernel", at + 100 * place, at + 100 * place + 50, 0)
                start = at + 9_000 + 3_000 * place
                events.append(DeviceEvent(name, "kernel", start, start + 2_500, device, 7, max(0, place - 2), host))
    study = study_of(trace_of(events, ranges=ranges, devices=dict.fromkeys(range(num), "")))
    profile = cProfile.Profile()
    profile.runcall(build_trace_report, study)
    counts = {(code.co_name if isinstance(code, CodeType) else code): n for code, n, *_ in profile.getstats()}
    return sum(n for _, n, *_ in profile.getstats()), counts["find_periods"]


def test_the_work_grows_no_faster_than_the_devices() -> None:
    calls_of_a_page(2)  # imports and what is kept of names
    (few, periods), (many, twice) = calls_of_a_page(16), calls_of_a_page(32)
    assert many <= 2.1 * few
    assert twice == 2 * periods


_SECTIONS = (
    activity_section, device_kernels, launch_section, gaps_section, steps_section, ranges_section, collectives_section,
    memory_section,
)  # fmt: skip


_EVENTS = st.builds(
    lambda kind, name, start, length, device, at: DeviceEvent(
        f"{kind}{name}", kind, start, start + length, device, 7, 0, HostEvent("cudaLaunchKernel", at, at + 2, 0) if at else None
    ),
    st.sampled_from(["kernel", "kernel", "comm", "memset", "memcpy"]), st.integers(0, 6), st.integers(0, 300), st.integers(0, 40),
    st.integers(0, 1), st.integers(0, 300),
)  # fmt: skip


@given(events=st.lists(_EVENTS, min_size=1, max_size=25, unique_by=lambda e: e.host or e), top=st.integers(1, 4))
def test_what_is_said_to_add_up_adds_up(events: list[DeviceEvent], top: int) -> None:
    ranges = [HostEvent(f"ProfilerStep#{n}", 90 * n, 90 * n + 90, 0) for n in range(3)]
    trace = trace_of(events, ranges, [HostEvent("Block_1", 5, 170, 0)])
    study = study_of(trace, top=top)
    devices, causes, kinds, _, *over_time = tables(activity_section(study))
    busy, idle, span = (values(devices, title) for title in ("busy", "idle", "span"))
    assert [b + i for b, i in zip(busy, idle, strict=True)] == span
    assert sum(values(kinds, "exclusive")) == sum(busy)
    assert sum(values(causes, "time", [row for row in causes.rows if not row.strong])) == sum(idle)
    for stretches in over_time:
        classes = [column.title for column in stretches.columns[3:]]
        assert sum(sum(values(stretches, title)) for title in classes) == sum(span)
    kernels = [table for table in tables(device_kernels(study)) if "busy" in table.caption]
    assert [sum(values(table, "exclusive")) for table in kernels] == busy
    assert sum(sum(values(table, "calls")) for table in kernels) == len(events)
    gaps = gaps_section(study)
    for table in tables(gaps) if gaps else []:
        titles = [column.title for column in table.columns]
        parts = titles[titles.index("max") + 1 : -1]
        for i, total in enumerate(values(table, "sum")):
            assert sum(values(table, part)[i] for part in parts) == total
        body = [row for row in table.rows if not row.strong or "more" in row.cells[0].text]
        assert sum(values(table, "sum", body)) == values(table, "sum")[-1]
    steps = [table for table in tables(steps_section(study)) if table.caption.startswith("Steps of")]
    within = ranges_section(study_of(trace, top=top, window=Window(start_ns=20, end_ns=190, label="w")))
    paths = [table for part in (ranges_section(study), within) if part for table in tables(part) if "Paths" in table.caption]
    for title, adding in (("length", steps), ("own time", paths)):
        assert all(sum(values(table, title)) == 2 * values(table, title)[-1] for table in adding)


def test_without_device_events_there_is_nothing_to_say() -> None:
    empty = trace_of([])
    assert [section(study_of(empty)) for section in _SECTIONS] == [None] * 8
    assert ranges_section(study_of(trace_of([_event(None, 1, 2)]))) is None
    some = activity_section(study_of(trace_of([_event(None, 0, 5)]), empty, labels=("rank 0", "rank 1")))
    assert some is not None and some.blocks[-1] == m.Notes(("rank 1: no device events.",))


def test_long_tables_end_with_what_they_leave_out() -> None:
    events = [_event(None, 20 * i, 20 * i + 10, f"void f<{i}>(int)") for i in range(12)]
    events += [_event(None, 1_000 + 20 * i, 1_000 + 20 * i + i, f"k{i}") for i in range(1, 6)]
    table, members = tables(device_kernels(study_of(trace_of(events), top=2)))
    assert [row.cells[0].text for row in table.rows] == ["f", "k5", "4 more rows"]
    assert (values(table, "calls"), values(table, "exclusive")) == ([12, 1, 4], [120, 5, 10])
    assert members.rows[-1].cells[1:] == (
        m.Text(f"{12 - MAX_MEMBERS} more names"),
        m.Count(12 - MAX_MEMBERS),
        m.ExactTime(10 * (12 - MAX_MEMBERS)),
    )
    gaps = tables(gaps_section(study_of(trace_of(events), top=2)))[0]
    assert [row.cells[0].text for row in gaps.rows][-2:] == ["4 more pairs", "all gaps"]


def test_the_table_of_kernels_says_what_its_figures_are_of() -> None:
    events = [DeviceEvent("k", "kernel", 10 * i, 10 * i + 5, 0, 7, 0, None, shape) for i, shape in enumerate(["8x8", "", "8x8"])]
    table, *_ = tables(device_kernels(study_of(trace_of(events), by="shape")))
    assert [row.cells[1] for row in table.rows] == [m.Code("8x8"), m.Missing("the trace gives none", "-")]
    assert column(table, "p99") == [m.Missing("max of 2", "-"), m.Missing("max of 1", "-")]
    study = study_of(trace_of([_event(None, 0, 50)]), window=Window(start_ns=10, end_ns=30, label="<script>|\x1b[2J"))
    table, *_ = tables(device_kernels(study))
    assert values(table, "exclusive") == [20] and "cut by the edges of the window: 1" in table.notes[0]
    devices, *_ = tables(activity_section(study))
    assert "<script>|\x1b[2J" in devices.caption and "cut by the edges of the window: 1" in devices.notes[1]


def test_what_held_up_the_host_is_named_by_the_idle_time_it_cost() -> None:
    """Two launches that come late: the first beside the loading of its kernel, the second beside the profiler's buffers."""
    events = [_event(None, 0, 10, "a"), _event(80, 90, 100, "b"), _event(300, 310, 320, "c")]
    named = [
        HostEvent("Lazy Function Loading", 5, 40, 0), HostEvent("Buffer Flush", 30, 50, 0),
        HostEvent("Buffer Flush", 290, 400, 0),
    ]  # fmt: skip
    trace = trace_of(events, overheads=HostEvents.from_rows(named))
    table = next(one for one in tables(activity_section(study_of(trace))) if "what held up the host" in one.caption)
    assert values(table, "overhead") == ["Lazy Function Loading", "Buffer Flush"]
    assert values(table, "idle time") == [30, 10 + 10]  # 10 to 40; 40 to 50 and 290 to 300
    said = " ".join(values(table, "that is"))
    assert "loaded at its first use" in said and "the profiler's own work" in said
    causes = next(one for one in tables(activity_section(study_of(trace))) if "what the device waited for" in one.caption)
    assert dict(zip(values(causes, "idle because"), values(causes, "time"), strict=True))["profiler_overhead"] == 50


# Steps, ranges, communication, memory and sections.


def _model(steps: int = 9, name: str = "Block") -> Trace:
    ranges, modules, events = [], [], [_event(None, 100, 150)]
    for step in range(steps):
        at = 1_000 * (step + 1)
        ranges += [HostEvent(f"ProfilerStep#{step + 5}", at, at + 1_000, 0), HostEvent("nccl:all_reduce", at + 900, at + 950, 0)]
        modules.append(HostEvent("Model_0", at + 100, at + 800, 0))
        for block in range(4):
            modules.append(HostEvent(f"{name}_{block}", at + 100 + 100 * block, at + 190 + 100 * block, 0))
            events.append(_event(at + 110 + 100 * block, at + 300 + 100 * block, at + 350 + 100 * block + 9 * (block == 0)))
        events.append(_event(at + 960, at + 965, at + 970))
    return trace_of(events, ranges, modules)


def _table(section: m.Section | None, start: str) -> m.Table:
    return next(table for table in tables(section) if table.caption.startswith(start))


def _values(table: m.Table, title: str, strong: bool | None = False) -> list[Any]:
    return values(table, title, [row for row in table.rows if strong is None or row.strong == strong])


def test_a_period_shows_its_evidence_and_no_step_says_why() -> None:
    events = [
        _event(None, 20 * i + 50 * (i // 11), 20 * i + 50 * (i // 11) + 9, "embed" if i % 11 == 0 else f"k{i % 5}")
        for i in range(88)
    ]
    section = steps_section(study_of(trace_of(events)))
    evidence = _table(section, "Why these are steps")
    assert [_values(evidence, title) for title in ("a period starts with", "periods", "kernels", "confidence")] == [
        ["embed"], [8], [11], ["high"],
    ]  # fmt: skip
    refused = steps_section(study_of(trace_of([_event(None, 5, 9)])))
    assert tables(refused) == [] and "device 0: no repeating step found" in notes(refused)
    assert "no range that launched work and no kernel matches 'x'" in notes(steps_section(study_of(trace_of(events), steps="x")))


def _sums(frame: m.Frame) -> None:
    assert sum(child.candidate_ns for child in frame.children) <= frame.candidate_ns == frame.baseline_ns
    for child in frame.children:
        _sums(child)


def test_ranges_modules_layers_and_the_flame() -> None:
    section = ranges_section(study_of(_model()))
    ranges, modules, layers = (_table(section, start) for start in ("Ranges of", "Modules", "The first layer"))
    everything = sum(event.end_ns - event.start_ns for event in _model().device_events)
    assert _values(ranges, "name") == ["ProfilerStep", "nccl:all_reduce"] and _values(ranges, "calls") == [9, 9]
    assert _values(ranges, "sum") == [everything - 50, 0] and _values(ranges, "of all")[0] == pytest.approx(
        (everything - 50) / everything
    )
    assert _values(modules, "name") == ["Block", "Model"] and _values(modules, "exclusive") == [9 * 209, 0]
    assert [_values(layers, title) for title in ("layers", "in", "places", "calls", "device, first", "later")] == [
        ["Block"], ["Model"], [4], [36], [59], [50],
    ]  # fmt: skip
    said = notes(section)
    assert (
        "the trace does not hold the launch of 1 events" in said
        and "9 calls of ranges around collectives launched nothing" in said
    )
    (flame,) = [block.picture for block in section.blocks if isinstance(block, m.Figure)]
    assert isinstance(flame, m.Flame) and not flame.differential and flame.root.candidate_ns == everything
    _sums(flame.root)
    paths = _table(section, "Paths")
    assert sum(_values(paths, "own time")) == everything == _values(paths, "own time", strong=True)[-1]


def test_a_wide_tree_is_drawn_with_a_bounded_number_of_frames() -> None:
    ranges = [HostEvent(f"r{i}x", 10 * i, 10 * i + 9, 0) for i in range(900)]
    events = [_event(10 * i + 1, 20_000 + 30 * i, 20_001 + 30 * i + i % 20) for i in range(900)]
    section = ranges_section(study_of(trace_of(events, ranges), top=5))
    (flame,) = [block.picture for block in section.blocks if isinstance(block, m.Figure)]
    _sums(flame.root)
    assert sum(child.candidate_ns for child in flame.root.children) == flame.root.candidate_ns
    assert len(flame.root.children) <= MAX_FRAMES + 50 and flame.root.children[-1].label.endswith(" narrower")
    table = _table(section, "Ranges")
    assert len(table.rows) == 6 and sum(_values(table, "exclusive", strong=None)) == flame.root.candidate_ns


def _ranks(offset: int = 0, sequence: bool = True) -> list[Trace]:
    """Three ranks; rank 2 comes 300 µs late to every all-reduce, half of which a kernel hides."""
    traces = []
    for rank in range(3):
        shift = offset if rank == 1 else 0
        comm = []
        for i in range(5):
            start = 1_000_000 * i + (300_000 if rank == 2 else 0) + shift
            comm.append(_event(None, start, 1_000_000 * i + 400_000 + shift, "ncclAllReduce", "comm", 9))
        work = [_event(None, 1_000_000 * i + 350_000 + shift, 1_000_000 * i + 600_000 + shift) for i in range(5)]
        rows = sorted([*comm, *work], key=lambda e: (e.start_ns, -e.end_ns))
        told = {
            i: (CollectiveKind("allreduce", "tp", (0, 1, 2), 500_000, 500_000, "BFloat16"), n if sequence else -1)
            for n, i in enumerate(i for i, row in enumerate(rows) if row.kind == "comm")
        }
        traces.append(trace_of(rows, collectives=told, rank=rank, path=Path(f"r{rank}.json")))
    return traces


def test_communication_alone_and_across_ranks() -> None:
    alone = collectives_section(study_of(_ranks()[0]))
    assert [len(tables(alone)), _values(tables(alone)[0], "union"), _values(tables(alone)[0], "exposed")] == [
        2, [5 * 400_000], [5 * 350_000],
    ]  # fmt: skip
    section = collectives_section(study_of(*_ranks()))
    members, kinds = _table(section, "Waiting and moving"), _table(section, "Skew against")
    assert _values(members, "device") == ["rank 0, device 0", "rank 1, device 0", "rank 2, device 0"]
    assert (_values(members, "last"), _values(members, "cost")) == ([0, 0, 5], [0, 0, "1.500000"])
    assert (_values(members, "waited"), _values(members, "transferred")) == ([1_500_000, 1_500_000, 0], [500_000] * 3)
    assert _values(kinds, "rate") == [10.0]  # 1 MB in 100 µs
    said = notes(section)
    assert "wait longest for rank 2, device 0: it costs each of them" in said
    assert "5 collectives were found on every rank that has a trace, by sequence." in said
    assert "by order." in notes(collectives_section(study_of(*_ranks(sequence=False))))


def test_clocks_that_differ_stop_the_split() -> None:
    section = collectives_section(study_of(*_ranks(offset=500_000)))
    assert len(tables(section)) == 2
    assert "Clocks of ranks not aligned: 5 of 5 collectives" in notes(section)
    assert "by up to 0.1000 ms (rank 1, device 0 is ahead of rank 0, device 0)" in notes(section)


def test_memory_over_time() -> None:
    track = MemoryTrack(
        device="cuda:0", step_ns=1_000_000, start_ns=(0, 1_000_000, 2_000_000), allocated_bytes=(1 << 20, 5 << 20, 2 << 20),
        reserved_bytes=(0, 8 << 20, 8 << 20),
    )  # fmt: skip
    trace = trace_of([], [HostEvent("forward", 500_000, 1_500_000, 0)], memory=(track,))
    section = memory_section(study_of(trace))
    peaks, course = tables(section)
    assert [_values(peaks, title) for title in ("peak allocated", "at", "in", "peak reserved")] == [
        [5.0],
        [1_000_000],
        ["forward"],
        [8.0],
    ]
    assert _values(course, "allocated") == [1.0, 5.0, 2.0]
    (picture,) = [block.picture for block in section.blocks if isinstance(block, m.Figure)]
    assert isinstance(picture, m.Plane) and len(picture.marks) == 6


def test_calls_may_lie_in_each_other_deeper_than_python_recurses() -> None:
    ranges = [HostEvent(f"r{n}x", n, 9_000 - n, 0) for n in range(2_000)]
    study = study_of(trace_of([_event(4_000, 5_000, 5_600)], ranges))
    section = ranges_section(study)
    (flame,) = [block for block in section.blocks if isinstance(block, m.Figure)]
    assert isinstance(flame.picture, m.Flame) and _values(flame.table, "own time") == [600]
    frame = flame.picture.root
    for _ in range(MAX_DEPTH - 1):
        (frame,) = frame.children
    assert (frame.label, frame.baseline_ns, frame.children) == (f"r{MAX_DEPTH - 2}x", 600, ())
    report = build_trace_report(study)
    assert decode_report(m.encode_report(report)) == report and "<svg" in render_html(report)


def test_little_memory_is_not_nothing_and_each_course_names_its_device() -> None:
    tracks = [
        MemoryTrack(device=device, step_ns=1_000, start_ns=(0, 1_000), allocated_bytes=(0, 1_536), reserved_bytes=(0, 0))
        for device in ("cpu", "cuda:0")
    ]
    peaks, *courses = tables(memory_section(study_of(trace_of([], memory=tuple(tracks)))))
    assert [row.cells[1] for row in peaks.rows] == [m.Number(1.5, 3, "KiB")] * 2
    assert [course.caption for course in courses] == [
        f"Largest allocated memory of {device} in each part of the time." for device in ("cpu", "cuda:0")
    ]


def test_what_holds_for_all_devices_is_said_once() -> None:
    ranges = [HostEvent(f"ProfilerStep#{n}", 100 * n, 100 * n + 50, 0) for n in range(3)]
    events = [_event(100 * n + 1, 100 * n + 5, 100 * n + 60) for n in range(3)]
    (summary, *_) = tables(steps_section(study_of(*(trace_of(events, ranges, path=Path(f"{name}.json")) for name in "abc"))))
    assert len(summary.rows) == 3 and len(summary.notes) == len(set(summary.notes)) == 2
    assert all(note.startswith("a, device 0 and 2 more: ") for note in summary.notes)


ROWS = [
    ("copy", "memcpy", 0, 10), ("flash", "kernel", 20, 50), ("gather", "kernel", 60, 70),
    ("copy", "memcpy", 100, 110), ("flash", "kernel", 112, 150), ("gather", "kernel", 150, 160),
    ("flash", "kernel", 200, 210),
]  # fmt: skip


def study(*sections: str, rows: list[tuple[str, str, int, int]] = ROWS) -> TraceStudy:
    events = [DeviceEvent(name, kind, start, end, 0, 7, 0, None) for name, kind, start, end in rows]
    return study_of(trace_of(events), sections=sections)


def table(*sections: str, rows: list[tuple[str, str, int, int]] = ROWS) -> m.Table:
    section = sections_section(study(*sections, rows=rows))
    assert section is not None and section.id == "sections"
    (found,) = section.blocks
    assert isinstance(found, m.Table) and all(len(row.cells) == len(found.columns) == 14 for row in found.rows)
    return found


def test_one_row_for_each_definition_and_device() -> None:
    found = table("memcpy:end -> flash -> gather:end", "flash:start -> gather -> copy:start")
    first = found.rows[0].cells
    assert first[2:] == (
        m.Code("memcpy:end -> flash -> gather:end"), m.Count(2), *map(m.ExactTime, (50, 60, 55, 50)), m.Missing("", "-"),
        *map(m.ExactTime, ((40 + 48) // 2, (20 + 2) // 2, 34)), m.Number(2.0, 1), m.Count(1),
    )  # fmt: skip
    assert found.notes[0].endswith("skipped of 3 focal calls: 1 no gather:end after it")
    assert found.rows[1].cells[3] == m.Count(1) and found.rows[1].cells[-1] == m.Count(1)


def test_what_is_not_there_is_said() -> None:
    none = table("memcpy:end -> flush -> gather:end").rows[0].cells
    assert none[3] == m.Missing("no device event matches 'flush'", "none")
    skipped = table("memset:end -> flash -> gather:end").rows[0].cells
    assert skipped[3] == m.Missing("3 no memset:end before it", "none") and skipped[-1] == m.Count(3)
    assert sections_section(study()) is None
    found = sections_section(study("a:end -> b -> c:end", rows=[]))  # a trace of a CPU: what was asked for is answered
    assert found is not None and isinstance(host := found.blocks[0], m.Table)
    assert host.notes == ("t, a:end -> b -> c:end: no device event matches 'b'",)


def test_the_manual_explains_every_verdict() -> None:
    text = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8").lower()
    assert [name for name in _MEANING if f"| `{name}` |" not in text and f"**{name}** means" not in text] == []


def steps_file(path: Path, lengths: list[int]) -> Path:
    """Steps of an attention kernel of so many microseconds and a product of 100, then 100 idle, launched late."""
    events, at = [], 1000
    for step, length in enumerate(lengths):
        number = 2 * step + 1
        events += [launch(str(at - 10), "5", number), launch(str(at - 5), "5", number + 1)]
        events += [event("user_annotation", f"ProfilerStep#{step}", str(at - 20), str(length + 200))]
        events += [kernel("flash_fwd_kernel", str(at), str(length), number)]
        events += [kernel("sm90_gemm_128x128", str(at + length), "100", number + 1)]
        at += length + 200
    return write(path, compact(events, {}))


def built(path: Path, **options: Any) -> m.Report:
    return build_trace_report(load_trace_study((path,), TraceOptions(**options)))


def sentences(path: Path, **options: Any) -> list[str]:
    first = built(path, **options).sections[0]
    assert first.id == "answer"
    return [item for block in first.blocks if isinstance(block, m.Notes) for item in block.items]


def test_what_the_time_is_and_why_the_device_was_idle(tmp_path: Path) -> None:
    said = sentences(steps_file(tmp_path / "t.json", [300] * 6))
    assert said[0].startswith("device 0: busy for 82.8 % of 2.900 ms; ")  # 6 x 400 of 5 x 500 + 400
    assert said[1] == "Of the busy time: attention 75.0 %, matrix products 25.0 %."
    assert said[2] == "Most time: flash_fwd_kernel 75.0 %, sm90_gemm 25.0 %."
    assert said[3].startswith("Idle for 0.5000 ms, ") and "because the launch call had not started yet (host_late)" in said[3]


def test_the_slowest_step_is_named(tmp_path: Path) -> None:
    even, uneven = (
        sentences(steps_file(tmp_path / f"{n}.json", lengths))
        for n, lengths in enumerate(([300] * 6, [300, 300, 800, 300, 300, 300]))
    )
    assert not any("the slowest" in line for line in even)
    (line,) = (line for line in uneven if "the slowest" in line)
    assert "steps, median 0.5000 ms; the slowest, ProfilerStep#2, takes 1.000 ms, 0.1000 of it idle." in line
    two = sentences(steps_file(tmp_path / "two.json", [300, 800]))  # the median is no sample longer than half of them
    assert any(line.startswith("2 steps, median 0.5000 ms; the slowest, ProfilerStep#1, ") for line in two), two
    some = sentences(tmp_path / "1.json", window="0..1")  # the slow one lies outside
    assert "2 steps, median 0.5000 ms." in some
    assert not any("steps, median" in line for line in sentences(tmp_path / "1.json", window="ProfilerStep#2"))
    (section,) = (each for each in built(tmp_path / "1.json", window="0..1").sections if each.id == "steps")
    assert values(_table(section, "Length of a step"), "steps") == [2]


def test_the_time_before_the_first_kernel_and_the_first_step_are_told(tmp_path: Path) -> None:
    steps = (("0", "50000", 46000), ("50000", "500", 50100), ("50600", "500", 50700), ("51200", "500", 51300))
    events = [event("cuda_driver", "cuModuleLoadData", "100", "20000"), event("user_annotation", "autotune", "20200", "25000")]
    for number, (start, length, at) in enumerate(steps):
        events += [event("user_annotation", f"ProfilerStep#{number}", start, length), launch(str(at - 10), "5", number + 1)]
        events += [kernel("flash_fwd_kernel", str(at), "300", number + 1)]
    said = sentences(write(tmp_path / "first.json", compact(events, {})))
    before = "Before the first kernel the host spent 46.00 ms: 25.00 ms in autotune, 20.00 ms in cuModuleLoadData, "
    assert any(line.startswith(before) for line in said), said
    assert any("ProfilerStep#0, takes 50.00 ms on the host, 0.3000 of it busy on the device." in line for line in said), said


def layers(path: Path, lengths: list[int]) -> Path:
    """Blocks of one step, each a range around the launch of a kernel of so many microseconds, and a kernel after them."""
    events, at = [event("user_annotation", "step", "900", "9000")], 1000
    for number, length in enumerate([*lengths, 100]):
        if number < len(lengths):
            events.append(event("user_annotation", f"WanBlock_{number}", str(at - 20), "15"))
        events += [launch(str(at - 10), "4", number + 1), kernel("gemm", str(at), str(length), number + 1)]
        at += length + 50
    return write(path, compact(events, {}))


def test_layers_are_one_line_and_a_slow_one_is_named(tmp_path: Path) -> None:
    told = (sentences(layers(tmp_path / f"{n}.json", [100, 100, last, 100])) for n, last in enumerate((100, 200)))
    even, slow = ([line for line in said if line.startswith("Layers: ")] for said in told)
    rows = [row for row in read_trace(tmp_path / "1.json").layers if row.layers == "WanBlock"]
    assert [(row.place, row.name, row.device_p50_ns, row.kernels) for row in rows] == [
        (place, f"WanBlock_{place}", ns, 1) for place, ns in enumerate((100_000, 100_000, 200_000, 100_000))
    ]
    assert even == ["Layers: 4 of WanBlock, 0.1000 ms each (median), 80.0 % of the work."]
    assert slow == [
        "Layers: 4 of WanBlock, 0.1000 ms each (median), 83.3 % of the work; the slowest, WanBlock_2, takes 0.2000 ms."
    ]


def test_the_page_has_what_would_help_second_and_warnings_that_change_no_figure_below(tmp_path: Path) -> None:
    report = built(steps_file(tmp_path / "t.json", [300] * 6), details=True)
    assert [section.id for section in report.sections[:3]] == ["answer", "what-if", "overview"]
    warned = msgspec.structs.replace(report, banners=(m.Banner("caution", "weakens", ("a",)), m.Banner("stop", "voids", ("b",))))
    for text in (render_html(warned), render_markdown(warned)):
        places = [text.rindex(word) for word in ("voids", "The answer", "weakens", "What would help")]
        assert places == sorted(places)


def test_layers_lie_within_a_call_and_beside_each_other_are_no_more_than_all_work(tmp_path: Path) -> None:
    path = layers(tmp_path / "t.json", [100, 100, 100, 100])
    events = json.loads(path.read_text())["traceEvents"]
    path.write_text(json.dumps({"traceEvents": events[1:]}))
    assert not [line for line in sentences(path) if line.startswith("Layers: ")], "no call encloses them"
    for number, one in enumerate(one for one in events if one["cat"] == "kernel"):
        one |= {"ts": str(1000 + 40 * number), "args": {**one["args"], "stream": number}}
    calls = [one for one in events if one["cat"] != "kernel" and one["name"] != "step"]
    for number, one in enumerate(calls):
        one |= {"ts": str(900 + 10 * number), "dur": "15" if one["cat"] == "user_annotation" else "4"}
    path.write_text(json.dumps({"traceEvents": events}))
    (said,) = [line for line in sentences(path) if line.startswith("Layers: ")]
    assert ", 80.0 % of the work" in said


RECORDED = META | {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "record_shapes": 1}
PEAK, BANDWIDTH = 989.5e12, 4.8e12


def _page(
    tmp_path: Path, size: int, us: str, meta: dict[str, Any] = RECORDED, dtype: str = "c10::BFloat16", **options: Any
) -> str:
    said = {"External id": 1, "Input Dims": [[size, size]] * 2, "Input type": [dtype] * 2, "Concrete Inputs": ["", ""]}
    events = [event("cpu_op", "aten::mm", "1", "2", **said), kernel("gemm", "10", us, 1, **{"External id": 1})]
    path = write(tmp_path / "t.json", compact([*events, kernel("other", "9000", us, 2)], meta))
    return render_markdown(built(path, **{"by": "shape"} | options))


def _row(page: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if line.startswith(("| mm | 4096x4096", "| mm | 64x64"))]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_product_that_computes_and_one_on_a_device_without_known_peaks_that_has_rates_only(tmp_path: Path) -> None:
    row = _row(_page(tmp_path, 4096, "200"))
    flops, moved, s = 2 * 4096**3, 3 * 2 * 4096**2, 200e-6
    assert row[:7] == ["mm", "4096x4096, 4096x4096", "bfloat16", "1", "0.200000", "50.0 %", "200.0"]
    of_peak, of_bandwidth = (f"{share:.1%}".replace("%", " %") for share in (flops / s / PEAK, moved / s / BANDWIDTH))
    rates = f"{flops / 1e9:.3f}", f"{flops / s / 1e12:.1f}", f"{moved / s / 1e9:.1f}"
    assert row[7:] == [*rates, of_peak, of_bandwidth, "compute", f"{flops / PEAK * 1e3:.4f}", of_peak]
    row = _row(_page(tmp_path, 64, "1", meta=META))
    assert len(row) == 10 and row[7:] == ["0.001", "0.5243", "24.58"]


@pytest.mark.parametrize(
    ("size", "us", "options", "said", "unsaid"),
    [
        (4096, "100", {}, "ANOMALY, aten::mm: 1374 TFLOP/s is above the bfloat16 peak", "TF32"),
        (4096, "100", {"dtype": "float"}, "whether TF32 ran instead is not in the trace", "ANOMALY"),
        (64, "1", {"by": "name"}, "Against the device", "ANOMALY"),
        (64, "1", {}, "the cost is known of operators that own 50.0 % of the busy time", "ANOMALY"),
        (64, "1", {"details": False}, "Kernels", "Against the device"),
        (64, "1", {"details": False}, "Kernels", "GPU time by operator"),
    ],
)
def test_what_is_known_of_rates_is_said(
    tmp_path: Path, size: int, us: str, options: dict[str, Any], said: str, unsaid: str
) -> None:
    page = _page(tmp_path, size, us, **options)
    assert said in page and unsaid not in page


@pytest.mark.parametrize(
    ("meta", "said"),
    [(META, "shapes not recorded: capture with record\\_shapes=True"), (RECORDED, "no operator with recorded inputs launched")],
)
def test_nothing_recorded_is_said(meta: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", compact([kernel("mm", "10", "1", 1)], meta))
    page = render_markdown(built(path, by="shape"))
    assert "Against the device's peaks" in page and said in page


@pytest.mark.parametrize("size", ["-4", "-1e3", "9" * 400, "9" * 5000, "1e400"])
def test_one_operator_with_impossible_sizes_leaves_the_page_whole(size: str, tmp_path: Path) -> None:
    said = {"Input type": ["c10::BFloat16"] * 2, "Concrete Inputs": ["", ""]}
    events = []
    for number, rows in enumerate([4096, 123456789], 1):
        own = said | {"External id": number, "Input Dims": [[rows, 4096], [4096, 4096]]}
        place = {"External id": number}
        events += [event("cpu_op", "aten::mm", "1", "2", **own), kernel("gemm", str(900 * number), "200", number, **place)]
    path = write(tmp_path / "t.json", compact(events, RECORDED).replace("123456789", size))
    page, html, _ = (render(built(path, by="shape"), form) for form in ("md", "html", "json"))
    assert "| mm | 4096x4096, 4096x4096 | bfloat16 | 1 | 0.200000 |" in page and "gemm" in html


RULE = 64
"""Bytes for each device event, the trace itself with its launch calls included."""

_MEASURE = """
    import gc, sys, tracemalloc
    from pathlib import Path
    from made_traces import device_events
    from strobe.perf.report.export import write_events
    from strobe.perf.report.trace_page import device
    from strobe.perf.report.trace_page.build import build_trace_report
    from strobe.perf.report.study import TraceOptions, TraceStudy
    from strobe.perf.trace import DeviceEvent, HostEvent, HostEvents, Trace, columns

    columns.BLOCK, device.MAX_SLICES = 1 << 8, 1_000  # what is constant is reached with fewer events
    nodes, per_step = int(sys.argv[1]), int(sys.argv[4])

    def rows(count):
        call = None
        for i in range(count):
            at = 7_900_000_000_000_000 + 1009 * i
            if i % nodes == 0:
                call = HostEvent("cudaGraphLaunch" if nodes > 1 else "cudaLaunchKernel", at - 900, at - 100, 0)
            kind = ("kernel", "kernel", "memcpy", "kernel", "memset")[i % 5]
            yield DeviceEvent(f"k{i % 40}", kind, at, at + 100 + i * i % 1300, 0, 7 + i % 2, i % nodes, call, f"grid {i % 3}")

    def ranges(count):
        for i in range(0, count, per_step):
            at = 7_900_000_000_000_000 + 1009 * i - 950
            yield HostEvent(f"ProfilerStep#{i // per_step}", at, at + per_step * 1009, 0)

    def peak(count):
        tracemalloc.start()
        events, scopes = device_events(rows(count)), HostEvents.from_rows(ranges(count))
        none = HostEvents.empty()
        trace = Trace(path=Path("t.json"), threads=("1/1",), ops=none, regions=(), ranges=scopes, device_events=events)
        study = TraceStudy(traces=(trace,), labels=("t",), windows=(None,), options=TraceOptions(by=sys.argv[2]))
        gc.collect()
        tracemalloc.reset_peak()
        build_trace_report(study)
        write_events(study, Path(sys.argv[3]))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few, many = 5_000, 15_000
    peak(few)  # what is imported and remembered once
    print((peak(many) - peak(few)) / (many - few))
"""


@pytest.mark.few("8-shape-1000000")
@pytest.mark.parametrize(("nodes", "by", "per_step"), [(1, "name", 200), (8, "shape", 1_000_000)])
def test_a_report_needs_at_most_64_bytes_for_each_device_event(nodes: int, by: str, per_step: int, tmp_path: object) -> None:
    done = run(textwrap.dedent(_MEASURE), nodes, by, f"{tmp_path}/events.csv.gz", per_step)
    assert not done.returncode, done.stderr
    assert float(done.stdout) <= RULE
