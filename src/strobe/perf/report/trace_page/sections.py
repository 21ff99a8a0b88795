"""Sections around focal events, each with its definition: length, busy time, and skipped calls."""

from __future__ import annotations

from strobe.perf.analysis.structure.sections import find_sections, parse_section
from strobe.perf.report.blocks.boundaries import SECTION_COLUMNS, section_cells, section_notes
from strobe.perf.report.model import Code, Column, Count, Missing, Row, Section, Table, Text
from strobe.perf.report.trace_study import TraceStudy


def sections_section(study: TraceStudy) -> Section | None:
    """Build the section with one row per definition and device, also of traces without a match; `None` if none was asked for."""
    if not study.options.sections:
        return None
    rows, notes = [], []
    for text in study.options.sections:
        definition = parse_section(text)
        for trace, label, window in zip(study.traces, study.labels, study.windows, strict=True):
            found = find_sections(trace, definition, window)
            for sections in found:
                rows.append(Row((Text(label), Count(sections.device), *section_cells(sections))))
                notes += [f"{label}, device {sections.device}, {definition}: {note}" for note in section_notes(sections)]
            if not found:
                blank = (Text("") for _ in SECTION_COLUMNS[2:])
                reason = f"no device event matches {definition.focal!r}"
                rows.append(Row((Text(label), Text(""), Code(str(definition)), Missing(reason, "none"), *blank)))
                notes.append(f"{label}, {definition}: {reason}")
    lead = (
        "A section lasts from its left boundary to its right one: the nearest match before and after each focal event, on its "
        "stream unless the boundary says @any."
    )
    columns = (Column("trace"), Column("device", numeric=True), *SECTION_COLUMNS)
    table = Table("Sections with their boundaries.", columns, tuple(rows), tuple(notes))
    return Section("sections", "Sections", lead, (table,))
