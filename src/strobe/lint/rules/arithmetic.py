"""Rules for sums and products written out in sentences, and for two decompositions of one total that disagree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final

from strobe.lint.document import Sentence
from strobe.lint.finding import Claim, Rule
from strobe.lint.names import statistic
from strobe.lint.quantity import UNITS, Bounds, Quantity, exactly, mask, printed, quantities
from strobe.lint.study import LintStudy

_NUMBER: Final = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?"
_UNIT: Final = r"(?:\s?(?:ns|µs|us|ms|s|GB|MB|GiB|MiB|KB|TB|%|FPS|fps)(?![\w/])|(?!\s?[x×]\s)(?:\s(?!x\b)[a-z][a-z-]*){1,2})?"
"""A unit, or a word or two such as `denoising steps`."""
_TERM: Final = rf"(?:\(\s*)?{_NUMBER}{_UNIT}(?:\s*\))?"
_EXPRESSION: Final = re.compile(rf"(?P<left>{_TERM}(?:\s*[-+*×x·/÷−–]\s*{_TERM})+)\s*(?:=|≈)\s*(?P<right>~?\s*[-+−]?{_NUMBER})")
_TOKEN: Final = re.compile(rf"\s*(?:(?P<number>{_NUMBER}){_UNIT}|(?P<sign>[-+*×x·/÷−–()]))")
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


class _NotArithmetic(ValueError):
    """The text looks like a formula and is not one."""


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
            except (_NotArithmetic, ZeroDivisionError):
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


def _evaluate(text: str) -> Bounds:
    """Evaluate +, -, x, / and brackets with the interval of every printed number."""
    tokens: list[Bounds | str] = []
    position = 0
    text = text.strip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if not found:
            raise _NotArithmetic(text)
        position = found.end()
        tokens.append(_operand(found["number"]) if found["number"] else _SIGN.get(found["sign"], found["sign"]))
    value, rest = _sum(tokens)
    if rest:
        raise _NotArithmetic(text)
    return value


_SIGN: Final = {"×": "*", "x": "*", "·": "*", "÷": "/", "−": "-", "–": "-"}


def _operand(text: str) -> Bounds:
    number = next(iter(quantities(text)), None)
    if number is None:
        raise _NotArithmetic(text)
    exact = number.decimals <= 0 and number.value < SMALL
    return exactly(number.value) if exact else exactly(number.value).wider(number.rounding)


def _sum(tokens: list[Bounds | str]) -> tuple[Bounds, list[Bounds | str]]:
    value, tokens = _product(tokens)
    while tokens and tokens[0] in ("+", "-"):
        right, rest = _product(tokens[1:])
        value, tokens = (value + right if tokens[0] == "+" else value - right), rest
    return value, tokens


def _product(tokens: list[Bounds | str]) -> tuple[Bounds, list[Bounds | str]]:
    value, tokens = _factor(tokens)
    while tokens and tokens[0] in ("*", "/"):
        right, rest = _factor(tokens[1:])
        value, tokens = (value * right if tokens[0] == "*" else value / right), rest
    return value, tokens


def _factor(tokens: list[Bounds | str]) -> tuple[Bounds, list[Bounds | str]]:
    if not tokens:
        raise _NotArithmetic("ends early")
    head, *rest = tokens
    if isinstance(head, Bounds):
        return head, rest
    if head == "(":
        value, rest = _sum(rest)
        if rest and rest[0] == ")":
            return value, rest[1:]
    raise _NotArithmetic(str(head))


def formula(study: LintStudy) -> Iterator[Claim]:
    """Evaluate every formula and compare it with its claimed result."""
    for each in expressions(study):
        if not each.value.overlaps(each.said.bounds) and each.said.plain:
            yield Claim(
                place=study.document.place(each.sentence.line),
                said=f"{each.text} = {each.said.text}",
                corrected=printed(each.value.middle, each.said, more=0),
                why=f"{each.text} is {printed(each.value.middle, each.said)}",
            )


_ARROW: Final = re.compile(r"[\s\w.%/]*(?:→|->|=>|⟶)\s*")
_TO: Final = re.compile(r"\s*(?:down |up )?to\s+")
_FROM: Final = re.compile(r"(?i)\bfrom\s*$")
_COMPARES: Final = re.compile(
    r"(?i)^\W{0,3}(?:faster|slower|quicker|speed-?ups?|less|fewer|lower|higher|more|smaller|larger|shorter|longer|"
    r"as (?:fast|slow|long|much)|improvement|gain|reduction|better|worse)\b"
)
_COMPARED: Final = re.compile(
    r"(?i)\b(?:speed-?ups?|faster|slower|improvement|gain|reduction|ratio)(?: of| by| is| was)?\W{0,4}(?:about |~\s?)?$"
)


def arrow(study: LintStudy) -> Iterator[Claim]:
    """Compare `21.9 % (749 ms -> 585 ms)` or `3.3x faster (from 410 ms to 178 ms)` with the change between the two."""
    texts = [(sentence.text, sentence.line, "", "") for sentence in study.document.sentences]
    for view in study.views:
        if view.table.origin == "table":
            texts += [
                (cell.text, cell.line, row.label, view.table.header[number])
                for row in view.table.rows
                for number, cell in enumerate(row.cells[: len(view.table.header)])
            ]
    for text, line, row, column in texts:
        found = quantities(text)
        for number, (one, two) in enumerate(pairwise(found)):
            changes = [
                each
                for each in (*found[max(0, number - 1) : number], *found[number + 2 : number + 3])
                if each.dimension == "percent" or (each.dimension == "ratio" and _is_claimed(text, each))
            ]
            first = one.measured_in(two.unit) if one.unit is None else one
            same = first.dimension == two.dimension and first.dimension not in ("none", "percent", "count")
            if same and len(changes) == 1 and min(one.value, two.value) > 0 and _leads_to(text, one, two):
                yield from _change(study, (line, row, column), (changes[0], first, two))


def _leads_to(text: str, one: Quantity, two: Quantity) -> bool:
    """Return True for the texts `one -> two` and `from one to two`."""
    between = text[one.stop : two.start]
    return bool(_ARROW.fullmatch(between) or (_TO.fullmatch(between) and _FROM.search(text[: one.start])))


def _is_claimed(text: str, ratio: Quantity) -> bool:
    """Return True for `3.3x faster`, `a speedup of 3.3x` or a bare `(3.3x)`, but not for the `2x` of `2x A100`."""
    before, after = text[: ratio.start], text[ratio.stop :]
    alone = before.rstrip().endswith(("(", ":", "=")) and after.lstrip().startswith((")", "(", ";", ",", "."))
    return bool(_COMPARES.search(after) or _COMPARED.search(before) or alone or not (before + after).strip(" .()"))


def _change(study: LintStudy, where: tuple[int, str, str], figures: tuple[Quantity, Quantity, Quantity]) -> Iterator[Claim]:
    said, one, two = figures
    ratio = two.bounds / one.bounds
    if said.dimension == "ratio":
        yield from _times(study, where, figures)
        return
    forms = [
        (ratio - exactly(1)) * exactly(100),
        (exactly(1) - ratio) * exactly(100),
        (exactly(1) / ratio - exactly(1)) * exactly(100),
    ]
    if said.plain and not any(form.overlaps(said.bounds) for form in forms):
        exact = (two.value / one.value - 1) * 100
        right = exact if said.signed else abs(exact)
        yield Claim(
            place=study.document.place(where[0], None, where[1], where[2]),
            said=f"{said.text} ({one.text} -> {two.text})",
            corrected=printed(right, said, more=0),
            why=f"{two.text} / {one.text} - 1 = {printed(exact, said)}",
        )


def _times(study: LintStudy, where: tuple[int, str, str], figures: tuple[Quantity, Quantity, Quantity]) -> Iterator[Claim]:
    said, one, two = figures
    forms = (two.bounds / one.bounds, one.bounds / two.bounds)
    if said.plain and not any(form.overlaps(said.bounds) for form in forms):
        larger, smaller = (one, two) if one.value >= two.value else (two, one)
        up = said.value >= 1
        right = larger.value / smaller.value if up else smaller.value / larger.value
        top, bottom = (larger, smaller) if up else (smaller, larger)
        yield Claim(
            place=study.document.place(where[0], None, where[1], where[2]),
            said=f"{said.text} ({one.text} -> {two.text})",
            corrected=printed(right, said, more=0),
            why=f"{top.text} / {bottom.text} = {printed(right, said)}",
        )


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


RULES: Final = (
    Rule(id="formula", meaning="A formula written out gives what it is said to give.", check=formula),
    Rule(id="arrow", meaning="A percentage or ratio beside `a -> b` or `from a to b` is the change from a to b.", check=arrow),
    Rule(
        id="two-decompositions",
        meaning="One measured value is not made up in two ways that exclude each other.",
        check=decompositions,
    ),
)
