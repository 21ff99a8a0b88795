"""Rules on tables: rates against times, sums and shares, changes and ratios."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor, prod
from typing import Final

from strobe.lint.document import Place, Row
from strobe.lint.quantity import Bounds, Quantity, exactly, is_total, key, printed, words
from strobe.lint.study import Claim, LintStudy, Rule, Series, SeriesEntry, View

CHANCE: Final = 0.01
"""Probability of agreement by chance, below which rows that agree on a whole number of frames are evidence."""
FLOOR: Final = Fraction(1, 100)
"""Relative tolerance of a rate against its latency: a mean of rates is not the rate of the mean."""
MAJORITY: Final = Fraction(3, 5)
_PER_FRAME: Final = re.compile(r"(?i)\b(?:per|between|inter)[ -](?:\w+ )?frames?\b|/ ?frame\b")
"""Words of a time per frame, which is not that of a frame block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    """A rate and a latency of the same configuration: their product is the number of frames made in that time."""

    view: View
    latency: Series
    time: Quantity
    series: Series
    entry: SeriesEntry
    rate: Quantity

    @property
    def frames(self) -> Bounds:
        """Rate x latency."""
        return self.rate.bounds * self.time.bounds

    @property
    def whole(self) -> int | None:
        """The one whole number of frames that the printed digits allow; None for none or several."""
        low, high = ceil(self.frames.low), floor(self.frames.high)
        return low if low == high and low > 0 else None

    @property
    def identity(self) -> tuple[str, Fraction, Fraction]:
        """Key that is equal for repetitions of the same claim."""
        return key(self.entry.key), self.time.value, self.rate.value

    def agrees(self, frames: int) -> bool:
        """Return True if the rate is `frames` / latency, as printed or within 1 %."""
        expected = frames / self.time.value
        return self.frames.low <= frames <= self.frames.high or abs(self.rate.value - expected) <= FLOOR * expected


@dataclass(frozen=True, slots=True)
class _Consensus:
    """The latency that most rows agree on, and the number of frames made in it."""

    label: str
    frames: int
    support: int


def _pairs(view: View) -> Iterator[_Pair]:
    for series in view.of_kind("rate"):
        for latency in view.of_kind("time"):
            if latency.metric.statistic in ("spread", "sum") or _PER_FRAME.search(latency.metric.title):
                continue
            for entry, rate in series.figures:
                time = latency.of(entry.position)
                if time is not None and time.plain and rate.plain and time.value > 0 and rate.value > 0:
                    yield _Pair(
                        view=view,
                        latency=latency,
                        time=time,
                        series=series,
                        entry=entry,
                        rate=rate,
                    )


def _consensus(pairs: Sequence[_Pair]) -> _Consensus | None:
    """Return the latency and whole number of frames that most distinct rows agree on, unless that may be chance."""
    best: _Consensus | None = None
    for label in dict.fromkeys(key(pair.latency.metric.title) for pair in pairs):
        distinct = {pair.identity: pair for pair in pairs if key(pair.latency.metric.title) == label}.values()
        found = [whole for pair in distinct if (whole := pair.whole) is not None]
        for frames in set(found):
            support = [pair for pair in distinct if pair.whole == frames]
            chance = prod(float(pair.frames.width) for pair in support)
            if len(support) >= 2 and len(support) >= MAJORITY * len(distinct) and chance < CHANCE:
                candidate = _Consensus(label, frames, len(support))
                best = candidate if best is None or candidate.support > best.support else best
    return best


def fps_latency(study: LintStudy) -> Iterator[Claim]:
    """Compare every rate with the latency beside it, by the number of frames that the other rows agree on."""
    tables = {id(view): list(_pairs(view)) for view in study.views}
    everything = [pair for pairs in tables.values() for pair in pairs]
    document = {label: _consensus(pairs) for label, pairs in _by_rate(everything)}
    wrong: list[tuple[_Pair, int, Sequence[_Pair]]] = []
    for pairs in tables.values():
        for label, group in _by_rate(pairs):
            agreed = _consensus(group) or document[label]
            if agreed:
                wrong += [
                    (pair, agreed.frames, group)
                    for pair in group
                    if key(pair.latency.metric.title) == agreed.label and not pair.agrees(agreed.frames)
                ]
    yield from _claims(study, wrong)


