"""From run folders to one `Report`: read, compare, lay out. No clock, no randomness: the same folders give the same value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from strobe.core.errors import DataError
from strobe.perf.analysis.ledger.close import Ledger
from strobe.perf.analysis.runs.soak import is_soak
from strobe.perf.report.attention_profile import attention_report, is_attention_run
from strobe.perf.report.findings import Finding, find, find_latencies
from strobe.perf.report.model import SCHEMA_VERSION, Block, Fact, Figure, Notes, Report, Section, Table, Text
from strobe.perf.report.sections.answer import ANSWER, answer_section
from strobe.perf.report.sections.attention import attention_sections
from strobe.perf.report.sections.breakdown import breakdown_section
from strobe.perf.report.sections.headline import chain_section, headline_section, speedups
from strobe.perf.report.sections.kernels import kernels_section
from strobe.perf.report.sections.latency import latency_section
from strobe.perf.report.sections.ledger import ledger_blocks
from strobe.perf.report.sections.notes import clips_section, notes_section
from strobe.perf.report.sections.quality import quality_section
from strobe.perf.report.sections.roofline import roofline_section
from strobe.perf.report.sections.settings import banners, settings_section
from strobe.perf.report.sections.stages import stages_section
from strobe.perf.report.sections.timeline import timeline_section
from strobe.perf.report.soak_page import soak_report
from strobe.perf.report.study import Study, load_study

_OPEN: Final = 2
"""Sections that are not folded: the headline and the answer."""


def build_report(
    folders: Sequence[Path],
    *,
    into: Path | None = None,
    pair: tuple[str, str] | None = None,
    allow_different: tuple[str, ...] = (),
) -> Report:
    """Build the report of one or several run folders.

    Ratios stay inside a run; the same variant in two runs is compared only as unpaired.

    Args:
        folders: run folders.
        into: folder the report will be written to, which the clips' paths are relative to; the first run folder if not given.
        pair: only these two variants, the second measured against the first.
        allow_different: facts that are meant to differ between the variants of a run.

    A run of attention calls by themselves, as `strobe profile attention` leaves it, and a soak give the page of their command.

    Raises:
        DataError: no folder, a folder without readable records, or a run of attention calls or a soak among others.
        ConfigError: a run does not have both of the pair.
        RecordVersionError: records of a schema this version does not know.
    """
    return report_and_findings(folders, into=into, pair=pair, allow_different=allow_different)[0]


def report_and_findings(
    folders: Sequence[Path],
    *,
    into: Path | None = None,
    pair: tuple[str, str] | None = None,
    allow_different: tuple[str, ...] = (),
) -> tuple[Report, tuple[Finding, ...]]:
    """Build the same report, and return with it what it rests on: each candidate against its reference.

    There are none for attention calls by themselves and for a soak.
    """
    study = load_study(folders, into, pair)
    alone = [run.folder for run in study.runs if is_attention_run(run)]
    if alone and len(folders) > 1:
        raise DataError(f"{alone[0]} holds attention calls by themselves: report it without other runs")
    if alone:
        return attention_report(alone[0], pair), ()
    soaks = [run.folder for run in study.runs if is_soak(run)]
    if soaks and len(folders) > 1:
        raise DataError(f"{soaks[0]} holds a soak: report it without other runs")
    if soaks:
        return soak_report(soaks[0]), ()
    findings, found_latencies = find(study, allow_different), find_latencies(study)
    sections = (
        headline_section(study, findings),
        answer_section(findings),
        clips_section(study),
        latency_section(study, found_latencies),
        quality_section(study, found_latencies),
        chain_section(findings) if findings else None,
        _ledger_section(findings) if findings else None,
        timeline_section(study),
        *attention_sections(study),
        breakdown_section(study),
        kernels_section(study),
        stages_section(study, findings),
        roofline_section(study),
        settings_section(study),
        notes_section(study),
    )
    report = Report(
        v=SCHEMA_VERSION,
        speedups=speedups(findings),
        title=_title(study),
        subtitle=_subtitle(study),
        facts=_facts(study),
        banners=banners(study),
        sections=tuple(
            msgspec.structs.replace(section, folded=place >= _OPEN) for place, section in enumerate(filter(None, sections))
        ),
    )
    return report, findings


def answers_of(report: Report) -> tuple[Table, ...]:
    """The tables of the answer, one per candidate with an account."""
    blocks = [block for section in report.sections if section.id == ANSWER for block in section.blocks]
    return tuple(block.table for block in blocks if isinstance(block, Figure))


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


def _title(study: Study) -> str:
    candidates = [subject.label for subject in study.subjects if not subject.is_reference]
    references = [subject.label for subject in study.subjects if subject.is_reference]
    if not candidates or not references:
        return _listed([subject.label for subject in study.subjects]) if study.subjects else study.runs[0].header.run
    return f"{_listed(candidates)} against {_listed(references)}"


def _subtitle(study: Study) -> str:
    head = study.runs[0].header
    parts = [head.model.name] if head.model else []
    if head.workload:
        parts.append(f"{head.workload.width}x{head.workload.height} pixels, {head.workload.frames} frames")
    parts.append(f"on {head.machine.device_name}")
    if len(study.runs) > 1:
        parts.append(f"and {len(study.runs) - 1} more run{'s' if len(study.runs) > 2 else ''}")
    return ", ".join(parts)


def _facts(study: Study) -> tuple[Fact, ...]:
    head = study.runs[0].header
    commit = f"{head.git.commit[:12]}{', changed files' if head.git.dirty else ''}" if head.git.commit else "not a checkout"
    timed = sum(clip.phase == "timed" for clip in study.runs[0].clips)
    model = f"{head.model.name}, weights {head.model.weights_sha256[:8]}" if head.model else "the caller's own code"
    return (
        Fact("Date", Text(head.date.replace("T", " ").replace("Z", " UTC"))),
        Fact("Run", Text(head.run)),
        Fact("Commit", Text(commit)),
        Fact("Device", Text(f"{head.machine.device}, {head.machine.cores} cores, {head.machine.threads} threads")),
        Fact("torch", Text(head.machine.torch or "not used")),
        Fact("Model", Text(model)),
        Fact("Reference", Text(head.baseline)),
        Fact("Timed clips", Text(f"{timed}, interleaved")),
    )
