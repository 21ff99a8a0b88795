"""Rules on tables: rates against times, sums, changes and ratios."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor, prod
from typing import Final

from strobe.lint.document import DocumentRow
from strobe.lint.quantity import Bounds, Quantity, exactly, is_total, key, printed, words
from strobe.lint.study import Claim, LintFigure, LintStudy, MetricSeries, Rule, View

CHANCE: Final = 0.01
"""Probability of agreement by chance, below which rows that agree on a whole number of frames are evidence."""
FLOOR: Final = Fraction(1, 100)
"""Relative tolerance of a rate against its latency: a mean of rates is not the rate of the mean."""
MAJORITY: Final = Fraction(3, 5)
_PER_FRAME: Final = re.compile(r"(?i)\b(?:per|between|inter)[ -](?:\w+ )?frames?\b|/ ?frame\b")
"""Words of a time per frame, which is not that of a frame block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _RatePair:
    """A rate and a latency of the same configuration: their product is the number of frames made in that time."""

    label: str
    time: Quantity
    rate: LintFigure

    @property
    def frames(self) -> Bounds:
        return self.rate.quantity.bounds * self.time.bounds

    @property
    def identity(self) -> tuple[str, Fraction, Fraction]:
        """Key that is equal for repetitions of the same claim."""
        return key(self.rate.name), self.time.value, self.rate.quantity.value

    def agrees(self, frames: int) -> bool:
        """Return True if the rate is `frames` / latency, as printed or within 1 %."""
        expected = frames / self.time.value
        return self.frames.low <= frames <= self.frames.high or abs(self.rate.quantity.value - expected) <= FLOOR * expected


def _pairs(view: View) -> list[_RatePair]:
    return [
        _RatePair(label=latency.metric.title, time=time, rate=rate)
        for series in view.of_kind("rate")
        for latency in view.of_kind("time")
        if latency.metric.statistic not in ("spread", "sum") and not _PER_FRAME.search(latency.metric.title)
        for rate in series.figures
        if (time := latency.of(rate.position)) is not None
        and time.plain and rate.quantity.plain and time.value > 0 and rate.quantity.value > 0
    ]  # fmt: skip


def _consensus(pairs: Sequence[_RatePair]) -> tuple[str, int] | None:
    """Return the latency and the whole number of frames that most distinct rows agree on, unless that may be chance."""
    best: tuple[int, str, int] | None = None
    for label in dict.fromkeys(key(pair.label) for pair in pairs):
        distinct = {pair.identity: pair for pair in pairs if key(pair.label) == label}.values()
        whole = [(ceil(pair.frames.low), pair) for pair in distinct if 0 < ceil(pair.frames.low) == floor(pair.frames.high)]
        for frames in dict.fromkeys(number for number, _ in whole):
            support = [pair for number, pair in whole if number == frames]
            chance = prod(float(pair.frames.width) for pair in support)
            if len(support) >= 2 and len(support) >= MAJORITY * len(distinct) and chance < CHANCE:
                best = (
                    max(best, (len(support), label, frames), key=lambda each: each[0]) if best else (len(support), label, frames)
                )
    return best[1:] if best else None


def _by_rate(pairs: Sequence[_RatePair]) -> dict[str, list[_RatePair]]:
    """Group pairs by their kind of rate: latent and pixel FPS differ."""
    groups: dict[str, list[_RatePair]] = {}
    for pair in pairs:
        groups.setdefault(key(pair.rate.metric.title), []).append(pair)
    return groups


def fps_latency(study: LintStudy) -> Iterator[Claim]:
    """Compare every rate with the latency beside it, by the number of frames that the other rows agree on."""
    tables = [_pairs(view) for view in study.views]
    document = {label: _consensus(pairs) for label, pairs in _by_rate([pair for pairs in tables for pair in pairs]).items()}
    found: dict[tuple[str, Fraction, Fraction], Claim] = {}
    for label, group in [each for pairs in tables for each in _by_rate(pairs).items()]:
        agreed = _consensus(group) or document[label]
        if agreed is None:
            continue
        for pair in group:
            if key(pair.label) == agreed[0] and not pair.agrees(agreed[1]):
                first = found.get(pair.identity) or _rate_claim(pair, agreed[1], group)
                also = (*first.also, pair.rate.place) if pair.identity in found else ()
                found[pair.identity] = replace(first, also=also)
    for (_, time, rate), claim in found.items():
        repeated = tuple(
            study.document.place(sentence.line)
            for sentence in study.document.sentences
            for one, two in pairwise(sentence.found)
            if {one.dimension, two.dimension} == {"rate", "time"} and {one.value, two.value} == {time, rate}
        )
        yield replace(claim, also=(*claim.also, *repeated))


