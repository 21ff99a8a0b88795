"""The JSON document of traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from strobe.perf.analysis.critical_path import CriticalPath
from strobe.perf.analysis.device.roofline import OperatorCost
from strobe.perf.analysis.operators import Rate, operator_rates, operators
from strobe.perf.analysis.structure.collectives import communication
from strobe.perf.analysis.structure.memory import memory_use
from strobe.perf.analysis.structure.sections import find_sections, parse_section
from strobe.perf.analysis.structure.steps import NoSteps, Steps
from strobe.perf.report.documents.runs import Document, DocumentPart, OnDevice, TraceLabel, part_of
from strobe.perf.report.study import TraceStudy
from strobe.perf.report.trace_page.device import (
    DeviceFindings,
    seen_devices,
    seen_operators,
    seen_paths,
    seen_queues,
    seen_ranges,
    seen_steps,
)

# Rows of the trace document about operators: device time, kernels, callers, and rates against the device's peaks.

Place = Annotated[
    int,
    Meta(description="position of the operator's row among the rows of `operator_times` with the same trace and device, from 0"),
]


class OperatorTimeRow(OnDevice, frozen=True, kw_only=True):
    """Device time of one operator with the same inputs; exclusive times add up to the busy time of the device."""

    place: Place
    source: Annotated[
        str, Meta(description="`operator`, or the reason why the row has none: `no operator`, `launch not in the trace`")
    ]
    operator: Annotated[str, Meta(description="name of the innermost operator around the launch call; empty: none")]
    input_sizes: Annotated[str, Meta(description="sizes of the input tensors; empty: not recorded")]
    dtypes: Annotated[str, Meta(description="dtypes of the input tensors, each once; empty: not recorded")]
    phase: Annotated[str, Meta(description="`forward` or `backward`; empty: autograd took no part")]
    calls: Annotated[int, Meta(description="number of calls that launched a device event; 0 without an operator")]
    events: Annotated[int, Meta(description="number of device events")]
    exclusive_ns: Annotated[int, Meta(description="device time that no other row counts")]
    sum_ns: Annotated[int, Meta(description="sum of the durations of the device events")]


class OperatorKernelRow(OnDevice, frozen=True, kw_only=True):
    """One kernel that an operator of `operator_times` launched."""

    place: Place
    kernel: Annotated[str, Meta(description="normalised name of the kernel")]
    kind: Annotated[str, Meta(description="`kernel`, `comm` (communication), `memset` or `memcpy`")]
    events: Annotated[int, Meta(description="number of device events")]
    exclusive_ns: Annotated[int, Meta(description="device time that no other row counts")]
    sum_ns: Annotated[int, Meta(description="sum of the durations of the device events")]


class OperatorCallerRow(OnDevice, frozen=True, kw_only=True):
    """One caller of an operator of `operator_times`."""

    place: Place
    caller: Annotated[str, Meta(description="name of the operator that calls it; empty: none")]
    scope: Annotated[
        str,
        Meta(
            description="range or module around the call, without its number; for a backward operator: that of its forward "
            "operator"
        ),
    ]
    calls: Annotated[int, Meta(description="number of calls")]
    exclusive_ns: Annotated[int, Meta(description="device time that no other row counts")]


class OperatorRateRow(OnDevice, frozen=True, kw_only=True):
    """Compute and memory rates of one operator with recorded inputs, compared with the peaks of the device."""

    place: Place
    operator: Annotated[str, Meta(description="name of the operator")]
    input_sizes: Annotated[str, Meta(description="sizes of the input tensors")]
    dtype: Annotated[str, Meta(description="dtype of the matrix products; empty: the cost is not known")]
    calls: Annotated[int, Meta(description="number of calls")]
    exclusive_ns: Annotated[int, Meta(description="device time that no other row counts")]
    call_ns: Annotated[
        float | None, Meta(description="mean over the calls of the summed durations of their device events; null without calls")
    ]
    call_flops: Annotated[int | None, Meta(description="FLOPs of the matrix products in one call; null: the cost is not known")]
    call_bytes: Annotated[int | None, Meta(description="least number of bytes that one call moves; null: the cost is not known")]
    flops_per_s: Annotated[float | None, Meta(description="FLOPs of a call / its time, FLOP/s; null: the cost is not known")]
    bytes_per_s: Annotated[
        float | None, Meta(description="least bytes of a call / its time, bytes/s; null: the cost is not known")
    ]
    compute_share: Annotated[
        float | None,
        Meta(
            description="`flops_per_s` / peak matrix rate of the dtype, 1 at the peak; null: no matrix products, or no known "
            "cost or peak"
        ),
    ]
    memory_share: Annotated[
        float | None,
        Meta(description="`bytes_per_s` / memory bandwidth of the device, 1 at the peak; null: cost or bandwidth is not known"),
    ]
    bound: Annotated[
        str | None, Meta(description="`compute` or `memory`, whichever alone would take longer at its peak; null: not known")
    ]
    floor_ns: Annotated[float | None, Meta(description="least time that the device could take for one call; null: not known")]
    unknown: Annotated[str, Meta(description="reason why the cost is not known; empty if it is")]


# The document that `strobe trace --json` prints and `strobe.read_trace` returns.


class TraceFile(DocumentPart, frozen=True, kw_only=True):
    """One trace file that was read."""

    trace: Annotated[str, Meta(description="label of the trace in every other table: its rank, or the name of the file")]
    path: Annotated[str, Meta(description="path of the file")]
    rank: Annotated[int | None, Meta(description="rank of the process; null: not in the trace")]
    world_size: Annotated[int | None, Meta(description="number of processes of the job; null: not in the trace")]
    events: Annotated[int, Meta(description="number of events read, of every category")]
    lost: Annotated[int, Meta(description="number of events that could not be read")]
    mended: Annotated[int, Meta(description="number of events that were repaired to be read")]
    truncated: Annotated[bool, Meta(description="true: the file ends in the middle of its JSON")]
    damage: Annotated[
        tuple[str, ...],
        Meta(description="what the file says of events that cannot be, and what became of them, one sentence each"),
    ]
    foreign: Annotated[str, Meta(description="whose profiler wrote the file and what that cannot say; empty: `torch.profiler`")]
    base_ns: Annotated[
        int,
        Meta(
            description="start of the trace's clock: nanoseconds since the Unix epoch that its times are relative to; 0: no "
            "such offset"
        ),
    ]
    window_start_ns: Annotated[int | None, Meta(description="start of the chosen window; null: the whole trace")]
    window_end_ns: Annotated[int | None, Meta(description="end of the chosen window; null: the whole trace")]


class DeviceRow(OnDevice, frozen=True, kw_only=True):
    """One device; its busy and idle times add up to the span."""

    product: Annotated[str, Meta(description="product name of the device; empty: not in the trace")]
    span_ns: Annotated[
        int, Meta(description="time from the start of the first event to the end of the last, or length of the window")
    ]
    busy_ns: Annotated[int, Meta(description="time in which at least one event ran")]
    idle_ns: Annotated[int, Meta(description="time in which no event ran")]
    sum_ns: Annotated[int, Meta(description="sum of the durations of all events; exceeds `busy_ns` where events overlap")]
    exposed_communication_ns: Annotated[int, Meta(description="time in which communication ran, and no kernel and no memset")]
    exposed_copies_ns: Annotated[int, Meta(description="time in which a copy ran and nothing else")]
    events: Annotated[int, Meta(description="number of device events")]
    unlinked_events: Annotated[int, Meta(description="number of device events whose launch call is not in the trace")]
    verdict: Annotated[
        str,
        Meta(
            description="main cause of idle time: `busy`, `host-bound`, `host late, slow launches`, `launch latency`, "
            "`queued`, `profiler overhead`, `mixed` or `unknown`"
        ),
    ]


class KindRow(OnDevice, frozen=True, kw_only=True):
    """Device events of one kind on one device; exclusive times add up to the busy time of the device."""

    kind: Annotated[str, Meta(description="`kernel`, `comm` (communication), `memset` or `memcpy`")]
    events: Annotated[int, Meta(description="number of device events")]
    exclusive_ns: Annotated[int, Meta(description="time that is not counted to a kind of higher priority")]
    union_ns: Annotated[int, Meta(description="time in which at least one event of the kind ran")]
    sum_ns: Annotated[int, Meta(description="sum of the durations of the events")]


class StreamRow(OnDevice, frozen=True, kw_only=True):
    """Device events of one stream."""

    stream: Annotated[int, Meta(description="number of the stream")]
    events: Annotated[int, Meta(description="number of device events")]
    busy_ns: Annotated[int, Meta(description="time in which at least one event of the stream ran")]
    sum_ns: Annotated[int, Meta(description="sum of the durations of the events")]


class IdleRow(OnDevice, frozen=True, kw_only=True):
    """Idle time of one device by cause; the causes add up to its idle time."""

    cause: Annotated[str, Meta(description="cause of the idle time, e.g. `host_late`; docs/traces.md explains them")]
    idle_ns: Annotated[int, Meta(description="idle time with this cause")]


class KernelRow(OnDevice, frozen=True, kw_only=True):
    """Calls of one kernel on one device; exclusive times add up to the busy time of the device."""

    kernel: Annotated[str, Meta(description="normalised name of the kernel; `kernel_names` has the full names")]
    shape: Annotated[str, Meta(description="input sizes, or grid and block sizes; empty unless grouped by shape")]
    kind: Annotated[str, Meta(description="`kernel`, `comm` (communication), `memset` or `memcpy`")]
    calls: Annotated[int, Meta(description="number of calls")]
    exclusive_ns: Annotated[int, Meta(description="device time that no other row counts")]
    sum_ns: Annotated[int, Meta(description="sum of the durations of the calls")]
    min_ns: Annotated[int, Meta(description="duration of the shortest call")]
    mean_ns: Annotated[float, Meta(description="mean duration of a call")]
    p50_ns: Annotated[int, Meta(description="median duration of a call")]
    p99_ns: Annotated[int | None, Meta(description="99th percentile of the durations; null below 459 calls")]
    max_ns: Annotated[int, Meta(description="duration of the longest call")]
    unlinked_calls: Annotated[int, Meta(description="number of calls whose launch call is not in the trace")]


class KernelNameRow(OnDevice, frozen=True, kw_only=True):
    """One full kernel name behind a row of `kernels`."""

    kernel: Annotated[str, Meta(description="normalised name of the kernel, as in `kernels`")]
    shape: Annotated[str, Meta(description="as in `kernels`")]
    name: Annotated[str, Meta(description="full name of the kernel, demangled where possible")]
    calls: Annotated[int, Meta(description="number of calls")]
    sum_ns: Annotated[int, Meta(description="sum of the durations of the calls")]


class LaunchRow(OnDevice, frozen=True, kw_only=True):
    """Launch calls of one name that launched events of one device."""

    call: Annotated[str, Meta(description="name of the call, e.g. `cudaLaunchKernel`")]
    calls: Annotated[int, Meta(description="number of calls")]
    events: Annotated[int, Meta(description="number of device events that the calls launched")]
    host_sum_ns: Annotated[int, Meta(description="sum of the durations of the calls on the host, over all threads")]
    host_p50_ns: Annotated[int, Meta(description="median duration of a call on the host")]
    host_max_ns: Annotated[int, Meta(description="duration of the longest call on the host")]
    delay_p50_ns: Annotated[int, Meta(description="median time from the start of a call to the start of its first device event")]
    delay_max_ns: Annotated[int, Meta(description="longest time from the start of a call to the start of its first device event")]


class TraceStepRow(OnDevice, frozen=True, kw_only=True):
    """One step of one device, of the whole trace: from its first device event to that of the next step."""

    step: Annotated[str, Meta(description="name of the range that marks the step, or `step N`")]
    number: Annotated[int, Meta(description="number of the step")]
    start_ns: Annotated[int, Meta(description="start on the clock of the trace")]
    end_ns: Annotated[int, Meta(description="end on the clock of the trace")]
    busy_ns: Annotated[int, Meta(description="time in which at least one event ran")]
    idle_ns: Annotated[int, Meta(description="time in which no event ran")]
    kernels: Annotated[int, Meta(description="number of kernels that started in the step, communication included")]
    host_ns: Annotated[int | None, Meta(description="duration of the step's range on the host; null if it has none")]
    left_out: Annotated[str, Meta(description="reason why the step is not among the steady steps; empty if it is")]


class RangeRow(OnDevice, frozen=True, kw_only=True):
    """Device time of the calls of one range or module; sums include nested calls, exclusive times do not."""

    kind: Annotated[str, Meta(description="`range`, `module`, or `graph module` (module path that the kernels of a graph carry)")]
    name: Annotated[str, Meta(description="name of the range or module, without the number at its end")]
    calls: Annotated[int, Meta(description="number of calls")]
    events: Annotated[int, Meta(description="number of device events launched in the calls")]
    sum_ns: Annotated[int, Meta(description="sum of the durations of these events")]
    union_ns: Annotated[int, Meta(description="time in which at least one of these events ran")]
    span_ns: Annotated[
        int, Meta(description="time from the first start to the last end of a call's events, summed over the calls")
    ]
    exclusive_ns: Annotated[int, Meta(description="sum of the durations of events that no nested call of the same kind launched")]
    host_ns: Annotated[int | None, Meta(description="time of the calls on the host; null for a graph module")]


class SectionRow(OnDevice, frozen=True, kw_only=True):
    """One section: the time between two boundaries around a focal event."""

    section: Annotated[str, Meta(description="definition of the section by its boundaries")]
    start_ns: Annotated[int, Meta(description="start on the clock of the trace")]
    length_ns: Annotated[int, Meta(description="time from boundary to boundary")]
    busy_ns: Annotated[int, Meta(description="time in which at least one event of the section ran")]
    focal_ns: Annotated[int, Meta(description="time in which a focal event ran")]


class CollectiveRow(OnDevice, frozen=True, kw_only=True):
    """Collectives of one kind on one device."""

    collective: Annotated[str, Meta(description="name of the collective, e.g. `allreduce`")]
    group: Annotated[str, Meta(description="name of the process group")]
    message_bytes: Annotated[
        int | None, Meta(description="size of a message on the side (input or output) where it is larger; null: not in the trace")
    ]
    dtype: Annotated[str, Meta(description="dtype of the elements")]
    calls: Annotated[int, Meta(description="number of calls")]
    sum_ns: Annotated[int, Meta(description="sum of the durations, waiting included")]
    exposed_ns: Annotated[int, Meta(description="time in which one of them ran, and no kernel and no memset")]


class OperatorRow(DocumentPart, frozen=True, kw_only=True):
    """Calls of one operator on the host, in a trace without device events."""

    trace: TraceLabel
    operator: Annotated[str, Meta(description="name of the operator, e.g. `aten::mm`")]
    calls: Annotated[int, Meta(description="number of calls")]
    self_ns: Annotated[int, Meta(description="time in the operator without the operators that it calls")]
    sum_ns: Annotated[int, Meta(description="sum of the durations of the calls, nested operators included")]
    p50_ns: Annotated[int, Meta(description="median duration of a call")]
    max_ns: Annotated[int, Meta(description="duration of the longest call")]


class MemoryRow(DocumentPart, frozen=True, kw_only=True):
    """Memory of one device; only devices whose allocations were recorded have a row."""

    trace: TraceLabel
    device: Annotated[str, Meta(description="name of the device, e.g. `cuda:0`")]
    peak_allocated_bytes: Annotated[int, Meta(description="peak of the allocated memory")]
    peak_reserved_bytes: Annotated[int, Meta(description="peak of the memory that the allocator reserved; 0: not recorded")]
    start_allocated_bytes: Annotated[int, Meta(description="allocated memory at the start")]
    end_allocated_bytes: Annotated[int, Meta(description="allocated memory at the end")]


class QueueRow(OnDevice, frozen=True, kw_only=True):
    """Queue of a device or stream: events that have not started although their launch call has."""

    stream: Annotated[int | None, Meta(description="number of the stream; null: all streams of the device together")]
    span_ns: Annotated[int, Meta(description="length of the window")]
    empty_ns: Annotated[int, Meta(description="time in which the queue was empty")]
    longest: Annotated[int, Meta(description="maximum queue length, events")]
    median: Annotated[int, Meta(description="median queue length over time, events")]
    mean: Annotated[float, Meta(description="mean queue length over time, events")]
    queued_events: Annotated[int, Meta(description="number of events that waited in the queue")]
    waited_ns: Annotated[int, Meta(description="sum of the waiting times of these events")]
    unlinked_events: Annotated[
        int, Meta(description="number of events that are not counted, as their launch call is not in the trace")
    ]


class CriticalPathRow(DocumentPart, frozen=True, kw_only=True):
    """Critical path of one trace: the longest chain through host, queue and devices."""

    trace: TraceLabel
    begin_ns: Annotated[
        int,
        Meta(
            description="start of the path on the clock of the trace: the first launch call or device event, or start of the "
            "window"
        ),
    ]
    duration_ns: Annotated[int, Meta(description="time from `begin_ns` to the end of the last device event")]
    events: Annotated[int, Meta(description="number of device events")]
    inferred_events: Annotated[
        int, Meta(description="number of device events that are assumed to have waited for another stream")
    ]
    usual_launch_ns: Annotated[int, Meta(description="median latency of launches to a free stream")]
    usual_gap_ns: Annotated[int, Meta(description="median gap between queued events of a stream")]


class PathPartRow(DocumentPart, frozen=True, kw_only=True):
    """One part of a critical path; the parts add up to its duration."""

    trace: TraceLabel
    kind: Annotated[
        str,
        Meta(
            description="`kernel`, or the kind of delay between two events, e.g. `host`, `launch latency`; docs/traces.md "
            "explains them"
        ),
    ]
    name: Annotated[str, Meta(description="normalised name of the kernel; empty for a delay")]
    path_ns: Annotated[int, Meta(description="time on the critical path")]
    n: Annotated[int, Meta(description="number of occurrences on the path")]


class WhatIfRow(DocumentPart, frozen=True, kw_only=True):
    """Predicted duration of one trace if one kernel, kind of kernel or delay took no time."""

    trace: TraceLabel
    kind: Annotated[str, Meta(description="kind of the removed work: `kernel`, `kind of kernel`, `host` or `launch latency`")]
    name: Annotated[str, Meta(description="name of the removed kernel or kind of kernel; empty for a delay")]
    removed_ns: Annotated[int, Meta(description="removed time: total of this work in the trace, on the critical path and off it")]
    duration_ns: Annotated[int, Meta(description="predicted duration without this work")]
    ratio: Annotated[float | None, Meta(description="duration with this work / duration without it; null if nothing is left")]


class TraceDocument(Document, frozen=True, kw_only=True):
    """Tables of profiler traces: devices, kernels, steps, ranges and more.

    `rows()` returns the kernel table; `rows("steps")` and the like return the other tables.
    """

    MAIN: ClassVar[str] = "kernels"
    SHOWN: ClassVar[tuple[str, ...]] = ("devices", "idle", "kernels", "operator_times", "what_if")
    BRIEF: ClassVar[dict[str, tuple[str, ...]]] = {
        "devices": ("trace", "device", "span_ns", "busy_ns", "idle_ns", "verdict"),
        "kernels": ("kernel", "calls", "exclusive_ns", "sum_ns"),
    }

    files: Annotated[tuple[TraceFile, ...], Meta(description="trace files that were read, in order of rank and path")]
    skipped: Annotated[tuple[str, ...], Meta(description="files in the folders that are not traces, each with the reason")]
    devices: Annotated[tuple[DeviceRow, ...], Meta(description="devices with events; empty for traces of the host alone")]
    kinds: Annotated[tuple[KindRow, ...], Meta(description="busy time by kind of work")]
    streams: Annotated[tuple[StreamRow, ...], Meta(description="busy time by stream")]
    idle: Annotated[tuple[IdleRow, ...], Meta(description="idle time by cause")]
    kernels: Annotated[tuple[KernelRow, ...], Meta(description="all kernels, most exclusive time first")]
    kernel_names: Annotated[tuple[KernelNameRow, ...], Meta(description="full names of the kernels")]
    launches: Annotated[tuple[LaunchRow, ...], Meta(description="launch calls")]
    steps: Annotated[tuple[TraceStepRow, ...], Meta(description="steps of the whole trace; a window does not restrict them")]
    no_steps: Annotated[tuple[str, ...], Meta(description="devices without steps, each with the reason")]
    ranges: Annotated[tuple[RangeRow, ...], Meta(description="device time by range and module")]
    sections: Annotated[tuple[SectionRow, ...], Meta(description="sections that were requested")]
    collectives: Annotated[tuple[CollectiveRow, ...], Meta(description="communication by kind of collective")]
    operators: Annotated[tuple[OperatorRow, ...], Meta(description="host time by operator, of traces without device events")]
    operator_times: Annotated[
        tuple[OperatorTimeRow, ...],
        Meta(description="device time by operator, input sizes, dtypes and phase; empty if the trace was read without details"),
    ]
    operator_kernels: Annotated[tuple[OperatorKernelRow, ...], Meta(description="kernels of the rows in `operator_times`")]
    operator_callers: Annotated[tuple[OperatorCallerRow, ...], Meta(description="callers of the rows in `operator_times`")]
    operator_rates: Annotated[
        tuple[OperatorRateRow, ...],
        Meta(description="rates of the operators in `operator_times`, compared with the peaks of the device"),
    ]
    critical_paths: Annotated[
        tuple[CriticalPathRow, ...], Meta(description="critical path of each trace; empty if the trace was read without details")
    ]
    critical_path_parts: Annotated[tuple[PathPartRow, ...], Meta(description="parts of each critical path")]
    what_if: Annotated[tuple[WhatIfRow, ...], Meta(description="predicted duration of each trace without some of its work")]
    queues: Annotated[tuple[QueueRow, ...], Meta(description="queue length of devices and streams")]
    memory: Annotated[tuple[MemoryRow, ...], Meta(description="memory use of the devices")]
    metadata: Annotated[dict[str, dict[str, str]], Meta(description="by trace: further facts in the file, as text")]

    def title(self) -> str:
        """Return one line with the traces and the busy share of each device."""
        shares = ", ".join(
            f"{each.trace} device {each.device} busy {each.busy_ns / max(1, each.span_ns):.1%}" for each in self.devices
        )
        return f"{', '.join(each.trace for each in self.files)}: {shares or 'no device events'}"


# From a `TraceStudy` to its document: every row of every table, computed by the analysis.


def trace_document(study: TraceStudy) -> TraceDocument:
    """Return everything that was found in some traces.

    Raises:
        DataError: a trace whose times cannot be.
        ConfigError: a section or step that is not defined as one.
    """
    labels = {id(trace): label for trace, label in zip(study.traces, study.labels, strict=True)}

    def at(one: DeviceFindings) -> dict[str, Any]:
        return {"trace": labels[id(one.view.trace)], "device": one.view.device}

    seen = [(at(one), one) for one in seen_devices(study)]
    named = list(zip(study.labels, seen_steps(study), strict=True))
    return TraceDocument(
        files=tuple(_files(study)),
        skipped=study.skipped,
        devices=tuple(_device(where, one) for where, one in seen),
        kinds=tuple(part_of(KindRow, kind, **where, events=kind.n) for where, one in seen for kind in one.launch.activity.kinds),
        streams=tuple(
            part_of(StreamRow, stream, **where, events=stream.n) for where, one in seen for stream in one.launch.activity.streams
        ),
        idle=tuple(
            IdleRow(**where, cause=cause, idle_ns=ns) for where, one in seen for cause, ns in one.launch.activity.idle.items()
        ),
        kernels=tuple(
            part_of(KernelRow, row, row.calls, **where, kernel=row.group, calls=row.calls.n, unlinked_calls=row.num_unlinked)
            for where, one in seen
            for row in one.hot.rows
        ),
        kernel_names=tuple(
            part_of(KernelNameRow, member, row, **where, kernel=row.group, calls=member.n)
            for where, one in seen
            for row in one.hot.rows
            for member in row.members
        ),
        launches=tuple(row for where, one in seen for row in _launches(where, one)),
        steps=tuple(row for label, found in named for one in found if isinstance(one, Steps) for row in _steps(label, one)),
        no_steps=tuple(
            f"{label}, device {one.device}: {one.reason}" for label, found in named for one in found if isinstance(one, NoSteps)
        ),
        ranges=tuple(
            part_of(RangeRow, row, trace=label, device=found.device)
            for label, of_trace in zip(study.labels, seen_ranges(study), strict=True)
            for found in of_trace
            for row in found.rows
        ),
        sections=tuple(_sections(study)),
        collectives=tuple(_collectives(study)),
        operators=tuple(_operators(study)),
        queues=tuple(
            part_of(
                QueueRow,
                queue,
                **at(one),
                queued_events=queue.queued,
                waited_ns=queue.total_ns,
                unlinked_events=queue.unlinked,
            )
            for one, found in seen_queues(study)
            for queue in found
        ),
        **_operator_tables(study, labels),
        **_critical_path_tables(study),
        memory=tuple(_memory(study)),
        metadata={label: dict(trace.metadata) for label, trace in zip(study.labels, study.traces, strict=True)},
    )


def _files(study: TraceStudy) -> Iterator[TraceFile]:
    for label, trace, window in zip(study.labels, study.traces, study.windows, strict=True):
        yield part_of(
            TraceFile,
            trace.counts,
            trace,
            trace=label,
            path=str(trace.path),
            window_start_ns=None if window is None else window.start_ns,
            window_end_ns=None if window is None else window.end_ns,
        )


def _device(where: Mapping[str, Any], one: DeviceFindings) -> DeviceRow:
    done, number = one.launch.activity, one.view.device
    return part_of(
        DeviceRow,
        done,
        **where,
        product=next((device.name for device in one.view.trace.devices if device.index == number), ""),
        exposed_communication_ns=done.exposed_comm_ns,
        exposed_copies_ns=done.exposed_memcpy_ns,
        events=done.n,
        unlinked_events=done.num_unlinked,
        verdict=one.launch.verdict,
    )


def _launches(where: Mapping[str, Any], one: DeviceFindings) -> Iterator[LaunchRow]:
    for call in one.launch.calls:
        delay = call.delays.start_to_start
        yield LaunchRow(
            **where,
            call=call.name,
            calls=call.n,
            events=call.num_events,
            host_sum_ns=call.host.sum_ns,
            host_p50_ns=call.host.p50_ns,
            host_max_ns=call.host.max_ns,
            delay_p50_ns=delay.p50_ns,
            delay_max_ns=delay.max_ns,
        )


def _steps(label: str, found: Steps) -> Iterator[TraceStepRow]:
    causes = {each.index: each.cause for each in found.steady.excluded}
    for place, step in enumerate(found.steps):
        yield part_of(TraceStepRow, step, trace=label, device=found.device, step=step.label, left_out=causes.get(place, ""))


def _sections(study: TraceStudy) -> Iterator[SectionRow]:
    for definition in map(parse_section, study.options.sections):
        for label, trace, window in zip(study.labels, study.traces, study.windows, strict=True):
            for sections in find_sections(trace, definition, window):
                for section in sections.found:
                    yield part_of(SectionRow, section, trace=label, device=sections.device, section=str(definition))


def _collectives(study: TraceStudy) -> Iterator[CollectiveRow]:
    for found in communication(study.traces, study.windows):
        for each in found.kinds:
            yield part_of(
                CollectiveRow,
                each.kind,
                each.duration,
                each,
                trace=study.labels[found.trace],
                device=found.device,
                collective=each.kind.name,
                calls=each.duration.n,
            )


def _operators(study: TraceStudy) -> Iterator[OperatorRow]:
    for label, trace, window in zip(study.labels, study.traces, study.windows, strict=True):
        found = None if len(trace.device_events) else operators(trace, window)
        for row in found.rows if found else ():
            yield part_of(OperatorRow, row, row.calls, trace=label, operator=row.name, calls=row.calls.n)


def _operator_tables(study: TraceStudy, labels: Mapping[int, str]) -> dict[str, Any]:
    """Return the tables about operators of every device of the traces that were read with details."""
    seen = [(labels[id(one.view.trace)], one.view.trace, times) for one, times in seen_operators(study)]
    placed = [
        ({"trace": label, "device": times.device, "place": place}, row)
        for label, _, times in seen
        for place, row in enumerate(times.rows)
    ]
    return {
        "operator_times": tuple(
            part_of(OperatorTimeRow, row, **where, source=row.source.value, input_sizes=row.inputs.text) for where, row in placed
        ),
        "operator_kernels": tuple(part_of(OperatorKernelRow, kernel, **where) for where, row in placed for kernel in row.kernels),
        "operator_callers": tuple(
            part_of(OperatorCallerRow, caller, **where, caller=caller.operator) for where, row in placed for caller in row.callers
        ),
        "operator_rates": tuple(
            _rate({"trace": label, "device": times.device, "place": rate.place}, rate)
            for label, trace, times in seen
            for rate in operator_rates(trace, times).rows
        ),
    }


def _rate(where: Mapping[str, Any], rate: Rate) -> OperatorRateRow:
    row, found = rate.row, rate.found
    cost = rate.cost if isinstance(rate.cost, OperatorCost) else None
    rates = ("flops_per_s", "bytes_per_s", "compute_share", "memory_share", "bound", "floor_ns")
    return part_of(
        OperatorRateRow,
        row,
        **where,
        input_sizes=row.inputs.text,
        dtype="" if cost is None else cost.dtype,
        call_ns=row.sum_ns / row.calls if row.calls else None,
        call_flops=None if cost is None else cost.cost.flops,
        call_bytes=None if cost is None else cost.cost.moved_bytes,
        **{name: None if found is None else getattr(found, name) for name in rates},
        unknown=rate.cost if isinstance(rate.cost, str) else "",
    )


def _critical_path_tables(study: TraceStudy) -> dict[str, Any]:
    """Return the tables about the critical path of every trace that has one."""
    paths = [
        (label, found) for label, found in zip(study.labels, seen_paths(study), strict=True) if isinstance(found, CriticalPath)
    ]  # fmt: skip
    return {
        "critical_paths": tuple(
            part_of(
                CriticalPathRow,
                found,
                trace=label,
                events=found.num_events,
                inferred_events=found.num_inferred,
                usual_launch_ns=found.launch_ns,
                usual_gap_ns=found.gap_ns,
            )
            for label, found in paths
        ),
        "critical_path_parts": tuple(
            part_of(PathPartRow, part, trace=label, path_ns=part.ns, n=part.count)
            for label, found in paths
            for part in found.parts
        ),
        "what_if": tuple(
            part_of(WhatIfRow, one, trace=label, ratio=one.speedup) for label, found in paths for one in found.what_if
        ),
    }


def _memory(study: TraceStudy) -> Iterator[MemoryRow]:
    for label, trace, window in zip(study.labels, study.traces, study.windows, strict=True):
        for use in memory_use(trace, window):
            yield MemoryRow(
                trace=label,
                device=use.device,
                peak_allocated_bytes=use.peak.allocated_bytes,
                peak_reserved_bytes=use.reserved_peak_bytes,
                start_allocated_bytes=use.first.allocated_bytes,
                end_allocated_bytes=use.last.allocated_bytes,
            )
