"""Rules for superlatives, claims of fitting into memory, and claimed explanations of a difference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from strobe.lint.document import Sentence
from strobe.lint.finding import Claim, Rule
from strobe.lint.names import covers, is_total, key, words
from strobe.lint.quantity import UNITS, Quantity
from strobe.lint.study import Figure, LintStudy

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

_EXPLAINS: Final = re.compile(
    r"(?i)^(?P<subject>.{2,60}?)\s+(?:explains?|accounts? for|causes?|is the (?:whole|entire) difference)\b"
)
_DIFFERENCE: Final = re.compile(r"(?i)\b(?:delta|difference|gap)\b")
SLACK: Final = Fraction(3, 2)


def explains(study: LintStudy) -> Iterator[Claim]:
    """Find a part that is claimed to explain a difference and is larger than that difference."""
    for sentence in study.document.sentences:
        found = _EXPLAINS.match(sentence.text)
        times = [each for each in sentence.found if each.dimension == "time" and each.plain]
        if not found or len(times) != 2 or not _DIFFERENCE.search(sentence.text):
            continue
        subject = [word for word in words(found["subject"]) if word not in _SUBJECT_STOP]
        parts = [
            figure for figure in study.figures if _comparable(figure) and subject and covers(words(figure.entry.key), subject)
        ]
        if len({figure.entry.key for figure in parts}) != 1:
            continue
        difference = abs(times[0].value - times[1].value)
        part = parts[0].quantity
        if part.bounds.low > SLACK * (difference + times[0].rounding + times[1].rounding):
            gap = f"{float(difference / UNITS['ms'].scale):.4g} ms"
            yield Claim(
                place=study.document.place(sentence.line),
                said=f"{found['subject']} ({part.text}) explains {times[0].text} against {times[1].text}",
                corrected=f"the difference is {gap}",
                why=f"{parts[0].entry.key} takes {part.text} ({parts[0].place.short}), more than the {gap} it is to explain",
                also=(parts[0].place,),
            )


RULES: Final = (
    Rule(
        id="superlative",
        meaning="What is called the largest or the fastest has the largest or smallest figure of its chapter.",
        check=superlative,
    ),
    Rule(id="memory-fit", meaning="What is recommended for a GPU of some size has a peak that fits into it.", check=memory_fit),
    Rule(id="explains-more", meaning="A part that explains a difference is not larger than the difference.", check=explains),
)
