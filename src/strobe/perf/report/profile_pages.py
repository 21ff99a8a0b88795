"""The pages of profiles: attention, kernels, and operators with their modules."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final, TypeAlias

from strobe.core.costs import device_peaks
from strobe.core.errors import DataError
from strobe.core.files import found_inside
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, DENOISE_STEP, NAMES, VAE_DECODE
from strobe.perf.analysis.device.roofline import Roofline, roofline
from strobe.perf.analysis.operators import OperatorRow, attributed
from strobe.perf.analysis.runs.breakdown import (
    CACHE,
    FEED_FORWARD,
    KERNELS,
    PROJECTIONS,
    REST,
    BudgetLine,
    KernelProfile,
    Operation,
)
from strobe.perf.analysis.runs.compare import Comparison, compare_stage, num, side_clocks, timed_clips
from strobe.perf.measure.stats import outliers, percentile
from strobe.perf.records.record import Clocks, Machine, SpanCost
from strobe.perf.records.store import RunRecords
from strobe.perf.report.blocks.fields import page, pair_fields, section_of, slow_end
from strobe.perf.report.blocks.kernels import (
    anomaly_notes,
    clock_notes,
    clock_words,
    device_note,
    of_cost,
    peaks_section,
    ran_at,
    rate_fields,
    rate_number,
)
from strobe.perf.report.blocks.settings import banners, gates_table, settings_section
from strobe.perf.report.study import RunStudy, Subject
from strobe.perf.table.fields import Field, count, numeric, share_cell, share_of, table_of, time
from strobe.perf.table.model import (
    Banner,
    Block,
    Cell,
    Code,
    Fact,
    LevelName,
    Number,
    Report,
    Section,
    Share,
    Speedup,
    Table,
    Text,
    bytes_cell,
)
from strobe.perf.trace.events import MemoryTrack, Trace

# The page of one attention call from a run folder: gates, times, speedups, roofline, and the sections of its traces.

_Against: TypeAlias = tuple[Subject, SpanCost, float, Roofline]
"""A subject, the cost of its kernel, the mean time of it, and its roofline."""
_LEVELS: Final[dict[str, LevelName]] = {ATTENTION_KERNEL: "kernel", ATTENTION: "section"}


def is_attention_run(run: RunRecords) -> bool:
    """Return whether the records are of single attention calls, with no other region timed."""
    return bool(run.spans) and all(span.name in _LEVELS for span in run.spans)


def attention_report(study: RunStudy, traced: Sequence[Section] = ()) -> Report:
    """Build the page of a run of attention calls, with the sections of the page of its traces."""
    header = study.runs[0].header
    compared = tuple(_compared(study))
    sections = [_times(study), _speedups(compared) if compared else None, _rooflines(study), _traces(study), *traced]
    sizes = next((subject.settings.sizes for subject in study.subjects), {})
    return page(
        speedups=(
            Speedup(after.label, before.label, _LEVELS[each.stage], each.cell, each.saved_ns / num(each.baseline, per_call=True))
            for before, after, each in compared
        ),
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


def _times(study: RunStudy) -> Section:
    fields: tuple[Field[tuple[Subject, str, list[int]]], ...] = (
        Field("implementation", lambda row: row[0].label, Code),
        Field("what", lambda row: _LEVELS[row[1]]),
        count("calls", lambda row: len(row[2])),
        time("min", lambda row: min(row[2]), "µs"),
        time("p50", lambda row: percentile(row[2], 0.5), "µs"),
        time("mean", lambda row: statistics.fmean(row[2]), "µs"),
        slow_end(lambda row: row[2], "µs"),
    )
    rows = [(subject, name, values) for subject in study.subjects for name in _LEVELS if (values := _samples(subject, name))]
    apart = [f"{subject.label}, {_LEVELS[name]}: {text}." for subject, name, calls in rows for text in outliers(calls, "calls")]
    times = table_of("Times of one call by itself.", fields, rows, notes=(*_clock_notes(study), *apart))
    every = [gate for run in study.runs for gate in run.gates]
    gates = gates_table("Gates.", ("implementation", "gate"), ("green", "RED"), every)
    lead = "Calls back to back, laps of the implementations interleaved. The gate was checked before any number was taken."
    return Section("times", "Times", lead, (gates, times))


def _clock_notes(study: RunStudy) -> tuple[str, ...]:
    clocks = {span.clock for run in study.runs for span in run.spans}
    words = {
        "perf_counter": "Timed by the host clock around each call.",
        "cuda_event": "Timed by CUDA events around each call; calls wait in a full queue, so that no launch gap is in a time.",
    }
    note = "Section: of sparse attention, tile order, selection and kernel; dense attention has nothing but its kernel."
    names = {span.name for run in study.runs for span in run.spans}
    return (*(words[clock] for clock in sorted(clocks)), *((note,) if ATTENTION in names else ()))


def _speedups(compared: tuple[tuple[Subject, Subject, Comparison], ...]) -> Section:
    fields: tuple[Field[tuple[Subject, Subject, Comparison]], ...] = (
        Field("implementation", lambda row: row[1].label, Code),
        Field("reference", lambda row: row[0].label, Code),
        Field("what", lambda row: _LEVELS[row[2].stage]),
        *pair_fields(lambda row: row[2], "median of the ratios of laps"),
    )
    lead = "Reference time over the candidate's, kernel against kernel, section against section; above 1 the candidate is faster."
    return Section("speedups", "Speedups", lead, (table_of("Speedups.", fields, compared),))


def _rooflines(study: RunStudy) -> Section | None:
    name = study.runs[0].header.machine.device_name
    peaks = device_peaks(name)
    clocks = {subject.name: side_clocks(subject.run, subject.name) for subject in study.subjects}
    sparsity = "share of the pairs that is not computed, from the actual mask"
    effective = "FLOPs of the dense call / time; above the peak is possible"
    fields: tuple[Field[_Against], ...] = (
        Field("implementation", lambda row: row[0].label, Code),
        time("mean", lambda row: row[2]),
        numeric("GFLOP", lambda row: Number(row[1].flops / 1e9, 3), "of the pairs of tokens that are computed"),
        numeric("sparsity", lambda row: row[0].settings.sparsity or 0.0, sparsity, show=Share),
        *rate_fields(peaks, lambda row: row[3], clocked=any(clocks.values())),
        numeric(
            "effective TFLOP/s",
            lambda row: row[3].effective_flops_per_s,
            effective,
            show=lambda rate: rate_number(rate / 1e12),
            missing="it is dense",
        ),
    )
    rows = [
        (subject, cost, mean, of_cost(cost, mean, peaks, subject.settings.dtype, clocks[subject.name]))
        for subject in study.subjects
        if (values := _samples(subject, ATTENTION_KERNEL))
        for mean in (statistics.fmean(values),)
        for cost in subject.settings.costs
    ]
    ran = clock_notes(peaks, {subject.label: ran_at(clocks[subject.name]) for subject, *_ in rows})
    notes = (device_note(name, peaks), *ran, *anomaly_notes((row[0].label, row[3]) for row in rows))
    return peaks_section((table_of("The kernel against the device.", fields, rows, notes=notes),) if rows else ())


def trace_files(study: RunStudy) -> dict[str, Path | None]:
    """Return the trace files of the calls by their recorded path; None for one that is not a file of the run folder."""
    names, run = {subject.name for subject in study.subjects}, study.runs[0]
    return {trace.path: found_inside(run.folder, trace.path) for trace in run.traces if trace.variant in names}


def _traces(study: RunStudy) -> Section | None:
    files = trace_files(study)
    gone = [f"{name} is not there any more, or is no file of the run folder." for name, path in files.items() if path is None]
    lead = (
        "The traced calls are a run of their own, under the profiler: these times are not those above.",
        "Each implementation's trace is named by its file.",
    )
    return Section("traces", "What the traces say", " ".join((*lead, *gone)), ()) if files else None


# The page of a kernel profile: the time of one step by operation, and every operation with its times and roofline.

ISOLATED: Final = "by itself"
VARIES: Final = 0.02
"""Relative variation of the clocks from which a note is given."""
_DIFFERENCE: Final = "difference: as it runs - sum of the parts"
_NO_OPERATION: Final = "no operation of its own"
_Part: TypeAlias = tuple[Text, Fraction, Text]
"""Name of a part, its time in ns, and how it was measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileFacts:
    """Facts of a kernel profile for its page: settings, machine, dtype, clocks.

    Args:
        facts: name and value, in order: preset, model, sizes.
        cold: a GPU's cache was overwritten before each call by itself.
        compiled: the stream ran through torch.compile, the operations by themselves did not.
        overlapped: the decoder ran beside the transformer.
        clocks: of the device while all of it was measured; None where they were not read.
    """

    facts: tuple[tuple[str, str], ...]
    machine: Machine
    dtype: str
    cold: bool
    compiled: bool
    overlapped: bool
    clocks: Clocks | None = None


