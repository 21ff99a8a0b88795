"""The trace report as a whole: what was read, the banners, the step, and that hostile traces stay in their place."""

from __future__ import annotations

import cProfile
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strobe
from made_traces import trace_of
from reports import decode_report, notes, section, study_of, tables, values
from source import H200
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.report.blocks.kernels import MAX_MEMBERS
from strobe.perf.report.export import write_events
from strobe.perf.report.study import TraceOptions, TraceStudy, load_trace_study, trace_labels
from strobe.perf.report.trace_page.build import build_trace_report
from strobe.perf.report.trace_page.device import MAX_BINS, activity_section, gaps_section, launch_section
from strobe.perf.report.trace_page.structure import device_kernels
from strobe.perf.report.write import MAX_PAGE_BYTES, render, render_html, render_markdown
from strobe.perf.table.model import (
    Code,
    Count,
    ExactTime,
    Figure,
    Missing,
    Notes,
    Report,
    Section,
    Share,
    Strip,
    Table,
    Text,
    encode_report,
)
from strobe.perf.trace import DeviceEvent, HostEvent, HostEvents, ReadCounts, Trace
from strobe.perf.trace.events import NO_CORRELATION, NO_HOST

EVIL = "</script><script>alert(1)</script>|`x`\x1b[31m\u202e" + "y" * 4000


def busy_trace(name: str = "gemm", steps: int = 4, **more: Any) -> Trace:
    """Steps of 1 ms: a kernel of 0.3 ms, one of 0.1 ms, and half a millisecond in which the host is late."""
    events, ranges = [], []
    for step in range(steps):
        at = step * 1_000_000
        ranges.append(HostEvent(f"ProfilerStep#{step}", at, at + 900_000, 0))
        for start, length, kernel in ((10_000, 300_000, name), (400_000, 100_000, "other")):
            call = HostEvent("cudaLaunchKernel", at + start - 4_000, at + start - 1_000, 0)
            events.append(DeviceEvent(kernel, "kernel", at + start, at + start + length, 0, 7, 0, call))
    return trace_of(events, ranges=ranges, **more)


def titles(report: Report) -> dict[str, tuple[str, ...]]:
    return {banner.title: banner.items for banner in report.banners}


def test_the_top_says_what_was_read_and_each_device_in_a_line() -> None:
    trace = busy_trace(devices={0: "GPU X"}, counts=ReadCounts(events=77), rank=3, world_size=8)
    report = build_trace_report(study_of(trace))
    facts = {fact.name: fact.value for fact in report.facts}
    assert facts["Events read"] == Count(77) and facts["Device events"] == Count(8) and facts["Ranks"] == Text("3 of 8")
    devices = tables(section(report, "overview"))[0]
    (row,) = devices.rows
    span, busy = 3 * 1_000_000 + 490_000, 4 * 400_000
    assert ExactTime(span) in row.cells and ExactTime(busy) in row.cells and ExactTime(span - busy) in row.cells
    assert Share(busy / span) in row.cells and Share(0.75) in row.cells and Text("host-bound", "bad") in row.cells
    assert any("gemm" in getattr(cell, "text", "") for cell in row.cells)
    assert report.subtitle.endswith("host-bound") and "Host-bound" not in titles(report), "the answer says it"


def test_what_weakens_the_numbers_stands_above_them() -> None:
    counts = ReadCounts(events=90, lost=10, mended=5, truncated=True)
    overlapping = [
        DeviceEvent("a", "kernel", 0, 50_000, 0, 7, 0, None), DeviceEvent("b", "kernel", 40_000, 90_000, 0, 7, 0, None)
    ]  # fmt: skip
    trace = trace_of(overlapping, counts=counts, launched={"cudaLaunchKernel": (5, 3), "fine": (4, 0)}, window_end_ns=20_000)
    found = titles(build_trace_report(study_of(trace)))
    assert list(found)[:2] == ["Truncated", "Events lost"]
    assert "10 of 100 events could not be read" in found["Events lost"][0] and "5 events" in found["Events mended"][0]
    loss = " ".join(found["The trace may not hold all that ran"])
    assert "3 of 5 cudaLaunchKernel" in loss and "fine" not in loss and "0.070 ms after the recorded window" in loss
    (overlap,) = next(items for title, items in found.items() if title.startswith("Work of one stream overlaps"))
    assert "1 pairs of 2 events, 10.000 µs in all" in overlap


