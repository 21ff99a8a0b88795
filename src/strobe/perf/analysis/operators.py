"""Operators of a trace: host time, device time by inputs and callers, and rates against the peaks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated as A
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strobe.core.costs import DevicePeaks, parse_dtype
from strobe.perf.analysis.device.activity import DeviceView, EventView, events_by_device
from strobe.perf.analysis.device.intervals import Distribution, Ints, Window, column, distributions, marked, totals
from strobe.perf.analysis.device.kernels import kernel_name, time_by_code
from strobe.perf.analysis.device.roofline import Roofline, operator_cost, roofline
from strobe.perf.analysis.structure.ranges import NOWHERE, UNLINKED, launched_in, nest, ranges_and_modules, unnumbered
from strobe.perf.table.model import Cell, Code, Count, ExactTime, Missing, Number, Text
from strobe.perf.table.rows import OnDevice, TimedRow, col, micros, part_of, term
from strobe.perf.trace.events import DEVICE_KINDS, OperatorFacts, OperatorInputs, Trace

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


def attributed(trace: Trace) -> tuple[tuple[OperatorRow, int], ...]:
    """Return the operators of a trace that was read with them, each with the device time of what it launched as the innermost.

    Those with the most device time come first, without device events those with the most self time.
    """
    found, total = operators(trace), np.zeros(len(trace.ops.names), np.int64)
    nesting, name = nest(trace.ops), np.asarray(trace.ops.name)
    owned = nesting.owner != NOWHERE
    for _, work in events_by_device(trace):
        np.add.at(total, name[nesting.owner[owned]], launched_in(trace, work, None, nesting.cuts).sum_ns[owned])
    device = dict(zip(trace.ops.names, total.tolist(), strict=True))
    rows = [(row, device[row.operator]) for row in (found.rows if found else ())]
    return tuple(sorted(rows, key=lambda one: (-one[1], -one[0].self_ns, -one[0].sum_ns, one[0].operator)))


# Launching operator of each device event, with its caller and its autograd phase.

PHASES: Final = ("", "forward", "backward")
"""Phases of an operator: not recorded by autograd, recorded (forward), or run by it (backward)."""
_ENGINE: Final = re.compile(r"autograd::engine::evaluate_function: .+")
"""Name of the range that autograd's engine puts around each node it runs; nodes that add up gradients have no number."""


class _Launchers:
    """Operators of a trace that was read with details, as launchers of its device events.

    A launcher is a number: the position of an operator; behind the last one `num` (the launch call lies in no operator), and
    `num + 1` (neither the launch call nor the operator is known). The innermost operator that is open when the launch call
    starts is the launcher; without a launch call, the one that the profiler names.

    Attributes:
        row: by launcher, number of its row: the same for calls of one operator with equal inputs in one phase.
        of_row: one launcher of each row.
        caller: by launcher, position among the `callers`: the operator around it, and the range or module.
    """

    def __init__(self, trace: Trace, details: OperatorFacts) -> None:
        self.trace, self.details, self.num = trace, details, len(trace.ops)
        ops, hosts, nesting = trace.ops, trace.device_events.hosts, nest(trace.ops)
        self._parent: Ints = np.asarray(nesting.parent).astype(np.int64)
        calls = np.arange(len(hosts), dtype=np.int32)
        self._of_host = np.append(nesting.of_calls(hosts, calls), NOWHERE)
        recorded = self._inherited((column(details.sequence) >= 0).astype(np.int64))
        self.phase: Ints = np.where(
            self._inherited(column(details.backward) | marked(ops, _ENGINE.fullmatch)) > 0, 2, np.minimum(recorded, 1)
        )
        row = (column(ops.name) * (len(details.inputs) + 1) + column(details.given) + 1) * len(PHASES) + self.phase
        _, self.of_row, self.row = np.unique(np.append(row, (-2, -1)), return_index=True, return_inverse=True)
        scopes = unnumbered(ranges_and_modules(trace))
        nested, names = nest(scopes), np.append(column(scopes.name), NOWHERE)
        self._scope_of_host = np.append(names[nested.of_calls(hosts, calls)], NOWHERE)
        scope, forward = names[nested.of_calls(ops, np.arange(self.num))], self._forward()
        # a backward operator runs on behalf of a forward one: it belongs to the scope of that one, if the trace has it
        scope = np.where((answered := np.append(scope, NOWHERE)[forward]) == NOWHERE, scope, answered)
        above, width = np.append(column(ops.name), NOWHERE)[self._parent], len(scopes.names) + 1
        pairs, which = np.unique(np.append(np.arange(width), (above + 1) * width + scope + 1), return_inverse=True)
        self.caller = np.append(which[width:], (0, 0))
        self.callers = [(("", *ops.names)[a], ("", *scopes.names)[s]) for a, s in zip(*np.divmod(pairs, width), strict=True)]

    def of(self, work: EventView) -> Ints:
        host = work.host
        launcher = self._of_host[np.maximum(host, NOWHERE)]
        lost = np.flatnonzero(launcher == NOWHERE)
        named = np.asarray(self.details.of_event)[work.position[lost]].astype(np.int64)
        launcher[lost] = np.where(named >= 0, named, np.where(host[lost] >= 0, self.num, self.num + 1))
        return launcher

    def codes(self, work: EventView) -> Ints:
        """Return row, caller, name and kind of each event, packed into one number."""
        launcher, scope = self.of(work), self._scope_of_host[np.maximum(work.host, NOWHERE)]
        caller = np.where(launcher < self.num, self.caller[launcher], scope + 1)
        code: Ints = self.row[launcher] * len(self.callers) + caller
        code = code * len(self.trace.device_events.names) + work.name
        return code * len(DEVICE_KINDS) + work.kind

    def _forward(self) -> Ints:
        """Return the forward operator of each backward one, the last with its autograd sequence number; else `NOWHERE`."""
        found, own = np.full(self.num, NOWHERE, np.int64), column(self.details.sequence)
        mine, forward = np.flatnonzero(self.phase == 2), np.flatnonzero((own >= 0) & (self.phase != 2))
        if len(mine) and len(forward):
            order = forward[np.argsort(own[forward], kind="stable")]
            wanted = self._inherited(np.where(column(self.details.backward) > 0, own, NOWHERE), NOWHERE)[mine]
            place = np.searchsorted(own[order], wanted, "right") - 1
            found[mine] = np.where((place >= 0) & (own[order[place]] == wanted) & (wanted >= 0), order[place], NOWHERE)
        return found

    def _inherited(self, values: NDArray[np.integer], nothing: int = 0) -> Ints:
        """Replace each value `nothing` by that of the innermost enclosing operator with another value."""
        found: Ints = np.asarray(values).astype(np.int64)
        inner = np.flatnonzero(self._parent != NOWHERE)
        while True:
            empty = inner[found[inner] == nothing]
            above = found[self._parent[empty]]
            if (above == nothing).all():
                return found
            found[empty] = above


