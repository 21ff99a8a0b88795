"""The page of one transformer with dense and sparse attention."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import msgspec

from strobe.core.spans import ATTENTION, ATTENTION_OPERATOR, DENOISE_STEP
from strobe.perf.analysis.ledger.account import Ledger, is_attention_kernel
from strobe.perf.analysis.runs.compare import stage_time
from strobe.perf.records.store import RunRecords
from strobe.perf.report.blocks.answer import ANSWER, answer_sections, ledger_blocks, speedups
from strobe.perf.report.blocks.breakdown import quality_table, stages_section
from strobe.perf.report.blocks.fields import notes_section, page, run_facts, verdict_cell
from strobe.perf.report.blocks.kernels import attention_sections, run_kernels
from strobe.perf.report.blocks.settings import banners, settings_section
from strobe.perf.report.findings import Finding, find
from strobe.perf.report.study import Profile, RunStudy, Subject, only_pair
from strobe.perf.table.fields import Field, numeric, table_of, time
from strobe.perf.table.model import Block, Cell, Fact, Missing, Notes, Number, Ratio, Report, Section, Share, Table, Text

# Pairs of variants to compare in a run: eager with eager, compiled with compiled.

UNIT: Final = "denoise step"
"""Name of the unit that the records of such a run count as a frame block."""


Paired: TypeAlias = tuple[Finding, bool, bool]
"""Second of two variants against the first; whether both or neither are compiled, so that their regions go equally deep; whether
the reference is the first dense variant of its kind, which gates are about."""


def paired(study: RunStudy, allow_different: Sequence[str]) -> tuple[Paired, ...]:
    """Compare every variant with each dense one of its kind (compiled or eager), and every dense kind with the baseline."""
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
    return finding, alike, first


_APART: Final = "blocks that are compiled have no regions but those of the attention operator"


@dataclass(frozen=True, kw_only=True, slots=True)
class PerStep:
    """Time of attention in one denoise step of a variant, ns.

    Args:
        step: untraced, mean over timed clips.
        kernel: the attention kernel, traced.
        operator: the same with tiling, selection and finishing; of dense attention the kernel.
        section: the whole module of self-attention, traced; None where it cannot be told apart.
    """

    step: float
    kernel: float
    operator: float
    section: float | None


_Row: TypeAlias = tuple[Subject, PerStep | str]
_Pair: TypeAlias = tuple[Finding, PerStep | str, PerStep | str]
"""A pair, and the attention times of its reference and of its candidate, or why there are none."""


def per_step(subject: Subject) -> PerStep | str:
    """Return the attention times of a variant from its trace and timed clips; a text says why there are none."""
    clips = stage_time(subject.run, subject.name, DENOISE_STEP)
    steps_ns = [ns / calls for clip, ns, calls in clips if clip.phase == "timed" and calls]
    if not steps_ns:
        return "no timed clip"
    if not isinstance(subject.profile, Profile):
        return subject.profile
    owned, steps = subject.profile.partition.owned, len(subject.profile.partition.tiles)
    kernel = sum(ns for label, ns in owned.items() if ATTENTION in label.path and is_attention_kernel(label))
    if not kernel:
        return "the trace shows no attention kernel in a section of self-attention"
    operator = sum(ns for label, ns in owned.items() if ATTENTION in label.path and not ATTENTION_OPERATOR.isdisjoint(label.path))
    section = sum(ns for label, ns in owned.items() if ATTENTION in label.path)
    return PerStep(
        step=statistics.fmean(steps_ns),
        kernel=kernel / steps,
        operator=operator / steps,
        section=None if subject.settings.compile_mode else section / steps,
    )


def attention_table(study: RunStudy) -> Table:
    """Build the table of every variant's attention times per denoise step."""
    kernel = "attention kernel of the video's self-attention, traced"
    section = "the module of self-attention: projections, norms, RoPE, operator, output projection"

    def of(get: Callable[[PerStep], float | None]) -> Callable[[_Row], Any]:
        return lambda row: Text("") if isinstance(row[1], str) else get(row[1])

    fields: tuple[Field[_Row], ...] = (
        Field("variant", lambda row: row[0].label),
        Field("implementation", lambda row: row[0].settings.attention_impl or "not said"),
        Field("sparsity", lambda row: f"{100 * row[0].settings.sparsity:g} %" if row[0].settings.sparsity else "dense"),
        time("kernel", lambda row: Missing(row[1]) if isinstance(row[1], str) else row[1].kernel, "ms", kernel),
        time("operator", of(lambda found: found.operator), "ms", "with tiling, selection and finishing"),
        time("section", of(lambda found: found.section), "ms", section, missing=_APART),
        time("denoise step", of(lambda found: found.step), "ms", "one forward pass, untraced, mean"),
        numeric("kernel / step", of(lambda found: found.kernel / found.step), show=Share),
    )
    rows = [(subject, per_step(subject)) for subject in study.subjects]
    return table_of("Self-attention of the video in one denoise step.", fields, rows)


