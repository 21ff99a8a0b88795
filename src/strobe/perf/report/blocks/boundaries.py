"""Sections with their boundaries: cells of one table row, and notes under the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from strobe.perf.analysis.device.distribution import Distribution, distribution
from strobe.perf.analysis.structure.sections import Sections, skipped_text
from strobe.perf.report.model import Cell, Code, Column, Count, ExactTime, Missing, Number, Text

SECTION_COLUMNS: Final = (
    Column("definition"),
    Column("sections", numeric=True),
    Column("min", "ms", True),
    Column("max", "ms", True),
    Column("mean", "ms", True),
    Column("p50", "ms", True),
    Column("p99", "ms", True, "from 459 sections on; below that the maximum is all that can be said"),
    Column("busy inside", "ms", True, "mean"),
    Column("idle inside", "ms", True, "mean"),
    Column("focal inside", "ms", True, "mean"),
    Column("members", numeric=True, hint="device events in a section, mean"),
    Column("skipped", numeric=True, hint="focal calls without a section"),
)


def section_cells(sections: Sections) -> tuple[Cell, ...]:
    """Return the cells of `SECTION_COLUMNS` for the sections of one definition."""
    found = sections.found
    lengths = distribution(np.array([section.length_ns for section in found], np.int64))
    skipped = Count(sum(sections.skipped.values()))
    if lengths is None:
        blank: list[Cell] = [Text("") for _ in SECTION_COLUMNS[3:]]
        return (Code(str(sections.definition)), Missing(skipped_text(sections), "none"), *blank, skipped)
    n = len(found)
    sums = (sections.busy_ns, sections.length_ns - sections.busy_ns, sum(section.focal_ns for section in found))
    members = Number(sum(len(section.members) for section in found) / n, 1)
    means = (ExactTime(round(total / n)) for total in sums)
    return (Code(str(sections.definition)), *distribution_cells(lengths), *means, members, skipped)


def distribution_cells(calls: Distribution) -> tuple[Cell, ...]:
    """Return the cells n, min, max, mean, p50, p99 of a distribution."""
    p99: Cell = Missing("", "-") if calls.p99_ns is None else ExactTime(calls.p99_ns)
    times = (ExactTime(ns) for ns in (calls.min_ns, calls.max_ns, round(calls.mean_ns), calls.p50_ns))
    return (Count(calls.n), *times, p99)


def section_notes(sections: Sections) -> Iterator[str]:
    """Yield notes on focal calls that were skipped or share a section, and on sections that overlap."""
    if sections.skipped:
        yield f"skipped of {sections.num_focal} focal calls: {skipped_text(sections)}"
    if sections.merged:
        yield f"{sections.merged} focal calls share the section of an earlier one, which counts once"
    if sections.overlapping:
        yield f"{sections.overlapping} sections start before an earlier one ends: their lengths do not add up to time"
