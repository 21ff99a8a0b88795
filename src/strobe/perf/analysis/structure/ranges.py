"""What each range and module of the host did on the devices: by the launch calls inside it, on its own thread.

A graph's kernels belong to the range that launched the graph, and to the module path that they carry themselves. Device times are
cut to the window, host times are not: they are those of the calls that launched work in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Self

import numpy as np

from strobe.perf.analysis.device.intervals import Ints, column, union
from strobe.perf.analysis.device.views import Work, device_work
from strobe.perf.analysis.structure.scopes import NOWHERE, GraphPaths, Part, before, graph_paths, nest, part_of, totals
from strobe.perf.analysis.structure.window import Window
from strobe.perf.trace.events import HostEvents, Trace

Kind = Literal["range", "module", "graph module"]
COMMUNICATION: Final = ("nccl:", "rccl:", "c10d::")
"""Ranges around collectives: what they stand for is launched by another thread or stream, so most own nothing."""
_CHUNK: Final = 1 << 18
"""Events at a time, several times over where ranges nest, when unions are taken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeRow:
    """All calls of one name.

    Args:
        kind: `range` or `module`, by the host's call; `graph module`, by the path that a graph's kernels carry.
        name: of the range, of the module (`Linear_3`), or the path (`layers.3.attention`).
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
    """The ranges and modules of one device.

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
        """The rows of one kind."""
        return tuple(row for row in self.rows if row.kind == kind)


def range_table(trace: Trace, window: Window | None = None) -> tuple[Ranges, ...]:
    """Tabulate the ranges and modules of each device that has events; empty for a trace of a CPU."""
    return tuple(_ranges_of(trace, device, work, window) for device, work in device_work(trace))


def _ranges_of(trace: Trace, device: int, work: Work, window: Window | None) -> Ranges:
    part = part_of(trace, work, window)
    outside = np.ones(len(part.place), np.bool_)
    rows: list[RangeRow] = []
    on_host: tuple[tuple[Kind, HostEvents], ...] = (("range", trace.ranges), ("module", trace.modules))
    for kind, scopes in on_host:
        owner = nest(scopes).owners(part.launched)
        outside &= owner == NOWHERE
        rows += _rows(kind, scopes, part, owner, window is not None)
    paths = graph_paths(trace, part)
    rows += _graph_rows(paths, part)
    outside[np.isin(part.place, paths.place)] = False
    unlinked = part.host < 0
    order = ("range", "module", "graph module")
    return Ranges(
        device=device,
        rows=tuple(sorted(rows, key=lambda row: (order.index(row.kind), not row.events, -row.sum_ns, row.name))),
        events=len(part.position),
        sum_ns=int(part.length.sum()),
        outside_events=int(outside.sum()),
        outside_ns=int(part.length[part.place[outside]].sum()),
        unlinked_events=int(unlinked.sum()),
        unlinked_ns=int(part.length[unlinked].sum()),
    )


def _rows(kind: Kind, scopes: HostEvents, part: Part, owner: Ints, only_launching: bool) -> Iterator[RangeRow]:
    name, begin, stop = column(scopes.name), column(scopes.start_ns), column(scopes.end_ns)
    first, last = part.launched.of(scopes, np.arange(len(scopes)))
    counted = last > first if only_launching else np.ones(len(scopes), np.bool_)
    # calls of one name on one thread, side by side: one that lies in another of them adds nothing
    group = name * (int(max(scopes.thread, default=0)) + 1) + column(scopes.thread)
    order = np.argsort(group, kind="stable")
    outer = np.zeros(len(scopes), np.bool_)
    outer[order] = begin[order] >= _Ends.of(stop).reach(begin[order], order, group[order])
    fresh = first.copy()
    fresh[order] = np.maximum(first[order], _Ends.of(last).reach(first[order], order, group[order]))
    count = np.maximum(0, last - fresh)
    length = part.length[part.place]
    sums, kernels = before(length), before(part.is_kernel[part.place])
    num = len(scopes.names)
    own = owner != NOWHERE
    per_call = {
        "calls": counted,
        "launching": last > first,
        "events": count,
        "kernels": kernels[fresh + count] - kernels[fresh],
        "sum_ns": sums[fresh + count] - sums[fresh],
        "span_ns": np.where(outer, part.spans(first, last), 0),
        "host_ns": np.where(outer & counted, stop - begin, 0),
    }
    columns = {key: totals(values.astype(np.int64), name, num) for key, values in per_call.items()}
    columns["union_ns"] = _unions(part, name, fresh, count, num)
    columns["exclusive_events"] = np.bincount(name[owner[own]], minlength=num)
    columns["exclusive_ns"] = totals(length[own], name[owner[own]], num)
    rows = zip(scopes.names, zip(*(values.tolist() for values in columns.values()), strict=True), strict=True)
    for text, values in rows:
        if values[0]:
            yield RangeRow(kind=kind, name=text, **dict(zip(columns, values, strict=True)))


