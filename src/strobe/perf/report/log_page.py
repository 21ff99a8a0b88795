"""The optimisation log: one page of recorded runs, of one comparison of settings (`--vary`) or of any runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from strobe.core.errors import DataError
from strobe.perf.analysis.ledger.account import LEVEL_WORDS, Ledger, LedgerLine, part_of
from strobe.perf.analysis.parts import NAMELESS
from strobe.perf.records.record import CELLS, read_plan
from strobe.perf.records.store import read_run, records_in
from strobe.perf.report.blocks.answer import change_sections
from strobe.perf.report.blocks.fields import gathered, page, section_of, verdict_cell
from strobe.perf.report.blocks.optimisation_log import METRIC, LogEntry, decide, log_sections, read_entries, speedups
from strobe.perf.report.blocks.referee import BEST, front
from strobe.perf.report.blocks.settings import banners, settings_section
from strobe.perf.report.findings import Finding, find
from strobe.perf.report.study import load_study
from strobe.perf.table.fields import Field, numeric, table_of, time
from strobe.perf.table.model import (
    Axis,
    Block,
    Cell,
    Count,
    Fact,
    Figure,
    Missing,
    Notes,
    Number,
    Plane,
    PlotPoint,
    Ratio,
    Report,
    Section,
    Text,
)


def vary_report(folder: Path) -> Report:
    """Build the page of one preset with settings changed.

    Raises:
        DataError: the folder holds no plan, or nothing of it was measured.
    """
    plan, places, reasons, left = read_plan(folder), list[Path](), list[str](), 0
    notes = [f"{name} is asked for and does nothing here: {why}." for name, why in plan.idle.items()]
    for cell in plan.cells:
        place = folder / CELLS / cell.name
        if cell.refused:
            reasons.append(f"{cell.name}: {cell.refused}")
        elif records_in(place) is None:
            left += 1
        else:
            try:
                read_run(place)
                places.append(place)
            except DataError as error:
                reasons.append(f"{cell.name}: {error}")
    if not places:
        told = f": {'; '.join(reasons)}" if reasons else ""
        raise DataError(f"nothing was measured at {folder}{told}; run the same `strobe compare` again")
    title, missing = f"{plan.base} with settings changed", Fact("Not yet measured", Count(left))
    return log_report(places, folder, title=title, facts=(missing,), notes=[*(f"{each}." for each in reasons), *notes])


def log_report(
    folders: Sequence[Path], into: Path, *, title: str = "Optimisation log", facts: Sequence[Fact] = (), notes: Sequence[str] = ()
) -> Report:
    """Build the log of some run folders.

    Args:
        folders: run folders (`optimisation_log.run_folders`).
        into: folder that it will lie in.
        notes: on what has no entry.

    Raises:
        DataError: nothing readable, or no stream among it.
    """
    entries = read_entries(folders)
    study = load_study(list(dict.fromkeys(entry.run.folder for entry in entries)), into)
    findings = find(study)
    first, others = change_sections(findings)
    decided = [(entry, *decide(entry, entries)) for entry in entries]
    words = {"Keep": "Kept", "Drop": "Dropped", "Open": "Open"}
    counts = (Fact(said, Count(sum(decision == word for _, decision, _ in decided))) for word, said in words.items())
    head = entries[0].run.header
    decisions, *others_of_log = log_sections(decided, notes)
    references = dict.fromkeys(entry.reference for entry in entries)
    return page(
        speedups=speedups(entries),
        title=title,
        subtitle=f"{len(entries)} entries of {len(folders)} runs, against {', '.join(references)}, on {head.machine.device_name}",
        facts=(Fact("Model", Text(head.model.name if head.model else "not named")), *counts, *facts),
        banners=banners(study, gather=True, any_clip=True),
        sections=(
            first,
            decisions,
            *_fronts(entries),
            *others_of_log,
            _moved_section(entries, findings),
            settings_section(load_study([entries[0].run.folder], into)),
            others,
        ),
    )


# What moved: of each change the line of the account that changed most in the direction of the whole.

_Moved: TypeAlias = tuple[LogEntry, Finding, LedgerLine | str]
"""An entry, its account, and the line that moved most, or why there is none."""


def _moved_section(entries: Sequence[LogEntry], findings: Sequence[Finding]) -> Section | None:
    of = {(each.candidate.run.folder, each.candidate.name): each for each in findings}
    rows = [(entry, found, _moved_line(found)) for entry in entries if (found := of.get((entry.run.folder, entry.name)))]
    units = {each.candidate.label: each.ledger.num_units for each in findings if isinstance(each.ledger, Ledger)}
    fields: tuple[Field[_Moved], ...] = (
        Field("entry", lambda row: row[0].label),
        numeric("speedup", lambda row: row[1].e2e and row[1].e2e.cell),
        Field("verdict", lambda row: row[1].e2e and verdict_cell(row[1].e2e.verdict)),
        Field("ledger line it moved", lambda row: Missing(row[2], "-") if isinstance(row[2], str) else row[2].name),
        Field("its level", lambda row: "" if isinstance(row[2], str) else LEVEL_WORDS[row[2].level]),
        time(
            "saved per clip",
            lambda row: None if isinstance(row[2], str) else float(row[2].saved_ns / units[row[1].candidate.label]),
        ),
    )
    note = "The line of the account that saved most where the whole is faster, or cost most where it is slower, inside a clip."
    table = table_of("Lines that moved.", fields, rows, notes=(note,))
    return section_of("moved", "What each change moved", "", (table,) if rows else ())


def _moved_line(finding: Finding) -> LedgerLine | str:
    ledger = finding.ledger
    if isinstance(ledger, str):
        return ledger
    named = (line for line in ledger.lines if part_of(line.label) not in NAMELESS)
    same = [line for line in named if line.level != "e2e" and line.saved_ns * ledger.saved_ns > 0]
    return max(same, key=lambda line: abs(line.saved_ns)) if same else "no line of the traced frame blocks moved with the whole"


# Pareto front of speed and quality.

RULE: Final = (
    "A difference in speed that its interval does not prove counts as none.",
    "On the front is what nothing measured beats in speed without losing quality, or in quality without losing speed; dB count "
    f"up to {BEST:g}.",
)


_Point: TypeAlias = tuple[LogEntry, float, float]
"""An entry, its speedup over the base as it counts, and its quality in dB; infinite: the frames equal the reference's."""


