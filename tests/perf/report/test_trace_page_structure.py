"""The sections on steps, ranges, communication and memory: what their tables say adds up and says what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_traces import trace_of
from reports import decode_report, notes, study_of, tables, values
from source import ROOT
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.structure.window import choose_window
from strobe.perf.report.study import TraceStudy
from strobe.perf.report.trace_page.device import _MEANING, memory_section
from strobe.perf.report.trace_page.structure import (
    MAX_DEPTH,
    MAX_FRAMES,
    collectives_section,
    ranges_section,
    sections_section,
    steps_section,
)
from strobe.perf.report.write import render_html
from strobe.perf.table.model import (
    SCHEMA_VERSION,
    Code,
    Count,
    ExactTime,
    Figure,
    Flame,
    Frame,
    Missing,
    Number,
    Plane,
    Report,
    Section,
    Table,
    encode_report,
)
from strobe.perf.trace import CollectiveKind, DeviceEvent, HostEvent, MemoryTrack, Trace

_SECTIONS = (steps_section, ranges_section, collectives_section, memory_section)


def _event(launch: int | None, start: int, end: int, name: str = "k", kind: str = "kernel", stream: int = 7) -> DeviceEvent:
    host = None if launch is None else HostEvent("cudaLaunchKernel", launch, launch + 1, 0)
    return DeviceEvent(name, kind, start, end, 0, stream, 0, host)


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


def _table(section: Section | None, start: str) -> Table:
    return next(table for table in tables(section) if table.caption.startswith(start))


def _values(table: Table, title: str, strong: bool | None = False) -> list[Any]:
    return values(table, title, [row for row in table.rows if strong is None or row.strong == strong])


def test_steps_add_up_to_the_span() -> None:
    section = steps_section(study_of(_model(), top=4))
    summary, table = tables(section)
    assert (_values(summary, "steps"), _values(summary, "steady"), _values(summary, "p50"), _values(summary, "kernels")) == (
        [9], [8], [1_000], [5],
    )  # fmt: skip
    assert "the last one: no next step bounds it (1)" in notes(section)
    assert _values(table, "step") == [
        "ProfilerStep#5",
        "ProfilerStep#6",
        "ProfilerStep#7",
        "ProfilerStep#8",
        "before the first step",
    ]
    *_, more, span = [row.cells[2].ns for row in table.rows if row.strong]
    assert sum(_values(table, "length")) + more == span == 9_970 - 100
    windowed = steps_section(study_of(_model(), window=choose_window(_model(), "6..8")))
    assert _values(tables(windowed)[1], "number") == [6, 7, 8] and _values(tables(windowed)[0], "steady") == [3]


def test_a_period_shows_its_evidence_and_no_step_says_why() -> None:
    events = [
        _event(None, 20 * i + 50 * (i // 11), 20 * i + 50 * (i // 11) + 9, "embed" if i % 11 == 0 else f"k{i % 5}")
        for i in range(88)
    ]
    section = steps_section(study_of(trace_of(events)))
    evidence = _table(section, "Why these are steps")
    assert [_values(evidence, title) for title in ("a period starts with", "periods", "median", "confidence")] == [
        ["embed"], [8], [11], ["high"],
    ]  # fmt: skip
    refused = steps_section(study_of(trace_of([_event(None, 5, 9)])))
    assert tables(refused) == [] and "device 0: no repeating step found" in notes(refused)
    assert "no range that launched work and no kernel matches 'x'" in notes(steps_section(study_of(trace_of(events), steps="x")))


def _sums(frame: Frame) -> None:
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
    (flame,) = [block.picture for block in section.blocks if isinstance(block, Figure)]
    assert isinstance(flame, Flame) and not flame.differential and flame.root.candidate_ns == everything
    _sums(flame.root)
    paths = _table(section, "Paths")
    assert sum(_values(paths, "own time")) == everything == _values(paths, "own time", strong=True)[-1]


def test_a_wide_tree_is_drawn_with_a_bounded_number_of_frames() -> None:
    ranges = [HostEvent(f"r{i}x", 10 * i, 10 * i + 9, 0) for i in range(900)]
    events = [_event(10 * i + 1, 20_000 + 30 * i, 20_001 + 30 * i + i % 20) for i in range(900)]
    section = ranges_section(study_of(trace_of(events, ranges), top=5))
    (flame,) = [block.picture for block in section.blocks if isinstance(block, Figure)]
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
    (picture,) = [block.picture for block in section.blocks if isinstance(block, Figure)]
    assert isinstance(picture, Plane) and len(picture.marks) == 6


def test_calls_may_lie_in_each_other_deeper_than_python_recurses() -> None:
    ranges = [HostEvent(f"r{n}x", n, 9_000 - n, 0) for n in range(2_000)]
    study = study_of(trace_of([_event(4_000, 5_000, 5_600)], ranges))
    section = ranges_section(study)
    (flame,) = [block for block in section.blocks if isinstance(block, Figure)]
    assert isinstance(flame.picture, Flame) and _values(flame.table, "own time") == [600]
    frame = flame.picture.root
    for _ in range(MAX_DEPTH - 1):
        (frame,) = frame.children
    assert (frame.label, frame.baseline_ns, frame.children) == (f"r{MAX_DEPTH - 2}x", 600, ())
    assert decode_report(encode_report(_report(study))) == _report(study) and "<svg" in render_html(_report(study))


def test_little_memory_is_not_nothing_and_each_course_names_its_device() -> None:
    tracks = [
        MemoryTrack(device=device, step_ns=1_000, start_ns=(0, 1_000), allocated_bytes=(0, 1_536), reserved_bytes=(0, 0))
        for device in ("cpu", "cuda:0")
    ]
    peaks, *courses = tables(memory_section(study_of(trace_of([], memory=tuple(tracks)))))
    assert [row.cells[1] for row in peaks.rows] == [Number(1.5, 3, "KiB")] * 2
    assert [course.caption for course in courses] == [
        f"Largest allocated memory of {device} in each part of the time." for device in ("cpu", "cuda:0")
    ]


def test_what_holds_for_all_devices_is_said_once() -> None:
    ranges = [HostEvent(f"ProfilerStep#{n}", 100 * n, 100 * n + 50, 0) for n in range(3)]
    events = [_event(100 * n + 1, 100 * n + 5, 100 * n + 60) for n in range(3)]
    (summary, *_) = tables(steps_section(study_of(*(trace_of(events, ranges, path=Path(f"{name}.json")) for name in "abc"))))
    assert len(summary.rows) == 3 and len(summary.notes) == len(set(summary.notes)) == 2
    assert all(note.startswith("a, device 0 and 2 more: ") for note in summary.notes)


def test_nothing_to_say() -> None:
    assert [section(study_of(trace_of([]))) for section in _SECTIONS] == [None] * 4
    assert ranges_section(study_of(trace_of([_event(None, 1, 2)]))) is None


def _report(study: TraceStudy) -> Report:
    sections = tuple(found for section in _SECTIONS if (found := section(study)) is not None)
    return Report(v=SCHEMA_VERSION, speedups=(), title="t", subtitle="", facts=(), banners=(), sections=sections)


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 60), st.integers(0, 9), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 4),
)
def test_any_trace_has_sections_that_close(work: list[tuple[int, int, int, bool]], top: int) -> None:
    ranges = [HostEvent(f"ProfilerStep#{n}", 20 * n, 20 * n + 20, 0) for n in range(3)]
    events = [_event(launch if linked else None, launch + delay, launch + delay + n) for launch, delay, n, linked in work]
    trace = trace_of(events, ranges, [HostEvent("Block_1", 5, 70, 0)])
    for window in (None, Window(start_ns=20, end_ns=90, label="w")):
        study = study_of(trace, window=window, top=top)
        section = ranges_section(study)
        if section is not None and any(isinstance(block, Figure) for block in section.blocks):
            paths = _table(section, "Paths")
            busy = _values(paths, "own time", strong=True)[-1]
            assert sum(_values(paths, "own time", strong=None)) == 2 * busy
        if window is None:
            steps = steps_section(study)
            for table in tables(steps)[1:]:
                assert sum(_values(table, "length", strong=None)) == 2 * _values(table, "length", strong=True)[-1]


ROWS = [
    ("copy", "memcpy", 0, 10), ("flash", "kernel", 20, 50), ("gather", "kernel", 60, 70),
    ("copy", "memcpy", 100, 110), ("flash", "kernel", 112, 150), ("gather", "kernel", 150, 160),
    ("flash", "kernel", 200, 210),
]  # fmt: skip


def study(*sections: str, rows: list[tuple[str, str, int, int]] = ROWS) -> TraceStudy:
    events = [DeviceEvent(name, kind, start, end, 0, 7, 0, None) for name, kind, start, end in rows]
    return study_of(trace_of(events), sections=sections)


def table(*sections: str, rows: list[tuple[str, str, int, int]] = ROWS) -> Table:
    section = sections_section(study(*sections, rows=rows))
    assert section is not None and section.id == "sections"
    (found,) = section.blocks
    assert isinstance(found, Table) and all(len(row.cells) == len(found.columns) == 14 for row in found.rows)
    return found


def test_one_row_for_each_definition_and_device() -> None:
    found = table("memcpy:end -> flash -> gather:end", "flash:start -> gather -> copy:start")
    first = found.rows[0].cells
    assert first[2:] == (
        Code("memcpy:end -> flash -> gather:end"), Count(2), ExactTime(50), ExactTime(60), ExactTime(55), ExactTime(50),
        Missing("", "-"), ExactTime((40 + 48) // 2), ExactTime((20 + 2) // 2), ExactTime(34), Number(2.0, 1), Count(1),
    )  # fmt: skip
    assert found.notes[0].endswith("skipped of 3 focal calls: 1 no gather:end after it")
    assert found.rows[1].cells[3] == Count(1) and found.rows[1].cells[-1] == Count(1)


def test_what_is_not_there_is_said() -> None:
    none = table("memcpy:end -> flush -> gather:end").rows[0].cells
    assert none[3] == Missing("no device event matches 'flush'", "none")
    skipped = table("memset:end -> flash -> gather:end").rows[0].cells
    assert skipped[3] == Missing("3 no memset:end before it", "none") and skipped[-1] == Count(3)
    assert sections_section(study()) is None
    found = sections_section(study("a:end -> b -> c:end", rows=[]))  # a trace of a CPU: what was asked for is answered
    assert found is not None and isinstance(host := found.blocks[0], Table)
    assert host.notes == ("t, a:end -> b -> c:end: no device event matches 'b'",)


def test_the_manual_explains_every_verdict() -> None:
    text = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8").lower()
    assert [name for name in _MEANING if f"| `{name}` |" not in text and f"**{name}** means" not in text] == []
