"""Tables of the strategies of one cell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from strobe.perf.analysis.runs.grid import speedup
from strobe.perf.report.blocks.ratios import ratio_cell, verdict_cell
from strobe.perf.report.model import (
    Bar,
    Cell,
    Code,
    Column,
    Count,
    Figure,
    Missing,
    Number,
    Row,
    Share,
    Table,
    Text,
    Time,
    Waterfall,
)
from strobe.perf.report.tree_bench.cells import CellRun, TreeContestant
from strobe.perf.report.tree_bench.verdicts import bound, straggler

_NONE: Final = Missing("not measured here", "-")
PARTS: Final = ("local", "merge", "wait", "transfer", "host")


def speed_table(cell: CellRun) -> Table:
    """Build the table of times, speedups and predictions; every call counts by its slowest rank."""
    columns = (
        Column("strategy"),
        Column("median", "ms", True, "of the slowest rank of each call"),
        Column("95 % of the median", hint="bootstrap, from 30 calls on; else shortest and longest call"),
        Column("calls", numeric=True),
        Column("speedup", numeric=True, hint="time of the first strategy / time, same palindromes, 95 % interval"),
        Column("verdict"),
        Column("predicted", "ms", True, "by the plan, with links measured on these ranks"),
        Column("measured / predicted", numeric=True),
        Column("spread", numeric=True, hint="(p90 - p10) / median"),
        Column("gate", hint="every rank against float64"),
    )
    rows = tuple(Row(_speed(cell, entry)) for entry in cell.measured)
    choice = cell.links.auto if cell.links else ""
    notes = [f"auto takes {choice} with these links."] if choice else []
    return Table(f"{cell.name}: strategies.", columns, rows, tuple(notes), sortable=True)


def _speed(cell: CellRun, entry: TreeContestant) -> tuple[Cell, ...]:
    interval, times, first = entry.interval, entry.times_ns, cell.measured[0]
    low, high = (interval.low, interval.high) if interval else (min(times), max(times))
    predicted = entry.predicted_ns
    compared: tuple[Cell, Cell] = (Missing("it is the reference", "1"), Text("reference", "muted"))
    if entry is not first:
        found = speedup(first, entry)
        compared = ratio_cell(found.ratio, found.interval), verdict_cell(found.verdict)
    return (
        Code(entry.name),
        Time(entry.median_ns),
        Text(f"{low / 1e6:.4g} to {high / 1e6:.4g}{'' if interval else ' (all)'}"),
        Count(len(times)),
        *compared,
        Time(predicted) if predicted else _NONE,
        Number(entry.median_ns / predicted, 2) if predicted else _NONE,
        Share(entry.spread),
        Text(entry.gate.detail if entry.gate else "", "good"),
    )


def parts_table(cell: CellRun) -> Table | None:
    """Build the table of a typical call's parts, free-running, mean over the ranks, and of the serialised call's overhead."""
    columns = (
        Column("strategy"),
        *(Column(name, "ms", True) for name in PARTS),
        Column("whole", "ms", True),
        Column("exposed", numeric=True, hint="wait and transfer, of the whole"),
        Column("hidden", "ms", True, "communication beside attention; no part of the whole"),
        Column("serialised", "ms", True, "the same call where the ranks meet before each collective"),
        Column("perturbation", numeric=True, hint="serialised / free-running - 1"),
    )
    rows = []
    for entry in cell.measured:
        found, other = entry.parts(), entry.parts("serialised")
        if found is None:
            continue
        cells: tuple[Cell, ...] = (
            Code(entry.name),
            *(Time(getattr(found, name)) for name in PARTS),
            Time(found.total),
            Share((found.wait + found.transfer) / found.total),
            Time(found.hidden),
            Time(other.total) if other else _NONE,
            Share(other.total / found.total - 1) if other else _NONE,
        )
        rows.append(Row(cells))
    notes = (
        "Free-running: nothing waits but what must. exposed = |union(messages, work)| - |union(work)|, rank by rank; a message "
        "is under way from the moment it is posted, so the transfer holds the time of posting.",
        "Mean over the half of the calls around the median; the parts add up to the whole.",
    )
    return Table(f"{cell.name}: where a call went.", columns, tuple(rows), notes) if rows else None


def part_figures(cell: CellRun) -> Iterator[Figure]:
    """Yield the parts of each strategy's typical call as bars."""
    for entry in cell.measured:
        found = entry.parts()
        if found is None:
            continue
        bars, done = [], 0
        rows = []
        for name in PARTS:
            value = round(getattr(found, name))
            tone = "bad" if name in ("wait", "transfer", "host") else "plain"
            bars.append(Bar(label=name, start_ns=done, stop_ns=done + value, tone="bad" if tone == "bad" else "plain"))
            rows.append(Row((Text(name), Time(value), Share(value / found.total))))
            done += value
        bars.append(Bar(label="whole", start_ns=0, stop_ns=round(found.total), tone="plain", total=True))
        title = f"Parts of {entry.name}: {cell.name}"
        table = Table(
            f"{title}.", (Column("part"), Column("time", "ms", True), Column("of the whole", numeric=True)), tuple(rows)
        )
        yield Figure(title=title, alt=title, picture=Waterfall(tuple(bars)), table=table)


