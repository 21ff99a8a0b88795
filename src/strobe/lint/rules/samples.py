"""Rules for percentiles from too few samples, and for statistics of one sample that are out of order."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from strobe.core.printable import first_of
from strobe.lint.document import DocumentSection, Table
from strobe.lint.finding import Claim, Rule
from strobe.lint.quantity import quantities
from strobe.lint.rules.rates import frames_of_block
from strobe.lint.study import Figure, LintStudy
from strobe.perf.measure.stats import P99_SAMPLES

_COUNT_HEAD: Final = re.compile(
    r"(?i)^(?:#|n|num|calls?|counts?|samples?|iterations?|iters?|runs?|reps?|launches|instances|occurrences?|frames|blocks|"
    r"requests)(?: \(.*\))?$|^(?:number|num|#) (?:of )?\w+$"
)
_N: Final = r"(?<![\w.,])(\d{1,3}(?:,\d{3})+|\d+)"
_NOUNS: Final = (
    r"(?:iterations?|iters?|samples?|runs?|repetitions?|repeats?|reps?|trials?|measurements?|requests?|calls?|rounds?|clips?)"
)
_STATED: Final = re.compile(rf"(?i){_N}\s+(?:timed |measured |steady(?:-state)? |profiled |benchmark )*(?P<noun>{_NOUNS})\b")
_SIZED: Final = re.compile(
    rf"(?i){_N}\s+(?:timed |measured |steady(?:-state)? |pixel |latent )*(?:frames?|(?:frame )?blocks?|switches|prompts)\b"
)
_EQUALS: Final = re.compile(
    r"(?i)(?<![\w.])(?:n|num_?(?:samples|iters?|iterations|runs)|samples|iterations|iters|runs|repetitions)\s*[=:]\s*(\d{1,3}(?:,\d{3})+|\d+)\b"
)
_FLAG: Final = re.compile(
    r"(?i)--(?:[a-z]+-)*(?:iterations?|iters?|runs?|samples?|repeats?|reps?|rounds?|requests|frames)[ =](\d+)\b"
)
_BENCHMARK: Final = re.compile(r"(?i)\b(?:benchmark\w*|bench|measured|measurements?|mode|over|timed|profil\w+|sampled?)\b")
_WARM: Final = re.compile(r"(?i)\bwarm-?up\b")
_SETUP: Final = re.compile(r"(?i)\b(?:environment|set-?up|method\w*|configuration|settings|protocol|benchmark|hardware|how)\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """A number of samples stated in the document, its place and its wording."""

    n: int
    line: int
    section: DocumentSection
    text: str


def samples_needed(percentile: float) -> int:
    """Return the fewest samples whose largest exceeds the percentile at 99 % confidence: 459 for p99, 90 for p95."""
    if percentile == 99:
        return P99_SAMPLES
    return math.ceil(math.log(0.01) / math.log(percentile / 100))


def percentile_samples(study: LintStudy) -> Iterator[Claim]:
    """Find percentiles from p99 on with too small a stated number of samples."""
    stated = list(_statements(study))
    groups: dict[tuple[int, str, Samples], list[Figure]] = {}
    for figure in study.figures:
        level = _level(figure.series.metric.statistic)
        if level is None or level < 99 or figure.series.metric.kind not in ("time", "number", "rate", "memory"):
            continue
        found = _samples_of(figure, stated)
        if found is not None and found.n < samples_needed(level):
            groups.setdefault((id(figure.view), figure.series.metric.title, found), []).append(figure)
    for (_, _, found), figures in groups.items():
        yield _claim(study, figures, found)


def _claim(study: LintStudy, figures: list[Figure], found: Samples) -> Claim:
    first = figures[0]
    title, level = first.series.metric.title, _level(first.series.metric.statistic)
    assert level is not None
    blocks = _blocks(study, found)
    return Claim(
        place=first.place,
        said=f"{title}: {first_of([figure.quantity.text for figure in figures], 1)}",
        corrected=f"max of {blocks or found.n}",
        why=f"{found.text} (line {found.line})"
        + (f", {blocks} frame blocks" if blocks else "")
        + f"; {first.series.metric.statistic} needs {samples_needed(level)} samples",
        also=tuple(figure.place for figure in figures[1:]),
    )


def _blocks(study: LintStudy, found: Samples) -> int:
    """Convert a number of frames to frame blocks, since latencies are measured per block."""
    size = frames_of_block(study)
    return found.n // size if size and re.search(r"(?i)\bframes?$", found.text) else 0


def _level(statistic: str) -> float | None:
    found = re.fullmatch(r"p(\d{2,3}(?:\.\d+)?)", statistic)
    if not found:
        return None
    digits = found[1]
    return float(f"{digits[:2]}.{digits[2:]}") if len(digits) == 3 and "." not in digits else float(digits)


def _samples_of(figure: Figure, stated: list[Samples]) -> Samples | None:
    """Return the samples behind a figure: a count in its row, else the most stated in its section or document."""
    own = _own_count(figure)
    if own is not None:
        return own
    section = figure.view.table.section
    chapter = [each for each in stated if each.section.path[:2] == section.path[:2]]
    general = [
        each
        for each in stated
        if len(each.section.path) <= 1 or (len(each.section.path) == 2 and _SETUP.search(each.section.title))
    ]
    pool = chapter or general
    return max(pool, key=lambda each: each.n) if pool else None


def _own_count(figure: Figure) -> Samples | None:
    view, section = figure.view, figure.view.table.section
    for series in view.series:
        if _COUNT_HEAD.match(series.metric.title):
            count = series.of(figure.entry.position)
            if count is not None and count.value.denominator == 1:
                return Samples(
                    n=int(count.value), line=figure.place.line, section=section, text=f"{series.metric.title} {count.text}"
                )
    for text in (figure.entry.cell.text, figure.view.table.caption, *figure.view.table.notes):
        for n, words in _counts(text):
            return Samples(n=n, line=figure.place.line, section=section, text=words)
    return None


def _counts(text: str) -> Iterator[tuple[int, str]]:
    for pattern in (_STATED, _EQUALS, _FLAG):
        for found in pattern.finditer(text):
            if not _WARM.search(text[max(0, found.start() - 12) : found.end() + 12]):
                yield int(found[1].replace(",", "")), found[0]
    if _BENCHMARK.search(text):
        for found in _SIZED.finditer(text):
            yield int(found[1].replace(",", "")), found[0]


def _statements(study: LintStudy) -> Iterator[Samples]:
    """Yield every number of samples in the document: in sentences, cells of settings, and flags of commands."""
    for sentence in study.document.sentences:
        for n, text in _counts(sentence.text):
            yield Samples(n=n, line=sentence.line, section=sentence.section, text=text)
    for line in study.document.code:
        for n, text in ((int(found[1]), found[0]) for found in _FLAG.finditer(line.text)):
            yield Samples(n=n, line=line.line, section=line.section, text=text)
    for table in study.document.tables:
        yield from _in_table(table)


def _in_table(table: Table) -> Iterator[Samples]:
    """Yield the samples of a settings table: `Benchmark mode | quick (100 frames)`, `Iterations | 100`."""
    if len(table.header) != 2:
        return
    for row in table.rows:
        text = f"{row.label}: {row.cells[-1].text}"
        for n, words in _counts(text):
            yield Samples(n=n, line=row.line, section=table.section, text=words)
        if re.fullmatch(rf"(?i){_NOUNS}|(?:number|num|#) of {_NOUNS}|n", row.label.strip()):
            for found in quantities(row.cells[-1].text)[:1]:
                yield Samples(n=int(found.value), line=row.line, section=table.section, text=text)


# ------------------------------------------------------------------------------------------------------------------ order


RULES: Final = (
    Rule(
        id="percentile-samples",
        meaning=f"A p99 stands on at least {P99_SAMPLES} samples; below that it is called the largest of n.",
        severity="warning",
        check=percentile_samples,
    ),
)
