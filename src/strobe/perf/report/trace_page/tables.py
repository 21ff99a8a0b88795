"""What was found in the traces of a study, and the rows of its tables: pages and documents show the same ones."""

# No `from __future__ import annotations`: annotations of the rows are values, which hold how a column is shown.

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated as A
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from strobe.core.costs import DevicePeaks, device_peaks
from strobe.core.errors import DataError
from strobe.perf.analysis.critical_path import CriticalPath, CriticalPathRow, PathPartRow, WhatIfRow, critical_path
from strobe.perf.analysis.device.activity import (
    Activity,
    DeviceRow,
    DeviceView,
    KindRow,
    StreamRow,
    activity,
    device_views,
)
from strobe.perf.analysis.device.kernels import KernelTableRow, kernel_table
from strobe.perf.analysis.device.launch import Gaps, GapsRow, Launch, LaunchRow, Queue, QueueRow, graph_calls, launch, queues
from strobe.perf.analysis.operators import (
    OperatorRate,
    Operators,
    OperatorTimes,
    Source,
    operator_rates,
    operator_times,
    operators,
)
from strobe.perf.analysis.structure.collectives import Communication, communication, message_bytes
from strobe.perf.analysis.structure.memory import MemoryRow, MemoryUse, memory_use
from strobe.perf.analysis.structure.ranges import RangeRow, Ranges, range_table, unnumbered
from strobe.perf.analysis.structure.sections import find_sections, parse_section
from strobe.perf.analysis.structure.steps import LayerGroup, LayerRow, NoSteps, Steps, TraceStepRow, find_steps, layer_groups
from strobe.perf.report.blocks.kernels import KernelNameRow, KernelRow, kernel_row, name_rows
from strobe.perf.report.study import TraceStudy, once
from strobe.perf.table.fields import Field, share_cell
from strobe.perf.table.model import Cell, Code, Count, ExactTime, Missing, Number, Share, Text, bytes_cell
from strobe.perf.table.rows import DocumentPart, OnDevice, PartT, col, columns, micros, part_of, term

MAX_POINTS: Final = 200
"""Most stretches of the course of memory."""
QUEUE_BINS: Final = 120
"""Bins of the picture of a queue."""


class TraceFindings:
    """One trace of a study, and what is found in it: each thing once, when it is first asked for.

    Args:
        study: the study.
        place: position of the trace in it.

    Attributes:
        trace: its label, as in all tables.
        read: the trace itself.
        window: the chosen part of it; `None` is all of it.
        replays: what names the kernels of its graph replays, a sentence; empty without replays.
        devices: those that have events, in order of number.
    """

    def __init__(self, study: TraceStudy, place: int) -> None:
        self.options, self.only = study.options, len(study.traces) == 1
        self.trace, self.window = study.labels[place], study.windows[place]
        self.read = replace(study.traces[place], label=self.trace)
        self.replays = study.replays[place] if place < len(study.replays) else ""
        self.devices = tuple(DeviceFindings(self, view) for view in device_views(self.read, self.window))

    @property
    def whole(self) -> tuple[DeviceView, ...]:
        """The devices over the whole length of the trace, whatever the window."""
        return tuple(one.view for one in self.devices) if self.window is None else device_views(self.read)

    @cached_property
    def graphs(self) -> NDArray[np.bool_]:
        """Which launch calls launched a graph."""
        return graph_calls(self.read)

    @cached_property
    def steps(self) -> dict[int, Steps | NoSteps]:
        """Steps of each device of the whole trace."""
        return {found.device: found for found in find_steps(self.read, self.options.steps)}

    @cached_property
    def ranges(self) -> dict[int, Ranges]:
        """Ranges and modules of each device, names without numbers."""
        bare = replace(self.read, ranges=unnumbered(self.read.ranges), modules=unnumbered(self.read.modules))
        return {found.device: found for found in range_table(bare, self.window)}

    @cached_property
    def layers(self) -> dict[int, tuple[LayerGroup, ...]]:
        """Layers of each device."""
        return dict(layer_groups(self.read, self.window))

    @cached_property
    def times(self) -> dict[int, OperatorTimes]:
        """Operators of each device, if the trace was read with details."""
        return {found.device: found for found in operator_times([one.view for one in self.devices])}

    @cached_property
    def path(self) -> CriticalPath | str | None:
        """The critical path, or why there is none; `None` without device events or details."""
        if self.read.details is None or not len(self.read.device_events):
            return None
        try:
            return critical_path(self.read, self.window)
        except DataError as error:
            return str(error)

    @property
    def known_path(self) -> tuple[CriticalPath, ...]:
        """The critical path, if it is known."""
        return (self.path,) if isinstance(self.path, tuple) else ()

    @cached_property
    def communication(self) -> tuple[Communication, ...]:
        """Communication of each device that has some."""
        return communication((self.read,), (self.window,))

    @cached_property
    def memory(self) -> tuple[MemoryUse, ...]:
        """Memory of each device whose allocations were recorded."""
        return memory_use(self.read, self.window, MAX_POINTS)

    @cached_property
    def host(self) -> Operators | None:
        """Operators of the host, of a trace without device events that holds some."""
        return None if len(self.read.device_events) else operators(self.read, self.window)


