"""All rules, in the order in which findings are listed."""

from typing import Final

from strobe.lint.finding import Rule
from strobe.lint.rules import (
    agreement,
    arithmetic,
    changes,
    comparisons,
    costs,
    provenance,
    quality,
    rates,
    samples,
    shares,
    stages,
    sums,
    units,
)

RULES: Final[tuple[Rule, ...]] = (
    *rates.RULES,
    *sums.RULES,
    *shares.RULES,
    *changes.RULES,
    *agreement.RULES,
    *comparisons.RULES,
    *arithmetic.RULES,
    *samples.RULES,
    *units.RULES,
    *quality.RULES,
    *provenance.RULES,
    *stages.RULES,
    *costs.RULES,
)
