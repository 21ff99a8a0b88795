"""The cells of a run as its pages need them: who took part, what each call took, and why something has no number."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from strobe.core.errors import DataError
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL
from strobe.perf.analysis.runs.compare import timed_clips
from strobe.perf.measure.stats import Interval, Verdict, bootstrap_interval, judge, paired_interval
from strobe.perf.records.record import Gate, Quality, Variant
from strobe.perf.records.store import RunRecords, read_run
from strobe.perf.report.attention_bench.names import CELLS, HOST, MATMUL, STAGE, WHOLE

Kind = Literal["dense", "fine", "whole"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """One contestant of one cell.

    Args:
        reason: why it has no number; empty if it has.
        rounds: by palindrome: the times of its calls, ns.
        hosts_ns: until each call returned to its caller.
        stages: of a whole operator and of all of it in the same calls, median ns by name.
        numbers: the quality lines.
    """

    name: str
    reason: str
    variant: Variant | None
    gate: Gate | None
    rounds: dict[int, tuple[int, ...]]
    hosts_ns: tuple[int, ...]
    stages: dict[str, int]
    numbers: tuple[Quality, ...]

    @property
    def kind(self) -> Kind:
        """What it computes; by what its records say, since a peer's name does not."""
        if self.variant is None or not self.variant.costs:
            return "dense" if self.name.startswith("dense:") else "fine" if self.name.startswith("fine:") else "whole"
        (cost,) = self.variant.costs
        if cost.span == ATTENTION:
            return "whole"
        return "dense" if cost.dense_flops is None else "fine"

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
        """Bootstrap interval of the median; None with fewer than 30 calls, where it would be too narrow."""
        return bootstrap_interval(statistics.median, self.times_ns, derived=False)

    @property
    def flops(self) -> int:
        """Of the pairs of tokens that are selected."""
        return 0 if self.variant is None else self.variant.costs[0].flops

    @property
    def padded_flops(self) -> int:
        """Of whole blocks, padding rows included."""
        return self.size("padded_flops")

    def size(self, name: str) -> int:
        """A size of the call; 0 if it never ran."""
        return 0 if self.variant is None else self.variant.sizes.get(name, 0)

    def number(self, metric: str, reference: str = "", what: str = "") -> float | None:
        """A quality number, by the start of its reference and of its definition."""
        for line in self.numbers:
            if line.metric == metric and line.reference.startswith(reference) and line.definition.startswith(what):
                return line.value
        return None

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """The stages, and a line for what none of them covers."""
        inside = [(name, ns) for name, ns in self.stages.items() if name != WHOLE]
        return (*inside, ("between the stages", self.stages.get(WHOLE, 0) - sum(ns for _, ns in inside)))


@dataclass(frozen=True, kw_only=True, eq=False)
class CellRun:
    """One cell that was measured."""

    run: RunRecords
    shape: str
    budget: str
    block: int
    direction: str
    entries: tuple[Entry, ...]

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.run.folder.name

    @property
    def serialised(self) -> bool:
        """Launches were serialised: the times are no times of the code."""
        return self.run.header.machine.launch_blocking

    @property
    def contestants(self) -> tuple[Entry, ...]:
        """All but the matrix product."""
        return tuple(entry for entry in self.entries if entry.name != MATMUL)

    @cached_property
    def measured(self) -> tuple[Entry, ...]:
        """Contestants with numbers."""
        return tuple(entry for entry in self.contestants if not entry.reason)

    @cached_property
    def reference(self) -> Entry | None:
        """The fastest dense contestant."""
        dense = [entry for entry in self.measured if entry.kind == "dense"]
        return min(dense, key=lambda entry: entry.median_ns, default=None)

    @cached_property
    def peak_flops_per_s(self) -> float | None:
        """What a large matrix product reached in the same palindromes."""
        product = next((entry for entry in self.entries if entry.name == MATMUL and entry.times_ns), None)
        return None if product is None else product.flops / product.median_ns * 1e9

    @cached_property
    def sparsity(self) -> float:
        """Share of the pairs of tokens that is not computed; of the sparse contestants, which share a selection."""
        found = [entry.variant.sparsity or 0.0 for entry in self.measured if entry.variant and entry.kind != "dense"]
        return max(found, default=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Speedup:
    """Time of the reference / time of an entry, in the same run."""

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
    ratio, interval = statistics.median(ratios), paired_interval([math.log(ratio) for ratio in ratios])
    return Speedup(ratio=ratio, interval=interval, verdict=judge(ratio, interval, statistics.median(deltas)))


def read_cells(folder: Path) -> tuple[CellRun, ...]:
    """Read every cell of a run that has records, also one that was cut short.

    Raises:
        DataError: the folder holds none.
    """
    try:
        folders = (path for path in (folder / CELLS).iterdir() if path.is_dir() and not path.is_symlink())
        places = sorted(path for path in folders if path.name.count("_") == 3)
    except OSError as error:
        raise DataError(f"no cells at {folder / CELLS}: {error.strerror}; give a folder of `strobe bench attention`") from error
    found = []
    for place in places:
        if "." in place.name.rpartition("_")[2]:
            continue  # an attempt that was cut short and measured again
        try:
            found.append(_cell(read_run(place)))
        except DataError:
            continue
    if not found:
        raise DataError(f"no cell in {folder / CELLS} has records; run `strobe bench attention --out {folder}`")
    return tuple(sorted(found, key=lambda cell: (cell.shape, cell.direction != "forward", cell.block, cell.sparsity)))


def _cell(run: RunRecords) -> CellRun:
    shape, budget, block, direction = run.folder.name.split("_")
    names = dict.fromkeys((*run.header.order, *(variant.name for variant in run.variants)))
    return CellRun(
        run=run,
        shape=shape,
        budget=budget,
        block=int(block.removeprefix("b")),
        direction=direction,
        entries=tuple(_entries(run, names)),
    )


def _entries(run: RunRecords, names: Iterable[str]) -> Iterable[Entry]:
    clips = {clip.order: clip for clip in timed_clips(run)}
    rounds: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    hosts: dict[str, list[int]] = defaultdict(list)
    stages: dict[str, dict[str, int]] = defaultdict(dict)
    for span in run.spans:
        if span.order not in clips:
            continue
        if span.name.startswith(STAGE):
            stages[span.variant][span.name.removeprefix(STAGE)] = span.value_ns
        elif span.name == HOST:
            hosts[span.variant].append(span.value_ns)
        elif span.palindrome is not None and span.name in (ATTENTION, ATTENTION_KERNEL, MATMUL):
            rounds[span.variant][span.palindrome].append(span.value_ns)
    for name in names:
        gate = next((line for line in run.gates if line.variant == name), None)
        yield Entry(
            name=name,
            reason=_reason(run, name, gate, bool(rounds[name])),
            variant=next((variant for variant in run.variants if variant.name == name), None),
            gate=gate,
            rounds={number: tuple(values) for number, values in rounds[name].items()},
            hosts_ns=tuple(hosts[name]),
            stages=stages[name],
            numbers=tuple(line for line in run.quality if line.variant == name),
        )


def _reason(run: RunRecords, name: str, gate: Gate | None, timed: bool) -> str:
    cause = next((line.cause for line in run.excluded if line.variant == name and line.span == "clip"), "")
    if cause:
        return cause
    if gate is not None and not gate.passed:
        return f"red gate: {gate.detail}; {gate.rule}"
    return "" if timed else f"not reached: {run.end.message or run.end.status if run.end else 'the cell was cut short'}"
