"""Communication: its time by kind of collective, what no computation hides, and skew across ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated as A
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.activity import EventView, events_by_device, windowed_events
from strobe.perf.analysis.device.intervals import (
    Covered,
    Distribution,
    Intervals,
    Ints,
    Window,
    column,
    distribution,
    overlaps,
    union,
)
from strobe.perf.table.model import Code, Count, ExactTime, bytes_cell
from strobe.perf.table.rows import TimedRow, col, part_of, term
from strobe.perf.trace.events import DEVICE_KINDS, CollectiveKind, Trace

# Communication of each device: its time by kind of collective, and the part that no computation hides.

_ELEMENT_BYTES: Final = {
    "double": 8, "long": 8, "int64": 8, "float64": 8, "complexfloat": 8, "complexdouble": 16, "float": 4, "int": 4, "int32": 4,
    "float32": 4, "half": 2, "bfloat16": 2, "float16": 2, "short": 2, "int16": 2, "byte": 1, "char": 1, "bool": 1, "int8": 1,
    "uint8": 1,
}  # fmt: skip
_COMM: Final = DEVICE_KINDS.index("comm")
_COMPUTE: Final = (DEVICE_KINDS.index("kernel"), DEVICE_KINDS.index("memset"))


def message_bytes(kind: CollectiveKind) -> int | None:
    """Return the bytes of the larger side, as bandwidths of collectives count them; `None` if the trace lacks the sizes."""
    size = 1 if kind.dtype.lower().startswith("float8") else _ELEMENT_BYTES.get(kind.dtype.lower())
    elements = max(kind.in_elements, kind.out_elements)
    return None if size is None or elements < 0 else size * elements


megabytes: Final = partial(bytes_cell, unit="MB", digits=3)
_NOT_RECORDED: Final = "not recorded"


class CollectiveRow(TimedRow, frozen=True, kw_only=True):
    """Collectives of one kind on one device."""

    device: A[int, col("number of the device in the trace")]
    collective: A[str, col("name of the collective, e.g. `allreduce`", "collective", Code)]
    group: A[str, col("name of the process group", "group", Code, where="group", missing=_NOT_RECORDED)]
    ranks: A[int, col("ranks in the group; 0: not recorded", "ranks", Count, where="ranks", missing=_NOT_RECORDED)]
    message_bytes: A[int | None, col("larger of input and output; null: not known", "message", megabytes, missing=_NOT_RECORDED)]
    dtype: A[str, col("dtype of the elements")]
    exposed_ns: A[int, term("time in which one of them ran, and no kernel and no memset", "exposed", ExactTime)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Communication:
    """The communication of one device of one trace.

    Args:
        trace: position among the given traces.
        span_ns: from the first event of the device to the last one's end, of any kind; the window's length if there is one.
        n: communication kernels.
        num_cut: of these, how many the window cuts; only their part inside is counted.
        union_ns: time in which at least one of them ran.
        exposed_ns: the part of it in which neither a kernel nor a memset ran.
        kinds: those of each kind, waiting included, by descending exposed time.
    """

    trace: int
    device: int
    span_ns: int
    n: int
    num_cut: int
    sum_ns: int
    union_ns: int
    exposed_ns: int
    kinds: tuple[CollectiveRow, ...]


class Member(NamedTuple):
    """Collectives on the clock of all traces: those of one device, or a row for each of a group and a column for each device.

    `kind` counts into `kinds`; `whole` is false where the window cuts one, so that a start or an end is not its own.
    """

    kinds: tuple[CollectiveKind, ...]
    kind: Ints
    sequence: Ints
    start: Ints
    end: Ints
    whole: NDArray[np.bool_]

    def of(self, which: NDArray[np.bool_] | Ints) -> Member:
        kind, sequence, whole = self.kind[which], self.sequence[which], self.whole[which]
        return Member(self.kinds, kind, sequence, self.start[which], self.end[which], whole)


def communication(traces: Sequence[Trace], windows: Sequence[Window | None] | None = None) -> tuple[Communication, ...]:
    """Account for the communication of each device that has any, in the order of the traces."""
    return tuple(found for found, _ in members(traces, windows or [None] * len(traces)))


def members(traces: Sequence[Trace], windows: Sequence[Window | None]) -> Iterator[tuple[Communication, Member]]:
    """Yield the communication of each device that has any, and its collectives one by one."""
    for number, (trace, window) in enumerate(zip(traces, windows, strict=True)):
        for device, work in events_by_device(trace):
            found = []
            for part in windowed_events(work, window):
                own = part.work.kind == _COMM
                found.append((part.work.position[own], part.start[own], part.end[own]))
            position, start, end = (np.concatenate(columns) for columns in zip(*found, strict=True))
            if len(position):
                begin, stop = (work.start[0], work.end.max()) if window is None else (window.start_ns, window.end_ns)
                member = _member(trace, position, start, end)
                account = _account(member, _computing(trace, work, window), (number, trace.label, device), int(stop - begin))
                yield account, member


def _computing(trace: Trace, work: EventView, window: Window | None) -> Iterator[Intervals]:
    """Yield the time in which kernels and memsets ran, on the clock of all traces, in parts."""
    covered = Covered()
    for part in windowed_events(work, window):
        own = np.isin(part.work.kind, _COMPUTE)
        found = covered.add(part.start[own] + trace.base_ns, part.end[own] + trace.base_ns)
        some = found.end > found.start
        yield Intervals(found.start[some], found.end[some])


def _member(trace: Trace, position: Ints, start: Ints, end: Ints) -> Member:
    names, of_name = trace.device_events.names, trace.device_events.name
    kinds: dict[CollectiveKind, int] = {}
    kind, sequence = [], []
    for event in position.tolist():
        what, number = trace.collectives.get(event, (CollectiveKind(), -1))
        if not what.name:
            what = what._replace(name=names[of_name[event]])
        kind.append(kinds.setdefault(what, len(kinds)))
        sequence.append(number)
    events = trace.device_events
    whole = (column(events.start_ns)[position] == start) & (column(events.end_ns)[position] == end)
    columns = np.array(kind, np.int64), np.array(sequence, np.int64), start + trace.base_ns, end + trace.base_ns
    return Member(tuple(kinds), *columns, whole)


def _account(member: Member, compute: Iterator[Intervals], where: tuple[int, str, int], span_ns: int) -> Communication:
    trace, label, device = where
    labels = {"trace": label, "device": device}
    order = np.argsort(member.kind, kind="stable")
    of_kind = np.split(order, np.flatnonzero(np.diff(member.kind[order])) + 1)
    everything, *unions = (union(member.start[own], member.end[own]) for own in (np.arange(len(order)), *of_kind))
    exposed, *exposed_of = _exposed((everything, *unions), compute)
    kinds = []
    for kind, own, exposed_ns in zip(member.kinds, of_kind, exposed_of, strict=True):
        duration = distribution(member.end[own] - member.start[own])
        assert duration is not None
        told = {"collective": kind.name, "ranks": len(kind.ranks), "message_bytes": message_bytes(kind), "dtype": kind.dtype}
        times = part_of(CollectiveRow, duration, kind, **labels, **told, calls=duration.n, exposed_ns=exposed_ns)
        kinds.append((-exposed_ns, -duration.sum_ns, kind, times))
    return Communication(
        trace=trace,
        device=device,
        span_ns=span_ns,
        n=len(member.start),
        num_cut=int((~member.whole).sum()),
        sum_ns=int((member.end - member.start).sum()),
        union_ns=everything.length_ns,
        exposed_ns=exposed,
        kinds=tuple(times for *_, times in sorted(kinds, key=lambda one: one[:3])),
    )


def _exposed(communicating: Sequence[Intervals], compute: Iterator[Intervals]) -> list[int]:
    """Compute the length of each set of communication intervals outside the compute intervals, ns."""
    exposed = [intervals.length_ns for intervals in communicating]
    for computing in compute:
        for number, (start, end) in enumerate(communicating if len(computing.start) else ()):
            near = slice(
                int(np.searchsorted(end, computing.start[0], "right")), int(np.searchsorted(start, computing.end[-1], "left"))
            )
            exposed[number] -= overlaps(Intervals(start[near], end[near]), computing)[2].length_ns
    return exposed


# Collectives across ranks: time waiting for the last rank, time moving data, and the rank that the others wait for.
#
# A collective can move data once the last of its ranks has started it. With all starts on one clock, `skew = last start - own
# start` is the time that a rank waited, `transfer = own end - last start` the rest. No rank can end before the last one started:
# where that happens, the clocks of the ranks differ, and both times are meaningless.

CLOCK_TOLERANCE_NS: Final = 10_000
"""Largest difference of two devices' clocks in traces of one host, ns."""
_ALL_WAIT: Final = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Collectives in which every rank waits for every other one."""
_NEVER: Final = -(1 << 62)


SkewKind: TypeAlias = tuple[CollectiveKind, Distribution, Distribution]
"""Collectives of one kind: from the first start to the last one, and from the last start to the last end, of each."""


class MemberTime(NamedTuple):
    """One device's time in the collectives in which all ranks wait for all.

    Args:
        trace: position among the given traces.
        n: collectives that were matched.
        last: of these, how many it started last, alone.
        cost_ns: by how much its starts come after the second last ones: what the others would not wait if it had been on time.
        wait_ns: its own skew in all of them.
        transfer_ns: its own transfer in all of them.
    """

    trace: int
    n: int
    last: int
    cost_ns: int
    wait_ns: int
    transfer_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveSkew:
    """Matched collectives of several ranks, split into waiting and moving data.

    Args:
        by: how they were matched: by the number of the collective in its group, or by order, or some groups so and some so.
        matched: collectives found on every member of their group that has a trace.
        one_way: of these, those in which not all ranks wait for all others (broadcast, send): they are not split.
        cut: of the others, those that the window cuts on some rank: their starts or ends are not known, they are not split.
        unmatched: collectives of all members that have no counterpart.
        checked: collectives that are split, by which the ranks' clocks are checked.
        violated: of these, how many end on one rank before another has started.
        worst_ns: by how much at most; 0 if none does. The clocks differ by this much or more.
        ahead: the device whose clock is ahead there, and `behind` the other; positions among those that communicate.
        slack_ns: by how much at most two clocks could differ with no violation: skews are exact to within this.
        times: one for each device that communicates; empty if the clocks differ or nothing is split.
        kinds: by descending sum of skew and transfer; empty if the clocks differ.
        problems: groups that could not be matched, and why; nothing is matched if a rank has several traces.
    """

    by: Literal["sequence", "order", "sequence and order"]
    matched: int
    one_way: int
    cut: int
    unmatched: int
    checked: int
    violated: int
    worst_ns: int
    ahead: int
    behind: int
    slack_ns: int
    times: tuple[MemberTime, ...]
    kinds: tuple[SkewKind, ...]
    problems: tuple[str, ...]

    @property
    def aligned(self) -> bool:
        """Whether no collective violates the order of clocks by more than a trace's precision."""
        return self.worst_ns <= CLOCK_TOLERANCE_NS

    @property
    def straggler(self) -> MemberTime | None:
        """The member that the others wait longest for, over all collectives. `None` if nobody waits, or the clocks differ."""
        found = max(self.times, key=lambda member: (member.cost_ns, member.last), default=None)
        return found if found is not None and found.last else None

    @property
    def last_most_often(self) -> MemberTime | None:
        """The member that starts last most often, however little. `None` if none does, or the clocks differ."""
        found = max(self.times, key=lambda member: (member.last, member.cost_ns), default=None)
        return found if found is not None and found.last else None