def end_of(counts: ReadCounts) -> tuple[Text, dict[str, tuple[str, ...]]]:
    """What the table of files says of a trace with these counts, and the banners."""
    report = build_trace_report(study_of(busy_trace(counts=counts)))
    files = tables(section(report, "overview"))[1]
    (cell,) = [
        cell for cell in files.rows[0].cells if isinstance(cell, Text) and cell.text in ("complete", "incomplete", "truncated")
    ]
    return cell, titles(report)


def test_a_trace_that_lost_something_is_never_complete() -> None:
    assert end_of(ReadCounts(events=9))[0] == end_of(ReadCounts(events=9, mended=1))[0] == Text("complete")
    cell, said = end_of(ReadCounts(events=9, lost=7, trailing=6))
    assert cell == Text("incomplete", "bad")
    assert said["Events lost"][0] == "t is incomplete: 7 of 16 events could not be read"
    assert "6 of these stand behind the end of the JSON" in said["Events lost"][1]
    assert len(end_of(ReadCounts(events=9, lost=7))[1]["Events lost"]) == 1


def steps_of(*lengths: int) -> Trace:
    """Steps of these lengths, each full of work."""
    events, ranges, now = [], [], 0
    for number, length in enumerate(lengths):
        host = HostEvent("cudaLaunchKernel", now - 50, now - 40, 0)
        ranges.append(HostEvent(f"ProfilerStep#{number}", now - 60, now - 30, 0))
        events.append(DeviceEvent("k", "kernel", now, now + length, 0, 7, 0, host))
        now += length
    return trace_of(events, ranges=ranges)


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
    report = build_trace_report(study_of(steps_of(*lengths)))
    said = titles(report).get("Uneven steps", ())
    assert bool(said) == uneven
    assert not uneven or "no mean or median stands for all of them" in said[0]
    assert ("the steps are uneven" in notes(section(report, "steps"))) == uneven


def test_why_a_launch_is_not_known_is_said() -> None:
    def report_of(hosts: Sequence[int]) -> str:
        events = [DeviceEvent("dma", "kernel", 10_000 * i, 10_000 * i + 2_000, 0, 7, 0, None) for i in range(len(hosts))]
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
    ranks = [busy_trace(rank=rank, path=Path(f"{rank}.json"), metadata={"rank": str(rank), "same": "x"}) for rank in range(12)]
    report = build_trace_report(study_of(*ranks))
    items = titles(report)["Host-bound"]
    assert len(items) == 9 and items[7].startswith("rank 7") and items[8] == "and 4 more like these; the tables have all of them"
    said = tables(section(report, "overview"))[-1]
    assert [row.cells for row in said.rows] == [(Code("rank"), Text("differs: 12 values", "bad")), (Code("same"), Code("x"))]


def test_a_late_host_that_the_profiler_held_up_is_said() -> None:
    options = {"with_stack": "1", "profile_memory": "0", "record_shapes": "1"}
    found = titles(build_trace_report(study_of(busy_trace(metadata=options))))
    (said,) = found["The profiler may have slowed the host down"]
    assert said.startswith("t: with_stack, record_shapes slowed the host") and "without the profiler" in said
    assert "The profiler may have slowed the host down" not in titles(build_trace_report(study_of(busy_trace())))
    busy = trace_of([DeviceEvent("a", "kernel", 0, 50_000, 0, 7, 0, None)], metadata=options)
    assert titles(build_trace_report(study_of(busy))) == {}


