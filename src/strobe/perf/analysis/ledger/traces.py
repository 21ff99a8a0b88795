"""Account of two traces of any framework: labels that add up to the difference between them, to the nanosecond.

The saving of a step is the sum of the savings of its labels. Where the logs time a stage and give its number of calls, the
account extends to the stage: the time of the stage that the trace does not hold is a line of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, Literal, NamedTuple

from strobe.perf.analysis.device.kernel_kinds import KernelKind
from strobe.perf.analysis.ledger.account import DILATION, OUTSIDE_WINDOW, Anchor, Ledger, Level, Line, Owned, Scale, close_ledger
from strobe.perf.analysis.ledger.intervals import Sampled, Spread, step_spread
from strobe.perf.analysis.ledger.label_trace import TracedSide
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.analysis.structure.steps import NoSteps, Steps

BRIDGE: Final = "outside profiled window, with profiler dilation"
OUTSIDE_STAGE: Final = "outside the stage"
_LEVELS: Final = {"focal": Level.KERNEL, "section": Level.SECTION, "step": Level.STEP}

UnitName = Literal["stage", "step", "call", "window"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """Times of one side without a profiler, from its log; `None` where the log has none.

    Args:
        step_ns: mean of a step.
        stage_ns: mean of a stage.
        e2e_ns: mean of a whole run, if one stage is in it.
        calls_per_stage: focal calls in a stage.
    """

    step_ns: Fraction | None = None
    stage_ns: Fraction | None = None
    e2e_ns: Fraction | None = None
    calls_per_stage: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """A ledger with the unit of its times.

    Args:
        ledger: sums over `ledger.num_units` units, so that means stay exact; divide to get one unit.
        unit: name of the unit.
        why: why this unit.
        missing: levels that could not be reached, with the reason.
        inclusive: time that each label covers by itself in one unit of baseline and candidate, whatever else ran.
        kinds: time of the other kernels' line by kind of kernel, in one unit of both; the kinds add up to it.
    """

    ledger: Ledger
    unit: UnitName
    why: str
    missing: Mapping[str, str]
    inclusive: Mapping[Label, tuple[Fraction, Fraction]] = field(default_factory=dict)
    kinds: Mapping[KernelKind, tuple[Fraction, Fraction]] = field(default_factory=dict)

    def per_unit(self, ns: int | Fraction) -> Fraction:
        """Divide a time of the ledger by its number of units."""
        return Fraction(ns) / self.ledger.num_units


class _Unit(NamedTuple):
    name: UnitName
    why: str
    factors: tuple[Fraction, Fraction]


def foreign_ledger(baseline: TracedSide, candidate: TracedSide, timed: tuple[Timed, Timed] = (Timed(), Timed())) -> Account:
    """Account for the difference between two traces in the largest unit that they and their logs allow.

    A stage, if the logs time it and the calls per stage are known; else a step, if both traces have steps; else a focal call;
    else the traced windows as they are. What the trace does not hold of a timed stage is the line `outside profiled window`.

    Args:
        baseline: one device of the baseline.
        candidate: one device of the candidate.
        timed: times of each side from its log.
    """
    sides = (baseline, candidate)
    unit, missing = _unit(sides, timed)
    anchors: list[tuple[Level, str, tuple[Fraction, Fraction]]] = []
    step = timed[0].step_ns, timed[1].step_ns
    if unit.name in ("stage", "step") and step[0] is not None and step[1] is not None:
        # as many steps as the unit holds tiles
        many = [factor * len(side.tiles) for factor, side in zip(unit.factors, sides, strict=True)]
        anchors.append((Level.STEP, DILATION, (step[0] * many[0], step[1] * many[1])))
    elif unit.name in ("stage", "step"):
        missing["profiler dilation"] = "no log times a step without the profiler"
    if unit.name == "stage":
        stage = _both(timed[0].stage_ns, timed[1].stage_ns)
        anchors.append((Level.STAGE, OUTSIDE_WINDOW if anchors else BRIDGE, stage))
        if timed[0].e2e_ns is not None and timed[1].e2e_ns is not None:
            anchors.append((Level.E2E, OUTSIDE_STAGE, (timed[0].e2e_ns, timed[1].e2e_ns)))
        else:
            missing["e2e"] = "no log times a whole run with one stage in it"
    return _closed(sides, unit, anchors, missing)


def _both(baseline: Fraction | None, candidate: Fraction | None) -> tuple[Fraction, Fraction]:
    assert baseline is not None and candidate is not None
    return baseline, candidate


def _unit(sides: tuple[TracedSide, TracedSide], timed: tuple[Timed, Timed]) -> tuple[_Unit, dict[str, str]]:
    calls, focal = [side.calls_per_stage for side in timed], [side.num_focal for side in sides]
    reason = ""
    if not all(focal):
        reason = "no focal kernel ties the trace to the stage"
    elif None in calls:
        reason = "calls per stage not recorded: give --calls-per-stage"
    elif any(side.stage_ns is None for side in timed):
        reason = "no log times a stage on both sides"
    if not reason:
        factors = [Fraction(count or 0, seen) for count, seen in zip(calls, focal, strict=True)]
        text = f"{calls[0]} and {calls[1]} focal calls a stage, {focal[0]} and {focal[1]} in the compared time of the traces"
        return _Unit("stage", text, (factors[0], factors[1])), {}
    missing = {"stage": reason, "e2e": "the stage is missing"}
    tiles = [len(side.tiles) for side in sides]
    if all(isinstance(side.steps, Steps) for side in sides) and same_steps(sides):
        return _Unit("step", f"mean of {tiles[0]} and {tiles[1]} steps", (Fraction(1, tiles[0]), Fraction(1, tiles[1]))), missing
    without = [f"{side.label}: {side.steps.reason}" for side in sides if isinstance(side.steps, NoSteps)]
    missing["step"] = "; ".join(without) or "the repetitions found on both sides hold different numbers of focal calls"
    if all(focal):
        text = f"mean of {focal[0]} and {focal[1]} focal calls, each with the time up to the next"
        return _Unit("call", text, (Fraction(1, focal[0]), Fraction(1, focal[1]))), missing
    return _Unit("window", "whole traced windows: nothing says that they hold the same work", (Fraction(1), Fraction(1))), missing


def same_steps(sides: tuple[TracedSide, TracedSide]) -> bool:
    """Return whether the steps of both sides correspond: they are named, or repetitions with equally many focal calls."""
    if all(isinstance(side.steps, Steps) and side.steps.source != "period" for side in sides):
        return True
    return Fraction(sides[0].num_focal, len(sides[0].tiles)) == Fraction(sides[1].num_focal, len(sides[1].tiles))


def _closed(
    sides: tuple[TracedSide, TracedSide],
    unit: _Unit,
    anchors: Sequence[tuple[Level, str, tuple[Fraction, Fraction]]],
    missing: dict[str, str],
) -> Account:
    num_units = math.lcm(*(factor.denominator for factor in unit.factors),
                         *(took.denominator for *_, both in anchors for took in both))  # fmt: skip
    owned = []
    for side, factor in zip(sides, unit.factors, strict=True):
        times = int(factor * num_units)
        owned.append(
            Owned(
                labels={label: times * ns for label, ns in side.owned.items()},
                calls={name: (times * count, times * ns) for name, (count, ns) in side.calls.items()},
                tiles=[tile.owned for tile in side.tiles],
            )
        )
    scaled = [
        Anchor(level=level, name=name, baseline_ns=int(both[0] * num_units), candidate_ns=int(both[1] * num_units))
        for level, name, both in anchors
    ]
    with_section = any(side.sections is not None for side in sides)
    levels = [Level.KERNEL, *([Level.SECTION] if with_section else []), Level.STEP, *(anchor.level for anchor in scaled)]
    scale = Scale(
        levels=tuple(dict.fromkeys(levels)),
        level_of=lambda label: _LEVELS[label.path[0]],
        is_kernel=_is_focal,
        num_units=num_units,
    )
    inclusive = {
        label: (unit.factors[0] * sides[0].inclusive.get(label, 0), unit.factors[1] * sides[1].inclusive.get(label, 0))
        for label in sides[0].inclusive.keys() | sides[1].inclusive.keys()
    }
    kinds = {
        kind: (unit.factors[0] * sides[0].kinds.get(kind, 0), unit.factors[1] * sides[1].kinds.get(kind, 0))
        for kind in KernelKind
        if kind in sides[0].kinds or kind in sides[1].kinds
    }
    return Account(
        ledger=close_ledger(owned[0], owned[1], scaled, scale, _spread(sides, unit, timed=bool(anchors))),
        unit=unit.name,
        why=unit.why,
        missing=missing,
        inclusive=inclusive,
        kinds=kinds,
    )


def _spread(sides: tuple[TracedSide, TracedSide], unit: _Unit, *, timed: bool) -> Spread:
    """Compute intervals of the labels, and of the sum if no level is from a log: logs are not resampled with the steps."""
    if unit.name == "window" or any(isinstance(side.steps, NoSteps) for side in sides):
        return Spread(why_none="no compared steps on both sides")
    sampled = []
    for side, factor in zip(sides, unit.factors, strict=True):
        weights = [1 if unit.name == "step" else len(calls) for calls in side.focal]
        sampled.append(Sampled(owned=[tile.owned for tile in side.tiles], weights=weights, scale=factor * sum(weights)))
    found = step_spread(sampled[0], sampled[1])
    return replace(found, total=None) if timed else found


def _is_focal(line: Line) -> bool:
    return line.path[:1] == ("focal",)
