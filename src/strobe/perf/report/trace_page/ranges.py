"""Device time by range, module and layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from strobe.perf.analysis.structure.calltree import CallNode, call_trees
from strobe.perf.analysis.structure.layers import layer_groups
from strobe.perf.analysis.structure.ranges import COMMUNICATION, Kind, RangeRow, Ranges
from strobe.perf.report.blocks.fields import Field, count, exact_time, numeric, padded, share_of, table_of
from strobe.perf.report.model import Block, Code, Count, ExactTime, Figure, Flame, Frame, Notes, Section, Table, Text
from strobe.perf.report.trace_page.devices import device_name
from strobe.perf.report.trace_page.layers import layer_blocks
from strobe.perf.report.trace_page.seen import seen_ranges
from strobe.perf.report.trace_study import TraceStudy

MAX_FRAMES: Final = 300
"""Most frames of one flame graph; the narrowest neighbours are drawn as one."""
MAX_DEPTH: Final = 100
"""Most levels of a flame graph; deeper frames count as part of the last level."""
_TITLES: Final[dict[Kind, str]] = {
    "range": "Ranges of the host",
    "module": "Modules",
    "graph module": "Modules inside graphs, by the path that their kernels carry",
}


_SILENT: Final = Text("0", "muted", "launched nothing on their thread")
_NO_CALLS: Final = "a graph's kernels have no call of their own"


def ranges_section(study: TraceStudy) -> Section | None:
    """Build the section with device time by range, module and layer; `None` if no trace has any for its device events."""
    blocks: list[Block] = []
    each = zip(study.traces, study.labels, study.windows, seen_ranges(study), strict=True)
    for trace, label, window, of_trace in each:
        trees = dict(call_trees(trace, window))
        layers = dict(layer_groups(trace, window))
        for ranges in of_trace:
            name = device_name(study, label, ranges.device)
            if ranges.rows:
                blocks += _tables(name, ranges, study.options.top)
                blocks.append(_flame(name, trees[ranges.device], study.options.top))
            blocks += layer_blocks(name, layers[ranges.device], ranges.sum_ns, study.options.top)
    if not blocks:
        return None
    lead = (
        "A device event belongs to the ranges and modules that were open on the thread of its launch call when that call "
        "started, a graph's kernels to those around the launch of the graph. Sums include nested calls, exclusive times do not. "
        "Names that differ in a number at their end (ProfilerStep#3, Linear_12) are one row."
    )
    return Section("ranges", "Ranges, modules and layers", lead, tuple(blocks))


def _tables(name: str, ranges: Ranges, top: int) -> Iterator[Block]:
    for kind, title in _TITLES.items():
        rows = ranges.of_kind(kind)
        if rows:
            yield _table(f"{title}, {name}.", rows, ranges.sum_ns, top)
    notes = []
    if ranges.outside_events:
        notes.append(f"{name}: {ranges.outside_events} events were launched outside every range and module.")
    if ranges.unlinked_events:
        notes.append(f"{name}: the trace does not hold the launch of {ranges.unlinked_events} events; their range is not known.")
    silent = sum(row.calls for row in ranges.of_kind("range") if not row.events and row.name.startswith(COMMUNICATION))
    if silent:
        notes.append(
            f"{name}: {silent} calls of ranges around collectives launched nothing on their own thread; what they stand for is "
            "in the section on communication."
        )
    if notes:
        yield Notes(tuple(notes))


def _table(caption: str, rows: Sequence[RangeRow], whole_ns: int, top: int) -> Table:
    fields: tuple[Field[RangeRow], ...] = (
        Field("name", lambda row: row.name, Code),
        count("calls", lambda row: row.calls, total=sum),
        count("events", lambda row: row.events or _SILENT, "device events launched in them"),
        count("kernels", lambda row: _if_any(row, row.kernels)),
        exact_time("sum", lambda row: _if_any(row, row.sum_ns), "of durations, nested calls included"),
        numeric("of all", lambda row: _if_any(row, row.sum_ns), "sum / sum of all events of the device", show=share_of(whole_ns)),
        exact_time(
            "exclusive",
            lambda row: _if_any(row, row.exclusive_ns),
            "sum of the events launched in no other call inside",
            total=sum,
        ),
        exact_time("union", lambda row: _if_any(row, row.union_ns), "at least one of the events ran"),
        exact_time("span", lambda row: _if_any(row, row.span_ns), "first start to last end on the device, added up"),
        exact_time("host", lambda row: row.host_ns, "the calls themselves, added up", missing=_NO_CALLS),
    )
    notes = ("Only the exclusive column adds up.",)
    closed = min(len(rows), top + 1) > 12
    return table_of(caption, fields, rows, top=top, notes=notes, sortable=True, collapsed=closed)


def _if_any(row: RangeRow, value: int) -> int | None:
    """Return a figure of a range's events; None if the range launched none."""
    return value if row.events else None


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
    table = table_of(
        "Paths by the time of their own; it adds up to the busy time.", fields, owners, top=top, left="paths", collapsed=True
    )
    busy = padded(len(fields), Text("busy"), Text(""), Count(root.events), ExactTime(root.total_ns), strong=True)
    return msgspec.structs.replace(table, rows=(*table.rows, busy))


def _spelled(root: CallNode) -> Iterator[tuple[tuple[str, ...], CallNode]]:
    """Yield every node below the root with its path, at any depth."""
    waiting: list[tuple[tuple[str, ...], CallNode]] = [((), root)]
    while waiting:
        path, node = waiting.pop()
        below = [((*path, child.name), child) for child in node.children]
        yield from below
        waiting += below
