"""Text logs of any framework, and our own JSON lines: `read_log` makes a frozen `Log`, `resolve_units` proves its units."""

from strobe.perf.logs.patterns import Kind, Pattern, Patterns, Unit, load_patterns, parse_duration, parse_unit
from strobe.perf.logs.reader import read_log
from strobe.perf.logs.series import (
    Constraint,
    Example,
    LineCounts,
    Log,
    Rejected,
    Resolved,
    Sample,
    Series,
    UnitChoice,
    resolve_units,
)

__all__ = [
    "Constraint",
    "Example",
    "Kind",
    "LineCounts",
    "Log",
    "Pattern",
    "Patterns",
    "Rejected",
    "Resolved",
    "Sample",
    "Series",
    "Unit",
    "UnitChoice",
    "load_patterns",
    "parse_duration",
    "parse_unit",
    "read_log",
    "resolve_units",
]
