"""The page of a kernel profile: the time of one step by operation, and every operation with its times and roofline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

from strobe.core.costs import DevicePeaks, device_peaks
from strobe.core.spans import DENOISE_STEP, NAMES, VAE_DECODE
from strobe.perf.analysis.device.roofline import Roofline, roofline
from strobe.perf.analysis.runs.budget import (
    CACHE,
    FEED_FORWARD,
    KERNELS,
    PROJECTIONS,
    REST,
    KernelProfile,
    Line,
    Operation,
    Whole,
)
from strobe.perf.measure.stats import outliers, percentile, tail
from strobe.perf.records.clocks import Clocks
from strobe.perf.records.record import Machine
from strobe.perf.report.blocks.fields import Field, count, heads, numeric, rows_of, share_cell, share_of, table_of, time
from strobe.perf.report.blocks.page import page
from strobe.perf.report.blocks.roofline import device_note, rate_fields
from strobe.perf.report.blocks.spread import slow_end
from strobe.perf.report.model import Banner, Block, Code, Fact, Report, Section, Table, Text

ISOLATED: Final = "by itself"
VARIES: Final = 0.02
"""Relative variation of the clocks from which a note is given."""
_DIFFERENCE: Final = "difference: as it runs - sum of the parts"
_NO_OPERATION: Final = "no operation of its own"
_Part: TypeAlias = tuple[Text, Fraction, Text]
"""Name of a part, its time in ns, and how it was measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profiled:
    """Facts of a kernel profile for its page: settings, machine, dtype, clocks.

    Args:
        facts: name and value, in order: preset, model, sizes.
        machine: what ran it.
        dtype: of weights and activations.
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


def kernel_report(found: KernelProfile, what: Profiled) -> Report:
    """Build the page of a kernel profile."""
    peaks = device_peaks(what.machine.device_name)
    details = _Details(profile=found, what=what, peaks=peaks)
    sections = (
        _budget(found, what),
        _regions(found),
        details.section("attention", "Attention", lambda each: each.kind in (KERNELS, PROJECTIONS)),
        details.section("cache", "Key-value cache", lambda each: each.kind == CACHE),
        details.section("ffn", "Feed-forward", lambda each: each.kind == FEED_FORWARD),
        details.section("other", "Norms, residuals, embedding, head", _is_other),
        _decoder(found, what, details),
        _stages(found, what),
    )
    anomalies = tuple(details.anomalies())
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


def _doubts(what: Profiled) -> Iterator[str]:
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


def _is_other(each: Operation) -> bool:
    return each.kind not in (KERNELS, PROJECTIONS, CACHE, FEED_FORWARD)


# --------------------------------------------------------------------------------------------------------------- budget


def _budget(found: KernelProfile, what: Profiled) -> Section:
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
        *_spread(step),
    )
    lead = "The parts and the difference add up to the measured step."
    table = Table("One denoise step.", heads(fields), rows_of(fields, rows, strong=lambda row: row is rows[-1]), notes)
    return Section("budget", "Per-step time budget", lead, (table,))


def _spread(whole: Whole) -> Iterator[str]:
    times, end = whole.times_ns, tail(whole.times_ns)
    outside = outliers(times)
    slow = f"{end.label} {end.value / 1e6:.4g} ms"
    yield f"The step as it runs: p50 {percentile(times, 0.5) / 1e6:.4g} ms, {slow}, n = {len(times)}."
    if outside.indices:
        yield (
            f"{len(outside.indices)} of {outside.n} steps lie outside Tukey's fences and are kept; without them the mean would "
            f"change by {100 * outside.effect:.2g} %."
        )


def _float(ns: Fraction | None) -> float | None:
    return None if ns is None else float(ns)


def _regions(found: KernelProfile) -> Section:
    step = found.step
    fields: tuple[Field[Line], ...] = (
        Field("region of the step", lambda row: (Code if row.name in NAMES else Text)(row.name)),
        time("as it runs", lambda row: _float(row.in_situ_ns), hint="timers around each region of each layer"),
        numeric("share of step", lambda row: row.in_situ_ns, show=share_of(step.mean_ns)),
        time("sum of parts", lambda row: _float(row.isolated_ns), hint="operations by themselves", missing=_NO_OPERATION),
        time("difference", lambda row: _float(row.difference_ns), missing=_NO_OPERATION),
    )
    whole = Line(name=DENOISE_STEP, isolated_ns=step.isolated_ns, in_situ_ns=step.mean_ns)
    notes = (
        f"Regions: mean over {len(found.fine_ns)} steps with timers around every region of every layer, in frame blocks of one "
        f"stream, interleaved with the {len(found.step.times_ns)} steps without; what the timers cost is a line of its own.",
        f"{REST.capitalize()}: {', '.join(each.name for each in found.step.operations if each.inside == REST)}.",
    )
    rows = rows_of(fields, (*found.by_region(), whole), strong=lambda row: row is whole)
    table = Table("One denoise step by region.", heads(fields), rows, notes)
    return Section("regions", "The same step as it runs", "What a region takes in a running step, against its parts.", (table,))


# -------------------------------------------------------------------------------------------------------------- details


@dataclass(frozen=True, kw_only=True, slots=True)
class _Details:
    """Builder of the tables of operations."""

    profile: KernelProfile
    what: Profiled
    peaks: DevicePeaks | None

    def section(self, id: str, title: str, chosen: Callable[[Operation], bool]) -> Section | None:
        """Build the section of chosen operations in a step, and of those that are not part of it, for comparison."""
        parts = [each for each in self.profile.step.operations if chosen(each)]
        others = [each for each in self.profile.reference if chosen(each)]
        blocks: list[Block] = []
        if parts:
            blocks.append(self.table(f"{title}: operations of a step, {ISOLATED}.", parts, self.profile.step.mean_ns, "step"))
        if others:
            caption = f"{title}: no part of a denoise step of this preset, {ISOLATED}."
            blocks.append(self.table(caption, others, None, ""))
        return Section(f"details-{id}", title, "", tuple(blocks)) if blocks else None

    def table(self, caption: str, operations: Sequence[Operation], whole: Fraction | None, unit: str) -> Table:
        """Build a table with one row per operation; with a whole, also its share of that."""
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
            *rate_fields(self.peaks, self._roofline, "its cost is not modelled"),
        )
        notes = [device_note(self.what.machine.device_name, self.peaks)]
        waiting = [each.name for each in operations if each.waits]
        if self.what.machine.on_gpu:
            held = "overwritten before each call" if self.what.cold else "as the call before left them"
            notes.append(f"CUDA events around single calls in a full queue; caches {held}.")
            if waiting:
                notes.append(f"Launch gaps lie in the times of {', '.join(waiting)}: they wait for the GPU.")
        return table_of(caption, fields, operations, notes=notes)

    def _roofline(self, each: Operation) -> Roofline | None:
        return None if each.cost is None else roofline(each.mean_ns, each.cost, self.peaks, self.what.dtype)

    def anomalies(self) -> Iterator[str]:
        """Yield a sentence for every rate above a peak."""
        for each in (*self.profile.step.operations, *self.profile.decode.operations, *self.profile.reference):
            found = self._roofline(each)
            if found is not None and found.anomaly:
                yield f"{each.name}: {found.anomaly}"


# ------------------------------------------------------------------------------------------------------ decoder, stages


def _decoder(found: KernelProfile, what: Profiled, details: _Details) -> Section:
    decode = found.decode
    table = details.table(f"Decoder of one frame block: modules, {ISOLATED}.", decode.operations, decode.mean_ns, "decode")
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
    shown = rows_of(fields, rows, strong=lambda row: row is rows[-1])
    notes = [
        f"As it runs: mean of {len(decode.times_ns)} frame blocks. Pixel shuffles and the copy to uint8 are in the difference."
    ]
    if what.overlapped:
        notes.append("It ran beside the commit pass, which slows both down; by themselves the modules had the device alone.")
    account = Table("Decoder: parts against the whole.", heads(fields), shown, tuple(notes))
    return Section("decoder", "VAE decoder", "", (table, account))


def _stages(found: KernelProfile, what: Profiled) -> Section:
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