_Group: TypeAlias = tuple[Ints, Member]
"""Devices of one group, and their matched collectives; whole are those that are cut on none of them."""


def collective_skew(traces: Sequence[Trace], windows: Sequence[Window | None] | None = None) -> CollectiveSkew | None:
    """Match the collectives of several ranks and split each into waiting and moving data.

    They are matched by process group and by their number in it, where the traces have it. Without numbers they are matched by
    order, if all ranks of the group have equally many and agree on every name and size.

    Args:
        traces: one of each rank; their clocks are joined by `Trace.base_ns`.
        windows: the part of each to look at, all of it if not given.

    Returns:
        `None` if fewer than two devices communicate.
    """
    found = list(members(traces, windows or [None] * len(traces)))
    if len(found) < 2:
        return None
    ranks = [traces[account.trace].rank for account, _ in found]
    own = Counter(traces[number].rank for number in {account.trace for account, _ in found})
    problems = [f"rank {rank} has {n} traces, give one of each" for rank, n in own.items() if rank is not None and n > 1]
    groups, by = ([], set[str]()) if problems else _matched([member for _, member in found], ranks, problems)
    waiting = []
    for devices, met in groups:
        all_wait = np.array([any(word in _bare(kind.name) for word in _ALL_WAIT) for kind in met.kinds], np.bool_)
        waiting.append((devices, met.of(all_wait[met.kind])))
    split = [(devices, whole) for devices, met in waiting if len((whole := met.of(met.whole)).start)]
    # by how much the collectives of device `[b]` start after the end of the same on `[a]`, at most
    early = np.full((len(found), len(found)), _NEVER, np.int64)
    for devices, met in split:
        for place, device in enumerate(devices.tolist()):
            gap = (met.start - met.end[:, place : place + 1]).max(axis=0)
            early[device, devices] = np.maximum(early[device, devices], gap)
    np.fill_diagonal(early, _NEVER)
    behind, ahead = divmod(int(early.argmax()), len(found))
    apart, worst_ns = early[early > _NEVER], max(0, int(early.max()))
    aligned = worst_ns <= CLOCK_TOLERANCE_NS
    matched = sum(len(met.start) for _, met in groups)
    return CollectiveSkew(
        by="sequence and order" if len(by) == 2 else "order" if "order" in by else "sequence",
        matched=matched,
        one_way=matched - sum(len(met.start) for _, met in waiting),
        cut=sum(int((~met.whole).sum()) for _, met in waiting),
        unmatched=sum(len(member.start) for _, member in found) - sum(met.start.size for _, met in groups),
        checked=sum(len(met.start) for _, met in split),
        violated=sum(int((met.start.max(axis=1) > met.end.min(axis=1)).sum()) for _, met in split),
        worst_ns=worst_ns,
        ahead=ahead,
        behind=behind,
        slack_ns=max(0, -int(apart.min())) if len(apart) else 0,
        times=_times(split, [account.trace for account, _ in found]) if aligned and split else (),
        kinds=_kinds(split) if aligned else (),
        problems=tuple(problems),
    )


