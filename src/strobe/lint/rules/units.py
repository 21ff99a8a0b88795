"""Rules on units, and on times that the hardware cannot do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from strobe.core.costs import CostItem, DevicePeaks, PassShape, parse_dtype, total, transformer_pass
from strobe.lint.document import VALUE, ClaimPlace
from strobe.lint.quantity import UNITS, Quantity, is_metric, listed, printed, spelled, time_printed, words
from strobe.lint.study import Claim, LintFigure, LintStudy, MetricSeries, Rule, View

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
            bare = [figure for figure in series.figures if figure.quantity.unit is None]
            title = series.metric.title
            if view.table.origin != "table":
                bare = [figure for figure in bare if title == VALUE and _LABELLED.search(figure.name)]
                title, missing = (bare[0].name, "ms, µs or s") if bare else ("", "")
            else:
                missing = _missing(view, series) if len(bare) == len(series.figures) else ""
            if missing and bare:
                yield Claim(
                    place=bare[0].place,
                    said=f"{title}: {bare[0].quantity.text}",
                    corrected=f"{title} ({missing})",
                    why=f"no unit beside the figure, in its head or in the caption ({len(bare)} without one)",
                )


def _missing(view: View, series: MetricSeries) -> str:
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

_PLAIN_TIMES: Final = spelled("time")
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
            why="the document says so itself; a reader of the figures cannot know which is meant",
        )


# ----------------------------------------------------------------------------------------------------------------- levels

_RANKS: Final = (
    (5, r"frame[ _]blocks?|stages?|denois\w+ (?:stage|loop)"),
    (0, r"kernels?"),
    (1, r"sections?"),
    (2, r"attention|attn"),
    (3, r"layers?"),
    (4, r"steps?|pass(?:es)?|forward"),
    (6, r"e2e|end[- ]to[- ]end|pipeline|clip|request|video"),
)
_OTHER_BASIS: Final = re.compile(
    r"(?i)\b(?:sum|total|all calls|saved|share|budget|overhead|launch|gap|idle|delta|difference|per token|per frame|speed-?up)\b"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelTime:
    """A time of one variant at one level, from the kernel (0) up to the whole run (6)."""

    rank: int
    variant: str
    label: str
    figure: LintFigure

    @property
    def quantity(self) -> Quantity:
        """The time."""
        return self.figure.quantity


def levels(study: LintStudy) -> list[LevelTime]:
    """Return the times whose label or heading names a level and one variant."""
    found = []
    for figure in study.figures:
        quantity, table, metric = figure.quantity, figure.table, figure.metric
        title = "" if metric.title == VALUE else metric.title
        texts = [figure.name, title, table.rows[figure.row].group if figure.by_columns else "", table.caption]
        if quantity.dimension != "time" or not quantity.plain or metric.statistic not in ("", "mean", "p50"):
            continue
        rank = next((rank for text in texts if (rank := _rank_of(text)) is not None), None)
        variant = {word for text in texts[:2] for word in _own_words(text)} - _LEVEL_WORDS
        if rank is not None and len(variant) == 1 and not any(_OTHER_BASIS.search(text) for text in texts):
            found.append(LevelTime(rank=rank, variant=variant.pop(), label=f"{figure.name} {title}".strip(), figure=figure))
    return found


_LEVEL_WORDS: Final = listed(
    "kernel section attention attn self layer block step pas forward stage denoising denoise e2e end pipeline clip request video "
    "flash fwd trace log steady state frame example excl warmup one call"
)
_FUNCTION: Final = re.compile(r"(?i)(?<!\w)\w*(?:fwd|kernel)_\w+|(?<!\w)\w*_(?:\w*_)?fwd\w*|(?<!\w)_\w*fwd\w*")
"""The name of a kernel's function, such as `_attn_fwd_sparse`."""


def _own_words(text: str) -> list[str]:
    """Return the words of a label without names of functions and text in brackets."""
    return list(words(_FUNCTION.sub(" ", re.sub(r"\([^)]*\)", " ", text))))


