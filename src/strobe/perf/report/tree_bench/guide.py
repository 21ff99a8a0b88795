"""Blocks of the guide's timers over all ranks: leaves by kind, enclosing blocks separately, both modes."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import TypeAlias

from strobe.perf.measure.stats import percentile
from strobe.perf.records.grids import GUIDE, TOTAL
from strobe.perf.records.record import Mode
from strobe.perf.report.blocks.fields import Field, heads, numeric, rows_of, share_of, time
from strobe.perf.report.model import Code, Table
from strobe.perf.report.tree_bench.cells import CellRun

Blocks = Mapping[tuple[str, str], Mapping[int, tuple[int, ...]]]
"""Times by (block, kind) and by rank, ns."""


_Block: TypeAlias = tuple[str, str, Mapping[int, tuple[int, ...]]]
"""Block, kind, and times by rank, ns."""


def _mean(ranks: Mapping[int, tuple[int, ...]]) -> float:
    """Return the time of a block over all calls, ns, mean over the ranks."""
    return statistics.fmean(sum(values) for values in ranks.values())


def _every(row: _Block) -> list[int]:
    return [value for values in row[2].values() for value in values]


def _medians(row: _Block) -> list[float]:
    return [statistics.median(values) for values in row[2].values()]


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
            found[kind] += _mean(ranks)
    return dict(found)


def guide_table(cell: CellRun, mode: Mode) -> Table | None:
    """Build the table of the guide's blocks over all ranks; None if there are none."""
    blocks = guide_blocks(cell, mode)
    if not blocks:
        return None
    sums = totals(blocks)
    share = share_of(sum(sums.values()))
    fields: tuple[Field[_Block], ...] = (
        Field("block", lambda row: row[0], Code),
        Field("kind", lambda row: "around the others, not summed" if row[0] == TOTAL else row[1]),
        time("mean", lambda row: statistics.fmean(_every(row))),
        time("p50", lambda row: statistics.median(_every(row))),
        time("p90", lambda row: percentile(_every(row), 0.9)),
        time("spread", lambda row: max(_every(row)) - min(_every(row)), hint="max - min"),
        numeric("of the leaves", lambda row: None if row[0] == TOTAL else share(_mean(row[2])), missing="it holds the leaves"),
        time("fastest rank", lambda row: min(_medians(row)), hint="p50"),
        time("slowest rank", lambda row: max(_medians(row)), hint="p50"),
    )
    places = sorted(blocks, key=lambda block: (block[0] == TOTAL, block[1] != "computation", block[1]))
    rows = rows_of(fields, [(*place, blocks[place]) for place in places], strong=lambda row: row[0] == TOTAL)
    shares = ", ".join(f"{kind} {100 * value / sum(sums.values()):.1f} %" for kind, value in sums.items())
    words = {
        "free-running": "Free-running: nothing waits inside; a comm block holds the wait for the other ranks too.",
        "serialised": "Serialised: the ranks meet before each collective (wait_*), so comm_* is transfer alone.",
    }[mode]
    return Table(f"{cell.name}: blocks of the guide, {mode}.", heads(fields), rows, (f"Leaves: {shares}.", words))
