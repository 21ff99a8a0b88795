"""Section of a long clip: first frame blocks against the last, block times and memory over the clip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from strobe.core.printable import bytes_in
from strobe.perf.analysis.runs.growth import Compared, LongClip, growths_of
from strobe.perf.measure.stats import percentile
from strobe.perf.records.record import Memory
from strobe.perf.report.blocks.fields import Field, beside, table_of
from strobe.perf.report.model import (
    Axis,
    Block,
    Cell,
    Figure,
    Mark,
    Missing,
    Plane,
    Section,
    Share,
    Table,
    Text,
    Time,
)
from strobe.perf.report.study import RunStudy
from strobe.perf.report.text import bytes_cell

_POINTS: Final = 100
"""Most points of a picture; each stands for the same number of frame blocks."""
_WORDS: Final = {
    "median": "frame block, median",
    "max": "frame block, max",
    "allocated": "GPU memory in tensors, most",
    "reserved": "GPU memory held by the allocator, most",
    "resident": "resident set on the host, most",
}


def growth_section(study: RunStudy) -> Section | None:
    """Build the section; None if no clip is long enough, or its memory was not read."""
    blocks: list[Block] = []
    for run in study.runs:
        for found in growths_of(run):
            blocks += (_verdict(found), _times_figure(found), *_memory_figure(found))
    lead = "The last frame blocks of a long clip against the first, after the cache was full."
    return Section("growth", "First against last", lead, tuple(blocks)) if blocks else None


def _verdict(found: LongClip) -> Table:
    """Build the table of the first against the last frame blocks, with the limit of each figure and whether it holds."""
    part = len(found.first)
    words = (f"first {part}", f"last {part}", "change", "may grow by")
    holds: Field[Sequence[object]] = Field("holds", lambda row: row[-1])
    rows: list[Sequence[object]] = [
        _row(each, Time, lambda each: Share(each.growth / each.first), "time") for each in found.times
    ]
    rows += [
        _row(each, lambda held: bytes_cell(held, "GiB", 3), lambda each: bytes_cell(each.growth, "MiB", 2), "memory")
        for each in found.held
    ]
    drift: Cell = Missing("fewer than 100 frame blocks", "-") if found.drift is None else Share(found.drift)
    rows.append(("drift of a frame block over 1,000", "", "", drift, "", Text("told, not judged", "muted")))
    note = (
        f"Frame blocks {found.first[0]} to {found.first[-1]} against {found.last[0]} to {found.last[-1]}, those that a prompt "
        f"switch made longer left out; the {found.settled} before fill the cache, and compile and capture. Drift: median of the "
        "slopes between any two."
    )
    fields = (*beside("figure", words, numeric=True), holds)
    return table_of(f"{found.variant}: the first frame blocks against the last.", fields, rows, notes=(note,))


def _row(each: Compared, cell: Callable[[int], Cell], change: Callable[[Compared], Cell], kind: str) -> Sequence[object]:
    limit: Cell = Share(each.may_grow / each.first) if kind == "time" else bytes_cell(each.may_grow, "MiB", 0)
    holds = Text("yes", "good") if each.holds else Text("NO", "bad")
    return _WORDS[each.what], cell(each.first), cell(each.last), change(each), limit, holds


def _buckets(count: int) -> list[range]:
    size = max(1, -(-count // _POINTS))
    return [range(start, min(count, start + size)) for start in range(0, count, size)]


def _times_figure(found: LongClip) -> Figure:
    buckets = [bucket for bucket in _buckets(len(found.blocks_ns)) if bucket.stop > found.settled] or [
        range(len(found.blocks_ns))
    ]
    rows, marks = [], []
    for bucket in buckets:
        own = sorted(found.blocks_ns[index] for index in bucket if index >= found.settled)
        median, longest = percentile(own, 0.5), own[-1]
        marks += [Mark(bucket.stop - 1, median, 0), Mark(bucket.stop - 1, longest, 1)]
        rows.append((_span(bucket), median, longest))
    size = len(buckets[0])
    names = ("median", "max") if size > 1 else ("frame block", "frame block")
    shown, series = tuple(marks if size > 1 else marks[::2]), names[: 1 + (size > 1)]
    plane = Plane(Axis("frame block", whole=True), Axis("length", "ms", True), shown, series=series)
    to_a_point = f", {size} to a point" if size > 1 else ""
    title = f"{found.variant}: length of a frame block over the clip{to_a_point}, from number {found.settled} on."
    table = table_of("The points.", beside("frame blocks", ("median", "max"), "ms", show=Time), rows)
    return Figure(title, "Points over the clip; the table says the same.", plane, table)


def _span(bucket: range) -> str:
    return str(bucket.start) if len(bucket) == 1 else f"{bucket.start} to {bucket.stop - 1}"


def _memory_figure(found: LongClip) -> list[Figure]:
    kinds = [each.what for each in found.held]
    if not kinds:
        return []
    buckets = _buckets(len(found.memory))
    rows, marks = [], []
    for bucket in buckets:
        most = [_most([found.memory[index] for index in bucket], kind) for kind in kinds]
        marks += [Mark(bucket.stop - 1, bytes_in(held, "GiB"), number) for number, held in enumerate(most)]
        rows.append((_span(bucket), *most))
    series = tuple(_WORDS[kind] for kind in kinds)
    plane = Plane(Axis("frame block", whole=True), Axis("GiB", from_zero=True), tuple(marks), series=series)
    most_of = f", the most of {len(buckets[0])}" if len(buckets[0]) > 1 else ""
    title = f"{found.variant}: memory held after a frame block{most_of}."
    fields = beside("frame blocks", series, numeric=True, show=lambda held: bytes_cell(held, "GiB", 3))
    table = table_of("The points.", fields, rows)
    return [Figure(title, "Points over the clip; the table says the same.", plane, table)]


def _most(lines: Sequence[Memory], kind: str) -> int:
    return max(getattr(line, f"{kind}_bytes") or 0 for line in lines)
