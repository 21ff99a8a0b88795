"""The JSON documents of traces, of a speedup and of logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Annotated as A
from typing import Any, ClassVar

from strobe.perf.analysis.comparable import CommonPart, FactPart, obstacles
from strobe.perf.analysis.critical_path import CriticalPathRow, PathPartRow, WhatIfRow
from strobe.perf.analysis.device.activity import DeviceRow, KindRow, StreamRow
from strobe.perf.analysis.device.intervals import Distribution
from strobe.perf.analysis.device.kernels import KernelNameRow, KernelRow
from strobe.perf.analysis.device.launch import GapsRow, LaunchRow, QueueRow
from strobe.perf.analysis.ledger.account import Ledger
from strobe.perf.analysis.ledger.speedup import LevelFigure, PartLine
from strobe.perf.analysis.ledger.traces import PathTree, TracedSide
from strobe.perf.analysis.operators import OperatorCallerRow, OperatorKernelRow, OperatorRateRow, OperatorRow, OperatorTimeRow
from strobe.perf.analysis.runs.log_times import SeriesSummary, StageRounds
from strobe.perf.analysis.structure.collectives import CollectiveRow
from strobe.perf.analysis.structure.ranges import MemoryRow, RangeRow
from strobe.perf.analysis.structure.sections import FocalKernels, SectionRow
from strobe.perf.analysis.structure.steps import LayerRow, Steps, TraceStepRow
from strobe.perf.logs.series import Log
from strobe.perf.report.blocks.answer import limit
from strobe.perf.report.blocks.logs import InputFile, round_label
from strobe.perf.report.documents.runs import Document, in_title
from strobe.perf.report.speedup_page.build import anomalies, contradictions, headline, headline_levels
from strobe.perf.report.speedup_page.study import LoadedSide, SpeedupStudy
from strobe.perf.report.speedup_page.tables import no_account
from strobe.perf.report.study import TraceStudy
from strobe.perf.report.trace_page.device import IdleRow, TraceFile, devices_of, traces_of
from strobe.perf.table.rows import DocumentPart, as_row, col, part_of


class TraceDocument(Document, frozen=True, kw_only=True):
    """Tables of profiler traces: devices, kernels, steps, ranges and more.

    `rows()` returns the kernel table; `rows("steps")` and the like return the other tables.
    """

    MAIN: ClassVar[str] = "kernels"
    SHOWN: ClassVar[tuple[str, ...]] = ("devices", "idle", "kernels", "operator_times", "what_if")
    BRIEF: ClassVar[dict[str, tuple[str, ...]]] = {
        "devices": ("trace", "device", "span_ns", "busy_ns", "idle_ns", "verdict"),
        "kernels": ("kernel", "calls", "exclusive_ns", "sum_ns"),
    }

    files: A[tuple[TraceFile, ...], col("trace files that were read, in order of rank and path")]
    skipped: A[tuple[str, ...], col("files in the folders that are not traces, each with the reason")]
    devices: A[tuple[DeviceRow, ...], col("devices with events; empty for traces of the host alone")]
    kinds: A[tuple[KindRow, ...], col("busy time by kind of work")]
    streams: A[tuple[StreamRow, ...], col("busy time by stream")]
    idle: A[tuple[IdleRow, ...], col("idle time by cause")]
    kernels: A[tuple[KernelRow, ...], col("all kernels, most exclusive time first")]
    kernel_names: A[tuple[KernelNameRow, ...], col("full names of the kernels")]
    launches: A[tuple[LaunchRow, ...], col("launch calls")]
    steps: A[tuple[TraceStepRow, ...], col("steps of the whole trace, whatever the window")]
    no_steps: A[tuple[str, ...], col("devices without steps, each with the reason")]
    ranges: A[tuple[RangeRow, ...], col("device time by range and module")]
    layers: A[tuple[LayerRow, ...], col("device time by layer, the kind with the most time first")]
    sections: A[tuple[SectionRow, ...], col("sections that were requested")]
    gaps: A[tuple[GapsRow, ...], col("gaps between kernels, by the kernels before and after")]
    collectives: A[tuple[CollectiveRow, ...], col("communication by kind of collective")]
    operators: A[tuple[OperatorRow, ...], col("host time by operator, without device events")]
    operator_times: A[tuple[OperatorTimeRow, ...], col("device time by operator, inputs and phase; empty without details")]
    operator_kernels: A[tuple[OperatorKernelRow, ...], col("kernels of `operator_times`")]
    operator_callers: A[tuple[OperatorCallerRow, ...], col("callers of `operator_times`")]
    operator_rates: A[tuple[OperatorRateRow, ...], col("rates of the operators, against the device's peaks")]
    critical_paths: A[tuple[CriticalPathRow, ...], col("critical path of each trace; empty without details")]
    critical_path_parts: A[tuple[PathPartRow, ...], col("parts of each critical path")]
    what_if: A[tuple[WhatIfRow, ...], col("duration of each trace without some of its work")]
    queues: A[tuple[QueueRow, ...], col("queue length of devices and streams")]
    memory: A[tuple[MemoryRow, ...], col("memory use of the devices")]
    metadata: A[dict[str, dict[str, str]], col("by trace: further facts in the file, as text")]

    def title(self) -> str:
        """Return one line with the traces and the busy share of each device."""
        shares = ", ".join(
            f"{each.trace} device {each.device} busy {each.busy_ns / max(1, each.span_ns):.1%}" for each in self.devices
        )
        return f"{', '.join(each.trace for each in self.files)}: {shares or 'no device events'}"


def trace_document(study: TraceStudy) -> TraceDocument:
    """Return everything that was found in some traces.

    Raises:
        DataError: a trace whose times cannot be.
        ConfigError: a section or step that is not defined as one.
    """
    traces, devices = traces_of(study), devices_of(study)
    steps = [one.steps for one in devices]
    timed = [one.times for one in devices if one.times]
    paths = [path for found in traces for path in found.known_path]
    no_steps = (f"{one.trace}, device {one.device}: {one.steps}" for one in devices if isinstance(one.steps, str))
    metadata = {found.trace: dict(found.read.metadata) for found in traces}
    return TraceDocument(
        files=tuple(found.file for found in traces),
        devices=tuple(one.done for one in devices),
        kinds=tuple(row for one in devices for row in one.account.kinds),
        streams=tuple(row for one in devices for row in one.account.streams),
        idle=tuple(row for one in devices for row in one.idle),
        kernels=tuple(row for one in devices for row in one.hot),
        kernel_names=tuple(name for one in devices for _, names in one.kernels for name in names),
        launches=tuple(row for one in devices for row in one.launches.calls),
        steps=tuple(row for found in steps if isinstance(found, Steps) for row in found.steps),
        ranges=tuple(row for one in devices for row in one.ranges.rows),
        layers=tuple(row for one in devices for group in one.layers for row in group.layers),
        sections=tuple(row for found in traces for row in found.sections),
        gaps=tuple(row for one in devices for row in one.gaps.rows),
        collectives=tuple(row for found in traces for own in found.communication for row in own.kinds),
        operators=tuple(row for found in traces if found.host for row in found.host.rows),
        operator_times=tuple(row for times in timed for row in times.rows),
        operator_kernels=tuple(row for times in timed for own in times.kernels for row in own),
        operator_callers=tuple(row for times in timed for own in times.callers for row in own),
        operator_rates=tuple(row for one in devices for row, _ in one.rates),
        critical_paths=tuple(path for path, _, _ in paths),
        critical_path_parts=tuple(part for _, parts, _ in paths for part in parts),
        what_if=tuple(one for *_, found in paths for one in found),
        queues=tuple(row for one in devices for row in one.queues),
        memory=tuple(row for found in traces for row, _ in found.memory),
        skipped=study.skipped,
        no_steps=tuple(no_steps),
        metadata=metadata,
    )


def log_document(log: Log) -> dict[str, Any]:
    """Return the line counts, damage and rejected values of a log."""
    return {
        "path": str(log.path),
        "counts": asdict(log.counts),
        "damage": list(log.damage),
        "similar": [
            {"line": each.line, "text": each.text, "pattern": pattern, "reason": ""}
            for pattern, lines in log.similar.items()
            for each in lines
        ],
        "rejected": {series.title: dict(series.rejected) for series in log.series if series.rejected},
    }


def files_document(files: Sequence[InputFile | Log]) -> dict[str, Any]:
    """Return the files that were read, and what became of the lines of logs."""
    listed = [{"path": str(file.path), "bytes": file.size_bytes, "sha256": file.sha256} for file in files]
    return {"inputs": listed, "logs": [log_document(file) for file in files if isinstance(file, Log)]}


def rounds_document(label: str, rounds: StageRounds) -> dict[str, Any]:
    """Return the rounds of one stage in one log."""
    steady = rounds.avg_excl_warmup_ns
    return {
        "log": label,
        "stage": rounds.name,
        "rounds_ns": list(rounds.rounds_ns),
        "avg_all_rounds_ns": float(rounds.avg_all_rounds_ns),
        "avg_excl_warmup_ns": None if steady is None else float(steady),
        "excluded": {round_label(index): cause for index, cause in rounds.excluded.items()},
        "ranks": [{"rank": each.series.rank, "units": list(map(asdict, each.choices))} for each in rounds.resolved],
        "note": rounds.note,
    }


def timer_document(label: str, summary: SeriesSummary, remarks: Sequence[str]) -> dict[str, Any]:
    """Return the values of one timer of one log."""
    return {
        "log": label,
        "timer": summary.series.name,
        "rank": summary.series.rank,
        "units": list(map(asdict, summary.resolved.choices)),
        "values": len(summary.resolved.values_ns),
        "calls": _calls_document(summary.calls),
        "method": summary.method,
        "note": summary.note,
        "excluded": {cause: len(indices) for cause, indices in summary.excluded.items()},
        "outliers": summary.outliers,
        "remarks": list(remarks),
    }


def _calls_document(calls: Distribution) -> dict[str, Any]:
    return asdict(calls) | {"mean_ns": calls.mean_ns}


def kernels_document(label: str, found: Sequence[FocalKernels]) -> dict[str, Any]:
    """Return the focal kernels of one trace."""
    return {
        "trace": label,
        "devices": [{"device": each.device, "names": list(each.names), "calls": _calls_document(each.calls)} for each in found],
    }


class AnswerPart(DocumentPart, frozen=True, kw_only=True):
    """Summary of the account: headline, largest parts and explained shares."""

    headline: A[str, col("speedups in words, or the reason why there are none")]
    levels: A[tuple[str, ...], col("levels of the speedups in `headline`; empty if there is none")]
    missing: A[str, col("reason why there is no account; empty if there is one")]
    unit: A[str, col("`whole run`, `stage`, `step`, `focal call` or `traced window`; empty: no account")]
    baseline_ns: A[Fraction | None, col("time of the baseline, ns as exact text; null: no account")]
    candidate_ns: A[Fraction | None, col("time of the candidate, ns as exact text; null: no account")]
    explained_time_share: A[float | None, col("share of a unit in named parts, 0 to 1; null: no account")]
    explained_saving_share: A[float | None, col("share of its saving in named parts; null: there is none")]
    limit: A[str, col("current bottleneck of the candidate in words; empty without an account")]
    parts: A[tuple[PartLine, ...], col("parts of one unit, at most eight, largest saving first")]


class SectionsPart(DocumentPart, frozen=True, kw_only=True):
    """Sections of one trace; a section is the time between two boundaries around a focal event."""

    definition: A[str, col("definition of the section by its boundaries")]
    found: A[int, col("number of sections")]
    length_ns: A[tuple[int, ...], col("length of each section")]
    busy_ns: A[tuple[int, ...], col("time in each section in which at least one of its events ran")]
    focal_inside_ns: A[tuple[int, ...], col("time in each section in which a focal event ran")]
    skipped: A[dict[str, int], col("by reason: number of focal calls without a section")]
    merged: A[int, col("number of focal calls that share the section of an earlier focal call")]
    overlapping: A[int, col("number of sections that start before an earlier one ends")]


class TracePart(DocumentPart, frozen=True, kw_only=True):
    """One trace of a side."""

    trace: A[str, col("label of the trace: its rank, or the name of the file")]
    device: A[int, col("number of the device that was compared")]
    compared_ns: A[int, col("total length of the compared steps")]
    steps: A[int, col("number of compared steps")]
    focal_ns: A[tuple[tuple[int, ...], ...], col("durations of the focal calls, one list per compared step")]
    sections: A[SectionsPart | None, col("sections of the trace; null: none were requested")]


class SidePart(DocumentPart, frozen=True, kw_only=True):
    """Inputs and findings of one side: focal kernel, section, log, timers, stage, traces."""

    focal: A[str | None, col("regular expression of the focal kernel; null: none was given")]
    section: A[str | None, col("definition of the section; null: none was given")]
    calls_per_stage: A[int | None, col("number of focal calls in a stage; null: not known")]
    calls_from: A[str, col("source of `calls_per_stage`, or the reason why it is not known")]
    log: A[dict[str, Any] | None, col("path, counts of lines, damage, lines like timings, rejected values")]
    attention: A[tuple[dict[str, Any], ...], col("attention timers of the log, as `attention` of [Extracted](#extracted)")]
    stage: A[dict[str, Any] | None, col("rounds of the stage in the log, as `stages` of [Extracted](#extracted); null: none")]
    traces: A[tuple[TracePart, ...], col("traces with device events")]


class SpeedupDocument(Document, frozen=True, kw_only=True):
    """Speedup of the candidate at each level, and the account (ledger) of the difference.

    Times of a comparison are exact texts: an integer, or a fraction such as `12345/7`.
    `rows()` returns the lines of the ledgers as numbers, `rows("parts")` the answer, `rows("tree")` the time by module, operator
    and kernel; `rows("levels")`, `rows("kernels")` and `rows("facts")` return the other tables.
    """

    MAIN: ClassVar[str] = "lines"
    SHOWN: ClassVar[tuple[str, ...]] = ("parts", "levels", "lines")
    BRIEF: ClassVar[dict[str, tuple[str, ...]]] = {"parts": ("part", "baseline_ns", "candidate_ns", "saved_ns", "share")}

    comparable: A[bool, col("true: the sides are comparable; false: the document has no ratios")]
    obstacles: A[tuple[str, ...], col("names of the facts that prevent the comparison")]
    not_comparable_because: A[tuple[str, ...], col("differences that prevent the comparison, in words")]
    allowed_different: A[tuple[str, ...], col("facts that differ and that --allow-different permits")]
    unlike: A[str, col("difference between the sections of the two sides; empty: none")]
    facts: A[tuple[FactPart, ...], col("all facts that the comparison depends on")]
    common_kernels: A[CommonPart | None, col("kernels that both sides ran; null if a side ran no kernel")]
    levels: A[dict[str, LevelFigure], col("times and speedup, by level from `kernel` to `e2e`")]
    call_ledger: A[Ledger | None, col("account from a focal kernel to the stage; null: not measured")]
    ledgers: A[tuple[Ledger, ...], col("accounts of traces: of the slowest ranks, then of every rank")]
    answer: A[AnswerPart, col("summary of the account of the slowest ranks")]
    tree: A[PathTree | None, col("time by module, operator and kernel; null unless both sides have traces")]
    contradictions: A[tuple[str, ...], col("figures that contradict each other; `anomalies` has them too")]
    anomalies: A[tuple[str, ...], col("figures that are impossible or doubtful")]
    sides: A[dict[str, SidePart], col("inputs and findings of `baseline` and `candidate`")]

    def _tables(self) -> Mapping[str, Callable[[], Iterable[dict[str, Any]]]]:
        return {
            "lines": lambda: ({"ranks": of.ranks, "unit": of.unit} | _flat(line) for of in self.ledgers for line in of.lines),
            "parts": lambda: ({"unit": self.answer.unit} | _flat(line) for line in self.answer.parts),
            "levels": lambda: map(_flat, self.levels.values()),
            "kernels": lambda: (
                {"ranks": of.ranks, "unit": of.unit, "kernel": each.kernel}
                | {f"{side}_calls": float(n) for side, n in zip(("baseline", "candidate"), each.calls, strict=True)}
                | _flat(each)
                for of in self.ledgers
                for each in of.kernels
            ),
            "facts": lambda: map(as_row, self.facts),
            "tree": lambda: (
                {"unit": of.unit, "path": " / ".join(node.path), "depth": len(node.path)} | _flat(node)
                for of in ([self.tree] if self.tree else [])
                for node in of.nodes
            ),
        }

    def title(self) -> str:
        """Return one line with the speedups, or the reasons why there are none."""
        if not self.comparable:
            return f"not comparable: {'; '.join(self.not_comparable_because)}"
        levels = self.levels.items()
        found = (in_title(name, one.ratio, one.low, one.high) for name, one in levels if one.ratio is not None)
        return f"candidate against baseline: {', '.join(found) or 'no level was measured on both sides'}"


def _flat(part: object) -> dict[str, Any]:
    """Return the plain attributes of a part; its exact times become numbers."""
    nested = ("baseline", "candidate", "calls", "covers_ns", "path")
    return {name: value for name, value in as_row(part).items() if name not in nested}


def speedup_document(study: SpeedupStudy) -> SpeedupDocument:
    """Return the document with everything that the report says."""
    checks = study.checks
    return SpeedupDocument(
        comparable=study.comparable,
        not_comparable_because=tuple(map(str, obstacles(checks))),
        obstacles=tuple(check.name for check in obstacles(checks)),
        unlike=study.unlike,
        allowed_different=tuple(check.name for check in checks if check.verdict == "allowed"),
        facts=checks,
        common_kernels=study.common,
        levels={figure.level: figure for figure in study.levels},
        call_ledger=study.call_account,
        ledgers=study.accounts,
        answer=_answer(study),
        tree=study.tree,
        contradictions=tuple(contradictions(study)),
        anomalies=tuple(anomalies(study)),
        sides=dict(zip(("baseline", "candidate"), map(_side, study.sides), strict=True)),
    )


def _answer(study: SpeedupStudy) -> AnswerPart:
    found = study.answer
    said = {"headline": headline(study), "levels": tuple(figure.level for figure in headline_levels(study))}
    if found is None:
        nothing = dict.fromkeys(("baseline_ns", "candidate_ns", "explained_time_share", "explained_saving_share"))
        return part_of(AnswerPart, **said, **nothing, missing=no_account(study), unit="", limit="", parts=())
    return part_of(AnswerPart, found, **said, missing="", limit=limit("candidate", found), parts=found.lines)


def _side(side: LoadedSide) -> SidePart:
    timings, traced, section = side.timings, side.traced, side.request.section
    return SidePart(
        focal=side.request.focal,
        section=None if section is None else str(section),
        calls_per_stage=timings.calls,
        calls_from=timings.calls_from,
        log=None if side.log is None else log_document(side.log),
        attention=tuple(timer_document(side.name, timer, side.remarks) for timer in timings.timers),
        stage=None if isinstance(timings.stage, str) else rounds_document(side.name, timings.stage),
        traces=() if isinstance(traced, str) else tuple(map(_trace, traced)),
    )


def _trace(own: TracedSide) -> TracePart:
    cut = own.sections
    return TracePart(
        trace=own.label,
        device=own.device,
        compared_ns=own.total_ns,
        steps=len(own.tiles),
        focal_ns=own.focal,
        sections=None
        if cut is None
        else part_of(
            SectionsPart,
            cut,
            definition=str(cut.definition),
            found=len(cut.found),
            length_ns=tuple(section.length_ns for section in cut.found),
            busy_ns=tuple(section.busy_ns for section in cut.found),
            focal_inside_ns=tuple(section.focal_ns for section in cut.found),
            skipped=dict(cut.skipped),
        ),
    )
