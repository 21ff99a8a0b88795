"""Tables of the ledger: lines that add up to the saving exactly, and the saving of each kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import groupby
from typing import Final, TypeAlias

from strobe.perf.analysis.ledger.account import CallsEffect, Ledger, Level, Line
from strobe.perf.measure.stats import Interval
from strobe.perf.report.blocks.calls_words import level_word, line_word
from strobe.perf.report.blocks.fields import Field, both_sides, heads, numeric, rows_of, share_cell, table_of
from strobe.perf.report.blocks.waterfall import interval_field
from strobe.perf.report.findings import Finding
from strobe.perf.report.model import Block, Cell, Code, Count, Paragraph, Table, Time
from strobe.perf.report.study import Subject

SMALL_LINE: Final = 0.001
"""Share of the reference's end-to-end time below which, in both variants, lines of a level share one row."""
MAX_EFFECTS: Final = 12
_OF_CLIPS: Final = ("clip", "timed frame blocks", "palindromes of clips")
_OF_CALLS: Final = ("sample", "timed samples", "rounds of samples")
"""Nouns for what was measured, its timed parts, and the rounds in which it ran."""
_Lines: TypeAlias = tuple[str, str, tuple[Line, ...]]
"""Level and name of a row, and the lines in it."""


def ledger_blocks(finding: Finding, found: Ledger, calls: bool = False) -> tuple[Block, ...]:
    """Return the table of every ledger line, and that of each kernel's saving split into fewer and faster calls."""
    reference, candidate = finding.reference, finding.candidate
    return (_lines_table(reference, candidate, found, calls), _effects_table(reference, candidate, found, calls))


def _lines(found: Ledger) -> Iterator[_Lines]:
    """Yield each line, and the small lines of a level together, so that the rows add up."""
    least = SMALL_LINE * found.baseline_ns
    for level, lines in groupby(found.lines, key=lambda line: line.level):
        small = []
        for line in lines:
            if max(abs(line.baseline_ns), abs(line.candidate_ns)) < least:
                small.append(line)
            else:
                yield level.value, line.name, (line,)
        if small:
            name = small[0].name if len(small) == 1 else f"{len(small)} lines under {100 * SMALL_LINE:.1f} % of end to end each"
            yield level.value, name, tuple(small)


def _lines_table(reference: Subject, candidate: Subject, found: Ledger, calls: bool) -> Table:
    clip, timed, rounds = _OF_CALLS if calls else _OF_CLIPS
    total, spread = (Level.E2E.value, f"sum of all lines = timed {clip}s", found.lines), found.spread

    def both(row: _Lines) -> tuple[int, int]:
        return sum(line.baseline_ns for line in row[2]), sum(line.candidate_ns for line in row[2])

    def interval(row: _Lines) -> Interval | None:
        own = spread.total if row is total else spread.lines.get(row[2][0].name) if len(row[2]) == 1 else None
        return None if own is None else Interval(low=found.num_units * own.low, high=found.num_units * own.high)

    share = "share of loss" if found.saved_ns < 0 else "share of saving"
    fields: tuple[Field[_Lines], ...] = (
        Field("level", lambda row: level_word(row[0], calls), hint="the first level that contains the line"),
        Field("line", lambda row: line_word(row[1], calls)),
        *both_sides((reference.label, candidate.label), both),
        *([interval_field(interval)] if spread.total else []),
        numeric(share, lambda row: share_cell(both(row)[0] - both(row)[1], found.saved_ns)),
    )
    rows = rows_of(fields, (*_lines(found), total), strong=lambda row: row is total)
    traced = found.spread.lines.keys().isdisjoint(line.name for line in found.lines)
    source = (
        f"The totals are those of untraced {clip}s. Busy time is that of one traced {clip}, times the number of "
        f"{clip}s; idle time is what the {timed} have left over, divided as the trace's idle time is. What the trace "
        f"shows beyond the {timed} is the line 'timed run minus trace'."
        if traced
        else f"Every line was timed in the {clip}s themselves, by the regions that they add up."
    )
    notes = (
        f"Every time is the sum over {found.num_units} paired {clip}s, in integer nanoseconds. "
        "The lines add up exactly: checked.",
        source,
        f"No intervals: {found.spread.why_none}."
        if found.spread.why_none
        else f"Intervals: paired t over {found.spread.samples[0]} {rounds}. Lines from a trace have none: it is of one {clip}.",
    )
    return Table(
        f"Account of {candidate.label} against {reference.label}, line by line.", heads(fields), rows, notes, collapsed=True
    )


def effect_fields(
    names: tuple[str, str, str],
    calls: Callable[[int], Cell],
    time: Callable[[int | Fraction], Cell],
    named: Callable[[str], str] = str,
) -> tuple[Field[CallsEffect], ...]:
    """Return the columns of a table of effects; all but the name add up.

    Args:
        names: what has the calls, the baseline, the candidate.
        calls: cell of a number of calls.
        time: cell of what they saved.
        named: what the page calls an effect.
    """
    what, baseline, candidate = names
    return (
        Field(what, lambda effect: named(effect.name), Code),
        numeric(f"calls, {baseline}", lambda effect: effect.baseline_calls, show=calls, total=sum),
        numeric(f"calls, {candidate}", lambda effect: effect.candidate_calls, show=calls, total=sum),
        Field("saved", lambda effect: effect.saved_ns, time, "ms", total=lambda each: Fraction(sum(each))),
        Field("by fewer calls", lambda effect: effect.calls_effect_ns, time, "ms", total=sum),
        Field("by faster calls", lambda effect: effect.speed_effect_ns, time, "ms", total=sum),
    )


def _time(ns: int | Fraction) -> Cell:
    return Time(ns if isinstance(ns, int) else float(ns))


def _effects_table(reference: Subject, candidate: Subject, found: Ledger, calls: bool) -> Block:
    if not found.effects:
        return Paragraph("No kernel or operator calls in the traced windows.")
    fields = effect_fields(
        ("kernel or operator", reference.label, candidate.label), Count, _time, partial(line_word, calls=calls)
    )
    caption = f"What {candidate.label} saved in each kernel or operator, by fewer calls and by faster calls."
    notes = (f"Over {found.num_units} {'sample' if calls else 'clip'}s, traced time; exact in the records.",)
    return table_of(caption, fields, found.effects, top=MAX_EFFECTS, left="", notes=notes, collapsed=True)
