"""The page of one attention call: gates, times, speedups, roofline, and what the traces say, from a run folder."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from strobe.core.costs import Cost, device_peaks
from strobe.core.errors import DataError
from strobe.core.files import found_inside
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL
from strobe.perf.analysis.device.roofline import roofline
from strobe.perf.analysis.runs.compare import Comparison, compare_stage, timed_clips
from strobe.perf.measure.stats import outliers, percentile, tail
from strobe.perf.records.store import RunRecords
from strobe.perf.report.model import (
    SCHEMA_VERSION,
    Block,
    Cell,
    Code,
    Column,
    Count,
    LevelName,
    Missing,
    Number,
    Paragraph,
    Ratio,
    Report,
    Row,
    Section,
    Share,
    Speedup,
    Table,
    Text,
    Time,
)
from strobe.perf.report.sections.headline import ratio_cell, verdict_cell
from strobe.perf.report.sections.roofline import device_note, rate_cells, rate_columns, rate_number
from strobe.perf.report.sections.settings import banners, settings_section
from strobe.perf.report.study import Study, Subject, load_study

_GREEN, _RED = Text("green", "good"), Text("RED", "bad")
_LEVELS: Final[dict[str, LevelName]] = {ATTENTION_KERNEL: "kernel", ATTENTION: "section"}


def is_attention_run(run: RunRecords) -> bool:
    """Whether the records are of attention calls by themselves: no other region was timed."""
    return bool(run.spans) and all(span.name in _LEVELS for span in run.spans)


def attention_report(folder: Path, pair: tuple[str, str] | None = None) -> Report:
    """Build the page.

    Args:
        folder: the run folder.
        pair: only these two implementations, the second measured against the first.

    Raises:
        DataError: the folder holds no records of attention calls.
        ConfigError: the run does not have both of the pair.
    """
    study = load_study([folder], pair=pair)
    header = study.runs[0].header
    compared = tuple(_compared(study))
    sections = [_times(study), _speedups(compared) if compared else None, _rooflines(study), *_traced(study)]
    sizes = next((subject.settings.sizes for subject in study.subjects), {})
    return Report(
        v=SCHEMA_VERSION,
        speedups=tuple(_speedup(each) for each in compared),
        title="Attention: " + ", ".join(subject.label for subject in study.subjects),
        subtitle=", ".join([*(f"{name} {size}" for name, size in sizes.items()), f"on {header.machine.device_name}"]),
        facts=(),
        banners=banners(study),
        sections=(*(section for section in sections if section is not None), settings_section(study)),
    )


def _samples(subject: Subject, name: str) -> list[int]:
    orders = {clip.order for clip in timed_clips(subject.run) if clip.variant == subject.name}
    return [span.value_ns for span in subject.run.spans if span.name == name and span.order in orders]


def _compared(study: Study) -> Iterator[tuple[Subject, Subject, Comparison]]:
    for reference, candidate in study.pairs:
        for name in _LEVELS:
            try:
                yield reference, candidate, compare_stage(candidate.run, candidate.name, name, per_call=True)
            except DataError:
                continue


def _speedup(each: tuple[Subject, Subject, Comparison]) -> Speedup:
    reference, candidate, found = each
    saved_ns = found.saved_ns / found.baseline.calls
    return Speedup(candidate.label, reference.label, _LEVELS[found.stage], ratio_cell(found.ratio, found.interval), saved_ns)


def _times(study: Study) -> Section:
    columns = (
        Column("implementation"),
        Column("what"),
        Column("calls", numeric=True),
        Column("min", "µs", True),
        Column("p50", "µs", True),
        Column("mean", "µs", True),
        Column("slow end", "µs", True, "p99 from 459 calls on, otherwise the largest"),
        Column("outliers", numeric=True, hint="calls outside Tukey's fences; they are kept"),
        Column("mean without them", numeric=True, hint="how much lower or higher the mean would be"),
    )
    rows = []
    for subject in study.subjects:
        for name in _LEVELS:
            values = _samples(subject, name)
            if values:
                rows.append(Row((Code(subject.label), Text(_what(name)), *_time_cells(values))))
    blocks: list[Block] = [_gates(study), Table("Times of one call by itself.", columns, tuple(rows), _clock_notes(study))]
    lead = "Calls back to back, laps of the implementations interleaved. The gate was checked before any number was taken."
    return Section("times", "Times", lead, tuple(blocks))


def _what(name: str) -> str:
    return "kernel" if name == ATTENTION_KERNEL else "section"


def _time_cells(values: list[int]) -> tuple[Cell, ...]:
    end, outside = tail(values), outliers(values)
    return (
        Count(len(values)),
        Time(min(values)),
        Time(percentile(values, 0.5)),
        Time(statistics.fmean(values)),
        Time(end.value, f"{end.label} of {end.n}"),
        Count(len(outside.indices)),
        Number(100 * outside.effect, 2, "%"),
    )


def _clock_notes(study: Study) -> tuple[str, ...]:
    clocks = {span.clock for run in study.runs for span in run.spans}
    words = {
        "perf_counter": "Timed by the host clock around each call.",
        "cuda_event": "Timed by CUDA events around each call; calls wait in a full queue, so that no launch gap is in a time.",
    }
    note = "Section: of sparse attention, tile order, selection and kernel; dense attention has nothing but its kernel."
    names = {span.name for run in study.runs for span in run.spans}
    return (*(words[clock] for clock in sorted(clocks)), *((note,) if ATTENTION in names else ()))


def _gates(study: Study) -> Table:
    columns = (Column("implementation"), Column("gate"), Column("rule"), Column("measured"))
    rows = tuple(
        Row(
            (Code(gate.variant), Text("green", "good") if gate.passed else Text("RED", "bad"), Text(gate.rule), Text(gate.detail))
        )
        for run in study.runs
        for gate in run.gates
    )
    return Table("Gates.", columns, rows)


def _speedups(compared: tuple[tuple[Subject, Subject, Comparison], ...]) -> Section:
    columns = (
        Column("implementation"),
        Column("reference"),
        Column("what"),
        Column("speedup", numeric=True, hint="median of the ratios of laps, 95 % interval"),
        Column("verdict"),
        Column("pairs", numeric=True),
        Column("ratio of minima", numeric=True, hint="fastest lap against fastest lap"),
    )
    rows = tuple(
        Row(
            (
                Code(candidate.label),
                Code(reference.label),
                Text(_what(found.stage)),
                ratio_cell(found.ratio, found.interval),
                verdict_cell(found.verdict),
                Count(len(found.ratios)),
                Ratio(found.floor),
            )
        )
        for reference, candidate, found in compared
    )
    lead = "Reference time over the candidate's, kernel against kernel, section against section; above 1 the candidate is faster."
    return Section("speedups", "Speedups", lead, (Table("Speedups.", columns, rows),))


def _rooflines(study: Study) -> Section | None:
    name = study.runs[0].header.machine.device_name
    peaks = device_peaks(name)
    rows, anomalies = [], []
    for subject in study.subjects:
        values = _samples(subject, ATTENTION_KERNEL)
        for cost in subject.settings.costs if values else ():
            spent = Cost(flops=cost.flops, read_bytes=cost.read_bytes, write_bytes=cost.write_bytes)
            dense = None if cost.dense_flops is None else Cost(flops=cost.dense_flops)
            mean = statistics.fmean(values)
            found = roofline(mean, spent, peaks, subject.settings.dtype, dense=dense)
            effective = found.effective_flops_per_s
            shown: Cell = Missing("it is dense", "-") if effective is None else rate_number(effective / 1e12)
            sparsity = Share(subject.settings.sparsity or 0.0)
            rows.append(Row((Code(subject.label), Time(mean), Number(cost.flops / 1e9, 3), sparsity, *rate_cells(found), shown)))
            anomalies += [f"ANOMALY, {subject.label}: {found.anomaly}."] if found.anomaly else []
    if not rows:
        return None
    columns = (
        Column("implementation"),
        Column("mean", "ms", True),
        Column("GFLOP", numeric=True, hint="of the pairs of tokens that are computed"),
        Column("sparsity", numeric=True, hint="share of the pairs that is not computed, from the actual mask"),
        *rate_columns(peaks),
        Column("effective TFLOP/s", numeric=True, hint="FLOPs of the dense call / time; above the peak is possible"),
    )
    blocks = (Table("The kernel against the device.", columns, tuple(rows), (device_note(name, peaks), *anomalies)),)
    return Section("roofline", "Against the device's peaks", "", blocks)


def _traced(study: Study) -> Iterator[Section]:
    """The sections of the trace report, if there are traces."""
    from strobe.perf.report.trace_page.build import build_trace_report
    from strobe.perf.report.trace_page.study import load_trace_study

    names = {subject.name for subject in study.subjects}
    run = study.runs[0]
    recorded = {trace.path: found_inside(run.folder, trace.path) for trace in run.traces if trace.variant in names}
    if not recorded:
        return
    there = [path for path in recorded.values() if path is not None]
    gone = [f"{name} is not there any more, or is no file of the run folder." for name, path in recorded.items() if path is None]
    lead = "The traced calls are a run of their own, under the profiler: these times are not those above."
    yield Section(
        "traces",
        "What the traces say",
        lead,
        (Paragraph(" ".join(("Each implementation's trace is named by its file.", *gone))),),
    )
    if there:
        yield from build_trace_report(load_trace_study(there)).sections
