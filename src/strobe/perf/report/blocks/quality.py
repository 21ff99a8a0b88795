"""Quality beside latency: every number names its reference, and every missing one its reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from strobe.perf.analysis.runs.latency import Latencies
from strobe.perf.records.record import Quality
from strobe.perf.report.blocks.fields import Field, beside, numeric, table_of
from strobe.perf.report.model import Axis, Block, Cell, Figure, Mark, Missing, Number, Paragraph, Plane, Section, Table
from strobe.perf.report.study import RunStudy, Subject

_PICTURES: Final = 2
_FIRST: Final = ("prompt_accuracy", "psnr")
_SAME: Final = 0.005
"""Relative difference below which values count as equal in a picture."""
_NO_REFERENCE: Final = "no reference needed"


def quality_section(study: RunStudy, found: Mapping[str, Latencies | str]) -> Section:
    """Build the section with the table of all metrics, and a plot of those that at least two variants have."""
    if not any(run.quality for run in study.runs):
        return Section(
            "quality", "Quality against latency", "", (Paragraph("Not measured: these records hold no quality numbers."),)
        )
    values = {
        (subject.label, line.metric): line
        for subject in study.subjects
        for line in subject.run.quality
        if line.variant == subject.name
    }
    metrics = list(dict.fromkeys(metric for _, metric in values))
    labels = [subject.label for subject in study.subjects]
    blocks: list[Block] = [quality_table(labels, values, "Quality of each variant.")]
    blocks += [_picture(study, metric, values, found) for metric in _pictured(study, metrics, values, found)]
    lead = (
        "Fidelity numbers compare pixels with a named reference made from the same noise. They say how far a variant moved, not "
        "whether it looks worse."
    )
    return Section("quality", "Quality against latency", lead, tuple(blocks))


def _digits(values: list[float]) -> int:
    """Return the decimals that show a row's largest value with four significant digits: at least two, at most six."""
    largest = max((abs(value) for value in values), default=1.0)
    return min(6, max(2, 3 - math.floor(math.log10(largest)))) if largest else 2


def _cell(line: Quality | None, digits: int) -> Cell:
    if line is None:
        return Missing("not in the records")
    against = f"against {line.reference}" if line.reference else _NO_REFERENCE
    if line.value is None:
        return Missing(f"{line.note or 'no reason given'}; {against}", "no value" if line.n else "not measured")
    return Number(line.value, digits, line.unit, f"{against}, n = {line.n}{'; ' + line.note if line.note else ''}")


def quality_table(labels: Sequence[str], values: Mapping[tuple[str, str], Quality], caption: str) -> Table:
    """Build the table with one row per metric and one column per variant.

    Args:
        labels: of the variants, in order.
        values: by label and metric.
    """
    rows: list[Sequence[object]] = []
    notes: list[str] = []
    for metric in dict.fromkeys(metric for _, metric in values):
        lines = [values.get((label, metric)) for label in labels]
        known = [line for line in lines if line is not None]
        digits = _digits([line.value for line in known if line.value is not None])
        rows.append((metric, *(_cell(line, digits) for line in lines), known[0].better))
        notes += [f"{metric}: {definition}" for definition in dict.fromkeys(line.definition for line in known)]
    name, *columns = beside("metric", labels, numeric=True)
    return table_of(caption, (name, Field("better", lambda row: row[-1]), *columns), rows, notes=notes)


def _block_ns(found: Mapping[str, Latencies | str], subject: Subject) -> float | None:
    own = found[subject.label]
    return None if isinstance(own, str) or own.block is None else own.block.mean_ns


def _equal(line: Quality) -> bool:
    """Return whether the pictures equal the reference's, so that the metric has no finite value."""
    return line.value is None and line.n > 0 and bool(line.reference)


def _points(
    study: RunStudy, metric: str, values: Mapping[tuple[str, str], Quality], found: Mapping[str, Latencies | str]
) -> list[tuple[Subject, float, float | None]]:
    """Return subject, time of a steady frame block (ns), and value; None for pictures that equal the reference's."""
    points = []
    for subject in study.subjects:
        line, latency = values.get((subject.label, metric)), _block_ns(found, subject)
        if line is not None and latency is not None and (line.value is not None or _equal(line)):
            points.append((subject, latency, line.value))
    return points


def _pictured(
    study: RunStudy, metrics: list[str], values: Mapping[tuple[str, str], Quality], found: Mapping[str, Latencies | str]
) -> list[str]:
    ranked = sorted(metrics, key=lambda metric: _FIRST.index(metric) if metric in _FIRST else len(_FIRST))
    return [metric for metric in ranked if _differ(_points(study, metric, values, found))][:_PICTURES]


def _differ(points: list[tuple[Subject, float, float | None]]) -> bool:
    """Return whether the points differ in quality: if all have the same value, a plot would add nothing to the table."""
    finite = [value for _, _, value in points if value is not None]
    return bool(finite) and (len(finite) < len(points) or max(finite) - min(finite) > _SAME * max(map(abs, finite)))


def _picture(
    study: RunStudy, metric: str, values: Mapping[tuple[str, str], Quality], found: Mapping[str, Latencies | str]
) -> Figure:
    points = _points(study, metric, values, found)
    lines = [values[subject.label, metric] for subject, _, _ in points]
    digits = _digits([line.value for line in lines if line.value is not None])
    fields: tuple[Field[tuple[Subject, float, Quality]], ...] = (
        Field("variant", lambda row: row[0].label),
        numeric("steady frame block, mean", lambda row: Number(row[1] / 1e6, 2, "ms")),
        numeric(metric, lambda row: _cell(row[2], digits)),
    )
    rows = [(subject, latency, line) for (subject, latency, _), line in zip(points, lines, strict=True)]
    direction = {"higher": "up", "lower": "down", "neither": "neither way"}[lines[0].better]
    y = Axis(metric, "dB") if lines[0].unit == "dB" else Axis(metric)
    title = f"{metric} against the time of a steady frame block. Faster is left, better is {direction}."
    left_out = [subject.label for subject in study.subjects if subject not in [point[0] for point in points]]
    if left_out:
        title += f" Without a point, because a value is not defined or not measured: {', '.join(left_out)}."
    if any(value is None for _, _, value in points):
        title += " An arrow at the upper edge: the frames equal the reference's, and the metric has no finite value."
    marks = tuple(
        Mark(latency, 0.0 if value is None else value, subject.series, subject.label, above=value is None)
        for subject, latency, value in points
    )
    plane = Plane(Axis("steady frame block, mean", "ms", True), y, marks)
    table = table_of(f"{metric} and latency.", fields, rows)
    return Figure(title, f"{metric} against latency, one point per variant.", plane, table)
