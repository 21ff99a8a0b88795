"""Columns for the saving of each kernel, split into fewer calls and faster calls."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from strobe.perf.analysis.ledger.account import CallsEffect
from strobe.perf.report.blocks.fields import Field
from strobe.perf.report.model import Cell, Code


def effect_fields(
    names: tuple[str, str, str], calls: Callable[[int], Cell], time: Callable[[int | Fraction], Cell]
) -> tuple[Field[CallsEffect], ...]:
    """Return the columns of a table of effects; all but the name add up.

    Args:
        names: what has the calls, the baseline, the candidate.
        calls: cell of a number of calls.
        time: cell of what they saved.
    """
    what, baseline, candidate = names
    return (
        Field(what, lambda effect: effect.name, Code),
        Field(f"calls, {baseline}", lambda effect: effect.baseline_calls, calls, numeric=True, total=sum),
        Field(f"calls, {candidate}", lambda effect: effect.candidate_calls, calls, numeric=True, total=sum),
        Field("saved", lambda effect: effect.saved_ns, time, "ms", total=lambda each: Fraction(sum(each))),
        Field("by fewer calls", lambda effect: effect.calls_effect_ns, time, "ms", total=sum),
        Field("by faster calls", lambda effect: effect.speed_effect_ns, time, "ms", total=sum),
    )