def kernel_report(found: KernelProfile, what: ProfileFacts) -> Report:
    """Build the page of a kernel profile."""
    operations = (*found.step.operations, *found.decode.operations, *found.reference)
    rates = ((each.name, rate) for each in operations if (rate := _roofline(what, each)) is not None)
    told = (KERNELS, PROJECTIONS, CACHE, FEED_FORWARD)
    sections = (
        _budget(found, what),
        _regions(found),
        _details(found, what, "attention", "Attention", lambda each: each.kind in (KERNELS, PROJECTIONS)),
        _details(found, what, "cache", "Key-value cache", lambda each: each.kind == CACHE),
        _details(found, what, "ffn", "Feed-forward", lambda each: each.kind == FEED_FORWARD),
        _details(found, what, "other", "Norms, residuals, embedding, head", lambda each: each.kind not in told),
        _decoder(found, what),
        _stages(found, what),
    )
    anomalies = tuple(f"{name}: {rate.anomaly}" for name, rate in rates if rate.anomaly)
    busy = tuple(_doubts(what))
    banners = [Banner("stop", "Rates that cannot be.", anomalies)] if anomalies else []
    banners += [Banner("caution", "Read the numbers with this in mind.", busy)] if busy else []
    return page(
        title="Kernel profile",
        subtitle=f"one denoise step, {what.dtype}, on {what.machine.device_name}",
        facts=(Fact(name, Text(value)) for name, value in what.facts),
        banners=banners,
        sections=sections,
    )


