"""What was found in the traces of a study, and what each device did: activity, timeline, launches, queue, gaps and memory."""

# No `from __future__ import annotations`: annotations of the rows are values, which hold how a column is shown.

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated as A
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from strobe.core.costs import DevicePeaks, device_peaks
from strobe.core.printable import bytes_in
from strobe.perf.analysis.critical_path import CriticalPath, critical_path
from strobe.perf.analysis.device.activity import (
    ACTIVITIES,
    BUSY,
    CAUSES,
    HOST_LATE,
    LAUNCH_LATENCY,
    MIN_IDLE_SHARE,
    PRIORITY,
    PROFILER_OVERHEAD,
    QUEUED,
    UNLINKED,
    Activity,
    DeviceRow,
    DeviceView,
    KindRow,
    StreamRow,
    activity,
    device_views,
    idle_strip,
    verdict_cell,
)
from strobe.perf.analysis.device.intervals import Distribution, Window
from strobe.perf.analysis.device.kernels import KernelRow, KernelTable, kernel_name, kernel_table
from strobe.perf.analysis.device.launch import Gaps, GapsRow, Launch, LaunchRow, QueueRow, graph_calls, queues
from strobe.perf.analysis.device.roofline import Roofline
from strobe.perf.analysis.operators import OperatorRateRow, Operators, OperatorTimes, operator_rates, operator_times, operators
from strobe.perf.analysis.structure.collectives import Communication, communication
from strobe.perf.analysis.structure.ranges import MemoryRow, MemoryUse, Ranges, memory_use, mib, range_table, recorded, unnumbered
from strobe.perf.analysis.structure.sections import SectionRow, find_sections, parse_section
from strobe.perf.analysis.structure.steps import LayerGroup, Steps, find_steps, layer_groups
from strobe.perf.report.blocks.fields import section_of, spread
from strobe.perf.report.blocks.kernels import IDLE_KINDS, Piece, class_table, draw_lanes, merged
from strobe.perf.report.study import TraceStudy, or_reason
from strobe.perf.table.fields import (
    Field,
    beside,
    count,
    exact_time,
    heads,
    left_out,
    numeric,
    rows_of,
    share_cell,
    table_of,
    time,
)
from strobe.perf.table.model import (
    Axis,
    Block,
    Cell,
    Code,
    Count,
    ExactTime,
    Figure,
    Kind,
    Lane,
    Notes,
    Plane,
    PlotPoint,
    Section,
    Share,
    Table,
    Text,
    Timeline,
    exact_ms,
)
from strobe.perf.table.rows import DocumentPart, OnDevice, PartT, col, columns, part_of, term
from strobe.perf.trace.events import DEVICE_KINDS

MAX_POINTS: Final = 200
"""Most stretches of the course of memory."""


