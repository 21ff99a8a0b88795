"""The lines of a run, to write your own; docs/records.md has their keys.

`strobe.create_run` writes them, `strobe.read_run` reads them.
"""

from __future__ import annotations

from strobe.perf.records.checks import Check
from strobe.perf.records.clocks import Clocks, GpuState
from strobe.perf.records.grids import (
    AttentionCell,
    Contestant,
    LinkRate,
    Links,
    Prediction,
    SentMessage,
    Surroundings,
    WhatIf,
)
from strobe.perf.records.record import (
    Absent,
    Clip,
    End,
    Excluded,
    Gate,
    Git,
    Header,
    Knob,
    LaunchedPasses,
    Machine,
    Memory,
    Model,
    PromptAt,
    Quality,
    Regions,
    Span,
    SpanCost,
    Trace,
    Variant,
    Video,
    Workload,
)
from strobe.perf.records.store import RunRecords
from strobe.perf.records.viewers import Served, Server, Viewer

__all__ = [
    "Absent",
    "AttentionCell",
    "Check",
    "Clip",
    "Clocks",
    "Contestant",
    "End",
    "Excluded",
    "Gate",
    "Git",
    "GpuState",
    "Header",
    "Knob",
    "LaunchedPasses",
    "LinkRate",
    "Links",
    "Machine",
    "Memory",
    "Model",
    "Prediction",
    "PromptAt",
    "Quality",
    "Regions",
    "RunRecords",
    "SentMessage",
    "Served",
    "Server",
    "Span",
    "SpanCost",
    "Surroundings",
    "Trace",
    "Variant",
    "Video",
    "Viewer",
    "WhatIf",
    "Workload",
]
