"""Timed stages against the peaks of the device, where the records hold the cost of a stage."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TypeAlias

from strobe.core.costs import DevicePeaks, device_peaks
from strobe.core.errors import DataError
from strobe.core.spans import ATTENTION_KERNEL
from strobe.perf.analysis.device.roofline import Roofline
from strobe.perf.analysis.runs.attended import cost_in_blocks
from strobe.perf.analysis.runs.compare import timed_clips
from strobe.perf.analysis.runs.latency import latencies
from strobe.perf.records.record import Variant
from strobe.perf.records.store import RunRecords
from strobe.perf.report.blocks.attention import extents
from strobe.perf.report.blocks.fields import Field, count, table_of, time
from strobe.perf.report.blocks.roofline import anomaly_notes, device_note, of_cost, peaks_section, rate_fields
from strobe.perf.report.model import Block, Code, Notes, Section, Text
from strobe.perf.report.study import Profile, RunStudy, Subject

_TRACED = "traced"
_Measured: TypeAlias = tuple[str, int, float, str, Roofline]
"""Stage, its calls, their mean time, how it was measured, and its roofline."""


def roofline_section(study: RunStudy) -> Section | None:
    """Build the section with every timed stage whose cost is known; None if no record has one."""
    blocks: list[Block] = []
    for subject in study.subjects:
        name = subject.run.header.machine.device_name
        peaks = device_peaks(name)
        fields: tuple[Field[_Measured], ...] = (
            Field("stage", lambda row: row[0], Code),
            Field("how", lambda row: Text(row[3], "muted")),
            count("n", lambda row: row[1]),
            time("mean", lambda row: row[2]),
            *rate_fields(peaks, lambda row: row[4]),
        )
        rows = tuple(_rows(subject, peaks))
        if rows:
            notes = (device_note(name, peaks), *anomaly_notes((row[0], row[4]) for row in rows))
            blocks.append(table_of(f"{subject.label}: steady stages, {subject.settings.dtype}.", fields, rows, notes=notes))
    note = "FLOPs and bytes follow from the shapes, not from counters: what a stage must compute, and the least it must move."
    lead = "How far each stage is from the best that the device could do. A rate above a peak is an error in it, and flagged."
    return peaks_section([*blocks, Notes((note,))] if blocks else (), lead)


def _rows(subject: Subject, peaks: DevicePeaks | None) -> Iterator[_Measured]:
    for full in subject.settings.costs:
        cost, measured = full, _measured(subject, full.span)
        if measured is None:
            continue
        calls, mean, where = measured
        if where == _TRACED and isinstance(subject.profile, Profile):
            cost = cost_in_blocks(cost, subject.settings, subject.profile.partition.indices)
        yield cost.span, calls, mean, where, of_cost(cost, mean, peaks, subject.settings.dtype)


def _measured(subject: Subject, name: str) -> tuple[int, float, str] | None:
    """Return calls and mean time (ns) of a region and how it was measured: timed in steady blocks, or traced inside a pass."""
    times = _steady_ns(subject.run, subject.settings, name)
    if times:
        return len(times), statistics.fmean(times), "timed"
    if name == ATTENTION_KERNEL and isinstance(subject.profile, Profile) and not _recached(subject.run, subject.profile):
        extent = extents(subject.profile).get(name)
        if extent is not None and extent.kernel_ns:
            return extent.calls, extent.kernel_ns / extent.calls, _TRACED
    return None


def _recached(run: RunRecords, profile: Profile) -> bool:
    """Return whether a prompt switch lies in the traced frame blocks, whose pass over the whole window has another cost."""
    prompts = () if run.header.workload is None else run.header.workload.prompts
    return any(prompt.frame_block in profile.partition.indices for prompt in prompts if prompt.frame_block)


def _steady_ns(run: RunRecords, variant: Variant, name: str) -> list[int]:
    """Return the times of a region in steady frame blocks of timed clips, ns; of a region outside of blocks, all times."""
    try:
        steady = latencies(run, variant.name).steady.kept
    except DataError:
        return []
    orders = {clip.order for clip in timed_clips(run) if clip.variant == variant.name}
    blocks = {*steady, None}  # None: on another thread
    return [span.value_ns for span in run.spans if span.name == name and span.order in orders and span.parent in blocks]
