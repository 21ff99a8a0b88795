"""Pairs of variants to compare in a run: eager with eager, compiled with compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from strobe.perf.report.findings import Finding, find
from strobe.perf.report.study import RunStudy, Subject, only_pair

UNIT: Final = "denoise step"
"""Name of the unit that the records of such a run count as a frame block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Paired:
    """Two variants of one run and their comparison.

    Args:
        finding: the second against the first.
        alike: both are compiled, or neither is, so that their regions go equally deep.
        first: the reference is the first dense variant of its kind, which gates are about.
    """

    finding: Finding
    alike: bool
    first: bool


def paired(study: RunStudy, allow_different: Sequence[str]) -> tuple[Paired, ...]:
    """Compare every variant with each dense one of its kind (compiled or eager), and every dense kind with the baseline.

    Args:
        study: one run.
        allow_different: facts that are meant to differ.
    """
    subjects = {subject.name: subject for subject in study.subjects}
    dense = [subject for subject in study.subjects if not subject.settings.sparsity]
    found = []
    for subject in study.subjects:
        own = [each for each in dense if _compiled(each) == _compiled(subject)]
        for place, reference in enumerate(own):
            if reference is not subject and (subject not in own or own.index(subject) > place):
                found.append(_pair(study, subjects, (reference, subject), allow_different, alike=True, first=place == 0))
        baseline = dense[0] if dense else None
        if subject in dense and baseline is not None and _compiled(subject) != _compiled(baseline) and subject is own[0]:
            found.append(_pair(study, subjects, (baseline, subject), allow_different, alike=False, first=True))
    return tuple(found)


def _compiled(subject: Subject) -> bool:
    return subject.settings.compile_mode is not None


def _pair(
    study: RunStudy, subjects: dict[str, Subject], two: tuple[Subject, Subject], allow: Sequence[str], *, alike: bool, first: bool
) -> Paired:
    names = two[0].name, two[1].name
    run = only_pair(two[0].run, names)
    both = tuple(replace(subjects[name], run=run) for name in names)
    (finding,) = find(replace(study, runs=(run,), subjects=both), allow)
    if not alike:
        why = "one side is compiled, which has no regions inside a pass; each is held against its own kind"
        finding = replace(finding, ledger=why, answer=None)
    elif finding.answer is not None:
        finding = replace(finding, answer=replace(finding.answer, unit=UNIT))
    return Paired(finding=finding, alike=alike, first=first)
