"""The JSON document that `strobe trace --json` prints and `strobe.read_trace` returns."""

from __future__ import annotations

from typing import Annotated as A
from typing import ClassVar

from strobe.perf.analysis.critical_path import CriticalPathRow, PathPartRow, WhatIfRow
from strobe.perf.analysis.device.activity import DeviceRow, KindRow, StreamRow
from strobe.perf.analysis.device.kernels import KernelNameRow, KernelRow
from strobe.perf.analysis.device.launch import GapsRow, LaunchRow, QueueRow
from strobe.perf.analysis.operators import OperatorCallerRow, OperatorKernelRow, OperatorRateRow, OperatorRow, OperatorTimeRow
from strobe.perf.analysis.structure.collectives import CollectiveRow
from strobe.perf.analysis.structure.ranges import MemoryRow, RangeRow
from strobe.perf.analysis.structure.sections import SectionRow
from strobe.perf.analysis.structure.steps import LayerRow, Steps, TraceStepRow
from strobe.perf.report.documents.runs import Document
from strobe.perf.report.study import TraceStudy
from strobe.perf.report.trace_page.device import IdleRow, TraceFile, devices_of, traces_of
from strobe.perf.table.rows import col


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

    files: A[tuple[TraceFile, ...], col("trace files that were read, in order of rank and path")]
    skipped: A[tuple[str, ...], col("files in the folders that are not traces, each with the reason")]
    devices: A[tuple[DeviceRow, ...], col("devices with events; empty for traces of the host alone")]
    kinds: A[tuple[KindRow, ...], col("busy time by kind of work")]
    streams: A[tuple[StreamRow, ...], col("busy time by stream")]
    idle: A[tuple[IdleRow, ...], col("idle time by cause")]
    kernels: A[tuple[KernelRow, ...], col("all kernels, most exclusive time first")]
    kernel_names: A[tuple[KernelNameRow, ...], col("full names of the kernels")]
    launches: A[tuple[LaunchRow, ...], col("launch calls")]
    steps: A[tuple[TraceStepRow, ...], col("steps of the whole trace, whatever the window")]
    no_steps: A[tuple[str, ...], col("devices without steps, each with the reason")]
    ranges: A[tuple[RangeRow, ...], col("device time by range and module")]
    layers: A[tuple[LayerRow, ...], col("device time by layer, the kind with the most time first")]
    sections: A[tuple[SectionRow, ...], col("sections that were requested")]
    gaps: A[tuple[GapsRow, ...], col("gaps between kernels, by the kernels before and after")]
    collectives: A[tuple[CollectiveRow, ...], col("communication by kind of collective")]
    operators: A[tuple[OperatorRow, ...], col("host time by operator, without device events")]
    operator_times: A[tuple[OperatorTimeRow, ...], col("device time by operator, inputs and phase; empty without details")]
    operator_kernels: A[tuple[OperatorKernelRow, ...], col("kernels of `operator_times`")]
    operator_callers: A[tuple[OperatorCallerRow, ...], col("callers of `operator_times`")]
    operator_rates: A[tuple[OperatorRateRow, ...], col("rates of the operators, against the device's peaks")]
    critical_paths: A[tuple[CriticalPathRow, ...], col("critical path of each trace; empty without details")]
    critical_path_parts: A[tuple[PathPartRow, ...], col("parts of each critical path")]
    what_if: A[tuple[WhatIfRow, ...], col("duration of each trace without some of its work")]
    queues: A[tuple[QueueRow, ...], col("queue length of devices and streams")]
    memory: A[tuple[MemoryRow, ...], col("memory use of the devices")]
    metadata: A[dict[str, dict[str, str]], col("by trace: further facts in the file, as text")]

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
    traces, devices = traces_of(study), devices_of(study)
    steps = [one.steps for one in devices]
    timed = [one.times for one in devices if one.times]
    paths = [path for found in traces for path in found.known_path]
    no_steps = (f"{one.trace}, device {one.device}: {one.steps}" for one in devices if isinstance(one.steps, str))
    metadata = {found.trace: dict(found.read.metadata) for found in traces}
    return TraceDocument(
        files=tuple(found.file for found in traces),
        devices=tuple(one.done for one in devices),
        kinds=tuple(row for one in devices for row in one.account.kinds),
        streams=tuple(row for one in devices for row in one.account.streams),
        idle=tuple(row for one in devices for row in one.idle),
        kernels=tuple(row for one in devices for row in one.hot),
        kernel_names=tuple(name for one in devices for _, names in one.kernels for name in names),
        launches=tuple(row for one in devices for row in one.launches.calls),
        steps=tuple(row for found in steps if isinstance(found, Steps) for row in found.steps),
        ranges=tuple(row for one in devices for row in one.ranges.rows),
        layers=tuple(row for one in devices for group in one.layers for row in group.layers),
        sections=tuple(row for found in traces for row in found.sections),
        gaps=tuple(row for one in devices for row in one.gaps.rows),
        collectives=tuple(row for found in traces for own in found.communication for row in own.kinds),
        operators=tuple(row for found in traces if found.host for row in found.host.rows),
        operator_times=tuple(row for times in timed for row in times.rows),
        operator_kernels=tuple(row for times in timed for own in times.kernels for row in own),
        operator_callers=tuple(row for times in timed for own in times.callers for row in own),
        operator_rates=tuple(row for one in devices for row, _ in one.rates),
        critical_paths=tuple(path for path, _, _ in paths),
        critical_path_parts=tuple(part for _, parts, _ in paths for part in parts),
        what_if=tuple(one for *_, found in paths for one in found),
        queues=tuple(row for one in devices for row in one.queues),
        memory=tuple(row for found in traces for row, _ in found.memory),
        skipped=study.skipped,
        no_steps=tuple(no_steps),
        metadata=metadata,
    )
