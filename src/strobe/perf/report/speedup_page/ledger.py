"""Ledger of two traces: lines that add up to the difference exactly, and the kernel calls behind them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from strobe.perf.analysis.device.idle import IDLE
from strobe.perf.analysis.ledger.account import Ledger, Level, Line
from strobe.perf.analysis.ledger.speedup import DRIFT
from strobe.perf.analysis.ledger.traces import Account
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.analysis.structure.collective_skew import MemberTime
from strobe.perf.measure.stats import BOOTSTRAP_SAMPLES, Interval
from strobe.perf.report.blocks.fields import Field, both_sides, count, exact_time, heads, numeric, rows_of, table_of
from strobe.perf.report.blocks.ledger import effect_fields
from strobe.perf.report.blocks.waterfall import Drop, interval_field, waterfall, whisker_words
from strobe.perf.report.model import Block, Cell, ExactTime, Figure, Number, Paragraph, Section, Share, Table, Text
from strobe.perf.report.speedup_page.levels import LINE_LEVELS, loud_units, ms
from strobe.perf.report.speedup_page.study import NO_TRACE, Loaded, SpeedupStudy

MAX_EFFECTS: Final = 20
_SIDES: Final = ("baseline", "candidate")
FEW_STEPS: Final = (
    "So few steps make it too narrow: with 5 a side it holds the true value in about 89 % of cases, with 10 in 91 %."
)
UNITS: Final = {
    "stage": "one stage",
    "step": "one step",
    "call": "one focal call and the time up to the next",
    "window": "the traced window",
}
_WORDS: Final = {"kernel": "kernels", "comm": "communication", "memcpy": "copies", "memset": "memsets"}


def label_title(label: Label) -> str:
    """Return a label in words."""
    place, activity = label.path[0], label.activity
    if place == "focal":
        return "focal kernel" if activity == "kernel" else f"focal {_WORDS[activity]}"
    what = f"idle: {activity}" if activity in IDLE else f"other {_WORDS[activity]}" if activity == "kernel" else _WORDS[activity]
    return f"section, {what}" if place == "section" else what


def line_title(line: Line) -> str:
    """Return a line in words."""
    return label_title(Label(line.path, line.activity)) if line.path else line.name


def level_title(account: Account, level: Level) -> str:
    """Return the name of a level; the level around the section is called a step only if steps were found."""
    return account.unit if level == Level.STEP and account.unit in ("call", "window") else LINE_LEVELS[level]


def ledger_section(study: SpeedupStudy) -> Section:
    """Build the section with the full ledger of the slowest ranks, and a table of all ranks."""
    title = "Where the time went"
    if not study.accounts:
        return Section("ledger", title, "", (Paragraph(f"No ledger: {no_account(study)}."),))
    name, account = study.accounts[0]
    lead = (
        "Every nanosecond of the compared device time belongs to one line; what the candidate saves is the sum of what the lines "
        f"save. Times are for {UNITS[account.unit]}: {account.why}."
    )
    blocks: list[Block] = [_figure(study, name, account), _effects(account), *_unreached(account)]
    if len(study.accounts) > 2:
        blocks.append(_ranks(study))
    if any(side.met for side in study.sides):
        blocks.append(_waiting(study))
    return Section("ledger", title, lead, tuple(blocks))


def no_account(study: SpeedupStudy) -> str:
    """Return the reason why the traces have no account."""
    lacking = [(side.request.name, side.side.traced) for side in study.sides if isinstance(side.side.traced, str)]
    without = [name for name, reason in lacking if reason == NO_TRACE]
    said = [f"no trace of the {' and the '.join(without)}"] if without else []
    return "; ".join([*said, *(f"{name}: {reason}" for name, reason in lacking if reason != NO_TRACE)])


def _unreached(account: Account) -> Iterator[Table]:
    """Yield the table of levels that the account does not reach."""
    if account.missing:
        fields: tuple[Field[tuple[str, str]], ...] = (Field("level", lambda row: row[0]), Field("why", lambda row: row[1]))
        caption = f"What the ledger does not reach: {', '.join(account.missing)}."
        yield table_of(caption, fields, tuple(account.missing.items()), collapsed=True)


def _figure(study: SpeedupStudy, name: str, account: Account) -> Figure:
    ledger = account.ledger
    lines = [Drop(line_title(line), account.per_unit(line.saved_ns), ledger.spread.lines.get(line.name)) for line in ledger.lines]
    sides = account.per_unit(ledger.baseline_ns), account.per_unit(ledger.candidate_ns)
    picture = waterfall(("baseline", sides[0]), ("candidate", sides[1]), lines, ledger.spread.total)
    title = (
        f"From baseline to candidate, line by line, for {UNITS[account.unit]}{f', {name}' if name else ''}. "
        f"Bars that go left are time saved, bars that go right time added.{whisker_words(picture)}"
    )
    return Figure(title, "Waterfall; the ledger table says the same.", picture, _lines(study, account), table_open=True)


def _lines(study: SpeedupStudy, account: Account) -> Table:
    ledger = account.ledger
    top, spread = level_title(account, ledger.levels[-1].level), ledger.spread

    def covers(line: Line | Ledger, side: int) -> Cell:
        both = account.inclusive.get(Label(line.path, line.activity)) if isinstance(line, Line) and line.path else None
        return Text("") if both is None else ExactTime(round(both[side]))

    def interval(line: Line | Ledger) -> Interval | None:
        return spread.lines.get(line.name) if isinstance(line, Line) else spread.total

    share: Field[Line | Ledger] = numeric(
        "share",
        lambda line: line.share if isinstance(line, Line) else 1.0 if ledger.saved_ns else None,
        "of the sum of all lines: of the saving, or of the loss if the candidate is slower",
        show=Share,
    )
    fields: tuple[Field[Line | Ledger], ...] = (
        Field(
            "level",
            lambda line: level_title(account, line.level) if isinstance(line, Line) else top,
            hint="the first level that contains the line",
        ),
        Field("line", lambda line: line_title(line) if isinstance(line, Line) else "sum of all lines"),
        *both_sides(_SIDES, lambda line: (account.per_unit(line.baseline_ns), account.per_unit(line.candidate_ns))),
        *([interval_field(interval)] if spread.lines else []),
        *([share] if study.comparable else []),
        Field(
            "covers, baseline",
            lambda line: covers(line, 0),
            unit="ms",
            hint="time in which such work ran, whatever else ran at the same time",
        ),
        Field("covers, candidate", lambda line: covers(line, 1), unit="ms"),
    )
    rows = (*rows_of(fields, ledger.lines), *rows_of(fields, (ledger,), strong=lambda _: True))
    kernel, saved = account.per_unit(ledger.kernel_saved_ns), account.per_unit(ledger.saved_ns)
    ideal = (
        f"Ideal by Amdahl, if nothing but the focal kernel had changed: {ms(account.per_unit(ledger.ideal_ns))}; the focal "
        f"kernel saves {ms(kernel)}, {top} {ms(saved)}; lines that grew take {ms(account.per_unit(-ledger.lost_ns))}."
    )
    notes = [
        "The lines add up exactly, as whole numbers of nanoseconds over "
        f"{ledger.num_units} unit{'s' if ledger.num_units > 1 else ''}: checked."
        + (" Printed here: one unit, rounded to the nanosecond." if ledger.num_units > 1 else ""),
        f"Where work overlaps, the first of {', '.join(study.request.priority)} owns the time (--priority); the columns "
        "'covers' do not depend on it.",
        _interval_note(account),
        *([ideal] if study.comparable else []),
        *_other_calls(study),
    ]
    if account.unit == "stage":
        notes += loud_units(study)
    return Table(f"Ledger for {UNITS[account.unit]}.", heads(fields), rows, tuple(notes))


def _interval_note(account: Account) -> str:
    """Return a note on how the intervals were made, or on why there are none."""
    spread = account.ledger.spread
    if spread.why_none:
        return f"No intervals: {spread.why_none}."
    b, c = spread.samples
    return (
        f"Intervals: percentile bootstrap of whole steps, {b} of the baseline and {c} of the candidate, {DRIFT}; each is of one "
        "line, so they do not add up."
        + (" Whatever a log goes into has none." if spread.total is None else "")
        + (f" {FEW_STEPS}" if min(b, c) < BOOTSTRAP_SAMPLES else "")
    )


def _other_calls(study: SpeedupStudy) -> Iterator[str]:
    """Yield notes where the ledger's focal calls are not those of the speedups: steps without an end have no length."""
    for side in study.sides:
        own = side.side.chosen
        if own is not None and own.num_focal != len(own.counted):
            yield (
                f"{side.request.name}: the kernel's speedup is over {len(own.counted)} focal calls, this table over the "
                f"{own.num_focal} in the compared steps; the others are in no step, or in the last one, which nothing bounds."
            )


