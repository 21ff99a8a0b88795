"""From run folders to the optimisation log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strobe.perf.report.blocks.answer import change_sections
from strobe.perf.report.blocks.fields import page
from strobe.perf.report.blocks.optimisation_log import decide, log_banners, log_sections, read_entries, speedups
from strobe.perf.report.blocks.settings import settings_section
from strobe.perf.report.findings import find
from strobe.perf.report.model import Count, Fact, Report, Text
from strobe.perf.report.study import load_study


def log_report(folders: Sequence[Path], into: Path) -> Report:
    """Build the log of some run folders.

    Args:
        folders: run folders (`entries.run_folders`).
        into: folder that it will lie in.

    Raises:
        DataError: nothing readable, or no stream among it.
    """
    entries = read_entries(folders)
    first, others = change_sections(find(load_study(list(dict.fromkeys(entry.run.folder for entry in entries)), into)))
    decided = [(entry, *decide(entry, entries)) for entry in entries]
    counts = {word: sum(decision == word for _, decision, _ in decided) for word in ("Keep", "Drop", "Open")}
    head = entries[0].run.header
    environment = settings_section(load_study([entries[0].run.folder], into))
    references = dict.fromkeys(entry.reference for entry in entries)
    return page(
        speedups=speedups(entries),
        title="Optimisation log",
        subtitle=f"{len(entries)} entries of {len(folders)} runs, against {', '.join(references)}, on {head.machine.device_name}",
        facts=(
            Fact("Model", Text(head.model.name if head.model else "not named")),
            Fact("Kept", Count(counts["Keep"])),
            Fact("Dropped", Count(counts["Drop"])),
            Fact("Open", Count(counts["Open"])),
        ),
        banners=log_banners(entries, into),
        sections=(first, *log_sections(decided), environment, others),
    )
