"""Device time of each range and module of the host: the work of the launch calls inside it, on its own thread.

A graph's kernels belong to the range that launched the graph, and to the module path that they carry themselves. Device times are
cut to the window, host times are not: they are those of the calls that launched work in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple, Self

import numpy as np

from strobe.perf.analysis.device.device_work import EventView, events_by_device, windowed_events
from strobe.perf.analysis.device.intervals import Ints, column, totals, union
from strobe.perf.analysis.structure.scopes import (
    NOWHERE,
    WORK,
    Cuts,
    GraphPaths,
    Launched,
    before,
    graph_paths,
    launched_in,
    linked,
    nest,
)
from strobe.perf.analysis.window import Window
from strobe.perf.trace.events import HostEvents, Trace

Kind = Literal["range", "module", "graph module"]
COMMUNICATION: Final = ("nccl:", "rccl:", "c10d::")
"""Prefixes of ranges around collectives; another thread or stream launches these, so most such ranges own no events."""
_CHUNK: Final = 1 << 18
"""Rows of (event, range) in one pass of the union: an event has several where ranges nest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeRow:
    """All calls of one name.

    Args:
        kind: `range` or `module`, by the host's call; `graph module`, by the path that a graph's kernels carry.
        name: name of the range or module (`Linear_3`), or the path (`layers.3.attention`).
        calls: calls; of a graph module, launches of a graph that holds it. Within a window, only those with events in it.
        launching: calls that own at least one event.
        events: device events launched in them, nested calls included.
        kernels: of these, kernels and communication.
        sum_ns: sum of the events' durations.
        union_ns: time in which at least one of them ran.
        span_ns: from the first start to the last end, added over the calls.
        exclusive_events: events launched in no other call of the same kind inside it.
        exclusive_ns: sum of their durations.
        host_ns: time of the calls on the host, those inside a call of the same name left out; `None` for a graph module.
    """

    kind: Kind
    name: str
    calls: int
    launching: int
    events: int
    kernels: int
    sum_ns: int
    union_ns: int
    span_ns: int
    exclusive_events: int
    exclusive_ns: int
    host_ns: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges:
    """Ranges and modules of one device.

    Args:
        device: its number.
        rows: by kind, then by descending sum; those without events last.
        events: device events in the window.
        sum_ns: sum of their durations.
        outside_events: those that were launched outside every range and module, on their thread.
        outside_ns: sum of their durations.
        unlinked_events: those whose launch call is not known.
        unlinked_ns: sum of their durations.
    """

    device: int
    rows: tuple[RangeRow, ...]
    events: int
    sum_ns: int
    outside_events: int
    outside_ns: int
    unlinked_events: int
    unlinked_ns: int

    def of_kind(self, kind: Kind) -> tuple[RangeRow, ...]:
        """Return the rows of one kind."""
        return tuple(row for row in self.rows if row.kind == kind)


def range_table(trace: Trace, window: Window | None = None) -> tuple[Ranges, ...]:
    """Tabulate the ranges and modules of each device that has events; empty for a trace of a CPU."""
    cuts = Cuts.around(trace.ranges, trace.modules)
    of_kind: dict[Kind, _Calls] = {"range": _Calls(trace.ranges, cuts), "module": _Calls(trace.modules, cuts)}
    return tuple(_ranges_of(trace, device, work, window, of_kind) for device, work in events_by_device(trace))


