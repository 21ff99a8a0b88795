"""Longest chain through a trace, and the length of the trace if some of its work took no time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from strobe.perf.analysis.critical_path.graph import Edge, Lag, WorkGraph, work_graph
from strobe.perf.analysis.device.kernel_kinds import KernelKind, kernel_kind
from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.analysis.window import Window
from strobe.perf.trace.events import DEVICE_KINDS, DeviceEvents, Trace

KERNEL: Final = "kernel"
"""Value of `PathPart.kind` and `WhatIf.kind` for device events of one normalised name; other kinds are those of `Lag`."""
KIND: Final = "kind of kernel"
"""Value of `WhatIf.kind` for all device events of one kind of work."""
_KINDS: Final = {"comm": "communication", "memcpy": "copies", "memset": "memsets"}
_KERNELS: Final = 8
"""Most kernels with a what-if of their own: those with the most time on the path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PathPart:
    """Time of one kernel or kind of lag on the critical path.

    Args:
        kind: `KERNEL`, or one of `Lag`.
        name: name of the kernel; empty for a lag.
        ns: its time on the path.
        count: how often it is on the path.
    """

    kind: str
    name: str
    ns: int
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """Length of the trace if one kernel, kind of work or lag took no time.

    Args:
        kind: `KERNEL`, `KIND`, or one of `Lag` for the host and for launches.
        name: name of the kernel or kind of work; empty for a lag.
        removed_ns: time that is left out, of device events or of lags, on the path and beside it.
        duration_ns: length of the graph without it.
        speedup: duration with it / duration without it; `None` if nothing is left.
    """

    kind: str
    name: str
    removed_ns: int
    duration_ns: int
    speedup: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticalPath:
    """Longest chain of a trace or window.

    Args:
        begin_ns: where it begins.
        duration_ns: from there to the end of the last device event; the parts add up to it.
        parts: kernels and lags on the path, largest first.
        what_if: shortest first.
        launch_ns: usual latency of a launch whose stream is free.
        gap_ns: usual gap between queued events of a stream.
        num_events: device events.
        num_inferred: of these, taken to have waited for another stream.
    """

    begin_ns: int
    duration_ns: int
    parts: tuple[PathPart, ...]
    what_if: tuple[WhatIf, ...]
    launch_ns: int
    gap_ns: int
    num_events: int
    num_inferred: int


def critical_path(trace: Trace, window: Window | None = None) -> CriticalPath:
    """Return the critical path of a trace that was read with details, or of the device events that start in a window.

    Raises:
        DataError: it has no device events there, or too many.
    """
    graph = work_graph(trace, window)
    done = simulate(graph)
    duration = _length(graph, done.start_ns, graph.duration_ns)
    parts = _parts(graph, done, trace.device_events)
    return CriticalPath(
        begin_ns=graph.begin_ns,
        duration_ns=duration,
        parts=parts,
        what_if=tuple(
            sorted(_what_ifs(graph, parts, trace.device_events, duration), key=lambda one: (one.duration_ns, one.kind, one.name))
        ),
        launch_ns=graph.launch_ns,
        gap_ns=graph.gap_ns,
        num_events=sum(event >= 0 for event in graph.event),
        num_inferred=graph.num_inferred,
    )


class Simulated(NamedTuple):
    """Start of each node, and the position among its edges of the edge that decided it."""

    start_ns: list[int]
    decided: list[int]


def simulate(
    graph: WorkGraph, duration_ns: Sequence[int] | None = None, lag_ns: Callable[[Edge], int] | None = None
) -> Simulated:
    """Recompute the start of every node, with other durations of nodes or other lags of edges.

    Args:
        duration_ns: duration of each node; as traced if not given.
        lag_ns: function that gives the lag of an edge; the edge's own if not given.
    """
    durations = graph.duration_ns if duration_ns is None else duration_ns
    starts: list[int] = []
    decided: list[int] = []
    for edges in graph.edges:
        best, which = -1, 0
        for place, edge in enumerate(edges):
            source, from_end, lag, _ = edge
            if lag_ns is not None:
                lag = lag_ns(edge)
            if source < 0:
                ready = graph.begin_ns + lag
            elif from_end:
                ready = starts[source] + durations[source] + lag
            else:  # it ran beside its source, which may be shorter now
                ready = starts[source] + min(lag, durations[source])
            if place == 0 or ready > best:
                best, which = ready, place
        starts.append(best)
        decided.append(which)
    return Simulated(starts, decided)


