"""Parts of a frame block, or of a step of a foreign trace, under names that a reader knows.

Every label of a ledger belongs to one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from strobe.core import spans
from strobe.perf.analysis.device.idle import HOST_LATE, IDLE, LAUNCH_LATENCY, PROFILER_OVERHEAD, UNLINKED
from strobe.perf.analysis.device.kernel_kinds import KernelKind
from strobe.perf.analysis.runs.compiled import KINDS
from strobe.perf.analysis.runs.replays import UNMATCHED
from strobe.perf.analysis.runs.timeline import NOT_LINKED, OUTSIDE, Label

MISMATCH: Final = "timed run minus trace"
"""Activity of the untraced run's time beyond the trace; negative where the trace shows more."""
UNTRACED: Final = "untraced"
"""Activity of frame blocks of a kind that no trace holds."""
AROUND: Final = "before and after the frame blocks"
"""Activity of a clip's time outside its frame blocks."""
NOT_APART: Final = "not told apart"
"""Innermost name of work in a graph whose kernels cannot be labelled, and of the same pass on the other side."""


class Part(StrEnum):
    """Parts that time is spent on, as the answer names them."""

    ATTENTION_KERNEL = "attention kernel"
    ATTENTION_AROUND = "attention around its kernel"
    CROSS_ATTENTION = "cross-attention"
    FEED_FORWARD = "feed-forward"
    NORMS = "norms and glue"
    PASS = "transformer pass, not told apart"
    FOCAL = "focal kernel"
    SECTION = "section around the focal kernel"
    OTHER_ATTENTION = "attention kernels"
    MATRIX = "matrix products"
    OTHER_KERNELS = "other kernels"
    COPIES = "copies"
    COMMUNICATION = "communication between devices"
    WAITING = "GPU waiting for the host"
    GAPS = "gaps between kernels"
    DECODING = "decoding"
    REST = "noise and prompts"
    ENDS = "start and end of the clip"
    UNNAMED = "unexplained"


MEANING: Final[dict[Part, str]] = {
    Part.ATTENTION_KERNEL: "self-attention itself; of video-sparse attention its fine stage",
    Part.ATTENTION_AROUND: "queries, keys and values, RoPE, the cache, selection, output projection",
    Part.CROSS_ATTENTION: "attention to the prompt with its projections",
    Part.FEED_FORWARD: "both matrices and the activation between them",
    Part.NORMS: "norms, modulation, residuals, embedding, output head, fresh noise mixed in",
    Part.PASS: "kernels of graphs that nothing tells apart",
    Part.FOCAL: "the kernel that was named as the one the change is about",
    Part.SECTION: "other kernels inside the section that was asked for",
    Part.OTHER_ATTENTION: "kernels of attention by their names, but for the focal one",
    Part.MATRIX: "matrix products and convolutions by the names of their kernels",
    Part.OTHER_KERNELS: "norms, elementwise operations, reductions and all else",
    Part.COPIES: "memory copies and fills",
    Part.COMMUNICATION: "messages between devices that share a stream",
    Part.WAITING: "no kernel runs, because the host has launched none yet, or a launch is on its way",
    Part.GAPS: "no kernel runs although the next one is launched: graph nodes, streams that wait for each other",
    Part.DECODING: "latents to pixels, and waiting for it",
    Part.REST: "noise drawn, prompts read, cache opened for a frame block",
    Part.ENDS: "from the call to the first frame block, and from the last one to the end",
    Part.UNNAMED: "in no region, launched before the trace, not traced, or traced beyond what the untraced run took",
}
LIMITS: Final[dict[Part, str]] = {
    Part.ATTENTION_KERNEL: "attention FLOPs",
    Part.ATTENTION_AROUND: "the work around the attention kernel",
    Part.CROSS_ATTENTION: "cross-attention",
    Part.FEED_FORWARD: "the matrix products of the feed-forward",
    Part.NORMS: "memory traffic of norms and glue",
    Part.FOCAL: "the focal kernel",
    Part.SECTION: "the work around the focal kernel",
    Part.OTHER_ATTENTION: "attention kernels",
    Part.MATRIX: "matrix products",
    Part.OTHER_KERNELS: "other kernels (norms, elementwise operations, reductions)",
    Part.COPIES: "memory copies",
    Part.COMMUNICATION: "communication between devices",
    Part.GAPS: "gaps between kernels",
    Part.DECODING: "decoding",
}
"""Names of what limits a frame block or step whose largest part this is; the other parts are no limit by themselves."""
TOGETHER: Final[dict[tuple[Part, Part], str]] = {
    (Part.FOCAL, Part.SECTION): "the focal kernel and the section around it",
    (Part.ATTENTION_KERNEL, Part.ATTENTION_AROUND): "attention and the work around its kernel",
}
"""Parts of one thing, which limits together where no part of it is the largest of all."""
BY_THE_CLOCK: Final = frozenset({Part.ATTENTION_KERNEL, Part.OTHER_ATTENTION, Part.FEED_FORWARD, Part.MATRIX})
"""Parts of large matrix products, whose time is taken to go with the SM clock; the others also wait for memory or the host."""
NAMELESS: Final = frozenset({Part.UNNAMED, Part.PASS})
"""Parts that do not count as explained."""
_NORMS: Final = frozenset(
    {spans.MODULATED_NORM, spans.GATED_RESIDUAL, spans.CROSS_NORM, spans.CROSS_RESIDUAL, spans.PATCH_EMBEDDING, spans.CONDITIONS,
     spans.HEAD, spans.RENOISE}
)  # fmt: skip
_COPIES: Final = frozenset({"memcpy", "memset"})
_WAITING: Final = frozenset({HOST_LATE, LAUNCH_LATENCY, PROFILER_OVERHEAD})
_OF_KIND: Final = {
    KernelKind.ATTENTION: Part.OTHER_ATTENTION, KernelKind.MATRIX: Part.MATRIX, KernelKind.OTHER: Part.OTHER_KERNELS,
}  # fmt: skip
_COMPILED: Final = {name: _OF_KIND[kind] for kind, name in KINDS.items()}
_PASSES: Final = frozenset({spans.DENOISE_STEP, spans.COMMIT, spans.RECACHE})
_DECODING: Final = frozenset({spans.VAE_DECODE, spans.DECODE_WAIT})
_REST: Final = frozenset({spans.DRAW, spans.TEXT, spans.TEXT_KV, spans.KV_OPEN, spans.KV_SINK})


