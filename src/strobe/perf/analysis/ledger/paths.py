"""Device time by path: ranges, modules, operators and the kernel itself; and two such trees laid over each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.analysis.ledger.label_trace import LABELS, TracedSide
from strobe.perf.analysis.structure.scopes import NOWHERE, base_of, nest, together, without
from strobe.perf.trace.events import HostEvents, Trace

Path = tuple[str, ...]
IDLE: Final = "idle"
"""The node above the causes of idle time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A name on a path with all nodes below it, for both sides, exact. Children come in order of the larger side."""

    name: str
    baseline_ns: Fraction
    candidate_ns: Fraction
    children: tuple[Node, ...]

    @property
    def own_ns(self) -> tuple[Fraction, Fraction]:
        """Time of both sides that lies in no child, ns."""
        below = [(child.baseline_ns, child.candidate_ns) for child in self.children]
        return self.baseline_ns - sum(times[0] for times in below), self.candidate_ns - sum(times[1] for times in below)


class PathTree(NamedTuple):
    """Time of one unit by path on both sides, including idle time by cause.

    `unit` is step, call or window. With `operators` they are part of the paths. The root is what a unit takes.
    """

    unit: str
    operators: bool
    root: Node


ChosenTrace: TypeAlias = tuple[Trace, TracedSide]
"""A trace and how it was cut."""


def path_tree(baseline: ChosenTrace | None, candidate: ChosenTrace | None, unit: str) -> PathTree | None:
    """Lay the paths of two traces over each other; `None` without either.

    Args:
        unit: unit of the account: stage or step, call, window. Paths include operators if both traces were read with details.
    """
    if baseline is None or candidate is None:
        return None
    of_unit = "step" if unit in ("stage", "step") else unit
    operators = all(trace.details is not None for trace, _ in (baseline, candidate))
    found = []
    for trace, side in (baseline, candidate):
        times = {**path_times(trace, side, operators=operators), **idle_times(side)}
        found.append((times, side.num_focal if of_unit == "call" else len(side.tiles)))
    return PathTree(of_unit, operators, difference(*found[0], *found[1]))


def path_times(trace: Trace, side: TracedSide, *, operators: bool = False) -> dict[Path, int]:
    """Time that the compared steps of a trace spend under each path, the kernel's group last; it adds up to the busy time.

    A path is what was open on the thread at the launch: modules, else ranges, without their numbers; a graph's kernels carry
    their own. What was launched in nothing has the kernel alone.

    Args:
        operators: the operators that were open are part of the path too.
    """
    owned = Counter[int]()
    busy = side.pieces.event >= 0
    length = (side.pieces.end - side.pieces.start)[busy]
    for event, ns in zip(side.pieces.event[busy].tolist(), length.tolist(), strict=True):
        owned[event] += ns
    position = np.array(sorted(owned), np.int64)
    scopes = trace.modules if len(trace.modules) else trace.ranges
    if operators:
        scopes = together(scopes, without(trace.ops, set(scopes.names)))
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


def idle_times(side: TracedSide) -> dict[Path, int]:
    """Time that the compared steps of a trace are idle, by cause; with `path_times` it adds up to their length."""
    total = Counter[Path]()
    idle = side.pieces.event < 0
    length = (side.pieces.end - side.pieces.start)[idle]
    for label, ns in zip(side.pieces.label[idle].tolist(), length.tolist(), strict=True):
        total[IDLE, LABELS[label].activity] += ns
    return dict(total)


def _spelled(scopes: HostEvents, parents: list[int]) -> list[Path]:
    """Return the path of each scope: the names of the scopes around it and its own."""
    paths: list[Path] = []
    for parent, name in zip(parents, scopes.name, strict=True):
        own = base_of(scopes.names[name]).removeprefix("strobe::")
        paths.append((own,) if parent == NOWHERE else (*paths[parent], own))
    return paths


def difference(baseline: Mapping[Path, int], baseline_units: int, candidate: Mapping[Path, int], candidate_units: int) -> Node:
    """Lay two trees over each other, each per unit, exactly."""
    return _node(
        "all",
        {
            path: (Fraction(baseline.get(path, 0), baseline_units), Fraction(candidate.get(path, 0), candidate_units))
            for path in baseline.keys() | candidate.keys()
        },
    )


def _node(name: str, below: Mapping[Path, tuple[Fraction, Fraction]]) -> Node:
    groups: dict[str, dict[Path, tuple[Fraction, Fraction]]] = {}
    for path, times in below.items():
        if path:
            groups.setdefault(path[0], {})[path[1:]] = times
    children = (_node(child, inside) for child, inside in groups.items())
    return Node(
        name=name,
        baseline_ns=sum((times[0] for times in below.values()), Fraction(0)),
        candidate_ns=sum((times[1] for times in below.values()), Fraction(0)),
        children=tuple(sorted(children, key=lambda node: (-max(node.baseline_ns, node.candidate_ns), node.name))),
    )
