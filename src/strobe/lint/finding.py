"""Findings, claims and rules: the place and text of a wrong claim, its correction, and the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from strobe.lint.document import Place
from strobe.lint.study import LintStudy

Severity = Literal["error", "warning"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One claim that does not hold.

    Args:
        rule: id of the rule.
        severity: `error`: the numbers contradict each other or the hardware; `warning`: what is needed to judge them is missing.
        place: where the claim stands.
        said: the claim as printed.
        corrected: correct value, or the information that has to be added.
        why: the numbers that show it.
        also: other places with the same claim, or the place that contradicts it.
    """

    rule: str
    severity: Severity
    place: Place
    said: str
    corrected: str
    why: str
    also: tuple[Place, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A finding without the id and severity of its rule."""

    place: Place
    said: str
    corrected: str
    why: str
    also: tuple[Place, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A rule: its id, its meaning in one sentence, and the function that looks for violations.

    Args:
        needs: options without which it finds nothing, in words; empty: none.
    """

    id: str
    meaning: str
    check: Callable[[LintStudy], Iterable[Claim]]
    severity: Severity = "error"
    needs: str = ""
