"""Ranges, modules and layers: on whose behalf the device worked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from strobe.perf.analysis.structure.calltree import CallNode, call_trees
from strobe.perf.analysis.structure.layers import layer_groups
from strobe.perf.analysis.structure.ranges import COMMUNICATION, Kind, RangeRow, Ranges, range_table
from strobe.perf.analysis.structure.scopes import unnumbered
from strobe.perf.report.model import (
    Block,
    Cell,
    Code,
    Column,
    Count,
    ExactTime,
    Figure,
    Flame,
    Frame,
    Missing,
    Notes,
    Row,
    Section,
    Table,
    Text,
)
from strobe.perf.report.trace_page.devices import device_name, share_cell
from strobe.perf.report.trace_page.layers import layer_blocks
from strobe.perf.report.trace_page.study import TraceStudy

MAX_FRAMES: Final = 300
"""Frames of one flame graph; the narrowest are drawn as one beside each other."""
MAX_DEPTH: Final = 100
"""Frames of a flame graph on top of each other; what lies deeper belongs to the last of them."""
_TITLES: Final[dict[Kind, str]] = {
    "range": "Ranges of the host",
    "module": "Modules",
    "graph module": "Modules inside graphs, by the path that their kernels carry",
}


def ranges_section(study: TraceStudy) -> Section | None:
    """Device time by range, module and layer; `None` if no trace has device events that any of them explains."""
    blocks: list[Block] = []
    for trace, label, window in zip(study.traces, study.labels, study.windows, strict=True):
        bare = replace(trace, ranges=unnumbered(trace.ranges), modules=unnumbered(trace.modules))
        trees = dict(call_trees(trace, window))
        layers = dict(layer_groups(trace, window))
        for ranges in range_table(bare, window):
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
    columns = (
        Column("name"),
        Column("calls", numeric=True),
        Column("events", numeric=True, hint="device events launched in them"),
        Column("kernels", numeric=True),
        Column("sum", "ms", True, "of the events' durations, nested calls included"),
        Column("of all", numeric=True, hint="sum / sum of all events of the device"),
        Column("exclusive", "ms", True, "sum of the events launched in no other call inside"),
        Column("union", "ms", True, "time in which at least one of the events ran"),
        Column("span", "ms", True, "first start to last end on the device, added over the calls"),
        Column("host", "ms", True, "the calls themselves, added up"),
    )
    shown = [_row(row, whole_ns) for row in rows[:top]]
    rest = rows[top:]
    if rest:
        exclusive = ExactTime(sum(row.exclusive_ns for row in rest))
        calls, blank = Count(sum(row.calls for row in rest)), Text("")
        shown.append(Row((Text(f"{len(rest)} more rows"), calls, *(blank,) * 4, exclusive, *(blank,) * 3), strong=True))
    notes = ("Only the exclusive column adds up.",)
    return Table(caption, columns, tuple(shown), notes, sortable=True, collapsed=len(shown) > 12)


def _row(row: RangeRow, whole_ns: int) -> Row:
    host: Cell = Missing("a graph's kernels have no call of their own", "-") if row.host_ns is None else ExactTime(row.host_ns)
    head = (Code(row.name), Count(row.calls))
    if not row.events:
        none = Text("0", "muted", "launched nothing on their thread")
        return Row((*head, none, *(Missing("", "-"),) * 6, host))
    counts = (Count(row.events), Count(row.kernels), ExactTime(row.sum_ns), share_cell(row.sum_ns, whole_ns))
    return Row((*head, *counts, ExactTime(row.exclusive_ns), ExactTime(row.union_ns), ExactTime(row.span_ns), host))


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
    columns = (
        Column("path"), Column("calls", numeric=True), Column("events", numeric=True),
        Column("own time", "ms", True, "launched in no call inside; where events overlap, the first to start owns the time"),
        Column("of busy", numeric=True), Column("total", "ms", True, "with the calls inside"),
        Column("host", "ms", True, "the calls themselves"),
    )  # fmt: skip
    found = sorted(_spelled(root), key=lambda item: (-item[1].self_ns, item[0]))
    owners = [item for item in found if item[1].self_ns]
    rows = [_path_row(" / ".join(path), node, root.total_ns) for path, node in owners[:top]]
    rest = owners[top:]
    if rest:
        own = sum(node.self_ns for _, node in rest)
        cells = (ExactTime(own), share_cell(own, root.total_ns), Text(""), Text(""))
        rows.append(Row((Text(f"{len(rest)} more paths"), Text(""), Text(""), *cells), strong=True))
    rows.append(Row((Text("busy"), Text(""), Count(root.events), ExactTime(root.total_ns), *(Text(""),) * 3), strong=True))
    return Table("Paths by the time of their own; it adds up to the busy time.", columns, tuple(rows), collapsed=True)


def _spelled(root: CallNode) -> Iterator[tuple[tuple[str, ...], CallNode]]:
    """Every node below the root with its path, however deep calls lie in each other."""
    waiting: list[tuple[tuple[str, ...], CallNode]] = [((), root)]
    while waiting:
        path, node = waiting.pop()
        below = [((*path, child.name), child) for child in node.children]
        yield from below
        waiting += below


def _path_row(path: str, node: CallNode, busy_ns: int) -> Row:
    host: Cell = ExactTime(node.host_ns) if node.calls else Missing("", "-")
    own = (ExactTime(node.self_ns), share_cell(node.self_ns, busy_ns))
    return Row((Code(path), Count(node.calls), Count(node.events), *own, ExactTime(node.total_ns), host))
