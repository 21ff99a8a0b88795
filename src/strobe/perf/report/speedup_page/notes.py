"""Notes on the numbers: units, warm-up, anomalies, and what could not be computed."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from strobe.perf.analysis.ledger.account import DILATION
from strobe.perf.analysis.ledger.speedup import DRIFT
from strobe.perf.analysis.structure.steps import NoSteps, Steps
from strobe.perf.report.blocks.logs import unit_notes
from strobe.perf.report.model import Notes, Section
from strobe.perf.report.speedup_page.levels import ms
from strobe.perf.report.speedup_page.study import Loaded, SpeedupStudy


def notes_section(study: SpeedupStudy) -> Section:
    """Build the section of notes on all numbers; contradictions and suspected copies are banners instead."""
    items = [*_units(study), *_remarks(study)]
    for side in study.sides:
        items += _side_notes(side)
    items.append(f"Both sides were measured at different times: every interval is {DRIFT}. Interleave runs to do better.")
    return Section("notes", "Notes", "", (Notes(tuple(items)),))


def _units(study: SpeedupStudy) -> Iterator[str]:
    for side in study.sides:
        timings = side.side.timings
        for note in unit_notes(timer.resolved for timer in timings.timers):
            yield f"Attention timer of the {side.request.name}: {note}."
        if not isinstance(timings.stage, str):
            for note in unit_notes(timings.stage.resolved):
                yield f"Stage of the {side.request.name}: {note}."


def anomalies(study: SpeedupStudy) -> Iterator[str]:
    """Yield sentences on figures that cannot be right, or that need a second look."""
    yield from coincidences(study)
    yield from contradictions(study)
    yield from _remarks(study)


def contradictions(study: SpeedupStudy) -> Iterator[str]:
    """Yield sentences on contradicting figures: parts longer than their whole, wrong units, timers that did not wait."""
    yield from _orders(study)
    yield from _unlike_units(study)
    for side in study.sides:
        for timer in side.side.timings.timers:
            refuted = (choice for choice in timer.resolved.choices if choice.violated)
            yield from (f"{side.request.name}: {timer.resolved.series.title}: {choice.text}" for choice in refuted)
    for side in study.sides:
        yield from (f"{side.request.name}: {remark}" for remark in side.remarks)


def coincidences(study: SpeedupStudy) -> Iterator[str]:
    """Yield sentences on different quantities that are suspiciously equal."""
    for a, b, apart in study.equal:
        yield f"{a} equals {b} to {float(apart):.0e}: a copy or a coincidence; check where both come from"


def _remarks(study: SpeedupStudy) -> Iterator[str]:
    """Yield notes on implied calls per stage, on what was left out, and on the profiler's overhead."""
    implied = study.implied
    if implied is not None:
        known = [side.side.timings.calls for side in study.sides]
        rests = "; ".join(f"N = {n} leaves {ms(rest)}" for n, rest in implied.candidates)
        if None in known:
            said = "is a whole number" if implied.whole else "is no integer"
            yield (
                f"Calls per stage were not recorded. If the attention calls were all that changed in the stage, "
                f"N = {float(implied.calls):.2f}, which {said}; {rests}. Record the calls, or give --calls-per-stage."
            )
        elif known[0] == known[1] and implied.calls != known[0]:
            yield f"The attention calls explain the stage's saving if there were {float(implied.calls):.2f} of them: {rests}."
    for side in study.sides:
        if side.silent:
            yield f"{side.request.name.capitalize()}, {side.silent}."
    for name, account in study.accounts[:1]:
        for line in account.ledger.lines:
            if line.name == DILATION and line.baseline_ns and line.candidate_ns:
                sides = account.per_unit(-line.baseline_ns), account.per_unit(-line.candidate_ns)
                where = f" ({name})" if name else ""
                yield f"Profiling added {ms(sides[0])} to the baseline's steps and {ms(sides[1])} to the candidate's{where}."


def _unlike_units(study: SpeedupStudy) -> Iterator[str]:
    """Yield notes on labels that were read as different units on the two sides: only one side could be proven."""
    own, other = (
        {choice.label: choice.unit for timer in side.side.timings.timers for choice in timer.resolved.choices}
        for side in study.sides
    )
    for label in sorted(own.keys() & other.keys()):
        if own[label] != other[label]:
            yield (
                f"attention times labelled {label or 'with no unit'!r} are read as {own[label]} on the baseline and as "
                f"{other[label]} on the candidate: give the other side its trace and focal kernel too, or --unit"
            )


def _orders(study: SpeedupStudy) -> Iterator[str]:
    """Yield sentences on levels that are shorter than levels they contain."""
    for side in study.sides:
        own = side.side
        inner = [(word, got) for word, got in (("kernel", own.kernel()), ("section", own.section())) if not isinstance(got, str)]
        call, stage = own.call(), own.timed_stage()
        if isinstance(call, str):
            continue
        for word, got in inner:
            if got.mean_ns > call.mean_ns:
                yield (
                    f"{side.request.name}: the traced {word} ({ms(got.mean_ns)}) is longer than the whole attention "
                    f"call of the log ({ms(call.mean_ns)}): other shapes, another timer, or one that did not wait"
                )
        calls = own.timings.calls
        if calls is not None and not isinstance(stage, str) and calls * call.mean_ns > stage.mean_ns:
            yield (
                f"{side.request.name}: {calls} attention calls of {ms(call.mean_ns)} are longer than the stage "
                f"({ms(stage.mean_ns)}): the calls overlap, or are not all in the stage"
            )


def _side_notes(side: Loaded) -> Iterator[str]:
    own, name = side.side, side.request.name
    if side.log is not None and side.log.similar:
        first = side.log.similar[0]
        yield (
            f"Log of the {name}: {side.log.counts.similar} lines look like a timing and match no pattern; line {first.line}: "
            f"{first.text.strip()}"
        )
    yield f"Focal calls in a stage, {name}: {own.timings.calls_from}."
    logged, chosen = own.timings.step, own.chosen
    if not isinstance(logged, str) and chosen is not None and own.timed().step_ns is None:
        mean = ms(Fraction(logged.calls.sum_ns, logged.calls.n))
        known = "has none" if isinstance(chosen.steps, NoSteps) else f"has one of {ms(chosen.mean_ns)}"
        yield (
            f"Steps, {name}: the log's step {logged.series.title!r} of {mean} cannot be "
            f"the trace's, which {known}, so it does not tell what profiling added."
        )
    if not isinstance(own.traced, str):
        for traced in own.traced:
            if isinstance(traced.steps, NoSteps):
                yield f"Steps, {name}, {traced.label}: {traced.steps.reason}; the whole device time is compared."
                continue
            steps = traced.steps
            yield f"Steps, {name}, {traced.label}: {steps.starts}; {_compared(steps)}."
            yield from (f"Steps, {name}, {traced.label}: {note}." for note in steps.notes)


def _compared(steps: Steps) -> str:
    causes = "; ".join(f"{steps.steps[each.index].label} ({each.cause})" for each in steps.steady.excluded)
    kept = len(steps.steady.kept)
    if not kept:
        return f"no step is steady, so all {len(steps.steps)} are compared: {causes}"
    return f"{kept} of {len(steps.steps)} compared{f'; left out: {causes}' if causes else ''}"
