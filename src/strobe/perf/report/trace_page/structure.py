"""What the time of a trace is: steps, ranges, sections, operators, kernels, communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import msgspec
import numpy as np

from strobe.core.errors import DataError
from strobe.core.printable import bytes_in, first_of
from strobe.core.spans import FRAME_BLOCK
from strobe.perf.analysis.device.intervals import Distribution, Window, distribution
from strobe.perf.analysis.device.kernels import MANGLED
from strobe.perf.analysis.operators import OperatorRateRow, OperatorRow, Operators, OperatorTimeRow, OperatorTimes, host_ranges
from strobe.perf.analysis.runs.breakdown import breakdown
from strobe.perf.analysis.structure.collectives import (
    CollectiveRow,
    CollectiveSkew,
    Communication,
    MemberTime,
    SkewKind,
    collective_skew,
    megabytes,
    message_bytes,
)
from strobe.perf.analysis.structure.ranges import COMMUNICATION, CallNode, Kind, RangeRow, Ranges, call_trees
from strobe.perf.analysis.structure.sections import find_sections, parse_section
from strobe.perf.analysis.structure.steps import NO_CALL, LayerGroup, LayerRow, Period, Steps, TraceStepRow
from strobe.perf.report.blocks.breakdown import LEAD, breakdown_blocks
from strobe.perf.report.blocks.fields import section_of, spread
from strobe.perf.report.blocks.kernels import (
    Listed,
    SectionCells,
    device_note,
    kernel_tables,
    kernels_section,
    peaks_section,
    rate_fields,
    section_notes,
    sections_table,
)
from strobe.perf.report.study import DETAILED_BYTES, TraceStudy
from strobe.perf.report.trace_page.device import DeviceFindings, devices_of, during, on_devices, traces_of
from strobe.perf.table.fields import (
    Field,
    beside,
    count,
    exact_time,
    heads,
    left_out,
    numeric,
    padded,
    rows_of,
    share_cell,
    share_of,
    table_of,
    time,
)
from strobe.perf.table.model import (
    Block,
    Cell,
    Code,
    Count,
    ExactTime,
    Figure,
    Flame,
    Frame,
    Missing,
    Notes,
    Number,
    Section,
    Share,
    Table,
    Text,
    exact_ms,
    time_text,
)
from strobe.perf.table.rows import FIGURES, columns, gathered
from strobe.perf.trace import Trace, read_trace

Found = Sequence[tuple[DeviceFindings, Steps]]


def steps_section(study: TraceStudy) -> Section | None:
    """Build the section with the steps of every device; `None` if no trace has device events."""
    seen, top = devices_of(study), study.options.top
    found = [(one, one.steps) for one in seen if isinstance(one.steps, Steps)]
    without = tuple(_spoken((one.steps, one.name) for one in seen if isinstance(one.steps, str)))
    if study.options.steps and not seen:
        without = (f"Nothing that matches {study.options.steps!r} starts a step: steps are of device events.",)
    blocks: list[Block] = []
    if found:
        blocks = [_summary(found), *_evidence(found), *(_steps_table(*each, top) for each in found)]
    if without:
        blocks.append(Notes(without))
    lead = "From a step's first device event to that of the next; steps, and what lies before and after, add up to the span."
    return section_of("steps", "Steps", lead, blocks)


def _summary(found: Found) -> Table:
    none = "no steady step"
    fields: tuple[Field[tuple[DeviceFindings, Steps, list[TraceStepRow]]], ...] = (
        Field("device", lambda row: row[0].name, Code),
        Field("a step starts with", lambda row: row[1].starts, Code),
        count("steps", lambda row: sum(in_window(step, row[0].of.window) for step in row[1].steps)),
        count("steady", lambda row: len(row[2]), "the steps that the times are of"),
        *spread(lambda row: _described(row[2], "length_ns"), "ms", what="steps", missing=none),
        numeric("busy", lambda row: row[2] or None, "of the steady steps' time", show=_busy, missing=none),
        count("kernels", lambda row: _median(row[2], "kernels"), "of a step, the median", missing=none),
        time(
            "host p50",
            lambda row: _median(row[2], "host_ns"),
            "ms",
            "length of the step's range on the host",
            missing=lambda row: "no range on the host" if row[2] else none,
        ),
    )
    notes = _spoken((note, one.name) for one, steps in found for note in _step_notes(steps) if note)
    rows = [(one, steps, [step for step in steps.kept() if in_window(step, one.of.window)]) for one, steps in found]
    return table_of("Length of a step, over the steady ones.", fields, rows, notes=notes)


def _step_notes(steps: Steps) -> Iterator[str]:
    excluded = "; ".join(f"{cause} ({n})" for cause, n in sorted(Counter(steps.steady.excluded.values()).items()))
    yield f"left out of the times: {excluded}" if excluded else ""
    yield from (*steps.notes, steps.steady.note, uneven_text(steps))


def _median(kept: Sequence[TraceStepRow], name: str) -> int | None:
    found = _described(kept, name)
    return None if found is None else found.p50_ns


def uneven_text(steps: Steps) -> str:
    """Return a note on steps of different kinds; empty if all are of one kind."""
    if steps.uneven is None:
        return ""
    short, long = steps.uneven
    lengths = f"{exact_ms(short.length_ns)} ms with {short.kernels} kernels to {exact_ms(long.length_ns)} ms with {long.kernels}"
    return f"the steps are uneven, {lengths}: no mean or median stands for all of them"


def _spoken(told: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield each note, given with the name of a device, once for all of them."""
    yield from (f"{first_of(names, 1)}: {note}." for note, names in gathered(told).items())


