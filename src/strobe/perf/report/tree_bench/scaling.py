"""Scaling over the cells of a grid: strong and weak, efficiency, crossovers, and predictions for faster links."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from strobe.perf.report.tree_bench.cells import CellRun, TreeContestant

Key = tuple[str, str, int, int, int, int, int]
"""Device, dtype, q_tokens, heads, kv_heads, head_dim, batch: constant along a curve."""
Times = Mapping[tuple[int, int], float]
"""Median times by (world size, tokens), ns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One point of a curve.

    Args:
        tokens: keys of all ranks.
        base_ns: time of one rank alone: on the same keys (strong), on its own share of them (weak); None if not measured.
        predicted_ns: by the plan.
    """

    strategy: str
    world_size: int
    tokens: int
    time_ns: float
    base_ns: float | None
    predicted_ns: float | None

    @property
    def speedup(self) -> float | None:
        """Speedup over one rank; None if that was not measured."""
        return None if self.base_ns is None else self.base_ns / self.time_ns

    @property
    def serial(self) -> float | None:
        """Serial share by Karp and Flatt, `(1/S - 1/P) / (1 - 1/P)`; it grows with P where overhead does."""
        if self.speedup is None or self.world_size == 1:
            return None
        return (1 / self.speedup - 1 / self.world_size) / (1 - 1 / self.world_size)


def groups(cells: Sequence[CellRun]) -> dict[Key, list[CellRun]]:
    """Group measured cells that differ in world size and tokens alone."""
    found: dict[Key, list[CellRun]] = defaultdict(list)
    for cell in cells:
        if cell.measured:
            sizes = cell.sizes
            rest = (sizes["q_tokens"], sizes["heads"], sizes["kv_heads"], sizes["head_dim"], sizes["batch"])
            found[(cell.run.header.machine.device_type, cell.dtype, *rest)].append(cell)
    return dict(found)


def _entries(cells: Sequence[CellRun]) -> Iterator[tuple[str, int, int, TreeContestant]]:
    for cell in cells:
        for entry in cell.measured:
            yield entry.name, cell.run.header.world_size, cell.sizes["tokens"], entry


def alone(cells: Sequence[CellRun]) -> dict[int, float]:
    """Return the fastest time of one rank, ns, by number of tokens."""
    found: dict[int, float] = {}
    for _, ranks, tokens, entry in _entries(cells):
        if ranks == 1 and not entry.is_peer:
            found[tokens] = min(entry.median_ns, found.get(tokens, math.inf))
    return found


def strong(cells: Sequence[CellRun]) -> list[Point]:
    """Return the strong-scaling points: the same keys on more ranks; the ideal speedup is the number of ranks."""
    base = alone(cells)
    return [
        Point(
            strategy=name,
            world_size=ranks,
            tokens=tokens,
            time_ns=entry.median_ns,
            base_ns=base.get(tokens),
            predicted_ns=entry.predicted_ns,
        )
        for name, ranks, tokens, entry in _entries(cells)
        if ranks > 1
    ]


def weak(cells: Sequence[CellRun]) -> list[Point]:
    """Return the weak-scaling points: the same keys per rank on more ranks; the ideal time is that of one rank."""
    base = alone(cells)
    return [
        Point(
            strategy=name,
            world_size=ranks,
            tokens=tokens,
            time_ns=entry.median_ns,
            base_ns=base[tokens // ranks],
            predicted_ns=entry.predicted_ns,
        )
        for name, ranks, tokens, entry in _entries(cells)
        if ranks > 1 and tokens % ranks == 0 and tokens // ranks in base
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """A change of the fastest strategy between two measured numbers of tokens (or of ranks).

    Args:
        along: `tokens` or `ranks`.
        at: the other one, which is fixed.
        low, high: measured on both sides.
        place: where the lines of the two, in logarithms, meet.
        before, after: fastest on either side.
    """

    along: str
    at: int
    low: int
    high: int
    place: float
    before: str
    after: str


def crossings(cells: Sequence[CellRun]) -> list[Crossing]:
    """Return the changes of the fastest strategy along tokens and along ranks."""
    times: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    for name, ranks, tokens, entry in _entries(cells):
        if ranks > 1:
            times[name][ranks, tokens] = entry.median_ns
    places = {place for each in times.values() for place in each}
    found: list[Crossing] = []
    for along, fixed in (("tokens", 0), ("ranks", 1)):
        for at in sorted({place[fixed] for place in places}):
            line = sorted(place for place in places if place[fixed] == at)
            for low, high in pairwise(line):
                found += _crossing(times, (low, high), along, at)
    return found


def _crossing(
    times: Mapping[str, Times], ends: tuple[tuple[int, int], tuple[int, int]], along: str, at: int
) -> Iterator[Crossing]:
    low, high = ends
    both = [name for name, each in times.items() if low in each and high in each]
    if not both:
        return
    before, after = (min(both, key=lambda name: times[name][place]) for place in ends)
    if before == after:
        return
    axis = 1 if along == "tokens" else 0
    gaps = [math.log(times[before][place] / times[after][place]) for place in ends]  # <= 0 at low, >= 0 at high
    share = gaps[0] / (gaps[0] - gaps[1]) if gaps[0] != gaps[1] else 0.5
    place = math.exp(math.log(low[axis]) + share * math.log(high[axis] / low[axis]))
    yield Crossing(along=along, at=at, low=low[axis], high=high[axis], place=place, before=before, after=after)


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """Best predicted strategy with other links.

    Args:
        words: which, e.g. `bandwidth x2`; empty: as they are.
        best: the strategy with the smallest prediction.
        total_ns: its prediction.
        now_ns: the smallest prediction with the links as they are.
    """

    words: str
    best: str
    total_ns: float
    now_ns: float


def what_if(cell: CellRun) -> list[WhatIf]:
    """Return the best strategy of a cell with faster links, by prediction, not by measurement."""
    now = {entry.name: entry.predicted_ns for entry in cell.measured if entry.predicted_ns is not None}
    if not now:
        return []
    other: dict[str, dict[str, float]] = defaultdict(dict)
    for entry in cell.measured:
        for each in entry.prediction.what_if if entry.prediction else ():
            words = f"bandwidth x{each.factor:g}" if each.faster == "bandwidth" else f"latency /{each.factor:g}"
            other[words][entry.name] = each.total_ns
    now_ns = min(now.values())
    found = []
    for words, values in other.items():
        best = min(values, key=lambda name: values[name])
        found.append(WhatIf(words=words, best=best, total_ns=values[best], now_ns=now_ns))
    return found