class TraceFindings:
    """One trace of a study, and what is found in it: each thing once, when it is first asked for.

    Attributes:
        window: the chosen part of it; `None` is all of it.
        replays: what names the kernels of its graph replays, a sentence; empty without replays.
        devices: those that have events, in order of number.
    """

    def __init__(self, study: TraceStudy, place: int) -> None:
        self.options, self.only = study.options, len(study.traces) == 1
        self.trace, self.window = study.labels[place], study.windows[place]
        self.read = replace(study.traces[place], label=self.trace)
        self.replays = study.replays[place] if place < len(study.replays) else ""
        self.devices = tuple(DeviceFindings(self, view) for view in device_views(self.read, self.window))

    @property
    def file(self) -> "TraceFile":
        read, window = self.read, self.window
        ends = (None, None) if window is None else (window.start_ns, window.end_ns)
        unlinked, events = int(np.count_nonzero(np.asarray(read.device_events.host) < 0)), len(read.device_events)
        given = {"path": str(read.path), "device_events": events, "unlinked_events": unlinked}
        return part_of(TraceFile, self, read.counts, read, window_start_ns=ends[0], window_end_ns=ends[1], **given)

    @property
    def sections(self) -> Iterator[SectionRow]:
        for definition in map(parse_section, self.options.sections):
            for found in find_sections(self.read, definition, self.window):
                yield from found.found

    @property
    def whole(self) -> tuple[DeviceView, ...]:
        """The devices over the whole length of the trace, whatever the window."""
        return tuple(one.view for one in self.devices) if self.window is None else device_views(self.read)

    @cached_property
    def graphs(self) -> NDArray[np.bool_]:
        return graph_calls(self.read)

    @cached_property
    def steps(self) -> dict[int, Steps | str]:
        return find_steps(self.read, self.options.steps)

    @cached_property
    def ranges(self) -> dict[int, Ranges]:
        bare = replace(self.read, ranges=unnumbered(self.read.ranges), modules=unnumbered(self.read.modules))
        return {found.device: found for found in range_table(bare, self.window)}

    @cached_property
    def layers(self) -> dict[int, tuple[LayerGroup, ...]]:
        return dict(layer_groups(self.read, self.window))

    @cached_property
    def times(self) -> dict[int, OperatorTimes]:
        return {found.device: found for found in operator_times([one.view for one in self.devices])}

    @cached_property
    def path(self) -> CriticalPath | str | None:
        """The critical path, or why there is none; `None` without device events or details."""
        if self.read.details is None or not len(self.read.device_events):
            return None
        return or_reason(critical_path, self.read, self.window)

    @property
    def known_path(self) -> tuple[CriticalPath, ...]:
        return (self.path,) if isinstance(self.path, tuple) else ()

    @cached_property
    def communication(self) -> tuple[Communication, ...]:
        return communication((self.read,), (self.window,))

    @cached_property
    def memory(self) -> tuple[MemoryUse, ...]:
        return memory_use(self.read, self.window, MAX_POINTS)

    @cached_property
    def host(self) -> Operators | None:
        return None if len(self.read.device_events) else operators(self.read, self.window)


class DeviceFindings:
    """One device of a trace, and what is found on it in the chosen window: each thing once, when it is first asked for."""

    def __init__(self, of: TraceFindings, view: DeviceView) -> None:
        self.of, self.view, self.trace, self.device = of, view, of.trace, view.device

    @property
    def name(self) -> str:
        """Name of the device: its number, after the trace's label if there are several traces."""
        return f"device {self.device}" if self.of.only else f"{self.trace}, device {self.device}"

    @cached_property
    def account(self) -> Activity:
        return activity(self.view)

    @property
    def done(self) -> DeviceRow:
        return self.account.device

    @property
    def idle(self) -> "Iterator[IdleRow]":
        yield from (part_of(IdleRow, self, cause=cause, idle_ns=ns) for cause, ns in self.account.idle.items())

    @cached_property
    def launches(self) -> Launch:
        return Launch(self.view, self.of.graphs)

    @cached_property
    def kernels(self) -> KernelTable:
        return kernel_table(self.view, self.of.options.by)

    @property
    def hot(self) -> tuple[KernelRow, ...]:
        return tuple(row for row, _ in self.kernels)

    @cached_property
    def queues(self) -> tuple[QueueRow, ...]:
        return queues(self.view)

    @cached_property
    def gaps(self) -> Gaps:
        return Gaps(self.view)

    @property
    def steps(self) -> Steps | str:
        return self.of.steps[self.device]

    @property
    def ranges(self) -> Ranges:
        return self.of.ranges[self.device]

    @property
    def layers(self) -> tuple[LayerGroup, ...]:
        return self.of.layers[self.device]

    @property
    def times(self) -> OperatorTimes | None:
        return self.of.times.get(self.device)

    @property
    def peaks(self) -> DevicePeaks | None:
        return device_peaks(self.done.product) if self.done.product else None

    @cached_property
    def rates(self) -> tuple[tuple[OperatorRateRow, Roofline | None], ...]:
        return () if self.times is None else operator_rates(self.times, self.peaks)


