"""Rules for figures without a unit, and for unit labels that cannot be right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from strobe.lint.document import Place
from strobe.lint.finding import Claim, Rule
from strobe.lint.lines import VALUE
from strobe.lint.names import is_metric, listed, statistic, words
from strobe.lint.quantity import UNITS, Quantity, Unit, time_printed
from strobe.lint.study import LintStudy
from strobe.lint.views import Series, View

_TIMED: Final = re.compile(r"(?i)\b(?:latency|latencies|duration|elapsed|runtime|run time|time|ttft|tpot|delay)\b")
_NOT_TIMED: Final = re.compile(
    r"(?i)^(?:no|without|num|number of|#)\b|\b(?:complexity|steps?|times|date|stamp|zone|per|/|o\()\b|%|\bof day\b"
)
_LABELLED: Final = re.compile(r"(?i)(?:^|[\s_])(?:latency|duration|elapsed|runtime|time)$")
"""A label of printed output or a list that ends in the word for a time."""
_STORED: Final = re.compile(r"(?i)\b(?:memory|vram|footprint)\b")


def no_unit(study: LintStudy) -> Iterator[Claim]:
    """Find columns or rows of times or memory without a unit in the cells, the head or the caption."""
    for view in study.views:
        for series in view.series:
            bare = [(entry, figure) for entry, figure in series.figures if figure.unit is None]
            if view.table.origin != "table":
                bare = [(entry, figure) for entry, figure in bare if series.metric.title == VALUE and _LABELLED.search(entry.key)]
                title, missing = (bare[0][0].key, "ms, µs or s") if bare else ("", "")
            else:
                title, missing = series.metric.title, _missing(view, series) if len(bare) == len(series.figures) else ""
            if missing and bare:
                entry, figure = bare[0]
                yield Claim(
                    place=study.figure_place(view, series, entry),
                    said=f"{title}: {figure.text}",
                    corrected=f"{title} ({missing})",
                    why=f"no unit beside the figure, in its head or in the caption ({len(bare)} without one)",
                )


def _missing(view: View, series: Series) -> str:
    """Return the units that a series needs and lacks; empty if it lacks none."""
    title, context = series.metric.title, f"{view.table.caption} {view.table.section.title}"
    if series.metric.kind in ("count", "rate", "share", "change", "quality"):
        return ""
    if _TIMED.search(title) and not _NOT_TIMED.search(title):
        return "ms, µs or s"
    if _STORED.search(title) and re.search(r"(?i)\b(?:peak|memory|vram|footprint)\b", title):
        return "GB, GiB or MB"
    timed = _TIMED.search(context) and not _NOT_TIMED.search(context)
    return "ms, µs or s" if timed and series.metric.statistic not in ("", "sum") and is_metric(title) else ""


# ------------------------------------------------------------------------------------------------------- labels that lie

_PLAIN_TIMES: Final = "|".join(
    sorted((re.escape(name) for name, unit in UNITS.items() if unit.dimension == "time"), key=len, reverse=True)
)
_LABEL: Final = re.compile(
    r"(?i)\b(?:label\w*|print\w*|logged|says?|said|shown?|displayed|tagged|marked|suffix\w*|unit)\b[^.;]{0,40}?"
    rf"\b(?P<unit>(?-i:{_PLAIN_TIMES}))\b"
)
_BEHAVES: Final = re.compile(
    r"(?i)\b(?:behav\w+|are (?:really|actually|in fact)|is (?:really|actually|in fact)|actually|in reality|really)\b[^.;]{0,24}?"
    rf"\b(?P<unit>(?-i:{_PLAIN_TIMES}))\b"
)


def label_admitted(study: LintStudy) -> Iterator[Claim]:
    """Find sentences that admit a wrong unit on figures of the document."""
    for sentence in study.document.sentences:
        label, behaves = _LABEL.search(sentence.text), _BEHAVES.search(sentence.text)
        if not label or not behaves:
            continue
        one, two = UNITS[label["unit"]], UNITS[behaves["unit"]]
        if one == two or one.dimension != "time" or two.dimension != "time":
            continue
        yield Claim(
            place=study.document.place(sentence.line),
            said=f"labelled {one.name}, behaving as {two.name}",
            corrected=f"print {two.name} with the label {two.name}, or multiply by {two.scale / one.scale} and keep {one.name}",
            why=_proof(study, one, two),
        )


def _proof(study: LintStudy, label: Unit, real: Unit) -> str:
    """Describe the label's consequence with figures of the document: its meaning, and the longer time it contradicts."""
    every = levels(study)
    for outer in sorted((level for level in every if level.rank > 0), key=lambda level: (level.rank != 2, level.rank)):
        claimed = outer.quantity.value * label.scale / real.scale
        inside = [inner for inner in every if inner.rank == 0 and _inside(inner, outer) and inner.quantity.value > claimed]
        if inside:
            as_printed, inner = float(outer.quantity.value / real.scale), inside[0]
            return (
                f"{outer.label} {outer.quantity.text} printed as {as_printed:.6g} {label.name} would be {time_printed(claimed)}, "
                f"shorter than {inner.label} {inner.quantity.text} inside it ({inner.place.short})"
            )
    return "the document says so itself; a reader of the figures cannot know which is meant"


# ---------------------------------------------------------------------------------------------- shorter than its contents