def _rank_of(text: str) -> int | None:
    """Return the level that a label names, if it names at most a variant besides."""
    bare = re.sub(r"\([^)]*\)", " ", text)
    if re.search(r"[/:]", bare) or len([word for word in _own_words(bare) if word not in _LEVEL_WORDS]) > 1:
        return None
    if _FUNCTION.search(bare):
        return 0
    plain = bare.replace("_", " ")
    return next((rank for rank, pattern in _RANKS if re.search(rf"(?i)(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", plain)), None)


# ---------------------------------------------------------------------------------------------------- with a model's shape

_BENIGN: Final = listed(
    "self attention attn sdpa flash kernel core layer first later subsequent other each per call cross ffn up down projection "
    "proj qkv output out fused denoising denoise step forward pas dit transformer one single full fa2 fa3 fa4 cudnn fp8 bf16"
)
_PARTS: Final = (
    ("attention_kernel", r"self[\s_-]?att(?:entio)?n\w*(?:[\s_-]+(?:sdpa|kernel|core))?"),
    ("cross_attention_kernel", r"cross[\s_-]?att(?:entio)?n\w*(?:[\s_-]+(?:sdpa|kernel|core))?"),
    ("ffn_up", r"ffn[\s_-]?up(?:[\s_-]proj\w*)?"),
    ("ffn_down", r"ffn[\s_-]?down(?:[\s_-]proj\w*)?"),
    ("qkv_projection", r"qkv[\s_-]?proj\w*"),
    ("", r"(?:denois\w+[\s_-]step|forward[\s_-]pass|(?:dit|transformer)[\s_-](?:forward|pass))"),
)
_DTYPE: Final = re.compile(r"(?i)\b(?:bf16|bfloat16|fp16|float16|half|fp8\w*|float8\w*|f8\w*|int8|tf32|fp32|float32)\b")
_TAKES: Final = re.compile(rf"(?i)\b(?:each|one|a|every|per)\s+(?P<what>{_PARTS[-1][1]})\s+(?:takes?|lasts?|needs?|is|costs?)\b")


def below_floor(study: LintStudy) -> Iterator[Claim]:
    """Compare times of parts of a transformer with their FLOPs at the device's peak: one call of one layer at least."""
    options, device = study.options, study.options.device
    if options.model is None or options.tokens_per_frame is None or options.window is None or device is None:
        return
    parts = _pass(study, options.window)
    costs = {part.name: part.each for part in parts} | {"": total(parts)}
    seen: set[tuple[int, Fraction]] = set()
    for label, said, place in _timed_parts(study):
        part = _part(label)
        if part is None or not said.plain or said.value <= 0 or (place.line, said.value) in seen:
            continue
        seen.add((place.line, said.value))
        flops, (peak, what) = costs[part].flops, _matrix_peak(device, label)
        if Fraction(flops) / said.bounds.high > peak:
            rate = float(Fraction(flops) / said.value)
            yield Claim(
                place=place,
                said=f"{label}: {said.text}",
                corrected=f"at least {time_printed(Fraction(flops, peak))}",
                why=(
                    f"{flops / 1e9:.4g} GFLOP in {said.text} = {rate / 1e15:.2f} PFLOP/s, {rate / peak:.1f} times the {what} of "
                    f"{device.name}: a timer without synchronisation"
                ),
            )


def _matrix_peak(device: DevicePeaks, label: str) -> tuple[int, str]:
    """Return the peak of the dtype that a label names, else of 16 bits, the default of such models."""
    named = next((dtype for word in _DTYPE.findall(label) if (dtype := parse_dtype(word))), "bfloat16")
    peak = device.peak_flops_per_s(named) or max(device.flops_per_s.values())
    return peak, f"{peak / 1e12:.4g} TFLOP/s in {named}"


def _pass(study: LintStudy, window: int) -> tuple[CostItem, ...]:
    options = study.options
    assert options.model is not None and options.tokens_per_frame is not None
    frames = options.model.frame_block
    shape = PassShape(q_tokens=frames * options.tokens_per_frame, kv_tokens=max(window, frames) * options.tokens_per_frame)
    return transformer_pass(options.model, shape)