def _doubts(what: ProfileFacts) -> Iterator[str]:
    machine, clocks = what.machine, what.clocks
    load = machine.clocks.load
    if load is not None and load > machine.cores:
        yield f"the machine was busy when the profile began: load {load:g} on {machine.cores} cores"
    if clocks is None:
        return
    low, high = clocks.sm_mhz_min, clocks.sm_mhz_max
    if low and high and high - low > VARIES * high:
        yield f"SM clock varied by more than {100 * VARIES:g} % while it was measured: {low} to {high} MHz"
    if clocks.throttle:
        yield f"the GPU was throttled: {', '.join(clocks.throttle)}"


def _budget(found: KernelProfile, what: ProfileFacts) -> Section:
    step = found.step
    fields: tuple[Field[_Part], ...] = (
        Field("component", lambda row: row[0]),
        time("per step", lambda row: float(row[1]), hint="calls in a step x mean of one call by itself"),
        numeric("share of step", lambda row: row[1], show=share_of(step.mean_ns)),
        Field("measured", lambda row: row[2]),
    )
    rows: list[_Part] = [(Text(kind), ns, Text(ISOLATED, "muted")) for kind, ns in step.by_kind()]
    rows.append((Text(_DIFFERENCE), step.difference_ns, Text("subtracted", "muted")))
    rows.append((Text("one denoise step"), step.mean_ns, Text(f"as it runs, mean of {len(step.times_ns)}")))
    reasons = ["launches and the framework between operations", "other contents of caches", "operations that are in no part"]
    if what.compiled:
        reasons.append("fusion: the stream ran compiled, the parts by themselves did not")
    notes = (
        "Components are sums of operations timed by themselves, not parts of a running step. The difference is what is left: "
        f"{'; '.join(reasons)}. Above 0 the step takes longer than its parts, below 0 less.",
        *outliers(step.times_ns, "steps"),
    )
    lead = "The parts and the difference add up to the measured step."
    table = table_of("One denoise step.", fields, rows, strong=lambda row: row is rows[-1], notes=notes)
    return Section("budget", "Per-step time budget", lead, (table,))


