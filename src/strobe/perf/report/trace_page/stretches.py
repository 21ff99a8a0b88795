"""Pictures of time by class over a window cut into bins: the lanes, and the table of longer stretches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from strobe.perf.report.blocks.fields import beside, table_of
from strobe.perf.report.model import Code, ExactTime, Table

MAX_STRETCHES: Final = 12
"""Most rows of the table for each lane."""


def permille(edges_ns: Sequence[int], ns: Sequence[int]) -> tuple[int, ...]:
    """Return what part of each bin some times take, in thousandths."""
    return tuple(1000 * value // max(1, right - left) for value, (left, right) in zip(ns, pairwise(edges_ns), strict=True))


def stretches_table(
    caption: str,
    head: str,
    labels: Iterable[str],
    lanes: Iterable[tuple[str, Sequence[int], Sequence[Sequence[int]]]],
    notes: Sequence[str] = (),
) -> Table:
    """Build the table of the time of each class in stretches of several bins.

    Args:
        head: of the column that names the lane.
        labels: of the classes.
        lanes: each with its name, the edges of its bins, and by class the time in each bin, all ns.
        notes: of the table.
    """
    rows = []
    for name, edges_ns, classes_ns in lanes:
        num_bins = len(edges_ns) - 1
        step = -(-num_bins // MAX_STRETCHES)
        for first in range(0, num_bins, step):
            last = min(first + step, num_bins)
            sums = [sum(own[first:last]) for own in classes_ns]
            if any(sums):
                rows.append((Code(name), edges_ns[first], edges_ns[last], *sums))
    return table_of(caption, beside(head, ("from", "to", *labels), "ms", show=ExactTime), rows, notes=notes)
