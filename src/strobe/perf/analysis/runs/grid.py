"""Cells of a grid of attention or tree attention: runs, outcomes of contestants, and the parts of calls on several ranks."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated as A
from typing import Any, Literal, NamedTuple

from strobe.core.costs import DevicePeaks, device_peaks
from strobe.core.errors import DataError
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL
from strobe.perf.analysis.runs.compare import SideClocks, ratio_cell, side_clocks, timed_clips
from strobe.perf.measure.stats import Interval, Verdict, bootstrap_interval, judge, paired_interval
from strobe.perf.records.record import (
    CALL,
    CELLS,
    GUIDE,
    HOST,
    LOCAL,
    MATMUL,
    MEETING,
    MERGE,
    MESSAGE,
    STAGE,
    WAIT,
    WHOLE,
    AttentionCell,
    Contestant,
    Gate,
    Prediction,
    Quality,
    RankCall,
    RunKind,
    SentMessage,
    Span,
    Surroundings,
    Variant,
    Work,
)
from strobe.perf.records.store import RunRecords, read_run, superseded
from strobe.perf.table.model import Ratio, Time
from strobe.perf.table.rows import col, gathered, term

Outcome = Literal["measured", "refused", "failed", "red", "not reached"]
"""Outcomes of a contestant, in order: has numbers, cannot run here, raised an error, red gate, cell ended before its turn."""
_TIMED = frozenset((ATTENTION, ATTENTION_KERNEL, MATMUL, CALL))
"""Spans of the calls that count."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GridContestant:
    """One contestant of one cell.

    Args:
        reason: why it has no number; empty if it has.
        rounds: by palindrome: the times of its calls, ns.
        spans: all of its timed regions.
        clocks: while its calls were timed; None where they were not sampled.
        prediction: what a plan says of it; None if it has no plan.
    """

    name: str
    outcome: Outcome
    reason: str
    variant: Variant | None
    gate: Gate | None
    rounds: Mapping[int, tuple[int, ...]]
    numbers: tuple[Quality, ...]
    spans: tuple[Span, ...] = ()
    clocks: SideClocks | None = None
    prediction: Prediction | None = None

    @property
    def settings(self) -> Contestant | None:
        """What its record says that it computes; None if it was never built."""
        return None if self.variant is None else self.variant.contestant

    @property
    def kind(self) -> Work | None:
        """Work that the contestant does: dense attention, the fine stage or the whole operator; None if it was never built."""
        return None if self.settings is None else self.settings.work

    @property
    def group(self) -> str:
        """Group of the contestant: `dense`, `fine`, `tiled` or `raster`; `peer` for code that is not ours."""
        settings = self.settings
        if settings is None or settings.peer:
            return "peer"
        return settings.work if settings.work != "whole" else "raster" if settings.raster else "tiled"

    @cached_property
    def times_ns(self) -> tuple[int, ...]:
        return tuple(value for values in self.rounds.values() for value in values)

    @cached_property
    def median_ns(self) -> float:
        return statistics.median(self.times_ns)

    @property
    def interval(self) -> Interval | None:
        """Bootstrap interval of the median; None with fewer than 30 calls, where it would be too narrow."""
        return bootstrap_interval(statistics.median, self.times_ns)

    @property
    def host_ns(self) -> float | None:
        """Median time until a call returned to its caller, ns; None where it was not measured."""
        found = [span.value_ns for span in self.spans if span.name == HOST]
        return statistics.median(found) if found else None

    @cached_property
    def stages(self) -> dict[str, int]:
        """Median time of each stage of a whole operator and of all of it in the same calls, ns."""
        return {span.part: span.value_ns for span in self.spans if span.name == STAGE}

    @property
    def between_stages(self) -> tuple[tuple[str, int], ...]:
        """Median time of each stage, ns, with a last item for the time between the stages."""
        inside = [(name, ns) for name, ns in self.stages.items() if name != WHOLE]
        return (*inside, ("between the stages", self.stages.get(WHOLE, 0) - sum(ns for _, ns in inside)))

    @property
    def density(self) -> float:
        """Share of all pairs of tokens that is computed."""
        return 1.0 if self.variant is None else 1 - (self.variant.sparsity or 0.0)

    @property
    def flops(self) -> int:
        """FLOPs of one call over the selected pairs of tokens."""
        return 0 if self.variant is None else self.variant.costs[0].flops

    @property
    def padded_flops(self) -> int:
        """FLOPs of one call over whole blocks, padding rows included."""
        return self.size("padded_flops")

    @property
    def predicted_ns(self) -> float | None:
        """Predicted time of the whole call, ns; None without a prediction."""
        return None if self.prediction is None else self.prediction.total_ns

    @property
    def sent(self) -> tuple[SentMessage, ...]:
        return () if self.prediction is None else self.prediction.messages

    def size(self, name: str) -> int:
        """Return a named size of the call; 0 if it never ran."""
        return 0 if self.variant is None else self.variant.sizes.get(name, 0)

    def number(self, metric: str, *, against: str | None = None, tensor: str = "") -> float | None:
        """Return the first quality number of a metric; `against` and `tensor` narrow the choice if given."""
        for line in self.numbers:
            if line.metric == metric and against in (None, line.against) and tensor in ("", line.tensor):
                return line.value
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class CellRun:
    """One cell that was measured, or that failed."""

    run: RunRecords
    entries: tuple[GridContestant, ...]

    @property
    def name(self) -> str:
        return self.run.folder.name

    @property
    def grid(self) -> AttentionCell:
        """Coordinates of a cell of an attention grid."""
        assert self.run.cell is not None, "a run without them is no cell of such a grid"
        return self.run.cell

    @property
    def contestants(self) -> tuple[GridContestant, ...]:
        """All entries but the matrix product."""
        return tuple(entry for entry in self.entries if entry.name != MATMUL)

    @cached_property
    def measured(self) -> tuple[GridContestant, ...]:
        return tuple(entry for entry in self.contestants if not entry.reason)

    @cached_property
    def reference(self) -> GridContestant | None:
        """Fastest dense contestant; None if none was measured."""
        dense = [entry for entry in self.measured if entry.kind == "dense"]
        return min(dense, key=lambda entry: entry.median_ns, default=None)

    @cached_property
    def settings(self) -> Variant | None:
        """Settings of the first contestant that has some; None if the cell failed."""
        return next((entry.variant for entry in self.entries if entry.variant is not None), None)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Sizes of the call by name; empty if the cell failed."""
        return {} if self.settings is None else self.settings.sizes

    @property
    def dtype(self) -> str:
        """Dtype of the call's tensors; empty if the cell failed."""
        return "" if self.settings is None else self.settings.dtype

    @property
    def failure(self) -> str:
        """Reason why the cell has no numbers at all; empty if it is complete."""
        end = self.run.end
        return "" if end and end.status == "complete" else end.message or end.status if end else "it was cut short"

    @property
    def surroundings(self) -> Surroundings:
        """State of the machine while the cell ran."""
        return self.run.surroundings or Surroundings()

    @property
    def serialised(self) -> bool:
        """Whether launches were serialised, so that the times are not those of the code."""
        return self.run.header.machine.launch_blocking

    @cached_property
    def sparsity(self) -> float:
        """Share of token pairs that the sparse contestants skip; they all share one selection."""
        return max((1 - entry.density for entry in self.measured if entry.kind != "dense"), default=0.0)

    @cached_property
    def peak_flops_per_s(self) -> float | None:
        """FLOP rate that a large matrix product reached in the same palindromes, FLOP/s; None if not measured."""
        product = next((entry for entry in self.entries if entry.name == MATMUL and entry.times_ns), None)
        return None if product is None else product.flops / product.median_ns * 1e9

    @property
    def peaks(self) -> DevicePeaks | None:
        return device_peaks(self.run.header.machine.device_name)

    @cached_property
    def clocks_of_rounds(self) -> bool:
        """Whether the clock was sampled over whole rounds, and not in the laps of each contestant, as older records have it."""
        clocks = [entry.clocks for entry in self.entries if entry.clocks is not None]
        return len(clocks) > 1 and all(each.clips_mhz == clocks[0].clips_mhz for each in clocks)


