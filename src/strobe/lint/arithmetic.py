"""Arithmetic: rates from times, changes and ratios of two figures, totals of rows, and formulas in sentences.

A formula over the figures of one source, such as `3 frames / latency` of the means, is a reading of a column. The reading that
most rows fit is the document's; a row that it does not fit is a finding, and what else it is says another reading.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from math import ceil, floor
from typing import Final, NamedTuple

from strobe.lint.document import Claim, ClaimPlace, DocumentTable, LintDocument, LintFigure, MetricSeries, Sentence
from strobe.lint.quantity import (
    BASE,
    NAMED_QUALITY,
    Bounds,
    Quantity,
    exactly,
    is_total,
    key,
    printed,
    spelled,
    statistic,
    words,
)

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
            claim = Claim(
                place=figure.place,
                said=f"{figure.name}: {said.text}",
                corrected=exact,
                why=f"{self.formula} of {of} is {exact}{source}",
            )
            yield _identity(figure, operands), claim


def _identity(figure: LintFigure, operands: tuple[Quantity, ...]) -> tuple[object, ...]:
    return key(figure.name), figure.quantity.value, *(each.value for each in operands)


# ------------------------------------------------------------------------------------------------------------------ rates


def _rates(tables: Iterable[DocumentTable]) -> dict[str, dict[str, Rows]]:
    """Return, by kind of rate (latent and pixel FPS differ) and by latency, the rates with the time beside each."""
    found: dict[str, dict[str, Rows]] = {}
    for table in tables:
        latencies = [
            each for each in table.of_kind("time")
            if each.metric.statistic not in ("spread", "sum") and not _PER_FRAME.search(each.metric.title)
        ]  # fmt: skip
        for rate in [figure for series in table.of_kind("rate") for figure in series.figures]:
            for latency in latencies:
                time = latency.of(rate.position)
                if time and time.plain and rate.quantity.plain and time.value > 0 and rate.quantity.value > 0:
                    by_latency = found.setdefault(key(rate.metric.title), {})
                    by_latency.setdefault(latency.metric.title, {})[rate] = (time,)
    return found


def _frames(rate: LintFigure, time: Quantity) -> int:
    """Return the whole number of frames that a rate and a latency imply; 0 if that may be chance."""
    product = rate.quantity.bounds * time.bounds
    return ceil(product.low) if ceil(product.low) == floor(product.high) and product.width < CHANCE else 0


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


def frames_of_block(document: LintDocument) -> int:
    """Return the frames made in one latency, as the document's rates and latencies imply; 0 if they imply none."""
    agreed = filter(None, map(_consensus, _rates(document.tables).values()))
    return next((frames for _, frames in agreed), 0)


def _over(frames: int) -> Callable[..., Bounds]:
    return lambda time: exactly(frames) / time


def fps_latency(document: LintDocument) -> Iterator[Claim]:
    """Compare every rate with the latency beside it, by the number of frames that the other rows agree on."""
    whole = {kind: _consensus(by_latency) for kind, by_latency in _rates(document.tables).items()}
    found: dict[tuple[object, ...], Claim] = {}
    for table in document.tables:
        for kind, by_latency in _rates([table]).items():
            latency, frames = _consensus(by_latency) or whole[kind] or ("", 0)
            formula, by = f"{frames} frames / latency", _over(frames)
            readings = {
                title: Reading(source=title, formula=formula, by=by, rows=rows) for title, rows in by_latency.items() if frames
            }
            own = readings.pop(latency, None)
            for identity, claim in own.claims(readings.values()) if own else ():
                first = found.setdefault(identity, claim)
                if first is not claim:
                    found[identity] = replace(first, also=(*first.also, claim.place))
    yield from found.values()


# ---------------------------------------------------------------------------------------------------------------- changes


def _reference_row(derived: MetricSeries) -> int | None:
    """Return the row that others are compared with: named in the head, or marked in the column."""
    title = derived.metric.title.lower()
    for entry in derived.entries:
        if key(entry.name) and re.search(rf"\b(?:vs\.?|versus|to|over|against|than)\s+{re.escape(key(entry.name))}\b", title):
            return entry.position
    texts = {entry.position: "" if entry.cell.empty else entry.cell.text.strip().lower() for entry in derived.entries}
    return next((at for at, text in texts.items() if not text or BASE.fullmatch(text) or _ITSELF.fullmatch(text)), None)


