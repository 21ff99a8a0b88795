"""Table of both sides' tree of modules, operators and kernels, node by node."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final, TypeAlias

from strobe.perf.analysis.ledger.paths import Node, PathTree
from strobe.perf.report.blocks.fields import Field, both_sides, heads, numeric, rows_of, share_of
from strobe.perf.report.model import Cell, Code, Table, Text

UNITS: Final = {"step": "one step", "call": "one focal call", "window": "the traced window"}
"""Words for the unit that a tree's times are of."""
_SMALL: Final = Fraction(1, 100)
"""Share of the larger side below which nodes are joined with their siblings."""
_DEPTH: Final = 8
"""Most levels that are shown."""
_INDENT: Final = "\u00b7 "
_Shown: TypeAlias = tuple[Cell, int, Fraction, Fraction]
"""Name of a node, its level, and its times."""


def tree_table(tree: PathTree) -> Table:
    """Build the table of every significant node below its parent; the direct children of a node add up to it."""
    root = tree.root
    of_all = share_of(root.baseline_ns - root.candidate_ns, "nothing was saved")
    fields: tuple[Field[_Shown], ...] = (
        Field("node", lambda row: row[0], hint="a dot for each level"),
        *both_sides(("baseline", "candidate"), lambda row: row[2:]),
        numeric("of the saving", lambda row: row[2] - row[3], "saved / saved by all of it", show=of_all),
    )
    shown = tuple(_rows(root, 0, _SMALL * max(root.baseline_ns, root.candidate_ns)))
    rows = rows_of(fields, shown, strong=lambda row: row[1] == 0)
    notes = ("Shown to the nanosecond; --json has every node, exactly. Numbers at the end of names are left out.",)
    return Table(f"Node by node, {UNITS[tree.unit]}.", heads(fields), rows, notes, collapsed=True)


def _rows(node: Node, depth: int, least: Fraction) -> Iterator[_Shown]:
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
