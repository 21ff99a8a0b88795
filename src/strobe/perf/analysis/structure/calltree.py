"""The time of a device as a tree of the ranges and modules that launched its work, each nanosecond counted once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from strobe.perf.analysis.device.intervals import Ints, column, reach
from strobe.perf.analysis.device.views import device_work
from strobe.perf.analysis.structure.scopes import (
    ROOT,
    GraphPaths,
    Part,
    Paths,
    graph_paths,
    nest,
    part_of,
    ranges_and_modules,
    totals,
    unnumbered,
)
from strobe.perf.analysis.structure.window import Window
from strobe.perf.trace.events import Trace

OUTSIDE: Final = "outside ranges and modules"
UNLINKED: Final = "launched before the trace"


@dataclass(frozen=True, kw_only=True, slots=True)
class CallNode:
    """Calls of one name under one path. Ranges that differ in their number alone (`ProfilerStep#3`) are one.

    Args:
        name: of the range or module, or a part of the module path of a graph's kernel.
        calls: on the host; 0 for a part of a module path.
        host_ns: time of the calls on the host.
        events: device events launched in it, nested calls included.
        total_ns: their time; where events overlap, the moment belongs to the one that started first.
        self_ns: the part of it that was launched in no nested call.
        children: by descending total.
    """

    name: str
    calls: int
    host_ns: int
    events: int
    total_ns: int
    self_ns: int
    children: tuple[CallNode, ...]


def call_trees(trace: Trace, window: Window | None = None) -> tuple[tuple[int, CallNode], ...]:
    """Return the number and the tree of each device that has events; the root's total is its busy time."""
    scopes = ranges_and_modules(replace(trace, ranges=unnumbered(trace.ranges)))
    nesting, paths = nest(scopes), Paths()
    of_scope = np.array([*paths.of(scopes, nesting), paths.number(ROOT, OUTSIDE)], np.int64)  # nowhere is the last one
    unlinked, found = paths.number(ROOT, UNLINKED), []
    for device, work in device_work(trace):
        part = part_of(trace, work, window)
        path = np.full(len(part.start), unlinked, np.int64)
        path[part.place] = of_scope[nesting.owners(part.launched)]
        first, last = part.launched.of(scopes, np.arange(len(scopes)))
        counted = np.arange(len(scopes)) if window is None else np.flatnonzero(last > first)
        host_ns = (column(scopes.end_ns) - column(scopes.start_ns))[counted]
        path = _below(path, graph_paths(trace, part), paths)
        found.append((device, _tree(part, path, paths, of_scope[counted], host_ns)))
    return tuple(found)


def _below(path: Ints, carried: GraphPaths, paths: Paths) -> Ints:
    """Move the events that carry a module path below the path that launched their graph."""
    if not len(carried.place):
        return path
    pairs, which = np.unique(path[carried.place] * len(carried.texts) + carried.path, return_inverse=True)
    moved = []
    for above, text in zip(*(side.tolist() for side in np.divmod(pairs, len(carried.texts))), strict=True):
        for name in carried.texts[text].split("."):
            above = paths.number(above, name)
        moved.append(above)
    path[carried.place] = np.array(moved, np.int64)[which]
    return path


def _tree(part: Part, path: Ints, paths: Paths, called: Ints, host_ns: Ints) -> CallNode:
    num = len(paths.names)
    own = np.maximum(0, part.end - np.maximum(part.start, reach(part.start, part.end)))
    self_ns = totals(own, path, num).tolist()
    events = np.bincount(path, minlength=num).tolist()
    calls = np.bincount(called, minlength=num).tolist()
    on_host = totals(host_ns, called, num).tolist()
    below: list[list[CallNode]] = [[] for _ in range(num)]
    for number in range(num - 1, ROOT, -1):
        node = _node(paths.names[number], calls[number], on_host[number], events[number], self_ns[number], below[number])
        if node.events or node.calls:
            below[paths.above[number]].append(node)
    return _node("device", 0, 0, 0, 0, below[ROOT])


def _node(name: str, calls: int, host_ns: int, events: int, self_ns: int, children: Sequence[CallNode]) -> CallNode:
    return CallNode(
        name=name,
        calls=calls,
        host_ns=host_ns,
        events=events + sum(child.events for child in children),
        total_ns=self_ns + sum(child.total_ns for child in children),
        self_ns=self_ns,
        children=tuple(sorted(children, key=lambda child: (-child.total_ns, child.name))),
    )