class _Ends(NamedTuple):
    """Ends of intervals as ranks: small enough to put the number of a group in front of them."""

    times: Ints
    rank: Ints

    @classmethod
    def of(cls, end: Ints) -> Self:
        return cls(*np.unique(end, return_inverse=True))

    def reach(self, start: Ints, which: Ints, group: Ints) -> Ints:
        """How far the intervals before each one in its group reach; for the first, its own start.

        Args:
            start: of the intervals; those of a group lie side by side.
            which: position of each among the ends.
            group: of each.
        """
        if not len(start):
            return start
        heads = np.append(True, group[1:] != group[:-1])
        highest = np.maximum.accumulate(np.cumsum(heads) * len(self.times) + self.rank[which])
        return np.where(heads, start, np.append(start[0], self.times[highest[:-1] % len(self.times)]))


def _unions(part: Part, name: Ints, first: Ints, count: Ints, num_names: int) -> Ints:
    """Union of the events of each name; the stretches of one name do not overlap. A few names at a time, to bound the memory."""
    united, ends = np.zeros(num_names, np.int64), _Ends.of(part.end)
    held = np.flatnonzero(count)
    chunk = (np.cumsum(totals(count, name, num_names)) // _CHUNK)[name[held]]
    for number in np.unique(chunk).tolist():
        chosen = held[chunk == number]
        n = count[chosen]
        launch = np.arange(int(n.sum())) + np.repeat(first[chosen] - (np.cumsum(n) - n), n)
        key = np.repeat(name[chosen], n) * len(part.start) + part.place[launch]
        key.sort()
        group, place = np.divmod(key, len(part.start))
        start, end = part.start[place], part.end[place]
        np.add.at(united, group, np.maximum(0, end - np.maximum(start, ends.reach(start, place, group))))
    return united


def _graph_rows(paths: GraphPaths, part: Part) -> Iterator[RangeRow]:
    """A row for each module path and for each path that encloses it."""
    order = np.argsort(paths.path, kind="stable")
    own = np.split(paths.place[order], np.searchsorted(paths.path[order], np.arange(1, len(paths.texts))))
    inside: dict[str, list[int]] = {}
    for path, text in enumerate(paths.texts):
        parts = text.split(".")
        for depth in range(1, len(parts) + 1):
            inside.setdefault(".".join(parts[:depth]), []).append(path)
    exclusive = {text: path for path, text in enumerate(paths.texts)}
    for text, members in inside.items():
        place = np.sort(np.concatenate([own[path] for path in members]))
        if not len(place):
            continue
        start, end = part.start[place], part.end[place]
        by_call = np.argsort(part.host[place], kind="stable")
        heads = np.flatnonzero(np.diff(part.host[place][by_call], prepend=-2))
        mine = own[exclusive[text]] if text in exclusive else place[:0]
        yield RangeRow(
            kind="graph module",
            name=text,
            calls=len(heads),
            launching=len(heads),
            events=len(place),
            kernels=int(part.is_kernel[place].sum()),
            sum_ns=int((end - start).sum()),
            union_ns=union(start, end).length_ns,
            span_ns=int((np.maximum.reduceat(end[by_call], heads) - np.minimum.reduceat(start[by_call], heads)).sum()),
            exclusive_events=len(mine),
            exclusive_ns=int(part.length[mine].sum()),
            host_ns=None,
        )
