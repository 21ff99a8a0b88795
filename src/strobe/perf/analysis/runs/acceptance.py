"""The acceptance of a model: its checks and their verdict."""

from __future__ import annotations

from dataclasses import dataclass

from strobe.core.errors import DataError
from strobe.perf.records.record import Check
from strobe.perf.records.store import RunRecords


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """All checks of a model.

    Args:
        checks: as they were made.
        complete: the run came to its end.
    """

    checks: tuple[Check, ...]
    complete: bool

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks whose value is outside of its bounds."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def num_judged(self) -> int:
        """Number of checks with a verdict."""
        return sum(check.passed is not None for check in self.checks)

    @property
    def accepted(self) -> bool:
        """Whether every check was made and none failed."""
        return self.complete and not self.failed


def is_acceptance(run: RunRecords) -> bool:
    """Return whether the run accepts a model."""
    return run.header.kind == "accept"


def acceptance_of(run: RunRecords) -> Acceptance:
    """Read the checks of a run, complete or not.

    Raises:
        DataError: it accepts no model.
    """
    if not is_acceptance(run) or run.header.workload is None:
        raise DataError(f"{run.folder} accepts no model; `strobe accept` makes such a run")
    complete = run.end is not None and run.end.status == "complete"
    return Acceptance(checks=run.checks, complete=complete)
