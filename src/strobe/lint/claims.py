"""What sentences say of figures that tables give, what a figure needs beside it, and what the hardware cannot do."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple

from strobe.core.costs import CostItem, PassShape, total, transformer_pass
from strobe.core.printable import first_of
from strobe.lint.arithmetic import MEASURED, frames_of_block
from strobe.lint.document import VALUE, Claim, ClaimPlace, DocumentTable, LintDocument, LintFigure, Titles
from strobe.lint.quantity import BASE, QUALITY, UNITS, Quantity, is_total, key, metric_of, printed, spelled, words
from strobe.perf.measure.stats import P99_SAMPLES

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


# ------------------------------------------------------------------------------------------------------------------------- units

_UNITS_OF: Final = {"time": "ms, µs or s", "memory": "GB, GiB or MB"}
_LABELLED: Final = re.compile(r"(?i)(?:^|[\s_])(?:latency|duration|elapsed|runtime|time)$")
"""A label of printed output or a list that ends in the word for a time."""


def no_unit(document: LintDocument) -> Iterator[Claim]:
    """Find columns or rows of times or memory without a unit in the cells, the head or the caption."""
    for table in document.tables:
        context = metric_of(f"{table.caption} {' '.join(table.section[-1:])}", None)
        for series in table.series:
            bare = [figure for figure in series.figures if figure.quantity.unit is None]
            title, kind, statistic = series.metric.title, series.metric.kind, series.metric.statistic
            if table.origin != "table":
                bare = [figure for figure in bare if title == VALUE and _LABELLED.search(figure.name)]
                title, kind = bare[0].name if bare else "", "time"
            elif len(bare) < len(series.figures):
                continue
            elif kind == "number" and statistic not in ("", "sum"):  # `Mean` below a heading `Latency`
                kind = context.kind
            if bare and kind in _UNITS_OF:
                yield Claim(
                    place=bare[0].place,
                    said=f"{title}: {bare[0].quantity.text}",
                    corrected=f"{title} ({_UNITS_OF[kind]})",
                    why=f"no unit beside the figure, in its head or in the caption ({len(bare)} without one)",
                )


# ---------------------------------------------------------------------------------------------------------------- samples

_COUNT_HEAD: Final = re.compile(
    r"(?i)^(?:#|n|num|calls?|counts?|samples?|iterations?|iters?|runs?|reps?|launches|instances|occurrences?|frames|blocks|"
    r"requests)(?: \(.*\))?$|^(?:number|num|#) (?:of )?\w+$"
)
_N: Final = r"(?<![\w.,])(\d{1,3}(?:,\d{3})+|\d{1,9})\b"
_WHICH: Final = r"\s+(?:timed |measured |steady(?:-state)? |profiled |benchmark |pixel |latent )*"
_NOUNS: Final = (
    r"(?:iterations?|iters?|samples?|runs?|repetitions?|repeats?|reps?|trials?|measurements?|requests?|calls?|rounds?|clips?)"
)
_STATED: Final = re.compile(
    rf"(?i){_N}{_WHICH}{_NOUNS}\b|(?<![\w.])(?:n|num_?(?:samples|iters?|iterations|runs)|{_NOUNS})\s*[=:]\s*{_N}\b"
    rf"|--(?:[a-z]+-)*(?:{_NOUNS}|requests|frames)[ =]{_N}\b"
)
"""A number of samples: `100 iterations`, `n = 33`, or a flag of a command."""
_SIZED: Final = re.compile(rf"(?i){_N}{_WHICH}(?:frames?|(?:frame )?blocks?|switches|prompts)\b")
_BENCHMARK: Final = re.compile(r"(?i)\b(?:benchmark\w*|bench|measured|measurements?|mode|over|timed|profil\w+|sampled?)\b")
_WARM: Final = re.compile(r"(?i)\bwarm-?up\b")


class _Samples(NamedTuple):
    """A number of samples stated in the document, its wording and its place."""

    n: int
    text: str
    line: int
    section: Titles


def percentile_samples(document: LintDocument) -> Iterator[Claim]:
    """Find p99s, and percentiles beyond, with too small a number of samples: of the row, else of the chapter, else at all."""
    stated = list(_statements(document))
    groups: dict[tuple[DocumentTable, str, _Samples], list[LintFigure]] = {}
    for figure in document.figures:
        if figure.metric.statistic.startswith("p99") and figure.metric.kind in ("time", "number", "rate", "memory"):
            chapter = [each for each in stated if each.section[:2] == figure.table.section[:2]]
            found = _own_count(figure) or max(chapter or stated, default=None)
            if found is not None and found.n < P99_SAMPLES:
                groups.setdefault((figure.table, figure.metric.title, found), []).append(figure)
    size = frames_of_block(document) if groups else 0
    for (_, title, found), figures in groups.items():
        blocks = found.n // size if size and re.search(r"(?i)\bframes?$", found.text) else 0
        yield Claim(
            place=figures[0].place,
            said=f"{title}: {first_of([figure.quantity.text for figure in figures], 1)}",
            corrected=f"max of {blocks or found.n}",
            why=f"{found.text} (line {found.line})"
            + (f", {blocks} frame blocks" if blocks else "")
            + f"; {figures[0].metric.statistic} needs {P99_SAMPLES} samples",
            also=[figure.place for figure in figures[1:]],
        )


def _own_count(figure: LintFigure) -> _Samples | None:
    """Return the samples that a column beside a figure counts."""
    for series in figure.table.series:
        count = series.of(figure.position) if _COUNT_HEAD.match(series.metric.title) else None
        if count is not None and count.value.denominator == 1:
            text = f"{series.metric.title} {count.text}"
            return _Samples(int(count.value), text, figure.place.line, figure.table.section)
    return None


def _statements(document: LintDocument) -> Iterator[_Samples]:
    """Yield every number of samples in the document: in sentences, cells of settings, and flags of commands."""
    rows = [(table, row) for table in document.tables if len(table.header) == 2 for row in table.rows]
    settings = [(f"{row.label}: {row.cells[-1].text}", row.line, table.section) for table, row in rows]
    said = [(each.text, each.line, each.section) for each in document.sentences]
    code = [(each.text, each.line, each.section) for each in document.code]
    for at, (text, line, section) in enumerate((*said, *settings, *code)):
        for found in (*_STATED.finditer(text), *(_SIZED.finditer(text) if _BENCHMARK.search(text) else ())):
            flag = found[0].startswith("--") or at < len(said) + len(settings)
            if flag and not _WARM.search(text[max(0, found.start() - 12) : found.end() + 12]):
                yield _Samples(int(next(filter(None, found.groups())).replace(",", "")), found[0], line, section)


# ------------------------------------------------------------------------------------------------------------- references

_NAMED: Final = re.compile(
    r"(?i)\b(?:against|vs\.?|versus|compared (?:to|with)|relative to|with respect to|w\.r\.t\.?|reference(?: is| are|:| =)|"
    r"ground[- ]truth|reconstruct\w*|(?:to|from|of) the (?:original|input|source|reference)|"
    r"references? (?:clip|video|image|frame|output|preset|run)s?|held[- ]out|(?:validation|test) \w+|measured (?:on|to|from))\b"
)
_REFERENCE: Final = re.compile(r"(?i)^\s*(?:reference|ref\.?|baseline \(reference\)|ground truth|original)\s*$")


def quality_reference(document: LintDocument) -> Iterator[Claim]:
    """Find tables of PSNR, SSIM, LPIPS or the like without a named reference, neither in the table nor its section."""
    for table in document.tables:
        figures = [figure for series in table.of_kind("quality") for figure in series.figures]
        texts = [table.caption, *table.header, *table.notes, *table.section[1:]]
        texts += [cell.text for row in table.rows for cell in row.cells[1:]]
        texts += [each.text for each in document.sentences if each.section[: len(table.section)] == table.section]
        own = next(filter(_not_itself, figures), None)
        named = any(_NAMED.search(text) for text in texts)
        for first in [own] if own else [] if named else figures[:1]:
            name, names = first.metric.quality, ", ".join(dict.fromkeys(each.metric.quality.upper() for each in figures))
            itself = f"against itself its {name.upper()} is {QUALITY[name]}"
            what = itself if own else "which frames, from which preset, dtype and seed"
            yield Claim(
                place=first.place,
                said=f"{first.name}{' is the reference' if own else ''}: {first.metric.title} {first.cell.text}",
                corrected=f"name the reference of {names}: {what}",
                why="nothing in the table or its section says what was compared with what",
            )


def _not_itself(figure: LintFigure) -> bool:
    """Return True for a figure of what calls itself the reference, if a reference cannot have it against itself."""
    rows, bounds, ideal = figure.table.rows, figure.quantity.bounds, QUALITY[figure.metric.quality]
    cells = rows[figure.row].cells if figure.table.by_columns else [row.cells[figure.position] for row in rows]
    perfect = ideal.isdigit() and bounds.low <= int(ideal) <= bounds.high
    return any(_REFERENCE.match(cell.text) for cell in cells) and not perfect and not re.search(r"(?i)inf|∞", figure.cell.text)


# ---------------------------------------------------------------------------------------------------------------- sources

CLOSE: Final = Fraction(1, 10_000)
"""Relative difference up to which two figures are examined."""
DIGITS: Final = 5
CHANCE: Final = 0.01
"""Probability of so close a pair among all figures, below which the pair is reported."""
_OTHER_BASIS: Final = re.compile(
    r"(?i)\b(?:sum|total|all calls|saved|share|budget|overhead|launch|gap|idle|delta|difference|per token|per frame|speed-?up)\b"
)


def coincidence(document: LintDocument) -> Iterator[Claim]:
    """Find two times of different names in different tables or groups that agree to four digits or more.

    If `m` figures were spread evenly over the logarithm of their range, the chance that some pair lies within a relative distance
    `d` is `m (m - 1) d / ln(max / min)`; below 1 % a copy is likelier than luck.
    """
    times = {
        figure.quantity.value: figure
        for figure in reversed(document.figures)
        if figure.quantity.dimension == "time" and figure.quantity.value > 0
    }
    values = sorted(times) if len(times) >= 3 else []
    per_distance = len(times) * (len(times) - 1) / math.log(values[-1] / values[0]) if values else 0.0
    for low, high in pairwise(values):
        if high - low > CLOSE * low:
            continue
        distance = float((high - low) / low)
        chance = per_distance * distance
        if chance >= CHANCE:
            continue
        one, two = both = sorted((times[low], times[high]), key=lambda figure: figure.place.line)
        groups = [(figure.table, figure.table.rows[figure.row].group) for figure in both]
        names = [set(words(figure.name)) for figure in both]
        may_be_one = groups[0] == groups[1] or names[0] <= names[1] or names[1] <= names[0]
        if not may_be_one and all(map(_single_time, both)) and not any(_repeated(document, figure) for figure in both):
            yield Claim(
                place=two.place,
                said=f"{two.name}: {two.quantity.text}",
                corrected="say where each figure comes from: one of them may be a copy",
                why=f"{one.name} {one.quantity.text} (line {one.place.line}), of another table, differs by "
                f"{distance:.1g} of it; by chance: {chance:.1g}",
                also=(one.place,),
            )


def _repeated(document: LintDocument, figure: LintFigure) -> bool:
    """Return whether its own rows have another figure as close, as the rounds of one measurement are."""
    value, rows = figure.quantity.value, figure.table.rows
    return any(
        each.quantity.dimension == "time" and abs(each.quantity.value - value) <= CLOSE * value
        for each in document.figures
        if each.table is figure.table and each is not figure and rows[each.row].group == rows[figure.row].group
    )


def _single_time(figure: LintFigure) -> bool:
    """Return True for a time to many digits that is no sum and no difference."""
    texts = (figure.name, figure.metric.title, figure.table.rows[figure.row].group, figure.table.caption)
    plain = figure.quantity.digits >= DIGITS and figure.quantity.plain and figure.metric.statistic in ("", "mean", "p50")
    return plain and not is_total(figure.name) and not any(_OTHER_BASIS.search(text) for text in texts)


# ---------------------------------------------------------------------------------------------------------------------- hardware

_PARTS: Final = {
    "attention_kernel": r"self[\s_-]?att(?:entio)?n\w*",
    "cross_attention_kernel": r"cross[\s_-]?att(?:entio)?n\w*",
    "ffn_up": r"ffn[\s_-]?up",
    "ffn_down": r"ffn[\s_-]?down",
    "qkv_projection": r"qkv",
}
"""Parts of a layer by the names of their costs, as they are called."""
_BESIDE: Final = r"sdpa|flash|kernel|core|layers?|later|first|per|call|proj\w*|output|fused|forward|fa\d|cudnn|fp8|bf16|\d+"
"""Words with which a part is still the same; `self-attention KV cache clone` is not attention."""
_EIGHT_BITS: Final = re.compile(r"(?i)fp8|float8|f8|int8")


def below_floor(document: LintDocument) -> Iterator[Claim]:
    """Compare times of parts of a transformer with their FLOPs at the device's peak: one call of one layer at least."""
    options, device = document.options, document.options.device
    if options.model is None or options.tokens_per_frame is None or options.window is None or device is None:
        return
    costs = {part.name: part.each.flops for part in _pass(document, options.window)}
    seen: set[tuple[int, Fraction]] = set()
    for label, said, place in _timed_parts(document):
        part = _part(label)
        if part is None or not said.plain or said.value <= 0 or (place.line, said.value) in seen:
            continue
        seen.add((place.line, said.value))
        peaks = device.flops_per_s  # of 16 bits, the default of such models, unless the label names eight
        peak = max(peaks.values()) if _EIGHT_BITS.search(label) else peaks.get("bfloat16", max(peaks.values()))
        if Fraction(costs[part]) / said.bounds.high > peak:
            rate = float(Fraction(costs[part]) / said.value)
            yield Claim(
                place=place,
                said=f"{label}: {said.text}",
                corrected=f"at least {printed(Fraction(costs[part], peak), said)}",
                why=(
                    f"{costs[part] / 1e9:.4g} GFLOP in {said.text} = {rate / 1e15:.2f} PFLOP/s, {rate / peak:.1f} times the "
                    f"{peak / 1e12:.4g} TFLOP/s of {device.name}: a timer without synchronisation"
                ),
            )


