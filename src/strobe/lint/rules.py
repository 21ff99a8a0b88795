"""The rules: what does not hold between a document's numbers, arithmetic and the hardware; and their entry points.

A formula over the figures of one source, such as `3 frames / latency` of the means, is a reading of a column. The reading that
most rows fit is the document's; a row that it does not fit is a finding, and what else it is says another reading.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Final, NamedTuple

from strobe.core import costs
from strobe.core.errors import DataError, unknown_choice
from strobe.core.printable import first_of
from strobe.lint.document import (
    Claim,
    ClaimPlace,
    DocumentTable,
    LintDocument,
    LintFigure,
    LintOptions,
    MetricSeries,
    Sentence,
    read_markdown,
    read_printed,
)  # fmt: skip
from strobe.lint.quantity import (
    BASE,
    NAMED_QUALITY,
    QUALITY,
    UNITS,
    Bounds,
    Metric,
    Quantity,
    exactly,
    is_total,
    key,
    printed,
    spelled,
    statistic,
    words,
)  # fmt: skip
from strobe.perf.measure.stats import P99_SAMPLES

CHANCE: Final = Fraction(1, 10)
"""Chance that a row agrees on a whole number of frames by itself, below which it is evidence; of two rows 1 %."""
MAJORITY: Final = Fraction(3, 5)
FLOOR: Final = Fraction(1, 100)
"""Relative tolerance of a rate or ratio beyond its printed digits: a mean of rates is not the rate of the mean."""
FLOOR_POINTS: Final = Fraction(3, 10)
"""Tolerance of a change beyond its printed digits, percentage points."""
_PER_FRAME: Final = re.compile(r"(?i)\b(?:per|between|inter)[ -](?:\w+ )?frames?\b|/ ?frame\b")
"""Words of a time per frame, which is not that of a frame block."""
_INTERVAL: Final = re.compile(r"\[\s*[-+−]?\d[^\[\]]*[,;–-]\s*[-+−]?\d[^\[\]]*\]")
_ITSELF: Final = re.compile(r"1(?:\.0+)?x|[+-]?0(?:\.0+)?\s?%")
_OTHER: Final = re.compile(r"(?i)\b(?:median of|geo(?:metric)? ?mean|paired|pairs|per pair|interval|need not equal|bootstrap)\b")
_ONE, _HUNDRED = exactly(1), exactly(100)
FORMULAS: Final[dict[tuple[str, str], Callable[..., Bounds]]] = {
    ("percent", "candidate / reference - 1"): lambda ref, cand: (cand / ref - _ONE) * _HUNDRED,
    ("percent", "1 - candidate / reference"): lambda ref, cand: (_ONE - cand / ref) * _HUNDRED,
    ("percent", "reference / candidate - 1"): lambda ref, cand: (ref / cand - _ONE) * _HUNDRED,
    ("percent", "candidate / reference"): lambda ref, cand: cand / ref * _HUNDRED,
    ("ratio", "reference / candidate"): lambda ref, cand: ref / cand,
    ("ratio", "candidate / reference"): lambda ref, cand: cand / ref,
    ("same", "candidate - reference"): lambda ref, cand: cand - ref,
    ("same", "reference - candidate"): lambda ref, cand: ref - cand,
}
"""By family of units and name: function from reference and candidate to the printed figure."""

Rows = dict[LintFigure, tuple[Quantity, ...]]
"""Computed figures with the operands that one source has for each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One interpretation of a computed column: a formula on the figures of one source, and what it gives for each row."""

    source: str
    formula: str
    by: Callable[..., Bounds]
    rows: Rows

    def gives(self, figure: LintFigure) -> Bounds:
        """Evaluate the formula for a row over the intervals of its operands."""
        return self.by(*(each.bounds for each in self.rows[figure]))

    @property
    def fits(self) -> list[LintFigure]:
        """Rows whose figure may be what the formula gives."""
        return [figure for figure in self.rows if figure.quantity.bounds.overlaps(self.gives(figure))]

    def claims(self, others: Iterable[Reading]) -> Iterator[tuple[tuple[object, ...], Claim]]:
        """Yield, each with an identity that its repetitions share, the rows that this reading does not give."""
        for figure, operands in self.rows.items():
            said, right = figure.quantity, self.gives(figure)
            off = max(said.bounds.low - right.high, right.low - said.bounds.high)
            if off <= (FLOOR_POINTS if said.dimension == "percent" else FLOOR * abs(right.middle)):
                continue
            switched = (each.source for each in others if each.formula == self.formula and figure in each.fits)
            source = next((f"; it is that of {name}: the column changes its statistic" for name in switched), "")
            exact = printed(self.by(*(exactly(each.value) for each in operands)).middle, said)
            of = f"{self.source} ({', '.join(each.text for each in operands)})"
            why = f"{self.formula} of {of} is {exact}{source}"
            claim = Claim(place=figure.place, said=f"{figure.name}: {said.text}", corrected=exact, why=why)
            yield _identity(figure, operands), claim


def _identity(figure: LintFigure, operands: tuple[Quantity, ...]) -> tuple[object, ...]:
    return key(figure.name), figure.quantity.value, *(each.value for each in operands)


def _rates(tables: Iterable[DocumentTable]) -> dict[str, dict[str, Rows]]:
    """Return, by kind of rate (latent and pixel FPS differ) and by latency, the rates with the time beside each."""
    found: dict[str, dict[str, Rows]] = defaultdict(lambda: defaultdict(dict))
    for table in tables:
        rates = [figure for series in table.of_kind("rate") for figure in series.figures]
        for latency, rate in product(table.singles, rates):
            time = None if _PER_FRAME.search(latency.metric.title) else latency.of(rate.position)
            if time and time.plain and rate.quantity.plain and time.value > 0 and rate.quantity.value > 0:
                found[key(rate.metric.title)][latency.metric.title][rate] = (time,)
    return found


def _frames(rate: LintFigure, time: Quantity) -> int:
    """Return the whole number of frames that a rate and a latency imply; 0 if that may be chance."""
    product = rate.quantity.bounds * time.bounds
    return math.ceil(product.low) if math.ceil(product.low) == math.floor(product.high) and product.width < CHANCE else 0


def _consensus(by_latency: dict[str, Rows]) -> tuple[str, int] | None:
    """Return the latency and the whole number of frames that most rows agree on, repetitions counted once."""
    distinct = {
        (title, _identity(rate, times)): _frames(rate, *times)
        for title, rows in by_latency.items()
        for rate, times in rows.items()
    }
    votes = Counter((title, frames) for (title, _), frames in distinct.items() if frames)
    for (latency, frames), number in votes.most_common(1):
        if number >= 2 and number >= MAJORITY * sum(title == latency for title, _ in distinct):
            return latency, frames
    return None


def fps_latency(document: LintDocument) -> Iterator[Claim]:
    """Compare every rate with the latency beside it, by the number of frames that the other rows agree on."""
    whole = {kind: _consensus(by_latency) for kind, by_latency in _rates(document.tables).items()}
    found: dict[tuple[object, ...], Claim] = {}
    for table in document.tables:
        for kind, by_latency in _rates([table]).items():
            latency, frames = _consensus(by_latency) or whole[kind] or ("", 0)
            formula, by = f"{frames} frames / latency", exactly(frames).__truediv__
            readings = {
                title: Reading(source=title, formula=formula, by=by, rows=rows) for title, rows in by_latency.items() if frames
            }
            own = readings.pop(latency, None)
            for identity, claim in own.claims(readings.values()) if own else ():
                first = found.setdefault(identity, claim)
                if first is not claim:
                    found[identity] = replace(first, also=(*first.also, claim.place))
    yield from found.values()


def _reference_row(derived: MetricSeries) -> int | None:
    """Return the row that others are compared with: named in the head, or marked in the column."""
    title = derived.metric.title.lower()
    for entry in derived.entries:
        if key(entry.name) and re.search(rf"\b(?:vs\.?|versus|to|over|against|than)\s+{re.escape(key(entry.name))}\b", title):
            return entry.position
    texts = {entry.position: "" if entry.cell.empty else entry.cell.text.strip().lower() for entry in derived.entries}
    return next((at for at, text in texts.items() if not text or BASE.fullmatch(text) or _ITSELF.fullmatch(text)), None)


def _sources(table: DocumentTable, derived: MetricSeries) -> dict[str, Rows]:
    """Return, by name, reference and candidate of each figure of a computed column: one row of another column against each, two
    columns of one kind, or the two configurations if metrics are the rows."""
    usable = [entry for entry in derived.figures if entry.quantity.plain and not _INTERVAL.search(entry.cell.text)]
    if not table.by_columns:
        rows = {series.entries[0].row: tuple(each.quantity for each in series.figures) for series in table.series}
        names = [entry.name for series in table.series[:1] for entry in series.entries]
        pairs = {entry: rows[entry.row] for entry in usable if len(rows.get(entry.row, ())) == 2 == len(names)}
        return {" and ".join(names): pairs}
    found: dict[str, Rows] = {}
    at = _reference_row(derived)
    for series in table.of_kind("time", "rate", "memory", "count", "number"):
        others = {entry: series.of(entry.position) for entry in usable if entry.position != at}
        if at is not None and (base := series.of(at)):
            found[series.metric.title] = {entry: (base, own) for entry, own in others.items() if own}
    columns = [series for series in table.of_kind("time", "rate", "memory") if series.metric.statistic != "spread"]
    for one, two in combinations(columns, 2):
        if one.metric.kind == two.metric.kind and not _statistics_of_one(one, two):
            both = {entry: (one.of(entry.position), two.of(entry.position)) for entry in usable}
            name = f"{one.metric.title} and {two.metric.title}"
            found[name] = {entry: (first, second) for entry, (first, second) in both.items() if first and second}
    return found


def _statistics_of_one(one: MetricSeries, two: MetricSeries) -> bool:
    """Whether both are statistics of the same quantity (`SS Mean`, `SS Max`)."""
    return one.metric.statistic != two.metric.statistic and words(one.metric.title) == words(two.metric.title)


def _columns(document: LintDocument) -> Iterator[tuple[DocumentTable, MetricSeries, list[Reading]]]:
    """Yield every computed column with the formulas that suit its units, the one that fits most rows first."""
    for table in document.tables:
        if table.origin != "table" or _OTHER.search(table.context):
            continue
        for derived in table.computed:
            readings = []
            for source, rows in _sources(table, derived).items():
                units = {(entry.quantity.dimension, both[1].dimension) for entry, both in rows.items()}
                families = {
                    said if said in ("percent", "ratio") else "same" if said == candidate != "none" else "ratio"
                    for said, candidate in units
                }
                positive = all(each.bounds.low > 0 for both in rows.values() for each in both)
                readings += [
                    Reading(source=source, formula=formula, by=by, rows=rows)
                    for (family, formula), by in FORMULAS.items()
                    if positive and {family} == families
                ]
            yield table, derived, sorted(readings, key=lambda reading: -len(reading.fits))


def change_column(document: LintDocument) -> Iterator[Claim]:
    """Find rows of a computed column that the formula of the other rows does not give."""
    for _, _, readings in _columns(document):
        for best in readings[:1]:
            if len(best.fits) >= 2 and len(best.fits) >= MAJORITY * len(best.rows):
                yield from (claim for _, claim in best.claims(readings))


def statistic_unnamed(document: LintDocument) -> Iterator[Claim]:
    """Find computed columns beside several statistics of one quantity that do not say which of them they compare."""
    for table, derived, readings in _columns(document):
        complete = {each.source: each for each in readings if len(each.fits) == len(each.rows) >= 2}
        source = next((each for each in table.series if [each.metric.title] == list(complete)), None)
        if source is None or not source.metric.statistic:
            continue
        siblings = [each for each in table.of_kind("time") if each.metric.statistic and _statistics_of_one(each, source)]
        texts = (derived.metric.title, table.caption, *table.notes)
        if siblings and not any(statistic(text) == source.metric.statistic for text in texts):
            yield Claim(
                place=ClaimPlace(line=table.line, table=table.name, column=derived.metric.title),
                said=derived.metric.title,
                corrected=f"name the statistic: {source.metric.title}",
                why=f"every row is {complete[source.metric.title].formula} of it, and the head does not say so",
            )


_DELTA: Final = re.compile(rf"{NAMED_QUALITY}\W{{0,3}}(?=[+-−])", re.IGNORECASE)


def delta_disagrees(document: LintDocument) -> Iterator[Claim]:
    """Compare `SSIM: -0.03` in a sentence with the configuration's figure minus the baseline's in the tables."""
    metrics = {series.metric.quality: series.figures for table in document.tables for series in table.of_kind("quality")}
    for sentence in document.sentences if metrics else ():
        for found in _DELTA.finditer(sentence.text):
            figures = metrics.get(found[1].lower(), ())
            said = next((each for each in sentence.found if found.end() - 1 <= each.start <= found.end() and each.signed), None)
            base = next((figure for figure in figures if BASE.fullmatch(key(figure.name))), None)
            about = sentence.about([figure for figure in figures if figure is not base])
            if said is None or base is None or len(about) != 1:
                continue
            own = about[0]
            right = own.quantity.bounds - base.quantity.bounds
            if not said.bounds.overlaps(right.wider(-min(right.width / 2, said.rounding))):
                exact = printed(own.quantity.value - base.quantity.value, said)
                yield Claim(
                    place=ClaimPlace(line=sentence.line),
                    said=f"{own.name}: {found[1]} {said.text}",
                    corrected=exact,
                    why=f"'{own.table.name}' (line {own.table.line}): {base.quantity.text} to {own.quantity.text} is {exact}",
                    also=(own.place,),
                )


_NOT_ADDITIVE: Final = re.compile(
    r"(?i)\b(?:overlap\w*|concurrent\w*|parallel|async\w*|union|nest(?:s|ed|ing)?|contains? every|inclusive|not additive|"
    r"do(?:es)? not add|top[- ]?\d+|largest \d+|first \d+|selected|excerpt|examples? only|wall[- ]?clock|wall time|critical path|"
    r"double[- ]count\w*)\b"
)
"""Words that state that the rows do not add up to the total."""
_WALL: Final = re.compile(r"(?i)\b(?:wall|elapsed|end[- ]to[- ]end|e2e|span)\b")
_RUNNING: Final = re.compile(r"(?i)\b(?:excluding|without|until|till|up to|cumulative|running|remaining|including)\b")
"""Heads of columns whose rows overlap: each is the whole without or up to something."""
_MORE: Final = re.compile(r"(?i)^(?:\.\.\.|…|etc)")


def _additive(metric: Metric) -> bool:
    """Return True for a column whose parts may be added: times, memory, counts; no peaks, percentiles or rates."""
    summed = metric.kind in ("time", "memory", "count", "work") and metric.statistic in ("", "mean", "sum")
    return summed and not _RUNNING.search(metric.title) and (metric.kind != "memory" or "peak" not in metric.title.lower())


def _sum(entries: Iterable[LintFigure]) -> Bounds | None:
    """Add up the intervals of two parts or more; None if one of them is not a figure. Empty cells count as zero."""
    full = [entry for entry in entries if not entry.cell.empty]
    if len(full) < 2 or any(entry.cell.quantity is None for entry in full):
        return None
    return sum((entry.quantity.bounds for entry in full), exactly(0))


def _outer(entries: Sequence[LintFigure]) -> list[LintFigure]:
    """Leave out the rows set in under others or named after one (`attn / qkv`, `attn.qkv`), which that one is made of."""
    depths = [entry.table.rows[entry.row].depth for entry in entries]
    after = re.compile(r"\s*(?:/|\.|:|>|→|->|_)\s*\w")
    names = {entry.name.lower() for entry in entries}
    return [
        entry for entry, depth in zip(entries, depths, strict=True)
        if depth == min(depths)
        and not any(entry.name.lower().startswith(name) and after.match(entry.name[len(name) :]) for name in names if name)
    ]  # fmt: skip


def _choices(table: DocumentTable, series: MetricSeries) -> Iterator[tuple[LintFigure, list[list[LintFigure]]]]:
    """Yield each total with what it may be the sum of. A total in the first row closes the rows below it."""
    rows, entries = table.rows, list(series.entries)
    if entries and [entry for entry in entries if is_total(entry.name)] == entries[:1]:
        entries = [*entries[1:], entries[0]]
    for at, total in enumerate(entries):
        if is_total(total.name) and total.cell.quantity is not None and not _group_of(table, total):
            above = [entry for entry in entries[:at] if rows[entry.row].group == rows[total.row].group]
            totals = [entry for entry in above if is_total(entry.name)]
            parts = [entry for entry in above if not is_total(entry.name)]
            since = [entry for entry in parts if not totals or entries.index(entry) > entries.index(totals[-1])]
            outer = _outer(since)
            yield total, [outer, _outer(parts), totals, [*totals, *outer]]


def _group_of(table: DocumentTable, total: LintFigure) -> set[int]:
    """Return the rows of the group that a printed total names: `Total Computation` and the rows under `COMPUTATION:`."""
    rows, own = table.rows, set(words(total.name)) - {"total"}
    return {
        number for number, row in enumerate(rows)
        if row.group != rows[total.row].group and own and own == set(words(row.group))
    }  # fmt: skip


def _groups(table: DocumentTable) -> Iterator[tuple[LintFigure, Bounds]]:
    """Yield the totals of a printed summary that name a group of rows, with the sum of those rows."""
    times = sorted(table.of_kind("time"), key=lambda series: series.metric.statistic != "sum")
    for total in [entry for series in table.of_kind("time") for entry in series.figures if is_total(entry.name)]:
        rows = _group_of(table, total)
        members = [[entry for entry in series.figures if entry.row in rows] for series in times]
        added = (parts for found in members if len(found) == len(rows) and (parts := _sum(found)) is not None)
        if rows and (parts := next(added, None)):
            yield total, parts


def total_sum(document: LintDocument) -> Iterator[Claim]:
    """Compare each total with the sum of the rows it closes, or of the group that it names."""
    for table in document.tables:
        explained = _NOT_ADDITIVE.search(table.context) or any(_MORE.match(row.label) for row in table.rows)
        if table.origin == "list" or not table.by_columns or explained:
            continue
        groups = list(_groups(table)) if table.origin == "lines" else []
        leaves = sum((parts.middle for _, parts in groups), Fraction(0)) if len(groups) > 1 else Fraction(0)
        for total, parts in groups:
            if not total.quantity.bounds.overlaps(parts):
                yield _not_the_sum(total, parts.middle, leaves)
        for total, choices in [each for series in table.series if _additive(series.metric) for each in _choices(table, series)]:
            sums = [added for choice in choices if (added := _sum(choice)) is not None]
            agree = any(total.quantity.bounds.overlaps(added) for added in sums)
            if sums and not agree and not _WALL.search(total.name):
                yield _not_the_sum(total, sums[0].middle, Fraction(0))


def _not_the_sum(total: LintFigure, right: Fraction, leaves: Fraction) -> Claim:
    """Make the finding of a total; `leaves` is the sum of all groups, where there are several."""
    said, off = total.quantity, total.quantity.value - right
    shown, whole = printed(right, said, more=0), printed(leaves, said, more=0)
    beside = [cell.quantity for cell in total.table.rows[total.row].cells if cell.quantity]
    share = next((f" ({each.text})" for each in beside if each.dimension == "percent"), "") if leaves else ""
    part = float(100 * right / leaves) if leaves else 0.0
    if leaves and abs(off - leaves) <= leaves / 50:
        how = f"is all rows together ({whole}): a parent was counted with its children"
    else:
        how = "unattributed: say so in a row of its own" if off > 0 else "more than the total"
    return Claim(
        place=total.place,
        said=f"{total.name}: {said.text}{share}",
        corrected=shown + (f" = {part:.2f} % of {whole}, the rest {100 - part:.2f} %" if leaves else ""),
        why=f"its rows add up to {printed(right, said)}; {printed(abs(off), said)} {how}",
    )


_NUMBER: Final = r"(?:\d{1,3}(?:,\d{3}){1,9}|\d{1,30})(?:\.\d{1,30})?"
_TERM: Final = rf"{_NUMBER}(?:\s?(?:{spelled('time', 'bytes')})(?![\w/])|(?!\s?[x×]\s)(?:\s(?!x\b)[a-z][a-z-]*){{1,2}})?"
"""A number and its unit, or a word or two such as `denoising steps`."""
_PRODUCT: Final = re.compile(
    rf"(?<![\w.,)\]^])(?P<left>{_TERM}\s*[*×x·]\s*{_TERM}(?:\s*\+\s*{_TERM})*)"
    rf"\s*(?:=|≈)\s*(?P<right>~?\s*{_NUMBER})"
)
APART: Final = Fraction(1, 50)
CLOSE: Final = Fraction(1, 100)
MEASURED: Final = re.compile(r"(?i)\W{0,2}\s*(?:was |were |is )?(?:measured|observed|actual|in practice)")
_MATCHES: Final = re.compile(
    r"(?i)\b(?:match(?:es|ing)?|equals?|agrees? with|confirms?|explains?|corresponds? to|consistent with|is the)\b"
)


class _Product(NamedTuple):
    """A formula in a sentence, `4 x 144.5 ms + 45 = 623 ms (621 ms measured)`: its result, and the value that it explains."""

    sentence: Sentence
    text: str
    said: Quantity
    measured: Bounds


def _products(document: LintDocument) -> Iterator[_Product]:
    for sentence in document.sentences:
        for found in _PRODUCT.finditer(sentence.text):
            said = next((each for each in sentence.found if each.stop > found.start("right")), None)
            if said is None or said.dimension not in ("time", "bytes"):
                continue
            after = [each for each in sentence.found if each.start > said.stop and each.dimension == said.dimension]
            measured = next((each.bounds for each in after if MEASURED.match(sentence.text[each.stop :])), None)
            if measured is None and _MATCHES.search(sentence.text, said.stop):  # what was measured: the claimed value
                measured = said.bounds
            if measured is not None:
                yield _Product(sentence, found["left"].strip(), said, measured)


def two_decompositions(document: LintDocument) -> Iterator[Claim]:
    """Find two products that are claimed to make up the same measured value and give different results."""
    for one, two in combinations(_products(document), 2):
        gap, measured = abs(one.said.value - two.said.value), one.measured.middle
        same = one.measured.overlaps(two.measured) or abs(measured - two.measured.middle) <= CLOSE * measured
        if same and not one.said.bounds.overlaps(two.said.bounds) and gap > APART * one.said.value:
            nearer, other = sorted((one, two), key=lambda each: abs(each.said.value - measured))
            yield Claim(
                place=ClaimPlace(line=two.sentence.line),
                said=f"{one.text} = {one.said.text} (line {one.sentence.line}) and {two.text} = {two.said.text}",
                corrected=f"one of them: {nearer.said.text} leaves no room for what {other.said.text} counts besides",
                why=f"both are said to make up {printed(measured, one.said, more=0)}, and differ by "
                f"{printed(gap, one.said, more=0)}",
                also=(ClaimPlace(line=one.sentence.line),),
            )


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


_N: Final = r"(?<![\w.,])(\d{1,3}(?:,\d{3})+|\d{1,9})\b"
_NOUNS: Final = r"(?:iter(?:ation)?s?|samples?|runs?|rep(?:etition|eat)?s?|trials?|measurements?|requests?|calls?|rounds?)"
_STATED: Final = re.compile(
    rf"(?i){_N}\s+(?:\w+ )?{_NOUNS}\b|(?<![\w.])(?:n|num_?(?:samples|iters?|iterations|runs)|{_NOUNS})\s*[=:]\s*{_N}\b"
    rf"|(?<=\(){_N} frames\b|(?<=over ){_N} (?:frame )?blocks\b"
)
"""A number of samples: `100 iterations`, `n = 33`, or of a mode, `quick (100 frames)`."""


def percentile_samples(document: LintDocument) -> Iterator[Claim]:
    """Find p99s, and percentiles beyond, of too few samples: those of the row, else the most that the document states."""
    rows = (row for table in document.tables if len(table.header) == 2 for row in table.rows)
    texts = [(f"{row.label}: {row.cells[-1].text}", row.line) for row in rows]
    texts += [(sentence.text, sentence.line) for sentence in document.sentences]
    stated = [
        (int(next(filter(None, found.groups())).replace(",", "")), f"{found[0]} (line {line})")
        for text, line in texts
        for found in _STATED.finditer(text)
        if "warm" not in text[max(0, found.start() - 12) : found.end() + 12].lower()
    ]
    size = next((frames for _, frames in filter(None, map(_consensus, _rates(document.tables).values()))), 0)  # of a frame block
    groups: dict[tuple[MetricSeries, int, str], list[LintFigure]] = {}
    for table, series in [(each, series) for each in document.tables for series in each.series]:
        if series.metric.statistic.startswith("p99") and series.metric.kind in ("time", "number", "rate", "memory"):
            for figure in series.figures:
                own = [each.of(figure.position) for each in table.of_kind("count")]
                counts = [(int(each.value), f"n {each.text} (line {figure.place.line})") for each in own if each] or stated
                if counts and max(counts)[0] < P99_SAMPLES:
                    groups.setdefault((series, *max(counts)), []).append(figure)
    for (series, n, text), figures in groups.items():
        blocks = n // size if size and " frames" in text else 0
        yield Claim(
            place=figures[0].place,
            said=f"{series.metric.title}: {first_of([figure.quantity.text for figure in figures], 1)}",
            corrected=f"max of {blocks or n}",
            why=f"{text}{f', {blocks} frame blocks' * bool(blocks)}; {series.metric.statistic} needs {P99_SAMPLES} samples",
            also=[figure.place for figure in figures[1:]],
        )


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
            ideal = f"against itself its {name.upper()} is {QUALITY[name]}"
            what = ideal if own else "which frames, from which preset, dtype and seed"
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


_COPY: Final = Fraction(1, 10_000)
"""Relative difference up to which two figures are examined."""
_DIGITS: Final = 5
_LUCK: Final = 0.01
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
        distance = float((high - low) / low)
        chance = per_distance * distance
        if distance > _COPY or chance >= _LUCK:
            continue
        one, two = both = sorted((times[low], times[high]), key=lambda figure: figure.place.line)
        names = [set(words(figure.name)) for figure in both]
        may_be_one = one.block == two.block or names[0] <= names[1] or names[1] <= names[0]
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
    value, times = figure.quantity.value, [each for each in document.figures if each.quantity.dimension == "time"]
    return [each.block for each in times if abs(each.quantity.value - value) <= _COPY * value].count(figure.block) > 1


def _single_time(figure: LintFigure) -> bool:
    """Return True for a time to many digits that is no sum and no difference."""
    texts = (figure.name, figure.metric.title, figure.table.rows[figure.row].group, figure.table.caption)
    plain = figure.quantity.digits >= _DIGITS and figure.quantity.plain and figure.metric.statistic in ("", "mean", "p50")
    return plain and not is_total(figure.name) and not any(_OTHER_BASIS.search(text) for text in texts)


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
    if options.window is None or device is None:
        return
    flops = {name: each.flops for name, (_, each) in options.parts(options.window).items()}
    seen: set[tuple[int, Fraction]] = set()
    for label, said, place in _timed_parts(document):
        part = _part(label)
        if part not in flops or not said.plain or said.value <= 0 or (place.line, said.value) in seen:
            continue
        seen.add((place.line, said.value))
        peaks = device.flops_per_s  # of 16 bits, the default of such models, unless the label names eight
        peak = max(peaks.values()) if _EIGHT_BITS.search(label) else peaks.get("bfloat16", max(peaks.values()))
        if Fraction(flops[part]) / said.bounds.high > peak:
            rate = float(Fraction(flops[part]) / said.value)
            yield Claim(
                place=place,
                said=f"{label}: {said.text}",
                corrected=f"at least {printed(Fraction(flops[part], peak), said)}",
                why=(
                    f"{flops[part] / 1e9:.4g} GFLOP in {said.text} = {rate / 1e15:.2f} PFLOP/s, {rate / peak:.1f} times the "
                    f"{peak / 1e12:.4g} TFLOP/s of {device.name}: a timer without synchronisation"
                ),
            )


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
_FREE: Final = Fraction(1, 4)
"""Least saving of a smaller window / removed FLOPs; below it the window had no effect, or FLOPs did not take the time."""
_WORTH: Final = Fraction(1, 10)


def window_free(document: LintDocument) -> Iterator[Claim]:
    """Compare what a smaller attention window saves with the FLOPs it removes."""
    for table in document.tables if document.options.parts(1) else ():
        if not table.by_columns or not _WINDOW.search(f"{table.header[0]} {table.caption} {' '.join(table.section[-1:])}"):
            continue
        times = sorted(table.singles, key=lambda series: series.metric.statistic != "mean")
        figures = times[0].figures if times else ()
        sizes = {int(found[1]): figure for figure in figures if (found := re.match(r"\D{0,12}(\d{1,9})\b", figure.name))}
        small, large = min(sizes, default=0), max(sizes, default=0)
        if small == large:
            continue
        work, least = (Fraction(costs.total(document.options.parts(size)).flops) for size in (large, small))
        one, two, removed = sizes[small].quantity, sizes[large].quantity, 1 - least / work
        if removed >= _WORTH and 1 - one.bounds.low / two.bounds.high < _FREE * removed:
            percent, right = float(100 * removed), printed((1 - removed) * two.value, one, more=0)
            yield Claim(
                place=sizes[small].place,
                said=f"window {large} to {small}: {two.text} to {one.text} ({float(100 * (one.value / two.value - 1)):+.1f}%)",
                corrected=f"about {right} ({-percent:+.1f}%) if the pass is bound by its FLOPs",
                why=f"{float(work) / 1e12:.1f} to {float(least) / 1e12:.1f} TFLOP per pass: {percent:.0f} % of the work is gone. "
                "Launch-bound, or the window was not applied",
                also=(sizes[large].place,),
            )


READERS: Final = dict.fromkeys((".md", ".markdown"), read_markdown) | dict.fromkeys((".txt", ".log", ".out"), read_printed)
Rules = Mapping[str, Callable[[LintDocument], Iterable[Claim]]]
RULES: Final[Rules] = {
    "fps-latency": fps_latency,
    "change-column": change_column,
    "statistic-unnamed": statistic_unnamed,
    "delta-disagrees": delta_disagrees,
    "total-sum": total_sum,
    "two-decompositions": two_decompositions,
    "superlative": superlative,
    "memory-fit": memory_fit,
    "value-of-another": value_of_another,
    "label-admitted": label_admitted,
    "percentile-samples": percentile_samples,
    "quality-reference": quality_reference,
    "coincidence": coincidence,
    "below-floor": below_floor,
    "window-free": window_free,
}
"""All rules by id, in the order in which findings of one line are listed; docs/lint.md says what each holds."""
WARNINGS: Final = frozenset({"statistic-unnamed", "percentile-samples", "quality-reference", "coincidence"})
"""Rules that find what is missing to judge a figure; the others find numbers that contradict each other or the hardware."""


def lint_file(path: Path, options: LintOptions | None = None, rules: Rules = RULES) -> tuple[Claim, ...]:
    """Hold the claims of a file to the rules: Markdown, or printed output."""
    name, suffix = path.as_posix(), path.suffix.lower()
    if suffix not in READERS:
        raise DataError(f"{name}: cannot be linted; give Markdown (.md) or printed output (.txt, .log)")
    try:
        data = path.read_bytes()
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "replace")
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror}); give an existing file") from error
    if "\0" in text:
        raise DataError(f"{name}: is binary, or in UTF-16 without a byte order mark; give text, best in UTF-8")
    return findings(READERS[suffix](text), options, rules)


def chosen_rules(ignore: Collection[str]) -> Rules:
    """Return the rules left without those of the ids in `ignore`."""
    for name in ignore:
        if name not in RULES:
            raise unknown_choice("rule", name, RULES)
    return {name: check for name, check in RULES.items() if name not in ignore}


def findings(document: LintDocument, options: LintOptions | None = None, rules: Rules = RULES) -> tuple[Claim, ...]:
    """Hold the claims of a document to the rules."""
    document = replace(document, options=options or document.options)
    found = [
        replace(claim, rule=name, severity="warning" if name in WARNINGS else "error")
        for name, check in rules.items()
        for claim in check(document)
        if not any(ignored in ("*", name) and claim.place.line in lines for lines, ignored in document.ignored)
    ]
    return tuple(sorted(found, key=lambda claim: claim.place.line))