def _ranges_of(trace: Trace, device: int, work: EventView, window: Window | None, of_kind: Mapping[Kind, _Calls]) -> Ranges:
    cuts = of_kind["range"].cuts
    launched, rows = launched_in(trace, work, window, cuts), list[RangeRow]()
    outside = np.ones(cuts.num, np.bool_)
    for kind, calls in of_kind.items():
        outside &= calls.owner == NOWHERE
        united = _unions(trace, work, window, calls)
        rows += _rows(kind, calls, launched, united, window is not None)
    carried = graph_paths(trace, work, window)
    rows += _graph_rows(carried)
    host = carried.part.work.host
    own = np.flatnonzero(host >= 0)
    own = own[outside[cuts.place(trace.device_events.hosts, host[own])]]
    total = [0, 0, 0, 0]
    for part in windowed_events(work, window):
        unlinked = part.work.host < 0
        counts = (len(part.which), int(part.length.sum()), int(unlinked.sum()), int(part.length[unlinked].sum()))
        total = [before + more for before, more in zip(total, counts, strict=True)]
    order = ("range", "module", "graph module")
    return Ranges(
        device=device,
        rows=tuple(sorted(rows, key=lambda row: (order.index(row.kind), not row.events, -row.sum_ns, row.name))),
        events=total[0],
        sum_ns=total[1],
        outside_events=int(launched.events[outside].sum()) - len(own),
        outside_ns=int(launched.sum_ns[outside].sum() - carried.part.length[own].sum()),
        unlinked_events=total[2],
        unlinked_ns=total[3],
    )


class _Calls:
    """Calls of one kind, as segments of the time of their threads.

    `owner` is the innermost call of each segment; `first` and `last` bound the segments of each call, `fresh` leaves out those of
    earlier calls of the same name; `outer` says which calls lie in no other one of the same name.
    """

    def __init__(self, scopes: HostEvents, cuts: Cuts) -> None:
        self.scopes, self.cuts, nesting = scopes, cuts, nest(scopes)
        self.parent, self.owner = nesting.parent, nesting.owners(cuts)
        self.name, self.begin, self.end = column(scopes.name), column(scopes.start_ns), column(scopes.end_ns)
        self.first, self.last = cuts.of(scopes)
        # calls of one name on one thread, side by side: one that lies in another of them adds nothing
        group = self.name * (int(max(scopes.thread, default=0)) + 1) + column(scopes.thread)
        order = np.argsort(group, kind="stable")
        self.outer = np.zeros(len(scopes), np.bool_)
        self.outer[order] = self.begin[order] >= _Ends.of(self.end).reach(self.begin[order], order, group[order])
        fresh = self.first.copy()
        fresh[order] = np.maximum(fresh[order], _Ends.of(self.last).reach(self.first[order], order, group[order]))
        self.fresh = np.minimum(fresh, self.last)

    def names_at(self, segments: Ints) -> tuple[Ints, Ints]:
        """Return pairs of a position among the segments and a name whose call holds that segment, in order."""
        place = np.arange(len(segments))
        call = self.owner[segments]
        found = [np.zeros(0, np.int64)]
        while len(place):
            place, call = place[call != NOWHERE], call[call != NOWHERE]
            inside = (self.first[call] <= segments[place]) & (segments[place] < self.last[call])
            found.append(place[inside] * len(self.scopes.names) + self.name[call[inside]])
            call = self.parent[call]
        both = np.divmod(np.unique(np.concatenate(found)), max(1, len(self.scopes.names)))
        return both[0], both[1]


def _rows(kind: Kind, calls: _Calls, launched: Launched, united: Ints, only_launching: bool) -> Iterator[RangeRow]:
    name, first, last, fresh = calls.name, calls.first, calls.last, calls.fresh
    events, kernels, sums = (before(values) for values in (launched.events, launched.kernels, launched.sum_ns))
    launching = events[last] > events[first]
    counted = launching if only_launching else np.ones(len(name), np.bool_)
    num = len(calls.scopes.names)
    own = calls.owner != NOWHERE
    per_call = {
        "calls": counted,
        "launching": launching,
        "events": events[last] - events[fresh],
        "kernels": kernels[last] - kernels[fresh],
        "sum_ns": sums[last] - sums[fresh],
        "span_ns": np.where(calls.outer, launched.spans(first, last), 0),
        "host_ns": np.where(calls.outer & counted, calls.end - calls.begin, 0),
    }
    columns = {key: totals(values.astype(np.int64), name, num) for key, values in per_call.items()}
    columns["union_ns"] = united
    columns["exclusive_events"] = totals(launched.events[own], name[calls.owner[own]], num)
    columns["exclusive_ns"] = totals(launched.sum_ns[own], name[calls.owner[own]], num)
    rows = zip(calls.scopes.names, zip(*(values.tolist() for values in columns.values()), strict=True), strict=True)
    for text, values in rows:
        if values[0]:
            yield RangeRow(kind=kind, name=text, **dict(zip(columns, values, strict=True)))


