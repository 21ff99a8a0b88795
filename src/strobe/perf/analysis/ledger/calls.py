"""Account from one focal kernel to the stage: the time that each level adds, from separate measurements of each level.

The kernel and its section come from traces, the attention call and the stage from logs of runs without a profiler. A level is the
mean of its measurements; a line is what a level takes beyond the one below it. Without the number of calls in a stage the account
ends at one call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final

from strobe.perf.analysis.ledger.account import Anchor, Level, Owned, Scale, close_ledger
from strobe.perf.analysis.ledger.intervals import Spread
from strobe.perf.analysis.ledger.traces import Account

NEARLY: Final = Fraction(1, 10_000)
"""Largest relative difference at which two different quantities are taken for a copy or a coincidence."""

KERNEL_LINE: Final = "focal kernel"


@dataclass(frozen=True, kw_only=True, slots=True)
class CallTimes:
    """Mean times of one side; `None` where nothing was measured.

    Args:
        kernel_ns: one focal kernel, traced.
        section_ns: the section around it, traced.
        call_ns: one call as its log says.
        stage_ns: one stage, as its log says, without warm-up.
        calls_per_stage: calls in a stage.
        kernel_is_section: nothing but the kernel was measured, and it stands for the section.
    """

    kernel_ns: Fraction | None = None
    section_ns: Fraction | None = None
    call_ns: Fraction | None = None
    stage_ns: Fraction | None = None
    calls_per_stage: int | None = None
    kernel_is_section: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ImpliedCalls:
    """Number of calls in a stage that would explain its saving by the saving of a call alone.

    Args:
        calls: saving of the stage / saving of a call.
        candidates: whole numbers near it, with what they would leave of the stage's saving.
    """

    calls: Fraction
    candidates: tuple[tuple[int, Fraction], ...]

    @property
    def whole(self) -> bool:
        """Whether the number is whole."""
        return self.calls.denominator == 1


def call_ledger(baseline: CallTimes, candidate: CallTimes) -> Account | None:
    """Account for the saving of one call, level by level; `None` if no level was measured on both sides.

    A level that one side lacks is left out, and its time is part of the next line.
    """
    sides = (baseline, candidate)
    calls = baseline.calls_per_stage, candidate.calls_per_stage
    values = {
        Level.KERNEL: (baseline.kernel_ns, candidate.kernel_ns),
        Level.SECTION: (baseline.section_ns, candidate.section_ns),
        Level.CALL: (baseline.call_ns, candidate.call_ns),
        Level.STAGE: (baseline.stage_ns, candidate.stage_ns),
    }
    missing: dict[str, str] = {level: _lacking(both) for level, both in values.items() if None in both}
    staged = Level.STAGE not in missing and None not in calls
    if Level.STAGE not in missing and not staged:
        missing[Level.STAGE] = "calls per stage not recorded: give --calls-per-stage"
    known = [level for level in values if level not in missing]
    if not known or known == [Level.STAGE]:
        return None
    factor = (Fraction(calls[0] or 1), Fraction(calls[1] or 1)) if staged else (Fraction(1), Fraction(1))
    took: dict[Level, tuple[Fraction, Fraction]] = {}
    for level in known:
        b, c = (value or Fraction(0) for value in values[level])
        took[level] = (b, c) if level == Level.STAGE else (b * factor[0], c * factor[1])
    num_units = math.lcm(*(value.denominator for both in took.values() for value in both))
    names = _line_names(known, any(side.kernel_is_section for side in sides))
    anchors = [
        Anchor(level=level, name=names[level], baseline_ns=int(both[0] * num_units), candidate_ns=int(both[1] * num_units))
        for level, both in took.items()
    ]
    scale = Scale(
        levels=known,
        level_of=lambda label: Level.KERNEL,
        is_kernel=lambda line: line.name == KERNEL_LINE,
        num_units=num_units,
    )
    apart = Spread(why_none="each level was measured by itself")
    ledger = close_ledger(Owned.nothing(), Owned.nothing(), anchors, scale, apart)
    why = "mean of the measurements of each level" + (f", {calls[0]} and {calls[1]} calls in a stage" if staged else "")
    return Account(ledger=ledger, unit="stage" if staged else "call", why=why, missing=missing)


def _lacking(both: tuple[Fraction | None, Fraction | None]) -> str:
    lacking = [side for side, value in zip(("baseline", "candidate"), both, strict=True) if value is None]
    return f"not measured on the {' and the '.join(lacking)}"


def _line_names(known: list[Level], stands_in: bool) -> dict[Level, str]:
    words = {Level.KERNEL: "kernel", Level.SECTION: "section", Level.CALL: "attention call", Level.STAGE: "stage"}
    names = {known[0]: KERNEL_LINE if known[0] == Level.KERNEL else words[known[0]]}
    for below, level in pairwise(known):
        part = "all of its attention calls" if level == Level.STAGE else f"the {words[below]}"
        names[level] = f"{words[level]} beyond {part}"
    if stands_in and Level.SECTION in names:
        names[Level.SECTION] += " (one side unmeasured)"
    return names


def implied_calls(baseline: CallTimes, candidate: CallTimes, *, given: int | None = None) -> ImpliedCalls | None:
    """Divide the stage's saving by a call's; `None` if either is not known or the call saves nothing.

    Args:
        given: a number of calls to try beside the nearest whole ones.
    """
    if None in (baseline.stage_ns, candidate.stage_ns, baseline.call_ns, candidate.call_ns):
        return None
    stage = (baseline.stage_ns or Fraction(0)) - (candidate.stage_ns or Fraction(0))
    call = (baseline.call_ns or Fraction(0)) - (candidate.call_ns or Fraction(0))
    if not call or stage / call < 1:
        return None
    calls = stage / call
    tried = sorted({math.floor(calls), math.ceil(calls), *(() if given is None else (given,))})
    return ImpliedCalls(calls=calls, candidates=tuple((n, stage - n * call) for n in tried))


def coincidences(baseline: CallTimes, candidate: CallTimes) -> tuple[tuple[str, str, Fraction], ...]:
    """Find different quantities that are suspiciously equal; return both names and the relative difference.

    A kernel may well be all of its section: they come from the same events, and are not held against each other.
    """
    figures = [
        (source, f"the {side}'s {name}", value)
        for side, times in (("baseline", baseline), ("candidate", candidate))
        for source, name, value in (
            ("trace", "kernel", times.kernel_ns),
            ("trace", "section", None if times.kernel_is_section else times.section_ns),
            ("calls", "attention call", times.call_ns),
            ("stages", "stage", times.stage_ns),
        )
        if value
    ]
    found = []
    for at, (source, name, value) in enumerate(figures):
        for other_source, other_name, other in figures[at + 1 :]:
            apart = abs(value - other) / max(value, other)
            if source != other_source and apart <= NEARLY:
                found.append((name, other_name, apart))
    return tuple(found)
