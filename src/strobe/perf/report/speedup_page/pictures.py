"""One step of both sides on a common axis, and the flame graph of their difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from strobe.perf.analysis.device.idle import HOST_LATE, LAUNCH_LATENCY, PROFILER_OVERHEAD, QUEUED, UNLINKED
from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.analysis.ledger.cut import LABELS, TracedSide
from strobe.perf.analysis.ledger.paths import Node, difference, path_times
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.report.lanes import LaneSlices, Piece, draw_lanes, merged
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
    Kind,
    Missing,
    Paragraph,
    Row,
    Section,
    Table,
    Text,
    Timeline,
)
from strobe.perf.report.speedup_page.study import SpeedupStudy
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
    """The step of median length of each side; `None` unless both were traced."""
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
    figure = Figure(title, "Timeline of one step of both sides; the table gives the sums.", picture, _sums(lanes, picture))
    lead = "The step of median length of each side, each from its own start. Traced, so longer than a step without a profiler."
    return Section("timeline", "One step, before and after", lead, (figure,))


def median_tile(own: TracedSide) -> tuple[int, str]:
    """The number of the step of median length, and its name."""
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
    """The class a label is drawn as."""
    place, activity = label.path[0], label.activity
    if activity in _GAPS:
        return _GAPS[activity]
    if place == "focal":
        return _FOCAL
    if place == "section":
        return _WORK["section", "kernel"]
    return _WORK["step", "memcpy" if activity == "memset" else activity]


def _sums(lanes: Sequence[LaneSlices], picture: Timeline) -> Table:
    sums: list[Counter[Kind]] = [Counter() for _ in lanes]
    for own, lane in zip(sums, lanes, strict=True):
        for piece in lane.pieces:
            own[piece.kind] += piece.end_ns - piece.start_ns
    rows = [Row((Text(kind.label), *(_sum(own[kind]) for own in sums))) for kind in picture.kinds]
    rows.append(Row((Text("the step"), *(ExactTime(lane.length_ns) for lane in picture.lanes)), strong=True))
    rows.append(Row((Text("slices"), *(Count(lane.num_total) for lane in picture.lanes))))
    columns = (Column("class"), *(Column(lane.label, "ms", True) for lane in lanes))
    return Table("Time of the step by class; every nanosecond is in one class.", columns, tuple(rows))


def _sum(ns: int) -> Cell:
    return ExactTime(ns) if ns else Missing("", "-")


# ----------------------------------------------------------------------------------------------------------------- flame


def flame_section(study: SpeedupStudy) -> Section | None:
    """The difference by range, module and kernel; `None` unless both sides were traced."""
    if study.baseline.chosen is None or study.candidate.chosen is None or not study.accounts:
        return None
    account = study.accounts[0][1]
    unit = "step" if account.unit in ("stage", "step") else account.unit
    trees = []
    for side in (study.baseline.chosen, study.candidate.chosen):
        per = side[1].num_focal if unit == "call" else len(side[1].tiles)
        trees.append((path_times(*side), per))
    root = difference(*trees[0], *trees[1])
    words = {"step": "one step", "call": "one focal call", "window": "the traced window"}[unit]
    if not root.children:
        return None
    table, lead = (
        _paths(root),
        (
            f"Device time of {words} that each range and module owns, by the launch of the kernel: exclusive, so that it adds "
            "up. A range that only one side has is new or gone; sides with different code share few names."
        ),
    )
    title = "Widths are the larger side; less time than the baseline is one colour, more time the other."
    figure: Block = Figure(
        title, "Differential flame graph; the table lists the largest changes.", Flame(_frame(root), True), table
    )
    if not any(child.children for child in root.children):
        figure = Paragraph("No ranges or modules were recorded on either side: there is no path to draw.")
    return Section("flame", "The difference by path", lead, (figure,))


def _frame(node: Node) -> Frame:
    return Frame(node.name, node.baseline_ns, node.candidate_ns, tuple(map(_frame, node.children)))


def _paths(root: Node) -> Table:
    found = sorted(_leaves(root, ()), key=lambda item: (-abs(item[1].baseline_ns - item[1].candidate_ns), item[0]))
    columns = (
        Column("path"),
        Column("baseline", "ms", True),
        Column("candidate", "ms", True),
        Column("saved", "ms", True),
    )
    rows = []
    for path, node in found[:MAX_PATHS]:
        b, c = node.baseline_ns, node.candidate_ns
        rows.append(Row((Code(" / ".join(path)), ExactTime(b), ExactTime(c), ExactTime(b - c))))
    rest = found[MAX_PATHS:]
    if rest:
        b, c = sum(node.baseline_ns for _, node in rest), sum(node.candidate_ns for _, node in rest)
        rows.append(Row((Text(f"{len(rest)} more"), ExactTime(b), ExactTime(c), ExactTime(b - c))))
    b, c = root.baseline_ns, root.candidate_ns
    rows.append(Row((Text("busy time"), ExactTime(b), ExactTime(c), ExactTime(b - c)), strong=True))
    return Table("Paths by descending change.", columns, tuple(rows))


def _leaves(node: Node, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Node]]:
    for child in node.children:
        path = (*above, child.name)
        if child.children:
            yield from _leaves(child, path)
        else:
            yield path, child
