"""Blocks of the guide's timers over all ranks: leaves by kind, enclosing blocks separately, both modes."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping

from strobe.perf.measure.stats import percentile
from strobe.perf.records.grids import GUIDE, TOTAL
from strobe.perf.records.record import Mode
from strobe.perf.report.model import Code, Column, Missing, Row, Share, Table, Text, Time
from strobe.perf.report.tree_bench.cells import CellRun

Blocks = Mapping[tuple[str, str], Mapping[int, tuple[int, ...]]]
"""Times by (block, kind) and by rank, ns."""


def guide_blocks(cell: CellRun, mode: Mode) -> Blocks:
    """Return the times of the ranks' timers in one mode, ns, by block and rank."""
    found: dict[tuple[str, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for span in cell.run.spans:
        if span.variant == GUIDE and span.mode == mode and span.rank is not None:
            found[span.name, span.part][span.rank].append(span.value_ns)
    return {block: {rank: tuple(values) for rank, values in ranks.items()} for block, ranks in found.items()}


def totals(blocks: Blocks) -> dict[str, float]:
    """Return the time of each kind over all calls, ns, mean over the ranks, without the block that encloses a call."""
    found: dict[str, float] = defaultdict(float)
    for (name, kind), ranks in blocks.items():
        if name != TOTAL:
            found[kind] += statistics.fmean(sum(values) for values in ranks.values())
    return dict(found)


def guide_table(cell: CellRun, mode: Mode) -> Table | None:
    """Build the table of the guide's blocks over all ranks; None if there are none."""
    blocks = guide_blocks(cell, mode)
    if not blocks:
        return None
    columns = (
        Column("block"),
        Column("kind"),
        Column("mean", "ms", True),
        Column("p50", "ms", True),
        Column("p90", "ms", True),
        Column("spread", "ms", True, "max - min"),
        Column("of the leaves", numeric=True),
        Column("fastest rank", "ms", True, "p50"),
        Column("slowest rank", "ms", True, "p50"),
    )
    sums, rows = totals(blocks), []
    whole = sum(sums.values())
    for name, kind in sorted(blocks, key=lambda block: (block[0] == TOTAL, block[1] != "computation", block[1])):
        ranks = blocks[name, kind]
        every = [value for values in ranks.values() for value in values]
        medians = [statistics.median(values) for values in ranks.values()]
        own = statistics.fmean(sum(values) for values in ranks.values())
        parent = name == TOTAL
        rows.append(
            Row(
                (
                    Code(name),
                    Text("around the others, not summed" if parent else kind),
                    Time(statistics.fmean(every)),
                    Time(statistics.median(every)),
                    Time(percentile(every, 0.9)),
                    Time(max(every) - min(every)),
                    Missing("it holds the leaves", "-") if parent else Share(own / whole),
                    Time(min(medians)),
                    Time(max(medians)),
                ),
                strong=parent,
            )
        )
    shares = ", ".join(f"{kind} {100 * value / whole:.1f} %" for kind, value in sums.items())
    words = {
        "free-running": "Free-running: nothing waits inside; a comm block holds the wait for the other ranks too.",
        "serialised": "Serialised: the ranks meet before each collective (wait_*), so comm_* is transfer alone.",
    }[mode]
    return Table(f"{cell.name}: blocks of the guide, {mode}.", columns, tuple(rows), (f"Leaves: {shares}.", words))