def in_window(step: TraceStepRow, window: Window | None) -> bool:
    """Return whether a step lies in the window."""
    return window is None or (window.start_ns <= step.start_ns and step.end_ns <= window.end_ns)


def _described(kept: Sequence[TraceStepRow], name: str) -> Distribution | None:
    values = (getattr(step, name) for step in kept)
    return distribution(np.array([value for value in values if value is not None], np.int64))


def _evidence(found: Found) -> Iterator[Table]:
    alike = "mean of 1 - kernels that differ from the median period / kernels of that"
    fields: tuple[Field[tuple[str, Period]], ...] = (
        Field("device", lambda row: row[0], Code),
        Field("a period starts with", lambda row: row[1].anchor, Code),
        Field("right after", lambda row: row[1].after or None, Code, missing="its name occurs once in a period"),
        count("periods", lambda row: row[1].periods, "complete ones"),
        count("kernels", lambda row: int(np.median(np.array(row[1].kernels, np.int64))), "of a period, the median"),
        numeric("alike", lambda row: row[1].likeness, alike, show=Share),
        numeric("identical", lambda row: row[1].identical, "share of the periods with the same kernels in order", show=Share),
        numeric("covered", lambda row: row[1].covered, "share of the stream's kernels that lie in complete periods", show=Share),
        count("anchors", lambda row: row[1].anchors, "kernels that occur as often, at the same distance"),
        Field("confidence", lambda row: Text(row[1].confidence, "good" if row[1].confidence == "high" else "bad")),
    )
    rows = [(one.name, steps.period) for one, steps in found if steps.period is not None]
    if rows:
        note = "It may be a layer or several steps: name the range or kernel that starts a step where it is not what you mean."
        yield table_of("Why these are steps: the kernels repeat.", fields, rows, notes=(note,))


def _steps_table(one: DeviceFindings, steps: Steps, top: int) -> Table:
    window = one.of.window
    share: Field[TraceStepRow] = numeric("busy share", lambda row: [row], show=_busy, total=chain.from_iterable)
    fields = (
        *columns(TraceStepRow, "step", "number", "length_ns", "busy_ns", "idle_ns"),
        share,
        *columns(TraceStepRow, "kernels", "host_ns", "left_out"),
    )
    shown = [row for row in steps.steps if in_window(row, window)]
    table = rows_of(fields, shown, top=top, left="steps")
    notes = []
    if window is None:
        around = (("before the first step", steps.before_ns), ("after the last step", steps.after_ns))
        table += tuple(padded(len(fields), Text(text), Text(""), ExactTime(ns)) for text, ns in around if ns)
        span = Text("span of the device's events"), Text(""), ExactTime(steps.end_ns - steps.start_ns)
        table += (padded(len(fields), *span, strong=True),)
        notes.append("Lengths add up to the span.")
    else:
        notes.append(f"Steps that lie in the window {window.label}: {len(shown)} of {len(steps.steps)}.")
    caption = f"Steps of {one.name}, which start with {steps.starts if steps.source != 'period' else 'a period of the kernels'}."
    return Table(caption, heads(fields), table, tuple(notes), collapsed=len(table) > 12)


