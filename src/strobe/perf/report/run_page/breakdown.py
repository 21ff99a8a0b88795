"""The breakdown of a run: every variant whose trace marks pieces, and the variants against each other, piece by piece."""

from __future__ import annotations

from strobe.core.costs import device_peaks
from strobe.core.errors import DataError
from strobe.core.spans import PIECES
from strobe.perf.analysis.runs.attended import cost_in_blocks
from strobe.perf.analysis.runs.breakdown import Breakdown, breakdown
from strobe.perf.report.blocks.breakdown import LEAD, Roofs, breakdown_blocks, gains_table
from strobe.perf.report.model import Block, Notes, Section
from strobe.perf.report.study import Profile, Study, Subject


def breakdown_section(study: Study) -> Section | None:
    """The breakdown of every subject whose trace marks pieces; None if there is none."""
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
    """Take a subject's trace apart, or say why not."""
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