def speedup(reference: GridContestant, entry: GridContestant) -> tuple[Ratio, Verdict]:
    """Return the ratio of the reference's time to a contestant's; of a palindrome it is that of their mean call times."""
    ratios, deltas = [], []
    for number in sorted(reference.rounds.keys() & entry.rounds.keys()):
        ours, theirs = statistics.fmean(entry.rounds[number]), statistics.fmean(reference.rounds[number])
        ratios.append(theirs / ours)
        deltas.append(theirs - ours)
    interval = paired_interval([math.log(each) for each in ratios], ratio := statistics.median(ratios))
    return ratio_cell(ratio, interval), judge(ratio, interval, statistics.median(deltas))


def _outcome(run: RunRecords, name: str, gate: Gate | None, *, timed: bool) -> tuple[Outcome, str]:
    """Return the outcome of a contestant, and the reason why it has no number; `timed`: it has calls."""
    left_out = next((line for line in run.excluded if line.variant == name and line.span == "clip"), None)
    if left_out is not None:
        return "refused" if left_out.kind == "refused" else "failed", left_out.cause
    if gate is not None and not gate.passed:
        return "red", f"red gate: {gate.detail}; {gate.rule}"
    if timed:
        return "measured", ""
    return "not reached", f"not reached: {run.end.message or run.end.status if run.end else 'the cell was cut short'}"


