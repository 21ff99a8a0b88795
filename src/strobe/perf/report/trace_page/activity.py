"""How busy each device was, by kind, stream and time, and what it waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from strobe.perf.analysis.device.activity import CLASSES, Activity, IdleStrip, idle_strip
from strobe.perf.analysis.device.idle import PROFILER_OVERHEAD
from strobe.perf.analysis.device.views import DeviceView
from strobe.perf.report.model import (
    Block,
    Cell,
    Code,
    Column,
    Count,
    ExactTime,
    Figure,
    Missing,
    Notes,
    Row,
    Section,
    Strip,
    StripLane,
    Table,
    Text,
)
from strobe.perf.report.trace_page.devices import CAUSE_HINTS, CLASS_KINDS, count_cell, during, share_cell
from strobe.perf.report.trace_page.seen import seen_devices
from strobe.perf.report.trace_page.study import TraceStudy

MAX_BINS: Final = 240
"""Bins of the picture for a few lanes; all lanes together have at most four times as many."""
MAX_STRETCHES: Final = 12
"""Rows of the picture's table for each lane."""

Seen = Sequence[tuple[str, DeviceView, Activity]]


def activity_section(study: TraceStudy) -> Section | None:
    """Busy, idle and overlap of every device; `None` if no trace has device events."""
    seen = [(one.name, one.view, one.launch.activity) for one in seen_devices(study)]
    if not seen:
        return None
    blocks: list[Block] = [_devices(seen), *_picture(seen), _causes(seen), *_overheads(seen), _kinds(seen), _streams(seen)]
    without = [label for trace, label in zip(study.traces, study.labels, strict=True) if not len(trace.device_events)]
    if without:
        blocks.append(Notes(tuple(f"{label}: no device events." for label in without)))
    lead = "Exact to the nanosecond, per device and never pooled: busy + idle = span, and the causes of idle time add up to idle."
    return Section("activity", "Busy and idle", lead, tuple(blocks))


def _devices(seen: Seen) -> Table:
    columns = (
        Column("device"),
        Column("span", "ms", True, "from the first event's start to the last one's end, or the window"),
        Column("busy", "ms", True, "union over all streams: at least one event ran"),
        Column("busy share", numeric=True),
        Column("idle", "ms", True, "span - busy"),
        Column("overlap", "ms", True, "sum of durations - busy"),
        Column("exposed communication", "ms", True, "communication ran and neither a kernel nor a memset did"),
        Column("exposed copies", "ms", True, "a copy ran and nothing else did"),
        Column("events", numeric=True),
        Column("unlinked", numeric=True, hint="events whose launch the trace does not hold; they are counted everywhere"),
        Column("unlinked sum", "ms", True, "of their durations"),
    )
    rows = [Row((Code(name), *_device_cells(done))) for name, _, done in seen]
    notes = ["Sums of durations are not additive where events overlap; busy and idle are."]
    cut = [(name, done.num_cut) for name, _, done in seen if done.num_cut]
    notes += [f"{name}: events cut by the edges of the window: {n}. Only their part inside counts." for name, n in cut]
    return Table(f"Devices, {during(seen[0][1])}.", columns, tuple(rows), tuple(notes))


def _device_cells(done: Activity) -> Iterator[Cell]:
    yield from (ExactTime(done.span_ns), ExactTime(done.busy_ns), share_cell(done.busy_ns, done.span_ns), ExactTime(done.idle_ns))
    yield from (ExactTime(done.overlap_ns), ExactTime(done.exposed_comm_ns), ExactTime(done.exposed_memcpy_ns))
    yield from (
        Count(done.n),
        count_cell(done.num_unlinked),
        ExactTime(done.unlinked_ns) if done.num_unlinked else Missing("", "-"),
    )


def _causes(seen: Seen) -> Table:
    columns = (
        Column("device"), Column("idle because"), Column("time", "ms", True), Column("of idle", numeric=True),
        Column("of span", numeric=True), Column("that is"),
    )  # fmt: skip
    rows = []
    for name, _, done in seen:
        for cause, ns in done.idle.items():
            if ns:
                shares = share_cell(ns, done.idle_ns), share_cell(ns, done.span_ns)
                rows.append(Row((Code(name), Text(cause), ExactTime(ns), *shares, Text(CAUSE_HINTS[cause]))))
        rows.append(
            Row(
                (
                    Code(name), Text("all"), ExactTime(done.idle_ns), share_cell(done.idle_ns, done.idle_ns),
                    share_cell(done.idle_ns, done.span_ns), Text(""),
                ),
                strong=True,
            )
        )  # fmt: skip
    notes = ("Each gap is split by the device event that ends it; a cause without time is left out.",)
    return Table("Idle time by what the device waited for (exclusive: adds up to idle).", columns, tuple(rows), notes)


def _overheads(seen: Seen) -> Iterator[Table]:
    """What the overhead was that held up the host, where the traces name it."""
    columns = (
        Column("device"), Column("overhead"), Column("idle time", "ms", True), Column("of idle", numeric=True),
        Column("that is"),
    )  # fmt: skip
    rows = [
        Row((Code(name), Code(what), ExactTime(ns), share_cell(ns, done.idle_ns), Text(_overhead_hint(what))))
        for name, _, done in seen
        for what, ns in done.overhead.items()
    ]
    if rows:
        yield Table(f"Idle time as {PROFILER_OVERHEAD}, by what held up the host.", columns, tuple(rows))


