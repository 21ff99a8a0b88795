"""Builder of the tree-attention page from its folder of cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strobe.perf.report.blocks.damage import damage_banners, unread_banners
from strobe.perf.report.blocks.fields import beside, table_of
from strobe.perf.report.blocks.page import page
from strobe.perf.report.blocks.settings import settings_section
from strobe.perf.report.model import Banner, Block, Count, Fact, Number, Report, Section, Table, Text
from strobe.perf.report.study import load_study
from strobe.perf.report.tree_bench.cells import CellRun, read_cells
from strobe.perf.report.tree_bench.guide import guide_table
from strobe.perf.report.tree_bench.scaling_page import scaling_sections
from strobe.perf.report.tree_bench.tables import (
    absent_table,
    collective_table,
    part_figures,
    parts_table,
    speed_table,
    verdict_table,
)
from strobe.perf.report.tree_bench.verdicts import warnings

_LEAD = (
    "All strategies compute the same call on the same ranks, each rank with its own run of the keys. Every rank's result was "
    "held against float64 before any number was taken. Calls begin when all ranks are there and count by the slowest rank; "
    "strategies take turns in palindromes, so that ratios hold within one cell."
)


def tree_report(folder: Path, *, scaling: bool = False) -> Report:
    """Build the page of a tree-attention run.

    Args:
        scaling: scaling first, and the cells after it.

    Raises:
        DataError: the folder holds no cells.
    """
    found = read_cells(folder)
    cells = found.cells
    first = cells[0].run.header
    sections = [*(scaling_sections(cells) if scaling else ()), *(_cell(cell) for cell in cells)]
    environment = settings_section(load_study([cells[0].run.folder], into=folder))
    return page(
        title="Tree attention: scaling" if scaling else "Tree attention: strategies side by side",
        subtitle=f"{len(cells)} cells on {first.machine.device_name}, torch {first.machine.torch}",
        facts=(
            Fact("cells", Count(len(cells))),
            Fact("ranks", Text(", ".join(str(each) for each in sorted({cell.run.header.world_size for cell in cells})))),
            Fact("timing", Text("host clock around each call, ranks aligned by a barrier, slowest rank")),
        ),
        banners=(*_banners(cells), *unread_banners(found.unread)),
        sections=(*sections, environment),
    )


def shown_tables(cells: Sequence[CellRun], *, scaling: bool) -> tuple[Table, ...]:
    """Choose the tables that a terminal shows, in the page's order.

    Args:
        scaling: those of scaling, instead of those of each cell.
    """
    if scaling:
        blocks = [block for section in scaling_sections(cells) for block in section.blocks]
        return tuple(block for block in blocks if isinstance(block, Table))
    found: list[Table | None] = []
    for cell in cells:
        if cell.measured:
            found += [speed_table(cell), parts_table(cell), collective_table(cell)]
            found += [guide_table(cell, "free-running"), guide_table(cell, "serialised")]
        found.append(absent_table(cell))
    return tuple(table for table in found if table is not None)


def _banners(cells: Sequence[CellRun]) -> list[Banner]:
    found = list(damage_banners((cell.name, cell.run.damage) for cell in cells))
    failed = tuple(f"{cell.name}: {cell.failure}" for cell in cells if cell.failure)
    red = tuple(f"{cell.name} {e.name}: {e.reason}" for cell in cells for e in cell.entries if e.outcome == "red")
    held = tuple(
        f"{cell.name}: rank {cell.surroundings.delayed_rank} was held back"
        for cell in cells
        if cell.surroundings.delayed_rank is not None
    )
    if failed or red:
        found.append(Banner("stop", "Some of it has no numbers.", (*failed, *red)))
    if held:
        found.append(Banner("stop", "A rank was held back on purpose: these are not times of the code.", held))
    doubts = tuple(f"{cell.name}: {text}" for cell in cells for text in warnings(cell))
    if doubts:
        found.append(Banner("caution", "Before you read the numbers.", doubts))
    return found


def _cell(cell: CellRun) -> Section:
    title = cell.name
    if not cell.measured:
        absent = absent_table(cell)
        return Section(_id(title), title, f"No numbers: {cell.failure or 'no strategy passed'}.", (absent,) if absent else ())
    tables = (
        speed_table(cell), verdict_table(cell), parts_table(cell), collective_table(cell),
        guide_table(cell, "free-running"), guide_table(cell, "serialised"), absent_table(cell), _links(cell),
    )  # fmt: skip
    blocks: list[Block] = [table for table in tables if table is not None]
    return Section(_id(title), title, _LEAD, (*blocks, *part_figures(cell)))


def _id(title: str) -> str:
    return title.replace(".", "-").replace("_", "-")


def _links(cell: CellRun) -> Table | None:
    """Build the table of the measured links that the plan was made with; None if the cell has none."""
    found = cell.links
    if found is None:
        return None
    named = [
        ("flops per", _giga(found.flops_per_s, "GFLOP/s")),
        ("memory bytes per", _giga(found.memory_bytes_per_s, "GB/s")),
        ("launch", _micro(found.launch_s)),
    ]
    for rate in found.rates:
        named += [
            (f"{rate.kind} alpha", _micro(rate.alpha_s)),
            (f"{rate.kind} bytes per", _giga(rate.bytes_per_s, "GB/s")),
            (f"{rate.kind} host", _micro(rate.host_s)),
        ]
    fields = beside("of these ranks", ("measured",), numeric=True)
    rows = [row for row in named if row[1] is not None]
    return table_of(f"{cell.name}: links and roofs.", fields, rows, collapsed=True) if rows else None


def _giga(value: float | None, unit: str) -> Number | None:
    return None if value is None else Number(value * 1e-9, 2, unit)


def _micro(value: float | None) -> Number | None:
    return None if value is None else Number(value * 1e6, 2, "us")
