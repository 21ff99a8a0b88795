"""Builder of the report of a `TraceStudy`: answer, warnings, overview. The same traces give the same report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

from strobe.core.printable import counted, first_of
from strobe.perf.analysis.critical_path import CriticalPath, PathPartRow, WhatIfRow
from strobe.perf.analysis.device import launch
from strobe.perf.analysis.device.activity import HOST_LATE, DeviceRow
from strobe.perf.analysis.device.kernels import kernel_part
from strobe.perf.analysis.structure.captures import holds_captures
from strobe.perf.analysis.structure.ranges import BETWEEN, host_work
from strobe.perf.analysis.structure.steps import Steps, TraceStepRow
from strobe.perf.measure.stats import percentile
from strobe.perf.report.blocks.fields import page, section_of
from strobe.perf.report.study import TraceStudy
from strobe.perf.report.trace_page.device import (
    CAUSE_HINTS,
    DeviceFindings,
    TraceFile,
    TraceFindings,
    activity_section,
    devices_of,
    gaps_section,
    launch_section,
    memory_section,
    on_devices,
    queue_section,
    timeline_section,
    traces_of,
)
from strobe.perf.report.trace_page.structure import (
    collectives_section,
    device_kernels,
    in_window,
    operator_times_section,
    operators_section,
    ranges_section,
    regions_section,
    roofline_section,
    sections_section,
    steps_section,
    uneven_text,
)
from strobe.perf.table.fields import Field, heads, numeric, padded, rows_of, share_cell, table_of
from strobe.perf.table.model import (
    Banner,
    Cell,
    Code,
    ExactTime,
    Fact,
    Missing,
    Notes,
    Report,
    Section,
    Table,
    Text,
    shorten,
    significant,
)
from strobe.perf.table.rows import columns, gathered
from strobe.perf.trace import Trace
from strobe.perf.trace.reader import NOTHING_RAN

LAG_HINTS: Final = {
    "host": "the host worked towards its next call",
    "launch latency": "from the start of a launch call to the start on the device",
    "gap in a stream": "from the end of an event to the start of the next one that was queued behind it",
    "wait for another stream": "from the end of an event of another stream to the start of one that is taken to have waited for "
    "it",
    "synchronisation": "a call that waits, without the device events that it waits for",
    "before the first launch": "up to an event whose launch the trace does not hold",
}
ASSUMPTIONS: Final = (
    "A device event starts after its launch call and the event before it in its stream; calls of the host, whatever the thread, "
    "come one after the other, and one that waits returns after the device events that it waits for.",
    "What did not decide when a node began takes the usual time of its kind.",
    "What-if leaves out durations, not launches; the rest of the host stays, and communication keeps its length, with waiting.",
)


def _critical_path_section(study: TraceStudy) -> Section | None:
    found = (of.path for of in traces_of(study) if of.path is not None)
    blocks = [Notes((path,)) if isinstance(path, str) else _parts(path, study.options.top) for path in found]
    lead = "The longest chain through host, queue and devices. Only what is on it decides how long the trace took."
    return section_of("critical-path", "Critical path", lead, (*blocks, Notes(ASSUMPTIONS)) if blocks else (), folded=True)


def _what_if_section(study: TraceStudy) -> Section | None:
    shown = []
    for found, _, rows in (path for of in traces_of(study) for path in of.known_path if path[2]):
        note = (
            f"Usual latency of a launch whose stream is free {found.usual_launch_ns / 1e3:.3f} µs, usual gap between queued "
            f"events {found.usual_gap_ns / 1e3:.3f} µs."
        )
        shown.append(table_of(f"{found.trace}: what if?", columns(WhatIfRow), rows, notes=(note,), sortable=True))
    return section_of("what-if", "What would help", "The trace without one kernel, kind or lag.", shown)


def _parts(path: CriticalPath, top: int) -> Table:
    found, parts, _ = path
    fields = columns(PathPartRow, of=found)
    whole = ExactTime(found.duration_ns), share_cell(found.duration_ns, found.duration_ns)
    rows = (*rows_of(fields, parts, top=top), padded(len(fields), Text("the whole path"), Text(""), *whole, strong=True))
    notes = [f"{kind}: {LAG_HINTS[kind]}." for kind in dict.fromkeys(part.kind for part in parts) if kind in LAG_HINTS]
    if found.inferred_events:
        notes.append(
            f"{found.inferred_events} of {found.events} device events started later than launch and stream explain, and are "
            "taken to have waited for what ended last on another stream."
        )
    caption = f"{found.trace}: {found.duration_ns / 1e6:.6f} ms, {found.events} device events."
    return Table(caption, heads(fields), rows, tuple(notes), sortable=True)


# The answer to a trace in a few sentences: busy or idle and why, what the time is, the slowest step, what would help.

ANSWER: Final = "answer"
_KINDS: Final = {"comm": "communication", "memcpy": "copies", "memset": "copies"}
_MOST: Final = 3
"""Kernels that are named."""
_LITTLE: Final = 0.01
"""Idle share of the span below which no line tells of it."""
_SLOW_STEP: Final = 1.2
"""Length of a step that is named as slow, in medians."""


def _answer_section(study: TraceStudy) -> Section | None:
    seen = devices_of(study)
    if not seen:
        return None
    return Section(ANSWER, "The answer", "", (Notes(tuple(_sentences(study, seen[0], len(seen)))),))


def _sentences(study: TraceStudy, one: DeviceFindings, devices: int) -> Iterator[str]:
    done, busy = one.done, max(1, one.done.busy_ns)
    more = f" ({devices - 1} more in the tables)" if devices > 1 else ""
    verdict = "" if done.verdict == "busy" else f"; {done.verdict}"
    yield f"{one.name}{more}: busy for {_share(done.busy_ns, done.span_ns)} of {_ms(done.span_ns)} ms{verdict}."
    classes: Counter[str] = Counter()
    for row, names in one.kernels:
        classes[_KINDS.get(row.kind, kernel_part(names[0].name).work)] += row.exclusive_ns
    yield f"Of the busy time: {', '.join(f'{name} {_share(ns, busy)}' for name, ns in classes.most_common())}."
    most = [f"{shorten(row.kernel)} {_share(row.exclusive_ns, busy)}" for row in one.hot[:_MOST]]
    yield f"Most time: {', '.join(most)}."
    late_on, before = host_work(one.view)
    if sum(before.values()) > _LITTLE * done.span_ns:
        yield f"Before the first kernel the host spent {_ms(sum(before.values()))} ms: {_spent(before)}."
    idle = [(ns, cause) for cause, ns in one.account.idle.items() if ns]
    if idle and done.idle_ns > _LITTLE * done.span_ns:
        ns, cause = max(idle)
        late = f" In that time the host spent {_spent(late_on)}." if cause == HOST_LATE else ""
        yield f"Idle for {_ms(done.idle_ns)} ms, {_share(ns, done.idle_ns)} of it because {CAUSE_HINTS[cause]} ({cause}).{late}"
    yield from _steps(one)
    yield from filter(None, (one.of.replays,))
    yield from _layers(one)
    paths = [path for of in traces_of(study) for path in of.known_path if path[2]]
    if paths and (first := paths[0][2][0]).ratio is not None:
        where = f"{first.trace}: " if len(study.labels) > 1 else ""
        times = f"{_ms(paths[0][0].duration_ns)} -> {_ms(first.duration_ns)} ms"
        yield f"{where}If {shorten(first.said())} took no time, the trace would be {first.ratio:.2f}x faster: {times}."


def _spent(by_name: Counter[str]) -> str:
    return ", ".join(
        f"{_ms(ns)} ms {name if name == BETWEEN else f'in {shorten(name)}'}" for name, ns in by_name.most_common(_MOST)
    )


def _steps(one: DeviceFindings) -> Iterator[str]:
    found = [step for step in one.steps.steps if in_window(step, one.of.window)] if isinstance(one.steps, Steps) else []
    if len(found) < 2:
        return
    lengths = [step.length_ns for step in found]
    median, slowest = percentile(lengths, 0.5), max(found, key=_whole_ns)
    said = f"{len(lengths)} steps, median {_ms(median)} ms"
    if _whole_ns(slowest) > _SLOW_STEP * median:
        said += f"; the slowest, {slowest.step}, takes {_ms(_whole_ns(slowest))} ms"
        if _whole_ns(slowest) > slowest.length_ns:
            said += f" on the host, {_ms(slowest.busy_ns)} of it busy on the device"
        else:
            said += f", {_ms(slowest.idle_ns)} of it idle"
    yield f"{said}."


def _layers(one: DeviceFindings) -> Iterator[str]:
    found = next((group for group in one.layers if not group.inside and (group.path or group.by_kernels)), None)
    if found is None:
        return
    each = [layer.device_p50_ns for layer in found.layers]
    median, slowest, place = percentile(each, 0.5), max(each), each.index(max(each))
    share = _share(found.sum_ns, sum(row.sum_ns for row in one.hot))
    which = f"that begin with {shorten(found.name)}" if found.by_kernels else f"of {shorten(found.name)}"
    said = f"Layers: {len(each)} {which}, {_ms(median)} ms each (median), {share} of the work"
    if slowest > _SLOW_STEP * median:
        said += f"; the slowest, {found.layers[place].name or f'number {place}'}, takes {_ms(slowest)} ms"
    yield f"{said}."


def _whole_ns(step: TraceStepRow) -> int:
    """The length of a step on the device, or that of its range on the host where that is longer, as in a first step."""
    return max(step.length_ns, step.host_ns or 0)


def _ms(ns: int) -> str:
    return significant(ns / 1e6)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.1f} %"


# Warnings above the numbers: damaged or incomplete traces, overlap, and a late host.

_NOTHING_NS = 1_000
"""Longest overrun of the last device event that is no sign of dropped events, ns."""

_SLOWING_OPTIONS = ("with_stack", "profile_memory", "record_shapes")
"""Names of profiler options that cost the host time in every operator."""
MAX_ITEMS = 8
"""Most items of one banner."""
_CATEGORIES = 6


def trace_banners(study: TraceStudy) -> tuple[Banner, ...]:
    """Return the banners, those that void numbers first."""
    told = [(found.read, found.trace) for found in traces_of(study)]
    how = "kept after bad characters or durations were replaced"
    ends = "the file ends before its JSON does; what stands before is analysed"
    seen = devices_of(study)
    uneven = [(one.name, uneven_text(one.steps)) for one in seen if isinstance(one.steps, Steps)]
    late = any(one.done.verdict == "host-bound" for one in seen)
    slow = "slowed the host at every operator; check against a run without the profiler"
    costly = [(label, [key for key in _SLOWING_OPTIONS if trace.metadata.get(key) == "1"]) for trace, label in told]
    slowed = (f"{label}: {', '.join(keys)} {slow}" for label, keys in costly if keys)
    overlaps = (
        f"{one.name}, stream {each.stream}: {counted(each.overlap_pairs, 'pair')} of {each.events} events, "
        f"{each.overlap_ns / 1e3:.3f} µs in all, {each.longest_overlap_ns / 1e3:.3f} µs at most"
        for one in seen
        for each in one.account.streams
        if each.overlap_pairs
    )
    losses = tuple(text for found in traces_of(study) for text in _loss(found))  # all are shown: they stand nowhere else
    found: tuple[tuple[Literal["stop", "caution"], str, Iterable[str]], ...] = (
        ("stop", "Truncated", (f"{label}: {ends}" for trace, label in told if trace.counts.truncated)),
        ("stop", "Events lost", (text for one in told for text in _lost(*one))),
        ("stop", "Damaged events", (f"{label}: {line}" for trace, label in told for line in trace.damage)),
        ("caution", "A trace of another profiler", (f"{label}: {trace.foreign}" for trace, label in told if trace.foreign)),
        ("caution", "Events not used", (text for one in told for text in _unused(*one))),
        ("caution", "Events mended", (f"{at}: {counted(n, 'event')} {how}" for one, at in told if (n := one.counts.mended))),
        ("caution", "Skipped, no traces", study.skipped),
        ("caution", "No device events", (text for one in told for text in _empty(*one))),
        ("caution", "The trace may not hold all that ran", losses),
        ("caution", "Work of one stream overlaps: durations add up to more than the busy time", overlaps),
        ("caution", "Uneven steps", (f"{name}: {text}" for name, text in uneven if text)),
        ("caution", "The profiler may have slowed the host down", slowed if late else ()),
    )  # fmt: skip
    listed = ((level, title, tuple(items)) for level, title, items in found)
    more = "and {} more like these"
    return tuple(
        Banner(level, title, items if len(items) <= most else (*items[:most], more.format(len(items) - most)))
        for level, title, items in listed
        for most in [len(items) if items is losses else MAX_ITEMS]
        if items
    )


def _lost(trace: Trace, label: str) -> Iterator[str]:
    counts = trace.counts
    if counts.lost:
        why = "; ".join(f"{count} have {reason}" for reason, count in counts.reasons.items())
        said = f": {why}" if why else ""
        yield f"{label} is incomplete: {counts.lost} of {counts.events + counts.lost} events could not be read{said}"
    if counts.trailing:
        yield (
            f"{label}: {counts.trailing} of these stand behind the end of the JSON and were not read, as where two traces were "
            "put into one file; give each trace a file of its own"
        )


def _unused(trace: Trace, label: str) -> Iterator[str]:
    unused = trace.counts.unused
    if unused and not trace.foreign:
        found = [f"{count} of {repr(name) if name else 'no category'}" for name, count in unused.items()]
        yield f"{label}: {counted(sum(unused.values()), 'event')} of categories that are not read: {first_of(found, _CATEGORIES)}"


def _empty(trace: Trace, label: str) -> Iterator[str]:
    if len(trace.device_events):
        return
    launched = sum(n for n, _ in trace.launched.values())
    if holds_captures(trace):
        yield f"{label}: it shows captures of graphs, in which nothing runs; give the trace of their replays as one more file"
    elif launched:
        yield f"{label}: {launched} launch calls were recorded and no device event answers to one; the device was not recorded"
    elif not (trace.counts.events or len(trace.ops)):
        yield f"{label}: the trace holds no events at all"
    elif trace.counts.truncated:
        yield f"{label}: none stands before the place where the file ends; it may have held some"
    elif not (len(trace.ops) or trace.foreign):
        yield f"{label}: the trace holds neither device events nor operators; {NOTHING_RAN}"
    else:
        yield f"{label}: the trace holds host events only; the tables are about the host"


def _loss(of: TraceFindings) -> Iterator[str]:
    if not of.devices:
        return
    label = of.trace
    unanswered = ", ".join(f"{missing} of {n} {shorten(name)}" for name, (n, missing) in launch.unanswered_calls(of.read).items())
    if unanswered:
        yield (
            f"{label}: no device event belongs to these launch calls: {unanswered}. Right only while a graph is captured, or for "
            "the last ones before the window closed"
        )
    for call, first, n, num_nodes, short in launch.short_graphs(of.read):
        yield (
            f"{label}: {len(short)} of {n} {shorten(call)} calls of the graph that starts with {shorten(first)} recorded fewer "
            f"than its {num_nodes} events (the fewest: {short[0]})"
        )
    if (late := launch.past_end_ns(of.read, of.whole)) > _NOTHING_NS:
        yield f"{label}: the last device event ends {late / 1e6:.3f} ms after the recorded window; later ones were dropped"


def _overview_section(study: TraceStudy) -> Section | None:
    files = [of.file for of in traces_of(study)]
    read = table_of("Files that were read.", columns(TraceFile), files, collapsed=len(files) > 8)

    def value(key: str) -> Cell:
        found = {trace.metadata.get(key) for trace in study.traces}
        only = found.pop() if len(found) == 1 else None
        return Text(f"differs: {len(found)} values", "bad") if only is None else Code(only)

    keys = sorted({key for trace in study.traces for key in trace.metadata})
    fields: tuple[Field[str], ...] = (Field("key", Code), Field("value", value))
    said = table_of("What the traces say of themselves.", fields, keys, collapsed=True) if keys else None
    return section_of("overview", "What was read", "", (_devices(study), read, said))


def _devices(study: TraceStudy) -> Table | None:
    tops = {(one.trace, one.device): _top(one) for one in devices_of(study)}
    fields: tuple[Field[DeviceRow], ...] = (
        *on_devices(study, DeviceRow, "span_ns", "busy_ns", "idle_ns", "events", "verdict"),
        Field("top kernel", lambda row: tops[row.trace, row.device][0], hint="the group with the largest exclusive time"),
        numeric("its share", lambda row: tops[row.trace, row.device][1], "of the busy time"),
    )
    devices = [one.done for one in devices_of(study)]
    return table_of("Each device in one line.", fields, devices) if devices else None


def _top(one: DeviceFindings) -> tuple[Cell, Cell]:
    groups = gathered((row.kernel, row) for row in one.hot if row.kind == "kernel")
    times = {name: (sum(row.exclusive_ns for row in rows), sum(row.sum_ns for row in rows)) for name, rows in groups.items()}
    if not times:
        return Missing("", "-"), Missing("", "-")
    top = min(times, key=lambda group: (-times[group][0], -times[group][1], group))
    return Code(top), share_cell(times[top][0], one.done.busy_ns)


SECTIONS: Final[tuple[Callable[[TraceStudy], Section | None], ...]] = (
    _answer_section,
    _what_if_section,
    _overview_section,
    activity_section,
    device_kernels,
    operator_times_section,
    roofline_section,
    operators_section,
    steps_section,
    timeline_section,
    sections_section,
    gaps_section,
    launch_section,
    queue_section,
    _critical_path_section,
    regions_section,
    ranges_section,
    collectives_section,
    memory_section,
)
"""Builders of the report's sections in reading order: busy time, work, its course, gaps, launches, ranges."""


