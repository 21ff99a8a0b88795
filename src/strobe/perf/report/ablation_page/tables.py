"""Tables of an ablation's page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from strobe.perf.analysis.ledger.account import Line
from strobe.perf.measure.stats import Interval, Verdict
from strobe.perf.records.plan import Plan
from strobe.perf.report.ablation_page.cells import CellRun
from strobe.perf.report.ablation_page.effort import effort
from strobe.perf.report.ablation_page.front import Advice
from strobe.perf.report.blocks.log.entries import METRIC, LogEntry
from strobe.perf.report.blocks.ratios import ratio_cell, verdict_cell
from strobe.perf.report.model import Cell, Column, Count, Missing, Number, Row, Share, Table, Text, Time, Tone
from strobe.perf.report.text import bytes_cell


def _block(entry: LogEntry | None, reason: str) -> Cell:
    found = None if entry is None or entry.latencies is None else entry.latencies.block
    return Time(found.mean_ns) if found else Missing(reason or "no steady frame blocks", "-")


def _max(entry: LogEntry | None, reason: str) -> Cell:
    found = None if entry is None or entry.latencies is None else entry.latencies.block
    return Time(found.max_ns) if found else Missing(reason or "no steady frame blocks", "-")


def _fps(entry: LogEntry | None) -> Cell:
    found = None if entry is None or entry.latencies is None else entry.latencies.pixel_fps
    return Missing("", "-") if found is None else Number(found, 2)


def _score(entry: LogEntry | None) -> Cell:
    line = None if entry is None else entry.quality
    if line is None or not line.n:
        return Missing("it has no clip" if line is None else line.note, "not measured")
    return (
        Missing(f"every frame equals the reference, {line.reference}", "equal") if line.value is None else Number(line.value, 2)
    )


def _ratio(cell: CellRun) -> tuple[Cell, Cell]:
    if cell.entry is None or isinstance(cell.entry.e2e, str):
        return Missing(cell.reason, "-"), Text("not measured", "muted")
    e2e = cell.entry.e2e
    return ratio_cell(e2e.ratio, e2e.interval), verdict_cell(e2e.verdict)


def factor_table(title: str, cells: Sequence[CellRun], plan: Plan) -> Table:
    """Build the table of one factor (or of the products): each value against the base in its own run."""
    columns = (
        Column("value"),
        Column("SS mean", "ms", True),
        Column("SS max", "ms", True),
        Column("pixel FPS", numeric=True),
        Column("base in the same run, SS mean", "ms", True),
        Column("speedup", numeric=True),
        Column("verdict"),
        Column(f"{METRIC} (dB)", numeric=True),
    )
    first = cells[0]
    rows = []
    base = next((cell.base for cell in cells if cell.base is not None), None)
    if len(first.planned.changes) == 1:
        own = f"{plan.values.get(first.planned.factor, '')} (base)"
        shown = (Text(own), _block(base, ""), _max(base, ""), _fps(base), _block(base, ""))
        rows.append(Row((*shown, Missing("the base itself", "-"), Text("the base", "muted"), _score(base))))
    for cell in cells:
        words = ", ".join(f"{name} {value}" for name, value in cell.planned.changes.items())
        value = Text(cell.planned.value if len(cell.planned.changes) == 1 else words)
        times = (_block(cell.entry, cell.reason), _max(cell.entry, cell.reason), _fps(cell.entry), _block(cell.base, cell.reason))
        rows.append(Row((value, *times, *_ratio(cell), _score(cell.entry))))
    notes = (
        f"Speedup: end-to-end time of the base / own in one run, interleaved. {METRIC} against the preset quality with the same "
        "noise: how far it moved, not how good it looks. SS: a steady frame block, delivered.",
    )
    return Table(f"{title}.", columns, tuple(rows), notes)


def batch_table(cells: Sequence[CellRun], base: LogEntry | None) -> Table:
    """Build the table of streams in lockstep by batch: block times, frame rates, memory, and whether playback keeps up."""
    columns = (
        Column("batch", numeric=True),
        Column("SS mean", "ms", True, "a frame block of every stream"),
        Column("SS max", "ms", True),
        Column("PS mean", "ms", True, "first frame block under a new prompt"),
        Column("time / batch 1", numeric=True, hint="SS mean; as many streams for less than as many times: lockstep pays"),
        Column("pixel FPS, all streams", numeric=True),
        Column("pixel FPS, each", numeric=True),
        Column("plays", hint="each stream gets the pixel frames per second that playback needs"),
        Column("peak memory", numeric=True),
        Column("for each more", numeric=True, hint="(peak - that of batch 1) / more streams"),
    )
    sides: list[tuple[int, LogEntry | None, str]] = [] if base is None else [(1, base, "")]
    sides += [(int(cell.planned.value), cell.entry, cell.reason) for cell in cells]
    one = next((entry for batch, entry, _ in sides if batch == 1), None)
    rows = tuple(_batch_row(batch, entry, one, reason) for batch, entry, reason in sorted(sides, key=lambda side: side[0]))
    note = (
        "Streams in lockstep share every pass, so latency is that of all; SS: a steady frame block, delivered. Each row is a run "
        "of its own: drift between them is unknown, and their ratio has no interval."
    )
    return Table("What more streams in lockstep cost.", columns, rows, (note,))


def _batch_row(batch: int, entry: LogEntry | None, one: LogEntry | None, reason: str) -> Row:
    none = Missing(reason or "no steady frame blocks", "-")
    found, alone = (None if each is None else each.latencies for each in (entry, one))
    ratio: Cell = none
    plays: Cell = none
    each: Cell = none
    switched: Cell = none
    more: Cell = none
    if found is not None and found.block is not None and alone is not None and alone.block is not None:
        ratio = Number(found.block.mean_ns / alone.block.mean_ns, 2, "x")
    if found is not None and found.switch_block is not None:
        switched = Time(found.switch_block.mean_ns)
    work = None if entry is None else entry.run.header.workload
    if found is not None and found.pixel_fps is not None and work is not None:
        own = found.pixel_fps / batch
        each, plays = Number(own, 2), Text("yes", "good") if own >= work.fps else Text(f"no, {work.fps} asked for", "muted")
    peak, least = (None if side is None else side.peak_bytes for side in (entry, one))
    held = Missing(reason, "-") if peak is None else bytes_cell(peak, "GiB", 2)
    if peak is not None and least is not None and batch > 1:
        more = bytes_cell((peak - least) / (batch - 1), "GiB", 3)
    times = (_block(entry, reason), _max(entry, reason), switched, ratio)
    return Row((Count(batch), *times, _fps(entry), each, plays, held, more))


def switch_table(cells: Sequence[CellRun]) -> Table:
    """Build the table of prompt switches: times of the frame block before and of the first one after each switch."""
    columns = (
        Column("switch at frame block", numeric=True),
        Column("block before", "ms", True),
        Column("first block after", "ms", True),
        Column("extra", "ms", True),
    )
    rows = []
    for cell in cells:
        found = None if cell.entry is None else cell.entry.latencies
        times: tuple[Cell, ...] = tuple(Missing(cell.reason or "no such switch", "-") for _ in range(3))
        if found is not None and found.switches:
            switch = found.switches[0]
            times = (Time(switch.before_ns), Time(switch.after_ns), Time(switch.extra_ns))
        rows.append(Row((Text(cell.planned.value), *times)))
    note = "Medians over clips; extra is the median of the differences within a clip."
    return Table("When the prompt switches.", columns, tuple(rows), (note,))


def without_table(cells: Sequence[CellRun], plan: Plan) -> Table:
    """Build the table of optimisations left out one at a time: time without / with, and the ledger line that moved most."""
    columns = (
        Column("optimisation"),
        Column("time without / with", numeric=True),
        Column("verdict"),
        Column("ledger line it moved"),
        Column("its level"),
        Column("moved per clip", "ms", True),
    )
    rows = []
    for cell in sorted(cells, key=lambda cell: -(_inverse(cell) or 0)):
        line = cell.moved
        named: tuple[Cell, ...] = (Missing(line, "-"), Text(""), Missing("", "-")) if isinstance(line, str) else _line(cell, line)
        rows.append(Row((Text(cell.planned.factor), *_worth(cell), *named)))
    idle = tuple(f"{name} is asked for and does nothing here: {why}." for name, why in plan.idle.items())
    note = (
        "Each is off alone, beside the base in one run. A ratio above 1: the stream is slower without it. The line of the ledger "
        "that grew most without it (or, if it costs, shrank most), from traced frame blocks."
    )
    return Table("Leave one out.", columns, tuple(rows), (note, *idle))


def _line(cell: CellRun, line: Line) -> tuple[Cell, ...]:
    assert cell.finding is not None and not isinstance(cell.finding.ledger, str)
    return Text(line.name), Text(line.level.value), Time(-line.saved_ns / cell.finding.ledger.num_units)


def _inverse(cell: CellRun) -> float | None:
    """Return time without the optimisation / time with it; None if it was not measured."""
    return None if cell.entry is None or cell.entry.ratio is None else 1 / cell.entry.ratio


_WORTH: Final[dict[Verdict, tuple[str, Tone]]] = {"faster": ("costs time", "bad"), "slower": ("saves time", "good")}


def _worth(cell: CellRun) -> tuple[Cell, Cell]:
    ratio = _inverse(cell)
    if ratio is None or cell.entry is None or isinstance(cell.entry.e2e, str):
        return Missing(cell.reason, "-"), Text("not measured", "muted")
    interval, verdict = cell.interval, cell.entry.e2e.verdict
    inverse = None if interval is None else Interval(low=1 / interval.high, high=1 / interval.low, level=interval.level)
    word, tone = _WORTH.get(verdict, (verdict, "muted"))
    return ratio_cell(ratio, inverse), Text(word, tone)


def advice_table(advice: Sequence[Advice]) -> Table:
    """Build the table of the Pareto front, fastest first, with the sweet spot marked."""
    columns = (Column("setting"), Column("speedup", numeric=True), Column(f"{METRIC} (dB)", numeric=True), Column("use it"))
    rows = []
    for each in advice:
        point = each.point
        same = point.score == float("inf")
        score: Cell = Missing("its pictures are the reference's", "equal") if same else Number(point.score, 2)
        name = f"{point.label} (sweet spot)" if each.sweet else point.label
        rows.append(Row((Text(name), Number(point.speed, 3, "x"), score, Text(each.when)), strong=each.sweet))
    note = f"Speedup over the base, end to end; {METRIC} against the preset quality with the same noise."
    return Table("The front of speed and quality.", columns, tuple(rows), (note,))


def plan_table(cells: Sequence[CellRun]) -> Table:
    """Build the table of changes ranked by measured gain per declared effort; unproven or unjudged ones come last, unranked."""
    ranked: list[tuple[CellRun, float | None, int | None]] = []
    rest: list[tuple[CellRun, float | None, int | None]] = []
    for cell in cells:
        gain, cost = gain_of(cell), effort(cell.planned.changes)
        proven = cell.entry is not None and not isinstance(cell.entry.e2e, str) and cell.entry.e2e.verdict in ("faster", "slower")
        known = cell.entry is not None and _is_judged(cell.entry)
        (ranked if proven and known and gain is not None and gain > 0 and cost else rest).append((cell, gain, cost))
    ranked.sort(key=lambda row: -(row[1] or 0) / (row[2] or 1))
    columns = (
        Column("rank", numeric=True),
        Column("change"),
        Column("state"),
        Column("gain", numeric=True),
        Column("effort", numeric=True),
        Column("gain / effort", numeric=True),
        Column(f"{METRIC} (dB)", numeric=True),
    )
    rows = [_plan_row(number, *row) for number, row in enumerate(ranked, start=1)]
    rows += [_plan_row(None, *row) for row in rest]
    note = f"{METRIC} against the preset quality with the same noise, as in the tables of the factors."
    return Table("Ranked by measured gain per effort.", columns, tuple(rows), (note,))


def gain_of(cell: CellRun) -> float | None:
    """Return the share of end-to-end time saved by a change, or by the optimisation that the cell leaves out."""
    if cell.entry is None or cell.entry.ratio is None or cell.entry.is_reference:
        return None
    return 1 - cell.entry.ratio if cell.planned.kind == "leave-one-out" else 1 - 1 / cell.entry.ratio


def _plan_row(rank: int | None, cell: CellRun, gain: float | None, cost: int | None) -> Row:
    out = cell.planned.kind == "leave-one-out"
    change = cell.planned.factor if out else ", ".join(f"{name}={value}" for name, value in cell.planned.changes.items())
    number: Cell = Missing(_unranked(cell, gain, cost), "-") if rank is None else Count(rank)
    per: Cell = Number(100 * gain / cost, 2, "%") if rank is not None and gain is not None and cost else Missing("", "-")
    cells = (
        Missing(cell.reason, "-") if gain is None else Share(gain),
        Missing("not in the table of efforts", "not declared") if cost is None else Count(cost),
        per,
        Missing("that of the base", "-") if out else _score(cell.entry),
    )
    return Row((number, Text(change), Text("in the base" if out else "would change the base"), *cells))


def _unranked(cell: CellRun, gain: float | None, cost: int | None) -> str:
    if gain is None:
        return "not measured"
    if cost is None:
        return "effort not declared"
    if gain <= 0:
        return "it costs time"
    return "not proven" if cell.entry is None or _is_judged(cell.entry) else "other values, and their quality was not measured"


def _is_judged(entry: LogEntry) -> bool:
    """Return whether the effect on the pictures is known: the gate found equal values, or quality was measured."""
    return entry.exact or entry.score is not None