def _busy(steps: Iterable[TraceStepRow]) -> Cell:
    busy, length = zip(*((step.busy_ns, step.length_ns) for step in steps), strict=True)
    return share_cell(sum(busy), sum(length))


def _first_and_later(name: str, groups: Sequence[LayerGroup], whole_ns: int) -> Table:
    device = "sum of the durations of the events of a call: p50 over the first calls"
    host = "length of the call: p50 over the first calls"
    later, of_all = "p50 over all later calls", "sum of their events / sum of all of the device"
    nowhere = {True: "a step", False: "no other call"}
    fields: tuple[Field[LayerGroup], ...] = (
        Field("layers", lambda group: group.name, Code),
        Field("in", lambda group: Code(group.path[-1]) if group.path else Text(nowhere[group.by_kernels], "muted")),
        count("places", lambda group: len(group.layers), "calls in one enclosing call, at most"),
        count("calls", lambda group: group.layers[0].calls + group.later.calls),
        numeric("of all", lambda group: group.sum_ns, of_all, show=share_of(whole_ns)),
        time("device, first", lambda group: group.layers[0].device_p50_ns, "µs", device),
        time("later", lambda group: group.later.device_p50_ns, "µs", later),
        time("host, first", lambda group: group.layers[0].host_p50_ns, "µs", host, missing=NO_CALL),
        time("later", lambda group: group.later.host_p50_ns, "µs", later, missing=NO_CALL),
        count("kernels, first", lambda group: group.layers[0].kernels),
        count("later", lambda group: group.later.kernels),
    )
    notes = ["Layers inside layers are rows of their own: shares do not add up."]
    if any(group.by_kernels for group in groups):
        notes.append(
            "No names tell these layers: they are what the kernels repeat inside a step, named after their first kernel."
        )
    return table_of(f"The first layer against the later ones, {name}.", fields, groups, notes=notes)


MAX_FRAMES: Final = 300
"""Most frames of one flame graph; the narrowest neighbours are drawn as one."""
MAX_DEPTH: Final = 100
"""Most levels of a flame graph; deeper frames count as part of the last level."""
_TITLES: Final[dict[Kind, str]] = {
    "range": "Ranges of the host",
    "module": "Modules",
    "graph module": "Modules inside graphs, by the path that their kernels carry",
}


def ranges_section(study: TraceStudy) -> Section | None:
    """Build the section with device time by range, module and layer; `None` if no trace has any for its device events."""
    blocks: list[Block] = []
    for found in traces_of(study):
        trees = dict(call_trees(found.read, found.window))
        for one in found.devices:
            if one.ranges.rows:
                blocks += _tables(one.name, one.ranges, study.options.top)
                blocks.append(_flame(one.name, trees[one.device], study.options.top))
            if groups := one.layers:
                blocks.append(_first_and_later(one.name, groups, one.ranges.sum_ns))
                group = next((group for group in groups if not group.inside), groups[0])
                caption, rows, top = f"Each place of {group.name}, {one.name}.", group.layers, study.options.top
                notes = left_out(rows, top, "places are left out")
                blocks.append(table_of(caption, columns(LayerRow), rows[:top], notes=notes, sortable=True, collapsed=True))
    lead = "By the ranges and modules that were open around the launch; names that differ in a number at their end are one row."
    return section_of("ranges", "Ranges, modules and layers", lead, blocks)