_RANKS: Final = (
    (5, r"frame[ _]blocks?|stages?|denois\w+ (?:stage|loop)"),
    (0, r"kernels?"),
    (1, r"sections?"),
    (2, r"attention|attn"),
    (3, r"layers?"),
    (4, r"steps?|pass(?:es)?|forward"),
    (6, r"e2e|end[- ]to[- ]end|pipeline|clip|request|video"),
)
_SCALES: Final = (1000, 10**6, 10**9)
FAR: Final = 20
"""Factor by which a time must be shorter than a time inside it to indicate a wrong unit rather than another basis."""
_OTHER_BASIS: Final = re.compile(
    r"(?i)\b(?:sum|total|all calls|saved|share|budget|overhead|launch|gap|idle|delta|difference|per token|per frame|speed-?up)\b"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A time of one variant at one level, from the kernel (0) up to the whole run (6).

    Args:
        mean: it says that it is an average, so that it may be compared with averages of other tables.
    """

    rank: int
    variant: frozenset[str]
    label: str
    quantity: Quantity
    place: Place
    view: View
    mean: bool


def levels(study: LintStudy) -> list[Level]:
    """Return the times whose label or heading names a level and at most a variant, shortest level first."""
    found = []
    for figure in study.figures:
        if (
            figure.quantity.dimension != "time"
            or not figure.quantity.plain
            or figure.series.metric.statistic not in ("", "mean", "p50")
        ):
            continue
        table = figure.view.table
        title = "" if figure.series.metric.title == VALUE else figure.series.metric.title
        texts = [figure.entry.key, title, table.rows[figure.entry.row].group, table.caption]
        rank = next((rank for text in texts if (rank := rank_of(text)) is not None), None)
        variant = frozenset(word for text in texts[:2] for word in _own_words(text) if word not in _LEVEL_WORDS)
        if rank is None or len(variant) != 1 or any(_OTHER_BASIS.search(text) for text in texts):
            continue
        found.append(
            Level(
                rank=rank,
                variant=variant,
                label=" ".join(part for part in (figure.entry.key, title) if part),
                quantity=figure.quantity,
                place=figure.place,
                view=figure.view,
                mean=any(statistic(text) == "mean" for text in texts),
            )
        )
    return sorted(found, key=lambda level: (level.rank, level.quantity.value))


_LEVEL_WORDS: Final = listed(
    "kernel section attention attn self layer block step pas forward stage denoising denoise e2e end pipeline clip request video "
    "flash fwd trace log steady state frame example excl warmup one call"
)
_FUNCTION: Final = re.compile(r"(?i)(?<!\w)\w*(?:fwd|kernel)_\w+|(?<!\w)\w*_(?:\w*_)?fwd\w*|(?<!\w)_\w*fwd\w*")
"""The name of a kernel's function, such as `_attn_fwd_sparse`."""


def _own_words(text: str) -> list[str]:
    """Return the words of a label without names of functions and text in brackets."""
    return list(words(_FUNCTION.sub(" ", re.sub(r"\([^)]*\)", " ", text))))


def rank_of(text: str) -> int | None:
    """Return the level that a label names, if it names at most a variant besides."""
    bare = re.sub(r"\([^)]*\)", " ", text)
    if re.search(r"[/:]", bare) or len([word for word in _own_words(bare) if word not in _LEVEL_WORDS]) > 1:
        return None
    if _FUNCTION.search(bare):
        return 0
    plain = bare.replace("_", " ")
    return next((rank for rank, pattern in _RANKS if re.search(rf"(?i)(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", plain)), None)


def _inside(inner: Level, outer: Level) -> bool:
    """Return True for a level of the same variant on the same basis: the same table, or both are averages."""
    same = inner.view is outer.view or (inner.mean and outer.mean)
    return inner.rank < outer.rank and inner.variant == outer.variant and same


def contained(study: LintStudy) -> Iterator[Claim]:
    """Find a time that is far shorter than a time inside it, and the unit that would make it right."""
    every = levels(study)
    for outer in every:
        inside = [inner for inner in every if _inside(inner, outer) and inner.quantity.value > FAR * outer.quantity.bounds.high]
        scale = next(
            (
                scale
                for scale in _SCALES
                if inside and all(inner.quantity.value <= scale * outer.quantity.bounds.high for inner in inside)
            ),
            None,
        )
        if scale is None or outer.quantity.unit is None:
            continue
        inner = inside[0]
        right = outer.quantity.value * scale
        real = next(
            (unit for unit in UNITS.values() if unit.dimension == "time" and unit.scale == outer.quantity.unit.scale * scale),
            None,
        )
        label = f", the label should be {real.name}" if real else ""
        yield Claim(
            place=outer.place,
            said=f"{outer.label}: {outer.quantity.text}",
            corrected=f"{time_printed(right)}{label}",
            why=f"{time_printed(outer.quantity.value)} around {inner.label} {inner.quantity.text} ({inner.place.short})",
            also=(inner.place,),
        )


RULES: Final = (
    Rule(id="no-unit", meaning="A time or a memory size has a unit, in its cell, its head or its caption.", check=no_unit),
    Rule(
        id="label-admitted",
        meaning="Figures are not left under a unit that the text itself calls wrong.",
        check=label_admitted,
    ),
    Rule(
        id="shorter-than-inside",
        meaning="What contains a kernel or a section lasts at least as long as that.",
        check=contained,
    ),
)
