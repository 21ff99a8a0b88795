"""Table of both sides' tree of modules, operators and kernels, node by node."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from strobe.perf.analysis.ledger.paths import Node, PathTree
from strobe.perf.report.model import Cell, Code, Column, ExactTime, Missing, Row, Share, Table, Text

UNITS: Final = {"step": "one step", "call": "one focal call", "window": "the traced window"}
"""Words for the unit that a tree's times are of."""
_SMALL: Final = Fraction(1, 100)
"""Share of the larger side below which nodes are joined with their siblings."""
_DEPTH: Final = 8
"""Most levels that are shown."""
_INDENT: Final = "\u00b7 "


def tree_table(tree: PathTree) -> Table:
    """Build the table of every significant node below its parent; the direct children of a node add up to it."""
    root = tree.root
    columns = (
        Column("node", hint="a dot for each level"),
        Column("baseline", "ms", True),
        Column("candidate", "ms", True),
        Column("saved", "ms", True),
        Column("of the saving", numeric=True, hint="saved / saved by all of it"),
    )
    saved = root.baseline_ns - root.candidate_ns
    least = _SMALL * max(root.baseline_ns, root.candidate_ns)
    rows = [
        Row((name, *saving_cells(b, c), _share(b - c, saved)), strong=depth == 0) for name, depth, b, c in _rows(root, 0, least)
    ]  # fmt: skip
    notes = ("Shown to the nanosecond; --json has every node, exactly. Numbers at the end of names are left out.",)
    return Table(f"Node by node, {UNITS[tree.unit]}.", columns, tuple(rows), notes, collapsed=True)


def saving_cells(baseline: Fraction, candidate: Fraction) -> tuple[Cell, ...]:
    """Return the cells before, after and saved."""
    return ExactTime(round(baseline)), ExactTime(round(candidate)), ExactTime(round(baseline - candidate))


def _share(part: Fraction, whole: Fraction) -> Cell:
    return Share(float(part / whole)) if whole else Missing("nothing was saved", "-")


def _rows(node: Node, depth: int, least: Fraction) -> Iterator[tuple[Cell, int, Fraction, Fraction]]:
    yield Code(_INDENT * depth + (node.name if depth else "all of it")), depth, node.baseline_ns, node.candidate_ns
    if depth == _DEPTH:
        return
    small = [child for child in node.children if max(child.baseline_ns, child.candidate_ns) < least]
    for child in node.children:
        if max(child.baseline_ns, child.candidate_ns) >= least:
            yield from _rows(child, depth + 1, least)
    b, c = (sum((getattr(child, side) for child in small), Fraction(0)) for side in ("baseline_ns", "candidate_ns"))
    if b or c:
        name = f"{_INDENT * (depth + 1)}{len(small)} smaller"
        yield Text(name), depth + 1, b, c
