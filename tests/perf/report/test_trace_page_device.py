"""The sections of device time: what their tables say adds up, whatever is in the traces."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from reports import study_of, tables, values
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.report.blocks.kernels import MAX_MEMBERS
from strobe.perf.report.study import TraceStudy
from strobe.perf.report.trace_page.device import MAX_BINS, activity_section, gaps_section, launch_section
from strobe.perf.report.trace_page.structure import device_kernels
from strobe.perf.table.model import Code, Count, ExactTime, Figure, Missing, Notes, Section, Strip, Text
from strobe.perf.trace import DeviceEvent, HostEvent, HostEvents, Trace

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
