"""Pictures of an attention grid: speedup and rate against sparsity, memory against selected blocks, stages of the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from strobe.core.printable import bytes_in
from strobe.core.spans import NAMES
from strobe.perf.analysis.runs.grid import speedup
from strobe.perf.records.grids import TEMPORARY, WHOLE
from strobe.perf.report.attention_bench.cells import AttentionContestant, CellRun
from strobe.perf.report.attention_bench.tables import entries, memory_table
from strobe.perf.report.blocks.fields import Field, beside, heads, numeric, rows_of, table_of, time
from strobe.perf.report.blocks.ratios import ratio_cell
from strobe.perf.report.model import (
    Axis,
    Bar,
    Code,
    Figure,
    Mark,
    Missing,
    Number,
    Plane,
    Row,
    Share,
    Table,
    Waterfall,
    Whisker,
    Whiskers,
)

_NONE = Missing("not measured here", "-")


def against_sparsity(
    cells: Sequence[CellRun], what: str, unit: str, value: Callable[[CellRun, AttentionContestant], float | None], group: str = ""
) -> Figure | None:
    """Plot one number of every contestant, or of those of one group, against the share of skipped work.

    One block size, one direction, one shape.
    """
    named: dict[str, list[tuple[float, float]]] = {}
    for cell, entry in entries(cells):
        found = value(cell, entry) if group in ("", entry.group) else None
        if found is not None:
            named.setdefault(entry.name, []).append((cell.sparsity, found))
    if not named:
        return None
    picture = _plane(named, Axis("share of the pairs of tokens left out"), Axis(what, from_zero=True))
    places = sorted({x for points in named.values() for x, _ in points})
    fields = beside("contestant", (f"{100 * place:.1f} %" for place in places), numeric=True)
    rows = []
    for name, points in named.items():
        values = dict(points)
        rows.append((Code(name), *(Number(values[place], 2, unit) if place in values else _NONE for place in places)))
    first = cells[0]
    whose = f" of {group}" if group else ""
    title = f"{what}{whose}: {first.grid.shape}, {first.grid.direction}, blocks of {first.grid.block}"
    return Figure(title=title, alt=title, picture=picture, table=table_of(f"{title}.", fields, rows))


def _plane(named: Mapping[str, Sequence[tuple[float, float]]], x: Axis, y: Axis) -> Plane:
    """Plot the points of each name in a colour of its own."""
    marks = tuple(Mark(*point, series) for series, points in enumerate(named.values()) for point in points)
    return Plane(x=x, y=y, marks=marks, series=tuple(named))


def speedups(cells: Sequence[CellRun]) -> Figure | None:
    """Plot speedups over the fastest dense contestant of the same cell, with intervals; at each sparsity the fastest first."""

    def value(cell: CellRun, entry: AttentionContestant) -> float | None:
        if cell.serialised or cell.reference is None or entry.kind == "dense":
            return None
        return speedup(cell.reference, entry).ratio

    figure = against_sparsity(cells, "speedup over dense", "x", value)
    if figure is None:
        return None
    found = [
        (cell, entry, speedup(cell.reference, entry))
        for cell, entry in entries(cells)
        if value(cell, entry) is not None and cell.reference is not None
    ]
    found.sort(key=lambda each: (each[0].sparsity, -each[2].ratio))
    rows = tuple(
        Whisker(entry.name, ratio_cell(each.ratio, each.interval), group=f"{100 * cell.sparsity:.1f} % left out")
        for cell, entry, each in found
    )
    return msgspec.structs.replace(figure, picture=Whiskers("the fastest dense contestant", rows))


def rates(cells: Sequence[CellRun]) -> Iterator[Figure]:
    """Yield a plot of useful TFLOP/s for each group of contestants; one plot of all would have more lines than colours."""

    def value(_: CellRun, entry: AttentionContestant) -> float:
        return entry.flops / entry.median_ns / 1e3

    for group in dict.fromkeys(entry.group for _, entry in entries(cells)):
        figure = against_sparsity(cells, "useful TFLOP/s", "", value, group)
        if figure is not None:
            yield figure


def memory(cells: Sequence[CellRun]) -> Figure | None:
    """Plot temporary memory of sparse contestants against the number of selected blocks, one colour for each group."""
    named: dict[str, list[tuple[float, float]]] = {}
    for _, entry in entries(cells):
        found = entry.number(TEMPORARY)
        if found is not None and entry.kind != "dense":
            named.setdefault(entry.group, []).append((entry.size("selected_blocks"), bytes_in(found, "MB")))
    if not named:
        return None
    picture = _plane(named, Axis("selected blocks", from_zero=True), Axis("temporary memory, MB", from_zero=True))
    title = f"Temporary memory against the number of selected blocks: {cells[0].grid.direction}"
    return Figure(title=title, alt=title, picture=picture, table=memory_table(cells))


def stage_bars(cells: Sequence[CellRun]) -> Iterator[Figure]:
    """Yield bars of the whole operator's stages at the largest sparsity of each shape and block size."""
    largest: dict[tuple[str, int], CellRun] = {}
    for cell in cells:
        if any(WHOLE in entry.stages for entry in cell.measured):
            key = (cell.grid.shape, cell.grid.block)
            largest[key] = max((largest.get(key, cell), cell), key=lambda each: each.sparsity)
    for cell in largest.values():
        for entry in cell.measured:
            if WHOLE in entry.stages:
                yield _bars(cell, entry)


def _bars(cell: CellRun, entry: AttentionContestant) -> Figure:
    bars, done = [], 0
    for name, ns in entry.parts:
        bars.append(Bar(label=name, start_ns=done, stop_ns=done + ns, tone="plain"))
        done += ns
    bars.append(Bar(label=WHOLE, start_ns=0, stop_ns=entry.stages[WHOLE], tone="plain", total=True))
    title = f"Stages of {entry.name}: {cell.name}"
    return Figure(title=title, alt=title, picture=Waterfall(tuple(bars)), table=stage_table([cell], entry.name))


def stage_table(cells: Sequence[CellRun], only: str = "") -> Table:
    """Build the table of every stage of every whole operator, and of the time between the stages."""
    own = [(cell, entry) for cell, entry in entries(cells) if WHOLE in entry.stages and only in ("", entry.name)]
    fields: tuple[Field[tuple[CellRun, AttentionContestant, str, int]], ...] = (
        Field("cell", lambda row: row[0].name, Code),
        Field("contestant", lambda row: row[1].name, Code),
        Field("stage", lambda row: row[2]),
        time("time", lambda row: row[3]),
        numeric("of the whole call", lambda row: row[3] / row[1].stages[WHOLE], show=Share),
    )
    rows: list[Row] = []
    for cell, entry in own:
        stages = [(cell, entry, name, ns) for name, ns in (*entry.parts, (WHOLE, entry.stages[WHOLE]))]
        *parts, whole = rows_of(fields, stages)
        rows += [*parts, msgspec.structs.replace(whole, strong=True)]
    names = dict.fromkeys(name for _, entry in own for name in entry.stages)
    caption = f"Stages of {only}." if only else "Stages of the whole operator, every cell."
    notes = () if only else tuple(f"{name}: {NAMES[name]}." for name in names if name in NAMES)
    return Table(caption, heads(fields), tuple(rows), notes, collapsed=not only)
