"""Rules that compare repeated figures: tables with each other, and sentences with tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from strobe.lint.document import Sentence
from strobe.lint.finding import Claim, Rule
from strobe.lint.names import QUALITY, key
from strobe.lint.quantity import Quantity, printed
from strobe.lint.study import Figure, LintStudy
from strobe.lint.views import View

# ------------------------------------------------------------------------------------------------------------- sentences


def delta_disagrees(study: LintStudy) -> Iterator[Claim]:
    """Compare `SSIM: -0.03` in a sentence with the configuration's figure minus the baseline's in the tables."""
    tables = {series.metric.quality: (view, series) for view in study.views for series in view.of_kind("quality")}
    pattern = re.compile(
        rf"(?i)(?<![A-Za-z])({'|'.join(map(re.escape, sorted(QUALITY, key=len, reverse=True)))})(?![A-Za-z])\W{{0,3}}(?=[+-−])"
    )
    for sentence in study.document.sentences:
        for found in pattern.finditer(sentence.text):
            said = next((each for each in sentence.found if found.end() - 1 <= each.start <= found.end() and each.signed), None)
            if said is None or found[1].lower() not in tables:
                continue
            named = study.named(sentence.text) or study.named(sentence.paragraph.removeprefix(sentence.lead))
            config = named[0] if len(named) == 1 else study.config_of(sentence.section)
            view, _ = tables[found[1].lower()]
            yield from _delta(study, sentence, said, (view, key(config), found[1]))


def _delta(study: LintStudy, sentence: Sentence, said: Quantity, about: tuple[View, str, str]) -> Iterator[Claim]:
    view, config, metric = about
    series = next(each for each in view.of_kind("quality") if each.metric.quality == metric.lower())
    rows = {key(entry.key): (entry, figure) for entry, figure in series.figures}
    base = next((row for name, row in rows.items() if re.fullmatch(r"baseline|reference|base|original|dense|full", name)), None)
    own = rows.get(config)
    if base is None or own is None or base is own:
        return
    right = own[1].bounds - base[1].bounds
    said_bounds = said.bounds
    if not said_bounds.overlaps(right.wider(-min(right.width / 2, said.rounding))):
        exact = own[1].value - base[1].value
        yield Claim(
            place=study.document.place(sentence.line),
            said=f"{own[0].key}: {metric} {said.text}",
            corrected=printed(exact, said),
            why=f"'{view.table.name}' (line {view.table.line}): {base[1].text} to {own[1].text} is {printed(exact, said)}",
            also=(study.figure_place(view, series, own[0]),),
        )


# ---------------------------------------------------------------------------------------------------- attributes of runs

_STEPS: Final = re.compile(r"(?i)(?<![\w.])(\d+)[\s-](?:denois\w+ )?steps?\b(?!\s*(?:per|/))")
_STEP_LIST: Final = re.compile(r"(?i)steps\w*\s*[:=]\s*\[([^\]]*)\]")


def value_of_another(study: LintStudy) -> Iterator[Claim]:
    """Find a measured value that a sentence gives to one step count and the tables to another."""
    owners = _step_counts(study)
    for sentence in study.document.sentences:
        steps = [int(found) for found in _STEPS.findall(sentence.text)]
        if len(set(steps)) != 1 or not re.match(r"\W*\d+[\s-](?:denois\w+ )?steps?\b", sentence.text):
            continue
        for said in sentence.found:
            if said.dimension != "time" or not re.match(
                r"\W{0,2}\s*(?:was |were |is )?(?:measured|observed|actual)", sentence.text[said.stop :]
            ):
                continue
            yield from _belongs_to(study, sentence, said, (steps[0], owners))


def _step_counts(study: LintStudy) -> dict[tuple[int, ...], int]:
    """Map sections to their number of denoise steps, from the heading, then settings, then the text."""
    counts: dict[tuple[int, ...], int] = {}
    sections = {sentence.section.path: sentence.section for sentence in study.document.sentences}
    sections |= {line.section.path: line.section for line in study.document.code}
    sections |= {table.section.path: table.section for table in study.document.tables}
    for path, section in sections.items():
        heading = _STEPS.search(section.title)
        listed = [
            found[1] for line in study.document.code if line.section.path == path and (found := _STEP_LIST.search(line.text))
        ]
        said = {
            int(each)
            for sentence in study.document.sentences
            if sentence.section.path == path
            for each in _STEPS.findall(sentence.text)
        }
        if heading:
            counts[path] = int(heading[1])
        elif listed:
            counts[path] = len([part for part in listed[0].split(",") if part.strip()])
        elif len(said) == 1:
            counts[path] = said.pop()
    return counts


def _belongs_to(
    study: LintStudy, sentence: Sentence, said: Quantity, about: tuple[int, dict[tuple[int, ...], int]]
) -> Iterator[Claim]:
    steps, owners = about
    placed = [
        (owners[figure.view.table.section.path], figure) for figure in study.figures if figure.view.table.section.path in owners
    ]
    placed = [(count, figure) for count, figure in placed if figure.view.table.section.path != sentence.section.path]
    same = [
        (count, figure)
        for count, figure in placed
        if figure.quantity.dimension == "time" and figure.quantity.bounds.overlaps(said.bounds)
    ]
    if not same or steps in {count for count, _ in same}:
        return
    count, figure = same[0]
    right = next((other for own, other in placed if own == steps and other.metric == figure.metric and not _is_base(other)), None)
    if right is not None:
        yield Claim(
            place=study.document.place(sentence.line),
            said=f"{steps} steps: {said.text}",
            corrected=f"{right.quantity.text} ({_owner(right)}, {right.series.metric.title})",
            why=f"{said.text} is {_owner(figure)}, {count} steps ({figure.place.short})",
            also=(figure.place, right.place),
        )


def _owner(figure: Figure) -> str:
    """Return the owner of a figure: its configuration, or the heading above its table."""
    return figure.entry.key if key(figure.entry.key) == figure.config else figure.view.table.section.title


def _is_base(figure: Figure) -> bool:
    return bool(re.search(r"baseline|reference", figure.config))


RULES: Final = (
    Rule(
        id="delta-disagrees",
        meaning="A difference in a sentence is that of the two figures in the table.",
        check=delta_disagrees,
    ),
    Rule(
        id="value-of-another",
        meaning="A measured value belongs to the number of steps that the tables give it.",
        check=value_of_another,
    ),
)
