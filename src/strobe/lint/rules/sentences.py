"""Rules on sentences: comparisons, and figures that tables give too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Final

from strobe.lint.document import DocumentSection, Sentence
from strobe.lint.quantity import (
    QUALITY,
    Bounds,
    Quantity,
    covers,
    exactly,
    is_total,
    key,
    mask,
    printed,
    quantities,
    spelled,
    statistic,
    words,
)  # fmt: skip
from strobe.lint.study import Claim, LintFigure, LintStudy, Rule

_NUMBER: Final = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_TERM: Final = rf"{_NUMBER}(?:\s?(?:{spelled('time', 'bytes')})(?![\w/])|(?!\s?[x×]\s)(?:\s(?!x\b)[a-z][a-z-]*){{1,2}})?"
"""A number and its unit, or a word or two such as `denoising steps`."""
_PRODUCT: Final = re.compile(
    rf"(?<![\w.,)\]^])(?P<left>(?P<count>{_TERM})\s*[*×x·]\s*(?P<each>{_TERM})(?P<rest>(?:\s*\+\s*{_TERM})*))"
    rf"\s*(?:=|≈)\s*(?P<right>~?\s*{_NUMBER})"
)
SMALL: Final = 100
"""Limit below which a whole number in a formula is an exact count; larger ones may be rounded."""
APART: Final = Fraction(1, 50)
CLOSE: Final = Fraction(1, 100)
_MEASURED: Final = re.compile(r"(?i)\W{0,2}\s*(?:was |were |is )?(?:measured|observed|actual|in practice)")
_MATCHES: Final = re.compile(
    r"(?i)\b(?:match(?:es|ing)?|equals?|agrees? with|confirms?|explains?|corresponds? to|consistent with|is the)\b"
    r"(?P<rest>[^.;]*)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Product:
    """A formula in a sentence, such as `4 x 144.5 ms + 45 = 623 ms`: its computed value and its claimed result."""

    sentence: Sentence
    text: str
    value: Bounds
    said: Quantity


def _products(study: LintStudy) -> Iterator[_Product]:
    for sentence in study.document.sentences:
        for found in _PRODUCT.finditer(mask(sentence.text, sizes=False)):
            said = next((each for each in sentence.found if each.stop > found.start("right")), None)
            if said is None or said.unit is None or said.dimension not in ("time", "bytes"):
                continue
            count, each, *rest = (_operand(term, said) for term in re.findall(_TERM, found["left"]))
            value = sum(rest, count * each) * exactly(said.unit.scale)
            yield _Product(sentence=sentence, text=found["left"].strip(), value=value, said=said)


def _operand(term: str, said: Quantity) -> Bounds:
    """Return the interval of a printed number, in the unit of the result."""
    number = re.match(_NUMBER, term)
    assert number is not None
    bare, (shown, *_) = quantities(number[0])[0], (*quantities(term), None)
    exact = bare.decimals <= 0 and bare.value < SMALL
    scale = shown.unit.scale / said.unit.scale if shown and shown.unit and said.unit and shown.dimension == said.dimension else 1
    return (exactly(bare.value) if exact else exactly(bare.value).wider(bare.rounding)) * exactly(scale)


def decompositions(study: LintStudy) -> Iterator[Claim]:
    """Find two products that are claimed to make up the same measured value and give different results."""
    found = [(each, target) for each in _products(study) if (target := _target(study, each)) is not None]
    for (one, first), (two, second) in combinations(found, 2):
        gap = abs(one.value.middle - two.value.middle)
        same = first.overlaps(second) or abs(first.middle - second.middle) <= CLOSE * first.middle
        if same and not one.value.overlaps(two.value) and gap > APART * one.value.middle:
            nearer, other = sorted((one, two), key=lambda each: abs(each.value.middle - first.middle))
            yield Claim(
                place=study.document.place(two.sentence.line),
                said=f"{one.text} = {one.said.text} (line {one.sentence.line}) and {two.text} = {two.said.text}",
                corrected=f"one of them: {nearer.said.text} leaves no room for what {other.said.text} counts besides",
                why=f"both are said to make up {printed(first.middle, one.said, more=0)}, and differ by "
                f"{printed(gap, one.said, more=0)}",
                also=(study.document.place(one.sentence.line),),
            )


def _target(study: LintStudy, each: _Product) -> Bounds | None:
    """Return the measured value that a formula explains: `(575 ms measured)`, or `matches Balanced mean latency`."""
    text, said = each.sentence.text, each.said
    after = [other for other in each.sentence.found if other.start > said.stop and other.dimension == said.dimension]
    measured = next((other for other in after if _MEASURED.match(text[other.stop :])), None)
    if measured is not None:
        return measured.bounds
    claim = _MATCHES.search(text, said.stop)
    if claim is None:
        return None
    named, wanted = study.named(claim["rest"]), statistic(claim["rest"])
    for figure in study.figures:
        quantity = figure.quantity
        own = named and figure.name == named[0] and figure.metric.statistic == wanted
        if own and quantity.dimension == said.dimension and abs(quantity.value - said.value) <= APART * quantity.value:
            return quantity.bounds
    numbers = [other.bounds for other in after if other.start > claim.start()]
    return numbers[0] if numbers else None if named else said.bounds


# ----------------------------------------------------------------------------------------------------------- superlatives

_MOST: Final = r"largest|slowest|longest|most expensive|costliest|biggest|heaviest|most time-consuming"
_LEAST: Final = r"fastest|smallest|cheapest|quickest|shortest|least expensive"
_SUPERLATIVE: Final = re.compile(
    rf"\s(?:is|are|was|were|remains?)\s+(?:by far |clearly |still )?(?:the\s+)?(?:single\s+)?"
    rf"(?:(?P<most>{_MOST})|(?P<least>{_LEAST}))\s+(?P<noun>(?:single |individual )?[\w-]+(?: [\w-]+)?)",
    re.IGNORECASE,
)
_CLAUSE: Final = re.compile(r"[^.;:,()]{2,60}$")
_NOT_FIRST: Final = re.compile(r"(?i)\b(?:second|third|next|one of|among|2nd|3rd|not)\b")
_NO_SUBJECT: Final = frozenset(["key", "insight", "note", "that", "so", "thus", "because", "here", "there"])
_NO_SCOPE: Final = frozenset(["single", "individual", "part", "cost", "contributor", "component", "share"])


def superlative(study: LintStudy) -> Iterator[Claim]:
    """Compare `X is the largest kernel` with the figures of every comparable table of its chapter."""
    times = [figure for figure in study.figures if _comparable(figure)]
    for sentence in study.document.sentences:
        for found in _SUPERLATIVE.finditer(sentence.text):
            clause = _CLAUSE.search(sentence.text[: found.start()])
            if clause and not _NOT_FIRST.search(sentence.text[: found.end()]):
                yield from _challenged(study, sentence, clause[0].strip(), found, times)


def _challenged(study: LintStudy, sentence: Sentence, name: str, said: re.Match[str], times: list[LintFigure]) -> Iterator[Claim]:
    subject = [each for each in words(name) if each not in _NO_SUBJECT]
    chapter = sentence.section.path[: max(1, len(sentence.section.path) - 1)]
    figures = [figure for figure in times if figure.table.section.path[: len(chapter)] == chapter]
    own = [figure for figure in figures if subject and covers(words(figure.name), subject)]
    own = [figure for figure in own if figure.table.section == sentence.section] or own
    if len({figure.name for figure in own}) != 1:
        return
    mine, most = own[0], bool(said["most"])
    beaten = [
        figure for figure in figures
        if figure.basis == mine.basis and figure.name != mine.name and _in_scope(said["noun"], figure, mine)
        and (figure.quantity.bounds.low > mine.quantity.bounds.high if most
             else figure.quantity.bounds.high < mine.quantity.bounds.low)
    ]  # fmt: skip
    if beaten:
        beaten.sort(key=lambda figure: figure.quantity.value, reverse=most)
        word = (said["most"] or said["least"]).lower()
        yield Claim(
            place=study.document.place(sentence.line),
            said=f"{name} is the {word} {said['noun']} ({mine.quantity.text})",
            corrected=", ".join(f"{each.name} {each.quantity.text} (line {each.place.line})" for each in beaten[:4]),
            why=f"{len(beaten)} figures of the same column are {'larger' if most else 'smaller'}",
            also=tuple(figure.place for figure in beaten),
        )


def _comparable(figure: LintFigure) -> bool:
    statistics = figure.metric.kind == "time" and figure.metric.statistic in ("mean", "", "p50", "sum")
    return statistics and figure.by_columns and not is_total(figure.name) and figure.quantity.plain


def _in_scope(noun: str, figure: LintFigure, mine: LintFigure) -> bool:
    """Return False for a figure of another table if only this table's heading has the noun (`attention operation`)."""
    inside = {*words(mine.table.section.title), *words(mine.table.caption)}
    above = {word for title in mine.table.section.titles[:-1] for word in words(title)}
    return figure.table is mine.table or not (set(words(noun)) - _NO_SCOPE) & (inside - above)


