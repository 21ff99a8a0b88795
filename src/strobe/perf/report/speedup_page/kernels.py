"""Tables of the focal kernels, and of the sections around them with their boundaries."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from strobe.perf.analysis.device.distribution import distribution
from strobe.perf.report.blocks.boundaries import SECTION_COLUMNS, distribution_cells, section_cells, section_notes
from strobe.perf.report.model import Code, Column, Count, ExactTime, Missing, Row, Section, Table, Text
from strobe.perf.report.speedup_page.study import Loaded, SpeedupStudy


def kernels_section(study: SpeedupStudy) -> Section:
    """Build the section with one row per trace: calls and times of the focal kernel in the compared time."""
    columns = (
        Column("side"),
        Column("trace"),
        Column("device", numeric=True),
        Column("focal kernels"),
        Column("occurrences", numeric=True),
        Column("min", "ms", True),
        Column("max", "ms", True),
        Column("mean", "ms", True),
        Column("p50", "ms", True),
        Column("p99", "ms", True, "from 459 calls on"),
        Column("sum", "ms", True),
    )
    rows = tuple(row for side in study.sides for row in _side_rows(side, len(columns)))
    notes = (
        "Every call of the trace, in full, but for those in steps that are left out with a cause (see the notes).",
        "The rank that the speedups are from is the one with the longest mean step without communication.",
    )
    lead = "The kernel that the change is about. Device time: the host has no part in it."
    return Section("kernels", "Kernel summary", lead, (Table("Focal kernels.", columns, rows, notes),))


def _side_rows(side: Loaded, width: int) -> Iterator[Row]:
    name = Text(side.request.name)
    if isinstance(side.side.traced, str):
        yield Row((name, Missing(side.side.traced), *(Text("") for _ in range(width - 2))))
        return
    for own in side.side.traced:
        calls = distribution(np.array(own.counted, np.int64))
        head = (name, Text(own.label), Count(own.device), Code(", ".join(own.focal_names)))
        if calls is None:
            reason = "no pattern given" if side.request.focal is None else "every call lies in a step that is left out"
            yield Row((*head, Missing(reason, "none"), *(Text("") for _ in range(width - 5))))
        else:
            yield Row((*head, *distribution_cells(calls), ExactTime(calls.sum_ns)))


def sections_section(study: SpeedupStudy) -> Section | None:
    """Build the section with one row per trace and its section definition; `None` if no section was asked for."""
    if all(side.request.section is None for side in study.sides):
        return None
    columns = (Column("side"), Column("trace"), *SECTION_COLUMNS)
    rows, notes = [], []
    for side in study.sides:
        if side.request.section is None or isinstance(side.side.traced, str):
            reason = "no section asked for" if side.request.section is None else str(side.side.traced)
            rows.append(Row((Text(side.request.name), Missing(reason), *(Text("") for _ in columns[2:]))))
            continue
        for own in side.side.traced:
            if own.sections is not None:
                rows.append(Row((Text(side.request.name), Text(own.label), *section_cells(own.sections))))
                notes += [f"{side.request.name}, {own.label}: {note}" for note in section_notes(own.sections)]
    if study.unlike:
        notes.append(f"The speedup of this level is {study.unlike}.")
    lead = "A section lasts from its left boundary to its right one: the nearest match before and after each focal kernel."
    table = Table("Sections with their boundaries.", columns, tuple(rows), tuple(notes))
    return Section("sections", "Section timing", lead, (table,))
