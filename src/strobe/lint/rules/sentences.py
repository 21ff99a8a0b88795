"""Rules on sentences: formulas, comparisons, and figures that tables give too."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from strobe.lint.document import Sentence
from strobe.lint.quantity import (
    QUALITY,
    UNITS,
    Bounds,
    Quantity,
    covers,
    exactly,
    is_total,
    key,
    mask,
    printed,
    quantities,
    statistic,
    words,
)
from strobe.lint.study import Claim, Figure, LintStudy, Rule, View

_NUMBER: Final = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?"
_UNIT: Final = r"(?:\s?(?:ns|µs|us|ms|s|GB|MB|GiB|MiB|KB|TB|%|FPS|fps)(?![\w/])|(?!\s?[x×]\s)(?:\s(?!x\b)[a-z][a-z-]*){1,2})?"
"""A unit, or a word or two such as `denoising steps`."""
_TERM: Final = rf"(?:\(\s*)?{_NUMBER}{_UNIT}(?:\s*\))?"
_EXPRESSION: Final = re.compile(rf"(?P<left>{_TERM}(?:\s*[-+*×x·/÷−–]\s*{_TERM})+)\s*(?:=|≈)\s*(?P<right>~?\s*[-+−]?{_NUMBER})")
_BEFORE: Final = re.compile(r"[\w)\]^.,]$|(?:[-+*×·/÷=^]|\bx)\s*$")
SMALL: Final = 100
"""Limit below which a whole number in a formula is an exact count; larger ones may be rounded."""
APART: Final = Fraction(1, 50)
CLOSE: Final = Fraction(1, 100)


@dataclass(frozen=True, kw_only=True, slots=True)
class Expression:
    """A formula in a sentence, such as `4 x 144.5 ms = 578 ms`: its computed value and its claimed result."""

    sentence: Sentence
    text: str
    value: Bounds
    said: Quantity
    product: bool
    stop: int


def expressions(study: LintStudy) -> Iterator[Expression]:
    """Yield every formula of numbers alone in the document's sentences."""
    for sentence in study.document.sentences:
        text = mask(sentence.text, sizes=False)
        for found in _EXPRESSION.finditer(text):
            if _BEFORE.search(text[: found.start()]):
                continue
            said = next(
                (
                    each
                    for each in quantities(sentence.text)
                    if each.start <= found.start("right") + 2 and each.stop > found.start("right")
                ),
                None,
            )
            try:
                value = _evaluate(found["left"])
            except (ValueError, ZeroDivisionError):
                continue
            if said is not None and _one_unit(found["left"], said):
                yield Expression(
                    sentence=sentence,
                    text=found["left"].strip(),
                    value=_scaled(value, found["left"], said),
                    said=said,
                    product=re.search(r"[*×x·]", found["left"]) is not None,
                    stop=said.stop,
                )


