"""The answer in ten lines: speedup, saving in a steady frame block, share of the other blocks, and the present limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from strobe.core import spans
from strobe.core.costs import device_peaks
from strobe.perf.analysis.ledger.answer import Answer, ClipAnswer, PartLine
from strobe.perf.analysis.ledger.clip import Kind
from strobe.perf.analysis.ledger.parts import BY_THE_CLOCK, LIMITS, MEANING, TOGETHER, Part
from strobe.perf.analysis.runs.clocks import SideClocks, apart, side_clocks
from strobe.perf.measure.stats import Verdict
from strobe.perf.report.blocks.fields import Field, both_sides, heads, numeric, rows_of
from strobe.perf.report.blocks.waterfall import Drop, waterfall
from strobe.perf.report.findings import Finding
from strobe.perf.report.model import Block, Figure, Notes, Report, Section, Share, Table, Text, Time
from strobe.perf.report.study import Subject
from strobe.perf.report.text import significant

ANSWER: Final = "answer"
OTHERS: Final = "answers"
"""Ids of the two sections: the answer of the candidate that the page begins with (`ANSWER`), and those of the others."""
REST: Final = "the rest"
SHORT_NS: Final = 100_000_000
"""Times below this are printed with four significant digits, ns."""
HOST_BOUND: Final = 0.2
"""Share of a frame block from which waiting for the host counts as the limit."""


def answer_sections(findings: Sequence[Finding]) -> tuple[Section | None, Section | None]:
    """Return the answer for the fastest proven candidate, to stand first, and a folded section for all others.

    The second also lists the candidates without an account, with the reason. None: there is nothing to show.
    """
    told = [finding for finding in findings if finding.answer is not None]
    first = max(told, key=lambda finding: (_verdict(finding) == "faster", _ratio(finding)), default=None)
    return _sections(first, findings, "Where the saving comes from")


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
    blocks: list[Block] = [
        _figure(finding, finding.answer) for finding in findings if finding is not first and finding.answer is not None
    ]
    missing = tuple(f"{finding.candidate.label}: {finding.ledger}" for finding in findings if isinstance(finding.ledger, str))
    if missing:
        blocks.append(Notes(tuple(f"No account for {reason}." for reason in missing)))
    lead = "Where a steady frame block spends its time, before and after. The lines add up exactly."
    others = Section(OTHERS, "The other accounts" if first else "Accounts", lead, tuple(blocks), folded=True) if blocks else None
    if first is None or first.answer is None:
        return None, others
    return Section(ANSWER, title, headline(first, first.answer), (_figure(first, first.answer),)), others


def answers_of(report: Report) -> tuple[Table, ...]:
    """Return the answer tables of a report, one per candidate with a ledger; the candidate the page begins with is last."""
    shown = {section.id: section for section in report.sections}
    blocks = [block for place in (OTHERS, ANSWER) if place in shown for block in shown[place].blocks]
    return tuple(block.table for block in blocks if isinstance(block, Figure))


def line_name(line: PartLine) -> str:
    """Return the part's name; for a line of several parts, the name of the rest."""
    return line.parts[0].value if len(line.parts) == 1 else REST


def _figure(finding: Finding, found: ClipAnswer) -> Figure:
    names = finding.reference.label, finding.candidate.label
    drops = [Drop(line_name(line), line.saved_ns) for line in found.lines]
    picture = waterfall((names[0], found.baseline_ns), (names[1], found.candidate_ns), drops)
    title = f"From a {found.unit} of {names[0]} to one of {names[1]}: bars that go left are time saved."
    alt = f"Waterfall from {names[0]} to {names[1]}; the table says the same."
    return Figure(title, alt, picture, answer_table(finding, found), table_open=True)


def answer_table(finding: Finding, found: ClipAnswer) -> Table:
    """Build the table of at most eight parts before and after, with notes on the other frame blocks and the present limit."""
    reference, candidate = finding.reference, finding.candidate
    elsewhere = "first, filling and switch frame blocks, start and end"
    fields: tuple[Field[PartLine], ...] = (
        *part_fields((reference.label, candidate.label), found),
        *_clock_field(found),
        Field("saved in the clip's other blocks", lambda line: line.elsewhere_ns, _time, "ms", hint=elsewhere, total=sum),
    )
    rows = rows_of(fields, found.lines, totals=((f"a {found.unit}", found.lines),))
    notes = (
        _kinds(found),
        limit(candidate.label, found, _attention_rate(candidate, found)),
        *rest_words(found),
        *_gaps_in_evidence(reference, candidate, found),
        disturbance(reference, candidate, found),
    )
    return Table(headline(finding, found), heads(fields), rows, notes)


