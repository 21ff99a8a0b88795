"""From a folder of cells to one `Report`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from strobe.perf.report.attention_bench.cells import CellRun, read_cells, speedup
from strobe.perf.report.attention_bench.pictures import memory, rates, speedups, stage_bars, stage_table
from strobe.perf.report.attention_bench.tables import SERIALISED, absent_table, gradient_table, precision_table, speed_table
from strobe.perf.report.model import SCHEMA_VERSION, Banner, Block, Count, Fact, Report, Section, Speedup, Text
from strobe.perf.report.sections.headline import ratio_cell
from strobe.perf.report.sections.settings import banners, settings_section
from strobe.perf.report.study import load_study

_LEAD = (
    "Every contestant of a cell computes the same call. Its gate was checked before any number was taken; calls of all "
    "contestants and of a large matrix product were taken in palindromes, so that ratios hold within one cell."
)
_COLD = "On a GPU a call lies between two CUDA events, waits in a full queue, and the L2 cache is overwritten before it."


def bench_report(folder: Path) -> Report:
    """Build the page of a run.

    Raises:
        DataError: the folder holds no cells.
    """
    cells = read_cells(folder)
    study = load_study([cell.run.folder for cell in cells], into=folder)
    machine = cells[0].run.header.machine
    sections = [*_groups(cells), _stages(cells), _memory(cells), _absent(cells)]
    environment = settings_section(load_study([cells[0].run.folder], into=folder))
    serialised = [cell.name for cell in cells if cell.serialised]
    stop = Banner("stop", "Serialised run: nothing in it is compared.", (SERIALISED,))
    return Report(
        v=SCHEMA_VERSION,
        speedups=tuple(_speedups(cells)),
        title="Attention over the grid",
        subtitle=f"{len(cells)} cells on {machine.device_name}, torch {machine.torch}, CUDA {machine.cuda or 'none'}",
        facts=(
            Fact("cells", Count(len(cells))),
            Fact("numbers", Count(sum(len(cell.measured) for cell in cells))),
            Fact("timing", Text(_COLD if machine.device.startswith("cuda") else "host clock around each call")),
        ),
        banners=(*((stop,) if serialised else ()), *map(gathered, banners(study))),
        sections=(*(section for section in sections if section is not None), environment),
    )


def gathered(banner: Banner) -> Banner:
    """The same remark on many cells as one line; what is said of one cell, or of no cell by name, as it is."""
    cells: dict[str, list[str]] = {}
    for item in banner.items:
        name, _, remark = item.partition(": ")
        cells.setdefault(remark or name, []).append(item)
    items = (own[0] if len(own) == 1 else f"{len(own)} cells: {remark}" for remark, own in cells.items())
    return msgspec.structs.replace(banner, items=tuple(items))


def _groups(cells: Sequence[CellRun]) -> Iterator[Section]:
    """A section for every shape and direction."""
    for (shape, direction), group in groupby(cells, key=lambda cell: (cell.shape, cell.direction)):
        own = tuple(group)
        title = f"{shape}, {direction}"
        blocks: list[Block] = []
        for block in dict.fromkeys(cell.block for cell in own):
            same = [cell for cell in own if cell.block == block]
            blocks += [figure for figure in (speedups(same), *rates(same)) if figure is not None]
        gradients = gradient_table(own, title)
        if any(cell.measured for cell in own):
            blocks.append(speed_table(own, title))
        blocks += [precision_table(own, title), *((gradients,) if gradients else ())]
        yield Section(f"{shape}-{direction}".replace(".", "-"), title, f"{_sizes(own)} {_LEAD}", tuple(blocks))


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
    found = (memory([cell for cell in cells if cell.direction == direction]) for direction in ("forward", "backward"))
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