def _pass(document: LintDocument, window: int) -> tuple[CostItem, ...]:
    options = document.options
    assert options.model is not None and options.tokens_per_frame is not None
    frames = options.model.frame_block
    shape = PassShape(q_tokens=frames * options.tokens_per_frame, kv_tokens=max(window, frames) * options.tokens_per_frame)
    return transformer_pass(options.model, shape)


def _timed_parts(document: LintDocument) -> Iterator[tuple[str, Quantity, ClaimPlace]]:
    """Yield every time with its label: figures of tables, and items of lists."""
    for figure in document.figures:
        if figure.quantity.dimension == "time" and figure.metric.statistic in ("", "mean", "p50", "min"):
            yield figure.name, figure.quantity, figure.place
    for sentence in document.sentences:
        for said in sentence.found if sentence.lead and sentence.text.startswith(sentence.lead) else ():
            if said.dimension == "time":
                yield sentence.lead, said, ClaimPlace(line=sentence.line)


def _part(label: str) -> str | None:
    """Return the part of a layer that a label names alone."""
    bare = re.sub(r"\([^)]*\)", " ", label).strip()
    beside = rf"(?:(?:{_BESIDE})[\s_-]+)*{{}}(?:[\s_-]+(?:{_BESIDE}))*"
    return next((name for name, part in _PARTS.items() if re.fullmatch(beside.format(part), bare, re.IGNORECASE)), None)


