"""Rules that compare FPS with latency."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor, prod
from typing import Final

from strobe.lint.document import Place
from strobe.lint.finding import Claim, Rule
from strobe.lint.names import key
from strobe.lint.quantity import Bounds, Quantity, exactly, printed
from strobe.lint.study import LintStudy
from strobe.lint.views import Series, SeriesEntry, View

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
    batch: Fraction

    @property
    def frames(self) -> Bounds:
        """Rate x latency, per sample of the batch."""
        return self.rate.bounds * self.time.bounds / exactly(self.batch)

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
        expected = frames * self.batch / self.time.value
        return self.frames.low <= frames <= self.frames.high or abs(self.rate.value - expected) <= FLOOR * expected


@dataclass(frozen=True, slots=True)
class _Consensus:
    """The latency that most rows agree on, and the number of frames made in it."""

    label: str
    frames: int
    support: int


def _pairs(view: View) -> Iterator[_Pair]:
    sizes = _batches(view)
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
                        batch=sizes.get(entry.position, Fraction(1)),
                    )


def _batches(view: View) -> dict[int, Fraction]:
    """Return the samples made at once, by row, if the table has a column of them."""
    names = ("batch", "batch size", "batch_size", "bs", "concurrency")
    if view.by_columns and view.table.header[0].lower() in names:
        cells = enumerate(row.cells[0] for row in view.table.rows)
        return {number: cell.quantity.value for number, cell in cells if cell.quantity and cell.quantity.value > 0}
    found = next((series for series in view.series if series.metric.title.lower() in names), None)
    return {entry.position: figure.value for entry, figure in found.figures if figure.value > 0} if found else {}


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


def _given(pairs: Sequence[_Pair], options: Sequence[int]) -> _Consensus | None:
    """Return the latency that fits one of the allowed numbers of frames best."""
    scored = [
        (sum(pair.agrees(frames) for pair in pairs if key(pair.latency.metric.title) == label), label, frames)
        for label in dict.fromkeys(key(pair.latency.metric.title) for pair in pairs)
        for frames in options
    ]
    hits, label, frames = max(scored, key=lambda entry: entry[0])
    if not hits:  # no row fits: then the mean is meant, or the only latency there is
        labels = {key(pair.latency.metric.title): pair.latency.metric.statistic for pair in pairs}
        means = [name for name, statistic in labels.items() if statistic == "mean"]
        if len(labels) > 1 and len(means) != 1:
            return None
        label = means[0] if len(labels) > 1 else label
        near = next(pair for pair in pairs if key(pair.latency.metric.title) == label)
        frames = min(options, key=lambda count: abs(count - near.frames.middle))
    return _Consensus(label, frames, hits)


def _allowed(study: LintStudy, series: Series) -> list[int]:
    """Return the frames of a block given by the options: latent or pixel, as the column says; both if it does not say."""
    given = study.options.frames_per_block or (study.options.model.frame_block if study.options.model else None)
    if given is None:
        return []
    stride = study.options.model.stride.time if study.options.model else 4
    title = series.metric.title.lower()
    return [given] if "latent" in title else [given * stride] if "pixel" in title else [given, given * stride]


def fps_latency(study: LintStudy) -> Iterator[Claim]:
    """Compare every rate with the latency beside it, by the number of frames given or agreed on by the other rows."""
    tables = {id(view): list(_pairs(view)) for view in study.views}
    everything = [pair for pairs in tables.values() for pair in pairs]
    document = {label: _consensus(pairs) for label, pairs in _by_rate(everything)}
    wrong: list[tuple[_Pair, int, Sequence[_Pair]]] = []
    for pairs in tables.values():
        for label, group in _by_rate(pairs):
            options = _allowed(study, group[0].series)
            own = None if len(options) == 1 else _consensus(group)  # a column of pixel or latent FPS is held to what is given
            agreed = own or (_given(group, options) if options else document[label])
            if agreed:
                wrong += [
                    (pair, agreed.frames, group)
                    for pair in group
                    if key(pair.latency.metric.title) == agreed.label and not pair.agrees(agreed.frames)
                ]
    yield from _claims(study, wrong)


def frames_of_block(study: LintStudy) -> int | None:
    """Return the frames made in one latency, as given or as implied by the document's rates and latencies."""
    if study.options.frames_per_block or study.options.model:
        return study.options.frames_per_block or (study.options.model.frame_block if study.options.model else None)
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
        right = frames * pair.batch / pair.time.value
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


RULES: Final = (
    Rule(
        id="fps-latency",
        meaning="A rate is frames / latency: the number of frames is the one the other rows agree on, or `--frames-per-block`.",
        check=fps_latency,
    ),
)
