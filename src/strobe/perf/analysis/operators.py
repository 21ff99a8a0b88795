"""Operators of a trace: host time, device time by inputs and callers, and rates against the peaks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Annotated as A
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from strobe.core.costs import DevicePeaks, parse_dtype
from strobe.core.errors import unknown_choice
from strobe.perf.analysis.device.activity import BUSY, DeviceView, EventView, events_by_device
from strobe.perf.analysis.device.intervals import Distribution, Ints, Window, column, distributions, totals
from strobe.perf.analysis.device.kernels import kernel_name
from strobe.perf.analysis.device.roofline import Roofline, operator_cost, roofline
from strobe.perf.analysis.structure.ranges import NOWHERE, launched_in, nest, ranges_and_modules, unnumbered
from strobe.perf.table.model import Cell, Code, Count, ExactTime, Missing, Number, Text, Time
from strobe.perf.table.rows import OnDevice, TimedRow, col, micros, part_of, term
from strobe.perf.trace.events import DEVICE_KINDS, HostEvents, OperatorCalls, OperatorFacts, OperatorInputs, Trace

# Operator table of a trace without device events: host time by operator, by self time.


class OperatorRow(TimedRow, frozen=True, kw_only=True):
    """Calls of one operator on the host, in a trace without device events."""

    operator: A[str, col("name of the operator, e.g. `aten::mm`", "operator", Code)]
    self_ns: A[int, col("time in it and in no operator it calls", "self", ExactTime, total=sum, of={"share": "busy_ns"})]


@dataclass(frozen=True, kw_only=True, slots=True)
class Operators:
    """Operators of the host in a window.

    Args:
        threads: name, number of calls and busy time of each thread, the busiest first.
        rows: of each operator, the largest self time first; self times add up to the busy time of the threads.
    """

    span_ns: int
    threads: tuple[tuple[str, int, int], ...]
    rows: tuple[OperatorRow, ...]

    @property
    def busy_ns(self) -> int:
        return sum(busy_ns for _, _, busy_ns in self.threads)


def operators(trace: Trace, window: Window | None = None) -> Operators | None:
    """Tabulate the operators of a window, by default from the first operator's start to the last one's end.

    Calls are those that ran in the window, whole; self time is what lies in the window. `None` if the trace holds no operators.
    """
    ops = trace.ops
    if not len(ops):
        return None
    start, end = column(ops.start_ns), column(ops.end_ns)
    name, thread = column(ops.name), column(ops.thread)
    left, right = (window.start_ns, window.end_ns) if window else (int(start.min()), int(end.max()))
    self_ns = np.zeros(len(ops), np.int64)
    nesting = nest(ops)
    for number, moments in nesting.cuts.moments.items():
        owner = nesting.owner[nesting.cuts.started(number)]
        own = np.diff(np.clip(moments, left, right), append=right)
        np.add.at(self_ns, owner[owner >= 0], own[owner >= 0])
    inside = (start < right) & (end > left) | (start >= left) & (end <= right)
    calls = distributions((end - start)[inside], name[inside], len(ops.names))
    by_name = totals(self_ns, name, len(ops.names)).tolist()
    busy = totals(self_ns, thread, len(trace.threads)).tolist()
    counts = np.bincount(thread[inside], minlength=len(trace.threads)).tolist()
    rows = [
        part_of(OperatorRow, found, trace=trace.label, operator=text, calls=found.n, self_ns=own)
        for text, found, own in zip(ops.names, calls, by_name, strict=True)
        if found is not None
    ]
    threads = [(text, count, ns) for text, count, ns in zip(trace.threads, counts, busy, strict=True) if count or ns]
    return Operators(
        span_ns=right - left,
        threads=tuple(sorted(threads, key=lambda row: (-row[2], row[0]))),
        rows=tuple(sorted(rows, key=lambda row: (-row.self_ns, row.operator))),
    )


def host_ranges(trace: Trace, window: Window | None = None) -> dict[str, Distribution]:
    """Return the durations of the host's ranges that ran in the window, longest time first; they contain each other.

    Ranges of one name without its number are one, on all threads.
    """
    ranges = unnumbered(trace.ranges)
    start, end = column(ranges.start_ns), column(ranges.end_ns)
    inside = np.ones(len(ranges), np.bool_) if window is None else (start < window.end_ns) & (end > window.start_ns)
    calls = distributions((end - start)[inside], column(ranges.name)[inside], len(ranges.names))
    found = [(name, one) for name, one in zip(ranges.names, calls, strict=True) if one is not None]
    return dict(sorted(found, key=lambda each: (-each[1].sum_ns, each[0])))


# Operators and modules of a trace with stacks or shapes, with the device work that each of them launched.
#
# Recording stacks or shapes slows a trace down unevenly: its times show the order of operators, they are no measurement.

SortBy = Literal["device", "self_host", "host", "calls"]
SORTS: Final[tuple[SortBy, ...]] = get_args(SortBy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attributed:
    """All calls of one operator or module; what a module takes on the host without what it calls is its operators'."""

    name: A[str, col("name of the operator, or of the module's class with its number", "name", Code)]
    calls: A[int, col("number of calls", "calls", Count)]
    device_ns: A[int, term("work launched while this one was the innermost", "device", Time)]
    self_host_ns: A[int, term("on the host, without what it calls", "host, self", Time)]
    host_ns: A[int, term("on the host, with what it calls", "host", Time)]