# ----------------------------------------------------------------------------------------------------------------- memory

_SMALL: Final = re.compile(r"(?i)\b(?:gpus?|vram|cards?|devices?|graphics memory|device memory)\b")
_PURPOSE: Final = re.compile(
    r"(?i)\b(?:use|uses|for|when|fits?|runs?|suits?|suitable|recommended|works?|target|limited|constrained|gpus?)\b"
)
_NEEDS: Final = re.compile(r"(?i)\b(?:saves?|saved|saving|reduces?|reduced|less than before|lower by)\b")
_FITS: Final = re.compile(r"(?i)\b(?:fits?|runs?)\b[^.;]{0,24}$")
_NO_PEAK: Final = re.compile(r"(?i)saving|saved|bandwidth|weights|host|cpu|cache|per ")


def memory_fit(study: LintStudy) -> Iterator[Claim]:
    """Compare `for GPUs with < 24 GB` with the peak memory that the tables give the same configuration."""
    memory = [figure for figure in study.figures if figure.metric.kind == "memory" and figure.quantity.plain]
    peaks = [figure for figure in memory if not _NO_PEAK.search(figure.metric.title)]
    for sentence in study.document.sentences if peaks else ():
        text = sentence.text
        if not _SMALL.search(text) or not _PURPOSE.search(text) or _NEEDS.search(text):
            continue
        named = [key(name) for name in study.named(sentence.lead or text)] or [key(study.config_of(sentence.section))]
        own = [figure for figure in peaks if study.config(figure) in named] or peaks
        smallest = min(own, key=lambda figure: figure.quantity.value)
        for limit in sentence.found:
            meant = limit.dimension == "bytes" and (limit.mark == "below" or _FITS.search(text[: limit.start]))
            if meant and smallest.quantity.bounds.low > limit.value:
                yield Claim(
                    place=study.document.place(sentence.line),
                    said=limit.text,
                    corrected=f"needs {smallest.quantity.text}",
                    why=f"{smallest.name} peaks at {smallest.quantity.text} (line {smallest.place.line})",
                    also=(smallest.place,),
                )


