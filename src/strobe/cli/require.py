"""`--require "e2e>=1.5"`: a condition on a finished comparison, for scripts."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from strobe.core.errors import ConfigError, unknown_choice

if TYPE_CHECKING:
    from strobe.perf.measure.stats import Operator
    from strobe.perf.records.record import Quality
    from strobe.perf.table.model import Speedup

JOULES: Final = "joules"
"""Energy of the GPU in a clip, divided by its frame blocks."""
_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_PATTERN: Final = re.compile(
    r"\s*(?:(?P<variant>[^\s:](?:[^:]*[^\s:])?)\s*:)?\s*(?P<name>[\w./-]+)\s*(?P<point>~?)(?P<op>>=|<=|>|<)\s*(?P<bound>[^\s<>=]+)\s*"
)


Figures = Mapping[str, Mapping[str, "Speedup | float | None"]]
"""Figures by candidate, then by name: a speedup, whose interval decides, or a score such as `psnr`, which has none and is
compared as it is; None where it could not be measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """A requirement `[VARIANT:]NAME OP NUMBER`; without a variant it applies to every candidate.

    Args:
        point: `~` before the operator: the point estimate decides, whatever its interval.
    """

    variant: str | None
    name: str
    op: str
    bound: float
    point: bool


def parse_requirement(text: str) -> Requirement:
    """Parse a requirement such as `e2e>=1.5`, `turbo:psnr>30` or `e2e~>=1.5`, which proves nothing."""
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise ConfigError(f"--require {text!r} is not a condition; write NAME OP NUMBER, like 'e2e>=1.5' or 'turbo:psnr>30'")
    try:
        bound = float(found["bound"])
        if math.isnan(bound):
            raise ValueError(found["bound"])
    except ValueError as error:
        raise ConfigError(f"--require {text!r}: {found['bound']!r} is not a number") from error
    variant, point = found["variant"], bool(found["point"])
    return Requirement(variant=variant, name=found["name"], op=found["op"], bound=bound, point=point)


def check_names(requirements: Sequence[Requirement], candidates: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a requirement on a candidate or figure that a comparison will not have, before it is measured."""
    for each in requirements:
        if each.variant is not None and each.variant not in candidates:
            raise unknown_choice("candidate in --require", each.variant, candidates)
        if each.name not in names:
            raise unknown_choice("figure in --require", each.name, names)


def failures(
    requirement: Requirement,
    figures: Figures,
    *,
    cut: bool = False,
    obstacles: Mapping[str, str] = MappingProxyType({}),
    absent: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Return the candidates that fail the requirement, with reasons; empty if all meet it. A missing figure fails.

    Args:
        requirement: the condition.
        figures: what was measured.
        obstacles: by candidate, why it is not comparable with its baseline: no requirement holds for it.
        absent: by variant that could not run on the machine, why; only a requirement that names it fails for it.
        cut: a run ended early, so a figure that is missing may be one that it did not come to.
    """
    why = absent.get(requirement.variant or "")
    if why is not None:
        return [f"{requirement.variant}: {requirement.name} does not count: not on this machine: {why}"]
    if requirement.variant is not None and requirement.variant not in figures:
        raise unknown_choice("candidate in --require", requirement.variant, figures)
    chosen = [requirement.variant] if requirement.variant is not None else list(figures)
    failed = []
    for variant in chosen:
        if requirement.name not in figures[variant] and not cut:
            raise unknown_choice("figure in --require", requirement.name, figures[variant])
        obstacle = obstacles.get(variant)
        reason = f"does not count: {obstacle}" if obstacle else _failure(requirement, figures[variant].get(requirement.name))
        if reason:
            failed.append(f"{variant}: {requirement.name} {reason}")
    return failed


def score_of(quality: Quality) -> float | None:
    """Return a score as a figure: equal pictures, whose PSNR is not finite, have an infinite one."""
    equal = quality.metric == "psnr" and quality.value is None and quality.n > 0
    return math.inf if equal else quality.value


def value_of(figure: Speedup | float | None) -> float | None:
    """Return the point estimate of a figure."""
    return figure if figure is None or isinstance(figure, int | float) else figure.ratio.value


def _failure(requirement: Requirement, figure: Speedup | float | None) -> str:
    """Return why a figure fails a requirement; empty if it meets it."""
    from strobe.perf.measure.stats import FLOOR, FLOOR_NS, Interval, proven

    op, bound, value = requirement.op, requirement.bound, value_of(figure)
    required = f"{op}{bound:g} required"
    if figure is None or value is None:
        return f"was not measured, {required}"
    holds = _OPERATORS[op]
    if requirement.point or isinstance(figure, int | float):
        return "" if holds(value, bound) else f"is {value:.4g}, {required}"
    low, high = figure.ratio.low, figure.ratio.high
    if low is None or high is None:
        advice = f"one round has none: measure more rounds, or write {requirement.name}~{op}{bound:g}"
        return f"is {value:.4g} without an interval, {required}; {advice} for the point estimate alone"
    if proven(cast("Operator", op), bound, value, Interval(low=low, high=high), figure.saved_ns):
        return ""
    found = f"is {value:.4g} [{low:.4g}, {high:.4g}], {required}"
    if not holds(value, bound):
        return found
    edge, end = (low, "low end") if op in (">=", ">") else (high, "high end")
    if not holds(edge, bound):
        return f"{found} of its {end}, which is {edge:.4g}; more rounds narrow the interval"
    return f"{found}; a difference below {100 * FLOOR:g} % or {FLOOR_NS / 1000:g} µs is never one"
