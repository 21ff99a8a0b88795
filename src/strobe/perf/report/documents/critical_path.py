"""Rows of the trace document about the critical path."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta

from strobe.perf.analysis.critical_path.path import CriticalPath
from strobe.perf.report.documents.value import Part, TraceLabel
from strobe.perf.report.trace_page.seen import seen_paths
from strobe.perf.report.trace_study import TraceStudy


class CriticalPathRow(Part, frozen=True, kw_only=True):
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


class PathPartRow(Part, frozen=True, kw_only=True):
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


class WhatIfRow(Part, frozen=True, kw_only=True):
    """Predicted duration of one trace if one kernel, kind of kernel or delay took no time."""

    trace: TraceLabel
    kind: Annotated[str, Meta(description="kind of the removed work: `kernel`, `kind of kernel`, `host` or `launch latency`")]
    name: Annotated[str, Meta(description="name of the removed kernel or kind of kernel; empty for a delay")]
    removed_ns: Annotated[int, Meta(description="removed time: total of this work in the trace, on the critical path and off it")]
    duration_ns: Annotated[int, Meta(description="predicted duration without this work")]
    ratio: Annotated[float | None, Meta(description="duration with this work / duration without it; null if nothing is left")]


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