def _rate_claim(pair: _RatePair, frames: int, group: Sequence[_RatePair]) -> Claim:
    others = [
        other for other in group
        if other.rate is pair.rate and other is not pair and other.frames.low <= frames <= other.frames.high
    ]  # fmt: skip
    rate, right = pair.rate.quantity, printed(frames / pair.time.value, pair.rate.quantity)
    switched = f"; it is {frames} / {others[0].label} ({others[0].time.text}): the column changes its statistic" if others else ""
    return Claim(
        place=pair.rate.place,
        said=f"{rate.text} at {pair.label} {pair.time.text}",
        corrected=right,
        why=f"{frames} frames / {pair.time.text} = {right}{switched}",
    )


def frames_of_block(study: LintStudy) -> int:
    """Return the frames made in one latency, as the document's rates and latencies imply; 0 if they imply none."""
    agreed = _consensus([pair for view in study.views for pair in _pairs(view)])
    return agreed[1] if agreed else 0


# ------------------------------------------------------------------------------------------------------------------- sums

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


def _explained(view: View) -> bool:
    """Return True if the document says why the rows need not add up."""
    return _NOT_ADDITIVE.search(view.table.context) is not None or any(_MORE.match(row.label) for row in view.table.rows)


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


def _children(view: View) -> dict[int, list[int]]:
    """Map rows to the child rows below them: indented, or named after them (`attn`, `attn / qkv`, `attn.qkv`)."""
    rows = view.table.rows
    families = {}
    for number, row in enumerate(rows):
        children = []
        for other, later in enumerate(rows[number + 1 :], number + 1):
            if is_total(later.label) or not _below(row, later, view.table.origin == "lines"):
                break
            children.append(other)
        if len(children) >= 2 and not is_total(row.label):
            families[number] = children
    return families


def _below(row: DocumentRow, later: DocumentRow, lines: bool) -> bool:
    if later.depth != row.depth or (lines and later.group != row.group):
        return later.depth > row.depth
    own, other = row.label.strip().lower(), later.label.strip().lower()
    return bool(own) and other.startswith(own) and re.match(r"\s*(?:/|\.|::|:|>|→|->|_)\s*\w", other[len(own) :]) is not None


def _choices(view: View, series: MetricSeries) -> Iterator[tuple[LintFigure, list[list[LintFigure]]]]:
    """Yield each total with what it may be the sum of: the parts since the total before it, all parts, or earlier totals.

    Of printed output it closes the lines under its own heading. A total in the first row closes the rows below it.
    """
    rows, lines = view.table.rows, view.table.origin == "lines"
    within = {child for parent, children in _children(view).items() if series.of(parent) is not None for child in children}
    entries = [entry for entry in series.entries if entry.row not in within]
    if entries and [entry for entry in entries if is_total(entry.name)] == entries[:1]:
        entries = [*entries[1:], entries[0]]
    for at, total in enumerate(entries):
        if is_total(total.name) and total.cell.quantity is not None and not (lines and _group_of(view, total)):
            above = [entry for entry in entries[:at] if not lines or rows[entry.row].group == rows[total.row].group]
            totals = [entry for entry in above if is_total(entry.name)]
            parts = [entry for entry in above if not is_total(entry.name)]
            since = [entry for entry in parts if not totals or entries.index(entry) > entries.index(totals[-1])]
            yield total, [since, parts, totals, [*totals, *since]]


def total_sum(study: LintStudy) -> Iterator[Claim]:
    """Compare each total with the sum of the rows it closes."""
    for view in study.views:
        if view.table.origin == "list" or not view.by_columns or _explained(view):
            continue
        for total, choices in [each for series in view.series if _additive(series) for each in _choices(view, series)]:
            sums = [added for choice in choices if (added := _sum(choice)) is not None]
            claimed = total.quantity
            if not sums or _WALL.search(total.name) or any(claimed.bounds.overlaps(added) for added in sums):
                continue
            right, off = sums[0].middle, claimed.value - sums[0].middle
            how = "unattributed: say so in a row of its own" if off > 0 else "more than the total"
            if _children(view):
                how += "; a row that is made of others is counted with the rows it is made of, or not at all"
            yield Claim(
                place=total.place,
                said=f"{total.name}: {claimed.text}",
                corrected=printed(right, claimed, more=0),
                why=f"the rows above add up to {printed(right, claimed)}; {printed(abs(off), claimed)} {how}",
            )