def headline(finding: Finding, found: ClipAnswer) -> str:
    """Return one line with the speedup and its interval, the time of a frame block, and the share of it that is explained."""
    e2e, names = finding.e2e, (finding.candidate.label, finding.reference.label)
    said = f"{names[0]} against {names[1]}"
    if e2e is not None:
        interval = f" [{e2e.interval.low:.2f}, {e2e.interval.high:.2f}]" if e2e.interval else ""
        said += f": {e2e.ratio:.2f}x{interval} end to end"
    times = significant(float(found.candidate_ns) / 1e6), significant(float(found.baseline_ns) / 1e6)
    words = clock_words(names, found)
    return f"{said}. A {found.unit} takes {times[0]} ms instead of {times[1]} ms. {explained(found)}{' ' if words else ''}{words}"


def clock_words(names: tuple[str, str], found: ClipAnswer) -> str:
    """Return what clock and power limit did to the candidate: its clock, and a unit's time at the baseline's; empty if nothing.

    Args:
        names: of the candidate and the baseline.
    """
    at, (before, after) = found.at_baseline_clock_ns, found.clocks
    if at is None or before is None or after is None:
        return ""
    highest = f" of {after.max_mhz:,}" if after.max_mhz else ""
    capped = "is at its power cap" if after.power_capped else "runs at another clock"
    proof = (
        ""
        if apart(before, after)
        else (f" Their clips ran at {_range(before)} and {_range(after)} MHz, which proves no difference.")
    )
    return (
        f"{names[0]} {capped}: {after.sm_mhz:,}{highest} MHz; at the {before.sm_mhz:,} MHz of {names[1]} a {found.unit} would "
        f"take about {significant(float(at) / 1e6)} ms.{proof}"
    )


def _range(clocks: SideClocks) -> str:
    low, high = min(clocks.clips_mhz), max(clocks.clips_mhz)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _clock_field(found: ClipAnswer) -> tuple[Field[PartLine], ...]:
    """Return the column of what the clock made of each saving; none where the clocks are equal or not known."""
    if found.at_baseline_clock_ns is None:
        return ()
    hint = "of the saving, the part that the SM clock made; the rest is fewer or more cycles"
    goes = f"the clock is taken to act on {', '.join(sorted(part.value for part in BY_THE_CLOCK))} alone"
    return (Field("by the clock", lambda line: line.clock_ns, _time, "ms", hint=hint, total=sum, missing=goes),)


def explained(found: Answer) -> str:
    """Return a sentence with the explained shares of the saving and of the time."""
    time = f"{100 * found.explained_time:.1f} % of the time"
    if found.explained_saving is None:
        return f"Explained: {time}."
    return f"Explained: {100 * found.explained_saving:.1f} % of the {found.difference}, {time}."


def part_fields(names: tuple[str, str], found: Answer) -> tuple[Field[PartLine], ...]:
    """Return the columns of the parts of an answer: name, both sides, what was saved and its share; the parts add up."""
    return (
        Field("part", lambda line: Text(line_name(line), note=MEANING[line.parts[0]] if len(line.parts) == 1 else "")),
        *both_sides(names, lambda line: (line.baseline_ns, line.candidate_ns), f"of a {found.unit}", show=_time),
        numeric(f"share of {found.difference}", lambda line: line.share, show=Share, total=lambda shares: 1.0),
    )


def _time(ns: int | Fraction) -> Time:
    return Time(float(ns))


def _kinds(found: ClipAnswer) -> str:
    """Return a sentence with the end-to-end saving of each kind of frame block."""
    said = []
    for line in found.kinds:
        many = f" ({line.num_blocks} frame blocks)" if line.num_blocks > 1 else ""
        if line.kind == Kind.AROUND or line.num_blocks:
            said.append(f"{line.kind.value}{many} {float(line.baseline_ns - line.candidate_ns) / 1e6:.1f}")
    whole = sum((line.baseline_ns - line.candidate_ns for line in found.kinds), Fraction(0))
    return f"A whole clip saves {float(whole) / 1e6:.1f} ms: {', '.join(said)}."


def rest_words(found: Answer) -> tuple[str, ...]:
    """Return a note that names the parts in the line of the rest; empty without such a line."""
    several = [line for line in found.lines if len(line.parts) > 1]
    return tuple(f"The rest: {', '.join(part.value for part in line.parts)}." for line in several)