class _Ends(NamedTuple):
    """Ends of intervals as ranks: small enough to be packed with a group number in front."""

    times: Ints
    rank: Ints

    @classmethod
    def of(cls, end: Ints) -> Self:
        return cls(*np.unique(end, return_inverse=True))

    def reach(self, start: Ints, which: Ints, group: Ints) -> Ints:
        """Return the latest end among the intervals before each one in its group; for the first, its own start.

        Args:
            start: start of each interval; those of a group lie side by side.
            which: position of each among the ends.
            group: group of each interval.
        """
        if not len(start):
            return start
        heads = np.append(True, group[1:] != group[:-1])
        highest = np.maximum.accumulate(np.cumsum(heads) * len(self.times) + self.rank[which])
        return np.where(heads, start, np.append(start[0], self.times[highest[:-1] % len(self.times)]))


def _unions(trace: Trace, work: EventView, window: Window | None, calls: _Calls) -> Ints:
    """Compute the union of the events of each name, ns."""
    united = np.zeros(len(calls.scopes.names), np.int64)
    reached = np.full(len(united), np.iinfo(np.int64).min)
    for part in linked(work, window) if len(united) else ():
        segments, which = np.unique(calls.cuts.place(trace.device_events.hosts, part.work.host), return_inverse=True)
        place, name = calls.names_at(segments)
        count = np.bincount(place, minlength=len(segments))
        first = np.cumsum(count) - count
        chunk = np.cumsum(count[which]) // _CHUNK
        for edges in pairwise((*np.flatnonzero(np.diff(chunk, prepend=-1)).tolist(), len(which))):
            own = slice(*edges)
            n = count[which[own]]
            taken = np.arange(int(n.sum())) + np.repeat(first[which[own]] - (np.cumsum(n) - n), n)
            key = name[taken] * len(which) + np.repeat(np.arange(*edges), n)
            key.sort()
            group, event = np.divmod(key, len(which))
            start, end = np.maximum(part.start[event], reached[group]), part.end[event]
            covered = _Ends.of(part.end).reach(start, event, group)
            np.add.at(united, group, np.maximum(0, end - np.maximum(start, covered)))
            np.maximum.at(reached, group, end)
    return united


def _graph_rows(paths: GraphPaths) -> Iterator[RangeRow]:
    """Yield a row for each module path and for each path that encloses it."""
    order = np.argsort(paths.path, kind="stable")
    own = np.split(order, np.searchsorted(paths.path[order], np.arange(1, len(paths.texts))))
    inside: dict[str, list[int]] = {}
    for path, text in enumerate(paths.texts):
        parts = text.split(".")
        for depth in range(1, len(parts) + 1):
            inside.setdefault(".".join(parts[:depth]), []).append(path)
    exclusive = {text: path for path, text in enumerate(paths.texts)}
    part, host, is_kernel = paths.part, paths.part.work.host, np.isin(paths.part.work.kind, WORK)
    for text, members in inside.items():
        place = np.sort(np.concatenate([own[path] for path in members]))
        if not len(place):
            continue
        start, end = part.start[place], part.end[place]
        by_call = np.argsort(host[place], kind="stable")
        heads = np.flatnonzero(np.diff(host[place][by_call], prepend=-2))
        mine = own[exclusive[text]] if text in exclusive else place[:0]
        yield RangeRow(
            kind="graph module",
            name=text,
            calls=len(heads),
            launching=len(heads),
            events=len(place),
            kernels=int(is_kernel[place].sum()),
            sum_ns=int((end - start).sum()),
            union_ns=union(start, end).length_ns,
            span_ns=int((np.maximum.reduceat(end[by_call], heads) - np.minimum.reduceat(start[by_call], heads)).sum()),
            exclusive_events=len(mine),
            exclusive_ns=int(part.length[mine].sum()),
            host_ns=None,
        )
