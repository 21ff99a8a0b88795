"""Critical path of each trace, and the length of the trace without parts of it."""

from __future__ import annotations

from typing import Final

from strobe.perf.analysis.critical_path.graph import Lag
from strobe.perf.analysis.critical_path.path import KERNEL, KIND, CriticalPath, PathPart, WhatIf
from strobe.perf.report.blocks.fields import (
    Field,
    count,
    exact_time,
    heads,
    numeric,
    padded,
    rows_of,
    share_cell,
    share_of,
    table_of,
)
from strobe.perf.report.model import Block, Code, ExactTime, Notes, Number, Section, Table, Text
from strobe.perf.report.trace_page.seen import seen_paths
from strobe.perf.report.trace_study import TraceStudy

LAG_HINTS: Final = {
    Lag.HOST.value: "the host worked towards its next call",
    Lag.LAUNCH.value: "from the start of a launch call to the start on the device",
    Lag.GAP.value: "from the end of an event to the start of the next one that was queued behind it",
    Lag.OTHER_STREAM.value: "from the end of an event of another stream to the start of one that is taken to have waited for it",
    Lag.SYNC.value: "a call that waits, without the device events that it waits for",
    Lag.BEFORE.value: "up to an event whose launch the trace does not hold",
}
"""Meaning of each lag that may be on a path."""
ASSUMPTIONS: Final = (
    "A device event starts after its launch call, and after the event before it in its stream.",
    "Threads of the host take turns: each call comes after the one before it, whatever the thread.",
    "A call that waits for a whole device returns after everything launched before it; one that waits for a stream or an event "
    "after what ended last while it waited; a copy whose call returns after it ended was waited for.",
    "What did not decide when a node began takes the usual time of its kind.",
    "What-if leaves out durations, not launches: the order and the rest of the host stay. Polling is work of the host, other "
    "ranks are as fast as they were, and communication keeps its length, waiting included.",
)
"""Assumptions of the dependency graph."""


def critical_path_section(study: TraceStudy) -> Section | None:
    """Build the section with parts and what-ifs of traces read with details; `None` if none with device events was."""
    blocks: list[Block] = []
    for label, found in zip(study.labels, seen_paths(study), strict=True):
        if isinstance(found, CriticalPath):
            blocks += [_parts(label, found, study.options.top), _what_if(label, found)]
        elif found is not None:
            blocks.append(Notes((found,)))
    if not blocks:
        return None
    lead = (
        "The longest chain through host, queue and devices, from the first launch call to the end of the last device event. Only "
        "what is on it decides how long the trace took; the rest ran beside it."
    )
    blocks.append(Notes(ASSUMPTIONS))
    return Section("critical-path", "Critical path", lead, tuple(blocks), folded=True)


def _parts(label: str, found: CriticalPath, top: int) -> Table:
    fields: tuple[Field[PathPart], ...] = (
        Field("on the path", lambda part: Code(part.name) if part.name else Text(part.kind)),
        Field("kind", lambda part: KERNEL if part.kind == KERNEL else "lag"),
        exact_time("time", lambda part: part.ns, "adds up to the length of the path", total=sum),
        numeric("share", lambda part: part.ns, "of the path", show=share_of(found.duration_ns), total=sum),
        count("times", lambda part: part.count, "how often it is on the path", total=sum),
    )
    whole = ExactTime(found.duration_ns), share_cell(found.duration_ns, found.duration_ns)
    rows = (*rows_of(fields, found.parts, top=top), padded(len(fields), Text("the whole path"), Text(""), *whole, strong=True))
    notes = [f"{kind}: {LAG_HINTS[kind]}." for kind in dict.fromkeys(part.kind for part in found.parts) if kind in LAG_HINTS]
    if found.num_inferred:
        notes.append(
            f"{found.num_inferred} of {found.num_events} device events started later than launch and stream explain, and are "
            "taken to have waited for what ended last on another stream."
        )
    caption = f"{label}: {found.duration_ns / 1e6:.6f} ms, {found.num_events} device events."
    return Table(caption, heads(fields), rows, tuple(notes), sortable=True)


def name_of(one: WhatIf) -> str:
    """Return the name of what a what-if leaves out."""
    return one.name or {Lag.HOST.value: "the host between its calls", Lag.LAUNCH.value: "launch latency"}.get(one.kind, one.kind)


def _what_if(label: str, found: CriticalPath) -> Table:
    fields: tuple[Field[WhatIf], ...] = (
        Field(
            "if this took no time",
            lambda one: Code(one.name) if one.kind == KERNEL else Text(name_of(one)),
        ),
        Field("kind", lambda one: one.kind if one.kind in (KERNEL, KIND) else "lag"),
        exact_time("removed", lambda one: one.removed_ns, "its time in the whole trace, on the path and beside it"),
        exact_time("the trace takes", lambda one: one.duration_ns),
        exact_time(
            "saved", lambda one: found.duration_ns - one.duration_ns, "less than removed where something else ran beside it"
        ),
        numeric(
            "faster",
            lambda one: None if one.speedup is None else Number(one.speedup, 3, "x"),
            "time with it / time without it",
            missing="nothing is left",
        ),
    )
    note = (
        f"Usual latency of a launch whose stream is free {found.launch_ns / 1e3:.3f} µs, usual gap between queued events "
        f"{found.gap_ns / 1e3:.3f} µs."
    )
    return table_of(f"{label}: what if?", fields, found.what_if, notes=(note,), sortable=True)
