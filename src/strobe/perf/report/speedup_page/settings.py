"""The experiment: what is known of both sides, where they differ, and what the reader must know before the numbers."""

from __future__ import annotations

from typing import Final

from strobe.perf.analysis.ledger.comparable import Check, Verdict
from strobe.perf.report.damage import damage_banners
from strobe.perf.report.model import Banner, Cell, Code, Column, Missing, Row, Section, Table, Text, Tone
from strobe.perf.report.speedup_page.study import Loaded, SpeedupStudy

_SAID: Final[dict[Verdict, tuple[str, Tone]]] = {
    "same": ("same", "muted"), "differs": ("differs", "bad"), "varied": ("varied on purpose", "good"),
    "unknown": ("unknown", "muted"),
}  # fmt: skip


def settings_section(study: SpeedupStudy) -> Section:
    """Every fact a comparison depends on, recorded or not, and the files."""
    rows = [_row(check) for check in study.comparability.checks]
    for title, cell in (("log", _log), ("traces", _traces), ("focal kernel", _focal), ("section", _section)):
        rows.append(Row((Text(title), *(cell(side) for side in study.sides), Text(""))))
    columns = (Column(""), Column("baseline"), Column("candidate"), Column("verdict"))
    notes = (
        "A fact that nobody recorded is unknown, not equal; state it with --fact, --baseline-fact, --candidate-fact NAME=VALUE.",
        "--vary NAME declares what is meant to differ.",
    )
    lead = "What ran on both sides, as their traces, records and the command line say it."
    return Section("settings", "Experiment settings", lead, (Table("Settings and metadata.", columns, tuple(rows), notes),))


def _row(check: Check) -> Row:
    sides = (Missing("", "not recorded") if value is None else Text(value) for value in (check.baseline, check.candidate))
    if check.weight == "told":
        return Row((Text(check.title), *sides, Text("")))
    word, tone = _SAID[check.verdict]
    return Row((Text(check.title), *sides, Text(word, tone)))


def _log(side: Loaded) -> Cell:
    return Missing("", "none") if side.log is None else Code(str(side.log.path))


def _traces(side: Loaded) -> Cell:
    return Code(", ".join(str(trace.path) for trace in side.traces)) if side.traces else Missing("", "none")


def _focal(side: Loaded) -> Cell:
    return Missing("", "none") if side.request.focal is None else Code(side.request.focal)


def _section(side: Loaded) -> Cell:
    return Missing("", "none") if side.request.section is None else Code(str(side.request.section))


def banners(study: SpeedupStudy) -> tuple[Banner, ...]:
    """Why the sides are not comparable, and what weakens the comparison."""
    found = study.comparability
    doubts = [f"{check} differ" for check in found.doubts]
    if found.unknown:
        doubts.append(
            f"not recorded on both sides, so nobody knows whether they agree: {', '.join(c.title for c in found.unknown)}"
        )
    if study.unlike:
        doubts.append(f"section level, {study.unlike}")
    loud = [timer for side in study.sides for timer in side.side.timings.timers if timer.resolved.prominent]
    doubts += dict.fromkeys(note for timer in loud for note in timer.resolved.notes)
    for side in study.sides:
        for trace, label in zip(side.traces, side.labels, strict=True):
            counts = trace.counts
            if not counts.clean:
                cut = ", and it ends before its JSON does" if counts.truncated else ""
                doubts.append(f"trace {label} of the {side.request.name}: {counts.lost} events lost, {counts.mended} mended{cut}")
    groups = (
        Banner("stop", "Not comparable, ratios mean nothing: these differ and were not declared with --vary.",
               tuple(map(str, found.obstacles))),
        Banner("caution", "Read the numbers with this in mind.", tuple(doubts)),
    )  # fmt: skip
    damage = damage_banners((f"log of the {side.request.name}", side.log.damage) for side in study.sides if side.log)
    return (*damage, *(banner for banner in groups if banner.items))
