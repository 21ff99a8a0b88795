"""What `strobe report --json` prints and `strobe.compare_runs` returns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta

from strobe.perf.analysis.comparable.records import compare_variants
from strobe.perf.records.store import RunRecords, read_run
from strobe.perf.report.documents.value import Document, Part
from strobe.perf.report.model import Report
from strobe.perf.report.study import only_pair


class RatioRow(Part, frozen=True, kw_only=True):
    """One level of one candidate."""

    candidate: Annotated[str, Meta(description="the variant that is measured")]
    reference: Annotated[str, Meta(description="what it is measured against")]
    level: Annotated[str, Meta(description="kernel, section, step, block or e2e")]
    ratio: Annotated[float, Meta(description="time of the reference / time of the candidate")]
    low: Annotated[float | None, Meta(description="low end of its 95 % interval; null without one")]
    high: Annotated[float | None, Meta(description="high end")]
    saved_ns: Annotated[float | None, Meta(description="saved in a clip or a traced frame block; null where not known")]


class QualityRow(Part, frozen=True, kw_only=True):
    """One score of one candidate's frames."""

    candidate: Annotated[str, Meta(description="the variant that is scored")]
    metric: Annotated[str, Meta(description="such as psnr, in dB")]
    value: Annotated[float | None, Meta(description="the score; null where it is infinite (equal frames) or was not computed")]
    n: Annotated[int, Meta(description="what it is the mean of")]


class RunDocument(Document, frozen=True, kw_only=True):
    """How much faster the candidates of a run are than its reference. `rows()` are the speedups."""

    MAIN: ClassVar[str] = "speedups"
    SHOWN: ClassVar[tuple[str, ...]] = ("speedups", "quality")

    runs: Annotated[tuple[str, ...], Meta(description="run folders")]
    comparable: Annotated[dict[str, bool], Meta(description="by candidate: nothing differs that must not")]
    obstacles: Annotated[dict[str, str], Meta(description="why a candidate is not comparable, for those that are not")]
    speedups: Annotated[tuple[RatioRow, ...], Meta(description="by candidate and level; none for one that is not comparable")]
    quality: Annotated[tuple[QualityRow, ...], Meta(description="scores of the frames against the reference's")]

    def title(self) -> str:
        """The end-to-end speedups."""
        found = (f"{row.candidate} {row.ratio:.4g}x" for row in self.speedups if row.level == "e2e")
        return f"end to end: {', '.join(found) or 'no candidate was measured'}"


def run_document(
    folders: Sequence[Path], report: Report, pair: tuple[str, str] | None = None, allow_different: Sequence[str] = ()
) -> RunDocument:
    """Return what the report of some runs found.

    Args:
        folders: run folders.
        report: the report of them.
        pair: the two variants that it is about, if not all.
        allow_different: facts that were meant to differ.
    """
    runs = [read_run(folder) if pair is None else only_pair(read_run(folder), pair) for folder in folders]
    measured = {each.candidate for each in report.speedups}
    refusals = {_label(run, name, measured): refusal for run in runs for name, refusal in _refusals(run, allow_different)}
    return RunDocument(
        runs=tuple(map(str, folders)),
        comparable={name: not refusal for name, refusal in refusals.items()},
        obstacles={name: refusal for name, refusal in refusals.items() if refusal},
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
    )


def _label(run: RunRecords, name: str, measured: set[str]) -> str:
    """The name of a variant as the report has it: with its run where several runs have it."""
    own = f"{name} ({run.header.run})"
    return own if own in measured else name


def _refusals(run: RunRecords, allow_different: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each candidate, and why it is not comparable with the reference; empty if it is."""
    settings = {variant.name: variant for variant in run.variants}
    reference = settings.get(run.header.baseline)
    for name, own in settings.items():
        if reference is not None and own is not reference:
            yield name, compare_variants(run.header, reference, own, allow_different).refusal


def _quality(run: RunRecords, measured: set[str]) -> Iterator[QualityRow]:
    for each in run.quality:
        value = each.value if each.value is not None and math.isfinite(each.value) else None
        yield QualityRow(candidate=_label(run, each.variant, measured), metric=each.metric, value=value, n=each.n)