class DeviceFindings:
    """One device of a trace, and what is found on it in the chosen window: each thing once, when it is first asked for."""

    def __init__(self, of: TraceFindings, view: DeviceView) -> None:
        self.of, self.view, self.trace, self.device = of, view, of.trace, view.device

    @property
    def name(self) -> str:
        """Name of the device: its number, after the trace's label if there are several traces."""
        return f"device {self.device}" if self.of.only else f"{self.trace}, device {self.device}"

    @cached_property
    def account(self) -> Activity:
        """Account of its time."""
        return activity(self.view)

    @property
    def done(self) -> DeviceRow:
        """Its busy and idle time."""
        return self.account.device

    @cached_property
    def launches(self) -> Launch:
        """Launches of its events."""
        return launch(self.view, self.of.graphs)

    @cached_property
    def hot(self) -> tuple[KernelTableRow, ...]:
        """Its kernels, grouped as the study asks."""
        return kernel_table(self.view, self.of.options.by)

    @cached_property
    def queues(self) -> tuple[Queue, ...]:
        """Its queue and those of its streams."""
        return queues(self.view, QUEUE_BINS)

    @cached_property
    def gaps(self) -> Gaps:
        """Gaps between its kernels."""
        return Gaps(self.view)

    @property
    def steps(self) -> Steps | NoSteps:
        """Its steps in the whole trace."""
        return self.of.steps[self.device]

    @property
    def ranges(self) -> Ranges:
        """Its ranges and modules."""
        return self.of.ranges[self.device]

    @property
    def layers(self) -> tuple[LayerGroup, ...]:
        """Its layers."""
        return self.of.layers[self.device]

    @property
    def times(self) -> OperatorTimes | None:
        """Its operators, if the trace was read with details."""
        return self.of.times.get(self.device)

    @property
    def peaks(self) -> DevicePeaks | None:
        """Its peaks, if they are known."""
        return device_peaks(self.done.product) if self.done.product else None

    @cached_property
    def rates(self) -> tuple[OperatorRate, ...]:
        """Rates of its operators; none where the trace was read without details."""
        return () if self.times is None else operator_rates(self.times, self.peaks)


@once
def seen(study: TraceStudy) -> tuple[TraceFindings, ...]:
    """Return the traces of a study with what is found in them."""
    return tuple(TraceFindings(study, place) for place in range(len(study.traces)))


def seen_devices(study: TraceStudy) -> list[DeviceFindings]:
    """Return every device that has events."""
    return [one for found in seen(study) for one in found.devices]


def rows(study: TraceStudy, kind: type[PartT]) -> Iterator[PartT]:
    """Yield all rows of a table: those of each device, or of each trace."""
    of: Callable[[Any], Iterable[PartT]] = _SHARED.get(kind) or kind.of  # type: ignore[attr-defined]
    places: Iterable[Any] = seen_devices(study) if issubclass(kind, OnDevice) else seen(study)
    yield from (row for place in places for row in of(place))


