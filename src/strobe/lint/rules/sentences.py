"""What sentences say of figures that tables give: the largest, what fits a GPU, the value of a step count, a wrong label."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from strobe.lint.document import Claim, ClaimPlace, LintDocument, LintFigure
from strobe.lint.quantity import BASE, UNITS, is_total, key, spelled, words
from strobe.lint.rules.sums import MEASURED

_SUPERLATIVE: Final = re.compile(
    r"(?P<name>[^.;:,()]{2,60})\s(?:is|are|was|were|remains?)\s+(?:by far |clearly |still )?(?:the\s+)?(?:single\s+)?"
    r"(?P<word>(?P<most>largest|slowest|longest|most expensive|costliest|biggest|heaviest|most time-consuming)|"
    r"fastest|smallest|cheapest|quickest|shortest|least expensive)\s+(?P<noun>(?:single |individual )?[\w-]+(?: [\w-]+)?)",
    re.IGNORECASE,
)
_NOT_FIRST: Final = re.compile(r"(?i)\b(?:second|third|next|one of|among|2nd|3rd|not)\b")
_NO_SUBJECT: Final = frozenset(["key", "insight", "note", "that", "so", "thus", "because", "here", "there"])


def superlative(document: LintDocument) -> Iterator[Claim]:
    """Compare `X is the largest kernel` with the figures of every comparable table of its chapter."""
    times = [
        figure for figure in document.figures
        if figure.metric.kind == "time" and figure.metric.statistic in ("mean", "", "p50", "sum") and figure.table.by_columns
        and not is_total(figure.name) and figure.quantity.plain
    ]  # fmt: skip
    said = [(sentence, found) for sentence in document.sentences for found in _SUPERLATIVE.finditer(sentence.text)]
    for sentence, found in said:
        subject = set(words(found["name"])) - _NO_SUBJECT
        chapter = sentence.section[: max(1, len(sentence.section) - 1)]
        figures = [figure for figure in times if figure.table.section[: len(chapter)] == chapter]
        own = [figure for figure in figures if subject and subject <= set(words(figure.name))]
        own = [figure for figure in own if figure.table.section == sentence.section] or own
        if len({figure.name for figure in own}) != 1 or _NOT_FIRST.search(sentence.text[: found.end()]):
            continue
        mine, sign = own[0], 1 if found["most"] else -1
        beaten = [
            figure for figure in figures
            if key(figure.metric.title) == key(mine.metric.title) and figure.name != mine.name
            and _in_scope(found["noun"], figure, mine) and sign * figure.quantity.value > sign * mine.quantity.value
            and not figure.quantity.bounds.overlaps(mine.quantity.bounds)
        ]  # fmt: skip
        if beaten:
            beaten.sort(key=lambda figure: figure.quantity.value, reverse=sign > 0)
            yield Claim(
                place=ClaimPlace(line=sentence.line),
                said=f"{found['name'].strip()} is the {found['word'].lower()} {found['noun']} ({mine.quantity.text})",
                corrected=", ".join(f"{each.name} {each.quantity.text} (line {each.place.line})" for each in beaten[:4]),
                why=f"{len(beaten)} figures of the same column are {'larger' if sign > 0 else 'smaller'}",
                also=[figure.place for figure in beaten],
            )


def _in_scope(noun: str, figure: LintFigure, mine: LintFigure) -> bool:
    """Return False for a figure of another table if only this table's heading has the noun (`attention operation`)."""
    inside = {word for title in (*mine.table.section[-1:], mine.table.caption) for word in words(title)}
    above = {word for title in mine.table.section[:-1] for word in words(title)}
    return figure.table is mine.table or not set(words(noun)) & (inside - above)


_SMALL: Final = re.compile(r"(?i)\b(?:gpus?|vram|cards?|devices?|graphics memory|device memory)\b")
_SAVES: Final = re.compile(r"(?i)\b(?:saves?|saved|saving|reduces?|reduced|less than before|lower by)\b")
_FITS: Final = re.compile(r"(?i)\b(?:fits?|runs?)\b[^.;]{0,24}$")
_NO_PEAK: Final = re.compile(r"(?i)saving|saved|bandwidth|weights|host|cpu|cache|per ")


