"""Breakdown of a run: pieces of every variant whose trace marks them, and the variants compared piece by piece."""

from __future__ import annotations

from strobe.core.costs import device_peaks
from strobe.core.errors import DataError
from strobe.core.spans import PIECES
from strobe.perf.analysis.runs.attended import cost_in_blocks
from strobe.perf.analysis.runs.breakdown import Breakdown, breakdown
from strobe.perf.report.blocks.breakdown import LEAD, Roofs, breakdown_blocks, gains_table
from strobe.perf.report.model import Block, Notes, Section
from strobe.perf.report.study import Profile, RunStudy, Subject


def breakdown_section(study: RunStudy) -> Section | None:
    """Build the section with the breakdown of every subject whose trace marks pieces; None if there is none."""
    found = {subject.label: breakdown_of(subject) for subject in study.subjects if _marked(subject)}
    if not found:
        return None
    blocks: list[Block] = []
    for subject in study.subjects:
        own = found.get(subject.label)
        if isinstance(own, Breakdown):
            blocks += breakdown_blocks(subject.label, own, _roofs(subject))
        elif own is not None:
            blocks.append(Notes((f"{subject.label}: {own}",)))
    for reference, candidate in study.pairs:
        ours, theirs = found.get(candidate.label), found.get(reference.label)
        if isinstance(ours, Breakdown) and isinstance(theirs, Breakdown):
            blocks.append(gains_table((reference.label, candidate.label), theirs, ours))
    return Section("breakdown", "Breakdown", LEAD, tuple(blocks))


def _marked(subject: Subject) -> bool:
    return isinstance(subject.profile, Profile) and not PIECES.keys().isdisjoint(subject.profile.record.regions)


def breakdown_of(subject: Subject) -> Breakdown | str:
    """Break a subject's trace down into pieces; a text says why that is not possible."""
    assert isinstance(subject.profile, Profile)
    try:
        return breakdown(subject.profile.trace, subject.profile.passes)
    except DataError as error:
        return str(error)


def _roofs(subject: Subject) -> Roofs:
    name = subject.run.header.machine.device_name
    assert isinstance(subject.profile, Profile)
    traced = subject.profile.partition.indices
    costs = {cost.span: cost_in_blocks(cost, subject.settings, traced) for cost in subject.settings.costs}
    return Roofs(costs=costs, peaks=device_peaks(name), device_name=name, dtype=subject.settings.dtype)