def attribute_operators(trace: Trace, sort_by: str = "device") -> tuple[Attributed, ...]:
    """Return the operators of a trace that was read with its operators, largest first.

    Args:
        sort_by: one of `SORTS`; a trace without device events has no device time, and ties go by `self_host`.

    Raises:
        ConfigError: there is no such order.
    """
    found = operators(trace)
    device = _device_ns(trace, trace.ops)
    rows = [
        Attributed(
            name=row.operator,
            calls=row.calls,
            host_ns=row.sum_ns,
            self_host_ns=row.self_ns,
            device_ns=device.get(row.operator, 0),
        )
        for row in (found.rows if found else ())
    ]
    return _sorted(rows, sort_by)


def attribute_modules(trace: Trace, sort_by: str = "device") -> tuple[Attributed, ...]:
    """Return the `nn.Module` calls of a trace with Python frames, largest first; empty without frames."""
    modules = trace.modules
    device = _device_ns(trace, modules)
    calls: dict[str, list[int]] = {}
    for event in modules:
        calls.setdefault(event.name, []).append(event.end_ns - event.start_ns)
    rows = [
        Attributed(name=name, calls=len(times), host_ns=sum(times), self_host_ns=0, device_ns=device.get(name, 0))
        for name, times in calls.items()
    ]
    return _sorted(rows, sort_by)


def _sorted(rows: list[Attributed], sort_by: str) -> tuple[Attributed, ...]:
    if sort_by not in SORTS:
        raise unknown_choice("order", sort_by, SORTS)
    keys = {"device": "device_ns", "self_host": "self_host_ns", "host": "host_ns", "calls": "calls"}
    return tuple(sorted(rows, key=lambda row: (-getattr(row, keys[sort_by]), -row.self_host_ns, -row.host_ns, row.name)))


def _device_ns(trace: Trace, scopes: HostEvents) -> dict[str, int]:
    """Return device time by the name of the innermost scope that launched it; time without such a scope is left out."""
    total = np.zeros(len(scopes.names), np.int64)
    nesting, name = nest(scopes), np.asarray(scopes.name)
    owned = nesting.owner != NOWHERE
    for _, work in events_by_device(trace):
        np.add.at(total, name[nesting.owner[owned]], launched_in(trace, work, None, nesting.cuts).sum_ns[owned])
    return {text: ns for text, ns in zip(scopes.names, total.tolist(), strict=True) if ns}