def frames_of_block(study: LintStudy) -> int | None:
    """Return the frames made in one latency, as the document's rates and latencies imply."""
    agreed = _consensus([pair for view in study.views for pair in _pairs(view)])
    return agreed.frames if agreed else None


def _by_rate(pairs: Sequence[_Pair]) -> list[tuple[str, list[_Pair]]]:
    """Group pairs by their kind of rate: latent and pixel FPS differ."""
    labels = dict.fromkeys(key(pair.series.metric.title) for pair in pairs)
    return [(label, [pair for pair in pairs if key(pair.series.metric.title) == label]) for label in labels]


def _claims(study: LintStudy, wrong: Iterable[tuple[_Pair, int, Sequence[_Pair]]]) -> Iterator[Claim]:
    """Yield one claim per wrong figure, however often the document repeats it."""
    found: dict[tuple[str, Fraction, Fraction], Claim] = {}
    for pair, frames, group in wrong:
        place = study.figure_place(pair.view, pair.series, pair.entry)
        if pair.identity in found:
            first = found[pair.identity]
            found[pair.identity] = replace(first, also=(*first.also, place))
            continue
        others = [
            other
            for other in group
            if other.entry is pair.entry and other is not pair and other.frames.low <= frames <= other.frames.high
        ]
        right = frames / pair.time.value
        switched = (
            f"; it is {frames} / {others[0].latency.metric.title} ({others[0].time.text}): the column changes its statistic"
            if others
            else ""
        )
        found[pair.identity] = Claim(
            place=place,
            said=f"{pair.rate.text} at {pair.latency.metric.title} {pair.time.text}",
            corrected=printed(right, pair.rate),
            why=f"{frames} frames / {pair.time.text} = {printed(right, pair.rate)}{switched}",
        )
    for identity, claim in found.items():
        yield replace(claim, also=(*claim.also, *_repeated(study, identity)))


def _repeated(study: LintStudy, identity: tuple[str, Fraction, Fraction]) -> Iterator[Place]:
    """Yield sentences that pair the same rate with the same latency, such as `9.1 FPS (302 ms)`."""
    _, time, rate = identity
    for sentence in study.document.sentences:
        for one, two in pairwise(sentence.found):
            if {one.dimension, two.dimension} == {"rate", "time"} and {one.value, two.value} == {time, rate}:
                yield study.document.place(sentence.line)


NOT_ADDITIVE: Final = re.compile(
    r"(?i)\b(?:overlap\w*|concurrent\w*|parallel|async\w*|union|nest(?:s|ed|ing)?|contains? every|inclusive|not additive|"
    r"do(?:es)? not add|top[- ]?\d+|largest \d+|first \d+|selected|excerpt|examples? only|wall[- ]?clock|wall time|critical path|"
    r"double[- ]count\w*)\b"
)
"""Words that state that the rows do not add up to the total."""

