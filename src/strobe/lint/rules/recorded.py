"""Rules for `records.jsonl`: damaged lines, counts that differ from the recorded spans, and unusable times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from strobe.lint.document import Place
from strobe.lint.finding import Claim, Rule
from strobe.lint.names import QUALITY
from strobe.lint.study import LintStudy, Numbered
from strobe.perf.records.record import Clip, Header, Quality, Span, Variant


def _place(study: LintStudy, number: int, row: str, column: str) -> Place:
    return study.document.place(number, None, row, column)


def _of(study: LintStudy, kind: type) -> list[Numbered]:
    return [each for each in study.records if isinstance(each.record, kind)]


def recorded_lines(study: LintStudy) -> Iterator[Claim]:
    """Find lines that were changed or lost after they were written."""
    if study.broken:
        yield Claim(
            place=_place(study, 0, "gzip", ""),
            said=study.broken,
            corrected="take the file from where it was packed, or pack the records again",
            why="the gzip does not end where the file does, or its checksum does not fit",
        )
    for line in study.damaged:
        yield Claim(
            place=_place(study, line, "line", ""),
            said=f"line {line}" if line else "fewer lines than were written",
            corrected="take the file from where it was measured, or measure again",
            why="number or checksum do not fit, or it is no record" if line else "the numbers of the lines have gaps",
        )


def recorded_calls(study: LintStudy) -> Iterator[Claim]:
    """Compare the calls per stage of each variant with the spans of its clips."""
    clips: dict[tuple[str, int], Counter[str]] = {}
    for span in (each.record for each in _of(study, Span)):
        assert isinstance(span, Span)
        clips.setdefault((span.variant, span.clip), Counter())[span.name] += 1
    for each in _of(study, Variant):
        variant = each.record
        assert isinstance(variant, Variant)
        counted = [count for (name, _), count in clips.items() if name == variant.name]
        if counted and not variant.calls_per_stage:
            found = counted[0]
            yield Claim(
                place=_place(study, each.line, variant.name, "calls_per_stage"),
                said="no calls per stage",
                corrected=", ".join(f"{name} {calls}" for name, calls in sorted(found.items())),
                why="a time per call and a time per stage cannot be tied without them; these are the spans of its first clip",
            )
        for stage, calls in variant.calls_per_stage.items():
            seen = {count[stage] for count in counted}
            if len(seen) == 1 and calls not in seen:
                right = seen.pop()
                yield Claim(
                    place=_place(study, each.line, variant.name, f"calls_per_stage.{stage}"),
                    said=f"{stage}: {calls} calls",
                    corrected=f"{right}",
                    why=f"every clip of this variant has {right} spans of that name",
                )


def recorded_spans(study: LintStudy) -> Iterator[Claim]:
    """Compare the number of spans that each clip claims with those recorded for it."""
    counts: Counter[tuple[str, int]] = Counter()
    for span in (each.record for each in _of(study, Span)):
        assert isinstance(span, Span)
        counts[span.variant, span.clip] += 1
    for each in _of(study, Clip):
        clip = each.record
        assert isinstance(clip, Clip)
        found = counts[clip.variant, clip.clip]
        if clip.num_spans != found:
            yield Claim(
                place=_place(study, each.line, f"{clip.variant}, clip {clip.clip}", "num_spans"),
                said=f"{clip.num_spans} spans",
                corrected=f"{found}",
                why=f"{found} span lines name this clip",
            )


def recorded_workload(study: LintStudy) -> Iterator[Claim]:
    """Compare the frames of a clip with its frame blocks, and the calls of a variant with its steps."""
    for each in _of(study, Header):
        header = each.record
        assert isinstance(header, Header)
        load = header.workload
        if load is None:
            continue
        frames = load.frames_first_block + (load.frame_blocks - 1) * load.frames_per_block
        if load.frames != frames:
            yield Claim(
                place=_place(study, each.line, "workload", "frames"),
                said=f"{load.frames} frames",
                corrected=f"{frames}",
                why=f"{load.frames_first_block} + {load.frame_blocks - 1} x {load.frames_per_block} = {frames}",
            )
        for own in _of(study, Variant):
            variant = own.record
            assert isinstance(variant, Variant)
            calls, steps = variant.calls_per_stage.get("denoise_step"), variant.steps
            if calls is not None and steps is not None and calls != steps * load.frame_blocks:
                yield Claim(
                    place=_place(study, own.line, variant.name, "steps"),
                    said=f"{steps} steps, {calls} calls of denoise_step",
                    corrected=f"{steps * load.frame_blocks} calls, or {calls / load.frame_blocks:g} steps",
                    why=f"{load.frame_blocks} frame blocks x {steps} steps = {steps * load.frame_blocks}",
                )


def recorded_parent(study: LintStudy) -> Iterator[Claim]:
    """Find frame blocks that are shorter than the spans inside them, on the clip's own thread and the same clock."""
    inside: dict[tuple[str, int, int], list[Span]] = {}
    blocks: dict[tuple[str, int, int], Numbered] = {}
    for each in _of(study, Span):
        span = each.record
        assert isinstance(span, Span)
        if span.name == "frame_block" and span.index is not None:
            blocks[span.variant, span.clip, span.index] = each
        elif span.parent is not None and span.thread == 0:
            inside.setdefault((span.variant, span.clip, span.parent), []).append(span)
    for name, each in blocks.items():
        block = each.record
        assert isinstance(block, Span)
        children = [child for child in inside.get(name, ()) if child.clock == block.clock]
        added = sum(child.value_ns for child in children)
        if added > block.value_ns + RESOLUTION_NS * (len(children) + 1):
            yield Claim(
                place=_place(study, each.line, f"{block.variant}, clip {block.clip}, frame_block {block.index}", "value_ns"),
                said=f"{block.value_ns} ns",
                corrected=f"at least {added} ns",
                why=f"{len(children)} spans inside it take {added} ns on the same thread and clock",
            )


