"""Where the difference went: the chain from kernel to end to end, and lines that add up to the saving exactly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import groupby
from typing import Final

from strobe.perf.analysis.ledger.close import CallsEffect, Ledger, Level, Line
from strobe.perf.report.findings import Finding
from strobe.perf.report.model import (
    Bar,
    Block,
    Cell,
    Code,
    Column,
    Count,
    ExactTime,
    Figure,
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
from strobe.perf.report.study import Profile, Subject, covers_clip

MAX_BARS: Final = 14
MIN_SHARE: Final = 0.003
"""Lines that moved by less than this share of all movement are one bar together."""
SMALL_LINE: Final = 0.001
"""Lines that take less than this share of the reference's end to end in both variants are one row per level together."""
MAX_EFFECTS: Final = 12


def ledger_blocks(finding: Finding, found: Ledger, *, table_open: bool) -> tuple[Block, ...]:
    """The waterfall with its table, and the saving of each kernel split into fewer and faster calls."""
    reference, candidate = finding.reference, finding.candidate
    whole = covers_clip(candidate)
    if whole:
        scope = f"end to end over {found.num_units} paired clips"
    else:
        scope = (
            f"the traced frame blocks ({_range(candidate)}) over {found.num_units} paired clips; the table goes on to end to end"
        )
    title = (
        f"From {reference.label} to {candidate.label}, line by line: {scope}. "
        "Bars that go left are time saved, bars that go right time added."
    )
    alt = f"Waterfall from {reference.label} to {candidate.label}; the ledger table says the same."
    lines = _lines_table(reference, candidate, found)
    picture = _waterfall(finding, found, Level.E2E if whole else Level.BLOCK)
    return (Figure(title, alt, picture, lines, table_open=table_open), _effects_table(reference, candidate, found))


def _range(subject: Subject) -> str:
    assert isinstance(subject.profile, Profile)
    blocks, work = subject.profile.partition.indices, subject.run.header.workload
    return f"{blocks[0]} to {blocks[-1]}{f' of {work.frame_blocks}' if work else ''}"


def _tone(saved_ns: Fraction) -> Tone:
    return "good" if saved_ns > 0 else "bad" if saved_ns < 0 else "muted"


def _waterfall(finding: Finding, found: Ledger, level: Level) -> Waterfall:
    """All lines up to a level, in the order of the levels."""
    whole = next(item for item in found.levels if item.level == level)
    lines = [(line.name, Fraction(line.saved_ns)) for line in found.lines if level == Level.E2E or line.level != Level.E2E]
    names = finding.reference.label, finding.candidate.label
    return waterfall((names[0], Fraction(whole.baseline_ns)), (names[1], Fraction(whole.candidate_ns)), lines)


def waterfall(
    baseline: tuple[str, Fraction], candidate: tuple[str, Fraction], lines: Sequence[tuple[str, Fraction]]
) -> Waterfall:
    """Name and time of both sides, and what each line between them saves; small lines are one bar, so that the bars add up."""
    moved = sum(abs(saved) for _, saved in lines)
    largest = sorted(lines, key=lambda line: (-abs(line[1]), line[0]))[:MAX_BARS]
    shown = [line for line in lines if line in largest and abs(line[1]) > MIN_SHARE * moved]
    small = [line for line in lines if line not in shown]
    if len(small) == 1:
        shown, small = list(lines), []
    if any(saved for _, saved in small):
        shown.append((f"{len(small)} smaller lines", sum((saved for _, saved in small), Fraction(0))))
    at = baseline[1]
    bars = [Bar(baseline[0], 0, round(at), "plain", True)]
    for name, saved in shown:
        bars.append(Bar(name, round(at), round(at - saved), _tone(saved)))
        at -= saved
    assert at == candidate[1], "the bars do not add up"
    return Waterfall((*bars, Bar(candidate[0], 0, round(at), "plain", True)))


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
    return Row((Text(level.value), Text(name), *times, _share(saved / found.saved_ns if found.saved_ns else None)))


def _lines_table(reference: Subject, candidate: Subject, found: Ledger) -> Table:
    columns = (
        Column("level", hint="the first level that contains the line"),
        Column("line"),
        Column(reference.label, "ms", True),
        Column(candidate.label, "ms", True),
        Column("saved", "ms", True),
        Column("share of saving", numeric=True),
    )
    rows = list(_line_rows(found))
    total = (ExactTime(found.baseline_ns), ExactTime(found.candidate_ns), ExactTime(found.saved_ns))
    rows.append(
        Row(
            (Text("e2e"), Text("sum of all lines = timed clips"), *total, Share(1.0) if found.saved_ns else Missing("", "-")),
            strong=True,
        )
    )
    notes = (
        f"Every time is the sum over {found.num_units} paired clips, in integer nanoseconds. The lines add up exactly: checked.",
        "Labels were measured in one traced clip, times the number of clips. 'profiler dilation' takes back what tracing added, "
        "in the denoise steps and in the rest of the frame blocks; 'outside profiled window' is everything that was timed but "
        "not traced.",
    )
    return Table(f"Ledger of {candidate.label} against {reference.label}.", columns, tuple(rows), notes)


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