def on_devices(study: TraceStudy, kind: type[PartT], *names: str) -> tuple[Field[PartT], ...]:
    """Return the columns of a table about several devices: which one, and those of the rows, with shares of its times."""
    place: Callable[[Any], tuple[str, int]] = attrgetter("trace", "device")
    devices = {place(row): row for row in rows(study, DeviceRow)}
    called = {place(one): one.name for one in seen_devices(study)}
    which: Field[PartT] = Field("device", lambda row: called[place(row)], Code)
    return (which, *columns(kind, *names, of=lambda row: devices[place(row)]))


# The rows of every table: `of` yields those of a study.

_NOT_RECORDED: Final = "not recorded"
_NO_FLOPS: Final = "no matrix products"
megabytes: Final = partial(bytes_cell, unit="MB", digits=3)
_NO_SIZES: Final = "sizes not recorded"
_NO_TYPES: Final = "types not recorded"


def _bad(value: int) -> Cell:
    return Text(str(value), "bad") if value else Count(0)


def _unlinked(row: "TraceFile") -> Cell:
    return share_cell(row.unlinked_events, row.device_events)


def _end(row: "TraceFile") -> Text:
    if row.truncated or row.lost:
        return Text("truncated" if row.truncated else "incomplete", "bad")
    return Text("complete")


def _giga(flops: int) -> Number:
    return Number(flops / 1e9, 3)


def _operator(row: "OperatorTimeRow") -> Cell:
    return Code(row.operator) if row.source == Source.OPERATOR.value else Text(row.source, "muted")


def _input(name: str, nothing: Any = None) -> Callable[[Any], Any]:
    return lambda row: (getattr(row, name) or nothing) if row.source == Source.OPERATOR.value else Missing(row.source, "-")


class TraceFile(DocumentPart, frozen=True, kw_only=True):
    """One trace file that was read."""

    trace: A[str, col("label of the trace in every other table: its rank, or the name of the file", "trace", Code)]
    path: A[str, col("path of the file", "file", Code, get=lambda row: Path(row.path).name)]
    rank: A[int | None, col("rank of the process; null: not in the trace", "rank", Count)]
    world_size: A[int | None, col("number of processes of the job; null: not in the trace")]
    events: A[int, col("number of events read, of every category", "events", Count)]
    device_events: A[int, col("number of kernels, communication, memsets and copies", "device events", Count)]
    unlinked_events: A[int, term("device events whose launch call is not in the trace", "unlinked", Share, get=_unlinked)]
    lost: A[int, col("number of events that could not be read", "lost", _bad)]
    mended: A[int, term("number of events that were repaired to be read", "mended", _bad)]
    truncated: A[bool, col("true: the file ends in the middle of its JSON", "end", get=_end)]
    damage: A[tuple[str, ...], col("what the file says of events that cannot be, and what became of them, one sentence each")]
    foreign: A[str, col("whose profiler wrote the file and what that cannot say; empty: `torch.profiler`")]
    base_ns: A[int, col("nanoseconds since the Unix epoch that the trace's times are relative to; 0: no such offset")]
    window_start_ns: A[int | None, col("start of the chosen window; null: the whole trace")]
    window_end_ns: A[int | None, col("end of the chosen window; null: the whole trace")]

    @classmethod
    def of(cls, found: TraceFindings) -> Iterator[Self]:
        read, window = found.read, found.window
        ends = (None, None) if window is None else (window.start_ns, window.end_ns)
        unlinked, events = int(np.count_nonzero(np.asarray(read.device_events.host) < 0)), len(read.device_events)
        given = {"path": str(read.path), "device_events": events, "unlinked_events": unlinked}
        yield part_of(cls, found, read.counts, read, window_start_ns=ends[0], window_end_ns=ends[1], **given)


