"""Tables of the focal kernels, and of the sections around them with their boundaries."""

from __future__ import annotations

import numpy as np

from strobe.perf.analysis.device.distribution import Distribution, distribution
from strobe.perf.analysis.ledger.label_trace import TracedSide
from strobe.perf.report.blocks.boundaries import MeasuredSections, measured_sections, section_fields, section_notes
from strobe.perf.report.blocks.fields import Field, heads, padded, rows_of
from strobe.perf.report.blocks.kernels import focal_fields
from strobe.perf.report.blocks.spread import spread
from strobe.perf.report.model import Missing, Row, Section, Table, Text
from strobe.perf.report.speedup_page.study import Loaded, SpeedupStudy


def kernels_section(study: SpeedupStudy) -> Section:
    """Build the section with one row per trace: calls and times of the focal kernel in the compared time."""
    fields: tuple[Field[tuple[Loaded, TracedSide, Distribution | Missing]], ...] = (
        Field("side", lambda row: row[0].request.name),
        *focal_fields("focal kernels", lambda row: (row[1].label, row[1].device, row[1].focal_names, row[2])),
        *spread(
            lambda row: row[2] if isinstance(row[2], Distribution) else Text(""),
            "ms",
            ("min", "max", "mean", "p50", "p99", "sum"),
            exact=True,
            quiet=True,
        ),
    )
    rows: list[Row] = []
    for side in study.sides:
        if isinstance(side.side.traced, str):
            rows.append(padded(len(fields), Text(side.request.name), Missing(side.side.traced)))
            continue
        reason = "no pattern given" if side.request.focal is None else "every call lies in a step that is left out"
        none = Missing(reason, "none")
        found = [(side, own, distribution(np.array(own.counted, np.int64)) or none) for own in side.side.traced]
        rows += rows_of(fields, found)
    notes = (
        "Every call of the trace, in full, but for those in steps that are left out with a cause (see the notes).",
        "The rank that the speedups are from is the one with the longest mean step without communication.",
    )
    lead = "The kernel that the change is about. Device time: the host has no part in it."
    return Section("kernels", "Kernel summary", lead, (Table("Focal kernels.", heads(fields), tuple(rows), notes),))


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
