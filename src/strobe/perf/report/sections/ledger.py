"""Where the difference went: the chain from kernel to end to end, and lines that add up to the saving exactly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import groupby
from typing import Final, NamedTuple

from strobe.perf.analysis.ledger.close import CallsEffect, Ledger, Level, Line
from strobe.perf.measure.stats import Interval
from strobe.perf.report.findings import Finding
from strobe.perf.report.model import (
    Bar,
    Block,
    Cell,
    Code,
    Column,
    Count,
    ExactTime,
    Missing,
    Paragraph,
    Row,
    Share,
    Table,
    Text,
    Time,
    Tone,
    Waterfall,
)
from strobe.perf.report.study import Subject
from strobe.perf.report.text import exact_ms

MAX_BARS: Final = 14
MIN_SHARE: Final = 0.003
"""Lines that moved by less than this share of all movement, at either end of their intervals, are one bar together."""
SMALL_LINE: Final = 0.001
"""Lines that take less than this share of the reference's end to end in both variants are one row per level together."""
MAX_EFFECTS: Final = 12


INTERVAL: Final = Column("95 % interval", "ms", True, "of what is saved")


class Drop(NamedTuple):
    """What a line saves, for the waterfall, with its interval if it has one."""

    name: str
    saved_ns: Fraction
    interval: Interval | None = None


def ledger_blocks(finding: Finding, found: Ledger) -> tuple[Block, ...]:
    """Every line of the account, and the saving of each kernel split into fewer and faster calls."""
    reference, candidate = finding.reference, finding.candidate
    return (_lines_table(reference, candidate, found), _effects_table(reference, candidate, found))


def _tone(saved_ns: Fraction) -> Tone:
    return "good" if saved_ns > 0 else "bad" if saved_ns < 0 else "muted"


def _over_all(found: Ledger, interval: Interval | None) -> Interval | None:
    """The interval of one unit, for all of them."""
    return None if interval is None else Interval(low=found.num_units * interval.low, high=found.num_units * interval.high)


def whisker_words(picture: Waterfall) -> str:
    """What the whiskers of a waterfall are, if it has any."""
    if all(bar.low_ns is None for bar in picture.bars):
        return ""
    total = "; the last: of all that is saved" if picture.bars[-1].low_ns is not None else ""
    return f" Whiskers: where a bar would end at either end of its 95 % interval{total}."


def waterfall(
    baseline: tuple[str, Fraction], candidate: tuple[str, Fraction], lines: Sequence[Drop], total: Interval | None = None
) -> Waterfall:
    """Draw what lies between both sides; small lines are one bar without an interval, so that the bars add up.

    Args:
        baseline: name and time.
        candidate: likewise.
        lines: what each line between them saves.
        total: the interval of what they save together.
    """
    moved = sum(abs(line.saved_ns) for line in lines)
    largest = sorted(lines, key=lambda line: (-abs(line.saved_ns), line.name))[:MAX_BARS]
    shown = [line for line in lines if line in largest and _may_save(line) > MIN_SHARE * moved]
    small = [line for line in lines if line not in shown]
    if len(small) == 1:
        shown, small = list(lines), []
    if any(line.saved_ns for line in small):
        shown.append(Drop(f"{len(small)} smaller lines", sum((line.saved_ns for line in small), Fraction(0))))
    at = baseline[1]
    bars = [Bar(baseline[0], 0, round(at), "plain", True)]
    for name, saved, interval in shown:
        bars.append(Bar(name, round(at), round(at - saved), _tone(saved), False, *_ends(at, interval)))
        at -= saved
    assert at == candidate[1], "the bars do not add up"
    return Waterfall((*bars, Bar(candidate[0], 0, round(at), "plain", True, *_ends(baseline[1], total))))


def _may_save(line: Drop) -> float:
    """The largest saving or loss that its interval allows."""
    saved = abs(float(line.saved_ns))
    return saved if line.interval is None else max(saved, abs(line.interval.low), abs(line.interval.high))


def _ends(start: Fraction, saved: Interval | None) -> tuple[int | None, int | None]:
    """Where a bar that starts there ends if it saves most and least."""
    return (None, None) if saved is None else (round(float(start) - saved.high), round(float(start) - saved.low))


def interval_cell(interval: Interval | None) -> Cell:
    """The interval of a saving, in the column's milliseconds."""
    if interval is None:
        return Missing("", "-")
    return Text(f"{exact_ms(round(interval.low))} to {exact_ms(round(interval.high))}")


def _share(value: float | None) -> Cell:
    return Missing("", "-") if value is None else Share(value)