def collective_table(cell: CellRun) -> Table | None:
    """Build the table of each collective: transfer, wait of each rank, last rank, and prediction."""
    ranks = cell.run.header.world_size
    columns = (
        Column("strategy"),
        Column("collective"),
        Column("transfer", "ms", True, "the shortest time that a rank was held up, median"),
        *(Column(f"wait of rank {rank}", "ms", True) for rank in range(ranks)),
        Column("last"),
        Column("predicted", "ms", True, "latency and bandwidth"),
        Column("serialised", "ms", True, "transfer where the ranks had met just before"),
    )
    rows = []
    for entry in cell.measured:
        meeting = entry.collectives("serialised")
        found = entry.collectives("free-running")
        names = iter(entry.sent)
        for each in found:
            sent = None if each.kind == "agreement" else next(names, None)
            what = each.kind if sent is None else f"{sent.kind}: {sent.payload}"
            other = meeting[each.place].transfer_ns if each.place < len(meeting) else None
            rows.append(
                Row(
                    (
                        Code(entry.name),
                        Text(what),
                        Time(each.transfer_ns),
                        *(Time(wait) for wait in each.waits_ns),
                        Text(f"rank {each.last}, {100 * each.last_share:.0f} % of the calls"),
                        Time(sent.alpha_ns + sent.beta_ns) if sent else Missing("not in the plan", "-"),
                        Time(other) if other is not None else _NONE,
                    )
                )
            )
    notes = (
        "wait + transfer is how long a rank was held up; the last to come waits for nobody. In a ring it waits for one.",
        "agreement: ranks tell each other what they are called with, while attention runs; no part of the plan.",
    )
    return Table(f"{cell.name}: collectives.", columns, tuple(rows), notes) if rows else None


def verdict_table(cell: CellRun) -> Table | None:
    """Build the table with each strategy's verdict, its evidence and one remedy; None if there are none."""
    columns = (Column("strategy"), Column("verdict"), Column("evidence"), Column("remedy"), Column("straggler"))
    rows = []
    for entry in cell.measured:
        found = bound(cell, entry)
        if found is None:
            continue
        who = straggler(entry.collectives())
        name = Text("none", "muted") if who is None else Text(f"rank {who[0]}, {100 * who[1]:.0f} % of the calls", "bad")
        rows.append(Row((Code(entry.name), Text(found.label), Text(found.evidence), Text(found.remedy), name)))
    return Table(f"{cell.name}: verdicts.", columns, tuple(rows)) if rows else None


def absent_table(cell: CellRun) -> Table | None:
    """Build the table of strategies without a number and the reason; None if there are none."""
    rows = tuple(
        Row((Code(entry.name), Text(entry.reason, "plain" if entry.outcome == "refused" else "bad")))
        for entry in cell.entries
        if entry.reason
    )
    return Table(f"{cell.name}: without a number.", (Column("strategy"), Column("why")), rows) if rows else None
