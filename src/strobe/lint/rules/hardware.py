"""Times that the hardware cannot do, with a model's shape: its FLOPs at the device's peak."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from strobe.core.costs import CostItem, PassShape, total, transformer_pass
from strobe.lint.document import Claim, ClaimPlace, LintDocument, LintFigure
from strobe.lint.quantity import Quantity, printed

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