def _timed_parts(study: LintStudy) -> Iterator[tuple[str, Quantity, ClaimPlace]]:
    """Yield every time with its label: figures of tables, items of lists, and `each step takes ...`."""
    for figure in study.figures:
        if figure.quantity.dimension == "time" and figure.metric.statistic in ("", "mean", "p50", "min"):
            yield figure.name, figure.quantity, figure.place
    for sentence in study.document.sentences:
        takes, label = _TAKES.search(sentence.text), sentence.lead
        for said in [each for each in sentence.found if each.dimension == "time"]:
            if takes and said.start >= takes.end():
                yield takes["what"], said, study.document.place(sentence.line)
            elif label and sentence.text.startswith(label):
                yield label, said, study.document.place(sentence.line)


def _part(label: str) -> str | None:
    """Return the part of a pass that a label names alone (`self-attention KV cache clone` is not attention)."""
    if any(word not in _BENIGN and not word.isdigit() for word in words(re.sub(r"\([^)]*\)", " ", label))):
        return None
    return next((name for name, pattern in _PARTS if re.search(rf"(?i)(?<![A-Za-z]){pattern}(?![A-Za-z])", label)), None)


# ---------------------------------------------------------------------------------------------------------------- windows

_WINDOW: Final = re.compile(r"(?i)\b(?:window|local[ _]att\w*|context)\b")
FREE: Final = Fraction(1, 4)
"""Least saving of a smaller window / removed FLOPs; below it the window had no effect, or FLOPs did not take the time."""
WORTH: Final = Fraction(1, 10)


def window_free(study: LintStudy) -> Iterator[Claim]:
    """Compare what a smaller attention window saves with the FLOPs it removes."""
    if study.options.model is None or study.options.tokens_per_frame is None:
        return
    for view in study.views:
        table = view.table
        if view.by_columns and _WINDOW.search(f"{table.header[0]} {table.caption} {table.section.title}"):
            times = [series for series in view.of_kind("time") if series.metric.statistic not in ("spread", "sum")]
            times.sort(key=lambda series: series.metric.statistic != "mean")
            figures = times[0].figures if times else ()
            sizes = [(int(found[1]), figure) for figure in figures if (found := re.match(r"\D{0,12}(\d+)\b", figure.name))]
            if len(sizes) >= 2:
                yield from _free(study, *(choose(sizes, key=lambda size: size[0]) for choose in (min, max)))


def _free(study: LintStudy, small: tuple[int, LintFigure], large: tuple[int, LintFigure]) -> Iterator[Claim]:
    work = [Fraction(total(_pass(study, size)).flops) for size, _ in (small, large)]
    one, two, removed = small[1].quantity, large[1].quantity, 1 - work[0] / work[1]
    if removed < WORTH or 1 - one.bounds.low / two.bounds.high >= FREE * removed:
        return
    shown, percent = 1 - one.value / two.value, float(100 * removed)
    yield Claim(
        place=small[1].place,
        said=f"window {large[0]} to {small[0]}: {two.text} to {one.text} ({-float(100 * shown):+.1f}%)",
        corrected=f"about {printed((1 - removed) * two.value, one, more=0)} ({-percent:+.1f}%) if the pass is bound by its FLOPs",
        why=(
            f"{float(work[1]) / 1e12:.1f} to {float(work[0]) / 1e12:.1f} TFLOP per pass: {percent:.0f} % of the work is gone. "
            "Launch-bound, or the window was not applied"
        ),
        also=(large[1].place,),
    )


RULES: Final = (
    Rule(id="no-unit", meaning="A time or a memory size has a unit, in its cell, its head or its caption.", check=no_unit),
    Rule(
        id="label-admitted",
        meaning="No figure stands under a unit that the text calls wrong.",
        check=label_admitted,
    ),
    Rule(
        id="below-floor",
        meaning="A part of a transformer takes at least its FLOPs over the device's peak.",
        check=below_floor,
        needs="--model, --size, --window and --device",
    ),
    Rule(
        id="window-free",
        meaning="A smaller attention window saves time in proportion to the FLOPs it removes, or the reason is said.",
        check=window_free,
        needs="--model and --size",
    ),
)
