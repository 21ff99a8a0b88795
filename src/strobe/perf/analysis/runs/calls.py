"""Time of one call of a function, or one run of a program, from the samples of a run of the caller's own code."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from strobe.core.errors import DataError
from strobe.core.spans import E2E, FRAME_BLOCK
from strobe.perf.analysis.runs.compare import Comparison, compare_stage, stage_totals, timed_clips
from strobe.perf.measure.stats import Interval, paired_interval
from strobe.perf.records.record import Gate
from strobe.perf.records.store import RunRecords

KINDS = ("calls", "programs")
"""Kinds of runs of the caller's own code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnCode:
    """One function or program. Times are of one call, of one run.

    Args:
        name: of it.
        command: command line of a program; empty for a function.
        samples_ns: one per timed sample, in order; empty if it was not timed.
        calls_per_sample: calls that a sample is the mean of.
        mean_ns: geometric mean of the samples; None without samples.
        interval: 95 % interval of that mean, nanoseconds; None for fewer than two samples.
        user_ns, system_ns: CPU time of a program, mean; None for a function.
        peak_bytes: most over the samples; None: not known.
        added_bytes: most that a sample had above what there was when it began; None: not known.
        failures: timed runs whose exit status was not 0.
        gate: its output against the baseline's; None: not compared, or the baseline itself.
        speedup: baseline time / its own; None for the baseline, and where either was not timed.
        device_speedup: the same between CUDA events; None on a CPU.
    """

    name: str
    command: str
    samples_ns: tuple[float, ...]
    calls_per_sample: int
    mean_ns: float | None
    interval: Interval | None
    user_ns: float | None
    system_ns: float | None
    peak_bytes: int | None
    added_bytes: int | None
    failures: int
    gate: Gate | None
    speedup: Comparison | None
    device_speedup: Comparison | None


def is_own_code(run: RunRecords) -> bool:
    """Return whether the records are of functions or programs of the caller's own."""
    return run.header.kind in KINDS


def own_code(run: RunRecords) -> tuple[OwnCode, ...]:
    """Return what every function or program took, the baseline first; those that were not timed too."""
    gates = {gate.variant: gate for gate in run.gates}
    names = dict.fromkeys((run.header.baseline, *run.header.order))
    return tuple(_one(run, name, gates.get(name)) for name in names)


def _one(run: RunRecords, name: str, gate: Gate | None) -> OwnCode:
    clips = [clip for clip in timed_clips(run) if clip.variant == name]
    totals = {total.clip.order: total.total_ns for total in stage_totals(run, name, E2E)}
    samples = tuple(totals[clip.order] / clip.calls for clip in clips)
    logs = [math.log(value) for value in samples]
    peaks = [clip.peak_bytes for clip in clips if clip.peak_bytes is not None]
    added = [clip.peak_bytes - clip.start_bytes for clip in clips if clip.peak_bytes is not None and clip.start_bytes is not None]
    timed_on_device = any(span.variant == name and span.name == FRAME_BLOCK and span.clock == "cuda_event" for span in run.spans)
    return OwnCode(
        name=name,
        command=next((variant.command for variant in run.variants if variant.name == name), ""),
        samples_ns=samples,
        calls_per_sample=clips[0].calls if clips else 1,
        mean_ns=math.exp(statistics.fmean(logs)) if logs else None,
        interval=paired_interval(logs),
        user_ns=_mean([clip.user_ns for clip in clips]),
        system_ns=_mean([clip.system_ns for clip in clips]),
        peak_bytes=max(peaks, default=None) if len(peaks) == len(clips) else None,
        added_bytes=max(0, *added) if added and len(added) == len(clips) else None,
        failures=sum(bool(clip.exit_status) for clip in clips),
        gate=gate,
        speedup=_against(run, name, E2E),
        device_speedup=_against(run, name, FRAME_BLOCK) if timed_on_device else None,
    )


def _mean(values: list[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _against(run: RunRecords, name: str, stage: str) -> Comparison | None:
    """The comparison with the baseline; None where there is nothing to compare."""
    if name == run.header.baseline:
        return None
    try:
        return compare_stage(run, name, stage)
    except DataError:
        return None
