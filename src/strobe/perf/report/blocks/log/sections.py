"""Sections of an optimisation log: decisions with their rule, configurations, then one section per topic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strobe.perf.report.blocks.log import tables
from strobe.perf.report.blocks.log.decide import RULE, Decision
from strobe.perf.report.blocks.log.entries import LogEntry
from strobe.perf.report.blocks.ratios import ratio_cell
from strobe.perf.report.blocks.settings import banners
from strobe.perf.report.model import Banner, Block, Notes, Section, Speedup
from strobe.perf.report.study import load_study


def log_sections(decided: Sequence[tuple[LogEntry, Decision]]) -> tuple[Section, ...]:
    """Build the sections: decisions with their rule, configurations, then one section per topic."""
    entries = [entry for entry, _ in decided]
    quality = tables.quality(entries)
    found: list[Block] = [tables.memory(entries), tables.cold(entries)]
    lead = "Every recorded run is an entry, the failed ones too. Words and numbers are computed from the records."
    return (
        Section("decisions", "Decisions", lead, (tables.decisions(decided), Notes(RULE))),
        Section("configurations", "Configurations", "", (tables.configurations(entries),)),
        Section("latency", "Latencies and rates", "", (tables.steady(entries), tables.switching(entries))),
        Section("transformer", "Transformer", "", (tables.transformer(entries),)),
        Section("quality", "Quality", "", (quality or Notes(("Not measured: these records hold no quality numbers.",)),)),
        Section("cost", "Memory and start", "", tuple(found)),
    )


def speedups(entries: Sequence[LogEntry]) -> list[Speedup]:
    """Return the end-to-end speedups that a script or gate may refer to."""
    return [
        Speedup(entry.label, entry.reference, "e2e", ratio_cell(entry.e2e.ratio, entry.e2e.interval))
        for entry in entries
        if not isinstance(entry.e2e, str)
    ]


def log_banners(entries: Sequence[LogEntry], into: Path) -> tuple[Banner, ...]:
    """Return banners on what voids or weakens the numbers; clips may differ, since only equal ones are compared."""
    folders = list(dict.fromkeys(entry.run.folder for entry in entries))
    return banners(load_study(folders, into), gather=True, any_clip=True)
