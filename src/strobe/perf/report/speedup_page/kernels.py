"""The focal kernels, and of the sections around them with their boundaries."""

from __future__ import annotations

import numpy as np

from strobe.perf.analysis.device.distribution import distribution
from strobe.perf.report.blocks.boundaries import MeasuredSections, measured_sections, section_fields, section_notes
from strobe.perf.report.blocks.fields import Field, heads, padded, rows_of
from strobe.perf.report.blocks.kernels import Listed, focal_row, kernel_tables, kernels_section
from strobe.perf.report.model import Missing, Row, Section, Table, Text
from strobe.perf.report.speedup_page.study import SpeedupStudy


def focal_kernels(study: SpeedupStudy) -> Section:
    """Build the section on kernels with one row per trace: calls and times of the focal kernel in the compared time."""
    rows = []
    for side in study.sides:
        name = side.request.name
        if isinstance(side.side.traced, str):
            rows.append(Listed(Missing(side.side.traced), side=name))
            continue
        reason = "no pattern given" if side.request.focal is None else "every call lies in a step that is left out"
        for own in side.side.traced:
            calls = distribution(np.array(own.counted, np.int64)) or Missing(reason, "none")
            rows.append(Listed(focal_row(own.focal_names, calls), side=name, trace=own.label, device=own.device))
    notes = (
        "The kernel that the change is about: every call of the trace, but for those in steps that are left out with a cause "
        "(see the notes).",
        "The rank that the speedups are from is the one with the longest mean step without communication.",
    )
    return kernels_section([*kernel_tables("Focal kernels", rows, notes=notes)], exclusive=False)


def sections_section(study: SpeedupStudy) -> Section | None:
    """Build the section with one row per trace and its section definition; `None` if no section was asked for."""
    if all(side.request.section is None for side in study.sides):
        return None
    fields: tuple[Field[tuple[str, str, MeasuredSections]], ...] = (
        Field("side", lambda row: row[0]),
        Field("trace", lambda row: row[1]),
        *section_fields(lambda row: row[2]),
    )
    rows: list[Row] = []
    notes = []
    for side in study.sides:
        name = side.request.name
        if side.request.section is None or isinstance(side.side.traced, str):
            reason = "no section asked for" if side.request.section is None else str(side.side.traced)
            rows.append(padded(len(fields), Text(name), Missing(reason)))
            continue
        for own in side.side.traced:
            if own.sections is not None:
                rows += rows_of(fields, [(name, own.label, measured_sections(own.sections))])
                notes += [f"{name}, {own.label}: {note}" for note in section_notes(own.sections)]
    if study.unlike:
        notes.append(f"The speedup of this level is {study.unlike}.")
    lead = "A section lasts from its left boundary to its right one: the nearest match before and after each focal kernel."
    table = Table("Sections with their boundaries.", heads(fields), tuple(rows), tuple(notes))
    return Section("sections", "Section timing", lead, (table,))