def _regions(found: KernelProfile) -> Section:
    step = found.step
    fields: tuple[Field[BudgetLine], ...] = (
        Field("region of the step", lambda row: (Code if row[0] in NAMES else Text)(row[0])),
        time("as it runs", lambda row: float(row[2]), hint="timers around each region of each layer"),
        numeric("share of step", lambda row: row[2], show=share_of(step.mean_ns)),
        time(
            "sum of parts",
            lambda row: None if row[1] is None else float(row[1]),
            hint="operations by themselves",
            missing=_NO_OPERATION,
        ),
        time("difference", lambda row: None if row[1] is None else float(row[2] - row[1]), missing=_NO_OPERATION),
    )
    whole: BudgetLine = DENOISE_STEP, step.isolated_ns, step.mean_ns
    notes = (
        f"Regions: mean over {len(found.fine_ns)} steps with timers around every region of every layer, in frame blocks of one "
        f"stream, interleaved with the {len(found.step.times_ns)} steps without; what the timers cost is a line of its own.",
        f"{REST.capitalize()}: {', '.join(each.name for each in found.step.operations if each.inside == REST)}.",
    )
    rows = (*found.by_region(), whole)
    table = table_of("One denoise step by region.", fields, rows, strong=lambda row: row is whole, notes=notes)
    return Section("regions", "The same step as it runs", "What a region takes in a running step, against its parts.", (table,))


def _details(
    found: KernelProfile, what: ProfileFacts, id: str, title: str, chosen: Callable[[Operation], bool]
) -> Section | None:
    blocks = [
        _operations(what, f"{title}: {words}, {ISOLATED}.", parts, whole, unit)
        for words, operations, whole, unit in (
            ("operations of a step", found.step.operations, found.step.mean_ns, "step"),
            ("no part of a denoise step of this preset", found.reference, None, ""),
        )
        if (parts := [each for each in operations if chosen(each)])
    ]
    return section_of(f"details-{id}", title, "", blocks)


def _operations(what: ProfileFacts, caption: str, operations: Sequence[Operation], whole: Fraction | None, unit: str) -> Table:
    peaks, sm_mhz, gpu = device_peaks(what.machine.device_name), _sm_mhz(what), what.machine.gpu
    shares: tuple[Field[Operation], ...] = ()
    if whole is not None:
        shares = (
            time(f"per {unit}", lambda each: float(each.step_ns)),
            numeric(f"share of {unit}", lambda each: share_cell(each.step_ns, whole)),
        )
    fields: tuple[Field[Operation], ...] = (
        Field("operation", lambda each: each.name, Code),
        Field("what", lambda each: Text(each.what, "muted")),
        count("calls", lambda each: each.calls or None, f"in one {unit}" if unit else "", missing="no part of it"),
        time("mean", lambda each: float(each.mean_ns), "µs"),
        time("p50", lambda each: each.p50_ns, "µs"),
        slow_end(lambda each: each.times_ns, "µs"),
        *shares,
        *rate_fields(peaks, lambda each: _roofline(what, each), "its cost is not modelled", clocked=sm_mhz is not None),
    )
    ran = clock_notes(peaks, {"the whole profile": clock_words(sm_mhz, None if gpu is None else gpu.max_sm_mhz)})
    notes = [device_note(what.machine.device_name, peaks), *ran]
    waiting = [each.name for each in operations if each.waits]
    if what.machine.on_gpu:
        held = "overwritten before each call" if what.cold else "as the call before left them"
        notes.append(f"CUDA events around single calls in a full queue; caches {held}.")
        if waiting:
            notes.append(f"Launch gaps lie in the times of {', '.join(waiting)}: they wait for the GPU.")
    return table_of(caption, fields, operations, notes=notes)


def _sm_mhz(what: ProfileFacts) -> int | None:
    return what.clocks.sm_mhz if what.clocks is not None and what.clocks.samples else None


def _roofline(what: ProfileFacts, each: Operation) -> Roofline | None:
    if each.cost is None:
        return None
    return roofline(each.mean_ns, each.cost, device_peaks(what.machine.device_name), what.dtype, sm_mhz=_sm_mhz(what))


