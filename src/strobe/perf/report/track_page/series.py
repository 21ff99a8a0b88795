"""One figure over the commits: a picture and the table that says the same."""

from __future__ import annotations

import itertools

from strobe.perf.analysis.history.found import Found
from strobe.perf.analysis.history.series import Point
from strobe.perf.records.history import Failure, Revision
from strobe.perf.report.blocks.fields import Field, count, table_of
from strobe.perf.report.model import Axis, Block, Cell, Code, Figure, Level, Mark, Plane, Section, Table, Text
from strobe.perf.report.track_page.cells import SHORT, in_unit, interval_cell, percent_text, step_cell, time_unit, value_cell

_AT = {
    "checkout": "could not be checked out",
    "install": "could not be installed",
    "run": "did not run",
    "figure": "gave no such figure",
}
Place = tuple[int, Revision, Point | Failure]


def places_of(found: Found) -> list[Place]:
    """Every commit that was measured or failed, with its number on the axis."""
    series = found.series
    points: dict[str, Point | Failure] = {each.revision.commit: each for each in series.points}
    there = [(each, points.get(each.commit) or series.failed.get(each.commit)) for each in series.revisions]
    kept = [(revision, what) for revision, what in there if what is not None]
    return [(number, revision, what) for number, (revision, what) in enumerate(kept)]


def series_section(found: Found, number: int) -> Section:
    """Picture and table of one figure on one machine."""
    figure, places = found.series.figure, places_of(found)
    better = "higher is better" if figure.higher else "lower is better"
    lead = (
        f"Medians of each commit with their 95 % intervals; {better}. What the machine was faster or slower in a "
        "round or session is taken out."
    )
    alt = "Values over commits with their intervals, levels between steps as lines; the table says the same."
    title = f"{figure.name} over {len(found.series.points)} commits, oldest first. Hollow: the commit has no value."
    table = series_table(found)
    shown: Block = Figure(title, alt, _plane(found, places), table, table_open=True) if found.series.points else table
    name = figure.name if found.current else f"{figure.name} on {found.series.host.cpu_name}"
    return Section(f"figure-{number}", name, lead, (shown,), folded=not found.current)


def _plane(found: Found, places: list[Place]) -> Plane:
    series, figure = found.series, found.series.figure
    at = {revision.commit: place for place, revision, _ in places}
    own = [at[each.revision.commit] for each in series.points]
    values = [in_unit(figure, each.value) for each in series.points]
    labels = {step.after: f"{series.points[step.after].revision.commit[:7]} {percent_text(step.ratio)}" for step in found.steps}
    marks = [
        Mark(
            place,
            value,
            0,
            y_low=None if each.interval is None else in_unit(figure, each.interval.low),
            y_high=None if each.interval is None else in_unit(figure, each.interval.high),
        )
        for each, place, value in zip(series.points, own, values, strict=True)
    ]
    bounds = [0, *(step.after for step in found.steps), len(values)]
    levels = []
    for first, stop in itertools.pairwise(bounds):
        middle = sum(values[first:stop]) / (stop - first)
        levels.append(Level(middle, 1, labels.get(first, ""), own[first] - 0.5, own[stop - 1] + 0.5))
    for place, _, what in places:
        if isinstance(what, Failure):
            near = min(range(len(own)), key=lambda number: abs(own[number] - place))
            marks.append(Mark(place, values[near], 2, hollow=True))
    unit = "MiB" if figure.unit == "bytes" else ""
    axis = Axis(f"{figure.name}{f', {unit}' if unit else ''}", "ms" if figure.unit == "ns" else "")
    names = ("measured", "level between steps", *(("no value",) if series.failed else ()))
    return Plane(Axis("commit, by its number in the table", whole=True), axis, tuple(marks), tuple(levels), names)


def series_table(found: Found) -> Table:
    """Every commit that was measured or failed: value, interval, samples, and what changed."""
    series, figure, places = found.series, found.series.figure, places_of(found)
    steps = {series.points[step.after].revision.commit: step for step in found.steps}

    def value(place: Place) -> Cell:
        what = place[2]
        return value_cell(figure, what.value) if isinstance(what, Point) else Text("-", "muted")

    def step(place: Place) -> Cell:
        what, found_step = place[2], steps.get(place[1].commit)
        if isinstance(what, Failure):
            return Text(_AT[what.at], "bad", what.reason)
        return Text("") if found_step is None else step_cell(figure, found_step)

    fields: tuple[Field[Place], ...] = (
        count("#", lambda place: place[0]),
        Field("commit", lambda place: Code(place[1].commit[:SHORT])),
        Field("date", lambda place: place[1].date[:10]),
        Field("subject", lambda place: place[1].subject),
        Field(figure.name, value, unit=time_unit(figure), numeric=True),
        Field("95 % interval", lambda place: interval_cell(figure, place[2].interval) if isinstance(place[2], Point) else "-"),
        count("samples", lambda place: place[2].samples if isinstance(place[2], Point) else 0),
        Field("change", step),
    )
    between = len(series.revisions) - len(places)
    notes = [f"{between} commits between these were not measured."] if between > 0 else []
    if any(each.interval is None for each in series.points):
        notes.append("Fewer than 6 samples have no 95 % interval.")
    if figure.unit == "ns":
        notes.append("Intervals are in ms.")
    return table_of(f"{figure.name} of each commit.", fields, places, notes=notes)
