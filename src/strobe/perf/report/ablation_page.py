"""The page of an ablation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias

from strobe.core.errors import DataError
from strobe.perf.analysis.ledger.account import NAMELESS, AccountLevel, Ledger, LedgerLine, part_of
from strobe.perf.analysis.runs.latency import Summary, SwitchCost
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.measure.stats import Interval, Verdict
from strobe.perf.records.record import CELLS, Plan, PlannedCell, read_plan
from strobe.perf.records.store import records_in
from strobe.perf.report.blocks.answer import change_sections
from strobe.perf.report.blocks.fields import Field, count, heads, numeric, page, ratio_cell, rows_of, table_of, time, verdict_cell
from strobe.perf.report.blocks.front import BEST, FrontPoint, front
from strobe.perf.report.blocks.optimisation_log import METRIC, LogEntry, decide, log_banners, log_sections, read_entries, speedups
from strobe.perf.report.findings import Finding, find
from strobe.perf.report.model import (
    Axis,
    Block,
    Cell,
    Count,
    Fact,
    Figure,
    Missing,
    Notes,
    Number,
    Paragraph,
    Plane,
    PlotPoint,
    Ratio,
    Report,
    Section,
    Share,
    Table,
    Text,
    Tone,
    bytes_cell,
)
from strobe.perf.report.study import load_study

# Cells of an ablation, read from their run folders for the page.


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationCellRun:
    """One cell of an ablation, with its base, its candidate and their comparison.

    Args:
        base: the base in it; None if nothing of it ran.
        entry: what was changed: the candidate, or the base in another clip; None likewise.
        finding: candidate against base with its ledger; None without a candidate.
        reason: why it has no numbers; empty if it has.
    """

    planned: PlannedCell
    base: LogEntry | None
    entry: LogEntry | None
    finding: Finding | None
    reason: str

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the end-to-end speedup; None without one."""
        return None if self.entry is None or isinstance(self.entry.e2e, str) else self.entry.e2e.interval

    @property
    def moved(self) -> LedgerLine | str:
        """Ledger line that changed most in the direction of the whole; a text says why there is none."""
        if self.finding is None:
            return self.reason or "nothing is compared"
        if isinstance(self.finding.ledger, str):
            return self.finding.ledger
        return _moved(self.finding.ledger)


def _moved(ledger: Ledger) -> LedgerLine | str:
    named = [line for line in ledger.lines if part_of(Label(line.path, line.activity)) not in NAMELESS]
    inside = [line for line in named if line.level != AccountLevel.E2E]
    same = [line for line in inside if line.saved_ns * ledger.saved_ns > 0]
    return max(same, key=lambda line: abs(line.saved_ns)) if same else "no line of the traced frame blocks moved with the whole"


def read_cells(folder: Path, plan: Plan) -> tuple[AblationCellRun, ...]:
    """Read every cell of a plan that was started or refused.

    Raises:
        DataError: none was.
    """
    begun = (each for each in plan.cells if each.refused or records_in(folder / CELLS / each.name))
    found = tuple(_cell(folder, planned) for planned in begun)
    if not any(cell.entry is not None and not cell.reason for cell in found):
        reasons = "; ".join(f"{cell.planned.name}: {cell.reason}" for cell in found if cell.reason)
        raise DataError(
            f"nothing was measured at {folder}{f': {reasons}' if reasons else ''}; run the same `strobe compare` again"
        )
    return found


def _cell(folder: Path, planned: PlannedCell) -> AblationCellRun:
    if planned.refused:
        return AblationCellRun(planned=planned, base=None, entry=None, finding=None, reason=planned.refused)
    place = folder / CELLS / planned.name
    try:
        entries = read_entries([place])
        findings = find(load_study([place], folder))
    except DataError as error:
        return AblationCellRun(planned=planned, base=None, entry=None, finding=None, reason=str(error))
    base = next((entry for entry in entries if entry.is_reference), None)
    own = next((entry for entry in entries if not entry.is_reference), base)
    reason = "" if own is None else own.error or (own.found if isinstance(own.found, str) else "")
    return AblationCellRun(planned=planned, base=base, entry=own, finding=findings[0] if findings else None, reason=reason)