def _effects(account: Account) -> Block:
    effects = account.ledger.effects
    if not effects:
        return Paragraph("No kernels in the compared time.")
    fields = effect_fields(
        ("kernel", "baseline", "candidate"),
        lambda calls: Number(float(account.per_unit(calls)), 1),
        lambda ns: ExactTime(round(account.per_unit(ns))),
    )
    notes = ("n calls of mean m: fewer calls (n_b - n_c)(m_b + m_c) / 2, faster calls (m_b - m_c)(n_b + n_c) / 2.",)
    caption = "What each kernel saved, by fewer calls and by faster calls."
    return table_of(caption, fields, effects, top=MAX_EFFECTS, left="", notes=notes, collapsed=True)


def _ranks(study: SpeedupStudy) -> Table:
    """Build the table with one row per rank: the saving of its step, by group."""

    def group(title: str) -> Field[tuple[str, Account]]:
        return exact_time(title, lambda row: round(row[1].per_unit(_saved(row[1].ledger, title))))

    fields: tuple[Field[tuple[str, Account]], ...] = (
        Field("rank", lambda row: row[0]),
        *both_sides(
            _SIDES, lambda row: (row[1].per_unit(row[1].ledger.baseline_ns), row[1].per_unit(row[1].ledger.candidate_ns))
        ),
        *map(group, _GROUPS),
    )
    units = dict.fromkeys(UNITS[account.unit] for _, account in study.accounts)
    notes = (*_unmatched(study), "The columns behind 'saved' are what each kind of line saves; they add up to it.")
    return table_of(f"Every rank, for {' or '.join(units)}.", fields, study.accounts, notes=notes)


