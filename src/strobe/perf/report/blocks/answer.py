"""The answer of a page: levels, waterfall and ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import groupby
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace

from strobe.core import spans
from strobe.core.costs import device_peaks
from strobe.core.spans import DENOISE_STEP, E2E, FRAME_BLOCK
from strobe.perf.analysis.ledger.account import CallsEffect, Ledger, LedgerLine, LevelSum, total
from strobe.perf.analysis.ledger.speedup import Answer, PartLine
from strobe.perf.analysis.parts import BY_THE_CLOCK, NO_LARGEST, TOGETHER, Part
from strobe.perf.analysis.runs.compare import Comparison, SideClocks, apart, ratio_cell, side_clocks
from strobe.perf.analysis.runs.timeline import TIMED
from strobe.perf.measure.stats import Interval, Verdict, paired_interval
from strobe.perf.report.blocks.fields import level_word, line_word, section_of
from strobe.perf.report.findings import Finding
from strobe.perf.report.study import Subject
from strobe.perf.table.fields import Field, both_sides, count, heads, numeric, rows_of, share_cell, table_of
from strobe.perf.table.model import (
    Bar,
    Block,
    Cell,
    Code,
    Figure,
    LevelName,
    Notes,
    Ratio,
    Report,
    Section,
    Share,
    Speedup,
    Table,
    Text,
    Time,
    Tone,
    Waterfall,
    exact_ms,
    ratio_text,
    significant,
    speedup_words,
)

# Waterfall from the time before to the time after, with one bar for each line of a ledger.

T = TypeVar("T")
MAX_BARS: Final = 14


MIN_SHARE: Final = 0.003
"""Share of all movement below which, at both ends of their intervals, lines share one bar."""


Drop: TypeAlias = tuple[str, Fraction, Interval | None]
"""Name of a line of a waterfall, what it saves, and the interval of that if there is one."""


def whisker_words(picture: Waterfall) -> str:
    """Return the sentence that explains a waterfall's whiskers; empty if it has none."""
    if all(bar.low_ns is None for bar in picture.bars):
        return ""
    last = "; the last: of all that is saved" if picture.bars[-1].low_ns is not None else ""
    return f" Whiskers: where a bar would end at either end of its 95 % interval{last}."


def waterfall(
    baseline: tuple[str, Fraction], candidate: tuple[str, Fraction], lines: Sequence[Drop], whole: Interval | None = None
) -> Waterfall:
    """Build the waterfall between both sides; small lines share one bar without an interval, so that the bars add up."""

    def may_save(saved_ns: Fraction, interval: Interval | None) -> float:
        ends: tuple[float, ...] = () if interval is None else (interval.low, interval.high)
        return max(abs(end) for end in (float(saved_ns), *ends))

    moved = sum(abs(saved) for _, saved, _ in lines)
    largest = sorted(lines, key=lambda line: (-abs(line[1]), line[0]))[:MAX_BARS]
    shown = [line for line in lines if line in largest and may_save(*line[1:]) > MIN_SHARE * moved]
    small = [line for line in lines if line not in shown]
    if len(small) == 1:
        shown, small = list(lines), []
    if any(saved for _, saved, _ in small):
        shown.append((f"{len(small)} smaller lines", total(saved for _, saved, _ in small), None))
    at = baseline[1]
    bars = [Bar(baseline[0], 0, round(at), "plain", True)]
    for name, saved, interval in shown:
        tone: Tone = "good" if saved > 0 else "bad" if saved < 0 else "muted"
        bars.append(Bar(name, round(at), round(at - saved), tone, False, *_ends(at, interval)))
        at -= saved
    assert at == candidate[1], "the bars do not add up"
    return Waterfall((*bars, Bar(candidate[0], 0, round(at), "plain", True, *_ends(baseline[1], whole))))


def _ends(start: Fraction, saved: Interval | None) -> tuple[int | None, int | None]:
    return (None, None) if saved is None else (round(float(start) - saved.high), round(float(start) - saved.low))


def interval_field(get: Callable[[T], Interval | None]) -> Field[T]:
    """Return the column of the interval of what a row saves."""

    def show(saved: Interval) -> Cell:
        return Text(f"{exact_ms(round(saved.low))} to {exact_ms(round(saved.high))}")

    return Field("95 % interval", get, show, "ms", hint="of what is saved")


# Speedups of each level, from the attention kernel to end to end: the figure of all pages, and what gates refer to.

