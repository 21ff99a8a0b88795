"""Rules that compare repeated figures: tables with each other, and sentences with tables."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from strobe.lint.document import Sentence
from strobe.lint.finding import Claim, Rule
from strobe.lint.names import QUALITY, key
from strobe.lint.quantity import Quantity, printed
from strobe.lint.study import Figure, LintStudy
from strobe.lint.views import View

MAJORITY: Final = Fraction(3, 5)
HEDGE: Final = re.compile(
    r"(?i)\b(?:theoretical\w*|expect\w*|target\w*|previous\w*|before|earlier|was|were|used to|goal|budget|limit|would|could|"
    r"should|if|paper|published|claim\w*|estimate\w*|ideal\w*|predict\w*|at least|at most|instead of|example|e\.g\.)\b"
)
"""Words that mark a figure as not measured in this document."""


def two_values(study: LintStudy) -> Iterator[Claim]:
    """Compare figures of the same configuration and metric in different tables.

    Tables of different runs differ in most of their times; so two tables are only compared in times (or memory, or quality) if
    most of what they share of that family agrees.
    """
    cells = [_cells(study, view) for view in study.views if view.table.origin == "table"]
    clashes: dict[int, list[Figure]] = {}
    for number, one in enumerate(cells):
        for two in cells[number + 1 :]:
            for first, second in _clashes(one, two):
                group = clashes.setdefault(id(first), [first])
                group.append(second)
                clashes[id(second)] = group
    for group in {id(group): group for group in clashes.values()}.values():
        agreeing = [figure for figure in study.figures if (figure.config, figure.metric) == (group[0].config, group[0].metric)]
        yield _contradiction(group, agreeing)


_FAMILIES: Final = {
    "time": "speed",
    "rate": "speed",
    "compute": "speed",
    "bandwidth": "speed",
    "memory": "memory",
    "quality": "quality",
}

_SAVED: Final = re.compile(r"(?i)\bsaved\b|\bby (?:fewer|faster) calls\b")

Cells = dict[tuple[str, str], Figure]


def _cells(study: LintStudy, view: View) -> Cells:
    """Return the figures of a table by configuration and metric, without names that occur in two rows or columns.

    What a line saves belongs to two configurations, and the row names neither: it may differ from table to table.
    """
    found: dict[tuple[str, str], list[Figure]] = defaultdict(list)
    for figure in study.figures:
        measured = figure.series.metric.kind in _FAMILIES and not _SAVED.search(figure.series.metric.title)
        if figure.view is view and measured and figure.config and figure.quantity.plain:
            found[figure.config, figure.metric].append(figure)
    return {name: figures[0] for name, figures in found.items() if len(figures) == 1}


def _clashes(one: Cells, two: Cells) -> Iterator[tuple[Figure, Figure]]:
    shared = [(one[name], two[name]) for name in one if name in two]
    families = {
        name: [pair for pair in shared if _FAMILIES[pair[0].series.metric.kind] == name] for name in set(_FAMILIES.values())
    }
    for family, pairs in families.items():
        if _mostly_agree(pairs) or (family != "speed" and _mostly_agree(families["speed"])):
            yield from (pair for pair in pairs if _differ(*pair))


def _mostly_agree(pairs: Sequence[tuple[Figure, Figure]]) -> bool:
    agreed = sum(not _differ(*pair) for pair in pairs)
    return agreed >= 2 and agreed >= MAJORITY * len(pairs)


def _differ(one: Figure, two: Figure) -> bool:
    return one.quantity.dimension == two.quantity.dimension and not one.quantity.bounds.overlaps(two.quantity.bounds)


def _contradiction(clashing: Sequence[Figure], everywhere: Sequence[Figure]) -> Claim:
    """Build the claim about the figure that most places contradict; of two, the later one."""

    def backers(figure: Figure) -> int:
        return sum(other.quantity.bounds.overlaps(figure.quantity.bounds) for other in everywhere)

    figures = sorted(clashing, key=lambda figure: figure.place.line)
    wrong = min(reversed(figures), key=backers)
    others = [figure for figure in everywhere if not figure.quantity.bounds.overlaps(wrong.quantity.bounds)]
    places = ", ".join(f"{other.place.short}" if other.place.line else f"'{other.place.table}'" for other in others)
    doubt = "" if len(others) > 1 else " (or that one is wrong)"
    return Claim(
        place=wrong.place,
        said=f"{wrong.entry.key}, {wrong.series.metric.title}: {wrong.quantity.text}",
        corrected=f"{others[0].quantity.text}{doubt}",
        why=f"{places}: {others[0].quantity.text}",
        also=tuple(other.place for other in others),
    )


# ------------------------------------------------------------------------------------------------------------- sentences


def prose_disagrees(study: LintStudy) -> Iterator[Claim]:
    """Compare `Turbo: SS Max 450 ms` in a sentence with the tables' figures for that configuration."""
    metrics: dict[str, list[Figure]] = defaultdict(list)
    for figure in study.figures:
        title = figure.series.metric.title
        if figure.series.metric.kind in _FAMILIES and figure.series.metric.kind != "quality" and len(title) > 2:
            metrics[title].append(figure)
    for sentence in study.document.sentences:
        configs = study.named(sentence.text)
        if len(configs) != 1 or HEDGE.search(sentence.text):
            continue
        for title, figures in metrics.items():
            yield from _against_tables(study, sentence, title, [each for each in figures if each.config == key(configs[0])])


def _against_tables(study: LintStudy, sentence: Sentence, title: str, figures: Sequence[Figure]) -> Iterator[Claim]:
    for said in _beside(sentence, title):
        same = [
            figure
            for figure in figures
            if figure.quantity.dimension == said.dimension or figure.series.metric.kind == "rate" == said.dimension
        ]
        if same and said.plain and not any(figure.quantity.bounds.overlaps(said.bounds) for figure in same):
            figure = same[0]
            yield Claim(
                place=study.document.place(sentence.line),
                said=f"{figure.entry.key}: {title} {said.text}",
                corrected=printed(figure.quantity.value, figure.quantity, more=0),
                why=f"'{figure.place.table}' ({figure.place.short}) has {figure.quantity.text}",
                also=(figure.place,),
            )


def _beside(sentence: Sentence, title: str) -> Iterator[Quantity]:
    """Yield figures right after a metric's name (`SS Max (585 ms)`) or, for a unit like FPS, right before it."""
    for named in re.finditer(rf"(?<!\w){re.escape(title)}(?!\w)", sentence.text):
        for said in sentence.found:
            between = sentence.text[named.end() : said.start]
            after = said.start >= named.end() and re.fullmatch(r"\s*(?:[(:=]|of|is|at)?\s*", between) is not None
            if after or (said.start < named.start() <= said.stop and said.dimension == "rate"):
                yield said


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
    Rule(id="two-values", meaning="A figure of one configuration is the same wherever the document gives it.", check=two_values),
    Rule(id="prose-disagrees", meaning="A figure in a sentence is the one the tables give.", check=prose_disagrees),
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
