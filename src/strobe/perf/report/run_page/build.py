"""Builder of the page of one or several runs of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from strobe.perf.analysis.ledger.account import Ledger
from strobe.perf.report.blocks.answer import ANSWER, answer_sections
from strobe.perf.report.blocks.attention import attention_sections
from strobe.perf.report.blocks.kernels import run_kernels
from strobe.perf.report.blocks.latency import latency_section
from strobe.perf.report.blocks.ledger import ledger_blocks
from strobe.perf.report.blocks.levels import speedups
from strobe.perf.report.blocks.notes import clips_section, notes_section
from strobe.perf.report.blocks.page import date_fact, page
from strobe.perf.report.blocks.quality import quality_section
from strobe.perf.report.blocks.settings import banners, settings_section
from strobe.perf.report.blocks.stages import stages_section
from strobe.perf.report.findings import Finding, find, find_latencies
from strobe.perf.report.model import Block, Fact, Notes, Report, Section, Text
from strobe.perf.report.run_page.breakdown import breakdown_section
from strobe.perf.report.run_page.growth import growth_section
from strobe.perf.report.run_page.headline import HEADLINE, chain_section, headline_section
from strobe.perf.report.run_page.roofline import roofline_section
from strobe.perf.report.run_page.timeline import timeline_section
from strobe.perf.report.study import RunStudy

_OPEN: Final = (ANSWER, HEADLINE)
"""Sections that are not folded."""
_NAMED: Final = 3
"""Most candidates that a title names."""


def run_report(study: RunStudy, allow_different: Sequence[str] = ()) -> tuple[Report, tuple[Finding, ...]]:
    """Build the page of streams, and return it with its findings: each candidate against its reference."""
    findings, found_latencies = find(study, allow_different), find_latencies(study)
    first, others = answer_sections(findings)
    sections = (
        first,
        headline_section(study, findings),
        others,
        clips_section(study),
        latency_section(study, found_latencies),
        quality_section(study, found_latencies),
        chain_section(findings) if findings else None,
        _ledger_section(findings) if findings else None,
        timeline_section(study),
        *attention_sections(study),
        breakdown_section(study),
        run_kernels(study),
        stages_section(study, findings),
        growth_section(study),
        roofline_section(study),
        settings_section(study),
        notes_section(study),
    )
    report = page(
        speedups=speedups(findings),
        title=_title(study),
        subtitle=_subtitle(study),
        facts=_facts(study),
        banners=banners(study),
        sections=tuple(
            msgspec.structs.replace(section, folded=section.id not in _OPEN) for section in sections if section is not None
        ),
    )
    return report, findings


def _ledger_section(findings: Sequence[Finding]) -> Section:
    blocks: list[Block] = []
    missing = []
    for finding in findings:
        if isinstance(finding.ledger, Ledger):
            blocks += ledger_blocks(finding, finding.ledger)
        else:
            missing.append(f"{finding.candidate.label}: {finding.ledger}")
    if missing:
        blocks.append(Notes(tuple(f"No ledger for {reason}" for reason in missing)))
    lead = (
        "Every line is a place where time was spent, and what happened there. What the candidate saves end to end is the sum of "
        "what each line saves, to the nanosecond."
    )
    return Section("ledger", "The whole account, line by line", lead, tuple(blocks))


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _title(study: RunStudy) -> str:
    candidates = [subject.label for subject in study.subjects if not subject.is_reference]
    references = [subject.label for subject in study.subjects if subject.is_reference]
    if not candidates or not references:
        return _listed([subject.label for subject in study.subjects]) if study.subjects else study.runs[0].header.run
    named = _listed(candidates) if len(candidates) <= _NAMED else f"{len(candidates)} variants"
    return f"{named} against {_listed(references)}"


def _subtitle(study: RunStudy) -> str:
    head = study.runs[0].header
    parts = [head.model.name] if head.model else []
    if head.workload:
        parts.append(f"{head.workload.width}x{head.workload.height} pixels, {head.workload.frames} frames")
    parts.append(f"on {head.machine.device_name}")
    if len(study.runs) > 1:
        parts.append(f"and {len(study.runs) - 1} more run{'s' if len(study.runs) > 2 else ''}")
    return ", ".join(parts)


def _facts(study: RunStudy) -> tuple[Fact, ...]:
    head = study.runs[0].header
    commit = f"{head.git.commit[:12]}{', changed files' if head.git.dirty else ''}" if head.git.commit else "not a checkout"
    timed = sum(clip.phase == "timed" for clip in study.runs[0].clips)
    model = f"{head.model.name}, weights {head.model.weights_sha256[:8]}" if head.model else "the caller's own code"
    return (
        date_fact(head.date),
        Fact("Run", Text(head.run)),
        Fact("Commit", Text(commit)),
        Fact("Device", Text(f"{head.machine.device}, {head.machine.cores} cores, {head.machine.threads} threads")),
        Fact("torch", Text(head.machine.torch or "not used")),
        Fact("Model", Text(model)),
        Fact("Reference", Text(head.baseline)),
        Fact("Timed clips", Text(f"{timed}, interleaved")),
    )