def _tables(name: str, ranges: Ranges, top: int) -> Iterator[Block]:
    for kind, title in _TITLES.items():
        if rows := ranges.of_kind(kind):
            fields, notes = columns(RangeRow, of=ranges), ("Only the exclusive column adds up.",)
            many = min(len(rows), top + 1) > 12
            yield table_of(f"{title}, {name}.", fields, rows, top=top, notes=notes, sortable=True, collapsed=many)
    silent = sum(row.calls for row in ranges.of_kind("range") if not row.events and row.name.startswith(COMMUNICATION))
    told = (
        (ranges.outside_events, "{} events were launched outside every range and module."),
        (ranges.unlinked_events, "the trace does not hold the launch of {} events; their range is not known."),
        (silent, "{} calls of ranges around collectives launched nothing on their own thread; what they stand for is in the "
                 "section on communication."),
    )  # fmt: skip
    if any(number for number, _ in told):
        yield Notes(tuple(f"{name}: {words.format(number)}" for number, words in told if number))


def _flame(name: str, root: CallNode, top: int) -> Figure:
    widths = sorted((root.total_ns, *(node.total_ns for _, node in _spelled(root))), reverse=True)
    narrowest = max(1, widths[MAX_FRAMES]) if len(widths) > MAX_FRAMES else 1
    title = f"Where the busy time of {name} was launched from."
    alt = "Flame graph of busy time by ranges and modules; the table lists the paths with the most time of their own."
    return Figure(title, alt, Flame(_frame(root, name, narrowest), differential=False), _paths(root, top))


def _frame(node: CallNode, label: str, narrowest: int, depth: int = MAX_DEPTH) -> Frame:
    if depth == 1:
        return Frame(label, node.total_ns, node.total_ns)
    wide = [child for child in node.children if child.total_ns >= narrowest]
    frames = [_frame(child, child.name, narrowest, depth - 1) for child in wide]
    narrow = [child.total_ns for child in node.children if 0 < child.total_ns < narrowest]
    if narrow:
        frames.append(Frame(f"{len(narrow)} narrower", sum(narrow), sum(narrow)))
    return Frame(label, node.total_ns, node.total_ns, tuple(frames))


def _paths(root: CallNode, top: int) -> Table:
    own = "launched in no call inside; where events overlap, the first to start owns the time"
    fields: tuple[Field[tuple[tuple[str, ...], CallNode]], ...] = (
        Field("path", lambda row: " / ".join(row[0]), Code),
        count("calls", lambda row: row[1].calls),
        count("events", lambda row: row[1].events),
        exact_time("own time", lambda row: row[1].self_ns, own, total=sum),
        numeric("of busy", lambda row: row[1].self_ns, show=share_of(root.total_ns), total=sum),
        exact_time("total", lambda row: row[1].total_ns, "with the calls inside"),
        exact_time("host", lambda row: row[1].host_ns if row[1].calls else None, "the calls themselves"),
    )
    found = sorted(_spelled(root), key=lambda item: (-item[1].self_ns, item[0]))
    owners = [item for item in found if item[1].self_ns]
    table = table_of("Paths by the time of their own; it adds up to the busy time.", fields, owners, top=top, collapsed=True)
    busy = padded(len(fields), Text("busy"), Text(""), Count(root.events), ExactTime(root.total_ns), strong=True)
    return msgspec.structs.replace(table, rows=(*table.rows, busy))


def _spelled(root: CallNode) -> Iterator[tuple[tuple[str, ...], CallNode]]:
    waiting: list[tuple[tuple[str, ...], CallNode]] = [((), root)]
    while waiting:
        path, node = waiting.pop()
        below = [((*path, child.name), child) for child in node.children]
        yield from below
        waiting += below


MOST_EVENTS: Final = 1 << 20
"""Most device events of a trace that is broken down into pieces: each becomes an object."""


def regions_section(study: TraceStudy) -> Section | None:
    """Build the section with the breakdown of each whole trace with frame blocks; `None` without one or with a window."""
    blocks: list[Block] = []
    for found in traces_of(study):
        trace, label = found.read, found.trace
        if found.window is not None or not any(region.name == FRAME_BLOCK for region in trace.regions):
            continue
        if len(trace.device_events) > MOST_EVENTS:
            blocks.append(Notes((f"{label}: {len(trace.device_events)} device events are too many; trace fewer frame blocks.",)))
            continue
        own = trace if len(trace.device_events) else read_trace(trace.path, ops=True)  # a CPU's time is that of its operators
        try:
            blocks += breakdown_blocks(label, breakdown(own))
        except DataError as error:
            blocks.append(Notes((f"{label}: {error}",)))
    return section_of("breakdown", "Breakdown", LEAD, blocks)