# ------------------------------------------------------------------------------------------------------------ differences

_DELTA: Final = re.compile(
    rf"(?i)(?<![A-Za-z])({'|'.join(map(re.escape, sorted(QUALITY, key=len, reverse=True)))})(?![A-Za-z])\W{{0,3}}(?=[+-−])"
)
_BASE: Final = re.compile(r"baseline|reference|base|original|dense|full")


def delta_disagrees(study: LintStudy) -> Iterator[Claim]:
    """Compare `SSIM: -0.03` in a sentence with the configuration's figure minus the baseline's in the tables."""
    tables = {series.metric.quality: series.figures for view in study.views for series in view.of_kind("quality")}
    for sentence in study.document.sentences if tables else ():
        for found in _DELTA.finditer(sentence.text):
            said = next((each for each in sentence.found if found.end() - 1 <= each.start <= found.end() and each.signed), None)
            named = study.named(sentence.text) or study.named(sentence.paragraph.removeprefix(sentence.lead))
            config = key(named[0] if len(named) == 1 else study.config_of(sentence.section))
            figures = tables.get(found[1].lower(), ())
            base = next((figure for figure in figures if _BASE.fullmatch(key(figure.name))), None)
            own = next((figure for figure in figures if key(figure.name) == config), None)
            if said is None or base is None or own is None or base is own:
                continue
            right = own.quantity.bounds - base.quantity.bounds
            if not said.bounds.overlaps(right.wider(-min(right.width / 2, said.rounding))):
                exact, table = printed(own.quantity.value - base.quantity.value, said), own.table
                yield Claim(
                    place=study.document.place(sentence.line),
                    said=f"{own.name}: {found[1]} {said.text}",
                    corrected=exact,
                    why=f"'{table.name}' (line {table.line}): {base.quantity.text} to {own.quantity.text} is {exact}",
                    also=(own.place,),
                )