# Launching operator of each device event, with its caller and its autograd phase.

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
        return self._scopes.names

    def of(self, work: EventView) -> Ints:
        host = work.host
        launcher = np.append(self._of_host, NOWHERE)[np.maximum(host, NOWHERE)]
        lost = np.flatnonzero(launcher == NOWHERE)
        named = np.asarray(self._details.of_event)[work.position[lost]].astype(np.int64)
        launcher[lost] = np.where(named >= 0, named, np.where(host[lost] >= 0, self.outside, self.unlinked))
        return launcher

    def scopes_of(self, launchers: Ints) -> Ints:
        """Return the name of the range or module that each of some operators ran in, -1 for none.

        A backward operator runs on behalf of a forward one: it belongs to the scope of that one, if the trace has it.
        """
        found = np.full(len(launchers), NOWHERE, np.int64)
        real = np.flatnonzero(launchers < self.num)
        found[real] = self._name(self._nested.of_calls(self._trace.ops, launchers[real]))
        answered = self._forward_of(launchers[real])
        some = np.flatnonzero(answered != NOWHERE)
        scope = self._name(self._nested.of_calls(self._trace.ops, answered[some]))
        found[real[some]] = np.where(scope == NOWHERE, found[real[some]], scope)
        return found

    def scopes_of_calls(self, work: EventView) -> Ints:
        """Return the name of the range or module that each device event was launched in, -1 for none."""
        return self._name(np.append(self._scope_of_host, NOWHERE)[np.maximum(work.host, NOWHERE)])

    def _name(self, scope: Ints) -> Ints:
        names = column(self._scopes.name)
        return np.where(scope == NOWHERE, NOWHERE, names[scope] if len(names) else NOWHERE)

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


# Device time by operator, input sizes and dtypes: kernels, callers, forward or backward.
#
# Every device event in the window counts once, cut to the window. Exclusive times add up to the device's busy time exactly: what
# no operator launched is a row of its own, and so is what was launched before the trace.

_NOTHING: Final = OperatorInputs("")


class Source(StrEnum):
    """Sources of device events: an operator, or the reason why there is none."""

    OPERATOR = "operator"
    OUTSIDE = "no operator"
    UNLINKED = "launch not in the trace"


def _operator(row: OperatorTimeRow) -> Cell:
    return Code(row.operator) if row.source == Source.OPERATOR else Text(row.source, "muted")


def _input(name: str, nothing: Any = None) -> Callable[[Any], Any]:
    return lambda row: (getattr(row, name) or nothing) if row.source == Source.OPERATOR else Missing(row.source, "-")


_NO_SIZES: Final = "sizes not recorded"
_NO_TYPES: Final = "types not recorded"


class _OfOperator(OnDevice, frozen=True, kw_only=True):
    """A row about one operator."""

    place: A[int, col("position of the operator among the rows of `operator_times` with the same trace and device, from 0")]


class OperatorTimeRow(_OfOperator, frozen=True, kw_only=True):
    """Device time of one operator with the same inputs; exclusive times add up to the busy time of the device."""

    source: A[str, col("`operator`, or the reason why the row has none: `no operator`, `launch not in the trace`")]
    operator: A[str, col("innermost operator around the launch call; empty: none", "operator", get=_operator)]
    input_sizes: A[
        str, col("sizes of the inputs; empty: not recorded", "inputs", Code, get=_input("input_sizes"), missing=_NO_SIZES)
    ]
    dtypes: A[str, col("dtypes of the inputs, each once; empty: not recorded", "dtype", get=_input("dtypes"), missing=_NO_TYPES)]
    phase: A[str, col("`forward` or `backward`; empty: autograd took no part", "pass", get=_input("phase", ""))]
    calls: A[int, col("number of calls that launched a device event", "calls", Count, get=_input("calls", 0), total=sum)]
    events: A[int, col("number of device events", "events", Count, total=sum)]
    exclusive_ns: A[
        int, term("time no other row counts; adds up to busy", "exclusive", ExactTime, total=sum, of={"of busy": "busy_ns"})
    ]
    sum_ns: A[int, col("sum of the durations of the device events")]


