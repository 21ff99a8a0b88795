"""Record lines of clips: their numbers, given as they finish, the spans of single calls, numbers, and traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strobe.perf.measure.machine import peak_bytes
from strobe.perf.records.record import Clip, Clock, Clocks, Phase, Quality, Span, Trace

if TYPE_CHECKING:
    import torch

    from strobe.perf.measure.profile import WrittenTrace


class ClipNumbers:
    """Counter that numbers each finished clip among its variant's clips and in the run.

    Args:
        device: whose peak memory a clip has; None: it ran elsewhere.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._done: Counter[str] = Counter()

    def finish(self, name: str, phase: Phase, lap: int | None, num_spans: int, clocks: Clocks | None = None) -> Clip:
        """Return the record of a variant's clip that ends now, with the peak memory since its start."""
        clip = Clip(
            variant=name,
            clip=self._done[name],
            order=self._done.total(),
            palindrome=lap,
            phase=phase,
            num_spans=num_spans,
            peak_bytes=None if self._device is None else peak_bytes(self._device),
            clocks=clocks,
        )
        self._done[name] += 1
        return clip


def timed_span(clip: Clip, name: str, index: int, value_ns: int, clock: Clock = "perf_counter", **more: Any) -> Span:
    """Return the span of one timed call, or of a region of it."""
    return Span(
        variant=clip.variant, clip=clip.clip, order=clip.order, palindrome=clip.palindrome, name=name, index=index,
        value_ns=value_ns, clock=clock, warmup=False, **({"start_ns": 0} | more),
    )  # fmt: skip


def call_spans(
    clip: Clip, name: str, times_ns: Sequence[int], clock: Clock, *, part: str = "", start_ns: int = 0
) -> Iterator[Span]:
    """Yield one span per call. Queued calls have no start of their own: it is the sum of the times before them.

    Args:
        part: stage of the call, if the spans are of one.
        start_ns: what the calls before these took.
    """
    for index, value in enumerate(times_ns):
        yield timed_span(clip, name, index, value, clock, part=part, start_ns=start_ns)
        start_ns += value


def number(variant: str, metric: str, value: float, definition: str, **more: Any) -> Quality:
    """Return a number that was measured once as a record; one that is not finite has no value.

    Args:
        more: other fields of the record; without `better` less is better.
    """
    finite = abs(value) < float("inf")
    own: dict[str, Any] = {"unit": "", "reference": "", "better": "lower", "note": "" if finite else "not finite"} | more
    return Quality(variant=variant, metric=metric, value=value if finite else None, definition=definition, n=1, **own)


def trace_line(
    clip: Clip, file: WrittenTrace, folder: Path, blocks: range, regions: Sequence[str] = (), options: Sequence[str] = ()
) -> Trace:
    """Return the record of a clip's trace.

    Args:
        folder: of the run; the path of the file is recorded relative to it.
        blocks: numbers of the frame blocks, or calls, that were recorded.
        regions: that were marked.
        options: of the profiler, which slow the host down.
    """
    return Trace(
        variant=clip.variant,
        clip=clip.clip,
        path=str(file.path.relative_to(folder)),
        sha256=file.sha256,
        size_bytes=file.size_bytes,
        first_block=blocks.start,
        num_blocks=len(blocks),
        regions=tuple(regions),
        options=tuple(options),
    )
