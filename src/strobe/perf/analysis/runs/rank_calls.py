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
    """One collective on all ranks: of one call, or the medians over all calls of a strategy.

    Args:
        kind: `agreement`, `gather`, `exchange` or `reduce`.
        place: among those of a call, from 0.
        transfer_ns: the shortest time that a rank was held up by it: the last to come waits for nobody.
        waits_ns: of each rank, how much longer it was held up than that.
        last: the rank that waited least, of several calls most often.
        last_share: in which share of the calls.
    """

    kind: str
    place: int
    transfer_ns: float
    waits_ns: tuple[float, ...]
    last: int
    last_share: float = 1.0


def instances(ranks: Sequence[RankCall]) -> tuple[CallCollective, ...]:
    """Return the collectives of one call, in order; only durations within a rank are used, so clocks need not agree.

    A collective that overlaps with other work holds a rank up only during its last part (`tree_wait`).
    """
    held = [[(region.part, own) for region, own in _held(call)] for call in ranks]
    found = []
    for place, each in enumerate(zip(*held, strict=False)):
        durations = [own for _, own in each]
        transfer = min(durations)
        waits = tuple(own - transfer for own in durations)
        last = durations.index(transfer)
        found.append(CallCollective(kind=each[0][0], place=place, transfer_ns=transfer, waits_ns=waits, last=last))
    return tuple(found)


def _held(call: RankCall) -> list[tuple[CallRegion, int]]:
    """Return each message and the time that it held this rank up, ns."""
    waits = list(call.of(WAIT))
    found = []
    for message in call.of(MESSAGE):
        start, stop = message.stretch
        own = next((each for each in waits if each.part == message.part and start <= each.start_ns <= stop), None)
        if own is not None:
            waits.remove(own)
        found.append((message, message.value_ns if own is None else own.value_ns))
    return found


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
    found = instances(ranks)
    rows = []
    for rank, call in enumerate(ranks):
        local = covered_ns(region.stretch for region in call.of(LOCAL))
        work = [region.stretch for region in call.of(LOCAL, MERGE)]
        messages = [region.stretch for region in call.of(MESSAGE, MEETING)]
        busy, both, comm = covered_ns(work), covered_ns(work + messages), covered_ns(messages)
        exposed = both - busy
        wait = min(exposed, sum(each.waits_ns[rank] for each in found) + sum(each.value_ns for each in call.of(MEETING)))
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
    for place, each in enumerate(zip(*(instances(ranks) for ranks in calls), strict=False)):
        last, count = Counter(one.last for one in each).most_common(1)[0]
        found.append(
            CallCollective(
                place=place,
                kind=each[0].kind,
                transfer_ns=statistics.median(one.transfer_ns for one in each),
                waits_ns=tuple(statistics.median(waits) for waits in zip(*(one.waits_ns for one in each), strict=True)),
                last=last,
                last_share=count / len(each),
            )
        )
    return tuple(found)
