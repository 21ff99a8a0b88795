"""What each device of a trace did: activity, timeline, launches, queue, gaps and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from strobe.core.printable import bytes_in
from strobe.perf.analysis.device import launch
from strobe.perf.analysis.device.activity import (
    ACTIVITIES,
    BUSY,
    CAUSES,
    HOST_LATE,
    LAUNCH_LATENCY,
    MAX_PROMPT_NS,
    MIN_IDLE_SHARE,
    PRIORITY,
    PROFILER_OVERHEAD,
    QUEUED,
    UNLINKED,
    DeviceRow,
    DeviceView,
    KindRow,
    StreamRow,
    idle_strip,
    verdict_cell,
)
from strobe.perf.analysis.device.intervals import Distribution, Window
from strobe.perf.analysis.device.kernels import kernel_name, kernel_table
from strobe.perf.analysis.device.launch import GapsRow, Launch, LaunchRow, QueueRow
from strobe.perf.analysis.structure.memory import MemoryRow, mib, recorded
from strobe.perf.analysis.structure.steps import Steps
from strobe.perf.report.blocks.fields import section_of, spread
from strobe.perf.report.blocks.kernels import IDLE_KINDS, Piece, class_table, draw_lanes, merged
from strobe.perf.report.study import TraceStudy
from strobe.perf.report.trace_page import tables
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
    Code,
    ExactTime,
    Figure,
    Kind,
    Notes,
    Plane,
    PlotPoint,
    Section,
    Strip,
    StripLane,
    Table,
    Text,
    exact_ms,
)
from strobe.perf.table.rows import columns, part_of
from strobe.perf.trace.events import DEVICE_KINDS

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


MAX_STRETCHES: Final = 12
"""Most rows for each lane of the table under the picture of time by class."""


def _permille(edges_ns: Sequence[int], ns: Sequence[int]) -> tuple[int, ...]:
    """Return what part of each bin some times take, in thousandths."""
    return tuple(1000 * value // max(1, right - left) for value, (left, right) in zip(ns, pairwise(edges_ns), strict=True))


MAX_BINS: Final = 240
"""Bins of the picture for a few lanes; all lanes together have at most four times as many."""
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
    seen = tables.seen_devices(study)
    if not seen:
        return None
    blocks: list[Block] = [_devices(study), *_picture(seen), _causes(study), *_overheads(seen)]
    kinds, streams = ([row for one in seen for row in getattr(one.account, name)] for name in ("kinds", "streams"))
    for caption, kind, rows, note in (
        ("Busy time by kind of work.", KindRow, kinds, _KINDS_NOTE),
        ("Streams.", StreamRow, streams, _STREAMS_NOTE),
    ):
        many = kind is StreamRow and len(rows) > 4
        blocks.append(table_of(caption, tables.on_devices(study, kind), rows, notes=(note,), collapsed=many))
    without = tuple(f"{found.trace}: no device events." for found in tables.seen(study) if not found.devices)
    if without:
        blocks.append(Notes(without))
    lead = "Exact to the nanosecond, per device and never pooled: busy + idle = span, and the causes of idle time add up to idle."
    return Section("activity", "Busy and idle", lead, tuple(blocks))


def _devices(study: TraceStudy) -> Table:
    shown = tables.on_devices(
        study, DeviceRow, "span_ns", "busy_ns", "idle_ns", "overlap_ns", "exposed_communication_ns", "exposed_copies_ns",
        "events", "unlinked_events", "unlinked_ns",
    )  # fmt: skip
    seen = tables.seen_devices(study)
    notes = ["Sums of durations are not additive where events overlap; busy and idle are."]
    cut = [(one.name, num) for one in seen if (num := one.view.num_cut)]
    notes += [f"{name}: events cut by the edges of the window: {n}. Only their part inside counts." for name, n in cut]
    return table_of(f"Devices, {during(seen[0].view)}.", shown, [one.done for one in seen], notes=notes)


def _causes(study: TraceStudy) -> Table:
    meaning: Field[tables.IdleRow] = Field("that is", lambda row: CAUSE_HINTS.get(row.cause, ""))
    fields, rows = (*tables.on_devices(study, tables.IdleRow), meaning), list[tables.IdleRow]()
    for one in tables.seen_devices(study):
        whole = part_of(tables.IdleRow, one, cause="all", idle_ns=one.done.idle_ns)
        rows += [*(row for row in one.idle if row.idle_ns), whole]
    notes = ("Each gap is split by the device event that ends it; a cause without time is left out.",)
    shown = rows_of(fields, rows, strong=lambda row: row.cause not in CAUSES)
    return Table("Idle time by what the device waited for (exclusive: adds up to idle).", heads(fields), shown, notes)


def _overheads(seen: Sequence[tables.DeviceFindings]) -> Iterator[Table]:
    loading = "a kernel or module was loaded at its first use: warm up before recording, or set CUDA_MODULE_LOADING=EAGER"
    fields: tuple[Field[tuple[tables.DeviceFindings, str, int]], ...] = (
        Field("device", lambda row: row[0].name, Code),
        Field("overhead", lambda row: row[1], Code),
        exact_time("idle time", lambda row: row[2]),
        numeric("of idle", lambda row: share_cell(row[2], row[0].done.idle_ns)),
        Field("that is", lambda row: loading if "Loading" in row[1] else "the profiler's own work: not there without it"),
    )
    rows = [(one, what, ns) for one in seen for what, ns in one.account.overhead.items()]
    if rows:
        yield table_of(f"Idle time as {PROFILER_OVERHEAD}, by what held up the host.", fields, rows)


def _picture(seen: Sequence[tables.DeviceFindings]) -> Iterator[Figure]:
    """Draw the time of each class in bins, over the table of stretches of several bins."""
    drawn = [(one.name, one.view) for one in seen if one.view.span_ns]
    if not drawn:
        return
    aligned, edges_ns, every = idle_strip([view for _, view in drawn], max(1, min(MAX_BINS, 4 * MAX_BINS // len(drawn))))
    present = [number for number in range(len(ACTIVITIES)) if any(any(lane[number]) for lane in every)]
    clock = "one clock" if aligned else "each device's own clock: the traces have no moment in common"
    title = f"What each device did over time (solid) and why it was idle (hatched), on {clock}."
    lanes = [(name, [lane[number] for number in present]) for (name, _), lane in zip(drawn, every, strict=True)]
    kinds = tuple(CLASS_KINDS[ACTIVITIES[number]] for number in present)
    notes = ("Exclusive: a row adds up to the part of its stretch that the device's window covers.",)
    rows, num_bins = [], len(edges_ns) - 1
    step = -(-num_bins // MAX_STRETCHES)
    for name, classes_ns in lanes:
        for first in range(0, num_bins, step):
            last = min(first + step, num_bins)
            sums = [sum(own[first:last]) for own in classes_ns]
            if any(sums):
                rows.append((Code(name), edges_ns[first], edges_ns[last], *sums))
    fields = beside("device", ("from", "to", *(kind.label for kind in kinds)), "ms", show=ExactTime)
    table = table_of("Time by class in stretches of the picture.", fields, rows, notes=notes)
    strips = tuple(StripLane(name, tuple(_permille(edges_ns, own) for own in each)) for name, each in lanes)
    alt = "Shares of work and idle classes over time, one lane per device; the table gives the times of longer stretches."
    yield Figure(title, alt, Strip(edges_ns[-1], kinds, strips), table)


def queue_section(study: TraceStudy) -> Section | None:
    """Build the section with a table of the queues of all devices and streams; `None` without device events."""
    rows, top = [(one.name, queue) for one in tables.seen_devices(study) for queue in one.queues], study.options.top
    if not rows:
        return None
    lead = (
        "Device events whose launch call has started and that have not started themselves. A queue that is empty most of the "
        "time waits for the host; one that is long hides it. Nodes of a graph are launched together."
    )
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
    """Build the section with verdict, delays, launch calls and signs of loss; `None` if nothing was launched."""
    seen, blocks = tables.seen_devices(study), list[Block | None]()
    if seen:
        calls = [row for one in seen for row in one.launches.calls[: study.options.top]]
        caption = "Launch calls that device events of the window answer to."
        blocks = [_verdicts(seen), _delays(seen), table_of(caption, tables.on_devices(study, LaunchRow), calls, sortable=True)]
    blocks.append(_signs(study))
    lead = (
        "A delay runs from the launch call to the start on the device. Negative ones are legal and kept: a kernel may start "
        "before its call returns. Delays overlap each other and do not add up; the idle causes do."
    )
    return section_of("launch", "Launches", lead, blocks)


def _verdicts(seen: Sequence[tables.DeviceFindings]) -> Table:
    delay = "median start to start of the launches that end a gap with the host late"
    fields: tuple[Field[tables.DeviceFindings], ...] = (
        Field("device", lambda one: one.name, Code),
        Field("verdict", lambda one: verdict_cell(one.done)),
        numeric("idle share", lambda one: share_cell(one.done.idle_ns, one.done.span_ns), "of the span"),
        numeric("host late", lambda one: share_cell(one.account.idle[HOST_LATE], one.done.idle_ns), "of the idle time"),
        time("delay after a late host", lambda one: one.account.late_delay_ns, "µs", delay, missing="no gap with the host late"),
        Field("that is", _meaning),
    )
    notes = (
        f"Host-bound: idle for at least {MIN_IDLE_SHARE:.0%} of the span, more than half of that with the host late, and a "
        f"median delay below {MAX_PROMPT_NS // 1000} µs of what ends those gaps. Delays of launches behind a busy device say how "
        "long the queue was, and nothing of the host. Another cause with more than half of the idle time gives its name.",
    )
    return table_of("What keeps each device from being busy.", fields, seen, notes=notes)


def _meaning(one: tables.DeviceFindings) -> str:
    if one.done.verdict != "unknown":
        return _MEANING[one.done.verdict]
    if 2 * one.launches.num_uncorrelated > one.launches.num_unlinked:
        return f"{_MEANING['unknown']}: events of this device carry no correlation, so nothing says what launched them"
    return f"{_MEANING['unknown']}: it lies before the trace; record a longer window"


def _delays(seen: Sequence[tables.DeviceFindings]) -> Table:
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
    notes = [_unlinked(one.name, one.launches) for one in seen if one.launches.num_unlinked]
    notes.append(
        "Later events of a graph wait for the graph's own events, not for the host: their delays say nothing of launching."
    )
    return table_of("Launch delays, of events that start in the window.", fields, rows, notes=notes)


def _unlinked(name: str, found: Launch) -> str:
    before = found.num_unlinked - found.num_uncorrelated
    why = [f"{before} were launched before the trace"] if before else []
    why += [f"{found.num_uncorrelated} carry no correlation"] if found.num_uncorrelated else []
    return f"{name}: {found.num_unlinked} of {found.num_events} events have no known launch call: {', '.join(why)}."


def _signs(study: TraceStudy) -> Table | None:
    """Build the table of signs that the profiler lost events of whole traces without saying so; None if there are none."""
    rows = []
    for of in tables.seen(study):
        label = of.trace
        for name, (n, missing) in launch.unanswered_calls(of.read).items():
            rows.append((label, "launch calls that no device event answers to", name, f"{missing} of {n}"))
        for _, first, n, num_nodes, short in launch.short_graphs(of.read):
            what = f"{len(short)} of {n} launches have {short[0]} to {short[-1]} events, most have {num_nodes}"
            rows.append((label, "graph launches with fewer events than their like", first, what))
        if late := launch.past_end_ns(of.read, of.whole):
            rows.append((label, "last device event ends after the recorded window", "", f"{late / 1e3:.3f} µs"))
        for device, stream, excess in launch.impossible_streams(of.whole):
            where = f"device {device}, stream {stream}"
            rows.append((label, "durations of one stream exceed its span", where, f"{excess / 1e3:.3f} µs"))
    fields: tuple[Field[tuple[str, str, str, str]], ...] = (
        Field("trace", lambda row: row[0], Code),
        Field("sign", lambda row: row[1]),
        Field("where", lambda row: row[2], Code),
        Field("how much", lambda row: Text(row[3], "bad")),
    )
    notes = ("A call can launch nothing by right: while a graph is captured, or as the last ones before the window closed.",)
    caption = "Signs that a trace does not hold all that ran (whole traces, whatever the window)."
    return table_of(caption, fields, rows, notes=notes) if rows else None


def gaps_section(study: TraceStudy) -> Section | None:
    """Build the section with one table of gaps per device; `None` if no device has a gap after a kernel."""
    seen = [one for one in tables.seen_devices(study) if one.gaps.rows]
    shown = [_gaps_table(one, study.options.top, collapsed=at > 0) for at, one in enumerate(seen)]
    lead = (
        "A gap is a stretch without any kernel, compute or communication, on any stream of the device. Copies and memsets do not "
        "end one: their time in it stands beside the idle causes, and together they add up to the gap exactly."
    )
    return section_of("gaps", "Gaps between kernels", lead, shown)


def _gaps_table(one: tables.DeviceFindings, top: int, *, collapsed: bool) -> Table:
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
    shown = stretches[:TIMELINE_MAX_LANES]
    top = _top_group(view for _, view in shown)
    focal = Kind(f"top kernel: {top}", "focal")
    kinds = (focal, *_KINDS.values())
    lanes = [(label, n, merged(_pieces(view, focal, top))) for n, (label, view) in enumerate(shown)]
    picture = draw_lanes(lanes, kinds, focal)
    table = class_table(lanes, picture, "Time by class", "in all")
    title = "What ran (solid) and where nothing did (hatched), by what the device waited for."
    alt = "Timeline of one step per device; the table gives the sums."
    lead = (
        "The step of median length of each device, or the chosen window; where no steps were found, the whole trace; of a long "
        "one the middle."
    )
    if len(stretches) > len(shown):
        lead += f" {len(stretches) - len(shown)} more devices are not drawn."
    return Section("timeline", "One step", lead, (Figure(title, alt, picture, table),))


def _stretches(study: TraceStudy) -> Iterator[tuple[str, DeviceView]]:
    for one in tables.seen_devices(study):
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


def _top_group(views: Iterable[DeviceView]) -> str:
    owned: Counter[str] = Counter()
    for view in views:
        owned.update({row.kernel: row.exclusive_ns for row, _ in kernel_table(view) if row.kind == "kernel"})
    return max(owned, key=lambda group: (owned[group], group)) if owned else ""


def _pieces(view: DeviceView, focal: Kind, group: str) -> Iterator[Piece]:
    slices, work = view.slices, view.work
    groups = [kernel_name(name).group for name in view.trace.device_events.names]
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
    seen = [use for of in tables.seen(study) for use in of.memory]
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