def measured(cells: Sequence[AblationCellRun]) -> tuple[AblationCellRun, ...]:
    """Return the cells whose candidate has a speedup."""
    return tuple(cell for cell in cells if cell.entry is not None and not isinstance(cell.entry.e2e, str))


# Table of the declared effort of building each optimisation; it is not measured.

SCALE: Final = (
    "1: a value in a configuration; 2: one function; 3: one module and its tests; 5: several modules; 8: a kernel, a compiler's "
    "path or a new number format."
)

EFFORT: Final[dict[str, int]] = {
    "window": 1, "sink": 1, "steps": 1, "positions": 1, "shift": 1, "keep_sink": 1, "first_block": 1, "dtype": 1, "preset": 1,
    "batch": 1, "switch_at": 1,
    "block_decode": 2, "commit_kv_only": 2, "fused_qkv": 2, "text_once": 2, "rope_table": 2, "modulation_table": 2,
    "merge_lora": 3, "syncs": 3, "late_frames": 3,
    "ring_cache": 5, "overlap_decode": 5,
    "compile": 8, "sparsity": 8,
}  # fmt: skip
"""Declared effort by factor, on the scale above; an undeclared factor is not ranked."""


def effort(changes: dict[str, str]) -> int | None:
    """Return the sum of the declared efforts of the changes; None if one of them is not declared."""
    known = [EFFORT.get(name) for name in changes]
    return None if not known or None in known else sum(each for each in known if each is not None)


# Pareto front of speed and quality, its sweet spot, and the use of each point.

RULE: Final = (
    "A difference in speed that its interval does not prove counts as none.",
    "On the front is what nothing measured beats in speed without losing quality, or in quality without losing speed.",
    f"The sweet spot is the point of the front nearest to the corner that is fastest and best: log of the speedup against dB, "
    f"each scaled from the front's worst (0) to its best (1), dB counted up to {BEST:g}. Of two equally near the better one.",
)


Advice: TypeAlias = tuple[FrontPoint, bool, str]
"""A point of the Pareto front, whether it is the sweet spot, and the situation to use it in."""


def advise(points: Sequence[FrontPoint]) -> tuple[Advice, ...]:
    """Return the Pareto front with its sweet spot and the use of each point; empty without points."""
    found = front(points)
    if not found:
        return ()
    speeds, scores = [math.log(point.speed) for point in found], [point.quality for point in found]
    far = [math.hypot(_gap(speed, speeds), _gap(score, scores)) for speed, score in zip(speeds, scores, strict=True)]
    sweet = min(range(len(found)), key=lambda index: (round(far[index], 9), -scores[index]))
    return tuple((point, index == sweet, _when(index, sweet, found)) for index, point in enumerate(found))


def _gap(value: float, values: Sequence[float]) -> float:
    """Return the distance of a value from the largest one, as a share of the range of all values."""
    width = max(values) - min(values)
    return (max(values) - value) / width if width else 0.0


def _when(index: int, sweet: int, found: Sequence[FrontPoint]) -> str:
    point, last = found[index], len(found) - 1
    if not last:
        return "always: nothing measured is proven faster, and nothing is better"
    lost = found[-1].quality - point.quality
    words = "by default" if index == sweet else ""
    if index == 0:
        words = f"{words + ', and ' if words else ''}where speed counts above all: {lost:.1f} dB below the best of the front"
    elif index == last:
        slower = 100 * (found[0].speed / point.speed - 1)
        words = f"{words + ', and ' if words else ''}where no loss is allowed: the fastest of the front is {slower:.0f} % faster"
    elif index < sweet:
        words = f"where the sweet spot is too slow: {point.speed / found[sweet].speed:.2f}x of its speed"
    elif index > sweet:
        words = f"where the sweet spot loses too much: {point.quality - found[sweet].quality:.1f} dB above it"
    return words