def _matched(
    found: Sequence[Member], ranks: Sequence[int | None], problems: list[str]
) -> tuple[list[_Group], set[Literal["sequence", "order"]]]:
    """Match each collective with the same one on the other ranks; return how. Problems are added to the list."""
    spoken = [f"device {number}" if rank is None else f"rank {rank}" for number, rank in enumerate(ranks)]
    groups, by = list[_Group](), set[Literal["sequence", "order"]]()
    for name, members_of in sorted({(kind.group, kind.ranks) for member in found for kind in member.kinds}):
        own = []
        for member in found:
            of_kind = np.array([(kind.group, kind.ranks) == (name, members_of) for kind in member.kinds], np.bool_)
            own.append(np.flatnonzero(of_kind[member.kind]))
        here = [number for number, events in enumerate(own) if len(events)]
        absent = [rank for number, rank in enumerate(ranks) if rank in members_of and number not in here]
        if absent:
            problems.append(f"group {name!r}: no collective of it on rank {', '.join(map(str, absent))}")
        if absent or len(here) < 2:
            continue
        met = [(found[number], own[number]) for number in here]
        numbered = all((member.sequence[events] >= 0).all() for member, events in met)
        places = _by_sequence(met) if numbered else _by_order(met, [spoken[number] for number in here])
        if isinstance(places, str):
            problems.append(f"group {name!r}: {places}; without numbers they cannot be matched")
            continue
        by.add("sequence" if numbered else "order")
        same = [member.of(place) for (member, _), place in zip(met, places, strict=True)]
        start, end = (np.stack([getattr(one, edge) for one in same], axis=1) for edge in ("start", "end"))
        whole = np.all([one.whole for one in same], axis=0)
        groups.append((np.array(here, np.int64), same[0]._replace(start=start, end=end, whole=whole)))
    return groups, by