_WINDOW: Final = re.compile(r"(?i)\b(?:window|local[ _]att\w*|context)\b")
FREE: Final = Fraction(1, 4)
"""Least saving of a smaller window / removed FLOPs; below it the window had no effect, or FLOPs did not take the time."""
WORTH: Final = Fraction(1, 10)


def window_free(document: LintDocument) -> Iterator[Claim]:
    """Compare what a smaller attention window saves with the FLOPs it removes."""
    if document.options.model is None or document.options.tokens_per_frame is None:
        return
    for table in document.tables:
        if table.by_columns and _WINDOW.search(f"{table.header[0]} {table.caption} {' '.join(table.section[-1:])}"):
            times = [series for series in table.of_kind("time") if series.metric.statistic not in ("spread", "sum")]
            times.sort(key=lambda series: series.metric.statistic != "mean")
            figures = times[0].figures if times else ()
            sizes = {int(found[1]): figure for figure in figures if (found := re.match(r"\D{0,12}(\d{1,9})\b", figure.name))}
            if len(sizes) >= 2:
                yield from _free(document, sizes, min(sizes), max(sizes))


def _free(document: LintDocument, sizes: dict[int, LintFigure], small: int, large: int) -> Iterator[Claim]:
    work, least = (Fraction(total(_pass(document, size)).flops) for size in (large, small))
    one, two, removed = sizes[small].quantity, sizes[large].quantity, 1 - least / work
    if removed >= WORTH and 1 - one.bounds.low / two.bounds.high < FREE * removed:
        percent, right = float(100 * removed), printed((1 - removed) * two.value, one, more=0)
        yield Claim(
            place=sizes[small].place,
            said=f"window {large} to {small}: {two.text} to {one.text} ({float(100 * (one.value / two.value - 1)):+.1f}%)",
            corrected=f"about {right} ({-percent:+.1f}%) if the pass is bound by its FLOPs",
            why=f"{float(work) / 1e12:.1f} to {float(least) / 1e12:.1f} TFLOP per pass: {percent:.0f} % of the work is gone. "
            "Launch-bound, or the window was not applied",
            also=(sizes[large].place,),
        )
