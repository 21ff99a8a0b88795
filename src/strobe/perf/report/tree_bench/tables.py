"""Tables of the strategies of one cell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from strobe.perf.analysis.runs.rank_calls import Collective, Parts
from strobe.perf.records.grids import SentMessage
from strobe.perf.report.blocks.contestants import NONE, Timed, compared, reason_cell, timed_fields
from strobe.perf.report.blocks.fields import Field, numeric, share_of, table_of, time
from strobe.perf.report.model import Bar, Code, Figure, Number, Share, Table, Text, Waterfall
from strobe.perf.report.tree_bench.cells import CellRun, TreeContestant
from strobe.perf.report.tree_bench.verdicts import Bound, bound, straggler

_Sent: TypeAlias = tuple[TreeContestant, Collective, SentMessage | None, float | None]
"""A collective of a strategy: as measured, as planned, and its transfer in the serialised call, ns."""
PARTS: Final = ("local", "merge", "wait", "transfer", "host")


def speed_table(cell: CellRun) -> Table:
    """Build the table of times, speedups and predictions; every call counts by its slowest rank."""
    fields: tuple[Field[Timed], ...] = (
        Field("strategy", lambda row: row[1].name, Code),
        time("median", lambda row: row[1].median_ns, "ms", "of the slowest rank of each call"),
        *timed_fields("first strategy"),
        time(
            "predicted",
            lambda row: row[1].predicted_ns or None,
            "ms",
            "by the plan, with links measured on these ranks",
            missing=NONE,
        ),
        numeric("measured / predicted", lambda row: _over_plan(row[1]), missing=NONE),
        numeric("spread", lambda row: row[1].spread, "(p90 - p10) / median", show=Share),
        Field("gate", lambda row: Text(row[1].gate.detail if row[1].gate else "", "good"), hint="every rank against float64"),
    )
    rows = [(cell, entry, compared(cell.measured[0], entry)) for entry in cell.measured]
    choice = cell.links.auto if cell.links else ""
    notes = [f"auto takes {choice} with these links."] if choice else []
    return table_of(f"{cell.name}: strategies.", fields, rows, notes=notes, sortable=True)


def _over_plan(entry: TreeContestant) -> Number | None:
    return Number(entry.median_ns / entry.predicted_ns, 2) if entry.predicted_ns else None


def parts_table(cell: CellRun) -> Table | None:
    """Build the table of a typical call's parts, free-running, mean over the ranks, and of the serialised call's overhead."""
    fields: tuple[Field[tuple[str, Parts, Parts | None]], ...] = (
        Field("strategy", lambda row: row[0], Code),
        time("local", lambda row: row[1].local),
        time("merge", lambda row: row[1].merge),
        time("wait", lambda row: row[1].wait),
        time("transfer", lambda row: row[1].transfer),
        time("host", lambda row: row[1].host),
        time("whole", lambda row: row[1].total),
        numeric(
            "exposed", lambda row: (row[1].wait + row[1].transfer) / row[1].total, "wait and transfer, of the whole", show=Share
        ),
        time("hidden", lambda row: row[1].hidden, "ms", "communication beside attention; no part of the whole"),
        time(
            "serialised",
            lambda row: row[2] and row[2].total,
            "ms",
            "the same call where the ranks meet before each collective",
            missing=NONE,
        ),
        numeric(
            "perturbation",
            lambda row: row[2] and row[2].total / row[1].total - 1,
            "serialised / free-running - 1",
            show=Share,
            missing=NONE,
        ),
    )
    rows = [(entry.name, found, entry.parts("serialised")) for entry in cell.measured if (found := entry.parts()) is not None]
    notes = (
        "Free-running: nothing waits but what must. exposed = |union(messages, work)| - |union(work)|, rank by rank; a message "
        "is under way from the moment it is posted, so the transfer holds the time of posting.",
        "Mean over the half of the calls around the median; the parts add up to the whole.",
    )
    return table_of(f"{cell.name}: where a call went.", fields, rows, notes=notes) if rows else None


def part_figures(cell: CellRun) -> Iterator[Figure]:
    """Yield the parts of each strategy's typical call as bars."""
    for entry in cell.measured:
        found = entry.parts()
        if found is None:
            continue
        bars, done = [], 0
        for name in PARTS:
            value = round(getattr(found, name))
            tone = "bad" if name in ("wait", "transfer", "host") else "plain"
            bars.append(Bar(label=name, start_ns=done, stop_ns=done + value, tone="bad" if tone == "bad" else "plain"))
            done += value
        bars.append(Bar(label="whole", start_ns=0, stop_ns=round(found.total), tone="plain", total=True))
        title = f"Parts of {entry.name}: {cell.name}"
        fields: tuple[Field[Bar], ...] = (
            Field("part", lambda bar: bar.label),
            time("time", lambda bar: bar.stop_ns - bar.start_ns),
            numeric("of the whole", lambda bar: bar.stop_ns - bar.start_ns, show=share_of(found.total)),
        )
        table = table_of(f"{title}.", fields, [bar for bar in bars if not bar.total])
        yield Figure(title=title, alt=title, picture=Waterfall(tuple(bars)), table=table)


