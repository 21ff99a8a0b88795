"""Cells of an ablation, read from their run folders for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strobe.core.errors import DataError
from strobe.perf.analysis.ledger.account import Ledger, Level, Line
from strobe.perf.analysis.ledger.parts import NAMELESS, part_of
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.measure.stats import Interval
from strobe.perf.records.grids import CELLS
from strobe.perf.records.packed import records_in
from strobe.perf.records.plan import Plan, PlannedCell
from strobe.perf.report.blocks.log.entries import LogEntry, read_entries
from strobe.perf.report.findings import Finding, find
from strobe.perf.report.study import load_study


@dataclass(frozen=True, kw_only=True, slots=True)
class CellRun:
    """One cell of an ablation, with its base, its candidate and their comparison.

    Args:
        base: the base in it; None if nothing of it ran.
        entry: what was changed: the candidate, or the base in another clip; None likewise.
        finding: candidate against base with its ledger; None without a candidate.
        reason: why it has no numbers; empty if it has.
    """

    planned: PlannedCell
    base: LogEntry | None
    entry: LogEntry | None
    finding: Finding | None
    reason: str

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the end-to-end speedup; None without one."""
        return None if self.entry is None or isinstance(self.entry.e2e, str) else self.entry.e2e.interval

    @property
    def moved(self) -> Line | str:
        """Ledger line that changed most in the direction of the whole; a text says why there is none."""
        if self.finding is None:
            return self.reason or "nothing is compared"
        if isinstance(self.finding.ledger, str):
            return self.finding.ledger
        return _moved(self.finding.ledger)


def _moved(ledger: Ledger) -> Line | str:
    named = [line for line in ledger.lines if part_of(Label(line.path, line.activity)) not in NAMELESS]
    inside = [line for line in named if line.level != Level.E2E]
    same = [line for line in inside if line.saved_ns * ledger.saved_ns > 0]
    return max(same, key=lambda line: abs(line.saved_ns)) if same else "no line of the traced frame blocks moved with the whole"


def read_cells(folder: Path, plan: Plan) -> tuple[CellRun, ...]:
    """Read every cell of a plan that was started or refused.

    Raises:
        DataError: none was.
    """
    begun = (each for each in plan.cells if each.refused or records_in(folder / CELLS / each.name))
    found = tuple(_cell(folder, planned) for planned in begun)
    if not any(cell.entry is not None and not cell.reason for cell in found):
        reasons = "; ".join(f"{cell.planned.name}: {cell.reason}" for cell in found if cell.reason)
        raise DataError(
            f"nothing was measured at {folder}{f': {reasons}' if reasons else ''}; run the same `strobe compare` again"
        )
    return found


def _cell(folder: Path, planned: PlannedCell) -> CellRun:
    if planned.refused:
        return CellRun(planned=planned, base=None, entry=None, finding=None, reason=planned.refused)
    place = folder / CELLS / planned.name
    try:
        entries = read_entries([place])
        findings = find(load_study([place], folder))
    except DataError as error:
        return CellRun(planned=planned, base=None, entry=None, finding=None, reason=str(error))
    base = next((entry for entry in entries if entry.is_reference), None)
    own = next((entry for entry in entries if not entry.is_reference), base)
    reason = "" if own is None else own.error or (own.found if isinstance(own.found, str) else "")
    return CellRun(planned=planned, base=base, entry=own, finding=findings[0] if findings else None, reason=reason)


def measured(cells: Sequence[CellRun]) -> tuple[CellRun, ...]:
    """Return the cells whose candidate has a speedup."""
    return tuple(cell for cell in cells if cell.entry is not None and not isinstance(cell.entry.e2e, str))
