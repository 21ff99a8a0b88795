"""From a `TraceStudy` to its document: every row of every table, computed by the analysis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strobe.perf.analysis.critical_path.path import CriticalPath
from strobe.perf.analysis.device.operator_costs import OperatorCost
from strobe.perf.analysis.operators.rates import Rate, operator_rates
from strobe.perf.analysis.structure.collectives import communication
from strobe.perf.analysis.structure.memory import memory_use
from strobe.perf.analysis.structure.operators import operators
from strobe.perf.analysis.structure.sections import find_sections, parse_section
from strobe.perf.analysis.structure.steps import NoSteps, Steps
from strobe.perf.report.documents import operators as operator_rows
from strobe.perf.report.documents import trace as rows
from strobe.perf.report.documents.value import part_of
from strobe.perf.report.trace_page.seen import (
    Seen,
    seen_devices,
    seen_operators,
    seen_paths,
    seen_queues,
    seen_ranges,
    seen_steps,
)
from strobe.perf.report.trace_study import TraceStudy


def trace_document(study: TraceStudy) -> rows.TraceDocument:
    """Return everything that was found in some traces.

    Raises:
        DataError: a trace whose times cannot be.
        ConfigError: a section or step that is not defined as one.
    """
    labels = {id(trace): label for trace, label in zip(study.traces, study.labels, strict=True)}

    def at(one: Seen) -> dict[str, Any]:
        return {"trace": labels[id(one.view.trace)], "device": one.view.device}

    seen = [(at(one), one) for one in seen_devices(study)]
    named = list(zip(study.labels, seen_steps(study), strict=True))
    return rows.TraceDocument(
        files=tuple(_files(study)),
        skipped=study.skipped,
        devices=tuple(_device(where, one) for where, one in seen),
        kinds=tuple(
            part_of(rows.KindRow, kind, **where, events=kind.n) for where, one in seen for kind in one.launch.activity.kinds
        ),
        streams=tuple(
            part_of(rows.StreamRow, stream, **where, events=stream.n)
            for where, one in seen
            for stream in one.launch.activity.streams
        ),
        idle=tuple(
            rows.IdleRow(**where, cause=cause, idle_ns=ns)
            for where, one in seen
            for cause, ns in one.launch.activity.idle.items()
        ),
        kernels=tuple(
            part_of(rows.KernelRow, row, row.calls, **where, kernel=row.group, calls=row.calls.n, unlinked_calls=row.num_unlinked)
            for where, one in seen
            for row in one.hot.rows
        ),
        kernel_names=tuple(
            part_of(rows.KernelNameRow, member, row, **where, kernel=row.group, calls=member.n)
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
            part_of(rows.RangeRow, row, trace=label, device=found.device)
            for label, of_trace in zip(study.labels, seen_ranges(study), strict=True)
            for found in of_trace
            for row in found.rows
        ),
        sections=tuple(_sections(study)),
        collectives=tuple(_collectives(study)),
        operators=tuple(_operators(study)),
        queues=tuple(
            part_of(
                rows.QueueRow,
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


def _files(study: TraceStudy) -> Iterator[rows.TraceFile]:
    for label, trace, window in zip(study.labels, study.traces, study.windows, strict=True):
        yield part_of(
            rows.TraceFile,
            trace.counts,
            trace,
            trace=label,
            path=str(trace.path),
            window_start_ns=None if window is None else window.start_ns,
            window_end_ns=None if window is None else window.end_ns,
        )


def _device(where: Mapping[str, Any], one: Seen) -> rows.DeviceRow:
    done, number = one.launch.activity, one.view.device
    return part_of(
        rows.DeviceRow,
        done,
        **where,
        product=next((device.name for device in one.view.trace.devices if device.index == number), ""),
        exposed_communication_ns=done.exposed_comm_ns,
        exposed_copies_ns=done.exposed_memcpy_ns,
        events=done.n,
        unlinked_events=done.num_unlinked,
        verdict=one.launch.verdict,
    )


def _launches(where: Mapping[str, Any], one: Seen) -> Iterator[rows.LaunchRow]:
    for call in one.launch.calls:
        delay = call.delays.start_to_start
        yield rows.LaunchRow(
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


def _steps(label: str, found: Steps) -> Iterator[rows.TraceStepRow]:
    causes = {each.index: each.cause for each in found.steady.excluded}
    for place, step in enumerate(found.steps):
        yield part_of(rows.TraceStepRow, step, trace=label, device=found.device, step=step.label, left_out=causes.get(place, ""))


def _sections(study: TraceStudy) -> Iterator[rows.SectionRow]:
    for definition in map(parse_section, study.options.sections):
        for label, trace, window in zip(study.labels, study.traces, study.windows, strict=True):
            for sections in find_sections(trace, definition, window):
                for section in sections.found:
                    yield part_of(rows.SectionRow, section, trace=label, device=sections.device, section=str(definition))


def _collectives(study: TraceStudy) -> Iterator[rows.CollectiveRow]:
    for found in communication(study.traces, study.windows):
        for each in found.kinds:
            yield part_of(
                rows.CollectiveRow,
                each.kind,
                each.duration,
                each,
                trace=study.labels[found.trace],
                device=found.device,
                collective=each.kind.name,
                calls=each.duration.n,
            )


def _operators(study: TraceStudy) -> Iterator[rows.OperatorRow]:
    for label, trace, window in zip(study.labels, study.traces, study.windows, strict=True):
        found = None if len(trace.device_events) else operators(trace, window)
        for row in found.rows if found else ():
            yield part_of(rows.OperatorRow, row, row.calls, trace=label, operator=row.name, calls=row.calls.n)


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
            part_of(operator_rows.OperatorTimeRow, row, **where, source=row.source.value, input_sizes=row.inputs.text)
            for where, row in placed
        ),
        "operator_kernels": tuple(
            part_of(operator_rows.OperatorKernelRow, kernel, **where) for where, row in placed for kernel in row.kernels
        ),
        "operator_callers": tuple(
            part_of(operator_rows.OperatorCallerRow, caller, **where, caller=caller.operator)
            for where, row in placed
            for caller in row.callers
        ),
        "operator_rates": tuple(
            _rate({"trace": label, "device": times.device, "place": rate.place}, rate)
            for label, trace, times in seen
            for rate in operator_rates(trace, times).rows
        ),
    }


def _rate(where: Mapping[str, Any], rate: Rate) -> operator_rows.OperatorRateRow:
    row, found = rate.row, rate.found
    cost = rate.cost if isinstance(rate.cost, OperatorCost) else None
    rates = ("flops_per_s", "bytes_per_s", "compute_share", "memory_share", "bound", "floor_ns")
    return part_of(
        operator_rows.OperatorRateRow,
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
                rows.CriticalPathRow,
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
            part_of(rows.PathPartRow, part, trace=label, path_ns=part.ns, n=part.count)
            for label, found in paths
            for part in found.parts
        ),
        "what_if": tuple(
            part_of(rows.WhatIfRow, one, trace=label, ratio=one.speedup) for label, found in paths for one in found.what_if
        ),
    }


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