def _saved(ledger: Ledger, group: str) -> int:
    """Return what the lines of a column of the table of ranks save."""
    return sum(line.saved_ns for line in ledger.lines if _group(line) == group)


def _waiting(study: SpeedupStudy) -> Table:
    """Build the table with one row per rank of both sides: waiting and data transfer in its collectives."""
    fields: tuple[Field[tuple[Loaded, MemberTime]], ...] = (
        Field("side", lambda row: row[0].request.name),
        Field("trace", lambda row: row[0].labels[row[1].trace]),
        count("collectives", lambda row: row[1].n, "found on all ranks, in which all wait for all"),
        exact_time("waited", lambda row: row[1].wait_ns, "sum of the times from its own start to the last rank's"),
        exact_time("moved data", lambda row: row[1].transfer_ns, "sum of the times from the last rank's start to its own end"),
        count("started last", lambda row: row[1].last, "times that the others waited for it alone"),
    )
    notes = ["Over the whole traces, so the sums are not the ledger's line; a collective that other work hides counts in full."]
    for side in study.sides:
        if side.met is not None and not side.met.clock.aligned:
            notes.append(f"{side.request.name}: the clocks of its ranks differ, so waiting and moving cannot be told apart.")
        notes += [f"{side.request.name}: {problem}." for problem in (side.met.problems if side.met else ())]
    rows = [(side, each) for side in study.sides if side.met is not None for each in side.met.times]
    return table_of("Communication of every rank: waiting for the last one, or moving data.", fields, rows, notes=notes)


def _unmatched(study: SpeedupStudy) -> Iterator[str]:
    own, other = (set(side.labels) for side in study.sides)
    for name, labels in (("baseline", own - other), ("candidate", other - own)):
        if labels and len(own) + len(other) > 2:
            yield f"traced on the {name} alone: {', '.join(sorted(labels))}"


def _group(line: Line) -> str:
    """Return the column of the table of ranks that a line belongs to."""
    if not line.path:
        return "outside the trace"
    if line.path[0] != "step":
        return "focal" if line.path[0] == "focal" else "rest of section"
    return "idle" if line.activity in IDLE else _COLUMNS[line.activity]


_COLUMNS: Final = {
    "kernel": "other kernels, memsets",
    "memset": "other kernels, memsets",
    "comm": "communication",
    "memcpy": "copies",
}
_GROUPS: Final = ("focal", "rest of section", *dict.fromkeys(_COLUMNS.values()), "idle", "outside the trace")