def test_no_device_events_are_a_result() -> None:
    host = trace_of((), ops=[HostEvent("aten::mm", 0, 10_000, 0), HostEvent("aten::add", 2_000, 3_000, 0)])
    report = build_trace_report(study_of(host))
    assert "host events only" in titles(report)["No device events"][0]
    table = section(report, "operators").blocks[1]
    assert isinstance(table, Table) and [row.cells[2] for row in table.rows] == [ExactTime(9_000), ExactTime(1_000)]
    lost = build_trace_report(study_of(trace_of((), launched={"cudaLaunchKernel": (12, 12)})))
    assert "12 launch calls were recorded and no device event answers" in titles(lost)["No device events"][0]
    assert titles(build_trace_report(study_of(trace_of(()))))["No device events"] == ("t: the trace holds no events at all",)
    cut = titles(build_trace_report(study_of(trace_of((), counts=ReadCounts(events=7, truncated=True)))))
    assert "before the place where the file ends" in cut["No device events"][0]
    short = build_trace_report(study_of(host, top=1))
    table = section(short, "operators").blocks[1]
    assert isinstance(table, Table) and table.rows[-1].cells[:3] == (Text("1 more rows"), Count(1), ExactTime(1_000))


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
    assert whole[Text("idle: host late")] == ExactTime(592_000) and whole[Text("in all")] == ExactTime(1_000_000)


def test_of_a_long_trace_without_steps_the_middle_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.perf.report.trace_page.device.MAX_SLICES", 6)
    lengths = [7 * n * n % 83 + 5 for n in range(20)]  # nothing repeats
    events = [DeviceEvent(f"k{n}", "kernel", 1000 * n, 1000 * n + lengths[n], 0, 7, 0, None) for n in range(20)]
    (figure,) = section(build_trace_report(study_of(trace_of(events))), "timeline").blocks
    (lane,) = figure.picture.lanes
    names = [figure.picture.names[name] for name in lane.name]
    assert names[1::2] == ["idle: cause unknown"] * 3 or names[::2] == ["idle: cause unknown"] * 3
    first = int(next(name for name in names if name.startswith("k"))[1:])
    assert [name for name in names if name.startswith("k")] == [f"k{first + n}" for n in range(3)] and 7 <= first <= 9
    assert " ms of the whole trace" in lane.label


def test_labels_tell_the_traces_apart(tmp_path: Path) -> None:
    def at(path: str, rank: int | None) -> Trace:
        return trace_of((), path=tmp_path / path, rank=rank)

    assert trace_labels([at("x/a.json.gz", 0), at("y/b.json", 5)]) == ("rank 0", "rank 5")
    assert trace_labels([at("x/a.json.gz", 0), at("y/b.json", 0)]) == ("a", "b")
    assert trace_labels([at("x/a.json.gz", None), at("y/a.json", 1)]) == ("x/a", "y/a")
    assert trace_labels([at("x/a.json.gz", 0), at("x/a.json", 0)]) == ("x/a (1)", "x/a (2)") or trace_labels(
        [at("x/a.json.gz", 0), at("x/a.json", 0)]
    ) == ("a (1)", "a (2)")
    assert trace_labels([at("x/a.json.gz", 4)]) == ("a",)


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
    assert decode_report(encode_report(report)) == report
    page = render(report, "html")
    assert len(page.encode()) < MAX_PAGE_BYTES
    assert "<script>alert" not in page and "\x1b" not in page and page.count("<script") <= 2 + len(report.sections)
    markdown = render_markdown(report)
    assert "<script" not in markdown and "\x1b" not in markdown
    assert render_html(report) == render_html(build_trace_report(study_of(*traces, by="shape")))
    write_events(study_of(*traces), tmp_path / "events.csv.gz")