def _by_sequence(met: Sequence[tuple[Member, Ints]]) -> list[Ints]:
    """Match collectives of equal name and number; of several (coalesced ones), the first with the first."""
    numbered = []
    for member, events in met:
        seen, own = Counter[tuple[str, int]](), dict[tuple[str, int, int], int]()
        for event, kind, number in zip(
            *(values.tolist() for values in (events, member.kind[events], member.sequence[events])), strict=True
        ):
            key = member.kinds[kind].name, number
            own[*key, seen[key]] = event
            seen[key] += 1
        numbered.append(own)
    shared = sorted(set.intersection(*map(set, numbered)))
    return [np.array([own[key] for key in shared], np.int64) for own in numbered]


def _by_order(met: Sequence[tuple[Member, Ints]], spoken: Sequence[str]) -> list[Ints] | str:
    """Match collectives by their order; return why they cannot be, if they differ."""
    if len({len(events) for _, events in met}) > 1:
        return ", ".join(f"{len(events)} on {who}" for (_, events), who in zip(met, spoken, strict=True))
    first, *others = ([_likeness(member.kinds[kind]) for kind in member.kind[events].tolist()] for member, events in met)
    for who, other in zip(spoken[1:], others, strict=True):
        differs = next((place for place, pair in enumerate(zip(first, other, strict=True)) if pair[0] != pair[1]), None)
        if differs is not None:
            return f"call {differs} differs ({first[differs][0]} on {spoken[0]}, {other[differs][0]} on {who})"
    return [events for _, events in met]


