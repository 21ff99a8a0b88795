"""The page of a soak: first frame blocks against the last, block times and memory over the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from strobe.core.printable import bytes_in
from strobe.perf.analysis.runs.soak import Compared, Soak, soak_of
from strobe.perf.measure.stats import percentile
from strobe.perf.records.record import Memory
from strobe.perf.records.store import read_run
from strobe.perf.report.blocks.damage import end_banners
from strobe.perf.report.blocks.fields import Field, beside, table_of
from strobe.perf.report.blocks.page import page, run_facts
from strobe.perf.report.blocks.settings import settings_section
from strobe.perf.report.model import (
    Axis,
    Cell,
    Count,
    Fact,
    Figure,
    Mark,
    Missing,
    Notes,
    Plane,
    Report,
    Section,
    Share,
    Table,
    Text,
    Time,
)
from strobe.perf.report.study import load_study
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


def soak_report(folder: Path) -> Report:
    """Build the page of a soak's run folder.

    Raises:
        DataError: it is none, or too short.
    """
    run = read_run(folder)
    found = soak_of(run)
    head, work, settings = run.header, run.header.workload, run.variants[0]
    assert work is not None
    latents = len(found.blocks_ns) * work.latents_per_block
    return page(
        title=f"Soak of {settings.name}",
        subtitle=f"{len(found.blocks_ns)} frame blocks, {latents} latent frames, on {head.machine.device_name}",
        facts=(
            *run_facts(head),
            Fact("Frame", Text(f"{work.width}x{work.height} pixels")),
            Fact("Prompt switches", Count(len(found.switches))),
        ),
        banners=end_banners(run, "The soak did not come to its end", f"{len(found.blocks_ns)} frame blocks count"),
        sections=(_verdict(found), _times(found), _memory(found), settings_section(load_study([folder]))),
    )


def verdict_table(found: Soak) -> Table:
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
    return table_of("The first frame blocks against the last.", fields, rows, notes=(note,))


def _row(each: Compared, cell: Callable[[int], Cell], change: Callable[[Compared], Cell], kind: str) -> Sequence[object]:
    limit: Cell = Share(each.may_grow / each.first) if kind == "time" else bytes_cell(each.may_grow, "MiB", 0)
    holds = Text("yes", "good") if each.holds else Text("NO", "bad")
    return _WORDS[each.what], cell(each.first), cell(each.last), change(each), limit, holds


def _verdict(found: Soak) -> Section:
    lead = "A frame block lasts from one delivery of frames to the next, decoding included, on the host's clock."
    return Section("soak", "First against last", lead, (verdict_table(found),))


def _buckets(count: int) -> list[range]:
    size = max(1, -(-count // _POINTS))
    return [range(start, min(count, start + size)) for start in range(0, count, size)]


def _times(found: Soak) -> Section:
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
    title = f"Length of a frame block over the stream{to_a_point}, from number {found.settled} on."
    table = table_of("The points.", beside("frame blocks", ("median", "max"), "ms", show=Time), rows)
    figure = Figure(title, "Points over the stream; the table says the same.", plane, table)
    return Section("times", "Frame blocks over the stream", "", (figure,))


def _span(bucket: range) -> str:
    return str(bucket.start) if len(bucket) == 1 else f"{bucket.start} to {bucket.stop - 1}"


def _memory(found: Soak) -> Section:
    kinds = [each.what for each in found.held]
    if not kinds:
        return Section("memory", "Memory over the stream", "", (Notes(("This machine does not tell.",)),))
    buckets = _buckets(len(found.memory))
    rows, marks = [], []
    for bucket in buckets:
        most = [_most([found.memory[index] for index in bucket], kind) for kind in kinds]
        marks += [Mark(bucket.stop - 1, bytes_in(held, "GiB"), number) for number, held in enumerate(most)]
        rows.append((_span(bucket), *most))
    series = tuple(_WORDS[kind] for kind in kinds)
    plane = Plane(Axis("frame block", whole=True), Axis("GiB", from_zero=True), tuple(marks), series=series)
    most_of = f", the most of {len(buckets[0])}" if len(buckets[0]) > 1 else ""
    title = f"Memory held after a frame block{most_of}."
    fields = beside("frame blocks", series, numeric=True, show=lambda held: bytes_cell(held, "GiB", 3))
    table = table_of("The points.", fields, rows)
    figure = Figure(title, "Points over the stream; the table says the same.", plane, table)
    return Section("memory", "Memory over the stream", "", (figure,))


def _most(lines: Sequence[Memory], kind: str) -> int:
    return max(getattr(line, f"{kind}_bytes") or 0 for line in lines)
