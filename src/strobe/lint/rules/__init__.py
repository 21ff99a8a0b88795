"""All rules, in the order in which findings are listed."""

from typing import Final

from strobe.lint.rules import evidence, sentences, tables, units
from strobe.lint.study import Rule

RULES: Final[tuple[Rule, ...]] = (*tables.RULES, *sentences.RULES, *units.RULES, *evidence.RULES)
