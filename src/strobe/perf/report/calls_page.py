"""The page of the caller's own code: functions called, or programs run, against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from strobe.perf.analysis.ledger.account import Ledger
from strobe.perf.analysis.runs.compare import CallsRow, own_code
from strobe.perf.measure.stats import percentile
from strobe.perf.records.record import Header
from strobe.perf.report.blocks.answer import ledger_blocks, no_account, speedups
from strobe.perf.report.blocks.fields import page, pair_fields, slow_end, speedup_headline, verdict_cell
from strobe.perf.report.blocks.grid import plane_of
from strobe.perf.report.blocks.kernels import run_kernels
from strobe.perf.report.blocks.settings import banners, environment_table, gates_table, timed_facts
from strobe.perf.report.findings import Finding, find
from strobe.perf.report.study import RunStudy
from strobe.perf.table.fields import Field, Unit, count, numeric, table_of, time
from strobe.perf.table.model import (
    Axis,
    Block,
    Cell,
    Code,
    Figure,
    Headline,
    Headlines,
    Missing,
    Notes,
    Report,
    Section,
    Table,
    Text,
    bytes_cell,
    time_text,
)

_UNITS: Final[tuple[tuple[float, Unit], ...]] = ((1e3, "ns"), (1e6, "µs"), (1e10, "ms"))
_NOT_TIMED: Final = "it was not timed"


def calls_report(study: RunStudy, allow_different: Sequence[str] = ()) -> tuple[Report, tuple[Finding, ...]]:
    """Build the page of one run of functions or programs, and return the findings it rests on."""
    run = study.runs[0]
    head, found = run.header, own_code(run)
    findings = find(study, allow_different)
    programs = head.kind == "programs"
    parts = (
        _times(head, found),
        None if programs else _outputs(head, found),
        _samples(found),
        None if programs or not findings else _account(findings),
        run_kernels(study, calls=True) if run.traces else None,
        _settings(study, found),
        _notes(head),
    )
    others = [row.name for row in found if row.name != head.baseline]
    report = page(
        speedups=speedups(findings),
        title=f"{f'{len(others)} others' if len(others) > 3 else ' and '.join(others)} against {head.baseline}",
        subtitle=f"{'programs' if programs else 'functions'}, on {head.machine.device_name}",
        facts=timed_facts(head, "Baseline", "Timed samples", sum(len(row.samples_ns) for row in found)),
        banners=banners(study),
        sections=parts,
    )
    return report, findings


def times_table(head: Header, found: Sequence[CallsRow]) -> Table:
    """Build the table of one call or run of each, and its speedup over the baseline."""
    programs, on_gpu = head.kind == "programs", head.machine.on_gpu
    unit = _unit(found)
    fields: list[Field[CallsRow]] = [
        Field("program" if programs else "function", lambda row: row.name, Code),
        numeric("speedup", lambda row: _speedup(head, row), "baseline time / its own: median of the pairs, 95 % interval"),
        numeric(f"median pair, {unit}", lambda row: _pair(row, unit), "baseline -> its own; their quotient is the speedup"),
        Field("verdict", _verdict),
        time("mean", lambda row: row.mean_ns, unit, "geometric mean of the samples", missing=_NOT_TIMED),
        numeric("95 % interval", lambda row: _interval(row, unit), f"of the mean, {unit}", missing=_NOT_TIMED),
        time("min", lambda row: row.min_ns, unit, missing=_NOT_TIMED),
    ]
    if on_gpu:
        hint = "the same between CUDA events around the calls: without the waits for an idle GPU at both ends"
        device: tuple[Field[CallsRow], ...] = pair_fields(lambda row: row.device_speedup or Missing("", ""))
        fields.append(replace(device[0], head="speedup on the GPU", hint=hint))
    if programs:
        fields += [
            time("user", lambda row: row.user_ns, unit, "CPU time outside the kernel", missing=_NOT_TIMED),
            time("system", lambda row: row.system_ns, unit, "CPU time inside the kernel", missing=_NOT_TIMED),
        ]
    hint = _PEAK[head.kind, on_gpu]
    fields.append(numeric("peak memory", lambda row: _bytes(row, row.peak_bytes), hint))
    if not programs:
        hint = "most that a sample had above what there was when it began"
        fields.append(numeric("added memory", lambda row: _bytes(row, row.added_bytes), hint))
    if any(row.failures for row in found):
        fields.append(count("failed runs", lambda row: row.failures, "exit status other than 0"))
    what = "run" if programs else "call"
    return table_of(f"Time and memory of one {what}, against {head.baseline}.", fields, found, sortable=len(found) > 2)


_PEAK: Final = {
    ("calls", True): "most that torch had allocated on the GPU, of the whole process",
    ("calls", False): "largest resident set of the whole process",
    ("programs", False): "largest resident set of the program, or of the largest program that it waited for",
}


def _unit(found: Sequence[CallsRow]) -> Unit:
    largest = max((row.mean_ns for row in found if row.mean_ns is not None), default=1e6)
    return next((unit for limit, unit in _UNITS if largest < limit), "s")


def _interval(row: CallsRow, unit: Unit) -> Cell | None:
    if row.low_ns is None or row.high_ns is None:
        return Missing("two samples or more have one", "-") if row.samples_ns else None
    return Text(f"{time_text(row.low_ns, unit)} to {time_text(row.high_ns, unit)}")


def _pair(row: CallsRow, unit: Unit) -> Text:
    both = (row.pair_baseline_ns, row.pair_candidate_ns)
    return Text(" -> ".join(time_text(ns, unit) for ns in both if ns is not None))


def _speedup(head: Header, row: CallsRow) -> Cell:
    if row.name == head.baseline:
        return Text("1", "muted", "baseline")
    if row.speedup is None:
        return Missing(_why_none(row), "-")
    return row.speedup.cell


def _verdict(row: CallsRow) -> Text:
    if row.speedup is None:
        return Text("") if row.gate is None or row.gate.passed else Text("outputs differ", "bad")
    return verdict_cell(row.speedup.verdict)


def _why_none(row: CallsRow) -> str:
    return _NOT_TIMED if row.gate is None or row.gate.passed else "its output is not that of the baseline"


def _bytes(row: CallsRow, value: int | None) -> Cell:
    if value is None:
        small = "not more than what starts it, about 10 MiB" if row.command else "not known"
        return Missing(small if row.samples_ns else _NOT_TIMED, "-")
    return bytes_cell(value, "GiB", 2) if value >= 1 << 30 else bytes_cell(value, "MiB", 1)


def _times(head: Header, found: Sequence[CallsRow]) -> Section:
    rows = tuple(_headline(head, row, number) for number, row in enumerate(found) if row.name != head.baseline)
    what = "one run of the program, from its start to its end" if head.kind == "programs" else "one call"
    lead = (
        f"Times are of {what}. The speedup is the baseline's time over the candidate's, the median over mirrored pairs of "
        "samples; above 1 the candidate is faster."
    )
    fields: tuple[Field[CallsRow], ...] = (
        Field("candidate", lambda row: row.name, Code),
        *pair_fields(lambda row: row.speedup or Missing(_why_none(row), "-")),
    )
    table = table_of(f"Speedups over {head.baseline}.", fields, [row for row in found if row.name != head.baseline])
    return Section("times", "How much faster", lead, (Headlines(head.baseline, rows, table), times_table(head, found)))


def _headline(head: Header, row: CallsRow, series: int) -> Headline:
    found = row.speedup
    if found is None:
        why = _why_none(row)
        return Headline(row.name, series, Missing(why), _verdict(row) if row.gate else Text("not timed", "muted"), why)
    told = speedup_headline(row.name, series, found)
    return msgspec.structs.replace(told, detail=f"{told.detail}; {_pair(row, 'ms').text} ms in the median pair")


def _outputs(head: Header, found: Sequence[CallsRow]) -> Section:
    gated = [row.gate for row in found if row.gate is not None]
    if not gated:
        return Section("outputs", "Outputs", "", (Notes(("The outputs were not compared: any output was allowed.",)),))
    lead = "Each function was called once with equal inputs and equal random numbers before anything was timed."
    table = gates_table(f"Outputs against {head.baseline}'s.", ("function", "output"), ("equal", "DIFFERENT"), gated)
    return Section("outputs", "Outputs", lead, (table,))


def _samples(found: Sequence[CallsRow]) -> Section | None:
    timed, unit = [row for row in found if row.samples_ns], _unit(found)
    if not timed:
        return None
    fields: tuple[Field[CallsRow], ...] = (
        Field("name", lambda row: row.name, Code),
        count("samples", lambda row: row.samples),
        count("calls in each", lambda row: row.calls_per_sample),
        time("min", lambda row: row.min_ns, unit),
        time("p50", lambda row: percentile(row.samples_ns, 0.5), unit),
        slow_end(lambda row: row.samples_ns, unit, "samples"),
    )
    points = {row.name: list(enumerate(row.samples_ns, start=1)) for row in timed}
    x = Axis("sample, in the order they ran", whole=True)
    y = Axis("time of one run" if timed[0].command else "time of one call", "ms", from_zero=True)
    title, table = "Every timed sample, in the order they ran.", table_of("Samples.", fields, timed)
    figure = Figure(title, "Times by sample; the table sums them up.", plane_of(points, x, y), table, table_open=True)
    lead = "A slope is drift, a lone point a disturbance. Nothing is left out but what compiled or ran on a throttled GPU."
    return Section("samples", "Samples", lead, (figure,))


def _account(findings: Sequence[Finding]) -> Section:
    told = [(each, each.ledger) for each in findings if isinstance(each.ledger, Ledger)]
    every = (block for each, ledger in told for block in ledger_blocks(each, ledger, calls=True))
    blocks: list[Block] = [msgspec.structs.replace(each, collapsed=False) if isinstance(each, Table) else each for each in every]
    advice = 'trace=True takes traces; on a CPU strobe.span("name") around parts of the code is enough.'
    blocks += (Notes((*notes.items, advice)) for notes in no_account(findings, "No account for {}."))
    lead = "Where the samples spent their time, and what the difference is made of. The lines add up exactly."
    return Section("account", "Where the difference went", lead, tuple(blocks))


def _settings(study: RunStudy, found: Sequence[CallsRow]) -> Section:
    fields: tuple[Field[CallsRow], ...] = (
        Field("program", lambda row: row.name, Code),
        Field("command", lambda row: row.command, Code),
    )
    commands = (table_of("Commands.", fields, found),) if any(row.command for row in found) else ()
    blocks = (*commands, environment_table(study, "Environment."))
    return Section("settings", "What ran, and where", "", blocks, folded=True)


def _notes(head: Header) -> Section:
    how = (
        "A sample is wall time from an idle device to an idle device; short calls are repeated in a sample, and their inputs "
        "are made before it begins. Garbage is collected between samples."
    )
    if head.kind == "programs":
        how = (
            "A program is timed from just before it is started until it has ended; its output is thrown away and it reads "
            "nothing. CPU times are of the program and of those it waited for."
        )
    items = (
        f"Samples ran in mirrored order, each round once through the list and once back, {head.palindromes} "
        f"round{'s' if head.palindromes > 1 else ''}, so that a drift of the machine meets all of them alike.",
        "Faster or slower: the 95 % interval excludes 1 and the difference of a sample exceeds 1 % and 1 µs. No difference: the "
        "interval stays within 5 % of 1. Inconclusive: more rounds are needed.",
        how,
    )
    return Section("notes", "Notes", "", (Notes(items),))
