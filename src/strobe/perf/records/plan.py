"""The plan of an ablation: the cells to measure, as written in `plan.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from strobe.core.errors import DataError
from strobe.core.files import file_inside

PLAN: Final = "plan.json"

Kind = Literal["base", "setting", "workload", "leave-one-out", "product"]
"""Change of a cell: none (the base), one setting, the clip or batch, one optimisation off, or several factors."""


class PlannedCell(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an ablation.

    Args:
        name: of its folder.
        kind: what it changes.
        changes: value by factor, as text.
        refused: why it cannot be measured at all; empty if it can.
    """

    name: str
    kind: Kind
    changes: dict[str, str]
    refused: str = ""

    @property
    def factor(self) -> str:
        """Names of the changed factors, joined by commas."""
        return ", ".join(self.changes)

    @property
    def value(self) -> str:
        """New values of the changed factors, in the same order, joined by commas."""
        return ", ".join(self.changes.values())


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of an ablation and the base they are compared with.

    Args:
        base: the preset that everything is compared with.
        request: what must agree between all cells, as text.
        values: value of the base by factor, as text.
        idle: optimisations that the base has and that do nothing here, and why.
        cells: in order.
    """

    base: str
    request: dict[str, str]
    values: dict[str, str]
    idle: dict[str, str]
    cells: tuple[PlannedCell, ...]


def read_plan(folder: Path) -> Plan:
    """Read the plan of an ablation's folder.

    Raises:
        DataError: it holds none.
    """
    file = folder / PLAN
    try:
        return msgspec.json.decode(file_inside(folder, PLAN).read_bytes(), type=Plan)
    except OSError as error:
        raise DataError(f"no ablation at {folder}: {file.name}: {error.strerror}; `strobe compare --vary` makes one") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{file} is not the plan of an ablation: {error}") from error