class OperatorKernelRow(_OfOperator, frozen=True, kw_only=True):
    """One kernel that an operator of `operator_times` launched."""

    kernel: A[str, col("normalised name of the kernel")]
    kind: A[str, col("`kernel`, `comm` (communication), `memset` or `memcpy`")]
    events: A[int, col("number of device events")]
    exclusive_ns: A[int, col("device time that no other row counts")]
    sum_ns: A[int, col("sum of the durations of the device events")]


class OperatorCallerRow(_OfOperator, frozen=True, kw_only=True):
    """One caller of an operator of `operator_times`."""

    caller: A[str, col("name of the operator that calls it; empty: none")]
    scope: A[str, col("range or module around the call, without its number; of a backward operator: around its forward one")]
    calls: A[int, col("number of calls")]
    exclusive_ns: A[int, col("device time that no other row counts")]


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorTimes:
    """Operators of one device with equal inputs, most exclusive time first.

    Args:
        rows: their exclusive times add up to `busy_ns`.
        inputs: of the calls of each row, as far as they were recorded.
        kernels: launched by the calls of each row, most exclusive time first; `callers` likewise.
    """

    device: int
    rows: tuple[OperatorTimeRow, ...]
    inputs: tuple[OperatorInputs, ...]
    kernels: tuple[tuple[OperatorKernelRow, ...], ...]
    callers: tuple[tuple[OperatorCallerRow, ...], ...]
    busy_ns: int

    @property
    def attributed_ns(self) -> int:
        return sum(row.exclusive_ns for row in self.rows if row.source == Source.OPERATOR)


def operator_times(views: Sequence[DeviceView]) -> tuple[OperatorTimes, ...]:
    """Return the table of each device of a trace that was read with details; none for a trace without them."""
    if not views or views[0].trace.details is None:
        return ()
    launchers = Launchers(views[0].trace, views[0].trace.details)
    return tuple(_table(view, launchers) for view in views)


def _table(view: DeviceView, launchers: Launchers) -> OperatorTimes:
    keys = _OperatorKeys(view, launchers)
    counted: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for part in view.parts():
        _count(counted, keys.codes(part.work), part.length, exclusive=False)
    busy_ns = 0
    for slices in view.stretches():
        busy = slices.cause == BUSY
        busy_ns += int(slices.length[busy].sum())
        _count(counted, keys.codes(view.work.at(slices.event[busy])), slices.length[busy], exclusive=True)
    found = sorted(keys.rows(counted), key=_order)
    wheres = [{**view.where, "place": place} for place in range(len(found))]
    named = list(zip(wheres, found, strict=True))
    return OperatorTimes(
        device=view.device,
        rows=tuple(OperatorTimeRow(**where, **told) for where, (told, *_) in named),
        inputs=tuple(inputs for _, inputs, *_ in found),
        kernels=tuple(tuple(OperatorKernelRow(**where, **one) for one in kernels) for where, (_, _, kernels, _) in named),
        callers=tuple(tuple(OperatorCallerRow(**where, **one) for one in callers) for where, (*_, callers) in named),
        busy_ns=busy_ns,
    )


def _order(one: _Found) -> tuple[Any, ...]:
    told, inputs, *_ = one
    return -told["exclusive_ns"], -told["sum_ns"], told["source"], told["operator"], inputs, told["phase"]


