"""Builder of the page of forward passes: settings, stages, attention, kernels, sections, speedups with the ledger, notes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from strobe.perf.analysis.ledger.account import Ledger
from strobe.perf.records.store import RunRecords
from strobe.perf.report.blocks.answer import ANSWER, answer_sections
from strobe.perf.report.blocks.attention import attention_sections
from strobe.perf.report.blocks.kernels import run_kernels
from strobe.perf.report.blocks.ledger import ledger_blocks
from strobe.perf.report.blocks.levels import speedups
from strobe.perf.report.blocks.notes import notes_section
from strobe.perf.report.blocks.page import page, run_facts
from strobe.perf.report.blocks.quality import quality_table
from strobe.perf.report.blocks.settings import banners, settings_section
from strobe.perf.report.blocks.stages import stages_section
from strobe.perf.report.dit_page.bounds import attention_table, bounds_table
from strobe.perf.report.dit_page.pairs import UNIT, Paired, paired
from strobe.perf.report.findings import Finding
from strobe.perf.report.model import Block, Fact, Notes, Report, Section, Text
from strobe.perf.report.study import RunStudy


def is_dit_run(run: RunRecords) -> bool:
    """Return whether the records are of forward passes over a whole clip."""
    work = run.header.workload
    return work is not None and work.unit == UNIT


def dit_report(study: RunStudy, allow_different: Sequence[str] = ()) -> tuple[Report, tuple[Finding, ...]]:
    """Build the page of one run of forward passes, and return it with its findings.

    Args:
        study: one run.
        allow_different: facts that are meant to differ.
    """
    run = study.runs[0]
    head, work = run.header, run.header.workload
    assert work is not None and head.model is not None, "`is_dit_run` was asked"
    pairs = paired(study, allow_different)
    findings = tuple(pair.finding for pair in pairs if pair.first)
    _, sections = attention_sections(study)
    attention = Section(
        "attention",
        "Attention",
        "What self-attention of the video takes in one denoise step: the kernel, the operator around it, the module around that.",
        (attention_table(study),),
    )
    parts = (
        settings_section(study),
        stages_section(study, findings),
        attention,
        run_kernels(study),
        sections,
        _speedups(pairs),
        _notes(study),
    )
    report = page(
        speedups=speedups(findings),
        title=f"{head.model.name}: {', '.join(subject.label for subject in study.subjects)}",
        subtitle=f"one forward pass over {work.width}x{work.height} pixels, {work.frames} frames, on {head.machine.device_name}",
        facts=(
            *run_facts(head),
            Fact("Model", Text(f"{head.model.name}, weights {head.model.weights_sha256[:8]}")),
            Fact("Batch", Text(str(work.batch))),
            Fact("Reference", Text(head.baseline)),
        ),
        banners=banners(study),
        sections=parts,
    )
    return report, findings


def _speedups(pairs: Sequence[Paired]) -> Section:
    """Build the section with the table of speedups, and the ledger of every pair whose regions go equally deep."""
    blocks: list[Block] = [bounds_table(pairs)]
    alike = [pair.finding for pair in pairs if pair.alike]
    for answered in answer_sections(alike):
        if answered is not None:
            blocks += answered.blocks
    for finding in alike:
        if isinstance(finding.ledger, Ledger):
            blocks += [
                msgspec.structs.replace(block, collapsed=True) if hasattr(block, "collapsed") else block
                for block in ledger_blocks(finding, finding.ledger)
            ]
    lead = (
        "Kernel, section and end to end, each against a dense variant that is compiled or not as the candidate is. In accounts "
        "a frame block is one denoise step; their lines add up exactly."
    )
    return Section(ANSWER, "Speedups", lead, tuple(blocks))


def _notes(study: RunStudy) -> Section:
    """Build the section of notes on all numbers, and on the meaning of denoise step and section here."""
    found = notes_section(study)
    own = (
        "One denoise step is one forward pass over the latents of the whole clip; every step has the same latents. Records and "
        "accounts count it as one frame block. Text encoder, scheduler and decoder do not run.",
        "The section of self-attention is its module in diffusers: projections of queries, keys and values, their norms, RoPE, "
        "the operator, the output projection. Norm, modulation and gate around the module are outside.",
        "Inside blocks that are compiled only the kernels of the attention operator are told apart, by their order in the same "
        "pass uncompiled, all other kernels by what their names say they compute.",
    )
    first, *rest = found.blocks
    assert isinstance(first, Notes)
    lines = [line for line in study.runs[0].quality if line.n]
    values = {(line.variant, line.metric): line for line in lines}
    labels = [subject.label for subject in study.subjects]
    quality = [quality_table(labels, values, "How far one forward pass moved.")] if lines else []
    return msgspec.structs.replace(found, blocks=(Notes((*own, *first.items)), *quality, *rest))
