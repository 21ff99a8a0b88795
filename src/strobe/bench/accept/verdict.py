"""Checks as records: a value within bounds whose source is named, or a value that is reported and not judged."""

from __future__ import annotations

import math
from typing import Final

from strobe.perf.records.record import Check, CheckGroup

NO_FACT: Final = "no bound is known for any model: reported, not judged"


def judged(
    group: CheckGroup,
    name: str,
    value: float,
    meaning: str,
    source: str,
    *,
    bounds: tuple[float | None, float | None],
    unit: str = "",
    detail: str = "",
) -> Check:
    """Return a check with its verdict. A value that is not a finite number never passes.

    Args:
        group: its subject.
        name: unique in a run.
        value: what was measured.
        meaning: definition of the value.
        source: where the bounds come from.
        bounds: least and largest value that pass; None: no bound.
        unit: of the value.
        detail: further facts.
    """
    low, high = bounds
    finite = math.isfinite(value)
    passed = finite and (low is None or value >= low) and (high is None or value <= high)
    return Check(
        group=group,
        name=name,
        value=value if finite else None,
        unit=unit,
        low=low,
        high=high,
        passed=passed,
        meaning=meaning,
        basis=source,
        detail=detail if finite else "; ".join(("not a finite number", *([detail] if detail else []))),
    )


def reported(
    group: CheckGroup, name: str, value: float | None, meaning: str, *, unit: str = "", why: str = NO_FACT, detail: str = ""
) -> Check:
    """Return a value without a verdict; `why` says why there is none."""
    finite = value is not None and math.isfinite(value)
    return Check(
        group=group, name=name, value=value if finite else None, unit=unit, meaning=meaning, basis=why, detail=detail
    )  # fmt: skip