# Tables of an ablation's page.

_Valued: TypeAlias = tuple[str, LogEntry | None, LogEntry | None, tuple[Cell, Cell], str]
"""A value, its own entry, the base's in the same run, the cells of speedup and verdict, and why there are no numbers."""
_Batch: TypeAlias = tuple[int, LogEntry | None, str]
"""A batch, its entry, and why there are no numbers."""
_Planned: TypeAlias = tuple[int | None, AblationCellRun, float | None, int | None]
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


def _ratio(cell: AblationCellRun) -> tuple[Cell, Cell]:
    if cell.entry is None or isinstance(cell.entry.e2e, str):
        return Missing(cell.reason, "-"), Text("not measured", "muted")
    e2e = cell.entry.e2e
    return ratio_cell(e2e.ratio, e2e.interval), verdict_cell(e2e.verdict)


def factor_table(title: str, cells: Sequence[AblationCellRun], plan: Plan) -> Table:
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


def batch_table(cells: Sequence[AblationCellRun], base: LogEntry | None) -> Table:
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


def switch_table(cells: Sequence[AblationCellRun]) -> Table:
    """Build the table of prompt switches: times of the frame block before and of the first one after each switch."""

    def of(head: str, get: Callable[[SwitchCost], float]) -> Field[AblationCellRun]:
        def ns(row: AblationCellRun) -> float | None:
            found = None if row.entry is None else row.entry.latencies
            return get(found.switches[0]) if found and found.switches else None

        return time(head, ns, missing=lambda row: row.reason or "no such switch")

    fields: tuple[Field[AblationCellRun], ...] = (
        numeric("switch at frame block", lambda row: row.planned.value),
        of("block before", lambda switch: switch.before_ns),
        of("first block after", lambda switch: switch.after_ns),
        of("extra", lambda switch: switch.extra_ns),
    )
    note = "Medians over clips; extra is the median of the differences within a clip."
    return table_of("When the prompt switches.", fields, cells, notes=(note,))


def without_table(cells: Sequence[AblationCellRun], plan: Plan) -> Table:
    """Build the table of optimisations left out one at a time: time without / with, and the ledger line that moved most."""
    fields: tuple[Field[AblationCellRun], ...] = (
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


def _moved_ns(cell: AblationCellRun) -> float | None:
    """Return the time by which the ledger line of a cell moved in a clip, ns; None if no line moved."""
    line = cell.moved
    if isinstance(line, str) or cell.finding is None or isinstance(cell.finding.ledger, str):
        return None
    return -line.saved_ns / cell.finding.ledger.num_units


def _inverse(cell: AblationCellRun) -> float | None:
    """Return time without the optimisation / time with it; None if it was not measured."""
    return None if cell.entry is None or cell.entry.ratio is None else 1 / cell.entry.ratio


_WORTH: Final[dict[Verdict, tuple[str, Tone]]] = {"faster": ("costs time", "bad"), "slower": ("saves time", "good")}


def _worth(cell: AblationCellRun) -> tuple[Cell, Cell]:
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
        Field("setting", lambda each: f"{each[0].label} (sweet spot)" if each[1] else each[0].label),
        numeric("speedup", lambda each: Number(each[0].speed, 3, "x")),
        numeric(f"{METRIC} (dB)", lambda each: point_score(each[0], "its pictures are the reference's")),
        Field("use it", lambda each: each[2]),
    )
    note = f"Speedup over the base, end to end; {METRIC} against the preset quality with the same noise."
    rows = rows_of(fields, advice, strong=lambda each: each[1])
    return Table("The front of speed and quality.", heads(fields), rows, (note,))