def _sources(table: DocumentTable, derived: MetricSeries) -> dict[str, Rows]:
    """Return what a computed column may be computed from, by name: reference and candidate of each of its figures.

    That is one row of another column against each, two columns of one kind, or the two configurations if metrics are the rows.
    """
    usable = [entry for entry in derived.figures if entry.quantity.plain and not _INTERVAL.search(entry.cell.text)]
    if not table.by_columns:
        rows = {series.entries[0].row: tuple(each.quantity for each in series.figures) for series in table.series}
        names = [entry.name for series in table.series[:1] for entry in series.entries]
        pairs = {entry: rows[entry.row] for entry in usable if len(rows.get(entry.row, ())) == 2 == len(names)}
        return {" and ".join(names): pairs}
    found: dict[str, Rows] = {}
    at = _reference_row(derived)
    for series in table.of_kind("time", "rate", "memory", "count", "number") if at is not None else ():
        base = series.of(at) if at is not None else None
        others = {entry: series.of(entry.position) for entry in usable if entry.position != at}
        if base:
            found[series.metric.title] = {entry: (base, own) for entry, own in others.items() if own}
    columns = [series for series in table.of_kind("time", "rate", "memory") if series.metric.statistic != "spread"]
    for one, two in combinations(columns, 2):
        if one.metric.kind == two.metric.kind and not _statistics_of_one(one, two):
            both = {entry: (one.of(entry.position), two.of(entry.position)) for entry in usable}
            name = f"{one.metric.title} and {two.metric.title}"
            found[name] = {entry: (first, second) for entry, (first, second) in both.items() if first and second}
    return found


def _statistics_of_one(one: MetricSeries, two: MetricSeries) -> bool:
    """Return True for two statistics of the same quantity (`SS Mean`, `SS Max`)."""
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


# -------------------------------------------------------------------------------------------------------------------------- sums

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


def _additive(series: MetricSeries) -> bool:
    """Return True for a column whose parts may be added: times, memory, counts; no peaks, percentiles or rates."""
    metric = series.metric
    if metric.kind not in ("time", "memory", "count", "work") or metric.statistic not in ("", "mean", "sum"):
        return False
    return not _RUNNING.search(metric.title) and (metric.kind != "memory" or "peak" not in metric.title.lower())


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


def _choices(table: DocumentTable, series: MetricSeries) -> Iterator[tuple[LintFigure, list[list[LintFigure]], bool]]:
    """Yield each total with what it may be the sum of: the parts since the total before it, all parts, or earlier totals.

    And whether some of these are made of others. Of printed output it closes the lines under its own heading. A total in the
    first row closes the rows below it.
    """
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
            yield total, [outer, _outer(parts), totals, [*totals, *outer]], len(outer) < len(since)


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
                yield _not_the_sum(total, parts.middle, leaves, nested=False)
        for total, choices, nested in [each for series in table.series if _additive(series) for each in _choices(table, series)]:
            sums = [added for choice in choices if (added := _sum(choice)) is not None]
            agree = any(total.quantity.bounds.overlaps(added) for added in sums)
            if sums and not agree and not _WALL.search(total.name):
                yield _not_the_sum(total, sums[0].middle, Fraction(0), nested=nested)


def _not_the_sum(total: LintFigure, right: Fraction, leaves: Fraction, *, nested: bool) -> Claim:
    """Make the finding of a total.

    Args:
        leaves: the sum of all groups, where there are several.
        nested: some of its rows are made of others.
    """
    said, off = total.quantity, total.quantity.value - right
    shown, whole = printed(right, said, more=0), printed(leaves, said, more=0)
    beside = [cell.quantity for cell in total.table.rows[total.row].cells if cell.quantity]
    share = next((f" ({each.text})" for each in beside if each.dimension == "percent"), "") if leaves else ""
    part = float(100 * right / leaves) if leaves else 0.0
    if leaves and abs(off - leaves) <= leaves / 50:
        how = f"is all rows together ({whole}): a parent was counted with its children"
    else:
        how = "unattributed: say so in a row of its own" if off > 0 else "more than the total"
    if nested:
        how += "; a row that is made of others is counted with the rows it is made of, or not at all"
    return Claim(
        place=total.place,
        said=f"{total.name}: {said.text}{share}",
        corrected=shown + (f" = {part:.2f} % of {whole}, the rest {100 - part:.2f} %" if leaves else ""),
        why=f"its rows add up to {printed(right, said)}; {printed(abs(off), said)} {how}",
    )


# --------------------------------------------------------------------------------------------------- formulas in sentences

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