def _count(counted: dict[int, list[int]], codes: Ints, length: Ints, *, exclusive: bool) -> None:
    """Add durations of events, or the time that they own, to number, exclusive time and durations of events by code."""
    some, which, number = np.unique(codes, return_inverse=True, return_counts=True)
    for code, ns, count in zip(some.tolist(), totals(length, which, len(some)).tolist(), number.tolist(), strict=True):
        found = counted[code]
        if exclusive:
            found[1] += ns
        else:
            found[0] += count
            found[2] += ns


_Found: TypeAlias = tuple[dict[str, Any], OperatorInputs, list[dict[str, Any]], list[dict[str, Any]]]
"""Fields of the rows of one operator: of itself, its inputs, of its kernels and its callers."""


class _OperatorKeys:
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
        launcher = self._launchers.of(work)
        caller = self._caller[launcher]
        outside = np.flatnonzero(launcher >= self._launchers.num)
        caller[outside] = self._scope_caller[self._launchers.scopes_of_calls(work)[outside]]
        code: Ints = self._row[launcher] * len(self._callers) + caller
        code = code * len(self._trace.device_events.names) + work.name.astype(np.int64)
        return code * len(DEVICE_KINDS) + work.kind.astype(np.int64)

    def rows(self, counted: Mapping[int, list[int]]) -> Iterable[_Found]:
        calls: dict[tuple[int, int], int] = defaultdict(int)
        real = self._used[self._used < self._launchers.num]
        for pair in zip(self._row[real].tolist(), self._caller[real].tolist(), strict=True):
            calls[pair] += 1
        parts: dict[int, list[tuple[int, str, str, list[int]]]] = defaultdict(list)
        for code, found in counted.items():
            rest, kind = divmod(code, len(DEVICE_KINDS))
            rest, name = divmod(rest, len(self._trace.device_events.names))
            row, caller = divmod(rest, len(self._callers))
            group = kernel_name(self._trace.device_events.names[name]).group
            parts[row].append((caller, group, DEVICE_KINDS[kind], found))
        for row, own in parts.items():
            yield self._time(int(self._rows[row]), row, own, calls)

    def _time(
        self, launcher: int, row: int, parts: list[tuple[int, str, str, list[int]]], calls: dict[tuple[int, int], int]
    ) -> _Found:
        details, ops = self._trace.details, self._trace.ops
        assert details is not None
        kernels: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        callers: dict[int, int] = defaultdict(int)
        for caller, group, kind, found in parts:
            kernels[group, kind] = [a + b for a, b in zip(kernels[group, kind], found, strict=True)]
            callers[caller] += found[1]
        real = launcher < self._launchers.num
        given = details.given[launcher] if real else -1
        inputs = details.inputs[given] if given >= 0 else _NOTHING
        listed: list[dict[str, Any]] = [
            {"kernel": kernel, "kind": kind, "events": events, "exclusive_ns": own, "sum_ns": sum_ns}
            for (kernel, kind), (events, own, sum_ns) in kernels.items()
        ]
        named: list[dict[str, Any]] = []
        for caller, own in callers.items():
            name, scope = self._callers[caller]
            called = calls[row, caller] if real else 0
            named.append({"caller": name, "scope": scope, "calls": called, "exclusive_ns": own})
        tensors = (kind for kind, size in zip(inputs.types, inputs.sizes, strict=False) if size)
        source = Source.OPERATOR if real else Source.OUTSIDE if launcher == self._launchers.outside else Source.UNLINKED
        told = {
            "source": source.value,
            "operator": ops.names[ops.name[launcher]] if real else "",
            "input_sizes": inputs.text,
            "dtypes": ", ".join(dict.fromkeys(parse_dtype(kind) or kind for kind in tensors)),
            "phase": PHASES[int(self._launchers.phase[launcher])] if real else "",
            "calls": sum(caller["calls"] for caller in named),
            **{name: sum(one[name] for one in listed) for name in ("events", "exclusive_ns", "sum_ns")},
        }
        listed.sort(key=lambda one: (-one["exclusive_ns"], -one["sum_ns"], one["kernel"], one["kind"]))
        named.sort(key=lambda one: (-one["exclusive_ns"], one["caller"], one["scope"]))
        return told, inputs, listed, named


