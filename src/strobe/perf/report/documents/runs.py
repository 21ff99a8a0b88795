"""The document that `strobe report --json` prints and `strobe.compare_runs` returns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from strobe.perf.analysis.comparable.records import compare_variants
from strobe.perf.analysis.ledger.close import Ledger
from strobe.perf.analysis.runs.calls import OwnCode, is_own_code, own_code
from strobe.perf.records.store import RunRecords
from strobe.perf.report.documents.value import Document, Part
from strobe.perf.report.findings import Finding
from strobe.perf.report.model import Report


class RatioRow(Part, frozen=True, kw_only=True):
    """Speedup of one candidate at one level."""

    candidate: Annotated[str, Meta(description="the variant that is measured")]
    reference: Annotated[str, Meta(description="what it is measured against")]
    level: Annotated[str, Meta(description="kernel, section, step, block or e2e")]
    ratio: Annotated[float, Meta(description="time of the reference / time of the candidate")]
    low: Annotated[float | None, Meta(description="low end of its 95 % interval; null without one")]
    high: Annotated[float | None, Meta(description="high end")]
    saved_ns: Annotated[float | None, Meta(description="saved in a clip or a traced frame block; null where not known")]


class QualityRow(Part, frozen=True, kw_only=True):
    """One quality score of one candidate."""

    candidate: Annotated[str, Meta(description="the variant that is scored")]
    metric: Annotated[str, Meta(description="such as psnr, in dB")]
    value: Annotated[float | None, Meta(description="the score; null where it is infinite (equal frames) or was not computed")]
    n: Annotated[int, Meta(description="what it is the mean of")]


class AccountRow(Part, frozen=True, kw_only=True):
    """State of one candidate's ledger: steady frame blocks and explained shares, or the reason why there is none."""

    candidate: Annotated[str, Meta(description="the variant that is measured")]
    reference: Annotated[str, Meta(description="what it is measured against")]
    missing: Annotated[str, Meta(description="why there is no account; empty if there is one")]
    steady_blocks: Annotated[int | None, Meta(description="steady frame blocks in a clip; 0: `parts` are of all frame blocks")]
    explained_time_share: Annotated[
        float | None, Meta(description="share of the time that has a name, of the side where it is less")
    ]
    explained_saving_share: Annotated[
        float | None, Meta(description="share of the saving that has a name; null if nothing is saved")
    ]


class PartRow(Part, frozen=True, kw_only=True):
    """One part of a steady frame block; the parts of a candidate add up to the frame block."""

    candidate: Annotated[str, Meta(description="the variant that is measured")]
    part: Annotated[str, Meta(description="what the time was spent on; several, with commas, that are too small for a row each")]
    baseline_ns: Annotated[float, Meta(description="mean of a steady frame block of the reference")]
    candidate_ns: Annotated[float, Meta(description="mean of one of the candidate")]
    saved_ns: Annotated[float, Meta(description="their difference")]
    share: Annotated[float | None, Meta(description="of what a steady frame block saves; null if it saves nothing")]
    elsewhere_saved_ns: Annotated[float, Meta(description="what a clip saves on it outside its steady frame blocks")]


class BlocksRow(Part, frozen=True, kw_only=True):
    """The frame blocks of one kind in a clip; the kinds of a candidate add up to the clip."""

    candidate: Annotated[str, Meta(description="the variant that is measured")]
    kind: Annotated[str, Meta(description="first, filling, steady, switch, or start and end")]
    frame_blocks: Annotated[int, Meta(description="how many there are in a clip")]
    baseline_ns: Annotated[float, Meta(description="time of all of them in a clip of the reference")]
    candidate_ns: Annotated[float, Meta(description="in a clip of the candidate")]


class LineRow(Part, frozen=True, kw_only=True):
    """One line of the ledger of a clip; the lines of a candidate add up to its clip."""

    candidate: Annotated[str, Meta(description="the variant that is measured")]
    level: Annotated[str, Meta(description="the first level that contains it")]
    line: Annotated[str, Meta(description="where the time was spent, and what happened there")]
    baseline_ns: Annotated[float, Meta(description="in a clip of the reference")]
    candidate_ns: Annotated[float, Meta(description="in a clip of the candidate")]
    saved_ns: Annotated[float, Meta(description="their difference")]
    share: Annotated[float | None, Meta(description="of what a clip saves; null if it saves nothing")]


