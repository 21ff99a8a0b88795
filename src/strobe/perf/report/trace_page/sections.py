"""Sections around focal events, each with its definition: length, busy time, and skipped calls."""

from __future__ import annotations

from strobe.perf.analysis.structure.sections import find_sections, parse_section
from strobe.perf.report.blocks.boundaries import MeasuredSections, measured_sections, section_fields, section_notes
from strobe.perf.report.blocks.fields import Field, count, heads, padded, rows_of
from strobe.perf.report.model import Code, Missing, Row, Section, Table, Text
from strobe.perf.report.trace_study import TraceStudy


def sections_section(study: TraceStudy) -> Section | None:
    """Build the section with one row per definition and device, also of traces without a match; `None` if none was asked for."""
    if not study.options.sections:
        return None
    fields: tuple[Field[tuple[str, MeasuredSections]], ...] = (
        Field("trace", lambda row: row[0]),
        count("device", lambda row: row[1][0].device),
        *section_fields(lambda row: row[1]),
    )
    rows: list[Row] = []
    notes = []
    for text in study.options.sections:
        definition = parse_section(text)
        for trace, label, window in zip(study.traces, study.labels, study.windows, strict=True):
            found = find_sections(trace, definition, window)
            rows += rows_of(fields, [(label, measured_sections(sections)) for sections in found])
            for sections in found:
                notes += [f"{label}, device {sections.device}, {definition}: {note}" for note in section_notes(sections)]
            if not found:
                reason = f"no device event matches {definition.focal!r}"
                none = Text(label), Text(""), Code(str(definition)), Missing(reason, "none")
                rows.append(padded(len(fields), *none))
                notes.append(f"{label}, {definition}: {reason}")
    lead = (
        "A section lasts from its left boundary to its right one: the nearest match before and after each focal event, on its "
        "stream unless the boundary says @any."
    )
    table = Table("Sections with their boundaries.", heads(fields), tuple(rows), tuple(notes))
    return Section("sections", "Sections", lead, (table,))