def test_times_of_a_window_count_from_the_first_event_of_all_ranks_that_ran_together(tmp_path: Path) -> None:
    def write(name: str, rank: int, base_us: int, starts: Sequence[int]) -> None:
        rows = ",".join(f'{{"ph": "X", "cat": "kernel", "name": "k", "ts": {at}.000, "dur": 40.000}}' for at in starts)
        head = f'{{"baseTimeNanoseconds": {base_us}000, "distributedInfo": {{"rank": {rank}}}, "traceEvents": ['
        (tmp_path / f"{name}.json").write_text(f"{head}{rows}]}}")

    write("a", 0, 5_000, (100, 300))
    write("b", 1, 5_050, (100, 300))  # 50 µs later than the other
    asked = TraceOptions(window="10us..220us")
    zero, one = load_trace_study([tmp_path], asked).windows
    assert zero is not None and (zero.start_ns, zero.end_ns) == (110_000, 320_000)
    assert one is not None and (one.start_ns, one.end_ns) == (60_000, 270_000)
    assert build_trace_report(load_trace_study([tmp_path], TraceOptions(window="0us..20us"))).sections  # before one rank starts
    write("b", 1, 900_000, (100, 300))  # another run
    assert [one and one.start_ns for one in load_trace_study([tmp_path], asked).windows] == [110_000, 110_000]


def test_a_study_is_read_in_order_of_rank_with_one_progress(tmp_path: Path) -> None:
    for name, rank in (("b", 0), ("a", 1)):
        head = f'{{"distributedInfo": {{"rank": {rank}}}, "traceEvents": ['
        (tmp_path / f"{name}.json").write_text(head + '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1.000, "dur": 2.001}]}')
    told: list[tuple[int, int, str]] = []
    study = load_trace_study([tmp_path], progress=lambda *now: told.append(now))
    assert study.labels == ("rank 0", "rank 1") and [trace.path.name for trace in study.traces] == ["b.json", "a.json"]
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert {of for _, of, _ in told} == {total} and max(done for done, *_ in told) == total
    assert [done for done, *_ in told] == sorted(done for done, *_ in told)


def many_devices(num: int) -> Trace:
    """Devices that each run a loop of four kernels, two of them launched by one graph, under ranges of the host."""
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
    return trace_of(events, ranges=ranges, devices=dict.fromkeys(range(num), ""))


def calls_of_a_page(num: int) -> tuple[int, int]:
    """Calls of all functions, and of the search for periods, that the page of so many devices takes."""
    study, profile = study_of(many_devices(num)), cProfile.Profile()
    profile.runcall(build_trace_report, study)
    counts = {(code.co_name if isinstance(code, CodeType) else code): n for code, n, *_ in profile.getstats()}
    return sum(n for _, n, *_ in profile.getstats()), counts["find_periods"]


def test_the_work_grows_no_faster_than_the_devices() -> None:
    calls_of_a_page(2)  # imports and what is kept of names
    (few, periods), (many, twice) = calls_of_a_page(16), calls_of_a_page(32)
    assert many <= 2.1 * few
    assert twice == 2 * periods


_SECTIONS = (activity_section, device_kernels, launch_section, gaps_section)
_EVIL = "<script>|\x1b[2J"


def _study(*traces: Trace, **more: Any) -> TraceStudy:
    return study_of(*traces, labels=tuple(f"rank {i}" for i in range(len(traces))), **more)


_EVENTS = st.builds(
    lambda kind, name, start, length, device, at: DeviceEvent(
        f"{kind}{name}", kind, start, start + length, device, 7, 0, HostEvent("cudaLaunchKernel", at, at + 2, 0) if at else None
    ),
    st.sampled_from(["kernel", "kernel", "comm", "memset", "memcpy"]), st.integers(0, 6), st.integers(0, 300), st.integers(0, 40),
    st.integers(0, 1), st.integers(0, 300),
)  # fmt: skip