# Device time by operator, input sizes and dtypes: kernels, callers, forward or backward.
#
# Every device event in the window counts once, cut to the window. Exclusive times add up to the device's busy time exactly: what
# no operator launched is a row of its own, and so is what was launched before the trace.

_NOTHING: Final = OperatorInputs("")


OPERATOR: Final = "operator"
"""Value of `OperatorTimeRow.source` for a row with an operator; other rows have the reason why there is none."""
OUTSIDE: Final = "no operator"


def _operator(row: OperatorTimeRow) -> Cell:
    return Code(row.operator) if row.source == OPERATOR else Text(row.source, "muted")


def _input(name: str, nothing: Any = None) -> Callable[[Any], Any]:
    return lambda row: (getattr(row, name) or nothing) if row.source == OPERATOR else Missing(row.source, "-")


_NO_SIZES: Final = "sizes not recorded"
_NO_TYPES: Final = "types not recorded"


_Place: TypeAlias = A[
    int, col("position of the operator among the rows of `operator_times` with the same trace and device, from 0")
]


class OperatorTimeRow(OnDevice, frozen=True, kw_only=True):
    """Device time of one operator with the same inputs; exclusive times add up to the busy time of the device."""

    place: _Place
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


class OperatorKernelRow(OnDevice, frozen=True, kw_only=True):
    """One kernel that an operator of `operator_times` launched."""

    place: _Place
    kernel: A[str, col("normalised name of the kernel")]
    kind: A[str, col("`kernel`, `comm` (communication), `memset` or `memcpy`")]
    events: A[int, col("number of device events")]
    exclusive_ns: A[int, col("device time that no other row counts")]
    sum_ns: A[int, col("sum of the durations of the device events")]


class OperatorCallerRow(OnDevice, frozen=True, kw_only=True):
    """One caller of an operator of `operator_times`."""

    place: _Place
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
        return sum(row.exclusive_ns for row in self.rows if row.source == OPERATOR)


def operator_times(views: Sequence[DeviceView]) -> tuple[OperatorTimes, ...]:
    """Return the table of each device of a trace that was read with details; none for a trace without them."""
    if not views or views[0].trace.details is None:
        return ()
    launchers = _Launchers(views[0].trace, views[0].trace.details)
    return tuple(_table(view, launchers) for view in views)