def _length(graph: WorkGraph, starts: Sequence[int], durations: Sequence[int]) -> int:
    ends = [start + took for start, took, event in zip(starts, durations, graph.event, strict=True) if event >= 0]
    return max(ends) - graph.begin_ns


def _parts(graph: WorkGraph, done: Simulated, events: DeviceEvents) -> tuple[PathPart, ...]:
    """Follow the path back from the event that ends last."""
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])

    def spend(kind: str, name: str, ns: int) -> None:
        part = found[kind, name]
        part[0] += ns
        part[1] += 1

    last = [node for node, event in enumerate(graph.event) if event >= 0]
    node, from_end = max(last, key=lambda each: (done.start_ns[each] + graph.duration_ns[each], -each)), True
    while node >= 0:
        if from_end and graph.event[node] >= 0:
            spend(KERNEL, _group(events, graph.event[node]), graph.duration_ns[node])
        edge = graph.edges[node][done.decided[node]]
        if edge.kind is Lag.OVERLAP:
            spend(KERNEL, _group(events, graph.event[edge.source]), edge.lag_ns)
        else:
            spend(edge.kind.value, "", edge.lag_ns)
        node, from_end = edge.source, edge.from_end
    parts = [PathPart(kind=kind, name=name, ns=ns, count=count) for (kind, name), (ns, count) in found.items() if ns]
    return tuple(sorted(parts, key=lambda part: (-part.ns, part.kind, part.name)))


def _group(events: DeviceEvents, position: int) -> str:
    return kernel_name(events.names[events.name[position]]).group


def _what_ifs(graph: WorkGraph, parts: Sequence[PathPart], events: DeviceEvents, duration: int) -> Iterator[WhatIf]:
    """Yield the trace without host time, without launch latency, without each kind of work, without the largest kernels."""
    for kind in (Lag.HOST, Lag.LAUNCH):
        done = simulate(graph, None, lambda edge, kind=kind: 0 if edge.kind is kind else edge.lag_ns)  # type: ignore[misc]
        removed = sum(edges[0].lag_ns for edges in graph.edges if edges[0].kind is kind)
        yield _what_if(kind.value, "", removed, _length(graph, done.start_ns, graph.duration_ns), duration)
    group_of = {number: kernel_name(name).group for number, name in enumerate(events.names)}
    work_of = {number: kernel_kind(name) for number, name in enumerate(events.names)}
    names = [part.name for part in parts if part.kind == KERNEL][:_KERNELS]
    groups = [group_of[events.name[event]] if event >= 0 else "" for event in graph.event]
    works = [_work(events, event, work_of) if event >= 0 else "" for event in graph.event]
    for what, labels, wanted in ((KIND, works, sorted(set(works) - {""})), (KERNEL, groups, names)):
        for name in wanted:
            free = [0 if label == name else took for label, took in zip(labels, graph.duration_ns, strict=True)]
            removed = sum(graph.duration_ns) - sum(free)
            yield _what_if(what, name, removed, _length(graph, simulate(graph, free).start_ns, free), duration)


def _work(events: DeviceEvents, event: int, work_of: dict[int, KernelKind]) -> str:
    kind = DEVICE_KINDS[events.kind[event]]
    return _KINDS[kind] if kind in _KINDS else work_of[events.name[event]].value


def _what_if(kind: str, name: str, removed: int, left: int, whole: int) -> WhatIf:
    return WhatIf(kind=kind, name=name, removed_ns=removed, duration_ns=left, speedup=whole / left if left else None)
