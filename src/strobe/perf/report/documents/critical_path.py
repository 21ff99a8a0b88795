"""Rows of the trace document about the critical path."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta

from strobe.perf.analysis.critical_path.path import CriticalPath
from strobe.perf.report.documents.value import Count, Part, TraceLabel
from strobe.perf.report.trace_page.seen import seen_paths
from strobe.perf.report.trace_study import TraceStudy


class CriticalPathRow(Part, frozen=True, kw_only=True):
    """Longest chain through host, queue and devices in one trace."""

    trace: TraceLabel
    begin_ns: Annotated[int, Meta(description="start of the first launch call or device event, or of the window")]
    duration_ns: Annotated[int, Meta(description="from there to the end of the last device event")]
    events: Annotated[int, Meta(description="device events")]
    inferred_events: Annotated[int, Meta(description="of these, taken to have waited for another stream")]
    usual_launch_ns: Annotated[int, Meta(description="latency of a launch whose stream is free, the median")]
    usual_gap_ns: Annotated[int, Meta(description="gap between queued events of a stream, the median")]


class PathPartRow(Part, frozen=True, kw_only=True):
    """One part of a critical path; the parts add up to it."""

    trace: TraceLabel
    kind: Annotated[str, Meta(description="kernel, or what passed between two nodes: a word of docs/traces.md")]
    name: Annotated[str, Meta(description="normalised name of the kernel; empty for a lag")]
    path_ns: Annotated[int, Meta(description="its time on the path")]
    n: Count


class WhatIfRow(Part, frozen=True, kw_only=True):
    """Length of one trace if some work took no time."""

    trace: TraceLabel
    kind: Annotated[str, Meta(description="kernel, kind of kernel, host or launch latency")]
    name: Annotated[str, Meta(description="the kernel, or the kind of work; empty for a lag")]
    removed_ns: Annotated[int, Meta(description="its time in the whole trace, on the path and beside it")]
    duration_ns: Annotated[int, Meta(description="what the trace then takes")]
    ratio: Annotated[float | None, Meta(description="duration with it / duration without it; null if nothing is left")]


class CriticalPathTables(NamedTuple):
    """Tables of a document about critical paths."""

    critical_paths: tuple[CriticalPathRow, ...]
    critical_path_parts: tuple[PathPartRow, ...]
    what_if: tuple[WhatIfRow, ...]


def critical_path_tables(study: TraceStudy) -> CriticalPathTables:
    """Return the rows of every trace that has a critical path."""
    paths = [
        (label, found) for label, found in zip(study.labels, seen_paths(study), strict=True) if isinstance(found, CriticalPath)
    ]  # fmt: skip
    return CriticalPathTables(
        critical_paths=tuple(_path(label, found) for label, found in paths),
        critical_path_parts=tuple(
            PathPartRow(trace=label, kind=part.kind, name=part.name, path_ns=part.ns, n=part.count)
            for label, found in paths
            for part in found.parts
        ),
        what_if=tuple(
            WhatIfRow(
                trace=label,
                kind=one.kind,
                name=one.name,
                removed_ns=one.removed_ns,
                duration_ns=one.duration_ns,
                ratio=one.speedup,
            )
            for label, found in paths
            for one in found.what_if
        ),
    )


def _path(label: str, found: CriticalPath) -> CriticalPathRow:
    return CriticalPathRow(
        trace=label,
        begin_ns=found.begin_ns,
        duration_ns=found.duration_ns,
        events=found.num_events,
        inferred_events=found.num_inferred,
        usual_launch_ns=found.launch_ns,
        usual_gap_ns=found.gap_ns,
    )