def _gaps_in_evidence(reference: Subject, candidate: Subject, found: ClipAnswer) -> tuple[str, ...]:
    """Return notes on regions and frame blocks that a trace lacks, and on how they were handled."""
    said = [f"{name} is not marked on both sides: its time counts as {above}, on both." for name, above in found.merged]
    for subject, blocks in zip((reference, candidate), found.stood_for, strict=True):
        if blocks:
            listed = ", ".join(map(str, blocks))
            said.append(f"The trace of {subject.label} lacks frame blocks {listed}: the others of their kind stand for them.")
    return tuple(said)


def limit(label: str, found: Answer, attention_rate: str = "") -> str:
    """Return one sentence on what limits a side now, with the figure.

    Args:
        label: of the candidate.
        found: the answer.
        attention_rate: what is added if that is the attention kernel.
    """
    whole = float(found.candidate_ns) or 1.0
    times = {line.parts[0]: float(line.candidate_ns) for line in found.lines if len(line.parts) == 1}
    waiting = times.get(Part.WAITING, 0.0) / whole
    if waiting >= HOST_BOUND:
        return (
            f"{label} is bound by the host now: the GPU waits for it in {100 * waiting:.0f} % of a {found.unit} "
            f"({_of(times[Part.WAITING], whole)})."
        )
    largest = max((part for part in times if part in LIMITS), key=lambda part: times[part], default=None)
    nameless = times.get(Part.UNNAMED, 0.0)
    if largest is None or nameless > times[largest]:
        return f"Nothing says what limits {label} now: {100 * nameless / whole:.0f} % of a {found.unit} has no name."
    took, name = times[largest], LIMITS[largest]
    for parts, both in TOGETHER.items():
        if largest not in parts and (together := sum(times.get(part, 0.0) for part in parts)) > took:
            took, name = together, both
    rate = attention_rate if largest == Part.ATTENTION_KERNEL else ""
    return f"{label} is bound by {name} now, {100 * took / whole:.0f} % of a {found.unit} ({_of(took, whole)}){rate}."


def _of(part_ns: float, whole_ns: float) -> str:
    """Format a part of a whole as `x of y ms`; short times have four significant digits."""
    short = whole_ns < SHORT_NS
    part, whole = (significant(ns / 1e6) if short else f"{ns / 1e6:.1f}" for ns in (part_ns, whole_ns))
    return f"{part} of {whole} ms"


def _attention_rate(subject: Subject, found: ClipAnswer) -> str:
    """Return the attention kernel's FLOP rate in a steady frame block, as text; empty if the records give no FLOPs."""
    costs = {cost.span: cost for cost in subject.settings.costs}
    took_ns = sum(float(line.candidate_ns) for line in found.lines if line.parts == (Part.ATTENTION_KERNEL,))
    if spans.DENOISE_STEP not in costs or spans.COMMIT not in costs or not subject.settings.steps:
        return ""
    if not took_ns or not found.num_steady:
        return ""
    flops = subject.settings.steps * costs[spans.DENOISE_STEP].attended_flops + costs[spans.COMMIT].attended_flops
    if not flops:
        return ""
    rate = flops / took_ns * 1e9
    peaks = device_peaks(subject.run.header.machine.device_name)
    kernel = costs.get(spans.ATTENTION_KERNEL)
    dtype = kernel.dtype if kernel is not None and kernel.dtype else subject.settings.dtype
    peak = peaks.peak_flops_per_s(dtype) if peaks is not None else None
    share = f", {100 * rate / peak:.0f} % of the device's {dtype} peak" if peak else ""
    clocks = side_clocks(subject.run, subject.name)
    if peak and peaks is not None and peaks.clock_mhz and clocks is not None:
        share += f" and {100 * rate * peaks.clock_mhz / (peak * clocks.sm_mhz):.0f} % of what {clocks.sm_mhz:,} MHz allow"
    return f" at {rate / 1e12:.3g} TFLOP/s{share}"


def disturbance(reference: Subject, candidate: Subject, found: ClipAnswer) -> str:
    """Return a sentence on how much tracing or marking changed the measured times, and what that can affect."""
    b, c = (f"{100 * share:+.1f} %" for share in found.disturbed)
    if found.traced:
        return (
            f"Tracing changed the length of the traced frame blocks by {b} ({reference.label}) and {c} ({candidate.label}). "
            "Kernel times are the GPU's own and totals are those of untraced clips, so this can have moved idle time between its "
            f"causes and places only. Kernel times differ by {100 * found.varied[0]:.1f} % and {100 * found.varied[1]:.1f} % "
            "between the traced steady frame blocks, as the GPU's clock does."
        )
    return f"Marking the regions took {b} ({reference.label}) and {c} ({candidate.label}) of the clips."