def sections_section(study: TraceStudy) -> Section | None:
    """Build the section with one row per definition and device, also of traces without a match; `None` if none was asked for."""
    if not study.options.sections:
        return None
    rows: list[SectionCells] = []
    notes = []
    for text in study.options.sections:
        definition = parse_section(text)
        for of in traces_of(study):
            label, found = of.trace, find_sections(of.read, definition, of.window)
            for cut in found:
                rows.append(((label, cut.device), cut))
                notes += [f"{label}, device {cut.device}, {definition}: {note}" for note in section_notes(cut)]
            if not found:
                reason = f"no device event matches {definition.focal!r}"
                rows.append(((label, Text("")), (Code(str(definition)), Missing(reason, "none"))))
                notes.append(f"{label}, {definition}: {reason}")
    lead = "From the nearest left match before each focal event to the right one after it, on its stream unless it says @any."
    which = (*beside("trace", ()), count("device", lambda row: row[1]))
    return Section("sections", "Sections", lead, (sections_table(which, rows, notes),))


def operators_section(study: TraceStudy) -> Section | None:
    """Build the section with the operator table of every trace without device events; `None` if all have some."""
    blocks: list[Block] = []
    for of in traces_of(study):
        label, found = of.trace, of.host
        if len(of.read.device_events):
            continue
        if found is None:
            blocks.append(Notes((f"{label}: no device events and no operators.",)))
        else:
            fields = columns(OperatorRow, "operator", "calls", "self_ns", "sum_ns", *FIGURES, of=found)
            rows = table_of(f"{label}: operators by self time.", fields, found.rows, top=study.options.top, sortable=True)
            blocks += [_threads(found, label), rows]
        blocks += _ranges(of.read, of.window, label, study.options.top)
    lead = "No device events were recorded, so this is the host's time: what its operators took, each without those it calls."
    return section_of("operators", "Operators", lead, blocks)


def _threads(found: Operators, label: str) -> Table:
    fields: tuple[Field[tuple[str, int, int]], ...] = (
        Field("thread", lambda thread: thread[0], Code),
        count("calls", lambda thread: thread[1]),
        exact_time("busy", lambda thread: thread[2]),
        numeric("busy share", lambda thread: thread[2], show=share_of(found.span_ns)),
    )
    notes = ("A thread is named by process/thread. Its busy time is when any of its operators ran.",)
    return table_of(f"{label}: host threads over {found.span_ns / 1e6:.3f} ms.", fields, found.threads, notes=notes)


def _ranges(trace: Trace, window: Window | None, label: str, top: int) -> Iterator[Table]:
    found = [*host_ranges(trace, window).items()]
    if found:
        fields: tuple[Field[tuple[str, Distribution]], ...] = (
            Field("range", lambda row: row[0], Code),
            count("calls", lambda row: row[1].n),
            exact_time("sum", lambda row: row[1].sum_ns, "of the calls"),
            *spread(lambda row: row[1], "µs"),
        )
        note = "Ranges contain each other: sums do not add up. Names that differ in a number at their end are one row."
        yield table_of(f"{label}: ranges on the host.", fields, found[:top], notes=(note, *left_out(found, top)), sortable=True)


_NAMED = 2
"""Kernels and callers that a row names."""


def operator_times_section(study: TraceStudy) -> Section | None:
    """Build the section with one table per device; `None` without device events. It tells how to read traces with details."""
    blocks: list[Block] = [
        _operator_times_table(one, one.times, study.options.top) for one in devices_of(study) if one.times is not None
    ]
    unread = [found.trace for found in traces_of(study) if found.devices and found.read.details is None]
    if unread and (blocks or study.options.details is None):
        most = bytes_in(DETAILED_BYTES, "MB")
        said = f"{', '.join(unread)}: not read, because a file has more than {most:.0f} MB; --details reads them."
        blocks.append(Notes((said,)))
    lead = "By the operator that launched it; what none launched (Triton kernels outside of one, graphs) is a row of its own."
    return section_of("operator-times", "GPU time by operator", lead, blocks, folded=True)