def point_score(point: FrontPoint, equal: str) -> Cell:
    """Return the cell of a point's score; where it is infinite, `equal` says why."""
    return Missing(equal, "equal") if point.score == math.inf else Number(point.score, 2)


def plan_table(cells: Sequence[AblationCellRun]) -> Table:
    """Build the table of changes ranked by measured gain per declared effort; unproven or unjudged ones come last, unranked."""
    ranked: list[tuple[AblationCellRun, float, int]] = []
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


def _left_out(cell: AblationCellRun) -> bool:
    return cell.planned.kind == "leave-one-out"


def _change(cell: AblationCellRun) -> str:
    own = cell.planned
    return own.factor if _left_out(cell) else ", ".join(f"{name}={value}" for name, value in own.changes.items())


def gain_of(cell: AblationCellRun) -> float | None:
    """Return the share of end-to-end time saved by a change, or by the optimisation that the cell leaves out."""
    if cell.entry is None or cell.entry.ratio is None or cell.entry.is_reference:
        return None
    return 1 - cell.entry.ratio if _left_out(cell) else 1 - 1 / cell.entry.ratio


def _unranked(cell: AblationCellRun, gain: float | None, cost: int | None) -> str:
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


# Builder of an ablation's page from its folder of cells.


def ablation_report(folder: Path) -> Report:
    """Build the page of an ablation.

    Raises:
        DataError: the folder holds no plan, or nothing of it was measured.
    """
    plan = read_plan(folder)
    cells = read_cells(folder, plan)
    places = [cell.entry.run.folder for cell in cells if cell.entry is not None]
    entries = read_entries(places)
    decided = [(entry, *decide(entry, entries)) for entry in entries]
    left = len(plan.cells) - len(cells)
    first, others = change_sections([cell.finding for cell in cells if cell.finding is not None])
    shown = (_front(cells, plan), *_factors(cells, plan), _without(cells, plan), _plan(cells), *log_sections(decided))
    return page(
        speedups=speedups(entries),
        title=f"Ablation of {plan.base}",
        subtitle=f"{len(cells)} cells on {entries[0].run.header.machine.device_name}, {plan.request.get('model', '')}",
        facts=(
            Fact("base", Text(plan.base)),
            Fact("cells", Count(len(cells))),
            Fact("without numbers", Count(sum(bool(cell.reason) for cell in cells))),
            Fact("not yet measured", Count(left)),
        ),
        banners=log_banners(entries, folder),
        sections=(first, *shown, others),
    )


def _points(cells: Sequence[AblationCellRun], plan: Plan) -> tuple[FrontPoint, ...]:
    """Return the base and every setting whose speed and quality were measured in the same clip as the base's own."""
    found: dict[str, FrontPoint] = {}
    for cell in measured(cells):
        entry, base = cell.entry, cell.base
        if cell.planned.kind == "leave-one-out" or {"batch", "switch_at"} & set(cell.planned.changes) or entry is None:
            continue
        if base is not None and base.score is not None:
            found.setdefault(plan.base, FrontPoint(label=plan.base, speed=1.0, score=base.score))
        if entry.speed is not None and entry.score is not None:
            label = ", ".join(f"{name}={value}" for name, value in cell.planned.changes.items())
            found[label] = FrontPoint(label=label, speed=entry.speed, score=entry.score, measured=_measured(entry))
    return tuple(found.values())


def _measured(entry: LogEntry) -> Ratio:
    """Return the measured end-to-end speedup with its interval, even if it is not proven."""
    if isinstance(entry.e2e, str):
        return Ratio(entry.ratio or 1.0)
    interval = entry.e2e.interval
    return Ratio(entry.e2e.ratio) if interval is None else Ratio(entry.e2e.ratio, interval.low, interval.high)