# Rates of a device's operators of known cost against its peaks.


def _giga(flops: int) -> Number:
    return Number(flops / 1e9, 3)


_NO_FLOPS: Final = "no matrix products"
_RATES: Final = ("flops_per_s", "bytes_per_s", "compute_share", "memory_share", "bound", "floor_ns")


class OperatorRateRow(_OfOperator, frozen=True, kw_only=True):
    """Compute and memory rates of one operator with recorded inputs, compared with the peaks of the device."""

    operator: A[str, col("name of the operator", "operator", Code, get=lambda row: row.operator.removeprefix("aten::"))]
    input_sizes: A[str, col("sizes of the input tensors", "inputs", Code)]
    dtype: A[str, col("dtype of the matrix products; empty: the cost is not known", "dtype")]
    calls: A[int, col("number of calls", "calls", Count, total=sum)]
    sum_ns: A[int, col("sum of the durations of the device events", "sum", ExactTime, total=sum)]
    exclusive_ns: A[int, col("device time that no other row counts")]
    call_ns: A[float | None, col("mean sum of the durations of its device events; null without calls", "one call", micros)]
    call_flops: A[
        int | None, col("of matrix products in a call; null: not known", "GFLOP", _giga, where="call_flops", missing=_NO_FLOPS)
    ]
    call_bytes: A[int | None, col("least number of bytes that one call moves; null: the cost is not known")]
    flops_per_s: A[float | None, col("FLOPs of a call / its time, FLOP/s; null: the cost is not known")]
    bytes_per_s: A[float | None, col("least bytes of a call / its time, bytes/s; null: the cost is not known")]
    compute_share: A[float | None, col("`flops_per_s` / peak of the dtype; null: no matrix products, cost or peak not known")]
    memory_share: A[float | None, col("`bytes_per_s` / memory bandwidth of the device; null: cost or bandwidth not known")]
    bound: A[str | None, col("`compute` or `memory`, whichever alone would take longer at its peak; null: not known")]
    floor_ns: A[float | None, col("least time that the device could take for one call; null: not known")]
    unknown: A[str, col("reason why the cost is not known; empty if it is")]


def operator_rates(times: OperatorTimes, peaks: DevicePeaks | None) -> tuple[tuple[OperatorRateRow, Roofline | None], ...]:
    """Compare each operator of one device that has recorded inputs with the device's peaks, if they are known.

    Returns:
        Each with one call against the device, the mean of its kernels' durations, if its cost is known.
    """
    return tuple(
        _rate(row, given, peaks)
        for row, given in zip(times.rows, times.inputs, strict=True)
        if row.source == Source.OPERATOR and given.text
    )


def _rate(row: OperatorTimeRow, given: OperatorInputs, peaks: DevicePeaks | None) -> tuple[OperatorRateRow, Roofline | None]:
    calls = OperatorCalls(
        device=row.device, name=row.operator, sizes=given.sizes, types=given.types, values=given.values, calls=row.calls,
        events=row.events, sum_ns=row.sum_ns,
    )  # fmt: skip
    cost, found = operator_cost(calls), None
    if not isinstance(cost, str) and not row.sum_ns:
        cost = "it took no time"
    told = {"dtype": "", "call_flops": None, "call_bytes": None, "unknown": cost, **dict.fromkeys(_RATES)}
    if not isinstance(cost, str):
        spent, dtype = cost
        found = roofline(Fraction(row.sum_ns, row.calls), spent, peaks, dtype)
        told = {"dtype": dtype, "call_flops": spent.flops, "call_bytes": spent.moved_bytes, "unknown": ""}
    call_ns = row.sum_ns / row.calls if row.calls else None
    return part_of(OperatorRateRow, row, found, call_ns=call_ns, **told), found
