"""Busy and idle time of each device by kind, stream and time, and the causes of idle time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from strobe.perf.analysis.device.activity import CLASSES, Activity, KindTime, StreamTime, idle_strip
from strobe.perf.analysis.device.device_work import DeviceView
from strobe.perf.analysis.device.idle import PROFILER_OVERHEAD
from strobe.perf.report.blocks.fields import Field, count, count_cell, exact_time, heads, numeric, rows_of, share_cell, table_of
from strobe.perf.report.model import Block, Code, Figure, Notes, Section, Strip, StripLane, Table
from strobe.perf.report.trace_page.devices import CAUSE_HINTS, CLASS_KINDS, during
from strobe.perf.report.trace_page.seen import seen_devices
from strobe.perf.report.trace_page.stretches import permille, stretches_table
from strobe.perf.report.trace_study import TraceStudy

MAX_BINS: Final = 240
"""Bins of the picture for a few lanes; all lanes together have at most four times as many."""

_UNLINKED: Final = "events whose launch the trace does not hold; they are counted everywhere"
Seen = Sequence[tuple[str, DeviceView, Activity]]


def activity_section(study: TraceStudy) -> Section | None:
    """Build the section with busy time, idle time and overlap of every device; `None` if no trace has device events."""
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
    fields: tuple[Field[tuple[str, DeviceView, Activity]], ...] = (
        Field("device", lambda row: row[0], Code),
        exact_time("span", lambda row: row[2].span_ns, "from the first event's start to the last one's end, or the window"),
        exact_time("busy", lambda row: row[2].busy_ns, "union over all streams: at least one event ran"),
        numeric("busy share", lambda row: share_cell(row[2].busy_ns, row[2].span_ns)),
        exact_time("idle", lambda row: row[2].idle_ns, "span - busy"),
        exact_time("overlap", lambda row: row[2].overlap_ns, "sum of durations - busy"),
        exact_time(
            "exposed communication", lambda row: row[2].exposed_comm_ns, "communication ran and neither a kernel nor a memset did"
        ),
        exact_time("exposed copies", lambda row: row[2].exposed_memcpy_ns, "a copy ran and nothing else did"),
        count("events", lambda row: row[2].n),
        numeric("unlinked", lambda row: row[2].num_unlinked, _UNLINKED, show=count_cell),
        exact_time("unlinked sum", lambda row: row[2].unlinked_ns if row[2].num_unlinked else None, "of their durations"),
    )
    notes = ["Sums of durations are not additive where events overlap; busy and idle are."]
    cut = [(name, done.num_cut) for name, _, done in seen if done.num_cut]
    notes += [f"{name}: events cut by the edges of the window: {n}. Only their part inside counts." for name, n in cut]
    return table_of(f"Devices, {during(seen[0][1])}.", fields, seen, notes=notes)


def _causes(seen: Seen) -> Table:
    fields: tuple[Field[tuple[str, Activity, str, int, str]], ...] = (
        Field("device", lambda row: row[0], Code),
        Field("idle because", lambda row: row[2]),
        exact_time("time", lambda row: row[3]),
        numeric("of idle", lambda row: share_cell(row[3], row[1].idle_ns)),
        numeric("of span", lambda row: share_cell(row[3], row[1].span_ns)),
        Field("that is", lambda row: row[4]),
    )
    rows = []
    for name, _, done in seen:
        rows += [(name, done, cause, ns, CAUSE_HINTS[cause]) for cause, ns in done.idle.items() if ns]
        rows.append((name, done, "all", done.idle_ns, ""))
    notes = ("Each gap is split by the device event that ends it; a cause without time is left out.",)
    shown = rows_of(fields, rows, strong=lambda row: not row[4])
    return Table("Idle time by what the device waited for (exclusive: adds up to idle).", heads(fields), shown, notes)


def _overheads(seen: Seen) -> Iterator[Table]:
    """Yield the table of profiler overheads that held the host up, where the traces name them."""
    fields: tuple[Field[tuple[str, Activity, str, int]], ...] = (
        Field("device", lambda row: row[0], Code),
        Field("overhead", lambda row: row[2], Code),
        exact_time("idle time", lambda row: row[3]),
        numeric("of idle", lambda row: share_cell(row[3], row[1].idle_ns)),
        Field("that is", lambda row: _overhead_hint(row[2])),
    )
    rows = [(name, done, what, ns) for name, _, done in seen for what, ns in done.overhead.items()]
    if rows:
        yield table_of(f"Idle time as {PROFILER_OVERHEAD}, by what held up the host.", fields, rows)


def _overhead_hint(name: str) -> str:
    if "Loading" in name:
        return "a kernel or module was loaded at its first use: warm up before recording, or set CUDA_MODULE_LOADING=EAGER"
    return "the profiler's own work: not there without it"


def _kinds(seen: Seen) -> Table:
    fields: tuple[Field[tuple[str, Activity, KindTime]], ...] = (
        Field("device", lambda row: row[0], Code),
        Field("kind", lambda row: row[2].kind),
        count("events", lambda row: row[2].n),
        exact_time("exclusive", lambda row: row[2].exclusive_ns, "time that no kind above it owns; adds up to busy"),
        numeric("of busy", lambda row: share_cell(row[2].exclusive_ns, row[1].busy_ns)),
        exact_time("union", lambda row: row[2].union_ns, "at least one event of the kind ran"),
        exact_time("sum", lambda row: row[2].sum_ns, "of durations"),
    )
    priority = " over ".join(seen[0][1].priority)
    notes = (f"Where kinds overlap, exclusive time goes to {priority}. Union and sum are inclusive and do not add up over rows.",)
    rows = [(name, done, kind) for name, _, done in seen for kind in done.kinds]
    return table_of("Busy time by kind of work.", fields, rows, notes=notes)


def _streams(seen: Seen) -> Table:
    pairs = "of events of this stream that ran at the same time"
    longest = "time that an event ran beside one that started before it"
    fields: tuple[Field[tuple[str, StreamTime]], ...] = (
        Field("device", lambda row: row[0], Code),
        count("stream", lambda row: row[1].stream),
        count("events", lambda row: row[1].n),
        exact_time("busy", lambda row: row[1].busy_ns, "at least one event of the stream ran"),
        exact_time("sum", lambda row: row[1].sum_ns, "of durations"),
        exact_time("overlap", lambda row: row[1].overlap_ns if row[1].overlap_pairs else None, "sum - busy of the stream"),
        count("pairs", lambda row: row[1].overlap_pairs or None, pairs),
        exact_time("longest", lambda row: row[1].longest_overlap_ns if row[1].overlap_pairs else None, longest),
    )
    notes = (
        "Busy times of streams are inclusive: they do not add up to the device's. Events of one stream overlap under "
        "programmatic dependent launch and in branches of a graph; then even the sum over one stream exceeds its busy time.",
    )
    rows = [(name, stream) for name, _, done in seen for stream in done.streams]
    return table_of("Streams.", fields, rows, notes=notes, collapsed=len(rows) > 4)


def _picture(seen: Seen) -> Iterator[Figure]:
    drawn = [(name, view) for name, view, _ in seen if view.span_ns]
    if not drawn:
        return
    strip = idle_strip([view for _, view in drawn], max(1, min(MAX_BINS, 4 * MAX_BINS // len(drawn))))
    present = [number for number in range(len(CLASSES)) if any(any(lane[number]) for lane in strip.lanes)]
    picture = Strip(
        length_ns=strip.length_ns,
        kinds=tuple(CLASS_KINDS[CLASSES[number]] for number in present),
        lanes=tuple(
            StripLane(name, tuple(permille(strip.edges_ns, lane[number]) for number in present))
            for (name, _), lane in zip(drawn, strip.lanes, strict=True)
        ),
    )
    clock = "one clock" if strip.aligned else "each device's own clock: the traces have no moment in common"
    title = f"What each device did over time (solid) and why it was idle (hatched), on {clock}."
    alt = "Shares of work and idle classes over time, one lane per device; the table gives the times of longer stretches."
    named = (
        (name, strip.edges_ns, [lane[number] for number in present]) for (name, _), lane in zip(drawn, strip.lanes, strict=True)
    )
    labels = (kind.label for kind in picture.kinds)
    notes = ("Exclusive: a row adds up to the part of its stretch that the device's window covers.",)
    table = stretches_table("Time by class in stretches of the picture.", "device", labels, named, notes)
    yield Figure(title, alt, picture, table)
