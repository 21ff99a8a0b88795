"""`--require "e2e>=1.5"`: a condition on a finished comparison, for scripts."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from strobe.core.errors import ConfigError, unknown_choice

_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_PATTERN: Final = re.compile(
    r"\s*(?:(?P<variant>[\w.-]+)\s*:)?\s*(?P<name>[\w.-]+)\s*(?P<op>>=|<=|>|<)\s*(?P<bound>[^\s<>=]+)\s*"
)

Figures = Mapping[str, Mapping[str, float | None]]
"""Figures a requirement may name: by candidate, then by name; None where it could not be measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """`[VARIANT:]NAME OP NUMBER`; without a variant it holds for every candidate.

    Args:
        text: as the user wrote it.
    """

    text: str
    variant: str | None
    name: str
    op: str
    bound: float


def parse_requirement(text: str) -> Requirement:
    """Read `e2e>=1.5`, `turbo:psnr>30`.

    Raises:
        ConfigError: the text is not a condition.
    """
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise ConfigError(f"--require {text!r} is not a condition; write NAME OP NUMBER, like 'e2e>=1.5' or 'turbo:psnr>30'")
    try:
        bound = float(found["bound"])
    except ValueError as error:
        raise ConfigError(f"--require {text!r}: {found['bound']!r} is not a number") from error
    return Requirement(text=text, variant=found["variant"], name=found["name"], op=found["op"], bound=bound)


def failures(requirement: Requirement, figures: Figures) -> list[str]:
    """Say which candidates do not hold the requirement; nothing if all do. A figure that could not be measured does not hold.

    Raises:
        ConfigError: the comparison has no such candidate or figure.
    """
    if requirement.variant is not None and requirement.variant not in figures:
        raise unknown_choice("candidate in --require", requirement.variant, figures)
    chosen = [requirement.variant] if requirement.variant is not None else list(figures)
    failed = []
    for variant in chosen:
        if requirement.name not in figures[variant]:
            raise unknown_choice("figure in --require", requirement.name, figures[variant])
        value = figures[variant][requirement.name]
        if value is None:
            failed.append(f"{variant}: {requirement.name} was not measured, {requirement.op}{requirement.bound:g} required")
        elif not _OPERATORS[requirement.op](value, requirement.bound):
            failed.append(f"{variant}: {requirement.name} is {value:.4g}, {requirement.op}{requirement.bound:g} required")
    return failed