RESOLUTION_NS: Final = 1_000
"""Resolution of a CUDA event, for each span."""


def recorded_reference(study: LintStudy) -> Iterator[Claim]:
    """Find PSNR, SSIM and the like without a named reference."""
    for each in _of(study, Quality):
        quality = each.record
        assert isinstance(quality, Quality)
        if quality.metric.replace("_", "-").lower() in QUALITY and quality.value is not None and not quality.reference.strip():
            yield Claim(
                place=_place(study, each.line, quality.variant, quality.metric),
                said=f"{quality.variant}: {quality.metric} {quality.value:g} {quality.unit}".strip(),
                corrected="name the reference: which preset, dtype and device",
                why="the record has an empty reference",
            )


def recorded_serialised(study: LintStudy) -> Iterator[Claim]:
    """Find runs whose launches were serialised."""
    for each in _of(study, Header):
        header = each.record
        assert isinstance(header, Header)
        if header.machine.launch_blocking:
            yield Claim(
                place=_place(study, each.line, "machine", "launch_blocking"),
                said="CUDA_LAUNCH_BLOCKING is set",
                corrected="measure again without it",
                why="every launch waits for its kernel: the times are those of another program",
            )


RULES: Final = (
    Rule(id="recorded-lines", meaning="Every line is as it was written.", check=recorded_lines),
    Rule(id="recorded-calls", meaning="Calls per stage are recorded and are those of every clip.", check=recorded_calls),
    Rule(id="recorded-spans", meaning="A clip has as many spans as it says.", check=recorded_spans),
    Rule(id="recorded-workload", meaning="Frames and calls follow from frame blocks and steps.", check=recorded_workload),
    Rule(id="recorded-parent", meaning="A frame block lasts at least as long as what runs inside it.", check=recorded_parent),
    Rule(
        id="recorded-reference",
        meaning="A recorded metric that compares pictures names its reference.",
        severity="warning",
        check=recorded_reference,
    ),
    Rule(id="recorded-serialised", meaning="No timing is taken with serialised launches.", check=recorded_serialised),
)