def memory_fit(document: LintDocument) -> Iterator[Claim]:
    """Compare `for GPUs with < 24 GB` with the peak memory that the tables give the same configuration."""
    memory = [figure for figure in document.figures if figure.metric.kind == "memory" and figure.quantity.plain]
    peaks = [figure for figure in memory if not _NO_PEAK.search(figure.metric.title)]
    for sentence in document.sentences if peaks else ():
        text = sentence.text
        if not _SMALL.search(text) or _SAVES.search(text):
            continue
        smallest = min(sentence.about(peaks) or peaks, key=lambda figure: figure.quantity.value)
        for limit in sentence.found:
            meant = limit.dimension == "bytes" and (limit.mark == "below" or _FITS.search(text[: limit.start]))
            if meant and smallest.quantity.bounds.low > limit.value:
                yield Claim(
                    place=ClaimPlace(line=sentence.line),
                    said=limit.text,
                    corrected=f"needs {smallest.quantity.text}",
                    why=f"{smallest.name} peaks at {smallest.quantity.text} (line {smallest.place.line})",
                    also=(smallest.place,),
                )


_STEPS: Final = re.compile(r"(?i)(?<![\w.])(\d+)[\s-](?:denois\w+ )?steps?\b(?!\s*(?:per|/))")
_FIRST_STEPS: Final = re.compile(rf"\W*{_STEPS.pattern.removeprefix('(?i)')}")


def value_of_another(document: LintDocument) -> Iterator[Claim]:
    """Find a measured value that a sentence gives to one step count and a table under a heading with that count does not."""
    times = [figure for figure in document.figures if figure.quantity.dimension == "time"]
    for sentence in document.sentences:
        steps = _FIRST_STEPS.match(sentence.text)
        headed = [figure for figure in times if steps and steps[1] in _STEPS.findall("".join(figure.table.section[-1:]))]
        for said in sentence.found if headed else ():
            same = [figure for figure in times if figure.quantity.bounds.overlaps(said.bounds)]
            same = [figure for figure in same if figure.table.section != sentence.section]
            measured = said.dimension == "time" and MEASURED.match(sentence.text[said.stop :])
            if not measured or not same or set(same) & set(headed):
                continue
            own = [each for each in headed if each.metric.title == same[0].metric.title and not BASE.fullmatch(key(each.name))]
            for right in own[:1]:
                yield Claim(
                    place=ClaimPlace(line=sentence.line),
                    said=f"{steps[1] if steps else ''} steps: {said.text}",
                    corrected=f"{right.quantity.text} (of '{right.table.name}')",
                    why=f"{said.text} is of '{same[0].table.name}' (line {same[0].place.line})",
                    also=(same[0].place, right.place),
                )


_LABEL_OF: Final = rf"[^.;]{{0,40}}?\b(?P<unit>(?-i:{spelled('time')}))\b"
_LABEL: Final = re.compile(
    rf"(?i)\b(?:label\w*|print\w*|logged|says?|said|shown?|displayed|tagged|marked|suffix\w*|unit)\b{_LABEL_OF}"
)
_BEHAVES: Final = re.compile(rf"(?i)\b(?:behav\w+|(?:are|is) in fact|actually|in reality|really)\b{_LABEL_OF}")


def label_admitted(document: LintDocument) -> Iterator[Claim]:
    """Find sentences that admit a wrong unit on figures of the document."""
    for sentence in document.sentences:
        label, behaves = _LABEL.search(sentence.text), _BEHAVES.search(sentence.text)
        one, two = (UNITS[found["unit"]] if found else None for found in (label, behaves))
        if one and two and one != two:
            yield Claim(
                place=ClaimPlace(line=sentence.line),
                said=f"labelled {one.name}, behaving as {two.name}",
                corrected=f"the label {two.name}, or {one.name} and the values times {two.scale / one.scale}",
                why="the document says so itself; a reader of the figures cannot know which is meant",
            )