def traces_of(study: TraceStudy) -> Sequence[TraceFindings]:
    """Return the traces of a study with what is found in them."""
    if not study.kept:
        study.kept.extend(TraceFindings(study, place) for place in range(len(study.traces)))
    return study.kept


def devices_of(study: TraceStudy) -> list[DeviceFindings]:
    """Return every device that has events."""
    return [one for found in traces_of(study) for one in found.devices]


def on_devices(study: TraceStudy, kind: type[PartT], *names: str) -> tuple[Field[PartT], ...]:
    """Return the columns of a table about several devices: which one, and those of the rows, with shares of its times."""
    place: Callable[[Any], tuple[str, int]] = attrgetter("trace", "device")
    devices = {place(one): one for one in devices_of(study)}
    which: Field[PartT] = Field("device", lambda row: devices[place(row)].name, Code)
    return (which, *columns(kind, *names, of=lambda row: devices[place(row)].done))


def _bad(value: int) -> Cell:
    return Text(str(value), "bad") if value else Count(0)


def _unlinked(row: "TraceFile") -> Cell:
    return share_cell(row.unlinked_events, row.device_events)


def _end(row: "TraceFile") -> Text:
    if row.truncated or row.lost:
        return Text("truncated" if row.truncated else "incomplete", "bad")
    return Text("complete")


class TraceFile(DocumentPart, frozen=True, kw_only=True):
    """One trace file that was read."""

    trace: A[str, col("label of the trace in every other table: its rank, or the name of the file", "trace", Code)]
    path: A[str, col("path of the file", "file", Code, get=lambda row: Path(row.path).name)]
    rank: A[int | None, col("rank of the process; null: not in the trace", "rank", Count)]
    world_size: A[int | None, col("number of processes of the job; null: not in the trace", "ranks", Count)]
    events: A[int, col("number of events read, of every category", "events", Count)]
    device_events: A[int, col("number of kernels, communication, memsets and copies", "device events", Count)]
    unlinked_events: A[int, term("device events whose launch call is not in the trace", "unlinked", Share, get=_unlinked)]
    lost: A[int, col("number of events that could not be read", "lost", _bad)]
    mended: A[int, term("number of events that were repaired to be read", "mended", _bad)]
    truncated: A[bool, col("true: the file ends in the middle of its JSON", "end", get=_end)]
    damage: A[tuple[str, ...], col("what the file says of events that cannot be, and what became of them, one sentence each")]
    foreign: A[str, col("whose profiler wrote the file and what that cannot say; empty: `torch.profiler`")]
    base_ns: A[int, col("nanoseconds since the Unix epoch that the trace's times are relative to; 0: no such offset")]
    window_start_ns: A[int | None, col("start of the chosen window; null: the whole trace")]
    window_end_ns: A[int | None, col("end of the chosen window; null: the whole trace")]


class IdleRow(OnDevice, frozen=True, kw_only=True):
    """Idle time of one device by cause; the causes add up to its idle time."""

    cause: A[str, term("cause of the idle time, e.g. `host_late`; docs/traces.md explains them", "idle because")]
    idle_ns: A[int, col("idle time with this cause", "time", ExactTime, of={"of idle": "idle_ns", "of span": "span_ns"})]


# Devices of a study: their names in tables, and the style of their activity in pictures.

CLASS_KINDS: Final = {
    "kernel": Kind("kernels", "work1"), "comm": Kind("communication", "work2"),
    "memcpy": Kind("copies", "work3"), "memset": Kind("memsets", "work4"),
    **IDLE_KINDS,
}  # fmt: skip
"""Label and style of each of `activity.ACTIVITIES`."""

CAUSE_HINTS: Final = {
    HOST_LATE: "the launch call had not started yet",
    LAUNCH_LATENCY: "the launch call had started, but not yet its event",
    QUEUED: "the event, launched before the gap or part of a graph, waited for another event, a copy or a synchronisation",
    PROFILER_OVERHEAD: "the host was late because the profiler, or the loading of a kernel, held it up",
    UNLINKED: "the trace does not hold the launch of the event that ends the gap, or no event ends it",
}