def _group_of(view: View, total: LintFigure) -> set[int]:
    """Return the rows of the group that a printed total names: `Total Computation` and the rows under `COMPUTATION:`."""
    rows, own = view.table.rows, set(words(total.name)) - {"total"}
    return {
        number for number, row in enumerate(rows)
        if row.group != rows[total.row].group and own and own == set(words(row.group))
    }  # fmt: skip


def group_sums(study: LintStudy) -> Iterator[Claim]:
    """Compare the totals of a printed summary with the groups of rows they name, their shares included."""
    for view in study.views:
        if view.table.origin != "lines" or _explained(view):
            continue
        times = sorted(view.of_kind("time"), key=lambda series: series.metric.statistic != "sum")
        sums: list[tuple[LintFigure, Bounds]] = []
        for total in [entry for series in view.of_kind("time") for entry in series.figures if is_total(entry.name)]:
            rows = _group_of(view, total)
            members = [[entry for entry in series.figures if entry.row in rows] for series in times]
            added = [parts for found in members if len(found) == len(rows) and (parts := _sum(found)) is not None]
            sums += [(total, parts) for parts in added[:1]]
        leaves = sum((parts.middle for _, parts in sums), Fraction(0)) if len(sums) > 1 else Fraction(0)
        yield from (_group_claim(view, *each, leaves) for each in sums if not each[0].quantity.bounds.overlaps(each[1]))


def _group_claim(view: View, total: LintFigure, parts: Bounds, leaves: Fraction) -> Claim:
    claimed = total.quantity
    excess, right = claimed.value - parts.middle, printed(parts.middle, claimed, more=0)
    beside = [entry.quantity for series in view.series for entry in series.figures if entry.row == total.row]
    share = next((f" ({figure.text})" for figure in beside if figure.dimension == "percent"), "")
    whole, part = printed(leaves, claimed, more=0), float(100 * parts.middle / leaves) if leaves else 0.0
    if leaves and excess > 0 and abs(excess - leaves) <= leaves / 50:
        why = (
            f"the excess of {printed(excess, claimed, more=0)} is all rows together ({whole}): "
            "a parent was counted with its children"
        )
    else:
        why = f"{printed(abs(excess), claimed)} {'is attributed to nothing' if excess > 0 else 'is missing'}"
    return Claim(
        place=total.place,
        said=f"{total.name}: {claimed.text}{share}",
        corrected=right + (f" = {part:.2f} % of {whole}, the rest {100 - part:.2f} %" if leaves else ""),
        why=f"the rows under that heading add up to {right}; {why}",
    )


# ---------------------------------------------------------------------------------------------------------------- changes