def _overhead_hint(name: str) -> str:
    if "Loading" in name:
        return "a kernel or module was loaded at its first use: warm up before recording, or set CUDA_MODULE_LOADING=EAGER"
    return "the profiler's own work: not there without it"


def _kinds(seen: Seen) -> Table:
    columns = (
        Column("device"), Column("kind"), Column("events", numeric=True),
        Column("exclusive", "ms", True, "time that no kind above it owns; adds up to busy"), Column("of busy", numeric=True),
        Column("union", "ms", True, "at least one event of the kind ran"), Column("sum", "ms", True, "of durations"),
    )  # fmt: skip
    rows = [
        Row(
            (
                Code(name), Text(kind.kind), Count(kind.n), ExactTime(kind.exclusive_ns),
                share_cell(kind.exclusive_ns, done.busy_ns), ExactTime(kind.union_ns), ExactTime(kind.sum_ns),
            )
        )
        for name, _, done in seen
        for kind in done.kinds
    ]  # fmt: skip
    priority = " over ".join(seen[0][1].priority)
    notes = (f"Where kinds overlap, exclusive time goes to {priority}. Union and sum are inclusive and do not add up over rows.",)
    return Table("Busy time by kind of work.", columns, tuple(rows), notes)


def _streams(seen: Seen) -> Table:
    columns = (
        Column("device"), Column("stream", numeric=True), Column("events", numeric=True),
        Column("busy", "ms", True, "at least one event of the stream ran"), Column("sum", "ms", True, "of durations"),
        Column("overlap", "ms", True, "sum - busy of the stream"),
        Column("pairs", numeric=True, hint="of events of this stream that ran at the same time"),
        Column("longest", "ms", True, "time that an event ran beside one that started before it"),
    )  # fmt: skip
    rows = []
    for name, _, done in seen:
        for stream in done.streams:
            overlap: tuple[Cell, ...] = (Missing("", "-"),) * 3
            if stream.overlap_pairs:
                overlap = ExactTime(stream.overlap_ns), Count(stream.overlap_pairs), ExactTime(stream.longest_overlap_ns)
            head = Code(name), Count(stream.stream), Count(stream.n), ExactTime(stream.busy_ns), ExactTime(stream.sum_ns)
            rows.append(Row((*head, *overlap)))
    notes = (
        "Busy times of streams are inclusive: they do not add up to the device's. Events of one stream overlap under "
        "programmatic dependent launch and in branches of a graph; then even the sum over one stream exceeds its busy time.",
    )
    return Table("Streams.", columns, tuple(rows), notes, collapsed=len(rows) > 4)


def _picture(seen: Seen) -> Iterator[Figure]:
    drawn = [(name, view) for name, view, _ in seen if view.span_ns]
    if not drawn:
        return
    strip = idle_strip([view for _, view in drawn], max(1, min(MAX_BINS, 4 * MAX_BINS // len(drawn))))
    present = [number for number in range(len(CLASSES)) if any(any(lane.ns[number]) for lane in strip.lanes)]
    picture = Strip(
        length_ns=strip.length_ns,
        kinds=tuple(CLASS_KINDS[CLASSES[number]] for number in present),
        lanes=tuple(
            StripLane(name, tuple(_permille(lane.ns[number], strip) for number in present))
            for (name, _), lane in zip(drawn, strip.lanes, strict=True)
        ),
    )
    clock = "one clock" if strip.aligned else "each device's own clock: the traces have no moment in common"
    title = f"What each device did over time (solid) and why it was idle (hatched), on {clock}."
    alt = "Shares of work and idle classes over time, one lane per device; the table gives the times of longer stretches."
    yield Figure(title, alt, picture, _stretches([name for name, _ in drawn], strip, present))


def _permille(ns: Sequence[int], strip: IdleStrip) -> tuple[int, ...]:
    return tuple(1000 * value // (right - left) for value, (left, right) in zip(ns, pairwise(strip.edges_ns), strict=True))


def _stretches(names: Sequence[str], strip: IdleStrip, present: Sequence[int]) -> Table:
    num_bins = len(strip.edges_ns) - 1
    step = -(-num_bins // MAX_STRETCHES)
    columns = (
        Column("device"), Column("from", "ms", True), Column("to", "ms", True),
        *(Column(CLASS_KINDS[CLASSES[number]].label, "ms", True) for number in present),
    )  # fmt: skip
    rows = []
    for name, lane in zip(names, strip.lanes, strict=True):
        for first in range(0, num_bins, step):
            last = min(first + step, num_bins)
            sums = [sum(lane.ns[number][first:last]) for number in present]
            if any(sums):
                times = (ExactTime(strip.edges_ns[first]), ExactTime(strip.edges_ns[last]), *map(ExactTime, sums))
                rows.append(Row((Code(name), *times)))
    notes = ("Exclusive: a row adds up to the part of its stretch that the device's window covers.",)
    return Table("Time by class in stretches of the picture.", columns, tuple(rows), notes)
