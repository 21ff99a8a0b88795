"""Cells of an attention grid: contestants, times of their calls, and reasons for missing numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from strobe.core.errors import DataError
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL
from strobe.perf.analysis.runs import grid
from strobe.perf.analysis.runs.compare import timed_clips
from strobe.perf.analysis.runs.grid import Grid, names_in, read_grid, recorded
from strobe.perf.records.grids import HOST, MATMUL, STAGE, WHOLE, AttentionCell, Work
from strobe.perf.records.store import RunRecords


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionContestant(grid.Contestant):
    """One contestant of one cell.

    Args:
        hosts_ns: until each call returned to its caller.
        stages: of a whole operator and of all of it in the same calls, median ns by name.
    """

    hosts_ns: tuple[int, ...]
    stages: dict[str, int]

    @property
    def kind(self) -> Work | None:
        """Work that the contestant does: dense attention, the fine stage or the whole operator; None if it was never built."""
        settings = None if self.variant is None else self.variant.contestant
        return None if settings is None else settings.work

    @property
    def impl(self) -> str:
        """Name of the implementation, as a call gives it."""
        settings = None if self.variant is None else self.variant.contestant
        return "" if settings is None else settings.impl

    @property
    def group(self) -> str:
        """Group of the contestant: `dense`, `fine`, `tiled` or `raster`; `peer` for code that is not ours."""
        settings = None if self.variant is None else self.variant.contestant
        if settings is None or settings.peer:
            return "peer"
        return settings.work if settings.work != "whole" else "raster" if settings.raster else "tiled"

    @property
    def flops(self) -> int:
        """FLOPs of one call over the selected pairs of tokens."""
        return 0 if self.variant is None else self.variant.costs[0].flops

    @property
    def padded_flops(self) -> int:
        """FLOPs of one call over whole blocks, padding rows included."""
        return self.size("padded_flops")

    def size(self, name: str) -> int:
        """Return a named size of the call; 0 if it never ran."""
        return 0 if self.variant is None else self.variant.sizes.get(name, 0)

    def number(self, metric: str, *, against: str | None = None, tensor: str = "") -> float | None:
        """Return the first quality number of a metric; `against` and `tensor` narrow the choice if given."""
        for line in self.numbers:
            if line.metric == metric and against in (None, line.against) and tensor in ("", line.tensor):
                return line.value
        return None

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Median time of each stage, ns, with a last item for the time between the stages."""
        inside = [(name, ns) for name, ns in self.stages.items() if name != WHOLE]
        return (*inside, ("between the stages", self.stages.get(WHOLE, 0) - sum(ns for _, ns in inside)))


@dataclass(frozen=True, kw_only=True, eq=False)
class CellRun:
    """One measured cell of the grid."""

    run: RunRecords
    grid: AttentionCell
    entries: tuple[AttentionContestant, ...]

    @property
    def name(self) -> str:
        """Name of the cell's folder."""
        return self.run.folder.name

    @property
    def serialised(self) -> bool:
        """Whether launches were serialised, so that the times are not those of the code."""
        return self.run.header.machine.launch_blocking

    @property
    def contestants(self) -> tuple[AttentionContestant, ...]:
        """All entries but the matrix product."""
        return tuple(entry for entry in self.entries if entry.name != MATMUL)

    @cached_property
    def measured(self) -> tuple[AttentionContestant, ...]:
        """Contestants with numbers."""
        return tuple(entry for entry in self.contestants if not entry.reason)

    @cached_property
    def reference(self) -> AttentionContestant | None:
        """Fastest dense contestant; None if none was measured."""
        dense = [entry for entry in self.measured if entry.kind == "dense"]
        return min(dense, key=lambda entry: entry.median_ns, default=None)

    @cached_property
    def peak_flops_per_s(self) -> float | None:
        """FLOP rate that a large matrix product reached in the same palindromes, FLOP/s; None if not measured."""
        product = next((entry for entry in self.entries if entry.name == MATMUL and entry.times_ns), None)
        return None if product is None else product.flops / product.median_ns * 1e9

    @cached_property
    def sparsity(self) -> float:
        """Share of token pairs that the sparse contestants skip; they all share one selection."""
        found = [entry.variant.sparsity or 0.0 for entry in self.measured if entry.variant and entry.kind != "dense"]
        return max(found, default=0.0)


def read_cells(folder: Path) -> Grid[CellRun]:
    """Read every cell of a run that has records, even one that was cut short.

    Raises:
        DataError: the folder holds none.
    """
    return read_grid(folder, "attention", _cell, _place, "strobe bench attention")


def _place(cell: CellRun) -> tuple[str, bool, int, float]:
    return cell.grid.shape, cell.grid.backward, cell.grid.block, cell.sparsity


def _cell(run: RunRecords) -> CellRun:
    if run.cell is None:
        raise DataError(f"{run.folder} does not say which cell of the grid it is: its line `attentioncell` is not there")
    return CellRun(run=run, grid=run.cell, entries=tuple(_entries(run, names_in(run))))


def _entries(run: RunRecords, names: Sequence[str]) -> Iterator[AttentionContestant]:
    clips = {clip.order: clip for clip in timed_clips(run)}
    rounds: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    hosts: dict[str, list[int]] = defaultdict(list)
    stages: dict[str, dict[str, int]] = defaultdict(dict)
    for span in run.spans:
        if span.order not in clips:
            continue
        if span.name == STAGE:
            stages[span.variant][span.part] = span.value_ns
        elif span.name == HOST:
            hosts[span.variant].append(span.value_ns)
        elif span.palindrome is not None and span.name in (ATTENTION, ATTENTION_KERNEL, MATMUL):
            rounds[span.variant][span.palindrome].append(span.value_ns)
    for name in names:
        yield AttentionContestant(**recorded(run, name, rounds[name]), hosts_ns=tuple(hosts[name]), stages=stages[name])
