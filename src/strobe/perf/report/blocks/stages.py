"""Every run of every stage, averages with and without warm-up, and the exclusions with their reasons."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from strobe.core.spans import DENOISE_STEP, E2E
from strobe.perf.analysis.runs.compare import STAGES, Comparison, Side, StageTotal, stage_totals
from strobe.perf.report.blocks.fields import Field, beside, heads, numeric, rows_of, table_of, time
from strobe.perf.report.blocks.ratios import ratio_cell, verdict_cell
from strobe.perf.report.findings import Finding
from strobe.perf.report.model import Axis, Block, Cell, Figure, Level, Mark, Missing, Notes, Plane, Section, Table, Time
from strobe.perf.report.study import RunStudy, Subject

_SHOWN: Final = ((E2E, "End to end"), (DENOISE_STEP, "Denoising stage (all denoise steps of a clip)"))


def stages_section(study: RunStudy, findings: Sequence[Finding]) -> Section:
    """Build the section with a figure of every clip, the table of every run, stage averages, and exclusions."""
    blocks: list[Block] = []
    for stage, title in _SHOWN:
        totals = [stage_totals(subject.run, subject.name, stage) for subject in study.subjects]
        if not any(total.total_ns for each in totals for total in each):
            continue
        table = _runs_table(study, totals, title)
        blocks.append(_runs_figure(study, totals, title, table) if stage == E2E else table)
    blocks.append(_averages(study))
    blocks += [_speedups(finding) for finding in findings if not isinstance(finding.stages, str)]
    blocks.append(_exclusions(study))
    lead = (
        "Timed clips: no profiler, no synchronisation inside. Variants ran interleaved, so drift of the machine meets them all."
    )
    return Section("stages", "Stages", lead, tuple(blocks))


def _warmup(total: StageTotal) -> bool:
    return total.clip.phase == "warmup"


def _runs_figure(study: RunStudy, totals: Sequence[Sequence[StageTotal]], title: str, table: Table) -> Figure:
    marks, levels = [], []
    for subject, own in zip(study.subjects, totals, strict=True):
        marks += [Mark(total.clip.order, total.total_ns, subject.series, hollow=_warmup(total)) for total in own]
        timed = [total.total_ns for total in own if not _warmup(total)]
        if timed:
            levels.append(Level(statistics.fmean(timed), subject.series, f"{subject.label}, average without warm-up"))
    names = tuple(subject.label for subject in study.subjects)
    plane = Plane(Axis("position in the run", whole=True), Axis(title, "ms", True), tuple(marks), tuple(levels), names)
    text = f"{title}: every clip in the order it ran. Hollow: warm-up. Dashed: average without warm-up."
    return Figure(text, f"{title} of every clip; the table lists the values.", plane, table, table_open=True)


def _runs_table(study: RunStudy, totals: Sequence[Sequence[StageTotal]], title: str) -> Table:
    longest = max(len(own) for own in totals)
    digits = max(2, len(str(longest)))
    rows: list[Sequence[object]] = [
        (f"run_{number + 1:0{digits}d}", *(_run_cell(own, number) for own in totals)) for number in range(longest)
    ]
    averages = (
        ("avg_all_rounds", *map(_mean, totals)),
        ("avg_excl_warmup", *(_mean([total for total in own if not _warmup(total)]) for own in totals)),
    )
    fields = beside("run", (subject.label for subject in study.subjects), "ms")
    shown = rows_of(fields, [*rows, *averages], strong=lambda row: row in averages)
    return Table(f"{title}, every clip of every variant in the order it ran.", heads(fields), shown)


def _run_cell(own: Sequence[StageTotal], number: int) -> Cell:
    if number >= len(own) or not own[number].total_ns:
        return Missing("", "-")
    return Time(own[number].total_ns, "warm-up" if _warmup(own[number]) else "")


def _mean(totals: Sequence[StageTotal]) -> Cell:
    measured = [total.total_ns for total in totals if total.total_ns]
    return Time(statistics.fmean(measured)) if measured else Missing("no finished clip", "-")


def _averages(study: RunStudy) -> Table:
    """Build the table of each stage's mean time per clip and its calls, without warm-up."""
    rows: list[Sequence[object]] = []
    for stage in STAGES:
        cells = [_average_cell(subject, stage) for subject in study.subjects]
        if not all(isinstance(cell, Missing) for cell in cells):
            rows.append((stage, *cells))
    fields = beside("stage", (subject.label for subject in study.subjects), "ms")
    notes = ("Stages nest: frame_block contains every stage above it but the first text, and e2e contains all of them.",)
    return table_of("Stages of a clip, mean over timed clips.", fields, rows, notes=notes)


def _average_cell(subject: Subject, stage: str) -> Cell:
    timed = [total for total in stage_totals(subject.run, subject.name, stage) if not _warmup(total) and total.calls]
    if not timed:
        return Missing("", "-")
    calls = statistics.fmean(total.calls for total in timed)
    return Time(statistics.fmean(total.total_ns for total in timed), f"{calls:g} calls" if calls != 1 else "1 call")


def _speedups(finding: Finding) -> Table:
    assert not isinstance(finding.stages, str)
    labels = (finding.reference.label, finding.candidate.label)

    def each_ns(item: Comparison, side: Side) -> float:
        return side.total_ns / (side.calls if item.per_call else len(side.clips_ns))

    fields: tuple[Field[Comparison], ...] = (
        Field("stage", lambda item: f"{item.stage}, one call" if item.per_call else item.stage),
        time(labels[0], lambda item: each_ns(item, item.baseline)),
        time(labels[1], lambda item: each_ns(item, item.candidate)),
        numeric("speedup", lambda item: ratio_cell(item.ratio, item.interval)),
        Field("verdict", lambda item: verdict_cell(item.verdict)),
    )
    caption = f"{labels[1]} against {labels[0]}, stage by stage, per clip unless one call is said."
    return table_of(caption, fields, finding.stages, collapsed=True)


def _exclusions(study: RunStudy) -> Block:
    """Build the list of samples left out of averages and ratios, once for variants that share it."""
    items: dict[str, list[str]] = {}
    for subject in study.subjects:
        left_out = [
            (clip.clip, "clip", "warm-up")
            for clip in subject.run.clips
            if clip.variant == subject.name and clip.phase == "warmup"
        ]
        for line in subject.run.excluded:
            if line.variant == subject.name:
                where = line.span if line.clip is None else f"{line.span} in clip {line.clip}"
                left_out += [(index, where, line.cause) for index in line.indices]
        for where in dict.fromkeys(where for _, where, _ in left_out):
            causes = sorted({(index, cause) for index, place, cause in left_out if place == where})
            items.setdefault(f"{where} {excluded_text(causes)}", []).append(subject.label)
    notes = tuple(
        f"Excluded from averages and ratios, {', '.join(labels)}: {text}. Clips count from 0: clip 0 is run_01."
        for text, labels in items.items()
    )
    return Notes(notes or ("Nothing was excluded.",))


def excluded_text(causes: Sequence[tuple[int, str]]) -> str:
    """Format exclusions as `0 (first block), 1-2 (cache not full)`; neighbours with the same cause become one range."""
    ranges: list[tuple[int, int, str]] = []
    for index, cause in causes:
        if ranges and ranges[-1][1] == index - 1 and ranges[-1][2] == cause:
            ranges[-1] = (ranges[-1][0], index, cause)
        else:
            ranges.append((index, index, cause))
    return ", ".join(f"{first if first == last else f'{first}-{last}'} ({cause})" for first, last, cause in ranges) or "none"