def during(view: DeviceView) -> str:
    """Return the window of a view in words."""
    return f"window {view.window.label}" if view.window else "the whole trace"


MAX_BINS: Final = 120
"""Stretches of the picture of time by class for a few devices; all together have at most four times as many."""
MAX_STRETCHES: Final = 12
"""Most rows for each device of the table of time by class over the trace."""
_KINDS_NOTE: Final = (
    f"Where kinds overlap, exclusive time goes to {' over '.join(PRIORITY)}. Union and sum are inclusive and do not add up over "
    "rows."
)
_STREAMS_NOTE: Final = (
    "Busy times of streams are inclusive: they do not add up to the device's. Events of one stream overlap under "
    "programmatic dependent launch and in branches of a graph; then even the sum over one stream exceeds its busy time."
)


def activity_section(study: TraceStudy) -> Section | None:
    """Build the section with busy time, idle time and overlap of every device; `None` if no trace has device events."""
    seen = devices_of(study)
    if not seen:
        return None
    blocks: list[Block] = [_devices(study), _causes(study), *_overheads(seen)]
    kinds, streams = [row for one in seen for row in one.account.kinds], [row for one in seen for row in one.account.streams]
    blocks.append(table_of("Busy time by kind of work.", on_devices(study, KindRow), kinds, notes=(_KINDS_NOTE,)))
    of_streams, many = on_devices(study, StreamRow), len(streams) > 4
    blocks.append(table_of("Streams.", of_streams, streams, notes=(_STREAMS_NOTE,), collapsed=many))
    blocks += _over_time(seen)
    without = tuple(f"{found.trace}: no device events." for found in traces_of(study) if not found.devices)
    if without:
        blocks.append(Notes(without))
    lead = "Exact to the nanosecond, per device and never pooled: busy + idle = span, and the causes of idle time add up to idle."
    return Section("activity", "Busy and idle", lead, tuple(blocks))


def _devices(study: TraceStudy) -> Table:
    shown = on_devices(
        study, DeviceRow, "span_ns", "busy_ns", "idle_ns", "overlap_ns", "exposed_communication_ns", "exposed_copies_ns",
        "events", "unlinked_events", "unlinked_ns",
    )  # fmt: skip
    seen = devices_of(study)
    notes = ["Sums of durations are not additive where events overlap; busy and idle are."]
    cut = [(one.name, num) for one in seen if (num := one.view.num_cut)]
    notes += [f"{name}: events cut by the edges of the window: {n}. Only their part inside counts." for name, n in cut]
    return table_of(f"Devices, {during(seen[0].view)}.", shown, [one.done for one in seen], notes=notes)


def _causes(study: TraceStudy) -> Table:
    meaning: Field[IdleRow] = Field("that is", lambda row: CAUSE_HINTS.get(row.cause, ""))
    fields, rows = (*on_devices(study, IdleRow), meaning), list[IdleRow]()
    for one in devices_of(study):
        whole = part_of(IdleRow, one, cause="all", idle_ns=one.done.idle_ns)
        rows += [*(row for row in one.idle if row.idle_ns), whole]
    notes = ("Each gap is split by the device event that ends it; a cause without time is left out.",)
    shown = rows_of(fields, rows, strong=lambda row: row.cause not in CAUSES)
    return Table("Idle time by what the device waited for (exclusive: adds up to idle).", heads(fields), shown, notes)


