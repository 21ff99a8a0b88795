"""One denoise step of every traced variant on a common axis: work and gaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from strobe.core.spans import ATTENTION, CROSS_ATTENTION, DENOISE_STEP, FFN, FRAME_BLOCK
from strobe.perf.analysis.device.idle import HOST_LATE, LAUNCH_LATENCY, PROFILER_OVERHEAD, QUEUED, UNLINKED
from strobe.perf.analysis.ledger.account import is_attention_kernel
from strobe.perf.analysis.runs.partition import block_slices
from strobe.perf.analysis.runs.timeline import GAP, Label, Slice
from strobe.perf.report.blocks.lanes import LaneSlices, Piece, class_table, draw_lanes, merged
from strobe.perf.report.model import Figure, Kind, Paragraph, Section
from strobe.perf.report.study import Profile, RunStudy, Subject

_KERNEL: Final = Kind("attention kernel", "focal")
_WORK: Final = (
    (ATTENTION, Kind("attention section, other work", "work1")), (FFN, Kind("feed-forward", "work2")),
    (CROSS_ATTENTION, Kind("cross-attention", "work3")),
)  # fmt: skip
_OTHER: Final = Kind("other work", "work4")
_GAPS: Final = {
    GAP: Kind("no operator runs (Python, framework)", "gap1"), HOST_LATE: Kind("idle: host late", "gap1"),
    LAUNCH_LATENCY: Kind("idle: launch latency", "gap2"), QUEUED: Kind("idle: queued, not started", "gap3"),
    UNLINKED: Kind("idle: cause unknown", "gap4"), PROFILER_OVERHEAD: Kind("idle: profiler overhead", "gap5"),
}  # fmt: skip
_KINDS: Final = (_KERNEL, *(kind for _, kind in _WORK), _OTHER, *_GAPS.values())


def kind_of(label: Label) -> Kind:
    """Return the class in which a label is drawn."""
    if label.activity in _GAPS:
        return _GAPS[label.activity]
    if is_attention_kernel(label):
        return _KERNEL
    return next((kind for name, kind in _WORK if name in label.path), _OTHER)


def timeline_section(study: RunStudy) -> Section:
    """Build the section with the timeline and its table."""
    title = "One denoise step, before and after"
    traced = [subject for subject in study.subjects if isinstance(subject.profile, Profile)]
    steps = [(subject, found) for subject in traced if (found := _step(subject.profile)) is not None]
    if not steps:
        text = "No picture: no variant has a traced denoise step."
        return Section("timeline", title, "", (Paragraph(text),))
    lead = (
        "The first denoise step of the last traced frame block of each variant, each from its own start. "
        "Traced, so longer than a timed step."
    )
    return Section("timeline", title, lead, (_figure(steps),))


def _step(profile: Profile | str) -> list[Piece] | None:
    """Return the slices of the first denoise step in the last traced frame block, from 0; None if there is none."""
    assert isinstance(profile, Profile)
    block = profile.partition.indices[-1]
    host = next(region for region in profile.trace.regions if region.name == FRAME_BLOCK and region.index == block)
    spans = sorted(
        (region.start_ns, region.end_ns)
        for region in profile.trace.regions
        if region.thread == host.thread and host.start_ns <= region.start_ns < host.end_ns and region.name == DENOISE_STEP
    )
    if not spans:
        return None
    start, end = spans[0]
    slices = block_slices(profile.timeline, block)
    if profile.partition.device != "cpu":
        start, end = _on_device(profile, slices, start, end)
    return merged(_cut(slices, start, end))


def _on_device(profile: Profile, slices: Sequence[Slice], start: int, end: int) -> tuple[int, int]:
    """Map a host range to the device: from the first event launched in it to the first one launched after it."""
    launched = []
    for piece in slices:
        host = None if piece.event is None else profile.trace.device_events[piece.event].host
        if host is not None:
            launched.append((host.start_ns, piece.start_ns))
    inside = [at for host, at in launched if start <= host < end]
    after = [at for host, at in launched if host >= end]
    first = min(inside, default=slices[0].start_ns)
    return first, max(first + 1, min(after, default=slices[-1].end_ns))


def _cut(slices: Sequence[Slice], start: int, end: int) -> Iterator[Piece]:
    for piece in slices:
        left, right = max(piece.start_ns, start), min(piece.end_ns, end)
        if left < right:
            kind = kind_of(piece.label)
            yield Piece(left - start, right - start, piece.name or kind.label, kind)


def _figure(steps: Sequence[tuple[Subject, list[Piece]]]) -> Figure:
    lanes = [LaneSlices(label=subject.label, series=subject.series, pieces=pieces) for subject, pieces in steps]
    assert all(before[1] == after[0] for _, pieces in steps for before, after in pairwise(pieces)), "slices do not tile the step"
    picture = draw_lanes(lanes, _KINDS, _KERNEL)
    title = "What ran in the step (solid) and where nothing did (hatched), on one axis. The attention kernel stands out."
    table = class_table(lanes, picture, "Time of the step by class", "the step", drawn=True)
    return Figure(title, "Timeline of one denoise step per variant; the table gives the sums.", picture, table)