class IdleRow(OnDevice, frozen=True, kw_only=True):
    """Idle time of one device by cause; the causes add up to its idle time."""

    cause: A[str, term("cause of the idle time, e.g. `host_late`; docs/traces.md explains them", "idle because")]
    idle_ns: A[int, col("idle time with this cause", "time", ExactTime, of={"of idle": "idle_ns", "of span": "span_ns"})]

    @classmethod
    def of(cls, one: DeviceFindings) -> Iterator[Self]:
        yield from (part_of(cls, one, cause=cause, idle_ns=ns) for cause, ns in one.account.idle.items())


_SHARED: Final[dict[type[DocumentPart], Callable[[Any], Iterable[Any]]]] = {
    KernelRow: lambda one: (kernel_row(row, one) for row in one.hot),
    KernelNameRow: lambda one: (name for row in one.hot for name in name_rows(row, one)),
    DeviceRow: lambda one: [one.done],
    KindRow: lambda one: one.account.kinds,
    StreamRow: lambda one: one.account.streams,
    LaunchRow: lambda one: one.launches.calls,
    QueueRow: lambda one: (each.row for each in one.queues),
    GapsRow: lambda one: one.gaps.rows,
    MemoryRow: lambda found: (row for row, _ in found.memory),
    TraceStepRow: lambda one: one.steps.steps if isinstance(one.steps, Steps) else (),
    RangeRow: lambda one: one.ranges.rows,
    LayerRow: lambda one: (row for group in one.layers for row in group.layers),
    CriticalPathRow: lambda found: (path for path, _, _ in found.known_path),
    PathPartRow: lambda found: (part for _, parts, _ in found.known_path for part in parts),
    WhatIfRow: lambda found: (one for *_, what_if in found.known_path for one in what_if),
}
"""How to make the rows of classes that other pages have too."""


# Time between events: steps, gaps, the critical path.


# Time by place: ranges and modules, sections, communication.


class SectionRow(OnDevice, frozen=True, kw_only=True):
    """One section: the time between two boundaries around a focal event."""

    section: A[str, col("definition of the section by its boundaries")]
    start_ns: A[int, col("start on the clock of the trace")]
    length_ns: A[int, col("time from boundary to boundary")]
    busy_ns: A[int, col("time in which at least one event of the section ran")]
    focal_ns: A[int, col("time in which a focal event ran")]


def section_rows(study: TraceStudy) -> Iterator[SectionRow]:
    """Yield the sections of every definition."""
    for definition in map(parse_section, study.options.sections):
        for of in seen(study):
            for found in find_sections(of.read, definition, of.window):
                told = {"device": found.device, "section": str(definition)}
                yield from (part_of(SectionRow, section, of, **told) for section in found.found)


class _Timed(DocumentPart, frozen=True, kw_only=True):
    """Durations of several calls or events."""

    trace: A[str, col("label of the trace, as in `files`")]
    calls: A[int, col("number of calls", "n", Count, total=sum)]
    sum_ns: A[int, col("sum of the durations, of nested calls and waiting too", "sum", ExactTime, total=sum)]
    min_ns: A[int, col("shortest duration", "min", micros)]
    p50_ns: A[int, col("median duration", "p50", micros)]
    mean_ns: A[float, col("mean duration", "mean", micros)]
    p99_ns: A[int | None, col("99th percentile; null below 459 calls", "p99", micros, missing=lambda row: f"max of {row.calls}")]
    max_ns: A[int, col("longest duration", "max", micros)]


FIGURES: Final = ("min_ns", "p50_ns", "mean_ns", "p99_ns", "max_ns")
"""Columns of `_Timed` that say how durations spread."""


