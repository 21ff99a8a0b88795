"""Device time by operator, input sizes and dtypes: kernels, callers, forward or backward.

Every device event in the window counts once, cut to the window. Exclusive times add up to the device's busy time exactly: what
no operator launched is a row of its own, and so is what was launched before the trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from strobe.core.costs import parse_dtype
from strobe.perf.analysis.device.device_work import BUSY, DeviceView, EventView
from strobe.perf.analysis.device.intervals import Ints, column, totals
from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.analysis.operators.launchers import PHASES, Launchers
from strobe.perf.trace.events import DEVICE_KINDS, OperatorCalls, OperatorInputs

_NOTHING: Final = OperatorInputs("")


class Source(StrEnum):
    """Sources of device events: an operator, or the reason why there is none."""

    OPERATOR = "operator"
    OUTSIDE = "no operator"
    UNLINKED = "launch not in the trace"


class Launched(NamedTuple):
    """One kernel of a row: normalised name, kind, device events, exclusive time, and sum of durations."""

    kernel: str
    kind: str
    events: int
    exclusive_ns: int
    sum_ns: int


class Caller(NamedTuple):
    """Caller of a row's operator: the operator and the range or module around it, empty where there is none."""

    operator: str
    scope: str
    calls: int
    exclusive_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorTime:
    """All calls of one operator with the same inputs that launched something on one device.

    Args:
        source: an operator, or why there is none.
        operator: its name; empty without one.
        inputs: inputs of the operator, as far as they were recorded.
        phase: `forward` or `backward` where autograd took part, else empty.
        calls: calls of the operator that launched at least one of the events; 0 without an operator.
        events: device events.
        exclusive_ns: time that no other row counts.
        sum_ns: sum of the durations.
        kernels: launched kernels, most exclusive time first.
        callers: who called, most exclusive time first.
    """

    source: Source
    operator: str
    inputs: OperatorInputs
    phase: str
    calls: int
    events: int
    exclusive_ns: int
    sum_ns: int
    kernels: tuple[Launched, ...]
    callers: tuple[Caller, ...]

    def as_calls(self, device: int) -> OperatorCalls:
        """Return the calls in the form that cost functions take."""
        given = self.inputs
        return OperatorCalls(
            device=device, name=self.operator, sizes=given.sizes, types=given.types, values=given.values, calls=self.calls,
            events=self.events, sum_ns=self.sum_ns,
        )  # fmt: skip

    @property
    def dtypes(self) -> str:
        """Dtypes of the operator's tensors, each once."""
        tensors = (kind for kind, size in zip(self.inputs.types, self.inputs.sizes, strict=False) if size)
        return ", ".join(dict.fromkeys(parse_dtype(kind) or kind for kind in tensors))


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorTimes:
    """Rows of one device, most exclusive time first; their exclusive times add up to `busy_ns`."""

    device: int
    rows: tuple[OperatorTime, ...]
    busy_ns: int

    @property
    def attributed_ns(self) -> int:
        """Exclusive time of the rows with an operator."""
        return sum(row.exclusive_ns for row in self.rows if row.source is Source.OPERATOR)


def operator_times(views: Sequence[DeviceView]) -> tuple[OperatorTimes, ...]:
    """Return the table of each device of a trace that was read with details; none for a trace without them.

    Args:
        views: devices of one trace.
    """
    if not views or views[0].trace.details is None:
        return ()
    launchers = Launchers(views[0].trace, views[0].trace.details)
    return tuple(_table(view, launchers) for view in views)


def _table(view: DeviceView, launchers: Launchers) -> OperatorTimes:
    keys = _Keys(view, launchers)
    counted = _Counted()
    for part in view.parts():
        counted.add(keys.codes(part.work), part.length, exclusive=False)
    busy_ns = 0
    for slices in view.stretches():
        busy = slices.cause == BUSY
        busy_ns += int(slices.length[busy].sum())
        counted.add(keys.codes(view.work.at(slices.event[busy])), slices.length[busy], exclusive=True)
    rows = keys.rows(counted)
    ordered = sorted(rows, key=lambda row: (-row.exclusive_ns, -row.sum_ns, row.source, row.operator, row.inputs, row.phase))
    return OperatorTimes(device=view.device, rows=tuple(ordered), busy_ns=busy_ns)


class _Counted:
    """Counter of events, exclusive time and durations, by code."""

    def __init__(self) -> None:
        self.of: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])

    def add(self, codes: Ints, length: Ints, *, exclusive: bool) -> None:
        """Add durations of events, or the time that they own."""
        some, which, number = np.unique(codes, return_inverse=True, return_counts=True)
        total = totals(length, which, len(some))
        for code, ns, count in zip(some.tolist(), total.tolist(), number.tolist(), strict=True):
            found = self.of[code]
            if exclusive:
                found[1] += ns
            else:
                found[0] += count
                found[2] += ns