# ---------------------------------------------------------------------------------------------------- attributes of runs

_STEPS: Final = re.compile(r"(?i)(?<![\w.])(\d+)[\s-](?:denois\w+ )?steps?\b(?!\s*(?:per|/))")
_FIRST_STEPS: Final = re.compile(r"\W*\d+[\s-](?:denois\w+ )?steps?\b")
_STEP_LIST: Final = re.compile(r"(?i)steps\w*\s*[:=]\s*\[([^\]]*)\]")


def value_of_another(study: LintStudy) -> Iterator[Claim]:
    """Find a measured value that a sentence gives to one step count and the tables to another."""
    times = [figure for figure in study.figures if figure.quantity.dimension == "time"]
    counts = {section: _steps_of(study, section) for section in {figure.table.section for figure in times}}
    for sentence in study.document.sentences:
        steps = {int(found) for found in _STEPS.findall(sentence.text)}
        placed = [(count, figure) for figure in times if (count := counts[figure.table.section])]
        placed = [(count, figure) for count, figure in placed if figure.table.section != sentence.section]
        for said in sentence.found if len(steps) == 1 and _FIRST_STEPS.match(sentence.text) else ():
            same = [(count, figure) for count, figure in placed if figure.quantity.bounds.overlaps(said.bounds)]
            measured = said.dimension == "time" and _MEASURED.match(sentence.text[said.stop :])
            if not measured or not same or steps & {count for count, _ in same}:
                continue
            count, figure = same[0]
            right = next(
                (
                    other for own, other in placed
                    if own in steps and other.basis == figure.basis and not re.search(r"baseline|reference", study.config(other))
                ),
                None,
            )  # fmt: skip
            if right is not None:
                yield Claim(
                    place=study.document.place(sentence.line),
                    said=f"{steps.pop()} steps: {said.text}",
                    corrected=f"{right.quantity.text} ({_owner(study, right)}, {right.metric.title})",
                    why=f"{said.text} is {_owner(study, figure)}, {count} steps (line {figure.place.line})",
                    also=(figure.place, right.place),
                )
                break


def _steps_of(study: LintStudy, section: DocumentSection) -> int:
    """Return a section's number of denoise steps, from the heading, then settings, then the text; 0 if they do not say."""
    document = study.document
    code = (found[1] for line in document.code if line.section == section and (found := _STEP_LIST.search(line.text)))
    texts = [sentence.text for sentence in document.sentences if sentence.section == section]
    said = {int(each) for text in texts for each in _STEPS.findall(text)}
    if heading := _STEPS.search(section.title):
        return int(heading[1])
    if (listed := next(code, None)) is not None:
        return len([part for part in listed.split(",") if part.strip()])
    return said.pop() if len(said) == 1 else 0


def _owner(study: LintStudy, figure: LintFigure) -> str:
    """Return the owner of a figure: its configuration, or the heading above its table."""
    return figure.name if key(figure.name) == study.config(figure) else figure.table.section.title


RULES: Final = (
    Rule(
        id="two-decompositions",
        meaning="One measured value does not have two compositions that exclude each other.",
        check=decompositions,
    ),
    Rule(
        id="superlative",
        meaning='The "largest" or "fastest" has the largest or smallest figure of its chapter.',
        check=superlative,
    ),
    Rule(id="memory-fit", meaning="A setting advised for a GPU has a peak that fits its memory.", check=memory_fit),
    Rule(
        id="delta-disagrees",
        meaning="A difference in a sentence is that of the two figures in the table.",
        check=delta_disagrees,
    ),
    Rule(
        id="value-of-another",
        meaning="A sentence gives a value the number of steps that the tables give it.",
        check=value_of_another,
    ),
)