def _table(view: DeviceView, launchers: _Launchers) -> OperatorTimes:
    names, counted = view.trace.device_events.names, time_by_code(view, launchers.codes)
    kernels: defaultdict[int, dict[tuple[str, str], tuple[int, ...]]] = defaultdict(dict)
    callers: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for code, counts in counted.items():
        rest, kind = divmod(code, len(DEVICE_KINDS))
        rest, name = divmod(rest, len(names))
        row, caller = divmod(rest, len(launchers.callers))
        key = kernel_name(names[name]), DEVICE_KINDS[kind]
        kernels[row][key] = tuple(map(sum, zip(kernels[row].get(key, (0, 0, 0, 0)), counts, strict=True)))
        callers[row][caller] += counts[1]
    used = np.zeros(launchers.num, np.bool_)
    for part in view.parts():
        launcher = launchers.of(part.work)
        used[launcher[launcher < launchers.num]] = True
    calls = Counter(zip(launchers.row[:-2][used].tolist(), launchers.caller[:-2][used].tolist(), strict=True))
    told: dict[int, tuple[OperatorInputs, dict[str, Any]]] = {}
    for row, of_kernel in kernels.items():
        inputs, operator = _operator_of(launchers, int(launchers.of_row[row]))
        events, exclusive_ns, sum_ns, _ = map(sum, zip(*of_kernel.values(), strict=True))
        own = {"calls": sum(calls[row, caller] for caller in callers[row]), "events": events}
        told[row] = inputs, {**operator, **own, "exclusive_ns": exclusive_ns, "sum_ns": sum_ns}
    found = sorted(told, key=lambda row: _order(*told[row]))
    where = {row: {**view.where, "place": place} for place, row in enumerate(found)}

    def kernel_rows(row: int) -> Iterator[OperatorKernelRow]:
        for (kernel, kind), (events, exclusive_ns, sum_ns, _) in kernels[row].items():
            times: dict[str, Any] = {"events": events, "exclusive_ns": exclusive_ns, "sum_ns": sum_ns}
            yield OperatorKernelRow(**where[row], kernel=kernel, kind=kind, **times)

    def caller_rows(row: int) -> Iterator[OperatorCallerRow]:
        for number, exclusive_ns in callers[row].items():
            caller, scope = launchers.callers[number]
            yield OperatorCallerRow(**where[row], caller=caller, scope=scope, calls=calls[row, number], exclusive_ns=exclusive_ns)

    return OperatorTimes(
        device=view.device,
        rows=tuple(OperatorTimeRow(**where[row], **told[row][1]) for row in found),
        inputs=tuple(told[row][0] for row in found),
        kernels=tuple(
            tuple(sorted(kernel_rows(row), key=lambda one: (-one.exclusive_ns, -one.sum_ns, one.kernel, one.kind)))
            for row in found
        ),
        callers=tuple(
            tuple(sorted(caller_rows(row), key=lambda one: (-one.exclusive_ns, one.caller, one.scope))) for row in found
        ),
        busy_ns=sum(counts[1] for counts in counted.values()),
    )


def _operator_of(launchers: _Launchers, launcher: int) -> tuple[OperatorInputs, dict[str, Any]]:
    """Return the inputs of a launcher, and what the row says of it."""
    if launcher >= launchers.num:
        source = OUTSIDE if launcher == launchers.num else UNLINKED
        return _NOTHING, {"source": source, "operator": "", "input_sizes": "", "dtypes": "", "phase": ""}
    details, ops = launchers.details, launchers.trace.ops
    given = details.given[launcher]
    inputs = details.inputs[given] if given >= 0 else _NOTHING
    tensors = (kind for kind, size in zip(inputs.types, inputs.sizes, strict=False) if size)
    return inputs, {
        "source": OPERATOR,
        "operator": ops.names[ops.name[launcher]],
        "input_sizes": inputs.text,
        "dtypes": ", ".join(dict.fromkeys(parse_dtype(kind) or kind for kind in tensors)),
        "phase": PHASES[int(launchers.phase[launcher])],
    }


def _order(inputs: OperatorInputs, told: dict[str, Any]) -> tuple[Any, ...]:
    return -told["exclusive_ns"], -told["sum_ns"], told["source"], told["operator"], inputs, told["phase"]


# Rates of a device's operators of known cost against its peaks.


def _giga(flops: int) -> Number:
    return Number(flops / 1e9, 3)


_NO_FLOPS: Final = "no matrix products"
_RATES: Final = ("flops_per_s", "bytes_per_s", "compute_share", "memory_share", "bound", "floor_ns")


class OperatorRateRow(OnDevice, frozen=True, kw_only=True):
    """Compute and memory rates of one operator with recorded inputs, compared with the peaks of the device."""

    place: _Place
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
        if row.source == OPERATOR and given.text
    )


def _rate(row: OperatorTimeRow, given: OperatorInputs, peaks: DevicePeaks | None) -> tuple[OperatorRateRow, Roofline | None]:
    cost, found = operator_cost(given._replace(name=row.operator)), None
    if not isinstance(cost, str) and not row.sum_ns:
        cost = "it took no time"
    told = {"dtype": "", "call_flops": None, "call_bytes": None, "unknown": cost, **dict.fromkeys(_RATES)}
    if not isinstance(cost, str):
        spent, dtype = cost
        found = roofline(Fraction(row.sum_ns, row.calls), spent, peaks, dtype)
        told = {"dtype": dtype, "call_flops": spent.flops, "call_bytes": spent.moved_bytes, "unknown": ""}
    call_ns = row.sum_ns / row.calls if row.calls else None
    return part_of(OperatorRateRow, row, found, call_ns=call_ns, **told), found
