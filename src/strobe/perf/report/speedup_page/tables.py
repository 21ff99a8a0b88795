"""Tables and pictures of a speedup report: levels, ledger, kernels, and the tree of both sides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final

import numpy as np

from strobe.perf.analysis.device.activity import IDLE
from strobe.perf.analysis.device.intervals import distribution
from strobe.perf.analysis.device.kernels import kernel_name
from strobe.perf.analysis.ledger.account import COVERS, LEVEL_WORDS, CallsEffect, Ledger, LedgerLine, total, trace_part
from strobe.perf.analysis.ledger.speedup import DRIFT, LEVEL_TITLES, LevelFigure
from strobe.perf.analysis.ledger.traces import IDLE as IDLE_LABEL
from strobe.perf.analysis.ledger.traces import LABELS, PRIORITY, Node, TracedSide
from strobe.perf.analysis.parts import NAMELESS, Part
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.analysis.structure.collectives import MemberTime
from strobe.perf.measure.stats import BOOTSTRAP_SAMPLES
from strobe.perf.report.blocks.answer import interval_field, waterfall, whisker_words
from strobe.perf.report.blocks.fields import verdict_cell
from strobe.perf.report.blocks.kernels import (
    FOCAL,
    IDLE_KINDS,
    Listed,
    Piece,
    SectionCells,
    class_table,
    draw_lanes,
    focal_row,
    kernel_tables,
    kernels_section,
    merged,
    section_notes,
    sections_table,
)
from strobe.perf.report.blocks.logs import unit_notes
from strobe.perf.report.speedup_page.study import NO_TRACE, LoadedSide, SpeedupStudy
from strobe.perf.table.fields import Field, beside, count, exact_cell, exact_time, heads, numeric, rows_of, share_cell, table_of
from strobe.perf.table.model import (
    Block,
    Cell,
    Figure,
    Flame,
    Frame,
    Kind,
    LevelName,
    Missing,
    Notes,
    Number,
    Ratio,
    Section,
    Speedup,
    Table,
    Text,
    Waterfall,
    Whisker,
    Whiskers,
    times_text,
)
from strobe.perf.table.rows import columns
from strobe.perf.trace import Trace

_TIMES: Final = ("baseline_ns", "candidate_ns", "saved_ns")
_SIDES: Final = ("baseline", "candidate")


def speedups(study: SpeedupStudy) -> tuple[Speedup, ...]:
    """Return the speedups that a requirement can refer to."""
    return tuple(Speedup("candidate", "baseline", row.level, ratio) for row, ratio in _ratios(study.levels))


def _interval(row: LevelFigure) -> Cell:
    if row.ratio is None or row.low is None or row.high is None:
        return Text("") if row.ratio is None else Missing("fewer than two steps or rounds", "none")
    return Text(f"{times_text(row.low, 4)} to {times_text(row.high, 4)}", note=DRIFT)


def _ratios(rows: Iterable[LevelFigure]) -> Iterator[tuple[LevelFigure, Ratio]]:
    yield from ((row, Ratio(row.ratio, row.low, row.high)) for row in rows if row.ratio is not None)


def levels_section(study: SpeedupStudy) -> Section:
    """Build the section with theoretical and actual speedups, and the losses between them."""
    lead = (
        "Time of the baseline / time of the candidate; above 1 the candidate is faster. Kernel and section are what the traces "
        "promise, the stage is what arrives."
    )
    if not study.comparable:
        lead = "The sides are not comparable: what each took stands here, and no ratio."
    blocks: list[Block] = [_levels_figure(study)]
    account = study.call_account
    if account is not None and len(account.levels) > 1:
        blocks.append(_account_figure(study, account))
        blocks += [Notes(tuple(_eaten(account)))] if study.comparable else []
    elif account is None:
        why = "neither kernel, section nor attention call was measured on both sides"
        blocks.append(Notes((f"No account from the kernel to the stage: {why}.",)))
    return Section("speedups", "Speedups", lead, tuple(blocks))


def ladder(study: SpeedupStudy) -> Table:
    """Build the table of measured levels, from the kernel outwards, with what each takes of the saving of its focal calls."""
    fields = columns(LevelFigure, "level", "ratio", *_TIMES, "costs_ns", "realised")
    return table_of("From the kernel to the whole.", fields, [row for row in study.levels if not row.missing])


def _levels_figure(study: SpeedupStudy) -> Block:
    measured = [row for row in study.levels if not row.missing]
    if not measured:
        return Notes(("No level was measured on both sides.",))
    notes = [
        f"Intervals are {DRIFT}: the sides were measured at different times. None where there are fewer than two steps or rounds "
        "on a side; calls inside one depend on each other.",
        "Realised is not shown where the number of focal calls is not known, or where the kernel did not move the level.",
        *(f"{LEVEL_TITLES[row.level]}: {row.unlike}" for row in measured if row.unlike and row.ratio),
        *_loud_units(study),
    ]
    source: Field[LevelFigure] = Field("from", lambda row: "; ".join({s.what: 0 for s in (row.baseline, row.candidate) if s}))
    interval: Field[LevelFigure] = Field(
        "95 % interval", _interval, hint=f"Welch's t on logarithms, over steps or rounds: {DRIFT}"
    )
    verdict: Field[LevelFigure] = Field("verdict", lambda row: verdict_cell(row.verdict) if row.verdict else "")
    fields = (*columns(LevelFigure, "level", "ratio"), interval, verdict, *columns(LevelFigure, *_TIMES, "realised"), source)
    table = table_of("Speedups." if study.comparable else "Times.", fields, measured, notes=notes)
    dots = [Whisker(LEVEL_TITLES[row.level], ratio, "", "unlike" if row.unlike else "") for row, ratio in _ratios(measured)]
    if not dots:
        return table
    title = "Speedup at each level, with the 95 % interval where there is one."
    return Figure(title, "Speedups by level; the table says the same.", Whiskers("baseline", tuple(dots)), table, table_open=True)


def _loud_units(study: SpeedupStudy) -> Iterator[str]:
    """Yield notes on units that differ from their labels, for every table that uses the attention timers."""
    timers = [timer.resolved for side in study.sides for timer in side.timings.timers if timer.resolved.prominent]
    yield from dict.fromkeys(unit_notes(timers))


def _whole(account: Ledger, level: LevelName, name: str) -> LedgerLine:
    share, (b, c) = 1.0 if account.saved_ns else None, account.both
    return LedgerLine(
        level=level, name=name, label=Label((), ""), baseline_ns=b, candidate_ns=c, share=share, interval=account.interval
    )


def _account_figure(study: SpeedupStudy, account: Ledger) -> Figure:
    unit, kernel = _unit(account), account.kernel_saved_ns if account.kernel_moved else 0
    share: Field[LedgerLine] = numeric("of the kernel's saving", lambda row: share_cell(row.saved_ns, kernel))
    fields = (*columns(LedgerLine, "line", *_TIMES), share)
    whole = _whole(account, "e2e", f"{unit} = sum of all lines")
    rows = rows_of(fields, (*account.lines, whole), strong=lambda row: row is whole)
    notes = [
        *([_OF_TIMERS] if study.accounts else []),
        f"{account.why[0].upper()}{account.why[1:]}; each line is exact, printed to the nanosecond.",
        *(f"Not in the account, {level}: {reason}" for level, reason in account.missing.items()),
        *([f"Section: {study.unlike}"] if study.unlike else []),
        *_loud_units(study),
    ]
    table = Table(f"From the kernel to {unit}.", heads(fields), rows, tuple(notes))
    title = f"What {unit} saves, from the kernel outwards. {_BARS}"
    return Figure(title, "Waterfall of one call; the table says the same.", _bars(account), table, table_open=True)


_OF_TIMERS: Final = (
    "It is cut at the log's timers, which have waiting and other work in them; the first account at the trace's kernels."
)
_BARS: Final = "Bars that go left are time saved, bars that go right time added."


def _bars(account: Ledger) -> Waterfall:
    lines = [(line.line, line.saved_ns, line.interval) for line in account.lines]
    return waterfall((_SIDES[0], account.baseline_ns), (_SIDES[1], account.candidate_ns), lines, account.interval)


def _eaten(account: Ledger) -> Iterator[str]:
    kernel, saved, unit = account.kernel_saved_ns, account.saved_ns, _unit(account)
    if "kernel" in account.missing:
        yield "What the focal kernel saved is not known, as not both sides have a trace that shows it; nor is an ideal."
    elif kernel <= 0:
        yield "The focal kernel saved nothing, so there is no ideal to compare with."
    elif not account.kernel_moved:
        yield f"The focal kernel saved {ms(kernel)} of the {ms(saved)} that {unit} moved by: other lines did it."
    else:
        ideal = f", {float(account.baseline_ns / account.ideal_ns):.4f}x" if account.ideal_ns > 0 else ""
        yield (
            f"Ideal by Amdahl: if nothing but the kernel had changed, {unit} would take {ms(account.ideal_ns)}{ideal}. "
            f"Realised: {ms(saved)} of {ms(kernel)}, {float(saved / kernel):.1%}."
        )


def _unit(account: Ledger) -> str:
    level = account.levels[-1].level
    return f"one {'section' if level == 'section' else LEVEL_WORDS[level]}"


def ms(ns: Fraction) -> str:
    """Format a time in milliseconds with six decimals."""
    return f"{float(ns) / 1e6:.6f} ms"


# Ledger of two traces: lines that add up to the difference exactly, and the kernel calls behind them.

MAX_EFFECTS: Final = 20
FEW_STEPS: Final = (
    "So few steps make it too narrow: with 5 a side it holds the true value in about 89 % of cases, with 10 in 91 %."
)
LEDGER_UNITS: Final = {
    "stage": "one stage",
    "step": "one step",
    "call": "one focal call and the time up to the next",
    "window": "the traced window",
}


def _level_title(account: Ledger, level: str) -> str:
    return account.unit if level == "step" and account.unit in ("call", "window") else level


def ledger_section(study: SpeedupStudy) -> Section:
    """Build the section with the full ledger of the slowest ranks, and a table of all ranks."""
    title = "Where the time went"
    if not study.accounts:
        return Section("ledger", title, "", (Notes((f"No ledger: {no_account(study)}.",)),))
    account = study.accounts[0]
    lead = (
        "Every nanosecond of the compared device time belongs to one line; what the candidate saves is the sum of what the lines "
        f"save. Times are for {LEDGER_UNITS[account.unit]}: {account.why}. It is the account of the first section, line by line."
    )
    of_rank, picture = f", {account.ranks}" if account.ranks else "", _bars(account)
    words = (
        f"From baseline to candidate, line by line, for {LEDGER_UNITS[account.unit]}{of_rank}. {_BARS}{whisker_words(picture)}"
    )
    alt = "Waterfall; the ledger table says the same."
    blocks: list[Block] = [Figure(words, alt, picture, _lines(study, account), table_open=True), _effects(account)]
    if len(study.accounts) > 2:
        blocks.append(_ranks(study))
    if any(side.met for side in study.sides):
        blocks.append(_waiting(study))
    return Section("ledger", title, lead, tuple(blocks))


def no_account(study: SpeedupStudy) -> str:
    """Return the reason why the traces have no account."""
    lacking = [(side.name, side.traced) for side in study.sides if isinstance(side.traced, str)]
    without = [name for name, reason in lacking if reason == NO_TRACE]
    said = [f"no trace of the {' and the '.join(without)}"] if without else []
    return "; ".join([*said, *(f"{name}: {reason}" for name, reason in lacking if reason != NO_TRACE)])


def _lines(study: SpeedupStudy, account: Ledger) -> Table:
    whole = _whole(account, account.levels[-1].level, "sum of all lines")
    top = _level_title(account, whole.level)

    def covers(side: str, at: int) -> Field[LedgerLine]:
        return Field(
            f"covers, {side}", lambda row: row.covers_ns[at] if row.covers_ns else Text(""), exact_cell, "ms", hint=COVERS
        )

    level: Field[LedgerLine] = Field(
        "level", lambda row: _level_title(account, row.level), hint="the first level that contains the line"
    )
    fields = (
        level,
        *columns(LedgerLine, "line", *_TIMES),
        *([interval_field(lambda row: row.interval)] if account.intervals.lines else []),
        *(columns(LedgerLine, "share") if study.comparable else ()),
        *map(covers, _SIDES, (0, 1)),
    )
    rows = rows_of(fields, (*account.lines, whole), strong=lambda row: row is whole)
    ideal = (
        f"Ideal by Amdahl, if nothing but the focal kernel had changed: {ms(account.ideal_ns)}; the focal kernel saves "
        f"{ms(account.kernel_saved_ns)}, {top} {ms(account.saved_ns)}; lines that grew take {ms(-account.lost_ns)}."
    )
    notes = [
        "The lines add up exactly, as whole numbers of nanoseconds over "
        f"{account.num_units} unit{'s' if account.num_units > 1 else ''}: checked."
        + (" Printed here: one unit, rounded to the nanosecond." if account.num_units > 1 else ""),
        f"Where work overlaps, the first of {', '.join(PRIORITY)} owns the time; the columns 'covers' do not depend on it.",
        _interval_note(account),
        *([ideal] if study.comparable else []),
    ]
    if account.unit == "stage":
        notes += _loud_units(study)
    return Table(f"Ledger for {LEDGER_UNITS[account.unit]}.", heads(fields), rows, tuple(notes))


def _interval_note(account: Ledger) -> str:
    spread = account.intervals
    if spread.none_because:
        return f"No intervals: {spread.none_because}."
    b, c = spread.steps
    return (
        f"Intervals: percentile bootstrap of whole steps, {b} of the baseline and {c} of the candidate, {DRIFT}; each is of one "
        "line, so they do not add up."
        + (" Whatever a log goes into has none." if spread.total is None else "")
        + (f" {FEW_STEPS}" if min(b, c) < BOOTSTRAP_SAMPLES else "")
    )


def _effects(account: Ledger) -> Block:
    if not account.kernels:
        return Notes(("No kernels in the compared time.",))

    def calls(side: str, at: int) -> Field[CallsEffect]:
        return numeric(f"calls, {side}", lambda row: row.calls[at], show=lambda n: Number(float(n), 1), total=sum)

    fields = (
        *columns(CallsEffect, "kernel"),
        *map(calls, _SIDES, (0, 1)),
        *columns(CallsEffect, "saved_ns", "by_calls_ns", "by_speed_ns"),
    )
    notes = ("n calls of mean m: fewer calls (n_b - n_c)(m_b + m_c) / 2, faster calls (m_b - m_c)(n_b + n_c) / 2.",)
    caption = "What each kernel saved, by fewer calls and by faster calls."
    return table_of(caption, fields, account.kernels, top=MAX_EFFECTS, notes=notes, collapsed=True)


def _ranks(study: SpeedupStudy) -> Table:

    def group(title: str) -> Field[Ledger]:
        return Field(title, lambda row: total(line.saved_ns for line in row.lines if _group(line) == title), exact_cell, "ms")

    fields: tuple[Field[Ledger], ...] = (
        Field("rank", lambda row: row.ranks), *columns(Ledger, *_TIMES), *map(group, _GROUPS)
    )  # fmt: skip
    units = dict.fromkeys(LEDGER_UNITS[account.unit] for account in study.accounts)
    notes = ("The columns behind 'saved' are what each kind of line saves; they add up to it.",)
    return table_of(f"Every rank, for {' or '.join(units)}.", fields, study.accounts, notes=notes)


def _waiting(study: SpeedupStudy) -> Table:
    fields: tuple[Field[tuple[LoadedSide, MemberTime]], ...] = (
        Field("side", lambda row: row[0].name),
        Field("trace", lambda row: row[0].labels[row[1].trace]),
        count("collectives", lambda row: row[1].n, "found on all ranks, in which all wait for all"),
        exact_time("waited", lambda row: row[1].wait_ns, "sum of the times from its own start to the last rank's"),
        exact_time("moved data", lambda row: row[1].transfer_ns, "sum of the times from the last rank's start to its own end"),
        count("started last", lambda row: row[1].last, "times that the others waited for it alone"),
    )
    notes = ["Over the whole traces, so the sums are not the ledger's line; a collective that other work hides counts in full."]
    for side in study.sides:
        if side.met is not None and not side.met.aligned:
            notes.append(f"{side.name}: the clocks of its ranks differ, so waiting and moving cannot be told apart.")
        notes += [f"{side.name}: {problem}." for problem in (side.met.problems if side.met else ())]
    rows = [(side, each) for side in study.sides if side.met is not None for each in side.met.times]
    return table_of("Communication of every rank: waiting for the last one, or moving data.", fields, rows, notes=notes)


def _group(line: LedgerLine) -> str:
    if trace_part(line.label) in NAMELESS:
        return Part.UNNAMED.value
    if line.label.path[0] != "step":
        return "focal" if line.label.path[0] == "focal" else "rest of section"
    return "idle" if line.label.activity in IDLE else _COLUMNS[line.label.activity]


_COLUMNS: Final = {
    "kernel": "other kernels, memsets",
    "memset": "other kernels, memsets",
    "comm": "communication",
    "memcpy": "copies",
}
_GROUPS: Final = ("focal", "rest of section", *dict.fromkeys(_COLUMNS.values()), "idle", Part.UNNAMED.value)


def focal_kernels(study: SpeedupStudy) -> Section:
    """Build the section on kernels with one row per trace: calls and times of the focal kernel in the compared time."""
    rows = []
    for side in study.sides:
        reason = "no pattern given" if side.request.focal is None else "every call lies in a step that is left out"
        if isinstance(side.traced, str):
            rows.append(Listed(Missing(side.traced), side=side.name))
            continue
        for own in side.traced:
            calls = distribution(np.array(own.counted, np.int64)) or Missing(reason, "none")
            rows.append(Listed(focal_row(own.focal_names, calls), side=side.name, trace=own.label, device=own.device))
    notes = (
        "The kernel that the change is about: every call of the trace, but for those in steps that are left out with a cause "
        "(see the notes).",
        "The rank that the speedups are from is the one with the longest mean step without communication.",
    )
    return kernels_section([*kernel_tables("Focal kernels", rows, hidden=FOCAL, notes=notes)], exclusive=False)


def sections_section(study: SpeedupStudy) -> Section | None:
    """Build the section with one row per trace and its section definition; `None` if no section was asked for."""
    if all(side.request.section is None for side in study.sides):
        return None
    rows: list[SectionCells] = []
    notes = []
    for side in study.sides:
        name = side.name
        if side.request.section is None or isinstance(side.traced, str):
            reason = "no section asked for" if side.request.section is None else str(side.traced)
            rows.append(((name, Missing(reason)), ()))
            continue
        found = [(own.label, own.sections) for own in side.traced if own.sections is not None]
        rows += [((name, label), sections) for label, sections in found]
        notes += [f"{name}, {label}: {note}" for label, sections in found for note in section_notes(sections)]
    if study.unlike:
        notes.append(f"The speedup of this level is {study.unlike}.")
    lead = "A section lasts from its left boundary to its right one: the nearest match before and after each focal kernel."
    table = sections_table(beside("side", ("trace",)), rows, notes)
    return Section("sections", "Section timing", lead, (table,))


# Timeline of one step of both sides, and the flame graph of their difference.

MAX_PATHS: Final = 40
_FOCAL: Final = Kind("focal kernel", "focal")
_WORK: Final = {
    ("section", "kernel"): Kind("rest of the section", "work1"), ("step", "kernel"): Kind("other kernels", "work2"),
    ("step", "comm"): Kind("communication", "work3"), ("step", "memcpy"): Kind("copies, memsets", "work4"),
}  # fmt: skip
_KINDS: Final = (_FOCAL, *_WORK.values(), *IDLE_KINDS.values())


def timeline_section(study: SpeedupStudy) -> Section | None:
    """Build the section with the step of median length of each side; `None` unless both were traced."""
    lanes = []
    for number, side in enumerate(study.sides):
        if side.chosen_trace is None:
            return None
        trace, own = side.chosen_trace
        ranked = sorted(own.tiles, key=lambda tile: (tile.end_ns - tile.start_ns, tile.index))
        tile = ranked[(len(ranked) - 1) // 2].index
        what = f"step {tile + 1} of {len(own.tiles)}" if len(own.tiles) > 1 else "the compared time"
        lanes.append((f"{side.name}, {what}", number, merged(_pieces(trace, own, tile))))
    if not all(pieces for *_, pieces in lanes):
        return None
    picture = draw_lanes(lanes, _KINDS, _FOCAL)
    title = "What ran (solid) and where nothing did (hatched), on one axis. The focal kernel stands out."
    table = class_table(lanes, picture, "Time of the step by class", "the step")
    figure = Figure(title, "Timeline of one step of both sides; the table gives the sums.", picture, table)
    lead = "The step of median length of each side, each from its own start. Traced, so longer than a step without a profiler."
    return Section("timeline", "One step, before and after", lead, (figure,))


def _pieces(trace: Trace, own: TracedSide, tile: int) -> Iterator[Piece]:
    chosen = np.flatnonzero(own.pieces.tile == tile)
    events, zero = trace.device_events, own.tiles[tile].start_ns
    columns = (own.pieces.start, own.pieces.end, own.pieces.label, own.pieces.event)
    for start, end, label, event in zip(*(column[chosen].tolist() for column in columns), strict=True):
        kind = _kind_of(LABELS[label])
        name = kind.label if event < 0 else kernel_name(events.names[events.name[event]])
        yield Piece(start - zero, end - zero, name, kind)


def _kind_of(label: Label) -> Kind:
    place, activity = label.path[0], label.activity
    if activity in IDLE_KINDS:
        return IDLE_KINDS[activity]
    if place == "focal":
        return _FOCAL
    if place == "section":
        return _WORK["section", "kernel"]
    return _WORK["step", "memcpy" if activity == "memset" else activity]


def flame_section(study: SpeedupStudy) -> Section | None:
    """Build the section with the difference by range, module, operator and kernel; `None` unless both sides were traced."""
    tree = study.tree
    working = () if tree is None else tuple(child for child in tree.root.children if child.path != (IDLE_LABEL,))
    if tree is None or not working:
        return None
    b, c = (total(child.both[at] for child in working) for at in (0, 1))
    busy = Node(path=("all",), baseline_ns=b, candidate_ns=c, children=working)
    words = "one focal call" if tree.unit == "call" else LEDGER_UNITS[tree.unit]
    lead = (
        f"Time of {words} by what launched it: modules, else ranges{', then operators' if tree.operators else ''}, then the "
        "kernel. Exclusive, so that it adds up; --json has every node, and the idle time by its cause. A name that only one "
        "side has is new or gone; sides with different code share few names."
    )
    title = "Widths are the larger side; less time than the baseline is one colour, more time the other."
    alt = "Differential flame graph; the table lists the largest changes."
    shown: Block = Figure(title, alt, Flame(_frame(busy), True), _paths(tree.root))
    if not any(child.children for child in busy.children):
        shown = Notes(("No ranges, modules or operators were recorded on either side: there is no path to draw.",))
    return Section("flame", "The difference by path", lead, (shown,))


def _frame(node: Node) -> Frame:
    """Return a node as a frame; only own times are rounded, so that a frame is the sum of its children and its own time."""
    children = tuple(map(_frame, node.children))
    own = node.own_ns
    return Frame(
        node.path[-1],
        round(own[0]) + sum(child.baseline_ns for child in children),
        round(own[1]) + sum(child.candidate_ns for child in children),
        children,
    )


def _paths(root: Node) -> Table:
    rows = [row for row in root.below() if row.leaf and row.path[0] != IDLE_LABEL]
    rows.sort(key=lambda row: (-abs(row.saved_ns), row.path))
    fields = columns(Node, "path", *_TIMES)
    shown = rows_of(fields, rows, top=MAX_PATHS, left="", totals=(("busy time", rows),), strong_rest=False)
    return Table("Paths by descending change.", heads(fields), shown)