_OPERATORS: Final[dict[type[ast.operator], Callable[[Bounds, Bounds], Bounds]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _evaluate(text: str) -> Bounds:
    """Evaluate +, -, x, / and brackets with the interval of every printed number.

    Raises:
        ValueError: the text looks like a formula and is not one.
        ZeroDivisionError: it divides by zero.
    """
    numbers: list[Bounds] = []

    def operand(found: re.Match[str]) -> str:
        number = quantities(found["number"])[0]
        exact = number.decimals <= 0 and number.value < SMALL
        numbers.append(exactly(number.value) if exact else exactly(number.value).wider(number.rounding))
        return f"[{len(numbers) - 1}]"

    def value(node: ast.expr) -> Bounds:
        match node:
            case ast.List(elts=[ast.Constant(value=int(index))]):
                return numbers[index]
            case ast.BinOp():
                return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(text)

    signs = str.maketrans("×·÷−–x", "**/--*")
    bare = re.sub(rf"(?P<number>{_NUMBER}){_UNIT}", operand, text.strip()).translate(signs)
    try:
        return value(ast.parse(bare, mode="eval").body)
    except (SyntaxError, KeyError, IndexError) as error:
        raise ValueError(text) from error


def _units_in(left: str) -> set[str]:
    return {
        each.unit.name for each in quantities(left.replace("×", " × ")) if each.unit and each.unit.dimension in ("time", "bytes")
    }


def _one_unit(left: str, said: Quantity) -> bool:
    """Return True if all terms share at most one unit of time or memory, that of the result, or the result is a ratio or rate."""
    units = _units_in(left)
    if len(units) > 1:
        return False
    return not units or said.dimension not in ("time", "bytes") or UNITS[next(iter(units))].dimension == said.dimension


def _scaled(value: Bounds, left: str, said: Quantity) -> Bounds:
    """Convert the formula's value to the base unit of the claimed result."""
    units = _units_in(left)
    scale = said.unit.scale if said.unit else Fraction(1)
    if units and said.dimension in ("time", "bytes"):
        scale = UNITS[next(iter(units))].scale
    if said.dimension == "percent" and "%" not in left:
        scale = Fraction(100)
    return value * exactly(scale)


# --------------------------------------------------------------------------------------------------------- decompositions

_MEASURED: Final = re.compile(r"(?i)^\W{0,2}\s*(?:was |were |is )?(?:measured|observed|actual|in practice)")
_MATCHES: Final = re.compile(
    r"(?i)\b(?:match(?:es|ing)?|equals?|agrees? with|confirms?|explains?|corresponds? to|consistent with|is the)\b"
    r"(?P<rest>[^.;]*)"
)


def decompositions(study: LintStudy) -> Iterator[Claim]:
    """Find two products that are claimed to make up the same measured value and give different results."""
    found = [(each, target) for each in expressions(study) if each.product and (target := _target(study, each)) is not None]
    for number, (one, first) in enumerate(found):
        for two, second in found[number + 1 :]:
            same = first.overlaps(second) or abs(first.middle - second.middle) <= CLOSE * first.middle
            apart = not one.value.overlaps(two.value) and abs(one.value.middle - two.value.middle) > APART * one.value.middle
            if same and apart:
                nearer = one if abs(one.value.middle - first.middle) <= abs(two.value.middle - first.middle) else two
                other = two if nearer is one else one
                gap = printed(abs(one.value.middle - two.value.middle), one.said, more=0)
                yield Claim(
                    place=study.document.place(two.sentence.line),
                    said=f"{one.text} = {one.said.text} (line {one.sentence.line}) and {two.text} = {two.said.text}",
                    corrected=f"one of them: {nearer.said.text} leaves no room for what {other.said.text} counts besides",
                    why=f"both are said to make up {printed(first.middle, one.said, more=0)}, and differ by {gap}",
                    also=(study.document.place(one.sentence.line),),
                )


def _target(study: LintStudy, each: Expression) -> Bounds | None:
    """Return the measured value that a formula explains: `(575 ms measured)`, or `matches Balanced mean latency`."""
    text = each.sentence.text
    for other in each.sentence.found:
        if other.start > each.stop and other.dimension == each.said.dimension and _MEASURED.match(text[other.stop :]):
            return other.bounds
    said = _MATCHES.search(text, each.stop)
    if not said:
        return None
    named, wanted = study.named(said["rest"]), statistic(said["rest"])
    for figure in study.figures:
        quantity = figure.quantity
        own = named and figure.entry.key == named[0] and figure.series.metric.statistic == wanted
        if own and quantity.dimension == each.said.dimension and abs(quantity.value - each.said.value) <= APART * quantity.value:
            return quantity.bounds
    numbers = [other for other in each.sentence.found if other.start > said.start() and other.dimension == each.said.dimension]
    return numbers[0].bounds if numbers else each.said.bounds if not named else None


_MOST: Final = r"largest|slowest|longest|most expensive|costliest|biggest|heaviest|most time-consuming"
_LEAST: Final = r"fastest|smallest|cheapest|quickest|shortest|least expensive"
_SUPERLATIVE: Final = re.compile(
    rf"\s(?:is|are|was|were|remains?)\s+(?:by far |clearly |still )?(?:the\s+)?(?:single\s+)?"
    rf"(?P<word>{_MOST}|{_LEAST})\s+(?P<noun>(?:single |individual )?[\w-]+(?: [\w-]+)?)",
    re.IGNORECASE,
)
_CLAUSE: Final = re.compile(r"[^.;:,()]{2,60}$")
_NOT_FIRST: Final = re.compile(r"(?i)\b(?:second|third|next|one of|among|2nd|3rd|not)\b")
_SUBJECT_STOP: Final = frozenset({"key", "insight", "note", "that", "so", "thus", "because", "here", "there"})
_STATISTICS: Final = ("mean", "", "p50", "sum")


def superlative(study: LintStudy) -> Iterator[Claim]:
    """Compare `X is the largest kernel` with the figures of every comparable table of its chapter."""
    for sentence in study.document.sentences:
        for found in _SUPERLATIVE.finditer(sentence.text):
            clause = _CLAUSE.search(sentence.text[: found.start()])
            if clause and not _NOT_FIRST.search(sentence.text[: found.end()]):
                yield from _challenged(study, sentence, (clause[0].strip(), found["word"].lower(), found["noun"]))


def _challenged(study: LintStudy, sentence: Sentence, said: tuple[str, str, str]) -> Iterator[Claim]:
    name, word, noun = said
    subject = [each for each in words(name) if each not in _SUBJECT_STOP]
    chapter = sentence.section.path[: max(1, len(sentence.section.path) - 1)]
    figures = [
        figure for figure in study.figures if _comparable(figure) and figure.view.table.section.path[: len(chapter)] == chapter
    ]
    own = [figure for figure in figures if subject and covers(words(figure.entry.key), subject)]
    own = [figure for figure in own if figure.view.table.section.path == sentence.section.path] or own
    names = {figure.entry.key for figure in own}
    if len(names) != 1:
        return
    mine = own[0]
    rivals = [
        figure
        for figure in figures
        if figure.metric == mine.metric and figure.entry.key != mine.entry.key and _in_scope(noun, figure, mine)
    ]
    most = re.fullmatch(_MOST, word) is not None
    beaten = [
        figure
        for figure in rivals
        if (
            figure.quantity.bounds.low > mine.quantity.bounds.high
            if most
            else figure.quantity.bounds.high < mine.quantity.bounds.low
        )
    ]
    if beaten:
        beaten.sort(key=lambda figure: figure.quantity.value, reverse=most)
        yield Claim(
            place=study.document.place(sentence.line),
            said=f"{name} is the {word} {noun} ({mine.quantity.text})",
            corrected=", ".join(f"{figure.entry.key} {figure.quantity.text} ({figure.place.short})" for figure in beaten[:4]),
            why=f"{len(beaten)} figures of the same column are {'larger' if most else 'smaller'}",
            also=tuple(figure.place for figure in beaten),
        )


def _comparable(figure: Figure) -> bool:
    metric = figure.series.metric
    return (
        metric.kind == "time"
        and metric.statistic in _STATISTICS
        and figure.view.by_columns
        and not is_total(figure.entry.key)
        and figure.quantity.plain
    )


def _in_scope(noun: str, figure: Figure, mine: Figure) -> bool:
    """Return False for a figure of another table if only this table's heading has the noun (`attention operation`)."""
    telling = [
        word for word in words(noun) if word not in {"single", "individual", "part", "cost", "contributor", "component", "share"}
    ]
    inside = words(mine.view.table.section.title) + words(mine.view.table.caption)
    above = [word for title in mine.view.table.section.titles[:-1] for word in words(title)]
    local = [word for word in telling if word in inside and word not in above]
    return not local or figure.view.table is mine.view.table


# ---------------------------------------------------------------------------------------------------------------- memory

_SMALL: Final = re.compile(r"(?i)\b(?:gpus?|vram|cards?|devices?|graphics memory|device memory)\b")
_PURPOSE: Final = re.compile(
    r"(?i)\b(?:use|uses|for|when|fits?|runs?|suits?|suitable|recommended|works?|target|limited|constrained|gpus?)\b"
)
_NEEDS: Final = re.compile(r"(?i)\b(?:saves?|saved|saving|reduces?|reduced|less than before|lower by)\b")


def memory_fit(study: LintStudy) -> Iterator[Claim]:
    """Compare `for GPUs with < 24 GB` with the peak memory that the tables give the same configuration."""
    peaks = [figure for figure in study.figures if figure.series.metric.kind == "memory" and _is_peak(figure)]
    if not peaks:
        return
    for sentence in study.document.sentences:
        if not _SMALL.search(sentence.text) or not _PURPOSE.search(sentence.text) or _NEEDS.search(sentence.text):
            continue
        for limit in sentence.found:
            if limit.dimension == "bytes" and (limit.mark == "below" or _fits(sentence, limit)):
                yield from _too_large(study, sentence, limit, peaks)


def _is_peak(figure: Figure) -> bool:
    title = figure.series.metric.title.lower()
    return not re.search(r"saving|saved|bandwidth|weights|host|cpu|cache|per ", title) and figure.quantity.plain


def _fits(sentence: Sentence, limit: Quantity) -> bool:
    return re.search(r"(?i)\b(?:fits?|runs?)\b[^.;]{0,24}$", sentence.text[: limit.start]) is not None


def _too_large(study: LintStudy, sentence: Sentence, limit: Quantity, peaks: list[Figure]) -> Iterator[Claim]:
    named = [key(name) for name in study.named(sentence.lead or sentence.text)] or [key(study.config_of(sentence.section))]
    own = [figure for figure in peaks if figure.config in named] or [min(peaks, key=lambda figure: figure.quantity.value)]
    smallest = min(own, key=lambda figure: figure.quantity.value)
    if smallest.quantity.bounds.low > limit.value:
        yield Claim(
            place=study.document.place(sentence.line),
            said=limit.text,
            corrected=f"needs {smallest.quantity.text}",
            why=f"{smallest.entry.key} peaks at {smallest.quantity.text} ({smallest.place.short})",
            also=(smallest.place,),
        )


# ------------------------------------------------------------------------------------------------------------ explaining

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
        id="two-decompositions",
        meaning="One measured value is not made up in two ways that exclude each other.",
        check=decompositions,
    ),
    Rule(
        id="superlative",
        meaning="What is called the largest or the fastest has the largest or smallest figure of its chapter.",
        check=superlative,
    ),
    Rule(id="memory-fit", meaning="What is recommended for a GPU of some size has a peak that fits into it.", check=memory_fit),
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
