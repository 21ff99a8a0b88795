"""From the sessions of a history to one `Report`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from strobe.core.errors import DataError
from strobe.perf.analysis.history.drift import Drift
from strobe.perf.analysis.history.found import Found
from strobe.perf.analysis.history.steps import ALPHA, DRAWS, FEWEST, Step
from strobe.perf.records.history import Revision, SessionRecords
from strobe.perf.report.blocks.damage import damage_banners
from strobe.perf.report.blocks.fields import Field, count, numeric, table_of
from strobe.perf.report.blocks.page import date_fact, page
from strobe.perf.report.model import Banner, Code, Column, Count, Fact, Number, Paragraph, Report, Section, Table, Text
from strobe.perf.report.text import cell_text
from strobe.perf.report.track_page.cells import SHORT, change_text, step_cell, value_cell
from strobe.perf.report.track_page.series import series_section

METHOD = (
    "Steps: the levels of the commits are cut into segments by least squares, exactly. One more cut is taken as long as the "
    f"largest change within a segment is larger than in {100 * (1 - ALPHA):g} % of {DRAWS} seeded draws: of the rounds with "
    f"their values permuted among commits, and, from {FEWEST} commits on, of normal noise with the spread that neighbouring "
    f"commits have. So a series without any step is given one in at most {100 * ALPHA:g} % of cases. Interval of a change: of "
    "the ratios of the rounds that measured both sides (Student's t); without such rounds, of both sides' distances from the "
    "anchor (Welch)."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _StepRow:
    found: Found
    step: Step


def track_report(
    sessions: Sequence[SessionRecords], found: Sequence[Found], least: float, accounts: Sequence[Section] = ()
) -> Report:
    """Lay a history out: steps, each figure over the commits, accounts of steps, machines and sessions.

    Args:
        sessions: of the history, oldest first.
        found: what they say.
        least: a change by less was no step.
        accounts: of the two sides of steps.

    Raises:
        DataError: nothing was measured.
    """
    if not any(each.samples or each.failures for each in sessions):
        raise DataError("the history has no measurement yet; `strobe track run` makes some")
    head = sessions[-1].session
    current = [each for each in found if each.current]
    measured = {point.revision.commit for each in found for point in each.series.points}
    failed = {commit for each in sessions for commit in (one.commit for one in each.failures)} - measured
    return page(
        title="History",
        subtitle=f"{head.case} over {len(measured)} commits",
        facts=(
            date_fact(head.date, "Last measured"),
            Fact("Machine", Text(head.host.cpu_name)),
            Fact("Commits measured", Count(len(measured))),
            Fact("Commits that failed", Count(len(failed))),
            Fact("Steps", Count(sum(len(each.steps) for each in current))),
        ),
        banners=(*damage_banners(("history", each.damage) for each in sessions), *_banners(sessions, found)),
        sections=(
            _steps_section(current, least),
            *(series_section(each, number) for number, each in enumerate(found) if each.series.points or each.series.failed),
            *accounts,
            _sessions_section(sessions, found),
            _case_section(sessions),
        ),
    )


def steps_table(found: Sequence[Found]) -> Table:
    """Every step: the commit that made it, or the commits that one of made it, and how much."""
    rows = [_StepRow(found=each, step=step) for each in found for step in each.steps]
    fields: tuple[Field[_StepRow], ...] = (
        Field("figure", lambda row: row.found.series.figure.name),
        Field("commit", lambda row: Code(_after(row).commit[:SHORT])),
        Field("subject", lambda row: _after(row).subject),
        Field("change", lambda row: step_cell(row.found.series.figure, row.step)),
        numeric("before", lambda row: _level(row, row.step.first, row.step.after)),
        numeric("after", lambda row: _level(row, row.step.after, row.step.last + 1)),
        numeric("by chance", lambda row: _chance(row), "how often noise makes such a change there"),
        count("other suspects", lambda row: row.step.between, "commits since the last one before it that have no value"),
        Field("interval of", lambda row: "rounds with both" if row.step.paired else "sessions apart, by the anchor"),
    )
    merges = [_after(row) for row in rows if len(_after(row).parents) > 1]
    notes = [
        f"{each.commit[:SHORT]} is a merge: its own commits are {each.parents[0][:SHORT]}..{each.parents[1][:SHORT]}."
        for each in merges
    ]
    if any(row.step.between for row in rows):
        notes.append("`strobe track find` measures commits between until one is left.")
    return table_of("Commits that changed a figure, and by how much.", fields, rows, notes=notes)


def _after(row: _StepRow) -> Revision:
    return row.found.series.points[row.step.after].revision


def _level(row: _StepRow, first: int, stop: int) -> Text:
    """Geometric mean of the points of a level, with its unit."""
    value = math.exp(statistics.fmean(math.log(point.value) for point in row.found.series.points[first:stop]))
    return Text(cell_text(value_cell(row.found.series.figure, value), Column("")))


def _chance(row: _StepRow) -> Text | Number:
    return Text("exact", note="no commit's own values differ") if row.found.series.exact else Number(row.step.p, 3)


def _steps_section(current: Sequence[Found], least: float) -> Section:
    names = ", ".join(each.series.figure.name for each in current)
    if not any(each.steps for each in current):
        text = f"No commit changed {names} by more than {100 * least:g} % beyond doubt."
        return Section("steps", "Steps", "", (Paragraph(text), Paragraph(METHOD)))
    lead = f"Changes of the level by more than {100 * least:g} %."
    return Section("steps", "Steps", lead, (steps_table(current), Paragraph(METHOD)))


def _banners(sessions: Sequence[SessionRecords], found: Sequence[Found]) -> Iterator[Banner]:
    hosts = dict.fromkeys(each.session.host.identity for each in sessions if each.samples)
    if len(hosts) > 1:
        text = "Each machine has a series of its own; no step is looked for across them."
        yield Banner("caution", f"{len(hosts)} machines measured this history", (text,))
    items = [f"{each.series.figure.name}: {_drift_words(one)}" for each in found for one in each.drifts if one.seen]
    if items:
        yield Banner("caution", "The machine drifted: the same commit gave other values", tuple(items))
    untied = [f"{name}: it did not measure the anchor" for each in found for name in each.series.untied]
    if untied:
        yield Banner("caution", "Sessions that are left out", tuple(dict.fromkeys(untied)))


def _drift_words(drift: Drift) -> str:
    change = change_text(drift.ratio, drift.interval)
    if drift.within:
        return f"{change} from the first two rounds of {drift.session} to its last two, which hits all commits alike"
    return f"{change} from the first session to {drift.session}, by the anchor; it is taken out"


def _sessions_section(sessions: Sequence[SessionRecords], found: Sequence[Found]) -> Section:
    drift = {one.session: one for each in found[:1] for one in each.drifts if not one.within}
    fields: tuple[Field[SessionRecords], ...] = (
        Field("session", lambda each: Code(each.session.session)),
        Field("machine", lambda each: Text(each.session.host.cpu_name, note=each.session.host.node)),
        count("cores", lambda each: each.session.host.cores),
        Field("GPUs", lambda each: ", ".join(each.session.host.gpus) or "none"),
        Field("Python", lambda each: each.session.host.python),
        Field("system", lambda each: each.session.host.os),
        count("samples", lambda each: len(each.samples)),
        Field("load", lambda each: _load(each), hint="highest 1-minute load average before a measurement"),
        Field("anchor", lambda each: Code(each.session.anchor[:SHORT]) if each.session.anchor else "-"),
        Field("anchor since the first", lambda each: _since(drift.get(each.session.session)), hint="of the first figure"),
    )
    lead = "A session measures commits in rounds, each in another order, and the anchor again, which ties it to the others."
    return Section("sessions", "Sessions and machines", lead, (table_of("Sessions.", fields, sessions),), folded=True)


def _load(session: SessionRecords) -> str:
    loads = [sample.load for sample in session.samples if sample.load is not None]
    return f"{max(loads):.2f}" if loads else "-"


def _since(drift: Drift | None) -> str:
    return "-" if drift is None else change_text(drift.ratio, drift.interval)


def _case_section(sessions: Sequence[SessionRecords]) -> Section:
    head = sessions[-1].session
    rows = (
        ("command", head.case),
        ("install", head.install or "none"),
        ("environment", head.environment),
        ("repository", head.repository),
        ("first commit", head.root),
        ("commits asked for last", head.commits),
        ("rounds", str(head.rounds)),
        ("strobe", head.strobe),
    )
    fields: tuple[Field[tuple[str, str]], ...] = (Field("what", lambda row: row[0]), Field("value", lambda row: Code(row[1])))
    return Section("case", "Case", "", (table_of("What is done with every commit.", fields, rows),), folded=True)