FLOOR_POINTS: Final = Fraction(3, 10)
"""Tolerance of a change beyond its printed digits, percentage points."""
FLOOR_RATIO: Final = Fraction(1, 100)
"""Relative tolerance of a ratio beyond its printed digits."""
_REFERENCE: Final = re.compile(r"(?i)^(?:baseline|reference|ref\.?|base|1(?:\.0+)?x|[+-]?0(?:\.0+)?\s?%)$")
_STATISTIC: Final = re.compile(r"(?i)^(?:mean|avg|average|median|p50|max|min)\s+")
_OTHER: Final = re.compile(r"(?i)\b(?:median of|geo(?:metric)? ?mean|paired|pairs|per pair|interval|need not equal|bootstrap)\b")
_NAMES: Final = {"mean": r"mean|avg|average", "p50": r"p50|median", "max": r"max\w*|worst", "min": r"min\w*|best"}
_ONE, _HUNDRED = exactly(1), exactly(100)
FORMULAS: Final[dict[tuple[str, str], Callable[[Bounds, Bounds], Bounds]]] = {
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Derived:
    """One derived figure and the two figures it may have been computed from."""

    entry: LintFigure
    reference: Quantity
    candidate: Quantity

    def by(self, formula: str, *, exact: bool = False) -> Bounds | None:
        """Evaluate a formula over the intervals of the operands, or as printed; None if it does not suit them."""
        said = self.entry.quantity.dimension
        family = "same" if said == self.candidate.dimension and said != "none" else "ratio"
        function = FORMULAS.get((said if said in ("percent", "ratio") else family, formula))
        if function is None or self.reference.bounds.low <= 0 or self.candidate.bounds.low <= 0:
            return None
        both = (self.reference, self.candidate)
        return function(*(exactly(each.value) if exact else each.bounds for each in both))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reading:
    """One interpretation of a derived column: a formula on the figures of one source, and the rows that fit it."""

    source: str
    formula: str
    rows: tuple[_Derived, ...]
    fits: tuple[_Derived, ...]


def _readings(groups: dict[str, list[_Derived]]) -> list[_Reading]:
    """Return every source with every formula, the pair that fits most rows first."""
    found = []
    for source, rows in groups.items():
        for formula in dict.fromkeys(name for _, name in FORMULAS):
            values = [(row, value) for row in rows if (value := row.by(formula)) is not None]
            if rows and len(values) == len(rows):
                fits = tuple(row for row, value in values if row.entry.quantity.bounds.overlaps(value))
                found.append(_Reading(source=source, formula=formula, rows=tuple(rows), fits=fits))
    return sorted(found, key=lambda reading: -len(reading.fits))


def _reference_row(derived: MetricSeries) -> int | None:
    """Return the row that others are compared with: named in the head, or marked in the column."""
    title = derived.metric.title.lower()
    for entry in derived.entries:
        if key(entry.name) and re.search(rf"\b(?:vs\.?|versus|to|over|against|than)\s+{re.escape(key(entry.name))}\b", title):
            return entry.position
    marked = (entry for entry in derived.entries if entry.cell.empty or _REFERENCE.match(entry.cell.text.strip()))
    return next((entry.position for entry in marked), None)


def _usable(derived: MetricSeries) -> list[LintFigure]:
    return [entry for entry in derived.figures if entry.quantity.plain and not entry.cell.interval]


def _against_row(view: View, derived: MetricSeries) -> dict[str, list[_Derived]]:
    """Return the operands for comparing each row with one row of a column, by the column's title."""
    at = _reference_row(derived)
    groups: dict[str, list[_Derived]] = {}
    for series in view.of_kind("time", "rate", "memory", "count", "number") if at is not None else ():
        base = series.of(at) if at is not None else None
        for entry in _usable(derived) if base else ():
            own = series.of(entry.position)
            if base is not None and own is not None and entry.position != at:
                group = groups.setdefault(series.metric.title, [])
                group.append(_Derived(entry=entry, reference=base, candidate=own))
    return groups


def _across(view: View, derived: MetricSeries) -> dict[str, list[_Derived]]:
    """Return the operands for comparing two columns of the same kind within each row."""
    columns = [series for series in view.of_kind("time", "rate", "memory") if series.metric.statistic != "spread"]
    return {
        f"{first.metric.title} and {second.metric.title}": [
            _Derived(entry=entry, reference=one, candidate=two)
            for entry in _usable(derived)
            if (one := first.of(entry.position)) and (two := second.of(entry.position))
        ]
        for number, first in enumerate(columns)
        for second in columns[number + 1 :]
        if first.metric.kind == second.metric.kind and not _statistics_of_one(first, second)
    }


def _statistics_of_one(one: MetricSeries, two: MetricSeries) -> bool:
    """Return True for two statistics of the same quantity (`SS Mean`, `SS Max`)."""
    return one.metric.statistic != two.metric.statistic and words(one.metric.title) == words(two.metric.title)


def _of_rows(view: View, derived: MetricSeries) -> dict[str, list[_Derived]]:
    """Return the operands of a change column in a table with metrics as rows and two configurations as columns."""
    rows = {series.entries[0].row: series.figures for series in view.series}
    found = [(entry, rows[entry.row]) for entry in _usable(derived) if len(rows.get(entry.row, ())) == 2 == len(view.keys)]
    return {
        " and ".join(view.keys): [
            _Derived(entry=entry, reference=one.quantity, candidate=two.quantity) for entry, (one, two) in found
        ]
    }


def _columns(study: LintStudy) -> Iterator[tuple[View, MetricSeries, list[_Reading]]]:
    """Yield every derived column with its readings."""
    for view in study.views:
        if view.table.origin == "table" and not _OTHER.search(view.table.context):
            for derived in view.of_kind("change") if view.by_columns else ():
                yield view, derived, _readings({**_against_row(view, derived), **_across(view, derived)})
            for derived in view.derived:
                yield view, derived, _readings(_of_rows(view, derived))


def change_column(study: LintStudy) -> Iterator[Claim]:
    """Find rows of a derived column that the formula of the other rows does not give."""
    for _, _, readings in _columns(study):
        best = readings[0] if readings else None
        if best is None:
            continue
        if len(best.rows) == 1 and len({reading.source for reading in readings}) == 1 and not best.fits:
            best = _obvious(best, readings)
        elif len(best.fits) < 2 or len(best.fits) < MAJORITY * len(best.rows):
            continue
        for row in best.rows:
            said, right, exact = row.entry.quantity, row.by(best.formula), row.by(best.formula, exact=True)
            if row in best.fits or right is None or exact is None or not _material(said, right):
                continue
            others = [
                reading.source for reading in readings
                if reading.source != best.source and reading.formula == best.formula
                and any(fit.entry is row.entry for fit in reading.fits)
            ]  # fmt: skip
            switched = f"; it is that of {others[0]}: the column changes its statistic" if others else ""
            of = f"{best.source} ({row.reference.text}, {row.candidate.text})"
            yield Claim(
                place=row.entry.place,
                said=f"{row.entry.name}: {said.text}",
                corrected=printed(exact.middle, said, more=0),
                why=f"{best.formula} of {of} is {printed(exact.middle, said)}{switched}",
            )


def _obvious(best: _Reading, readings: Sequence[_Reading]) -> _Reading:
    """Return the reading that unit and sign suggest, for a column whose only row fits no formula."""
    row = best.rows[0]
    wanted = "reference / candidate"
    if row.entry.quantity.dimension == "percent":
        fell = not row.entry.quantity.signed and row.candidate.value < row.reference.value
        wanted = "1 - candidate / reference" if fell else "candidate / reference - 1"
    return next((reading for reading in readings if reading.formula == wanted), best)


def _material(said: Quantity, right: Bounds) -> bool:
    off = max(said.bounds.low - right.high, right.low - said.bounds.high, Fraction(0))
    return off > (FLOOR_POINTS if said.dimension == "percent" else FLOOR_RATIO * abs(right.middle))


def statistic_unnamed(study: LintStudy) -> Iterator[Claim]:
    """Find derived columns beside several statistics of one quantity that do not say which of them they compare."""
    for view, derived, readings in _columns(study):
        complete = [reading for reading in readings if len(reading.fits) == len(reading.rows) >= 2]
        if not view.by_columns or len({reading.source for reading in complete}) != 1:
            continue
        source = next((series for series in view.series if series.metric.title == complete[0].source), None)
        if source is None or not source.metric.statistic:
            continue
        siblings = [each for each in view.of_kind("time") if each.metric.statistic and _statistics_of_one(each, source)]
        name = _NAMES.get(source.metric.statistic, re.escape(source.metric.statistic))
        texts = (derived.metric.title, view.table.caption, *view.table.notes)
        if siblings and not any(re.search(rf"(?i)\b(?:{name})\b", text) for text in texts):
            yield Claim(
                place=study.document.place(view.table.line, view.table, "", derived.metric.title),
                said=derived.metric.title,
                corrected=f"{source.metric.title} {_STATISTIC.sub('', derived.metric.title)}",
                why=f"every row is {complete[0].formula} of {source.metric.title}, and the head does not say so",
            )


RULES: Final = (
    Rule(
        id="fps-latency",
        meaning="A rate is frames / latency: the number of frames is the one the other rows agree on.",
        check=fps_latency,
    ),
    Rule(
        id="total-sum",
        meaning="A total is the sum of its rows.",
        check=total_sum,
    ),
    Rule(id="group-sum", meaning="A total in printed output is the sum of the group of lines it names.", check=group_sums),
    Rule(
        id="change-column",
        meaning="A change or speedup is that of one statistic, by one formula, in every row.",
        check=change_column,
    ),
    Rule(
        id="statistic-unnamed",
        meaning="A column computed from one of several statistics in the table says from which.",
        severity="warning",
        check=statistic_unnamed,
    ),
)