def _likeness(kind: CollectiveKind) -> tuple[str, int, int]:
    """Return the properties that must be equal on all ranks: the name and, except for all-to-all, the sizes."""
    uneven = "alltoall" in _bare(kind.name)
    return (kind.name, 0, 0) if uneven else (kind.name, kind.in_elements, kind.out_elements)


def _bare(name: str) -> str:
    return name.lower().replace("_", "")


def _times(groups: Sequence[_Group], traces: Sequence[int]) -> tuple[MemberTime, ...]:
    columns = np.zeros((5, len(traces)), np.int64)
    for devices, met in groups:
        ranked = np.sort(met.start, axis=1)
        last, lead = ranked[:, -1:], ranked[:, -1] - ranked[:, -2]
        slowest = devices[met.start.argmax(axis=1)]
        alone = lead > 0
        columns[0, devices] += len(met.start)
        np.add.at(columns[1], slowest[alone], 1)
        np.add.at(columns[2], slowest[alone], lead[alone])
        columns[3, devices] += (last - met.start).sum(axis=0)
        columns[4, devices] += (met.end - last).sum(axis=0)
    return tuple(MemberTime(trace, *values) for trace, values in zip(traces, columns.T.tolist(), strict=True))


def _kinds(groups: Sequence[_Group]) -> tuple[SkewKind, ...]:
    found = []
    for _, met in groups:
        last = met.start.max(axis=1)
        skew, transfer = last - met.start.min(axis=1), met.end.max(axis=1) - last
        order = np.argsort(met.kind, kind="stable")
        numbers, heads = np.unique(met.kind[order], return_index=True)
        for number, own in zip(numbers.tolist(), np.split(order, heads[1:]), strict=True):
            sides = distribution(skew[own]), distribution(transfer[own])
            assert sides[0] is not None and sides[1] is not None
            found.append((met.kinds[number], sides[0], sides[1]))
    return tuple(sorted(found, key=lambda one: (-one[1].sum_ns - one[2].sum_ns, one[0])))
