"""The cells of a run as its pages need them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from strobe.core.errors import DataError
from strobe.perf.measure.stats import Interval, Verdict, bootstrap_interval, judge, paired_interval, percentile
from strobe.perf.records.record import Gate, Quality, Variant
from strobe.perf.records.store import RunRecords, read_run
from strobe.perf.report.tree_bench.names import (
    ALPHA,
    BETA,
    CALL,
    CELLS,
    FREE,
    GUIDE,
    LINK,
    MACHINE,
    PREDICTED,
    SENT,
    SERIALISED,
)
from strobe.perf.report.tree_bench.split import Collective, Parts, RankCall, Region, collectives, parts, typical


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """One predicted collective."""

    what: str
    sent_bytes: float
    alpha_ns: float
    beta_ns: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """One contestant of one cell.

    Args:
        reason: why it has no number; empty if it has.
        rounds: by palindrome: time of each call, of the slowest rank, ns.
        ranks: by rank: time of each call.
        apart: by mode: calls, each of all ranks.
        numbers: the quality lines.
    """

    name: str
    reason: str
    variant: Variant | None
    gate: Gate | None
    rounds: Mapping[int, tuple[int, ...]]
    ranks: Mapping[int, tuple[int, ...]]
    apart: Mapping[str, tuple[tuple[RankCall, ...], ...]]
    numbers: tuple[Quality, ...]

    @cached_property
    def times_ns(self) -> tuple[int, ...]:
        """All timed calls."""
        return tuple(value for values in self.rounds.values() for value in values)

    @property
    def median_ns(self) -> float:
        """Median call."""
        return statistics.median(self.times_ns)

    @property
    def interval(self) -> Interval | None:
        """Bootstrap interval of the median; None with fewer than 30 calls."""
        return bootstrap_interval(statistics.median, self.times_ns, derived=False)

    @property
    def spread(self) -> float:
        """`(p90 - p10) / median` of the timed calls."""
        return (percentile(self.times_ns, 0.9) - percentile(self.times_ns, 0.1)) / self.median_ns

    def number(self, metric: str) -> Quality | None:
        """A quality line."""
        return next((line for line in self.numbers if line.metric == metric), None)

    @property
    def predicted_ns(self) -> float | None:
        """Of the whole call."""
        found = self.number(PREDICTED)
        return None if found is None else found.value

    @cached_property
    def sent(self) -> tuple[Sent, ...]:
        """Predicted collectives in order."""
        found: list[Sent] = []
        while (line := self.number(f"{SENT}:{len(found)}")) is not None:
            alpha, beta = self.number(f"{ALPHA}:{len(found)}"), self.number(f"{BETA}:{len(found)}")
            values = [each.value if each and each.value is not None else 0.0 for each in (line, alpha, beta)]
            found.append(Sent(what=line.definition, sent_bytes=values[0], alpha_ns=values[1], beta_ns=values[2]))
        return tuple(found)

    def parts(self, mode: str = FREE) -> Parts | None:
        """Where the time of a typical call went."""
        calls = self.apart.get(mode, ())
        return typical([parts(ranks) for ranks in calls]) if calls else None

    def collectives(self, mode: str = FREE) -> tuple[Collective, ...]:
        """Every collective of a call."""
        return collectives(self.apart.get(mode, ()))


@dataclass(frozen=True, kw_only=True, eq=False)
class CellRun:
    """One cell that was measured, or that failed."""

    run: RunRecords
    entries: tuple[Entry, ...]
    machine: tuple[Quality, ...]

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.run.folder.name

    @cached_property
    def measured(self) -> tuple[Entry, ...]:
        """Contestants with numbers."""
        return tuple(entry for entry in self.entries if not entry.reason)

    @property
    def fastest(self) -> Entry | None:
        """The smallest median."""
        return min(self.measured, key=lambda entry: entry.median_ns, default=None)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Of the call; empty if the cell failed."""
        return next((entry.variant.sizes for entry in self.entries if entry.variant is not None), {})

    @property
    def dtype(self) -> str:
        """Of the tensors."""
        return next((entry.variant.dtype for entry in self.entries if entry.variant is not None), "")

    @property
    def failure(self) -> str:
        """Why it has no numbers at all."""
        end = self.run.end
        return "" if end and end.status == "complete" else end.message or end.status if end else "it was cut short"

    def number(self, metric: str) -> float | None:
        """Of the machine."""
        return next((line.value for line in self.machine if line.metric == metric), None)

    def words(self, metric: str) -> str:
        """A text of the machine's."""
        return next((line.definition for line in self.machine if line.metric == metric), "")

    def link(self, name: str) -> float | None:
        """Of `measure_links`."""
        return self.number(LINK + name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Speedup:
    """Time of the reference / time of an entry, in the same palindromes."""

    ratio: float
    interval: Interval | None
    verdict: Verdict


def speedup(reference: Entry, entry: Entry) -> Speedup:
    """Compare two contestants palindrome by palindrome: the ratio of a palindrome is that of the means of its calls."""
    ratios, deltas = [], []
    for number in sorted(reference.rounds.keys() & entry.rounds.keys()):
        ours, theirs = statistics.fmean(entry.rounds[number]), statistics.fmean(reference.rounds[number])
        ratios.append(theirs / ours)
        deltas.append(theirs - ours)
    interval = paired_interval([math.log(ratio) for ratio in ratios])
    ratio = statistics.median(ratios)
    return Speedup(ratio=ratio, interval=interval, verdict=judge(ratio, interval, statistics.median(deltas)))


def read_cells(folder: Path) -> tuple[CellRun, ...]:
    """Read every cell of a run that has records, also one that failed; of several attempts the last.

    Raises:
        DataError: the folder holds none.
    """
    try:
        folders = (path for path in (folder / CELLS).iterdir() if path.is_dir() and not path.is_symlink())
        places = sorted(path for path in folders if "." not in path.name)
    except OSError as error:
        raise DataError(f"no cells at {folder / CELLS}: {error.strerror}; give a folder of `strobe bench tree`") from error
    found = []
    for place in places:
        try:
            found.append(_cell(read_run(place)))
        except DataError:
            continue
    if not found:
        raise DataError(f"no cell in {folder / CELLS} has records; run `strobe bench tree --out {folder}`")
    return tuple(sorted(found, key=lambda cell: (cell.dtype, cell.sizes.get("tokens", 0), cell.run.header.world_size)))


def _cell(run: RunRecords) -> CellRun:
    names = dict.fromkeys((*run.header.order, *(line.variant for line in run.gates), *(line.variant for line in run.excluded)))
    spans: dict[str, list[tuple[int | None, str, int, int, int]]] = defaultdict(list)
    for span in run.spans:
        spans[span.variant].append((span.palindrome, span.name, span.index or 0, span.start_ns, span.value_ns))
    return CellRun(
        run=run,
        entries=tuple(_entry(run, name, spans[name]) for name in names if name not in (GUIDE, MACHINE)),
        machine=tuple(line for line in run.quality if line.variant == MACHINE),
    )


def _entry(run: RunRecords, name: str, spans: Sequence[tuple[int | None, str, int, int, int]]) -> Entry:
    rounds: dict[int, list[int]] = defaultdict(list)
    ranks: dict[int, list[int]] = defaultdict(list)
    for lap, what, _, _, value in spans:
        if lap is not None and what == CALL:
            rounds[lap].append(value)
        elif lap is not None:
            ranks[_rank(what)].append(value)
    gate = next((line for line in run.gates if line.variant == name), None)
    return Entry(
        name=name,
        reason=_reason(run, name, gate, bool(rounds)),
        variant=next((variant for variant in run.variants if variant.name == name), None),
        gate=gate,
        rounds={lap: tuple(values) for lap, values in rounds.items()},
        ranks={rank: tuple(values) for rank, values in ranks.items()},
        apart={mode: tuple(_apart(spans, mode)) for mode in (FREE, SERIALISED)},
        numbers=tuple(line for line in run.quality if line.variant == name),
    )


def _rank(name: str) -> int:
    return int(name.rpartition("/rank")[2])


def _apart(spans: Sequence[tuple[int | None, str, int, int, int]], mode: str) -> Iterator[tuple[RankCall, ...]]:
    """Calls of one mode, each of all ranks."""
    totals: dict[tuple[int, int], int] = {}
    regions: dict[tuple[int, int], list[Region]] = defaultdict(list)
    for lap, what, index, start, value in spans:
        if lap is not None or not what.startswith(f"{mode}/"):
            continue
        name, key = what.removeprefix(f"{mode}/").rpartition("/rank")[0], (index, _rank(what))
        if name == CALL:
            totals[key] = value
        else:
            regions[key].append(Region(name=name, start_ns=start, value_ns=value))
    num_ranks = 1 + max((rank for _, rank in totals), default=-1)
    for index in sorted({index for index, _ in totals}):
        keys = [(index, rank) for rank in range(num_ranks)]
        yield tuple(RankCall(total_ns=totals[key], regions=tuple(regions[key])) for key in keys)


def _reason(run: RunRecords, name: str, gate: Gate | None, timed: bool) -> str:
    cause = next((line.cause for line in run.excluded if line.variant == name), "")
    if cause:
        return cause
    if gate is not None and not gate.passed:
        return f"red gate: {gate.detail}; {gate.rule}"
    return "" if timed else f"not reached: {run.end.message or run.end.status if run.end else 'the cell was cut short'}"
