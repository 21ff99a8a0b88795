"""Timeline of one step of both sides, and the flame graph of their difference."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

import numpy as np

from strobe.perf.analysis.device.idle import HOST_LATE, LAUNCH_LATENCY, PROFILER_OVERHEAD, QUEUED, UNLINKED
from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.analysis.ledger.label_trace import LABELS, TracedSide
from strobe.perf.analysis.ledger.paths import IDLE, Node
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.report.blocks.fields import Field, both_sides, heads, rows_of
from strobe.perf.report.blocks.lanes import LaneSlices, Piece, class_table, draw_lanes, merged
from strobe.perf.report.model import Block, Code, Figure, Flame, Frame, Kind, Paragraph, Section, Table
from strobe.perf.report.speedup_page.study import SpeedupStudy
from strobe.perf.report.speedup_page.tree import UNITS, tree_table
from strobe.perf.trace import Trace

MAX_PATHS: Final = 40
_FOCAL: Final = Kind("focal kernel", "focal")
_WORK: Final = {
    ("section", "kernel"): Kind("rest of the section", "work1"), ("step", "kernel"): Kind("other kernels", "work2"),
    ("step", "comm"): Kind("communication", "work3"), ("step", "memcpy"): Kind("copies, memsets", "work4"),
}  # fmt: skip
_GAPS: Final = {
    HOST_LATE: Kind("idle: host late", "gap1"), LAUNCH_LATENCY: Kind("idle: launch latency", "gap2"),
    QUEUED: Kind("idle: queued, not started", "gap3"), UNLINKED: Kind("idle: cause unknown", "gap4"),
    PROFILER_OVERHEAD: Kind("idle: profiler overhead", "gap5"),
}  # fmt: skip
_KINDS: Final = (_FOCAL, *_WORK.values(), *_GAPS.values())


def timeline_section(study: SpeedupStudy) -> Section | None:
    """Build the section with the step of median length of each side; `None` unless both were traced."""
    lanes = []
    for number, side in enumerate(study.sides):
        if side.chosen is None:
            return None
        trace, own = side.chosen
        tile, what = median_tile(own)
        label = f"{side.request.name}, {what}"
        lanes.append(LaneSlices(label=label, series=number, pieces=merged(_pieces(trace, own, tile))))
    if not all(lane.pieces for lane in lanes):
        return None
    picture = draw_lanes(lanes, _KINDS, _FOCAL)
    title = "What ran (solid) and where nothing did (hatched), on one axis. The focal kernel stands out."
    table = class_table(lanes, picture, "Time of the step by class", "the step", drawn=False)
    figure = Figure(title, "Timeline of one step of both sides; the table gives the sums.", picture, table)
    lead = "The step of median length of each side, each from its own start. Traced, so longer than a step without a profiler."
    return Section("timeline", "One step, before and after", lead, (figure,))


def median_tile(own: TracedSide) -> tuple[int, str]:
    """Return the number of the step of median length, and its name."""
    ranked = sorted(own.tiles, key=lambda tile: (tile.end_ns - tile.start_ns, tile.index))
    tile = ranked[(len(ranked) - 1) // 2]
    return tile.index, f"step {tile.index + 1} of {len(own.tiles)}" if len(own.tiles) > 1 else "the compared time"


def _pieces(trace: Trace, own: TracedSide, tile: int) -> Iterator[Piece]:
    chosen = np.flatnonzero(own.pieces.tile == tile)
    events, zero = trace.device_events, own.tiles[tile].start_ns
    columns = (own.pieces.start, own.pieces.end, own.pieces.label, own.pieces.event)
    for start, end, label, event in zip(*(column[chosen].tolist() for column in columns), strict=True):
        kind = kind_of(LABELS[label])
        name = kind.label if event < 0 else kernel_name(events.names[events.name[event]]).group
        yield Piece(start - zero, end - zero, name, kind)


def kind_of(label: Label) -> Kind:
    """Return the class in which a label is drawn."""
    place, activity = label.path[0], label.activity
    if activity in _GAPS:
        return _GAPS[activity]
    if place == "focal":
        return _FOCAL
    if place == "section":
        return _WORK["section", "kernel"]
    return _WORK["step", "memcpy" if activity == "memset" else activity]


# ----------------------------------------------------------------------------------------------------------------- flame


def flame_section(study: SpeedupStudy) -> Section | None:
    """Build the section with the difference by range, module, operator and kernel; `None` unless both sides were traced."""
    tree = study.tree
    busy = None if tree is None else _busy(tree.root)
    if tree is None or busy is None or not busy.children:
        return None
    words = UNITS[tree.unit]
    lead = (
        f"Time of {words} by what launched it: modules, else ranges{', then operators' if tree.operators else ''}, then the "
        "kernel. Exclusive, so that it adds up; the table of nodes has the idle time too, by its cause. A name that only one "
        "side has is new or gone; sides with different code share few names."
    )
    title = "Widths are the larger side; less time than the baseline is one colour, more time the other."
    alt = "Differential flame graph; the table lists the largest changes."
    blocks: list[Block] = [Figure(title, alt, Flame(_frame(busy), True), _paths(busy)), tree_table(tree)]
    if not any(child.children for child in busy.children):
        blocks[0] = Paragraph("No ranges, modules or operators were recorded on either side: there is no path to draw.")
    return Section("flame", "The difference by path", lead, tuple(blocks))


def _busy(root: Node) -> Node:
    """Return the tree without its idle time."""
    working = tuple(child for child in root.children if child.name != IDLE)
    before, after = (sum((getattr(child, side) for child in working), Fraction(0)) for side in ("baseline_ns", "candidate_ns"))
    return Node(name=root.name, baseline_ns=before, candidate_ns=after, children=working)


def _frame(node: Node) -> Frame:
    """Return a node as a frame; only own times are rounded, so that a frame is the sum of its children and its own time."""
    children = tuple(map(_frame, node.children))
    own = node.own_ns
    return Frame(
        node.name,
        round(own[0]) + sum(child.baseline_ns for child in children),
        round(own[1]) + sum(child.candidate_ns for child in children),
        children,
    )


def _paths(root: Node) -> Table:
    found = sorted(_leaves(root, ()), key=lambda item: (-abs(item[1].baseline_ns - item[1].candidate_ns), item[0]))
    fields: tuple[Field[tuple[tuple[str, ...], Node]], ...] = (
        Field("path", lambda item: " / ".join(item[0]), Code),
        *both_sides(("baseline", "candidate"), lambda item: (item[1].baseline_ns, item[1].candidate_ns)),
    )
    whole = (("busy time", (((), root),)),)
    rows = rows_of(fields, found, top=MAX_PATHS, left="", totals=whole, strong_rest=False)
    return Table("Paths by descending change.", heads(fields), rows)


def _leaves(node: Node, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Node]]:
    for child in node.children:
        path = (*above, child.name)
        if child.children:
            yield from _leaves(child, path)
        else:
            yield path, child