class _Keys:
    """Codes of a device's events: row, caller, name and kind packed into one number."""

    def __init__(self, view: DeviceView, launchers: Launchers) -> None:
        self._trace, self._launchers = view.trace, launchers
        used = np.zeros(launchers.num + 2, np.bool_)
        for part in view.parts():
            used[launchers.of(part.work)] = True
        self._used = np.flatnonzero(used)
        self._rows, row = self._row_numbers()
        self._callers, caller = self._caller_numbers()
        self._row, self._caller = (np.zeros(launchers.num + 2, np.int64) for _ in range(2))
        self._row[self._used], self._caller[self._used] = row, caller
        self._scope_caller = self._scope_numbers()

    def _row_numbers(self) -> tuple[Ints, Ints]:
        """Return one launcher of each row, and the row of each used launcher."""
        one, details = self._launchers, self._trace.details
        assert details is not None
        real = self._used[self._used < one.num]
        code = np.append(np.full(0, 0, np.int64), self._used - one.num - 2)  # no operator: -2 and -1
        given = column(details.given)[real] + 1
        code[: len(real)] = (column(self._trace.ops.name)[real] * (len(details.inputs) + 1) + given) * 3 + one.phase[real]
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        return self._used[first], which.astype(np.int64)

    def _caller_numbers(self) -> tuple[list[tuple[str, str]], Ints]:
        """Return the callers (operator around, range or module), and the caller of each used launcher."""
        one, ops = self._launchers, self._trace.ops
        scope = one.scopes_of(self._used)
        above = np.full(len(self._used), -1, np.int64)
        real = np.flatnonzero(self._used < one.num)
        parent = one.parent[self._used[real]]
        above[real] = np.where(parent >= 0, column(ops.name)[parent] if len(ops) else -1, -1)
        pairs, which = np.unique(np.stack((above, scope), axis=1), axis=0, return_inverse=True)
        names = [(ops.names[a] if a >= 0 else "", one.scope_names[s] if s >= 0 else "") for a, s in pairs.tolist()]
        return names, which.astype(np.int64).reshape(-1)

    def _scope_numbers(self) -> Ints:
        """Return the caller number of each scope without an operator; the last one is that of no scope."""
        place = {caller: number for number, caller in enumerate(self._callers)}
        numbers = []
        for name in (*self._launchers.scope_names, ""):
            if ("", name) not in place:
                place["", name] = len(self._callers)
                self._callers.append(("", name))
            numbers.append(place["", name])
        return np.array(numbers, np.int64)

    def codes(self, work: EventView) -> Ints:
        """Return the code of each event."""
        launcher = self._launchers.of(work)
        caller = self._caller[launcher]
        outside = np.flatnonzero(launcher >= self._launchers.num)
        caller[outside] = self._scope_caller[self._launchers.scopes_of_calls(work)[outside]]
        code: Ints = self._row[launcher] * len(self._callers) + caller
        code = code * len(self._trace.device_events.names) + work.name.astype(np.int64)
        return code * len(DEVICE_KINDS) + work.kind.astype(np.int64)

    def rows(self, counted: _Counted) -> Iterable[OperatorTime]:
        """Yield the rows of the table from the counters."""
        calls: dict[tuple[int, int], int] = defaultdict(int)
        real = self._used[self._used < self._launchers.num]
        for pair in zip(self._row[real].tolist(), self._caller[real].tolist(), strict=True):
            calls[pair] += 1
        parts: dict[int, list[tuple[int, str, str, list[int]]]] = defaultdict(list)
        for code, found in counted.of.items():
            rest, kind = divmod(code, len(DEVICE_KINDS))
            rest, name = divmod(rest, len(self._trace.device_events.names))
            row, caller = divmod(rest, len(self._callers))
            group = kernel_name(self._trace.device_events.names[name]).group
            parts[row].append((caller, group, DEVICE_KINDS[kind], found))
        for row, own in parts.items():
            yield self._time(int(self._rows[row]), row, own, calls)

    def _time(
        self, launcher: int, row: int, parts: list[tuple[int, str, str, list[int]]], calls: dict[tuple[int, int], int]
    ) -> OperatorTime:
        details, ops = self._trace.details, self._trace.ops
        assert details is not None
        kernels: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        callers: dict[int, int] = defaultdict(int)
        for caller, group, kind, found in parts:
            kernels[group, kind] = [a + b for a, b in zip(kernels[group, kind], found, strict=True)]
            callers[caller] += found[1]
        real = launcher < self._launchers.num
        given = details.given[launcher] if real else -1
        named = [
            Caller(*self._callers[caller], calls[row, caller] if real else 0, own)
            for caller, own in callers.items()
        ]  # fmt: skip
        listed = [Launched(*key, *sums) for key, sums in kernels.items()]
        return OperatorTime(
            source=Source.OPERATOR if real else Source.OUTSIDE if launcher == self._launchers.outside else Source.UNLINKED,
            operator=ops.names[ops.name[launcher]] if real else "",
            inputs=details.inputs[given] if given >= 0 else _NOTHING,
            phase=PHASES[int(self._launchers.phase[launcher])] if real else "",
            calls=sum(caller.calls for caller in named),
            events=sum(one.events for one in listed),
            exclusive_ns=sum(one.exclusive_ns for one in listed),
            sum_ns=sum(one.sum_ns for one in listed),
            kernels=tuple(sorted(listed, key=lambda one: (-one.exclusive_ns, -one.sum_ns, one.kernel, one.kind))),
            callers=tuple(sorted(named, key=lambda one: (-one.exclusive_ns, one.operator, one.scope))),
        )
