"""What a rule found: where, what is said there, what it should say, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from strobe.lint.document import Place
from strobe.lint.study import Study

Severity = Literal["error", "warning"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One claim that does not hold.

    Args:
        rule: id of the rule.
        severity: `error`: the numbers contradict each other or the hardware; `warning`: what is needed to judge them is missing.
        place: where the claim stands.
        said: the claim as printed.
        corrected: what it should say, or what has to be added.
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
    """A finding before it knows its rule."""

    place: Place
    said: str
    corrected: str
    why: str
    also: tuple[Place, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A rule: its id, what it holds claims to in one sentence, and the function that looks.

    Args:
        needs: options without which it finds nothing, in words; empty: none.
    """

    id: str
    meaning: str
    severity: Severity
    check: Callable[[Study], Iterable[Claim]]
    needs: str = ""
