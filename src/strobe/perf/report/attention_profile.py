"""The page of one attention call from a run folder: gates, times, speedups, roofline, and the sections of its traces."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from strobe.core.costs import device_peaks
from strobe.core.errors import DataError
from strobe.core.files import found_inside
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL
from strobe.perf.analysis.device.roofline import Roofline
from strobe.perf.analysis.runs.compare import Comparison, compare_stage, timed_clips
from strobe.perf.measure.stats import outliers, percentile
from strobe.perf.records.record import Gate, SpanCost
from strobe.perf.records.store import RunRecords
from strobe.perf.report.blocks.fields import Field, count, numeric, table_of, time
from strobe.perf.report.blocks.page import page
from strobe.perf.report.blocks.ratios import ratio_cell, verdict_cell
from strobe.perf.report.blocks.roofline import anomaly_notes, device_note, of_cost, peaks_section, rate_fields, rate_number
from strobe.perf.report.blocks.settings import banners, settings_section
from strobe.perf.report.blocks.spread import slow_end
from strobe.perf.report.model import Cell, Code, LevelName, Number, Paragraph, Ratio, Report, Section, Share, Speedup, Table, Text
from strobe.perf.report.study import RunStudy, Subject

_GREEN, _RED = Text("green", "good"), Text("RED", "bad")
_Against: TypeAlias = tuple[Subject, SpanCost, float, Roofline]
"""A subject, the cost of its kernel, the mean time of it, and its roofline."""
_LEVELS: Final[dict[str, LevelName]] = {ATTENTION_KERNEL: "kernel", ATTENTION: "section"}


def is_attention_run(run: RunRecords) -> bool:
    """Return whether the records are of single attention calls, with no other region timed."""
    return bool(run.spans) and all(span.name in _LEVELS for span in run.spans)


def attention_report(study: RunStudy, traced: Sequence[Section] = ()) -> Report:
    """Build the page of an attention call.

    Args:
        study: of one run of attention calls.
        traced: what the page of its traces says.
    """
    header = study.runs[0].header
    compared = tuple(_compared(study))
    sections = [_times(study), _speedups(compared) if compared else None, _rooflines(study), _traces(study), *traced]
    sizes = next((subject.settings.sizes for subject in study.subjects), {})
    return page(
        speedups=map(_speedup, compared),
        title="Attention: " + ", ".join(subject.label for subject in study.subjects),
        subtitle=", ".join([*(f"{name} {size}" for name, size in sizes.items()), f"on {header.machine.device_name}"]),
        banners=banners(study),
        sections=(*sections, settings_section(study)),
    )


def _samples(subject: Subject, name: str) -> list[int]:
    orders = {clip.order for clip in timed_clips(subject.run) if clip.variant == subject.name}
    return [span.value_ns for span in subject.run.spans if span.name == name and span.order in orders]


def _compared(study: RunStudy) -> Iterator[tuple[Subject, Subject, Comparison]]:
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


def _times(study: RunStudy) -> Section:
    outside = "calls outside Tukey's fences; they are kept"
    fields: tuple[Field[tuple[Subject, str, list[int]]], ...] = (
        Field("implementation", lambda row: row[0].label, Code),
        Field("what", lambda row: _what(row[1])),
        count("calls", lambda row: len(row[2])),
        time("min", lambda row: min(row[2]), "µs"),
        time("p50", lambda row: percentile(row[2], 0.5), "µs"),
        time("mean", lambda row: statistics.fmean(row[2]), "µs"),
        slow_end(lambda row: row[2], "µs"),
        count("outliers", lambda row: len(outliers(row[2]).indices), outside),
        numeric("mean without them", _effect, "how much lower or higher the mean would be"),
    )
    rows = [(subject, name, values) for subject in study.subjects for name in _LEVELS if (values := _samples(subject, name))]
    times = table_of("Times of one call by itself.", fields, rows, notes=_clock_notes(study))
    lead = "Calls back to back, laps of the implementations interleaved. The gate was checked before any number was taken."
    return Section("times", "Times", lead, (_gates(study), times))


def _effect(row: tuple[Subject, str, list[int]]) -> Cell:
    return Number(100 * outliers(row[2]).effect, 2, "%")


def _what(name: str) -> str:
    return "kernel" if name == ATTENTION_KERNEL else "section"


def _clock_notes(study: RunStudy) -> tuple[str, ...]:
    clocks = {span.clock for run in study.runs for span in run.spans}
    words = {
        "perf_counter": "Timed by the host clock around each call.",
        "cuda_event": "Timed by CUDA events around each call; calls wait in a full queue, so that no launch gap is in a time.",
    }
    note = "Section: of sparse attention, tile order, selection and kernel; dense attention has nothing but its kernel."
    names = {span.name for run in study.runs for span in run.spans}
    return (*(words[clock] for clock in sorted(clocks)), *((note,) if ATTENTION in names else ()))


def _gates(study: RunStudy) -> Table:
    fields: tuple[Field[Gate], ...] = (
        Field("implementation", lambda gate: gate.variant, Code),
        Field("gate", lambda gate: Text("green", "good") if gate.passed else Text("RED", "bad")),
        Field("rule", lambda gate: gate.rule),
        Field("measured", lambda gate: gate.detail),
    )
    return table_of("Gates.", fields, [gate for run in study.runs for gate in run.gates])


def _speedups(compared: tuple[tuple[Subject, Subject, Comparison], ...]) -> Section:
    fields: tuple[Field[tuple[Subject, Subject, Comparison]], ...] = (
        Field("implementation", lambda row: row[1].label, Code),
        Field("reference", lambda row: row[0].label, Code),
        Field("what", lambda row: _what(row[2].stage)),
        numeric("speedup", lambda row: ratio_cell(row[2].ratio, row[2].interval), "median of the ratios of laps, 95 % interval"),
        Field("verdict", lambda row: verdict_cell(row[2].verdict)),
        count("pairs", lambda row: len(row[2].ratios)),
        numeric("ratio of minima", lambda row: row[2].floor, "fastest lap against fastest lap", show=Ratio),
    )
    lead = "Reference time over the candidate's, kernel against kernel, section against section; above 1 the candidate is faster."
    return Section("speedups", "Speedups", lead, (table_of("Speedups.", fields, compared),))


def _rooflines(study: RunStudy) -> Section | None:
    name = study.runs[0].header.machine.device_name
    peaks = device_peaks(name)
    sparsity = "share of the pairs that is not computed, from the actual mask"
    effective = "FLOPs of the dense call / time; above the peak is possible"
    fields: tuple[Field[_Against], ...] = (
        Field("implementation", lambda row: row[0].label, Code),
        time("mean", lambda row: row[2]),
        numeric("GFLOP", lambda row: Number(row[1].flops / 1e9, 3), "of the pairs of tokens that are computed"),
        numeric("sparsity", lambda row: row[0].settings.sparsity or 0.0, sparsity, show=Share),
        *rate_fields(peaks, lambda row: row[3]),
        numeric("effective TFLOP/s", _effective, effective, missing="it is dense"),
    )
    rows = [
        (subject, cost, mean, of_cost(cost, mean, peaks, subject.settings.dtype))
        for subject in study.subjects
        if (values := _samples(subject, ATTENTION_KERNEL))
        for mean in (statistics.fmean(values),)
        for cost in subject.settings.costs
    ]
    if not rows:
        return None
    notes = (device_note(name, peaks), *anomaly_notes((row[0].label, row[3]) for row in rows))
    return peaks_section((table_of("The kernel against the device.", fields, rows, notes=notes),))


def _effective(row: _Against) -> Number | None:
    found = row[3].effective_flops_per_s
    return None if found is None else rate_number(found / 1e12)


def trace_files(study: RunStudy) -> dict[str, Path | None]:
    """Return the trace files of the calls by their recorded path; None for one that is not a file of the run folder."""
    names, run = {subject.name for subject in study.subjects}, study.runs[0]
    return {trace.path: found_inside(run.folder, trace.path) for trace in run.traces if trace.variant in names}


def _traces(study: RunStudy) -> Section | None:
    """Return the section that introduces the traces' own sections; None without traces."""
    files = trace_files(study)
    if not files:
        return None
    gone = [f"{name} is not there any more, or is no file of the run folder." for name, path in files.items() if path is None]
    lead = "The traced calls are a run of their own, under the profiler: these times are not those above."
    blocks = (Paragraph(" ".join(("Each implementation's trace is named by its file.", *gone))),)
    return Section("traces", "What the traces say", lead, blocks)
