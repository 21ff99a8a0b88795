"""Findings: every candidate against its reference, with timed ratios and, where both were traced, the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strobe.core.errors import DataError
from strobe.core.spans import E2E
from strobe.perf.analysis.comparable import compare_variants, refusal
from strobe.perf.analysis.ledger.account import (
    ClipKind,
    Explained,
    Ledger,
    TimedClip,
    block_kinds,
    clip_ledger,
    coarsened,
    cut_clips,
    explain_by_regions,
    explain_by_trace,
    levelled,
)
from strobe.perf.analysis.ledger.speedup import Answer, answer
from strobe.perf.analysis.runs.compare import Comparison, Latencies, compare_stages, latencies, mirrored_pairs, side_clocks
from strobe.perf.records.record import Clip
from strobe.perf.report.study import Profile, RunStudy, Subject, or_reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Comparison of one candidate with its reference. A text in place of a result says why there is none.

    Args:
        stages: one denoise step against one, then every stage, from timed clips.
        ledger: the account of the difference, label by label.
        answer: the same in a few lines; None without a ledger.
    """

    reference: Subject
    candidate: Subject
    stages: tuple[Comparison, ...] | str
    ledger: Ledger | str
    answer: Answer | None = None

    def stage(self, name: str) -> Comparison | None:
        if isinstance(self.stages, str):
            return None
        return next((item for item in self.stages if item.stage == name and not item.per_call), None)

    @property
    def e2e(self) -> Comparison | None:
        return self.stage(E2E)


def find(study: RunStudy, allow_different: Sequence[str] = ()) -> tuple[Finding, ...]:
    """Compare every candidate with the reference of its own run."""
    return tuple(_finding(reference, candidate, allow_different) for reference, candidate in study.pairs)


def find_latencies(study: RunStudy) -> dict[str, Latencies | str]:
    """Return latencies by the subject's label; a text says why there are none."""
    return {subject.label: or_reason(latencies, subject.run, subject.name) for subject in study.subjects}


def _finding(reference: Subject, candidate: Subject, allow_different: Sequence[str]) -> Finding:
    checks = compare_variants(candidate.run.header, reference.settings, candidate.settings, allow_different)
    if why := refusal(checks):
        return Finding(reference=reference, candidate=candidate, stages=why, ledger=why)
    stages, account = or_reason(compare_stages, candidate.run, candidate.name), or_reason(_account, reference, candidate)
    ledger, found = (account, None) if isinstance(account, str) else account
    return Finding(reference=reference, candidate=candidate, stages=stages, ledger=ledger, answer=found)


def _account(reference: Subject, candidate: Subject) -> tuple[Ledger, Answer]:
    """Build the ledger of two variants over the clips that were timed in pairs; a `DataError` says why there is none."""
    run = candidate.run
    kinds = block_kinds(run, (reference.name, candidate.name))
    pairs = mirrored_pairs(run, candidate.name)
    profiles = (subject.profile for subject in (reference, candidate) if isinstance(subject.profile, Profile))
    stages = frozenset[str]().union(*(each.replays.unlabelled for each in profiles if each.replays is not None))
    sides = []
    for subject, clips in ((reference, [pair[0] for pair in pairs]), (candidate, [pair[1] for pair in pairs])):
        side = _explained(subject, clips, kinds)
        sides.append(coarsened(side, stages) if stages else side)
    sides = list(levelled(sides[0], sides[1]))
    cut = cut_clips(run, (clip for pair in pairs for clip in (*pair[0], *pair[1])))
    whole = [(_took(cut, pair[0]), _took(cut, pair[1])) for pair in pairs]
    ledger = clip_ledger(sides[0], sides[1], whole)
    return ledger, answer(sides[0], sides[1], (side_clocks(run, reference.name), side_clocks(run, candidate.name)))


def _explained(subject: Subject, pairs: Sequence[Sequence[Clip]], kinds: Sequence[ClipKind]) -> Explained:
    orders = {line.order for line in subject.run.regions}
    clips = [clip for pair in pairs for clip in pair]
    if clips and all(clip.order in orders for clip in clips):
        return explain_by_regions(subject.run, pairs, kinds)
    if not isinstance(subject.profile, Profile):
        raise DataError(f"{subject.label}: {subject.profile}")
    return explain_by_trace(subject.run, clips, kinds, subject.profile.partition)


def _took(cut: Mapping[int, TimedClip], clips: Sequence[Clip]) -> int:
    return sum(sum(cut[clip.order][0]) + cut[clip.order][1] for clip in clips)
