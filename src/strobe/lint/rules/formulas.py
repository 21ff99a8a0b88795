"""Figures that are computed from others: rates from times, changes and ratios from two figures of a table or a sentence.

A formula over the figures of one source, such as `3 frames / latency` of the means, is a reading of a column. The reading that
most rows fit is the document's; a row that it does not fit is a finding, and what else it is says another reading.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from math import ceil, floor
from typing import Final

from strobe.lint.document import Claim, ClaimPlace, DocumentTable, LintDocument, LintFigure, MetricSeries
from strobe.lint.quantity import BASE, NAMED_QUALITY, Bounds, Quantity, exactly, key, printed, statistic, words

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
