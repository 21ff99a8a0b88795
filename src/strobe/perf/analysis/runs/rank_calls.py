"""Parts of multi-rank calls: waiting and transfer of each collective, exposed communication, and the last rank."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated as A
from typing import NamedTuple

from strobe.perf.records.record import LOCAL, MEETING, MERGE, MESSAGE, WAIT
from strobe.perf.table.model import Time
from strobe.perf.table.rows import col, term

Stretch = tuple[int, int]
"""Half-open interval `[start, stop)`, ns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRegion:
    """One marked region of a call on a rank; times count from the call's start; `part`: kind of a collective."""

    name: str
    part: str
    start_ns: int
    value_ns: int

    @property
    def stretch(self) -> Stretch:
        return self.start_ns, self.start_ns + self.value_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCall:
    """One call on one rank, with its regions."""

    total_ns: int
    regions: tuple[CallRegion, ...]

    def of(self, *names: str) -> tuple[CallRegion, ...]:
        return tuple(region for region in self.regions if region.name in names)


def covered_ns(stretches: Iterable[Stretch]) -> int:
    """Return the length of the union of intervals, ns."""
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
        waits, own = list(call.of(WAIT)), list[tuple[str, int]]()
        for message in call.of(MESSAGE):
            start, stop = message.stretch
            wait = next((each for each in waits if each.part == message.part and start <= each.start_ns <= stop), message)
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
        local = covered_ns(region.stretch for region in call.of(LOCAL))
        work = [region.stretch for region in call.of(LOCAL, MERGE)]
        messages = [region.stretch for region in call.of(MESSAGE, MEETING)]
        busy, both, comm = covered_ns(work), covered_ns(work + messages), covered_ns(messages)
        exposed = both - busy
        wait = min(exposed, sum(each[rank] for each in waits) + sum(each.value_ns for each in call.of(MEETING)))
        rows.append((call.total_ns, local, busy - local, wait, exposed - wait, max(0, call.total_ns - both), comm - exposed))
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
