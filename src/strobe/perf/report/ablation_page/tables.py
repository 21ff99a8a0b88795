"""Tables of an ablation's page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from strobe.perf.analysis.runs.latency import Summary, Switch
from strobe.perf.measure.stats import Interval, Verdict
from strobe.perf.records.plan import Plan
from strobe.perf.report.ablation_page.cells import CellRun
from strobe.perf.report.ablation_page.effort import effort
from strobe.perf.report.ablation_page.front import Advice, Point
from strobe.perf.report.blocks.fields import Field, count, heads, numeric, rows_of, table_of, time
from strobe.perf.report.blocks.log.entries import METRIC, LogEntry
from strobe.perf.report.blocks.ratios import ratio_cell, verdict_cell
from strobe.perf.report.model import Cell, Count, Missing, Number, Share, Table, Text, Tone
from strobe.perf.report.text import bytes_cell

_Valued: TypeAlias = tuple[str, LogEntry | None, LogEntry | None, tuple[Cell, Cell], str]
"""A value, its own entry, the base's in the same run, the cells of speedup and verdict, and why there are no numbers."""
_Batch: TypeAlias = tuple[int, LogEntry | None, str]
"""A batch, its entry, and why there are no numbers."""
_Planned: TypeAlias = tuple[int | None, CellRun, float | None, int | None]
"""Rank, cell, gain and declared effort of a change; the rank is None where it has none."""


def _steady(entry: LogEntry | None) -> Summary | None:
    return None if entry is None or entry.latencies is None else entry.latencies.block


def _mean(entry: LogEntry | None) -> float | None:
    return None if (found := _steady(entry)) is None else found.mean_ns


def _max(entry: LogEntry | None) -> float | None:
    return None if (found := _steady(entry)) is None else found.max_ns


def _fps(entry: LogEntry | None) -> float | None:
    return None if entry is None or entry.latencies is None else entry.latencies.pixel_fps


def _rate(value: float) -> Number:
    return Number(value, 2)


def _reason(row: _Valued | _Batch) -> str:
    return row[-1] or "no steady frame blocks"


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
    fields: tuple[Field[_Valued], ...] = (
        Field("value", lambda row: row[0]),
        time("SS mean", lambda row: _mean(row[1]), missing=_reason),
        time("SS max", lambda row: _max(row[1]), missing=_reason),
        numeric("pixel FPS", lambda row: _fps(row[1]), show=_rate),
        time("base in the same run, SS mean", lambda row: _mean(row[2]), missing=_reason),
        numeric("speedup", lambda row: row[3][0]),
        Field("verdict", lambda row: row[3][1]),
        numeric(f"{METRIC} (dB)", lambda row: _score(row[1])),
    )
    rows: list[_Valued] = []
    base = next((cell.base for cell in cells if cell.base is not None), None)
    if len(cells[0].planned.changes) == 1:
        own = f"{plan.values.get(cells[0].planned.factor, '')} (base)"
        rows.append((own, base, base, (Missing("the base itself", "-"), Text("the base", "muted")), ""))
    for cell in cells:
        words = ", ".join(f"{name} {value}" for name, value in cell.planned.changes.items())
        value = cell.planned.value if len(cell.planned.changes) == 1 else words
        rows.append((value, cell.entry, cell.base, _ratio(cell), cell.reason))
    notes = (
        f"Speedup: end-to-end time of the base / own in one run, interleaved. {METRIC} against the preset quality with the same "
        "noise: how far it moved, not how good it looks. SS: a steady frame block, delivered.",
    )
    return table_of(f"{title}.", fields, rows, notes=notes)


