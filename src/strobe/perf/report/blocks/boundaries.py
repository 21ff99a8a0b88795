"""Sections with their boundaries: cells of one table row, and notes under the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

import numpy as np

from strobe.perf.analysis.device.distribution import Distribution, distribution
from strobe.perf.analysis.structure.sections import Sections, skipped_text
from strobe.perf.report.blocks.fields import Field, count, numeric
from strobe.perf.report.blocks.spread import spread
from strobe.perf.report.model import Cell, Code, ExactTime, Missing, Number, Text

T = TypeVar("T")
MeasuredSections: TypeAlias = tuple[Sections, Distribution | None]
"""Sections of one definition, and the distribution of their lengths."""


def measured_sections(sections: Sections) -> MeasuredSections:
    """Return the sections of one definition with the distribution of their lengths; None if there are no sections."""
    return sections, distribution(np.array([section.length_ns for section in sections.found], np.int64))


def section_fields(get: Callable[[T], MeasuredSections]) -> tuple[Field[T], ...]:
    """Return the columns of the sections of one definition."""

    def mean(total: Callable[[Sections], int], cell: Callable[[float], Cell]) -> Callable[[T], Cell]:
        def value(row: T) -> Cell:
            sections = get(row)[0]
            return cell(total(sections) / len(sections.found)) if sections.found else Text("")

        return value

    def length(total: Callable[[Sections], int]) -> Callable[[T], Cell]:
        return mean(total, lambda ns: ExactTime(round(ns)))

    def focal_ns(sections: Sections) -> int:
        return sum(section.focal_ns for section in sections.found)

    def members(sections: Sections) -> int:
        return sum(len(section.members) for section in sections.found)

    return (
        Field("definition", lambda row: str(get(row)[0].definition), Code),
        count("sections", lambda row: len(get(row)[0].found) or Missing(skipped_text(get(row)[0]), "none")),
        *spread(
            lambda row: get(row)[1] or Text(""),
            "ms",
            ("min", "max", "mean", "p50", "p99"),
            exact=True,
            what="sections",
            quiet=True,
        ),
        Field("busy inside", length(lambda sections: sections.busy_ns), unit="ms", hint="mean"),
        Field("idle inside", length(lambda sections: sections.length_ns - sections.busy_ns), unit="ms", hint="mean"),
        Field("focal inside", length(focal_ns), unit="ms", hint="mean"),
        numeric("members", mean(members, lambda n: Number(n, 1)), "device events in a section, mean"),
        count("skipped", lambda row: sum(get(row)[0].skipped.values()), "focal calls without a section"),
    )


def section_notes(sections: Sections) -> Iterator[str]:
    """Yield notes on focal calls that were skipped or share a section, and on sections that overlap."""
    if sections.skipped:
        yield f"skipped of {sections.num_focal} focal calls: {skipped_text(sections)}"
    if sections.merged:
        yield f"{sections.merged} focal calls share the section of an earlier one, which counts once"
    if sections.overlapping:
        yield f"{sections.overlapping} sections start before an earlier one ends: their lengths do not add up to time"