_TIMED: Final[dict[LevelName, str]] = {"step": DENOISE_STEP, "block": FRAME_BLOCK, "e2e": E2E}


def level_ratio(finding: Finding, level: LevelSum) -> tuple[Ratio, Comparison | None] | None:
    """Return the speedup of a level and the timed comparison behind it; traced levels have none. None: nothing to divide by."""
    timed = finding.stage(_TIMED[level.level]) if level.level in _TIMED else None
    if timed is not None:
        return timed.cell, timed
    sums = sum(level.tiles[0]), sum(level.tiles[1])
    if not all(sums):
        return None
    many = min(len(level.tiles[0]), len(level.tiles[1]))
    each = zip(level.tiles[0][:many], level.tiles[1][:many], strict=True)
    logs = [math.log(reference / candidate) for reference, candidate in each if reference and candidate]
    ratio = sums[0] * len(level.tiles[1]) / (sums[1] * len(level.tiles[0]))
    return ratio_cell(ratio, paired_interval(logs, ratio)), None


def speedups(findings: Sequence[Finding]) -> tuple[Speedup, ...]:
    """Return the speedups that a gate can refer to. Without a ledger only the timed levels exist."""
    found = []
    for finding in findings:
        names = (finding.candidate.label, finding.reference.label)
        if isinstance(finding.ledger, Ledger):
            for level in finding.ledger.levels:
                if known := level_ratio(finding, level):
                    traced_ns = float(level.saved_ns / max(1, len(level.tiles[0])))
                    saved_ns = _per_clip_ns(known[1]) if known[1] else traced_ns
                    found.append(Speedup(*names, level.level, known[0], saved_ns))
            continue
        timed = ((name, finding.stage(stage)) for name, stage in _TIMED.items())
        found += [Speedup(*names, name, each.cell, _per_clip_ns(each)) for name, each in timed if each is not None]
    return tuple(found)


def _per_clip_ns(timed: Comparison) -> float:
    return timed.saved_ns / len(timed.baseline)


SMALL_LINE: Final = 0.001
"""Share of the reference's end-to-end time below which, in both variants, lines of a level share one row."""
MAX_EFFECTS: Final = 12
_OF_CLIPS: Final = ("clip", "timed frame blocks", "palindromes of clips")
_OF_CALLS: Final = ("sample", "timed samples", "rounds of samples")
"""Nouns for what was measured, its timed parts, and the rounds in which it ran."""
_Lines: TypeAlias = tuple[LevelName, str, tuple[LedgerLine, ...]]
"""Level and name of a row, and the lines in it."""


def ledger_blocks(finding: Finding, found: Ledger, calls: bool = False) -> tuple[Block, ...]:
    """Return the table of every ledger line, and that of each kernel's saving split into fewer and faster calls."""
    reference, candidate = finding.reference, finding.candidate
    return (_lines_table(reference, candidate, found, calls), _effects_table(reference, candidate, found, calls))


def _lines(found: Ledger) -> Iterator[_Lines]:
    """Yield each line, and the small lines of a level together, so that the rows add up."""
    least = SMALL_LINE * found.baseline_ns
    for level, lines in groupby(found.lines, key=lambda line: line.level):
        own = list(lines)
        small = tuple(line for line in own if max(abs(line.baseline_ns), abs(line.candidate_ns)) < least)
        yield from ((level, line.name, (line,)) for line in own if line not in small)
        if small:
            name = small[0].name if len(small) == 1 else f"{len(small)} lines under {100 * SMALL_LINE:.1f} % of end to end each"
            yield level, name, small