class CallsRow(Part, frozen=True, kw_only=True):
    """One function or program of the caller's own: what one call of it, or one run, takes."""

    name: Annotated[str, Meta(description="its name")]
    reference: Annotated[str, Meta(description="what it is measured against; its own name for the baseline")]
    command: Annotated[str, Meta(description="command line of a program; empty for a function")]
    samples: Annotated[int, Meta(description="timed samples; 0: it was not timed, for its output differs")]
    calls_per_sample: Annotated[int, Meta(description="calls that a sample is the mean of")]
    mean_ns: Annotated[float | None, Meta(description="geometric mean of the samples; null without any")]
    low_ns: Annotated[float | None, Meta(description="low end of its 95 % interval; null without one")]
    high_ns: Annotated[float | None, Meta(description="high end")]
    min_ns: Annotated[float | None, Meta(description="shortest sample")]
    max_ns: Annotated[float | None, Meta(description="longest sample")]
    ratio: Annotated[float | None, Meta(description="time of the baseline / its own; null for the baseline")]
    ratio_low: Annotated[float | None, Meta(description="low end of its 95 % interval; null without one")]
    ratio_high: Annotated[float | None, Meta(description="high end")]
    verdict: Annotated[str, Meta(description="faster, slower, no difference or inconclusive; empty where nothing is compared")]
    device_ratio: Annotated[float | None, Meta(description="the same ratio between CUDA events; null on a CPU")]
    user_ns: Annotated[float | None, Meta(description="CPU time of a program outside the kernel, mean; null for a function")]
    system_ns: Annotated[float | None, Meta(description="CPU time of a program inside the kernel, mean; null for a function")]
    peak_bytes: Annotated[int | None, Meta(description="peak memory, most over the samples; null where not known")]
    added_bytes: Annotated[int | None, Meta(description="most that a sample added to what there was; null where not known")]
    failures: Annotated[int, Meta(description="timed runs of a program whose exit status was not 0")]
    equal_output: Annotated[bool | None, Meta(description="its output is the baseline's; null where they were not compared")]
    output: Annotated[str, Meta(description="what was found when outputs were compared; empty where they were not")]


class RunDocument(Document, frozen=True, kw_only=True):
    """Speedups of a run's candidates over its reference, with quality and ledgers.

    `rows()` returns the speedups; `rows("parts")`, `rows("quality")` and the like return the other tables.
    """

    MAIN: ClassVar[str] = "speedups"
    SHOWN: ClassVar[tuple[str, ...]] = ("speedups", "parts", "quality")

    runs: Annotated[tuple[str, ...], Meta(description="run folders")]
    comparable: Annotated[dict[str, bool], Meta(description="by candidate: nothing differs that must not")]
    obstacles: Annotated[dict[str, str], Meta(description="why a candidate is not comparable, for those that are not")]
    absent: Annotated[dict[str, str], Meta(description="variants that could not run on the machine, and why")]
    speedups: Annotated[tuple[RatioRow, ...], Meta(description="by candidate and level; none for one that is not comparable")]
    quality: Annotated[tuple[QualityRow, ...], Meta(description="scores of the frames against the reference's")]
    accounts: Annotated[tuple[AccountRow, ...], Meta(description="by candidate: how much of the time and saving has a name")]
    parts: Annotated[tuple[PartRow, ...], Meta(description="by candidate: what a steady frame block is spent on")]
    kinds: Annotated[tuple[BlocksRow, ...], Meta(description="by candidate: what each kind of frame block adds to a clip")]
    lines: Annotated[tuple[LineRow, ...], Meta(description="by candidate: the whole ledger of a clip")]
    calls: Annotated[tuple[CallsRow, ...], Meta(description="the caller's own functions or programs; none for a run of clips")]

    def title(self) -> str:
        """Return one line with the end-to-end speedups."""
        found = (f"{row.candidate} {row.ratio:.4g}x" for row in self.speedups if row.level == "e2e")
        return f"end to end: {', '.join(found) or 'no candidate was measured'}"


def run_document(
    runs: Sequence[RunRecords], report: Report, findings: Sequence[Finding], allow_different: Sequence[str] = ()
) -> RunDocument:
    """Return what the report of some runs found.

    Args:
        runs: what the report is about.
        report: the report of them.
        findings: what it says of each candidate.
        allow_different: facts that were meant to differ.
    """
    measured = {each.candidate for each in report.speedups}
    refusals = {_label(run, name, measured): refusal for run in runs for name, refusal in _refusals(run, allow_different)}
    return RunDocument(
        runs=tuple(str(run.folder) for run in runs),
        comparable={name: not refusal for name, refusal in refusals.items()},
        obstacles={name: refusal for name, refusal in refusals.items() if refusal},
        absent={each.variant: each.reason for run in runs for each in run.header.absent},
        speedups=tuple(
            RatioRow(
                candidate=each.candidate,
                reference=each.reference,
                level=each.level,
                ratio=each.ratio.value,
                low=each.ratio.low,
                high=each.ratio.high,
                saved_ns=each.saved_ns,
            )
            for each in report.speedups
            if not refusals.get(each.candidate)
        ),
        quality=tuple(row for run in runs for row in _quality(run, measured)),
        accounts=tuple(map(_account, findings)),
        parts=tuple(row for each in findings for row in _parts(each)),
        kinds=tuple(row for each in findings for row in _kinds(each)),
        lines=tuple(row for each in findings for row in _lines(each)),
        calls=tuple(_calls(run, each) for run in runs if is_own_code(run) for each in own_code(run)),
    )


