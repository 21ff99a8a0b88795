"""From run folders to the optimisation log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from strobe.perf.report.attention_bench.build import gathered
from strobe.perf.report.log_page import tables
from strobe.perf.report.log_page.decide import RULE, Decision, decide
from strobe.perf.report.log_page.entries import Entry, read_entries
from strobe.perf.report.model import SCHEMA_VERSION, Banner, Block, Count, Fact, Notes, Report, Section, Speedup, Text
from strobe.perf.report.sections.headline import ratio_cell
from strobe.perf.report.sections.settings import banners, settings_section
from strobe.perf.report.study import load_study

CLIP: Final = "clip differs between the runs"


def log_report(folders: Sequence[Path], into: Path) -> Report:
    """Build the log of some run folders.

    Args:
        folders: run folders (`entries.run_folders`).
        into: folder that it will lie in.

    Raises:
        DataError: nothing readable, or no stream among it.
    """
    entries = read_entries(folders)
    decided = [(entry, decide(entry, entries)) for entry in entries]
    counts = {word: sum(decision.word == word for _, decision in decided) for word in ("Keep", "Drop", "Open")}
    head = entries[0].run.header
    references = dict.fromkeys(entry.reference for entry in entries)
    return Report(
        v=SCHEMA_VERSION,
        speedups=tuple(speedups(entries)),
        title="Optimisation log",
        subtitle=f"{len(entries)} entries of {len(folders)} runs, against {', '.join(references)}, on {head.machine.device_name}",
        facts=(
            Fact("Model", Text(head.model.name if head.model else "not named")),
            Fact("Kept", Count(counts["Keep"])),
            Fact("Dropped", Count(counts["Drop"])),
            Fact("Open", Count(counts["Open"])),
        ),
        banners=log_banners(entries, into),
        sections=(*log_sections(decided), _environment(entries, into)),
    )


def log_sections(decided: Sequence[tuple[Entry, Decision]]) -> tuple[Section, ...]:
    """Decisions with their rule, configurations, then every topic."""
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


def speedups(entries: Sequence[Entry]) -> list[Speedup]:
    """What a script may ask for."""
    return [
        Speedup(entry.label, entry.reference, "e2e", ratio_cell(entry.e2e.ratio, entry.e2e.interval))
        for entry in entries
        if not isinstance(entry.e2e, str)
    ]


def log_banners(entries: Sequence[Entry], into: Path) -> tuple[Banner, ...]:
    """What voids or weakens the numbers; that clips differ is no fault here, for entries of different clips are not compared."""
    folders = list(dict.fromkeys(entry.run.folder for entry in entries))
    found = banners(load_study(folders, into))
    kept = (msgspec.structs.replace(each, items=tuple(item for item in each.items if item != CLIP)) for each in found)
    return tuple(gathered(banner) for banner in kept if banner.items)


def _environment(entries: Sequence[Entry], into: Path) -> Section:
    return settings_section(load_study([entries[0].run.folder], into))