def _lines_table(reference: Subject, candidate: Subject, found: Ledger, calls: bool) -> Table:
    clip, timed, rounds = _OF_CALLS if calls else _OF_CLIPS
    whole: _Lines = "e2e", f"sum of all lines = timed {clip}s", found.lines

    def both(row: _Lines) -> tuple[Fraction, Fraction]:
        return total(line.baseline_ns for line in row[2]), total(line.candidate_ns for line in row[2])

    def interval(row: _Lines) -> Interval | None:
        own = found.interval if row is whole else row[2][0].interval if len(row[2]) == 1 else None
        return None if own is None else Interval(low=found.num_units * own.low, high=found.num_units * own.high)

    share = "share of loss" if found.saved_ns < 0 else "share of saving"
    fields: tuple[Field[_Lines], ...] = (
        Field("level", lambda row: level_word(row[0], calls), hint="the first level that contains the line"),
        Field("line", lambda row: line_word(row[1], calls)),
        *both_sides((reference.label, candidate.label), both),
        *([interval_field(interval)] if found.interval else []),
        numeric(share, lambda row: share_cell(both(row)[0] - both(row)[1], found.saved_ns)),
    )
    source = (
        f"The totals are those of untraced {clip}s. Busy time is that of one traced {clip}, times the number of "
        f"{clip}s; idle time is what the {timed} have left over, divided as the trace's idle time is. What the trace "
        f"shows beyond the {timed} is the line 'timed run minus trace'."
        if all(line.label.activity != TIMED for line in found.lines)
        else f"Every line was timed in the {clip}s themselves, by the regions that they add up."
    )
    notes = (
        f"Every time is the sum over {found.num_units} paired {clip}s, in integer nanoseconds. "
        "The lines add up exactly: checked.",
        source,
        f"No intervals: {found.intervals.none_because}."
        if found.intervals.none_because
        else f"Intervals: paired t over {found.intervals.steps[0]} {rounds}. Lines from a trace have none: it is of one {clip}.",
    )
    caption = f"Account of {candidate.label} against {reference.label}, line by line."
    return table_of(caption, fields, (*_lines(found), whole), strong=lambda row: row is whole, notes=notes, collapsed=True)


def _effects_table(reference: Subject, candidate: Subject, found: Ledger, calls: bool) -> Block:
    if not found.kernels:
        return Notes(("No kernel or operator calls in the traced windows.",))
    traced = all(line.label.activity != TIMED for line in found.lines)
    what, said = ("kernel or operator", ", traced time") if traced else ("region", "")
    fields: tuple[Field[CallsEffect], ...] = (
        Field(what, lambda effect: line_word(effect.kernel, calls), Code),
        count(f"calls, {reference.label}", lambda effect: int(effect.calls[0]), total=sum),
        count(f"calls, {candidate.label}", lambda effect: int(effect.calls[1]), total=sum),
        Field("saved", lambda effect: int(effect.saved_ns), Time, "ms", total=lambda each: Time(float(sum(each)))),
        Field("by fewer calls", lambda effect: effect.by_calls_ns, _time, "ms", total=sum),
        Field("by faster calls", lambda effect: effect.by_speed_ns, _time, "ms", total=sum),
    )
    caption = f"What {candidate.label} saved in each {what}, by fewer calls and by faster calls."
    notes = (f"Over {found.num_units} {'sample' if calls else 'clip'}s{said}; exact in the records.",)
    return table_of(caption, fields, found.kernels, top=MAX_EFFECTS, notes=notes, collapsed=True)


# The answer in ten lines: speedup, saving in a steady frame block, share of the other blocks, and the present limit.

ANSWER: Final = "answer"
OTHERS: Final = "answers"
"""Ids of the two sections: the answer of the candidate that the page begins with (`ANSWER`), and those of the others."""
REST: Final = "the rest"
SHORT_NS: Final = 100_000_000
"""Times below this are printed with four significant digits, ns."""
HOST_BOUND: Final = 0.2
"""Share of a frame block from which waiting for the host counts as the limit."""
COMPUTE_BOUND: Final = 0.7
"""Share of the peak FLOP rate, at the clock that ran where it is known, from which a kernel counts as bound by its FLOPs."""


def answer_sections(findings: Sequence[Finding]) -> tuple[Section | None, Section | None]:
    """Return the answer for the fastest proven candidate, to stand first, and a folded section for all others.

    The second also lists the candidates without an account, with the reason. None: there is nothing to show.
    """
    return _sections(next(iter(told_last(findings)[-1:]), None), findings, "Where the saving comes from")


