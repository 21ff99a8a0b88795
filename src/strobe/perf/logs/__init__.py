"""Text logs of any framework, and our own JSON lines: `read_log` makes a frozen `Log`, `resolve_units` proves its units."""

from strobe.perf.logs.patterns import load_patterns
from strobe.perf.logs.reader import read_log
from strobe.perf.logs.series import resolve_units

__all__ = ["load_patterns", "read_log", "resolve_units"]