def part_of(label: Label) -> Part:
    """Return the part that a label belongs to."""
    path, activity = label
    if activity in (MISMATCH, UNTRACED) or path in (NOT_LINKED, OUTSIDE) or UNMATCHED in path:
        return Part.UNNAMED
    if activity == AROUND:
        return Part.ENDS
    if activity in IDLE:
        return Part.WAITING if activity in _WAITING else Part.GAPS
    if not path:
        return Part.UNNAMED
    if NOT_APART in path:
        return Part.PASS
    if activity == "comm":
        return Part.COMMUNICATION
    if activity in _COPIES and path[0] not in _DECODING:
        return Part.COPIES
    names = frozenset(path)
    if path[0] in _DECODING:
        return Part.DECODING
    if path[-1] in _COMPILED:
        return _COMPILED[path[-1]]
    if spans.ATTENTION_KERNEL in names:
        return Part.ATTENTION_KERNEL
    if path[-1] in _NORMS:
        return Part.NORMS
    if spans.ATTENTION in names:
        return Part.ATTENTION_AROUND
    if spans.CROSS_ATTENTION in names:
        return Part.CROSS_ATTENTION
    if spans.FFN in names:
        return Part.FEED_FORWARD
    if path[0] in _PASSES:
        return Part.NORMS
    return Part.REST if path[0] in _REST else Part.UNNAMED


def trace_part(label: Label, kind: KernelKind = KernelKind.OTHER) -> Part:
    """Return the part that a label of a foreign trace belongs to.

    Args:
        label: focal kernel, section or step, and what ran there; without a path, what a log measured beyond the trace.
        kind: kind of the kernels that are neither focal nor of a section.
    """
    path, activity = label
    if not path or activity == UNLINKED:
        return Part.UNNAMED
    if activity in IDLE:
        return Part.WAITING if activity in _WAITING else Part.GAPS
    if path == ("focal",):
        return Part.FOCAL
    if activity == "comm":
        return Part.COMMUNICATION
    if activity in _COPIES:
        return Part.COPIES
    return Part.SECTION if path == ("section",) else _OF_KIND[kind]
