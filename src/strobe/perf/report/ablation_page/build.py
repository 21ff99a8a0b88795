"""Builder of an ablation's page from its folder of cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from strobe.perf.records.plan import Plan, read_plan
from strobe.perf.report.ablation_page import tables
from strobe.perf.report.ablation_page.cells import CellRun, measured, read_cells
from strobe.perf.report.ablation_page.effort import SCALE
from strobe.perf.report.ablation_page.front import RULE, Point, advise
from strobe.perf.report.blocks.answer import change_sections
from strobe.perf.report.blocks.fields import Field, numeric, table_of
from strobe.perf.report.blocks.log.decide import decide
from strobe.perf.report.blocks.log.entries import METRIC, LogEntry, read_entries
from strobe.perf.report.blocks.log.sections import log_banners, log_sections, speedups
from strobe.perf.report.blocks.page import page
from strobe.perf.report.model import (
    Axis,
    Block,
    Count,
    Fact,
    Figure,
    Mark,
    Notes,
    Number,
    Paragraph,
    Plane,
    Ratio,
    Report,
    Section,
    Text,
)


def ablation_report(folder: Path) -> Report:
    """Build the page of an ablation.

    Raises:
        DataError: the folder holds no plan, or nothing of it was measured.
    """
    plan = read_plan(folder)
    cells = read_cells(folder, plan)
    places = [cell.entry.run.folder for cell in cells if cell.entry is not None]
    entries = read_entries(places)
    decided = [(entry, decide(entry, entries)) for entry in entries]
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


def _points(cells: Sequence[CellRun], plan: Plan) -> tuple[Point, ...]:
    """Return the base and every setting whose speed and quality were measured in the same clip as the base's own."""
    found: dict[str, Point] = {}
    for cell in measured(cells):
        entry, base = cell.entry, cell.base
        if cell.planned.kind == "leave-one-out" or {"batch", "switch_at"} & set(cell.planned.changes) or entry is None:
            continue
        if base is not None and base.score is not None:
            found.setdefault(plan.base, Point(label=plan.base, speed=1.0, score=base.score))
        if entry.speed is not None and entry.score is not None:
            label = ", ".join(f"{name}={value}" for name, value in cell.planned.changes.items())
            found[label] = Point(label=label, speed=entry.speed, score=entry.score, measured=_measured(entry))
    return tuple(found.values())


def _measured(entry: LogEntry) -> Ratio:
    """Return the measured end-to-end speedup with its interval, even if it is not proven."""
    if isinstance(entry.e2e, str):
        return Ratio(entry.ratio or 1.0)
    interval = entry.e2e.interval
    return Ratio(entry.e2e.ratio) if interval is None else Ratio(entry.e2e.ratio, interval.low, interval.high)


def _mark(point: Point, number: int) -> Mark:
    """Return the plot mark of a point; a point whose speedup is not proven is hollow and has its interval."""
    ratio, equal = point.measured, point.score == float("inf")
    unproven = point.speed != ratio.value
    low, high = (ratio.low, ratio.high) if unproven else (None, None)
    return Mark(ratio.value, 0.0 if equal else point.score, number, point.label, hollow=unproven, low=low, high=high, above=equal)


def _front(cells: Sequence[CellRun], plan: Plan) -> Section:
    points = _points(cells, plan)
    advice = advise(points)
    if not advice or len(points) < 2:
        text = "No recommendation: quality was measured of fewer than two settings of one clip; there is nothing to weigh."
        return Section("sweet-spot", "Sweet spot", "", (Paragraph(text),))
    blocks: list[Block] = [tables.advice_table(advice)]
    if any(point.score != float("inf") for point in points):
        marks = tuple(_mark(point, number) for number, point in enumerate(points))
        fields: tuple[Field[Point], ...] = (
            Field("setting", lambda point: point.label),
            numeric("measured", lambda point: point.measured),
            numeric("counts as", lambda point: Number(point.speed, 3, "x")),
            numeric(f"{METRIC} (dB)", lambda point: tables.point_score(point, "the frames equal the reference's")),
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


def _factors(cells: Sequence[CellRun], plan: Plan) -> Iterator[Section]:
    shown = sorted((cell for cell in cells if cell.planned.kind in ("setting", "product")), key=_order(plan))
    for factor, group in groupby(shown, key=lambda cell: cell.planned.factor):
        own = tuple(group)
        yield Section(f"factor-{factor.replace(', ', '-')}", f"Factor: {factor}", "", (tables.factor_table(factor, own, plan),))
    base = next((cell.base for cell in cells if cell.planned.kind != "workload" and cell.base is not None), None)
    batches = [cell for cell in cells if cell.planned.kind == "workload" and cell.planned.factor == "batch"]
    if batches:
        yield Section("factor-batch", "Factor: batch", "", (tables.batch_table(batches, base),))
    switches = [cell for cell in cells if cell.planned.kind == "workload" and cell.planned.factor == "switch_at"]
    if switches:
        yield Section("factor-switch", "Factor: switch_at", "", (tables.switch_table(switches),))


def _order(plan: Plan) -> Callable[[CellRun], int]:
    names = list(dict.fromkeys(cell.factor for cell in plan.cells))
    return lambda cell: names.index(cell.planned.factor)


def _without(cells: Sequence[CellRun], plan: Plan) -> Section | None:
    own = [cell for cell in cells if cell.planned.kind == "leave-one-out"]
    return Section("leave-one-out", "Leave one out", "", (tables.without_table(own, plan),)) if own else None


def _plan(cells: Sequence[CellRun]) -> Section | None:
    own = [cell for cell in cells if cell.planned.kind in ("setting", "leave-one-out")]
    if not own:
        return None
    notes = (
        "Gain: share of the time end to end that the change saves; of an optimisation that the base has, what it saves now. "
        "Ranked where the interval proves it, and where the pictures are the base's own or were judged.",
        f"Effort is declared, not measured. {SCALE}",
    )
    return Section("plan", "Optimisation plan", "", (tables.plan_table(own), Notes(notes)))