def _calls(run: RunRecords, found: OwnCode) -> CallsRow:
    interval, speedup = found.interval, found.speedup
    bounds = None if speedup is None else speedup.interval
    return CallsRow(
        name=found.name,
        reference=run.header.baseline,
        command=found.command,
        samples=len(found.samples_ns),
        calls_per_sample=found.calls_per_sample,
        mean_ns=found.mean_ns,
        low_ns=None if interval is None else interval.low,
        high_ns=None if interval is None else interval.high,
        min_ns=min(found.samples_ns, default=None),
        max_ns=max(found.samples_ns, default=None),
        ratio=None if speedup is None else speedup.ratio,
        ratio_low=None if bounds is None else bounds.low,
        ratio_high=None if bounds is None else bounds.high,
        verdict="" if speedup is None else speedup.verdict,
        device_ratio=None if found.device_speedup is None else found.device_speedup.ratio,
        user_ns=found.user_ns,
        system_ns=found.system_ns,
        peak_bytes=found.peak_bytes,
        added_bytes=found.added_bytes,
        failures=found.failures,
        equal_output=None if found.gate is None else found.gate.passed,
        output="" if found.gate is None else found.gate.detail,
    )


def _label(run: RunRecords, name: str, measured: set[str]) -> str:
    """Return the name of a variant as in the report: with its run's name where several runs have it."""
    own = f"{name} ({run.header.run})"
    return own if own in measured else name


def _refusals(run: RunRecords, allow_different: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each candidate and the reason why it is not comparable with the reference; empty if it is."""
    settings = {variant.name: variant for variant in run.variants}
    reference = settings.get(run.header.baseline)
    for name, own in settings.items():
        if reference is not None and own is not reference:
            yield name, compare_variants(run.header, reference, own, allow_different).refusal


def _quality(run: RunRecords, measured: set[str]) -> Iterator[QualityRow]:
    for each in run.quality:
        value = each.value if each.value is not None and math.isfinite(each.value) else None
        yield QualityRow(candidate=_label(run, each.variant, measured), metric=each.metric, value=value, n=each.n)


def _account(finding: Finding) -> AccountRow:
    found = finding.answer
    return AccountRow(
        candidate=finding.candidate.label,
        reference=finding.reference.label,
        missing=finding.ledger if isinstance(finding.ledger, str) else "",
        steady_blocks=None if found is None else found.num_steady,
        explained_time_share=None if found is None else found.explained_time,
        explained_saving_share=None if found is None else found.explained_saving,
    )


def _parts(finding: Finding) -> Iterator[PartRow]:
    for line in finding.answer.lines if finding.answer is not None else ():
        yield PartRow(
            candidate=finding.candidate.label,
            part=", ".join(part.value for part in line.parts),
            baseline_ns=float(line.baseline_ns),
            candidate_ns=float(line.candidate_ns),
            saved_ns=float(line.saved_ns),
            share=line.share,
            elsewhere_saved_ns=float(line.elsewhere_ns),
        )


def _kinds(finding: Finding) -> Iterator[BlocksRow]:
    for line in finding.answer.kinds if finding.answer is not None else ():
        yield BlocksRow(
            candidate=finding.candidate.label,
            kind=line.kind.value,
            frame_blocks=line.num_blocks,
            baseline_ns=float(line.baseline_ns),
            candidate_ns=float(line.candidate_ns),
        )


def _lines(finding: Finding) -> Iterator[LineRow]:
    ledger = finding.ledger
    if not isinstance(ledger, Ledger):
        return
    for line in ledger.lines:
        yield LineRow(
            candidate=finding.candidate.label,
            level=line.level.value,
            line=line.name,
            baseline_ns=line.baseline_ns / ledger.num_units,
            candidate_ns=line.candidate_ns / ledger.num_units,
            saved_ns=line.saved_ns / ledger.num_units,
            share=line.share,
        )