def _score(point: _Point) -> Cell:
    return Missing("the frames equal the reference's", "equal") if point[2] == math.inf else Number(point[2], 2)


def _measured(entry: LogEntry) -> Ratio:
    return Ratio(1.0) if isinstance(entry.e2e, str) else entry.e2e.cell


def _fronts(entries: Sequence[LogEntry]) -> Iterator[Section]:
    found: list[tuple[LogEntry, tuple[Block, ...]]] = []
    for own in gathered((entry.group, entry) for entry in entries).values():
        points = [(entry, entry.speed, entry.score) for entry in own if entry.speed is not None and entry.score is not None]
        if len(points) > 1:
            notes = (*RULE, "Quality is measured on this model and clip alone; it does not carry over to another.")
            found.append((own[0], (_points(points), Notes(notes))))
    for number, (entry, shown) in enumerate(found, start=1):
        if len(found) == 1:
            yield Section("front", "Speed and quality", "", shown)
        else:
            title = f"Speed and quality {number}: {entry.reference}, the clip of {entry.label}"
            yield Section(f"front-{number}", title, "", shown)


def _mark(label: str, ratio: Ratio, speed: float, score: float, number: int) -> PlotPoint:
    equal, unproven = score == math.inf, speed != ratio.value
    ends = (ratio.low, ratio.high) if unproven else (None, None)
    return PlotPoint(ratio.value, 0.0 if equal else score, number, label, unproven, *ends, above=equal)


def _points(points: Sequence[_Point]) -> Block:
    best = front(points, lambda point: point[1:])
    fields: tuple[Field[_Point], ...] = (
        Field("setting", lambda point: point[0].label),
        numeric("measured", lambda point: _measured(point[0])),
        numeric("counts as", lambda point: Number(point[1], 3, "x")),
        numeric(f"{METRIC} (dB)", _score),
        Field("front", lambda point: Text("yes", "good") if point in best else ""),
    )
    table = table_of("The points.", fields, points)
    if all(score == math.inf for _, _, score in points):
        return table
    marks = (_mark(entry.label, _measured(entry), speed, score, number) for number, (entry, speed, score) in enumerate(points))
    plane = Plane(Axis("speedup over the base"), Axis(METRIC, "dB"), tuple(marks))
    title = (
        f"{METRIC} against the preset quality, over speedup. Faster is right, nearer to the reference is up. Hollow, with "
        "its interval: a difference that is not proven. An arrow at the upper edge: the frames equal the reference's."
    )
    return Figure(title, "One point per setting; the table says the same.", plane, table)