def cell_of(run: RunRecords) -> CellRun:
    """Return a cell with all planned contestants, in order, then those that only other lines name.

    Raises:
        DataError: the run is of an attention grid, and does not say of which cell.
    """
    if run.header.kind == "attention" and run.cell is None:
        raise DataError(f"{run.folder} does not say which cell of the grid it is: its line `attentioncell` is not there")
    settings, gates = (line.name for line in run.variants), (line.variant for line in run.gates)
    names = dict.fromkeys((*run.header.order, *settings, *gates, *(line.variant for line in run.excluded)))
    return CellRun(run=run, entries=tuple(_entries(run, [name for name in names if name != GUIDE])))


def _entries(run: RunRecords, names: Sequence[str]) -> Iterator[GridContestant]:
    timed = {clip.order for clip in timed_clips(run)}
    spans = gathered((span.variant, span) for span in run.spans if span.order in timed)
    for name in names:
        own = spans.get(name, [])
        calls = (span for span in own if span.rank is None and span.name in _TIMED)
        rounds = gathered((span.palindrome, span.value_ns) for span in calls if span.palindrome is not None)
        gate = next((line for line in run.gates if line.variant == name), None)
        outcome, reason = _outcome(run, name, gate, timed=bool(rounds))
        yield GridContestant(
            name=name,
            outcome=outcome,
            reason=reason,
            variant=next((variant for variant in run.variants if variant.name == name), None),
            gate=gate,
            rounds={number: tuple(values) for number, values in rounds.items()},
            numbers=tuple(line for line in run.quality if line.variant == name),
            spans=tuple(own),
            clocks=side_clocks(run, name),
            prediction=next((line for line in run.predictions if line.variant == name), None),
        )


def read_grid(
    folder: Path, kind: RunKind, order: Callable[[CellRun], Any], verb: str
) -> tuple[tuple[CellRun, ...], tuple[str, ...]]:
    """Return every cell of a grid that has records, including incomplete ones, of several attempts the last; and the folders that
    cannot be read, with the reason, one line each.

    Args:
        order: key that sorts the cells.
        verb: command that measures such a grid.
    """
    try:
        places = sorted(path for path in (folder / CELLS).iterdir() if path.is_dir() and not path.is_symlink())
    except OSError as error:
        raise DataError(f"no cells at {folder / CELLS}: {error.strerror}; give a folder of `{verb}`") from error
    found: list[CellRun] = []
    unread: list[str] = []
    for place in (place for place in places if not superseded(place)):
        try:
            run = read_run(place)
            if run.header.kind != kind:
                raise DataError(f"{place} holds a run of kind {run.header.kind!r}, which is no cell of `{verb}`")
            found.append(cell_of(run))
        except DataError as error:
            unread.append(f"{place.name}: {error}")
    if not found:
        told = f": {unread[0]}" if unread else ""
        raise DataError(f"no cell in {folder / CELLS} has records{told}; run `{verb} --out {folder}`")
    return tuple(sorted(found, key=order)), tuple(unread)


# Parts of multi-rank calls: waiting and transfer of each collective, exposed communication, and the last rank.


def regions_of(call: RankCall, *names: str) -> list[Span]:
    """Return the regions of a call that have one of these names."""
    return [region for region in call if region.name in names]


def _stretches(call: RankCall, *names: str) -> list[tuple[int, int]]:
    return [(region.start_ns, region.start_ns + region.value_ns) for region in regions_of(call, *names)]