def batch_table(cells: Sequence[CellRun], base: LogEntry | None) -> Table:
    """Build the table of streams in lockstep by batch: block times, frame rates, memory, and whether playback keeps up."""
    rows: list[_Batch] = [] if base is None else [(1, base, "")]
    rows += [(int(cell.planned.value), cell.entry, cell.reason) for cell in cells]
    one = next((entry for batch, entry, _ in rows if batch == 1), None)
    pays = "SS mean; as many streams for less than as many times: lockstep pays"
    plays = "each stream gets the pixel frames per second that playback needs"

    def switched(row: _Batch) -> float | None:
        found = None if row[1] is None or row[1].latencies is None else row[1].latencies.switch_block
        return None if found is None else found.mean_ns

    def ratio(row: _Batch) -> Number | None:
        own, alone = _mean(row[1]), _mean(one)
        return None if own is None or alone is None else Number(own / alone, 2, "x")

    def each(row: _Batch) -> float | None:
        fps = _fps(row[1])
        return None if fps is None or row[1] is None or row[1].run.header.workload is None else fps / row[0]

    def kept(row: _Batch) -> Text | None:
        fps, work = each(row), None if row[1] is None else row[1].run.header.workload
        if fps is None or work is None:
            return None
        return Text("yes", "good") if fps >= work.fps else Text(f"no, {work.fps} asked for", "muted")

    def peak(row: _Batch) -> int | None:
        return None if row[1] is None else row[1].peak_bytes

    def more(row: _Batch) -> Number | None:
        own, least = peak(row), None if one is None else one.peak_bytes
        return None if own is None or least is None or row[0] == 1 else bytes_cell((own - least) / (row[0] - 1), "GiB", 3)

    fields: tuple[Field[_Batch], ...] = (
        count("batch", lambda row: row[0]),
        time("SS mean", lambda row: _mean(row[1]), hint="a frame block of every stream", missing=_reason),
        time("SS max", lambda row: _max(row[1]), missing=_reason),
        time("PS mean", switched, hint="first frame block under a new prompt", missing=_reason),
        numeric("time / batch 1", ratio, pays, missing=_reason),
        numeric("pixel FPS, all streams", lambda row: _fps(row[1]), show=_rate),
        numeric("pixel FPS, each", each, show=_rate, missing=_reason),
        Field("plays", kept, hint=plays, missing=_reason),
        numeric("peak memory", peak, show=lambda held: bytes_cell(held, "GiB", 2), missing=lambda row: row[2]),
        numeric("for each more", more, "(peak - that of batch 1) / more streams", missing=_reason),
    )
    note = (
        "Streams in lockstep share every pass, so latency is that of all; SS: a steady frame block, delivered. Each row is a run "
        "of its own: drift between them is unknown, and their ratio has no interval."
    )
    return table_of("What more streams in lockstep cost.", fields, sorted(rows, key=lambda row: row[0]), notes=(note,))


def switch_table(cells: Sequence[CellRun]) -> Table:
    """Build the table of prompt switches: times of the frame block before and of the first one after each switch."""

    def of(head: str, get: Callable[[Switch], float]) -> Field[CellRun]:
        def ns(row: CellRun) -> float | None:
            found = None if row.entry is None else row.entry.latencies
            return get(found.switches[0]) if found and found.switches else None

        return time(head, ns, missing=lambda row: row.reason or "no such switch")

    fields: tuple[Field[CellRun], ...] = (
        numeric("switch at frame block", lambda row: row.planned.value),
        of("block before", lambda switch: switch.before_ns),
        of("first block after", lambda switch: switch.after_ns),
        of("extra", lambda switch: switch.extra_ns),
    )
    note = "Medians over clips; extra is the median of the differences within a clip."
    return table_of("When the prompt switches.", fields, cells, notes=(note,))


def without_table(cells: Sequence[CellRun], plan: Plan) -> Table:
    """Build the table of optimisations left out one at a time: time without / with, and the ledger line that moved most."""
    fields: tuple[Field[CellRun], ...] = (
        Field("optimisation", lambda row: row.planned.factor),
        numeric("time without / with", lambda row: _worth(row)[0]),
        Field("verdict", lambda row: _worth(row)[1]),
        Field("ledger line it moved", lambda row: Missing(line, "-") if isinstance(line := row.moved, str) else line.name),
        Field("its level", lambda row: "" if isinstance(line := row.moved, str) else line.level.value),
        time("moved per clip", _moved_ns),
    )
    rows = sorted(cells, key=lambda cell: -(_inverse(cell) or 0))
    idle = tuple(f"{name} is asked for and does nothing here: {why}." for name, why in plan.idle.items())
    note = (
        "Each is off alone, beside the base in one run. A ratio above 1: the stream is slower without it. The line of the ledger "
        "that grew most without it (or, if it costs, shrank most), from traced frame blocks."
    )
    return table_of("Leave one out.", fields, rows, notes=(note, *idle))


