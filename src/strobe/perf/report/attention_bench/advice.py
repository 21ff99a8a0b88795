"""Recommended settings, from measurements, for three scenarios: little memory, most speed, best quality."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias

from strobe.perf.analysis.runs.grid import Speedup, speedup
from strobe.perf.records.grids import COSINE, PEAK, RECALL, TEMPORARY
from strobe.perf.report.attention_bench.cells import AttentionContestant, CellRun, read_cells
from strobe.perf.report.attention_bench.tables import SERIALISED
from strobe.perf.report.blocks.fields import Field, count, numeric, table_of, time
from strobe.perf.report.blocks.page import page
from strobe.perf.report.blocks.ratios import ratio_cell
from strobe.perf.report.blocks.settings import settings_section
from strobe.perf.report.model import Banner, Cell, Code, Missing, Notes, Number, Report, Section, Share, Table
from strobe.perf.report.study import load_study
from strobe.perf.report.text import bytes_cell

KEPT: Final = 0.7
"""Smallest recall for advice on memory and speed; without it, selecting nothing would be the fastest."""
WORTH: Final = 2.0
"""Smallest speedup over dense attention for advice on quality; without it, full attention would be the best."""
GUIDE: Final = {
    ("k8", 64): "the guide for little memory: topk=8, block_size=64",
    ("k16", 256): "the guide for speed: topk=16, block_size=(4, 8, 8)",
    ("k32", 128): "the guide for quality: topk=32, block_size=(2, 8, 8)",
}
"""Settings that FastVideo's benchmarking page names for the three scenarios."""
_NONE: Final = "not measured here"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting of the whole operator with its measured results.

    Args:
        keys: keys that a query sees, mean; padding is not counted.
        density: share of all pairs of tokens that is computed.
        recall: share of full attention's mass on those keys.
        temporary_bytes, peak_bytes: memory of one call.
        found: against the fastest dense contestant of its cell; None where there is none.
    """

    cell: CellRun
    entry: AttentionContestant
    keys: int
    density: float
    recall: float
    temporary_bytes: float | None
    peak_bytes: float | None
    found: Speedup | None

    @property
    def ms(self) -> float:
        """Median time of a call, ms."""
        return self.entry.median_ns / 1e6

    @property
    def cosine(self) -> float | None:
        """Cosine of the fine stage's output to dense attention's; None where it was not measured."""
        fine = next((each for each in self.cell.measured if each.kind == "fine"), None)
        return None if fine is None else fine.number(COSINE, against="dense")

    @property
    def words(self) -> str:
        """Arguments that select this setting: `topk=..., tile=..., impl=...`."""
        tile = tuple(self.entry.size(f"tile_{axis}") for axis in "thw")
        return f"topk={self.entry.size('blocks_per_row')}, tile={tile}, impl={self.entry.impl}"


def _mb(num_bytes: float) -> Number:
    return bytes_cell(num_bytes, "MB", 1)


def advice_report(folder: Path) -> Report:
    """Build the page from a run's records: the fastest whole operator of each forward cell.

    Raises:
        DataError: the folder holds no cells.
    """
    cells = read_cells(folder).cells
    sections = [_section(shape, settings) for shape, settings in _by_shape(cells)]
    machine = cells[0].run.header.machine
    stop = Banner("stop", "Serialised run: nothing in it is compared.", (SERIALISED,))
    return page(
        title="Video-sparse attention: three scenarios, measured",
        subtitle=f"on {machine.device_name}, torch {machine.torch}; whole operator, forward",
        banners=(stop,) if any(cell.serialised for cell in cells) else (),
        sections=(
            *(section for section in sections if section is not None),
            _how(),
            settings_section(load_study([cells[0].run.folder], into=folder)),
        ),
    )


def advice_tables(cells: Sequence[CellRun]) -> tuple[Table, ...]:
    """Choose the tables that a terminal shows: the setting for each scenario."""
    return tuple(_advice(shape, settings) for shape, settings in _by_shape(cells) if settings)


def _by_shape(cells: Sequence[CellRun]) -> Iterator[tuple[str, tuple[Setting, ...]]]:
    for shape, own in groupby(cells, key=lambda cell: cell.grid.shape):
        yield shape, tuple(_settings(tuple(own)))


def _settings(cells: Sequence[CellRun]) -> Iterator[Setting]:
    """Yield the fastest whole operator of each forward cell; if calls from raster order were measured, of those."""
    for cell in cells:
        whole = [entry for entry in cell.measured if entry.kind == "whole" and not entry.is_peer]
        raster = [entry for entry in whole if entry.group == "raster"]
        entry = min(raster or whole, key=lambda each: each.median_ns, default=None)
        recall = None if entry is None else entry.number(RECALL)
        if cell.grid.direction != "forward" or entry is None or recall is None or entry.variant is None:
            continue
        density = 1 - (entry.variant.sparsity or 0.0)
        compared = cell.reference is not None and not cell.serialised
        yield Setting(
            cell=cell,
            entry=entry,
            keys=round(density * entry.size("tokens")),
            density=density,
            recall=recall,
            temporary_bytes=entry.number(TEMPORARY),
            peak_bytes=entry.number(PEAK),
            found=speedup(cell.reference, entry) if compared and cell.reference else None,
        )


def choose(settings: Sequence[Setting]) -> dict[str, tuple[Setting | None, str]]:
    """Choose one setting for each scenario, and name the rule behind the choice.

    Returns:
        by scenario: the setting, or None if no measured one meets the rule.
    """
    keeping = [each for each in settings if each.recall >= KEPT]
    sized = [each for each in keeping if each.temporary_bytes is not None]
    worth = [each for each in settings if each.found is not None and each.found.ratio >= WORTH]
    kept = f"of those that keep {100 * KEPT:.0f} % of full attention's mass"
    return {
        "memory-limited": (
            min(sized, key=lambda each: (each.temporary_bytes or 0.0, each.ms), default=None),
            f"least temporary memory {kept}",
        ),
        "maximum performance": (min(keeping, key=lambda each: each.ms, default=None), f"least time {kept}"),
        "quality-critical": (
            max(worth, key=lambda each: (each.recall, -each.ms), default=None),
            f"largest recall of those at least {WORTH:g}x as fast as dense attention",
        ),
    }


_FIELDS: Final[tuple[Field[Setting], ...]] = (
    Field("setting", lambda each: each.words, Code),
    count("block", lambda each: each.cell.grid.block),
    count("key tiles", lambda each: each.entry.size("blocks_per_row"), "that every query tile sees"),
    count("selected keys", lambda each: each.keys, "that a query sees, mean; padding is not counted"),
    numeric("density", lambda each: each.density, "share of all pairs of tokens that is computed", show=Share),
    time("time", lambda each: each.entry.median_ns),
    numeric(
        "speedup",
        lambda each: each.found and ratio_cell(each.found.ratio, each.found.interval),
        "over the fastest dense contestant of the same cell",
        missing=_NONE,
    ),
    numeric(
        "temporary", lambda each: each.temporary_bytes, "memory one call needs, its output included", show=_mb, missing=_NONE
    ),
    numeric("peak", lambda each: each.peak_bytes, "of everything, during one call", show=_mb, missing=_NONE),
    numeric("recall", lambda each: each.recall, "share of full attention's mass on the selected keys", show=Share),
    numeric(
        "cosine to dense",
        lambda each: each.cosine,
        "of the fine stage's output, without the coarse part, where it was measured",
        show=lambda cosine: Number(cosine, 4),
        missing=_NONE,
    ),
)


_Advised: TypeAlias = tuple[str, Setting | None, str]
"""A scenario, the setting that was chosen for it, and the rule."""


def _advice(shape: str, settings: tuple[Setting, ...]) -> Table:
    """Build the table of chosen settings, one row for each scenario."""

    def chosen(row: _Advised) -> Setting | None:
        return row[1]

    def named(row: _Advised) -> Setting | Cell:
        return row[1] or Missing(f"no measured setting meets: {row[2]}", "none")

    name, *others = _FIELDS
    fields: tuple[Field[_Advised], ...] = (
        Field("scenario", lambda row: row[0]),
        name.of(named),
        *(field.of(chosen, _NONE) for field in others),
        Field("rule", lambda row: row[2]),
    )
    rows = [(scenario, setting, rule) for scenario, (setting, rule) in choose(settings).items()]
    return table_of(f"{shape}: advice.", fields, rows)


def _section(shape: str, settings: tuple[Setting, ...]) -> Section | None:
    if not settings:
        return None
    remark: Field[Setting] = Field("remark", lambda each: GUIDE.get((each.cell.grid.budget, each.cell.grid.block), ""))
    everything = table_of(f"{shape}: everything measured.", (*_FIELDS, remark), settings, sortable=True)
    return Section(f"advice-{shape}".replace(".", "-"), shape, "", (_advice(shape, settings), everything))


def _how() -> Section:
    items = (
        "Recall depends on the data. These tensors are synthetic: smooth over the grid, with noise of each token, so that near "
        "tokens see each other (docs/bench_attention.md has the formula). Measure your own with video_sparse_attention's probe.",
        "A number of key tiles says nothing until the block size is multiplied in: topk=16 with 256 tokens and topk=32 with 128 "
        "are the same 4,096 keys.",
        "Dense attention as flash kernels compute it has no memory quadratic in the tokens either; sparsity saves work.",
        f"Advice on memory and speed keeps {100 * KEPT:.0f} % of the mass, or the answer would be the sparsest setting; advice "
        f"on quality asks for {WORTH:g}x over dense attention, or it would be dense attention.",
    )
    return Section("how", "How to read this", "", (Notes(items),))