def _line_rows(found: Ledger) -> Iterable[Row]:
    """One row per line, and one per level for its small lines, so that the rows add up."""
    least = SMALL_LINE * found.baseline_ns
    for level, lines in groupby(found.lines, key=lambda line: line.level):
        small = []
        for line in lines:
            if max(abs(line.baseline_ns), abs(line.candidate_ns)) < least:
                small.append(line)
            else:
                yield _line_row(level, line.name, (line,), found)
        if small:
            name = small[0].name if len(small) == 1 else f"{len(small)} lines under {100 * SMALL_LINE:.1f} % of end to end each"
            yield _line_row(level, name, small, found)


def _line_row(level: Level, name: str, lines: Sequence[Line], found: Ledger) -> Row:
    baseline, candidate = sum(line.baseline_ns for line in lines), sum(line.candidate_ns for line in lines)
    saved = baseline - candidate
    times = (ExactTime(baseline), ExactTime(candidate), ExactTime(saved))
    interval = _over_all(found, found.spread.lines.get(lines[0].name)) if len(lines) == 1 else None
    share = _share(saved / found.saved_ns if found.saved_ns else None)
    return Row((Text(level.value), Text(name), *times, *_interval_cells(found, interval), share))


def _interval_cells(found: Ledger, interval: Interval | None) -> tuple[Cell, ...]:
    """One cell if the table has the column."""
    return (interval_cell(interval),) if found.spread.total else ()


def _lines_table(reference: Subject, candidate: Subject, found: Ledger) -> Table:
    columns = (
        Column("level", hint="the first level that contains the line"),
        Column("line"),
        Column(reference.label, "ms", True),
        Column(candidate.label, "ms", True),
        Column("saved", "ms", True),
        *([INTERVAL] if found.spread.total else []),
        Column("share of saving", numeric=True),
    )
    rows = list(_line_rows(found))
    total = (ExactTime(found.baseline_ns), ExactTime(found.candidate_ns), ExactTime(found.saved_ns))
    interval = _interval_cells(found, _over_all(found, found.spread.total))
    share = _share(1.0 if found.saved_ns else None)
    rows.append(Row((Text("e2e"), Text("sum of all lines = timed clips"), *total, *interval, share), strong=True))
    traced = found.spread.lines.keys().isdisjoint(line.name for line in found.lines)
    source = (
        "The totals are those of untraced clips. Busy time is that of one traced clip, times the number of clips; idle time is "
        "what the timed frame blocks have left over, divided as the trace's idle time is. What the trace shows beyond the timed "
        "frame blocks is the line 'timed run minus trace'."
        if traced
        else "Every line was timed in the clips themselves, by the regions that they add up."
    )
    notes = (
        f"Every time is the sum over {found.num_units} paired clips, in integer nanoseconds. The lines add up exactly: checked.",
        source,
        f"No intervals: {found.spread.why_none}."
        if found.spread.why_none
        else f"Intervals: paired t over {found.spread.samples[0]} palindromes of clips. Lines from a trace have none: it "
        "is of one clip.",
    )
    return Table(
        f"Account of {candidate.label} against {reference.label}, line by line.", columns, tuple(rows), notes, collapsed=True
    )


def _effects_table(reference: Subject, candidate: Subject, found: Ledger) -> Block:
    if not found.effects:
        return Paragraph("No kernel or operator calls in the traced windows.")
    columns = (
        Column("kernel or operator"),
        Column(f"calls, {reference.label}", numeric=True),
        Column(f"calls, {candidate.label}", numeric=True),
        Column("saved", "ms", True),
        Column("by fewer calls", "ms", True),
        Column("by faster calls", "ms", True),
    )
    rows = [_effect_row(effect) for effect in found.effects[:MAX_EFFECTS]]
    rest = found.effects[MAX_EFFECTS:]
    if rest:
        sums = (
            sum(effect.saved_ns for effect in rest),
            sum(effect.calls_effect_ns for effect in rest),
            sum(effect.speed_effect_ns for effect in rest),
        )
        counts = (Count(sum(effect.baseline_calls for effect in rest)), Count(sum(effect.candidate_calls for effect in rest)))
        rows.append(Row((Text(f"{len(rest)} more"), *counts, *(Time(float(value)) for value in sums)), strong=True))
    caption = f"What {candidate.label} saved in each kernel or operator, by fewer calls and by faster calls."
    return Table(
        caption, columns, tuple(rows), (f"Over {found.num_units} clips, traced time; exact in the records.",), collapsed=True
    )


def _effect_row(effect: CallsEffect) -> Row:
    times = (Time(effect.saved_ns), Time(float(effect.calls_effect_ns)), Time(float(effect.speed_effect_ns)))
    return Row((Code(effect.name), Count(effect.baseline_calls), Count(effect.candidate_calls), *times))