def _operator_times_table(one: DeviceFindings, times: OperatorTimes, top: int) -> Table:
    fields: tuple[Field[OperatorTimeRow], ...] = (
        *columns(OperatorTimeRow, of=times),
        time(
            "one call", lambda row: row.sum_ns / row.calls if row.calls else None, "µs", "sum of the durations / calls",
            missing=lambda row: row.source,
        ),
        Field("kernels", lambda row: _kernels(row, times), Code, hint="with their part of the exclusive time"),
        Field(
            "called by", lambda row: _callers(row, times), Code, hint="the operator around it, and the range or module"
        ),
    )  # fmt: skip
    attributed = f"{_percent(times.attributed_ns, times.busy_ns)} of {times.busy_ns / 1e6:.6f} ms"
    caption = f"{one.name}, {during(one.view)}: operators launched {attributed}."
    return table_of(caption, fields, times.rows, top=top, sortable=True)


def _kernels(row: OperatorTimeRow, times: OperatorTimes) -> str:
    kernels = times.kernels[row.place]
    shown = [one for one in kernels if one.exclusive_ns] or kernels
    return _listed([(one.kernel, one.exclusive_ns) for one in shown], row.exclusive_ns)


def _callers(row: OperatorTimeRow, times: OperatorTimes) -> str:
    callers = times.callers[row.place]
    named = [(" in ".join(filter(None, (one.caller, one.scope))), one.exclusive_ns) for one in callers]
    return _listed([(name, ns) for name, ns in named if name], row.exclusive_ns)


def _listed(parts: Sequence[tuple[str, int]], whole: int) -> str:
    return first_of([f"{name} {_percent(ns, whole)}" if len(parts) > 1 else name for name, ns in parts], _NAMED)


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}".replace("%", " %") if whole else "0 %"


_MOST_REASONS = 12


def roofline_section(study: TraceStudy) -> Section | None:
    """Build the section with operators against each device's peaks; `None` if no trace was read with details or had work."""
    blocks: list[Block] = []
    for one in devices_of(study):
        if one.times is None:
            continue
        if one.rates:
            blocks.append(_roofline_table(one, one.times.busy_ns, study.options.top))
            continue
        said = one.view.trace.metadata.get("record_shapes") in ("1", "true")
        why = "no operator with recorded inputs launched anything" if said else "shapes not recorded"
        blocks.append(Notes((f"{one.name}: {why}{'' if said else ': capture with record_shapes=True'}.",)))
    lead = (
        "The time of all kernels of a call against what it must compute and the least it must "
        "move. A trace holds no clocks, so shares are of the peak at boost clock."
    )
    return peaks_section(blocks, lead, folded=True)


def _roofline_table(one: DeviceFindings, busy_ns: int, top: int) -> Table:
    found = {row.place: rate for row, rate in one.rates}
    of_busy: Field[OperatorRateRow] = numeric(
        "of busy", lambda row: row.exclusive_ns, "exclusive time / busy time", show=share_of(busy_ns), total=sum
    )
    fields = (
        *columns(OperatorRateRow, "operator", "input_sizes", "dtype", "calls", "sum_ns"),
        of_busy,
        *columns(OperatorRateRow, "call_ns", "call_flops"),
        *rate_fields(one.peaks, lambda row: found[row.place]),
    )
    known = [row for row, rate in one.rates if rate is not None]
    covered_ns = sum(row.exclusive_ns for row in known)
    covered = f"{covered_ns / busy_ns:.1%}".replace("%", " %") if busy_ns else "nothing"
    caption = f"{one.name}, {during(one.view)}: the cost is known of operators that own {covered} of the busy time."
    notes = (device_note(one.done.product or "this device", one.peaks), *_roofline_notes(one))
    return table_of(caption, fields, known, top=top, notes=notes, sortable=True)


def _roofline_notes(one: DeviceFindings) -> Iterator[str]:
    unknown = dict.fromkeys((row.unknown, row.operator) for row, _ in one.rates if row.unknown)
    for reason, names in gathered(unknown).items():
        yield f"Not counted, {first_of(names, _MOST_REASONS)}: {reason}."
    if one.peaks is not None and any(row.dtype == "float32" and row.call_flops for row, _ in one.rates):
        yield "float32 is held against the peak without tensor cores; whether TF32 ran instead is not in the trace."
    for row, found in one.rates:
        if found is not None and found.anomaly and row.dtype != "float32":
            yield f"ANOMALY, {row.operator}: {found.anomaly}."