def told_last(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with an account, the one that a page begins with last: the fastest of those proven faster."""
    told = [finding for finding in findings if finding.answer is not None]
    first = max(told, key=lambda finding: (_verdict(finding) == "faster", _ratio(finding)), default=None)
    return sorted(told, key=lambda finding: finding is first)


def bound_of(finding: Finding) -> str:
    """Return the sentence on what limits the candidate of a finding now; empty without an account."""
    found, candidate = finding.answer, finding.candidate
    return "" if found is None else limit(candidate.label, found, *_attention_rate(candidate, found))


def change_sections(findings: Sequence[Finding]) -> tuple[Section | None, Section | None]:
    """Return the same two sections for changes tried one by one, ordered by their effect on the end-to-end time."""
    ranked = sorted(
        findings, key=lambda finding: (_verdict(finding) not in ("faster", "slower"), -abs(math.log(_ratio(finding))))
    )
    first = next((finding for finding in ranked if finding.answer is not None), None)
    return _sections(first, ranked, "Where the largest difference comes from")


def _verdict(finding: Finding) -> Verdict | None:
    return None if finding.e2e is None else finding.e2e.verdict


def _ratio(finding: Finding) -> float:
    return 1.0 if finding.e2e is None else finding.e2e.ratio


def _sections(first: Finding | None, findings: Sequence[Finding], title: str) -> tuple[Section | None, Section | None]:
    blocks: list[Block] = [_figure(each, each.answer) for each in findings if each is not first and each.answer is not None]
    blocks += no_account(findings, "No account for {}.")
    lead = "Where a steady frame block spends its time, before and after. The lines add up exactly."
    others = section_of(OTHERS, "The other accounts" if first else "Accounts", lead, blocks, folded=True)
    if first is None or first.answer is None:
        return None, others
    figure = _figure(first, first.answer, f"What a {first.answer.unit} is spent on.")
    return Section(ANSWER, title, headline(first, first.answer), (figure,)), others


def no_account(findings: Sequence[Finding], words: str) -> tuple[Notes, ...]:
    """Return the note on the candidates without an account, each with the reason; none if all have one."""
    found = tuple(words.format(f"{each.candidate.label}: {each.ledger}") for each in findings if isinstance(each.ledger, str))
    return (Notes(found),) if found else ()


def answers_of(report: Report) -> tuple[Table, ...]:
    """Return the answer tables of a report, one per candidate with a ledger; the candidate the page begins with is last."""
    shown = {section.id: section for section in report.sections}
    found = [(shown[place], block) for place in (OTHERS, ANSWER) if place in shown for block in shown[place].blocks]
    tables = [(section, block.table) for section, block in found if isinstance(block, Figure)]
    return tuple(replace(table, caption=section.lead) if section.id == ANSWER else table for section, table in tables)


def line_name(line: PartLine) -> str:
    """Return the part's name; for a line of several parts, the name of the rest."""
    return line.parts[0].value if len(line.parts) == 1 else REST


def _figure(finding: Finding, found: Answer, caption: str = "") -> Figure:
    names, table = (finding.reference.label, finding.candidate.label), answer_table(finding, found)
    return answer_figure(names, found, replace(table, caption=caption or table.caption))


def answer_figure(names: tuple[str, str], found: Answer, table: Table, the: str = "") -> Figure:
    """Build the waterfall from one side to the other; `the`: article of the names."""
    drops: list[Drop] = [(line_name(line), line.saved_ns, None) for line in found.lines]
    picture = waterfall((names[0], found.baseline_ns), (names[1], found.candidate_ns), drops)
    title = f"From a {found.unit} of {the}{names[0]} to one of {the}{names[1]}: bars that go left are time saved."
    alt = f"Waterfall from {names[0]} to {names[1]}; the table says the same."
    return Figure(title, alt, picture, table, table_open=True)


def answer_table(finding: Finding, found: Answer) -> Table:
    """Build the table of at most eight parts before and after, with notes on the other frame blocks and the present limit."""
    reference, candidate = finding.reference, finding.candidate
    elsewhere = "first, filling and switch frame blocks, start and end"
    hint = "of the saving, the part that the SM clock made; the rest is fewer or more cycles"
    timed = BY_THE_CLOCK.intersection(part for line in found.lines for part in line.parts)
    goes = f"the clock is taken to act on {', '.join(sorted(part.value for part in timed))} alone"
    clock: tuple[Field[PartLine]] = (
        Field("by the clock", lambda line: line.clock_ns, _time, "ms", hint=hint, total=sum, missing=goes),
    )
    fields: tuple[Field[PartLine], ...] = (
        *part_fields((reference.label, candidate.label), found),
        *(clock if found.at_baseline_clock_ns is not None else ()),
        Field("saved in the clip's other blocks", lambda line: line.elsewhere_ns, _time, "ms", hint=elsewhere, total=sum),
    )
    rows = rows_of(fields, found.lines, totals=((f"a {found.unit}", found.lines),))
    notes = (
        _kinds(found),
        bound_of(finding),
        *rest_words(found),
        *_gaps_in_evidence(reference, candidate, found),
        _disturbance(reference, candidate, found),
    )
    return Table(headline(finding, found), heads(fields), rows, notes)


def headline(finding: Finding, found: Answer) -> str:
    """Return one line: speedup of a clip, speedup and times of a frame block, and the share that is explained."""
    e2e, names = finding.e2e, (finding.candidate.label, finding.reference.label)
    said = f"{names[0]} against {names[1]}: "
    if e2e is not None:
        said += f"a whole clip {speedup_words(e2e.cell, e2e.verdict)}; "
    times = significant(float(found.baseline_ns) / 1e6), significant(float(found.candidate_ns) / 1e6)
    ratio = float(found.baseline_ns / found.candidate_ns) if found.candidate_ns else 0.0
    words = clock_words(names, found)
    said += f"a {found.unit} {ratio_text(Ratio(ratio))}: {times[0]} -> {times[1]} ms"
    return f"{said}. {_explained(found)}{' ' if words else ''}{words}"


def clock_words(names: tuple[str, str], found: Answer) -> str:
    """Return what clock and power limit did to the candidate, named first; empty if nothing."""
    at, (before, after) = found.at_baseline_clock_ns, found.clocks
    if at is None or before is None or after is None:
        return ""
    highest = f" of {after.max_mhz:,}" if after.max_mhz else ""
    capped = "is held by its power cap" if after.power_capped else "runs at another clock"
    ran = f" Their clips ran at {_range(before)} and {_range(after)} MHz, which proves no difference."
    proof = "" if apart(before, after) else ran
    return (
        f"{names[0]} {capped}: {after.sm_mhz:,}{highest} MHz. At the {before.sm_mhz:,} MHz of {names[1]} a {found.unit} would "
        f"take about {significant(float(at) / 1e6)} ms.{proof}"
    )


def _range(clocks: SideClocks) -> str:
    low, high = min(clocks.clips_mhz), max(clocks.clips_mhz)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _explained(found: Answer) -> str:
    time = f"{100 * found.explained_time_share:.1f} % of a clip's time"
    if found.explained_saving_share is None:
        return f"Explained: {time}."
    return f"Explained: {time}, {100 * found.explained_saving_share:.1f} % of its {found.difference}."


def part_fields(names: tuple[str, str], found: Answer) -> tuple[Field[PartLine], ...]:
    """Return the columns of the parts of an answer: name, both sides, what was saved and its share; the parts add up."""
    return (
        Field("part", lambda line: Text(line_name(line), note=line.parts[0].meaning if len(line.parts) == 1 else "")),
        *both_sides(names, lambda line: line.both, f"of a {found.unit}", show=_time),
        numeric(f"share of {found.difference}", lambda line: line.share, show=Share, total=lambda shares: 1.0),
    )


def _time(ns: int | Fraction) -> Time:
    return Time(float(ns))


def _kinds(found: Answer) -> str:
    said = []
    for kind, num_blocks, (before, after) in found.kinds:
        many = f" ({num_blocks} frame blocks)" if num_blocks > 1 else ""
        if kind == "start and end" or num_blocks:
            said.append(f"{kind}{many} {float(before - after) / 1e6:.1f}")
    whole = total(before - after for _, _, (before, after) in found.kinds)
    return f"A whole clip saves {float(whole) / 1e6:.1f} ms: {', '.join(said)}."


def rest_words(found: Answer) -> tuple[str, ...]:
    """Return a note that names the parts in the line of the rest; empty without such a line."""
    several = [line for line in found.lines if len(line.parts) > 1]
    return tuple(f"The rest: {', '.join(part.value for part in line.parts)}." for line in several)


def _gaps_in_evidence(reference: Subject, candidate: Subject, found: Answer) -> tuple[str, ...]:
    said = [f"{name} is not marked on both sides: its time counts as {above}, on both." for name, above in found.sides[0].merged]
    for subject, side in zip((reference, candidate), found.sides, strict=True):
        if side.stood_for:
            listed = ", ".join(map(str, side.stood_for))
            said.append(f"The trace of {subject.label} lacks frame blocks {listed}: the others of their kind stand for them.")
    return tuple(said)


def limit(label: str, found: Answer, attention_rate: str = "", of_peak: float = 0.0) -> str:
    """Return one sentence on what a side spends most of its time on now, with the figure; on what bounds it where that is known.

    Args:
        attention_rate: FLOP rate of the attention kernel in words, added if that is the largest part.
        of_peak: that rate / the peak at the clock that ran.
    """
    whole = float(found.candidate_ns) or 1.0
    times = {line.parts[0]: float(line.candidate_ns) for line in found.lines if len(line.parts) == 1}
    waiting = times.get(Part.WAITING, 0.0) / whole
    if waiting >= HOST_BOUND:
        waited = sum(float(line.baseline_ns) for line in found.lines if line.parts == (Part.WAITING,))
        before = waited / (float(found.baseline_ns) or 1.0)
        still = f"still bound by the host, as the baseline ({100 * before:.0f} %)"
        since = still if before >= HOST_BOUND else "bound by the host now"
        share = f"{100 * waiting:.0f} % of a {found.unit} ({_of(times[Part.WAITING], whole)})"
        return f"{label} is {since}: the GPU waits for it in {share}."
    largest = max((part for part in times if part not in NO_LARGEST), key=lambda part: times[part], default=None)
    nameless = times.get(Part.UNNAMED, 0.0)
    if largest is None or nameless > times[largest]:
        return f"{label}: {100 * nameless / whole:.0f} % of a {found.unit} is unexplained, more than any named part takes."
    took, name = times[largest], largest.value
    for parts, both in TOGETHER.items():
        if largest not in parts and (together := sum(times.get(part, 0.0) for part in parts)) > took:
            took, name = together, both
    rate = attention_rate if largest == Part.ATTENTION_KERNEL else ""
    share = f"{100 * took / whole:.0f} % of a {found.unit} ({_of(took, whole)}){rate}"
    if rate and of_peak >= COMPUTE_BOUND:
        return f"{label} is bound by attention FLOPs now, {share}."
    return f"{label}'s largest part now: {name}, {share}."


def _of(part_ns: float, whole_ns: float) -> str:
    short = whole_ns < SHORT_NS
    part, whole = (significant(ns / 1e6) if short else f"{ns / 1e6:.1f}" for ns in (part_ns, whole_ns))
    return f"{part} of {whole} ms"


def _attention_rate(subject: Subject, found: Answer) -> tuple[str, float]:
    """Return the FLOP rate of the attention kernel in words, and its share of the peak at the clock that ran; 0: not known."""
    costs, steps = {cost.span: cost for cost in subject.settings.costs}, subject.settings.steps or 0
    took_ns = sum(float(line.candidate_ns) for line in found.lines if line.parts == (Part.ATTENTION_KERNEL,))
    known = steps and took_ns and found.num_steady and costs.keys() >= {spans.DENOISE_STEP, spans.COMMIT}
    flops = steps * costs[spans.DENOISE_STEP].attended_flops + costs[spans.COMMIT].attended_flops if known else 0
    if not flops:
        return "", 0.0
    rate = flops / took_ns * 1e9
    peaks = device_peaks(subject.run.header.machine.device_name)
    kernel = costs.get(spans.ATTENTION_KERNEL)
    dtype = kernel.dtype if kernel is not None and kernel.dtype else subject.settings.dtype
    peak = peaks.peak_flops_per_s(dtype) if peaks is not None else None
    of_peak = rate / peak if peak else 0.0
    share = f", {100 * of_peak:.0f} % of the device's {dtype} peak" if peak else ""
    clocks = side_clocks(subject.run, subject.name)
    if peak and peaks is not None and peaks.clock_mhz and clocks is not None:
        of_peak *= peaks.clock_mhz / clocks.sm_mhz
        share += f" and {100 * of_peak:.0f} % of what {clocks.sm_mhz:,} MHz allow"
    return f" at {rate / 1e12:.3g} TFLOP/s{share}", of_peak


def _disturbance(reference: Subject, candidate: Subject, found: Answer) -> str:
    """Return a sentence on how much tracing or marking changed the measured times, and what that can affect."""
    b, c = (f"{100 * side.disturbed:+.1f} %" for side in found.sides)
    varied = " and ".join(f"{100 * side.varied:.1f} %" for side in found.sides)
    if any(side.traced_ns for side in found.sides):
        return (
            f"Tracing changed the length of the traced frame blocks by {b} ({reference.label}) and {c} ({candidate.label}). "
            "Kernel times are the GPU's own and totals are those of untraced clips, so this can have moved idle time between its "
            f"causes and places only. Kernel times differ by {varied} "
            "between the traced steady frame blocks, as the GPU's clock does."
        )
    return f"Marking the regions took {b} ({reference.label}) and {c} ({candidate.label}) of the clips."