class CollectiveRow(_Timed, frozen=True, kw_only=True):
    """Collectives of one kind on one device."""

    device: A[int, col("number of the device in the trace")]
    collective: A[str, col("name of the collective, e.g. `allreduce`", "collective", Code)]
    group: A[str, col("name of the process group", "group", Code, where="group", missing=_NOT_RECORDED)]
    ranks: A[int, col("ranks in the group; 0: not recorded", "ranks", Count, where="ranks", missing=_NOT_RECORDED)]
    message_bytes: A[int | None, col("larger of input and output; null: not known", "message", megabytes, missing=_NOT_RECORDED)]
    dtype: A[str, col("dtype of the elements")]
    exposed_ns: A[int, term("time in which one of them ran, and no kernel and no memset", "exposed", ExactTime)]

    @classmethod
    def of(cls, found: TraceFindings) -> Iterator[Self]:
        for own in found.communication:
            for kind, (times, exposed_ns) in own.kinds.items():
                told = {"device": own.device, "collective": kind.name, "message_bytes": message_bytes(kind)}
                counts = {"ranks": len(kind.ranks), "calls": times.n, "exposed_ns": exposed_ns}
                yield part_of(cls, found, kind, times, **told, **counts)


# Operators: of the host alone, and the device time of each with its kernels, callers and rates.


class OperatorRow(_Timed, frozen=True, kw_only=True):
    """Calls of one operator on the host, in a trace without device events."""

    operator: A[str, col("name of the operator, e.g. `aten::mm`", "operator", Code)]
    self_ns: A[int, col("time in it and in no operator it calls", "self", ExactTime, total=sum, of={"share": "busy_ns"})]

    @classmethod
    def of(cls, found: TraceFindings) -> Iterator[Self]:
        for name, calls, self_ns in found.host.rows if found.host else ():
            yield part_of(cls, calls, found, operator=name, calls=calls.n, self_ns=self_ns)


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

    @classmethod
    def of(cls, one: DeviceFindings) -> Iterator[Self]:
        for place, row in enumerate(one.times.rows if one.times else ()):
            yield part_of(cls, row, one, place=place, source=row.source.value, input_sizes=row.inputs.text)


class OperatorKernelRow(_OfOperator, frozen=True, kw_only=True):
    """One kernel that an operator of `operator_times` launched."""

    kernel: A[str, col("normalised name of the kernel")]
    kind: A[str, col("`kernel`, `comm` (communication), `memset` or `memcpy`")]
    events: A[int, col("number of device events")]
    exclusive_ns: A[int, col("device time that no other row counts")]
    sum_ns: A[int, col("sum of the durations of the device events")]

    @classmethod
    def of(cls, one: DeviceFindings) -> Iterator[Self]:
        for place, row in enumerate(one.times.rows if one.times else ()):
            yield from (part_of(cls, kernel, one, place=place) for kernel in row.kernels)


class OperatorCallerRow(_OfOperator, frozen=True, kw_only=True):
    """One caller of an operator of `operator_times`."""

    caller: A[str, col("name of the operator that calls it; empty: none")]
    scope: A[str, col("range or module around the call, without its number; of a backward operator: around its forward one")]
    calls: A[int, col("number of calls")]
    exclusive_ns: A[int, col("device time that no other row counts")]

    @classmethod
    def of(cls, one: DeviceFindings) -> Iterator[Self]:
        for place, row in enumerate(one.times.rows if one.times else ()):
            yield from (part_of(cls, each, one, place=place, caller=each.operator) for each in row.callers)


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

    @classmethod
    def of(cls, one: DeviceFindings) -> Iterator[Self]:
        rates = ("flops_per_s", "bytes_per_s", "compute_share", "memory_share", "bound", "floor_ns")
        for rate in one.rates:
            row, cost = rate.row, None if isinstance(rate.cost, str) else rate.cost
            yield part_of(
                cls, row, one, place=rate.place, input_sizes=row.inputs.text, dtype="" if cost is None else cost[1],
                call_ns=row.sum_ns / row.calls if row.calls else None,
                call_flops=None if cost is None else cost[0].flops,
                call_bytes=None if cost is None else cost[0].moved_bytes,
                unknown=rate.cost if isinstance(rate.cost, str) else "",
                **{name: None if rate.found is None else getattr(rate.found, name) for name in rates},
            )  # fmt: skip