def device_kernels(study: TraceStudy) -> Section | None:
    """Build the section on kernels with one table per device; `None` without device events."""
    top = study.options.top
    shown = [
        table
        for at, one in enumerate(devices_of(study))
        for table in kernel_tables(
            f"{one.name}, {during(one.view)}",
            [Listed(row, names) for row, names in one.kernels],
            top=top,
            notes=_kernels_notes(one),
            collapsed=at > 0,
        )
    ]
    return kernels_section(shown, exclusive=True) if shown else None


def _kernels_notes(one: DeviceFindings) -> Iterator[str]:
    if num_cut := one.view.num_cut:
        yield f"Calls cut by the edges of the window: {num_cut}. Each counts as one, times count their part inside."
    if mangled := {each.name for _, names in one.kernels for each in names if each.name.startswith(MANGLED)}:
        yield f"{len(mangled)} names could not be demangled and stand as they are."


_OF_UNION: Final = "share of the union"


def collectives_section(study: TraceStudy) -> Section | None:
    """Build the section with communication per device and across ranks; `None` if there is none."""
    called = {(one.trace, one.device): one.name for one in devices_of(study)}
    found = [(called[of.trace, own.device], own) for of in traces_of(study) for own in of.communication]
    if not found:
        return None
    names = [name for name, _ in found]
    blocks: list[Block] = [_devices(found), _kinds(study)]
    together = collective_skew(study.traces, study.windows)
    if together is not None:
        blocks += _across(names, together, study.options.top)
    lead = "Exposed is what neither a kernel nor a memset of the device hides; a duration holds the wait for the last rank too."
    return Section("collectives", "Communication", lead, tuple(blocks))


def _devices(found: Sequence[tuple[str, Communication]]) -> Table:
    exposed = "of the union, the part that neither a kernel nor a memset hides"
    fields: tuple[Field[tuple[str, Communication]], ...] = (
        Field("device", lambda row: row[0], Code),
        count("collectives", lambda row: row[1].n, "communication kernels"),
        exact_time("union", lambda row: row[1].union_ns, "at least one of them ran"),
        numeric("of span", lambda row: share_cell(row[1].union_ns, row[1].span_ns)),
        exact_time("exposed", lambda row: row[1].exposed_ns, exposed),
        numeric("of span", lambda row: share_cell(row[1].exposed_ns, row[1].span_ns)),
        numeric("hidden", lambda row: share_cell(row[1].union_ns - row[1].exposed_ns, row[1].union_ns), _OF_UNION),
        exact_time("sum", lambda row: row[1].sum_ns, "of durations"),
    )
    return table_of("Communication of each device.", fields, found)


def _kinds(study: TraceStudy) -> Table:
    rows = (row for of in traces_of(study) for own in of.communication for row in own.kinds)
    told, top = sorted(rows, key=lambda row: -row.exposed_ns), study.options.top
    named = ("collective", "group", "ranks", "message_bytes", "calls", "exposed_ns", "sum_ns", *FIGURES)
    fields = on_devices(study, CollectiveRow, *named)
    notes = ["Durations hold the wait for the last rank. Exposed times add up only where collectives do not overlap."]
    cut = sum(own.num_cut for of in traces_of(study) for own in of.communication)
    if cut:
        notes.append(f"Collectives cut by the edges of the window: {cut}. n counts them, times count their part inside.")
    left = sum(row.exposed_ns for row in told[top:])
    notes += left_out(told, top, f"rows are left out, with {time_text(left)} ms exposed together")
    shown = told[:top]
    caption = "Collectives by name, group and size."
    return table_of(caption, fields, shown, notes=notes, sortable=True, collapsed=len(shown) > 12)