def _decoder(found: KernelProfile, what: ProfileFacts) -> Section:
    decode = found.decode
    table = _operations(what, f"Decoder of one frame block: modules, {ISOLATED}.", decode.operations, decode.mean_ns, "decode")
    fields: tuple[Field[tuple[Text | Code, Fraction]], ...] = (
        Field("", lambda row: row[0]),
        time("per decode", lambda row: float(row[1])),
        numeric("share", lambda row: row[1], show=share_of(decode.mean_ns)),
    )
    rows = (
        (Text("sum of the modules"), decode.isolated_ns),
        (Text(_DIFFERENCE), decode.difference_ns),
        (Code(VAE_DECODE), decode.mean_ns),
    )
    notes = [
        f"As it runs: mean of {len(decode.times_ns)} frame blocks. Pixel shuffles and the copy to uint8 are in the difference."
    ]
    if what.overlapped:
        notes.append("It ran beside the commit pass, which slows both down; by themselves the modules had the device alone.")
    account = table_of("Decoder: parts against the whole.", fields, rows, strong=lambda row: row is rows[-1], notes=notes)
    return Section("decoder", "VAE decoder", "", (table, account))


def _stages(found: KernelProfile, what: ProfileFacts) -> Section:
    fields: tuple[Field[tuple[str, Sequence[int]]], ...] = (
        Field("stage", lambda row: row[0], Code),
        Field("what", lambda row: Text(NAMES[row[0]], "muted")),
        count("n", lambda row: len(row[1])),
        time("mean", lambda row: sum(row[1]) / len(row[1])),
        time("p50", lambda row: percentile(row[1], 0.5)),
        slow_end(lambda row: row[1], "ms", "samples"),
    )
    beside = " The decoder runs beside the commit pass: the stages of a frame block do not add up." if what.overlapped else ""
    note = f"Stages as they run, without timers inside layers.{beside}"
    rows = [(DENOISE_STEP, found.step.times_ns), *found.stages_ns.items()]
    return Section("stages", "Stages as they run", "", (table_of("Stages.", fields, rows, notes=(note,)),))


def attribution_report(traces: Sequence[tuple[str, Trace]], options: Sequence[str], *, top: int) -> Report:
    """Build the page of an attribution run.

    Args:
        traces: each with its variant; read with operators.
    """
    on = ", ".join(options)
    caution = f"Taken with {on}: the profiler slowed the host unevenly. These times rank; they are no measurement."
    sections = tuple(Section(f"attribution-{label}", label, "", tuple(_blocks(trace, top))) for label, trace in traces)
    return page(
        title="Attribution: " + ", ".join(label for label, _ in traces),
        subtitle=f"with {on}",
        banners=(Banner("caution", "No measurement.", (caution,)),),
        sections=sections,
    )


def _blocks(trace: Trace, top: int) -> Iterator[Block]:
    for what, given in (("operator", trace), ("module", replace(trace, ops=trace.modules))):
        if rows := attributed(given):
            fields: list[Field[tuple[OperatorRow, int]]] = [
                Field(what, lambda row: row[0].operator, Code),
                count("calls", lambda row: row[0].calls, "number of calls"),
                time("device", lambda row: row[1], hint="work launched while this one was the innermost"),
                time("host, self", lambda row: row[0].self_ns, hint=f"on the host, without the {what}s that it calls"),
                time("host", lambda row: row[0].sum_ns, hint="on the host, with what it calls"),
            ]
            by = "device" if len(trace.device_events) else "self_host"
            yield table_of(f"{what.capitalize()}s by {by}: {min(top, len(rows))} of {len(rows)}.", fields, rows[:top])
    if trace.memory:
        tracks: tuple[Field[MemoryTrack], ...] = (
            Field("device", lambda track: track.device, Code),
            numeric("peak allocated", lambda track: track.allocated_bytes, show=_peak),
            numeric("peak held by the allocator", lambda track: track.reserved_bytes, show=_peak),
        )
        yield table_of("Memory.", tracks, trace.memory)


def _peak(values: Sequence[int]) -> Cell:
    return bytes_cell(max(values), "MiB", 1) if any(values) else Text("-", "muted")
