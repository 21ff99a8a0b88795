"""Every candidate against its reference: timed ratios, and the ledger where both were traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strobe.core.errors import DataError
from strobe.core.spans import E2E
from strobe.perf.analysis.comparable.records import compare_variants
from strobe.perf.analysis.ledger.close import Ledger, build_ledger
from strobe.perf.analysis.runs.compare import Comparison, compare_stages, mirrored_pairs, timed_sums
from strobe.perf.analysis.runs.latency import Latencies, latencies
from strobe.perf.report.study import Profile, Study, Subject


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One candidate against its reference. A text in place of a result says why there is none.

    Args:
        stages: one denoise step against one, then every stage, from timed clips.
        ledger: the account of the difference.
    """

    reference: Subject
    candidate: Subject
    stages: tuple[Comparison, ...] | str
    ledger: Ledger | str

    def stage(self, name: str) -> Comparison | None:
        """The comparison of all regions of a stage in a clip."""
        if isinstance(self.stages, str):
            return None
        return next((item for item in self.stages if item.stage == name and not item.per_call), None)

    @property
    def e2e(self) -> Comparison | None:
        """The headline."""
        return self.stage(E2E)


def find(study: Study, allow_different: Sequence[str] = ()) -> tuple[Finding, ...]:
    """Compare every candidate with the reference of its own run.

    Args:
        allow_different: facts that are meant to differ.
    """
    return tuple(_finding(reference, candidate, allow_different) for reference, candidate in study.pairs)


def find_latencies(study: Study) -> dict[str, Latencies | str]:
    """Latencies by the subject's label, or why there are none."""
    found: dict[str, Latencies | str] = {}
    for subject in study.subjects:
        try:
            found[subject.label] = latencies(subject.run, subject.name)
        except DataError as error:
            found[subject.label] = str(error)
    return found


def _finding(reference: Subject, candidate: Subject, allow_different: Sequence[str]) -> Finding:
    stages: tuple[Comparison, ...] | str
    ledger: Ledger | str
    comparability = compare_variants(candidate.run.header, reference.settings, candidate.settings, allow_different)
    if comparability.obstacles:
        why = comparability.refusal
        return Finding(reference=reference, candidate=candidate, stages=why, ledger=why)
    try:
        stages = compare_stages(candidate.run, candidate.name)
    except DataError as error:
        stages = str(error)
    try:
        ledger = _ledger(reference, candidate)
    except DataError as error:
        ledger = str(error)
    return Finding(reference=reference, candidate=candidate, stages=stages, ledger=ledger)


def _ledger(reference: Subject, candidate: Subject) -> Ledger:
    for subject in (reference, candidate):
        if not isinstance(subject.profile, Profile):
            raise DataError(f"{subject.label}: {subject.profile}")
    assert isinstance(reference.profile, Profile) and isinstance(candidate.profile, Profile)
    run, blocks = candidate.run, candidate.profile.partition.indices
    pairs = mirrored_pairs(run, candidate.name)
    return build_ledger(
        reference.profile.partition,
        candidate.profile.partition,
        timed_baseline=timed_sums(run, [clip for pair in pairs for clip in pair.baseline], blocks),
        timed_candidate=timed_sums(run, [clip for pair in pairs for clip in pair.candidate], blocks),
        num_clips=2 * len(pairs),
        pairs=[(timed_sums(run, pair.baseline, blocks), timed_sums(run, pair.candidate, blocks)) for pair in pairs],
    )
