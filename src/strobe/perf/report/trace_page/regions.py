"""Breakdown of a trace of our frame blocks: pieces, layers, gaps between pieces."""

from __future__ import annotations

from typing import Final

from strobe.core.errors import DataError
from strobe.core.spans import FRAME_BLOCK
from strobe.perf.analysis.runs.breakdown import breakdown
from strobe.perf.report.blocks.breakdown import LEAD, breakdown_blocks
from strobe.perf.report.model import Block, Notes, Section
from strobe.perf.report.trace_study import TraceStudy
from strobe.perf.trace import read_trace

MOST_EVENTS: Final = 1 << 20
"""Most device events of a trace that is broken down into pieces: each becomes an object."""


def regions_section(study: TraceStudy) -> Section | None:
    """Build the section with the breakdown of each whole trace with frame blocks; `None` without one or with a window."""
    blocks: list[Block] = []
    for trace, label, window in zip(study.traces, study.labels, study.windows, strict=True):
        if window is not None or not any(region.name == FRAME_BLOCK for region in trace.regions):
            continue
        if len(trace.device_events) > MOST_EVENTS:
            blocks.append(Notes((f"{label}: {len(trace.device_events)} device events are too many; trace fewer frame blocks.",)))
            continue
        own = trace if len(trace.device_events) else read_trace(trace.path, ops=True)  # a CPU's time is that of its operators
        try:
            blocks += breakdown_blocks(label, breakdown(own))
        except DataError as error:
            blocks.append(Notes((f"{label}: {error}",)))
    return Section("breakdown", "Breakdown", LEAD, tuple(blocks)) if blocks else None