def _overheads(seen: Sequence[DeviceFindings]) -> Iterator[Table]:
    loading = "a kernel or module was loaded at its first use: warm up before recording, or set CUDA_MODULE_LOADING=EAGER"
    fields: tuple[Field[tuple[DeviceFindings, str, int]], ...] = (
        Field("device", lambda row: row[0].name, Code),
        Field("overhead", lambda row: row[1], Code),
        exact_time("idle time", lambda row: row[2]),
        numeric("of idle", lambda row: share_cell(row[2], row[0].done.idle_ns)),
        Field("that is", lambda row: loading if "Loading" in row[1] else "the profiler's own work: not there without it"),
    )
    rows = [(one, what, ns) for one in seen for what, ns in one.account.overhead.items()]
    if rows:
        yield table_of(f"Idle time as {PROFILER_OVERHEAD}, by what held up the host.", fields, rows)


def _over_time(seen: Sequence[DeviceFindings]) -> Iterator[Figure]:
    shown = [one for one in seen if one.view.span_ns]
    if shown:
        bins = max(1, min(MAX_BINS, 4 * MAX_BINS // len(shown)) // MAX_STRETCHES)  # of the picture in a stretch of the table
        aligned, edges_ns, lanes = idle_strip([one.view for one in shown], bins * MAX_STRETCHES)
        present = [number for number in range(len(ACTIVITIES)) if any(any(lane[number]) for lane in lanes)]
        kinds, rows = tuple(CLASS_KINDS[ACTIVITIES[number]] for number in present), []
        for one, lane in zip(shown, lanes, strict=True):
            for at in range(0, len(edges_ns) - 1, bins):
                sums = [sum(lane[number][at : at + bins]) for number in present]
                if any(sums):
                    rows.append((Code(one.name), edges_ns[at], edges_ns[min(at + bins, len(edges_ns) - 1)], *sums))
        clock = "one clock" if aligned else "each device's own clock: the traces have no moment in common"
        notes = ("Exclusive: a row adds up to the part of its stretch that the device's window covers.",)
        fields = beside("device", ("from", "to", *(kind.label for kind in kinds)), "ms", show=ExactTime)
        table = table_of(f"Time by class in stretches, on {clock}.", fields, rows, notes=notes, collapsed=len(shown) > 1)
        drawn = [_lane(one.name, edges_ns, [lane[number] for number in present]) for one, lane in zip(shown, lanes, strict=True)]
        picture = Timeline(edges_ns[-1], tuple(kind.label for kind in kinds), kinds, tuple(drawn))
        alt = "Time by class over the whole trace, one lane per device; the table gives the times of longer stretches."
        yield Figure(f"What each device did over time, and why it was idle, on {clock}.", alt, picture, table)


def _lane(name: str, edges_ns: Sequence[int], of_kinds: Sequence[Sequence[int]]) -> Lane:
    """Draw every bin of a device's time as its classes, one after the other."""
    slices = []
    for start, *times in zip(edges_ns, *of_kinds, strict=False):
        for kind, ns in enumerate(times):
            slices += [(start, ns, kind)] if ns else []
            start += ns
    starts, lengths, kinds = (tuple(column) for column in zip(*slices, strict=True))
    return Lane(name, 0, edges_ns[-1], starts, lengths, kinds, kinds, len(slices), 0)


def queue_section(study: TraceStudy) -> Section | None:
    """Build the section with a table of the queues of all devices and streams; `None` without device events."""
    rows, top = [(one.name, queue) for one in devices_of(study) for queue in one.queues], study.options.top
    if not rows:
        return None
    lead = "Device events whose launch call has started, but not yet they; if there are few, the device waits for the host."
    name: Field[tuple[str, QueueRow]] = Field(
        "queue", lambda row: row[0] if row[1].stream is None else f"{row[0]}, stream {row[1].stream}", Code
    )
    fields = (name, *(field.of(lambda row: row[1]) for field in columns(QueueRow)))
    table = table_of("Length of each queue.", fields, rows[:top], notes=left_out(rows, top), sortable=True)
    return Section("queue", "Queue length", lead, (table,), folded=True)


_MEANING: Final = {
    "busy": f"idle for less than {MIN_IDLE_SHARE:.0%} of the span: faster launches gain little",
    "host-bound": "most idle time is the host being late; what it then launches starts at once: give the device more per launch",
    "host late, slow launches": "most idle time is the host being late, and what it then launches also starts late",
    "launch latency": "most idle time lies between the launch call and the start on the device",
    "queued": "most idle time is waiting for something on the device or a copy: dependencies, synchronisation",
    "profiler overhead": "most idle time is overhead that the profiler records: time without it, and warm up, before concluding",
    "unknown": "most gaps end with work whose launch the trace does not hold",
    "mixed": "no cause has more than half of the idle time",
}


def launch_section(study: TraceStudy) -> Section | None:
    """Build the section with verdict, delays and launch calls; `None` without device events."""
    seen = devices_of(study)
    if not seen:
        return None
    calls = [row for one in seen for row in one.launches.calls[: study.options.top]]
    caption = "Launch calls that device events of the window answer to."
    launched = table_of(caption, on_devices(study, LaunchRow), calls, sortable=True)
    lead = "From launch call to start on the device; negative ones are legal. Delays overlap and do not add up."
    return Section("launch", "Launches", lead, (_verdicts(seen), _delays(seen), launched))


def _verdicts(seen: Sequence[DeviceFindings]) -> Table:
    delay = "median start to start of the launches that end a gap with the host late"
    fields: tuple[Field[DeviceFindings], ...] = (
        Field("device", lambda one: one.name, Code),
        Field("verdict", lambda one: verdict_cell(one.done)),
        numeric("idle share", lambda one: share_cell(one.done.idle_ns, one.done.span_ns), "of the span"),
        numeric("host late", lambda one: share_cell(one.account.idle[HOST_LATE], one.done.idle_ns), "of the idle time"),
        time("delay after a late host", lambda one: one.account.late_delay_ns, "µs", delay, missing="no gap with the host late"),
        Field("that is", _meaning),
    )
    return table_of("What keeps each device from being busy.", fields, seen)


def _meaning(one: DeviceFindings) -> str:
    if one.done.verdict != "unknown":
        return _MEANING[one.done.verdict]
    if 2 * one.launches.num_uncorrelated > one.launches.num_unlinked:
        return f"{_MEANING['unknown']}: events of this device carry no correlation, so nothing says what launched them"
    return f"{_MEANING['unknown']}: it lies before the trace; record a longer window"


def _delays(seen: Sequence[DeviceFindings]) -> Table:
    wrong = "clocks or correlation are wrong"  # for no event can start before its launch call
    fields: tuple[Field[tuple[str, str, str, Distribution, int]], ...] = (
        Field("device", lambda row: row[0], Code),
        Field("launched as", lambda row: row[1], hint="a graph is a call by that name, or one call that launched several events"),
        Field("from", lambda row: row[2], hint="start or end of the launch call, to the start on the device"),
        count("n", lambda row: row[3].n, "device events"),
        count("negative", lambda row: Text(str(row[4]), "bad", wrong) if row[4] and row[2] == "start" else row[4]),
        *spread(lambda row: row[3], "µs"),
    )
    rows = []
    for one in seen:
        for kind, sides in one.launches.kinds.items():
            rows += [(one.name, kind, edge, *found) for edge, found in zip(("start", "end"), sides, strict=True)]
    notes = [_not_linked(one.name, one.launches) for one in seen if one.launches.num_unlinked]
    notes.append(
        "Later events of a graph wait for the graph's own events, not for the host: their delays say nothing of launching."
    )
    return table_of("Launch delays, of events that start in the window.", fields, rows, notes=notes)


def _not_linked(name: str, found: Launch) -> str:
    before = found.num_unlinked - found.num_uncorrelated
    why = [f"{before} were launched before the trace"] if before else []
    why += [f"{found.num_uncorrelated} carry no correlation"] if found.num_uncorrelated else []
    return f"{name}: {found.num_unlinked} of {found.num_events} events have no known launch call: {', '.join(why)}."


def gaps_section(study: TraceStudy) -> Section | None:
    """Build the section with one table of gaps per device; `None` if no device has a gap after a kernel."""
    seen = [one for one in devices_of(study) if one.gaps.rows]
    shown = [_gaps_table(one, study.options.top, collapsed=at > 0) for at, one in enumerate(seen)]
    lead = "A stretch without any kernel on any stream; the time of copies and memsets in it stands beside the idle causes."
    return section_of("gaps", "Gaps between kernels", lead, shown)


def _gaps_table(one: DeviceFindings, top: int, *, collapsed: bool) -> Table:
    found, rows = one.gaps, one.gaps.rows
    parts = columns(GapsRow, *(f"{cause}_ns" for cause in CAUSES), "dtod_ns", "other_copy_ns", "memset_ns")
    fields = (
        *columns(GapsRow, "after", "before", "n", "sum_ns", "p50_ns", "max_ns", of=found),
        *(part for part in parts if any(part.get(row) for row in rows)),
        *columns(GapsRow, "dtod_copies"),
    )
    caption = (
        f"{one.name}, {during(one.view)}: kernels {exact_ms(found.kernel_ns)} + gaps {exact_ms(found.gap_ns)} + "
        f"before the first kernel {exact_ms(found.head_ns)} + after the last one {exact_ms(found.tail_ns)} = span "
        f"{exact_ms(found.span_ns)} ms."
    )
    notes = ("Columns of causes, copies and memsets are exclusive: a row adds up to its sum. Those without time are left out.",)
    shown = rows_of(fields, rows, top=top, left="pairs", totals=(("all gaps", rows),))
    return Table(caption, heads(fields), shown, notes, sortable=True, collapsed=collapsed)


TIMELINE_MAX_LANES: Final = 8
"""Devices in the picture; further ones are counted in a note."""
MAX_SLICES: Final = 50_000
"""Most slices of a lane."""
_KINDS: Final = {**CLASS_KINDS, "kernel": Kind("other kernels", "work1")}


def timeline_section(study: TraceStudy) -> Section | None:
    """Build the section with the timeline and its table; `None` without device events."""
    stretches = list(_stretches(study))
    if not stretches:
        return None
    shown, owned = stretches[:TIMELINE_MAX_LANES], Counter[str]()
    for _, view in shown:
        owned.update({row.kernel: row.exclusive_ns for row, _ in kernel_table(view) if row.kind == "kernel"})
    top = max(owned, key=lambda group: (owned[group], group), default="")
    focal = Kind(f"top kernel: {top}", "focal")
    kinds = (focal, *_KINDS.values())
    lanes = [(label, n, merged(_pieces(view, focal, top))) for n, (label, view) in enumerate(shown)]
    picture = draw_lanes(lanes, kinds, focal)
    table = class_table(lanes, picture, "Time by class", "in all")
    title = "What ran (solid) and where nothing did (hatched), by what the device waited for."
    alt = "Timeline of one step per device; the table gives the sums."
    lead = "The step of median length of each device, or the window; without steps the whole trace, of a long one the middle."
    if len(stretches) > len(shown):
        lead += f" {len(stretches) - len(shown)} more devices are not drawn."
    return Section("timeline", "One step", lead, (Figure(title, alt, picture, table),))


def _stretches(study: TraceStudy) -> Iterator[tuple[str, DeviceView]]:
    for one in devices_of(study):
        view = one.view
        if one.of.window is None and isinstance(one.steps, Steps):
            ranked = sorted(one.steps.kept() or one.steps.steps, key=lambda step: (step.length_ns, step.start_ns))
            step = ranked[(len(ranked) - 1) // 2]
            chosen = Window(start_ns=step.start_ns, end_ns=step.end_ns, label=step.step)
            what, part = _middle(step.step, view.within(chosen))
        else:
            what, part = _middle(during(view), view)
        if part.span_ns:
            yield f"{one.name}, {what}", part


def _middle(what: str, view: DeviceView) -> tuple[str, DeviceView]:
    """Return the whole view, or only as many slices around its middle as can be drawn."""
    rest = sum(len(slices.start) for slices in view.stretches()) - MAX_SLICES
    if rest <= 0:
        return what, view
    first, last = _bounds(view, rest // 2, rest // 2 + MAX_SLICES - 1)
    label = f"{(first - view.begin_ns) / 1e6:.3f} to {(last - view.begin_ns) / 1e6:.3f} ms of {what}"
    return label, view.within(Window(start_ns=first, end_ns=last, label=label))


def _bounds(view: DeviceView, first: int, last: int) -> tuple[int, int]:
    """Return the start of the slice `first` and the end of the slice `last`, ns."""
    at, edges = 0, list[int]()
    for slices in view.stretches():
        inside = range(at, at + len(slices.start))
        edges += [slices.start[first - at].item()] if first in inside else []
        edges += [slices.end[last - at].item()] if last in inside else []
        at = inside.stop
    return edges[0], edges[1]


def _pieces(view: DeviceView, focal: Kind, group: str) -> Iterator[Piece]:
    slices, work = view.slices, view.work
    groups = [kernel_name(name) for name in view.trace.device_events.names]
    columns = (slices.start.tolist(), slices.end.tolist(), slices.event.tolist(), slices.cause.tolist())
    names, kinds = work.name, work.kind
    for start, end, event, cause in zip(*columns, strict=True):
        if cause != BUSY:
            kind = _KINDS[CAUSES[cause]]
            yield Piece(start - view.begin_ns, end - view.begin_ns, kind.label, kind)
            continue
        name, what = groups[names[event]], DEVICE_KINDS[kinds[event]]
        is_top = what == "kernel" and name == group
        yield Piece(start - view.begin_ns, end - view.begin_ns, name, focal if is_top else _KINDS[what])


MAX_ROWS: Final = 24


def memory_section(study: TraceStudy) -> Section | None:
    """Build the section with memory of every device whose allocations were recorded; `None` if there is none."""
    seen = [use for of in traces_of(study) for use in of.memory]
    lead = "What the allocator handed out (allocated) and held (reserved), by the host's clock, exact to within a stretch."

    def name(row: MemoryRow) -> str:
        return row.device if len(study.traces) == 1 else f"{row.trace}, {row.device}"

    device: Field[MemoryRow] = Field("device", name, Code)
    peaks = table_of("Peaks.", (device, *columns(MemoryRow)), [row for row, _ in seen])
    courses = (_course(name(row), row, points) for row, points in seen if len(points) > 1)
    return section_of("memory", "Memory", lead, (peaks, *courses) if seen else ())


def _course(name: str, row: MemoryRow, points: Sequence[tuple[int, int, int]]) -> Figure:
    series = ("allocated", "reserved") if row.peak_reserved_bytes else ("allocated",)
    numbers = range(len(series))
    marks = (PlotPoint(float(at), bytes_in(held[number], "MiB"), number) for number in numbers for at, *held in points)
    axes = Axis("time from the first recorded allocation", "ms"), Axis("memory in MiB", from_zero=True)
    picture = Plane(*axes, tuple(marks), series=series)
    title, alt = f"Memory of {name} over time.", "Allocated and reserved memory over time; the table has the same."
    fields: tuple[Field[tuple[int, tuple[int, int]]], ...] = (
        time("from", lambda part: part[0]),
        numeric("allocated", lambda part: part[1][0], show=mib),
        numeric("reserved", lambda part: part[1][1], show=recorded),
    )
    step = -(-len(points) // MAX_ROWS)
    parts = [points[first : first + step] for first in range(0, len(points), step)]
    rows = [(part[0][0], max((point[1:] for point in part), key=lambda memory: memory[0])) for part in parts]
    table = table_of(f"Largest allocated memory of {name} in each part of the time.", fields, rows)
    return Figure(title, alt, picture, table)
