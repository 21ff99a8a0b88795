"""Gives each moment of a stretch of time to one of the events that overlap there."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple


class Span(NamedTuple):
    """An event `[start, end)`: where several overlap, the lowest `rank` owns the time. Ranks differ from each other."""

    start: int
    end: int
    rank: tuple[int, ...]
    event: int


def sweep(spans: Iterable[Span], start: int, end: int, cuts: Iterable[int] = ()) -> Iterator[tuple[int, int, int | None]]:
    """Yield `(start, end, event)` slices that tile `[start, end)` in order; `event` is `None` where no span is.

    Args:
        spans: events; those of length 0 own nothing.
        start: start of the stretch.
        end: end of the stretch.
        cuts: further moments at which a slice must end.
    """
    live = sorted(span for span in spans if max(span.start, start) < min(span.end, end))
    edges = {edge for span in live for edge in span[:2]}
    edges.update(cuts)
    bounds = [start, *sorted(edge for edge in edges if start < edge < end), end]
    open_spans: list[tuple[tuple[int, ...], int, int]] = []
    arriving = 0
    for left, right in pairwise(bounds):
        while arriving < len(live) and live[arriving].start <= left:
            span = live[arriving]
            heapq.heappush(open_spans, (span.rank, span.end, span.event))
            arriving += 1
        while open_spans and open_spans[0][1] <= left:
            heapq.heappop(open_spans)
        if left < right:
            yield left, right, open_spans[0][2] if open_spans else None
