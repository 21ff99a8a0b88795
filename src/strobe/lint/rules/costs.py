"""Rules for claims that exceed the hardware's peaks or contradict the model's FLOPs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from strobe.core.costs import Cost, CostItem, DevicePeaks, PassShape, parse_dtype, total, transformer_pass
from strobe.lint.document import Place
from strobe.lint.finding import Claim, Rule
from strobe.lint.names import listed, words
from strobe.lint.quantity import Quantity, printed, time_printed
from strobe.lint.study import DTYPE, LintStudy
from strobe.lint.views import Series, View


def _matrix_peak(study: LintStudy, device: DevicePeaks, *texts: str) -> tuple[int, str]:
    """Return the peak of the nearest named dtype; without one, of the device's fastest dtype."""
    for text in texts:
        named = [dtype for word in DTYPE.findall(text) if (dtype := parse_dtype(word))]
        peaks = [(peak, dtype) for dtype in named if (peak := device.peak_flops_per_s(dtype)) is not None]
        if peaks:
            peak, dtype = max(peaks)
            return peak, f"{peak / 1e12:.4g} TFLOP/s in {dtype}"
    if study.dtype and (peak_of := device.peak_flops_per_s(study.dtype)):
        return peak_of, f"{peak_of / 1e12:.4g} TFLOP/s in {study.dtype}"
    peak, dtype = max((peak, dtype) for dtype, peak in device.flops_per_s.items())
    return peak, f"{peak / 1e12:.4g} TFLOP/s in {dtype}, its fastest"


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
_TAKES: Final = re.compile(rf"(?i)\b(?:each|one|a|every|per)\s+(?P<what>{_PARTS[-1][1]})\s+(?:takes?|lasts?|needs?|is|costs?)\b")


def below_floor(study: LintStudy) -> Iterator[Claim]:
    """Compare times of parts of a transformer with their FLOPs at the device's peak: one call of one layer at least."""
    costs = _costs(study)
    device = study.device
    if costs is None or device is None:
        return
    seen: set[tuple[int, Fraction]] = set()
    for label, said, place in _timed_parts(study):
        part = _part(label)
        if part is None or (place.line, said.value) in seen:
            continue
        seen.add((place.line, said.value))
        flops = costs[part].flops
        peak, what = _matrix_peak_or_half(study, device, label)
        if said.mark in ("", "about") and said.bounds.high > 0 and Fraction(flops) / said.bounds.high > peak:
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


def _matrix_peak_or_half(study: LintStudy, device: DevicePeaks, label: str) -> tuple[int, str]:
    """Return the peak of the dtype that a label names, else of 16 bits, the default of such models."""
    named = any(parse_dtype(word) for word in DTYPE.findall(label))
    if named or study.dtype:
        return _matrix_peak(study, device, label)
    peak = device.peak_flops_per_s("bfloat16") or max(device.flops_per_s.values())
    return peak, f"{peak / 1e12:.4g} TFLOP/s in bfloat16"


def _costs(study: LintStudy) -> dict[str, Cost] | None:
    """Return the cost of one call of each part, and of the whole pass under the empty name."""
    options = study.options
    if options.model is None or options.tokens_per_frame is None or options.window is None:
        return None
    parts = _pass(study, options.window)
    return {part.name: part.each for part in parts} | {"": total(parts)}


def _pass(study: LintStudy, window: int) -> tuple[CostItem, ...]:
    options = study.options
    assert options.model is not None and options.tokens_per_frame is not None
    frames = options.frames_per_block or options.model.frame_block
    shape = PassShape(q_tokens=frames * options.tokens_per_frame, kv_tokens=max(window, frames) * options.tokens_per_frame)
    return transformer_pass(options.model, shape)


def _timed_parts(study: LintStudy) -> Iterator[tuple[str, Quantity, Place]]:
    """Yield every time with its label: figures of tables, items of lists, and `each step takes ...`."""
    for figure in study.figures:
        if figure.quantity.dimension == "time" and figure.series.metric.statistic in ("", "mean", "p50", "min"):
            yield figure.entry.key, figure.quantity, figure.place
    for sentence in study.document.sentences:
        label = sentence.lead
        takes = _TAKES.search(sentence.text)
        for said in sentence.found:
            if said.dimension != "time":
                continue
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
    options = study.options
    if options.model is None or options.tokens_per_frame is None:
        return
    for view in study.views:
        table = view.table
        if view.by_columns and _WINDOW.search(f"{table.header[0]} {table.caption} {table.section.title}"):
            times = [series for series in view.of_kind("time") if series.metric.statistic not in ("spread", "sum")]
            chosen = next((series for series in times if series.metric.statistic == "mean"), times[0] if times else None)
            if chosen is not None:
                yield from _free(study, view, chosen)


def _free(study: LintStudy, view: View, series: Series) -> Iterator[Claim]:
    sizes = [
        (int(found[1]), entry, figure) for entry, figure in series.figures if (found := re.match(r"\D{0,12}(\d+)\b", entry.key))
    ]
    if len(sizes) < 2:
        return
    small, large = min(sizes, key=lambda size: size[0]), max(sizes, key=lambda size: size[0])
    work = [Fraction(total(_pass(study, size[0])).flops) for size in (small, large)]
    removed = 1 - work[0] / work[1]
    saved = 1 - small[2].bounds.low / large[2].bounds.high
    if removed < WORTH or saved >= FREE * removed:
        return
    shown, percent = 1 - small[2].value / large[2].value, float(100 * removed)
    bound = printed((1 - removed) * large[2].value, small[2], more=0)
    yield Claim(
        place=study.figure_place(view, series, small[1]),
        said=f"window {large[0]} to {small[0]}: {large[2].text} to {small[2].text} ({-float(100 * shown):+.1f}%)",
        corrected=f"about {bound} ({-percent:+.1f}%) if the pass is bound by its FLOPs",
        why=(
            f"{float(work[1]) / 1e12:.1f} to {float(work[0]) / 1e12:.1f} TFLOP per pass: {percent:.0f} % of the work is gone. "
            "Launch-bound, or the window was not applied"
        ),
        also=(study.figure_place(view, series, large[1]),),
    )


RULES: Final = (
    Rule(
        id="below-floor",
        meaning="A part of a transformer takes at least its FLOPs over the device's peak.",
        check=below_floor,
        needs="--model, a size, --window and a device",
    ),
    Rule(
        id="window-free",
        meaning="A smaller attention window saves time in proportion to the FLOPs it removes, or the reason is said.",
        check=window_free,
        needs="--model and a size",
    ),
)