def collective_table(cell: CellRun) -> Table | None:
    """Build the table of each collective: transfer, wait of each rank, last rank, and prediction."""
    rows: list[_Sent] = []
    for entry in cell.measured:
        meeting, names = entry.collectives("serialised"), iter(entry.sent)
        for each in entry.collectives("free-running"):
            sent = None if each.kind == "agreement" else next(names, None)
            rows.append((entry, each, sent, meeting[each.place].transfer_ns if each.place < len(meeting) else None))
    fields: tuple[Field[_Sent], ...] = (
        Field("strategy", lambda row: row[0].name, Code),
        Field("collective", lambda row: row[1].kind if row[2] is None else f"{row[2].kind}: {row[2].payload}"),
        time("transfer", lambda row: row[1].transfer_ns, "ms", "the shortest time that a rank was held up, median"),
        *map(_wait, range(cell.run.header.world_size)),
        Field("last", lambda row: f"rank {row[1].last}, {100 * row[1].last_share:.0f} % of the calls"),
        time(
            "predicted",
            lambda row: row[2] and row[2].alpha_ns + row[2].beta_ns,
            "ms",
            "latency and bandwidth",
            missing="not in the plan",
        ),
        time("serialised", lambda row: row[3], "ms", "transfer where the ranks had met just before", missing=NONE),
    )
    notes = (
        "wait + transfer is how long a rank was held up; the last to come waits for nobody. In a ring it waits for one.",
        "agreement: ranks tell each other what they are called with, while attention runs; no part of the plan.",
    )
    return table_of(f"{cell.name}: collectives.", fields, rows, notes=notes) if rows else None


def _wait(rank: int) -> Field[_Sent]:
    return time(f"wait of rank {rank}", lambda row: row[1].waits_ns[rank])


def verdict_table(cell: CellRun) -> Table | None:
    """Build the table with each strategy's verdict, its evidence and one remedy; None if there are none."""
    fields: tuple[Field[tuple[TreeContestant, Bound]], ...] = (
        Field("strategy", lambda row: row[0].name, Code),
        Field("verdict", lambda row: row[1].label),
        Field("evidence", lambda row: row[1].evidence),
        Field("remedy", lambda row: row[1].remedy),
        Field("straggler", lambda row: _late(straggler(row[0].collectives()))),
    )
    rows = [(entry, found) for entry in cell.measured if (found := bound(cell, entry)) is not None]
    return table_of(f"{cell.name}: verdicts.", fields, rows) if rows else None


def _late(who: tuple[int, float] | None) -> Text:
    return Text("none", "muted") if who is None else Text(f"rank {who[0]}, {100 * who[1]:.0f} % of the calls", "bad")


def absent_table(cell: CellRun) -> Table | None:
    """Build the table of strategies without a number and the reason; None if there are none."""
    fields: tuple[Field[TreeContestant], ...] = (Field("strategy", lambda row: row.name, Code), Field("why", reason_cell))
    rows = [entry for entry in cell.entries if entry.reason]
    return table_of(f"{cell.name}: without a number.", fields, rows) if rows else None
