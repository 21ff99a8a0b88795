"""Text logs of any framework, and our own JSON lines: `read_log` makes a frozen `Log`, `resolve_units` proves its units."""

from strobe.perf.logs.patterns import Kind, Pattern, Patterns, load_patterns
from strobe.perf.logs.reader import read_log
from strobe.perf.logs.series import Example, LineCounts, Log, Rejected, Sample, Series
from strobe.perf.logs.units import Constraint, Resolved, UnitChoice, resolve_units
from strobe.perf.logs.vocabulary import Unit, parse_duration, parse_unit

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