@given(events=st.lists(_EVENTS, min_size=1, max_size=25, unique_by=lambda e: e.host or e), top=st.integers(1, 4))
def test_what_is_said_to_add_up_adds_up(events: list[DeviceEvent], top: int) -> None:
    study = _study(trace_of(events), top=top)
    devices, stretches, causes, kinds, _ = _with_picture(activity_section(study))
    busy, idle, span = (values(devices, title) for title in ("busy", "idle", "span"))
    assert [b + i for b, i in zip(busy, idle, strict=True)] == span
    assert sum(values(kinds, "exclusive")) == sum(busy)
    assert sum(values(causes, "time", [row for row in causes.rows if not row.strong])) == sum(idle)
    if stretches:
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


def _with_picture(section: Section | None) -> list[Any]:
    """The five tables of the section; `None` for the picture's where there is nothing to draw."""
    found = tables(section)
    return found if len(found) == 5 else [found[0], None, *found[1:]]


def test_the_strip_covers_every_lane_and_no_bin_overflows() -> None:
    host = HostEvent("cudaLaunchKernel", 40, 45, 0)
    traces = [
        trace_of(
            [DeviceEvent("k", "kernel", 0, 30, 0, 7, 0, None), DeviceEvent("k", "kernel", 60, 1_000, 0, 7, 0, host)], base_ns=b
        )
        for b in (0, 500)
    ]
    section = activity_section(_study(*traces))
    (figure,) = [block for block in section.blocks if isinstance(block, Figure)]
    strip = figure.picture
    assert isinstance(strip, Strip) and strip.length_ns == 1_500 and "one clock" in figure.title
    assert [kind.label for kind in strip.kinds] == ["kernels", "idle: host late", "idle: launch latency"]
    assert [lane.label for lane in strip.lanes] == ["rank 0, device 0", "rank 1, device 0"]
    for lane, covered in zip(strip.lanes, (range(1_000), range(500, 1_500)), strict=True):
        totals = [sum(shares) for shares in zip(*lane.permille, strict=True)]
        assert len(totals) == MAX_BINS and max(totals) <= 1000
        full = [b for b in range(MAX_BINS) if 1_500 * b // MAX_BINS in covered and (1_500 * (b + 1) // MAX_BINS) - 1 in covered]
        assert all(totals[b] >= 1000 - len(strip.kinds) for b in full) and sum(totals) <= 1000 * (len(full) + 2)


def test_without_device_events_there_is_nothing_to_say_but_what_was_launched() -> None:
    empty = trace_of([])
    assert [section(_study(empty)) for section in _SECTIONS] == [None] * 4
    launched = launch_section(_study(trace_of([], launched={"hipGraphLaunch": (4, 4), "hipLaunchKernel": (9, 0)})))
    (signs,) = tables(launched)
    assert [[cell.text for cell in row.cells if isinstance(cell, Code | Text)] for row in signs.rows] == [
        ["rank 0", "launch calls that no device event answers to", "hipGraphLaunch", "4 of 4"]
    ]
    some = activity_section(_study(trace_of([DeviceEvent("k", "kernel", 0, 5, 0, 7, 0, None)]), empty))
    assert some is not None and some.blocks[-1] == Notes(("rank 1: no device events.",))


def test_long_tables_end_with_what_they_leave_out() -> None:
    events = [DeviceEvent(f"void f<{i}>(int)", "kernel", 20 * i, 20 * i + 10, 0, 7, 0, None) for i in range(12)]
    events += [DeviceEvent(f"k{i}", "kernel", 1_000 + 20 * i, 1_000 + 20 * i + i, 0, 7, 0, None) for i in range(1, 6)]
    table, members = tables(device_kernels(_study(trace_of(events), top=2)))
    assert [row.cells[0].text for row in table.rows] == ["f", "k5", "4 more rows"]
    assert (values(table, "calls"), values(table, "exclusive")) == ([12, 1, 4], [120, 5, 10])
    assert members.rows[-1].cells[1:] == (
        Text(f"{12 - MAX_MEMBERS} more names"),
        Count(12 - MAX_MEMBERS),
        ExactTime(10 * (12 - MAX_MEMBERS)),
    )
    gaps = tables(gaps_section(_study(trace_of(events), top=2)))[0]
    assert [row.cells[0].text for row in gaps.rows][-2:] == ["4 more pairs", "all gaps"]


def test_p99_of_few_calls_says_how_few() -> None:
    table, *_ = tables(device_kernels(_study(trace_of([DeviceEvent("k", "kernel", 0, 5, 0, 7, 0, None)]))))
    place = [column.title for column in table.columns].index("p99")
    assert table.rows[0].cells[place] == Missing("max of 1", "-")


def test_shapes_are_a_column_if_asked_for() -> None:
    events = [DeviceEvent("k", "kernel", 10 * i, 10 * i + 5, 0, 7, 0, None, shape) for i, shape in enumerate(["8x8", "", "8x8"])]
    table, *_ = tables(device_kernels(_study(trace_of(events), by="shape")))
    assert [row.cells[1] for row in table.rows] == [Code("8x8"), Missing("the trace gives none", "-")]


def test_a_window_is_named_and_cut_events_are_counted() -> None:
    study = _study(
        trace_of([DeviceEvent("k", "kernel", 0, 50, 0, 7, 0, None)]), window=Window(start_ns=10, end_ns=30, label=_EVIL)
    )
    table, *_ = tables(device_kernels(study))
    assert values(table, "exclusive") == [20] and "cut by the edges of the window: 1" in table.notes[0]
    devices, *_ = tables(activity_section(study))
    assert _EVIL in devices.caption and "cut by the edges of the window: 1" in devices.notes[1]


def test_what_held_up_the_host_is_named_by_the_idle_time_it_cost() -> None:
    """Two launches that come late: the first beside the loading of its kernel, the second beside the profiler's buffers."""
    call = [HostEvent("cudaLaunchKernel", at, at + 1, 0) for at in (80, 300)]
    events = [
        DeviceEvent("a", "kernel", 0, 10, 0, 7, 0, None),
        DeviceEvent("b", "kernel", 90, 100, 0, 7, 0, call[0]),
        DeviceEvent("c", "kernel", 310, 320, 0, 7, 0, call[1]),
    ]
    named = [
        HostEvent("Lazy Function Loading", 5, 40, 0), HostEvent("Buffer Flush", 30, 50, 0),
        HostEvent("Buffer Flush", 290, 400, 0),
    ]  # fmt: skip
    trace = trace_of(events, overhead=((5, 50), (290, 400)), overheads=HostEvents.from_rows(named))
    table = next(one for one in tables(activity_section(_study(trace))) if "what held up the host" in one.caption)
    assert values(table, "overhead") == ["Lazy Function Loading", "Buffer Flush"]
    assert values(table, "idle time") == [30, 10 + 10]  # 10 to 40; 40 to 50 and 290 to 300
    said = " ".join(values(table, "that is"))
    assert "loaded at its first use" in said and "the profiler's own work" in said
    causes = next(one for one in tables(activity_section(_study(trace))) if "what the device waited for" in one.caption)
    assert dict(zip(values(causes, "idle because"), values(causes, "time"), strict=True))["profiler_overhead"] == 50


def _page(path: Path, **options: object) -> str:
    return render_markdown(build_trace_report(load_trace_study([path], TraceOptions(**options))))  # type: ignore[arg-type]


def test_without_details_there_is_none() -> None:
    assert "Critical path" not in _page(H200 / "graph.json.gz", details=False)
    assert "Critical path" in _page(H200 / "graph.json.gz")
    assert strobe.read_trace(H200 / "graph.json.gz", details=False).critical_paths == ()
