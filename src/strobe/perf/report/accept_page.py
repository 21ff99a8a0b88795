"""The page of a model's acceptance: the verdict, every check with its bounds and their source, its speed and quality."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strobe.core.errors import DataError
from strobe.perf.records.record import Check, CheckGroup
from strobe.perf.records.store import RunRecords, read_run, records_in
from strobe.perf.report.blocks.breakdown import latency_section, quality_section
from strobe.perf.report.blocks.fields import Field, clips_section, damage_banners, numeric, page, run_facts, table_of
from strobe.perf.report.blocks.settings import settings_section
from strobe.perf.report.findings import find_latencies
from strobe.perf.report.model import (
    Banner,
    Cell,
    Code,
    Fact,
    Missing,
    Number,
    Paragraph,
    Report,
    Section,
    Table,
    Text,
    significant,
)
from strobe.perf.report.study import load_study

_GROUPS: Final[dict[CheckGroup, str]] = {
    "weights": "Weights",
    "latents": "Latents",
    "frames": "Frames",
    "prompt": "Prompt and seed",
    "stream": "Streaming",
    "presets": "Presets against quality",
}
COMPARE: Final = "compare"
"""Folder of the comparison with `quality`, inside that of the acceptance."""
_RANDOM: Final = "random weights"


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """All checks of a model.

    Args:
        checks: as they were made.
        complete: the run came to its end.
    """

    checks: tuple[Check, ...]
    complete: bool

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks whose value is outside of its bounds."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def num_judged(self) -> int:
        """Number of checks with a verdict."""
        return sum(check.passed is not None for check in self.checks)

    @property
    def accepted(self) -> bool:
        """Whether every check was made and none failed."""
        return self.complete and not self.failed


def is_acceptance(run: RunRecords) -> bool:
    """Return whether the run accepts a model."""
    return run.header.kind == "accept"


def acceptance_of(run: RunRecords) -> Acceptance:
    """Read the checks of a run, complete or not.

    Raises:
        DataError: it accepts no model.
    """
    if not is_acceptance(run) or run.header.workload is None:
        raise DataError(f"{run.folder} accepts no model; `strobe accept` makes such a run")
    complete = run.end is not None and run.end.status == "complete"
    return Acceptance(checks=run.checks, complete=complete)


def accept_report(folder: Path) -> Report:
    """Build the page of a run that accepts a model.

    Raises:
        DataError: it is none.
    """
    run, study = read_run(folder), load_study([folder])
    found, head, work = acceptance_of(run), run.header, run.header.workload
    assert work is not None
    model = head.model
    return page(
        title=f"Acceptance of {model.name if model else 'a model'}",
        subtitle=verdict(found),
        facts=(
            *run_facts(head),
            Fact("Weights", Code(model.weights_sha256 if model else "")),
            Fact("Frame", Text(f"{work.width}x{work.height} pixels, {work.fps} a second")),
            Fact("Prompt", Code(work.prompts[0].text)),
            Fact("Device", Text(head.machine.device_name)),
            Fact("strobe", Text(head.strobe)),
        ),
        banners=_banners(run, found),
        sections=(
            Section("verdict", "Line for a table of results", "", (line_table(run, found),)),
            *_checks(found),
            *_compared(folder),
            settings_section(study),
        ),
    )


def verdict(found: Acceptance) -> str:
    """Say in one sentence whether the model is accepted."""
    reported = len(found.checks) - found.num_judged
    told = f"{found.num_judged - len(found.failed)} of {found.num_judged} checks passed, {reported} reported and not judged"
    if found.failed:
        return f"Not accepted: {told}; failed: {', '.join(check.name for check in found.failed)}."
    return f"{'Accepted' if found.complete else 'Not finished'}: {told}."


def _compared(folder: Path) -> tuple[Section, ...]:
    """Build the sections of the comparison, which has a page of its own; none if the run ended before it."""
    if records_in(folder / COMPARE) is None:
        return ()
    study = load_study([folder / COMPARE], folder)
    found = find_latencies(study)
    if not found:
        return ()
    return tuple(each for each in (latency_section(study, found), quality_section(study, found), clips_section(study)) if each)


def fps_of(run: RunRecords) -> float | None:
    """Return the pixel frames per second that the preset delivers, from the comparison; None: not measured."""
    if records_in(run.folder / COMPARE) is None:
        return None
    found = [each for each in find_latencies(load_study([run.folder / COMPARE])).values() if not isinstance(each, str)]
    return found[-1].pixel_fps if found else None  # with a red gate nothing is timed


def line_table(run: RunRecords, found: Acceptance) -> Table:
    """Build the table of one row that stands for this model in a table of results."""
    head, work = run.header, run.header.workload
    settings = run.variants[0].preset if run.variants else ""
    assert work is not None
    frame, commit = f"{work.height}x{work.width}", head.git.commit[:12] if head.git.commit else "no checkout"
    passed = Text(f"{found.num_judged - len(found.failed)} of {found.num_judged}", "bad" if found.failed else "good")

    fps = fps_of(run)
    fields: tuple[Field[None], ...] = (
        Field("model", lambda _: head.model.name if head.model else ""),
        Field("weights", lambda _: head.model.weights_sha256[:12] if head.model else "", Code),
        Field("preset", lambda _: settings),
        Field("frame", lambda _: frame),
        Field("device", lambda _: head.machine.device_name),
        Field("checks passed", lambda _: passed),
        numeric("FPS", lambda _: Missing("no steady frame blocks") if fps is None else Number(fps, 1)),
        Field("date", lambda _: head.date[:10]),
        Field("strobe", lambda _: f"{head.strobe} {commit}"),
    )
    return table_of("This model in one row.", fields, (None,))


def markdown_line(run: RunRecords, found: Acceptance) -> str:
    """Return the head and the row of `line_table` in Markdown, three lines."""
    table = line_table(run, found)
    head = "| " + " | ".join(column.title for column in table.columns) + " |"
    rule = "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|"
    row = "| " + " | ".join(_plain(cell) for cell in table.rows[0].cells) + " |"
    return "\n".join((head, rule, row)) + "\n"


def _plain(cell: Cell) -> str:
    match cell:
        case Number(value=value, digits=digits):
            return f"{value:.{digits}f}"
        case Code(text=text) | Text(text=text):
            return text.replace("|", "\\|")
        case _:
            return "-"


def short_table(found: Acceptance) -> Table:
    """Build the table of all checks for a terminal: value, bounds and verdict."""
    return table_of("Checks.", _COLUMNS[:4], found.checks)


def _checks(found: Acceptance) -> list[Section]:
    sections = []
    for group, title in _GROUPS.items():
        own = [check for check in found.checks if check.group == group]
        if own:
            table = table_of(f"{title}: what was measured, and what it may be.", _COLUMNS, own)
            sections.append(Section(group, title, "", (table,)))
    return sections or [Section("checks", "Checks", "", (Paragraph("None was made."),))]


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


def _banners(run: RunRecords, found: Acceptance) -> tuple[Banner, ...]:
    banners = list(damage_banners([(run.header.run, run.damage)]))
    if run.header.model is not None and _RANDOM in run.header.model.name:
        told = "The weights are random: what clips look like means nothing and is not judged. Speeds and equalities hold."
        banners.append(Banner("caution", "Random weights", (told,)))
    if found.failed:
        items = tuple(f"{check.name}: {_told(check)}" for check in found.failed)
        banners.append(Banner("stop", "Checks failed", items))
    if not found.complete:
        why = "the records are cut short" if run.end is None else f"{run.end.status}: {run.end.message}"
        banners.append(Banner("caution", "The run did not come to its end", (why,)))
    return tuple(banners)


def _told(check: Check) -> str:
    value = "not finite" if check.value is None else f"{check.value:.4g} {check.unit}".rstrip()
    more = f" ({check.detail})" if check.detail else ""
    return f"{value}, may be {_bounds(check)}{more}"
