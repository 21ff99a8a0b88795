"""Rule for per-call times compared with stage times without the number of calls in a stage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from strobe.lint.document import Place
from strobe.lint.finding import Claim, Rule
from strobe.lint.lines import VALUE
from strobe.lint.quantity import Quantity
from strobe.lint.study import Figure, LintStudy

_STAGE: Final = re.compile(r"(?i)(?<![A-Za-z])(?:stages?|denois\w+|e2e|end[- ]to[- ]end|pipeline)(?![A-Za-z])")
_CALL: Final = re.compile(r"(?i)(?<![A-Za-z])(?:attention|attn|kernels?|sections?|per call|one call)(?![A-Za-z])")
_COUNTED: Final = re.compile(
    r"(?i)\b\d[\d,]*\s+(?:attention |kernel )?(?:calls|launches|invocations)\b|\b(?:calls|launches|invocations|"
    r"calls[_ ]per[_ ]stage|n)\s*[=:|]\s*\d|\b\d+\s+(?:layers?|blocks?)\s*[x×*]\s*\d+|"
    r"\b\d+\s+calls?\s+(?:per|each|a)\b|\bcalls per (?:stage|step|run)\b[^.]{0,20}\d"
)
APART: Final = 20
"""Ratio of a stage time to a call time above which the stage holds many calls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Versus:
    """The times of two variants at one level."""

    stage: bool
    label: str
    one: Quantity
    two: Quantity
    place: Place
    names: tuple[str, str]


def calls_per_stage(study: LintStudy) -> Iterator[Claim]:
    """Find documents that compare two variants per call and per stage without the number of calls in a stage."""
    if _counted(study):
        return
    pairs = list(_pairs(study))
    stages, calls = [pair for pair in pairs if pair.stage], [pair for pair in pairs if not pair.stage]
    for stage in stages[:1]:
        fitting = [call for call in calls if call.names == stage.names and call.one.value * APART < stage.one.value]
        attention = next((call for call in fitting if "attention" in call.label.lower()), fitting[0] if fitting else None)
        if attention is None:
            return
        saved, call = stage.one.value - stage.two.value, attention.one.value - attention.two.value
        implied = (
            f"; if the calls were all that changed, {float(saved / call):.1f} calls would explain the stage"
            if saved * call > 0
            else ""
        )
        yield Claim(
            place=stage.place,
            said="; ".join(f"{each.label}: {each.one.text} and {each.two.text}" for each in (stage, attention)),
            corrected="record the number of calls per stage",
            why=f"nothing ties the time per call to the time of the stage{implied}",
            also=(attention.place,),
        )


def _counted(study: LintStudy) -> bool:
    document = study.document
    if any(_COUNTED.search(sentence.text) for sentence in document.sentences):
        return True
    if any(
        series.metric.kind == "count" and re.search(r"(?i)\b(?:calls?|launches|n|count|occurrences?)\b|#", series.metric.title)
        for view in study.views
        for series in view.series
    ):
        return True
    return any(
        re.search(r"(?i)\bcalls?\b|\blaunches\b", cell.text)
        for table in document.tables
        for row in table.rows
        for cell in row.cells
    )


def _pairs(study: LintStudy) -> Iterator[_Versus]:
    """Yield the levels that the document gives for two variants: two items of a list, or two columns of a row."""
    for view in study.views:
        times = [
            figure
            for figure in study.figures
            if figure.view is view and figure.quantity.dimension == "time" and figure.quantity.plain
        ]
        if view.table.origin == "list" and len(times) == 2:
            yield from _versus(view.table.caption, times[0], times[1])
        elif view.table.origin == "table" and view.by_columns:
            rows: dict[int, list[Figure]] = {}
            for figure in times:
                if figure.series.metric.statistic in ("", "mean"):
                    rows.setdefault(figure.entry.position, []).append(figure)
            for figures in rows.values():
                if len(figures) == 2:
                    yield from _versus(figures[0].entry.key, figures[0], figures[1])


def _versus(label: str, one: Figure, two: Figure) -> Iterator[_Versus]:
    stage, call = _STAGE.search(label), _CALL.search(label)
    if (stage is None) == (call is None) and not (stage and call):
        return
    yield _Versus(
        stage=call is None,
        label=label,
        one=one.quantity,
        two=two.quantity,
        place=one.place,
        names=(_name(one), _name(two)),
    )


def _name(figure: Figure) -> str:
    """Return the variant: the first word of a list item's label, or the column's head."""
    text = figure.entry.key if figure.series.metric.title == VALUE else figure.series.metric.title
    words = re.findall(r"[A-Za-z]\w*", text)
    return words[0].lower() if words else ""


RULES: Final = (
    Rule(
        id="calls-per-stage",
        meaning="A document that compares variants per call and per stage says how many calls a stage makes.",
        severity="warning",
        check=calls_per_stage,
    ),
)
