"""Builder of the attention grid's page from its folder of cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from strobe.perf.analysis.runs.grid import speedup
from strobe.perf.report.attention_bench.cells import CellRun, read_cells
from strobe.perf.report.attention_bench.pictures import memory, rates, speedups, stage_bars, stage_table
from strobe.perf.report.attention_bench.tables import SERIALISED, absent_table, gradient_table, precision_table, speed_table
from strobe.perf.report.blocks.damage import unread_banners
from strobe.perf.report.blocks.page import page
from strobe.perf.report.blocks.ratios import ratio_cell
from strobe.perf.report.blocks.settings import banners, settings_section
from strobe.perf.report.model import Banner, Block, Count, Fact, Report, Section, Speedup, Table, Text
from strobe.perf.report.study import load_study

_LEAD = (
    "Every contestant of a cell computes the same call. Its gate was checked before any number was taken; calls of all "
    "contestants and of a large matrix product were taken in palindromes, so that ratios hold within one cell."
)
_COLD = "On a GPU a call lies between two CUDA events, waits in a full queue, and the L2 cache is overwritten before it."


def bench_report(folder: Path) -> Report:
    """Build the page of an attention grid.

    Raises:
        DataError: the folder holds no cells.
    """
    found = read_cells(folder)
    cells = found.cells
    study = load_study([cell.run.folder for cell in cells], into=folder)
    machine = cells[0].run.header.machine
    sections = [*_groups(cells), _stages(cells), _memory(cells), _absent(cells)]
    environment = settings_section(load_study([cells[0].run.folder], into=folder))
    serialised = [cell.name for cell in cells if cell.serialised]
    stop = Banner("stop", "Serialised run: nothing in it is compared.", (SERIALISED,))
    return page(
        speedups=_speedups(cells),
        title="Attention over the grid",
        subtitle=f"{len(cells)} cells on {machine.device_name}, torch {machine.torch}, CUDA {machine.cuda or 'none'}",
        facts=(
            Fact("cells", Count(len(cells))),
            Fact("numbers", Count(sum(len(cell.measured) for cell in cells))),
            Fact("timing", Text(_COLD if machine.on_gpu else "host clock around each call")),
        ),
        banners=(*((stop,) if serialised else ()), *unread_banners(found.unread), *banners(study, gather=True)),
        sections=(*sections, environment),
    )


def shown_tables(cells: Sequence[CellRun]) -> list[Table]:
    """Choose the tables that a terminal shows: speed by shape and direction, and entries without a number."""
    found = [speed_table(own, title) for title, own in _by_shape(cells) if any(cell.measured for cell in own)]
    absent = absent_table(cells)
    return [*found, *((absent,) if absent else ())]


def _groups(cells: Sequence[CellRun]) -> Iterator[Section]:
    """Yield one section for every shape and direction."""
    for title, own in _by_shape(cells):
        blocks: list[Block] = []
        for block in dict.fromkeys(cell.grid.block for cell in own):
            same = [cell for cell in own if cell.grid.block == block]
            blocks += [figure for figure in (speedups(same), *rates(same)) if figure is not None]
        gradients = gradient_table(own, title)
        if any(cell.measured for cell in own):
            blocks.append(speed_table(own, title))
        blocks += [precision_table(own, title), *((gradients,) if gradients else ())]
        name = f"{own[0].grid.shape}-{own[0].grid.direction}".replace(".", "-")
        yield Section(name, title, f"{_sizes(own)} {_LEAD}", tuple(blocks))


def _by_shape(cells: Sequence[CellRun]) -> Iterator[tuple[str, tuple[CellRun, ...]]]:
    """Yield the cells of each shape and direction with their title."""
    for (shape, direction), group in groupby(cells, key=lambda cell: (cell.grid.shape, cell.grid.direction)):
        yield f"{shape}, {direction}", tuple(group)


def _sizes(cells: Sequence[CellRun]) -> str:
    entry = next((entry for cell in cells for entry in cell.measured if entry.kind != "dense"), None)
    entry = entry or next((entry for cell in cells for entry in cell.measured), None)
    if entry is None:
        return "No contestant has a number."
    grid, sizes = "x".join(str(entry.size(f"grid_{axis}")) for axis in "thw"), entry.size
    return (
        f"{grid} tokens ({sizes('tokens')}), batch {sizes('batch')}, {sizes('heads')} heads of {sizes('head_dim')}; "
        f"in tiles of {'x'.join(str(sizes(f'tile_{axis}')) for axis in 'thw')} {sizes('rows')} rows."
    )


def _stages(cells: Sequence[CellRun]) -> Section | None:
    figures = tuple(stage_bars(cells))
    if not figures:
        return None
    lead = (
        "Where the time of one forward call of the whole operator goes, by its own spans, in calls of their own (median of "
        "several, nothing else between them, the cache as the call before left it)."
    )
    return Section("stages", "Stages of the whole operator", lead, (*figures, stage_table(cells)))


def _memory(cells: Sequence[CellRun]) -> Section:
    lead = (
        "What one call needs beside its inputs. Block-sparse attention keeps O(selected blocks) of indices and O(tokens) of "
        "output; whatever grows with blocks squared shows here."
    )
    found = (memory([cell for cell in cells if cell.grid.direction == direction]) for direction in ("forward", "backward"))
    return Section("memory", "Memory", lead, tuple(figure for figure in found if figure is not None))


def _absent(cells: Sequence[CellRun]) -> Section | None:
    table = absent_table(cells)
    return (
        None if table is None else Section("absent", "Without a number", "Refused, failed, or wrong, in its own words.", (table,))
    )


def _speedups(cells: Sequence[CellRun]) -> Iterator[Speedup]:
    for cell in cells:
        if cell.serialised or cell.reference is None:
            continue
        for entry in cell.measured:
            if entry.kind != "dense":
                found = speedup(cell.reference, entry)
                saved = cell.reference.median_ns - entry.median_ns
                level = "kernel" if entry.kind == "fine" else "section"
                ratio = ratio_cell(found.ratio, found.interval)
                yield Speedup(f"{cell.name} {entry.name}", cell.reference.name, level, ratio, saved)  # type: ignore[arg-type]