def build_trace_report(study: TraceStudy) -> Report:
    """Build the report of a study's traces."""
    sections, first = (section(study) for section in SECTIONS), study.labels[0]
    products = sorted({name for trace in study.traces for name in trace.devices.values() if name})
    return page(
        title=f"Trace {first}" if len(study.traces) == 1 else f"{len(study.traces)} traces: {first} to {study.labels[-1]}",
        subtitle=_subtitle(study),
        facts=(
            Fact("Devices", Code(", ".join(products)) if products else Text("not said")),
            Fact("Window", Code(study.options.window) if study.options.window else Text("the whole trace")),
        ),
        banners=trace_banners(study),
        sections=sections,
    )


def _subtitle(study: TraceStudy) -> str:
    seen = devices_of(study)
    if not seen:
        return "no device events"
    shares = sorted(one.done.busy_ns / max(1, one.view.span_ns) for one in seen)
    if len(seen) > 1:
        return f"{len(seen)} devices, busy for {100 * shares[0]:.1f} to {100 * shares[-1]:.1f} % of their time"
    product = f"{seen[0].done.product}, " if seen[0].done.product else ""
    return f"{product}{seen[0].view.span_ns / 1e6:.3f} ms, busy for {100 * shares[0]:.1f} % of it: {seen[0].done.verdict}"