def _across(names: Sequence[str], met: CollectiveSkew, top: int) -> Iterator[Block]:
    if met.times:
        yield _members(names, met)
        yield _meeting_kinds(met, top)
    notes = [f"{met.matched} collectives were found on every rank that has a trace, by {met.by}."]
    left = (
        (met.unmatched, "have no counterpart in the other traces"),
        (met.one_way, "go one way (not all ranks wait for all others)"),
        (met.cut, "are cut by the edges of the window"),
    )
    notes += [f"{number} {why} and are not split." for number, why in left if number]
    notes += [f"{problem}." for problem in met.problems]
    if met.checked and met.aligned:
        seen = f"at most {time_text(met.worst_ns, 'µs')} µs before" if met.worst_ns else "never before"
        notes.append(
            f"Clocks: a collective ends on one rank {seen} it has started on all, so they may be the same; the collectives alone "
            f"would not show a difference below {time_text(met.slack_ns, 'µs')} µs, and skews are exact to within the true one."
        )
    elif met.checked:
        notes.append(
            f"Clocks of ranks not aligned: {met.violated} of {met.checked} collectives end on one rank before another has "
            f"started, by up to {time_text(met.worst_ns)} ms ({names[met.ahead]} is ahead of {names[met.behind]}). "
            "Skew and transfer would mean nothing and are not shown."
        )
    yield Notes(tuple(notes))


def _members(names: Sequence[str], together: CollectiveSkew) -> Table:
    straggler, often = together.straggler, together.last_most_often

    def cost(row: tuple[str, MemberTime]) -> Cell:
        return Text(exact_ms(row[1].cost_ns), "bad") if row[1] == straggler else ExactTime(row[1].cost_ns)

    fields: tuple[Field[tuple[str, MemberTime]], ...] = (
        Field("device", lambda row: row[0], Code),
        count("collectives", lambda row: row[1].n),
        count("last", lambda row: row[1].last, "how many it started last, alone"),
        numeric("share", lambda row: share_cell(row[1].last, row[1].n)),
        Field("cost", cost, unit="ms", hint="by how much it came after the second last one, added up"),
        exact_time("waited", lambda row: row[1].wait_ns, "skew: from its own start to the last one's"),
        exact_time("transferred", lambda row: row[1].transfer_ns, "from the last start to its own end"),
        numeric("waited, of both", lambda row: share_cell(row[1].wait_ns, row[1].wait_ns + row[1].transfer_ns)),
    )
    rows = list(zip(names, together.times, strict=True))
    notes = []
    if straggler is not None and often is not None:
        name = names[together.times.index(straggler)]
        notes.append(
            f"The others wait longest for {name}: it costs each of them {time_text(straggler.cost_ns)} ms, the time from the "
            f"second last start to its own, added up; it starts {straggler.last} of {straggler.n} collectives last."
        )
        if often != straggler:
            name = names[together.times.index(often)]
            notes.append(f"Last most often is {name}: {often.last} of {often.n}, which costs {time_text(often.cost_ns)} ms.")
    return table_of("Waiting and moving data in collectives where all ranks wait for all.", fields, rows, notes=notes)


def _meeting_kinds(together: CollectiveSkew, top: int) -> Table:
    none, message = "not recorded", "the larger of input and output of one rank"

    def rate(one: SkewKind) -> Cell | None:
        size, median = message_bytes(one[0]), one[2].p50_ns
        return Number(size / median, 1, "GB/s") if size and median > 0 else None

    fields: tuple[Field[SkewKind], ...] = (
        Field("collective", lambda one: one[0].name, Code),
        Field("group", lambda one: one[0].group or None, Code, missing=none),
        count("ranks", lambda one: len(one[0].ranks) or None, missing=none),
        numeric("message", lambda one: message_bytes(one[0]), message, show=megabytes, missing=none),
        count("n", lambda one: one[1].n),
        exact_time("skew", lambda one: one[1].sum_ns, "from the first start to the last, added up"),
        time("skew p50", lambda one: one[1].p50_ns, "µs"),
        time("max", lambda one: one[1].max_ns, "µs"),
        exact_time("transfer", lambda one: one[2].sum_ns, "from the last start to the last end, added up"),
        time("transfer p50", lambda one: one[2].p50_ns, "µs"),
        time("max", lambda one: one[2].max_ns, "µs"),
        numeric("rate", rate, "message / median transfer", missing="no size recorded"),
    )
    return table_of(
        "Skew against transfer, by name, group and size.",
        fields,
        together.kinds[:top],
        notes=left_out(together.kinds, top),
        sortable=True,
    )