def bounds_table(pairs: Sequence[Paired]) -> Table:
    """Build the table of speedups (kernel, operator, section, end to end), with the Amdahl bound and the loss outside of it."""

    def of(get: Callable[[PerStep, PerStep], Any]) -> Callable[[_Pair], Any]:
        def cell(row: _Pair) -> Any:
            _, reference, candidate = row
            if isinstance(reference, str) or isinstance(candidate, str):
                return Missing(reference if isinstance(reference, str) else str(candidate), "-")
            return get(reference, candidate)

        return cell

    def reached(row: _Pair) -> Any:
        e2e = row[0].e2e
        return of(lambda b, c: Missing("no end-to-end times") if e2e is None else e2e.ratio / _bound(b, c))(row)

    timed = "forward passes, untraced; median over mirrored pairs, 95 % interval"
    lost = "section / what it were with nothing but the operator changed, - 1"
    fields: tuple[Field[_Pair], ...] = (
        Field("candidate", lambda row: row[0].candidate.label),
        Field("reference", lambda row: row[0].reference.label),
        numeric("kernel", of(lambda b, c: b.kernel / c.kernel), "attention kernel", show=Ratio),
        numeric("operator", of(lambda b, c: b.kernel / c.operator), "with tiling, selection and finishing", show=Ratio),
        numeric(
            "section",
            of(lambda b, c: b.section and c.section and b.section / c.section),
            "the module of self-attention",
            show=Ratio,
            missing=_APART,
        ),
        numeric("end to end", lambda row: _timed(row)[0], timed),
        Field("verdict", lambda row: _timed(row)[1]),
        numeric("Amdahl bound", of(_bound), "end to end, if nothing but the operator had changed", show=Ratio),
        numeric("of the bound", reached, show=Share),
        numeric("lost outside the operator", of(_lost), lost, show=lambda share: Number(100 * share, 1, "%"), missing=_APART),
    )
    notes = (
        "Speedup: time of the reference / time of the candidate. Kernel, operator and section are traced, end to end is not.",
        "Amdahl bound: T / (T - (kernel of the reference - operator of the candidate)), T one denoise step of the reference.",
        "Lost outside the operator: what the section takes beyond that of the reference with the operator for its kernel.",
    )
    rows = [(finding, per_step(finding.reference), per_step(finding.candidate)) for finding, *_ in pairs]
    return table_of("Speedups, and what the operator alone allows.", fields, rows, notes=notes)


def _timed(row: _Pair) -> tuple[Cell, Cell]:
    e2e = row[0].e2e
    if e2e is None:
        return Missing("no end-to-end times"), Text("")
    return e2e.cell, verdict_cell(e2e.verdict)


def _bound(reference: PerStep, candidate: PerStep) -> float:
    """Return the end-to-end speedup if nothing but the operator had changed."""
    return reference.step / (reference.step - (reference.kernel - candidate.operator))


def _lost(reference: PerStep, candidate: PerStep) -> float | None:
    """Return by what share the section takes longer than it would if nothing but the operator had changed."""
    if reference.section is None or candidate.section is None:
        return None
    return candidate.section / (reference.section - (reference.kernel - candidate.operator)) - 1


def is_dit_run(run: RunRecords) -> bool:
    """Return whether the records are of forward passes over a whole clip."""
    work = run.header.workload
    return work is not None and work.unit == UNIT


def dit_report(study: RunStudy, allow_different: Sequence[str] = ()) -> tuple[Report, tuple[Finding, ...]]:
    """Build the page of one run of forward passes, and return it with its findings."""
    run = study.runs[0]
    head, work = run.header, run.header.workload
    assert work is not None and head.model is not None, "`is_dit_run` was asked"
    pairs = paired(study, allow_different)
    findings = tuple(finding for finding, _, first in pairs if first)
    _, sections = attention_sections(study)
    lead = (
        "What self-attention of the video takes in one denoise step: the kernel, the operator around it, the module around that."
    )
    attention = Section("attention", "Attention", lead, (attention_table(study),))
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
    blocks: list[Block] = [bounds_table(pairs)]
    alike = [finding for finding, alike, _ in pairs if alike]
    blocks += (block for answered in answer_sections(alike) if answered is not None for block in answered.blocks)
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
