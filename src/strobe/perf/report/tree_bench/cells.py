"""Cells of a tree-attention run, read from their run folders for the pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from strobe.perf.analysis.runs import grid
from strobe.perf.analysis.runs.grid import Grid, names_in, read_grid, recorded
from strobe.perf.analysis.runs.rank_calls import Collective, Parts, RankCall, Region, collectives, parts, typical
from strobe.perf.measure.stats import percentile
from strobe.perf.records.grids import CALL, GUIDE, Links, Prediction, SentMessage, Surroundings
from strobe.perf.records.record import Mode, Span
from strobe.perf.records.store import RunRecords

_NOTHING_SAID = Surroundings()


@dataclass(frozen=True, kw_only=True, eq=False)
class TreeContestant(grid.Contestant):
    """One contestant of one cell.

    Args:
        ranks: by rank: time of each call.
        apart: by mode: calls, each of all ranks.
        prediction: what the plan says of it; None if it has no plan.
    """

    ranks: Mapping[int, tuple[int, ...]]
    apart: Mapping[Mode, tuple[tuple[RankCall, ...], ...]]
    prediction: Prediction | None

    @property
    def spread(self) -> float:
        """Spread of the timed calls, `(p90 - p10) / median`."""
        return (percentile(self.times_ns, 0.9) - percentile(self.times_ns, 0.1)) / self.median_ns

    @property
    def predicted_ns(self) -> float | None:
        """Predicted time of the whole call, ns; None without a prediction."""
        return None if self.prediction is None else self.prediction.total_ns

    @property
    def sent(self) -> tuple[SentMessage, ...]:
        """Predicted collectives in order."""
        return () if self.prediction is None else self.prediction.messages

    def parts(self, mode: Mode = "free-running") -> Parts | None:
        """Return the parts of a typical call; None if calls were not split in this mode."""
        calls = self.apart.get(mode, ())
        return typical([parts(ranks) for ranks in calls]) if calls else None

    def collectives(self, mode: Mode = "free-running") -> tuple[Collective, ...]:
        """Return every collective of a call, over all calls of one mode."""
        return collectives(self.apart.get(mode, ()))


@dataclass(frozen=True, kw_only=True, eq=False)
class CellRun:
    """One cell that was measured, or that failed."""

    run: RunRecords
    entries: tuple[TreeContestant, ...]

    @property
    def name(self) -> str:
        """Name of the cell's folder."""
        return self.run.folder.name

    @cached_property
    def measured(self) -> tuple[TreeContestant, ...]:
        """Contestants with numbers."""
        return tuple(entry for entry in self.entries if not entry.reason)

    @property
    def fastest(self) -> TreeContestant | None:
        """Contestant with the smallest median; None if none was measured."""
        return min(self.measured, key=lambda entry: entry.median_ns, default=None)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Sizes of the call by name; empty if the cell failed."""
        return next((entry.variant.sizes for entry in self.entries if entry.variant is not None), {})

    @property
    def dtype(self) -> str:
        """Dtype of the call's tensors; empty if the cell failed."""
        return next((entry.variant.dtype for entry in self.entries if entry.variant is not None), "")

    @property
    def failure(self) -> str:
        """Reason why the cell has no numbers at all; empty if it is complete."""
        end = self.run.end
        return "" if end and end.status == "complete" else end.message or end.status if end else "it was cut short"

    @property
    def surroundings(self) -> Surroundings:
        """State of the machine while the cell ran."""
        return self.run.surroundings or _NOTHING_SAID

    @property
    def links(self) -> Links | None:
        """Links measured by `measure_links`; None if the cell failed before."""
        return self.run.links


def read_cells(folder: Path) -> Grid[CellRun]:
    """Read every cell of a run that has records, even one that failed; of several attempts the last.

    Raises:
        DataError: the folder holds none.
    """
    return read_grid(folder, "tree", _cell, _place, "strobe bench tree")


def _place(cell: CellRun) -> tuple[str, int, int]:
    return cell.dtype, cell.sizes.get("tokens", 0), cell.run.header.world_size


def _cell(run: RunRecords) -> CellRun:
    spans: dict[str, list[Span]] = defaultdict(list)
    for span in run.spans:
        spans[span.variant].append(span)
    names = (name for name in names_in(run) if name != GUIDE)
    return CellRun(run=run, entries=tuple(_entry(run, name, spans[name]) for name in names))


def _entry(run: RunRecords, name: str, spans: Sequence[Span]) -> TreeContestant:
    rounds: dict[int, list[int]] = defaultdict(list)
    ranks: dict[int, list[int]] = defaultdict(list)
    for span in spans:
        if span.palindrome is not None and span.rank is None:
            rounds[span.palindrome].append(span.value_ns)
        elif span.palindrome is not None and span.rank is not None:
            ranks[span.rank].append(span.value_ns)
    modes: tuple[Mode, ...] = ("free-running", "serialised")
    return TreeContestant(
        **recorded(run, name, rounds),
        ranks={rank: tuple(values) for rank, values in ranks.items()},
        apart={mode: tuple(_apart(spans, mode)) for mode in modes},
        prediction=next((line for line in run.predictions if line.variant == name), None),
    )


def _apart(spans: Sequence[Span], mode: Mode) -> Iterator[tuple[RankCall, ...]]:
    """Yield the calls of one mode, each with all of its ranks."""
    totals: dict[tuple[int, int], int] = {}
    regions: dict[tuple[int, int], list[Region]] = defaultdict(list)
    for span in spans:
        if span.mode != mode or span.rank is None:
            continue
        key = (span.index or 0, span.rank)
        if span.name == CALL:
            totals[key] = span.value_ns
        else:
            regions[key].append(Region(name=span.name, part=span.part, start_ns=span.start_ns, value_ns=span.value_ns))
    num_ranks = 1 + max((rank for _, rank in totals), default=-1)
    for index in sorted({index for index, _ in totals}):
        keys = [(index, rank) for rank in range(num_ranks)]
        yield tuple(RankCall(total_ns=totals[key], regions=tuple(regions[key])) for key in keys)
