"""Device time by path: ranges, modules and the kernel itself; and two such trees laid over each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.analysis.ledger.cut import TracedSide
from strobe.perf.analysis.structure.scopes import NOWHERE, base_of, nest
from strobe.perf.trace.events import HostEvents, Trace

Path = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A name on a path with everything below it, in both sides. Children are in order of the larger side."""

    name: str
    baseline_ns: int
    candidate_ns: int
    children: tuple[Node, ...]


def path_times(trace: Trace, side: TracedSide) -> dict[Path, int]:
    """Time that the compared steps of a trace spend under each path, the kernel's group last; it adds up to the busy time.

    A path is what was open on the thread at the launch: ranges, else modules, without their numbers; a graph's kernels carry
    their own. What was launched in nothing has the kernel alone.
    """
    owned = Counter[int]()
    busy = side.pieces.event >= 0
    length = (side.pieces.end - side.pieces.start)[busy]
    for event, ns in zip(side.pieces.event[busy].tolist(), length.tolist(), strict=True):
        owned[event] += ns
    position = np.array(sorted(owned), np.int64)
    scopes = trace.modules if len(trace.modules) else trace.ranges
    nesting = nest(scopes)
    owners = nesting.of_calls(trace.device_events.hosts, np.asarray(trace.device_events.host)[position])
    above = dict(zip(position.tolist(), owners.tolist(), strict=True))
    spelled = _spelled(scopes, nesting.parent.tolist())
    events, total = trace.device_events, Counter[Path]()
    for event, ns in owned.items():
        scope = above.get(event, NOWHERE)
        own = trace.module_paths.get(event)
        path = tuple(own.split(".")) if own else spelled[scope] if scope != NOWHERE else ()
        total[(*path, kernel_name(events.names[events.name[event]]).group)] += ns
    return dict(total)


def _spelled(scopes: HostEvents, parents: list[int]) -> list[Path]:
    """The path of each scope by its own name and those around it."""
    paths: list[Path] = []
    for parent, name in zip(parents, scopes.name, strict=True):
        own = base_of(scopes.names[name]).removeprefix("strobe::")
        paths.append((own,) if parent == NOWHERE else (*paths[parent], own))
    return paths


def difference(baseline: Mapping[Path, int], baseline_units: int, candidate: Mapping[Path, int], candidate_units: int) -> Node:
    """Lay two trees over each other, each per unit, rounded to the nanosecond; sums are those of the rounded leaves."""
    both: dict[Path, tuple[int, int]] = {}
    for path in baseline.keys() | candidate.keys():
        before = Fraction(baseline.get(path, 0), baseline_units), Fraction(candidate.get(path, 0), candidate_units)
        both[path] = round(before[0]), round(before[1])
    return _node("all", both)


def _node(name: str, below: Mapping[Path, tuple[int, int]]) -> Node:
    groups: dict[str, dict[Path, tuple[int, int]]] = {}
    for path, times in below.items():
        if path:
            groups.setdefault(path[0], {})[path[1:]] = times
    children = (_node(child, inside) for child, inside in groups.items())
    return Node(
        name=name,
        baseline_ns=sum(times[0] for times in below.values()),
        candidate_ns=sum(times[1] for times in below.values()),
        children=tuple(sorted(children, key=lambda node: (-max(node.baseline_ns, node.candidate_ns), node.name))),
    )
