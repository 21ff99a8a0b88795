"""The document that `strobe trace --json` prints and `strobe.read_trace` returns."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from strobe.perf.report.documents.critical_path import CriticalPathRow, PathPartRow, WhatIfRow
from strobe.perf.report.documents.operators import OperatorCallerRow, OperatorKernelRow, OperatorRateRow, OperatorTimeRow
from strobe.perf.report.documents.value import Count, DeviceNumber, Document, Part, TraceLabel


class TraceFile(Part, frozen=True, kw_only=True):
    """One file that was read."""

    trace: Annotated[str, Meta(description="label of the trace in every other table: its rank, or the file's name")]
    path: Annotated[str, Meta(description="path of the file")]
    rank: Annotated[int | None, Meta(description="rank of the process; null where the trace does not say")]
    world_size: Annotated[int | None, Meta(description="processes of the job; null where the trace does not say")]
    events: Annotated[int, Meta(description="events read, of every category")]
    lost: Annotated[int, Meta(description="events that could not be read")]
    mended: Annotated[int, Meta(description="events that were read after something in them was replaced")]
    truncated: Annotated[bool, Meta(description="the file ends before its JSON does")]
    base_ns: Annotated[
        int, Meta(description="nanoseconds since the epoch that the trace's times count from; 0: they count alone")
    ]
    window_start_ns: Annotated[int | None, Meta(description="start of the chosen window; null: the whole trace")]
    window_end_ns: Annotated[int | None, Meta(description="its end")]


class DeviceRow(Part, frozen=True, kw_only=True):
    """One device: busy and idle add up to the span."""

    trace: TraceLabel
    device: DeviceNumber
    product: Annotated[str, Meta(description="name of the product; empty where the trace does not list it")]
    span_ns: Annotated[int, Meta(description="from the first event's start to the last one's end, or the window")]
    busy_ns: Annotated[int, Meta(description="at least one event ran")]
    idle_ns: Annotated[int, Meta(description="nothing ran")]
    sum_ns: Annotated[int, Meta(description="durations of all events; more than busy where they overlap")]
    exposed_communication_ns: Annotated[int, Meta(description="communication ran and neither a kernel nor a memset did")]
    exposed_copies_ns: Annotated[int, Meta(description="a copy ran and nothing else did")]
    events: Annotated[int, Meta(description="device events")]
    unlinked_events: Annotated[int, Meta(description="of these, launched before the trace")]
    verdict: Annotated[str, Meta(description="what keeps the device from being busy, in a word or two")]


class KindRow(Part, frozen=True, kw_only=True):
    """Device events of one kind on one device; exclusive times add up to busy."""

    trace: TraceLabel
    device: DeviceNumber
    kind: Annotated[str, Meta(description="kernel, comm, memset or memcpy")]
    events: Count
    exclusive_ns: Annotated[int, Meta(description="time that no kind of higher priority owns")]
    union_ns: Annotated[int, Meta(description="at least one event of the kind ran")]
    sum_ns: Annotated[int, Meta(description="durations of its events")]


class StreamRow(Part, frozen=True, kw_only=True):
    """Device events of one stream."""

    trace: TraceLabel
    device: DeviceNumber
    stream: Annotated[int, Meta(description="number of the stream")]
    events: Count
    busy_ns: Annotated[int, Meta(description="at least one event of the stream ran")]
    sum_ns: Annotated[int, Meta(description="durations of its events")]


class IdleRow(Part, frozen=True, kw_only=True):
    """Idle time of one device by cause; the causes add up to its idle time."""

    trace: TraceLabel
    device: DeviceNumber
    cause: Annotated[str, Meta(description="what the device waited for, a word of docs/traces.md")]
    idle_ns: Annotated[int, Meta(description="idle time with that cause")]


class KernelRow(Part, frozen=True, kw_only=True):
    """Calls of one kernel on one device; exclusive times add up to busy."""

    trace: TraceLabel
    device: DeviceNumber
    kernel: Annotated[str, Meta(description="normalised name of the group; `kernel_names` has the full ones")]
    shape: Annotated[str, Meta(description="input sizes, or grid and block; empty unless grouped by shape")]
    kind: Annotated[str, Meta(description="kernel, comm, memset or memcpy")]
    calls: Count
    exclusive_ns: Annotated[int, Meta(description="time that no other row counts")]
    sum_ns: Annotated[int, Meta(description="durations of the calls")]
    min_ns: Annotated[int, Meta(description="shortest call")]
    mean_ns: Annotated[float, Meta(description="sum / calls")]
    p50_ns: Annotated[int, Meta(description="median call")]
    p99_ns: Annotated[int | None, Meta(description="99th percentile; null below 459 calls")]
    max_ns: Annotated[int, Meta(description="longest call")]
    unlinked_calls: Annotated[int, Meta(description="calls launched before the trace")]


class KernelNameRow(Part, frozen=True, kw_only=True):
    """One full kernel name inside a group of kernels."""

    trace: TraceLabel
    device: DeviceNumber
    kernel: Annotated[str, Meta(description="normalised name of the group")]
    shape: Annotated[str, Meta(description="as in `kernels`")]
    name: Annotated[str, Meta(description="full name, demangled where that is possible")]
    calls: Count
    sum_ns: Annotated[int, Meta(description="durations of the calls")]


class LaunchRow(Part, frozen=True, kw_only=True):
    """Launch calls of one name, of those that launched device events of one device."""

    trace: TraceLabel
    device: DeviceNumber
    call: Annotated[str, Meta(description="such as cudaLaunchKernel")]
    calls: Count
    events: Annotated[int, Meta(description="device events that they launched")]
    host_sum_ns: Annotated[int, Meta(description="time in the calls, on all threads")]
    host_p50_ns: Annotated[int, Meta(description="median call")]
    host_max_ns: Annotated[int, Meta(description="longest call")]
    delay_p50_ns: Annotated[int, Meta(description="start of the call to start of its first device event, median")]
    delay_max_ns: Annotated[int, Meta(description="the same, longest")]


class StepRow(Part, frozen=True, kw_only=True):
    """One step of one device, of the whole trace: from its first device event to that of the next step."""

    trace: TraceLabel
    device: DeviceNumber
    step: Annotated[str, Meta(description="name of its range, or `step N`")]
    number: Annotated[int, Meta(description="number of the step")]
    start_ns: Annotated[int, Meta(description="on the trace's clock")]
    end_ns: Annotated[int, Meta(description="on the trace's clock")]
    busy_ns: Annotated[int, Meta(description="at least one event ran")]
    idle_ns: Annotated[int, Meta(description="nothing ran")]
    kernels: Annotated[int, Meta(description="kernels that started in it, communication too")]
    host_ns: Annotated[int | None, Meta(description="length of its range on the host; null if it has none")]
    left_out: Annotated[str, Meta(description="why it is not among the steady steps; empty if it is")]


class RangeRow(Part, frozen=True, kw_only=True):
    """Device time of the calls of one range or module; sums include nested calls, exclusive times do not."""

    trace: TraceLabel
    device: DeviceNumber
    kind: Annotated[str, Meta(description="range, module, or graph module (a path that the kernels of a graph carry)")]
    name: Annotated[str, Meta(description="without the number at its end")]
    calls: Count
    events: Annotated[int, Meta(description="device events launched in them")]
    sum_ns: Annotated[int, Meta(description="durations of these events")]
    union_ns: Annotated[int, Meta(description="at least one of them ran")]
    span_ns: Annotated[int, Meta(description="from the first start to the last end, added over the calls")]
    exclusive_ns: Annotated[int, Meta(description="durations of the events launched in no inner call of the same kind")]
    host_ns: Annotated[int | None, Meta(description="time of the calls on the host; null for a graph module")]


class SectionRow(Part, frozen=True, kw_only=True):
    """One section around a focal event."""

    trace: TraceLabel
    device: DeviceNumber
    section: Annotated[str, Meta(description="its definition")]
    start_ns: Annotated[int, Meta(description="on the trace's clock")]
    length_ns: Annotated[int, Meta(description="from boundary to boundary")]
    busy_ns: Annotated[int, Meta(description="at least one event of it ran")]
    focal_ns: Annotated[int, Meta(description="the focal event ran")]


class CollectiveRow(Part, frozen=True, kw_only=True):
    """Collectives of one kind on one device."""

    trace: TraceLabel
    device: DeviceNumber
    collective: Annotated[str, Meta(description="such as allreduce")]
    group: Annotated[str, Meta(description="name of the process group")]
    message_bytes: Annotated[int | None, Meta(description="bytes of the larger side; null where the trace does not say")]
    dtype: Annotated[str, Meta(description="of the elements")]
    calls: Count
    sum_ns: Annotated[int, Meta(description="durations, waiting included")]
    exposed_ns: Annotated[int, Meta(description="one of them ran and neither a kernel nor a memset did")]


class OperatorRow(Part, frozen=True, kw_only=True):
    """Calls of one operator on the host, in a trace without device events."""

    trace: TraceLabel
    operator: Annotated[str, Meta(description="such as aten::mm")]
    calls: Count
    self_ns: Annotated[int, Meta(description="it ran and no operator that it called did")]
    sum_ns: Annotated[int, Meta(description="durations of the calls, with what they call")]
    p50_ns: Annotated[int, Meta(description="median call")]
    max_ns: Annotated[int, Meta(description="longest call")]


class MemoryRow(Part, frozen=True, kw_only=True):
    """Memory of one device whose allocations were recorded."""

    trace: TraceLabel
    device: Annotated[str, Meta(description="such as cuda:0")]
    peak_allocated_bytes: Annotated[int, Meta(description="most that was handed out")]
    peak_reserved_bytes: Annotated[int, Meta(description="most that the allocator held; 0 where not recorded")]
    start_allocated_bytes: Annotated[int, Meta(description="handed out at the start")]
    end_allocated_bytes: Annotated[int, Meta(description="handed out at the end")]


class QueueRow(Part, frozen=True, kw_only=True):
    """The queue of a device or stream: events whose launch call has started and that have not started themselves."""

    trace: TraceLabel
    device: DeviceNumber
    stream: Annotated[int | None, Meta(description="number of the stream; null: all of the device together")]
    span_ns: Annotated[int, Meta(description="length of the window")]
    empty_ns: Annotated[int, Meta(description="time with a length of 0")]
    longest: Annotated[int, Meta(description="largest length")]
    median: Annotated[int, Meta(description="over time: the length that it has for half of the time at most")]
    mean: Annotated[float, Meta(description="over time")]
    queued_events: Annotated[int, Meta(description="events that waited in it")]
    waited_ns: Annotated[int, Meta(description="their waits together")]
    unlinked_events: Annotated[int, Meta(description="events launched before the trace: not counted")]


class TraceDocument(Document, frozen=True, kw_only=True):
    """Tables of profiler traces: devices, kernels, steps, ranges and more.

    `rows()` returns the kernel table; `rows("steps")` and the like return the other tables.
    """

    MAIN: ClassVar[str] = "kernels"
    SHOWN: ClassVar[tuple[str, ...]] = ("devices", "idle", "kernels", "operator_times", "what_if")

    files: Annotated[tuple[TraceFile, ...], Meta(description="what was read, in the order of ranks and paths")]
    skipped: Annotated[tuple[str, ...], Meta(description="files in the folders that are no traces, each with the reason")]
    devices: Annotated[tuple[DeviceRow, ...], Meta(description="devices with events; empty for traces of the host alone")]
    kinds: Annotated[tuple[KindRow, ...], Meta(description="busy time by kind of work")]
    streams: Annotated[tuple[StreamRow, ...], Meta(description="streams of the devices")]
    idle: Annotated[tuple[IdleRow, ...], Meta(description="idle time by cause")]
    kernels: Annotated[tuple[KernelRow, ...], Meta(description="every kernel, those with most exclusive time first")]
    kernel_names: Annotated[tuple[KernelNameRow, ...], Meta(description="the full names behind them")]
    launches: Annotated[tuple[LaunchRow, ...], Meta(description="launch calls")]
    steps: Annotated[tuple[StepRow, ...], Meta(description="steps of the whole trace, whatever the window")]
    no_steps: Annotated[tuple[str, ...], Meta(description="devices without steps, each with the reason")]
    ranges: Annotated[tuple[RangeRow, ...], Meta(description="ranges and modules")]
    sections: Annotated[tuple[SectionRow, ...], Meta(description="sections that were asked for")]
    collectives: Annotated[tuple[CollectiveRow, ...], Meta(description="communication by kind")]
    operators: Annotated[tuple[OperatorRow, ...], Meta(description="operators of traces without device events")]
    operator_times: Annotated[
        tuple[OperatorTimeRow, ...], Meta(description="device time by operator, inputs and pass; needs operators to be read")
    ]
    operator_kernels: Annotated[tuple[OperatorKernelRow, ...], Meta(description="the kernels of each of these rows")]
    operator_callers: Annotated[tuple[OperatorCallerRow, ...], Meta(description="the callers of each of these rows")]
    operator_rates: Annotated[tuple[OperatorRateRow, ...], Meta(description="operators against the device's peaks")]
    critical_paths: Annotated[tuple[CriticalPathRow, ...], Meta(description="the critical path of each trace; needs details")]
    critical_path_parts: Annotated[tuple[PathPartRow, ...], Meta(description="what each path consists of; adds up to it")]
    what_if: Annotated[tuple[WhatIfRow, ...], Meta(description="each path if some of its work took no time")]
    queues: Annotated[tuple[QueueRow, ...], Meta(description="work that waits in front of devices and streams")]
    memory: Annotated[tuple[MemoryRow, ...], Meta(description="memory of the devices")]
    metadata: Annotated[dict[str, dict[str, str]], Meta(description="by trace: further facts that it states, as text")]

    def title(self) -> str:
        """Return one line with the traces and the busy share of each device."""
        shares = ", ".join(
            f"{each.trace} device {each.device} busy {each.busy_ns / max(1, each.span_ns):.1%}" for each in self.devices
        )
        return f"{', '.join(each.trace for each in self.files)}: {shares or 'no device events'}"
