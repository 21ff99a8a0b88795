"""Launching operator of each device event, with its caller and its autograd phase."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.device_work import EventView
from strobe.perf.analysis.device.intervals import Ints, column
from strobe.perf.analysis.structure.scopes import NOWHERE, nest, ranges_and_modules, unnumbered
from strobe.perf.trace.events import OperatorFacts, Trace

PHASES: Final = ("", "forward", "backward")
"""Phases of an operator: not recorded by autograd, recorded (forward), or run by it (backward)."""
_ENGINE: Final = re.compile(r"autograd::engine::evaluate_function: .+")
"""Name of the range that autograd's engine puts around each node it runs; nodes that add up gradients have no number."""


class Launchers:
    """Operators of a trace that was read with details, as launchers of its device events.

    A launcher is a number: the position of an operator, or behind the last one `outside` (the launch call lies in no operator)
    and `unlinked` (neither the launch call nor the operator is known). The innermost operator that is open when the launch call
    starts is the launcher; without a launch call, the one that the profiler names.

    Args:
        trace: read with `details=True`.
        details: inputs and autograd facts of its operators.
    """

    def __init__(self, trace: Trace, details: OperatorFacts) -> None:
        self.num = len(trace.ops)
        self.outside, self.unlinked = self.num, self.num + 1
        self._trace, self._details = trace, details
        hosts, nesting = trace.device_events.hosts, nest(trace.ops)
        self.parent: Ints = np.asarray(nesting.parent).astype(np.int64)
        calls = np.arange(len(hosts), dtype=np.int32)
        self._of_host = nesting.of_calls(hosts, calls)
        self._scopes = ranges_and_modules(replace(trace, modules=unnumbered(trace.modules), ranges=unnumbered(trace.ranges)))
        self._nested = nest(self._scopes)
        self._scope_of_host = self._nested.of_calls(hosts, calls)
        engine = np.array([_ENGINE.fullmatch(name) is not None for name in trace.ops.names] or [False])[column(trace.ops.name)]
        backward = self._inherited(column(details.backward) | engine)
        recorded = self._inherited((column(details.sequence) >= 0).astype(np.int64))
        self.phase: Ints = np.where(backward > 0, 2, np.minimum(recorded, 1))

    @property
    def scope_names(self) -> tuple[str, ...]:
        """Names of ranges and modules without their numbers."""
        return self._scopes.names

    def of(self, work: EventView) -> Ints:
        """Return the launcher of each of some device events."""
        host = work.host
        launcher = np.full(len(host), NOWHERE, np.int64)
        known = host >= 0
        launcher[known] = self._of_host[host[known]]
        lost = np.flatnonzero(launcher == NOWHERE)
        named = np.asarray(self._details.of_event)[work.position[lost]].astype(np.int64)
        launcher[lost] = np.where(named >= 0, named, np.where(known[lost], self.outside, self.unlinked))
        return launcher

    def scopes_of(self, launchers: Ints) -> Ints:
        """Return the name of the range or module that each of some operators ran in, -1 for none.

        A backward operator runs on behalf of a forward one: it belongs to the scope of that one, if the trace has it.
        """
        found = np.full(len(launchers), NOWHERE, np.int64)
        real = np.flatnonzero(launchers < self.num)
        found[real] = self._name(self._at_start(launchers[real]))
        answered = self._forward_of(launchers[real])
        some = np.flatnonzero(answered != NOWHERE)
        scope = self._name(self._at_start(answered[some]))
        found[real[some]] = np.where(scope == NOWHERE, found[real[some]], scope)
        return found

    def scopes_of_calls(self, work: EventView) -> Ints:
        """Return the name of the range or module that each device event was launched in, -1 for none."""
        host = work.host
        found = np.full(len(host), NOWHERE, np.int64)
        known = host >= 0
        found[known] = self._name(self._scope_of_host[host[known]])
        return found

    def _name(self, scope: Ints) -> Ints:
        names = column(self._scopes.name)
        return np.where(scope == NOWHERE, NOWHERE, names[scope] if len(names) else NOWHERE)

    def _at_start(self, operators: Ints) -> Ints:
        """Return the innermost scope in which each of some operators starts."""
        ops = self._trace.ops
        thread, start = np.asarray(ops.thread)[operators], np.asarray(ops.start_ns)[operators]
        found = np.full(len(operators), NOWHERE, np.int64)
        for number in np.unique(thread).tolist():
            mine = thread == number
            found[mine] = self._nested.at(number, start[mine])
        return found

    def _forward_of(self, operators: Ints) -> Ints:
        """Return the forward operator of each of some backward ones: the last with its autograd sequence number."""
        found = np.full(len(operators), NOWHERE, np.int64)
        mine = np.flatnonzero(self.phase[operators] == PHASES.index("backward"))
        own = column(self._details.sequence)
        forward = np.flatnonzero((own >= 0) & (self.phase != PHASES.index("backward")))
        if not len(mine) or not len(forward):
            return found
        order = forward[np.argsort(own[forward], kind="stable")]
        wanted = self._inherited(np.where(column(self._details.backward) > 0, own, NOWHERE), NOWHERE)[operators[mine]]
        place = np.searchsorted(own[order], wanted, "right") - 1
        found[mine] = np.where((place >= 0) & (own[order[place]] == wanted) & (wanted >= 0), order[place], NOWHERE)
        return found

    def _inherited(self, values: NDArray[np.integer], nothing: int = 0) -> Ints:
        """Replace each value `nothing` by that of the innermost enclosing operator with another value."""
        found: Ints = np.asarray(values).astype(np.int64)
        inner = np.flatnonzero(self.parent != NOWHERE)
        while True:
            empty = inner[found[inner] == nothing]
            above = found[self.parent[empty]]
            if (above == nothing).all():
                return found
            found[empty] = above