def covered_ns(stretches: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of half-open intervals `[start, stop)`, ns."""
    total, reached = 0, None
    for start, stop in sorted(stretches):
        begin = start if reached is None else max(start, reached)
        if stop > begin:
            total += stop - begin
            reached = stop
    return total


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCollective:
    """One collective of a strategy on all ranks, with medians over its calls.

    Args:
        kind: `agreement`, `gather`, `exchange` or `reduce`.
        place: among those of a call, from 0.
        transfer_ns: the shortest time that a rank was held up by it: the last to come waits for nobody.
        waits_ns: of each rank, how much longer it was held up than that.
        last: the rank that waited least, most often.
        last_share: in which share of the calls.
    """

    kind: str
    place: int
    transfer_ns: float
    waits_ns: tuple[float, ...]
    last: int
    last_share: float


def held_up(ranks: Sequence[RankCall]) -> list[tuple[str, tuple[int, ...]]]:
    """Return kind and times of the collectives of one call, in order: how long each rank was held up by it, ns.

    Only durations within a rank are used, so clocks need not agree. A collective that overlaps with other work holds a rank up
    only during its last part (`tree_wait`).
    """
    found = []
    for call in ranks:
        waits, own = regions_of(call, WAIT), list[tuple[str, int]]()
        for message in regions_of(call, MESSAGE):
            own_waits = (each for each in waits if each.part == message.part)
            wait = next((each for each in own_waits if 0 <= each.start_ns - message.start_ns <= message.value_ns), message)
            if wait is not message:
                waits.remove(wait)
            own.append((message.part, wait.value_ns))
        found.append(own)
    return [(each[0][0], tuple(ns for _, ns in each)) for each in zip(*found, strict=False)]


class Parts(NamedTuple):
    """Parts of a call's time, mean over the ranks, ns; they add up to the whole."""

    total: A[float, col("the call", "whole", Time)]
    local: A[float, col("attention", "local", Time)]
    merge: A[float, col("partial results put together", "merge", Time)]
    wait: A[float, col("for other ranks, of exposed communication", "wait", Time)]
    transfer: A[float, col("the rest of exposed communication", "transfer", Time)]
    host: A[float, col("neither: checks, packing, launching", "host", Time)]
    hidden: A[float, term("communication beside attention; no part of the whole", "hidden", Time)]


def parts(ranks: Sequence[RankCall]) -> Parts:
    """Split one call into its parts.

    Exposed communication of a rank is `|union(messages, work)| - |union(work)|`; of that, the wait is at most what its
    collectives waited.
    """
    waits = [[ns - min(held) for ns in held] for _, held in held_up(ranks)]
    rows = []
    for rank, call in enumerate(ranks):
        (whole,) = regions_of(call, CALL)
        local = covered_ns(_stretches(call, LOCAL))
        work, messages = _stretches(call, LOCAL, MERGE), _stretches(call, MESSAGE, MEETING)
        busy, both, comm = covered_ns(work), covered_ns(work + messages), covered_ns(messages)
        exposed, met = both - busy, sum(region.value_ns for region in regions_of(call, MEETING))
        wait = min(exposed, sum(each[rank] for each in waits) + met)
        rows.append((whole.value_ns, local, busy - local, wait, exposed - wait, max(0, whole.value_ns - both), comm - exposed))
    return Parts(*(statistics.fmean(column) for column in zip(*rows, strict=True)))


def typical(calls: Sequence[Parts]) -> Parts:
    """Return the mean of the half of the calls around the median, so that parts add up and rare outliers are left out."""
    ranked = sorted(calls, key=lambda each: each.total)
    quarter = len(ranked) // 4
    middle = ranked[quarter : len(ranked) - quarter]
    return Parts(*(statistics.fmean(column) for column in zip(*middle, strict=True)))


def collectives(calls: Sequence[Sequence[RankCall]]) -> tuple[CallCollective, ...]:
    """Return every collective of a strategy, summarised over calls of all ranks."""
    found = []
    for place, each in enumerate(zip(*map(held_up, calls), strict=False)):
        least = [min(held) for _, held in each]
        last, count = Counter(held.index(transfer) for (_, held), transfer in zip(each, least, strict=True)).most_common(1)[0]
        waits = ([ns - transfer for ns in held] for (_, held), transfer in zip(each, least, strict=True))
        found.append(
            CallCollective(
                place=place,
                kind=each[0][0],
                transfer_ns=statistics.median(least),
                waits_ns=tuple(map(statistics.median, zip(*waits, strict=True))),
                last=last,
                last_share=count / len(each),
            )
        )
    return tuple(found)
