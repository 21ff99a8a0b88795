"""Timed stages against what the device could do at best, where the records say what a stage must compute."""

from __future__ import annotations

import math
import statistics

from strobe.core.costs import Cost, DevicePeaks, device_peaks
from strobe.core.errors import DataError
from strobe.core.spans import ATTENTION_KERNEL
from strobe.perf.analysis.device.roofline import Roofline, roofline
from strobe.perf.analysis.runs.attended import cost_in_blocks
from strobe.perf.analysis.runs.compare import timed_clips
from strobe.perf.analysis.runs.latency import latencies
from strobe.perf.records.record import Variant
from strobe.perf.records.store import RunRecords
from strobe.perf.report.model import (
    Block,
    Cell,
    Code,
    Column,
    Count,
    Missing,
    Notes,
    Number,
    Row,
    Section,
    Share,
    Table,
    Text,
    Time,
)
from strobe.perf.report.sections.attention import extents
from strobe.perf.report.study import Profile, Study, Subject

_TRACED = "traced"
_ACHIEVED = (
    Column("TFLOP/s", numeric=True, hint="FLOPs of matrix products / time"),
    Column("GB/s", numeric=True, hint="bytes that must be moved at least / time"),
)
_AGAINST = (
    Column("of peak", numeric=True, hint="of the dtype's dense matrix peak"),
    Column("of bandwidth", numeric=True, hint="of the device memory's bandwidth"),
    Column("bound", hint="the higher of the two floors: FLOPs / peak, or bytes / bandwidth"),
    Column("floor", "ms", True, "least time that this device could take"),
    Column("floor / time", numeric=True),
)


def rate_columns(peaks: DevicePeaks | None) -> tuple[Column, ...]:
    """Head of what `rate_cells` gives: rates, and what they are of a device whose peaks are known."""
    return _ACHIEVED if peaks is None else (*_ACHIEVED, *_AGAINST)


def rate_cells(found: Roofline) -> tuple[Cell, ...]:
    """A roofline as cells under `rate_columns`."""
    achieved = (
        rate_number(found.flops_per_s / 1e12) if found.flops_per_s else Missing("no matrix products", "-"),
        rate_number(found.bytes_per_s / 1e9) if found.bytes_per_s else Missing("no bytes", "-"),
    )
    if found.device is None:
        return achieved
    unknown = Missing("the peak of this dtype is not known", "-")
    none = Missing("no matrix products", "-")
    return (
        *achieved,
        (unknown if found.flops_per_s else none) if found.compute_share is None else Share(found.compute_share),
        unknown if found.memory_share is None else Share(found.memory_share),
        unknown if found.bound is None else Text(found.bound),
        unknown if found.floor_ns is None else Time(found.floor_ns),
        unknown if found.share is None else Share(found.share),
    )


def rate_number(value: float) -> Number:
    """Four significant digits, six decimals at most."""
    return Number(value, min(6, max(0, 3 - math.floor(math.log10(value)))))


def device_note(name: str, peaks: DevicePeaks | None) -> str:
    """What the shares refer to, or why there are none."""
    if peaks is None:
        return f"No published peaks are known for {name}: rates only, nothing is held against a roofline."
    bandwidth = f"{peaks.bandwidth_bytes_per_s / 1e9:,.0f} GB/s"
    return f"{peaks.name}: peaks at boost clock, dense, {bandwidth} of memory bandwidth ({peaks.source})."


def roofline_section(study: Study) -> Section | None:
    """Every timed stage whose cost is known; None if no record says one."""
    blocks: list[Block] = []
    head = (Column("stage"), Column("how"), Column("n", numeric=True), Column("mean", "ms", True))
    for subject in study.subjects:
        rows, anomalies = _rows(subject)
        if rows:
            name = subject.run.header.machine.device_name
            notes = (device_note(name, device_peaks(name)), *anomalies)
            caption = f"{subject.label}: steady stages, {subject.settings.dtype}."
            blocks.append(Table(caption, (*head, *rate_columns(device_peaks(name))), rows, notes))
    if not blocks:
        return None
    note = "FLOPs and bytes follow from the shapes, not from counters: what a stage must compute, and the least it must move."
    lead = "How far each stage is from the best that the device could do. A rate above a peak is an error in it, and flagged."
    blocks.append(Notes((note,)))
    return Section("roofline", "Against the device's peaks", lead, tuple(blocks))


def _rows(subject: Subject) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    rows, anomalies = [], []
    peaks = device_peaks(subject.run.header.machine.device_name)
    for full in subject.settings.costs:
        cost, measured = full, _measured(subject, full.span)
        if measured is None:
            continue
        count, mean, where = measured
        if where == _TRACED and isinstance(subject.profile, Profile):
            cost = cost_in_blocks(cost, subject.settings, subject.profile.partition.indices)
        dense = None if cost.dense_flops is None else Cost(flops=cost.dense_flops)
        spent = Cost(flops=cost.flops, read_bytes=cost.read_bytes, write_bytes=cost.write_bytes)
        found = roofline(mean, spent, peaks, cost.dtype or subject.settings.dtype, dense=dense)
        rows.append(Row((Code(cost.span), Text(where, "muted"), Count(count), Time(mean), *rate_cells(found))))
        if found.anomaly:
            anomalies.append(f"ANOMALY, {cost.span}: {found.anomaly}.")
    return tuple(rows), tuple(anomalies)


def _measured(subject: Subject, name: str) -> tuple[int, float, str] | None:
    """How often a region was measured, its mean, and how: timed in steady frame blocks; one inside a pass, traced."""
    times = _steady_ns(subject.run, subject.settings, name)
    if times:
        return len(times), statistics.fmean(times), "timed"
    if name == ATTENTION_KERNEL and isinstance(subject.profile, Profile) and not _recached(subject.run, subject.profile):
        extent = extents(subject.profile).get(name)
        if extent is not None and extent.kernel_ns:
            return extent.calls, extent.kernel_ns / extent.calls, _TRACED
    return None


def _recached(run: RunRecords, profile: Profile) -> bool:
    """Whether a prompt switches in the traced frame blocks: a pass over the whole window is no call of the cost's size."""
    prompts = () if run.header.workload is None else run.header.workload.prompts
    return any(prompt.frame_block in profile.partition.indices for prompt in prompts if prompt.frame_block)


def _steady_ns(run: RunRecords, variant: Variant, name: str) -> list[int]:
    """Times of a region in the steady frame blocks of the timed clips; of one beside them, in all."""
    try:
        steady = latencies(run, variant.name).steady.kept
    except DataError:
        return []
    orders = {clip.order for clip in timed_clips(run) if clip.variant == variant.name}
    blocks = {*steady, None}  # None: on another thread
    return [span.value_ns for span in run.spans if span.name == name and span.order in orders and span.parent in blocks]