def _mark(point: FrontPoint, number: int) -> PlotPoint:
    """Return the plot mark of a point; a point whose speedup is not proven is hollow and has its interval."""
    ratio, equal = point.measured, point.score == float("inf")
    unproven = point.speed != ratio.value
    low, high = (ratio.low, ratio.high) if unproven else (None, None)
    return PlotPoint(
        ratio.value, 0.0 if equal else point.score, number, point.label, hollow=unproven, low=low, high=high, above=equal
    )


def _front(cells: Sequence[AblationCellRun], plan: Plan) -> Section:
    points = _points(cells, plan)
    advice = advise(points)
    if not advice or len(points) < 2:
        text = "No recommendation: quality was measured of fewer than two settings of one clip; there is nothing to weigh."
        return Section("sweet-spot", "Sweet spot", "", (Paragraph(text),))
    blocks: list[Block] = [advice_table(advice)]
    if any(point.score != float("inf") for point in points):
        marks = tuple(_mark(point, number) for number, point in enumerate(points))
        fields: tuple[Field[FrontPoint], ...] = (
            Field("setting", lambda point: point.label),
            numeric("measured", lambda point: point.measured),
            numeric("counts as", lambda point: Number(point.speed, 3, "x")),
            numeric(f"{METRIC} (dB)", lambda point: point_score(point, "the frames equal the reference's")),
        )
        plane = Plane(Axis("speedup over the base"), Axis(METRIC, "dB"), marks)
        title = (
            f"{METRIC} against the preset quality, over speedup. Faster is right, nearer to the reference is up. Hollow, with "
            "its interval: a difference that is not proven. An arrow at the upper edge: the frames equal the reference's."
        )
        blocks.append(
            Figure(title, "One point per setting; the table says the same.", plane, table_of("The points.", fields, points))
        )
    notes = (*RULE, "Quality is measured on this model and clip alone; it does not carry over to another.")
    return Section("sweet-spot", "Sweet spot", "", (*blocks, Notes(notes)))


def _factors(cells: Sequence[AblationCellRun], plan: Plan) -> Iterator[Section]:
    shown = sorted((cell for cell in cells if cell.planned.kind in ("setting", "product")), key=_order(plan))
    for factor, group in groupby(shown, key=lambda cell: cell.planned.factor):
        own = tuple(group)
        yield Section(f"factor-{factor.replace(', ', '-')}", f"Factor: {factor}", "", (factor_table(factor, own, plan),))
    base = next((cell.base for cell in cells if cell.planned.kind != "workload" and cell.base is not None), None)
    batches = [cell for cell in cells if cell.planned.kind == "workload" and cell.planned.factor == "batch"]
    if batches:
        yield Section("factor-batch", "Factor: batch", "", (batch_table(batches, base),))
    switches = [cell for cell in cells if cell.planned.kind == "workload" and cell.planned.factor == "switch_at"]
    if switches:
        yield Section("factor-switch", "Factor: switch_at", "", (switch_table(switches),))


def _order(plan: Plan) -> Callable[[AblationCellRun], int]:
    names = list(dict.fromkeys(cell.factor for cell in plan.cells))
    return lambda cell: names.index(cell.planned.factor)


def _without(cells: Sequence[AblationCellRun], plan: Plan) -> Section | None:
    own = [cell for cell in cells if cell.planned.kind == "leave-one-out"]
    return Section("leave-one-out", "Leave one out", "", (without_table(own, plan),)) if own else None


def _plan(cells: Sequence[AblationCellRun]) -> Section | None:
    own = [cell for cell in cells if cell.planned.kind in ("setting", "leave-one-out")]
    if not own:
        return None
    notes = (
        "Gain: share of the time end to end that the change saves; of an optimisation that the base has, what it saves now. "
        "Ranked where the interval proves it, and where the pictures are the base's own or were judged.",
        f"Effort is declared, not measured. {SCALE}",
    )
    return Section("plan", "Optimisation plan", "", (plan_table(own), Notes(notes)))
