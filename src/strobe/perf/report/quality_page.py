"""Pages on quality: clips that were scored against a reference, and the acceptance of a model with every check and its bounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from strobe.core.errors import DataError
from strobe.perf.records.record import Check, CheckGroup, Quality
from strobe.perf.records.store import RunRecords, read_run
from strobe.perf.report.blocks.breakdown import quality_table
from strobe.perf.report.blocks.fields import end_banners, page, run_facts
from strobe.perf.report.blocks.settings import settings_section
from strobe.perf.report.study import load_study
from strobe.perf.table.fields import Field, beside, numeric, table_of
from strobe.perf.table.model import Banner, Cell, Code, Count, Fact, Missing, Report, Section, Table, Text, significant
from strobe.perf.table.rows import gathered

_LEAD = (
    "Fidelity numbers compare pixels, frame by frame, with the reference. They say how far a clip moved from it, not "
    "whether it looks worse."
)


def quality_report(reference: str, lines: Sequence[Quality]) -> Report:
    """Build the page of clips that were scored against a reference."""
    variants, tables = list(dict.fromkeys(line.variant for line in lines)), [scores_table(lines)]
    if why := dict.fromkeys((line.metric, line.note) for line in lines if line.value is None and not line.n):
        tables.append(table_of("What was not measured.", beside("not measured", ("why, and what to do",)), [*why]))
    return page(
        title=f"Quality against {reference}",
        subtitle=", ".join(variants),
        facts=(Fact("Reference", Text(reference)), Fact("Clips compared", Count(len(variants)))),
        sections=(Section("quality", "Quality", _LEAD, tuple(tables)),),
    )


def scores_table(lines: Sequence[Quality]) -> Table:
    """Build the table with one row per metric and one column per clip."""
    variants = list(dict.fromkeys(line.variant for line in lines))
    return quality_table(variants, {(line.variant, line.metric): line for line in lines}, "Quality of each clip.")


_GROUPS: Final[dict[CheckGroup, str]] = {
    "weights": "Weights",
    "latents": "Latents",
    "frames": "Frames",
    "prompt": "Prompt and seed",
    "stream": "Streaming",
}
_RANDOM: Final = "random weights"


def outcome(run: RunRecords) -> tuple[int, tuple[Check, ...], bool]:
    """Return how many checks have a verdict, those whose value is outside of its bounds, and whether every check was made."""
    failed = tuple(check for check in run.checks if check.passed is False)
    complete = run.end is not None and run.end.status == "complete"
    return sum(check.passed is not None for check in run.checks), failed, complete


def accept_report(folder: Path) -> Report:
    """Build the page of a run that accepts a model."""
    run = read_run(folder)
    head, work = run.header, run.header.workload
    if head.kind != "accept" or work is None:
        raise DataError(f"{run.folder} accepts no model; `strobe accept` makes such a run")
    model = head.model
    return page(
        title=f"Acceptance of {model.name if model else 'a model'}",
        subtitle=verdict(run),
        facts=(
            *run_facts(head),
            Fact("Weights", Code(model.weights_sha256 if model else "")),
            Fact("Frame", Text(f"{work.width}x{work.height} pixels, {work.fps} a second")),
            Fact("Prompt", Code(work.prompts[0].text)),
            Fact("Device", Text(head.machine.device_name)),
            Fact("strobe", Text(head.strobe)),
        ),
        banners=_banners(run),
        sections=(*_checks(run), settings_section(load_study([folder]))),
    )


def verdict(run: RunRecords) -> str:
    """Say in one sentence whether the model is accepted."""
    judged, failed, complete = outcome(run)
    told = f"{judged - len(failed)} of {judged} checks passed"
    if judged < len(run.checks):
        told = f"{told}, {len(run.checks) - judged} reported and not judged"
    if failed:
        return f"Not accepted: {told}; failed: {', '.join(check.name for check in failed)}."
    return f"{'Accepted' if complete else 'Not finished'}: {told}."


def short_table(run: RunRecords) -> Table:
    """Build the table of all checks for a terminal: value, bounds and verdict."""
    return table_of("Checks.", _COLUMNS[:4], run.checks)


def _checks(run: RunRecords) -> list[Section]:
    checks = gathered((check.group, check) for check in run.checks)
    return [
        Section(group, title, "", (table_of(f"{title}: what was measured, and what it may be.", _COLUMNS, checks[group]),))
        for group, title in _GROUPS.items()
        if group in checks
    ] or [Section("checks", "Checks", "None was made.", ())]


def _value(check: Check) -> Cell:
    if check.value is None:
        return Missing(check.detail or check.basis, "not measured" if check.passed is None else "not finite")
    text = significant(check.value) if check.value != int(check.value) else str(int(check.value))
    return Text(f"{text} {check.unit}".rstrip())


def _bounds(check: Check) -> str:
    low, high = ("" if bound is None else f"{bound:g}" for bound in (check.low, check.high))
    if low and high:
        return f"{low} to {high}"
    return f"at least {low}" if low else f"at most {high}" if high else "-"


def _verdict(check: Check) -> Text:
    if check.passed is None:
        return Text("reported, not judged", "muted")
    return Text("passed", "good") if check.passed else Text("FAILED", "bad")


_COLUMNS: Final[tuple[Field[Check], ...]] = (
    Field("check", lambda each: each.name, Code),
    numeric("value", _value),
    Field("may be", _bounds),
    Field("verdict", _verdict),
    Field("what it is", lambda each: each.meaning),
    Field("source of the bound", lambda each: each.basis),
    Field("more", lambda each: each.detail),
)


def _banners(run: RunRecords) -> tuple[Banner, ...]:
    banners = list(end_banners(run, "The run did not come to its end", "the checks that were made count"))
    if run.header.model is not None and _RANDOM in run.header.model.name:
        told = "The weights are random: what clips look like means nothing and is not judged. Speeds and equalities hold."
        banners.append(Banner("caution", "Random weights", (told,)))
    if items := tuple(f"{check.name}: {_told(check)}" for check in outcome(run)[1]):
        banners.append(Banner("stop", "Checks failed", items))
    return tuple(banners)


def _told(check: Check) -> str:
    value = "not finite" if check.value is None else f"{check.value:.4g} {check.unit}".rstrip()
    more = f" ({check.detail})" if check.detail else ""
    return f"{value}, may be {_bounds(check)}{more}"