def _moved_ns(cell: CellRun) -> float | None:
    """Return the time by which the ledger line of a cell moved in a clip, ns; None if no line moved."""
    line = cell.moved
    if isinstance(line, str) or cell.finding is None or isinstance(cell.finding.ledger, str):
        return None
    return -line.saved_ns / cell.finding.ledger.num_units


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
    fields: tuple[Field[Advice], ...] = (
        Field("setting", lambda each: f"{each.point.label} (sweet spot)" if each.sweet else each.point.label),
        numeric("speedup", lambda each: Number(each.point.speed, 3, "x")),
        numeric(f"{METRIC} (dB)", lambda each: point_score(each.point, "its pictures are the reference's")),
        Field("use it", lambda each: each.when),
    )
    note = f"Speedup over the base, end to end; {METRIC} against the preset quality with the same noise."
    rows = rows_of(fields, advice, strong=lambda each: each.sweet)
    return Table("The front of speed and quality.", heads(fields), rows, (note,))


def point_score(point: Point, equal: str) -> Cell:
    """Return the cell of a point's score; where it is infinite, `equal` says why."""
    return Missing(equal, "equal") if point.score == math.inf else Number(point.score, 2)


def plan_table(cells: Sequence[CellRun]) -> Table:
    """Build the table of changes ranked by measured gain per declared effort; unproven or unjudged ones come last, unranked."""
    ranked: list[tuple[CellRun, float, int]] = []
    rest: list[_Planned] = []
    for cell in cells:
        gain, cost = gain_of(cell), effort(cell.planned.changes)
        proven = cell.entry is not None and not isinstance(cell.entry.e2e, str) and cell.entry.e2e.verdict in ("faster", "slower")
        known = cell.entry is not None and _is_judged(cell.entry)
        if proven and known and gain is not None and gain > 0 and cost:
            ranked.append((cell, gain, cost))
        else:
            rest.append((None, cell, gain, cost))
    ranked.sort(key=lambda row: -row[1] / row[2])
    fields: tuple[Field[_Planned], ...] = (
        count("rank", lambda row: row[0], missing=lambda row: _unranked(*row[1:])),
        Field("change", lambda row: _change(row[1])),
        Field("state", lambda row: "in the base" if _left_out(row[1]) else "would change the base"),
        numeric("gain", lambda row: row[2], show=Share, missing=lambda row: row[1].reason),
        numeric(
            "effort", lambda row: Missing("not in the table of efforts", "not declared") if row[3] is None else Count(row[3])
        ),
        numeric("gain / effort", lambda row: Number(100 * row[2] / row[3], 2, "%") if row[0] and row[2] and row[3] else None),
        numeric(f"{METRIC} (dB)", lambda row: Missing("that of the base", "-") if _left_out(row[1]) else _score(row[1].entry)),
    )
    rows: list[_Planned] = [(number, *row) for number, row in enumerate(ranked, start=1)]
    note = f"{METRIC} against the preset quality with the same noise, as in the tables of the factors."
    return table_of("Ranked by measured gain per effort.", fields, [*rows, *rest], notes=(note,))


def _left_out(cell: CellRun) -> bool:
    return cell.planned.kind == "leave-one-out"


def _change(cell: CellRun) -> str:
    own = cell.planned
    return own.factor if _left_out(cell) else ", ".join(f"{name}={value}" for name, value in own.changes.items())


def gain_of(cell: CellRun) -> float | None:
    """Return the share of end-to-end time saved by a change, or by the optimisation that the cell leaves out."""
    if cell.entry is None or cell.entry.ratio is None or cell.entry.is_reference:
        return None
    return 1 - cell.entry.ratio if _left_out(cell) else 1 - 1 / cell.entry.ratio


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