_ADDITIVE: Final = frozenset({"time", "memory", "count", "work"})
_SUMMABLE: Final = frozenset({"", "mean", "sum"})
_WALL: Final = re.compile(r"(?i)\b(?:wall|elapsed|end[- ]to[- ]end|e2e|span)\b")
_RUNNING: Final = re.compile(r"(?i)\b(?:excluding|without|until|till|up to|cumulative|running|remaining|including)\b")
"""Heads of columns whose rows overlap: each is the whole without or up to something."""
_MORE: Final = re.compile(r"(?i)^(?:\.\.\.|…|etc)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of figures cut at a total: the parts since the total before it, and that total."""

    view: View
    series: Series
    parts: tuple[SeriesEntry, ...]
    total: SeriesEntry
    everything: tuple[SeriesEntry, ...]
    totals: tuple[SeriesEntry, ...]


def _closed(view: View, series: Series) -> Iterator[Column]:
    """Yield each total of a column with the parts above it; for a total in the first row, the parts below."""
    if view.table.origin == "lines":
        yield from _closed_lines(view, series)
        return
    within = {child for parent, children in _hierarchy(view) if series.of(parent) is not None for child in children}
    since: list[SeriesEntry] = []
    leaves: list[SeriesEntry] = []
    totals: list[SeriesEntry] = []
    entries = [entry for entry in series.entries if entry.row not in within]
    if entries and is_total(entries[0].key):
        entries = [*entries[1:], entries[0]] if sum(is_total(entry.key) for entry in entries) == 1 else entries
    for entry in entries:
        if not is_total(entry.key):
            since.append(entry)
            leaves.append(entry)
            continue
        if entry.quantity is not None and (since or totals):
            yield Column(
                view=view, series=series, parts=tuple(since), total=entry, everything=tuple(leaves), totals=tuple(totals)
            )
        totals.append(entry)
        since = []


def _closed_lines(view: View, series: Series) -> Iterator[Column]:
    """Yield totals of printed output: each closes the lines or totals under its own heading, unless it names a group."""
    rows = view.table.rows
    within = {child for parent, children in _hierarchy(view) if series.of(parent) is not None for child in children}
    for entry in series.entries:
        if entry.quantity is None or not is_total(entry.key) or group_of(view, entry):
            continue
        near = [other for other in series.entries if rows[other.row].group == rows[entry.row].group and other is not entry]
        near = [other for other in near if other.row not in within]
        leaves = tuple(other for other in near if not is_total(other.key))
        totals = tuple(other for other in near if is_total(other.key))
        if leaves or totals:
            yield Column(view=view, series=series, parts=leaves, total=entry, everything=leaves, totals=totals)


def _sum(entries: Iterable[SeriesEntry]) -> Bounds | None:
    """Add up the intervals of printed parts; None if one of them is not a figure. Empty cells count as zero."""
    total = exactly(0)
    for entry in entries:
        if entry.quantity is None:
            if not entry.cell.empty:
                return None
            continue
        total += entry.quantity.bounds
    return total


def adds_up(column: Column) -> bool | None:
    """Return True if the total equals the sum of its parts, of all parts, or of earlier totals; None if undecidable."""
    claimed = column.total.quantity
    assert claimed is not None
    choices = [column.parts, column.everything, column.totals, (*column.totals, *column.parts)]
    sums = [_sum(choice) for choice in choices if len([entry for entry in choice if entry.quantity]) >= 2]
    known = [each for each in sums if each is not None]
    return any(claimed.bounds.overlaps(each) for each in known) if known else None


def additive(view: View, series: Series) -> bool:
    """Return True for a column whose parts may be added: times, memory, counts; no peaks, percentiles or rates."""
    metric = series.metric
    if metric.kind not in _ADDITIVE or metric.statistic not in _SUMMABLE or not view.by_columns:
        return False
    return not _RUNNING.search(metric.title) and (metric.kind != "memory" or "peak" not in metric.title.lower())


def explained(view: View) -> bool:
    """Return True if the document says why the rows need not add up."""
    table = view.table
    return NOT_ADDITIVE.search(table.context) is not None or any(_MORE.match(row.label) for row in table.rows)


def _hierarchy(view: View) -> list[tuple[int, list[int]]]:
    """Return rows with their child rows below: indented, or named after them (`attn`, `attn / qkv`, `attn.qkv`)."""
    rows = view.table.rows
    families = []
    for number, row in enumerate(rows):
        children = []
        for other, later in enumerate(rows[number + 1 :], number + 1):
            if is_total(later.label) or not _below(row, later, view.table.origin == "lines"):
                break
            children.append(other)
        if len(children) >= 2 and not is_total(row.label):
            families.append((number, children))
    return families


def _below(row: Row, later: Row, lines: bool) -> bool:
    if later.depth > row.depth:
        return True
    if later.depth < row.depth or (lines and later.group != row.group):
        return False
    own, other = row.label.strip().lower(), later.label.strip().lower()
    return bool(own) and other.startswith(own) and re.match(r"\s*(?:/|\.|::|:|>|→|->|_)\s*\w", other[len(own) :]) is not None


def total_sum(study: LintStudy) -> Iterator[Claim]:
    """Compare each total with the sum of the rows it closes."""
    for view in study.views:
        if view.table.origin == "list" or explained(view):
            continue
        for series in view.series:
            if not additive(view, series):
                continue
            for column in _closed(view, series):
                if not _WALL.search(column.total.key) and adds_up(column) is False:
                    yield _missed(study, column)


def _missed(study: LintStudy, column: Column) -> Claim:
    claimed = column.total.quantity
    parts = _sum(next(each for each in (column.parts, column.everything, column.totals) if len(each) >= 2))
    assert claimed is not None and parts is not None
    right, off = parts.middle, claimed.value - parts.middle
    how = "unattributed: say so in a row of its own" if off > 0 else "more than the total"
    if _hierarchy(column.view):
        how += "; a row that is made of others is counted with the rows it is made of, or not at all"
    return Claim(
        place=study.figure_place(column.view, column.series, column.total),
        said=f"{column.total.key}: {claimed.text}",
        corrected=printed(right, claimed, more=0),
        why=f"the rows above add up to {printed(right, claimed)}; {printed(abs(off), claimed)} {how}",
    )


def group_of(view: View, total: SeriesEntry) -> list[SeriesEntry]:
    """Return the rows of the group that a printed total names: `Total Computation` and the rows under `COMPUTATION:`."""
    rows = view.table.rows
    own = set(words(total.key)) - {"total"}
    found = []
    for number, row in enumerate(rows):
        if row.group != rows[total.row].group and own and own == set(words(row.group)):
            found.append(SeriesEntry(key=row.label, cell=row.cells[0], row=number, position=number))
    return found


def group_sums(study: LintStudy) -> Iterator[Claim]:
    """Compare the totals of a printed summary with the groups of rows they name, their shares included."""
    for view in study.views:
        if view.table.origin != "lines" or explained(view):
            continue
        sums = [(total, found) for total in _totals(view) if (found := _group_sum(view, total)) is not None]
        off = [(total, parts) for total, parts in sums if not _quantity(total).bounds.overlaps(parts)]
        leaves = sum((parts.middle for _, parts in sums), Fraction(0))
        for total, parts in off:
            yield _group_claim(study, view, total, parts, leaves if len(sums) > 1 else Fraction(0))


def _quantity(entry: SeriesEntry) -> Quantity:
    assert entry.quantity is not None
    return entry.quantity


def _totals(view: View) -> list[SeriesEntry]:
    values = [series for series in view.series if series.metric.kind == "time"]
    return [entry for series in values for entry in series.entries if entry.quantity is not None and is_total(entry.key)]


def _group_sum(view: View, total: SeriesEntry) -> Bounds | None:
    """Return the sum of the group that a total names, from the column of totals if there is one."""
    rows = {entry.row for entry in group_of(view, total)}
    columns = sorted(
        (series for series in view.series if series.metric.kind == "time"), key=lambda each: each.metric.statistic != "sum"
    )
    for series in columns:
        members = [entry for entry in series.entries if entry.row in rows and entry.quantity is not None]
        if len(members) == len(rows) >= 2:
            return _sum(members)
    return None


def _group_claim(study: LintStudy, view: View, total: SeriesEntry, parts: Bounds, leaves: Fraction) -> Claim:
    claimed = _quantity(total)
    series = next(series for series in view.series if total in series.entries)
    excess = claimed.value - parts.middle
    share = next(
        (
            entry.quantity
            for each in view.of_kind("share", "number", "change")
            for entry in each.entries
            if entry.row == total.row and entry.quantity and entry.quantity.dimension == "percent"
        ),
        None,
    )
    said = f"{total.key}: {claimed.text}" + (f" ({share.text})" if share else "")
    fraction = ""
    if leaves:
        part = float(100 * parts.middle / leaves)
        fraction = f" = {part:.2f} % of {printed(leaves, claimed, more=0)}, the rest {100 - part:.2f} %"
    parent = leaves and excess > 0 and abs(excess - leaves) <= leaves / 50
    why = (
        f"the excess of {printed(excess, claimed, more=0)} is all rows together ({printed(leaves, claimed, more=0)}): "
        "a parent was counted with its children"
        if parent
        else f"{printed(abs(excess), claimed)} {'is attributed to nothing' if excess > 0 else 'is missing'}"
    )
    return Claim(
        place=study.figure_place(view, series, total),
        said=said,
        corrected=f"{printed(parts.middle, claimed, more=0)}{fraction}",
        why=f"the rows under that heading add up to {printed(parts.middle, claimed, more=0)}; {why}",
    )


FLOOR_POINTS: Final = Fraction(3, 10)
"""Tolerance of a change beyond its printed digits, percentage points."""
FLOOR_RATIO: Final = Fraction(1, 100)
"""Relative tolerance of a ratio beyond its printed digits."""
_MAJORITY: Final = Fraction(3, 5)
_ONE: Final = exactly(1)
_HUNDRED: Final = exactly(100)
_REFERENCE: Final = re.compile(r"(?i)^(?:baseline|reference|ref\.?|base|1(?:\.0+)?x|[+-]?0(?:\.0+)?\s?%)$")
_STATISTIC: Final = re.compile(r"(?i)^(?:mean|avg|average|median|p50|max|min)\s+")
_OTHER: Final = re.compile(r"(?i)\b(?:median of|geo(?:metric)? ?mean|paired|pairs|per pair|interval|need not equal|bootstrap)\b")

Formula = Callable[[Bounds, Bounds], Bounds]
"""Function from reference and candidate to the printed figure."""

FORMULAS: Final[dict[str, dict[str, Formula]]] = {
    "percent": {
        "candidate / reference - 1": lambda ref, cand: (cand / ref - _ONE) * _HUNDRED,
        "1 - candidate / reference": lambda ref, cand: (_ONE - cand / ref) * _HUNDRED,
        "reference / candidate - 1": lambda ref, cand: (ref / cand - _ONE) * _HUNDRED,
        "candidate / reference": lambda ref, cand: cand / ref * _HUNDRED,
    },
    "ratio": {
        "reference / candidate": lambda ref, cand: ref / cand,
        "candidate / reference": lambda ref, cand: cand / ref,
    },
    "same": {
        "candidate - reference": lambda ref, cand: cand - ref,
        "reference - candidate": lambda ref, cand: ref - cand,
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Operands:
    """One derived figure and the two figures it may have been computed from."""

    entry: SeriesEntry
    said: Quantity
    reference: Quantity
    candidate: Quantity
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One interpretation of a derived column: a formula on the figures of one source, and the rows that fit it."""

    source: str
    formula: str
    rows: tuple[Operands, ...]
    fits: tuple[Operands, ...]

    @property
    def complete(self) -> bool:
        """Whether the formula gives the printed value in every row."""
        return len(self.fits) == len(self.rows)


def _family(said: Quantity, operand: Quantity) -> str:
    if said.dimension in ("percent", "ratio"):
        return said.dimension
    return "same" if said.dimension == operand.dimension and said.dimension != "none" else "ratio"


def _apply(operands: Operands, formula: str) -> Bounds | None:
    """Evaluate a formula over the intervals of its operands; None if it does not suit them."""
    table = FORMULAS[_family(operands.said, operands.candidate)]
    if formula not in table or operands.reference.bounds.low <= 0 or operands.candidate.bounds.low <= 0:
        return None
    return table[formula](operands.reference.bounds, operands.candidate.bounds)


def _exact(operands: Operands, formula: str) -> Fraction:
    """Evaluate a formula for the operands as printed."""
    table = FORMULAS[_family(operands.said, operands.candidate)]
    return table[formula](exactly(operands.reference.value), exactly(operands.candidate.value)).middle


def _readings(groups: dict[str, list[Operands]]) -> list[Reading]:
    """Return every source with every formula, the pair that fits most rows first."""
    found = []
    for source, rows in groups.items():
        for formula in dict.fromkeys(name for table in FORMULAS.values() for name in table):
            values = [(row, _apply(row, formula)) for row in rows]
            if values and all(value is not None for _, value in values):
                fits = tuple(row for row, value in values if value is not None and row.said.bounds.overlaps(value))
                found.append(Reading(source=source, formula=formula, rows=tuple(rows), fits=fits))
    return sorted(found, key=lambda reading: -len(reading.fits))


def _usable(entry: SeriesEntry) -> bool:
    return entry.quantity is not None and entry.quantity.plain and not entry.cell.interval


def _reference_row(view: View, derived: Series) -> int | None:
    """Return the row that others are compared with: named in the head, marked in the column, or the first."""
    title = derived.metric.title.lower()
    named = [
        entry
        for entry in derived.entries
        if key(entry.key) and re.search(rf"\b(?:vs\.?|versus|to|over|against|than)\s+{re.escape(key(entry.key))}\b", title)
    ]
    marked = [entry for entry in derived.entries if entry.cell.empty or _REFERENCE.match(entry.cell.text.strip())]
    return next((entry.position for entry in (*named, *marked)), None)


def _against_row(view: View, derived: Series) -> dict[str, list[Operands]]:
    """Return the operands for comparing each row with one row of a column."""
    reference = _reference_row(view, derived)
    if reference is None:
        return {}
    groups: dict[str, list[Operands]] = {}
    for series in view.of_kind("time", "rate", "memory", "count", "number"):
        base = series.of(reference)
        rows = [
            Operands(entry=entry, said=said, reference=base, candidate=own, source=series.metric.title)
            for entry, said in derived.figures
            if _usable(entry)
            and entry.position != reference
            and base is not None
            and (own := series.of(entry.position)) is not None
        ]
        if rows:
            groups[series.metric.title] = rows
    return groups


def _across(view: View, derived: Series) -> dict[str, list[Operands]]:
    """Return the operands for comparing two columns of the same kind within each row."""
    columns = [series for series in view.of_kind("time", "rate", "memory") if series.metric.statistic not in ("spread",)]
    groups: dict[str, list[Operands]] = {}
    for number, first in enumerate(columns):
        for second in columns[number + 1 :]:
            if first.metric.kind != second.metric.kind or _statistics_of_one(first, second):
                continue
            source = f"{first.metric.title} and {second.metric.title}"
            groups[source] = [
                Operands(entry=entry, said=said, reference=one, candidate=two, source=source)
                for entry, said in derived.figures
                if _usable(entry) and (one := first.of(entry.position)) and (two := second.of(entry.position))
            ]
    return {source: rows for source, rows in groups.items() if rows}


def _statistics_of_one(one: Series, two: Series) -> bool:
    """Return True for two statistics of the same quantity (`SS Mean`, `SS Max`)."""
    return one.metric.statistic != two.metric.statistic and words(one.metric.title) == words(two.metric.title)


def _of_rows(view: View, derived: Series) -> dict[str, list[Operands]]:
    """Return the operands of a change column in a table with metrics as rows and two configurations as columns."""
    rows = []
    if len(view.keys) == 2:
        for series in view.series:
            entry = next(entry for entry in derived.entries if entry.row == series.index)
            figures = [figure for _, figure in series.figures]
            if _usable(entry) and entry.quantity is not None and len(figures) == 2:
                source = f"{view.keys[0]} and {view.keys[1]}"
                rows.append(Operands(entry=entry, said=entry.quantity, reference=figures[0], candidate=figures[1], source=source))
    return {rows[0].source: rows} if rows else {}


def _columns(study: LintStudy) -> Iterator[tuple[View, Series, list[Reading]]]:
    """Yield every derived column with its readings."""
    for view in study.views:
        if view.table.origin != "table" or _OTHER.search(view.table.context):
            continue
        if not view.by_columns:
            for derived in view.derived:
                yield view, derived, _readings(_of_rows(view, derived))
            continue
        for derived in view.of_kind("change"):
            yield view, derived, _readings({**_against_row(view, derived), **_across(view, derived)})


def change_column(study: LintStudy) -> Iterator[Claim]:
    """Find rows of a derived column that the formula of the other rows does not give."""
    for view, derived, readings in _columns(study):
        best = readings[0] if readings else None
        if best is None or best.complete:
            continue
        single = len(best.rows) == 1 and len({reading.source for reading in readings}) == 1 and not best.fits
        if not single and (len(best.fits) < 2 or len(best.fits) < _MAJORITY * len(best.rows)):
            continue
        chosen = _obvious(best, readings) if single else best
        for row in chosen.rows:
            if row in chosen.fits:
                continue
            right = _apply(row, chosen.formula)
            if right is not None and _material(row.said, right):
                others = [
                    reading.source
                    for reading in readings
                    if reading.source != chosen.source and reading.formula == chosen.formula and _has(reading, row)
                ]
                switched = f"; it is that of {others[0]}: the column changes its statistic" if others else ""
                exact, of = _exact(row, chosen.formula), f"{chosen.source} ({row.reference.text}, {row.candidate.text})"
                yield Claim(
                    place=study.document.place(row.entry.cell.line, view.table, row.entry.key, derived.metric.title),
                    said=f"{row.entry.key}: {row.said.text}",
                    corrected=printed(exact, row.said, more=0),
                    why=f"{chosen.formula} of {of} is {printed(exact, row.said)}{switched}",
                )


def _has(reading: Reading, row: Operands) -> bool:
    return any(fit.entry is row.entry for fit in reading.fits)


def _obvious(best: Reading, readings: Sequence[Reading]) -> Reading:
    """Return the reading that unit and sign suggest, for a column whose only row fits no formula."""
    said = best.rows[0].said
    wanted = "reference / candidate" if said.dimension != "percent" else "candidate / reference - 1"
    if said.dimension == "percent" and not said.signed:
        wanted = "1 - candidate / reference" if best.rows[0].candidate.value < best.rows[0].reference.value else wanted
    return next((reading for reading in readings if reading.formula == wanted), best)


def _material(said: Quantity, right: Bounds) -> bool:
    off = max(said.bounds.low - right.high, right.low - said.bounds.high, Fraction(0))
    if said.dimension == "percent":
        return off > FLOOR_POINTS
    return off > FLOOR_RATIO * abs(right.middle)


def statistic_unnamed(study: LintStudy) -> Iterator[Claim]:
    """Find derived columns beside several statistics of one quantity that do not say which of them they compare."""
    for view, derived, readings in _columns(study):
        if not view.by_columns:
            continue
        complete = [reading for reading in readings if reading.complete and len(reading.rows) >= 2]
        sources = {reading.source for reading in complete}
        if len(sources) != 1:
            continue
        source = (
            next(series for series in view.series if series.metric.title == complete[0].source)
            if complete[0].source in {series.metric.title for series in view.series}
            else None
        )
        if source is None or not source.metric.statistic:
            continue
        siblings = [
            series
            for series in view.of_kind("time")
            if series is not source and _statistics_of_one(series, source) and series.metric.statistic
        ]
        if siblings and not _says(view, derived, source):
            yield _unnamed(study, view, derived, (source, siblings[0], complete[0]))


def _says(view: View, derived: Series, source: Series) -> bool:
    """Return True if the column's head, the caption or a note names the statistic."""
    names = {"mean": r"mean|avg|average", "p50": r"p50|median", "max": r"max\w*|worst", "min": r"min\w*|best"}
    pattern = names.get(source.metric.statistic, re.escape(source.metric.statistic))
    texts = (derived.metric.title, view.table.caption, *view.table.notes)
    return any(re.search(rf"(?i)\b(?:{pattern})\b", text) for text in texts)


def _unnamed(study: LintStudy, view: View, derived: Series, found: tuple[Series, Series, Reading]) -> Claim:
    source, sibling, reading = found
    base = sibling.of(_reference_row(view, derived) or 0)
    for row in reading.rows:
        own = sibling.of(row.entry.position)
        if base is not None and own is not None:
            other = _apply(
                Operands(entry=row.entry, said=row.said, reference=base, candidate=own, source=sibling.metric.title),
                reading.formula,
            )
            if other is not None and not row.said.bounds.overlaps(other):
                by_sibling = f"{printed(other.middle, row.said, more=0)} by {sibling.metric.title}"
                difference = f"; {row.entry.key}: {row.said.text} by {source.metric.title}, {by_sibling}"
                break
    else:
        difference = ""
    return Claim(
        place=study.document.place(view.table.line, view.table, "", derived.metric.title),
        said=derived.metric.title,
        corrected=f"{source.metric.title} {re.sub(_STATISTIC, '', derived.metric.title)}",
        why=f"every row is {reading.formula} of {source.metric.title}, and the head does not say so{difference}",
    )


RULES: Final = (
    Rule(
        id="fps-latency",
        meaning="A rate is frames / latency: the number of frames is the one the other rows agree on.",
        check=fps_latency,
    ),
    Rule(
        id="total-sum",
        meaning="A total is the sum of its rows; what it holds beyond them has a row of its own.",
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
