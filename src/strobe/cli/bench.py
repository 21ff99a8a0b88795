"""`strobe bench`: benchmarks of the package."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cyclopts import App

from strobe.cli.console import Output
from strobe.cli.report import GATE_FAILED

if TYPE_CHECKING:
    from strobe.bench.cells import CellsOutcome

bench = App(
    name="bench",
    help="Measure what the package ships.",
    help_epilogue="Next: --render makes the page again from the cells, on any machine.\n",
)
bench.command("strobe.cli.bench_attention:attention", name="attention")  # imported when it is run or described
bench.command("strobe.cli.bench_tree:tree", name="tree")
bench.command("strobe.cli.bench_tree:scaling", name="scaling")
bench.command("strobe.cli.bench_serve:serve", name="serve")


def answer_grid(
    outcome: CellsOutcome | None,
    cells: list[dict[str, Any]],
    paths: list[str],
    output: Output,
    *,
    notes: Iterable[str],
    red: bool,
) -> int:
    """Report what became of the cells of a grid, and its pages; return the exit code.

    Args:
        outcome: of this run; None: nothing was measured, the pages were made again.
        cells: the JSON document of each.
        notes: what is told before.
        red: a gate was red.
    """
    for line in notes:
        output.note(line)
    measured, kept, failed = ((), (), ()) if outcome is None else (outcome.measured, outcome.kept, outcome.failed)
    if outcome is not None:
        output.note(f"{len(measured)} cells measured, {len(kept)} were there, {len(failed)} failed")
    output.show(" ".join(paths))
    output.emit({"cells": cells, "measured": list(measured), "kept": list(kept), "failed": list(failed), "report": paths})
    return GATE_FAILED if red or failed else 0
