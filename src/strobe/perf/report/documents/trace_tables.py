"""From a `TraceStudy` to its document: every row of every table, computed by the analysis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strobe.perf.analysis.device.queue import Queue
from strobe.perf.analysis.structure.collectives import communication
from strobe.perf.analysis.structure.memory import memory_use
from strobe.perf.analysis.structure.operators import operators
from strobe.perf.analysis.structure.sections import find_sections, parse_section
from strobe.perf.analysis.structure.steps import NoSteps, Steps
from strobe.perf.report.documents import trace as rows
from strobe.perf.report.documents.critical_path import critical_path_tables
from strobe.perf.report.documents.operator_tables import operator_tables
from strobe.perf.report.trace_page.seen import Seen, seen_devices, seen_queues, seen_ranges, seen_steps
from strobe.perf.report.trace_study import TraceStudy


def trace_document(study: TraceStudy) -> rows.TraceDocument:
    """Return everything that was found in some traces.

    Raises:
        DataError: a trace whose times cannot be.
        ConfigError: a section or step that is not defined as one.
    """
    seen = [(_label(study, one), one) for one in seen_devices(study)]
    named = list(zip(study.labels, seen_steps(study), strict=True))
    steps = [(label, one) for label, found in named for one in found if isinstance(one, Steps)]
    missing = [(label, one) for label, found in named for one in found if isinstance(one, NoSteps)]
    return rows.TraceDocument(
        files=tuple(_files(study)),
        skipped=study.skipped,
        devices=tuple(_device(label, one) for label, one in seen),
        kinds=tuple(row for label, one in seen for row in _kinds(label, one)),
        streams=tuple(row for label, one in seen for row in _streams(label, one)),
        idle=tuple(row for label, one in seen for row in _idle(label, one)),
        kernels=tuple(row for label, one in seen for row in _kernels(label, one)),
        kernel_names=tuple(row for label, one in seen for row in _kernel_names(label, one)),
        launches=tuple(row for label, one in seen for row in _launches(label, one)),
        steps=tuple(row for label, one in steps for row in _steps(label, one)),
        no_steps=tuple(f"{label}, device {one.device}: {one.reason}" for label, one in missing),
        ranges=tuple(_ranges(study)),
        sections=tuple(_sections(study)),
        collectives=tuple(_collectives(study)),
        operators=tuple(_operators(study)),
        queues=tuple(row for one, found in seen_queues(study) for row in _queues(_label(study, one), one.view.device, found)),
        **operator_tables(study)._asdict(),
        **critical_path_tables(study)._asdict(),
        memory=tuple(_memory(study)),
        metadata={label: dict(trace.metadata) for label, trace in zip(study.labels, study.traces, strict=True)},
    )


def _label(study: TraceStudy, one: Seen) -> str:
    return next(label for label, trace in zip(study.labels, study.traces, strict=True) if trace is one.view.trace)


def _files(study: TraceStudy) -> Iterator[rows.TraceFile]:
    for label, trace, window in zip(study.labels, study.traces, study.windows, strict=True):
        counts = trace.counts
        yield rows.TraceFile(
            trace=label,
            path=str(trace.path),
            rank=trace.rank,
            world_size=trace.world_size,
            events=counts.events,
            lost=counts.lost,
            mended=counts.mended,
            truncated=counts.truncated,
            base_ns=trace.base_ns,
            window_start_ns=None if window is None else window.start_ns,
            window_end_ns=None if window is None else window.end_ns,
        )


def _device(label: str, one: Seen) -> rows.DeviceRow:
    done, number = one.launch.activity, one.view.device
    return rows.DeviceRow(
        trace=label,
        device=number,
        product=next((device.name for device in one.view.trace.devices if device.index == number), ""),
        span_ns=done.span_ns,
        busy_ns=done.busy_ns,
        idle_ns=done.idle_ns,
        sum_ns=done.sum_ns,
        exposed_communication_ns=done.exposed_comm_ns,
        exposed_copies_ns=done.exposed_memcpy_ns,
        events=done.n,
        unlinked_events=done.num_unlinked,
        verdict=one.launch.verdict,
    )


def _kinds(label: str, one: Seen) -> Iterator[rows.KindRow]:
    for kind in one.launch.activity.kinds:
        yield rows.KindRow(
            trace=label,
            device=one.view.device,
            kind=kind.kind,
            events=kind.n,
            exclusive_ns=kind.exclusive_ns,
            union_ns=kind.union_ns,
            sum_ns=kind.sum_ns,
        )


def _streams(label: str, one: Seen) -> Iterator[rows.StreamRow]:
    for stream in one.launch.activity.streams:
        yield rows.StreamRow(
            trace=label,
            device=one.view.device,
            stream=stream.stream,
            events=stream.n,
            busy_ns=stream.busy_ns,
            sum_ns=stream.sum_ns,
        )


def _idle(label: str, one: Seen) -> Iterator[rows.IdleRow]:
    for cause, ns in one.launch.activity.idle.items():
        yield rows.IdleRow(trace=label, device=one.view.device, cause=cause, idle_ns=ns)


def _kernels(label: str, one: Seen) -> Iterator[rows.KernelRow]:
    for row in one.hot.rows:
        calls = row.calls
        yield rows.KernelRow(
            trace=label,
            device=one.view.device,
            kernel=row.group,
            shape=row.shape,
            kind=row.kind,
            calls=calls.n,
            exclusive_ns=row.exclusive_ns,
            sum_ns=calls.sum_ns,
            min_ns=calls.min_ns,
            mean_ns=calls.mean_ns,
            p50_ns=calls.p50_ns,
            p99_ns=calls.p99_ns,
            max_ns=calls.max_ns,
            unlinked_calls=row.num_unlinked,
        )


def _kernel_names(label: str, one: Seen) -> Iterator[rows.KernelNameRow]:
    for row in one.hot.rows:
        for member in row.members:
            yield rows.KernelNameRow(
                trace=label,
                device=one.view.device,
                kernel=row.group,
                shape=row.shape,
                name=member.name,
                calls=member.n,
                sum_ns=member.sum_ns,
            )


def _launches(label: str, one: Seen) -> Iterator[rows.LaunchRow]:
    for call in one.launch.calls:
        delay = call.delays.start_to_start
        yield rows.LaunchRow(
            trace=label,
            device=one.view.device,
            call=call.name,
            calls=call.n,
            events=call.num_events,
            host_sum_ns=call.host.sum_ns,
            host_p50_ns=call.host.p50_ns,
            host_max_ns=call.host.max_ns,
            delay_p50_ns=delay.p50_ns,
            delay_max_ns=delay.max_ns,
        )


def _steps(label: str, found: Steps) -> Iterator[rows.StepRow]:
    causes = {each.index: each.cause for each in found.steady.excluded}
    for place, step in enumerate(found.steps):
        yield rows.StepRow(
            trace=label,
            device=found.device,
            step=step.label,
            number=step.number,
            start_ns=step.start_ns,
            end_ns=step.end_ns,
            busy_ns=step.busy_ns,
            idle_ns=step.idle_ns,
            kernels=step.kernels,
            host_ns=step.host_ns,
            left_out=causes.get(place, ""),
        )


def _ranges(study: TraceStudy) -> Iterator[rows.RangeRow]:
    for label, of_trace in zip(study.labels, seen_ranges(study), strict=True):
        for found in of_trace:
            for row in found.rows:
                yield rows.RangeRow(
                    trace=label,
                    device=found.device,
                    kind=row.kind,
                    name=row.name,
                    calls=row.calls,
                    events=row.events,
                    sum_ns=row.sum_ns,
                    union_ns=row.union_ns,
                    span_ns=row.span_ns,
                    exclusive_ns=row.exclusive_ns,
                    host_ns=row.host_ns,
                )


def _sections(study: TraceStudy) -> Iterator[rows.SectionRow]:
    for definition in map(parse_section, study.options.sections):
        for label, trace, window in zip(study.labels, study.traces, study.windows, strict=True):
            for sections in find_sections(trace, definition, window):
                for section in sections.found:
                    yield rows.SectionRow(
                        trace=label,
                        device=sections.device,
                        section=str(definition),
                        start_ns=section.start_ns,
                        length_ns=section.length_ns,
                        busy_ns=section.busy_ns,
                        focal_ns=section.focal_ns,
                    )


def _collectives(study: TraceStudy) -> Iterator[rows.CollectiveRow]:
    for found in communication(study.traces, study.windows):
        for each in found.kinds:
            yield rows.CollectiveRow(
                trace=study.labels[found.trace],
                device=found.device,
                collective=each.kind.name,
                group=each.kind.group,
                message_bytes=each.kind.message_bytes,
                dtype=each.kind.dtype,
                calls=each.duration.n,
                sum_ns=each.duration.sum_ns,
                exposed_ns=each.exposed_ns,
            )


def _operators(study: TraceStudy) -> Iterator[rows.OperatorRow]:
    for label, trace, window in zip(study.labels, study.traces, study.windows, strict=True):
        found = None if len(trace.device_events) else operators(trace, window)
        for row in found.rows if found else ():
            yield rows.OperatorRow(
                trace=label,
                operator=row.name,
                calls=row.calls.n,
                self_ns=row.self_ns,
                sum_ns=row.calls.sum_ns,
                p50_ns=row.calls.p50_ns,
                max_ns=row.calls.max_ns,
            )


def _queues(label: str, device: int, found: Sequence[Queue]) -> Iterator[rows.QueueRow]:
    for queue in found:
        yield rows.QueueRow(
            trace=label,
            device=device,
            stream=queue.stream,
            span_ns=queue.span_ns,
            empty_ns=queue.empty_ns,
            longest=queue.longest,
            median=queue.median,
            mean=queue.mean,
            queued_events=queue.queued,
            waited_ns=queue.total_ns,
            unlinked_events=queue.unlinked,
        )


def _memory(study: TraceStudy) -> Iterator[rows.MemoryRow]:
    for label, trace, window in zip(study.labels, study.traces, study.windows, strict=True):
        for use in memory_use(trace, window):
            yield rows.MemoryRow(
                trace=label,
                device=use.device,
                peak_allocated_bytes=use.peak.allocated_bytes,
                peak_reserved_bytes=use.reserved_peak_bytes,
                start_allocated_bytes=use.first.allocated_bytes,
                end_allocated_bytes=use.last.allocated_bytes,
            )
