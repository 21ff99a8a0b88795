"""The JSON document that `strobe trace --json` prints and `strobe.read_trace` returns."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from strobe.perf.analysis.structure.steps import NoSteps
from strobe.perf.report.documents.runs import Document, table_kinds
from strobe.perf.report.study import TraceStudy
from strobe.perf.report.trace_page.tables import (  # fmt: skip
    CollectiveRow,
    CriticalPathRow,
    DeviceRow,
    GapsRow,
    IdleRow,
    KernelNameRow,
    KernelRow,
    KindRow,
    LaunchRow,
    MemoryRow,
    OperatorCallerRow,
    OperatorKernelRow,
    OperatorRateRow,
    OperatorRow,
    OperatorTimeRow,
    PathPartRow,
    QueueRow,
    RangeRow,
    SectionRow,
    StreamRow,
    TraceFile,
    TraceStepRow,
    WhatIfRow,
    seen_steps,
)


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
    gaps: Annotated[tuple[GapsRow, ...], Meta(description="gaps between kernels, by the kernels before and after")]
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
        tuple[CriticalPathRow, ...],
        Meta(description="critical path of each trace; empty if the trace was read without details"),
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


def trace_document(study: TraceStudy) -> TraceDocument:
    """Return everything that was found in some traces.

    Raises:
        DataError: a trace whose times cannot be.
        ConfigError: a section or step that is not defined as one.
    """
    rows: dict[str, Any] = {name: tuple(kind.of(study)) for name, kind in table_kinds(TraceDocument).items()}
    no_steps = (
        f"{label}, device {one.device}: {one.reason}"
        for label, found in zip(study.labels, seen_steps(study), strict=True)
        for one in found
        if isinstance(one, NoSteps)
    )
    metadata = {label: dict(trace.metadata) for label, trace in zip(study.labels, study.traces, strict=True)}
    return TraceDocument(skipped=study.skipped, no_steps=tuple(no_steps), metadata=metadata, **rows)
